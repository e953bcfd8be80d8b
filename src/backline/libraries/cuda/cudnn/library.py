"""cuDNN: convolutions and attention of CuPy's arrays, as graphs of its frontend; recurrent networks by its C interface."""

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
from ....problems.packed_attention_problem import PackedAttentionProblem
from ....problems.rnn_problem import RnnProblem
from ... import attention_constraints, errata
from ...base import Algorithm, Handler, Planner, Refusal
from ..common import bindings, elementwise_kernels
from ..common.binding_library import BindingLibrary
from ..common.device_facts import capability, described, index_of
from ..common.device_plan import DevicePlan, at, new_images, prepared, refuse_overlaps_of_out
from . import large_tensors
from . import sdpa_graphs as sdpa
from .attention_plans import AttentionPlan
from .conv_graphs import ALIGNMENT, ConvRecipe, Feed, conv_algorithms, conv_recipe
from .graph_cache import GraphRun
from .packed_graphs import packed_algorithms, packed_recipe
from .packed_plans import PackedAttentionPlan
from .rnn_recipe import rnn_algorithms, rnn_recipe
from .rnn_run import RnnRun

__all__ = ["CuDNN"]


def _aligned(array: Any) -> bool:
    return at(array) % ALIGNMENT == 0


class _Conv:
    """The function of the Plan of a convolution."""

    def __init__(self, problem: ConvProblem, made: ConvRecipe, module: Any, device: int, planner: Planner) -> None:
        self.problem, self.made = problem, made
        self.run = None if made.graph is None else GraphRun(made.graph, made.search, module, device, planner)
        self.places = {o.role: place for place, o in enumerate(problem.operands)}
        self.feeds = tuple((self.places[feed.role], feed.uid, feed) for feed in made.feeds)
        self.out = self.places.get("out")

    def __call__(self, *arrays: Any) -> Any:
        p, made = self.problem, self.made
        out: Any = None
        if self.out is not None:
            refuse_overlaps_of_out(p, arrays)
            out = arrays[self.out]
        direct = made.direct and _aligned(out)
        result: Any = out if direct else new_images(made.shape, p.dtype, made.last)
        if self.run is None:
            result[...] = 0
        else:
            pointers, copies = {made.target: at(result)}, []
            for place, uid, feed in self.feeds:
                pointers[uid] = address = at(arrays[place])
                if feed.copied or address % ALIGNMENT:
                    copies.append(self._copied(feed, arrays[place]))
                    pointers[uid] = at(copies[-1])
            self.run(pointers)
        if made.crop:
            whole, result = result, new_images(p.result, p.dtype, made.last)
            inner = zip(p.result[2:], made.crop, strict=True)
            result[...] = whole[(slice(None), slice(None), *(slice(before, before + n) for n, (before, _) in inner))]
        if made.after:
            self._after(result, arrays)
        if out is not None and not direct:
            out[...] = result
        return result if out is None else out

    def _copied(self, feed: Feed, array: Any) -> Any:
        """An operand as the graph wants it."""
        zeros = feed.zeros or ((0, 0),) * (array.ndim - 2)
        inner = tuple(slice(before, before + n) for n, (before, _) in zip(array.shape[2:], zeros, strict=True))
        shape = (*array.shape[:2], *(n + sum(pair) for n, pair in zip(array.shape[2:], zeros, strict=True)))
        made = new_images(shape, array.dtype, self.made.last)
        if feed.zeros:
            made[...] = 0
        made[(slice(None), slice(None), *inner)] = array
        return made

    def _after(self, result: Any, arrays: tuple[Any, ...]) -> None:
        after = self.made.after
        if not after:
            return
        roles = tuple(step for step in after if step != "relu")
        given = {role: arrays[self.places[role]] for role in roles}
        if "bias" in given:
            given["bias"] = given["bias"].reshape((-1,) + (1,) * (result.ndim - 2))
        kernel = elementwise_kernels.epilogue("relu" if "relu" in after else None, roles)
        kernel(result, *given.values(), result)


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


def _attention_waits(problem: AttentionProblem) -> bool:
    return sdpa.waits(problem, capability(index_of(problem)), bool(switches.current()["sdp_priority"]))


def _prepare_attention(planner: Planner, problem: AttentionProblem, algorithm: Algorithm) -> DevicePlan:
    return _plan(planner, problem, AttentionPlan, sdpa.attention_recipe(problem, algorithm.name))


def _packed_algorithms(context: Any, problem: PackedAttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    known = replace(attention_constraints.facts_of(problem.device), capability=capability(index_of(problem)))
    return packed_algorithms(problem, known)


def _prepare_packed(planner: Planner, problem: PackedAttentionProblem, algorithm: Algorithm) -> DevicePlan:
    recipe = packed_recipe(problem, algorithm.name, capability(index_of(problem)))
    return _plan(planner, problem, PackedAttentionPlan, recipe)


def _rnn_algorithms(context: Any, problem: RnnProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return rnn_algorithms(problem, described(index_of(problem)), int(libraries.get("cudnn").version() or 0))


def _prepare_rnn(planner: Planner, problem: RnnProblem, algorithm: Algorithm) -> DevicePlan:
    run = partial(RnnRun, problem, rnn_recipe(problem, algorithm.name), index_of(problem))
    return prepared(problem, run, f"cuDNN, {problem.key}")


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
        AttentionProblem: Handler(
            _attention_algorithms,
            _prepare_attention,
            one_shape=sdpa.COMPILED_AFTER,
            one_shape_if=_attention_waits,
            one_shape_work=sdpa.COMPILED_WORK,
        ),
        PackedAttentionProblem: Handler(_packed_algorithms, _prepare_packed),
        RnnProblem: Handler(_rnn_algorithms, _prepare_rnn),
    }
