"""Layers and equations for the rows: calls whose results on the device are compared with those of float64 on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import backline
from backline import switches
from backline.nn import functional as F
from backline.nn import grad as G
from backline.problems.neural_problem import ELEMENTARY
from gpu.arrays import normal, wide

__all__ = ["EQUATIONS", "LAYOUTS", "NASTY", "NEAR", "away", "host", "laid", "layers"]

NEAR = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 4e-6, "float64": 1e-13, "complex64": 4e-6, "complex128": 1e-13}
"""Largest distance of a result from that of float64, relative to it or to 1."""

LAYOUTS = ("C", "F", "backwards", "steps")

NASTY = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 80.0, -80.0, 1e-4, -6e-5, 20.0, -20.0]

EQUATIONS: tuple[tuple[Any, ...], ...] = (
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk->ki", (3, 4), (4, 5)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("ii", (4, 4)),
    ("bij,kbj->kbi", (2, 3, 4), (5, 2, 4)), ("ii->i", (4, 4)), ("ij->ji", (3, 4)), ("ij->j", (3, 4)), ("ij->", (3, 4)),
    ("i,i", (4,), (4,)), ("i,j->ij", (3,), (4,)), ("ij,ij->ij", (3, 4), (3, 4)), ("ij,j->ij", (3, 4), (4,)),
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 2)), ("...ij,jk->...ik", (2, 3, 4), (4, 5)), ("abcd,cdef->abef", (2, 3, 4, 2), (4, 2, 3, 2)),
    ("abcd,dbef->acef", (2, 3, 4, 2), (2, 3, 3, 2)), ("iij,jk->ik", (3, 3, 4), (4, 2)), ("ij,kl->ijkl", (2, 3), (1, 4)),
    ("ij,jk->ik", (0, 4), (4, 3)), ("i,i,i->i", (3,), (3,), (3,)),
)  # fmt: skip


def laid(xp: Any, array: Any, layout: str) -> Any:
    """An array of the host on the device, in one of the `LAYOUTS`."""
    if layout == "F":
        return xp.asarray(np.ascontiguousarray(array.T)).T
    if layout == "backwards":
        return xp.asarray(np.ascontiguousarray(array[..., ::-1]))[..., ::-1]
    if layout == "steps":
        return xp.asarray(np.repeat(array, 2, -1))[..., ::2]
    return xp.asarray(array)


def layers(dtype: str) -> Iterator[tuple[Any, ...]]:
    """Functions of layers with arguments for them: arrays of the host."""
    x, g = normal((3, 4, 6, 5), dtype, 1), normal((3, 4, 6, 5), dtype, 2)
    c, last = normal((4,), dtype, 3), normal((6, 5), dtype, 4)
    for name in ("relu", "silu", "tanh", "sigmoid"):
        yield getattr(F, name), x
        yield getattr(G, f"{name}_input"), x, g
    for name in ELEMENTARY:
        yield getattr(backline, name), np.abs(x) if name.startswith("log") else x
    for form in ("none", "tanh"):
        yield F.gelu, x, form
        yield G.gelu_input, x, g, form
    for dim in (1, -1):
        for name in ("softmax", "log_softmax"):
            yield getattr(F, name), x, dim
            yield getattr(G, f"{name}_input"), host(getattr(F, name), x, dim).astype(x.dtype), g, dim
    for more in ((), (last,), (None, last), (last, last)):
        yield F.layer_norm, x, (6, 5), *more
    yield F.rms_norm, x, (6, 5), last
    yield F.rms_norm, x, 5
    yield G.layer_norm_backward, x, g, (6, 5), last
    yield G.layer_norm_backward, x, g, 5
    yield F.batch_norm, x, c, abs(c), c, c
    yield F.batch_norm, x, None, None, c, c, True
    yield G.batch_norm_backward, x, g, c
    yield F.max_pool2d, x, 3, 2, 1
    yield F.max_pool2d, x, 1
    yield F.max_pool2d, x, 2, 2, 1, 2
    yield F.avg_pool2d, x, 3, 2, 1, True, False
    yield F.adaptive_avg_pool2d, x, (4, 3)
    pooled = normal((3, 4, 3, 3), dtype, 5)
    yield G.max_pool2d_input, x, pooled, 3, 2, 1
    yield G.max_pool2d_input, x, normal((3, 4, 3, 3), dtype, 6), 2, 2, 1, 2
    yield G.avg_pool2d_input, (3, 4, 6, 5), pooled, 3, 2, 1
    yield G.avg_pool2d_input, (3, 4, 6, 5), normal((3, 4, 4, 3), dtype, 8), 3, 2, 1, True, False
    yield G.adaptive_avg_pool2d_input, (3, 4, 6, 5), normal((3, 4, 4, 3), dtype, 7), (4, 3)
    yield G.linear_bias, x


def host(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns what a call comes to in float64 on the host."""
    with switches.scope({"only": ("numpy",)}):
        return function(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})


def _wide(value: Any) -> Any:
    return wide(value) if isinstance(value, np.ndarray) else value


def away(found: Any, expected: Any, dtype: str, what: str) -> float:
    """The largest distance of results from what is expected, in units of what is `NEAR`; NaN and infinities must be the same."""
    most = 0.0
    several = isinstance(expected, tuple)
    for got, want in zip(found if several else (found,), expected if several else (expected,), strict=True):
        assert got.shape == np.shape(want), f"{what}: shape {got.shape}, not {np.shape(want)}"
        there, want = wide(got), np.asarray(want)
        want = want.astype(there.dtype)
        with np.errstate(over="ignore"):  # what a half rounds to infinity
            rounded = want.astype(got.dtype).astype(there.dtype) if got.dtype.kind in "fV" else want
        assert np.array_equal(np.isnan(there), np.isnan(want)), f"{what}: NaN elsewhere"
        odd = ~np.isfinite(rounded)
        assert np.array_equal(there[odd], rounded[odd], equal_nan=True), f"{what}: infinities elsewhere"
        distance = np.abs(there[~odd] - want[~odd]) / (NEAR[dtype] * (1 + np.abs(want[~odd])))
        most = max(most, float(distance.max(initial=0.0)))
    return most
