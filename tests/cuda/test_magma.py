"""A user's MAGMA: found or not, asked for what it exports, called with the types of its own declarations."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, linalg, switches
from backline.errors import BackendUnavailable, LibraryFailed, LinAlgError
from backline.libraries.base import Refusal
from backline.libraries.cuda.magma.library import WAYS
from backline.libraries.presence import presence
from fakes.insert import inserted
from fakes.lapack_numbers import flat, lap, matrix, table
from fakes.matrices import FLOATS, h, near, numbers, positive, there, well
from fakes.solver_machine import SolverMachine, real_types
from stand_ins import compiled
from support import clean

real_types()
pytestmark = pytest.mark.usefixtures("clean")
assert clean

# Every function tells Python what it was given, as 64-bit integers; what it is given has the types of MAGMA's header.
SOURCE = r"""
#include <stdint.h>
#if WIDE
typedef int64_t magma_int_t;
#else
typedef int magma_int_t;
#endif
typedef int magma_vec_t, magma_uplo_t, magma_trans_t;
typedef struct queue *magma_queue_t;
#define P(x) (int64_t)(intptr_t)(x)
static void (*told)(const char *, int64_t *);
static int status, starts;
void stand_in_tell(void (*function)(const char *, int64_t *)) { told = function; }
void stand_in_status(int value) { status = value; }
int stand_in_starts(void) { return starts; }
magma_int_t magma_init(void) { ++starts; return status; }
void magma_version(magma_int_t *major, magma_int_t *minor, magma_int_t *micro) { *major = 2; *minor = 9; *micro = 0; }
void magma_queue_create_from_cuda_internal(magma_int_t device, void *stream, void *cublas, void *cusparse, magma_queue_t *queue,
        const char *func, const char *file, int line) {
    int64_t a[] = {device, P(stream), P(cublas), P(cusparse), P(queue), *func, *file, line};
    *queue = (magma_queue_t)(intptr_t)77;
    told("queue_create", a);
}
void magma_queue_destroy_internal(magma_queue_t queue, const char *func, const char *file, int line) {
    int64_t a[] = {P(queue), *func, *file, line};
    told("queue_destroy", a);
}
#define FUNCTIONS(t, sy, T, R, IFC) \
magma_int_t magma_##t##getrf_gpu(magma_int_t m, magma_int_t n, T *dA, magma_int_t ldda, magma_int_t *ipiv, magma_int_t *info) { \
    int64_t a[] = {m, n, P(dA), ldda, P(ipiv), P(info)}; told(#t "getrf", a); return *info; } \
magma_int_t magma_##t##getrs_gpu(magma_trans_t trans, magma_int_t n, magma_int_t nrhs, T *dA, magma_int_t ldda, magma_int_t *ipiv, \
        T *dB, magma_int_t lddb, magma_int_t *info) { \
    int64_t a[] = {trans, n, nrhs, P(dA), ldda, P(ipiv), P(dB), lddb, P(info)}; told(#t "getrs", a); return *info; } \
magma_int_t magma_##t##geqrf2_gpu(magma_int_t m, magma_int_t n, T *dA, magma_int_t ldda, T *tau, magma_int_t *info) { \
    int64_t a[] = {m, n, P(dA), ldda, P(tau), P(info)}; told(#t "geqrf", a); return *info; } \
magma_int_t magma_##t##sy##evd_gpu(magma_vec_t jobz, magma_uplo_t uplo, magma_int_t n, T *dA, magma_int_t ldda, R *w, T *wA, \
        magma_int_t ldwa, T *work, magma_int_t lwork, IFC(R *rwork, magma_int_t lrwork,) magma_int_t *iwork, magma_int_t liwork, \
        magma_int_t *info) { \
    int64_t a[] = {jobz, uplo, n, P(dA), ldda, P(w), P(wA), ldwa, P(work), lwork, IFC(P(rwork), lrwork,) P(iwork), liwork, P(info)}; \
    told(#t "syevd", a); return *info; } \
magma_int_t magma_##t##getrf_batched(magma_int_t m, magma_int_t n, T **dA_array, magma_int_t lda, magma_int_t **ipiv_array, \
        magma_int_t *info_array, magma_int_t batchCount, magma_queue_t queue) { \
    int64_t a[] = {m, n, P(dA_array), lda, P(ipiv_array), P(info_array), batchCount, P(queue)}; told(#t "getrf_batched", a); return 0; } \
SVD(t, T, R, IFC)
#if LACKING
#define SVD(t, T, R, IFC)
#else
#define SVD(t, T, R, IFC) \
magma_int_t magma_##t##gesdd(magma_vec_t jobz, magma_int_t m, magma_int_t n, T *A, magma_int_t lda, R *s, T *U, magma_int_t ldu, \
        T *VT, magma_int_t ldvt, T *work, magma_int_t lwork, IFC(R *rwork,) magma_int_t *iwork, magma_int_t *info) { \
    int64_t a[] = {jobz, m, n, P(A), lda, P(s), P(U), ldu, P(VT), ldvt, P(work), lwork, IFC(P(rwork),) P(iwork), P(info)}; \
    told(#t "gesdd", a); return *info; }
#endif
#define YES(...) __VA_ARGS__
#define NO(...)
FUNCTIONS(s, sy, float, float, NO)
FUNCTIONS(d, sy, double, double, NO)
FUNCTIONS(c, he, float _Complex, float, YES)
FUNCTIONS(z, he, double _Complex, double, YES)
"""
TELL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64))
DTYPES = {"s": np.dtype("f4"), "d": np.dtype("f8"), "c": np.dtype("c8"), "z": np.dtype("c16")}


class Fake:
    """The compiled library, and what its functions compute."""

    def __init__(self, path: Path, wide: bool) -> None:
        self.path, self.integer = path, np.dtype("i8" if wide else "i4")
        self.library = ctypes.CDLL(str(path))
        self.names: list[str] = []
        self.errors: list[BaseException] = []
        self.info = 0
        self.kept = TELL(self.tell)
        self.library.stand_in_tell(self.kept)
        self.library.stand_in_status(0)

    def tell(self, name: bytes, a: Any) -> None:
        text = name.decode()
        self.names.append(text)
        try:
            if text.startswith("queue"):
                self.queue(text, a)
            else:
                getattr(self, text[1:])(DTYPES[text[0]], a)
        except BaseException as error:  # ctypes would print it and go on
            self.errors.append(error)

    def queue(self, name: str, a: Any) -> None:
        assert a[0] == 77 if name == "queue_destroy" else (a[0], a[2], a[3]) == (0, 0, 0)

    def say(self, at: int, value: int) -> None:
        flat(at, 1, self.integer)[...] = self.info or value

    def factor(self, dtype: Any, at: int, m: int, n: int, ld: int, pivots: int) -> int:
        a = matrix(at, m, n, ld, dtype)
        lu, found, info = lap("getrf", dtype)(a)
        a[...] = lu
        flat(pivots, len(found), self.integer)[...] = found + 1
        return int(info)

    def getrf(self, dtype: Any, a: Any) -> None:
        self.say(a[5], self.factor(dtype, a[2], a[0], a[1], a[3], a[4]))

    def getrf_batched(self, dtype: Any, a: Any) -> None:
        assert a[7] == 77
        for i, (at, pivots) in enumerate(zip(table(a[2], a[6]), table(a[4], a[6]), strict=True)):
            self.say(a[5] + self.integer.itemsize * i, self.factor(dtype, at, a[0], a[1], a[3], pivots))

    def getrs(self, dtype: Any, a: Any) -> None:
        lu, b = matrix(a[3], a[1], a[1], a[4], dtype), matrix(a[6], a[1], a[2], a[7], dtype)
        b[...] = lap("getrs", dtype)(lu, flat(a[5], a[1], self.integer) - 1, b, trans=a[0] - 111)[0]
        self.say(a[8], 0)

    def geqrf(self, dtype: Any, a: Any) -> None:
        given = matrix(a[2], a[0], a[1], a[3], dtype)
        factored, tau, _, _ = lap("geqrf", dtype)(given)
        given[...] = factored
        flat(a[4], len(tau), dtype)[...] = tau
        self.say(a[5], 0)

    def syevd(self, dtype: Any, a: Any) -> None:
        complex_, real = dtype.kind == "c", np.dtype(dtype.char.lower())
        at = 12 if complex_ else 10
        if a[9] == -1:
            assert a[at + 1] == -1
            flat(a[8], 1, dtype)[...], flat(a[at], 1, self.integer)[...] = 50, 20
            if complex_:
                assert a[11] == -1
                flat(a[10], 1, real)[...] = 30
        else:
            assert a[9] >= 50 and a[at + 1] == 20 and (not complex_ or a[11] >= 30)
            flat(a[8], a[9], dtype)[...] = np.nan
            matrix(a[6], a[2], a[2], a[7], dtype)[...] = np.nan
            given = matrix(a[3], a[2], a[2], a[4], dtype)
            w, v = np.linalg.eigh(given, {121: "U", 122: "L"}[a[1]])  # type: ignore[arg-type]  # one of two letters
            flat(a[5], a[2], real)[...] = w
            given[...] = v if a[0] == 302 else np.nan
        self.say(a[at + 2], 0)

    def gesdd(self, dtype: Any, a: Any) -> None:
        complex_, real = dtype.kind == "c", np.dtype(dtype.char.lower())
        m, n = a[1], a[2]
        k = min(m, n)
        if a[11] == -1:
            flat(a[10], 1, dtype)[...] = 60
        else:
            assert a[11] >= 60
            flat(a[10], a[11], dtype)[...] = np.nan
            if complex_:
                flat(a[12], k * max(5 * k + 7, 2 * max(m, n) + 2 * k + 1), real)[...] = np.nan
            flat(a[13 if complex_ else 12], 8 * k, self.integer)[...] = -1
            given = matrix(a[3], m, n, a[4], dtype)
            u, s, vt = np.linalg.svd(given, full_matrices=a[0] == 304)
            flat(a[5], k, real)[...] = s
            if a[0] != 301:
                matrix(a[6], *u.shape, a[7], dtype)[...] = u
                matrix(a[8], *vt.shape, a[9], dtype)[...] = vt
        self.say(a[14 if complex_ else 13], 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("magma")
    made = {
        "usual": compiled(folder, "libmagma_usual.so", SOURCE, WIDE=0, LACKING=0),
        "wide": compiled(folder, "libmagma_wide.so", SOURCE, WIDE=1, LACKING=0),
        "lacking": compiled(folder, "libmagma_lacking.so", SOURCE, WIDE=0, LACKING=1),
    }
    return made


@pytest.fixture(params=["usual", "wide"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def magma(kind: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    monkeypatch.setenv("BACKLINE_MAGMA_LIBRARY", str(files[kind]))
    presence("magma").forget()
    fake = Fake(files[kind], kind == "wide")
    machine = SolverMachine(tmp_path_factory.getbasetemp())
    fake.machine = machine  # type: ignore[attr-defined]  # what tests add to the module
    machine.cupy.cuda.runtime.deviceSynchronize = lambda: fake.names.append("wait")
    with inserted(**machine.modules()), switches.scope({"cuda.preferred_linalg_library": "magma"}):
        yield fake
    presence("magma").forget()
    assert not fake.errors, fake.errors


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_it_computes(magma: Fake, dtype: str) -> None:
    for batch in ((), (3,)):
        for n, k in ((4, 2), (5, 5)):
            a, b = well((*batch, n, n), dtype), numbers((*batch, n, k), dtype, 1)
            near(linalg.inv(there(a)), np.linalg.inv(a))
            near(linalg.solve(there(a), there(b)), np.linalg.solve(a, b))
            right = numbers((*batch, k, n), dtype, 2)
            near(linalg.solve(there(a), there(right), left=False).host @ a, right, 2000)
            found = linalg.lu_factor(there(a))
            expected = linalg.lu_factor(a)
            near(found.LU, expected.LU)
            assert np.array_equal(found.pivots.host, expected.pivots) and found.pivots.dtype == np.int32
            near(h(a) @ linalg.lu_solve(*found, there(b), adjoint=True).host, b, 2000)
            p = positive((*batch, n, n), dtype)
            for uplo in "LU":
                w, v = linalg.eigh(there(p), uplo)
                near(w, np.linalg.eigvalsh(p))
                near(p @ v.host, v.host * w.host[..., None, :].astype(dtype), 1000)
                near(linalg.eigvalsh(there(p), uplo), np.linalg.eigvalsh(p))
        for m, n in ((5, 3), (3, 5)):
            a = numbers((*batch, m, n), dtype)
            near(linalg.lu_factor(there(a)).LU, linalg.lu_factor(a).LU)
            near(linalg.qr(there(a), "r").R, np.linalg.qr(a, "r"))
            near(linalg.svdvals(there(a)), np.linalg.svd(a, compute_uv=False))
            for full in (True, False):
                u, s, vh = linalg.svd(there(a), full)
                assert u.shape[-1] == (m if full else 3) and vh.shape[-2] == (n if full else 3)
                near((u.host[..., :3] * s.host[..., None, :].astype(dtype)) @ vh.host[..., :3, :], a)
    assert backline.explain().library == "magma"
    assert {name[1:] for name in magma.names} >= {"getrf", "getrs", "getrf_batched", "geqrf", "syevd", "gesdd"}


def test_info(magma: Fake) -> None:
    a = np.stack([np.eye(3), np.diag([1.0, 0, 1])])
    assert linalg.inv_ex(there(a)).info.host.tolist() == [0, 2]
    assert int(linalg.lu_factor_ex(there(a[1])).info.host) == 2
    with pytest.raises(LinAlgError, match="item 1 of the batch: the input matrix is singular \\(element 2"):
        linalg.solve(there(a), there(np.ones((2, 3, 1))))
    with pytest.raises(LinAlgError, match="NaN or infinity"):
        linalg.eigh(there(np.full((2, 2), np.nan)))
    magma.info = -113
    with pytest.raises(LibraryFailed, match=r"MAGMA getrf failed"):
        linalg.lu_factor(there(np.eye(3)))


def test_it_waits_and_its_queue_goes(magma: Fake) -> None:
    machine = magma.machine  # type: ignore[attr-defined]  # what tests add to the module
    linalg.lu_factor(there(np.eye(3)))
    assert magma.names == ["dgetrf", "wait"] and machine.cupy.cuda.null_stream.synchronized == 1
    magma.names.clear()
    linalg.lu_factor(there(np.stack([np.eye(3)] * 2)))
    assert magma.names == ["queue_create", "dgetrf_batched", "wait", "queue_destroy"]


def test_what_it_lacks_runs_on_cusolver_with_the_reason(magma: Fake) -> None:
    a = there(positive((3, 3), "float64"))
    linalg.cholesky(a)
    choice = backline.explain()
    assert choice.library == "cusolver"
    assert any(c.library == "magma" and "not among what is called of it" in c.reason for c in choice.candidates)
    with backline.trace() as trace:
        linalg.qr(a)
    assert [event.library for event in trace] == ["cusolver"]
    reasons = [c.reason for c in backline.explain(linalg.qr, a).candidates if c.library == "magma"]
    assert reasons == ["its geqrf2 gives R and reflectors; what makes Q of them is not among what is called of it"]
    reasons = [c.reason for c in backline.explain(linalg.svd, a, driver="gesvd").candidates if c.library == "magma"]
    assert reasons == ["the call asks for driver='gesvd'; it has gesdd"]
    assert backline.explain(linalg.inv, there(np.ones((0, 0)))).library == "cusolver"


def test_without_a_preference_it_comes_after(magma: Fake) -> None:
    a = there(np.eye(3))
    with switches.scope({"cuda.preferred_linalg_library": "default"}):
        choice = backline.explain(linalg.inv, a)
    order = list(dict.fromkeys(c.library for c in choice.candidates if c.verdict in ("chosen", "next")))
    assert order == ["cusolver", "magma"]
    with switches.scope({"cuda.preferred_linalg_library": "cusolver"}):
        assert backline.explain(linalg.inv, a).library == "cusolver"
    assert backline.explain(linalg.inv, a).library == "magma"


def test_it_promises_no_bits(magma: Fake) -> None:
    with switches.scope({"deterministic": True}):
        choice = backline.explain(linalg.inv, there(np.eye(3)))
    assert choice.library == "cusolver"
    assert any(c.library == "magma" and "determinism" in c.reason for c in choice.candidates)


@pytest.mark.parametrize("kind", ["usual"])
def test_it_is_started_once(magma: Fake) -> None:
    before = magma.library.stand_in_starts()
    linalg.inv(there(np.eye(3)))
    linalg.inv(there(np.eye(4)))
    assert magma.library.stand_in_starts() - before <= 1


@pytest.mark.parametrize("kind", ["lacking"])
def test_a_build_without_a_function(magma: Fake) -> None:
    magma.library.stand_in_status(-7)
    reasons = [c.reason for c in backline.explain(linalg.svd, there(np.eye(3))).candidates if c.library == "magma"]
    assert reasons == ["the library exports no magma_dgesdd"]
    near(linalg.inv(there(np.eye(3))), np.eye(3))  # MAGMA does not initialise: cuSOLVER runs
    assert backline.explain().library == "cusolver"
    assert any(c.library == "magma" and "magma_init returned -7" in c.reason for c in backline.explain().candidates)


def test_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKLINE_MAGMA_LIBRARY", str(tmp_path / "libmagma.so"))
    presence("magma").forget()
    try:
        before = backline.backends.cuda.preferred_linalg_library()
        with pytest.raises(BackendUnavailable, match=r"MAGMA, which is not available") as caught:
            backline.backends.cuda.preferred_linalg_library("magma")
        assert "BACKLINE_MAGMA_LIBRARY" in str(caught.value)
        assert backline.backends.cuda.preferred_linalg_library() is before
        assert not libraries.get("magma").available()
        assert libraries.get("magma").report()["reason"]
    finally:
        presence("magma").forget()


def test_every_way_is_an_operation() -> None:
    from backline.libraries.cuda.cusolver.solver_operations import OPERATIONS

    assert set(WAYS) <= set(OPERATIONS)
    assert all(isinstance(r, Refusal) for r in libraries.get("magma").algorithms(_matmul(), 1))


def _matmul() -> Any:
    from backline.problems import Problem, operand

    return Problem("matmul", (operand("a", np.eye(2)),), device="cuda:0")
