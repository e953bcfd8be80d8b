"""The loop over lines and parts of lines that calls the loops below NumPy's ufuncs: in every layout the bits of a dense array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from support import clean, rng, seed

assert clean and rng and seed
pytestmark = pytest.mark.usefixtures("clean")


def strided(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers in an array whose axes are permuted, have steps of 1 to 3, and may be turned round."""
    axes = rng.permutation(len(shape))
    steps = rng.integers(1, 4, len(shape)) * rng.choice((1, -1), len(shape))
    base = rng.standard_normal([shape[i] * abs(steps[i]) for i in axes])
    base = (base + 1j if dtype.startswith("c") else base).astype(dtype)
    return base.transpose(np.argsort(axes))[tuple(slice(None, None, int(step)) for step in steps)]


@pytest.mark.parametrize("dtype", ("float32", "float64", "complex64", "complex128"))
def test_bits_are_those_of_numpy(dtype: str, rng: np.random.Generator) -> None:
    shapes = [(1,), (9,), (5000,), (17000,), (3, 7), (130, 140), (2, 5000), (5000, 2), (4, 1, 9), (11, 12, 13), (3, 4, 5, 6)]
    shapes += [(2, 3, 4, 2, 3), (2,) * 9]
    loops = 0
    with backline.backends.flags(only=("numpy",)):
        for shape in shapes:
            for _ in range(4):
                x, out = strided(rng, shape, dtype), strided(rng, shape, dtype)
                wanted = np.exp(x.copy("C"))  # ascontiguousarray leaves an array of one element with the stride that it has
                result = backline.exp(x)
                loops += backline.explain().algorithm == "ufunc"
                assert np.array_equal(result, wanted) and result.flags.owndata, f"{shape} {x.strides}"
                outside = out.base.copy()
                assert backline.exp(x, out=out) is out and np.array_equal(out, wanted), f"{shape} {x.strides} {out.strides}"
                out[...] = strided_again(outside, out)
                assert np.array_equal(out.base, outside), "something was written between the elements"
                assert backline.exp(x, out=x) is x and np.array_equal(x, wanted), f"{shape} {x.strides} in place"
    assert loops == 4 * len(shapes)


def strided_again(base: Any, like: Any) -> Any:
    """The elements of another array's memory where those of `like` are in its own."""
    offset = like.__array_interface__["data"][0] - like.base.__array_interface__["data"][0]
    return np.ndarray(like.shape, like.dtype, base, offset, like.strides)
