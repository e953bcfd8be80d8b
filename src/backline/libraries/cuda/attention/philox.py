"""The weights that dropout keeps on CUDA: the numbers that our kernels draw, for attention that is made of products.

Philox 4x32 with ten rounds, counted by key, row, and batch and head: one seed leaves out the same weights whichever kernel runs.
"""

from __future__ import annotations

from typing import Any

from numpy import uint64 as word

__all__ = ["kept"]

AT_ONCE = 1 << 22  # numbers of 64 bits; a dozen arrays of them are there at a time
ROUNDS = 10
LOW = 0xFFFFFFFF


def _words(xp: Any, seed: int, batch_heads: Any, rows: Any, keys: Any) -> Any:
    """The first word of each counter, in numbers of 64 bits."""
    shape = (batch_heads.shape[0], rows.shape[1], keys.shape[2])
    zeros = xp.zeros(shape, "uint64")
    c0, c1, c2, c3 = zeros + keys, zeros + rows, zeros + batch_heads, zeros
    k0, k1 = seed & LOW, seed >> 32 & LOW
    low, high, times = word(LOW), word(32), (word(0xD2511F53), word(0xCD9E8D57))
    for _ in range(ROUNDS):
        first, second = c0 * times[0], c2 * times[1]
        c0, c1, c2, c3 = (second >> high) ^ c1 ^ word(k0), second & low, (first >> high) ^ c3 ^ word(k1), first & low
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return c0


def kept(xp: Any, shape: tuple[int, ...], seed: int, dropout: float, dtype: Any) -> Any:
    """Returns dropout factors for weights of a shape (batch and heads, rows, keys): 0, or the factor that keeps the expectation.

    Of the seed the low 64 bits count; `dropout` is the probability of 0; `xp` is CuPy, or NumPy.

    Examples
    --------
    >>> import numpy as np
    >>> made = kept(np, (2, 3, 5), 1, 0.5, np.float32)
    >>> made.shape, sorted(set(made.ravel().tolist()))
    ((2, 3, 5), [0.0, 2.0])
    """
    *lead, rows, keys = shape
    count = 1
    for n in lead:
        count *= n
    made = xp.empty((count, rows, keys), dtype)
    threshold = xp.full((), dropout, "float32")
    rescale = 1 / (1 - dropout) if dropout < 1 else 0.0
    step = max(1, AT_ONCE // max(rows * keys, 1))
    lines = max(1, AT_ONCE // max(keys, 1))
    across = xp.arange(keys, dtype="uint64")[None, None, :]
    for begin in range(0, count, step):
        heads = xp.arange(begin, min(begin + step, count), dtype="uint64")[:, None, None]
        for first in range(0, rows, lines):
            down = xp.arange(first, min(first + lines, rows), dtype="uint64")[None, :, None]
            uniform = (_words(xp, seed, heads, down, across) >> word(8)).astype("float32") * 2.0**-24
            made[begin : begin + step, first : first + lines] = (uniform >= threshold) * xp.full((), rescale, dtype)
    return made.reshape(shape)
