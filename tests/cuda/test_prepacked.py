"""Layers that own their weights on CUDA arrays: results, whose memory is read, plans, switches, devices, streams, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.errors import BadType, BadValue
from backline.nn import functional as F
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.insert import inserted
from fakes.solver_machine import real_types
from support import LAYOUTS, clean, dtype_of, new_seed

real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean

NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-12}
EXACT = {"fp32_precision": "ieee"}
Array = Any


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GpuMachine:
    return GpuMachine(tmp_path_factory.mktemp("machine"))


@pytest.fixture
def machine(made: GpuMachine) -> Iterator[GpuMachine]:
    with inserted(**made.modules()), switches.scope(EXACT):
        yield made


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(new_seed())


def there(array: Array, device: int = 0) -> Any:
    """The array as it lies, at an address as CuPy's pool has them."""
    room = np.empty(array.nbytes + 512, np.uint8)
    first = -room.ctypes.data % 512
    dense = array.flags.c_contiguous or channels_behind(array).flags.c_contiguous
    if not dense or not array.size:
        return ndarray(array, device)
    made = np.ndarray(array.shape, array.dtype, room, first, array.strides)
    made[...] = array
    return ndarray(made, device)


def channels_behind(array: Array) -> Array:
    return np.moveaxis(array, 1, -1) if array.ndim > 2 else array


def last(array: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def numbers(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> Array:
    return rng.standard_normal(shape).astype(dtype_of(dtype))


def near(found: Any, wanted: Array, dtype: str = "float32") -> None:
    """Relative to the largest element, with a bound for sums of a few hundred terms."""
    assert type(found) is ndarray and found.shape == wanted.shape and found.dtype == dtype_of(dtype)
    wide = wanted.astype(np.float64)
    assert np.abs(found.host.astype(np.float64) - wide).max(initial=0) <= NEAR[dtype] * (1 + np.abs(wide).max(initial=0))


CONVS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ("conv2d", (2, 5, 6, 7), (4, 5, 3, 3), {"padding": 1}), "1x1": ("conv2d", (1, 8, 3, 3), (16, 8, 1, 1), {}),
    "same": ("conv2d", (1, 4, 8, 9), (3, 4, 4, 2), {"padding": "same", "dilation": (2, 1)}),
    "groups": ("conv2d", (2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3}), "depthwise": ("conv2d", (2, 8, 8, 8), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
    "signals": ("conv1d", (3, 8, 20), (12, 8, 5), {"padding": 2, "stride": 2}), "volumes": ("conv3d", (1, 4, 5, 4, 6), (6, 4, 3, 3, 3), {"padding": 1}),
    "transposed": ("conv_transpose2d", (1, 6, 5, 5), (6, 4, 4, 4), {"stride": 2, "padding": 1}),
    "transposed groups": ("conv_transpose2d", (2, 6, 4, 5), (6, 2, 3, 3), {"stride": 2, "groups": 2, "output_padding": 1}),
    "transposed signals": ("conv_transpose1d", (2, 3, 7), (3, 4, 3), {}),
}  # fmt: skip


@pytest.mark.parametrize("cudnn", [True, False])
@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str, cudnn: bool, rng: np.random.Generator) -> None:
    op, shape, kernel, settings = CONVS[name]
    prepack, plain = getattr(F, f"prepack_{op}"), getattr(F, op)
    x, w = numbers(rng, *shape), numbers(rng, *kernel)
    outs = kernel[1] * settings.get("groups", 1) if "transpose" in op else kernel[0]
    b = numbers(rng, outs)
    with switches.scope({"cudnn.enabled": cudnn}):
        for arrange in (np.ascontiguousarray, last):
            layer = prepack(there(arrange(w)), there(b), activation="relu", **settings)
            wanted = np.maximum(plain(x.astype(np.float64), w.astype(np.float64), b.astype(np.float64), **settings), 0)
            for lay in (np.ascontiguousarray, last, lambda a: LAYOUTS["steps"](a)):
                given = there(lay(x))
                found = layer(given)
                near(found, wanted)
                assert (
                    channels_behind(found.host).flags.c_contiguous
                    is channels_behind(plain(lay(x), w, **settings)).flags.c_contiguous
                )
                near(layer(given[0]), wanted[0])
                out, residual = there(np.zeros(wanted.shape, np.float32)), numbers(rng, *wanted.shape)
                assert layer(given, out=out) is out
                near(out, wanted)
                both = layer(given, there(residual), out)
                assert both is out
                near(
                    out,
                    np.maximum(plain(x.astype(np.float64), w.astype(np.float64), b.astype(np.float64), **settings) + residual, 0),
                )
                single = there(np.zeros(wanted.shape[1:], np.float32))
                assert layer(given[0], out=single) is single
                near(single, wanted[0])


@pytest.mark.parametrize("dtype", NEAR)
def test_linear_layers(dtype: str, rng: np.random.Generator) -> None:
    w, b = numbers(rng, 12, 16, dtype=dtype), numbers(rng, 12, dtype=dtype)
    for lay in ("C", "F", "steps", "negative rows"):
        for bias in (b, None):
            layer = F.prepack_linear(there(LAYOUTS[lay](w)), None if bias is None else there(bias), activation="relu")
            for shape in ((16,), (3, 16), (2, 3, 16), (0, 16)):
                x = numbers(rng, *shape, dtype=dtype)
                wide = x.astype(np.float64) @ w.astype(np.float64).T + (0 if bias is None else bias.astype(np.float64))
                near(layer(there(x)), np.maximum(wide, 0), dtype)
                residual, out = numbers(rng, *wide.shape, dtype=dtype), there(np.zeros(wide.shape, w.dtype))
                assert layer(there(x), residual=there(residual), out=out) is out
                near(out, np.maximum(wide + residual.astype(np.float64), 0), dtype)
    row = F.prepack_linear(there(w[0].copy()))
    near(row(there(w)), w.astype(np.float64) @ w[0].astype(np.float64), dtype)


def test_misaligned_weights(rng: np.random.Generator) -> None:
    w, x = numbers(rng, 12, 16), numbers(rng, 3, 16)
    layer = F.prepack_linear(ndarray(LAYOUTS["misaligned"](w)))
    near(layer(there(x)), x @ w.T)


def test_it_is_a_copy(rng: np.random.Generator) -> None:
    w, b, x = there(numbers(rng, 4, 4)), there(numbers(rng, 4)), there(numbers(rng, 3, 4))
    layer = F.prepack_linear(w, b)
    first = layer(x).get()
    w[...] = 0
    b[...] = 0
    layer.weight[...] = 5
    layer.bias[...] = 5
    assert np.array_equal(layer(x).host, first)
    assert type(layer.weight) is ndarray and layer.nbytes == 4 * 16 + 4 * 4


def test_the_weight_is_read_where_it_lies(machine: GpuMachine, rng: np.random.Generator) -> None:
    """cuDNN is given the layer's own copy, in the order of the images; the second order is a copy made once."""
    w = numbers(rng, 8, 4, 3, 3)
    layer = F.prepack_conv2d(there(w))
    state = layer._layer
    for arrange, kept in ((np.ascontiguousarray, 1), (last, 2), (np.ascontiguousarray, 2), (last, 2)):
        x = there(arrange(numbers(rng, 2, 4, 6, 6)))
        layer(x)
        assert backline.explain().library == "cudnn" and len(state.copies) == kept
        plan = state.resolve((x,), {})
        operand = plan.choice.problem.get("weight")
        (weight,) = plan.arrays
        assert weight.strides == operand.strides and any(weight is each for each in state.copies.values())
    assert layer.nbytes == 2 * w.nbytes


def test_weights_with_channels_last_stay_so(rng: np.random.Generator) -> None:
    w, x = numbers(rng, 8, 4, 3, 3), numbers(rng, 2, 4, 6, 6)
    layer = F.prepack_conv2d(there(last(w)))
    layer(there(last(x)))
    assert list(layer._layer.copies) == [True] and layer.nbytes == w.nbytes
    with switches.scope({"cudnn.enabled": False}):  # its products read weights in C order
        near(layer(there(last(x))), F.conv2d(x, w))
    assert sorted(layer._layer.copies) == [False, True]


def test_what_would_run_is_told(rng: np.random.Generator) -> None:
    layer, x = F.prepack_conv2d(there(numbers(rng, 8, 4, 3, 3))), there(last(numbers(rng, 2, 4, 6, 6)))
    choice = backline.explain(layer, x)
    layer(x)
    assert choice.problem == backline.explain().problem == layer.problem(x) and not choice.problem.packed
    with switches.scope({"cudnn.enabled": False}):
        assert "cudnn.enabled" in str(backline.explain(layer, x)) and backline.explain(layer, x).library == "cublas"


def test_copies_and_pickles(rng: np.random.Generator) -> None:
    layer, x = F.prepack_linear(there(numbers(rng, 4, 4)), activation="relu"), there(numbers(rng, 3, 4))
    again = copy.copy(layer)
    assert np.array_equal(again(x).host, layer(x).host) and again.settings == layer.settings and repr(again) == repr(layer)
    assert repr(layer) == "<packed linear f32 4x4 activation='relu'>"
    function, parts = layer.__reduce__()
    assert type(parts[1]) is ndarray and pickle.loads(pickle.dumps(function)) is function  # true arrays of CuPy's are pickled


def test_devices(rng: np.random.Generator) -> None:
    w, x = numbers(rng, 4, 4), numbers(rng, 3, 4)
    layer = F.prepack_linear(there(w, 1))
    found = layer(there(x, 1))
    assert found.device.id == 1
    near(found, x @ w.T)
    with pytest.raises(BadValue, match=r"(?s)input is on cuda:0, the layer's weights are on cuda:1.*runs where its weights are"):
        layer(there(x))
    with pytest.raises(BadValue, match="residual is on cuda:0"):
        layer(there(x, 1), there(x))
    with pytest.raises(BadValue, match="cuda:0 and cuda:1"):
        F.prepack_linear(there(w), there(w[0], 1))


def test_kinds_of_arrays(rng: np.random.Generator) -> None:
    w, x = numbers(rng, 4, 4), numbers(rng, 3, 4)
    with pytest.raises(BadType, match=r"(?s)input is an array of NumPy, the layer's weights are of CuPy.*prepack_linear"):
        F.prepack_linear(there(w))(x)
    with pytest.raises(BadType, match="input is an array of CuPy, the layer's weights are of NumPy"):
        F.prepack_linear(w)(there(x))
    with pytest.raises(BadType, match="one call takes arrays of one kind"):
        F.prepack_linear(there(w), w[0])
    with pytest.raises(BadType, match="must be a NumPy array, not list"):
        F.prepack_linear(there(w))([1.0, 2.0])
    with pytest.raises(BadType, match="takes an input"):
        F.prepack_linear(there(w))(None)


def test_what_the_plain_operation_refuses(rng: np.random.Generator) -> None:
    w, x = numbers(rng, 4, 4), there(numbers(rng, 3, 4))
    with pytest.raises(BadType, match="float64"):
        F.prepack_linear(there(w.astype(np.float64)))(x)
    with pytest.raises(BadValue, match="do not fit"):
        F.prepack_linear(there(w))(there(numbers(rng, 3, 5)))
    with pytest.raises(BadValue, match="activation"):
        F.prepack_linear(there(w), activation="round")
    with pytest.raises(BadValue, match="dimensions"):
        F.prepack_conv2d(there(w))
    with pytest.raises(BadValue, match="bias has shape"):
        F.prepack_linear(there(w), there(np.zeros(3, np.float32)))
    with pytest.raises(BadValue, match="overlap"):
        both = there(np.zeros((4, 4), np.float32))
        F.prepack_linear(there(w))(both, out=both)
    with pytest.raises(BadValue, match="max_plans=0"):
        F.prepack_linear(there(w), max_plans=0)


def test_streams(machine: GpuMachine, rng: np.random.Generator) -> None:
    """Weights are there when the layer is; a stream that records a graph is refused."""
    waited = machine.cupy.cuda.get_current_stream().synchronized
    layer, x = F.prepack_linear(there(numbers(rng, 4, 4))), there(numbers(rng, 3, 4))
    assert machine.cupy.cuda.get_current_stream().synchronized > waited
    layer(x)
    waited = machine.cupy.cuda.get_current_stream().synchronized
    layer(x)
    assert machine.cupy.cuda.get_current_stream().synchronized == waited
    stream = machine.cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        for call in (lambda: layer(x), lambda: F.prepack_linear(x)):
            with pytest.raises(BadValue, match="cannot be recorded in a CUDA graph"):
                call()
        stream.end_capture()
        start = len(machine.log)
        layer(x)
    assert {given["stream_id"] for name, given in machine.log[start:] if name == "set_stream"} <= {stream.ptr}


# --- matrices -------------------------------------------------------------------------------------------------------------


def test_matrices(rng: np.random.Generator) -> None:
    for dtype in NEAR:
        w, x = numbers(rng, 6, 5, dtype=dtype), numbers(rng, 3, 6, dtype=dtype)
        for lay in ("C", "F", "steps", "misaligned"):
            given = ndarray(LAYOUTS[lay](w))
            packed = backline.prepack(given)
            assert (packed.shape, packed.dtype, packed.nbytes) == ((6, 5), w.dtype, w.nbytes) and backline.prepack(
                packed
            ) is packed
            near(packed.product(there(x)), x.astype(np.float64) @ w.astype(np.float64), dtype)
            out = there(np.zeros((3, 5), w.dtype))
            assert packed.product(there(x), out=out) is out
            assert np.array_equal(packed.unpack().host, w)
            given[...] = 0
            assert np.array_equal(packed.unpack().host, w)
    with pytest.raises(BadType):
        packed.product(x)
    with pytest.raises(BadValue, match="takes a matrix"):
        backline.prepack(there(x[0].copy()))
    with pytest.raises(BadType, match="int8"):
        backline.prepack(there(np.zeros((2, 2), np.int8)))
