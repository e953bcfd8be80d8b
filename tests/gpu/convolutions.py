"""Convolutions for the rows: arrays on the device, what they come to on the host, and cuDNN's plans of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.engine import plan_caches as engine_plans
from backline.engine.choose import planner
from backline.engine.tuning import record_store
from backline.libraries.cuda.cudnn import graph_cache
from backline.libraries.cuda.cudnn.graphs import Plans
from backline.nn import functional, grad
from gpu.arrays import error, normal, wide

__all__ = ["CLOSE", "COARSE", "FINE", "IEEE", "ON", "OPS", "PRECISION", "ROUNDED", "TF32", "Convolution", "Size", "anew", "images", "in_use",
           "same_bits"]  # fmt: skip

Size = Callable[[Any, Any], Any]
OPS = ("forward", "input", "weight")
PRECISION = "cudnn.conv.fp32_precision"
IEEE, TF32 = {PRECISION: "ieee"}, {PRECISION: "tf32"}
ON = {"cudnn.benchmark": True, "cudnn.benchmark_limit": 0}
FINE, COARSE = 2e-6, 1e-3  # of float32, summed as it stands; by tf32
CLOSE = 2e-5  # of float32 by whatever plan: Winograd's and Fourier's ways lose some bits, tf32 ten times as many
ROUNDED = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float64": 1e-12}  # of a result that is stored so


@cache
def hosts(
    shape: tuple[int, ...], weight: tuple[int, ...], dtype: str, given: tuple[tuple[str, Any], ...]
) -> tuple[Any, Any, Any]:
    """Images, weights, and the gradient of the result."""
    x, w = normal(shape, dtype, 1), normal(weight, dtype, 2)
    return x, w, normal(expected("forward", shape, weight, dtype, given).shape, dtype, 3)


@cache
def expected(op: str, shape: tuple[int, ...], weight: tuple[int, ...], dtype: str, given: tuple[tuple[str, Any], ...]) -> Any:
    """Returns what comes of them in float64, by NumPy."""
    f = of(op, len(shape) - 2)
    with switches.scope({"only": ("numpy",)}):
        if op == "forward":
            return f(wide(normal(shape, dtype, 1)), wide(normal(weight, dtype, 2)), **dict(given))
        x, w, dy = map(wide, hosts(shape, weight, dtype, given))
        return f(shape, w, dy, **dict(given)) if op == "input" else f(x, weight, dy, **dict(given))


def of(op: str, rank: int) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(functional, f"conv{rank}d") if op == "forward" else getattr(grad, f"conv{rank}d_{op}")
    return found


class Convolution:
    """A convolution and its gradients on the device, and what they come to in float64 on the host.

    Parameters
    ----------
    xp
        CuPy.
    shape
        Of the images.
    weight
        Shape of the weights.
    dtype, last
        Of all arrays; whether channels are last.
    **given
        Stride, padding, dilation, groups.
    """

    def __init__(
        self, xp: Any, shape: tuple[int, ...], weight: tuple[int, ...], dtype: str = "float32", last: bool = False, **given: Any
    ) -> None:
        self.given, self.rank = given, len(shape) - 2
        self.key = (shape, weight, dtype, tuple(sorted(given.items())))
        x, w, dy = hosts(*self.key)
        self.shapes = {"forward": shape, "input": weight, "weight": dy.shape}
        self.x, self.w, self.dy = (self._put(xp, each, last) for each in (x, w, dy))

    @staticmethod
    def _put(xp: Any, host: Any, last: bool) -> Any:
        if not last:
            return xp.asarray(host)
        axes = (0, *range(2, host.ndim), 1)
        return xp.asarray(np.ascontiguousarray(host.transpose(axes))).transpose((0, host.ndim - 1, *range(1, host.ndim - 1)))

    def run(self, op: str) -> Any:
        """The result, on the device."""
        f = of(op, self.rank)
        if op == "forward":
            return f(self.x, self.w, **self.given)
        if op == "input":
            return f(self.x.shape, self.w, self.dy, **self.given)
        return f(self.x, self.w.shape, self.dy, **self.given)

    def error(self, op: str) -> float:
        expected(op, *self.key)  # first: what ran last is asked for afterwards
        return self.off(self.run(op), op)

    def off(self, found: Any, op: str) -> float:
        """Returns how far a result is from what it should be."""
        return error(found, expected(op, *self.key))

    def plans(self, op: str) -> Plans:
        """cuDNN's plans of a run of it under the switches that hold."""
        self.run(op)
        choice = backline.explain()
        assert choice.library == "cudnn", choice.candidates
        found: Plans = libraries.get("cudnn").prepare(choice.problem, choice.chosen, planner).function.run.plans
        return found


@contextmanager
def anew(values: dict[str, Any] | None = None) -> Iterator[None]:
    """Switches as given, and nothing kept of what was planned or timed before; nor afterwards."""

    def forget() -> None:
        record_store.reload()
        graph_cache._kept.clear()
        graph_cache._failed.clear()
        engine_plans.clear()

    forget()
    try:
        with switches.scope(values or {}):
            yield
    finally:
        forget()


def in_use(plans: Plans) -> str:
    """Name of the plan that runs."""
    return plans.name(plans.ready[0])


def same_bits(arrays: list[Any]) -> bool:
    hosts = [np.ascontiguousarray(each.get()) for each in arrays]
    return all(each.tobytes() == hosts[0].tobytes() for each in hosts)


@pytest.fixture
def images(xp: Any, size: Size) -> Callable[..., Convolution]:
    """Makes convolutions of 3 x 3, of images that are small where NumPy does the work."""

    def make(dtype: str = "float32", last: bool = False, **given: Any) -> Convolution:
        n, c, f, s = size((8, 32, 64, 28), (2, 4, 8, 7))
        groups = given.get("groups", 1)
        return Convolution(xp, (n, c, s, s), (f, c // groups, 3, 3), dtype, last, **{"padding": 1, **given})

    return make
