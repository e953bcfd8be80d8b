"""Recurrent networks of MLX's arrays: one product of the input's weights for all steps, then step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...problems.rnn_problem import RnnProblem
from ..reference.rnn_cells import cell_of, over_steps
from ..rnn_layers import by_steps, forward

__all__ = ["function", "refusal"]

Array = Any
DTYPES = ("float16", "bfloat16", "float32")


def refusal(p: RnnProblem) -> str:
    """Returns the reason why a recurrent network is not supported for MLX arrays, or an empty string."""
    if p.is_gradient:
        return "MLX differentiates the operation itself: mx.vjp gives these gradients"
    if p.dtype.name not in DTYPES:
        return f"recurrent networks of MLX's arrays are of {', '.join(DTYPES)}, not of {p.dtype.name}"
    if p.get("lengths") is not None:
        return "sequences of MLX's arrays have one length"
    if p.parameter("dropout"):
        return "there is no dropout between layers of MLX's arrays"
    if p.packed:
        return "there are no packed weights for arrays of MLX"
    return ""


def function(p: RnnProblem, mx: Any, metal: bool) -> Callable[..., tuple[Array, ...]]:
    """The function of the arrays of a call: the output, then the last states."""
    cell = cell_of(p.mode, mx, mx.sigmoid)

    def run(*arrays: Array) -> tuple[Array, ...]:
        wide = [x.astype(mx.float32) for x in arrays]
        return tuple(part.astype(arrays[0].dtype) for part in forward(p, wide, layer, mx))

    def layer(which: int, x: Array, h: Array, c: Array | None, params: tuple[Array, ...], lengths: None) -> tuple[Array, ...]:
        x, outputs, last = by_steps(p, x), [], []
        for d in range(p.directions):
            states = (h[d], None if c is None else c[d])
            output, states = direction(x, states, params[d * p.per_cell : (d + 1) * p.per_cell], d == 1)
            outputs.append(output)
            last.append([state for state in states if state is not None])
        return (by_steps(p, mx.concatenate(outputs, axis=-1)), *(mx.stack(parts) for parts in zip(*last, strict=True)))

    def direction(x: Array, states: Any, params: tuple[Array, ...], backwards: bool) -> tuple[Array, Any]:
        """One layer in one direction: outputs of all steps, and the states after the last."""
        w_ih, w_hh, *biases = params
        steps, batch = x.shape[:2]
        shape = (steps, batch, w_ih.shape[0])
        gates = mx.matmul(x, w_ih.T) if x.size else mx.zeros(shape, x.dtype)
        b_hh = biases[1] if biases else mx.zeros((w_hh.shape[0],), x.dtype)
        gates = gates + biases[0] if biases else gates
        outputs: list[Any] = [None] * steps
        for t in over_steps(p, backwards):
            recurrent = (mx.matmul(states[0], w_hh.T) if states[0].size else mx.zeros(shape[1:], x.dtype)) + b_hh
            *states, _ = cell.step(gates[t], recurrent, *states)
            outputs[t] = states[0]
        return (mx.stack(outputs) if steps else mx.zeros((0, batch, p.hidden), x.dtype)), states

    return run
