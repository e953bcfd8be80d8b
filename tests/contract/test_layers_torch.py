"""Layers beside PyTorch's own, where it is installed: the same arguments, results, gradients and geometry."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

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
