"""cuDNN's graphs: calls in order, filters, plans that are tried one after another, timing, what is kept, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.engine.tuning import record_store
from backline.engine.tuning.record import parse
from backline.errors import BadValue, LibraryFailed, NoKernel
from backline.libraries import errata, errata_table, presence
from backline.libraries.cuda.cudnn import graph_cache, graphs
from backline.libraries.erratum import Erratum
from backline.native.bounded_cache import BoundedCache
from backline.nn import functional, grad
from fakes.cupy_standin import ndarray
from fakes.graphs import Plan
from fakes.insert import inserted
from support import clean

real = pytest.importorskip("cudnn")
from fakes.cudnn_machine import Machine, same  # noqa: E402  # after importorskip

pytestmark = pytest.mark.usefixtures("clean")
assert clean

TF32_OFF = {"cudnn.conv.fp32_precision": "ieee"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine()
    graph_cache._failed.clear()
    # A cuDNN that is installed would tell its own version in the place of the stand-in's.
    monkeypatch.setattr(presence.presence("cudnn"), "_found", presence.Found("a stand-in takes its place", (), None))
    with inserted(cupy=made.cupy, cudnn=made.cudnn):
        yield made
    record_store.reload()


def test_the_order_of_calls_and_none_of_them_twice(machine: Machine) -> None:
    x, w = machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3)
    functional.conv2d(x, w)
    built = ["backend_graph", "conv_fprop", "validate", "build_operation_graph", "create_execution_plans", "deselect_numeric_notes"]
    assert machine.names() == ["create_handle", "set_stream", *built, "build", "set_stream", "execute"]
    functional.conv2d(x, w)
    assert machine.names() == ["set_stream", "execute"]
    functional.conv2d(machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3), activation="relu")
    assert machine.names() == ["set_stream", "execute"], "what comes after the graph is no part of it"
    with switches.scope({"max_error": 1.0}):
        functional.conv2d(x, w)
    assert machine.names() == ["set_stream", "execute"], "another snapshot, the same graph"


def test_what_a_graph_is_made_with(machine: Machine) -> None:
    functional.conv2d(machine.array(2, 4, 6, 6, dtype=np.float16), machine.array(8, 4, 3, 3, dtype=np.float16))
    (graph,) = machine.cudnn.graphs
    kinds = real.data_type
    assert graph.given["sm_version"] == 90
    assert [graph.given[f"{each}_data_type"] for each in ("io", "intermediate", "compute")] == [
        kinds.HALF,
        kinds.FLOAT,
        kinds.FLOAT,
    ]
    assert graph.heuristics == ["A", "FALLBACK"]


@pytest.mark.parametrize(("given", "dropped", "used"), [
    ({}, ["DOWN_CONVERT_INPUTS"], "plain"),
    (TF32_OFF, ["DOWN_CONVERT_INPUTS", "TENSOR_CORE"], "exact"),
    ({"cudnn.deterministic": True}, ["DOWN_CONVERT_INPUTS", "NONDETERMINISTIC"], "steady"),
    ({**TF32_OFF, "deterministic": True}, ["DOWN_CONVERT_INPUTS", "TENSOR_CORE", "NONDETERMINISTIC"], "both"),
])  # fmt: skip
def test_filters_leave_the_first_plan_that_may_run(
    machine: Machine, given: dict[str, Any], dropped: list[str], used: str
) -> None:
    tensor, loose = "TENSOR_CORE", "NONDETERMINISTIC"
    machine.cudnn.plans = [
        Plan("frost", python=True), Plan("narrow", ("DOWN_CONVERT_INPUTS",)), Plan("plain", (tensor, loose)), Plan("exact", (loose,)),
        Plan("steady", (tensor,)), Plan("both"),
    ]  # fmt: skip
    with switches.scope(given):
        functional.conv2d(machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3))
    assert [each["notes"] for name, each in machine.log if name == "deselect_numeric_notes"] == [dropped]
    assert machine.cudnn.used() == [used]


def test_plans_of_engines_that_errata_name_are_dropped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.cudnn.plans = [Plan("eng5_k2=1"), Plan("eng58"), Plan("eng50_k5=5")]
    row = Erratum(id="cudnn-toy", library="cudnn", operations=("conv",), engines=(5, 58), condition="c", evidence="e")
    monkeypatch.setattr(errata_table, "TABLE", (row,))
    errata.clear()
    x, w = machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3)
    same(functional.conv2d(x, w), functional.conv2d(x.host, w.host))
    assert machine.cudnn.used() == ["eng50_k5=5"]
    machine.cudnn.plans = [Plan("eng5")]
    with pytest.raises(NoKernel, match=r"eng5 \(0\): an erratum names its engine"), backline.use("cudnn", only=True):
        functional.conv2d(machine.array(2, 4, 7, 7), w)


def test_no_plan_is_an_error_with_every_reason(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("eng0", ("DOWN_CONVERT_INPUTS",)), Plan("eng7", wrong="No valid engine\nconfigs")]
    with pytest.raises(NoKernel) as caught:
        machine.prepared()
    assert "eng0 (0): dropped by a filter" in str(caught.value) and "eng7 (1): No valid engine configs" in str(caught.value)
    machine.cudnn.plans = [Plan("eng1")]
    plan, arrays = machine.prepared()
    plan(*arrays)
    assert machine.cudnn.used() == ["eng1"], "a failure is not kept"


def test_a_plan_that_fails_makes_room_for_the_next(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("fails", fails=True), Plan("works")]
    plan, arrays = machine.prepared()
    plan(*arrays)
    plan(*arrays)
    assert machine.cudnn.used() == ["fails", "works", "works"]


def test_when_all_fail_the_next_call_builds_anew(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("fails", fails=True)]
    plan, arrays = machine.prepared()
    with pytest.raises(LibraryFailed, match="EXECUTION_FAILED"):
        plan(*arrays)
    machine.cudnn.plans = [Plan("works")]
    plan(*arrays)
    assert machine.cudnn.used() == ["fails", "works"]
    assert [name for name in machine.names() if name in ("create_handle", "backend_graph")] == ["create_handle", *["backend_graph"] * 2]


def test_without_memory_for_a_workspace_a_plan_with_a_smaller_one_runs(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("large", workspace=4096), Plan("small", workspace=16)]
    plan, arrays = machine.prepared()
    machine.free = 100
    plan(*arrays)
    machine.free = 1 << 40
    plan(*arrays)
    assert machine.cudnn.used() == ["small", "large"], "memory may be there again"
    machine.free = 1
    with pytest.raises(MemoryError):
        plan(*arrays)


def test_benchmark_times_as_many_plans_as_it_may_and_keeps_the_fastest(machine: Machine) -> None:
    machine.cudnn.plans = [Plan(f"eng{i}", ms=ms) for i, ms in enumerate((3.0, 2.0, 1.0, 0.1))]
    plan, arrays = machine.prepared(**{"cudnn.benchmark": True, "cudnn.benchmark_limit": 3})
    assert machine.cudnn.used() == []
    plan(*arrays)
    assert {*machine.cudnn.used()} == {"eng0", "eng1", "eng2"} and machine.cudnn.used()[-1] == "eng2"
    assert machine.cudnn.used().count("eng0") == 1 + graphs.LEAST, "one run not counted; then it is too slow"
    machine.names()
    plan(*arrays)
    assert machine.names() == ["set_stream", "execute"]
    again, _ = machine.prepared(**{"cudnn.benchmark": True, "cudnn.benchmark_limit": 3})
    again(*arrays)
    assert machine.names() == ["set_stream", "execute"], "timed once"
    other, _ = machine.prepared()
    other(*arrays)
    assert machine.cudnn.used()[-1] == "eng2", "what was timed is on record"
    record_store.reload()
    graph_cache._kept.clear()
    other, _ = machine.prepared()
    other(*arrays)
    assert machine.cudnn.used()[-1] == "eng0", "without a record, the first that runs"
    again, _ = machine.prepared(**{"cudnn.benchmark": True, "cudnn.benchmark_limit": 3})
    again(*arrays)
    assert machine.cudnn.used()[-1] == "eng2", "and that one does not stay when timing is asked for"
    unbounded, _ = machine.prepared("conv", **{"cudnn.benchmark": True, "cudnn.benchmark_limit": 0})
    unbounded(*arrays)
    assert machine.cudnn.used()[-1] == "eng3"


def test_a_call_under_benchmark_is_timed(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("slow", ms=2.0), Plan("fast", ms=1.0)]
    with switches.scope({"cudnn.benchmark": True}):
        functional.conv2d(machine.array(2, 4, 6, 6), machine.array(8, 4, 3, 3))
    assert machine.cudnn.used()[-1] == "fast"


def test_the_first_plan_stays_unless_another_is_clearly_faster(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("first", ms=1.0), Plan("hardly", ms=0.98)]
    plan, arrays = machine.prepared(**{"cudnn.benchmark": True})
    plan(*arrays)
    assert machine.cudnn.used()[-1] == "first"


def test_a_single_plan_is_not_timed(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("only")]
    plan, arrays = machine.prepared(**{"cudnn.benchmark": True})
    plan(*arrays)
    assert machine.cudnn.used() == ["only", "only"]


def test_while_timing_the_bound_on_workspaces_is_halved_when_memory_runs_out(machine: Machine) -> None:
    free = machine.cupy.cuda.runtime.memGetInfo()[0]
    machine.cudnn.plans = [
        Plan("beyond", workspace=free + 1), Plan("out", workspace=free - 1), Plan("half", workspace=free // 2 + 1),
        Plan("fits", workspace=64, ms=2.0), Plan("none", ms=1.0),
    ]  # fmt: skip
    plan, arrays = machine.prepared(**{"cudnn.benchmark": True})
    machine.free = 1000
    plan(*arrays)
    assert {*machine.cudnn.used()} == {"fits", "none"} and machine.cudnn.used()[-1] == "none"
    plans = plan.function.run.plans
    reasons = [plans.refused[f"{name} ({i})"] for i, name in enumerate(("beyond", "out", "half"))]
    assert reasons[0] == "needs more workspace than there may be" and reasons[1] == "there was no memory for its workspace"
    assert reasons[2].startswith(f"needs more than {free // 2} bytes of workspace")
    assert ("deselect_workspace_greater_than", {"bytes": free}) in machine.log


def test_nothing_is_timed_while_determinism_is_asked_for(machine: Machine) -> None:
    plan, arrays = machine.prepared("conv_tf32_steady", **{"cudnn.benchmark": True, "deterministic": True})
    plan(*arrays)
    assert machine.cudnn.used() == ["eng1"]


def test_work_goes_to_the_callers_stream_and_each_thread_has_a_handle(machine: Machine) -> None:
    import threading

    plan, arrays = machine.prepared()
    stream = machine.cupy.cuda.Stream()
    with machine.cupy.cuda.stream(stream):
        plan(*arrays)
    plan(*arrays)
    streams = [given["stream"] for name, given in machine.log if name == "set_stream"]
    assert streams[-2:] == [stream.ptr, 0]
    thread = threading.Thread(target=plan, args=arrays)
    thread.start()
    thread.join()
    handles = [given["handle"] for name, given in machine.log if name == "execute"]
    assert handles[0] is handles[1] is not handles[2]


# --- what is kept ----------------------------------------------------------------------------------------------------


class Made:
    failed = False


def test_kept_plans_are_bounded_and_the_least_used_goes_first() -> None:
    kept = BoundedCache(2, once=True)
    made = {key: kept.get(key, Made) for key in "ab"}
    assert kept.get("a", Made) is made["a"]
    kept.get("c", Made)
    assert kept.size == 2
    assert kept.get("a", Made) is made["a"] and kept.get("b", Made) is not made["b"]
    kept.clear()
    assert kept.size == 0 and kept.get("a", Made) is not made["a"]


@pytest.mark.parametrize(
    ("word", "size", "again"), [("", 5, True), ("3", 3, True), ("0", 5, True), ("-1", 0, False), ("many", 5, True)]
)
def test_the_environment_bounds_them_as_pytorch_has_it(
    monkeypatch: pytest.MonkeyPatch, word: str, size: int, again: bool
) -> None:
    monkeypatch.setenv("TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT", word)
    kept = graph_cache.new_cache()
    made = [kept.get(key, Made) for key in range(5)]
    assert kept.size == size and (kept.get(4, Made) is made[4]) is again
    assert graph_cache.most() == {"": 10_000, "many": 10_000}.get(word, int(word) if word[-1:].isdecimal() else 0)


@pytest.fixture
def kept_records() -> Iterator[None]:
    """Records of this test alone, in no file."""
    record_store.reload()
    yield
    record_store.reload()


TIMED = [Plan("eng0", ms=3.0), Plan("eng1", ms=1.0), Plan("eng2", ms=2.0)]
ON = {"cudnn.benchmark": True}


@pytest.mark.usefixtures("kept_records")
def test_the_plan_that_was_the_fastest_is_taken_by_the_next_process(machine: Machine) -> None:
    machine.cudnn.plans = TIMED
    plan, arrays = machine.prepared(**ON)
    plan(*arrays)
    (record,) = record_store.every()
    assert record.plan == "eng1 of 91900 on NVIDIA_H100_80GB_HBM3_9.0_132" and record.versions.keys() == {"cudnn"}
    assert (
        record.key.startswith("cudnn conv_fprop image=FLOAT:2x4x6x6:144x36x6x1 weight=")
        and record.seconds("cudnn.plan@1") == 1e-3
    )
    assert parse(record.line()) == record
    for values in (ON, {}):
        machine.cudnn.log.clear()
        graph_cache._kept.clear()
        again, _ = machine.prepared(**values)
        again(*arrays)
        again(*arrays)
        assert machine.cudnn.used() == ["eng1", "eng1"], "nothing is timed"
        assert [given["name"] for name, given in machine.log if name == "build"] == ["eng1"]
    graph_cache._kept.clear()
    machine.cudnn.log.clear()
    steady, _ = machine.prepared("conv_tf32_steady", deterministic=True)
    steady(*arrays)
    assert machine.cudnn.used() == ["eng0"], "no time decides while determinism is asked for"


@pytest.mark.usefixtures("kept_records")
@pytest.mark.parametrize("later", [False, True], ids=["in this process", "in the next"])
def test_a_search_that_was_limited_once_is_widened_when_that_is_asked_for(machine: Machine, later: bool) -> None:
    machine.cudnn.plans = [Plan(f"eng{i}", ms=ms) for i, ms in enumerate((3.0, 2.0, 1.0, 0.1))]

    def used(**values: Any) -> list[str]:
        if later:
            graph_cache._kept.clear()
        machine.cudnn.log.clear()
        plan, arrays = machine.prepared(**values)
        plan(*arrays)
        return machine.cudnn.used()

    assert used(**ON, **{"cudnn.benchmark_limit": 2})[-1] == "eng1"
    assert [r.under for r in record_store.every()] == [{"benchmark_limit": "2"}]
    assert used(**ON, **{"cudnn.benchmark_limit": 2}) == used(**ON, **{"cudnn.benchmark_limit": 1}) == used() == ["eng1"]
    wider = used(**ON, **{"cudnn.benchmark_limit": 0})
    assert {*wider} == {"eng0", "eng1", "eng2", "eng3"} and wider[-1] == "eng3"
    assert [r.under for r in record_store.every()] == [{"benchmark_limit": "0"}]
    assert used(**ON, **{"cudnn.benchmark_limit": 3}) == used(**ON, **{"cudnn.benchmark_limit": 0}) == ["eng3"]


@pytest.mark.usefixtures("kept_records")
def test_a_plan_on_an_older_record_was_timed_under_the_default_limit(machine: Machine) -> None:
    machine.cudnn.plans = [Plan(f"eng{i}", ms=ms) for i, ms in enumerate((2.0, 1.0, 0.1))]
    plan, arrays = machine.prepared(**ON, **{"cudnn.benchmark_limit": 2})
    plan(*arrays)
    (record,) = record_store.every()
    record_store.keep(replace(record, under={}, created=record.created.replace("20", "21", 1)), file=False)
    for limit, taken in ((10, "eng1"), (0, "eng2")):
        graph_cache._kept.clear()
        machine.cudnn.log.clear()
        again, _ = machine.prepared(**ON, **{"cudnn.benchmark_limit": limit})
        again(*arrays)
        assert machine.cudnn.used()[-1] == taken


@pytest.mark.usefixtures("kept_records")
@pytest.mark.parametrize(("change", "why"), [
    ("version", ""), ("plans", "no such plan here"), ("wrong", "no such plan here"),
    ("text", "names no plan"), ("card", "it was timed on NVIDIA_A100"), ("bits", "no such plan here"),
])  # fmt: skip
def test_a_plan_of_elsewhere_is_not_taken(machine: Machine, change: str, why: str) -> None:
    machine.cudnn.plans = [Plan(each.name, each.notes, ms=each.ms) for each in TIMED]
    plan, arrays = machine.prepared(**ON)
    plan(*arrays)
    (record,) = record_store.every()
    graph_cache._kept.clear()
    machine.log.clear()
    if change == "version":
        machine.cudnn.version = 92800
    elif change == "plans":
        machine.cudnn.plans.pop(1)
    elif change == "wrong":
        machine.cudnn.plans[1].wrong = "No valid engine configs"
    elif change == "bits":  # a filter drops it
        machine.cudnn.plans[1].notes = ("DOWN_CONVERT_INPUTS",)
    else:
        text = {"text": "eng1; rm", "card": "eng1 of 91900 on NVIDIA_A100_8.0_108"}[change]
        record_store.keep(replace(record, plan=text, created=record.created.replace("20", "21", 1)), file=False)
    again, _ = machine.prepared(**ON)
    again(*arrays)
    found = [text for name, text in again.function.run.plans.refused.items() if name.endswith("of the tuning record")]
    # Records of another release are not read at all.
    assert (len(found) == 1 and why in found[0]) if why else not found
    assert len({*machine.cudnn.used()}) > 1, "plans are timed as if there were no record"


@pytest.mark.usefixtures("kept_records")
def test_a_plan_of_the_records_that_fails_makes_room(machine: Machine) -> None:
    machine.cudnn.plans = [Plan(each.name, ms=each.ms) for each in TIMED]
    plan, arrays = machine.prepared(**ON)
    plan(*arrays)
    graph_cache._kept.clear()
    for each in machine.cudnn.plans:
        each.fails = True
    again, _ = machine.prepared()
    with pytest.raises(LibraryFailed):
        again(*arrays)
    machine.cudnn.plans[0].fails = False
    last, _ = machine.prepared()
    last(*arrays)
    assert machine.cudnn.used()[-1] == "eng0"
    assert last.function.run.plans.refused["eng1 of the tuning record"] == "it failed when it ran"


def test_a_plan_that_fails_while_it_is_timed_is_out(machine: Machine) -> None:
    machine.cudnn.plans = [Plan("eng0", ms=2.0), Plan("breaks", ms=1.0), Plan("eng2", ms=3.0)]
    plan, arrays = machine.prepared(**ON)
    graph = machine.cudnn.graphs[-1]
    execute = graph.run

    def breaking(pack: Any, workspace: int, index: int, handle: Any) -> None:
        if graph.all[index].name == "breaks" and machine.cudnn.used().count("breaks") == 2:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        execute(pack, workspace, index, handle)

    graph.run = breaking  # type: ignore[method-assign]  # a double
    plan(*arrays)
    assert machine.cudnn.used()[-1] == "eng0" and {*plan.function.run.plans.times} == {"eng0", "eng2"}
    assert "failed while it was timed" in plan.function.run.plans.refused["breaks (1)"]


# --- what comes out --------------------------------------------------------------------------------------------------


CASES = [
    {}, {"stride": 2, "padding": 1}, {"padding": "same", "dilation": 2}, {"groups": 2}, {"groups": 4, "padding": (0, 2)},
    {"stride": (2, 1), "dilation": (1, 2), "padding": 3},
]  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("given", CASES)
def test_convolutions_and_their_gradients(machine: Machine, given: dict[str, Any], last: bool) -> None:
    x, w = machine.array(2, 4, 9, 8, last=last), machine.array(8, 4 // given.get("groups", 1), 3, 3)
    y = functional.conv2d(x, w, **given)
    same(y, functional.conv2d(x.host, w.host, **given))
    assert y.host.transpose(0, 2, 3, 1).flags.c_contiguous is last
    dy = machine.array(*y.shape, last=last)
    same(grad.conv2d_input(x.shape, w, dy, **given), grad.conv2d_input(x.shape, w.host, dy.host, **given))
    same(grad.conv2d_weight(x, w.shape, dy, **given), grad.conv2d_weight(x.host, w.shape, dy.host, **given))


def test_an_odd_zero_goes_behind(machine: Machine) -> None:
    x, w, given = machine.array(2, 4, 6, 7), machine.array(6, 4, 2, 4), {"padding": "same"}
    y = functional.conv2d(x, w, **given)
    same(y, functional.conv2d(x.host, w.host, **given))
    same(grad.conv2d_input(x.shape, w, y, **given), grad.conv2d_input(x.shape, w.host, y.host, **given))
    same(grad.conv2d_weight(x, w.shape, y, **given), grad.conv2d_weight(x.host, w.shape, y.host, **given))


@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_dimensions(machine: Machine, rank: int) -> None:
    x, w = machine.array(2, 3, *(7, 6, 5)[:rank]), machine.array(4, 3, *(3, 2, 3)[:rank])
    plain, back = getattr(functional, f"conv{rank}d"), getattr(functional, f"conv_transpose{rank}d")
    y = plain(x, w, stride=2, padding=1)
    same(y, plain(x.host, w.host, stride=2, padding=1))
    same(back(y, w, stride=2, padding=1), back(y.host, w.host, stride=2, padding=1))


@pytest.mark.parametrize("given", [{}, {"stride": 2, "output_padding": 1, "padding": 1}, {"groups": 2, "dilation": 2}])
def test_transposed(machine: Machine, given: dict[str, Any]) -> None:
    x, w = machine.array(2, 4, 5, 6), machine.array(4, 3, 3, 3)
    same(functional.conv_transpose2d(x, w, **given), functional.conv_transpose2d(x.host, w.host, **given))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("given", [
    {}, {"stride": 2, "output_padding": 1, "padding": 1}, {"groups": 2, "dilation": 2}, {"groups": 4, "stride": 2},
    {"dilation": 3, "output_padding": 2, "padding": 1},
])  # fmt: skip
def test_gradients_of_transposed_convolutions_are_graphs_too(machine: Machine, given: dict[str, Any], rank: int) -> None:
    """By the input it is a convolution of the gradient; by the weights, the weight gradient of that one, with the roles exchanged."""
    x, w = machine.array(2, 4, *(5, 6, 4)[:rank]), machine.array(4, 3 if "groups" not in given else 2, *(3, 2, 3)[:rank])
    forward, by_input, by_weight = (
        getattr(functional, f"conv_transpose{rank}d"), getattr(grad, f"conv_transpose{rank}d_input"),
        getattr(grad, f"conv_transpose{rank}d_weight"),
    )  # fmt: skip
    dy = machine.array(*forward(x.host, w.host, **given).shape)
    same(by_input(x.shape, w, dy, **given), by_input(x.shape, w.host, dy.host, **given))
    same(by_weight(x, w.shape, dy, **given), by_weight(x.host, w.shape, dy.host, **given))
    assert [graph.node for graph in machine.cudnn.graphs] == ["conv_fprop", "conv_wgrad"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bias_residual_activation_and_out(machine: Machine, dtype: Any) -> None:
    x, w, b = machine.array(2, 4, 6, 6, dtype=dtype), machine.array(8, 4, 3, 3, dtype=dtype), machine.array(8, dtype=dtype)
    residual = machine.array(2, 8, 4, 4, dtype=dtype)
    host = functional.conv2d(x.host, w.host, b.host, residual=residual.host, activation="relu")
    same(functional.conv2d(x, w, b, residual=residual, activation="relu"), host, dtype)
    assert functional.conv2d(x, w, b, residual=residual, activation="relu", out=residual) is residual
    same(residual, host, dtype)
    out = machine.array(2, 8, 4, 4, dtype=dtype)
    assert functional.conv2d(x, w, b, out=out) is out
    same(out, functional.conv2d(x.host, w.host, b.host), dtype)
    pack = next(given["pack"] for name, given in reversed(machine.log) if name == "execute")
    assert out.data.ptr in pack.values(), "the graph writes to it"
    with pytest.raises(BadValue, match="overlap"):
        functional.conv2d(x, w[:4], padding=1, out=x)


def test_operands_that_lie_otherwise_are_copied(machine: Machine) -> None:
    wide = machine.array(2, 4, 12, 6)
    x, w = wide[:, :, ::2], machine.array(8, 4, 3, 4)[:, :, :, :3]
    same(functional.conv2d(x, w), functional.conv2d(x.host, w.host))
    flat = machine.array(1 + 2 * 4 * 6 * 6)
    odd = ndarray(flat.host[1:].reshape(2, 4, 6, 6))
    assert odd.data.ptr % 16 == 4
    same(functional.conv2d(odd, w), functional.conv2d(odd.host, w.host))
    target = ndarray(machine.array(1 + 2 * 8 * 4 * 4).host[1:].reshape(2, 8, 4, 4))
    same(functional.conv2d(odd, w, out=target), functional.conv2d(odd.host, w.host))
    strided = ndarray(machine.array(2, 8, 4, 8).host[..., ::2])
    same(functional.conv2d(odd, w, out=strided), functional.conv2d(odd.host, w.host))


def test_without_anything_to_sum_nothing_is_called(machine: Machine) -> None:
    x, w, b = machine.array(2, 0, 6, 6), machine.array(8, 0, 3, 3), machine.array(8)
    same(functional.conv2d(x, w, b), functional.conv2d(x.host, w.host, b.host))
    assert functional.conv2d(machine.array(0, 4, 6, 6), machine.array(8, 4, 3, 3)).shape == (0, 8, 4, 4)
    assert not machine.cudnn.graphs
