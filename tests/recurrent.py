"""Helpers of the tests of recurrent networks: calls, a loop over single sequences in float64, and comparison."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

MODES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
Array = Any


# The oracle: one sequence at a time, one step at a time --------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def step(mode: str, a: Array, b: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """From the two products of one step, with their biases, to the new states."""
    if mode == "lstm":
        i, f, g, o = np.split(a + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    if mode == "gru":
        (ar, az, an), (br, bz, bn) = np.split(a, 3), np.split(b, 3)
        r, z = sigmoid(ar + br), sigmoid(az + bz)
        return (1 - z) * np.tanh(an + r * bn) + z * h, c
    return (np.tanh(a + b) if mode == "rnn_tanh" else np.maximum(a + b, 0)), c


def oracle(mode: str, call: dict[str, Any], lengths: Array = None) -> tuple[Array, ...]:
    """The results in float64."""
    x = call["input"].astype(np.float64)
    x = x.swapaxes(0, 1) if call["batch_first"] else x
    hx = call["hx"] if mode == "lstm" else (call["hx"],)
    states = [s.astype(np.float64) for s in hx]
    params = [p.astype(np.float64) for p in call["params"]]
    directions, hidden = (2 if call["bidirectional"] else 1), states[0].shape[-1]
    each = 4 if call["has_biases"] else 2
    lengths = [len(x)] * x.shape[1] if lengths is None else lengths
    for layer in range(call["num_layers"]):
        out = np.zeros((*x.shape[:2], directions * hidden))
        for d, n in itertools.product(range(directions), range(x.shape[1])):
            cell = layer * directions + d
            w_ih, w_hh, *b = params[cell * each : (cell + 1) * each]
            b_ih, b_hh = b or (0.0, 0.0)
            h, c = states[0][cell, n], states[-1][cell, n]
            order = range(lengths[n])
            for t in reversed(order) if d else order:
                h, c = step(mode, w_ih @ x[t, n] + b_ih, w_hh @ h + b_hh, h, c)
                out[t, n, d * hidden : (d + 1) * hidden] = h
            states[0][cell, n] = h
            if mode == "lstm":
                states[1][cell, n] = c
        x = out
    return (x.swapaxes(0, 1) if call["batch_first"] else x, *states)


def make(
    rng: np.random.Generator, mode: str, steps: int, batch: int, features: int, hidden: int, *, layers: int = 1,
    bidirectional: bool = False, biases: bool = True, batch_first: bool = False, dtype: Any = np.float64,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of a call, by name and in their order."""
    directions, rows = (2 if bidirectional else 1), MODES[mode] * hidden

    def array(*shape: int, by: int = 1) -> Array:
        return (rng.standard_normal(shape) / max(by, 1) ** 0.5).astype(dtype)

    params = []
    for layer, _ in itertools.product(range(layers), range(directions)):
        columns = features if layer == 0 else directions * hidden
        params += [array(rows, columns, by=columns), array(rows, hidden, by=hidden)]
        if biases:
            params += [array(rows), array(rows)]
    states = tuple(array(layers * directions, batch, hidden) for _ in "hc")
    return {
        "input": array(*((batch, steps) if batch_first else (steps, batch)), features),
        "hx": states if mode == "lstm" else states[0], "params": tuple(params), "has_biases": biases, "num_layers": layers,
        "dropout": 0.0, "train": False, "bidirectional": bidirectional, "batch_first": batch_first,
    }  # fmt: skip


def tolerance(dtype: Any) -> float:
    return {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}[np.dtype(dtype).name]


def compare(got: tuple[Array, ...], wanted: tuple[Array, ...], dtype: Any, what: str) -> None:
    assert len(got) == len(wanted), what
    for result, right in zip(got, wanted, strict=True):
        assert result.dtype == dtype, what
        np.testing.assert_allclose(result.astype(np.float64), right, rtol=tolerance(dtype), atol=tolerance(dtype), err_msg=what)
