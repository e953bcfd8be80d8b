"""The exchange and the process: read-only pages, forks, threads that compute meanwhile, modules imported later, programs started under it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backline import _exchange
from backline.interop import numpy as exchange
from backline.interop.exchange import loaded_objects
from exchange_support import child, wheels_only
from processes import wrapped
from support import need

pytestmark = wheels_only


# Pages ----------------------------------------------------------------------------------------------------------------

CALLEE = "double cblas_dthing(double x) { return x + 1; }\ndouble other(double x) { return x + 100; }\n"
CALLER = "double cblas_dthing(double);\ndouble (*pointer)(double) = cblas_dthing;\ndouble through(double x) { return cblas_dthing(x) + 0.5; }\n"
CALLER += "double stored(double x) { return pointer(x); }\n"


def compiled(folder: Path, name: str, source: str, *options: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler makes the libraries for this test")
    (folder / f"{name}.c").write_text(source)
    target = folder / f"lib{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(folder / f"{name}.c"), *options], check=True)
    return target


def protection(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    return ""


@pytest.mark.parametrize("binding", ["-Wl,-z,lazy", "-Wl,-z,now,-z,relro", "-fno-plt"])
def test_calls_and_stored_pointers_of_any_binding_are_rewritten(binding: str, tmp_path: Path) -> None:
    """Full RELRO keeps the addresses on read-only pages: they are writable for the moment of writing only."""
    callee = compiled(tmp_path, "callee", CALLEE)
    path = compiled(tmp_path, "caller", CALLER, "-L", str(tmp_path), "-lcallee", f"-Wl,-rpath,{tmp_path}", binding)
    caller, other = ctypes.CDLL(str(path)), ctypes.CDLL(str(callee)).other
    for function in (caller.through, caller.stored):
        function.restype, function.argtypes = ctypes.c_double, (ctypes.c_double,)
    (row,) = [o for o in _exchange.objects() if o[0] == str(path)]
    slots = [s for s in _exchange.slots(row[1], row[2]) if s[1] == "cblas_dthing"]
    assert "R_64" in {kind for _, _, kind, _ in slots} and len(slots) >= 2
    new = ctypes.cast(other, ctypes.c_void_p).value or 0
    before = {slot: protection(slot) for slot, *_ in slots}
    if "relro" in binding:
        assert any("w" not in mode for mode in before.values())
    assert _exchange.write([(slot, value, new) for slot, _, _, value in slots]) == -1
    assert {slot: protection(slot) for slot, *_ in slots} == before
    assert (caller.through(1.0), caller.stored(1.0)) == (101.5, 101.0)
    assert _exchange.write([(slot, new, value) for slot, _, _, value in slots]) == -1
    assert (caller.through(1.0), caller.stored(1.0)) == (2.5, 2.0)
    assert _exchange.resolve(str(path), ["cblas_dthing", "no_such_function"])[1] == 0
    assert _exchange.file_of(new) == str(callee)


def test_all_addresses_are_written_or_none(tmp_path: Path) -> None:
    compiled(tmp_path, "callee", CALLEE)
    path = compiled(tmp_path, "caller", CALLER, "-L", str(tmp_path), "-lcallee", f"-Wl,-rpath,{tmp_path}")
    caller = ctypes.CDLL(str(path))
    caller.through.restype, caller.through.argtypes = ctypes.c_double, (ctypes.c_double,)
    (row,) = [o for o in _exchange.objects() if o[0] == str(path)]
    slots = _exchange.slots(row[1], row[2])
    changes = [(slot, value, _exchange.no_function()) for slot, _, _, value in slots]
    spoilt = [*changes[:-1], (changes[-1][0], changes[-1][1] + 8, changes[-1][2])]
    assert _exchange.write(spoilt) == len(changes) - 1  # the last one holds something else
    assert [_exchange.read(slot) for slot, *_ in slots] == [value for *_, value in slots]
    with pytest.raises(ValueError, match="is not one of an address"):
        _exchange.write([*changes, (changes[0][0] + 1, 0, 1)])
    with pytest.raises(OSError, match="is not loaded"):
        _exchange.resolve(str(tmp_path / "libcallee2.so"), ["cblas_dthing"])
    assert caller.through(1.0) == 2.5


def test_a_blas_that_is_linked_statically_is_seen_as_none(tmp_path: Path) -> None:
    path = compiled(tmp_path, "static", CALLEE + CALLER.replace("double cblas_dthing(double);", ""), "-Wl,-Bsymbolic")
    ctypes.CDLL(str(path))
    (row,) = [o for o in _exchange.objects() if o[0] == str(path)]
    assert _exchange.slots(row[1], row[2]) == []


def test_a_second_numpy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _exchange.objects()
    other = ("/opt/other/numpy/_core/_multiarray_umath.cpython-311.so", 0, 0, 0, 0)
    monkeypatch.setattr(_exchange, "objects", lambda: [*real, other])
    monkeypatch.setitem(loaded_objects._read, (other[0], 0), None)
    assert any("/opt/other/numpy" in note for note in exchange.status().notes)


# Threads, forks, imports ----------------------------------------------------------------------------------------------

SWAPS = """
    import sys, threading, numpy as np, scipy.linalg, backline
    from backline.interop import numpy as exchange
    count, library = int(sys.argv[1]), sys.argv[2]
    rng = np.random.default_rng(3)
    a = rng.standard_normal((90, 90)) + 90 * np.eye(90)
    wanted = np.linalg.inv(a), np.linalg.svd(a, compute_uv=False), a @ a, scipy.linalg.lu_factor(a)[0]
    done, wrong, rounds = threading.Event(), [], []

    def work():
        while not done.is_set():
            got = np.linalg.inv(a), np.linalg.svd(a, compute_uv=False), a @ a, scipy.linalg.lu_factor(a)[0]
            if not all(np.allclose(x, y, rtol=1e-10, atol=1e-12) for x, y in zip(got, wanted)):
                wrong.append(1)
            rounds.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(count):
        with exchange.use(library):
            pass
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and rounds, (len(wrong), len(rounds))
    assert np.linalg.inv(a).tobytes() == wanted[0].tobytes()
    print("swapped", count, exchange.status().slots)
"""


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis"])
def test_swaps_while_threads_compute(library: str) -> None:
    need(library)
    assert "swapped 40 0" in child(SWAPS, arguments=("40", library))


@pytest.mark.slow
def test_a_thousand_swaps_while_threads_compute() -> None:
    need("mkl")
    assert "swapped 1000 0" in child(SWAPS, arguments=("1000", "mkl"))


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis"])
def test_a_forked_child_computes_and_restores(library: str) -> None:
    need(library)
    text = """
        import os, sys, numpy as np, scipy.linalg, backline
        from backline.interop import numpy as exchange
        a = np.random.default_rng(3).standard_normal((300, 300))
        plain = np.linalg.inv(a)
        exchange.use(sys.argv[1])
        np.linalg.inv(a), a @ a
        pid = os.fork()
        if pid == 0:
            good = np.allclose(np.linalg.inv(a) @ a, np.eye(300), atol=1e-8) and exchange.status().slots > 0
            scipy.linalg.lu_factor(a)
            exchange.restore()
            good = good and np.allclose(np.linalg.inv(a), plain) and exchange.status().slots == 0
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert np.allclose(np.linalg.inv(a) @ a, np.eye(300), atol=1e-8) and exchange.status().slots > 0
        print("done")
    """
    assert "done" in child(text, arguments=(library,))


def test_forks_in_the_middle_of_swaps() -> None:
    need("openblas")
    text = """
        import os, threading, numpy as np, scipy.linalg, backline
        from backline.interop import numpy as exchange
        a = np.random.default_rng(3).standard_normal((60, 60))
        stop = threading.Event()

        def swap():
            while not stop.is_set():
                with exchange.use("openblas"):
                    pass

        thread = threading.Thread(target=swap)
        thread.start()
        for turn in range(15):
            pid = os.fork()
            if pid == 0:
                exchange.restore()
                with exchange.use("openblas"):
                    good = np.allclose(np.linalg.inv(a) @ a, np.eye(60), atol=1e-8) and exchange.status().slots > 0
                os._exit(0 if good and exchange.status().slots == 0 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop.set()
        thread.join()
        print("done")
    """
    assert "done" in child(text)


def test_modules_that_are_imported_later_are_exchanged_as_they_are_imported() -> None:
    need("openblas")
    text = """
        import sys, numpy as np, backline
        from backline.interop import numpy as exchange
        finders = list(sys.meta_path)
        exchange.use("openblas")
        assert exchange.status().library("dgetrf", "scipy") == ""
        import scipy.linalg
        assert exchange.status().library("dgetrf", "scipy") == "openblas", exchange.status()
        assert scipy.linalg._flapack.__loader__.__class__.__name__ == "ExtensionFileLoader"
        a = np.random.default_rng(3).standard_normal((50, 50))
        assert np.allclose(scipy.linalg.inv(a) @ a, np.eye(50))
        exchange.restore()
        assert exchange.status().slots == 0 and [f for f in sys.meta_path if f not in finders] == []
        import scipy.interpolate, scipy.optimize
        assert np.allclose(scipy.linalg.inv(a) @ a, np.eye(50))
        print("done")
    """
    assert "done" in child(text)


def test_importing_the_package_exchanges_nothing_and_imports_no_scipy() -> None:
    text = """
        import sys, backline, backline.interop.numpy
        assert "scipy" not in sys.modules and "rich" not in sys.modules
        assert not any("Finder" in type(f).__name__ and "later_imports" in type(f).__module__ for f in sys.meta_path)
        print("done")
    """
    assert "done" in child(text)


# Programs -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import numpy as np, scipy.linalg
if "--fail" in sys.argv:
    sys.exit(7)
a = np.random.default_rng(3).standard_normal((50, 50))
assert np.allclose(np.linalg.inv(a) @ a, np.eye(50))
import backline
print(__name__, sys.argv[1:], sys.path[0], backline.interop.numpy.status().choice, backline.interop.numpy.status().library("dgemm", "scipy"))
"""
PLAIN = ("--disable-numactl", "--disable-taskset", "--disable-iomp", "--use-default-allocator")


def run(*words: str, folder: Path) -> tuple[int, str, str]:
    command = wrapped([sys.executable, "-m", "backline", "run", *PLAIN, *words])
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=folder, env=os.environ)
    return result.returncode, result.stdout, result.stderr


def test_a_program_runs_under_an_exchange(tmp_path: Path) -> None:
    need("openblas")
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "job.py").write_text(PROGRAM)
    status, out, err = run("--blas", "openblas", "programs/job.py", "--size", "10", folder=tmp_path)
    assert status == 0, err
    assert out.strip() == f"__main__ ['--size', '10'] {folder} openblas openblas"
    status, _, err = run("--blas", "openblas", "programs/job.py", "--fail", folder=tmp_path)
    assert status == 7
    status, out, err = run("--blas", "openblas", "-m", "programs.job", "x", folder=tmp_path)
    assert status == 0 and out.split()[:2] == ["__main__", "['x']"], err


def test_a_program_by_routine(tmp_path: Path) -> None:
    need("openblas")
    (tmp_path / "job.py").write_text(PROGRAM)
    status, out, err = run("--blas", "?gemm=numpy,*=openblas", "job.py", folder=tmp_path)
    assert status == 0 and out.strip().endswith("?gemm=numpy, *=openblas numpy"), out + err


@pytest.mark.parametrize(("words", "status", "said"), [
    (("--blas", "mlk", "job.py"), 2, "write 'mkl'"),
    (("--blas", "mkl", "--no-python", "true"), 2, "--blas and --no-python exclude each other"),
])  # fmt: skip
def test_what_the_launcher_refuses(words: tuple[str, ...], status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    found, out, err = run(*words, folder=tmp_path)
    assert found == status and said in err and not out


def test_scikit_learn_runs_on_the_library_through_scipys_capsules() -> None:
    """KMeans multiplies by a pointer that it took from SciPy's capsules when it was imported, before the exchange."""
    need("openblas")
    pytest.importorskip("sklearn")
    text = """
        import numpy as np
        from sklearn.cluster import KMeans
        from sklearn.datasets import load_digits
        from sklearn.decomposition import PCA
        from sklearn.linear_model import Ridge
        from backline.interop import numpy as exchange
        x, y = load_digits(return_X_y=True)

        def fitted():
            pca = PCA(10, svd_solver="full").fit(x)
            ridge = Ridge().fit(x, y)
            means = KMeans(10, n_init=1, random_state=0, max_iter=5).fit(x)
            return pca.explained_variance_, ridge.coef_, means.inertia_

        def calls():
            row = next(r for r in exchange.status().routines if (r.package, r.routine, r.interface) == ("scipy", "dgemm", "fortran"))
            return (row.small or 0) + (row.large or 0)

        before = fitted()
        with exchange.use("openblas"):
            first = calls()
            KMeans(10, n_init=1, random_state=0, max_iter=5).fit(x)
            assert calls() > first
            under = fitted()
        assert all(np.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(before, under))
        print("done")
    """
    assert "done" in child(text)
