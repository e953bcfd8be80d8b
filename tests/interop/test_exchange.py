"""The exchange: NumPy's and SciPy's calls run on the library chosen, give right results there, and the old ones after it."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
import rich.console
import scipy.linalg

import backline
from backline import _exchange, errors, switches
from backline.interop import numpy as exchange
from backline.interop.exchange import (
    exchange_state,
    function_checks,
    loaded_objects,
    self_check,
    targets,
)
from exchange_support import child, held, loaded_origins, pool_threads, restored, same, threads_of, wheels_only
from support import need, python

pytestmark = [wheels_only, pytest.mark.usefixtures("restored")]
assert restored
RNG = np.random.default_rng(5)


def available(library: str) -> str:
    need(library)
    return library


LIBRARIES = ("mkl", "openblas", "blis")


def problems(n: int = 60) -> dict[str, Any]:
    """Functions of no arguments that return values which do not depend on the library but for rounding."""
    a = RNG.standard_normal((n, n)) + n * np.eye(n)
    z = a + 1j * RNG.standard_normal((n, n))
    b, s = RNG.standard_normal((n, 3)), RNG.standard_normal((n, n))
    f = a.astype(np.float32)
    return {
        "matmul f64": lambda: a @ s,
        "matmul f32": lambda: f @ f.T,
        "matmul c64": lambda: z.astype(np.complex64) @ z.astype(np.complex64),
        "matmul c128": lambda: z @ z.conj().T,
        "matmul strided": lambda: np.stack([a, a])[::-1][:, ::2, ::-1] @ s[::-1],
        "matvec": lambda: np.tile(a, (2, 2)) @ np.ones(2 * n),
        "inner": lambda: np.vdot(z, z),
        "tensordot": lambda: np.tensordot(s.reshape(n, 6, -1), s.reshape(6, -1, n), axes=([1, 2], [0, 1])),
        "solve": lambda: np.linalg.solve(z, b),
        "inv": lambda: np.linalg.inv(f),
        "det": lambda: np.linalg.slogdet(a)[1],
        "eigvals": lambda: np.sort_complex(np.linalg.eigvals(s)),
        "eigvalsh": lambda: np.linalg.eigvalsh(z + z.conj().T),
        "svd": lambda: np.linalg.svd(s, compute_uv=False),
        "cholesky": lambda: np.linalg.cholesky(s @ s.T + n * np.eye(n)),
        "qr": lambda: np.abs(np.linalg.qr(z)[1]),
        "lstsq": lambda: np.linalg.lstsq(a[:, :20], b, rcond=None)[0],
        "matrix_power": lambda: np.linalg.matrix_power(a / n, 5),
        "scipy lu": lambda: scipy.linalg.lu_factor(z)[0],
        "scipy expm": lambda: scipy.linalg.expm(s / n),
        "scipy schur": lambda: np.sort_complex(np.diag(scipy.linalg.schur(z, output="complex")[0])),
        "scipy sqrtm": lambda: scipy.linalg.sqrtm(s @ s.T + np.eye(n)),
        "scipy solve_triangular": lambda: scipy.linalg.solve_triangular(np.tril(a), b, lower=True),
        "scipy eigh generalized": lambda: scipy.linalg.eigh(s + s.T, s @ s.T + n * np.eye(n), eigvals_only=True),
        "scipy blas": lambda: scipy.linalg.blas.dgemm(1.0, a, s, trans_b=True),
        "scipy dotu": lambda: scipy.linalg.blas.zdotu(z[0], z[1]),
        "scipy ldl": lambda: scipy.linalg.ldl(s + s.T)[1],
    }  # fmt: skip


PROBLEMS = problems()


def bits(values: Any) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("library", LIBRARIES)
def test_results_agree_under_each_library_and_have_their_old_bits_afterwards(library: str) -> None:
    available(library)
    before = {name: run() for name, run in PROBLEMS.items()}
    with exchange.use(library):
        assert exchange.status().slots > 20
        for name, run in PROBLEMS.items():
            got, wanted = np.asarray(run()), np.asarray(before[name])
            eps = np.finfo(wanted.dtype).eps
            assert np.max(np.abs(got - wanted)) <= 3e3 * eps * max(np.max(np.abs(wanted)), 1), name
    assert not exchange.status().choice
    again = {name: run() for name, run in PROBLEMS.items()}
    assert {name for name in PROBLEMS if bits(again[name]) != bits(before[name])} == set()


def test_the_call_reaches_the_library() -> None:
    """MKL tells of each of its calls; the bits of a product alone would not show that it ran."""
    available("mkl")
    text = """
        import numpy as np, scipy.linalg, backline
        from backline import libraries
        a = np.random.default_rng(1).standard_normal((200, 200))
        with backline.interop.numpy.use("mkl"):
            libraries.get("mkl").blas.native.handle.MKL_Verbose(1)
            a @ (a + 1); np.linalg.inv(a); scipy.linalg.lu_factor(a)
        np.linalg.inv(a)
    """
    out = child(text)
    called = [line.split("(")[0].split()[-1].lower() for line in out.splitlines() if line.startswith("MKL_VERBOSE") and "CNR:" in line]
    assert any("gemm" in name for name in called)
    assert sum("gesv" in name for name in called) == 1 and any("getrf" in name for name in called)


def test_scopes_nest_and_the_last_one_counts() -> None:
    available("mkl"), available("openblas")
    with exchange.use("mkl"):
        assert exchange.status().library("dgemm", "scipy") == "mkl"
        with exchange.use("openblas") as inner:
            assert exchange.status().library("dgemm", "scipy") == "openblas"
            assert repr(inner) == "<Exchange for openblas>"
            with exchange.use("numpy"):
                assert exchange.status().slots == 0
        assert exchange.status().library("dgemm", "scipy") == "mkl"
    assert exchange.status().library("dgemm", "scipy") == "numpy"


def test_ends_out_of_order_leave_the_one_that_still_holds() -> None:
    available("mkl"), available("openblas")
    first, second = exchange.use("mkl"), exchange.use("openblas")
    first.restore()
    assert exchange.status().choice == "openblas"
    first.restore()  # nothing is left to do
    second.restore()
    assert exchange.status().choice == ""


def test_process_wide_until_restored() -> None:
    available("openblas")
    exchange.use("openblas")
    exchange.use("openblas")
    assert exchange.status().choice == "openblas"
    exchange.restore()
    assert exchange.status().choice == "" and exchange.status().slots == 0


def test_libraries_by_routine() -> None:
    available("mkl"), available("openblas")
    with exchange.use({"dgesdd": "mkl", "?getrf": "numpy", "blas": "mkl", "*": "openblas"}):
        status = exchange.status()
        assert status.library("dgesdd", "scipy") == "mkl" == status.library("dgesdd", "numpy")
        assert status.library("dgetrf", "scipy") == "numpy"
        assert status.library("dgeqrf", "scipy") == "openblas"
        assert status.library("dgemm", "scipy") == "mkl" == status.library("dgemm", "numpy")
        assert np.allclose(np.linalg.svd(np.diag([3.0, 2.0]), compute_uv=False), [3, 2])


def test_level_1_is_exchanged_wholly_or_not_at_all() -> None:
    available("mkl")
    with exchange.use({"level1": "numpy", "*": "mkl"}):
        assert {r.library for r in exchange.status().routines if r.family == "level1"} == {"numpy"}
    with exchange.use({"d*": "numpy", "*": "mkl"}):  # patterns pass them over
        assert exchange.status().library("ddot") == "mkl" and exchange.status().library("dgemm") == "numpy"
    long = np.arange(20_000.0)
    wanted = float(np.add.reduce(long * long))
    with exchange.use("mkl"):
        found = exchange.status()
        assert {r.library for r in found.routines if r.family == "level1" and not r.reason} == {"mkl"}
        assert found.library("ddot") == "mkl" and found.library("zdotc", "scipy") == "numpy"
        assert np.vdot([1j, 2.0], [3.0, 4.0]) == 8 - 3j
        assert np.isclose(long @ long, wanted) and np.isclose(np.vdot(long * 1j, long * 1j), wanted)
        assert scipy.linalg.blas.dnrm2(np.array([3.0, 4.0])) == 5
        assert np.isclose(scipy.linalg.blas.dnrm2(long), wanted**0.5) and np.isclose(scipy.linalg.blas.sdot(long[:50], long[:50]), 40425)
        assert scipy.linalg.blas.idamax(long) == 19_999
    with pytest.raises(errors.BadValue, match="level 1 are exchanged together"):
        exchange.use({"ddot": "mkl"})


def test_functions_that_return_complex_numbers_stay() -> None:
    available("mkl")
    with exchange.use("mkl"):
        complex_results = [r for r in exchange.status().routines if r.family == "complex result"]
        assert complex_results and {(r.library, r.reason) for r in complex_results} == {
            ("numpy", "libraries differ in how they return a complex number")
        }
        x = np.array([1 + 2j, 3.0])
        assert scipy.linalg.blas.zdotc(x, x) == np.vdot(x, x)


def test_what_a_library_lacks_stays_and_the_status_says_so() -> None:
    """BLIS has no LAPACK, and 32-bit integers where NumPy asks for 64."""
    available("blis")
    with exchange.use("blis"):
        status = exchange.status()
        gesdd = next(r for r in status.routines if (r.package, r.routine) == ("scipy", "dgesdd"))
        assert gesdd.library == "numpy" and gesdd.reason == "BLIS has no dgesdd"
        assert status.library("dgemm") == "blis" and status.library("dgemm", "scipy") == "blis"
        assert status.library("dgesdd") == "numpy"


def test_a_named_routine_that_cannot_be_exchanged_is_refused() -> None:
    available("blis")
    with pytest.raises(errors.BadValue, match="dgesdd cannot be exchanged for blis's") as caught:
        exchange.use({"dgesdd": "blis"})
    assert caught.value.cause and exchange.status().choice == ""


@pytest.mark.parametrize(("choice", "error", "words"), [
    ("mlk", errors.BadValue, ("'mlk'", "write 'mkl'")),
    ("onednn", errors.BadValue, ("'onednn'", "one of: mkl, openblas, blis, numpy")),
    ({"dgesddd": "numpy"}, errors.BadValue, ("'dgesddd'", "'dgesdd'")),
    ({}, errors.BadValue, ("empty",)),
    ({"dgesdd": 3}, errors.BadType, ("dgesdd",)),
    (3, errors.BadType, ("int",)),
    ("dgesdd=mlk", errors.BadValue, ("'mlk'", "'dgesdd'")),
])  # fmt: skip
def test_what_is_refused_before_anything_is_done(choice: Any, error: type[Exception], words: tuple[str, ...]) -> None:
    before = held()
    with pytest.raises(error) as caught:
        exchange.use(choice)
    assert all(word in str(caught.value) for word in words)
    assert held() == before and exchange.status().choice == ""


@pytest.mark.parametrize("small", [{"gemm": -1}, {"gemm": 2.5}, {"gemm": True}, {"lange": 3}])
def test_thresholds_that_are_refused(small: Any) -> None:
    with pytest.raises(errors.BadValue, match="small"):
        exchange.use("numpy", small=small)


def test_small_calls_stay_and_are_counted() -> None:
    available("mkl")
    small, large = np.ones((8, 8)), np.ones((64, 64))

    def counts() -> tuple[int, int]:
        row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("numpy", "dgemm"))
        assert row.small is not None and row.large is not None
        return row.small, row.large

    with exchange.use("mkl"):
        before = counts()
        for _ in range(5):
            assert (small @ (2 * small) == 16).all()
        assert (large @ (2 * large) == 128).all()
        after = counts()
    assert (after[0] - before[0], after[1] - before[1]) == (5, 1)
    with exchange.use("mkl", small={"gemm": 0}):
        row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("numpy", "dgemm"))
        assert row.small is None and row.library == "mkl"  # no threshold: the address is the library's own


def test_counters_of_several_threads_miss_no_call() -> None:
    available("mkl")
    a = np.ones((4, 4))

    def work() -> None:
        for _ in range(2000):
            np.matmul(a, 2 * a)

    with exchange.use("mkl", small={"gemm": 31_000}):
        row = lambda: next(r for r in exchange.status().routines if (r.package, r.routine) == ("numpy", "dgemm"))  # noqa: E731  # asked again and again
        before = row().small
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = row().small
    assert before is not None and after is not None and after - before == 8000


def test_threads_follow_the_switch() -> None:
    """In a process of its own: tests before this one may have left counts of a thread's own in MKL."""
    available("mkl")
    python("""
        import scipy.linalg
        import backline
        from backline.interop import numpy as exchange
        from backline.interop.exchange import targets

        target = targets.load("mkl")
        before = target.get_threads()
        with exchange.use("mkl"):
            backline.set_num_threads(3)
            assert target.get_threads() == 3 == exchange.status().threads
            backline.set_num_threads(1)
            assert target.get_threads() == 1
        assert target.get_threads() == before
    """)


def test_the_old_pools_have_one_thread_meanwhile() -> None:
    available("mkl")
    before = pool_threads()
    wider = {file for file in loaded_origins() if threads_of(file) > 1}
    with exchange.use("mkl"):
        assert set(pool_threads()) == {1}
        assert set(exchange.status().limited) == wider
    assert pool_threads() == before
    with exchange.use("mkl", keep_pools=True):
        assert pool_threads() == before
    with exchange.use({"dgesdd": "mkl"}):  # most is left to them
        assert pool_threads() == before


def test_frozen_settings_refuse_an_exchange() -> None:
    switches.freeze()
    try:
        for call in (lambda: exchange.use("numpy"), exchange.restore):
            with pytest.raises(errors.Frozen, match="refused: the base is frozen"):
                call()
    finally:
        switches.freeze(False)


def test_determinism_refuses_an_exchange() -> None:
    available("openblas")
    with backline.backends.flags(deterministic=True), pytest.raises(errors.NotDeterministic, match="deterministic is on"):
        exchange.use("openblas")
    assert exchange.status().choice == ""


def test_a_library_that_is_switched_off_is_refused() -> None:
    available("mkl")
    with backline.backends.mkl.flags(enabled=False), pytest.raises(errors.BackendUnavailable, match=r"disabled by mkl\.enabled"):
        exchange.use("mkl")


def test_a_library_that_is_switched_off_later_can_be_restored() -> None:
    available("mkl")
    with exchange.use("mkl"):
        try:
            backline.backends.mkl.enabled = False
            assert exchange.status().library("dgemm") == "mkl"  # the exchange was made, and holds
        finally:
            switches.withdraw("mkl.enabled")
    assert exchange.status().choice == ""


def test_wrong_results_are_found_and_all_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    available("openblas")
    before = held()
    monkeypatch.setattr(exchange_state, "_compared", set())
    real, calls = self_check.results, []

    def results() -> dict[str, Any]:
        calls.append(1)
        found = real()
        return found if len(calls) == 1 else found | {"numpy.linalg.inv": found["numpy.linalg.inv"] * 1.001}

    monkeypatch.setattr(self_check, "results", results)
    with pytest.raises(errors.LibraryFailed, match=r"do not agree: numpy\.linalg\.inv differs"):
        exchange.use("openblas")
    assert same(before)
    assert exchange.status().choice == ""


def test_a_routine_that_computes_wrong_numbers_is_refused_with_its_family(monkeypatch: pytest.MonkeyPatch) -> None:
    available("openblas")
    target = targets.load("openblas")
    real = target.address
    wrong = real("fortran", "dsyrk", 4)
    monkeypatch.setattr(function_checks, "_known", {})
    monkeypatch.setattr(target, "address", lambda i, r, w: wrong if (i, r) == ("fortran", "dgemm") else real(i, r, w))
    found = function_checks.refusals(target, 4)
    assert "dgemm computes a wrong result" in found["fortran", "blas", "d"]
    assert ("fortran", "blas", "s") not in found and ("fortran", "lapack", "d") not in found


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_library_passes_the_checks_of_its_routines(library: str) -> None:
    available(library)
    target = targets.load(library)
    for width in target.namings:
        assert function_checks.refusals(target, width) == {}
    assert function_checks.complex_convention(target) in ("registers", "hidden argument")


def test_another_programs_exchange_is_seen_and_left_alone() -> None:
    available("openblas")
    stranger = _exchange.no_function()
    mine = next(m for m in loaded_objects.modules() if m.package == "scipy" and any(s.symbol.routine == "dgemm" for s in m.slots))
    slot = next(s for s in mine.slots if s.symbol.routine == "dgemm")
    value = _exchange.read(slot.address)
    assert _exchange.write([(slot.address, value, stranger)]) == -1
    try:
        with pytest.raises(errors.LibraryFailed, match="another program has exchanged it"):
            exchange.use("openblas")
        assert exchange.status().choice == ""
    finally:
        assert _exchange.write([(slot.address, stranger, value)]) == -1


def test_the_status_is_a_table() -> None:
    available("mkl")
    with exchange.use("mkl"):
        status = exchange.status()
        console = rich.console.Console(width=150, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  # open to the end of the process
        console.print(status)
        console.file.close()
        shown = console.export_text()
        assert "exchanged for mkl" in shown and "lapack" in shown and "exchanged for mkl" in str(status)
        assert "small calls stayed" in str(status) and "libraries differ in how they return" in str(status)
    assert str(exchange.status()).startswith("nothing is exchanged")
