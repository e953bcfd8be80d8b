"""Faults around an exchange: files that vanish, builds that hide their BLAS, a second NumPy, children that are killed, half-done work."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from backline import _exchange, errors
from backline.interop import numpy as exchange
from backline.interop.exchange import (
    choices,
    exchange_state,
    fourier_functions,
    loaded_objects,
    self_check,
    targets,
    thread_counts,
)
from exchange_support import child, held, restored, same, wheels_only
from processes import wrapped
from support import need

pytestmark = [wheels_only, pytest.mark.usefixtures("restored")]
assert restored
A = np.random.default_rng(3).standard_normal((60, 60)) + 60 * np.eye(60)


def untouched(before: dict[int, int]) -> None:
    assert same(before) and exchange.status().choice == "" and exchange.status().slots == 0 and thread_counts.threads() == 0
    assert isinstance(np.fft._pocketfft.pfu.fft, np.ufunc)  # type: ignore[attr-defined]  # NumPy's own, without stubs
    assert not any("later_imports" in type(finder).__module__ for finder in sys.meta_path)


# Libraries ------------------------------------------------------------------------------------------------------------


def test_a_file_that_vanishes_between_its_test_and_the_exchange(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = need("openblas")
    targets._openblas.cache_clear()
    monkeypatch.setattr(library.blas.native, "path", str(tmp_path / "libopenblas.so"))
    before = held()
    try:
        with pytest.raises(errors.BackendUnavailable, match=r"a second copy cannot be mapped: .*No such file"):
            exchange.use("openblas")
        untouched(before)
        (tmp_path / "libopenblas.so").write_bytes(b"\x7fELF and nothing behind it")
        with pytest.raises(errors.BackendUnavailable, match="a second copy cannot be mapped"):
            exchange.use("openblas")
        untouched(before)
    finally:
        monkeypatch.undo()
        targets._openblas.cache_clear()
    with exchange.use("openblas"):
        assert np.allclose(np.linalg.inv(A) @ A, np.eye(60))


def test_a_library_that_lost_its_file_stays_in_use() -> None:
    """It is mapped: an exchange needs the file no more, and neither does its end."""
    need("openblas")
    text = """
        import os, shutil, sys, tempfile, numpy as np, scipy.linalg, backline
        from backline import libraries
        from backline.interop import numpy as exchange
        a = np.random.default_rng(3).standard_normal((60, 60))
        with exchange.use("openblas"):
            before = np.linalg.inv(a)
        native = libraries.get("openblas").blas.native
        native.path = "/nowhere/libopenblas.so"
        with exchange.use("openblas"):
            assert exchange.status().library("dgemm") == "openblas" and np.linalg.inv(a).tobytes() == before.tobytes()
        print("done")
    """
    assert "done" in child(text)


def test_a_routine_that_vanishes_stays_and_the_status_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    need("openblas")
    target = targets.load("openblas")
    real = target.address
    monkeypatch.setattr(target, "address", lambda i, r, w: 0 if r == "dgeqrf" else real(i, r, w))
    monkeypatch.setattr(exchange_state, "_decided", {})
    with exchange.use("openblas"):
        row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("scipy", "dgeqrf"))
        assert (row.library, row.reason) == ("numpy", "OpenBLAS has no dgeqrf")
        assert exchange.status().library("dgetrf", "scipy") == "openblas"
    with pytest.raises(errors.BadValue, match="dgeqrf cannot be exchanged") as caught:
        exchange.use({"dgeqrf": "openblas"})
    assert "OpenBLAS has no dgeqrf" in str(caught.value)


@pytest.mark.parametrize("step", ["write", "threads", "transforms", "compare", "interrupt"])
def test_a_failure_at_any_step_leaves_all_as_it_was(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need("openblas")
    before = held()
    wanted: type[BaseException] = RuntimeError

    def fail(*args: Any, **keywords: Any) -> Any:
        raise wanted("on purpose")

    monkeypatch.setattr(exchange_state, "_compared", set())
    if step == "write":
        wanted = OSError
        monkeypatch.setattr(_exchange, "write", fail)
    elif step == "threads":
        real_hold = thread_counts.hold
        monkeypatch.setattr(thread_counts, "hold", lambda names: fail() if (found := set(names)) else real_hold(found))
    elif step == "transforms":
        real_apply = fourier_functions.apply
        monkeypatch.setattr(fourier_functions, "apply", lambda library: fail() if library else real_apply(library))
    else:
        wanted = KeyboardInterrupt if step == "interrupt" else RuntimeError
        real, calls = self_check.results, []
        monkeypatch.setattr(self_check, "results", lambda: fail() if calls else (calls.append(1), real())[1])
    with pytest.raises(errors.LibraryFailed if step == "write" else wanted):
        exchange.use("openblas")
    monkeypatch.undo()
    untouched(before)
    with exchange.use("openblas"):
        assert np.allclose(np.linalg.inv(A) @ A, np.eye(60))


def test_too_many_functions_before_routines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A routine stays where none is left; nothing is half-written."""
    need("openblas")
    monkeypatch.setattr(choices, "_shims", {})
    monkeypatch.setattr(exchange_state, "_decided", {})
    monkeypatch.setattr(_exchange, "shim", lambda *args: 0)
    with exchange.use("openblas"):
        row = next(r for r in exchange.status().routines if (r.package, r.routine) == ("scipy", "dgemm"))
        assert row.library == "numpy" and "no more functions" in row.reason
        assert np.allclose(np.linalg.inv(A) @ A, np.eye(60)) and np.allclose(scipy.linalg.inv(A) @ A, np.eye(60))


# Builds of NumPy ------------------------------------------------------------------------------------------------------

MODULE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
DECLARED double scipy_cblas_ddot64_(long, const double *, long, const double *, long) BODY
static PyObject *dot(PyObject *self, PyObject *args) {
    double x[3] = {1, 2, 3};
    return PyFloat_FromDouble(scipy_cblas_ddot64_(3, x, 1, x, 1));
}
static PyMethodDef methods[] = {{"dot", dot, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fakeblas", "", -1, methods};
PyMODINIT_FUNC PyInit_fakeblas(void) { return PyModule_Create(&module); }
"""
ANSWER = "{ return 42.0; }"


def extension(folder: Path, declared: str, body: str, *options: str) -> Path:
    """An extension module that computes an inner product by its BLAS."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if compiler is None or not header.exists():
        pytest.skip("a C compiler and Python's headers make the module for this test")
    source = folder / "fakeblas.c"
    source.write_text(MODULE.replace("DECLARED", declared).replace("BODY", body))
    target = folder / f"fakeblas{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", f"-I{header.parent}", "-o", str(target), str(source), *options], check=True)
    return target


FAKE = """
        import importlib.util, sys, types
        import numpy as np
        from backline import _exchange, errors
        from backline.interop import numpy as exchange
        from backline.interop.exchange import layouts, loaded_objects
        spec = importlib.util.spec_from_file_location("fakeblas", sys.argv[1])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        (row,) = [row for row in _exchange.objects() if row[0] == sys.argv[1]]
        found = loaded_objects._module("numpy", *row)
"""


@pytest.mark.parametrize("options", [("-Wl,-Bsymbolic",), ("-Wl,-Bsymbolic", "-s"), ("-fvisibility=hidden",)], ids=str)
def test_a_module_with_its_blas_inside_has_nothing_to_exchange(options: tuple[str, ...], tmp_path: Path) -> None:
    path = extension(tmp_path, "", ANSWER, *options)
    text = """
        assert found is None and module.dot() == 42.0
        loaded_objects.modules = lambda *packages: ()  # as if NumPy were built like that
        try:
            exchange.use("numpy")
        except errors.BackendUnavailable as error:
            assert "linked statically" in str(error) and "pip install" in error.remedy
            print("refused")
        assert module.dot() == 42.0 and exchange.status().choice == ""
    """
    assert "refused" in child(FAKE + text, arguments=(str(path),))


@pytest.mark.parametrize("options", [("-s", "-Wl,-z,lazy"), ("-s", "-Wl,-z,now,-z,relro")], ids=["lazy", "relro"])
def test_a_stripped_module_is_exchanged_as_any_other(options: tuple[str, ...], tmp_path: Path) -> None:
    """The names of functions of other files are needed by the loader, and so they are there."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "blas.c").write_text(f"double scipy_cblas_ddot64_(void) {ANSWER}\ndouble other(void) {{ return 43.0; }}\n")
    compiler = shutil.which("gcc") or shutil.which("cc") or pytest.skip("a C compiler makes the library for this test")
    library = folder / "libscipy_openblas64_fake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-s", "-o", str(library), str(folder / "blas.c")], check=True)
    path = extension(tmp_path, "extern", ";", str(library), f"-Wl,-rpath,{folder}", *options)
    text = """
        import ctypes
        (slot,) = found.slots
        assert slot.symbol.routine == "ddot" and found.origins == (sys.argv[2],) and layouts._described(found) == ""
        other = ctypes.cast(ctypes.CDLL(sys.argv[2]).other, ctypes.c_void_p).value
        held = _exchange.read(slot.address)
        assert _exchange.write([(slot.address, held, other)]) == -1 and module.dot() == 43.0
        assert _exchange.write([(slot.address, other, held)]) == -1 and module.dot() == 42.0
        print("done")
    """
    assert "done" in child(FAKE + text, arguments=(str(path), str(library)))


def test_a_second_numpy_in_the_process_is_named_and_left_alone(tmp_path: Path) -> None:
    """Its compiled module is loaded from another folder, as programs do that bring a NumPy of their own."""
    need("openblas")
    source = Path(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]  # NumPy's own, without stubs
    (tmp_path / "numpy" / "_core").mkdir(parents=True)
    copy = tmp_path / "numpy" / "_core" / source.name
    shutil.copy(source, copy)
    libs = source.parents[2] / "numpy.libs"
    if libs.exists():
        (tmp_path / "numpy.libs").symlink_to(libs)
    text = """
        import ctypes, os, sys, numpy as np
        from backline import _exchange
        from backline.interop import numpy as exchange
        ctypes.CDLL(sys.argv[1], os.RTLD_NOW | os.RTLD_LOCAL)
        (row,) = [row for row in _exchange.objects() if row[0] == sys.argv[1]]
        before = _exchange.slots(row[1], row[2])
        with exchange.use("openblas"):
            assert _exchange.slots(row[1], row[2]) == before and len(before) > 10
            assert exchange.status().library("dgemm") == "openblas"
            assert any(os.path.dirname(os.path.dirname(sys.argv[1])) in note and "left alone" in note for note in exchange.status().notes)
        assert _exchange.slots(row[1], row[2]) == before
        print("done")
    """
    assert "done" in child(text, arguments=(str(copy),))


# Processes ------------------------------------------------------------------------------------------------------------


def test_children_that_are_killed_in_the_middle_of_swaps() -> None:
    need("openblas")
    text = """
        import os, signal, sys, time, numpy as np, scipy.linalg
        from backline.interop import numpy as exchange
        a = np.random.default_rng(3).standard_normal((60, 60))
        before = np.linalg.inv(a).tobytes()
        with exchange.use("openblas"):
            for turn in range(3):
                reading, writing = os.pipe()
                pid = os.fork()
                if pid == 0:
                    while True:
                        with exchange.use("numpy"):
                            os.write(writing, b".")
                os.read(reading, 1 + turn)  # it is swapping
                os.kill(pid, signal.SIGKILL)
                assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
                os.close(reading), os.close(writing)
                assert exchange.status().choice == "openblas" and np.allclose(np.linalg.inv(a) @ a, np.eye(60), atol=1e-8)
        assert np.linalg.inv(a).tobytes() == before and exchange.status().slots == 0
        print("done")
    """
    assert "done" in child(text)


def test_a_program_that_is_killed_under_the_launcher(tmp_path: Path) -> None:
    need("openblas")
    (tmp_path / "job.py").write_text("import os, signal, numpy\nprint(numpy.ones(3) @ numpy.ones(3), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    plain = ("--disable-numactl", "--disable-taskset", "--disable-iomp", "--use-default-allocator")
    command = wrapped([sys.executable, "-m", "backline", "run", *plain, "--blas", "openblas", "job.py"])
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path, env=os.environ)
    assert result.stdout == "3.0\n"
    assert result.returncode in (128 + signal.SIGKILL, -signal.SIGKILL), result.stderr
    assert "SIGKILL" in result.stderr or "signal 9" in result.stderr


def test_the_end_of_the_interpreter_under_an_exchange() -> None:
    """Functions that run at the end find NumPy on the library, and it ends in good order."""
    need("openblas")
    text = """
        import atexit, threading, time, numpy as np, scipy.linalg
        from backline.interop import numpy as exchange
        a = np.random.default_rng(3).standard_normal((200, 200))

        def last():
            assert np.allclose(np.linalg.inv(a) @ a, np.eye(200), atol=1e-7)
            print("done", exchange.status().choice, flush=True)

        atexit.register(last)
        exchange.use("openblas")
        a @ a
    """
    assert child(text).split() == ["done", "openblas"]


def test_loaded_objects_are_found_by_address() -> None:
    module = next(m for m in loaded_objects.modules(["numpy"]))
    assert loaded_objects.file_at(module.slots[0].address) == os.path.realpath(module.path)
    assert loaded_objects.file_at(8) == ""
