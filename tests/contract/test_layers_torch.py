"""Layers beside PyTorch's own, where it is installed: the same arguments, results, gradients and geometry."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import backline
import backline.fft
from backline.errors import BacklineError
from backline.nn import functional as F
from backline.nn import grad as G
from support import clean, rng, seed

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("clean")]
assert clean and rng and seed  # fixtures: imported to be found by pytest


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def same(torch: Any, ours: Any, theirs: Any, *arrays: Any, gradient: Any = None, **keywords: Any) -> None:
    tensors = [torch.from_numpy(a).requires_grad_(gradient is not None) if isinstance(a, np.ndarray) else a for a in arrays]
    wanted = theirs(*tensors, **keywords)
    got = ours(*arrays, **keywords)
    np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=1e-12, atol=1e-12)
    if gradient is not None:
        g = np.random.default_rng(0).standard_normal(got.shape)
        wanted.backward(torch.from_numpy(g))
        np.testing.assert_allclose(gradient(got, g), tensors[0].grad.numpy(), rtol=1e-10, atol=1e-12)


def test_pointwise_and_softmax(torch: Any, rng: np.random.Generator) -> None:
    f, x = torch.nn.functional, rng.standard_normal((4, 5, 6)) * 3
    for name in ("silu", "tanh", "sigmoid"):
        same(torch, getattr(F, name), getattr(f, name), x)
    same(torch, F.relu, f.relu, x, gradient=lambda y, g: G.relu_input(x, g))
    for form in ("none", "tanh"):
        same(torch, F.gelu, f.gelu, x, approximate=form, gradient=lambda y, g, form=form: G.gelu_input(x, g, form))
    for dim in (0, -1):
        same(torch, F.softmax, f.softmax, x, dim, gradient=lambda y, g, dim=dim: G.softmax_input(y, g, dim))
        same(torch, F.log_softmax, f.log_softmax, x, dim, gradient=lambda y, g, dim=dim: G.log_softmax_input(y, g, dim))


def test_normalisation(torch: Any, rng: np.random.Generator) -> None:
    f, x = torch.nn.functional, rng.standard_normal((4, 5, 6)) + 2
    w, b = rng.standard_normal(6), rng.standard_normal(6)
    same(torch, F.layer_norm, f.layer_norm, x, (6,), w, b, gradient=lambda y, g: G.layer_norm_backward(x, g, (6,), w).input)
    w, b = rng.standard_normal(5), rng.standard_normal(5)
    ours, theirs = [np.zeros(5), np.ones(5)], [np.zeros(5), np.ones(5)]
    tensor = torch.from_numpy
    wanted = f.batch_norm(tensor(x), *map(tensor, theirs), tensor(w), tensor(b), True, 0.3)
    np.testing.assert_allclose(F.batch_norm(x, *ours, w, b, True, 0.3), wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_the_geometry_of_pooling(torch: Any, rng: np.random.Generator) -> None:
    """Every combination is refused by both, or the same."""
    f = torch.nn.functional
    x = rng.standard_normal((2, 3, 7, 6))
    for k, s, p, d, ceil in itertools.product((1, 2, 3, 5), (None, 1, 2, 3, 4), (0, 1, 2), (1, 2), (False, True)):
        if 2 * p > k and d > 1:
            continue  # torch compares padding with what a dilated kernel covers for signals only, we always
        calls: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any], Any]] = [
            (F.max_pool2d, f.max_pool2d, (k, s, p, d, ceil), {}, lambda y, g, a=(k, s, p, d, ceil): G.max_pool2d_input(x, g, *a)),
        ]
        for include, divisor in ((True, None), (False, None), (True, 3)) if d == 1 else ():
            more = {"count_include_pad": include, "divisor_override": divisor}
            calls.append(
                (F.avg_pool2d, f.avg_pool2d, (k, s, p, ceil), more,
                 lambda y, g, a=(k, s, p, ceil), m=more: G.avg_pool2d_input(x.shape, g, *a, **m))
            )  # fmt: skip
        for ours, theirs, args, keywords, gradient in calls:
            try:
                theirs(torch.from_numpy(x), *args, **keywords)
            except RuntimeError:
                with pytest.raises(BacklineError):
                    ours(x, *args, **keywords)
            else:
                same(torch, ours, theirs, x, *args, **keywords, gradient=gradient)
    for output in (1, 3, (2, 5), (None, 4), 9):
        same(
            torch, F.adaptive_avg_pool2d, f.adaptive_avg_pool2d, x, output,
            gradient=lambda y, g, o=output: G.adaptive_avg_pool2d_input(x.shape, g, o),
        )  # fmt: skip


def test_linear_layers(torch: Any, rng: np.random.Generator) -> None:
    f = torch.nn.functional
    x, y, w, b = (rng.standard_normal(s) for s in ((2, 3, 4), (2, 3, 5), (6, 4), (6,)))
    same(torch, F.linear, f.linear, x, w, b, gradient=lambda r, g: G.linear_input(w, g))
    same(torch, F.bilinear, f.bilinear, x, y, rng.standard_normal((6, 4, 5)), b)
    w, b = rng.standard_normal(4), np.array(0.5)
    for given in (x, x[0], x[0, 0]):
        same(torch, F.linear, f.linear, given, w)
        if given.ndim < 3:  # torch refuses a bias beside a matrix and one row
            same(torch, F.linear, f.linear, given[:1] if given.ndim == 1 else given[0], w[:1] if given.ndim == 1 else w, b)


def test_dtypes_of_softmax_and_of_norms(torch: Any, rng: np.random.Generator) -> None:
    names = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
    for shape in ((), (7,), (3, 4), (2, 3, 4), (2, 3, 4, 5)):
        x = rng.standard_normal(shape) * 4
        for own, (dtype, theirs) in itertools.product(("int64", "float32", "float64"), names.items()):
            a = np.asarray(x).astype(own)
            for op in ("softmax", "log_softmax"):
                with pytest.warns(UserWarning, match="Implicit dimension choice"):
                    wanted = getattr(torch.nn.functional, op)(torch.from_numpy(a), dtype=theirs).numpy()
                with pytest.warns(UserWarning, match="Implicit dimension choice"):
                    result = getattr(F, op)(a, dtype=dtype)
                assert result.dtype == wanted.dtype and result.shape == wanted.shape
                eps = float(np.finfo(dtype).eps)
                np.testing.assert_allclose(result.astype(float), wanted.astype(float), rtol=8 * eps, atol=8 * eps)
    for own, dtype in itertools.product((*names, "int32", "complex64"), (None, *names, "complex64", "complex128", "int32")):
        x = (rng.standard_normal((4, 5)) * 3).astype(own)
        more = {} if dtype is None else {"dtype": getattr(torch, dtype)}
        for op, orders in (("vector_norm", (0, 0.5, 1, 2, np.inf, -np.inf)), ("matrix_norm", ("fro", "nuc", 2, 1)), ("norm", (None, 2))):
            for order in orders:
                ours = getattr(backline.linalg, op)
                if own == "float16" and dtype in ("float32", "float64") and op != "vector_norm" and order in ("nuc", 2):
                    continue  # torch looks at what is given, and we at what it is converted to
                try:
                    wanted = getattr(torch.linalg, op)(torch.from_numpy(x), order, **more).numpy()
                except RuntimeError:
                    with pytest.raises(BacklineError):
                        ours(x, order, dtype=dtype)
                    continue
                result = ours(x, order, dtype=dtype)
                assert result.dtype == wanted.dtype
                np.testing.assert_allclose(float(result), float(wanted), rtol=8 * float(np.finfo(result.dtype).eps))


def test_places_of_pooling(torch: Any, rng: np.random.Generator) -> None:
    for _ in range(400):
        rank = int(rng.integers(1, 4))
        image, k, s, d = (tuple(rng.integers(low, high, rank).tolist()) for low, high in ((1, 8), (1, 5), (1, 5), (1, 4)))
        p = tuple(int(rng.integers(0, n // 2 + 1)) for n in k)
        x = rng.integers(-3, 4, (2, 3, *image)).astype(rng.choice(["float32", "float64", "float16", "int8", "int64", "uint8"]))
        if x.dtype.kind == "f":
            x[rng.random(x.shape) < 0.2] = np.nan
            x[rng.random(x.shape) < 0.2] = -np.inf
        args = (k, s, p, d, bool(rng.integers(2)), True)
        try:
            wanted = getattr(torch.nn.functional, f"max_pool{rank}d")(torch.from_numpy(x), *args)
        except RuntimeError:
            with pytest.raises(BacklineError):
                getattr(F, f"max_pool{rank}d")(x, *args)
            continue
        for ours, theirs in zip(getattr(F, f"max_pool{rank}d")(x, *args), wanted, strict=True):
            assert ours.dtype == theirs.numpy().dtype
            np.testing.assert_array_equal(ours, theirs.numpy())


def test_relu_of_integers(torch: Any, rng: np.random.Generator) -> None:
    for dtype in ("int8", "uint8", "int16", "int32", "int64"):
        x = rng.integers(0 if dtype[0] == "u" else -9, 9, (3, 4)).astype(dtype)
        np.testing.assert_array_equal(F.relu(x), torch.nn.functional.relu(torch.from_numpy(x)).numpy())


def test_appended_keys_and_the_causal_hint(torch: Any, rng: np.random.Generator) -> None:
    x, w, o = rng.standard_normal((5, 2, 4)), rng.standard_normal((12, 4)), rng.standard_normal((4, 4))
    k, v = rng.standard_normal((2, 4))
    mask = ~np.tri(5, dtype=bool)
    for shape in ((4,), (1, 4), (1, 1, 4)):
        for more in ({}, {"is_causal": True, "attn_mask": mask}, {"attn_mask": mask, "need_weights": False}, {"is_causal": True}):
            args = (x, x, x, 4, 2, w, None, k.reshape(shape), v.reshape(shape), False, 0.0, o, None)
            theirs = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args]
            asked = {n: torch.from_numpy(a) if isinstance(a, np.ndarray) else a for n, a in more.items()}
            try:
                wanted = torch.nn.functional.multi_head_attention_forward(*theirs, **asked)[0].numpy()
            except RuntimeError as error:
                with pytest.raises(BacklineError, match=str(error).partition(".")[0]):
                    F.multi_head_attention_forward(*args, **more)
            else:
                np.testing.assert_allclose(F.multi_head_attention_forward(*args, **more).output, wanted, rtol=1e-12, atol=1e-12)


def test_frequencies_and_empty(torch: Any) -> None:
    for n, d, dtype in itertools.product((1, 4, 7, 100), (1.0, 0.3), ("float16", "float32", "float64")):
        for name in ("fftfreq", "rfftfreq"):
            wanted = getattr(torch.fft, name)(n, d, dtype=getattr(torch, dtype)).numpy()
            result = getattr(backline.fft, name)(n, d, dtype=dtype)
            assert result.dtype == wanted.dtype
            np.testing.assert_allclose(result, wanted, rtol=2 * float(np.finfo(dtype).eps))
    for args, more in (((2, 3), {}), (((2, 3),), {}), (([2, 3],), {}), ((), {"size": (2, 3)}), ((0,), {}), (((),), {})):
        assert backline.empty(*args, **more).shape == tuple(torch.empty(*args, **more).shape)
    for args in ((), (2, 2.0), (-1,)):
        with pytest.raises((RuntimeError, TypeError)):
            torch.empty(*args)
        with pytest.raises(BacklineError):
            backline.empty(*args)
