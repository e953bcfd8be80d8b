"""Inference by a small transformer, in float32, bfloat16 and int8.

An encoder with the norms before its parts, as in BERT-like models: attention of 8 heads, two linear layers with gelu between. In
int8 the linear layers quantize their input by its own range; all else is float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from . import Program

BOUNDS = {"float32": 1e-4, "bfloat16": 4e-2, "int8": 8e-2}


def inputs(small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    batch, length, features, heads, depth = (2, 12, 32, 4, 1) if small else (8, 128, 256, 8, 4)

    def weights(outs: int, ins: int) -> tuple[Any, Any]:
        return rng.standard_normal((outs, ins), np.float32) / np.float32(ins**0.5), 0.1 * rng.standard_normal(outs, np.float32)

    def norm() -> tuple[Any, Any]:
        return 1 + 0.1 * rng.standard_normal(features, np.float32), 0.1 * rng.standard_normal(features, np.float32)

    layers = [
        {
            "norm": norm(), "qkv": weights(3 * features, features), "out": weights(features, features),
            "norm2": norm(), "up": weights(4 * features, features), "down": weights(features, 4 * features),
        }
        for _ in range(depth)
    ]  # fmt: skip
    tokens = rng.standard_normal((batch, length, features), np.float32)
    return {"tokens": tokens, "layers": layers, "norm": norm(), "heads": heads}


def build(kind: str, ops: Any, data: dict[str, Any]) -> Any:
    tokens, heads = ops.array(data["tokens"], kind), data["heads"]
    batch, length, features = tokens.shape
    last = ops.layer_norm(*data["norm"], kind)

    def block(layer: dict[str, Any]) -> Any:
        norm, norm2 = ops.layer_norm(*layer["norm"], kind), ops.layer_norm(*layer["norm2"], kind)
        qkv, out, down = (ops.linear(*layer[name], kind) for name in ("qkv", "out", "down"))
        up = ops.linear(*layer["up"], kind, "gelu")

        def apply(x: Any) -> Any:
            parts = qkv(norm(x)).reshape(batch, length, 3, heads, features // heads)
            q, k, v = (parts[:, :, n].swapaxes(1, 2) for n in range(3))
            mixed = ops.attention(q, k, v).swapaxes(1, 2).reshape(batch, length, features)
            x = out(mixed, x)
            return down(up(norm2(x)), x)

        return apply

    blocks = [block(layer) for layer in data["layers"]]

    def run() -> Mapping[str, Any]:
        x = tokens
        for apply in blocks:
            x = apply(x)
        return {"features": last(x)}

    return run


PROGRAMS = [Program(f"transformer {kind}", inputs, partial(build, kind), bound) for kind, bound in BOUNDS.items()]
