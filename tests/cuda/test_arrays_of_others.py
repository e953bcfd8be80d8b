"""Arrays of PyTorch, JAX and Numba on a CUDA device, by stand-ins: views without a copy, streams, and the same kind back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import linalg, switches
from backline.errors import BadType, BadValue
from backline.libraries.cuda.common import bindings
from backline.nn import functional
from fakes.computing import Blas, Lt
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.insert import inserted
from support import clean

real = pytest.importorskip("nvmath.bindings.cublas")
real_lt = pytest.importorskip("nvmath.bindings.cublasLt")
pytestmark = pytest.mark.usefixtures("clean")
assert clean


class dtype:
    """A dtype of PyTorch."""

    __module__ = "torch"

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


DTYPES = {
    each: dtype(each)
    for each in (
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "int8",
        "int16",
        "uint8",
        "int32",
        "float8_e4m3fn",
        "float8_e5m2",
        "complex64",
    )
}


class Tensor:
    """A tensor; `host` is the NumPy array whose memory stands for the device's."""

    __module__ = "torch"

    def __init__(self, host: Any, device: str = "cuda:0") -> None:
        kind, _, index = device.partition(":")
        self.host, self.device = host, SimpleNamespace(type=kind, index=int(index) if index else None)
        self.requires_grad = self.is_quantized = False
        self.layout, self.writes = "strided", 0

    shape = property(lambda self: self.host.shape)
    dtype = property(lambda self: DTYPES[self.host.dtype.name])

    def detach(self) -> Tensor:
        return self

    def is_conj(self) -> bool:
        return False

    is_neg = is_inference = is_conj

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.host.itemsize for step in self.host.strides)

    def element_size(self) -> int:
        return int(self.host.itemsize)

    def data_ptr(self) -> int:
        return int(self.host.ctypes.data)

    def view(self, kind: dtype) -> Tensor:
        name = kind.name
        return Tensor(self.host.view(getattr(ml_dtypes, name) if name == "bfloat16" or "float8" in name else name))

    def numpy(self) -> Any:
        return self.host


Tensor.__qualname__ = "Tensor"


class Torch:
    """The part of PyTorch that the views use."""

    def __init__(self) -> None:
        self.Tensor, self.nn, self.strided = Tensor, SimpleNamespace(Parameter=type("Parameter", (), {})), "strided"
        self.version = SimpleNamespace(cuda="13.0")
        self.stream, self.taken = 0x51, []  # type: ignore[var-annotated]  # of any type
        self.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=self.stream))
        self.autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=self.written))
        for name, kind in DTYPES.items():
            setattr(self, name, kind)

    def is_grad_enabled(self) -> bool:
        return True

    def written(self, tensor: Tensor) -> None:
        tensor.writes += 1

    def from_dlpack(self, array: Any) -> Tensor:
        assert type(array) is ndarray and array.dtype.kind != "V", "bfloat16 goes as integers"
        self.taken.append(bindings.cupy().cuda.get_current_stream().ptr)
        return Tensor(array.host, f"cuda:{array.device.id}")


class DeviceNDArray:
    """An array of Numba's."""

    __module__ = "numba.cuda.cudadrv.devicearray"

    def __init__(self, host: Any, stream: Any = None, read_only: bool = False, mask: Any = None, version: int = 3) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "shape": host.shape, "typestr": host.dtype.str, "data": (host.ctypes.data, read_only), "version": version,
            "strides": None if host.flags.c_contiguous else host.strides,
        } | ({"stream": stream} if version > 2 else {}) | ({"mask": mask} if mask is not None else {})  # fmt: skip


class ArrayImpl:
    """An array of JAX's."""

    __module__ = "jaxlib._jax"

    def __init__(self, host: Any, platform: str = "gpu") -> None:
        self.host, self.platform, self.streams = host, platform, []  # type: ignore[var-annotated]  # of any type

    def devices(self) -> set[Any]:
        class Device:
            platform = self.platform

        return {Device()}

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: Any) -> Any:
        self.streams.append(stream)
        return self.host


class Machine:
    def __init__(self) -> None:
        self.cupy, self.torch = CuPy(H100, H100), Torch()
        self.cublas, self.lt = Blas(real), Lt(real_lt)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    monkeypatch.setitem(sys.modules, "torch", made.torch)  # type: ignore[arg-type]  # a stand-in for the module
    numba = SimpleNamespace(cuda=SimpleNamespace(as_cuda_array=lambda array: DeviceNDArray(array.host)))
    monkeypatch.setitem(sys.modules, "numba", numba)  # type: ignore[arg-type]  # a stand-in for the module
    jax = SimpleNamespace(
        core=SimpleNamespace(Tracer=type("Tracer", (), {})),
        dlpack=SimpleNamespace(from_dlpack=lambda array: ArrayImpl(array.host)),
    )
    monkeypatch.setitem(sys.modules, "jax", jax)  # type: ignore[arg-type]  # a stand-in for the module
    with inserted(cupy=made.cupy, cublas=made.cublas, cublasLt=made.lt):
        yield made


def some(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_tensors_in_and_tensors_out(machine: Machine, name: str) -> None:
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else name
    x, y = some(4, 8, dtype=kind), some(8, 8, dtype=kind)
    got = backline.matmul(Tensor(x), Tensor(y.T))
    assert type(got) is Tensor and got.dtype is DTYPES[name] and got.device.type == "cuda"
    assert np.allclose(got.host.astype(np.complex128), x.astype(np.complex128) @ y.T.astype(np.complex128), rtol=0.02, atol=0.05)
    assert backline.explain().problem.device == "cuda:0"


def test_layers_that_own_their_weights(machine: Machine) -> None:
    w, b, x = some(6, 8), some(6), some(4, 8)
    layer, matrix = functional.prepack_linear(Tensor(w), Tensor(b)), backline.prepack(Tensor(w.T))
    for got, wanted in ((layer(Tensor(x)), x @ w.T + b), (matrix.product(Tensor(x)), x @ w.T)):
        assert type(got) is Tensor and np.allclose(got.host, wanted, rtol=0.02, atol=0.05) and machine.torch.taken[-1] == 0x51
    assert type(layer.weight) is ndarray
    w[:] = 0
    assert np.array_equal(layer.weight.host, matrix.unpack().host.T) and layer.weight.host.any()
    with pytest.raises(BadType, match=r"bias is an array of NumPy"):
        functional.prepack_linear(Tensor(w), b)


def test_no_copy_is_made_and_work_goes_to_the_stream_of_pytorch(machine: Machine) -> None:
    x, y = some(4, 8), some(8, 8)
    got = backline.matmul(Tensor(x), Tensor(y))
    call = machine.cublas.calls("gemm_ex")[-1]
    assert (call["a"], call["b"], call["c"]) == (y.ctypes.data, x.ctypes.data, got.host.ctypes.data)
    assert machine.cublas.calls("set_stream")[-1]["stream_id"] == 0x51 and machine.torch.taken == [0x51]
    assert machine.cupy.cuda.get_current_stream().ptr == 0, "CuPy's own stream is the current one again"
    machine.torch.stream = 0
    with machine.cupy.cuda.Stream():
        backline.matmul(Tensor(x), Tensor(y))
    assert machine.cublas.calls("set_stream")[-1]["stream_id"] == 0


def test_results_of_several_arrays_and_outputs(machine: Machine) -> None:
    x, out = some(4, 4), Tensor(np.zeros((4, 4), np.float32))
    assert backline.matmul(Tensor(x), Tensor(x), out=out) is out and out.writes == 1
    assert np.allclose(out.host, x @ x, atol=1e-5)
    assert type(linalg.matrix_power(Tensor(x), 2)) is Tensor, "composed of others"


def test_tensors_on_two_devices_or_beside_the_host_are_refused(machine: Machine) -> None:
    x = some(4, 4)
    with pytest.raises(BadValue, match="on the host and on a CUDA device"):
        backline.matmul(Tensor(x), Tensor(x, "cpu"))
    with pytest.raises(BadType, match="PyTorch"):
        backline.matmul(Tensor(x), ndarray(x))


def test_a_gradient_is_not_lost_in_silence(machine: Machine) -> None:
    tensor = Tensor(some(4, 4))
    tensor.requires_grad = True
    with pytest.raises(BadType, match="requires grad"):
        backline.matmul(tensor, tensor)


def test_products_of_float8_tensors(machine: Machine) -> None:
    x = some(16, 32).astype(ml_dtypes.float8_e4m3fn)
    one = Tensor(np.ones(1, np.float32))
    got = backline.nn.functional.scaled_mm(
        Tensor(x),
        Tensor(x.T),
        one,
        "TensorWise",
        one,
        "TensorWise",
        output_dtype=DTYPES["bfloat16"],  # type: ignore[arg-type]  # a dtype of others
    )
    assert type(got) is Tensor and got.dtype is DTYPES["bfloat16"]
    wide = x.astype(np.float64)
    assert np.allclose(got.host.astype(np.float64), wide @ wide.T, rtol=2.0**-7, atol=1e-3)


def test_without_cupy_it_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "reason", lambda *names: "cupy is not installed")
    with pytest.raises(BadValue, match="namespace") as caught:
        backline.matmul(Tensor(some(2, 2)), Tensor(some(2, 2)))
    assert "cupy is not installed" in str(caught.value) and "cuda13" in caught.value.remedy


@pytest.mark.parametrize("stream", [None, 1, 2, 0x77])
def test_the_stream_of_the_interface_is_waited_for(machine: Machine, stream: Any) -> None:
    x = some(4, 4)
    mine = machine.cupy.cuda.Stream()
    with mine:
        got = backline.matmul(DeviceNDArray(x, stream), DeviceNDArray(np.asfortranarray(x), stream))
    assert type(got) is DeviceNDArray and np.allclose(got.host, x @ x, atol=1e-5)
    assert [each.ptr for each in mine.waited] == ([] if stream is None else [stream] * 2)
    assert not mine.synchronized, "the host does not wait"


def test_the_same_stream_is_not_waited_for(machine: Machine) -> None:
    x = some(4, 4)
    backline.matmul(DeviceNDArray(x, 1), DeviceNDArray(x, version=2))
    assert not machine.cupy.cuda.null_stream.waited


def test_what_the_interface_forbids(machine: Machine) -> None:
    x = some(4, 4)
    with pytest.raises(BadValue, match="out is read-only"):
        backline.matmul(DeviceNDArray(x), DeviceNDArray(x), out=DeviceNDArray(x.copy(), read_only=True))
    out = DeviceNDArray(x.copy())
    assert backline.matmul(DeviceNDArray(x, read_only=True), DeviceNDArray(x), out=out) is out
    with pytest.raises(BadType, match="mask"):
        backline.matmul(DeviceNDArray(x, mask=x), DeviceNDArray(x))
    with pytest.raises(BadValue, match="stream 0"):
        backline.matmul(DeviceNDArray(x, 0), DeviceNDArray(x))


def test_arrays_of_jax(machine: Machine) -> None:
    x, mine = ArrayImpl(some(4, 4)), machine.cupy.cuda.Stream()
    with mine:
        got = backline.matmul(x, x)
    assert type(got) is ArrayImpl and np.allclose(got.host, x.host @ x.host, atol=1e-5)
    assert x.streams == [mine.ptr], "one view for one array, and the stream that reads it"
    with pytest.raises(BadType, match="nothing writes"):
        backline.matmul(x, x, out=ArrayImpl(some(4, 4)))


def test_empty_tensors_and_settings(machine: Machine) -> None:
    assert backline.matmul(Tensor(some(0, 4)), Tensor(some(4, 3))).shape == (0, 3)
    with switches.scope({"prefer": ("cublaslt",)}):
        backline.matmul(Tensor(some(4, 4)), Tensor(some(4, 4)))
        assert backline.explain().library == "cublaslt"
