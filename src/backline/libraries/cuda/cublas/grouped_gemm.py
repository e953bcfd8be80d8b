"""Products of groups by cuBLAS, all in one call: its grouped gemm takes the sizes of each from the host, and tables of addresses.

As in `library`, what is decided is decided by functions of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .... import switches
from ....problems import Operand
from ....problems.grouped_problem import COLUMNS, ROWS, TERMS, GroupedProblem, group_bounds
from ...base import Algorithm, Refusal
from ..common import bindings
from ..common.binding_library import GemmWay, listed_ways
from ..common.device_plan import at
from ..common.gemm_layout import DTYPES, LARGEST, N, T
from ..common.streams import Handles

__all__ = ["Factor", "GroupedGemm", "factor", "groups_of", "listed", "ways"]

IN_F32, IN_F64, IN_TF32 = 68, 70, 77
SINCE = (12, 5)  # the version of cuBLAS that has it for these dtypes
ALIGNMENT = 16  # bytes, of every matrix: its kernels load whole vectors
OF = {"float16": "fp16", "bfloat16": "bf16"}


def ways(dtype: str) -> tuple[GemmWay, ...]:
    """Returns the ways there are for a dtype; the compute type says the precision.

    >>> [way.name for way in ways("float32")]
    ['gemm_grouped_tf32', 'gemm_grouped']
    """
    if dtype == "float32":
        return GemmWay("gemm_grouped_tf32", IN_TF32, "tf32", (), (8, 0)), GemmWay("gemm_grouped", IN_F32)
    if dtype == "float64":
        return (GemmWay("gemm_grouped", IN_F64),)
    kind = OF[dtype]
    return (GemmWay("gemm_grouped", IN_F32, "f32 accumulation", (f"{kind} reduction", f"{kind} split-k")),)


def listed(p: GroupedProblem, having: tuple[int, int], version: Any = None) -> Iterator[Algorithm | Refusal]:
    """Lists the Algorithms and Refusals for a Problem on a device; `version` as the library tells it."""
    reason = _cannot(p, version)
    if reason:
        yield Refusal("cublas", "gemm_grouped", reason)
    else:
        yield from listed_ways("cublas", ways(p.dtype.name), having, "all groups in one call; it waits for the offsets")


def _cannot(p: GroupedProblem, version: Any) -> str:
    parts = tuple(int(n) for n in str(version).split(".")[:2]) if version else SINCE
    if parts < SINCE:
        return f"products of groups take cuBLAS {'.'.join(map(str, SINCE))}; this is {version}"
    if p.packed:
        return "it keeps no packed weights"
    return f"a size is above {LARGEST}" if max(p.m, p.n, p.k) > LARGEST else ""


@dataclass(frozen=True, slots=True)
class Factor:
    """One of the operands, as the routine reads its matrices: for it the transposes of those of the call."""

    op: int  # what it applies: 0 none, 1 transpose
    ld: int  # leading dimension, in elements
    # rows, cols: bytes from one row, and one column, to the next; item: from one matrix to the next.
    rows: int
    cols: int
    item: int
    copied: bool  # whether it is copied first, into C order


def factor(o: Operand) -> Factor:
    """Returns how an operand of matrices is read; one that lies otherwise, or that is not aligned, is copied."""
    size = o.dtype.itemsize
    item, rows, cols = (0, *o.strides)[-3:]
    shape = o.shape[-2:]

    def direct(step: int, along: int, number: int, length: int) -> int:
        """The leading dimension where elements are contiguous `along` one axis of a `length`, 0 where they are not."""
        step = length * size if number == 1 else step
        fits = (along == size or length == 1) and step >= length * size and step % ALIGNMENT == 0 and step // size <= LARGEST
        return step // size if fits and item % ALIGNMENT == 0 else 0

    by_rows, by_columns = direct(rows, cols, shape[0], shape[1]), direct(cols, rows, shape[1], shape[0])
    if by_rows:
        return Factor(N, by_rows, by_rows * size, size, item, False)
    if by_columns:
        return Factor(T, by_columns, size, by_columns * size, item, False)
    whole = shape[0] * shape[1] * size if len(o.shape) == 3 else 0
    return Factor(N, max(shape[1], 1), shape[1] * size, size, whole, True)


def groups_of(
    p: GroupedProblem, bounds: list[tuple[int, int]], a: Factor, b: Factor
) -> list[tuple[int, int, int, int, int, int]]:  # fmt: skip
    """Returns sizes m, n, k of each group with anything to compute, and the bytes at which its a, its b and its result begin."""
    size, found = p.dtype.itemsize, []
    for i, (start, end) in enumerate(bounds):
        length = end - start
        if p.grouped == ROWS:
            row = length, p.n, p.k, start * a.rows, i * b.item, start * p.n * size
        elif p.grouped == COLUMNS:
            row = p.m, length, p.k, i * a.item, start * b.cols, start * size
        else:
            row = p.m, p.n, length, start * a.cols, start * b.rows, i * p.m * p.n * size
        if 0 not in row[:3]:
            found.append(row)
    return found


class GroupedGemm:
    """The function of a Plan; `one_by_one` computes a call whose parts are not aligned as the routine wants them."""

    def __init__(
        self, p: GroupedProblem, way: GemmWay, module: Any, device: int, workspace: int, handles: Handles,
        one_by_one: Callable[..., Any],
    ) -> None:  # fmt: skip
        self.problem, self.way, self.module, self.device = p, way, module, device
        self.workspace, self.handles, self.one_by_one = workspace, handles, one_by_one
        self.own = bool(switches.current()["deterministic"])
        self.index = {o.role: i for i, o in enumerate(p.operands)}
        self.a, self.b = (factor(p.operands[self.index[role]]) for role in "ab")
        self.scale = np.dtype(np.float64 if way.compute == IN_F64 else np.float32)

    def __call__(self, *arrays: Any) -> Any:
        p, cupy = self.problem, bindings.cupy()
        a, b, offs = (arrays[self.index[role]] for role in ("a", "b", "offs"))
        bounds = group_bounds(offs.get().tolist(), p.length)
        first, second = (cupy.ascontiguousarray(x) if f.copied else x for x, f in ((a, self.a), (b, self.b)))
        found = groups_of(p, bounds, self.a, self.b)
        ld = p.n * p.dtype.itemsize
        begins = [at(first) | at(second), ld if p.m > 1 else 0, *(part for row in found for part in row[3:])]
        if any(part % ALIGNMENT for part in begins):
            return self.one_by_one(*arrays)
        written = sum(m * n for m, n, *_ in found) == (p.m * p.n * (p.groups if p.grouped == TERMS else 1))
        result = (cupy.empty if written else cupy.zeros)(p.result, p.dtype)
        if found:
            self._run(found, at(first), at(second), at(result), cupy)
        return result

    def _run(self, found: list[tuple[int, int, int, int, int, int]], a: int, b: int, c: int, cupy: Any) -> None:
        p, count, kind = self.problem, len(found), DTYPES[self.problem.dtype.name]
        ms, ns, ks = ([row[i] for row in found] for i in range(3))
        starts = np.array([row[3:] for row in found], np.int64).T + np.array([[a], [b], [c]], np.int64)
        tables = cupy.asarray(np.ascontiguousarray(starts))  # back in the pool at the end, for later work of this stream only
        of_a, of_b, of_c = (at(tables, i) for i in range(3))
        ones, zeros = np.ones(count, self.scale), np.zeros(count, self.scale)
        handle = self.handles.ready(self.module, self.device, self.workspace, self.own)
        # The transpose of the result: what the routine takes first is b.
        self.module.gemm_grouped_batched_ex(
            handle, [self.b.op] * count, [self.a.op] * count, ns, ms, ks, ones.ctypes.data, of_b, kind, [self.b.ld] * count, of_a,
            kind, [self.a.ld] * count, zeros.ctypes.data, of_c, kind, [p.n] * count, count, [1] * count, self.way.compute,
        )  # fmt: skip
