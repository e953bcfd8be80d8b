"""The cells of recurrent networks over an array namespace, and a layer of them in NumPy.

A kind of cell is a class: what a step computes and keeps, and how gradients go back through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...problems.rnn_problem import RnnProblem
from ..rnn_layers import by_steps

__all__ = ["Cell", "Saved", "Times", "cell_of", "layer", "over_steps"]

Array = Any
Times = Callable[[Array, Array], Array]
Stepped = tuple[Array, Array | None, tuple[Array, ...]]
"""The new h and c, and what the way back needs."""


def _sigmoid(x: Array) -> Array:
    """In place."""
    np.multiply(x, x.dtype.type(0.5), out=x)  # (1 + tanh(x / 2)) / 2: nothing overflows
    np.tanh(x, out=x)
    x += x.dtype.type(1)
    x *= x.dtype.type(0.5)
    return x


def over_steps(p: RnnProblem, reverse: bool) -> Iterator[int]:
    """The steps in the order of a direction."""
    return iter(range(p.steps - 1, -1, -1) if reverse else range(p.steps))


class Cell:
    """Base of the cells: tanh or relu, which keeps the new state. `sigmoid` may write to its argument."""

    def __init__(self, mode: str, xp: Any, sigmoid: Callable[[Array], Array]) -> None:
        self.relu, self.xp, self.sigmoid = mode == "rnn_relu", xp, sigmoid

    def step(self, by_input: Array, by_state: Array, h: Array, c: Array | None) -> Stepped:
        """One step, of what the weights make of the input and of the state, and the state."""
        total = by_input + by_state
        new = self.xp.maximum(total, 0) if self.relu else self.xp.tanh(total)
        return new, None, (new,)

    def back(
        self, dh: Array, dc: Array | None, h: Array, c: Array | None, kept: tuple[Array, ...]
    ) -> tuple[Array, Array, Array, Array | None]:
        """Gradients by the two products, by h as far as it goes straight on, and by c."""
        (new,) = kept
        change = self.xp.where(new <= 0, new.dtype.type(0), dh) if self.relu else dh * (1 - new * new)
        return change, change, self.xp.zeros_like(dh), None


class _Gru(Cell):
    """It keeps reset, update and new gate, and the state's share in the last."""

    def step(self, by_input: Array, by_state: Array, h: Array, c: Array | None) -> Stepped:
        n = h.shape[-1]
        gates = self.sigmoid(by_input[:, : 2 * n] + by_state[:, : 2 * n])
        r, z, share = gates[:, :n], gates[:, n:], by_state[:, 2 * n :]
        new = self.xp.tanh(by_input[:, 2 * n :] + r * share)
        return (1 - z) * new + z * h, None, (r, z, new, share)

    def back(
        self, dh: Array, dc: Array | None, h: Array, c: Array | None, kept: tuple[Array, ...]
    ) -> tuple[Array, Array, Array, Array | None]:
        r, z, new, share = kept
        by_new = dh * (1 - z) * (1 - new * new)
        both = [by_new * share * r * (1 - r), dh * (h - new) * z * (1 - z)]
        one, other = (self.xp.concatenate([*both, last], -1) for last in (by_new, by_new * r))
        return one, other, dh * z, None


class _Lstm(Cell):
    """It keeps all gates after their activations, and tanh of the new memory."""

    def step(self, by_input: Array, by_state: Array, h: Array, c: Array | None) -> Stepped:
        n = h.shape[-1]
        gates = by_input + by_state
        both, o = self.sigmoid(gates[:, : 2 * n]), self.sigmoid(gates[:, 3 * n :])
        i, f, g = both[:, :n], both[:, n:], self.xp.tanh(gates[:, 2 * n : 3 * n])
        memory = f * c + i * g
        size = self.xp.tanh(memory)
        return o * size, memory, (i, f, g, o, size)

    def back(
        self, dh: Array, dc: Array | None, h: Array, c: Array | None, kept: tuple[Array, ...]
    ) -> tuple[Array, Array, Array, Array | None]:
        i, f, g, o, size = kept
        by_c = dc + dh * o * (1 - size * size)
        parts = by_c * g * i * (1 - i), by_c * c * f * (1 - f), by_c * i * (1 - g * g), dh * size * o * (1 - o)
        change = self.xp.concatenate(parts, -1)
        return change, change, self.xp.zeros_like(dh), by_c * f


def cell_of(mode: str, xp: Any = np, sigmoid: Callable[[Array], Array] = _sigmoid) -> Cell:
    """The cell of a kind of network, for the arrays of a namespace."""
    return {"lstm": _Lstm, "gru": _Gru}.get(mode, Cell)(mode, xp, sigmoid)


class Saved(NamedTuple):
    """Intermediate results of one step of one direction; only of the sequences that are `there` at it."""

    there: Any
    h: Array
    c: Array | None
    kept: tuple[Array, ...]


def layer(
    p: RnnProblem, times: Times, x: Array, h0: Array, c0: Array | None, params: tuple[Array, ...], lengths: Array | None,
    saved: list[dict[int, Saved]] | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """All steps of a layer in NumPy, in both directions where there are two: the output, and the last states.

    The weights of the input and all steps are one product; each step has one more, of the state. Where `saved` is given, what
    the way back needs is appended to it, a dictionary by step for each direction.
    """
    x, n, dtype, cell = by_steps(p, x), p.hidden, x.dtype, cell_of(p.mode)
    output = np.zeros((*(x.shape[1::-1] if p.batch_first else x.shape[:2]), p.directions * n), dtype)
    steps = by_steps(p, output)
    last = [h0.copy()] if c0 is None else [h0.copy(), c0.copy()]
    for d in range(p.directions):
        w_ih, w_hh, *biases = params[d * p.per_cell : (d + 1) * p.per_cell]
        b_ih, b_hh = biases or (np.zeros(len(w_ih), dtype),) * 2
        by_input = times(x.reshape(x.shape[0] * x.shape[1], x.shape[2]), w_ih.T).reshape(*x.shape[:2], len(w_ih))
        by_input += b_ih
        h, c, found = last[0][d], (last[1][d] if c0 is not None else None), dict[int, Saved]()
        for t in over_steps(p, d == 1):
            there = slice(None) if lengths is None else lengths > t
            before, memory = h[there].copy(), None if c is None else c[there].copy()
            by_state = times(before, w_hh.T)
            by_state += b_hh
            new, new_c, kept = cell.step(by_input[t][there], by_state, before, memory)
            h[there] = steps[t, there, d * n : (d + 1) * n] = new
            if c is not None:
                c[there] = new_c
            if saved is not None:
                found[t] = Saved(there, before, memory, kept)
        if saved is not None:
            saved.append(found)
    return (output, *last)
