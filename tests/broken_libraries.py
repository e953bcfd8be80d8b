"""C sources of libraries that are broken in one way each, for every kind of library that Backline opens."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

#: How a constructor misbehaves -> what it does, and words of the reason that Backline gives.
CONSTRUCTORS = {
    "crash": ("*(volatile int *)0 = 1;", "crashes when it is tested (SIGSEGV)"),
    "abort": ("abort();", "crashes when it is tested (SIGABRT)"),
    "exit": ("exit(0);", "ends the process that tests it (status 0)"),
    "_exit": ("_exit(0);", "ends the process that tests it (status 0)"),
    "last words": ('fputs("FATAL: no layer\\n", stderr); _exit(2);', "ends the process that tests it (status 2): FATAL: no layer"),
    "forged": ('puts("{\\"reason\\": \\"\\"}"); fflush(stdout); _exit(0);', "ends the process that tests it (status 0)"),
    "hang": ("pause();", "hangs when it is tested"),
}  # fmt: skip

#: Library -> file name, and the functions that the search asks for.
FILES = {
    "openblas": ("libopenblas.so.0", ("cblas_sgemm",)),
    "mkl": ("libmkl_rt.so.2", ("cblas_sgemm", "MKL_Set_Num_Threads_Local")),
    "blis": ("libblis.so.4", ("cblas_sgemm", "bli_thread_set_num_threads")),
    "onednn": ("libdnnl.so.3", ("dnnl_version", "dnnl_engine_get_count")),
    "xnnpack": ("libXNNPACK.so.0", ("xnn_initialize",)),
    "nnpack": ("libnnpack.so.0", ("nnp_initialize",)),
    "libmvec": ("libmvec.so.1", ("_ZGVbN2v_sin",)),
    "fftw": ("libfftw3.so.3", ("fftw_plan_guru64_dft", "fftw_execute_dft")),
}
VARIABLES = {"onednn": "BACKLINE_MKLDNN_LIBRARY"}


def variable(library: str) -> str:
    return VARIABLES.get(library, f"BACKLINE_{library.upper()}_LIBRARY")


def compiled(folder: Path, library: str, constructor: str = "", more: str = "") -> Path:
    """The file of a library that exports what is looked for, whose functions do nothing, with such a constructor."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("a C compiler makes the libraries for this test")
    name, functions = FILES[library]
    source = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
    source += "".join(f"void {each}(void) {{}}\n" for each in functions if f" {each}(" not in more)
    source += more
    if constructor:
        source += f"__attribute__((constructor)) static void first(void) {{ {constructor} }}\n"
    text, target = folder / f"{library}.c", folder / name
    text.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(text)], check=True, capture_output=True)
    return target
