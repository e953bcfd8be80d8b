"""Exceptions that programs written for torch catch: the classes they name."""

from __future__ import annotations

import numpy as np
import pytest

import backline
from backline import fft, linalg
from backline.errors import BadAxis, LinAlgError
from backline.nn import functional


@pytest.mark.parametrize("library", ["numpy", "openblas"])
@pytest.mark.parametrize(
    ("call", "matrix"),
    [(linalg.cholesky, -np.eye(3)), (linalg.inv, np.zeros((2, 2))), (linalg.eigh, np.full((2, 2), np.nan))],
)
def test_a_failed_decomposition_is_a_runtime_error_and_numpys(library, call, matrix):
    with backline.use(library, only=True):
        for guard in (RuntimeError, np.linalg.LinAlgError, LinAlgError):
            with pytest.raises(guard):
                call(matrix)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.softmax(x, dim=2),
        lambda x: linalg.vector_norm(x, 2, dim=2),
        lambda x: linalg.norm(x, dim=(0, 5)),
        lambda x: fft.fft(x, dim=-3),
        lambda x: fft.fftshift(x, dim=5),
        lambda x: fft.fftn(x, dim=(0, 2)),
        lambda x: backline.tensordot(x, x, dims=([3], [0])),
    ],
)
def test_an_axis_out_of_range_is_an_index_error(call):
    with pytest.raises(IndexError) as caught:
        call(np.ones((2, 2)))
    assert isinstance(caught.value, BadAxis) and isinstance(caught.value, ValueError)
    assert "has 2 dimensions" in str(caught.value) and "a number from -2 to 1" in str(caught.value)
