"""Recurrent networks: against a loop over single sequences, and their gradients against those in float64 and against differences."""

from __future__ import annotations

from typing import Any

import numpy as np

from recurrent import MODES, make, oracle

from ..arrays import FORMATS, Array, Draw, dtype_of
from ..call import Call, generates
from ..check import Wrong, normwise

DTYPES = ("float32",) * 4 + ("float64",) * 2 + ("float16", "bfloat16")


def _call(draw: Draw, op: str, most: int) -> tuple[str, dict[str, Any], Array | None, str]:
    draw.values = "normal"
    mode = op.rpartition(".")[2].removesuffix("_backward")
    dtype = draw.choice(DTYPES)
    rng = np.random.default_rng(draw.whole(0, 1 << 30))
    steps, batch, features, hidden = draw.size(most, 0), draw.size(5, 0), draw.size(17, 0), draw.size(17, 0)
    layers = draw.choice((1, 1, 1, 2, 3))
    made = make(
        rng, mode, steps, batch, features, hidden, layers=layers, bidirectional=draw.chance(0.3), biases=draw.chance(0.7),
        batch_first=draw.chance(0.4),
    )  # fmt: skip

    def narrow(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(narrow, value))
        return draw.lay_out(value.astype(dtype_of(dtype))) if isinstance(value, np.ndarray) else value

    made = {k: narrow(v) for k, v in made.items()}
    lengths = np.array([draw.whole(0, steps) for _ in range(batch)]) if draw.chance(0.25) else None
    return mode, made, lengths, dtype


def _tolerance(call: dict[str, Any], dtype: str) -> float:
    f = FORMATS[dtype]
    x = call["input"]
    steps = x.shape[1 if call["batch_first"] else 0] * call["num_layers"]
    terms = x.shape[-1] + (call["hx"][0] if isinstance(call["hx"], tuple) else call["hx"]).shape[-1]
    return (steps + 2) * (f.accumulate * (terms + 16) * 4 + (f.eps * 8 if f.eps != f.accumulate else 0))


@generates("rnn", *(f"nn.{mode}" for mode in MODES), weight=3)
def recurrent(draw: Draw, op: str) -> Call:
    mode, call, lengths, dtype = _call(draw, op, 9)
    kwargs = {"lengths": lengths} if lengths is not None else {}
    tolerance = _tolerance(call, dtype)

    def check(result: Any) -> None:
        wanted = oracle(mode, call, lengths)
        for name, got, right in zip(("output", "h_n", "c_n"), result, wanted, strict=False):
            normwise(got, right, tolerance, dtype_of(dtype), name, max(float(np.max(np.abs(right), initial=0)), 1.0))

    return Call(op, tuple(call.values()), kwargs, check)


@generates("rnn", *(f"nn.grad.{mode}_backward" for mode in MODES), weight=1)
def backward(draw: Draw, op: str) -> Call:
    mode, call, lengths, dtype = _call(draw, op, 5)
    hx = call["hx"] if isinstance(call["hx"], tuple) else (call["hx"],)
    wanted = oracle(mode, call, lengths)
    grads = [draw.array(w.shape, dtype, "normal") for w in wanted]
    kwargs = {"lengths": lengths} if lengths is not None else {}
    values = list(call.values())
    arrays = [call["input"], *hx, *call["params"]]

    def check(result: Any) -> None:
        if len(result) != len(arrays):
            raise Wrong("shape", f"{len(result)} gradients, not {len(arrays)}")
        for got, array in zip(result, arrays, strict=True):
            if got.shape != array.shape or got.dtype != array.dtype:
                raise Wrong("shape", f"a gradient has shape {got.shape} and dtype {got.dtype}")
        if mode == "rnn_relu":
            return  # rounding decides which side of 0 a state is on
        # Along a random direction: the sum of products with the gradients is the slope of the loss.
        rng = np.random.default_rng(5)
        rounded = [a.astype(np.float64) for a in arrays]
        turns = [rng.standard_normal(a.shape) for a in arrays]

        def loss(step: float) -> float:
            moved = [a + step * t for a, t in zip(rounded, turns, strict=True)]
            given = dict(call)
            given["input"] = moved[0]
            given["hx"] = tuple(moved[1 : 1 + len(hx)]) if isinstance(call["hx"], tuple) else moved[1]
            given["params"] = tuple(moved[1 + len(hx) :])
            parts = oracle(mode, given, lengths)
            return sum(float((w * g.astype(np.float64)).sum()) for w, g in zip(parts, grads, strict=True))

        h = 1e-4
        slope = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)
        found = sum(float((g.astype(np.float64) * t).sum()) for g, t in zip(result, turns, strict=True))
        size = sum(float((np.abs(g.astype(np.float64)) * np.abs(t)).sum()) for g, t in zip(result, turns, strict=True)) + 1
        limit = max(_tolerance(call, dtype) * 4, 1e-6) * size
        if not abs(found - slope) <= limit:
            raise Wrong("value", f"the gradients' slope is {found}, that of the loss {slope}; the bound is {limit:.3g}")

    return Call(op, (*values[:3], *grads, *values[3:]), kwargs, check)
