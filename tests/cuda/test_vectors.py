"""Products of vectors, diagonals, powers, exponentials and distances on CUDA arrays: computed by CuPy's stand-in."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from backline.errors import NoKernel
from backline.nn import grad as G
from fakes.cupy_standin import ndarray
from fakes.solver_machine import real_types
from support import clean

NEAR = 5e-3  # convolutions are in tf32 there, unless they are told otherwise
real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine")
assert clean


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same(function: Any, *args: Any) -> None:
    """A call on the device against the same on the host."""
    found = function(*(ndarray(a) if isinstance(a, np.ndarray) else a for a in args))
    expected = function(*args)
    assert type(found) is ndarray and found.shape == np.shape(expected) and found.dtype == np.asarray(expected).dtype, function
    np.testing.assert_allclose(found.host, expected, rtol=NEAR, atol=NEAR, err_msg=str(function))


def test_products_of_vectors_and_what_is_made_of_products() -> None:
    for call in (
        (backline.inner, numbers((3, 4), "float32"), numbers((2, 4), "float32", 1)), (backline.kron, numbers((2, 3), "float32"), numbers((3, 2), "float32", 1)),
        (linalg.vecdot, numbers((3, 4), "float32"), numbers((4,), "float32", 1)), (linalg.cross, numbers((2, 3), "float32"), numbers((2, 3), "float32", 1)),
        (backline.cross, numbers((3, 2), "float32"), numbers((3, 2), "float32", 1)), (linalg.diagonal, numbers((2, 3, 4), "float32")),
        (backline.diagonal, numbers((3, 4), "float32")), (backline.trace, numbers((3, 4), "float32")), (linalg.vander, numbers((2, 3), "float32")),
        (backline.vander, numbers((3,), "float32")), (backline.addbmm, numbers((2, 2), "float32"), numbers((3, 2, 4), "float32", 1), numbers((3, 4, 2), "float32", 2)),
        (linalg.tensorinv, numbers((2, 3, 6), "float32"), 2), (linalg.tensorsolve, numbers((6, 2, 3), "float32"), numbers((2, 3), "float32", 1), (0,)),
        (linalg.matrix_exp, numbers((2, 3, 3), "float32")), (linalg.matrix_exp, numbers((3, 3), "float32") * np.float32(0.01)),
        (backline.cdist, numbers((4, 3), "float32"), numbers((5, 3), "float32", 1)), (backline.cdist, numbers((4, 3), "float32"), numbers((5, 3), "float32", 1), 3.0),
        (backline.cdist, numbers((4, 3), "float32"), numbers((5, 3), "float32", 1), 0), (backline.cdist, numbers((30, 3), "float32"), numbers((5, 3), "float32", 1)),
        (backline.stft, numbers((40,), "float32"), 8), (partial(backline.stft, pad_mode="circular", normalized=True, power=2), numbers((2, 40), "float32"), 8, 3, 6, numbers((6,), "float32", 1)),
        (partial(backline.stft, center=False, power=1), numbers((2, 40), "complex64"), 8), (partial(backline.stft, pad_mode="constant"), numbers((40,), "float64"), 7, 3),
        (G.conv_transpose2d_input, (1, 2, 4, 4), numbers((2, 3, 2, 2), "float32"), numbers((1, 3, 5, 5), "float32", 1)),
        (G.conv_transpose2d_weight, numbers((1, 2, 4, 4), "float32"), (2, 3, 2, 2), numbers((1, 3, 5, 5), "float32", 1)),
        (G.conv_transpose2d_input, (1, 2, 4, 4), numbers((2, 3, 2, 2), "float32"), numbers((1, 3, 8, 8), "float32", 1), 1, 0, 1, 1, 3),
        (G.conv_transpose2d_weight, numbers((1, 2, 4, 4), "float32"), (2, 3, 2, 2), numbers((1, 3, 8, 8), "float32", 1), 1, 0, 1, 1, 3),
    ):  # fmt: skip
        same(*call)


def test_what_no_library_there_has_is_refused() -> None:
    a = ndarray(numbers((3, 3), "float32"))
    for call in (lambda: linalg.ldl_factor(a), lambda: linalg.householder_product(a, ndarray(numbers((3,), "float32")))):
        with pytest.raises(NoKernel, match="it has no linalg"):
            call()
