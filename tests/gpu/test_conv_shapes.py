"""Convolutions by cuDNN that are not the plain one of two dimensions, and what a call of a plan takes of the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

import backline
from backline import switches
from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cudnn import plan_calls
from backline.libraries.cuda.cudnn.graphs import build, handle_for
from backline.nn import functional, grad
from gpu.arrays import error, normal, wide
from gpu.convolutions import CLOSE, IEEE, OPS, ROUNDED, Convolution, Size, anew, images, in_use

assert images  # a fixture


@pytest.mark.gpu(row="CONV-9")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_three_dimensions_and_groups(row: Any, xp: Any, dtype: str, last: bool, size: Size) -> None:
    row.expect("conv3d, conv1d and groups run on cuDNN, forward and both gradients")
    many = size(32, 8)
    cases: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((2, many, 8, 9, 10), (16, many, 3, 3, 3), {"padding": 1}), ((2, many, 8, 9, 10), (16, many // 4, 3, 3, 3), {"groups": 4, "stride": 2}),
        ((2, many, 20, 18), (16, many // 4, 3, 3), {"groups": 4, "padding": 1}), ((4, many, 100), (16, many, 5), {"padding": 2}),
    ]  # fmt: skip
    for shape, weight, given in cases:
        made = Convolution(xp, shape, weight, dtype, last, **given)
        for op in OPS:
            with anew(IEEE):
                found, choice = made.error(op), backline.explain()
            row.observe(found, f"{op} {shape} {given} {dtype} by {choice.chosen.key}")
            assert found < ROUNDED.get(dtype, CLOSE)
            # An erratum may take it from cuDNN; the choice then says which.
            assert choice.library == "cudnn" or any("erratum" in c.reason for c in choice.candidates if c.library == "cudnn")


@pytest.mark.gpu(row="CONV-9")
@pytest.mark.parametrize("given", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2, "dilation": 2}])
def test_transposed_ones_and_their_gradients(row: Any, xp: Any, given: dict[str, Any]) -> None:
    row.expect("transposed convolutions run on cuDNN, and their gradients as a convolution and as a weight gradient")
    x, w = normal((2, 8, 9, 8), seed=1), normal((8, 6, 3, 3), seed=2)
    with switches.scope({"only": ("numpy",)}):
        y = functional.conv_transpose2d(wide(x), wide(w), **given)
        dy = normal(y.shape, seed=3)
        by_input = grad.conv_transpose2d_input(x.shape, wide(w), wide(dy), **given)
        by_weight = grad.conv_transpose2d_weight(wide(x), w.shape, wide(dy), **given)
    x, w, dy = (xp.asarray(each) for each in (x, w, dy))
    calls: dict[str, tuple[Callable[[], Any], Any]] = {
        "forward": (lambda: functional.conv_transpose2d(x, w, **given), y),
        "input": (lambda: grad.conv_transpose2d_input(x.shape, w, dy, **given), by_input),
        "weight": (lambda: grad.conv_transpose2d_weight(x, w.shape, dy, **given), by_weight),
    }
    for name, (call, wanted) in calls.items():
        with anew(IEEE):
            found = error(call(), wanted)
            choice = backline.explain()
        row.observe(found, f"{name} {given} by {choice.chosen.key}")
        assert found < CLOSE and choice.library == "cudnn"


@pytest.mark.gpu(row="CONV-10")
def test_the_hosts_part_of_a_call(row: Any, images: Callable[..., Convolution], device: Any, rehearsed: bool) -> None:
    row.expect(
        "a record: microseconds until conv2d returns, and of that a run of the plan, by the frontend's compiled half and documented"
    )
    made = images(last=True)
    with anew(IEEE):
        plans = made.plans("forward")
        index, handle = plans.ready[0], handle_for(bindings.cudnn(), device.index)
        result = made.run("forward")
        pointers = {1: made.x.data.ptr, 2: made.w.data.ptr, 3: result.data.ptr}
        calls: dict[str, Callable[[], Any]] = {"conv2d": lambda: made.run("forward")}
        if not plans.workspaces[index]:
            python = build(bindings.cudnn(), plans.spec, device.capability, handle=handle, compiled=False)
            python.build_plan_at_index(index)
            ways = {"compiled": plans.calls[index], "documented": plan_calls.documented_call(python, index)}
            calls |= {
                f"plan, {name}": (lambda call=call: call(pointers, 0, handle)) for name, call in ways.items()
            }
        row.observe(f"{in_use(plans)}, workspace {plans.workspaces[index]}, cuDNN {bindings.cudnn().backend_version()}")
        for name, call in calls.items():
            times = []
            for _ in range(3 if rehearsed else 200):
                begin = time.perf_counter()
                call()
                times.append(1e6 * (time.perf_counter() - begin))
                bindings.cupy().cuda.get_current_stream().synchronize()
            row.observe(min(times), f"{name}: least; median {statistics.median(times):.1f} microseconds")
        assert made.off(made.run("forward"), "forward") < CLOSE
