"""Facts about a library that stand in its file or beside it: for copies in other processes, which are never loaded to be asked.

Loading a file runs its code, with the rights of whoever asks, and another process may have mapped any file. So the file is
read, and what its texts do not say is left open.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

__all__ = ["facts", "origin", "release"]

_TEXTS: Final = {
    "openblas": re.compile(rb"OpenBLAS (\d+\.\d+[\w.]*) ([ \w=]{0,200})"),
    "fftw": re.compile(rb"fftw-(\d+\.\d+[\d.]*)"),
}
"""The text in the file of a family that has its version; of OpenBLAS also how it was built."""

_STARTS_THREADS: Final = b"OpenBLAS blas_thread_init"
"""Part of an error message of OpenBLAS, in builds with threads of their own."""

_CHUNK: Final = 1 << 20
_OVERLAP: Final = 1 << 9


def facts(path: str, family: str) -> dict[str, Any]:
    """Returns version, integers and threading of a library, as far as its file says.

    Examples
    --------
    >>> facts("/nowhere/libopenblas.so.0", "openblas")
    {}
    """
    pattern = _TEXTS.get(family)
    try:
        found = next((match for match in map(pattern.search, _chunks(path)) if match), None) if pattern else None
        if found is None:
            return {}
        answer: dict[str, Any] = {"version": found[1].decode("ascii")}
        if family == "openblas":
            words = found[2].split()
            answer["integers"] = "ILP64" if b"USE64BITINT" in words else "LP64"
            own = b"USE_OPENMP" not in words and any(_STARTS_THREADS in chunk for chunk in _chunks(path))
            answer["threading"] = "openmp" if b"USE_OPENMP" in words else "pthreads" if own else "none"
        return answer
    except OSError:
        return {}


def _chunks(path: str) -> Iterator[bytes]:
    """Yields the bytes of a file in pieces that overlap. It is read, not mapped: it may shrink meanwhile."""
    with open(path, "rb", buffering=0) as file:
        kept = b""
        while more := file.read(_CHUNK):
            yield kept + more
            kept = more[-_OVERLAP:]


def origin(path: str, distribution: str, owner: str) -> str:
    """Returns who brought a file, where `owner` is a folder: a package, or "environment", if that is another environment's.

    Examples
    --------
    >>> origin("/nowhere/lib/libmkl_core.so.3", "mkl", "/nowhere/lib")
    '/nowhere/lib'
    """
    if "/" not in owner:
        return owner
    folder = os.path.dirname(path)
    is_environment = os.path.basename(folder) == "lib" and (
        glob.glob(os.path.join(glob.escape(folder), "python3*", "site-packages"))
        or os.path.isdir(os.path.join(os.path.dirname(folder), "conda-meta"))
    )
    return distribution or "environment" if is_environment else owner


@lru_cache(maxsize=64)
def release(path: str, owner: str) -> str:
    """Returns the release of the package that brought a file, as installed beside it; "" if no package did, or it does not say.

    Examples
    --------
    >>> import os, numpy
    >>> release(os.path.join(os.path.dirname(numpy.__file__), "a.so"), "numpy") in ("", numpy.__version__)
    True
    """
    match = re.match(r"(.*/(?:site|dist)-packages)/", path)
    folder = glob.escape(os.path.dirname(path))
    sites = [glob.escape(match[1])] if match else [os.path.join(folder, "python3*", "site-packages")]
    name = re.sub(r"[-_.]+", "[-_.]", owner) if "/" not in owner else ""
    for site in sites if name else ():
        for found in sorted(glob.glob(os.path.join(site, f"{name}-*.dist-info"))):
            return os.path.basename(found).removesuffix(".dist-info").rpartition("-")[2]
    return ""
