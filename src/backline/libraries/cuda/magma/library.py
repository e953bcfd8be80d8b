"""MAGMA, where a user has it: LU, eigenvalues of symmetric matrices, singular values and R of QR on CuPy's arrays.

Its routines keep part of the work, and their small results, on the host: a call waits for the device before it begins and until
it is done. The library file is one that the user built or installed, for the CUDA that is here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from ....errors import BackendUnavailable, LibraryFailed
from ....problems.linalg_problem import LinalgProblem
from ...base import Algorithm, Handler, Planner, Refusal
from ...presence import presence
from ..common import bindings
from ..common.binding_library import BindingLibrary
from ..common.device_facts import index_of
from ..common.device_plan import DevicePlan, at
from ..common.streams import current_stream
from ..cusolver.library import finish, refuse_outputs
from ..cusolver.matrix_stacks import Settings, Stacks
from ..cusolver.routine_table import LARGEST, LETTER, Recipe
from ..cusolver.solver_operations import OPERATIONS, Call

__all__ = ["MAGMA", "Native", "listed", "symbols"]

OP = {0: 111, 1: 112, 2: 113}  # none, transpose, adjoint: cuBLAS's number -> MAGMA's
UPLO = {0: 122, 1: 121}  # lower, upper
NO_VECTORS, VECTORS = 301, 302
JOB = {"N": 301, "A": 304, "S": 305}  # of gesdd
INT32 = np.dtype(np.int32)
AT_ONCE = 65535  # items of a batch in one call: its kernels have one block of a grid's last axis for each

# Operation -> the ways there are, the one for a batch in one call first.
WAYS: dict[str, tuple[tuple[str, ...], ...]] = {
    "linalg.lu_factor": (("getrf_batched",), ("getrf",)),
    "linalg.lu_solve": (("getrs",),),
    "linalg.solve": (("getrf_batched", "getrs"), ("getrf", "getrs")),
    "linalg.inv": (("getrf_batched", "getrs"), ("getrf", "getrs")),
    "linalg.qr": (("geqrf",),),
    "linalg.eigh": (("syevd",),),
    "linalg.eigvalsh": (("syevd",),),
    "linalg.svd": (("gesdd",),),
    "linalg.svdvals": (("gesdd",),),
}
_NAMES = {"getrf": "getrf_gpu", "getrs": "getrs_gpu", "geqrf": "geqrf2_gpu", "syevd": "{sy}evd_gpu", "gesdd": "gesdd",
          "getrf_batched": "getrf_batched"}  # fmt: skip
_QUEUE = ("magma_queue_create_from_cuda_internal", "magma_queue_destroy_internal")


def symbols(ways: tuple[str, ...], dtype: str) -> tuple[str, ...]:
    """The functions of the library that ways call.

    >>> symbols(("getrf", "getrs"), "float32"), symbols(("syevd",), "complex128")
    (('magma_sgetrf_gpu', 'magma_sgetrs_gpu'), ('magma_zheevd_gpu',))
    """
    hermitian = "he" if dtype.startswith("complex") else "sy"
    found = [f"magma_{LETTER[dtype]}{_NAMES[way].format(sy=hermitian)}" for way in ways]
    return (*found, *(_QUEUE if "getrf_batched" in ways else ()))


def _elements(p: LinalgProblem) -> int:
    """Returns the most elements that a routine counts for one matrix: of a matrix, or of its workspace."""
    rows, columns = max(p.m, p.n), min(p.m, p.n)
    if p.op in ("linalg.eigh", "linalg.eigvalsh"):
        return 1 + 6 * rows + 2 * rows * rows  # of syevd, as LAPACK has it
    if p.op in ("linalg.svd", "linalg.svdvals"):
        full = p.op == "linalg.svd" and p.parameter("full_matrices", True)
        return max(rows * (rows if full else columns), 4 * columns * columns + 7 * columns + rows)  # of gesdd
    counted: int = rows * max(columns, p.k)
    return counted


def listed(problem: LinalgProblem, exports: Any, integer: np.dtype[Any] = INT32) -> Iterator[Algorithm | Refusal]:
    """Lists MAGMA's Algorithms and Refusals for a Problem.

    `exports` tells whether the library has a function; `integer` is what it was built to count with.
    """
    ways = WAYS.get(problem.op, ())
    if not ways:
        yield Refusal("magma", "", f"{problem.op} is not among what is called of it")
        return
    driver, mode = problem.parameter("driver"), problem.parameter("mode", "r")
    reason = ""
    if problem.dtype.name not in LETTER:
        reason = f"it has no linear algebra of {problem.dtype.name}"
    elif problem.empty:
        reason = "an empty problem needs no MAGMA"
    elif max(problem.m, problem.n, problem.k, problem.items) > LARGEST:
        reason = f"sizes past {LARGEST} are more than its routines count to"
    elif integer.itemsize == 4 and _elements(problem) > LARGEST:
        reason = f"this build counts elements and workspaces with 32 bits, and {_elements(problem)} are more"
    elif driver not in (None, "gesdd"):
        reason = f"the call asks for driver={driver!r}; it has gesdd"
    elif mode != "r":
        reason = "its geqrf2 gives R and reflectors; what makes Q of them is not among what is called of it"
    if reason:
        yield Refusal("magma", "", reason)
        return
    for way in ways:
        if way[0] == "getrf_batched" and problem.items == 1:
            continue
        missing = [name for name in symbols(way, problem.dtype.name) if not exports(name)]
        if missing:
            yield Refusal("magma", "+".join(way), f"the library exports no {missing[0]}")
        else:
            # Part of the work is done by whatever LAPACK it was built with: nobody promises the same bits.
            yield Algorithm(
                library="magma", name="+".join(way), level="off", basis="promise", note="waits: part of the work is the host's"
            )


class Native:
    """The loaded library. `integer` is what it was built to count with: NumPy's int32 or int64."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        # It writes three integers; of each, the half that a smaller integer leaves alone shows which size they have.
        numbers = np.full(3, -1, np.int64)
        self.library.magma_version(*(ctypes.c_void_p(numbers.ctypes.data + 8 * i) for i in range(3)))
        wide = bool((numbers >= 0).all() and (numbers < 1 << 31).all())
        self.integer = np.dtype(np.int64 if wide else np.int32)
        self._started = False
        self._lock = Lock()

    def exports(self, name: str) -> bool:
        return hasattr(self.library, name)

    def start(self) -> None:
        """Initialise it, once in a process; raises `BackendUnavailable` where there is no device it can use."""
        with self._lock:
            if not self._started:
                status = self.library.magma_init()
                if status:
                    raise BackendUnavailable("MAGMA does not initialise.", cause=f"magma_init returned {status}",
                                             remedy="a build for this CUDA and this device")  # fmt: skip
                self._started = True

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function: an int as its integer, an array as its address, an `_Enum` as C's int, the rest as it is."""
        integer = ctypes.c_int64 if self.integer.itemsize == 8 else ctypes.c_int32
        given = []
        for each in arguments:
            if isinstance(each, np.ndarray):
                each = ctypes.c_void_p(each.ctypes.data)
            elif isinstance(each, _Enum):
                each = ctypes.c_int(each)
            elif isinstance(each, int):
                if not -(1 << (8 * self.integer.itemsize - 1)) <= each < 1 << (8 * self.integer.itemsize - 1):
                    raise LibraryFailed(f"{name} counts with {self.integer.name}, and {each} is no such number")
                each = integer(each)
            given.append(each)
        getattr(self.library, name)(*given)


class _Enum(int):
    """A value of one of its enumerations."""


def _there(pointer: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(pointer)


class _Routines(Stacks):
    """MAGMA's routines, by the names and arguments that operations know cuSOLVER's by."""

    def __init__(self, settings: Settings, native: Native) -> None:
        super().__init__(settings)
        self.native = native

    def _call(self, way: str, *arguments: Any) -> None:
        self.native.call(symbols((way,), self.dtype.name)[0], *arguments)

    def _checked(self, way: str, *arguments: Any) -> int:
        """Call a routine whose last argument is info, and return that."""
        info = np.zeros(1, self.native.integer)
        self._call(way, *arguments, info)
        if info[0] < 0:
            raise RuntimeError(f"{symbols((way,), self.dtype.name)[0]}: info = {int(info[0])}")
        return int(info[0])

    def _integers(self, count: int) -> np.ndarray[Any, Any]:
        return np.zeros(max(count, 1), self.native.integer)

    def _when_ready(self) -> None:
        """Wait for what was put on CuPy's stream: the routines have streams of their own."""
        self.xp.cuda.get_current_stream().synchronize()

    def _until_done(self) -> None:
        self.xp.cuda.runtime.deviceSynchronize()

    def getrf(self, a: Any, pivots: Any, info: Any) -> None:
        items, n, m = a.shape
        rows, infos = np.zeros((items, min(m, n)), np.int64), np.zeros(items, np.int32)
        self._when_ready()
        for i in range(items):
            found = self._integers(min(m, n))
            infos[i] = self._checked("getrf", m, n, _there(at(a, i)), m, found)
            rows[i] = found
        self._until_done()
        pivots[...], info[...] = self.xp.asarray(rows), self.xp.asarray(infos)

    def getrf_batched(self, a: Any, pivots: Any, info: Any) -> None:
        items, n, m = a.shape
        queue = ctypes.c_void_p()
        stream = current_stream()
        self.native.call(_QUEUE[0], self.settings.device, _there(stream), None, None, ctypes.byref(queue), b"", b"", _Enum(0))
        integer = self.native.integer
        rows, infos = self.xp.zeros(pivots.shape, integer), self.xp.zeros(info.shape, integer)
        matrices, interchanges = self.tables_of(a, rows)
        try:
            for first in range(0, items, AT_ONCE):
                count, item = min(AT_ONCE, items - first), 8 * first
                tables = _there(matrices + item), _there(interchanges + item), _there(at(infos) + first * integer.itemsize)
                self._call("getrf_batched", m, n, tables[0], m, tables[1], tables[2], count, queue)
            self._until_done()
        finally:
            self.native.call(_QUEUE[1], queue, b"", b"", _Enum(0))
        pivots[...], info[...] = rows, infos

    def getrs(self, op: int, lu: int, step: int, ld: int, pivots: Any, x: Any, info: Any) -> None:
        items, k, n = x.shape
        self._when_ready()
        rows = pivots.get().astype(self.native.integer)
        for i in range(items):
            there = _there(at(x, i))
            self._checked("getrs", _Enum(OP[op]), n, k, _there(lu + i * step), ld, rows[i], there, n)
        self._until_done()

    def geqrf(self, a: Any, tau: Any, info: Any) -> None:
        items, n, m = a.shape
        self._when_ready()
        factors = np.zeros(tau.shape, self.dtype)
        for i in range(items):
            self._checked("geqrf", m, n, _there(at(a, i)), m, factors[i])
        self._until_done()
        tau[...] = self.xp.asarray(factors)

    def syevd(self, vectors: bool, uplo: int, a: Any, w: Any, info: Any) -> None:
        items, n, _ = a.shape
        self._when_ready()
        values, infos = np.zeros((items, n), self.real), np.zeros(items, np.int32)
        beside = np.zeros((n, n), self.dtype)  # a copy that it works on
        head = (_Enum(VECTORS if vectors else NO_VECTORS), _Enum(UPLO[uplo]), n)
        work, rwork, iwork = np.zeros(1, self.dtype), np.zeros(1, self.real), self._integers(1)
        asked = (rwork, -1) if self.complex else ()
        self._checked("syevd", *head, _there(at(a)), n, values[0], beside, n, work, -1, *asked, iwork, -1)
        work, rwork = (np.zeros(_size(x), x.dtype) for x in (work, rwork))
        iwork = self._integers(int(iwork[0]))
        real = (rwork, len(rwork)) if self.complex else ()
        for i in range(items):
            there = _there(at(a, i))
            infos[i] = self._checked(
                "syevd", *head, there, n, values[i], beside, n, work, len(work), *real, iwork, len(iwork)
            )  # fmt: skip
        self._until_done()
        w[...], info[...] = self.xp.asarray(values), self.xp.asarray(infos)

    def gesdd(self, job: str, a: Any, s: Any, u: Any, vt: Any, info: Any) -> None:
        """On the host, where it wants its matrices."""
        items, n, m = a.shape
        k, largest = min(m, n), max(m, n)
        given, values, infos = a.get(), np.zeros((items, k), self.real), np.zeros(items, np.int32)
        left, right = (np.zeros((items, 1, 1) if x is None else x.shape, self.dtype) for x in (u, vt))
        head = (_Enum(JOB[job]), m, n)
        rwork = (np.zeros(k * max(5 * k + 7, 2 * largest + 2 * k + 1), self.real),) if self.complex else ()
        iwork, work = self._integers(8 * k), np.zeros(1, self.dtype)

        def run(i: int, count: int) -> int:
            found = (left[i], m, right[i], right.shape[2])
            return self._checked("gesdd", *head, given[i], m, values[i], *found, work, count, *rwork, iwork)

        run(0, -1)
        work = np.zeros(_size(work), self.dtype)
        for i in range(items):
            infos[i] = run(i, len(work))
        s[...], info[...] = self.xp.asarray(values), self.xp.asarray(infos)
        if u is not None:
            u[...], vt[...] = self.xp.asarray(left), self.xp.asarray(right)


def _size(asked: np.ndarray[Any, Any]) -> int:
    """The size in a question's answer; a float32 may have rounded it down."""
    size = float(asked[0].real)
    return max(1, int(np.ceil(size if asked.real.dtype.itemsize > 4 else np.nextafter(np.float32(size), np.float32(np.inf)))))


def _run(problem: LinalgProblem, settings: Settings, native: Native, *arrays: Any) -> Any:
    refuse_outputs(problem, arrays)
    roles = {o.role: array for o, array in zip(problem.operands, arrays, strict=True)}
    return finish(problem, arrays, OPERATIONS[problem.op](Call(problem, _Routines(settings, native), roles)))


def _algorithms(magma: MAGMA, problem: LinalgProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    native = magma.native()
    return listed(problem, native.exports, native.integer)


def _prepare(magma: MAGMA, problem: LinalgProblem, algorithm: Algorithm) -> DevicePlan:
    native, device = magma.native(), index_of(problem)
    with bindings.cupy().cuda.Device(device):
        native.start()
    settings = Settings(Recipe(tuple(algorithm.name.split("+")), ()), device, np.dtype(problem.dtype), False, 0)
    return DevicePlan(partial(_run, problem, settings, native), device, f"MAGMA {algorithm.name}", ())


class MAGMA(BindingLibrary):
    """libmagma, a user's own."""

    handlers: ClassVar = {LinalgProblem: Handler(_algorithms, _prepare)}

    def __init__(self) -> None:
        self._native: tuple[str, Native] | None = None
        self._lock = Lock()

    def reason(self) -> str:
        return presence("magma").reason() or super().reason()

    def context(self, planner: Planner) -> MAGMA:
        return self

    def native(self) -> Native:
        """The library, loaded when it is first needed."""
        path = presence("magma").path
        assert path is not None
        with self._lock:
            if self._native is None or self._native[0] != path:
                self._native = path, Native(path)
            return self._native[1]
