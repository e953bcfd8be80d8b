"""Convolutions on CUDA arrays: without cuDNN, deterministic, by precision, and how a plan is chosen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.engine import plan_caches as engine_plans
from backline.engine.tuning import record_store
from backline.errors import NoKernel
from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cudnn import graph_cache
from backline.libraries.cuda.cudnn.graphs import Plans, handle_for
from backline.nn import functional
from gpu.arrays import error, normal, wide
from gpu.convolutions import (
    CLOSE,
    COARSE,
    FINE,
    IEEE,
    ON,
    OPS,
    PRECISION,
    ROUNDED,
    TF32,
    Convolution,
    Size,
    anew,
    images,
    in_use,
    same_bits,
)

assert images  # a fixture


# --- without cuDNN ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-1")
def test_without_cudnn_products_and_our_kernels_run(row: Any, xp: Any, size: Size) -> None:
    row.expect(
        f"cudnn.enabled False: cuBLAS's products run, 1-D to 3-D, groups and gradients; float32 below {FINE}, tf32 below {COARSE}"
    )
    many = size(24, 4)
    cases: list[tuple[str, tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]] = [
        ("float32", (4, many, 200), (16, many, 5), False, {"stride": 2, "padding": 2}),
        ("float32", (4, many, 20, 18), (16, many // 2, 3, 3), True, {"padding": 1, "groups": 2}),
        ("float32", (2, many, 9, 8, 7), (8, many, 3, 3, 3), False, {"dilation": 2, "padding": 2}),
        ("float16", (4, many, 20, 18), (16, many, 3, 3), True, {"padding": 1}),
        ("bfloat16", (4, many, 20, 18), (16, many, 3, 3), False, {"stride": 2}),
        ("float64", (2, many, 12, 12), (16, many, 3, 3), False, {"padding": "same"}),
        ("float32", (2, many, 12, 12), (many, 1, 3, 3), False, {"padding": 1, "groups": many}),
    ]
    for dtype, shape, weight, last, given in cases:
        made = Convolution(xp, shape, weight, dtype, last, **given)
        for op, values in product(OPS, (IEEE, TF32) if dtype == "float32" else (IEEE,)):
            with switches.scope({"cudnn.enabled": False, **values}):
                found = made.error(op)
                choice = backline.explain()
            row.observe(found, f"{dtype} {op} {shape} by {choice.library}.{choice.algorithm}")
            assert choice.library == "cublas" and choice.algorithm in ("im2col", "im2col_tf32", "depthwise")
            assert any("cudnn.enabled" in c.reason for c in choice.candidates if c.library == "cudnn")
            assert choice.algorithm != "im2col_tf32" or values is TF32
            bound = COARSE if choice.algorithm == "im2col_tf32" else ROUNDED.get(dtype, FINE)
            assert found < bound, (dtype, op, shape, choice.algorithm)


@pytest.mark.gpu(row="CONV-1")
def test_transposed_convolutions_without_cudnn(row: Any, xp: Any) -> None:
    x, w = normal((2, 8, 9, 8), seed=1), normal((8, 6, 3, 3), seed=2)
    given = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
    expected = functional.conv_transpose2d(wide(x), wide(w), **given)
    with switches.scope({"cudnn.enabled": False, **IEEE}):
        found = error(functional.conv_transpose2d(xp.asarray(x), xp.asarray(w), **given), expected)
        row.observe(found, f"transposed by {backline.explain().chosen.key}")
        assert found < FINE and backline.explain().library == "cublas"


# --- deterministic ----------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-2")
@pytest.mark.parametrize("switch", ["cudnn.deterministic", "deterministic"])
def test_deterministic_gives_the_same_bits(row: Any, images: Callable[..., Convolution], switch: str, size: Size) -> None:
    row.expect(f"{switch}: only plans that are not noted NONDETERMINISTIC, and the same bits in every run")
    for values, dtype in ((IEEE, "float32"), (TF32, "float32"), ({}, "float16")):
        made = images(dtype)
        for op in OPS:
            with anew({switch: True, **values}):
                runs = [made.run(op) for _ in range(size(20, 4))]
                choice, plans = backline.explain(), made.plans(op)
            assert choice.algorithm.endswith("_steady") and "NONDETERMINISTIC" in plans.spec.without
            assert same_bits(runs), f"{op}: {in_use(plans)} does not repeat"
            row.observe(f"{op} {dtype} {choice.algorithm}", in_use(plans))


@pytest.mark.gpu(row="CONV-2")
def test_deterministic_plans_are_some_of_all(row: Any, xp: Any, size: Size) -> None:
    """The filter drops plans: every plan is built with it and without."""
    n, channels = size((56, 64), (8, 4))
    made = Convolution(xp, (4, channels, n, n), (channels, channels, 3, 3), padding=1)
    for op in ("weight",):  # of which some are not, whatever the version
        names = {}
        for steady in (False, True):
            with anew({"cudnn.deterministic": steady}):
                plans = made.plans(op)
                while plans._build_next():
                    pass
                names[steady] = {plans.name(index) for index in plans.ready}
        row.observe(f"{op}: {len(names[True])} of {len(names[False])} plans are deterministic")
        assert names[True] and names[True] <= names[False]


@pytest.mark.gpu(row="CONV-2")
def test_a_dilated_convolution_with_channels_first_avoids_cudnn(row: Any, images: Callable[..., Convolution]) -> None:
    row.expect("deterministic, dilated: channels first run without cuDNN, channels last with it")
    for last, library in ((False, "cublas"), (True, "cudnn")):
        made = images(last=last, dilation=2, padding=2)
        with anew({"deterministic": True, **IEEE}):
            runs = [made.run("forward") for _ in range(3)]
            choice = backline.explain()
        assert choice.library == library and same_bits(runs) and made.off(runs[0], "forward") < CLOSE
        row.observe(f"{'last' if last else 'first'}: {choice.chosen.key}")
    with anew({"cudnn.deterministic": True, **IEEE}):
        made = images(dilation=2, padding=2)
        assert made.error("forward") < FINE and backline.explain().library == "cublas"
    with anew(IEEE):
        assert made.error("forward") < CLOSE and backline.explain().library == "cudnn"


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-3")
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_float32_with_tf32_and_without(row: Any, images: Callable[..., Convolution], last: bool) -> None:
    row.expect(f"ieee: no plan on tensor cores, error below {CLOSE}; tf32, which is the default: below {COARSE}")
    made = images(last=last)
    for op in OPS:
        for values, bound, barred in (
            (IEEE, CLOSE, True),
            ({"cudnn.allow_tf32": False}, CLOSE, True),
            (TF32, COARSE, False),
            ({}, COARSE, False),
        ):
            with anew(values):
                found, plans = made.error(op), made.plans(op)
            notes = plans.spec.without
            row.observe(found, f"{op} {values or 'default'}: {in_use(plans)}")
            assert found < bound and ("TENSOR_CORE" in notes) is barred and "DOWN_CONVERT_INPUTS" in notes


@pytest.mark.gpu(row="CONV-3")
def test_tf32_plans_read_fewer_bits(row: Any, images: Callable[..., Convolution]) -> None:
    """No plan that computes in tf32 is left once it is off. Whether there is one while it is on is the library's affair."""
    row.expect(
        f"without tf32 no plan has an error above {CLOSE}, with it none above {COARSE}; whether one has more than 1e-4 is told"
    )
    made = images(last=True)
    worst = {}
    for name, values in (("tf32", TF32), ("ieee", IEEE)):
        with anew({**values, "cudnn.benchmark": False}):
            made.run("forward")
            plans = made.plans("forward")
            errors = []
            for _ in range(8):
                errors.append(made.error("forward"))
                if len(plans.ready) < 2 and not plans._build_next():
                    break
                plans.ready.pop(0)
            worst[name] = max(errors)
        row.observe(worst[name], f"worst of {len(errors)} plans, {name}")
    row.observe(f"{'a' if worst['tf32'] > 1e-4 else 'no'} plan reads fewer bits where tf32 is permitted")
    assert worst["ieee"] < CLOSE and worst["tf32"] < COARSE


@pytest.mark.gpu(row="CONV-3")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_halves_are_summed_in_float32(row: Any, xp: Any, images: Callable[..., Convolution], size: Size, dtype: str) -> None:
    made = images(dtype, last=dtype != "float64")
    for op in OPS:
        with anew():
            found, plans = made.error(op), made.plans(op)
        row.observe(found, f"{op} {dtype}: {in_use(plans)}, computed in {plans.spec.compute}")
        assert found < ROUNDED[dtype] and plans.spec.compute == ("DOUBLE" if dtype == "float64" else "FLOAT")
    if dtype != "float64":  # 4608 terms that are not negative: sums in half would lose most of them
        channels = size(512, 128)
        x, w = (np.abs(normal(shape, dtype, 5)) for shape in ((1, channels, 6, 6), (16, channels, 3, 3)))
        with anew():
            y = functional.conv2d(xp.asarray(x), xp.asarray(w))
        assert error(y, functional.conv2d(wide(x), wide(w))) < ROUNDED[dtype]


# --- choosing a plan --------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-4")
@pytest.mark.parametrize("timing", [False, True])  # not "benchmark": a plug-in of pytest has a fixture of that name
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_every_way_to_choose_a_plan(
    row: Any, images: Callable[..., Convolution], timing: bool, deterministic: bool, precision: str, rehearsed: bool
) -> None:
    row.expect(
        "forward and gradients right for benchmark x deterministic x precision; the second call builds nothing and has the same plan"
    )
    values = {"cudnn.benchmark": timing, "cudnn.deterministic": deterministic, PRECISION: precision}
    made, label = images(last=True), f"benchmark {timing}, deterministic {deterministic}, {precision}"
    for op in OPS:
        with anew(values):
            first = made.run(op)
            plans = made.plans(op)
            name, built, timed = in_use(plans), plans.built, dict(plans.times)
            second = made.run(op)
            again = made.plans(op)
        assert again is plans and in_use(again) == name and again.built == built and again.times == timed
        found = max(made.off(each, op) for each in (first, second))
        assert found < (CLOSE if precision == "ieee" else COARSE)
        assert not deterministic or same_bits([first, second])
        row.observe(found, f"{op}, {label}: {name}")
        if not timing:
            assert not timed and plans.ready[0] == min(plans.ready), "the first of the heuristics' list that runs"
            continue
        assert len(timed) <= 10 and (len(timed) > 1 or len(plans.ready) == 1)
        for each, milliseconds in timed.items():
            row.timing(
                op=f"conv2d {op}, {label}", shape=made.shapes[op], dtype="float32", library="cudnn", algorithm=each,
                times_us=[1e3 * milliseconds],
            )  # fmt: skip
        if timed:
            assert timed[name] <= 1.04 * min(timed.values()), "the fastest, or one as good that comes before it"


@pytest.mark.gpu(row="CONV-4")
def test_integer_addresses_and_a_stream_of_ones_own(row: Any, xp: Any, images: Callable[..., Convolution]) -> None:
    row.expect("cuDNN takes integer addresses of CuPy's memory, and its work goes to CuPy's current stream")
    made, stream = images(), xp.cuda.Stream(non_blocking=True)
    module, seen = bindings.cudnn(), []
    with anew(IEEE):
        made.run("forward")
        with stream:
            y = made.run("forward")
            seen.append(stream.ptr)
            plans = made.plans("forward")
        stream.synchronize()
        found = made.off(y, "forward")
        others: list[Any] = []

        def elsewhere() -> None:  # scopes are a thread's own
            with switches.scope(IEEE):
                others.append(made.error("weight"))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    row.observe(found, f"{in_use(plans)} on stream {seen[0]:#x}; in another thread {others[0]:.3g}")
    row.finding(
        1, f"execute_plan_at_index took integers and CuPy's memory on a stream of its own (cuDNN {module.backend_version()})"
    )
    assert found < CLOSE and others[0] < CLOSE and seen[0] != 0


@pytest.mark.gpu(row="CONV-4")
@pytest.mark.parametrize(("word", "mode"), [("", "A"), ("1", "B")])
def test_heuristics_a_or_b(
    row: Any, images: Callable[..., Convolution], monkeypatch: pytest.MonkeyPatch, word: str, mode: str
) -> None:
    monkeypatch.setenv("TORCH_CUDNN_USE_HEURISTIC_MODE_B", word)
    made = images()
    with anew(IEEE):
        found, plans = made.error("forward"), made.plans("forward")
    row.observe(found, f"mode {mode}: {in_use(plans)}")
    assert plans.spec.modes == (mode, "FALLBACK") and found < CLOSE


@pytest.mark.gpu(row="CONV-4")
def test_a_plan_that_was_timed_is_taken_again_without_timing(row: Any, images: Callable[..., Convolution]) -> None:
    row.expect("what a process timed, another takes: one plan is built, none timed; a plan of another version is not taken")
    made = images(last=True)
    with anew({**ON, **IEEE}):
        timed = made.plans("input")
        name = in_use(timed)
        assert len(timed.times) > 1 and [each for each in record_store.every() if each.plan.startswith(f"{name} of ")]
        for values in ({}, {"cudnn.benchmark": False}):  # as a new process finds it
            graph_cache._kept.clear()
            engine_plans.clear()
            with switches.scope(values):
                again = made.plans("input")
                found = made.error("input")
            assert again is not timed and again.tuned == name == in_use(again) and not again.times and again.built == 1
            assert found < CLOSE
        row.observe(found, f"{name} taken from the record, built alone")
        (record,) = (each for each in record_store.every() if each.plan)
        stale = record.plan.replace(f" of {bindings.cudnn().backend_version()} ", " of 80000 ")
        record_store.keep(replace(record, plan=stale, created="2099-01-01T00:00:00.000000Z"), file=False)
        graph_cache._kept.clear()
        engine_plans.clear()
        other = made.plans("input")
        assert not other.tuned and len(other.times) > 1
        row.observe("a record of another version is refused", next(why for n, why in other.refused.items() if "record" in n))


@pytest.mark.gpu(row="CONV-4")
def test_without_a_plan_every_reason_is_told(row: Any, images: Callable[..., Convolution], device: Any) -> None:
    row.expect("NoKernel with every plan and why")
    made, module = images("float16", last=True), bindings.cudnn()
    with anew():
        spec = made.plans("forward").spec
        dropped = tuple(note for note in module.numerical_note.__members__ if note not in ("NOT_SET", "TYPE_COUNT"))
        plans = Plans(module, replace(spec, without=dropped, modes=("A",)), device.capability, handle_for(module, device.index))
        count = len(plans.waiting)
        while plans._build_next():  # some may have no note at all
            plans.ready.clear()
        with pytest.raises(NoKernel) as refused:
            plans.first()
    assert refused.value.cause.count("\n") == len(plans.refused) and "dropped by a filter" in refused.value.cause
    row.observe(f"{count} plans, {len(plans.refused)} refused", refused.value.cause.strip().splitlines()[0].strip())
