"""Linear layers with int8 weights on CUDA arrays: bits, what is packed when, which calls are made, and what is refused.

The C++ of the kernels is compiled for the CPU. ``tests/hollow/test_int8_layers.py`` runs them under the true CuPy.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, quantized, switches
from backline.errors import BadType, BadValue
from backline.libraries.base import Algorithm
from backline.libraries.cuda.cupy import int8_layers
from backline.problems.quantized_problem import QuantizedProblem
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.insert import inserted
from fakes.solver_machine import real_types
from gpu.int8_layers import ENGINES, nasty, packed, sizes
from support import LAYOUTS, clean, new_seed

real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GpuMachine:
    return GpuMachine(tmp_path_factory.mktemp("machine"))


@pytest.fixture
def machine(made: GpuMachine) -> Iterator[GpuMachine]:
    with inserted(**made.modules()):
        yield made


def since(machine: GpuMachine, start: int, name: str = "") -> list[Any]:
    """The calls of a function since the log had so many entries; without a name those that are no memory or settings."""
    made = machine.log[start:]
    if name:
        return [given for each, given in made if each == name]
    return [each for each, _ in made if each != "alloc" and not each.startswith(("set_", "matmul_desc_"))]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(new_seed())


def there(array: Any, device: int = 0) -> ndarray:
    return ndarray(array, device)


def same(x: Any, layer: Any) -> Any:
    """The result on the device has the bits of the host's."""
    found = quantized.linear_dynamic(there(x), layer)
    expected = quantized.linear_dynamic(x, layer)
    assert type(found) is ndarray and found.dtype == np.float32 and found.shape == expected.shape
    assert np.array_equal(found.host.view(np.int32), np.ascontiguousarray(expected).view(np.int32)), np.abs(
        found.host - expected
    ).max()
    return found


def engine_here(engine: str) -> str:
    if engine not in backline.backends.quantized.supported_engines:
        pytest.skip(f"no engine {engine!r} here")
    return engine


# Two engines need instructions that some processors lack.
KINDS = [pytest.param(name, "int8", marks=[pytest.mark.cpu_kernel] * (name in ("x86", "onednn"))) for name in ENGINES]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("engine", "dtype"), [*KINDS, ("reference", "uint8")])
def test_bits_are_those_of_the_host(engine: str, dtype: str, bias: bool, rng: np.random.Generator) -> None:
    for shape, outs in sizes():
        layer = packed(rng, engine_here(engine), outs, shape[-1], bias=bias, dtype=dtype)
        same((rng.standard_normal(shape) * rng.choice([1e-3, 1, 1e3])).astype(np.float32), layer)


@pytest.mark.parametrize(("engine", "dtype"), KINDS)
def test_nasty_inputs(engine: str, dtype: str, rng: np.random.Generator) -> None:
    layer = packed(rng, engine_here(engine), 5, 12, dtype=dtype)
    for x in nasty(rng, (6, 12)):
        try:
            quantized.linear_dynamic(x, layer)
        except BadValue:  # scales out of float32's range, which only the host looks for
            continue
        same(x, layer)


@pytest.mark.parametrize("engine", ["reference", "qnnpack"])
def test_tiny_inputs(engine: str, rng: np.random.Generator) -> None:
    """Scales as small as float32 has them, and ranges that are subnormal."""
    layer = packed(rng, engine, 3, 8, bias=False)
    for scale in (2.0**-120, 2.0**-126, 2.0**-140, 2.0**-149):
        x = (rng.integers(-3, 4, (4, 8)) * scale).astype(np.float32)
        try:
            quantized.linear_dynamic(x, layer)
        except BadValue:
            continue
        same(x, layer)


def test_a_row_of_many_terms_is_added_up_in_parts(
    machine: GpuMachine, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_layers, "PART", 32)
    start = len(machine.log)
    for dtype in ("int8", "uint8"):
        layer = packed(rng, "reference", 6, 100, dtype=dtype)
        same(rng.standard_normal((3, 100)).astype(np.float32), layer)
    assert len(since(machine, start, "matmul")) == 2 * 4
    extreme = quantized.QArray(np.full((1, 140_000), -128, np.int8), 1.0)
    monkeypatch.undo()
    x = np.full((1, 140_000), -1, np.float32)
    with backline.backends.quantized.flags(engine="reference"):
        same(x, quantized.linear_prepack(extreme))  # 2**14 times 140000 is no int32


@pytest.mark.parametrize("engine", ["reference", "fbgemm"])
def test_without_elements(engine: str, rng: np.random.Generator) -> None:
    for shape, outs in (((0, 7), 4), ((3, 7), 0), ((2, 0), 3), ((0, 0), 0)):
        for bias in (True, False):
            layer = packed(rng, engine, outs, shape[-1], bias=bias)
            found = quantized.linear_dynamic(there(np.zeros(shape, np.float32)), layer)
            assert found.shape == (shape[0], outs) and found.dtype == np.float32
            wanted = np.zeros(found.shape, np.float32) + (layer.bias if bias else 0)
            assert np.array_equal(found.host, wanted)


@pytest.mark.parametrize("lay", LAYOUTS)
def test_inputs_of_every_layout(lay: str, rng: np.random.Generator) -> None:
    same(LAYOUTS[lay](rng.standard_normal((6, 20)).astype(np.float32)), packed(rng, "reference", 9, 20))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("engine", ["reference", "fbgemm", "qnnpack"])
def test_no_number_is_in_every_result(engine: str, value: float, rng: np.random.Generator) -> None:
    for at in ((0, 0), (2, 11), (1, 7)):
        x = np.ones((3, 12), np.float32)
        x[at] = value
        for bias in (True, False):
            assert np.isnan(quantized.linear_dynamic(there(x), packed(rng, engine, 4, 12, bias=bias)).host).all()


def test_what_ran_is_told(machine: GpuMachine, rng: np.random.Generator) -> None:
    layer, x, start = packed(rng, "fbgemm", 20, 40), there(np.ones((2, 40), np.float32)), len(machine.log)
    quantized.linear_dynamic(x, layer)
    last = backline.explain()
    assert (last.library, last.algorithm) == ("cupy", "int8") and "FBGEMM" in str(last)
    assert backline.explain(quantized.linear_dynamic, x, layer).algorithm == "int8"
    (call,) = since(machine, start, "matmul")  # the weight lies as tensor cores read it
    kept = layer._there["cuda:0"]
    assert call["a"] == kept[0].data.ptr and kept[0].shape == (32, 48)


def test_launches(machine: GpuMachine, rng: np.random.Generator) -> None:
    layer, x = packed(rng, "reference", 20, 40), there(rng.standard_normal((6, 40)).astype(np.float32))
    quantized.linear_dynamic(x, layer)
    start, waited = len(machine.log), machine.cupy.cuda.get_current_stream().synchronized
    quantized.linear_dynamic(x, layer)
    assert since(machine, start) == ["value_range", "quantize_rows", "matmul", "real_rows"]
    assert machine.cupy.cuda.get_current_stream().synchronized == waited, "nothing waits for the device"


def test_shapes_and_their_launches() -> None:
    for rows, terms, outs in ((1, 1, 1), (1, 4096, 4096), (100_000, 64, 10), (7, 1025, 65), (1 << 20, 1 << 12, 1 << 14)):
        made = int8_layers.launches(rows, terms, outs, 132)
        assert 1 <= made.find <= int8_layers.MOST_PARTS
        for grid, threads in (made.quantize, made.real):
            assert np.prod(threads) == int8_layers.BLOCK and min(grid) >= 1 and all(n < 1 << 16 for n in grid[1:])
        assert made.real[0][0] * made.real[1][0] >= outs


def test_the_weight_is_packed_once_for_each_device(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    pack = int8_layers.pack
    monkeypatch.setattr(int8_layers, "pack", lambda *parts: made.append(parts) or pack(*parts))
    layer, x = packed(rng, "reference", 4, 40), rng.standard_normal((2, 40)).astype(np.float32)
    first = quantized.linear_dynamic(there(x), layer)
    assert np.array_equal(first.host, quantized.linear_dynamic(there(x), layer).host) and len(made) == 1
    other = quantized.linear_dynamic(there(x, 1), layer)
    assert other.device.id == 1 and np.array_equal(first.host, other.host) and len(made) == 2
    assert np.array_equal(first.host, quantized.linear_dynamic(there(x), copy.deepcopy(layer)).host) and len(made) == 3


def test_one_plan_serves_all_layers_of_a_shape(rng: np.random.Generator) -> None:
    x = there(rng.standard_normal((2, 40)).astype(np.float32))
    layers = [packed(rng, "reference", 4, 40) for _ in range(3)]
    asked = {backline.explain(quantized.linear_dynamic, x, layer).problem for layer in layers}
    assert len(asked) == 1 and isinstance(asked.pop(), QuantizedProblem)


def test_without_int8_tensor_cores(machine: GpuMachine, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.lt, "refuses", None)
    start = len(machine.log)
    same(rng.standard_normal((3, 1100)).astype(np.float32), packed(rng, "reference", 10, 1100))
    assert since(machine, start, "gemm_ex")
    monkeypatch.undo()
    start, layer, x = len(machine.log), packed(rng, "fbgemm", 10, 20), rng.standard_normal((3, 20)).astype(np.float32)
    with switches.scope({"only": ("cublas", "cupy")}):
        found = quantized.linear_dynamic(there(x), layer)
    assert np.array_equal(found.host, quantized.linear_dynamic(x, layer))
    assert since(machine, start, "gemm_ex") and not since(machine, start, "matmul")


def test_a_stream_that_records_a_graph_is_refused(machine: GpuMachine, rng: np.random.Generator) -> None:
    layer, x = packed(rng, "reference", 4, 40), there(np.ones((2, 40), np.float32))
    stream = machine.cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        with pytest.raises(BadValue, match="cannot be recorded in a CUDA graph"):
            quantized.linear_dynamic(x, layer)
        assert not layer._there, "nothing was packed"
        stream.end_capture()
        quantized.linear_dynamic(x, layer)
        with pytest.raises(BadValue, match="cannot be recorded in a CUDA graph"):
            stream.begin_capture()
            quantized.linear_dynamic(x, layer)
        stream.end_capture()


def test_threads_share_a_layer(rng: np.random.Generator) -> None:
    layer = packed(rng, "reference", 8, 24)
    inputs = [rng.standard_normal((n, 24)).astype(np.float32) for n in (1, 2, 3, 5)]
    wanted = [quantized.linear_dynamic(x, layer) for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(5):
            if not np.array_equal(quantized.linear_dynamic(there(inputs[i]), layer).host, wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bad_input(rng: np.random.Generator) -> None:
    layer = packed(rng, "reference", 4, 40)
    with pytest.raises(BadType, match="float16"):
        quantized.linear_dynamic(there(np.zeros((2, 40), np.float16)), layer)
    with pytest.raises(BadValue, match="do not fit"):
        quantized.linear_dynamic(there(np.zeros((2, 41), np.float32)), layer)
    with pytest.raises(BadType, match="packed must be"):
        quantized.linear_dynamic(there(np.zeros((2, 40), np.float32)), None)
    with pytest.raises(BadType):
        quantized.linear(there(np.zeros((2, 40), np.uint8)), layer, 1.0, 0)


def test_only_this_layer_is_there(rng: np.random.Generator) -> None:
    p = backline.explain(quantized.linear_dynamic, np.zeros((2, 3), np.float32), packed(rng, "reference", 4, 3)).problem
    (found,) = int8_layers.algorithms(p)
    assert not isinstance(found, Algorithm) and "linear_dynamic for CuPy's arrays" in found.reason
    assert libraries.info("cupy").families[-1] == "quantized"
