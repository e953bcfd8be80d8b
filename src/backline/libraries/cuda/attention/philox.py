"""The weights that dropout keeps on CUDA: the numbers that our kernels draw, for attention that is made of products.

Philox 4x32 with ten rounds. A counter is four keys, row, and batch and head; its four words are those of the keys in order. One
seed leaves out the same weights whichever kernel runs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..common.elementwise_kernels import Kernel, made

__all__ = ["kept"]

WORDS = 4  # of a counter
_KEPT = Kernel(
    "uint64 seed, int64 rows, int64 keys, float32 dropout, float64 rescale",
    "raw T y",
    r"""
    long long quads = (keys + 3) / 4, line = (long long)i / quads, quad = (long long)i % quads;
    unsigned words[4] = {(unsigned)quad, (unsigned)(line % rows), (unsigned)(line / rows), 0u};
    unsigned low = (unsigned)seed, high = (unsigned)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        unsigned long long first = 0xD2511F53ULL * words[0], second = 0xCD9E8D57ULL * words[2];
        words[0] = (unsigned)(second >> 32) ^ words[1] ^ low;
        words[2] = (unsigned)(first >> 32) ^ words[3] ^ high;
        words[1] = (unsigned)second;
        words[3] = (unsigned)first;
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    for (int w = 0; w < 4 && 4 * quad + w < keys; ++w)
        y[line * keys + 4 * quad + w] = T((float)(words[w] >> 8) * 5.9604644775390625e-08f >= dropout ? rescale : 0.0);
    """,
)


def kept(xp: Any, shape: tuple[int, ...], seed: int, dropout: float, dtype: Any) -> Any:
    """Returns dropout factors for weights of a shape (..., rows, keys): 0, or the factor that keeps the expectation.

    Of the seed the low 64 bits count; `dropout` is the probability of 0; `xp` is CuPy.
    """
    *lead, rows, keys = shape
    factors = xp.empty(shape, dtype)
    if factors.size == 0:
        return factors
    rescale = 1 / (1 - dropout) if dropout < 1 else 0.0
    counters = math.prod(lead) * rows * -(-keys // WORDS)
    made("kept", _KEPT)(np.uint64(seed & (2**64 - 1)), rows, keys, dropout, rescale, factors, size=counters)
    return factors
