"""Dtypes on arrays of MLX: the switch `promote`, the parameter `dtype`, 16-bit norms, and what only the CPU has."""

from __future__ import annotations

import numpy as np
import pytest
from mlx_arrays import back, mx, there

import backline
from backline import linalg
from backline.errors import BadType, NoKernel
from backline.nn import functional as F
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_operands_of_two_dtypes() -> None:
    half, ints = there(X.astype(np.float16)), there(np.eye(4, dtype=np.int8))
    for other in (there(np.eye(4, dtype=np.float32)), ints):
        with pytest.raises(BadType):
            backline.matmul(half, other)
    with backline.backends.flags(promote="numpy"):
        for _ in range(2):
            result = backline.matmul(half, there(np.eye(4, dtype=np.float32)))
            assert isinstance(result, mx.array) and result.dtype == mx.float32
            np.testing.assert_array_equal(back(result), X)
            assert backline.explain().problem.converted == ("input f16 -> f32",)
        assert backline.matmul(half, ints).dtype == mx.float16  # as numpy.result_type has it
        np.testing.assert_array_equal(back(backline.einsum("ij,jk->ik", half, there(np.eye(4, dtype=np.float32)))), X)


def test_the_dtype_of_softmax_and_softmax_of_no_axis() -> None:
    for dtype in ("float16", "float32"):
        result = F.softmax(there(X), 1, dtype=dtype)
        assert isinstance(result, mx.array)
        np.testing.assert_array_equal(back(result), back(F.softmax(there(X.astype(dtype)), 1)))
    np.testing.assert_allclose(back(F.softmax(there(X.astype(np.int32)), 0, dtype=np.float32)), F.softmax(X, 0), rtol=1e-6)
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        np.testing.assert_allclose(back(F.softmax(there(X))), F.softmax(X, 1), rtol=1e-6)
    for number in (3.0, np.inf, np.nan):
        x = np.array(number, np.float32)
        for op in (F.softmax, F.log_softmax):
            result = op(there(x), 0)
            assert result.shape == ()
            np.testing.assert_array_equal(back(result), op(x, 0))


def test_norms_of_16_bit_floats() -> None:
    x = there(X.astype(np.float16))
    for function in (linalg.norm, linalg.vector_norm, linalg.matrix_norm):
        assert function(x).dtype == mx.float16 and function(x, dtype=np.float32).dtype == mx.float32
        np.testing.assert_allclose(float(back(function(x, dtype=np.float32))), float(np.linalg.norm(X)), rtol=1e-6)


def test_lists_and_a_weight_of_one_dimension() -> None:
    np.testing.assert_allclose(back(F.linear(there(X), there(X[0]), there(np.array(1, np.float32)))), X @ X[0] + 1)
    params = [np.ones(s, np.float32) for s in ((2, 4), (2, 2))]
    call = (there(X[:, None]), there(np.zeros((1, 1, 2), np.float32)))
    one = backline.nn.rnn_tanh(*call, [there(p) for p in params], False, 1, 0.0, False, False, False)
    two = backline.nn.rnn_tanh(*call, tuple(there(p) for p in params), False, 1, 0.0, False, False, False)
    np.testing.assert_array_equal(back(one[0]), back(two[0]))


def test_what_only_the_cpu_has() -> None:
    with pytest.raises(BadType, match="relu: input has dtype int32"):
        F.relu(there(X.astype(np.int32)))
    with pytest.raises(NoKernel, match="there is no max_pool_indices for arrays of MLX"):
        F.max_pool1d(there(X), 2, return_indices=True)
