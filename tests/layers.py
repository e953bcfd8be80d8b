"""Helpers of the tests of layers: images of every layout, a result by every library, and comparison in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from backline import libraries
from backline.libraries.reference.rounding import STORED
from support import THREADS, algorithms, arrays_in, dtype_of, misaligned, problem_of

Array = Any
DTYPES = ("float16", "bfloat16", "float32", "float64")
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def _channels_last(x: Array) -> Array:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if x.ndim > 2 else x.copy()


def _stepped(x: Array) -> Array:
    base = np.full([2 * n for n in x.shape], 7, x.dtype)
    y = base[tuple(slice(None, None, 2) for _ in x.shape)]
    y[...] = x
    return y


def _backwards(x: Array) -> Array:
    turned = tuple(slice(None, None, -1) for _ in x.shape)
    return np.ascontiguousarray(x[turned])[turned]


LAYOUTS: dict[str, Any] = {
    "C": lambda x: x.copy(),
    "channels last": _channels_last,
    "F": lambda x: np.array(x, order="F"),
    "stepped": _stepped,
    "backwards": _backwards,
    "misaligned": misaligned,
}


def draw(rng: np.random.Generator, shape: tuple[int, ...], name: str, scale: float = 2.0) -> Array:
    return (rng.standard_normal(shape) * scale).astype(dtype_of(name))


def wide(x: Array | None) -> Any:
    return None if x is None else x.astype(np.float64)


def by_each(op: str, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Name and result of every algorithm of every library that is there."""
    problem = problem_of(op, *args, **kwargs)
    found = 0
    for name in libraries.names():
        library = libraries.get(name)
        if not library.available() or (library.families and problem.family not in library.families):
            continue
        for algorithm in algorithms(name, problem, THREADS):
            if algorithm.precision in STORED:  # reduced, on request only
                continue
            found += 1
            yield f"{op} by {algorithm.key}", library.prepare(problem, algorithm)(*arrays_in(args, kwargs))
    assert found, f"nothing runs {problem}"


def assert_near(result: Array, wanted: Array, name: str, what: str, ulps: float = 4, scale: float = 0.0) -> None:
    """|result - wanted| within so many units of the wanted value or of `scale`; what is not finite must be the same."""
    got = np.asarray(result)
    assert got.dtype == dtype_of(name), f"{what}: dtype {got.dtype}"
    assert got.shape == wanted.shape, f"{what}: shape {got.shape}, not {wanted.shape}"
    got = got.astype(np.float64)
    if name == "float16":
        wanted = np.where(np.abs(wanted) > 65519.9, np.copysign(np.inf, wanted), wanted)
    special = ~np.isfinite(wanted)
    np.testing.assert_array_equal(got[special], wanted[special], err_msg=what)
    least = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}[name]
    with np.errstate(all="ignore"):
        wrong = ~special & ~(np.abs(got - wanted) <= ulps * EPS[name] * np.maximum(np.abs(wanted), scale) + 2 * least)
    assert not wrong.any(), f"{what}: {got[wrong][:3]}, not {wanted[wrong][:3]}"


def order(x: Array) -> list[int]:
    """Axes that have more than one element, by their order in memory."""
    return sorted((i for i in range(x.ndim) if x.shape[i] > 1), key=lambda i: -abs(x.strides[i]))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


FORMULAS: dict[str, Any] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "silu": lambda x: x * _sigmoid(x),
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
}


def exact(name: str, x: Array) -> Array:
    return np.vectorize(FORMULAS[name], otypes=[np.float64])(wide(x))
