"""Operations made of others, and the gradients of layers, on arrays of MLX."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from mlx_arrays import back, mx, there

import backline
from backline import fft, linalg
from backline.errors import BadType, NoKernel
from backline.nn import functional as F
from backline.nn import grad as G
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "complex64": 2e-5}


def numbers(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if dtype == "bfloat16":
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def each(value: Any, change: Any) -> Any:
    if isinstance(value, list):
        return [each(v, change) for v in value]
    return change(value) if isinstance(value, np.ndarray) else value


def same(function: Any, *args: Any, times: float = 1, **kwargs: Any) -> None:
    """A call on MLX's arrays against the same on the host in float64."""
    found = function(*(each(v, there) for v in args), **kwargs)
    expected = function(*(each(v, lambda a: a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)) for v in args), **kwargs)
    first = next(a for v in args for a in (v if isinstance(v, list) else [v]) if isinstance(a, np.ndarray))
    bound = times * NEAR[first.dtype.name]
    pairs = zip(found if isinstance(found, tuple) else (found,), expected if isinstance(expected, tuple) else (expected,), strict=True)
    for got, want in pairs:
        assert isinstance(got, mx.array) and got.shape == np.shape(want), function
        host = back(got)
        host = host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)
        np.testing.assert_allclose(host, want, rtol=bound, atol=bound, err_msg=str(function))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_of_layers(dtype: str) -> None:
    x, g = numbers((3, 4, 6, 5), dtype), numbers((3, 4, 6, 5), dtype, 1)
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        same(getattr(G, f"{name}_input"), x, g)
    same(G.gelu_input, x, g, "tanh")
    for dim in (1, -1):
        same(G.softmax_input, F.softmax(x, dim), g, dim, times=2)
        same(G.log_softmax_input, F.log_softmax(x, dim), g, dim, times=4)
    same(G.layer_norm_backward, x, g, (6, 5), numbers((6, 5), dtype, 2), times=4)
    same(G.batch_norm_backward, x, g, numbers((4,), dtype, 3), times=4)
    pooled = numbers((3, 4, 3, 3), dtype, 4)
    same(G.max_pool2d_input, x, pooled, 3, 2, 1)
    same(G.avg_pool2d_input, (3, 4, 6, 5), pooled, 3, 2, 1)
    same(G.adaptive_avg_pool2d_input, (3, 4, 6, 5), numbers((3, 4, 4, 3), dtype, 5), (4, 3))
    same(G.linear_bias, x, times=2)


def test_gradients_of_nasty_numbers() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 80.0, -80.0, 1e-30], np.float32)
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        same(getattr(G, f"{name}_input"), x, np.ones_like(x))
    nothing = np.zeros((0, 4, 6), np.float32)
    same(G.layer_norm_backward, nothing, nothing, 6)
    same(G.softmax_input, nothing, nothing, 1)
    image = np.array([[[1.0, np.nan, 3.0, -np.inf]]], np.float32)
    same(G.max_pool1d_input, image, np.ones((1, 1, 2), np.float32), 2)


def test_dropout_drops_the_same_elements_as_on_the_host() -> None:
    for dtype in ("float16", "float32"):
        x = numbers((40, 7), dtype)
        assert np.array_equal(back(F.dropout(there(x), 0.4, seed=5)), F.dropout(x, 0.4, seed=5))
    x = numbers((4, 4))
    assert np.array_equal(back(F.dropout(there(x), training=False)), x)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_linear_algebra_made_of_other_operations(dtype: str) -> None:
    a, b = numbers((2, 4, 4), dtype), numbers((2, 4, 3), dtype, 1)
    for order in (2, 1, 0, np.inf, -np.inf, 3):
        for dim, keep in ((None, False), (-1, True), ((0, 2), False)):
            same(linalg.vector_norm, a, order, dim, keep)
    for order in ("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf):
        same(linalg.matrix_norm, b, order, (-2, -1), True, times=4)
        same(linalg.matrix_norm, b, order, (0, 1), times=4)
    same(linalg.cond, b, times=100)
    same(linalg.pinv, b, times=100)
    for n in (0, 1, 3):
        same(linalg.matrix_power, a, n, times=10)
    assert back(linalg.matrix_rank(there(b))).tolist() == [3, 3] and linalg.matrix_rank(there(b)).dtype == mx.int64
    same(linalg.multi_dot, [a[0], a[0][:, :2], a[0][:2]], times=2)
    same(backline.tensordot, a, a, ([0, 1], [0, 2]), times=2)
    same(F.bilinear, a, a[..., :2], numbers((5, 4, 2), dtype, 3), numbers((5,), dtype, 4), times=4)
    same(G.linear_input, numbers((4, 5), dtype), a)
    same(G.linear_weight, a, b)
    if dtype == "float32":
        for function in (linalg.det, linalg.slogdet, linalg.lu, linalg.cond):
            same(function, a, times=100)
        same(linalg.lu, b, times=4)
        same(linalg.matrix_power, a, -2, times=400)
    else:
        with pytest.raises(NoKernel, match=r"linalg.lu_factor of float32, float64"):
            linalg.det(there(a))


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_einsum(dtype: str) -> None:
    for equation, *shapes in (
        ("ij,jk->ki", (3, 4), (4, 5)), ("bij,kbj->kbi", (2, 3, 4), (5, 2, 4)), ("ii->i", (4, 4)), ("ij->ji", (3, 4)), ("ij->j", (3, 4)),
        ("i,j->ij", (3,), (4,)), ("ij,j->ij", (3, 4), (4,)), ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)), ("...ij,jk->...ik", (2, 3, 4), (4, 5)),
        ("iij,jk->ik", (3, 3, 4), (4, 2)), ("ij,jk->ik", (0, 4), (4, 3)), ("ij,kl->ijkl", (2, 3), (1, 4)),
    ):  # fmt: skip
        same(backline.einsum, equation, *(numbers(s, dtype, i) for i, s in enumerate(shapes)), times=2)  # type: ignore[arg-type, misc]  # the number of operands varies
    a = there(numbers((4, 4)))
    choice = backline.explain(backline.einsum, "ij,jk,k->i", a, a, there(numbers((4,))))
    assert choice.library == "mlx" and choice.problem.device == "mps"


def test_arrays_that_nothing_is_written_to() -> None:
    a = there(numbers((3, 3)))
    with pytest.raises(BadType, match="values that nothing is written to"):
        linalg.vector_norm(a, out=there(np.zeros((), np.float32)))
    with pytest.raises(BadType, match="nothing is written to arrays of MLX"):
        F.batch_norm(a, there(np.zeros(3, np.float32)), None, training=True)
    same(F.batch_norm, numbers((3, 3)), None, None, training=True, times=4)
    x = numbers((5, 4))
    for dim in (None, 0, ()):
        assert np.array_equal(back(fft.fftshift(there(x), dim)), fft.fftshift(x, dim))
        assert np.array_equal(back(fft.ifftshift(there(x), dim)), fft.ifftshift(x, dim))


def test_products_of_vectors_and_what_is_made_of_products() -> None:
    for call in (
        (backline.inner, numbers((3, 4)), numbers((2, 4), seed=1)), (backline.kron, numbers((2, 3)), numbers((3, 2), seed=1)),
        (linalg.vecdot, numbers((3, 4)), numbers((4,), seed=1)), (linalg.cross, numbers((2, 3)), numbers((2, 3), seed=1)),
        (backline.cross, numbers((3, 2)), numbers((3, 2), seed=1)), (linalg.diagonal, numbers((2, 3, 4))),
        (backline.diagonal, numbers((3, 4))), (backline.trace, numbers((3, 4))), (linalg.vander, numbers((2, 3))),
        (backline.vander, numbers((3,))), (backline.addbmm, numbers((2, 2)), numbers((3, 2, 4), seed=1), numbers((3, 4, 2), seed=2)),
        (linalg.tensorinv, numbers((2, 3, 6)), 2), (linalg.tensorsolve, numbers((6, 2, 3)), numbers((2, 3), seed=1), (0,)),
        (linalg.matrix_exp, numbers((2, 3, 3))), (linalg.matrix_exp, numbers((3, 3)) * np.float32(0.01)),
        (backline.cdist, numbers((4, 3)), numbers((5, 3), seed=1)), (backline.cdist, numbers((4, 3)), numbers((5, 3), seed=1), 3.0),
        (backline.cdist, numbers((4, 3)), numbers((5, 3), seed=1), 0), (backline.cdist, numbers((30, 3)), numbers((5, 3), seed=1)),
        (backline.stft, numbers((40,)), 8), (partial(backline.stft, pad_mode="circular", normalized=True, power=2), numbers((2, 40)), 8, 3, 6, numbers((6,), seed=1)),
        (partial(backline.stft, center=False, pad_mode="constant", power=1), numbers((2, 40)), 8),
        (G.conv_transpose2d_input, (1, 2, 4, 4), numbers((2, 3, 2, 2)), numbers((1, 3, 5, 5), seed=1)),
        (G.conv_transpose2d_weight, numbers((1, 2, 4, 4)), (2, 3, 2, 2), numbers((1, 3, 5, 5), seed=1)),
        (G.conv_transpose2d_input, (1, 2, 4, 4), numbers((2, 3, 2, 2)), numbers((1, 3, 8, 8), seed=1), 1, 0, 1, 1, 3),
        (G.conv_transpose2d_weight, numbers((1, 2, 4, 4)), (2, 3, 2, 2), numbers((1, 3, 8, 8), seed=1), 1, 0, 1, 1, 3),
    ):  # fmt: skip
        same(*call, times=20)


def test_what_is_computed_on_the_host_alone_says_so() -> None:
    with pytest.raises(BadType, match="computed on the host alone"):
        F.ctc_loss(there(numbers((3, 1, 4))), np.ones((1, 1), int), [3], [1])
    with pytest.raises(NoKernel, match="ldl_factor"):
        linalg.ldl_factor(there(numbers((3, 3))))
