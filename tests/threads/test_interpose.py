"""The process may hold several BLAS and OpenMP libraries: who computes, on which runtime, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import need, python

# A BLAS that says what it is told to, to be found wanting.
SOURCE = r"""
#include <stdint.h>
int isamax_(const int *n, const float *x, const int *inc) {
    CRASH
    int best = 0;
    if (*n < 1) return 0;
    for (int i = 1; i < *n; ++i) if (x[i * *inc] > x[best * *inc]) best = i;
    return best + 1;
}
int scipy_openblas_get_parallel(void) { return 0; }
const char *openblas_get_config(void) { return "OpenBLAS 0.0.fake"; }
const char *openblas_get_corename(void) { return "none"; }
int openblas_get_parallel(void) { return 0; }
#define GEMM(NAME, T) void NAME(int o, int ta, int tb, int m, int n, int k, T alpha, const T *a, int lda, const T *b, int ldb, T beta, \
                                T *c, int ldc) { \
    for (int i = 0; i < m; ++i) for (int j = 0; j < n; ++j) { T s = 0; for (int l = 0; l < k; ++l) s += a[i * lda + l] * b[l * ldb + j]; \
        c[i * ldc + j] = s ERROR; } }
GEMM(cblas_sgemm, float)
#undef ERROR
#define ERROR
GEMM(cblas_dgemm, double)
LAPACK
"""
POTRF = "#include <math.h>\nvoid dpotrf_(const char *u, const int *n, double *a, const int *l, int *i) { for (int j = 0; j < *n; ++j) a[j * *l + j] = ROOT; *i = 0; }"


def fake(folder: Path, *, error: str = "", crash: str = "", root: str = "2.0", lapack: bool = True, source: str = "") -> Path:
    """Compile a library of our own that is sound, or wrong in one respect."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler makes the libraries for this test")
    text = source or SOURCE.replace("CRASH", crash).replace("LAPACK", POTRF.replace("ROOT", root) if lapack else "")
    text = f"#define ERROR {error}\n" + text
    (folder / "blas.c").write_text(text)
    target = folder / "libopenblas.so.0"
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-Wl,-soname,libopenblas.so.0", "-o", target, folder / "blas.c", "-lm"], check=True
    )
    return target


def reason_for(path: Path) -> str:
    """Returns what Backline says of a library that the user names."""
    program = "from backline import libraries; print(libraries.get('openblas').reason())"
    done = python(program, env={"BACKLINE_OPENBLAS_LIBRARY": str(path), "XDG_CACHE_HOME": str(path.parent / "cache")})
    return str(done.stdout).strip()


def test_a_sound_library_passes(tmp_path: Path) -> None:
    assert reason_for(fake(tmp_path)) == ""


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        ({"error": "+ (m > 100)"}, "computes a wrong sgemm of 512 x 512 ones"),
        ({"error": "* 0"}, "computes a wrong sgemm of 3 x 3 ones"),
        ({"crash": "*(volatile int *)0 = 1;"}, "crashes when it is tested (SIGSEGV)"),
        ({"crash": "__builtin_trap();"}, "crashes when it is tested (SIGILL)"),
        ({"root": "4.0"}, "computes a wrong Cholesky factor"),
        ({"lapack": False}, "has no LAPACK"),
    ],
    ids=str,
)
def test_a_library_that_is_wrong_is_refused_with_the_reason(tmp_path: Path, spoil: dict[str, object], text: str) -> None:
    assert text in reason_for(fake(tmp_path, **spoil))  # type: ignore[arg-type]  # parts of the fake


def test_a_library_without_the_symbols_is_refused(tmp_path: Path) -> None:
    reason = reason_for(fake(tmp_path, source="int nothing(void) { return 0; }"))
    assert "cblas_sgemm" in reason


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libopenblas.so.0"
    path.write_text("not a library")
    assert reason_for(path)


def test_calls_go_on_without_a_library_that_was_refused(tmp_path: Path) -> None:
    path = fake(tmp_path, error="* 0")
    python(
        """
import numpy as np, backline
assert (backline.mm(np.ones((3, 3)), np.ones((3, 3))) == 3).all()
found = backline.explain(backline.mm, np.ones((3, 3)), np.ones((3, 3)))
assert any(c.library == "openblas" and "wrong sgemm" in c.reason for c in found.candidates), found
""",
        env={"BACKLINE_OPENBLAS_LIBRARY": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )


# Threads --------------------------------------------------------------------------------------------------------------

CHECK = """
import ctypes, os
import numpy as np
a = np.random.default_rng(1).random((600, 600)).astype("f")
def right(backline, library):
    x = a.astype(float) if library == "blis" else a  # BLIS before 1.1 is refused products of float32
    with backline.use(library, only=True), backline.num_threads(2):
        return bool(np.allclose(backline.mm(x, x)[:5], np.einsum("ij,jk->ik", a[:5].astype(float), a), rtol=1e-4))
"""


def test_mkl_beside_a_global_libgomp() -> None:
    """PyTorch loads libgomp for all to see; MKL's Intel layer then computes wrong products. Backline takes the GNU layer."""
    need("mkl")
    python(
        CHECK
        + """
ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
import backline
from backline import libraries
assert right(backline, "mkl")
assert libraries.get("mkl").report()["threading layer"] == "GNU"
maps = open("/proc/self/maps").read()
assert "libmkl_gnu_thread" in maps and "libmkl_intel_thread" not in maps and "libiomp5" not in maps
"""
    )


def test_a_threading_layer_that_the_user_chose_is_kept_or_refused() -> None:
    """MKL_THREADING_LAYER=INTEL beside a global libgomp: right results or a refusal, never wrong ones."""
    need("mkl")
    python(
        CHECK
        + """
ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)
import backline
from backline import libraries
mkl = libraries.get("mkl")
assert right(backline, "mkl") if mkl.available() else mkl.reason(), mkl.reason()
""",
        env={"MKL_THREADING_LAYER": "INTEL"},
    )


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis"])
def test_which_library_computes_is_proved_by_mkl_itself(library: str) -> None:
    """MKL prints a line for every call it gets: it must, and it alone."""
    need("mkl")
    need(library)
    done = python(
        CHECK
        + f"""
import backline
from backline import libraries
libraries.get("mkl").available(), libraries.get("openblas").available(), libraries.get("blis").available()
print("----", flush=True)
assert right(backline, {library!r})
""",
        env={"MKL_VERBOSE": "1"},
    )
    after = done.stdout.partition("----")[2]
    assert ("MKL_VERBOSE SGEMM" in after) == (library == "mkl"), after


def test_one_team_serves_all_libraries() -> None:
    """After calls on two threads through each library the process has one more thread, not one for each of them."""
    for library in ("mkl", "openblas", "blis"):
        need(library)
    done = python(
        CHECK
        + """
def tasks(): return len(os.listdir("/proc/self/task"))
import backline
from backline import libraries
start = tasks()
counts = []
for library in ("mkl", "openblas", "blis"):
    libraries.get(library).available()
    before = tasks()
    assert right(backline, library) and right(backline, library)
    counts.append(tasks() - before)
print(start, tasks(), counts)
# OpenBLAS makes its own threads when it is loaded, one for every processor but one; they sleep: our callback has the work.
own = max(os.cpu_count() - 1, 0)
assert tasks() - start <= 1 + own, (start, tasks(), counts)
assert counts[1:] == [0, 0], counts
pools = {libraries.get(x).report()["pool"] for x in ("mkl", "openblas", "blis")}
assert pools == {"gomp"}, pools
""",
        env={"OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "2")},
    )
    assert done.stdout
