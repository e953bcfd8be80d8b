"""Calls of plans by the true frontend: what reaches cuDNN is read out of the packs that it accepted.

Plans of attention are compiled when they are built, which takes a device; of their graphs it is asked which addresses they take.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backline import switches
from backline.libraries.cuda.cudnn import graphs, plan_calls
from backline.libraries.cuda.cudnn.conv_graphs import conv_recipe
from backline.libraries.cuda.cudnn.sdpa_graphs import attention_recipe
from backline.ops.convolution_checks import conv_problem, grad_problem, transpose_problem
from backline.problems import operand
from backline.problems.attention_problem import attention_problem
from backline.problems.conv_problem import ConvProblem
from fakes.idle_cudnn import Idle

from .conftest import Deviceless

pytestmark = pytest.mark.cudnn
HANDLE = 0x1000
NONE = {"bias": None, "residual": None, "out": None}


@pytest.fixture
def seen(deviceless: Deviceless) -> Idle:
    return deviceless.idle


def images(*shape: int, dtype: Any = np.float32, last: bool = True) -> Any:
    return np.moveaxis(np.zeros((shape[0], *shape[2:], shape[1]), dtype), -1, 1) if last else np.zeros(shape, dtype)


def plans_of(deviceless: Deviceless, problem: ConvProblem, name: str = "conv") -> graphs.Plans:
    graph = conv_recipe(replace(problem, device="cuda:0"), name, switches.current()).graph
    assert graph is not None
    capability, described = deviceless.cards["H100"]
    return graphs.Plans(deviceless.module, graph, capability, device_property=described)


def problems(dtype: Any, last: bool, rank: int = 2, groups: int = 1) -> dict[str, ConvProblem]:
    """The four kinds, of images of one, two or three dimensions, and the gradients of a transposed one with an output padding."""
    size, kernel, numbers = (12,) * rank, (3,) * rank, (2, 1, 1, groups)
    x, w = images(4, 32, *size, dtype=dtype, last=last), images(32, 32 // groups, *kernel, dtype=dtype, last=last)
    dy = images(4, 32, *(6,) * rank, dtype=dtype, last=last)
    up = images(4, 32, *(24,) * rank, dtype=dtype, last=last)  # what a transposed convolution makes of x, output padding 1
    return {
        "conv": conv_problem("c", rank, {"input": x, "weight": w, **NONE}, *numbers, None),
        "input": grad_problem("c", rank, "conv_grad_input", {"weight": w, "grad": dy}, x.shape, *numbers),
        "weight": grad_problem("c", rank, "conv_grad_weight", {"input": x, "grad": dy}, w.shape, *numbers),
        "transposed": transpose_problem("c", rank, {"input": x, "weight": w, **NONE}, 2, 1, 1, groups, 1, None),
        "input of the transposed": conv_problem("c", rank, {"input": up, "weight": w, **NONE}, *numbers, None),
        "weight of the transposed": grad_problem("c", rank, "conv_grad_weight", {"input": up, "grad": x}, w.shape, *numbers),
    }  # fmt: skip


def _index(text: str) -> int:
    """Of a plan that was refused: it stands behind its name."""
    return int(text.rpartition("(")[2].rstrip(")"))


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("kind", problems(np.float32, False))
def test_what_reaches_cudnn(deviceless: Deviceless, seen: Idle, kind: str, last: bool) -> None:
    plans = plans_of(deviceless, problems(np.float32, last)[kind])
    index = plans.first()
    assert plan_calls.compiled_call(plans.graph, index) is not None, "the frontend that is pinned has it"
    assert plan_calls.compiled_graph(deviceless.module, plans.spec.node) is type(plans.graph)
    capability, described = deviceless.cards["H100"]
    python = graphs.build(deviceless.module, plans.spec, capability, device_property=described, compiled=False)
    plans.distinct()
    names = [python.get_plan_name_at_index(i) for i in range(python.get_execution_plan_count())]
    ours = [plans.name(i) for i in sorted({index, *plans.waiting, *map(_index, plans.refused)})]
    assert names == [name for name in ours if name in names], "the same order"
    # The frontend takes plans for one whose knobs differ only in those that it has no name for.
    assert len(ours) - len(names) in (0, 1, 2)
    place = names.index(plans.name(index))
    python.build_plan_at_index(place)
    handle = deviceless.module.Handle(HANDLE, 0, 0)
    pointers = {3: 0x7F0000003000, 1: 0x7F0000001000, 2: 0x7F0000002000}
    for workspace in (0x7F0000100000, 0):
        found = []
        ways = plans.calls[index], plan_calls.compiled_call(python, place), plan_calls.documented_call(python, place)
        for call in ways:
            assert call is not None
            before = seen.runs
            call(pointers, workspace, handle)
            assert seen.runs == before + 1
            found.append(seen.last)
        assert found[0] == found[1] == found[2] and found[0].handle == HANDLE
        assert found[0].pointers == pointers and found[0].workspace == workspace
    plans.calls[index]({uid: at + 256 for uid, at in pointers.items()}, 0, handle)
    assert seen.last.pointers == {uid: at + 256 for uid, at in pointers.items()}, "nothing is left of the call before"


def test_each_plan_of_a_graph_runs_by_its_own_index(deviceless: Deviceless, seen: Idle) -> None:
    plans = plans_of(deviceless, problems(np.float32, True)["conv"], "conv_tf32")
    while len(plans.ready) < 3 and plans._build_next():
        pass
    handle = deviceless.module.Handle(HANDLE, 0, 0)
    for place, index in enumerate(plans.ready):
        plans.calls[index](dict.fromkeys((1, 2, 3), 4096 * (place + 1)), 0, handle)
        assert seen.last.pointers == dict.fromkeys((1, 2, 3), 4096 * (place + 1))


@pytest.mark.parametrize("groups", [1, 4, 32])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_convolutions_and_transposed_ones_and_their_gradients_have_plans(
    deviceless: Deviceless, dtype: str, rank: int, groups: int, answered: dict[str, Any]
) -> None:
    counts = {}
    for kind, problem in problems(np.dtype(dtype), True, rank, groups).items():
        plans = plans_of(deviceless, problem)
        assert plans.first() in plans.calls
        counts[kind] = len(plans.waiting) + len(plans.ready)
    answered[f"plans on an H100, {dtype}, {rank} dimensions, {groups} groups"] = counts
    assert min(counts.values()) > 0


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("backward", [False, True])
def test_attention_takes_its_addresses_in_the_order_of_their_uids(deviceless: Deviceless, dropout: float, backward: bool) -> None:
    q = np.empty((2, 8, 128, 64), np.float16)
    made = replace(attention_problem(q, q, q, None, dropout_p=dropout), device="cuda:0")
    parameters = dict(made.parameters) | ({"seed": 3} if dropout else {}) | ({"needs_grad": True} if backward else {})
    made = replace(made, parameters=tuple(sorted(parameters.items())))
    if backward:
        made = replace(made, operands=(*made.operands, operand("grad", q)))
    recipe = attention_recipe(made, "sdpa_backward" if backward else "sdpa")
    graph = recipe.backward if backward else recipe.forward
    assert graph is not None
    capability, described = deviceless.cards["H100"]
    plans = graphs.Plans(deviceless.module, graph, capability, device_property=described)
    assert plan_calls.compiled_call(plans.graph, plans.waiting[0]) is not None
    order = list(plans.graph._get_variant_pack_uids_sorted())
    drop = [] if graph.dropout is None else [graph.dropout.seed.uid, graph.dropout.offset.uid]
    wanted = {of.uid for _, of in graph.inputs} | {of.uid for of in graph.outputs} | set(drop)
    assert order == sorted(wanted)
