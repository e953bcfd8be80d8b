"""Answers of the true cuDNN about attention over packed sequences, for cards that are described to it.

Plans of attention are compiled when they are built, which takes a device: it is the list of plans that answers.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backline.errors import NoKernel
from backline.libraries.attention_constraints import Facts
from backline.libraries.base import Algorithm
from backline.libraries.cuda.cudnn import graphs, plan_calls
from backline.libraries.cuda.cudnn.conv_graphs import Graph
from backline.libraries.cuda.cudnn.packed_graphs import packed_algorithms, packed_recipe
from backline.libraries.cuda.cudnn.packed_plans import _uids
from backline.problems.op_registry import operations
from backline.problems.packed_attention_problem import PackedAttentionProblem

from .conftest import Deviceless

pytestmark = pytest.mark.cudnn
CARDS = ("A100", "A10", "L4", "H100", "B200", "RTX 5090")
LAYERS = {"64": (64, 64), "128": (128, 128), "256": (256, 256), "192 and 128": (192, 128), "40 and 24": (40, 24)}


def packed(
    dims: tuple[int, int] = (64, 64), heads: tuple[int, int] = (8, 8), dtype: Any = np.float16, sequences: int = 5,
    most: tuple[int, int] = (500, 500), alike: bool = True, backward: bool = False, known: bool = False, **given: Any,
) -> PackedAttentionProblem:  # fmt: skip
    rows, (many, few), (dim, width) = 1200, heads, dims
    q, k, v = (np.empty((rows, h, d), dtype) for h, d in ((many, dim), (few, dim), (few, width)))
    positions = np.zeros(sequences + 1, np.int32)
    name, more = "nn.functional.packed_attention", []
    if backward:
        name, more = "nn.grad.packed_attention_backward", [np.empty((rows, many, width), dtype)]
        if known:
            given |= {"output": np.empty((rows, many, width), dtype), "lse": np.empty((rows, many), np.float32)}
    made = operations[name].build(q, k, v, *more, positions, None if alike else positions, *most, enable_gqa=True, **given)
    assert isinstance(made, PackedAttentionProblem)
    return replace(made, device="cuda:0")


def listed(deviceless: Deviceless, graph: Graph, card: str) -> list[str]:
    """Names of the plans of a graph."""
    capability, described = deviceless.cards[card]
    try:
        plans = graphs.Plans(deviceless.module, graph, capability, device_property=described)
    except NoKernel:
        return []
    return [plans.name(index) for index in plans.waiting]


def graphs_of(p: PackedAttentionProblem, name: str, capability: tuple[int, int]) -> list[Graph]:
    made = packed_recipe(p, name, capability)
    return [graph for graph in (made.forward, made.backward) if graph is not None]


@pytest.fixture(scope="module")
def version(deviceless: Deviceless) -> Facts:
    frontend = tuple(int(part) for part in deviceless.module.__version__.split(".") if part.isdecimal())
    return Facts((9, 0), deviceless.module.backend_version(), frontend)


def test_what_the_rules_let_through_cudnn_has(deviceless: Deviceless, version: Facts, answered: dict[str, Any]) -> None:
    """For every capability, layer, kind of mask, heads, dtype and way of the log-sum-exp: a list of plans for each graph."""
    counts: dict[str, dict[str, int]] = {}
    for card, layer in itertools.product(CARDS, LAYERS):
        capability = deviceless.cards[card].capability
        facts = replace(version, capability=capability)
        for backward, known, alike, causal, heads in (
            (False, False, True, False, (8, 8)), (False, False, False, True, (8, 2)), (True, False, True, True, (8, 8)),
            (True, True, False, True, (8, 2)), (True, True, False, False, (8, 8)),
        ):  # fmt: skip
            p = packed(
                LAYERS[layer],
                heads,
                ml_dtypes.bfloat16 if causal else np.float16,
                alike=alike,
                backward=backward,
                known=known,
                is_causal=causal,
            )
            for algorithm in packed_algorithms(p, facts):
                if isinstance(algorithm, Algorithm):
                    for graph in graphs_of(p, algorithm.name, capability):
                        names = listed(deviceless, graph, card)
                        assert names, (card, layer, algorithm.name, graph.node, backward, known, alike, causal, heads)
                        counts.setdefault(f"{card}, {layer}", {})[f"{algorithm.name}: {graph.node}"] = len(names)
    answered["plans of attention over packed sequences"] = counts
    for card in CARDS:
        assert {"packed: sdpa", "packed_backward: sdpa", "packed_backward: sdpa_backward"} <= {*counts[f"{card}, 64"]}, card


@pytest.mark.parametrize("card", CARDS)
def test_why_the_log_sum_exp_is_copied(deviceless: Deviceless, card: str) -> None:
    """Some kernels for gradients read it by sequence only: with rows of all sequences they have no plan."""
    capability = deviceless.cards[card].capability
    p = packed(backward=True, known=True)
    (of_rows,) = graphs_of(p, "packed_backward", (9, 0))
    (own,) = graphs_of(p, "packed_backward", capability)
    assert listed(deviceless, own, card)
    assert bool(listed(deviceless, of_rows, card)) is (capability[0] not in (8, 12))


@pytest.mark.parametrize("card", ["T4"])
def test_older_cards_have_none(deviceless: Deviceless, version: Facts, card: str) -> None:
    capability = deviceless.cards[card].capability
    assert not [a for a in packed_algorithms(packed(), replace(version, capability=capability)) if isinstance(a, Algorithm)]
    (graph,) = graphs_of(packed(), "packed", capability)
    assert not listed(deviceless, graph, card)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("backward", [False, True])
def test_a_call_hands_over_every_address(deviceless: Deviceless, card: str, backward: bool) -> None:
    """The addresses that a plan takes are those of the arrays, the lengths and the offsets, in the order of their uids."""
    capability, described = deviceless.cards[card]
    for graph in graphs_of(
        packed(alike=False, backward=backward, is_causal=True), "packed_backward" if backward else "packed", capability
    ):
        plans = graphs.Plans(deviceless.module, graph, capability, device_property=described)
        assert plan_calls.compiled_call(plans.graph, plans.waiting[0]) is not None
        half = plans.graph if hasattr(plans.graph, plan_calls.RUN) else plans.graph._lowered_graph
        assert list(half._get_variant_pack_uids_sorted()) == sorted(_uids(graph))


@pytest.mark.parametrize("most", [(1, 1), (1, 500), (128, 128), (8192, 8192), (100_000, 100_000)])
@pytest.mark.parametrize("sequences", [1, 3, 9, 300])
def test_classes_of_lengths_have_plans(deviceless: Deviceless, sequences: int, most: tuple[int, int]) -> None:
    for backward in (False, True):
        p = packed(sequences=sequences, most=most, alike=False, backward=backward, is_causal=True)
        for graph in graphs_of(p, "packed_backward" if backward else "packed", (9, 0)):
            assert listed(deviceless, graph, "H100")


@pytest.mark.parametrize("card", CARDS)
def test_the_compiled_half_lists_the_same_plans(deviceless: Deviceless, card: str) -> None:
    """Graphs of attention need nothing that the frontend has in Python alone."""
    capability, described = deviceless.cards[card]
    for graph in graphs_of(packed(backward=True), "packed_backward", capability):
        both = [
            graphs.build(deviceless.module, graph, capability, device_property=described, compiled=compiled)
            for compiled in (True, False)
        ]
        assert hasattr(both[0], plan_calls.RUN) and not hasattr(both[1], plan_calls.RUN)
        names = [[each.get_plan_name_at_index(index) for index in graphs.own_plans(each)] for each in both]
        assert {*names[1]} == {*names[0]} and names[0]
