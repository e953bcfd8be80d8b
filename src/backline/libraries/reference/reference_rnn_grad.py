"""Gradients of recurrent networks in NumPy: forward again with everything kept, then back step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...problems.rnn_problem import RnnGrads, RnnProblem, StateGrads
from ..rnn_layers import Given, by_steps, kept_elements
from .rnn_cells import Saved, Times, cell_of, layer, over_steps

__all__ = ["gradients"]

Array = Any


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
        self.cell = cell_of(p.mode)

    def run(self) -> list[Array]:
        p, given = self.p, self.given
        inputs, saved, x = [], [list[dict[int, Saved]]() for _ in given.cells], given.input
        for which, cells in enumerate(given.cells):
            if which and self.masks[which - 1] is not None:
                x = x * self.masks[which - 1]
            inputs.append(by_steps(p, x))
            c = None if given.c is None else given.c[cells]
            x, *_ = layer(p, self.times, x, given.h[cells], c, given.params[which], given.lengths, saved[which])
        grad = given.grads.get("grad_output")
        grad = np.zeros((p.steps, p.batch, p.directions * p.hidden), self.dtype) if grad is None else by_steps(p, grad)
        grad_h = self.last("grad_h")
        grad_c = None if given.c is None else self.last("grad_c")
        grad_params: list[list[Array]] = [[] for _ in range(p.layers)]
        for which in reversed(range(p.layers)):
            below = np.zeros(inputs[which].shape, self.dtype)
            for d in range(p.directions):
                cell = which * p.directions + d
                part = grad[..., d * p.hidden : (d + 1) * p.hidden]
                dc = None if grad_c is None else grad_c[cell]
                below += self.back(which, d, inputs[which], saved[which][d], part, grad_h[cell], dc, grad_params[which])
            if which and self.masks[which - 1] is not None:
                below *= by_steps(p, self.masks[which - 1])
            grad = below
        states = [grad_h] if grad_c is None else [grad_h, grad_c]
        return [np.ascontiguousarray(by_steps(p, grad)), *states, *(g for found in grad_params for g in found)]

    def last(self, role: str) -> Array:
        """The gradient by a last state, of its own: it becomes that by the first one."""
        found = self.given.grads.get(role)
        return np.zeros_like(self.given.h) if found is None else found.copy()

    def back(
        self, which: int, d: int, x: Array, steps: dict[int, Saved], grad: Array, dh: Array, dc: Array | None,
        grad_params: list[Array],
    ) -> Array:  # fmt: skip
        """The gradient with respect to what a direction read; `dh` and `dc` become those of the states before it."""
        p, lengths = self.p, self.given.lengths
        w_ih, w_hh = self.given.params[which][d * p.per_cell : d * p.per_cell + 2]
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
