"""Singular values and vectors by each of cuSOLVER's methods, made to give the same: U, the values, and the adjoint of V.

Some methods give V and some its adjoint, and some take no matrix with fewer rows than columns: they are given its adjoint.
"""

from __future__ import annotations

from typing import Any

__all__ = ["singular"]


def singular(s: Any, way: str, a: Any, vectors: bool, full: bool) -> tuple[Any, Any, Any, Any]:
    """U, singular values, adjoint of V and info of finite matrices (items, m, n), by the routines `s`.

    `way` is "gesvdj", "gesvdj_batched", "gesvd" or "gesvda"; MAGMA's is "gesdd". Without `vectors`, U and V are of no meaning;
    `full`: whether all of their columns are wanted.
    """
    items, m, n = a.shape
    if way in ("gesvd", "gesvda") and m < n:
        left, values, right, info = singular(s, way, a.swapaxes(1, 2).conj(), vectors, full)
        u, vh = (x if x is None else x.swapaxes(1, 2).conj() for x in (right, left))
        return u, values, vh, info
    k = min(m, n)
    columns, rows = (m, n) if full or way == "gesvdj_batched" else (k, k)
    stack, info = s.stack(a), s.infos(items)
    values = s.empty(items, k, dtype=s.real)
    if way in ("gesvd", "gesdd"):
        u = s.empty(items, columns, m) if vectors else None
        vt = s.empty(items, n, rows) if vectors else None
        getattr(s, way)(("A" if full else "S") if vectors else "N", stack, values, u, vt, info)
        u, vt = (x if x is None else x.swapaxes(1, 2) for x in (u, vt))
        return u, values, vt, info
    u, v = s.empty(items, columns, m), s.empty(items, rows, n)
    if way == "gesvdj":
        s.gesvdj(vectors, not full, stack, values, u, v, info)
    elif way == "gesvdj_batched":
        s.gesvdj_batched(vectors, stack, values, u, v, info)
        if not full:
            u, v = u[:, :k], v[:, :k]
    else:
        s.gesvda(vectors, stack, values, u, v, info)
    # A stack of V's columns is V.T row by row.
    return u.swapaxes(1, 2), values, v.conj() if s.complex else v, info
