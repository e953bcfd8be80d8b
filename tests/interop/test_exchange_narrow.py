"""NumPy's LAPACK on a library with 32-bit integers: integers converted both ways, large ones left where 64 bits are taken."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backline import _exchange
from backline.interop import numpy as exchange
from backline.interop.exchange import loaded_objects, narrow_calls, routines, targets
from exchange_support import child, restored, wheels_only
from support import need, new_seed

pytestmark = [wheels_only, pytest.mark.usefixtures("restored")]
assert restored
DTYPES = ("float32", "float64", "complex64", "complex128")


@pytest.fixture
def narrow() -> str:
    """A library whose LAPACK has 32-bit integers only."""
    need("openblas")
    if 8 in targets.load("openblas").namings:
        pytest.skip("the OpenBLAS that is installed has 64-bit integers")
    return "openblas"


# One function --------------------------------------------------------------------------------------------------------


class Recorded:
    """A routine of so many arguments in two widths that notes what it is called with and writes what it is told."""

    def __init__(self, kinds: str, writes: dict[int, list[int]], largest: int = 100) -> None:
        self.calls: list[tuple[int, list[int]]] = []
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(kinds))

        def routine(width: int) -> Callable[..., None]:
            integer = ctypes.c_int32 if width == 4 else ctypes.c_int64

            def run(*pointers: int) -> None:
                self.calls.append((width, [integer.from_address(p).value for p in pointers]))
                for position, values in writes.items():
                    (integer * len(values)).from_address(pointers[position])[:] = values

            return run

        self._kept = [prototype(routine(8)), prototype(routine(4))]
        wide, short = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._kept)
        self.function = prototype(_exchange.narrow_call(wide, short, kinds, largest))

    def __call__(self, *values: Any) -> list[Any]:
        memory = [np.atleast_1d(np.array(value, np.int64)) for value in values]
        self.function(*[array.ctypes.data for array in memory])
        return [array.tolist() for array in memory]


def test_integers_are_converted_both_ways() -> None:
    getrf = Recorded("ddxivo", {4: [3, 2, -7], 5: [2]})
    found = getrf(3, 4, 99, 3, [55, 55, 55, 55], -5)
    assert getrf.calls == [(4, [3, 4, 99, 3, 55, 0])]
    assert found == [[3], [4], [99], [3], [3, 2, -7, 55], [2]]


def test_a_vector_has_as_many_elements_as_the_least_dimension() -> None:
    for m, n in ((1, 3), (3, 1), (2, 2), (0, 3), (3, 0)):
        getrf = Recorded("ddxivo", {4: [1, 2, 3][: min(m, n)], 5: [0]})
        assert getrf(m, n, 0, 3, [9, 9, 9], 1)[4] == [1, 2, 3][: min(m, n)] + [9] * (3 - min(m, n))


def test_nothing_is_widened_after_an_error_in_the_arguments() -> None:
    gesv = Recorded("dixivxio", {7: [-4]})
    values = [3, 1, 0, 3, [2**40 + 1, 2**41 + 2, 2**42 + 3], 0, 3, 0]
    assert gesv(*values)[4] == values[4] and gesv(*values)[7] == [-4]


def test_the_first_element_of_workspace_is_a_result() -> None:
    gelsd = Recorded("ddixixixxoxiwo", {9: [2], 12: [77], 13: [0]})
    found = gelsd(3, 2, 1, 0, 3, 0, 3, 0, 0, 8, 0, -1, [5, 2**40], 9)
    assert found[12] == [77, 2**40] and found[9] == [2] and found[13] == [0] and found[11] == [-1]
    assert gelsd.calls[0][1][11] == -1


@pytest.mark.parametrize(("position", "value", "width"), [
    (0, 100, 4), (0, 101, 8), (1, 101, 4), (1, 2**31 - 1, 4), (1, 2**31, 8), (1, -(2**31), 4), (1, -(2**31) - 1, 8), (3, 2**40, 8),
    (0, 2**33 + 5, 8), (0, -1, 4),
])  # fmt: skip
def test_numbers_that_are_too_large_go_to_the_wide_routine(position: int, value: int, width: int) -> None:
    """A dimension (the first) has a bound of its own, other integers that of 32 bits."""
    gesv = Recorded("dixixxio", {7: [0]})
    values = [3, 1, 0, 3, 0, 0, 3, 0]
    values[position] = value
    assert gesv(*values)[position] == [value]
    assert [called for called, _ in gesv.calls] == [width]


@pytest.mark.parametrize("kinds", ["", "dddd", "d" * 16, "dixix?io", "DIXIXXIO"])
def test_kinds_that_are_refused(kinds: str) -> None:
    with pytest.raises(ValueError, match="the kinds of 5 to 15 arguments"):
        _exchange.narrow_call(_exchange.no_function(), _exchange.no_function(), kinds, 3)
    with pytest.raises(ValueError, match="two functions"):
        _exchange.narrow_call(0, _exchange.no_function(), "dixixxio", 3)


def test_what_numpy_calls_by_reference_can_be_converted() -> None:
    called = {s.symbol.routine for m in loaded_objects.modules(["numpy"]) for s in m.slots if (s.symbol.interface, s.symbol.width) == ("fortran", 8)}
    assert "zgesdd" in called
    exchanged = {name for name in called if routines.family(routines.Symbol(name, "fortran", 8, True)) != "utility"}
    assert {name for name in exchanged if not narrow_calls.kinds(name)} == set()


# NumPy's functions ----------------------------------------------------------------------------------------------------


def test_numpys_lapack_runs_on_the_library(narrow: str) -> None:
    with exchange.use(narrow):
        status = exchange.status()
        called = {r.routine for r in status.routines if (r.package, r.interface) == ("numpy", "fortran") and r.family == "lapack"}
        assert {"cgesv", "dgetrf", "spotrf", "zgesdd", "dgeev", "cgelsd", "ssyevd", "zheevd"} < called
        assert {routine for routine in called if status.library(routine) != narrow} == set()
        assert {status.library(name) for name in ("dgeqrf", "zgeqrf", "dorgqr", "zungqr")} == {narrow}
        row = next(r for r in status.routines if (r.package, r.routine) == ("numpy", "dgesdd"))
        before = row.large or 0
        np.linalg.svd(np.eye(30))
        row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("numpy", "dgesdd"))
        assert row.large == before + 2  # the question for the size of the workspace, and the call


def factored(a: Any, error: Callable[[Any, Any], float]) -> dict[str, float]:
    """Relative errors of NumPy's functions for a matrix, in units of its precision."""
    m, n = a.shape[-2:]
    k = min(m, n)
    found: dict[str, float] = {}
    for full in (False, True):
        u, s, vh = np.linalg.svd(a, full_matrices=full)
        found[f"svd {full}"] = error(u[..., :k] * s[..., None, :] @ vh[..., :k, :], a)
    found["svdvals"] = error(np.linalg.svd(a, compute_uv=False), s)
    q, r = np.linalg.qr(a)
    found["qr"] = error(q @ r, a)
    q, r = np.linalg.qr(a, mode="complete")
    found["qr complete"] = error(q @ r, a) + error(q.conj().swapaxes(-1, -2) @ q, np.eye(m))
    if a.ndim == 2:
        b = a @ np.ones((n, 2), a.dtype)
        x, _, rank, _ = np.linalg.lstsq(a, b, rcond=None)
        found["lstsq"] = error(a @ x, b)
        assert rank == k or m == n  # a square matrix of random numbers may be nearly singular
    if m != n:
        return found
    regular = a + 6 * n**0.5 * np.eye(n, dtype=a.dtype)
    b = regular @ np.ones((n, 3), a.dtype)
    found["solve"] = error(regular @ np.linalg.solve(regular, b), b)
    found["solve vector"] = error(np.linalg.solve(regular, b[..., :1])[..., 0], np.ones(b.shape[:-1]))
    found["inv"] = error(regular @ np.linalg.inv(regular), np.eye(n))
    sign, log = np.linalg.slogdet(regular)
    scaled = regular / np.exp(log / n)[..., None, None].astype(a.dtype)
    found["slogdet"] = error(np.linalg.det(scaled), sign)
    symmetric = a + a.conj().swapaxes(-1, -2)
    for part in "UL":
        w, v = np.linalg.eigh(symmetric, UPLO=part)
        found[f"eigh {part}"] = error(v * w[..., None, :] @ v.conj().swapaxes(-1, -2), symmetric)
    found["eigvalsh"] = error(np.linalg.eigvalsh(symmetric), w)
    positive = symmetric @ symmetric + n * np.eye(n, dtype=a.dtype)
    lower = np.linalg.cholesky(positive)
    found["cholesky"] = error(lower @ lower.conj().swapaxes(-1, -2), positive)
    w, v = np.linalg.eig(a)
    found["eig"] = error(a @ v, v * w[..., None, :])
    found["eigvals"] = error(np.add.reduce(np.linalg.eigvals(a), -1), np.trace(a, axis1=-2, axis2=-1)[()])
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (40, 40), (70, 25), (25, 70), (100, 100), (3, 40, 40)])
def test_every_function_on_the_library(narrow: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Beside the small sizes that stay, sizes that go over, of all types of number."""
    rng = np.random.default_rng(new_seed())
    a = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype.startswith("c") else 0)
    a = np.asarray(a, dtype)
    eps = float(np.finfo(dtype).eps)

    def error(value: Any, wanted: Any) -> float:
        assert value.dtype.itemsize <= np.dtype(dtype).itemsize * (2 if dtype.startswith("f") else 1)
        return float(np.max(np.abs(value - wanted)) / max(np.max(np.abs(wanted)), 1) / eps)

    with exchange.use(narrow):
        assert exchange.status().library("dgesv") == narrow
        found = factored(a, error)
    bound = 300.0 * max(shape)
    assert {name: value for name, value in found.items() if not value < bound} == {}


def test_errors_and_edges_are_numpys(narrow: str) -> None:
    big = np.zeros((50, 50))

    def outcomes() -> list[Any]:
        found: list[Any] = []
        for call in (
            lambda: np.linalg.inv(big), lambda: np.linalg.solve(big, big), lambda: np.linalg.cholesky(-np.eye(50)),
            lambda: np.linalg.det(big), lambda: np.linalg.slogdet(big), lambda: np.linalg.eigvals(np.full((50, 50), np.nan)),
            lambda: np.linalg.svd(np.full((50, 50), np.nan)), lambda: np.linalg.eigvalsh(np.zeros((0, 0))),
            lambda: np.linalg.qr(np.zeros((0, 3))), lambda: np.linalg.inv(np.zeros((2, 0, 0))), lambda: np.linalg.svd(np.zeros((0, 4)))[1],
            lambda: np.linalg.lstsq(big, np.zeros((50, 0)), rcond=None)[2], lambda: np.linalg.lstsq(big, big, rcond=None)[2],
            lambda: np.linalg.solve(np.eye(50), np.zeros((50, 0))), lambda: np.linalg.matrix_rank(big),
            lambda: np.linalg.qr(np.eye(60)[::-1, ::2], mode="raw")[1].shape,
        ):  # fmt: skip
            try:
                with np.errstate(all="ignore"):
                    found.append(str(call()))
            except np.linalg.LinAlgError as error:
                found.append(str(error))
        return found

    before = outcomes()
    with exchange.use(narrow):
        assert outcomes() == before
    assert "Singular matrix" in before and outcomes() == before


def test_many_threads_at_once(narrow: str) -> None:
    rng = np.random.default_rng(new_seed())
    matrices = [rng.standard_normal((n, n)) + n * np.eye(n) for n in (30, 45, 60, 90)]
    wrong: list[int] = []

    def work(a: Any) -> None:
        for _ in range(15):
            b = a @ np.ones(len(a))
            if not np.allclose(np.linalg.solve(a, b), 1) or not np.allclose(np.linalg.inv(a) @ b, 1) or np.linalg.slogdet(a)[0] != 1:
                wrong.append(len(a))

    signs = [np.linalg.slogdet(a)[0] for a in matrices]
    assert signs == [1] * 4
    with exchange.use(narrow):
        threads = [threading.Thread(target=work, args=(a,)) for a in matrices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_matrix_past_the_bound_stays() -> None:
    """The routine in 64 bits is called as it came: MKL's verbose mode, or a counter, would not show this for OpenBLAS."""
    need("openblas")
    text = """
        import numpy as np
        from backline.interop import numpy as exchange
        from backline.interop.exchange import narrow_calls, targets
        if 8 in targets.load("openblas").namings:
            print("done")
            raise SystemExit
        narrow_calls.LARGEST = 20
        a = np.random.default_rng(3).standard_normal((40, 40))
        before = np.linalg.svd(a)
        stays = [x.tobytes() for x in before]
        with exchange.use({"?gesdd": "openblas"}, keep_pools=True):
            assert exchange.status().library("dgesdd") == "openblas"
            assert [x.tobytes() for x in np.linalg.svd(a)] == stays
        print("done")
    """
    assert "done" in child(text)
