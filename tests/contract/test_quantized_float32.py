"""The engines "fbgemm" and "qnnpack": every bit as PyTorch's own, whichever library makes the sums."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import backline
from backline import _kernels, backends
from backline import quantized as q
from backline.backends import quantized as backend
from backline.errors import BadValue
from backline.libraries import capability, quantized_engines
from backline.libraries.kernels import int8_results
from backline.libraries.onednn import int8_sums
from backline.libraries.onednn import library as onednn_library
from backline.libraries.onednn import onednn_int8 as driven
from backline.libraries.reference import reference_requantize
from backline.problems.op_registry import operations
from backline.quantized import ops
from support import algorithms, clean, need

Array = Any
pytestmark = pytest.mark.usefixtures("clean")
assert clean

ENGINES = ("fbgemm", "qnnpack")
RECORDED = Path(__file__).parent / "data" / "torch_quantized.json"
SETTINGS = (2, 1), (1, 0), (1, 1)  # of convolutions: stride, padding, dilation


def problems(seed: int, count: int, most: int = 12) -> Iterator[dict[str, Any]]:
    """Layers of every kind, with scales of any size or powers of two: with those, many sums lie between two integers."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        engine, op = ENGINES[i % 2], ("linear", "linear_dynamic", "conv2d")[i // 2 % 3]
        groups, terms = int(rng.integers(1, 3)), int(rng.integers(1, most))
        outs = int(rng.integers(2, most)) * groups
        shape = (outs, terms) if op != "conv2d" else (outs, terms, *(int(n) for n in rng.integers(1, 4, 2)))
        weight = rng.integers(-120, 120, shape).astype(np.int8)
        many, round_numbers = bool(rng.integers(2)), bool(rng.random() < 0.4)
        size = outs if many else 1
        scales = 2.0 ** rng.integers(-6, 2, size) if round_numbers else rng.uniform(0.001, 0.1, size)
        scales = scales.astype(np.float32)
        zeros = rng.integers(-5, 6, size) * int(rng.random() < 0.3)
        high = 127 if engine == "fbgemm" else 255
        step = float(2.0 ** rng.integers(-6, 2) if round_numbers else np.float32(rng.uniform(0.001, 0.1)))
        zero = int(rng.integers(0, high + 1))
        images = (2, terms * groups, 5, 4)
        x = rng.integers(0, high + 1, images if op == "conv2d" else (int(rng.integers(1, 5)), terms)).astype(np.uint8)
        unit = np.float32(step) * scales
        bias = (rng.integers(-900, 900, outs) + 0.5) * unit if rng.random() < 0.4 else rng.standard_normal(outs) * 10.0 ** rng.integers(-3, 3)
        output = step * scales[0] * (2.0 ** rng.integers(1, 9) if round_numbers else rng.uniform(5, 500))
        yield {
            "engine": engine, "op": op, "x": x, "x_scale": step, "x_zero": zero, "weight": weight, "scales": scales, "zeros": zeros,
            "many": many, "bias": bias.astype(np.float32) if rng.random() < 0.7 else None, "groups": groups if op == "conv2d" else 1,
            "scale": float(np.float32(output)), "zero": int(rng.integers(0, 256)), "tiny": bool(rng.random() < 0.1),
        }  # fmt: skip


def real(p: dict[str, Any]) -> Array:
    """The input of linear_dynamic: with many numbers half-way between two integers, and now and then next to nothing."""
    x = (p["x"].astype(np.float32) - p["x_zero"]) / 2 * np.float32(p["x_scale"])
    return x * np.float32(1e-5) if p["tiny"] else x


def ours(p: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The call: its name and arguments."""
    many = p["many"]
    weight = q.QArray(p["weight"], p["scales"] if many else float(p["scales"][0]), p["zeros"] if many else int(p["zeros"][0]), 0 if many else None)
    with backend.flags(engine=p["engine"]):
        packed = q.linear_prepack(weight, p["bias"]) if p["op"] != "conv2d" else q.conv2d_prepack(weight, p["bias"], *SETTINGS, p["groups"])
    if p["op"] == "linear_dynamic":
        return p["op"], (real(p), packed)
    return p["op"], (q.QArray(p["x"], p["x_scale"], p["x_zero"]), packed, p["scale"], p["zero"])


def result(op: str, args: tuple[Any, ...]) -> Array:
    made = getattr(q, op)(*args)
    return made.int_repr if isinstance(made, q.QArray) else made


def theirs(torch: Any, p: dict[str, Any]) -> Array:
    """Returns the result of PyTorch's own operator."""
    torch.backends.quantized.engine = p["engine"]
    weight = torch.from_numpy(p["weight"])
    if p["many"]:
        scales, zeros = torch.from_numpy(p["scales"]).double(), torch.from_numpy(p["zeros"])
        weight = torch._make_per_channel_quantized_tensor(weight, scales, zeros, 0)
    else:
        weight = torch._make_per_tensor_quantized_tensor(weight, float(p["scales"][0]), int(p["zeros"][0]))
    bias = None if p["bias"] is None else torch.from_numpy(p["bias"])
    run = torch.ops.quantized
    packed = run.conv2d_prepack(weight, bias, *SETTINGS, p["groups"]) if p["op"] == "conv2d" else run.linear_prepack(weight, bias)
    if p["op"] == "linear_dynamic":
        return run.linear_dynamic(torch.from_numpy(real(p)), packed, reduce_range=p["engine"] == "fbgemm").numpy()
    x = torch._make_per_tensor_quantized_tensor(torch.from_numpy(p["x"]), p["x_scale"], p["x_zero"])
    return getattr(run, p["op"])(x, packed, p["scale"], p["zero"]).int_repr().numpy()


def as_text(array: Array) -> str:
    return np.ascontiguousarray(array).tobytes().hex()


def test_as_pytorch_was_seen_to_compute() -> None:
    """`data/record_torch_quantized.py` wrote what PyTorch gave on an x86-64 machine."""
    recorded = json.loads(RECORDED.read_text())
    for p, wanted in zip(problems(recorded["seed"], len(recorded["results"])), recorded["results"], strict=True):
        assert as_text(result(*ours(p))) == wanted, p


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_as_pytorch_computes_now() -> None:
    torch = pytest.importorskip("torch")
    for p in problems(1234, 900, 60):
        np.testing.assert_array_equal(result(*ours(p)), theirs(torch, p), str(p))


def exactly(total: Fraction) -> np.float32:
    """The float32 that is nearest to a fraction, ties to even."""
    near = np.float32(float(total))
    around = sorted((np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))))
    return min(around, key=lambda f: (abs(Fraction(float(f)) - total), int(f.view(np.int32)) & 1))


def test_fused_operations_round_once() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(3000).astype(np.float32) for _ in "ab")
    c = (-a.astype(np.float64) * b * rng.choice([1, 1 + 2.0**-20, 1 - 2.0**-30, 2.0**-28, 3], 3000)).astype(np.float32)
    a[:1000], b[:1000] = (np.round(x[:1000] * 2**12) / 2**12 for x in (a, b))  # sums that end half-way between two numbers
    c[:1000] = rng.choice(np.float32([1, -3, 0.5]), 1000)
    made = reference_requantize.fused(a, b, c)
    wanted = [exactly(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(made, np.array(wanted, np.float32))


# The compiled code --------------------------------------------------------------------------------------------------------


def numbers_of(engine: str, **given: Any) -> Any:
    roles = [SimpleNamespace(role=role) for role in given]
    return reference_requantize.numbers(SimpleNamespace(operands=roles, engine=engine), tuple(given.values()))  # type: ignore[arg-type]  # a stand-in for a Problem


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("level", range(_kernels.instruction_level + 1))
def test_sums_are_brought_to_their_scale_at_every_level(level: int, engine: str) -> None:
    """Sums up to the ends of int32, with and without a bias, as integers and as real numbers."""
    addresses = _kernels.addresses
    begin = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)(addresses["requantize_numbers"])
    finish, to_real = (ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_int64)(addresses[f"requantize_{name}"]) for name in ("finish", "real"))
    rng = np.random.default_rng(level)
    for trial in range(60):
        dtype, low, high = (("uint8", 0, 255), ("int8", -128, 127))[trial % 2]
        outs, rows, many = int(rng.integers(1, 700)), int(rng.integers(1, 9)), bool(rng.integers(2))
        many = many and outs > 1
        most = int(10.0 ** rng.uniform(1, 9.3))
        sums = rng.integers(-most, most, (rows, outs), np.int32, endpoint=True)
        unit = (2.0 ** rng.integers(-6, 2, outs if many else 1) if trial % 3 else rng.uniform(0.01, 1, outs if many else 1)).astype(np.float32)
        output = np.float32([2.0 ** rng.integers(-4, 20) if trial % 3 else rng.uniform(0.1, 1e6)])
        bias = (rng.standard_normal(outs) * 10.0 ** rng.integers(-2, 8)).astype(np.float32) if trial % 4 else None
        zero, one, nought = np.int32([rng.integers(low, high + 1)]), np.float32([rng.uniform(0.5, 2)]), np.int32([0])
        layer = np.array([outs, 1, 1, many, 0, 0, 1, low, high, level, int8_results.ROUNDINGS[engine]], np.int64)
        memory = np.zeros(_kernels.requantize_header + 20 * outs + 64, np.uint8)
        numbers = memory[-memory.ctypes.data % 64 :]
        given = {"input": sums, "weight": sums, "input_zero": nought, "input_scale": one, "weight_scale": unit}
        given |= {} if bias is None else {"bias": bias}
        by = numbers_of(engine, **given, result_scale=output, result_zero=zero)
        made = np.zeros((rows, outs), dtype)
        begin(*(None if a is None else a.ctypes.data for a in (layer, numbers, one, nought, unit, None, bias, output, zero, None)))
        finish(layer.ctypes.data, numbers.ctypes.data, sums.ctypes.data, None, made.ctypes.data, rows)
        np.testing.assert_array_equal(made, by.rescale(sums.astype(np.int64), np.dtype(dtype)))
        floats = np.zeros((rows, outs), np.float32)
        begin(*(None if a is None else a.ctypes.data for a in (layer, numbers, one, nought, unit, None, bias, None, None, None)))
        to_real(layer.ctypes.data, numbers.ctypes.data, sums.ctypes.data, None, floats.ctypes.data, rows)
        np.testing.assert_array_equal(floats, by.real(sums.astype(np.int64)))


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """oneDNN, also where only sums of small numbers are exact: those of this file's inputs up to 127 are."""
    found = need("onednn")
    if not capability.allows("avx2"):
        pytest.skip("oneDNN has no kernels of int8 for this processor")
    for module in (driven, int8_sums, onednn_library):
        monkeypatch.setattr(module, "quantized_refusal", lambda engine: "")
    backline.engine.plan_caches.clear()
    return found


@pytest.mark.cpu_kernel
def test_sums_by_onednn_give_the_same_bits(onednn: Any) -> None:
    names = set()
    for p in problems(77, 90, 60):
        p["x"] //= 2 if p["engine"] == "qnnpack" else 1
        p["x_zero"] = min(p["x_zero"], 127)
        if p["op"] == "linear_dynamic" and p["engine"] == "qnnpack":
            continue  # its real inputs become integers up to 255
        op, args = ours(p)
        with backends.flags(only=("numpy",)):
            wanted = result(op, args)
        for threads in (1, 2):
            with backends.flags(num_threads=threads, only=("onednn",)):
                np.testing.assert_array_equal(result(op, args), wanted, str(p))
                names.add(backline.explain().algorithm)
        problem = operations[f"quantized.{op}"].build(*args)
        arrays = [a for a in getattr(ops, f"for_{op.removeprefix('linear_')}")(*args) if isinstance(a, np.ndarray)]
        for algorithm in algorithms("onednn", problem):
            np.testing.assert_array_equal(onednn.prepare(problem, algorithm)(*arrays), wanted, f"{algorithm.key} {p}")
    assert "int8" in names and names <= {"int8", "int8_gemm"}


@pytest.mark.cpu_kernel
def test_explain_says_what_ran_and_how_it_rounds(onednn: Any) -> None:
    for p in problems(5, 2):
        op, args = ours(p)
        title = {"fbgemm": "FBGEMM", "qnnpack": "QNNPACK"}[p["engine"]]
        for given in (args, (np.zeros((2, 3), np.uint8), np.zeros((4, 3), np.int8), p["engine"])):
            choice = backline.explain(getattr(q, op), *given)
            assert choice.library == "onednn" and f"rounded in float32 as {title} does" in str(choice)
        for name in ("kernels", "numpy"):
            with backends.flags(only=(name,)):
                choice = backline.explain(getattr(q, op), *args)
            assert choice.library == name and f"rounded in float32 as {title} does" in str(choice)


# Engines -----------------------------------------------------------------------------------------------------------------


def test_the_engines_are_accepted_and_there_wherever_numpy_is() -> None:
    before = backend.engine
    for name in ENGINES:
        assert name in backend.supported_engines and quantized_engines.reason(name) == ""
        with backend.flags():
            backend.engine = name
            assert backend.engine == name
            assert q.linear_prepack(q.quantize_weights(np.eye(3))).engine == name
        with backend.flags(engine=name), backends.flags(only=("numpy",)):
            packed = q.linear_prepack(q.quantize_weights(np.eye(3)))
            assert q.linear_dynamic(np.ones((1, 3), np.float32), packed).shape == (1, 3)
            assert backline.explain().library == "numpy"
    assert backend.engine == before


def test_the_engine_that_packs_by_itself_is_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with backends.flags(only=("numpy",)):
        assert backend.engine == "reference"
    monkeypatch.setattr(quantized_engines.platform, "machine", lambda: "aarch64")
    assert backend.supported_engines[0] == "qnnpack"
    with backends.flags(only=("numpy",)):
        assert backend.engine == "qnnpack", "as PyTorch has it there"


def test_default_schemes() -> None:
    w = np.random.default_rng(1).standard_normal((4, 6))
    for name, high, axis in (("fbgemm", 127, 0), ("qnnpack", 255, None)):
        with backend.flags(engine=name):
            assert q.MinMaxObserver().range == (0, high) and q.HistogramObserver().range == (0, high)
            made = q.quantize_weights(w)
            assert made.axis == axis and not np.any(made.zero_point)


def test_qnnpack_packs_what_torch_packs_with_it() -> None:
    """One scale for the whole weight is its default, and not its limit."""
    x = q.QArray(np.arange(8, dtype=np.uint8).reshape(2, 4), 1.0, 3)
    with backend.flags(engine="qnnpack"):
        packed = q.linear_prepack(q.QArray(np.arange(12, dtype=np.int8).reshape(3, 4), [1.0, 2.0, 3.0], [1, 2, 3], 0))
    sums = (x.int_repr.astype(int) - 3) @ (np.arange(12).reshape(3, 4) - [[1], [2], [3]]).T
    np.testing.assert_array_equal(q.linear(x, packed, 1.0, 100).int_repr, np.clip(sums * [1, 2, 3] + 100, 0, 255))


@pytest.mark.parametrize("engine", ENGINES)
def test_far_past_the_range_results_saturate(engine: str) -> None:
    """Marks results for which PyTorch on x86-64 gives the least integer: its conversion has no number for what int32 does not hold."""
    with backend.flags(engine=engine):
        packed = q.linear_prepack(q.QArray(np.array([[127], [-127]], np.int8), 1.0))
    made = q.linear(q.QArray(np.array([[100]], np.uint8), 1.0), packed, 1e-20, 7)
    np.testing.assert_array_equal(made.int_repr, [[255, 0]])


@pytest.mark.parametrize("engine", ENGINES)
def test_scales_that_float32_has_no_room_for(engine: str) -> None:
    with backend.flags(engine=engine):
        packed = q.linear_prepack(q.QArray(np.ones((1, 1), np.int8), 1e-30))
    x = q.QArray(np.ones((1, 1), np.uint8), 1e-30)
    with pytest.raises(BadValue, match=rf"x.scale \* weight.scale is 1e-60.*\n.*{engine!r} computes in float32.*\n.*'reference'"):
        q.linear(x, packed, 1.0, 0)
    with pytest.raises(BadValue, match="that, divided by scale"):
        q.linear(q.QArray(np.ones((1, 1), np.uint8), 1.0), packed, 1e30, 0)


def test_the_bias_of_fbgemm_has_no_limit() -> None:
    w, bias, x = q.QArray(np.ones((1, 1), np.int8), 1.0), np.float32([1e12]), q.QArray(np.ones((1, 1), np.uint8), 1.0)
    with backend.flags(engine="fbgemm"):
        np.testing.assert_array_equal(q.linear(x, q.linear_prepack(w, bias), 1e11, 0).int_repr, [[10]])
    with backend.flags(engine="qnnpack"), pytest.raises(BadValue, match=r"units of x\.scale"):
        q.linear(x, q.linear_prepack(w, bias), 1e11, 0)
