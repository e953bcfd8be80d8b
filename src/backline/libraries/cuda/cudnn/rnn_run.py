"""The function of the Plan of a recurrent network by cuDNN: weights are packed, the network runs, gradients are unpacked.

Gradients run the network again, which fills the reserve space that they are computed from; it is freed with the call. cuDNN takes
the lengths of sequences from the host, so a call with lengths waits for the device until these are there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ....native.bounded_cache import BoundedCache
from ....problems.rnn_problem import RnnGrads, RnnProblem, StateGrads
from ...rnn_layers import checked_lengths
from ..common import bindings
from ..common.device_plan import at
from .rnn_descriptors import Place, RnnDescriptors, nothing_left, weight_places
from .rnn_interface import Interface, handle_for, interface
from .rnn_recipe import RnnRecipe

__all__ = ["RnnRun", "forget"]

Array = Any
ALIGNMENT = 16  # bytes, of every array's address
MOST_LENGTHS = 16  # sets of lengths whose descriptors a Plan keeps
MOST_SEEDS = 4  # seeds whose random numbers' states are kept
ADD = 0  # CUDNN_WGRAD_MODE_ADD: onto zeros


class _Seeded(NamedTuple):
    """The states of random numbers as a seed makes them; the stream is kept so that its address stays its own."""

    stream: Any
    states: Array


_seeded = BoundedCache(MOST_SEEDS)


def forget() -> None:
    """Drops the states that were kept. CUDA does not live on in a forked child."""
    _seeded.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)


def states_of(c: Interface, handle: int, device: int, rate: float, seed: int) -> Array:
    """Returns the states of random numbers after seeding, as an array of bytes that is the caller's own.

    Seeding takes a kernel over all states; those of the last seeds are kept for each stream, since gradients need them again.
    """
    cupy = bindings.cupy()
    stream = cupy.cuda.get_current_stream()

    def make() -> _Seeded:
        (size,) = c.sizes("cudnnDropoutGetStatesSize", handle)
        states = cupy.empty(size, np.uint8)
        descriptor = c.created("cudnnCreateDropoutDescriptor")
        try:
            c.call("cudnnSetDropoutDescriptor", descriptor, handle, rate, at(states), size, seed)
        finally:
            c.call("cudnnDestroyDropoutDescriptor", descriptor)
        return _Seeded(stream, states)

    kept: _Seeded = _seeded.get((c, device, stream.ptr, seed), make)
    return kept.states.copy()  # a run moves the states on


def _dense(array: Array) -> Array:
    """An array without gaps, at an address that cuDNN takes."""
    if array.flags.c_contiguous and at(array) % ALIGNMENT == 0:
        return array
    made = bindings.cupy().empty(array.shape, array.dtype)
    made[...] = array
    return made


class RnnRun:
    """The function of the arrays of a call, made while its device is the current one."""

    def __init__(self, p: RnnProblem, recipe: RnnRecipe, device: int) -> None:
        self.p, self.recipe, self.device, self.c = p, recipe, device, interface()
        self.roles = [o.role for o in p.operands]
        handle = handle_for(self.c, device)
        # Of sequences of full length, without dropout: what is asked about the weights does not depend on them.
        self.full = RnnDescriptors(self.c, handle, recipe, [p.steps] * p.batch)
        (self.nbytes,) = self.c.sizes("cudnnGetRNNWeightSpaceSize", handle, self.full.network)
        self.items = -(-self.nbytes // p.dtype.itemsize)
        memory = bindings.cupy().empty(self.items, p.dtype)
        self.places = weight_places(p, self.c, handle, self.full.network, at(memory), self.nbytes)
        self.filled = nothing_left(self.places, self.items)
        self.by_lengths = BoundedCache(MOST_LENGTHS)

    def __call__(self, *arrays: Array, seed: int | None = None) -> Any:
        p, handle = self.p, handle_for(self.c, self.device)
        given = dict(zip(self.roles, arrays, strict=True))
        lengths = None if given.get("lengths") is None else checked_lengths(p, given["lengths"].get())
        described = self._described(handle, lengths, p.parameter("seed", 0) if seed is None else seed)
        call = _Call(self, handle, described, given, lengths)
        return call.gradients() if p.is_gradient else call.forward()

    def _described(self, handle: int, lengths: np.ndarray[Any, Any] | None, seed: int) -> RnnDescriptors:
        """Returns the descriptors of a call."""
        c, p, recipe = self.c, self.p, self.recipe
        # A sequence without steps gets one, and `_Call` takes care of what comes of it: what cuDNN makes of 0 is not documented.
        steps = (p.steps,) * p.batch if lengths is None else tuple(np.maximum(lengths, 1).tolist())
        if recipe.dropout:
            states = states_of(c, handle, self.device, recipe.dropout, seed % 2**64)
            return RnnDescriptors(c, handle, recipe, steps, states)
        if lengths is None:
            return self.full
        found: RnnDescriptors = self.by_lengths.get(steps, lambda: RnnDescriptors(c, handle, recipe, steps))
        return found

    def packed(self, params: Sequence[Array]) -> Array:
        """Returns the weights as cuDNN wants them: one copy for each array, where its gates lie side by side."""
        cupy = bindings.cupy()
        weights = (cupy.empty if self.filled else cupy.zeros)(self.items, self.p.dtype)
        for place in self.places:
            param = params[place.param]
            _view(weights, place)[...] = param if place.rows == len(param) else param[place.first : place.first + place.rows]
        return weights

    def unpacked(self, weights: Array, params: Sequence[Array]) -> list[Array]:
        """Returns what lies in the place of each array of parameters: views where its gates lie side by side, else copies."""
        found: list[Array] = [None] * len(params)
        for place in self.places:
            param, view = params[place.param], _view(weights, place)
            if place.rows == len(param):
                found[place.param] = view
                continue
            if found[place.param] is None:
                found[place.param] = bindings.cupy().empty(param.shape, param.dtype)
            found[place.param][place.first : place.first + place.rows] = view
        return found


def _view(weights: Array, place: Place) -> Array:
    piece = weights[place.begin : place.begin + place.rows * (place.columns or 1)]
    return piece.reshape(place.rows, place.columns) if place.columns else piece


class _Call:
    """One call: its arrays as cuDNN takes them, and the memory that both directions share."""

    def __init__(
        self, run: RnnRun, handle: int, described: RnnDescriptors, given: dict[str, Array],
        lengths: np.ndarray[Any, Any] | None,
    ) -> None:  # fmt: skip
        self.run, self.handle, self.d, self.given = run, handle, described, given
        p, cupy = run.p, bindings.cupy()
        self.there = None  # where a step of a sequence is there
        self.any: Array = None  # sequences that have a step, where some have none
        if lengths is not None:
            has = cupy.arange(p.steps)[:, None] < given["lengths"].astype(np.int64)[None, :]
            self.there = (has.T if p.batch_first else has)[:, :, None]
            if not lengths.all():
                self.any = (given["lengths"] > 0)[:, None]
        self.states = "hc" if p.mode == "lstm" else "h"
        self.x = _dense(self._present(given["input"], self.there))
        self.first = [_dense(self._present(given[f"{name}0"], self.any)) for name in self.states]
        self.params = [given[f"p{i}"] for i in range(p.layers * p.directions * p.per_cell)]
        self.weights = run.packed(self.params)
        self.y = cupy.empty((*self.x.shape[:2], p.directions * p.hidden), p.dtype)
        self.last = [cupy.empty(h.shape, p.dtype) for h in self.first]
        # Held for all of the call: other threads may give work to the stream between the kernels of a function.
        self.work, self.reserve = _memory(described.workspace), _memory(described.reserve)

    def _present(self, array: Array, there: Array) -> Array:
        """An array with zeros where a sequence without steps is taken for one of one step; as it is where all have some."""
        return array if self.any is None else self._or(there, array, None)

    def _or(self, there: Array, array: Array, other: Array) -> Array:
        """Elements of an array where it is `there`, else those of another, or zeros."""
        cupy = bindings.cupy()
        if there is None:
            return array
        made = cupy.where(there, array, cupy.zeros((), array.dtype) if other is None else other)
        return made.astype(array.dtype, copy=False)  # CuPy makes float32 of bfloat16 here

    def _spaces(self, weights: Array) -> tuple[Any, ...]:
        """The last arguments of every function: sizes and addresses of the weights, a workspace and the reserve space."""
        d = self.d
        return self.run.nbytes, at(weights), d.workspace, _address(self.work), d.reserve, _address(self.reserve)

    def _enqueue(self) -> None:
        d, c = self.d, self.run.c
        (h, *more), (last, *more_last) = self.first, self.last
        cell = [d.state, at(more[0]), at(more_last[0])] if more else [None, None, None]
        c.call(
            "cudnnRNNForward", self.handle, d.network, d.mode, None, d.x, at(self.x), d.y, at(self.y), d.state, at(h), at(last),
            *cell, *self._spaces(self.weights),
        )  # fmt: skip

    def forward(self) -> tuple[Array, ...]:
        """Returns the output, then the last states."""
        self._enqueue()
        if self.any is None:
            return (self.y, *self.last)
        last = (self._or(self.any, after, self.given[f"{name}0"]) for name, after in zip(self.states, self.last, strict=True))
        return (self._or(self.there, self.y, None), *last)

    def gradients(self) -> tuple[Array, ...]:
        """Returns the gradients with respect to the input, the first states and the parameters."""
        self._enqueue()
        p, d, c, cupy = self.run.p, self.d, self.run.c, bindings.cupy()
        dy = self.given.get("grad_output")
        dy = cupy.zeros(self.y.shape, p.dtype) if dy is None else _dense(self._present(dy, self.there))
        after = [self.given.get(f"grad_{name}") for name in self.states]
        held = [None if grad is None else _dense(self._present(grad, self.any)) for grad in after]
        dx = cupy.empty(self.x.shape, p.dtype)
        before = [cupy.empty(h.shape, p.dtype) for h in self.first]
        groups = [[d.state, at(h), at(grad) or None, at(dh)] for h, grad, dh in zip(self.first, held, before, strict=True)]
        groups += [[None] * 4] * (2 - len(groups))
        c.call(
            "cudnnRNNBackwardData_v8", self.handle, d.network, None, d.y, at(self.y), at(dy), d.x, at(dx), *groups[0], *groups[1],
            *self._spaces(self.weights),
        )  # fmt: skip
        changes = cupy.zeros(self.run.items, p.dtype)
        c.call(
            "cudnnRNNBackwardWeights_v8", self.handle, d.network, ADD, None, d.x, at(self.x), d.state, at(self.first[0]), d.y,
            at(self.y), *self._spaces(changes),
        )  # fmt: skip
        if self.any is not None:
            # The state of a sequence without steps is its last one.
            before = [self._or(self.any, dh, grad) for dh, grad in zip(before, after, strict=True)]
        results = self._or(self.there, dx, None), *before, *self.run.unpacked(changes, self.params)
        return RnnGrads(results) if p.mode == "lstm" else StateGrads(results)


def _memory(size: int) -> Any:
    return bindings.cupy().cuda.alloc(size) if size else None


def _address(memory: Any) -> int | None:
    return None if memory is None else int(memory.ptr)
