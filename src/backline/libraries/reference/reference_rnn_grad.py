"""Gradients of recurrent networks in NumPy: forward again with everything kept, then back step by step.

A kind of cell is a class: what a step computes and keeps, and how gradients go back through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...problems.rnn_problem import RnnGrads, RnnProblem, StateGrads
from ..rnn_layers import Given, by_steps, kept_elements

__all__ = ["gradients", "over_steps", "projected", "sigmoid"]

Array = Any
Times = Callable[[Array, Array], Array]


def sigmoid(x: Array) -> Array:
    """In place."""
    np.multiply(x, x.dtype.type(0.5), out=x)  # (1 + tanh(x / 2)) / 2: nothing overflows
    np.tanh(x, out=x)
    x += x.dtype.type(1)
    x *= x.dtype.type(0.5)
    return x


def over_steps(p: RnnProblem, reverse: bool) -> Iterator[int]:
    """The steps in the order of a direction."""
    return iter(range(p.steps - 1, -1, -1) if reverse else range(p.steps))


def projected(x: Array, weight: Array, times: Times) -> Array:
    """The product of weights and all steps: (steps, batch, rows)."""
    steps, batch, columns = x.shape
    return times(x.reshape(steps * batch, columns), weight.T).reshape(steps, batch, len(weight))


# Cells ----------------------------------------------------------------------------------------------------------------------


class _Plain:
    """tanh or relu. It keeps the new state."""

    def __init__(self, relu: bool) -> None:
        self.relu = relu

    def step(self, by_input: Array, by_state: Array, h: Array, c: Array | None) -> tuple[Array, Array | None, tuple[Array, ...]]:
        total = by_input + by_state
        new = np.maximum(total, total.dtype.type(0)) if self.relu else np.tanh(total)
        return new, None, (new,)

    def back(
        self, dh: Array, dc: Array | None, h: Array, c: Array | None, kept: tuple[Array, ...]
    ) -> tuple[Array, Array, Array, Array | None]:
        (new,) = kept
        change = np.where(new <= 0, new.dtype.type(0), dh) if self.relu else dh * (1 - new * new)
        return change, change, np.zeros_like(dh), None


class _Gru:
    """It keeps reset, update and new gate, and the state's share in the last."""

    def step(self, by_input: Array, by_state: Array, h: Array, c: Array | None) -> tuple[Array, Array | None, tuple[Array, ...]]:
        n = h.shape[-1]
        gates = sigmoid(by_input[:, : 2 * n] + by_state[:, : 2 * n])
        r, z, share = gates[:, :n], gates[:, n:], by_state[:, 2 * n :]
        new = np.tanh(by_input[:, 2 * n :] + r * share)
        return (1 - z) * new + z * h, None, (r, z, new, share)

    def back(
        self, dh: Array, dc: Array | None, h: Array, c: Array | None, kept: tuple[Array, ...]
    ) -> tuple[Array, Array, Array, Array | None]:
        r, z, new, share = kept
        by_new = dh * (1 - z) * (1 - new * new)
        both = [by_new * share * r * (1 - r), dh * (h - new) * z * (1 - z)]
        return np.concatenate([*both, by_new], -1), np.concatenate([*both, by_new * r], -1), dh * z, None


class _Lstm:
    """It keeps all gates after their activations, and tanh of the new memory."""

    def step(self, by_input: Array, by_state: Array, h: Array, c: Array | None) -> tuple[Array, Array | None, tuple[Array, ...]]:
        n = h.shape[-1]
        gates = by_input + by_state
        i, f, g, o = (gates[:, j * n : (j + 1) * n] for j in range(4))
        sigmoid(gates[:, : 2 * n])
        np.tanh(g, out=g)
        sigmoid(o)
        memory = f * c + i * g
        size = np.tanh(memory)
        return o * size, memory, (i, f, g, o, size)

    def back(
        self, dh: Array, dc: Array | None, h: Array, c: Array | None, kept: tuple[Array, ...]
    ) -> tuple[Array, Array, Array, Array | None]:
        i, f, g, o, size = kept
        by_c = dc + dh * o * (1 - size * size)
        parts = by_c * g * i * (1 - i), by_c * c * f * (1 - f), by_c * i * (1 - g * g), dh * size * o * (1 - o)
        change = np.concatenate(parts, -1)
        return change, change, np.zeros_like(dh), by_c * f


def _cell(mode: str) -> Any:
    return _Lstm() if mode == "lstm" else _Gru() if mode == "gru" else _Plain(mode == "rnn_relu")


# All steps, all layers ------------------------------------------------------------------------------------------------------


class _Step(NamedTuple):
    """Intermediate results of one step of one direction; only of the sequences that are `there` at it."""

    there: Any
    h: Array
    c: Array | None
    kept: tuple[Array, ...]


def gradients(p: RnnProblem, arrays: list[Array], times: Times) -> tuple[Array, ...]:
    """The gradients of a call, in the dtype of the Problem."""
    found = (part.astype(p.dtype, copy=False) for part in _Backward(p, arrays, times).run())
    return RnnGrads(found) if p.mode == "lstm" else StateGrads(found)


class _Backward:
    """Forward again with everything kept, then back: layer by layer, direction by direction, step by step."""

    def __init__(self, p: RnnProblem, arrays: list[Array], times: Times) -> None:
        self.p, self.times, self.given = p, times, Given(p, arrays)
        self.dtype = self.given.input.dtype
        self.masks = list(kept_elements(p, self.dtype))
        self.cell = _cell(p.mode)

    def run(self) -> list[Array]:
        p, given = self.p, self.given
        inputs, saved, x = [], [], given.input
        for layer, cells in enumerate(given.cells):
            if layer and self.masks[layer - 1] is not None:
                x = x * self.masks[layer - 1]
            inputs.append(by_steps(p, x))
            c = None if given.c is None else given.c[cells]
            output, kept = self.forward(inputs[-1], given.h[cells], c, given.params[layer])
            saved.append(kept)
            x = by_steps(p, output)
        grad = given.grads.get("grad_output")
        grad = np.zeros((p.steps, p.batch, p.directions * p.hidden), self.dtype) if grad is None else by_steps(p, grad)
        grad_h = self.last("grad_h")
        grad_c = None if given.c is None else self.last("grad_c")
        grad_params: list[list[Array]] = [[] for _ in range(p.layers)]
        for layer in reversed(range(p.layers)):
            below = np.zeros(inputs[layer].shape, self.dtype)
            for d in range(p.directions):
                cell = layer * p.directions + d
                part = grad[..., d * p.hidden : (d + 1) * p.hidden]
                dc = None if grad_c is None else grad_c[cell]
                below += self.back(layer, d, inputs[layer], saved[layer][d], part, grad_h[cell], dc, grad_params[layer])
            if layer and self.masks[layer - 1] is not None:
                below *= by_steps(p, self.masks[layer - 1])
            grad = below
        states = [grad_h] if grad_c is None else [grad_h, grad_c]
        return [np.ascontiguousarray(by_steps(p, grad)), *states, *(g for layer in grad_params for g in layer)]

    def last(self, role: str) -> Array:
        """The gradient by a last state, of its own: it becomes that by the first one."""
        found = self.given.grads.get(role)
        return np.zeros_like(self.given.h) if found is None else found.copy()

    def forward(self, x: Array, h0: Array, c0: Array | None, params: tuple[Array, ...]) -> tuple[Array, list[dict[int, _Step]]]:
        """The output, and for each direction its steps."""
        p, n, lengths = self.p, self.p.hidden, self.given.lengths
        output = np.zeros((p.steps, p.batch, p.directions * n), self.dtype)
        saved: list[dict[int, _Step]] = []
        for d in range(p.directions):
            w_ih, w_hh, *biases = params[d * p.per_cell : (d + 1) * p.per_cell]
            b_ih, b_hh = biases or (np.zeros(len(w_ih), self.dtype),) * 2
            by_input = projected(x, w_ih, self.times)
            by_input += b_ih
            h, c = h0[d].copy(), None if c0 is None else c0[d].copy()
            steps: dict[int, _Step] = {}
            for t in over_steps(p, d == 1):
                there = slice(None) if lengths is None else lengths > t
                before, memory = h[there].copy(), None if c is None else c[there].copy()
                new, new_c, kept = self.cell.step(by_input[t][there], self.times(before, w_hh.T) + b_hh, before, memory)
                steps[t] = _Step(there, before, memory, kept)
                h[there] = output[t, there, d * n : (d + 1) * n] = new
                if c is not None:
                    c[there] = new_c
            saved.append(steps)
        return output, saved

    def back(
        self, layer: int, d: int, x: Array, steps: dict[int, _Step], grad: Array, dh: Array, dc: Array | None,
        grad_params: list[Array],
    ) -> Array:  # fmt: skip
        """The gradient with respect to what a direction read; `dh` and `dc` become those of the states before it."""
        p, lengths = self.p, self.given.lengths
        w_ih, w_hh = self.given.params[layer][d * p.per_cell : d * p.per_cell + 2]
        shape = (p.steps, p.batch, p.gates * p.hidden)
        # By the product of the input and by that of the state; the two differ for GRU only.
        by_input = np.zeros(shape, self.dtype)
        by_state = np.zeros(shape, self.dtype) if p.mode == "gru" else by_input
        states = np.zeros((p.steps, p.batch, p.hidden), self.dtype)
        for t in over_steps(p, d == 0):
            there, h, c, kept = steps[t]
            before = None if dc is None else dc[there]
            one, other, straight, into_c = self.cell.back(dh[there] + grad[t, there], before, h, c, kept)
            by_input[t, there], by_state[t, there], states[t, there] = one, other, h
            dh[there] = straight + self.times(other, w_hh)
            if dc is not None:
                dc[there] = into_c
        rows, state_rows = (g.reshape(p.steps * p.batch, shape[-1]) for g in (by_input, by_state))
        # What is not there may be anything, NaN included; 0 times that would not be 0.
        seen = x if lengths is None else np.where((np.arange(p.steps)[:, None] < lengths)[..., None], x, x.dtype.type(0))
        grad_params.append(self.times(rows.T, seen.reshape(len(rows), x.shape[-1])))
        grad_params.append(self.times(state_rows.T, states.reshape(len(rows), p.hidden)))
        if p.biases:
            grad_params += [g.sum(axis=0, dtype=np.float64).astype(self.dtype) for g in (rows, state_rows)]
        return self.times(rows, w_ih).reshape(x.shape)
