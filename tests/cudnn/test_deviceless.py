"""Answers of the true cuDNN for cards that are described to it: plans, filters, workspaces, and what attention it has.

The numbers of plans differ between versions, so relations between them are asserted. Plans that are compiled at run time stop where
they would load code, so of attention it is the list of plans that answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backline import switches
from backline.errors import NoKernel
from backline.libraries.attention_constraints import Facts
from backline.libraries.base import Algorithm
from backline.libraries.cuda.cudnn import graphs
from backline.libraries.cuda.cudnn.conv_graphs import Graph, conv_algorithms, conv_recipe
from backline.libraries.cuda.cudnn.sdpa_graphs import attention_recipe, attention_refusal
from backline.ops import convolution_checks
from backline.problems import operand
from backline.problems.attention_problem import AttentionProblem, attention_problem
from backline.problems.conv_problem import ConvProblem

from .conftest import Deviceless

pytestmark = pytest.mark.cudnn
SETS = 240
MIB = 1 << 20


def convolution(node: str, dtype: Any = np.float32, last: bool = True, **given: Any) -> ConvProblem:
    def images(n: int, c: int, *size: int) -> Any:
        return np.moveaxis(np.zeros((n, *size, c), dtype), -1, 1) if last else np.zeros((n, c, *size), dtype)

    padding, groups = given.get("padding", 1), given.get("groups", 1)
    x, w, dy = images(16, 64, 56, 56), images(64, 64 // groups, 3, 3), images(16, 64, 56, 56)
    rest = (given.get("stride", 1), padding, given.get("dilation", 1), groups)
    none = {"bias": None, "residual": None, "out": None}
    if node == "fprop":
        return on_cuda(convolution_checks.conv_problem("conv", 2, {"input": x, "weight": w, **none}, *rest, None))
    if node == "transpose":
        return on_cuda(convolution_checks.transpose_problem("t", 2, {"input": x, "weight": w, **none}, 1, padding, 0, groups, 1, None))
    if node == "dgrad":
        return on_cuda(convolution_checks.grad_problem("g", 2, "conv_grad_input", {"weight": w, "grad": dy}, x.shape, *rest))
    return on_cuda(convolution_checks.grad_problem("g", 2, "conv_grad_weight", {"input": x, "grad": dy}, w.shape, *rest))


def on_cuda(problem: ConvProblem) -> ConvProblem:
    return replace(problem, device="cuda:0")


def graph_of(problem: ConvProblem, name: str = "conv_tf32") -> Graph:
    graph = conv_recipe(problem, name, switches.current()).graph
    assert graph is not None
    return graph


def listed(deviceless: Deviceless, graph: Graph, card: str = "H100", **filters: Any) -> list[str]:
    """Names of the plans that can be built, those that filters leave."""
    capability, described = deviceless.cards[card]
    plans = graphs.Plans(deviceless.module, graph, capability, device_property=described)
    if "bound" in filters:
        plans.graph.deselect_workspace_greater_than(filters["bound"])
    while plans._build_next():
        pass
    if "bound" in filters:
        sizes = [plans.graph.get_workspace_size_plan_at_index(index) for index in plans.ready]
        assert all(size <= filters["bound"] for size in sizes)
        assert filters["bound"] == 0 or "needs more workspace than there may be" in plans.refused.values()
    return [f"{plans.name(index)} {index}" for index in plans.ready]


@pytest.fixture(scope="module")
def version(deviceless: Deviceless) -> Facts:
    frontend = tuple(int(part) for part in deviceless.module.__version__.split(".") if part.isdecimal())
    return Facts((9, 0), deviceless.module.backend_version(), frontend)


@pytest.mark.parametrize("card", ["H100", "A100"])
@pytest.mark.parametrize("node", ["fprop", "dgrad", "wgrad"])
def test_filters_leave_parts_of_the_list(deviceless: Deviceless, node: str, card: str, answered: dict[str, Any]) -> None:
    """All, deterministic, exact, and both: cuDNN 9.28 had 42/42/3/3, 38/35/9/6 and 28/24/8/4 on an H100, 9.19 some fewer."""
    graph = graph_of(convolution(node))
    every = listed(deviceless, replace(graph, without=()), card)
    narrow = listed(deviceless, graph, card)
    exact = listed(deviceless, graph_of(convolution(node), "conv"), card)
    steady = listed(deviceless, graph_of(convolution(node), "conv_tf32_steady"), card)
    both = listed(deviceless, graph_of(convolution(node), "conv_steady"), card)
    counts = [len(each) for each in (every, steady, exact, both)]
    answered[f"plans of {node} on {card}: all, deterministic, without TF32, both"] = counts
    assert every == narrow, "nothing here makes its inputs narrower"
    assert {*exact} < {*every} and {*steady} <= {*every} and {*both} == {*exact} & {*steady}
    assert exact and steady and both
    if node != "fprop":
        assert {*steady} < {*every}


@pytest.mark.parametrize("card", ["H100", "A100"])
@pytest.mark.parametrize(("dtype", "last"), [("float32", True), ("float32", False), ("float16", True), ("float16", False)])
def test_a_plans_name_finds_it_again(deviceless: Deviceless, card: str, dtype: str, last: bool) -> None:
    """Names say engine and knobs: no two are the same, and another graph of the same kind lists the same ones, in the same order."""
    capability, described = deviceless.cards[card]
    for node in ("fprop", "dgrad", "wgrad"):
        graph = graph_of(convolution(node, np.dtype(dtype), last), "conv")
        plans = graphs.Plans(deviceless.module, graph, capability, device_property=described)
        plans.distinct()
        names = [plans.name(index) for index in plans.waiting]
        assert len({*names}) == len(names)
        while plans._build_next():
            pass
        wanted = plans.name(plans.ready[-1])
        again = graphs.Plans(deviceless.module, graph, capability, device_property=described)
        again.distinct()
        assert [again.name(index) for index in again.waiting] == names
        assert again.take(wanted) and again.first() == plans.ready[-1] and again.built == 1 and not again.refused
        refused = [name for name in names if f"{name} ({names.index(name)})" in plans.refused]
        for name in [*refused[:1], "eng99999_k2=1"]:
            other = graphs.Plans(deviceless.module, graph, capability, device_property=described)
            assert not other.take(name) and not other.tuned


def test_engine_and_knobs_do_not_make_every_plan_again(deviceless: Deviceless) -> None:
    """Frontends 1.28 and 1.32 list knobs that they refuse to take, so a plan is found by its name."""
    capability, described = deviceless.cards["H100"]
    graph = graph_of(convolution("dgrad"))
    plans = graphs.Plans(deviceless.module, graph, capability, device_property=described)
    outcomes = []
    for index in plans.waiting[:12]:
        engine, knobs = plans.graph.get_engine_and_knobs_at_index(index)
        other = graphs.build(deviceless.module, graph, capability, device_property=described)
        try:
            other.create_execution_plan(engine, dict(knobs))
        except RuntimeError as error:
            assert "knob" in str(error)
            outcomes.append(False)
        else:
            outcomes.append(other.get_plan_name_at_index(other.get_execution_plan_count() - 1) == plans.name(index))
    assert not all(outcomes)


def fused(
    deviceless: Deviceless, card: str, dtype: str, last: bool, steps: tuple[str, ...], without: tuple[str, ...] = ()
) -> int:
    """Returns how many plans are listed for a convolution with pointwise operations after it, in one graph; 0 for none."""
    module, (capability, described) = deviceless.module, deviceless.cards[card]
    kinds = module.data_type.__members__
    io = kinds[{"float16": "HALF", "float32": "FLOAT"}[dtype]]
    version = 10 * capability[0] + capability[1]
    graph = module.pygraph(
        io_data_type=io, intermediate_data_type=kinds["FLOAT"], compute_data_type=kinds["FLOAT"], device_property=described,
        sm_version=version,
    )  # fmt: skip

    def strides(n: int, c: int, h: int, w: int) -> list[int]:
        return [c * h * w, 1, w * c, c] if last else [c * h * w, h * w, w, 1]

    def tensor(name: str, uid: int, *dims: int) -> Any:
        return graph.tensor(name=name, dim=list(dims), stride=strides(*dims), data_type=io, uid=uid)

    y = graph.conv_fprop(
        image=tensor("x", 1, 16, 64, 56, 56), weight=tensor("w", 2, 64, 64, 3, 3), padding=[1, 1], stride=[1, 1], dilation=[1, 1]
    )
    for uid, step in enumerate(steps, start=10):
        if step == "relu":
            y = graph.relu(input=y)
        else:
            y = graph.add(a=y, b=tensor(step, uid, *((1, 64, 1, 1) if step == "bias" else (16, 64, 56, 56))))
    y.set_output(True).set_dim([16, 64, 56, 56]).set_stride(strides(16, 64, 56, 56)).set_data_type(io).set_uid(3)
    try:
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
    except (module.cudnnGraphNotSupportedError, RuntimeError):
        return 0
    return int(graph.get_execution_plan_count())


@pytest.mark.parametrize("card", ["H100", "A100"])
def test_what_comes_after_a_convolution_is_not_always_in_its_graph(deviceless: Deviceless, card: str) -> None:
    """Bias, residual and activation are steps of their own, for with a residual there are no plans for channels first.

    For channels last 9.28 listed 13 to 17, all compiled at run time, of which none can be built here.
    """
    for dtype in ("float16", "float32"):
        for last in (True, False):
            plain = fused(deviceless, card, dtype, last, ())
            assert plain > fused(deviceless, card, dtype, last, ("bias", "relu")) > 0
            whole = fused(deviceless, card, dtype, last, ("bias", "residual", "relu"))
            assert whole < plain if last else whole == 0


def test_a_bound_on_workspace_leaves_some(deviceless: Deviceless) -> None:
    graph = graph_of(convolution("fprop"))
    every, some = listed(deviceless, graph), listed(deviceless, graph, bound=MIB)
    assert 0 < len(some) < len(every)


@pytest.mark.parametrize("card", ["H100", "A100", "T4", "B200"])
@pytest.mark.parametrize("node", ["fprop", "dgrad", "wgrad", "transpose"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_convolution_that_is_listed_has_a_plan(deviceless: Deviceless, card: str, node: str, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for last in (False, True):
        problem = convolution(node, kind, last)
        ours = [a for a in conv_algorithms(problem, deviceless.cards[card].capability) if isinstance(a, Algorithm)]
        for algorithm in ours:
            assert listed(deviceless, graph_of(problem, algorithm.name), card), (algorithm.name, last)
        if not ours:
            with pytest.raises(NoKernel):
                listed(deviceless, graph_of(problem, "conv"), card)


@pytest.mark.parametrize(
    "given", [{"groups": 64}, {"groups": 4}, {"stride": 2, "padding": 1, "node": "fprop"}, {"dilation": 2, "padding": 2}]
)
def test_groups_strides_and_dilation(deviceless: Deviceless, given: dict[str, Any]) -> None:
    given = dict(given)
    for node in [given.pop("node")] if "node" in given else ["fprop", "dgrad", "wgrad"]:
        assert listed(deviceless, graph_of(convolution(node, **given), "conv"))


# --- attention -------------------------------------------------------------------------------------------------------


def attend(
    q: Any, k: Any, v: Any, dtype: Any = np.float16, mask: Any = None, backward: bool = False, lse: bool = False, **given: Any,
) -> AttentionProblem:  # fmt: skip
    arrays = [np.empty(shape, dtype) for shape in (q, k, v)]
    problem = replace(attention_problem(*arrays, mask, **given), device="cuda:0")
    parameters = dict(problem.parameters)
    if backward:
        parameters["needs_grad"] = True
        problem = replace(problem, operands=(*problem.operands, operand("grad", np.empty((*q[:3], v[3]), dtype))))
        if lse:
            output = np.empty((*q[:3], v[3]), dtype)
            more = (operand("output", output), operand("lse", np.empty(q[:3], np.float32)))
            problem = replace(problem, operands=(*problem.operands, *more))
    elif lse:
        parameters["return_lse"] = True
    return replace(problem, parameters=tuple(sorted(parameters.items())))


def answers(deviceless: Deviceless, problem: AttentionProblem, card: str, name: str = "") -> str:
    """Returns why cuDNN has no plan for a Problem; empty if it has some for every graph."""
    made = attention_recipe(problem, name or ("sdpa_backward" if problem.get("grad") else "sdpa"))
    capability, described = deviceless.cards[card]
    for graph in (made.forward, made.backward):
        if graph is not None:
            try:
                plans = graphs.Plans(deviceless.module, graph, capability, device_property=described)
            except NoKernel as error:
                return f"{graph.node}: {error.cause}"
            if not plans.waiting:
                return f"{graph.node}: no plan"
    return ""


def square(dim: int, value: int = 0) -> tuple[tuple[int, ...], ...]:
    return (2, 8, 128, dim), (2, 8, 128, dim), (2, 8, 128, value or dim)


@pytest.mark.parametrize(("card", "shapes", "given", "has"), [
    ("H100", square(64), {}, True), ("H100", square(256), {}, True), ("H100", square(60), {}, False),
    ("H100", square(192, 128), {}, True), ("H100", square(128), {"is_causal": True}, True),
    ("H100", square(64), {"dropout_p": 0.25}, True), ("H100", square(64), {"mask": np.empty((128, 128), bool)}, True),
    ("H100", square(64), {"mask": np.empty((2, 8, 128, 128), np.float32)}, True),
    ("H100", ((2, 8, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64)), {"enable_gqa": True}, True),
    ("H100", ((2, 8, 1, 64), (2, 8, 128, 64), (2, 8, 128, 64)), {}, True),
    ("H100", ((2, 8, 500, 64), (2, 8, 333, 64), (2, 8, 333, 64)), {}, True),
    ("H100", square(64), {"lse": True}, True), ("H100", square(64), {"lse": True, "backward": True}, True),
    ("H100", square(64), {"backward": True}, True), ("H100", square(256), {"backward": True}, True),
    ("A100", square(256), {}, True), ("A100", square(128), {"backward": True}, True), ("A100", square(256), {"backward": True}, False),
    ("T4", square(64), {}, False),
])  # fmt: skip
def test_what_attention_there_is(deviceless: Deviceless, card: str, shapes: Any, given: dict[str, Any], has: bool) -> None:
    assert (answers(deviceless, attend(*shapes, **given), card) == "") is has


@pytest.mark.parametrize("queries", [1, 256])
def test_one_plan_for_many_lengths_is_not_ruled_out(deviceless: Deviceless, answered: dict[str, Any], queries: int) -> None:
    """Graphs with dynamic shapes have no plan. Those whose shape a run may override have the plans of others; a device must judge."""
    graph = attention_recipe(attend((1, 8, queries, 64), (1, 8, 1024, 64), (1, 8, 1024, 64)), "sdpa").forward
    assert graph is not None
    capability, described = deviceless.cards["H100"]
    found: dict[str, list[str]] = {}
    for way in ("", "is_override_shape_enabled", "is_dynamic_shape_enabled"):
        module = SimpleNamespace(**{name: getattr(deviceless.module, name) for name in ("data_type", "heur_mode", "numerical_note")})
        module.pygraph = partial(deviceless.module.pygraph, **({way: True} if way else {}))
        try:
            made = graphs.build(module, graph, capability, device_property=described, compiled=False)
            found[way] = [made.get_plan_name_at_index(index) for index in graphs.own_plans(made)]
        except (deviceless.module.cudnnGraphNotSupportedError, RuntimeError):
            found[way] = []
    answered[f"plans of attention of {queries} queries, by what may change"] = {way or "nothing": len(names) for way, names in found.items()}
    assert found[""] and found["is_override_shape_enabled"] == found[""] and not found["is_dynamic_shape_enabled"]


def test_fewer_plans_give_gradients_with_the_same_bits(deviceless: Deviceless) -> None:
    capability, described = deviceless.cards["H100"]
    counts = []
    for name in ("sdpa_backward", "sdpa_backward_steady"):
        graph = attention_recipe(attend(*square(64), backward=True), name).backward
        assert graph is not None
        counts.append(len(graphs.Plans(deviceless.module, graph, capability, device_property=described).waiting))
    assert 0 < counts[1] < counts[0]


def random_problems() -> Iterator[tuple[str, AttentionProblem]]:
    rng = random.Random(5)
    for _ in range(SETS):
        card = rng.choice(["H100", "H100", "A100", "B200", "T4"])
        batch, heads = rng.randint(1, 3), rng.choice([1, 2, 4, 8])
        queries, keys = rng.choice([1, 7, 64, 100, 333]), rng.choice([1, 2, 64, 77, 500])
        dim = rng.choice([8, 16, 40, 60, 64, 96, 128, 160, 192, 256, 512])
        value = 128 if dim == 192 and rng.random() < 0.7 else rng.choice([dim, dim, dim, 64])
        shared = rng.choice([n for n in (1, 2, 4, 8) if heads % n == 0])
        gqa = rng.random() < 0.3
        others = shared if gqa else heads
        dtype = rng.choice([np.float16, np.dtype(ml_dtypes.bfloat16), np.float16, np.float32])
        given: dict[str, Any] = {"enable_gqa": gqa, "backward": rng.random() < 0.4, "lse": rng.random() < 0.4}
        kind = rng.choice(["", "", "causal", "bool", "added", "wide"])
        if kind == "causal":
            given["is_causal"] = True
        elif kind:
            lead = rng.choice([(), (rng.choice([1, batch]), rng.choice([1, heads]))])
            shape = (*lead, rng.choice([1, queries]), rng.choice([1, keys]))
            kinds = {"bool": np.dtype(bool), "added": np.dtype(dtype), "wide": np.dtype(np.float32)}
            given["mask"] = np.empty(shape, kinds[kind])
        given["dropout_p"] = rng.choice([0.0, 0.0, 0.0, 0.25, 0.5])
        shapes = (batch, heads, queries, dim), (batch, others, keys, dim), (batch, others, keys, value)
        yield card, attend(*shapes, dtype=dtype, **given)


def test_what_the_rules_let_through_cudnn_has(deviceless: Deviceless, version: Facts, answered: dict[str, Any]) -> None:
    """The rules may be stricter than the library, never the other way round."""
    wrong, agreed, stricter = [], {True: 0, False: 0}, 0
    for card, problem in random_problems():
        facts = replace(version, capability=deviceless.cards[card].capability)
        ours, theirs = attention_refusal(problem, facts), answers(deviceless, problem, card)
        if not ours and theirs:
            wrong.append(f"{card} {problem.key}: {theirs}")
        elif bool(ours) == bool(theirs):
            agreed[not ours] += 1
        else:
            stricter += 1
    text = f"{SETS} sets: both have {agreed[True]}, neither {agreed[False]}, cuDNN alone {stricter}"
    answered["attention, random parameters"] = text
    assert not wrong, "\n".join(wrong)
    assert agreed[True] >= 40 and agreed[False] >= 20
