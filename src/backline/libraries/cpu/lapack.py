"""Dense linear algebra through LAPACK's Fortran interface, for every library that has it.

LAPACK works on columns. Where the mathematics allows, a row-major matrix is handed over as it lies and the transposed
problem is solved (inverse, SVD, symmetric eigenproblems, Cholesky, solve); LU, QR, least squares and general
eigenproblems take a transposing copy. Results come in the order that costs nothing: strides say which.

References: LAPACK Users' Guide, third edition; the argument lists are those of the reference implementation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ...errors import BadValue, LinAlgError
from ...problems import operand
from ...problems.layout import matrix_layout
from ...problems.linalg import LinalgProblem
from ...problems.results import QR, SVD, CholeskyEx, Eig, Eigh, InvEx, Lstsq, LUFactor, LUFactorEx, SolveEx
from .. import team
from ..base import Algorithm, Refusal
from ..build import Builder, Pointer
from .cblas import LETTER, THREAD_FLOPS, BlasTraits

__all__ = ["linalg_algorithms", "prepare_linalg"]

NOT_FINITE, NOT_IN_RANGE = -9999, -9998
# Below this many operations one factorisation gains nothing by threads: its panels are too narrow to share (n of about 130).
SHARED_FLOPS = 2e7

# Operation -> algorithms, each with the LAPACK functions it calls ({t} the type's letter, {h} ge or he style names below).
ROUTINES: dict[str, dict[str, tuple[str, ...]]] = {
    "linalg.cholesky": {"potrf": ("{t}potrf",)},
    "linalg.lu_factor": {"getrf": ("{t}getrf",)},
    "linalg.lu_solve": {"getrs": ("{t}getrs",)},
    "linalg.inv": {"getri": ("{t}getrf", "{t}getri"), "gesv": ("{t}gesv",)},
    "linalg.solve": {"getrs": ("{t}getrf", "{t}getrs")},
    "linalg.qr": {"geqrf": ("{t}geqrf", "{q}gqr")},
    "linalg.eigh": {"syevd": ("{s}evd",)},
    "linalg.eigvalsh": {"syevd": ("{s}evd",), "syev": ("{s}ev",)},
    "linalg.eig": {"geev": ("{t}geev",)},
    "linalg.eigvals": {"geev": ("{t}geev",)},
    "linalg.svd": {"gesdd": ("{t}gesdd",), "gesvd": ("{t}gesvd",)},
    "linalg.svdvals": {"gesdd": ("{t}gesdd",), "gesvd": ("{t}gesvd",)},
    "linalg.lstsq": {d: ("{t}" + d,) for d in ("gelsy", "gels", "gelsd", "gelss")},
    "cholesky_solve": {"potrs": ("{t}potrs",)},
    "cholesky_inverse": {"potri": ("{t}potri",)},
    "linalg.solve_triangular": {"trsm": ()},
}


LU_INSIDE = ("linalg.lu_factor", "linalg.inv", "linalg.solve")


def _name(pattern: str, dtype: np.dtype[Any]) -> str:
    t = LETTER[dtype.name]
    complex_ = dtype.kind == "c"
    return pattern.format(t=t, s=t + ("he" if complex_ else "sy"), q=t + ("un" if complex_ else "or"))


def linalg_algorithms(blas: BlasTraits, problem: LinalgProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    """Every way of this LAPACK for an operation."""
    if problem.op not in ROUTINES:
        yield Refusal(blas.name, "", f"it has no {problem.op}")
        return
    if problem.dtype.name not in LETTER:
        yield Refusal(blas.name, "", f"LAPACK has no {problem.dtype.name}")
        return
    if problem.empty:
        yield Refusal(blas.name, "", "an empty problem needs no LAPACK")
        return
    limit = blas.native.max_integer
    if max(problem.m, problem.n, problem.k) > limit or (
        blas.native.int_size == 4 and problem.m * problem.n > 8 * limit
    ):
        yield Refusal(blas.name, "", f"sizes past {limit} need 64-bit integers, this library has 32-bit ones")
        return
    driver = problem.parameter("driver")
    if driver is None and problem.op == "linalg.lstsq":
        driver = "gelsy"
    pool = blas.lu_pool if problem.op in LU_INSIDE else blas.pool
    for name, routines in ROUTINES[problem.op].items():
        if driver is not None and name != driver:
            yield Refusal(blas.name, name, f"the call asks for driver={driver!r}")
            continue
        missing = [r for r in (_name(x, problem.dtype) for x in routines) if not blas.native.lapack(r)]
        if missing:
            yield Refusal(blas.name, name, f"the library exports no {missing[0]}")
            continue
        if threads > 1 and problem.flops >= THREAD_FLOPS:
            if problem.flops >= SHARED_FLOPS * problem.items:
                yield Algorithm(blas.name, name, threads, True, "", "run", blas.run_basis, pool)
            if problem.items > 1 and blas.pool:
                yield Algorithm(
                    blas.name, f"{name}_items", team.items_threads(threads), True, "", "threads", "construction", blas.pool,
                    "items of the batch divided among the threads",
                )  # fmt: skip
        yield Algorithm(blas.name, name, 1, False, "", "threads", blas.run_basis)


def prepare_linalg(blas: BlasTraits, p: LinalgProblem, algorithm: Algorithm, again: Callable[[str], Any]) -> Any:
    """The PreparedCall of an Algorithm that `linalg_algorithms` listed.

    `again` prepares the same Problem by another algorithm: the second try when an iteration does not converge.
    """
    name = algorithm.name.removesuffix("_items")
    divided = name != algorithm.name
    if divided:
        team.items_run()
    w = _Writer(blas, p, name)
    results, wrap = getattr(w, p.op.rpartition(".")[2])()
    w.finish()
    on_info: Any = None
    if p.op in SPREADS:
        on_info = partial(_perhaps_singular, blas, p, wrap)
    elif p.parameter("check", True) and w.b.info_buffer:
        second = partial(again, "gesvd") if name == "gesdd" and p.parameter("driver") is None else None
        on_info = partial(_failed, p.op, second)
    gated = p.flops >= blas.gated_from(vector=True)
    return w.b.plan(
        *results,
        count=p.items,
        threads=algorithm.threads if divided else 1,
        wrap=wrap,
        on_info=on_info,
        gate=blas.gate if gated else None,
        gate_threads=1 if divided else algorithm.threads,
        release_gil=gated,
    )


MEANING = {
    "linalg.cholesky": "the leading minor of order {i} is not positive definite",
    "cholesky_inverse": "element {i} of the diagonal is zero, the factor is singular",
    "linalg.eigh": "the eigenvalues did not converge ({i} off-diagonal elements are left)",
    "linalg.eigvalsh": "the eigenvalues did not converge ({i} off-diagonal elements are left)",
    "linalg.eig": "the eigenvalues did not converge (the last {i} are missing)",
    "linalg.eigvals": "the eigenvalues did not converge (the last {i} are missing)",
    "linalg.svd": "the singular values did not converge",
    "linalg.svdvals": "the singular values did not converge",
    "linalg.lstsq": "the matrix has no full rank (element {i} of the triangular factor is zero), or the SVD did not converge",
}
BAD_PIVOTS = "a pivot is not one of the rows, which are counted from 1"
SINGULAR = "the matrix is singular (element {i} of the diagonal of U is zero)"


# LU of NaN or infinity spreads them; whether LAPACK then finds a zero among the pivots depends on the library.
SPREADS = ("linalg.lu_factor", "linalg.inv", "linalg.solve")


def _perhaps_singular(
    blas: BlasTraits, p: LinalgProblem, wrap: Any, plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]
) -> Any:
    """Where an info is not 0: items that are not finite get NaN and info 0, the others are singular."""
    index = p.index("a")
    assert index is not None
    a = np.broadcast_to(arrays[index], (*p.batch, p.m, p.n)).reshape(-1, p.m, p.n)
    spoilt = ~np.isfinite(a).all(axis=(1, 2)) & (np.array(infos) != 0)
    left = [0 if s else _zero_pivot(blas, x, info) if info else 0 for s, x, info in zip(spoilt, a, infos, strict=True)]
    check = p.parameter("check", True)
    if check and any(left):
        return _failed(p.op, None, plan, left, arrays, results)
    parts = list(results)
    wrong = spoilt.reshape(p.batch)
    parts[0][wrong] = np.nan
    if not check:
        if isinstance(parts[-1], np.ndarray):
            parts[-1][...] = np.reshape(left, p.batch)
        else:
            parts[-1] = np.int32(left[0])
    return wrap(*parts) if wrap else parts[0]


def _zero_pivot(blas: BlasTraits, a: Any, info: int) -> int:
    """Which pivot of A is zero, where `info` may be that of its transpose: the memory order must not show in results."""
    a = np.array(a, order="F")
    problem = LinalgProblem("linalg.lu_factor", (operand("a", a),), (("check", True),), "linalg", m=len(a), n=a.shape[1])
    w = _Writer(blas, problem, "getrf")
    results, _ = w.lu_factor()
    w.finish()
    found: list[int] = []  # stays empty where rounding lets A's own LU through
    w.b.plan(*results, on_info=lambda plan, infos, arrays, made: found.extend(infos))(a)
    return found[0] if found else info


def _failed(op: str, second: Any, plan: Any, infos: list[int], arrays: tuple[Any, ...], results: tuple[Any, ...]) -> Any:
    item, info = next((i, x) for i, x in enumerate(infos) if x)
    where = f"item {item} of the batch: " if len(infos) > 1 else ""
    if info == NOT_FINITE:
        who = "A or B" if op == "linalg.lstsq" else "the matrix"
        raise LinAlgError(f"{op}: {where}{who} holds NaN or infinity")
    if info == NOT_IN_RANGE:
        raise BadValue(f"{op}: {where}{BAD_PIVOTS}", remedy="pivots as lu_factor returns them")
    if info < 0:
        raise RuntimeError(f"{op}: {where}LAPACK calls argument {-info} illegal; this is an error in backline")
    if second is not None:
        return second()(*arrays)
    raise LinAlgError(f"{op}: {where}{MEANING.get(op, SINGULAR).format(i=info)}")


class _Writer:
    """Writes the steps of one operation down. Each method returns (results, what wraps them)."""

    def __init__(self, blas: BlasTraits, p: LinalgProblem, routine: str) -> None:
        self.blas, self.p, self.routine = blas, p, routine
        self.native = blas.native
        self.b = Builder(p, self.native.int_size)
        self.dtype = p.dtype
        self.size = p.dtype.itemsize
        self.complex = p.dtype.kind == "c"
        self.real = np.dtype(p.dtype.char.lower())
        self.check = p.parameter("check", True)
        self.later: list[Callable[[], None]] = []
        self.outs = 0
        self.targets: dict[int, Pointer] = {}  # temporary buffer -> the output the caller gave

    # parts ------------------------------------------------------------------------------------------------------

    def lapack(self, pattern: str, *arguments: Any) -> None:
        """Call a routine: integers and characters by reference, hidden lengths of the characters at the end."""
        ints: list[Any] = []
        letters = 0
        for a in arguments:
            if isinstance(a, str):
                ints.append(self.b.character(a))
                letters += 1
            else:
                ints.append(self.b.integer(a) if isinstance(a, int) else a)
        self.b.call(self.native.lapack(_name(pattern, self.dtype)), ints + [1] * letters)

    def workspace(self, pattern: str, *arguments: Any, integers: bool = False) -> tuple[int, int]:
        """Ask a routine for its optimal workspace: elements of `work`, and of `iwork` where it has one.

        Arguments are as for `lapack`; None stands for an array, "work", "lwork", "iwork", "liwork" for what is asked.
        """
        work, iwork = np.zeros(2, self.dtype), np.zeros(2, np.int64)
        values: list[Any] = []
        letters = 0
        for a in arguments:
            if a == "work":
                values.append(ctypes.c_void_p(work.ctypes.data))
            elif a == "iwork":
                values.append(ctypes.c_void_p(iwork.ctypes.data))
            elif a in ("lwork", "liwork"):
                values.append(ctypes.byref(self.native.integer(-1)))
            elif a is None:
                values.append(ctypes.byref((ctypes.c_int64 * 2)()))  # of its own: queries write to rwork and to info
            elif isinstance(a, str):
                values.append(ctypes.c_char_p(a.encode()))
                letters += 1
            else:
                values.append(ctypes.byref(self.native.integer(a)))
        values += [ctypes.c_size_t(1)] * letters
        self.native.call(self.native.lapack(_name(pattern, self.dtype)), *values)
        wanted = float(np.real(work[0]))
        # A float32 cannot hold every integer past 2^24: what it shows may be rounded down.
        elements = int(wanted) + (int(wanted * 2.0**-23) + 1 if self.real.itemsize == 4 and wanted > 2**24 else 0)
        first = iwork.view(np.int32)[0] if self.native.int_size == 4 else iwork[0]
        return max(elements, 1), max(int(first), 1)

    def source(self, role: str, core: int = 2) -> tuple[Pointer, tuple[int, int], str]:
        """An operand with its matrix strides and layout; a vector counts as a column."""
        o = self.p.get(role)
        assert o is not None
        pointer = self.b.argument(role, self.p.where(role, core))
        if core == 1:
            return pointer, (o.strides[-1], self.size), "F" if o.strides[-1] == self.size else "X"
        strides = (o.strides[-2], o.strides[-1])
        return pointer, strides, matrix_layout(o.shape[-2:], strides, self.size, o.aligned)[0]

    def packed(self, shape: tuple[int, int], order: str) -> tuple[int, int]:
        """Strides in bytes of a packed matrix."""
        return (self.size, shape[0] * self.size) if order == "F" else (shape[1] * self.size, self.size)

    def result(self, shape: tuple[int, ...], order: str = "C", dtype: Any = None) -> Pointer:
        """The next result: new memory, or workspace that is copied to the output the caller gave."""
        dtype = np.dtype(dtype or self.dtype)
        core = 1
        for n in shape:
            core *= n
        nbytes = core * dtype.itemsize
        role = f"out{self.outs}"
        self.outs += 1
        o = self.p.get(role)
        if o is not None:
            rows, cols = (1, *shape) if len(shape) == 1 else shape if shape else (1, 1)
            given = (0, o.strides[-1]) if len(shape) == 1 else (o.strides[-2], o.strides[-1]) if shape else (0, 0)
            ours = (dtype.itemsize, rows * dtype.itemsize) if order == "F" else (cols * dtype.itemsize, dtype.itemsize)
            temporary = self.b.work(nbytes)
            target = self.b.argument(role, self.p.where(role, len(shape)))
            self.later.append(lambda: self.b.copy((rows, cols), temporary, ours, target, given, dtype.itemsize))
            self.targets[temporary[0]] = target
            return temporary
        batch = self.p.batch
        if order == "C" or len(shape) < 2:
            return self.b.result(dtype, (*batch, *shape), "C", nbytes)
        strides = [dtype.itemsize, shape[0] * dtype.itemsize]
        step = nbytes
        for n in reversed(batch):
            strides.insert(0, step)
            step *= n
        return self.b.result(dtype, (*batch, *shape), strides, nbytes)

    def finish(self) -> None:
        for step in self.later:
            step()

    def returned(self, *pointers: Pointer) -> list[Pointer]:
        """The pointers with given outputs in the place of their temporaries."""
        return [self.targets.get(p[0], p) for p in pointers]

    def load(self, role: str, shape: tuple[int, int], order: str, target: Pointer, ld: int = 0, core: int = 2) -> None:
        """Copy an operand into packed columns (order F) or rows (order C); `ld` widens the columns."""
        pointer, strides, _ = self.source(role, core)
        to = self.packed(shape, order)
        if ld:
            to = (self.size, ld * self.size)
        self.b.copy(shape, pointer, strides, target, to, self.size)

    def info(self) -> Pointer:
        return self.b.info(self.p.items)

    def with_info(self, pointers: list[Pointer], plain: Any, ex: Any) -> tuple[list[Pointer], Any]:
        """Results, and info as an int32 array behind them if the operation reports it instead of raising."""
        if self.check:
            return self.returned(*pointers), plain
        info = self.result((), dtype=np.int32)
        wide = self.native.int_size == 8
        self.later.insert(
            0, lambda: self.b.copy((1, 1), self.info(), (8, 8), info, (4, 4), ("int64", "int32") if wide else 4)
        )
        return self.returned(*pointers, info), ex

    def finite(self, count: int, data: Pointer, value: int = NOT_FINITE) -> None:
        self.b.finite((1, count), (0, self.size), self.dtype, data, self.info(), value)

    def own_order(self, role: str = "a") -> str:
        """The order in which copying the matrix is cheapest: its own."""
        o = self.p.get(role)
        return "F" if o is not None and len(o.shape) > 1 and o.layout() == "F" else "C"

    # factorisations ---------------------------------------------------------------------------------------------

    def cholesky(self) -> tuple[list[Pointer], Any]:
        n, upper = self.p.n, self.p.parameter("upper", False)
        order = self.own_order()
        factor = self.result((n, n), order)
        self.load("a", (n, n), order, factor)
        # Before the check, since what the other triangle holds must not matter; potrf leaves the zeros alone.
        mode = "zero_lower" if upper else "zero_upper"
        self.b.triangle(mode, (n, n), self.packed((n, n), order), self.dtype, factor)
        self.finite(n * n, factor, 1)  # as if the first minor had failed: LAPACKs differ in what they make of NaN
        self.lapack("{t}potrf", "U" if upper == (order == "F") else "L", n, factor, n, self.info())
        return self.with_info([factor], None, CholeskyEx)

    def pivots(self, count: int) -> tuple[Pointer, Pointer]:
        """Where LAPACK writes the interchanges, and the int32 result made of them."""
        out = self.result((count,), dtype=np.int32)
        if self.native.int_size == 4:
            return out, out
        wide = self.b.work(8 * count)
        self.later.insert(0, lambda: self.b.copy((1, count), wide, (0, 8), out, (0, 4), ("int64", "int32")))
        return wide, out

    def lu_factor(self) -> tuple[list[Pointer], Any]:
        m, n = self.p.m, self.p.n
        lu = self.result((m, n), "F")
        native_pivots, pivots = self.pivots(min(m, n))
        self.load("a", (m, n), "F", lu)
        self.lapack("{t}getrf", m, n, lu, m, native_pivots, self.info())
        return self.with_info([lu, pivots], LUFactor, LUFactorEx)

    def inv(self) -> tuple[list[Pointer], Any]:
        n = self.p.n
        order = self.own_order()  # the inverse of the transpose is the transpose of the inverse
        out = self.result((n, n), order)
        pivots = self.b.work(self.native.int_size * n)
        if self.routine == "gesv":
            a = self.b.work(n * n * self.size)
            self.load("a", (n, n), order, a)
            zeros = self.b.constant(bytes(self.size))
            self.b.copy((n, n), zeros, (0, 0), out, self.packed((n, n), order), self.size)
            self.b.triangle("unit_diagonal", (n, n), self.packed((n, n), order), self.dtype, out)
            self.lapack("{t}gesv", n, n, a, n, pivots, out, n, self.info())
            return self.with_info([out], None, InvEx)
        self.load("a", (n, n), order, out)
        lwork, _ = self.workspace("{t}getri", n, None, n, None, "work", "lwork", None)
        work = self.b.work(lwork * self.size)
        self.lapack("{t}getrf", n, n, out, n, pivots, self.info())
        # getri looks for zeros on the diagonal itself and reports the same index.
        self.lapack("{t}getri", n, out, n, pivots, work, lwork, self.info())
        return self.with_info([out], None, InvEx)

    # solving ----------------------------------------------------------------------------------------------------

    def right_sides(self, rows: int, order: str) -> tuple[Pointer, int]:
        """The right-hand sides, copied to where the solution will be; and how many there are."""
        vector = self.p.parameter("vector", False)
        x = self.result((rows,) if vector else (rows, self.p.k) if order == "F" else (self.p.k, rows), order)
        shape = (rows, self.p.k) if order == "F" else (self.p.k, rows)
        self.load("b", shape, order, x, core=1 if vector else 2)
        return x, self.p.k

    def solve(self) -> tuple[list[Pointer], Any]:
        n, left = self.p.n, self.p.parameter("left", True)
        a_order = self.own_order()
        lu = self.b.work(n * n * self.size)
        pivots = self.b.work(self.native.int_size * n)
        self.load("a", (n, n), a_order, lu)
        # X A = B is A^T X^T = B^T, and rows of B are columns of B^T.
        x, k = self.right_sides(n, "F" if left else "C")
        transposed = (a_order == "C") == left
        self.lapack("{t}getrf", n, n, lu, n, pivots, self.info())
        spare = self.b.work(8)
        self.lapack("{t}getrs", "T" if transposed else "N", n, k, lu, n, pivots, x, n, spare)
        return self.with_info([x], None, SolveEx)

    def lu_solve(self) -> tuple[list[Pointer], Any]:
        n, left, adjoint = self.p.n, self.p.parameter("left", True), self.p.parameter("adjoint", False)
        lu = self.b.work(n * n * self.size)
        self.load("a", (n, n), "F", lu)
        o = self.p.get("p")
        assert o is not None
        given = self.b.argument("p", self.p.where("p", 1))
        pivots = self.b.work(self.native.int_size * n)
        # getrs swaps rows by these numbers without looking at them: any other would reach memory that is not ours.
        self.b.within(n, o.strides[-1], 1, n, given, self.info(), NOT_IN_RANGE)
        kind = ("int32", "int64") if self.native.int_size == 8 else 4
        self.b.copy((1, n), given, (0, o.strides[-1]), pivots, (0, self.native.int_size), kind)
        x, k = self.right_sides(n, "F" if left else "C")
        # X A^H = B is conj(A) X^T = B^T: conjugate what goes in and what comes out.
        conjugate = self.complex and adjoint and not left
        packed = (n * self.size, self.size)
        if conjugate:
            self.b.copy((k, n), x, packed, x, packed, ("conj", self.size))
        trans = ("C" if adjoint else "N") if left else ("N" if adjoint else "T")
        self.lapack("{t}getrs", trans, n, k, lu, n, pivots, x, n, self.info())
        if conjugate:
            self.b.copy((k, n), x, packed, x, packed, ("conj", self.size))
        return self.returned(x), None

    def cholesky_solve(self) -> tuple[list[Pointer], Any]:
        n, upper = self.p.n, self.p.parameter("upper", False)
        factor = self.b.work(n * n * self.size)
        self.load("a", (n, n), "F", factor)
        x, k = self.right_sides(n, "F")
        self.lapack("{t}potrs", "U" if upper else "L", n, k, factor, n, x, n, self.info())
        return self.returned(x), None

    def cholesky_inverse(self) -> tuple[list[Pointer], Any]:
        n, upper = self.p.n, self.p.parameter("upper", False)
        order = self.own_order()
        out = self.result((n, n), order)
        self.load("a", (n, n), order, out)
        self.lapack("{t}potri", "U" if upper == (order == "F") else "L", n, out, n, self.info())
        mode = "mirror_upper" if upper else "mirror_lower"
        self.b.triangle(mode, (n, n), self.packed((n, n), order), self.dtype, out)
        return self.returned(out), None

    def solve_triangular(self) -> tuple[list[Pointer], Any]:
        p, n, k = self.p, self.p.n, self.p.k
        left, upper = p.parameter("left", True), p.parameter("upper", False)
        a, strides, layout = self.source("a")
        o = p.get("a")
        assert o is not None
        ld = matrix_layout(o.shape[-2:], strides, self.size, o.aligned)[1]
        if layout == "X":
            target = self.b.work(n * n * self.size)
            self.b.copy((n, n), a, strides, target, self.packed((n, n), "C"), self.size)
            a, layout, ld = target, "C", n
        order = self.own_order("b")
        shape = (n, k) if left else (k, n)
        x = self.result(shape, order)
        self.load("b", shape, order, x)
        # A in the other order is its transpose, with the other triangle.
        flip = layout != order
        head = [
            101 if order == "C" else 102, 141 if left else 142, 121 if upper != flip else 122, 112 if flip else 111,
            132 if p.parameter("unitriangular", False) else 131, *shape,
        ]  # fmt: skip
        tail = [a, ld, x, shape[1] if order == "C" else shape[0]]
        function = self.native.cblas(LETTER[self.dtype.name] + "trsm")
        if self.complex:
            self.b.call(function, [*head, self.b.number(1, self.dtype), *tail])
        else:
            bits = np.array([1, 0], self.dtype).view(np.int32 if self.size == 4 else np.int64)
            self.b.call(function, [*head, *tail], [int(bits[0])])
        return self.returned(x), None

    def lstsq(self) -> tuple[list[Pointer], Any]:
        p, m, n, k, driver = self.p, self.p.m, self.p.n, self.p.k, self.routine
        rows, least = max(m, n), min(m, n)
        a = self.b.work(m * n * self.size)
        x = self.result((rows, k), "F")
        rank = self.result((), dtype=np.int32 if self.native.int_size == 4 else np.int64)
        s = self.result((least,), dtype=self.real)
        self.load("a", (m, n), "F", a)
        self.load("b", (m, k), "F", x, ld=rows, core=1 if p.parameter("vector", False) else 2)
        # For every driver: MKL prints a complaint and stops at NaN, others compute on, and ranks lose their meaning.
        self.finite(m * n, a)
        self.b.finite((k, m), (rows * self.size, self.size), self.dtype, x, self.info(), NOT_FINITE)
        rcond = self.b.constant(np.array(p.parameter("rcond"), self.real).tobytes())
        # The largest of the three drivers' documented sizes (gelsd's, for up to 32 levels of its tree).
        rsize = 10 * rows + 2 * 25 * rows + 8 * 32 * rows + 3 * 25 * k + max(26**2, rows * (1 + k) + 2 * k)
        rwork = [self.b.work(self.real.itemsize * rsize)] if self.complex else []
        spare = [None] if self.complex else []
        if driver == "gels":
            lwork, _ = self.workspace("{t}gels", "N", m, n, k, None, m, None, rows, "work", "lwork", None)
            self.lapack("{t}gels", "N", m, n, k, a, m, x, rows, self.b.work(lwork * self.size), lwork, self.info())
        elif driver == "gelsy":
            jpvt = self.b.work(self.native.int_size * n)
            zeros = self.b.constant(bytes(8))
            self.b.copy((1, n), zeros, (0, 0), jpvt, (0, self.native.int_size), self.native.int_size)
            lwork, _ = self.workspace(
                "{t}gelsy", m, n, k, None, m, None, rows, None, None, None, "work", "lwork", *spare, None
            )
            self.lapack(
                "{t}gelsy", m, n, k, a, m, x, rows, jpvt, rcond, rank, self.b.work(lwork * self.size), lwork, *rwork, self.info()
            )
        else:
            extra: list[Any] = []
            asked: list[Any] = list(spare)
            if driver == "gelsd":
                extra = [self.b.work(self.native.int_size * (3 * least * 32 + 11 * least + 64))]
                asked.append("iwork")
            lwork, _ = self.workspace(
                "{t}" + driver, m, n, k, None, m, None, rows, None, None, None, "work", "lwork", *asked, None
            )
            self.lapack(
                "{t}" + driver, m, n, k, a, m, x, rows, s, rcond, rank, self.b.work(lwork * self.size), lwork, *rwork, *extra,
                self.info(),
            )  # fmt: skip
        return self.returned(x, rank, s), partial(_least_squares, driver, m, n, p.parameter("vector", False))

    # QR, eigenvalues, singular values ---------------------------------------------------------------------------

    def qr(self) -> tuple[list[Pointer], Any]:
        m, n, mode = self.p.m, self.p.n, self.p.parameter("mode", "reduced")
        k = min(m, n)
        columns = m if mode == "complete" else k
        rows = m if mode == "complete" else k
        if mode == "r":
            factored = self.b.work(m * n * self.size)
        else:
            q = self.result((m, columns), "F")
            factored = q if columns >= n else self.b.work(m * n * self.size)
        r = self.result((rows, n), "F")
        tau = self.b.work(k * self.size)
        self.load("a", (m, n), "F", factored)
        lwork, _ = self.workspace("{t}geqrf", m, n, None, m, None, "work", "lwork", None)
        if mode != "r":
            lwork = max(lwork, self.workspace("{q}gqr", m, columns, k, None, m, None, "work", "lwork", None)[0])
        work = self.b.work(lwork * self.size)
        self.lapack("{t}geqrf", m, n, factored, m, tau, work, lwork, self.info())
        column = (self.size, m * self.size)
        self.b.copy((rows, n), factored, column, r, self.packed((rows, n), "F"), self.size)
        self.b.triangle("zero_lower", (rows, n), self.packed((rows, n), "F"), self.dtype, r)
        if mode == "r":
            return self.returned(r), partial(_only_r, self.dtype)
        if factored != q:
            self.b.copy((m, k), factored, column, q, column, self.size)
        self.lapack("{q}gqr", m, columns, k, q, m, tau, work, lwork, self.info())
        return self.returned(q, r), QR

    def symmetric(self, vectors: bool) -> tuple[list[Pointer], Any]:
        n, lower = self.p.n, self.p.parameter("UPLO", "L") == "L"
        w = self.result((n,), dtype=self.real)
        a = self.result((n, n), "F") if vectors else self.b.work(n * n * self.size)
        pointer, strides, layout = self.source("a")
        if layout == "C" and not (self.complex and vectors):
            # As it lies: columns of memory are rows of A, so the other triangle; eigenvectors of conj(A) are conjugated.
            strides, lower = (strides[1], strides[0]), not lower
        self.b.copy((n, n), pointer, strides, a, self.packed((n, n), "F"), self.size)
        # The triangle that is not read may hold anything, NaN included.
        self.b.triangle("zero_upper" if lower else "zero_lower", (n, n), self.packed((n, n), "F"), self.dtype, a)
        self.finite(n * n, a)
        job, uplo = "V" if vectors else "N", "L" if lower else "U"
        # 0-size complex rwork formulas are those of the LAPACK documentation.
        rsize = (1 + 5 * n + 2 * n * n if vectors else max(n, 1)) if self.routine == "syevd" else max(1, 3 * n - 2)
        rwork = [self.b.work(self.real.itemsize * rsize)] if self.complex else []
        none: list[Any] = [None] if self.complex else []
        if self.routine == "syev":
            lwork, _ = self.workspace("{s}ev", job, uplo, n, None, n, None, "work", "lwork", *none, None)
            self.lapack("{s}ev", job, uplo, n, a, n, w, self.b.work(lwork * self.size), lwork, *rwork, self.info())
        else:
            asked = [*none, "lwork"] if self.complex else []
            lwork, liwork = self.workspace(
                "{s}evd", job, uplo, n, None, n, None, "work", "lwork", *asked, "iwork", "liwork", None
            )
            liwork = max(liwork, 3 + 5 * n if vectors else 1)
            sized = [*rwork, rsize] if self.complex else []
            self.lapack(
                "{s}evd", job, uplo, n, a, n, w, self.b.work(lwork * self.size), lwork, *sized,
                self.b.work(self.native.int_size * liwork), liwork, self.info(),
            )  # fmt: skip
        return (self.returned(w, a), Eigh) if vectors else (self.returned(w), None)

    def eigh(self) -> tuple[list[Pointer], Any]:
        return self.symmetric(True)

    def eigvalsh(self) -> tuple[list[Pointer], Any]:
        return self.symmetric(False)

    def general(self, vectors: bool) -> tuple[list[Pointer], Any]:
        n = self.p.n
        a = self.b.work(n * n * self.size)
        self.load("a", (n, n), "F", a)
        self.finite(n * n, a)
        batch = (*self.p.batch, n)
        values = [self.b.result(self.dtype, batch, "C", n * self.size) for _ in range(1 if self.complex else 2)]
        pointers = list(values)
        spare = self.b.work(self.size)
        v = spare
        if vectors:
            step = n * n * self.size
            # Rows of this C-ordered array are LAPACK's columns; what wraps it transposes the view.
            v = self.b.result(self.dtype, (*batch, n), "C", step)
            pointers.append(v)
        job = "V" if vectors else "N"
        none: list[Any] = [None] if self.complex else []
        lwork, _ = self.workspace(
            "{t}geev", "N", job, n, None, n, *[None] * len(values), None, 1, None, n, "work", "lwork", *none, None
        )
        rwork = [self.b.work(self.real.itemsize * 2 * n)] if self.complex else []
        self.lapack(
            "{t}geev", "N", job, n, a, n, *values, spare, 1, v, n, self.b.work(lwork * self.size), lwork, *rwork, self.info()
        )
        return pointers, partial(_eigen, self.complex, vectors)

    def eig(self) -> tuple[list[Pointer], Any]:
        return self.general(True)

    def eigvals(self) -> tuple[list[Pointer], Any]:
        return self.general(False)

    def singular(self, vectors: bool) -> tuple[list[Pointer], Any]:
        m, n = self.p.m, self.p.n
        order = self.own_order()
        k, full = min(m, n), self.p.parameter("full_matrices", True)
        a = self.b.work(m * n * self.size)
        self.load("a", (m, n), order, a)
        self.finite(m * n, a)
        # Row-major memory is A^T in columns: A^T = conj(V) S U^T, so LAPACK's U is Vh and its VT is U, as they lie.
        rows, cols = (m, n) if order == "F" else (n, m)
        s: Pointer
        left = right = self.b.work(self.size)
        job, shown = "N", []
        if vectors:
            job = "A" if full else "S"
            u = self.result((m, m if full else k), order)
            s = self.result((k,), dtype=self.real)
            vh = self.result((n if full else k, n), order)
            left, right = (u, vh) if order == "F" else (vh, u)
            shown = [u, s, vh]
        else:
            s = self.result((k,), dtype=self.real)
            shown = [s]
        ldvt = cols if job == "A" else k if job == "S" else 1
        largest = max(m, n)
        none: list[Any] = [None] if self.complex else []
        head: list[Any] = [rows, cols, None, rows, None, None, rows, None, ldvt, "work", "lwork", *none]
        if self.routine == "gesdd":
            lwork, _ = self.workspace("{t}gesdd", job, *head, None, None)
            rsize = 7 * k if job == "N" else max(5 * k * k + 5 * k, 2 * largest * k + 2 * k * k + k)
            after = [self.b.work(self.native.int_size * 8 * k)]
            jobs = [job]
        else:
            lwork, _ = self.workspace("{t}gesvd", job, job, *head, None)
            rsize, after, jobs = 5 * k, [], [job, job]
        rwork = [self.b.work(self.real.itemsize * rsize)] if self.complex else []
        self.lapack(
            "{t}" + self.routine, *jobs, rows, cols, a, rows, s, left, rows, right, ldvt, self.b.work(lwork * self.size), lwork,
            *rwork, *after, self.info(),
        )  # fmt: skip
        return self.returned(*shown), SVD if vectors else None

    def svd(self) -> tuple[list[Pointer], Any]:
        return self.singular(True)

    def svdvals(self) -> tuple[list[Pointer], Any]:
        return self.singular(False)


# What is left to do in Python, once per call ------------------------------------------------------------------------


def _only_r(dtype: Any, r: Any) -> QR:
    return QR(np.empty(0, dtype), r)


def _eigen(is_complex: bool, vectors: bool, *parts: Any) -> Any:
    """Eigenvalues and vectors as complex arrays, from LAPACK's packed pairs."""
    if is_complex:
        values = parts[0]
        return Eig(values, parts[1].swapaxes(-1, -2)) if vectors else values
    values = parts[0] + 1j * parts[1]
    values = values.astype(np.result_type(parts[0].dtype, np.complex64), copy=False)
    if not vectors:
        return values
    packed = parts[2]  # row j is column j of LAPACK's VR
    rows = packed.astype(values.dtype)
    first = parts[1] > 0  # a pair's first column is the real part, its second the imaginary part
    second = np.roll(first, 1, axis=-1)
    real, imaginary = packed[first], packed[second]
    rows[first] = real + 1j * imaginary
    rows[second] = real - 1j * imaginary
    return Eig(values, rows.swapaxes(-1, -2))


def _least_squares(driver: str, m: int, n: int, vector: bool, x: Any, rank: Any, s: Any) -> Lstsq:
    solution = x[..., :n, :]
    residuals = np.empty(0, s.dtype)
    full = driver == "gels" or bool(np.all(rank == n))
    if m > n and driver != "gelsy" and full:
        residuals = np.sum(np.abs(x[..., n:, :]) ** 2, axis=-2).astype(s.dtype, copy=False)
        if vector:
            residuals = residuals[..., 0]
    if vector:
        solution = solution[..., 0]
    ranks = np.empty(0, np.int64) if driver == "gels" else np.asarray(rank, np.int64)[()]
    values = s if driver in ("gelsd", "gelss") else np.empty(0, s.dtype)
    return Lstsq(solution, residuals, ranks, values)
