"""2:4 sparse matrices by NumPy: what pruning, compression and products mean. For references, not for speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...errors import BadValue, refuse_overlap
from ...problems.sparse_problem import GROUP, SparseProblem
from ..base import Algorithm, Refusal

__all__ = ["algorithms", "plan"]

Array = Any
KEPT = 2


def algorithms(problem: SparseProblem) -> Iterator[Algorithm | Refusal]:
    """One, on one thread and in one order."""
    if problem.parameter("alg_id", 0) or problem.parameter("split_k", 1) != 1:
        yield Refusal("numpy", "sparse", "the call asks for one of cuSPARSELt's ways; NumPy has one of its own")
        return
    inside = "" if problem.dtype.name in ("float64", "int8") or problem.op != "sparse.matmul" else "f64"
    yield Algorithm(library="numpy", name="sparse", precision=inside, level="threads", basis="construction")


def plan(p: SparseProblem) -> Callable[..., Any]:
    """The function of the arrays."""
    return {"prune_2_4": _prune, "compress": _compress, "matmul": _matmul, "search": _search}[p.op.removeprefix("sparse.")](p)


def _prune(p: SparseProblem) -> Callable[..., Any]:
    def run(x: Array) -> Array:
        groups = np.ascontiguousarray(x).reshape(p.m, p.k // GROUP, GROUP)
        with np.errstate(all="ignore"):
            size = np.abs(groups.astype(np.int16 if p.dtype.name == "int8" else np.float64))
        # NaN last in order, as the largest; the sort is stable, and of equal ones the first has to come last.
        order = np.argsort(size[..., ::-1], axis=-1, kind="stable")[..., KEPT:]
        result = np.zeros_like(groups)
        where = GROUP - 1 - order
        np.put_along_axis(result, where, np.take_along_axis(groups, where, -1), -1)
        return result.reshape(p.m, p.k)

    return run


def _compress(p: SparseProblem) -> Callable[..., Any]:
    def run(x: Array) -> tuple[Array, Array]:
        groups = np.ascontiguousarray(x).reshape(p.m, p.k // GROUP, GROUP)
        full = groups != 0
        if p.parameter("check"):
            wrong = np.argwhere(np.count_nonzero(full, axis=-1) > KEPT)
            if len(wrong):
                row, group = (int(i) for i in wrong[0])
                raise BadValue(
                    f"compress: input is not 2:4 sparse: in row {row} more than two of columns {GROUP * group} to"
                    f" {GROUP * group + GROUP - 1} are not zero",
                    remedy="prune_2_4(input) first",
                )
        # Those that are not zero first, as they stand; a group with fewer keeps the first of its zeros beside them.
        where = np.sort(np.argsort(~full, axis=-1, kind="stable")[..., :KEPT], axis=-1)
        values = np.take_along_axis(groups, where, -1).reshape(p.m, p.k // KEPT)
        bits = where[..., 0] | where[..., 1] << 2
        if bits.shape[1] % 2:
            bits = np.concatenate([bits, np.zeros((p.m, 1), bits.dtype)], 1)
        return values, (bits[:, ::2] | bits[:, 1::2] << 4).astype(np.uint8)

    return run


def places(metadata: Array, k: int) -> Array:
    """The column of each value."""
    rows, bytes_of_row = metadata.shape
    bits = np.stack([metadata & 15, metadata >> 4], -1).reshape(rows, 2 * bytes_of_row)[:, : k // GROUP].astype(np.int64)
    inside = np.stack([bits & 3, bits >> 2], -1)
    return (inside + GROUP * np.arange(k // GROUP)[:, None]).reshape(rows, k // KEPT)


def _matmul(p: SparseProblem) -> Callable[..., Any]:
    out = p.index("out")
    wide = np.int64 if p.dtype.name == "int8" else np.float64
    order = [o.role for o in p.operands]
    first, second = (i for i, role in enumerate(order) if role == "part")
    at = order.index("b")

    def run(*arrays: Array) -> Array:
        values, metadata, b = arrays[first].astype(wide), arrays[second], arrays[at].astype(wide)
        if out is not None and any(np.may_share_memory(arrays[out], a) for i, a in enumerate(arrays) if i != out):
            for i, a in enumerate(arrays):
                if i != out:
                    refuse_overlap(arrays[out], a)
        columns = places(metadata, p.k)
        made = np.empty((p.m, p.n), wide)
        with np.errstate(all="ignore"):  # overflow and NaN show in the result
            for row in range(p.m):  # what was left out takes no part, whatever it would be multiplied by
                np.matmul(values[row], b[columns[row]], out=made[row])
            result = made.astype(p.result_dtype)
        if out is None:
            return result
        arrays[out][...] = result
        return arrays[out]

    return run


def _search(p: SparseProblem) -> Callable[..., Any]:
    return lambda *arrays: (0, 1, 2)
