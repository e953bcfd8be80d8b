"""Convolutions on CUDA arrays: how many plans are timed, what is kept, what happens without memory, and depthwise kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

import backline
from backline import switches
from backline.libraries.cuda.cudnn import graph_cache
from backline.nn import functional
from gpu.convolutions import (
    CLOSE,
    COARSE,
    FINE,
    IEEE,
    ON,
    OPS,
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


# --- how many are timed -----------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-5")
@pytest.mark.parametrize("limit", [3, 2, 0])
def test_the_limit_counts_plans_that_are_timed(row: Any, images: Callable[..., Convolution], limit: int) -> None:
    row.expect("benchmark_limit = 3 times 3 plans, 2 times 2, 0 all")
    made = images(last=True)
    for op in OPS if limit else OPS[:1]:
        with anew({"cudnn.benchmark": True, "cudnn.benchmark_limit": limit}):
            plans = made.plans(op)
            found = made.error(op)
        row.observe(f"{op}, limit {limit}: {len(plans.times)} plans timed", in_use(plans))
        assert found < COARSE
        if limit:
            assert len(plans.times) == limit
        else:
            assert len(plans.times) > 3 and not plans.waiting, "all there are"


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-6")
def test_what_tells_graphs_apart(row: Any, images: Callable[..., Convolution], xp: Any) -> None:
    row.expect(
        "one graph for equal calls; another for layout, dtype, precision, determinism, benchmark, operation; a misaligned image is copied"
    )
    made = images()
    with anew(IEEE):
        plans = made.plans("forward")
        assert made.plans("forward") is plans
        size = graph_cache._kept.size
        others = [
            made.plans("input"),
            made.plans("weight"),
            images(last=True).plans("forward"),
            images("float16").plans("forward"),
        ]
        for values in (TF32, {"cudnn.deterministic": True}, {"cudnn.benchmark": True}):
            with switches.scope(values):
                others.append(made.plans("forward"))
        assert graph_cache._kept.size == size + len(others) and len({id(each) for each in (plans, *others)}) == 1 + len(others)
        # An address that is no multiple of 16: the same graph, of a copy.
        flat = xp.empty(made.x.size + 1, "float32")
        odd = flat[1:].reshape(made.x.shape)
        odd[...] = made.x
        assert odd.data.ptr % 16 == 4
        found = made.off(functional.conv2d(odd, made.w, **made.given), "forward")
        assert found < CLOSE and graph_cache._kept.size == size + len(others) and made.plans("forward") is plans
    row.observe(f"{size + len(others)} graphs", f"misaligned: error {found:.3g}")


@pytest.mark.gpu(row="CONV-6")
def test_the_least_recently_used_graph_goes_first(
    row: Any, images: Callable[..., Convolution], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT"
    row.expect(f"{variable} = 2 keeps two graphs, -1 none, 0 all")
    made = images()
    for word, kept in (("2", 2), ("-1", 0), ("0", 3)):
        monkeypatch.setenv(variable, word)
        with anew(IEEE):
            first = [made.plans(op) for op in OPS]
            assert graph_cache._kept.size == kept, word
            assert (made.plans("weight") is first[2]) is (kept > 0)
            assert (made.plans("forward") is first[0]) is (kept == 3)
            assert made.error("forward") < CLOSE
        row.observe(f"limit {word}: {kept} kept")


@pytest.mark.gpu(row="CONV-6")
def test_threads_share_what_is_kept(row: Any, images: Callable[..., Convolution]) -> None:
    made, found = images(), []
    with anew(IEEE):
        made.run("forward")

        def work() -> None:
            with switches.scope(IEEE):
                found.append((made.plans("forward"), made.error("forward")))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4 and {id(plans) for plans, _ in found} == {id(made.plans("forward"))}
    assert all(each < CLOSE for _, each in found)
    row.observe("four threads, one graph", in_use(found[0][0]))


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-7")
def test_out_of_memory_while_timing_halves_the_bound(
    row: Any, xp: Any, images: Callable[..., Convolution], monkeypatch: pytest.MonkeyPatch, size: Size
) -> None:
    row.expect("no memory for a workspace while timing: the bound is halved, plans with less are timed, the result is right")
    most, alloc, refused = 0, xp.cuda.alloc, []

    def bounded(nbytes: int) -> Any:
        if nbytes > most:
            refused.append(nbytes)
            raise MemoryError(f"{nbytes} bytes")
        return alloc(nbytes)

    n = size(56, 9)
    channels = size(64, 4)
    made = Convolution(xp, (size(16, 2), channels, n, n), (channels, channels, 3, 3), "float32", True, padding=1)
    for op in ("forward", "weight"):
        with anew(TF32):
            all_of_them = made.plans(op)
            while all_of_them._build_next():
                pass
        free = xp.cuda.runtime.memGetInfo()[0]
        wanted = [size for size in all_of_them.workspaces.values() if size <= free]
        if not max(wanted):
            row.observe(f"{op}: none of {len(wanted)} plans wants a workspace, so none is refused one")
            continue
        most, before = max(wanted) - 1, len(refused)
        with anew({**ON, **TF32}):
            monkeypatch.setattr(xp.cuda, "alloc", bounded)
            plans = made.plans(op)
            found = made.error(op)
            monkeypatch.setattr(xp.cuda, "alloc", alloc)
        short = [why for why in plans.refused.values() if "no memory for its workspace" in why or "memory ran out before" in why]
        sizes = {int(plans.graph.get_workspace_size_plan_at_index(index)) for index in plans.ready}
        row.observe(found, f"{op}: {len(short)} plans out for want of memory, {len(plans.times)} timed, {in_use(plans)}")
        assert found < COARSE and max(sizes) <= most
        assert len(refused) > before, "the plan that wanted most"


@pytest.mark.gpu(row="CONV-7")
def test_plans_that_cannot_fit_are_dropped_first(
    row: Any, xp: Any, images: Callable[..., Convolution], monkeypatch: pytest.MonkeyPatch
) -> None:
    row.expect("plans that need more workspace than there is free memory are never run")
    made, least = images(last=True), 1 << 20
    with anew({**ON, **TF32}):
        total = xp.cuda.runtime.memGetInfo()[1]
        monkeypatch.setattr(xp.cuda.runtime, "memGetInfo", lambda: (least, total))
        xp.get_default_memory_pool().free_all_blocks()
        plans = made.plans("input")
        found = made.error("input")
    most = least + int(xp.get_default_memory_pool().total_bytes())
    sizes = [int(plans.graph.get_workspace_size_plan_at_index(index)) for index in plans.ready]
    row.observe(found, f"{len(plans.ready)} plans left, the largest workspace {max(sizes)} bytes, bound at most {most}")
    assert found < COARSE and max(sizes) <= most


# --- depthwise --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="CONV-8")
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_whose_depthwise_kernel_runs(row: Any, xp: Any, last: bool, size: Size) -> None:
    row.expect("float16, 2-D, 32 channels or more: auto and cudnn run cuDNN's, native ours; elsewhere the switch has no say")
    n = size(28, 6)
    made = Convolution(xp, (size(8, 2), 64, n, n), (64, 1, 3, 3), "float16", last, padding=1, groups=64)
    for op, (word, library) in product(OPS, (("auto", "cudnn"), ("cudnn", "cudnn"), ("native", "cublas"))):
        with anew({"cudnn.depthwise_kernel": word}):
            found, choice = made.error(op), backline.explain()
        row.observe(found, f"{op} {word}: {choice.chosen.key}")
        assert found < ROUNDED["float16"] and choice.library == library
        assert word != "native" or choice.algorithm == "depthwise"
    few = Convolution(xp, (2, 16, n, n), (16, 1, 3, 3), "float16", last, padding=1, groups=16)
    single = Convolution(xp, (2, 64, n, n), (64, 1, 3, 3), "float32", last, padding=1, groups=64)
    for other in (few, single):
        with anew({"cudnn.depthwise_kernel": "native", **IEEE}):
            assert other.error("forward") < ROUNDED["float16"]
            assert not any(c.switch == "cudnn.depthwise_kernel" for c in backline.explain().candidates)


@pytest.mark.gpu(row="CONV-8")
@pytest.mark.parametrize("shape", [(2, 64, 40), (2, 48, 13, 11), (2, 32, 6, 7, 5)])
def test_our_depthwise_kernels_for_every_dtype(row: Any, xp: Any, shape: tuple[int, ...]) -> None:
    channels, rank = shape[1], len(shape) - 2
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        made = Convolution(xp, shape, (2 * channels, 1, *(3, 2, 3)[:rank]), dtype, stride=2, padding=1, groups=channels)
        for op in OPS:
            with anew({"cudnn.enabled": False}):
                runs = [made.run(op) for _ in range(2)]
                assert backline.explain().algorithm == "depthwise"
            found = made.off(runs[0], op)
            assert found < ROUNDED.get(dtype, FINE) and same_bits(runs)
        row.observe(found, f"{rank}-D {dtype} depthwise")
