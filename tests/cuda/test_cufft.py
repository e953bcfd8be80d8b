"""cuFFT: what is decided for a transform, the calls that are made, and by a fake that computes, that layouts are what they should be."""

from __future__ import annotations

import gc
import os
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fft_cases import DTYPES, SHAPES, allowed, arrays_like, error, problem, wanted
from hypothesis import given, settings
from hypothesis import strategies as st

import backline
from backline import libraries, switches
from backline.backends import cuda
from backline.engine import plan_caches
from backline.engine.choose import planner
from backline.engine.cufft_plan_caches import cufft_plans, switch_of
from backline.errors import BackendUnavailable, BadValue, LibraryFailed, NoKernel, ReadOnly
from backline.libraries import devices
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cufft import transform_plans
from backline.libraries.cuda.cufft.transform_sequence import half_refusal, recipe, refusal
from backline.libraries.cuda.cufft.transform_steps import Exec, PlanKey, Side
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.insert import inserted
from fakes.transforms import Transforms
from support import BFLOAT16, clean

real = pytest.importorskip("nvmath.bindings.cufft")
pytestmark = pytest.mark.usefixtures("clean")
assert clean

OLD = H100 | {"name": b"GeForce GTX 980", "major": 5, "minor": 2}
HALF = {"cuda.matmul.allow_fp16_accumulation": True}


class Machine:
    """Fakes that share one log."""

    def __init__(self, *properties: dict[str, Any]) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.cupy = CuPy(*(properties or (H100, H100)), log=self.log)
        self.cufft = Transforms(real, log=self.log)

    def array(self, *shape: int, dtype: Any = np.complex64, device: int = 0) -> ndarray:
        rng = np.random.default_rng(len(shape))
        numbers = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else 0)
        return ndarray(numbers.astype(dtype), device)

    def made(self) -> int:
        """Plans made so far."""
        return len(self.cufft.calls("create"))


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cufft=made.cufft):
        yield made
    gc.collect()
    transform_plans.destroy_unused()
    assert not made.cufft.live, "every handle is destroyed"


def on_cuda(p: Any) -> Any:
    return replace(p, device="cuda:0")


def check(p: Any, x: np.ndarray, out: np.ndarray | None = None) -> None:
    """Every algorithm gives what is wanted, in its place, and leaves its input alone."""
    library = libraries.get("cufft")
    reference, before = wanted(p, x), x.copy()
    for a in library.algorithms(on_cuda(p), 1):
        assert isinstance(a, Algorithm), a
        plan = library.prepare(on_cuda(p), a)
        arrays = [ndarray(x)] + ([] if out is None else [ndarray(out)])
        got = plan(*arrays)
        assert got is arrays[1] if out is not None else got.host.flags.c_contiguous
        assert got.shape == p.result and got.host.dtype == p.result_dtype
        assert error(got.host, reference) <= 2 * allowed(p), (p.op, p.axes, p.lengths, p.sign, x.shape, x.strides, x.dtype)
        assert np.array_equal(x, before), "changed its input"


# --- decisions ------------------------------------------------------------------------------------------------------


def keys(p: Any, way: str = "plan") -> tuple[PlanKey, ...]:
    return recipe(p, way).plans


def kinds(p: Any, way: str = "plan") -> list[str]:
    return [type(step).__name__ for step in recipe(p, way).steps]


X = np.zeros((6, 8, 10), np.complex64)


@pytest.mark.parametrize(("asked", "key"), [
    (problem("c2c", X), PlanKey((10,), 48, Side((10,), 1, 10), Side((10,), 1, 10), "C2C", "f32")),
    (problem("c2c", X, (0,)), PlanKey((6,), 80, Side((6,), 80, 1), Side((6,), 80, 1), "C2C", "f32")),
    (problem("c2c", X, (1, 2)), PlanKey((8, 10), 6, Side((8, 10), 1, 80), Side((8, 10), 1, 80), "C2C", "f32")),
    (problem("c2c", X, (0, 1, 2)), PlanKey((6, 8, 10), 1, Side((6, 8, 10), 1, 480), Side((6, 8, 10), 1, 480), "C2C", "f32")),
    (problem("c2c", X, (2, 1)), PlanKey((8, 10), 6, Side((8, 10), 1, 80), Side((8, 10), 1, 80), "C2C", "f32")),
    (problem("c2c", X, (0, 2)), PlanKey((6, 10), 8, Side((6, 80), 1, 10), Side((6, 80), 1, 10), "C2C", "f32")),
    (problem("r2c", X.real.astype(np.float64), (1, 2)), PlanKey((8, 10), 6, Side((8, 10), 1, 80), Side((8, 6), 1, 48), "R2C", "f64")),
    (problem("c2r", X), PlanKey((18,), 48, Side((10,), 1, 10), Side((18,), 1, 18), "C2R", "f32")),
    (problem("c2c", X[:, :, ::2]), PlanKey((5,), 48, Side((5,), 2, 10), Side((5,), 1, 5), "C2C", "f32")),
    (problem("c2c", X.real.astype(np.float64)), PlanKey((10,), 48, Side((10,), 1, 10), Side((6,), 1, 10), "R2C", "f64")),
])  # fmt: skip
def test_the_plan_for_a_layout(asked: Any, key: PlanKey) -> None:
    """FFT-2: sizes with batch, both sides' strides, kind and type are what a plan is made of and kept by."""
    assert keys(asked) == (key,)
    assert hash(key) == hash(replace(key)) and key != replace(key, batch=key.batch + 1)


def test_what_needs_copies_and_what_does_not() -> None:
    assert kinds(problem("c2c", X, (1, 2))) == ["Exec"]
    assert kinds(problem("c2c", X, (1, 2), scale=0.5)) == ["Exec", "Scale"]
    assert kinds(problem("c2c", np.asfortranarray(X), (0, 1))) == ["Copy", "Exec"], "the sides do not lie alike"
    assert kinds(problem("c2c", X, lengths=[8])) == ["Exec"], "what is cut is only not read"
    assert kinds(problem("c2c", X, lengths=[12])) == ["Zero", "Copy", "Exec"]
    assert kinds(problem("c2r", X)) == ["Copy", "Zero", "Zero", "Exec"], "the plan destroys its input; two elements are real"
    assert kinds(problem("c2r", X, lengths=[17])) == ["Copy", "Zero", "Exec"]
    assert kinds(problem("c2r", X, overwrite=True)) == ["Zero", "Zero", "Exec"]
    assert kinds(problem("c2r", X, sign=-1, overwrite=True)) == ["Copy", "Zero", "Zero", "Exec"], "conjugates are others"
    assert kinds(problem("c2r", X, (0, 1))) == ["Copy", "Exec", "Zero", "Zero", "Exec"]
    assert kinds(problem("r2c", X.real, (2,), sign=1)) == ["Exec", "Copy"], "conjugated afterwards"
    assert kinds(problem("c2c", X.real, (2,))) == ["Exec", "Copy"], "the half, and its mirror image"
    assert kinds(problem("c2c", X.real, (1, 2))) == ["Exec", "Copy", "Copy"]
    assert kinds(problem("c2c", X.real.astype(np.int32), (2,))) == ["Copy", "Exec", "Copy"]
    assert kinds(problem("c2c", X.real.astype(BFLOAT16), (2,))) == ["Copy", "Exec", "Copy"]
    assert kinds(problem("c2c", X, ())) == ["Copy"]
    assert kinds(problem("c2c", X, lengths=[10], out=np.zeros((6, 8, 20), np.complex64)[..., ::2])) == ["Exec"]
    assert kinds(problem("c2c", X, lengths=[10], out=np.zeros((6, 8, 10), np.complex64)[..., ::-1])) == ["Exec", "Copy"]


def test_a_middle_axis_takes_several_calls_or_copies() -> None:
    few = recipe(problem("c2c", X, (1,)))
    (step,) = few.steps
    assert isinstance(step, Exec) and step.key.batch == 10 and step.offsets == tuple((640 * i, 640 * i) for i in range(6))
    many = np.zeros((100, 8, 100), np.complex64)
    assert kinds(problem("c2c", many, (1,))) == ["Copy", "Exec", "Copy"]
    large = np.lib.stride_tricks.as_strided(many, (100, 1024, 1024), (8 << 20, 8 << 10, 8))
    (step,) = recipe(problem("c2c", large, (1,))).steps
    assert isinstance(step, Exec) and len(step.offsets) == 100


def test_more_than_three_axes_are_several_passes() -> None:
    wide = np.zeros((3, 4, 5, 6, 7), np.complex128)
    found = keys(problem("c2c", wide, range(5)))
    assert [key.sizes for key in found] == [(5, 6, 7), (3, 4)]
    assert [key.kind for key in keys(problem("r2c", wide.real.copy(), range(5)))] == ["R2C", "C2C"]
    assert [key.kind for key in keys(problem("c2r", wide, range(5)))] == ["C2C", "C2C", "C2R"]
    assert keys(problem("c2c", wide.real.copy(), range(4)))[0].kind == "C2C", "made complex rather than mirrored in parts"


@pytest.mark.parametrize(("asked", "reason"), [
    (problem("r2r", X.real, kind="dct2"), "cosine and sine"),
    (problem("c2c", X.astype(np.clongdouble)), "no longdouble"),
    (problem("c2c", X.real.astype(np.longdouble)), "no longdouble"),
    (problem("c2c", np.zeros(9, np.dtype([("a", "c8"), ("b", "u1")]))["a"]), "no multiples"),
    (problem("c2c", X), ""),
    (problem("r2c", X.real.astype(np.uint8)), ""),
])  # fmt: skip
def test_what_is_refused(asked: Any, reason: str) -> None:
    assert (reason in refusal(asked)) and bool(reason) == bool(refusal(asked))


H16 = np.zeros((4, 64), np.float16)


@pytest.mark.parametrize(("asked", "capability", "reason"), [
    (problem("r2c", H16), (9, 0), ""),
    (problem("r2c", H16), (5, 3), ""),
    (problem("r2c", H16), (5, 2), "5.3"),
    (problem("r2c", H16), (0, 0), "5.3"),
    (problem("r2c", H16, lengths=[48]), (9, 0), "powers of two, not 48"),
    (problem("r2c", H16, (0, 1), lengths=[6, 64]), (9, 0), "powers of two, not 6"),
    (problem("r2c", H16, (0, 1), lengths=[1, 2]), (9, 0), ""),
    (problem("c2c", H16, (0, 1)), (9, 0), ""),
    (problem("c2r", H16), (9, 0), "no spectrum"),
    (problem("c2c", np.zeros((2,) * 4, np.float16), range(4)), (9, 0), "up to 3 axes"),
])  # fmt: skip
def test_halves_are_powers_of_two_on_devices_that_have_them(asked: Any, capability: tuple[int, int], reason: str) -> None:
    """FFT-6."""
    assert (reason in half_refusal(asked, capability)) and bool(reason) == bool(half_refusal(asked, capability))


def test_halves_are_computed_in_float32_unless_a_switch_allows_less(machine: Machine) -> None:
    x = machine.array(4, 64, dtype=np.float16)
    choice = backline.explain(backline.fft.rfft, x)
    assert (choice.library, choice.algorithm) == ("cufft", "plan")
    (refused,) = [c for c in choice.candidates if c.algorithm == "half"]
    assert refused.switch == "cuda.matmul.allow_fp16_accumulation"
    with switches.scope(HALF):
        assert backline.explain(backline.fft.rfft, x).algorithm == "half"
        assert backline.explain(backline.fft.rfft, machine.array(4, 60, dtype=np.float16)).algorithm == "plan"
        y = backline.fft.rfft(x)
    assert y.host.dtype == np.complex64 and len(machine.cufft.calls("xt_make_plan_many")) == 1
    wide = backline.fft.rfft(x).host
    assert 1e-5 < error(y.host, wide) < 2e-3


@pytest.mark.parametrize("shape", [(64,), (4, 64), (4, 8, 16), (8, 2, 4, 2)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_transforms_in_float16(machine: Machine, shape: tuple[int, ...], sign: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(shape).astype(np.float16)
    library = libraries.get("cufft")
    for axes in {(len(shape) - 1,), (0,), tuple(range(len(shape)))[-3:]}:
        for op in ("r2c", "c2c"):
            for laid in (x, np.asfortranarray(x), x[..., ::2]):
                p = on_cuda(problem(op, laid, axes, sign=sign, scale=0.25))
                got = library.prepare(p, Algorithm(library="cufft", name="half"))(ndarray(laid)).host
                reference = wanted(problem(op, laid.astype(np.float32), axes, sign=sign, scale=0.25), laid.astype(np.float32))
                assert got.dtype == np.complex64 and error(got, reference) < 4e-3


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_every_layout(machine: Machine, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    ops = ["c2c", "c2r", *(["r2c"] if np.dtype(dtype).kind == "f" else [])]
    sizes = [shape[a] for a in axes]
    for k, (name, x) in enumerate(arrays_like(shape, dtype).items()):
        if name == "misaligned":  # there is no such array on a device
            continue
        for i, op in enumerate(ops):
            for sign in (-1, 1) if name == "C" else ((-1) ** (i + k),):
                lengths = [2 * n - 1 for n in sizes] if op == "c2r" else None
                check(problem(op, x, axes, lengths, sign, 0.37), x)
            if name in ("C", "backwards"):
                check(problem(op, x, axes, [max(n - 2 + 4 * ((j + i) % 2), 1) for j, n in enumerate(sizes)]), x)
                check(problem(op, x, axes, [n + 3 for n in sizes], 1), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_output(machine: Machine, dtype: str) -> None:
    x = arrays_like((4, 6, 10), dtype)["C"]
    for op in ("c2c", "c2r") if np.dtype(dtype).kind == "c" else ("c2c", "r2c", "c2r"):
        for axes in ((2,), (0,), (0, 2), (1, 0)):
            p = problem(op, x, axes)
            for name, out in arrays_like(p.result, p.result_dtype.name, fill=np.nan).items():
                if 0 not in out.strides and name != "misaligned":
                    around = out.base if out.base is not None else out
                    check(problem(op, x, axes, out=out, scale=0.5), x, out)
                    if name == "shifted":  # what lies before and behind is not touched
                        assert isinstance(around, np.ndarray)


def test_an_output_in_the_middle_of_others(machine: Machine) -> None:
    x = arrays_like((3, 5, 7), "complex128")["C"]
    for axes in ((0,), (1,), (2,), (0, 1), (0, 2), (2, 1, 0)):
        around = np.full((5, 10, 16), 7 + 7j)
        out = around[1:4, 2:7, 1:15:2]
        check(problem("c2c", x, axes, out=out), x, out)
        untouched = np.ones(around.shape, bool)
        untouched[1:4, 2:7, 1:15:2] = False
        assert (around[untouched] == 7 + 7j).all()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_transform_of_any_view(data: Any) -> None:
    made = Machine()
    ndim = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 6)) for _ in range(ndim))
    axes = tuple(data.draw(st.permutations(range(ndim)))[: data.draw(st.integers(1, ndim))])
    dtype = data.draw(st.sampled_from(DTYPES))
    op = data.draw(st.sampled_from(["c2c", "c2r"] if np.dtype(dtype).kind == "c" else ["c2c", "c2r", "r2c"]))
    lengths = [data.draw(st.integers(1, 7)) for _ in axes]

    def view(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        steps = [data.draw(st.sampled_from((-2, -1, 1, 2))) for _ in shape]
        order = data.draw(st.permutations(range(len(shape))))
        rng = np.random.default_rng(3)
        room = [shape[axis] * abs(steps[axis]) + 1 for axis in order]
        base = rng.standard_normal(room) + (1j * rng.standard_normal(room) if np.dtype(dtype).kind == "c" else 0)
        back = base.astype(dtype).transpose([list(order).index(axis) for axis in range(len(shape))])
        return back[tuple(slice(None, None, s) for s in steps)][tuple(slice(0, n) for n in shape)]

    x = view(shape, dtype)
    p = problem(op, x, axes, lengths, data.draw(st.sampled_from((-1, 1))), data.draw(st.sampled_from((1.0, 0.37))))
    out = view(p.result, p.result_dtype) if data.draw(st.booleans()) else None
    if out is not None:
        p = problem(op, x, axes, lengths, p.sign, p.scale, out)
    with inserted(cupy=made.cupy, cufft=made.cufft):
        check(p, x, out)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "ifftn", "rfftn", "irfftn", "fft2", "ihfft2", "hfftn"])
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_the_functions_give_what_they_give_for_numpy(machine: Machine, name: str, norm: str | None) -> None:
    dtype = np.float32 if name.startswith(("rfft", "ihfft")) else np.complex64
    x = machine.array(4, 6, 5, dtype=dtype)
    function = getattr(backline.fft, name)
    got, reference = function(x, norm=norm), function(x.host, norm=norm)
    assert type(got) is ndarray and got.shape == reference.shape and got.host.dtype == reference.dtype
    assert error(got.host, reference) < 1e-6


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool, np.float16, BFLOAT16])
def test_other_dtypes_are_converted_first(machine: Machine, dtype: Any) -> None:
    x = (np.arange(24).reshape(4, 6) % 7).astype(dtype)
    for function in (backline.fft.fft, backline.fft.rfft, backline.fft.irfft):
        got, reference = function(ndarray(x)), function(x)
        assert got.host.dtype == reference.dtype and error(got.host, reference) < 1e-6


def test_what_is_not_finite(machine: Machine) -> None:
    x = np.array([[np.inf, 1, 2, 3], [1, np.nan, 2, 3], [1, 2, 3, 4]], np.complex64)
    got = backline.fft.ifft(ndarray(x)).host
    assert not np.isfinite(got[:2]).any() and np.isfinite(got[2]).all()
    # A factor meets each part alone: no zero of its own makes an infinite part of another one NaN.
    y = np.array([complex(np.inf, 0), 0, 0, 0], np.complex64)
    assert backline.fft.fft(ndarray(y[:1]), norm="ortho", n=1).host[0] == complex(np.inf, 0)


def test_nothing_to_compute(machine: Machine) -> None:
    assert backline.fft.fft(ndarray(np.zeros((0, 5)))).shape == (0, 5)
    out = ndarray(np.zeros((0, 3), np.complex128))
    assert backline.fft.rfft(ndarray(np.zeros((0, 4))), out=out) is out
    assert backline.fft.fft(ndarray(np.zeros((2, 0))), n=4).host.tolist() == [[0] * 4] * 2
    assert machine.made() == 1


# --- calls ----------------------------------------------------------------------------------------------------------


def test_the_calls_and_their_order(machine: Machine) -> None:
    """FFT-5: no memory of the library's own, the work area and the stream of the call."""
    stream = machine.cupy.cuda.Stream()
    with machine.cupy.cuda.stream(stream):
        backline.fft.fft(machine.array(4, 16))
    assert [name for name, _ in machine.log] == [
        "create", "set_auto_allocation", "make_plan_many64", "alloc", "set_stream", "set_work_area", "exec_c2c"
    ]  # fmt: skip
    calls = dict(machine.log)
    assert calls["set_auto_allocation"]["auto_allocate"] == 0
    made = calls["make_plan_many64"]
    assert (made["n"], made["batch"], made["type"]) == ([16], 4, real.Type.C2C)
    assert calls["alloc"]["size"] == machine.cufft.plans[calls["create"].get("plan", 100)]["size"]
    assert calls["set_work_area"]["work_area"] == calls["alloc"]["ptr"]
    assert calls["set_stream"]["stream"] == stream.ptr and stream.synchronized == 0
    assert calls["exec_c2c"]["direction"] == -1
    machine.log.clear()
    backline.fft.fft(machine.array(4, 16))
    assert [name for name, _ in machine.log] == ["alloc", "set_stream", "set_work_area", "exec_c2c"], "the plan is kept"
    assert machine.log[1][1]["stream"] == 0


def test_a_plan_that_wants_no_work_area_is_told_so(machine: Machine) -> None:
    """Allocation being off, the library waits for an address, be it none."""
    made = machine.cufft.answers["make_plan_many64"]

    def without_area(**given: Any) -> int:
        made(**given)
        return 0

    machine.cufft.answers["make_plan_many64"] = without_area
    x = machine.array(4, 16)
    assert error(backline.fft.fft(x).host, np.fft.fft(x.host)) < 1e-6
    assert machine.cufft.calls("set_work_area") == [{"plan": 100, "work_area": 0}]


@pytest.mark.parametrize(("function", "dtype", "call", "direction"), [
    ("fft", np.complex64, "exec_c2c", -1), ("ifft", np.complex64, "exec_c2c", 1), ("fft", np.complex128, "exec_z2z", -1),
    ("rfft", np.float32, "exec_r2c", None), ("rfft", np.float64, "exec_d2z", None), ("irfft", np.complex64, "exec_c2r", None),
    ("irfft", np.complex128, "exec_z2d", None), ("ihfft", np.float32, "exec_r2c", None), ("hfft", np.complex128, "exec_z2d", None),
])  # fmt: skip
def test_the_call_for_each_transform(machine: Machine, function: str, dtype: Any, call: str, direction: int | None) -> None:
    getattr(backline.fft, function)(machine.array(2, 9, dtype=dtype))
    (given,) = machine.cufft.calls(call)
    assert given.get("direction") == direction


def test_arrays_that_begin_where_a_plan_cannot_have_them(machine: Machine) -> None:
    """Real numbers must begin where complex ones could: only a call knows, and then they are copied."""
    base = np.arange(33, dtype=np.float32)
    begin = 1 if base.ctypes.data % 8 == 0 else 0
    odd, even = base[begin : begin + 32], base[1 - begin : 33 - begin]
    assert odd.ctypes.data % 8 == 4 and even.ctypes.data % 8 == 0
    for x in (odd, even):
        assert error(backline.fft.rfft(ndarray(x)).host, np.fft.rfft(x)) < 1e-6
    sources = [call["idata"] for call in machine.cufft.calls("exec_r2c")]
    assert sources[0] != odd.ctypes.data and sources[1] == even.ctypes.data
    assert machine.made() == 1, "both lie the same"
    out = np.zeros(34, np.float32)
    out = out[(out.ctypes.data % 8 == 0) :][:32]
    spectrum = np.fft.rfft(odd).astype(np.complex64)
    backline.fft.irfft(ndarray(spectrum), out=ndarray(out))
    assert error(out, odd) < 1e-6


def test_work_is_done_on_the_arrays_device(machine: Machine) -> None:
    seen = []
    create = machine.cufft.answers["create"]
    machine.cufft.answers["create"] = lambda: seen.append(machine.cupy.cuda.runtime.getDevice()) or create()
    y = backline.fft.fft(machine.array(8, device=1))
    assert y.device.id == 1 and seen == [1] and machine.cupy.cuda.runtime.getDevice() == 0
    assert (cufft_plans(0).size, cufft_plans(1).size) == (0, 1)


def test_an_output_that_overlaps_the_input_is_refused(machine: Machine) -> None:
    x = np.zeros(20, np.complex64)
    with pytest.raises(BadValue, match="overlap"):
        backline.fft.fft(ndarray(x[:16]), out=ndarray(x[4:]))
    backline.fft.fft(ndarray(x[:10]), out=ndarray(x[10:]))
    backline.fft.fft(ndarray(x[::2]), out=ndarray(x[1::2]))


def test_a_plan_that_cannot_be_made_leaves_no_handle(machine: Machine) -> None:
    machine.cufft.fails["make_plan_many64"] = "ALLOC_FAILED"
    with pytest.raises(LibraryFailed, match=r"(?s)cuFFT, fft\.fft.*ALLOC_FAILED"):
        backline.fft.fft(machine.array(8))
    assert not machine.cufft.live and cufft_plans(0).size == 0
    machine.cufft.fails.clear()
    assert backline.fft.fft(machine.array(8)).shape == (8,)


def test_a_plan_that_failed_is_not_used_again(machine: Machine) -> None:
    machine.cufft.fails["exec_c2c"] = "EXEC_FAILED"
    with pytest.raises(LibraryFailed, match="EXEC_FAILED"):
        backline.fft.fft(machine.array(8))
    machine.cufft.fails.clear()
    backline.fft.fft(machine.array(8))
    assert machine.made() == 2 and cufft_plans(0).size == 1
    gc.collect()
    transform_plans.destroy_unused()
    assert len(machine.cufft.live) == 1


def test_cosines_and_long_doubles_have_no_library_here(machine: Machine) -> None:
    with pytest.raises(NoKernel, match="no cosine and sine transforms"):
        backline.fft.dct(machine.array(8, dtype=np.float64))
    with pytest.raises(NoKernel, match="no longdouble"):
        backline.fft.fft(machine.array(8, dtype=np.clongdouble))


def test_without_the_library_or_a_device() -> None:
    library = libraries.get("cufft")
    assert library.reason() and not library.available()
    with pytest.raises(NoKernel, match="cufft"):
        backline.fft.fft(ndarray(np.zeros(4)))
    (found,) = library.algorithms(replace(backline.explain(backline.matmul, np.eye(2), np.eye(2)).problem, device="cuda:0"), 1)
    assert isinstance(found, Refusal)


# --- the plans that are kept ----------------------------------------------------------------------------------------


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda: 2)
    monkeypatch.setattr(devices, "current", lambda: 0)




@pytest.mark.usefixtures("present")
def test_the_backend_shows_the_plans(machine: Machine) -> None:
    """FFT-1, FFT-4: one cache for each device; without an index that of the current one."""
    cache = cuda.cufft_plan_cache
    assert (cache.size, cache.max_size) == (0, 4096)
    for n in (8, 9, 8, 10):
        backline.fft.fft(machine.array(n))
    backline.fft.fft(machine.array(8, device=1))
    assert (cache.size, cache[0].size, cache[1].size, cache["cuda:1"].size) == (3, 3, 1, 1)
    with pytest.raises(ReadOnly):
        cache.size = 1
    cache[1].clear()
    assert (cache[0].size, cache[1].size, len(machine.cufft.live)) == (3, 0, 3)
    cache.clear()
    assert cache.size == 0 and not machine.cufft.live, "their handles are destroyed"


@pytest.mark.usefixtures("present")
def test_the_least_recently_used_goes_first(machine: Machine) -> None:
    """FFT-3."""
    cache = cuda.cufft_plan_cache
    for n in (8, 9, 10, 8):
        backline.fft.fft(machine.array(n))
    cache.max_size = 2
    assert cache.size == 2 == len(machine.cufft.live)
    made = machine.made()
    for n in (10, 8):
        backline.fft.fft(machine.array(n))
    assert machine.made() == made
    backline.fft.fft(machine.array(9))
    assert machine.made() == made + 1 and cache.size == 2
    with pytest.raises(BadValue, match="max_size"):
        cache.max_size = -1
    assert (cache.size, cache.max_size) == (2, 2)


@pytest.mark.usefixtures("present")
def test_a_bound_of_zero_makes_a_plan_for_each_call(machine: Machine) -> None:
    with cuda.cufft_plan_cache.flags(max_size=0):
        for _ in range(3):
            backline.fft.fft(machine.array(8))
        assert machine.made() == 3 and cuda.cufft_plan_cache.size == 0 and not machine.cufft.live
    backline.fft.fft(machine.array(8))
    backline.fft.fft(machine.array(8))
    assert machine.made() == 4 and cuda.cufft_plan_cache.size == 1


def test_problems_that_lie_alike_share_a_plan(machine: Machine) -> None:
    x = machine.array(4, 16)
    backline.fft.fft(x), backline.fft.ifft(x), backline.fft.fft(x, norm="ortho"), backline.fft.fft(machine.array(2, 2, 16))
    assert machine.made() == 1 and cufft_plans(0).size == 1


def test_a_handle_is_destroyed_after_its_last_use_on_every_stream(machine: Machine) -> None:
    events = []

    class Event:
        def __init__(self, **given: Any) -> None:
            self.done, self.recorded = False, []
            assert given == {"disable_timing": True}
            events.append(self)

        def record(self, stream: Any) -> None:
            self.recorded.append(stream.ptr)

    machine.cupy.cuda.Event = Event
    x = machine.array(8)
    backline.fft.fft(x)
    stream = machine.cupy.cuda.Stream()
    with machine.cupy.cuda.stream(stream):
        backline.fft.fft(x)
        backline.fft.fft(x)
    assert [each.recorded for each in events] == [[0], [stream.ptr] * 2]
    cufft_plans(0).clear()
    assert len(machine.cufft.live) == 1, "the device may still use it"
    events[0].done = True
    transform_plans.destroy_unused()
    assert len(machine.cufft.live) == 1
    events[1].done = True
    backline.fft.fft(machine.array(9))
    assert len(machine.cufft.live) == 1 and machine.cufft.calls("destroy") == [{"plan": 100}]
    for event in events:
        event.done = True


def test_streams_that_come_and_go_are_forgotten(machine: Machine) -> None:
    x = machine.array(8)
    for _ in range(40):
        with machine.cupy.cuda.stream(machine.cupy.cuda.Stream()):
            backline.fft.fft(x)
    (plan,) = cufft_plans(0).contents().values()
    assert len(plan._events) <= transform_plans.MOST_STREAMS


def test_threads_share_plans(machine: Machine) -> None:
    wrong = []
    arrays = [machine.array(3, n) for n in (8, 9, 10, 12, 15)]
    references = [np.fft.fft(x.host) for x in arrays]

    def work(seed: int) -> None:
        for i in range(60):
            k = (seed + i) % len(arrays)
            with switches.scope({switch_of(0): 3 if seed % 2 else 4096}):
                if error(backline.fft.fft(arrays[k]).host, references[k]) > 1e-6:
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    transform_plans.destroy_unused()
    assert not wrong and len(machine.cufft.live) == cufft_plans(0).size <= 5
    assert machine.made() - len(machine.cufft.calls("destroy")) == len(machine.cufft.live)


def test_a_plan_shared_by_threads_is_set_and_run_in_one_go(machine: Machine) -> None:
    """Nothing of another thread's comes between a plan's stream, its work area and its run."""
    x = machine.array(8)
    backline.fft.fft(x)
    machine.log.clear()

    def work() -> None:
        with machine.cupy.cuda.stream(machine.cupy.cuda.Stream()):
            for _ in range(50):
                backline.fft.fft(x)

    threads = [threading.Thread(target=work) for _ in range(6)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    calls = [name for name, _ in machine.log if name != "alloc"]
    assert calls == ["set_stream", "set_work_area", "exec_c2c"] * 300


def test_a_forked_child_destroys_nothing_of_its_parents(machine: Machine) -> None:
    backline.fft.fft(machine.array(8))
    (plan,) = cufft_plans(0).contents().values()
    plan._process = os.getpid() + 1  # as a child sees it
    del plan
    cufft_plans(0).clear()
    gc.collect()
    assert machine.cufft.calls("destroy") == []
    machine.cufft.live.clear()


def test_without_the_engine_each_call_makes_its_plan(machine: Machine) -> None:
    x = machine.array(8)
    plan = libraries.get("cufft").prepare(backline.explain(backline.fft.fft, x).problem, Algorithm(library="cufft", name="plan"))
    plan(x)
    plan(x)
    assert machine.made() == 2 and not machine.cufft.live


def test_the_engine_keeps_the_plans() -> None:
    made = planner.cufft_plan(3, "key", lambda: types.SimpleNamespace(failed=False, nbytes=0))
    assert cufft_plans(3).get("key", list) is made and cufft_plans(3) in plan_caches._caches.values()
    cufft_plans(3).clear()


@pytest.mark.usefixtures("present")
def test_a_device_that_is_not_there_keeps_no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda: 0)
    assert cuda.cufft_plan_cache.size == 0
    with pytest.raises(BackendUnavailable):
        cuda.cufft_plan_cache[0]


def test_plans_of_a_lost_device_are_dropped_without_a_word() -> None:
    class Lost:
        @property
        def done(self) -> bool:
            raise RuntimeError("cudaErrorIllegalAddress")

    module = type("Module", (), {"cuFFTError": type("cuFFTError", (Exception,), {})})
    transform_plans._unused.append(transform_plans._Unused(os.getpid(), 0, module, None, 1, (Lost(),)))
    transform_plans.destroy_unused()
    assert not transform_plans._unused
