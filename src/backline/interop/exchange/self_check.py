"""A few small operations of NumPy and SciPy, computed before and after an exchange: results that must agree."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .fourier_functions import SMALL, results_of_transforms

__all__ = ["disagreement", "results"]

SIZE = 48  # 48 x 48 x 48 is past every threshold for small products


def results() -> dict[str, Any]:
    """Returns results that do not depend on the library, but for rounding: no vectors whose sign is free."""
    random = np.random.default_rng(11)
    a = random.standard_normal((SIZE, SIZE))
    b = random.standard_normal((SIZE, 5))
    complex_a = a + 1j * random.standard_normal((SIZE, SIZE))
    symmetric, positive = a + a.T, np.einsum("ij,kj->ik", a, a) + SIZE * np.eye(SIZE)
    hermitian = positive + 1j * (a - a.T)
    found = {
        "float64 product": a @ np.ascontiguousarray(a[::-1]),
        "float32 product": a.astype(np.float32) @ a.astype(np.float32)[::-1].copy(),
        "complex128 product": complex_a @ complex_a,
        "product with its transpose": a @ a.T,
        "product with a vector": np.tile(a, (3, 3)) @ np.tile(b[:, 0], 3),
        "numpy.linalg.solve": np.linalg.solve(positive, b),
        "numpy.linalg.inv": np.linalg.inv(positive),
        "numpy.linalg.svd": np.linalg.svd(a, compute_uv=False),
        "numpy.linalg.eigvalsh": np.linalg.eigvalsh(symmetric),
        "numpy.linalg.cholesky": np.linalg.cholesky(positive),
        "numpy.linalg.qr": np.abs(np.linalg.qr(a, mode="r")),
        "numpy.linalg.lstsq": np.linalg.lstsq(np.vstack([positive, a]), np.vstack([b, b]), rcond=None)[0],
        "numpy.linalg.eigvals": np.sort(np.abs(np.linalg.eigvals(positive + a))),
        "complex numpy.linalg.solve": np.linalg.solve(hermitian, b),
        "complex numpy.linalg.svd": np.linalg.svd(complex_a, compute_uv=False),
        "complex numpy.linalg.eigvalsh": np.linalg.eigvalsh(hermitian),
        "complex numpy.linalg.cholesky": np.linalg.cholesky(hermitian),
        "complex numpy.linalg.qr": np.abs(np.linalg.qr(complex_a, mode="r")),
        "complex numpy.linalg.lstsq": np.linalg.lstsq(np.vstack([hermitian, complex_a]), np.vstack([b, b]), rcond=None)[0],
    }
    found |= results_of_transforms(random.standard_normal(SMALL))
    linalg = sys.modules.get("scipy.linalg")
    if linalg is not None and hasattr(linalg, "expm"):  # not while it is being imported
        found |= {
            "scipy.linalg.lu_factor": linalg.lu_factor(positive)[0],
            "scipy.linalg.svdvals": linalg.svdvals(complex_a),
            "scipy.linalg.eigvalsh": linalg.eigvalsh(symmetric),
            "scipy.linalg.expm": linalg.expm(a / SIZE),
        }
    return found


def disagreement(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Returns what differs by more than rounding, or an empty string.

    Examples
    --------
    >>> disagreement({"sum": np.ones(2)}, {"sum": np.ones(2)})
    ''
    >>> disagreement({"sum": np.ones(2)}, {"sum": np.array([1.0, 2.0])})
    'sum differs by 1 of 1'
    """
    for name, wanted in before.items():
        got = after.get(name)
        if got is None:
            continue
        scale = float(np.max(np.abs(wanted)))
        error = float(np.max(np.abs(got - wanted))) if got.shape == wanted.shape else np.inf
        bound = 1e4 * float(np.finfo(wanted.dtype).eps) * scale
        if not error <= bound:
            return f"{name} differs by {error:.3g} of {scale:.3g}"
    return ""
