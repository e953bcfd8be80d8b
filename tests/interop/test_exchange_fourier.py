"""Transforms under an exchange: numpy.fft and scipy.fft on other libraries, with NumPy's and SciPy's results, dtypes and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import scipy.fft

import backline
from backline import errors
from backline.interop import numpy as exchange
from backline.interop.exchange import exchange_state, fourier_functions
from exchange_support import child, restored, wheels_only
from support import need, new_seed

pytestmark = [wheels_only, pytest.mark.usefixtures("restored")]
assert restored
LARGE = fourier_functions.SMALL
ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
REAL_INPUT = ("rfft", "ihfft", "rfft2", "rfftn")


@pytest.fixture(autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Limits transforms to one thread, and asks for MKL unless a test is of each library: what is tested is the call."""
    if "library" not in request.fixturenames:
        need("mkl")
    with backline.num_threads(1):
        yield


@pytest.fixture(params=fourier_functions.LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """Each library that has transforms."""
    need(request.param)
    return str(request.param)


def difference(got: Any, wanted: Any) -> float:
    """Root mean square of the difference, relative to the values', in units of the precision."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    scale = float(np.sqrt(np.mean(np.abs(wanted.astype(np.clongdouble)) ** 2)))
    error = float(np.sqrt(np.mean(np.abs(got.astype(np.clongdouble) - wanted) ** 2)))
    return error / max(scale, 1e-300) / float(np.finfo(wanted.dtype).eps)


def agree(compute: Callable[[], Any], library: str) -> None:
    """The same on a library as before, but for rounding; the same bits as before afterwards."""
    before = compute()
    with exchange.use({"fft": library}), backline.trace() as trace:
        during = compute()
    assert {event.library for event in trace} == {library}
    assert difference(during, before) < 60
    assert compute().tobytes() == before.tobytes()


@pytest.mark.parametrize("package", ["numpy", "scipy"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int16", "float16"])
def test_transforms_of_all_types(dtype: str, package: str, library: str) -> None:
    rng = np.random.default_rng(new_seed())
    transforms: Any = np.fft if package == "numpy" else scipy.fft
    x = rng.standard_normal((3, 96, 96)) * 9
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(x.shape)
    x = x.astype(dtype)

    def computed(calls: Iterable[tuple[str, dict[str, Any]]]) -> list[Any]:
        return [getattr(transforms, name)(x, **keywords) for name, keywords in calls]

    calls = []
    for name in (*ONE, *SEVERAL):
        keywords: dict[str, Any] = {"norm": ("backward", "ortho", "forward")[rng.integers(3)]}
        if name in ONE:
            keywords |= {"axis": int(rng.integers(-3, 3)), "n": (None, 64, 191, 200)[rng.integers(4)]}
        else:
            keywords |= {"axes": (0, 2), "s": [(3, 96), (5, 100), (2, 201)][rng.integers(3)]}
        if not (dtype.startswith("complex") and name in REAL_INPUT):
            calls.append((name, keywords))
    before = computed(calls)
    with exchange.use({"fft": library}):
        during = computed(calls)
    bound = 1e3 if dtype == "float16" else 60
    assert [call for call, got, wanted in zip(calls, during, before, strict=True) if not difference(got, wanted) < bound] == []
    assert [got.tobytes() for got in computed(calls)] == [wanted.tobytes() for wanted in before]


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda x: x[::-1, ::-1],
    "steps": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "transposed": lambda x: x.T,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, library: str) -> None:
    x = LAYOUTS[layout](np.random.default_rng(new_seed()).standard_normal((180, 200)))
    for package in (np.fft, scipy.fft):
        agree(lambda p=package: p.fft(p.fft(x, n=200), axis=0), library)
        agree(lambda p=package: p.rfft(x, n=200), library)
        agree(lambda p=package: p.irfft(x, n=200), library)


def test_what_mkl_computes_inaccurately_stays() -> None:
    """A composite length with a large prime factor loses digits in MKL: Backline refuses it, and so it stays here."""
    x = np.random.default_rng(new_seed()).standard_normal((200, 2 * 199))
    before = np.fft.fft(x), scipy.fft.fft(x)
    with exchange.use("mkl"), backline.trace() as trace:
        for _ in range(3):
            after = np.fft.fft(x), scipy.fft.fft(x)
            if not trace:  # the errata of this version of MKL have it
                assert [a.tobytes() for a in after] == [b.tobytes() for b in before]
            assert difference(after[0], before[0]) < 1e4

def test_results_go_where_they_are_asked_for() -> None:
    x = np.random.default_rng(new_seed()).standard_normal((150, 200)) + 0j
    wanted = np.fft.fft(x), np.fft.fftn(x), np.fft.irfft(x, 200)
    with exchange.use("mkl"):
        out = np.empty((150, 400), complex)[:, ::2]
        assert np.fft.fft(x, out=out) is out and difference(out, wanted[0]) < 60
        own = x.copy()
        assert np.fft.fft(own, out=own) is own and difference(own, wanted[0]) < 60
        own = x.copy()
        assert np.fft.fftn(own, out=own) is own and difference(own, wanted[1]) < 60
        real = np.empty((150, 200))
        assert np.fft.irfft(x, 200, out=real) is real and difference(real, wanted[2]) < 60
        wide = np.empty((150, 200), np.clongdouble)  # the ufunc casts
        assert np.fft.fft(x, out=wide) is wide and np.allclose(wide, wanted[0])
        kept = x.copy()
        np.fft.fft(x[::-1])
        scipy.fft.fft(x)
        assert np.array_equal(x, kept)


@pytest.mark.parametrize(("call", "error"), [
    (lambda x: np.fft.fft(x, n=0), ValueError),
    (lambda x: np.fft.fft(x, axis=2), IndexError),
    (lambda x: np.fft.fft(x, norm="other"), ValueError),
    (lambda x: np.fft.rfft(x + 0j), TypeError),
    (lambda x: np.fft.fft(x, out=np.empty((150, 199), complex)), ValueError),
    (lambda x: np.fft.fft(x, out=np.empty((150, 200))), TypeError),
    (lambda x: scipy.fft.fft(x, n=0), ValueError),
    (lambda x: scipy.fft.rfft(x + 0j), TypeError),
    (lambda x: scipy.fft.fft(x, workers=0), ValueError),
    (lambda x: scipy.fft.fftn(x, axes=(0, 0)), ValueError),
])  # fmt: skip
def test_errors_are_those_from_before(call: Callable[[Any], Any], error: type[Exception]) -> None:
    x = np.ones((150, 200))
    said = []
    for library in ("numpy", "mkl"):
        with exchange.use(library), pytest.raises(error) as caught:
            call(x)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("x", [
    np.ones(LARGE, np.longdouble), np.ones(LARGE).astype(">f8").byteswap().astype(">f8"),
    np.ones(16), np.ones((0, LARGE)), np.ones(LARGE, object),
], ids=["longdouble", "byte order", "short", "empty", "object"])  # fmt: skip
def test_what_stays_with_numpy(x: Any) -> None:
    ours = np.fft.fft
    try:
        wanted = ours(x)
    except Exception as error:
        with exchange.use("mkl"), pytest.raises(type(error)):
            ours(x)
        return
    with exchange.use("mkl"), backline.trace() as trace:
        found = ours(x)
    assert not trace and type(found) is type(wanted) and np.array_equal(found, wanted)


def test_the_ufuncs_are_put_back_and_keep_their_attributes() -> None:
    module: Any = np.fft._pocketfft.pfu  # type: ignore[attr-defined]  # NumPy's own, without stubs
    before = {name: getattr(module, name) for name in dir(module)}
    with exchange.use("mkl"):
        assert module.fft.signature == before["fft"].signature and not isinstance(module.fft, np.ufunc)
        with exchange.use("openblas" if backline.libraries.get("openblas").available() else "numpy"):
            assert module.fft is before["fft"]  # it has no transforms
        assert module.fft is not before["fft"]
    assert {name: getattr(module, name) for name in dir(module)} == before


def test_the_status_has_a_row_for_transforms() -> None:
    need("openblas")
    with exchange.use({"fft": "mkl", "*": "openblas"}):
        status = exchange.status()
        assert status.library("fft") == status.library("fft", "scipy") == "mkl" and status.library("dgemm") == "openblas"
        assert "from 16,384 points on" in str(status)
    with exchange.use("openblas"):
        row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("numpy", "fft"))
        assert row.library == "numpy" and row.reason == "it has no Fourier transforms"
    with exchange.use({"fft": "numpy", "*": "mkl"}), backline.trace() as trace:
        np.fft.fft(np.ones(LARGE))
    assert not trace


def test_transforms_alone_can_be_exchanged(library: str) -> None:
    x = np.random.default_rng(new_seed()).standard_normal(LARGE)
    before = np.fft.rfft(x)
    with exchange.use({"fft": library}), backline.trace() as trace:
        status = exchange.status()
        assert status.slots == 0 and status.library("fft") == status.library("fft", "scipy") == library
        assert difference(np.fft.rfft(x), before) < 60
    assert [event.library for event in trace] == [library]


def test_one_library_after_the_other() -> None:
    x = np.random.default_rng(new_seed()).standard_normal((16, 1200))
    there = [name for name in fourier_functions.LIBRARIES if backline.libraries.get(name).available()]
    before = np.fft.fft(x).tobytes(), scipy.fft.fft(x).tobytes()
    ran = []
    with backline.trace() as trace, ExitStack() as scopes:
        for name in there:
            scopes.enter_context(exchange.use({"fft": name}))
            np.fft.fft(x), scipy.fft.fft(x)
            ran += [name, name]
    assert [event.library for event in trace] == ran
    assert (np.fft.fft(x).tobytes(), scipy.fft.fft(x).tobytes()) == before


def test_what_one_library_refuses_another_may_run() -> None:
    x = np.random.default_rng(new_seed()).standard_normal(16411)  # one line of a prime, which our loops do not divide
    for _ in range(2):
        for name in ("kernels", "mkl"):
            with exchange.use({"fft": name}), backline.trace() as trace:
                np.fft.fft(x), scipy.fft.fft(x)
            assert [event.library for event in trace] == (["mkl", "mkl"] if name == "mkl" else [])


def test_results_of_transforms_alone_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_state, "_compared", set())
    monkeypatch.setattr(backline.fft, "fft", lambda a, *rest, out: np.multiply(a, 2, out=out))
    x = np.ones(LARGE)
    before = np.fft.fft(x).tobytes()
    with pytest.raises(errors.LibraryFailed, match=r"do not agree: numpy\.fft"):
        exchange.use({"fft": "kernels"})
    assert np.fft.fft(x).tobytes() == before


def test_libraries_of_transforms_have_nothing_else() -> None:
    with pytest.raises(errors.BadValue, match="no library that can be exchanged") as caught:
        exchange.use("kernels")
    assert 'write {"fft": "kernels"}'.replace('"', "'") in str(caught.value).replace('"', "'")
    with pytest.raises(errors.BadValue, match="no library that can be exchanged"):
        exchange.use({"dgemm": "fftw"})


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_state, "_decided", {})
    monkeypatch.setattr(backline.libraries.get("fftw"), "reason", lambda: "it was taken away")
    with pytest.raises(errors.BackendUnavailable, match="NumPy's transforms") as caught:
        exchange.use({"fft": "fftw"})
    assert "taken away" in str(caught.value)


@pytest.mark.parametrize("library", ["openblas", "blis"])
def test_libraries_without_transforms_are_refused_by_name(library: str) -> None:
    need(library)
    with pytest.raises(errors.BadValue, match="transforms cannot be exchanged") as caught:
        exchange.use({"fft": library})
    assert "no Fourier transforms" in str(caught.value) and "mkl" in str(caught.value)


def test_a_library_that_is_switched_off_leaves_transforms_to_numpy() -> None:
    x = np.random.default_rng(new_seed()).standard_normal(LARGE)
    before = np.fft.fft(x), scipy.fft.fft(x)
    with exchange.use("mkl"), backline.backends.mkl.flags(enabled=False):
        assert np.fft.fft(x).tobytes() == before[0].tobytes() and scipy.fft.fft(x).tobytes() == before[1].tobytes()


def test_a_global_backend_of_a_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_state, "_compared", set())  # results are compared as at first, and not by the program's backend
    class Other:
        __ua_domain__ = "numpy.scipy.fft"
        calls = 0

        def __ua_function__(self, method: Any, args: Any, keywords: Any) -> Any:
            self.calls += 1
            return "other"

    other = Other()
    scipy.fft.set_global_backend(other)
    try:
        with exchange.use("mkl"):
            row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("scipy", "fft"))
            assert row.library == "numpy" and "another global backend" in row.reason
            assert scipy.fft.fft(np.ones(LARGE)) == "other"
        assert scipy.fft.fft(np.ones(4)) == "other" and other.calls == 2  # and not for the comparison
    finally:
        scipy.fft.set_global_backend("scipy", try_last=True)
    exchange_state._compared.clear()
    with scipy.fft.set_backend(other), exchange.use("mkl"):
        assert scipy.fft.fft(np.ones(4)) == "other"
    with exchange.use("mkl"):
        scipy.fft.set_global_backend(other, try_last=True)  # by the program, meanwhile
    try:
        assert scipy.fft.fft(np.ones(4)) == "other"
    finally:
        scipy.fft.set_global_backend("scipy", try_last=True)


def test_a_local_backend_comes_first() -> None:
    x = np.random.default_rng(new_seed()).standard_normal(LARGE)
    before = scipy.fft.fft(x)
    with exchange.use("mkl"), scipy.fft.set_backend("scipy"):
        assert scipy.fft.fft(x).tobytes() == before.tobytes()
        cosines = scipy.fft.dct(x)
    with exchange.use("mkl"):
        assert scipy.fft.dct(x).tobytes() == cosines.tobytes()  # left to SciPy


def test_swaps_while_threads_transform() -> None:
    x = np.random.default_rng(new_seed()).standard_normal(LARGE)
    wanted = np.fft.fft(x)
    done, wrong = threading.Event(), []

    def work() -> None:
        while not done.is_set():
            if not np.allclose(np.fft.fft(x), wanted) or not np.allclose(scipy.fft.fft(x), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        with exchange.use({"fft": "mkl"}):
            np.fft.fft(x)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and np.fft.fft(x).tobytes() == wanted.tobytes()


def test_packages_that_are_imported_later() -> None:
    text = """
        import sys, numpy as np, backline
        from backline.interop import numpy as exchange
        assert "numpy.fft" not in sys.modules and "scipy.fft" not in sys.modules
        exchange.use("mkl")
        x = np.random.default_rng(3).standard_normal(1 << 15)
        with backline.trace() as trace:
            np.fft.fft(x)
            import scipy.fft
            during = scipy.fft.rfft(x)
        assert [event.library for event in trace if not event.op.startswith("exchanged.")] == ["mkl", "mkl"], trace
        assert exchange.status().library("fft", "scipy") == "mkl"
        exchange.restore()
        with backline.trace() as trace:
            assert np.allclose(scipy.fft.rfft(x), during) and np.allclose(np.fft.rfft(x), during)
        assert not trace and type(scipy.fft.__loader__).__name__ == "SourceFileLoader"
        print("done")
    """
    assert "done" in child(text)
