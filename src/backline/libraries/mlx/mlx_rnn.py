"""Recurrent networks of MLX's arrays: one product of the input's weights for all steps, then step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...problems.rnn_problem import RnnProblem

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
    roles = [o.role for o in p.operands]

    def run(*arrays: Array) -> tuple[Array, ...]:
        dtype = arrays[0].dtype
        given = {role: x.astype(mx.float32) for role, x in zip(roles, arrays, strict=True)}
        x = mx.swapaxes(given["input"], 0, 1) if p.batch_first else given["input"]
        states = [given[role] for role in ("h0", "c0") if role in given]
        last: list[list[Array]] = [[] for _ in states]
        for layer in range(p.layers):
            outputs = []
            for d in range(p.directions):
                cell = layer * p.directions + d
                params = [given[f"p{cell * p.per_cell + i}"] for i in range(p.per_cell)]
                output, ended = _direction(p, mx, x, [s[cell] for s in states], params, backwards=d == 1)
                outputs.append(output)
                for kept, state in zip(last, ended, strict=True):
                    kept.append(state)
            x = mx.concatenate(outputs, axis=-1)
        result = mx.swapaxes(x, 0, 1) if p.batch_first else x
        return tuple(part.astype(dtype) for part in (result, *(mx.stack(kept) for kept in last)))

    return run


def _direction(
    p: RnnProblem, mx: Any, x: Array, states: list[Array], params: list[Array], backwards: bool
) -> tuple[Array, list[Array]]:
    """One layer in one direction: outputs of all steps, and the states after the last."""
    w_ih, w_hh, *biases = params
    steps, batch = x.shape[:2]
    shape = (steps, batch, w_ih.shape[0])
    gates = mx.matmul(x, w_ih.T) if x.size else mx.zeros(shape, x.dtype)
    b_hh = biases[1] if biases else mx.zeros((w_hh.shape[0],), x.dtype)
    gates = gates + biases[0] if biases else gates
    outputs: list[Any] = [None] * steps
    for t in reversed(range(steps)) if backwards else range(steps):
        recurrent = (mx.matmul(states[0], w_hh.T) if states[0].size else mx.zeros(shape[1:], x.dtype)) + b_hh
        states = _cell(p, mx, gates[t], recurrent, states)
        outputs[t] = states[0]
    return (mx.stack(outputs) if steps else mx.zeros((0, batch, p.hidden), x.dtype)), states


def _cell(p: RnnProblem, mx: Any, gates: Array, recurrent: Array, states: list[Array]) -> list[Array]:
    """One step: the new states."""
    n, h = p.hidden, states[0]
    if p.mode == "gru":
        r, z = mx.sigmoid(gates[:, :n] + recurrent[:, :n]), mx.sigmoid(gates[:, n : 2 * n] + recurrent[:, n : 2 * n])
        new = mx.tanh(gates[:, 2 * n :] + r * recurrent[:, 2 * n :])
        return [(1 - z) * new + z * h]
    whole = gates + recurrent
    if p.mode != "lstm":
        return [mx.tanh(whole) if p.mode == "rnn_tanh" else mx.maximum(whole, 0.0)]
    i, f, o = (mx.sigmoid(whole[:, k * n : (k + 1) * n]) for k in (0, 1, 3))
    c = f * states[1] + i * mx.tanh(whole[:, 2 * n : 3 * n])
    return [o * mx.tanh(c), c]
