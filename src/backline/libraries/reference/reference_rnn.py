"""Recurrent networks in NumPy: right for every dtype, and what others are compared with.

The products of the weights of the input and all steps are one product; each step has one more, of the state, and the gates in
place. float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...problems.dtypes import HALVES, compute_dtype
from ...problems.rnn_problem import RnnProblem
from ..base import Algorithm, Refusal
from ..rnn_layers import by_steps, forward
from . import numpy_threads
from .reference_rnn_grad import gradients, over_steps, projected, sigmoid

__all__ = ["algorithms", "plan"]

Array = Any
Times = Callable[[Array, Array], Array]



def algorithms(p: RnnProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """The two ways: products by NumPy's BLAS, or by NumPy's own loops on one thread and in one order."""
    precision = "f32 accumulation" if p.dtype.name in HALVES else ""
    if p.empty:
        yield Algorithm(library="numpy", name="loops", precision=precision, level="threads", basis="construction")
        return
    if no := numpy_threads.refusal("steps", p, threads):
        yield no
    else:
        pool = "numpy" if threads > 1 else ""
        yield Algorithm(library="numpy", name="steps", threads=threads, scaled=True, precision=precision, pool=pool)
    yield Algorithm(
        library="numpy", name="loops", precision=precision, level="threads", basis="construction", note="without a BLAS: slow"
    )


def plan(p: RnnProblem, *, loops: bool = False) -> Callable[..., tuple[Array, ...]]:
    """The function of the arrays of a call; with `loops` no BLAS takes part."""
    times: Times = _loops if loops else np.matmul
    dtype = compute_dtype(p.dtype)

    def run(*arrays: Array) -> tuple[Array, ...]:
        given = [a if o.role == "lengths" else a.astype(dtype, copy=False) for o, a in zip(p.operands, arrays, strict=True)]
        with np.errstate(all="ignore"):  # as compiled libraries: what is not finite shows in the result
            if p.is_gradient:
                return gradients(p, given, times)
            results = forward(p, given, lambda which, *of: _layer(p, times, *of))
        return tuple(part.astype(p.dtype, copy=False) for part in results)

    return run


def _loops(a: Array, b: Array) -> Array:
    return np.einsum("ij,jk->ik", a, b)


# A layer in NumPy -----------------------------------------------------------------------------------------------------------


def _layer(
    p: RnnProblem, times: Times, x: Array, h0: Array, c0: Array | None, params: tuple[Array, ...], lengths: Array | None
) -> tuple[Array, ...]:
    """All steps of a layer, in both directions where there are two."""
    x, n, dtype = by_steps(p, x), p.hidden, x.dtype
    output = np.zeros((*(x.shape[1::-1] if p.batch_first else x.shape[:2]), p.directions * n), dtype)
    steps = by_steps(p, output)
    last = [h0.copy()] if c0 is None else [h0.copy(), c0.copy()]
    for d in range(p.directions):
        w_ih, w_hh, *biases = params[d * p.per_cell : (d + 1) * p.per_cell]
        b_ih, b_hh = biases or (np.zeros(len(w_ih), dtype),) * 2
        gates = projected(x, w_ih, times)
        gates += b_ih
        h, c = last[0][d], (last[1][d] if c0 is not None else None)
        for t in over_steps(p, d == 1):
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
        r, z = sigmoid(gates[:, :n] + recurrent[:, :n]), sigmoid(gates[:, n : 2 * n] + recurrent[:, n : 2 * n])
        new = np.tanh(gates[:, 2 * n :] + r * recurrent[:, 2 * n :])
        return (1 - z) * new + z * h, None
    recurrent += gates
    if c is None:
        new = np.tanh(recurrent) if mode == "rnn_tanh" else np.maximum(recurrent, recurrent.dtype.type(0))
        return new, None
    sigmoid(recurrent[:, : 2 * n])
    sigmoid(recurrent[:, 3 * n :])
    i, f, o = recurrent[:, :n], recurrent[:, n : 2 * n], recurrent[:, 3 * n :]
    c = f * c + i * np.tanh(recurrent[:, 2 * n : 3 * n])
    return o * np.tanh(c), c
