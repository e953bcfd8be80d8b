"""Helpers of the tests of grouped products: dtypes with their rounding, and products of groups in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

# dtype -> rounding of a result, and of each term of its sum.
ACCURACY = {
    "float16": (2.0**-11, 2.0**-22),
    "bfloat16": (2.0**-8, 2.0**-22),
    "float32": (2.0**-24, 2.0**-22),
    "float64": (0.0, 2.0**-51),
}


def reference(form: str, a: Any, b: Any, ends: list[int]) -> Any:
    """The products of groups that end at `ends`: of rows of a, of columns of b, or of terms, which are columns of a and rows of b."""
    parts = [slice(start, end) for start, end in pairwise([0, *ends])]
    if form == "terms":
        return np.stack([a[:, part] @ b[part] for part in parts])
    result = np.zeros((a.shape[-2], b.shape[-1]))
    for i, part in enumerate(parts):
        if form == "rows":
            result[part] = a[part] @ b[i]
        else:
            result[:, part] = a[i] @ b[:, part]
    return result


def agree(result: Any, form: str, a: Any, b: Any, ends: list[int]) -> None:
    """Asserts that a result on the host is that of float64 within rounding, which grows with the number of terms."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    wanted, size = reference(form, x, y, ends), reference(form, np.abs(x), np.abs(y), ends)
    rounding, sums = ACCURACY[a.dtype.name]
    assert result.dtype == a.dtype and result.shape == wanted.shape
    smallest = 2.0**-24 * (a.dtype.name == "float16")
    assert (np.abs(result.astype(np.float64) - wanted) <= rounding * np.abs(wanted) + (a.shape[-1] + 4) * sums * size + smallest).all()
