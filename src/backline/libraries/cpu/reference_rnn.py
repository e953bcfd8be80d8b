"""Recurrent networks in NumPy: right for every dtype, and what others are compared with; and gradients of LSTM.

The products of the weights of the input and all steps are one product; each step has one more, of the state, and the gates in
place. float16 and bfloat16 are computed in float32 and rounded once. `forward` puts layers together, whoever computes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...errors import BadValue
from ...problems.rnn import RnnGrads, RnnProblem
from ..base import Algorithm, Refusal
from .reference import blas_threads

__all__ = ["Layer", "algorithms", "checked_lengths", "forward", "plan"]

Array = Any
Times = Callable[[Array, Array], Array]
Layer = Callable[[int, Array, Array, "Array | None", tuple[Array, ...], "Array | None"], "tuple[Array, ...]"]
"""(which, input, h, c, params, lengths) -> output and last states; c is None where there is none."""

HALVES = ("float16", "bfloat16")


def algorithms(p: RnnProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The two ways: products by NumPy's BLAS, or by NumPy's own loops on one thread and in one order."""
    precision = "f32 accumulation" if p.dtype.name in HALVES else ""
    if p.empty:
        yield Algorithm("numpy", "loops", 1, False, precision, "threads", "construction")
        return
    if threads == 1 and p.flops > 1e6 and blas_threads() > 1:
        yield Refusal("numpy", "steps", "NumPy's BLAS takes no thread count for one call, and uses more than one")
    else:
        pool = "numpy" if threads > 1 else ""
        yield Algorithm("numpy", "steps", threads, True, precision, "run", "measured", pool)
    yield Algorithm("numpy", "loops", 1, False, precision, "threads", "construction", "", "without a BLAS: slow")


def plan(p: RnnProblem, *, loops: bool = False) -> Callable[..., tuple[Array, ...]]:
    """The function of the arrays of a call; with `loops` no BLAS takes part."""
    times: Times = _loops if loops else np.matmul
    working = np.dtype(np.float32) if p.dtype.name in HALVES else p.dtype

    def run(*arrays: Array) -> tuple[Array, ...]:
        given = [a if o.role == "lengths" else a.astype(working, copy=False) for o, a in zip(p.operands, arrays, strict=True)]
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            if p.op == "lstm_grad":
                return RnnGrads(part.astype(p.dtype, copy=False) for part in _Backward(p, given, times).run())
            results = forward(p, given, lambda which, *of: _layer(p, times, *of))
        return tuple(part.astype(p.dtype, copy=False) for part in results)

    return run


def _loops(a: Array, b: Array) -> Array:
    return np.einsum("ij,jk->ik", a, b)


# Layers, whoever computes one ---------------------------------------------------------------------------------------------


def checked_lengths(p: RnnProblem, arrays: list[Array]) -> Array | None:
    """The lengths of a call as 64-bit integers; None where all steps of all sequences are there.

    Raises
    ------
    BadValue
        One is negative, or above the number of steps.
    """
    i = p.index("lengths")
    if i is None:
        return None
    lengths = arrays[i]
    wrong = (lengths < 0) | (lengths > p.steps)
    if wrong.any():
        at = int(wrong.argmax())
        where = "lstm_backward" if p.op == "lstm_grad" else p.op
        raise BadValue(f"{where}: lengths[{at}] = {lengths[at]}", cause=f"input has {p.steps} steps", remedy=f"0 to {p.steps}")
    return lengths.astype(np.int64)


class _Given:
    """The arrays of a call, layer by layer."""

    def __init__(self, p: RnnProblem, arrays: list[Array]) -> None:
        at = {o.role: i for i, o in enumerate(p.operands)}
        self.input, self.h = arrays[at["input"]], arrays[at["h0"]]
        self.c = arrays[at["c0"]] if "c0" in at else None
        self.grads = {role: arrays[i] for role, i in at.items() if role.startswith("grad_")}
        count = p.directions * p.per_cell
        self.params = [tuple(arrays[at[f"p{layer * count + i}"]] for i in range(count)) for layer in range(p.layers)]
        self.lengths = checked_lengths(p, arrays)
        self.cells = [slice(layer * p.directions, (layer + 1) * p.directions) for layer in range(p.layers)]


def _kept(p: RnnProblem, dtype: np.dtype[Any]) -> Iterator[Array]:
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


def forward(p: RnnProblem, arrays: list[Array], layer: Layer) -> tuple[Array, ...]:
    """Layer after layer: the output, and the last states of all of them."""
    given = _Given(p, arrays)
    x, kept, states = given.input, _kept(p, given.input.dtype), []
    for which, cells in enumerate(given.cells):
        if which:
            scale = next(kept)
            x = x if scale is None else x * scale
        c = None if given.c is None else given.c[cells]
        x, *last = layer(which, x, given.h[cells], c, given.params[which], given.lengths)
        states.append(last)
    if p.layers == 1:
        return (x, *states[0])
    return (x, *(np.concatenate(parts) for parts in zip(*states, strict=True)))


# A layer in NumPy -----------------------------------------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    """In place."""
    np.multiply(x, x.dtype.type(0.5), out=x)  # (1 + tanh(x / 2)) / 2: nothing overflows
    np.tanh(x, out=x)
    x += x.dtype.type(1)
    x *= x.dtype.type(0.5)
    return x


def _over_steps(p: RnnProblem, reverse: bool) -> Iterator[int]:
    return iter(range(p.steps - 1, -1, -1) if reverse else range(p.steps))


def _by_steps(p: RnnProblem, x: Array) -> Array:
    return x.swapaxes(0, 1) if p.batch_first else x


def _projected(x: Array, weight: Array, times: Times) -> Array:
    """The product of weights and all steps: (steps, batch, rows)."""
    steps, batch, columns = x.shape
    return times(x.reshape(steps * batch, columns), weight.T).reshape(steps, batch, len(weight))


def _layer(
    p: RnnProblem, times: Times, x: Array, h0: Array, c0: Array | None, params: tuple[Array, ...], lengths: Array | None
) -> tuple[Array, ...]:
    """All steps of a layer, in both directions where there are two."""
    x, n, dtype = _by_steps(p, x), p.hidden, x.dtype
    output = np.zeros((*(x.shape[1::-1] if p.batch_first else x.shape[:2]), p.directions * n), dtype)
    steps = _by_steps(p, output)
    last = [h0.copy()] if c0 is None else [h0.copy(), c0.copy()]
    for d in range(p.directions):
        w_ih, w_hh, *biases = params[d * p.per_cell : (d + 1) * p.per_cell]
        b_ih, b_hh = biases or (np.zeros(len(w_ih), dtype),) * 2
        gates = _projected(x, w_ih, times)
        gates += b_ih
        h, c = last[0][d], (last[1][d] if c0 is not None else None)
        for t in _over_steps(p, d == 1):
            there = slice(None) if lengths is None else lengths > t
            recurrent = times(h[there], w_hh.T)
            recurrent += b_hh
            new_c = None if c is None else c[there]
            new, new_c = _cell(p.mode, gates[t][there], recurrent, h[there], new_c)
            h[there] = new
            if c is not None:
                c[there] = new_c
            steps[t, there, d * n : (d + 1) * n] = new
    return (output, *last)


def _cell(mode: str, gates: Array, recurrent: Array, h: Array, c: Array | None) -> tuple[Array, Array | None]:
    """One step: the new h and c."""
    n = h.shape[-1]
    if mode == "gru":
        r, z = _sigmoid(gates[:, :n] + recurrent[:, :n]), _sigmoid(gates[:, n : 2 * n] + recurrent[:, n : 2 * n])
        new = np.tanh(gates[:, 2 * n :] + r * recurrent[:, 2 * n :])
        return (1 - z) * new + z * h, None
    recurrent += gates
    if c is None:
        new = np.tanh(recurrent) if mode == "rnn_tanh" else np.maximum(recurrent, recurrent.dtype.type(0))
        return new, None
    _sigmoid(recurrent[:, : 2 * n])
    _sigmoid(recurrent[:, 3 * n :])
    i, f, o = recurrent[:, :n], recurrent[:, n : 2 * n], recurrent[:, 3 * n :]
    c = f * c + i * np.tanh(recurrent[:, 2 * n : 3 * n])
    return o * np.tanh(c), c


# Gradients of LSTM --------------------------------------------------------------------------------------------------------


class _Backward:
    """Forward again with everything kept, then back: layer by layer, direction by direction, step by step."""

    def __init__(self, p: RnnProblem, arrays: list[Array], times: Times) -> None:
        self.p, self.times, self.given = p, times, _Given(p, arrays)
        self.dtype = self.given.input.dtype
        self.masks = list(_kept(p, self.dtype))

    def run(self) -> list[Array]:
        p, given = self.p, self.given
        inputs, saved, x = [], [], given.input
        for layer, cells in enumerate(given.cells):
            if layer and self.masks[layer - 1] is not None:
                x = x * self.masks[layer - 1]
            inputs.append(_by_steps(p, x))
            assert given.c is not None
            output, kept = self.forward(inputs[-1], given.h[cells], given.c[cells], given.params[layer])
            saved.append(kept)
            x = _by_steps(p, output)
        grad = given.grads.get("grad_output")
        grad = np.zeros((p.steps, p.batch, p.directions * p.hidden), self.dtype) if grad is None else _by_steps(p, grad)
        grad_h, grad_c = (
            given.grads[role].copy() if role in given.grads else np.zeros_like(given.h) for role in ("grad_h", "grad_c")
        )
        grad_params: list[list[Array]] = [[] for _ in range(p.layers)]
        for layer in reversed(range(p.layers)):
            below = np.zeros(inputs[layer].shape, self.dtype)
            for d in range(p.directions):
                cell = layer * p.directions + d
                part = grad[..., d * p.hidden : (d + 1) * p.hidden]
                into = self.back(layer, d, inputs[layer], saved[layer][d], part, grad_h[cell], grad_c[cell], grad_params[layer])
                below += into
            if layer and self.masks[layer - 1] is not None:
                below *= _by_steps(p, self.masks[layer - 1])
            grad = below
        return [np.ascontiguousarray(_by_steps(p, grad)), grad_h, grad_c, *(g for layer in grad_params for g in layer)]

    def forward(self, x: Array, h0: Array, c0: Array, params: tuple[Array, ...]) -> tuple[Array, list[tuple[Array, ...]]]:
        """The output, and for each direction gates after their activations, h and c before every step, and tanh(c)."""
        p, n, lengths = self.p, self.p.hidden, self.given.lengths
        output = np.zeros((p.steps, p.batch, p.directions * n), self.dtype)
        kept: list[tuple[Array, ...]] = []
        for d in range(p.directions):
            w_ih, w_hh, *biases = params[d * p.per_cell : (d + 1) * p.per_cell]
            gates = _projected(x, w_ih, self.times)
            for b in biases:
                gates += b
            hs, cs, tanhs = (np.zeros((p.steps, p.batch, n), self.dtype) for _ in range(3))
            h, c = h0[d].copy(), c0[d].copy()
            for t in _over_steps(p, d == 1):
                there = slice(None) if lengths is None else lengths > t
                hs[t], cs[t] = h, c
                now = gates[t]
                now += self.times(h, w_hh.T)
                _sigmoid(now[:, : 2 * n])
                np.tanh(now[:, 2 * n : 3 * n], out=now[:, 2 * n : 3 * n])
                _sigmoid(now[:, 3 * n :])
                new = now[:, n : 2 * n] * c + now[:, :n] * now[:, 2 * n : 3 * n]
                tanhs[t] = np.tanh(new)
                c[there] = new[there]
                h[there] = (now[:, 3 * n :] * tanhs[t])[there]
                output[t, there, d * n : (d + 1) * n] = h[there]
            kept.append((gates, hs, cs, tanhs))
        return output, kept

    def back(
        self, layer: int, d: int, x: Array, kept: tuple[Array, ...], grad: Array, dh: Array, dc: Array, grad_params: list[Array]
    ) -> Array:
        """The gradient with respect to what a direction read; `dh` and `dc` become those of the states before it."""
        p, n, lengths = self.p, self.p.hidden, self.given.lengths
        w_ih, w_hh = self.given.params[layer][d * p.per_cell : d * p.per_cell + 2]
        gates, hs, cs, tanhs = kept
        by_gates = np.zeros_like(gates)
        for t in _over_steps(p, d == 0):
            there = slice(None) if lengths is None else lengths > t
            i, f, g, o = (gates[t, there, j * n : (j + 1) * n] for j in range(4))
            by_h = dh[there] + grad[t, there]
            by_c = dc[there] + by_h * o * (1 - tanhs[t, there] ** 2)
            parts = (
                by_c * g * i * (1 - i),
                by_c * cs[t, there] * f * (1 - f),
                by_c * i * (1 - g * g),
                by_h * tanhs[t, there] * o * (1 - o),
            )
            now = np.concatenate(parts, axis=-1)
            by_gates[t, there] = now
            dc[there] = by_c * f
            dh[there] = self.times(now, w_hh)
        rows = by_gates.reshape(p.steps * p.batch, 4 * n)
        # What is not there may be anything, NaN included; 0 times that would not be 0.
        seen = x if lengths is None else np.where((np.arange(p.steps)[:, None] < lengths)[..., None], x, x.dtype.type(0))
        grad_params.append(self.times(rows.T, seen.reshape(len(rows), x.shape[-1])))
        grad_params.append(self.times(rows.T, hs.reshape(len(rows), n)))
        if p.biases:
            total = rows.sum(axis=0, dtype=np.float64).astype(self.dtype)
            grad_params += [total, total.copy()]
        return self.times(rows, w_ih).reshape(x.shape)
