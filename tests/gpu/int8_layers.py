"""Linear layers with int8 weights, and inputs for them, whose results on a device are to have the host's bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from backline import quantized
from backline.backends import quantized as settings

__all__ = ["ENGINES", "nasty", "packed", "sizes"]

ENGINES = ("reference", "fbgemm", "qnnpack", "x86", "onednn")
WEIGHTS = {"reference": ("int8", "uint8")}


def packed(rng: np.random.Generator, engine: str, outs: int, terms: int, *, bias: bool = True, dtype: str = "int8") -> Any:
    """A layer by an engine; with a scale, and of uint8 a zero point, for each output where the engine takes them."""
    limits = np.iinfo(dtype)
    integers = rng.integers(limits.min, limits.max, (outs, terms), dtype, endpoint=True)
    axis = None if engine == "qnnpack" else 0
    count = () if axis is None else (outs,)
    zeros = rng.integers(limits.min, limits.max, count, endpoint=True) if dtype == "uint8" else 0
    added = rng.standard_normal(outs).astype(np.float32) if bias else None
    with settings.flags(engine=engine):
        return quantized.linear_prepack(quantized.QArray(integers, rng.uniform(0.001, 0.1, count), zeros, axis), added)


def sizes() -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes of inputs, and outputs of a layer."""
    yield from (((64,), 8), ((5, 33), 3), ((2, 3, 1), 1), ((17, 300), 65), ((3, 1500), 70), ((9, 16), 16), ((40, 7), 4))


def nasty(rng: np.random.Generator, shape: tuple[int, ...]) -> Iterator[Any]:
    """Inputs with numbers of every size and sign, and with elements half-way between two integers."""
    usual = rng.standard_normal(shape).astype(np.float32)
    yield from (usual, np.abs(usual), -np.abs(usual), np.zeros(shape, np.float32), np.full(shape, -0.0, np.float32))
    for scale in (1e-3, 1e3, 1e-7, 1e30):
        yield usual * np.float32(scale)
    halves = (rng.integers(-256, 256, shape) / 2).astype(np.float32)
    halves.flat[0], halves.flat[-1] = -128, 127
    yield halves
    far = usual.copy()
    far.flat[0] = 1e6
    yield far
