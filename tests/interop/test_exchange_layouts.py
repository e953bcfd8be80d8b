"""The systems and builds of NumPy for which there is no exchange, and what is said of each."""

from __future__ import annotations

from typing import Any

import pytest

from backline import errors
from backline.interop.exchange import layouts, loaded_objects, routines


@pytest.mark.parametrize(("system", "machine", "libc", "words"), [
    ("darwin", "arm64", "", "macOS"), ("win32", "AMD64", "", "Windows"), ("linux", "x86_64", "", "musl"), ("linux", "ppc64le", "glibc", "ppc64le"),
])  # fmt: skip
def test_systems_without_an_exchange(system: str, machine: str, libc: str, words: str) -> None:
    assert words in layouts.unsupported(system, machine, libc)


def test_systems_with_an_exchange() -> None:
    assert layouts.unsupported("linux", "x86_64", "glibc") == layouts.unsupported("linux", "aarch64", "glibc") == ""


def _module(origin: str, name: str = "scipy_dgemm_64_") -> loaded_objects.Module:
    symbol = routines.parse(name)
    assert symbol is not None
    return loaded_objects.Module("numpy", "/site/numpy/linalg/_umath_linalg.so", (loaded_objects.Slot(8, symbol, "JUMP_SLOT", 1, 2),), (origin,))


@pytest.mark.parametrize(("modules", "words"), [
    ((), "linked statically"),
    ((_module("/env/lib/libmkl_rt.so.2"),), "MKL already"),
    ((_module("/usr/lib/x86_64-linux-gnu/libblas.so.3", "dgemm_"),), "not the one of its wheel: /usr/lib"),
    ((_module("/site/numpy.libs/libscipy_openblas64_-1.so", "dgemm_"),), "by a name that no wheel uses"),
])  # fmt: skip
def test_builds_of_numpy_that_are_refused(modules: Any, words: str) -> None:
    with pytest.raises(errors.BackendUnavailable, match="cannot be exchanged in this process") as caught:
        layouts.require(modules)
    assert words in str(caught.value) and caught.value.remedy


def test_a_conda_environment_is_told(tmp_path: Any) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "lib").mkdir()
    with pytest.raises(errors.BackendUnavailable, match="conda environment"):
        layouts.require((_module(str(tmp_path / "lib" / "libcblas.so.3")),))
