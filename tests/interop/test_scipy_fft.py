"""scipy.fft with Backline behind it: SciPy's own tests, and what they do not ask."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.fft
from scipy.fft import set_backend, set_workers

import backline
from backline import _core
from backline.interop import scipy_fft as backend
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

# Tests of SciPy's that do not hold, and why. All others do.
EXCEPTIONS = {
    f"test_basic.py::test_fft_with_order[{name}-{order}-{dtype}]": "asks that complex64 results of differently laid out arrays agree"
    " to six decimals, whatever their size: that is less than rounding explains where they are above 16, and the library may sum in"
    " another order for another layout"
    for name in ("fft", "fft2", "fftn")
    for order in ("F", "non-contiguous")
    for dtype in ("complex64", "float32")
} | {
    f"test_basic.py::test_multiprocess[{name}]": "asks that a forked child transforms ones with the bits of its parent (zeros, to a"
    " relative tolerance): the child has one thread, for which another library may be the fastest"
    for name in ("fft", "ifft", "rfft", "irfft")
}
PLUGIN = """
import multiprocessing
import backline.interop.scipy_fft

backline.interop.scipy_fft.set_global()

def pytest_sessionstart(session):
    # SciPy's conftest asks for children that know nothing of their parent; the backend could not be set in those.
    multiprocessing.set_start_method("fork", force=True)
"""


THEIRS = Path(scipy.fft.__file__).parent / "tests"
COSINES_OF_SCIPY = "test_real_transforms.py"
EVERYTHING_ELSE = tuple(sorted(path.name for path in THEIRS.glob("test_*.py") if path.name != COSINES_OF_SCIPY))


@pytest.mark.parametrize(
    ("library", "files", "least"),
    [
        ("", (COSINES_OF_SCIPY,), 3000),
        ("", EVERYTHING_ELSE, 330),
        ("scipy", ("test_basic.py", "test_backend.py", "test_multithreading.py"), 200),
        ("numpy", ("test_basic.py", "test_backend.py", "test_multithreading.py"), 200),
    ],
)
def test_scipys_own_tests(library: str, files: tuple[str, ...], least: int, tmp_path: Path) -> None:
    """All of them with what is chosen by default; with a library alone, those that do not ask for thousands of cosines or lengths."""
    assert (THEIRS / "test_basic.py").exists(), "SciPy was installed without its tests"
    (tmp_path / "backline_for_scipy.py").write_text(PLUGIN)
    source = str(Path(backline.__file__).parents[1])
    path = os.pathsep.join([str(tmp_path), source, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "backline_for_scipy", "-p", "no:cacheprovider", "-W", "ignore", "-rfE"]
    if library:
        command += ["-k", "not test_identity_extensive"]
    # The project's own settings would be found above its environment's folder.
    command += ["-c", os.devnull, f"--rootdir={tmp_path}", *(str(THEIRS / name) for name in files)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "BACKLINE_ONLY": library, "PYTHONWARNINGS": "ignore"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    *lines, last = done.stdout.strip().splitlines() or [""]
    failed = {line.split(" - ")[0].split(" ", 1)[1].rpartition("/")[2] for line in lines if line.startswith(("FAILED", "ERROR"))}
    assert " passed" in last, done.stdout[-3000:] + done.stderr[-3000:]
    assert int(last.split(" passed")[0].split()[-1]) > least
    expected = {name for name in EXCEPTIONS if not (library and "test_multiprocess" in name)}  # one library has one answer
    unexpected = {name for name in failed if not any(name in each for each in expected)}
    assert not unexpected, done.stdout[-6000:]


# What they do not ask ---------------------------------------------------------------------------------------------------


@pytest.fixture
def everywhere() -> Iterator[None]:
    backend.set_global()
    yield
    backend.unset_global()


FUNCTIONS = [f"{i}{s}{n}" for i in ("", "i") for s in ("fft", "rfft", "hfft") for n in ("", "2", "n")]
COSINES = [f"{i}{s}{n}" for i in ("", "i") for s in ("dct", "dst") for n in ("", "n")]


@pytest.mark.parametrize("name", [*FUNCTIONS, *COSINES])
def test_every_function_is_taken_over(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 8))
    function = getattr(scipy.fft, name)
    wanted = function(x)
    with backline.trace() as events, set_backend(backend, only=True):
        result = function(x)
    assert [e.op for e in events] == [name] and result.dtype == wanted.dtype
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)


def test_there_are_no_others() -> None:
    """Parts that SciPy may add to the protocol are met here first."""
    ours = set(backend._FUNCTIONS) | {"fht", "ifht"}
    theirs = {n for n in scipy.fft.__all__ if "multimethod" in repr(getattr(scipy.fft, n))}
    assert theirs == ours


def test_scope_and_global_form(everywhere: None) -> None:
    x = np.arange(8.0)
    with backline.trace() as events:
        scipy.fft.fft(x)
        with set_backend("scipy", only=True):
            scipy.fft.fft(x)
        scipy.fft.dct(x)
    assert [e.op for e in events] == ["fft", "dct"]
    backend.unset_global()
    with backline.trace() as events:
        scipy.fft.fft(x)
    assert not list(events)


def test_what_is_left_to_scipy(everywhere: None) -> None:
    x = np.geomspace(1, 8, 8)
    assert scipy.fft.fht(x, 0.1, 0.5).shape == (8,)
    assert scipy.fft.fftn(x, axes=()) is x  # SciPy's way with no axes
    with pytest.raises(TypeError):
        scipy.fft.fft(np.array([object()]))
    with set_backend(backend, only=True), pytest.raises(scipy._lib.uarray.BackendNotImplementedError):
        scipy.fft.fht(x, 0.1, 0.5)


def test_the_library_chosen_here_does_not_call_scipys_front_door(everywhere: None) -> None:
    """Else it would call itself for ever."""
    with backline.use("scipy", only=True):
        assert scipy.fft.fft(np.ones(4)).tolist() == [4, 0, 0, 0]
        assert backline.explain().library == "scipy"


def test_workers_bound_the_threads(everywhere: None) -> None:
    x = np.ones((64, 1024))

    def threads(**keywords: Any) -> int:
        scipy.fft.fft(x, **keywords)
        return backline.explain().threads

    assert threads() == threads(workers=2) == threads(workers=64) == 2
    assert threads(workers=1) == 1
    with set_workers(2):
        assert threads() == 2
    backline.set_num_threads(4)
    with set_workers(3):
        assert threads() == 3 and threads(workers=1) == 1
    cpus = os.cpu_count() or 1
    assert threads(workers=-1) == min(4, cpus) and threads(workers=-cpus) == 1
    assert backline.get_num_threads() == 4
    for wrong, said in ((0, "must not be zero"), (-cpus - 1, "out of range")):
        with pytest.raises(ValueError, match=said):
            threads(workers=wrong)
    with pytest.raises(TypeError):
        threads(workers="two")


def test_plans_are_refused(everywhere: None) -> None:
    with pytest.raises(NotImplementedError, match="precomputed plan"):
        scipy.fft.fft(np.ones(4), plan="mine")


def test_overwriting_is_a_permission(everywhere: None) -> None:
    x = np.random.default_rng(0).standard_normal(64) + 0j
    wanted, given = scipy.fft.fft(x), x.copy()
    np.testing.assert_array_equal(scipy.fft.fft(given, overwrite_x=True), wanted)
    given = x.copy()
    given.flags.writeable = False
    np.testing.assert_array_equal(scipy.fft.fft(given, overwrite_x=True), wanted)
    np.testing.assert_array_equal(given, x)


def test_what_counts_as_an_array(everywhere: None) -> None:
    for x in ([1, 2, 3, 4], (1.0, 2.0), np.arange(4, dtype=np.int8), np.ones(4, bool), np.float32([1, 2]), [[1j, 2], [3, 4]]):
        with set_backend("scipy", only=True):
            wanted = scipy.fft.fft(x)
        result = scipy.fft.fft(x)
        assert type(result) is np.ndarray and result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted)
    assert scipy.fft.fft(np.arange(4, dtype=">f8")).tolist() == scipy.fft.fft(np.arange(4.0)).tolist()


def test_a_repeated_call_runs_nothing_anew(everywhere: None) -> None:
    x = np.ones((4, 16))
    calls: list[Any] = [lambda: scipy.fft.fft(x, workers=1), lambda: scipy.fft.rfftn(x, axes=[0, 1]), lambda: scipy.fft.dct(x, 3)]
    for call in calls:
        call()
        before = _core.memo_info()["misses"]
        call()
        assert _core.memo_info()["misses"] == before


def test_from_threads(everywhere: None) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((8, n)) for n in (16, 30, 100, 101) * 8]
    with set_backend("scipy", only=True):
        wanted = [scipy.fft.rfft(x) for x in arrays]
    with ThreadPoolExecutor(8) as pool:
        for result, right in zip(pool.map(scipy.fft.rfft, arrays), wanted, strict=True):
            np.testing.assert_allclose(result, right, atol=1e-12)


def test_the_module_is_there_when_it_is_asked_for() -> None:
    assert backline.interop.scipy_fft is backend and "scipy_fft" in dir(backline.interop)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        _ = backline.interop.nothing_of_the_kind
    assert pickle.loads(pickle.dumps(scipy.fft.fft)) is not None
