"""Facts that files tell of libraries in other processes, and the limits of their threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from backline.libraries import in_process
from backline.libraries.file_facts import facts, origin, release
from backline.libraries.in_process import LoadedLibrary
from backline.libraries.thread_scopes import scope_of

SERVER = b"OpenBLAS blas_thread_init: pthread_create failed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"\0OpenBLAS 0.3.31.188.0  USE64BITINT DYNAMIC_ARCH NO_AFFINITY \0" + SERVER, ("0.3.31.188.0", "ILP64", "pthreads")),
        (b"\0OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH USE_OPENMP \0" + SERVER, ("0.3.21", "LP64", "openmp")),
        (b"\0OpenBLAS 0.3.26.dev DYNAMIC_ARCH \0", ("0.3.26.dev", "LP64", "none")),
    ],
)
def test_openblas_says_how_it_was_built(tmp_path: Path, text: bytes, expected: tuple[str, ...]) -> None:
    file = tmp_path / "libopenblas.so.0"
    for before in (0, (1 << 20) - 7, 3 << 20):  # the second lies across the end of a piece
        file.write_bytes(b"\1" * before + text + b"\2" * (1 << 20))
        assert facts(str(file), "openblas") == dict(zip(("version", "integers", "threading"), expected, strict=True))


def test_what_a_file_does_not_say_is_left_open(tmp_path: Path) -> None:
    file = tmp_path / "libx.so"
    file.write_bytes(b"OpenBLAS blas_thread_init \xff\xfe")
    assert facts(str(file), "openblas") == {} and facts(str(file), "mkl") == {}
    file.write_bytes(b"fftw-3.3.10-sse2")
    assert facts(str(file), "fftw") == {"version": "3.3.10"}
    file.write_bytes(b"")
    assert facts(str(file), "fftw") == {} and facts(str(tmp_path), "fftw") == {}


def test_what_this_process_is_told_by_its_libraries_stands_in_their_files() -> None:
    import numpy.linalg

    assert numpy.linalg
    for library in in_process.loaded():
        if library.family == "openblas" and not library.deleted:
            found = facts(library.path, "openblas")
            assert library.version.startswith(found["version"]) or not found
            if found:
                assert found["integers"] == library.integers
                assert found["threading"] == library.threading or library.threading == "team"


def test_packages_and_their_releases(tmp_path: Path) -> None:
    site = tmp_path / "env/lib/python3.11/site-packages"
    (site / "numpy.libs").mkdir(parents=True)
    (site / "numpy-2.4.6.dist-info").mkdir()
    (site / "intel_openmp-2026.2.0.dist-info").mkdir()
    assert release(str(site / "numpy.libs/libx.so"), "numpy") == "2.4.6"
    lib = str(tmp_path / "env/lib/libiomp5.so")
    assert origin(lib, "intel-openmp", str(tmp_path / "env/lib")) == "intel-openmp" and release(lib, "intel-openmp") == "2026.2.0"
    assert origin(lib, "", str(tmp_path / "env/lib")) == "environment" and release(lib, "environment") == ""
    elsewhere = str(tmp_path / "lib/libiomp5.so")
    assert origin(elsewhere, "intel-openmp", str(tmp_path / "lib")) == str(tmp_path / "lib")
    assert origin(elsewhere, "intel-openmp", "system") == "system" and release(elsewhere, str(tmp_path / "lib")) == ""


def test_the_variable_that_decides_is_named() -> None:
    library = LoadedLibrary("openblas", "blas", "/a/libopenblas.so", "numpy", threading="pthreads")
    scope = scope_of(library)
    assert scope is not None and scope.text({}).startswith("its own threads; OPENBLAS_NUM_THREADS and ")
    assert "; OMP_NUM_THREADS=3; " in scope.text({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": " "})
    assert "; OPENBLAS_NUM_THREADS=2; " in scope.text({"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "2"})
    assert scope_of(LoadedLibrary("cudnn", "cuda", "/a/libcudnn.so", "x")) is None
