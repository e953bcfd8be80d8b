"""Layers of recurrent networks, whoever computes one: arrays layer by layer, what dropout leaves out, and how results go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import BadValue
from ..problems import Operand, Problem
from ..problems.rnn_problem import RnnProblem
from .base import PythonPlan

__all__ = ["Given", "Layer", "by_layer", "by_steps", "checked_lengths", "forward", "kept_elements", "layer_problem"]

Array = Any
Layer = Callable[[int, Array, Array, "Array | None", tuple[Array, ...], "Array | None"], "tuple[Array, ...]"]
"""(which, input, h, c, params, lengths) -> output and last states; c is None where there is none."""


def checked_lengths(p: RnnProblem, lengths: Array) -> Array:
    """Returns the lengths of a call, an array of the host, as 64-bit integers.

    Raises `BadValue` where one is negative, or above the number of steps.
    """
    wrong = (lengths < 0) | (lengths > p.steps)
    if wrong.any():
        at = int(wrong.argmax())
        where = f"{p.mode}_backward" if p.is_gradient else p.op
        raise BadValue(f"{where}: lengths[{at}] = {lengths[at]}", cause=f"input has {p.steps} steps", remedy=f"0 to {p.steps}")
    return lengths.astype(np.int64)


class Given:
    """The arrays of a call, layer by layer."""

    def __init__(self, p: RnnProblem, arrays: list[Array]) -> None:
        at = {o.role: i for i, o in enumerate(p.operands)}
        self.input, self.h = arrays[at["input"]], arrays[at["h0"]]
        self.c = arrays[at["c0"]] if "c0" in at else None
        self.grads = {role: arrays[i] for role, i in at.items() if role.startswith("grad_")}
        count = p.directions * p.per_cell
        self.params = [tuple(arrays[at[f"p{layer * count + i}"]] for i in range(count)) for layer in range(p.layers)]
        self.lengths = checked_lengths(p, arrays[at["lengths"]]) if "lengths" in at else None
        self.cells = [slice(layer * p.directions, (layer + 1) * p.directions) for layer in range(p.layers)]


def kept_elements(p: RnnProblem, dtype: np.dtype[Any]) -> Iterator[Array]:
    """For every gap between layers what elements are multiplied with: 0, or what makes up for those; None without dropout."""
    rate = p.parameter("dropout", 0.0)
    rng = np.random.default_rng(p.parameter("seed"))
    for _ in range(p.layers - 1):
        if not rate:
            yield None
            continue
        # Drawn step by step whatever the layout: that is no reason for other numbers.
        kept = rng.random((p.steps, p.batch, p.directions * p.hidden)) >= rate
        scaled = kept * dtype.type(0 if rate == 1 else 1 / (1 - rate))
        yield scaled.swapaxes(0, 1) if p.batch_first else scaled


def by_steps(p: RnnProblem, x: Array) -> Array:
    """An array with the steps as its first axis."""
    return x.swapaxes(0, 1) if p.batch_first else x


def forward(p: RnnProblem, arrays: list[Array], layer: Layer, xp: Any = np) -> tuple[Array, ...]:
    """Layer after layer: the output, and the last states of all of them."""
    given = Given(p, arrays)
    x, kept, states = given.input, kept_elements(p, given.input.dtype), []
    for which, cells in enumerate(given.cells):
        if which:
            scale = next(kept)
            x = x if scale is None else x * scale
        c = None if given.c is None else given.c[cells]
        x, *last = layer(which, x, given.h[cells], c, given.params[which], given.lengths)
        states.append(last)
    if p.layers == 1:
        return (x, *states[0])
    return (x, *(xp.concatenate(parts) for parts in zip(*states, strict=True)))


# A prepared call for each kind of layer -------------------------------------------------------------------------------------


def layer_problem(p: RnnProblem, features: int) -> Problem:
    """The Problem of one layer with that many features; its arrays are dense.

    Roles: ``x``, ``h``, of LSTM also ``c``; for each direction d ``w_ih<d>``, ``w_hh<d>`` and with biases ``b_ih<d>``,
    ``b_hh<d>``; ``lengths``, if given.
    """
    width = p.gates * p.hidden
    x = (p.batch, p.steps) if p.batch_first else (p.steps, p.batch)
    shapes: dict[str, tuple[int, ...]] = {"x": (*x, features)}
    shapes |= dict.fromkeys("hc" if p.mode == "lstm" else "h", (p.directions, p.batch, p.hidden))
    for d in range(p.directions):
        shapes |= {f"w_ih{d}": (width, features), f"w_hh{d}": (width, p.hidden)}
        if p.biases:
            shapes |= {f"b_ih{d}": (width,), f"b_hh{d}": (width,)}
    operands = [Operand.contiguous(role, p.dtype, shape) for role, shape in shapes.items()]
    if p.get("lengths") is not None:
        operands.append(Operand.contiguous("lengths", np.dtype(np.int64), (p.batch,)))
    return Problem("rnn layer", tuple(operands))


def by_layer(p: RnnProblem, make: Callable[[int], Any]) -> Any:
    """The plan of a network: `make` gives the plan of a layer, by its number of features.

    That of a single layer is the layer's own, where the call has its arrays as that wants them.
    """
    later = {p.directions * p.hidden} if p.layers > 1 else set()
    plans = {features: make(features) for features in {p.features, *later}}
    strange = [i for i, o in enumerate(p.operands) if o.role != "lengths" and not o.is_contiguous()]
    in_order = ["input", "h0", *(["c0"] if p.mode == "lstm" else []), *(f"p{i}" for i in range(p.directions * p.per_cell))]
    if p.layers == 1 and not strange and [o.role for o in p.operands] == in_order:
        return plans[p.features]

    def layer(which: int, x: Array, h: Array, c: Array | None, params: tuple[Array, ...], lengths: Array | None) -> Any:
        arrays = [x, h, c, *params, lengths]
        return plans[x.shape[-1]](*(a for a in arrays if a is not None))

    def run(*given: Array) -> tuple[Array, ...]:
        arrays = list(given)
        for i in strange:
            arrays[i] = np.array(arrays[i], order="C")
        return forward(p, arrays, layer)

    return PythonPlan(run)
