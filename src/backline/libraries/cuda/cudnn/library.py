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
from ....problems.attention_problem import AttentionGrads, AttentionProblem
from ....problems.conv_problem import ConvProblem
from ... import attention_constraints, errata
from ...base import Algorithm, Handler, Planner, Refusal
from ..common import bindings
from ..common.binding_library import BindingLibrary
from ..common.device_facts import capability, index_of
from ..common.device_plan import DevicePlan, at, new_images, prepared, refuse_overlaps_of_out
from . import large_tensors
from . import sdpa_graphs as sdpa
from .conv_graphs import ALIGNMENT, ConvRecipe, Feed, Search, conv_algorithms, conv_recipe
from .graph_cache import GraphRun

__all__ = ["CuDNN"]

AT_ONCE = Search(False, 0)


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


class _Attention:
    """The function of the Plan of attention."""

    def __init__(self, problem: AttentionProblem, made: sdpa.AttentionRecipe, module: Any, device: int, planner: Planner) -> None:
        self.problem, self.made = problem, made
        self.forward = GraphRun(made.forward, AT_ONCE, module, device, planner)
        self.backward = None if made.backward is None else GraphRun(made.backward, AT_ONCE, module, device, planner)
        self.numbers: tuple[Any, ...] = ()
        if made.forward.dropout is not None:
            import numpy as np

            self.numbers = tuple(bindings.cupy().asarray(np.array([n], np.int64)) for n in (made.seed, 0))

    def __call__(self, *arrays: Any) -> Any:
        p, made, cupy = self.problem, self.made, bindings.cupy()
        given = {o.role: array for o, array in zip(p.operands, arrays, strict=True)}
        held = {feed.uid: _rows(feed, given[feed.role]) for feed in made.feeds}
        blind = None
        if made.mask:
            held[sdpa.BIAS], blind = self._bias(given["mask"])
        if self.numbers:
            held[sdpa.SEED], held[sdpa.OFFSET] = self.numbers
        out = held[sdpa.OUT] = cupy.empty(made.result, p.dtype)
        if self.backward is None:
            self.forward({uid: at(array) for uid, array in held.items()})
            return out if blind is None else _without(out, blind)
        grad = held.pop(sdpa.GRAD)
        held[sdpa.STATS] = cupy.empty((*made.result[:3], 1), "float32")
        self.forward({uid: at(array) for uid, array in held.items()})
        held[sdpa.GRAD] = grad if blind is None else _without(grad.copy(), blind)
        grads = [cupy.empty(shape, p.dtype) for shape in p.shapes]
        held |= dict(zip((sdpa.GRAD_QUERY, sdpa.GRAD_KEY, sdpa.GRAD_VALUE), grads, strict=True))
        self.backward({uid: at(array) for uid, array in held.items()})
        return AttentionGrads(grads[0], grads[1], grads[2], None)

    def _bias(self, mask: Any) -> tuple[Any, Any]:
        """Returns the bias that is added to the scores, and a mask of the queries that may attend to no key.

        The bias lets these queries attend to every key; their rows of the result and the incoming gradient are set to zero.
        """
        cupy, made = bindings.cupy(), self.made
        mask = mask if mask.ndim == 4 else mask[None, None]
        seen = mask if made.mask == "bool" else mask != -float("inf")
        blind = cupy.logical_not(seen.any(axis=-1, keepdims=True))
        dtype = next(tensor.dtype for name, tensor in made.forward.inputs if name == "bias")
        whole = cupy.empty(made.bias, "float32" if dtype == "FLOAT" else self.problem.dtype)
        zero = cupy.zeros((), whole.dtype)
        if made.mask == "bool":
            whole[...] = cupy.where(cupy.logical_or(mask, blind), zero, cupy.full((), -float("inf"), whole.dtype))
        else:
            whole[...] = cupy.where(blind, zero, mask)
        return whole, blind


def _without(array: Any, blind: Any) -> Any:
    """An array with the rows of queries that may look at no key made zero."""
    cupy = bindings.cupy()
    array[...] = cupy.where(blind, cupy.zeros((), array.dtype), array)
    return array


def _rows(feed: Feed, array: Any) -> Any:
    """Query, key, value or a gradient as the graph wants it."""
    if not feed.copied and _aligned(array):
        return array
    made = bindings.cupy().empty(array.shape, array.dtype)
    made[...] = array
    return made


def _conv_algorithms(context: Any, problem: ConvProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    reason = "" if problem.empty else large_tensors.conv_refusal(problem)
    return iter((Refusal("cudnn", "", reason),)) if reason else conv_algorithms(problem, capability(index_of(problem)))


def _conv_made(problem: ConvProblem, algorithm: Algorithm) -> ConvRecipe:
    made = conv_recipe(problem, algorithm.name, switches.current())
    listed = tuple(sorted(errata.engines(libraries.get("cudnn"), problem, algorithm.name)))
    return replace(made, graph=replace(made.graph, engines_out=listed)) if made.graph is not None and listed else made


def _prepare_conv(planner: Planner, problem: ConvProblem, algorithm: Algorithm) -> DevicePlan:
    images = large_tensors.images_at_once(problem)
    if not images:
        return _plan(planner, problem, _Conv, _conv_made(problem, algorithm))
    module, device = bindings.cudnn(), index_of(problem)

    def make(part: ConvProblem) -> _Conv:
        return _Conv(part, _conv_made(part, algorithm), module, device, planner)

    function = partial(large_tensors.InParts, problem, images, make)
    return prepared(problem, function, f"cuDNN, {problem.key}", (module.cudnnGraphNotSupportedError,))


def _attention_algorithms(context: Any, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    known = replace(attention_constraints.facts_of(problem.device), capability=capability(index_of(problem)))
    reason = large_tensors.attention_refusal(problem)
    return iter((Refusal("cudnn", sdpa.KERNEL, reason),)) if reason else sdpa.attention_algorithms(problem, known)


def _prepare_attention(planner: Planner, problem: AttentionProblem, algorithm: Algorithm) -> DevicePlan:
    return _plan(planner, problem, _Attention, sdpa.attention_recipe(problem, algorithm.name))


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
