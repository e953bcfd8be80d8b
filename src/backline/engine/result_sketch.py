"""Sketches of arrays: a few numbers by which the results of two runs are compared without keeping the arrays.

They are sums over magnitudes, so that results which differ in signs or phases alone, as singular vectors do, have the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .shadow_compare import on_host

__all__ = ["apart", "sketch"]

FREQUENCIES = (0.0, 0.61803398875, 2.2360679775)  # of the weights: no period of an array matches them


def sketch(values: Any) -> list[list[float]]:
    """Returns the norm of each array and weighted sums of its magnitudes; other values have none.

    Examples
    --------
    >>> x = np.array([3.0, -4.0])
    >>> sketch(x) == sketch(-x), sketch(x)[0][0], sketch("text")
    (True, 5.0, [])
    """
    found = []
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if value is None or isinstance(value, str):
            continue
        array = np.asarray(on_host(value))
        if array.dtype.kind not in "biufcV" or (array.dtype.kind == "V" and array.dtype.name != "bfloat16"):
            continue
        with np.errstate(all="ignore"):
            size = np.abs(array.astype(np.complex128) if array.dtype.kind == "c" else array.astype(np.float64)).reshape(-1)
            places = np.arange(size.size)
            sums = [float(np.cos(places * frequency) @ size) for frequency in FREQUENCIES]
            found.append([float(np.sqrt(size @ size)), *sums])
    return found


def apart(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Returns how far apart the arrays of two sketches are, relative to their norms; infinite where they do not match.

    Examples
    --------
    >>> apart(sketch(np.ones(4)), sketch(np.ones(4))), apart(sketch(np.ones(4)), sketch(2 * np.ones(4))) > 0.4
    (0.0, True)
    """
    if len(first) != len(second):
        return math.inf
    worst = 0.0
    for one, other in zip(first, second, strict=True):
        size = max(abs(one[0]), abs(other[0]))
        for a, b in zip(one, other, strict=True):
            if a == b or (math.isnan(a) and math.isnan(b)):
                continue
            if not (math.isfinite(a) and math.isfinite(b)):
                return math.inf
            worst = max(worst, abs(a - b) / size if size else math.inf)
    return worst
