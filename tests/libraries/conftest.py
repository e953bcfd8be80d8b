"""Shared objects made for the tests, sound ones and spoilt ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the modules that several folders share

SOURCE = """
int backline_test_answer(void) { return 42; }
double backline_test_data[3] = {1, 2, 3};
static int unseen(void) { return 1; }
__attribute__((visibility("hidden"))) int backline_test_hidden(void) { return unseen(); }
extern int backline_test_wanted(void);
int backline_test_caller(void) { return backline_test_wanted() + backline_test_hidden(); }
"""

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function that compiles a small shared library and says where it is."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("these tests make ELF files with a C compiler")

    def make(name: str = "libtiny.so.1", source: str = SOURCE, flags: Sequence[str] = ()) -> Path:
        folder = tmp_path_factory.mktemp("built")
        text = folder / "source.c"
        text.write_text(source)
        target = folder / name
        command = [compiler, "-shared", "-fPIC", "-Wl,-soname," + name, "-o", str(target), *flags, str(text)]
        subprocess.run(command, check=True, capture_output=True)
        return target

    return make


@pytest.fixture(scope="session")
def tiny(build: Build) -> Path:
    """A sound shared library of a few kilobytes."""
    return build()


@pytest.fixture(scope="session")
def openblas() -> Path:
    """The OpenBLAS of a wheel: a real, large library."""
    import scipy_openblas32

    return Path(scipy_openblas32.get_lib_dir()) / "libscipy_openblas.so"
