"""Philox 4x32 with ten rounds by its definition, and the factors of dropout that attention on CUDA draws with it, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["kept", "words"]

Array = np.ndarray[Any, Any]
LOW, HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)


def words(seed: int, *counter: Any) -> tuple[Array, ...]:
    """The four words of each counter, of four numbers."""
    c = list(np.broadcast_arrays(*(np.asarray(each, np.uint64) for each in counter)))
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(second >> HIGH) ^ c[1] ^ np.uint64(k0), second & LOW, (first >> HIGH) ^ c[3] ^ np.uint64(k1), first & LOW]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return tuple(c)


def kept(shape: tuple[int, ...], seed: int, dropout: float) -> Array:
    """Returns the factors of dropout for weights of a shape (..., rows, keys), in float64."""
    *lead, rows, keys = shape
    batch_heads = np.arange(int(np.prod(lead)))[:, None, None]
    if 0 in (rows, keys):
        return np.zeros(shape)
    drawn = np.stack(words(seed, np.arange(-(-keys // 4)), np.arange(rows)[:, None], batch_heads, 0), -1)
    uniform = (drawn.reshape(*drawn.shape[:-2], -1)[..., :keys] >> np.uint64(8)) * 2.0**-24
    rescale = 1 / (1 - dropout) if dropout < 1 else 0.0
    return ((uniform >= np.float32(dropout)) * rescale).reshape(shape)
