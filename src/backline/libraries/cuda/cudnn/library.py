"""cuDNN: convolutions and attention of CuPy's arrays, as graphs of its frontend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from .... import libraries, switches
from ....problems import Problem
from ....problems.attention_problem import AttentionProblem
from ....problems.conv_problem import ConvProblem
from ... import attention_constraints, errata
from ...base import Algorithm, Handler, Planner, Refusal
from ..common import bindings
from ..common.binding_library import BindingLibrary
from ..common.device_facts import capability, index_of
from ..common.device_plan import DevicePlan, at, new_images, prepared, refuse_overlaps_of_out
from . import sdpa_graphs as sdpa
from .attention_plans import AttentionPlan
from .conv_graphs import ALIGNMENT, ConvRecipe, Feed, conv_algorithms, conv_recipe
from .graph_cache import GraphRun

__all__ = ["CuDNN"]


def _aligned(array: Any) -> bool:
    return at(array) % ALIGNMENT == 0


class _Conv:
    """The function of the Plan of a convolution."""

    def __init__(self, problem: ConvProblem, made: ConvRecipe, module: Any, device: int, planner: Planner) -> None:
        self.problem, self.made = problem, made
        self.run = None if made.graph is None else GraphRun(made.graph, made.search, module, device, planner)

    def __call__(self, *arrays: Any) -> Any:
        p, made = self.problem, self.made
        given = {o.role: array for o, array in zip(p.operands, arrays, strict=True)}
        out: Any = given.get("out")
        refuse_overlaps_of_out(p, arrays)
        direct = made.direct and _aligned(out)
        result: Any = out if direct else new_images(made.shape, p.dtype, made.last)
        if self.run is None:
            result[...] = 0
        else:
            fed = {feed.uid: self._fed(feed, given[feed.role]) for feed in made.feeds}
            self.run({uid: at(array) for uid, array in (*fed.items(), (made.target, result))})
        if made.crop:
            whole, result = result, new_images(p.result, p.dtype, made.last)
            inner = zip(p.result[2:], made.crop, strict=True)
            result[...] = whole[(slice(None), slice(None), *(slice(before, before + n) for n, (before, _) in inner))]
        self._after(result, given)
        if out is not None and not direct:
            out[...] = result
        return result if out is None else out

    def _fed(self, feed: Feed, array: Any) -> Any:
        """An operand as the graph wants it."""
        if not feed.copied and _aligned(array):
            return array
        zeros = feed.zeros or ((0, 0),) * (array.ndim - 2)
        inner = tuple(slice(before, before + n) for n, (before, _) in zip(array.shape[2:], zeros, strict=True))
        shape = (*array.shape[:2], *(n + sum(pair) for n, pair in zip(array.shape[2:], zeros, strict=True)))
        made = new_images(shape, array.dtype, self.made.last)
        if feed.zeros:
            made[...] = 0
        made[(slice(None), slice(None), *inner)] = array
        return made

    def _after(self, result: Any, given: dict[str, Any]) -> None:
        cupy = bindings.cupy()
        for step in self.made.after:
            if step == "bias":
                cupy.add(result, given["bias"].reshape((1, -1) + (1,) * (result.ndim - 2)), out=result)
            elif step == "residual":
                cupy.add(result, given["residual"], out=result)
            else:
                cupy.maximum(result, 0, out=result)


def _conv_algorithms(context: Any, problem: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return conv_algorithms(problem, capability(index_of(problem)))


def _prepare_conv(planner: Planner, problem: ConvProblem, algorithm: Algorithm) -> DevicePlan:
    made = conv_recipe(problem, algorithm.name, switches.current())
    listed = tuple(sorted(errata.engines(libraries.get("cudnn"), problem, algorithm.name)))
    if made.graph is not None and listed:
        made = replace(made, graph=replace(made.graph, engines_out=listed))
    return _plan(planner, problem, _Conv, made)


def _attention_algorithms(context: Any, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    known = replace(attention_constraints.facts_of(problem.device), capability=capability(index_of(problem)))
    return sdpa.attention_algorithms(problem, known)


def _prepare_attention(planner: Planner, problem: AttentionProblem, algorithm: Algorithm) -> DevicePlan:
    return _plan(planner, problem, AttentionPlan, sdpa.attention_recipe(problem, algorithm.name))


def _plan(planner: Planner, problem: Problem, kind: Callable[..., Callable[..., Any]], recipe: Any) -> DevicePlan:
    module = bindings.cudnn()
    function = partial(kind, problem, recipe, module, index_of(problem), planner)
    return prepared(problem, function, f"cuDNN, {problem.key}", (module.cudnnGraphNotSupportedError,))


class CuDNN(BindingLibrary):
    """libcudnn, called through nvidia-cudnn-frontend."""

    modules = ("cudnn",)

    def version(self) -> str | None:
        told = super().version()
        if told is None and ("cudnn" in bindings.inserted or "cudnn" in sys.modules):
            # Its file may lie where nobody looked: the bindings know, once they have loaded it.
            with suppress(RuntimeError):
                return str(bindings.cudnn().backend_version())
        return told
    handlers: ClassVar = {
        ConvProblem: Handler(_conv_algorithms, _prepare_conv),
        AttentionProblem: Handler(_attention_algorithms, _prepare_attention),
    }
