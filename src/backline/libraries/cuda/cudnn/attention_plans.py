"""Plans of attention on cuDNN: the function of the arrays of a call, around the graphs that `sdpa_graphs` decides."""

from __future__ import annotations

from typing import Any

from ....problems.attention_problem import AttentionGrads, AttentionLSE, AttentionProblem
from ...base import Planner
from ..common import bindings
from ..common.alignment import copied
from ..common.device_plan import at
from . import sdpa_graphs as sdpa
from .conv_graphs import ALIGNMENT, Feed, Graph, Search
from .graph_cache import GraphRun

__all__ = ["AT_ONCE", "AttentionPlan", "rows_for"]

AT_ONCE = Search(False, 0)
ABOVE_ALL = 1e30  # a log-sum-exp by which every weight of a row is zero, and no difference overflows


class AttentionPlan:
    """The function of the Plan of attention, or of its gradients."""

    def __init__(self, problem: AttentionProblem, made: sdpa.AttentionRecipe, module: Any, device: int, planner: Planner) -> None:
        self.problem, self.made = problem, made
        self.roles = tuple(o.role for o in problem.operands)

        def run(graph: Graph | None) -> GraphRun | None:
            return None if graph is None else GraphRun(graph, AT_ONCE, module, device, planner)

        self.forward, self.backward = run(made.forward), run(made.backward)

    def __call__(self, *arrays: Any, seed: int = 0) -> Any:
        p, made, cupy = self.problem, self.made, bindings.cupy()
        given = dict(zip(self.roles, arrays, strict=True))
        held = {feed.uid: rows_for(feed, given[feed.role]) for feed in made.feeds}
        blind = None
        if made.mask:
            held[sdpa.BIAS], blind = self._bias(given["mask"])
        if p.dropout:
            # Written by kernels on the stream that the graph runs on: a copy from the host would wait, or be another stream's.
            held[sdpa.SEED] = cupy.full(1, seed & sdpa.LARGEST_SEED, "int64")
            held[sdpa.OFFSET] = cupy.zeros(1, "int64")
        grad = held.pop(sdpa.GRAD, None)
        if self.forward is not None:
            held[sdpa.OUT] = cupy.empty(made.result, p.dtype)
            if self.backward is not None or p.returns_lse:
                held[sdpa.STATS] = cupy.empty(made.result[:3], "float32")
            self.forward({uid: at(array) for uid, array in held.items()})
        elif blind is not None:  # minus infinity there, and in the graph these queries attend to every key
            held[sdpa.STATS] = cupy.where(blind[..., 0], cupy.full((), ABOVE_ALL, "float32"), held[sdpa.STATS])
        if self.backward is None:
            return self._results(held[sdpa.OUT], held.get(sdpa.STATS), blind)
        held[sdpa.GRAD] = grad if blind is None else _without(copied(grad, ALIGNMENT), blind)  # with its strides
        grads = [cupy.empty(shape, p.dtype) for shape in p.shapes]
        held |= dict(zip((sdpa.GRAD_QUERY, sdpa.GRAD_KEY, sdpa.GRAD_VALUE), grads, strict=True))
        self.backward({uid: at(array) for uid, array in held.items()})
        return AttentionGrads(grads[0], grads[1], grads[2], None)

    def _results(self, out: Any, lse: Any, blind: Any) -> Any:
        """Returns the results of attention, without the rows of the queries that may attend to no key."""
        out = out if blind is None else _without(out, blind)
        if not self.problem.returns_lse:
            return out
        return AttentionLSE(out, lse if blind is None else _without(lse, blind[..., 0], -float("inf")))

    def _bias(self, mask: Any) -> tuple[Any, Any]:
        """Returns the bias that is added to the scores, and a mask of the queries that may attend to no key.

        The bias lets these queries attend to every key; their rows of the result and the incoming gradient are set to zero.
        """
        cupy, made = bindings.cupy(), self.made
        mask = mask if mask.ndim == 4 else mask[None, None]
        seen = mask if made.mask == "bool" else mask != -float("inf")
        blind = cupy.logical_not(seen.any(axis=-1, keepdims=True))
        graph = made.forward or made.backward
        assert graph is not None
        dtype = next(tensor.dtype for name, tensor in graph.inputs if name == "bias")
        whole = cupy.empty(made.bias, "float32" if dtype == "FLOAT" else self.problem.dtype)
        zero = cupy.zeros((), whole.dtype)
        if made.mask == "bool":
            whole[...] = cupy.where(cupy.logical_or(mask, blind), zero, cupy.full((), -float("inf"), whole.dtype))
        else:
            whole[...] = cupy.where(blind, zero, mask)
        return whole, blind


def _without(array: Any, blind: Any, instead: float = 0.0) -> Any:
    """An array with the rows of queries that may attend to no key made zero, or another number."""
    cupy = bindings.cupy()
    array[...] = cupy.where(blind, cupy.full((), instead, array.dtype), array)
    return array


def rows_for(feed: Feed, array: Any) -> Any:
    """Query, key, value, a gradient or a result as the graph wants it: aligned, with the strides that it was told."""
    if feed.copied:
        made = bindings.cupy().empty(array.shape, array.dtype)
        made[...] = array
        return made
    return copied(array, ALIGNMENT) if at(array) % ALIGNMENT else array
