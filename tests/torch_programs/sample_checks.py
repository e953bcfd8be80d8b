"""Decides whether Backline's result of a sample agrees with torch's, by value or, where results are not unique, by what they must satisfy."""

from __future__ import annotations

from typing import Any

import numpy as np

# Operations whose values are random or not written at all: shape and dtype are compared.
DROPS = ("empty", "nn.functional.dropout")

# Relative to the largest value of the result.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "complex64": 2e-5, "float64": 1e-12, "complex128": 1e-12}


def made_of(value: Any) -> list[np.ndarray[Any, Any]]:
    """Returns the arrays in nested tuples, lists and dictionaries."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [array for each in value for array in made_of(each)] if isinstance(value, (list, tuple)) else []


def agrees(operation: str, wanted: Any, got: Any, positional: Any, keywords: dict[str, Any]) -> tuple[str, str]:
    """Returns "equal", "wrong" or "other dtype", and what differs."""
    ours, theirs = (list(each) if isinstance(each, (tuple, list)) else [each] for each in (got, wanted))
    if len(ours) != len(theirs):
        return "wrong", f"{len(ours)} results instead of {len(theirs)}"
    ours, theirs = [np.asarray(each) for each in ours], [np.asarray(each) for each in theirs]
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            return "wrong", f"shape {a.shape} instead of {b.shape}"
    if (random := keywords.get("dropout_p", 0) or 0) > 0 or operation in DROPS or _drops(operation, positional, keywords):
        equal, detail = True, f"random {random}"
    else:
        equal, detail = _equal(operation, ours, theirs, positional, keywords)
    if not equal:
        return "wrong", detail
    for a, b in zip(ours, theirs, strict=True):
        if a.dtype != b.dtype:
            return "other dtype", f"{a.dtype} instead of {b.dtype}"
    return "equal", ""


def _drops(operation: str, positional: Any, keywords: dict[str, Any]) -> bool:
    """True if attention drops weights: its probability is the eleventh argument, and training is the default."""
    return operation.endswith("multi_head_attention_forward") and positional[10] > 0 and keywords.get("training", True)


def _equal(operation: str, ours: Any, theirs: Any, positional: Any, keywords: dict[str, Any]) -> tuple[bool, str]:
    check = _CHECKS.get(operation)
    if check is not None and all(each.size for each in theirs):
        return check(ours, theirs, positional, keywords)
    for a, b in zip(ours, theirs, strict=True):
        if not close(a, b, many=16 if operation.startswith(("linalg", "cholesky")) else 1):
            return False, difference(a, b)
    return True, ""


def _kind(dtype: np.dtype[Any]) -> str:
    return dtype.name


def close(a: Any, b: Any, many: float = 1) -> bool:
    """True if two arrays differ by rounding only; ``many`` is a factor of what is allowed."""
    a, b = np.asarray(a), np.asarray(b)
    names = [_kind(each.dtype) for each in (a, b)]
    wide = [each.astype(np.complex128 if "complex" in name else np.float64) for each, name in zip((a, b), names, strict=True)]
    if not any(name in TOLERANCE for name in names):
        return np.array_equal(a, b)
    tolerance = many * max(TOLERANCE.get(name, 0) for name in names)
    finite = np.abs(wide[1][np.isfinite(wide[1])])
    scale = finite.max() if finite.size else 0
    return np.allclose(*wide, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def distance(a: Any, b: Any) -> float:
    """Returns how far two arrays are apart, relative to the largest value: infinity where one is finite and the other is not."""
    with np.errstate(all="ignore"):
        wide = [np.asarray(each).astype(np.complex128) for each in (a, b)]
        finite = np.isfinite(wide[0])
        if (finite != np.isfinite(wide[1])).any():
            return np.inf
        largest = np.abs(wide[1][finite]).max(initial=0)
        return float(np.abs(wide[0] - wide[1])[finite].max(initial=0) / (largest or 1))


def difference(a: Any, b: Any) -> str:
    """Returns the distance of two arrays as text."""
    return f"differs by {distance(a, b):.0e} in {np.asarray(b).dtype}"


def _adjoint(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


def _all(*checks: tuple[bool, str]) -> tuple[bool, str]:
    return next((check for check in checks if not check[0]), (True, ""))


def _near(what: str, a: Any, b: Any, many: float = 64) -> tuple[bool, str]:
    return close(a, b, many), f"{what}: {difference(a, b)}"


def _svd(ours: Any, theirs: Any, positional: Any, keywords: Any) -> tuple[bool, str]:
    u, s, vh = ours
    k = s.shape[-1]
    return _all(
        _near("singular values", s, theirs[1]),
        _near("product", (u[..., :k] * s[..., None, :]) @ vh[..., :k, :], positional[0]),
        _near("u", _adjoint(u) @ u, np.broadcast_to(np.eye(u.shape[-1], dtype=u.dtype), (*u.shape[:-2], *[u.shape[-1]] * 2))),
        _near("vh", vh @ _adjoint(vh), np.broadcast_to(np.eye(vh.shape[-2], dtype=u.dtype), (*vh.shape[:-2], *[vh.shape[-2]] * 2))),
    )


def _hermitian(a: Any, lower: bool) -> Any:
    triangle = np.tril(a, -1) if lower else np.triu(a, 1)
    diagonal = np.real(np.diagonal(a, axis1=-2, axis2=-1))
    return triangle + _adjoint(triangle) + np.eye(a.shape[-1], dtype=a.dtype) * diagonal[..., None, :]


def _eigh(ours: Any, theirs: Any, positional: Any, keywords: Any) -> tuple[bool, str]:
    values, vectors = ours
    lower = (positional[1] if len(positional) > 1 else keywords.get("UPLO", "L")).upper() == "L"
    a = _hermitian(positional[0], lower)
    return _all(_near("eigenvalues", values, theirs[0]), _near("product", a @ vectors, vectors * values[..., None, :]))


def _sorted(values: Any) -> Any:
    keys = np.round(values.real, 4) + 1j * np.round(values.imag, 4)
    return np.take_along_axis(values, np.argsort(keys, axis=-1), -1)


def _eigvals(ours: Any, theirs: Any, positional: Any, keywords: Any) -> tuple[bool, str]:
    return _near("eigenvalues", _sorted(ours[0]), _sorted(theirs[0]), 256)


def _eig(ours: Any, theirs: Any, positional: Any, keywords: Any) -> tuple[bool, str]:
    values, vectors = ours
    return _all(_eigvals(ours, theirs, positional, keywords), _near("product", positional[0] @ vectors, vectors * values[..., None, :]))


def _qr(ours: Any, theirs: Any, positional: Any, keywords: Any) -> tuple[bool, str]:
    q, r = ours
    return _all(
        _near("r", np.abs(r), np.abs(theirs[1])),
        _near("product", q @ r, positional[0]) if q.size else (True, ""),
        _near("q", _adjoint(q) @ q, _adjoint(theirs[0]) @ theirs[0]) if q.size else (True, ""),
    )


_CHECKS = {"linalg.svd": _svd, "linalg.eigh": _eigh, "linalg.eig": _eig, "linalg.eigvals": _eigvals, "linalg.qr": _qr}
