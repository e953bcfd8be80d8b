"""Square roots in place, of 0 for what is below it: NumPy's, bit by bit."""

from __future__ import annotations

import os

import numpy as np
import pytest

import backline
from backline import _kernels

SEED = int(os.environ.get("BACKLINE_TEST_SEED", "0"))


@pytest.mark.parametrize("level", range(_kernels.instruction_level + 1))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [0, 1, 7, 1000, 70_001])
def test_roots_are_those_of_numpy(size: int, dtype: str, level: int) -> None:
    rng = np.random.default_rng([SEED, size])
    limits = np.finfo(dtype)
    x = (rng.standard_normal(size) * 10.0 ** rng.integers(-30, 30, size)).astype(dtype)
    nasty = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        limits.tiny,
        limits.max,
        -limits.max,
        limits.smallest_subnormal,
        -limits.smallest_subnormal,
    ]
    x[: len(nasty)] = np.array(nasty, dtype)[:size]
    wanted = np.sqrt(np.where(x <= 0, x.dtype.type(0), x))
    for threads in (1, 2):
        found = x.copy()
        _kernels.clipped_roots(found, level, threads)
        assert found.view(np.uint8).tobytes() == wanted.tobytes() or np.array_equal(found, wanted, equal_nan=True)
        assert not np.signbit(found[~np.isnan(found)]).any()


def test_other_arrays_are_refused() -> None:
    fixed = np.ones((3, 4))
    fixed.flags.writeable = False
    for x in (np.ones((4, 4))[:, ::2], np.ones(3, np.int64), fixed, np.ones(3, ">f8"), np.ones(3, np.float16)):
        with pytest.raises(ValueError, match="dense array"):
            _kernels.clipped_roots(x, 0, 1)
    with pytest.raises(ValueError, match="level"):
        _kernels.clipped_roots(np.ones(3), 3, 1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distances_by_a_product(dtype: str) -> None:
    """Off by a few roundings of the squares of lengths that are subtracted; never negative, 0 or less than a rounding on the diagonal."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((300, 7)).astype(dtype)
    wide = x.astype(np.longdouble)
    wanted = np.sqrt(((wide[:, None] - wide) ** 2).sum(-1))
    for threads in (1, 2):
        with backline.num_threads(threads):
            found = backline.cdist(x, x)
        squares = (wide * wide).sum(-1)
        bound = 32 * np.finfo(dtype).eps * (squares[:, None] + squares)
        assert found.dtype == x.dtype and (found >= 0).all()
        assert (np.abs(found.astype(np.longdouble) ** 2 - wanted**2) <= bound).all()
