"""Recognition of numerical libraries by their files.

A file name is a hint: distributions let `libblas.so.3` be any BLAS, wheels rename what they bundle. The
exported functions decide where they can be read. A large library may contain several others (PyTorch's
contains MKL), so one file can give several answers.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..native import elf
from . import registry
from .registry import LibraryInfo

__all__ = ["Match", "classify", "families", "owner"]

# The C library, the compilers' runtimes and Python's extension modules: many, and not worth opening.
_NEVER = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgfortran|libquadmath|ld-linux|ld-musl|libpython|"
    r"libffi|libz|libssl|libcrypto|liblzma|libbz2|libuuid|libutil|libresolv|libnss_)[-.\d_]|"
    r".*\.cpython-|.*\.abi3\.so|(?!.*\.so)"
)


@dataclass(frozen=True, slots=True)
class Match:
    """The library that a file was recognised as, and the evidence ("name and symbols", "name", "symbols")."""

    family: LibraryInfo
    evidence: str
    exported: frozenset[str] = frozenset()


def families() -> tuple[LibraryInfo, ...]:
    """Returns the rows of libraries that are recognised in a process, those that were added included."""
    return tuple(row for row in registry.rows() if row.patterns)


def classify(path: str, read: bool = True, among: tuple[LibraryInfo, ...] | None = None) -> tuple[Match, ...]:
    """Returns what a file is: nothing, one library, or several that it contains.

    `read`: whether it may be read; if it may not or cannot be, its name decides alone. `among`: the rows of `families`, where the
    caller has them already.

    Examples
    --------
    >>> [match.family.name for match in classify("/nowhere/libmkl_core.so.3")]
    ['mkl.core']
    >>> classify("/nowhere/libpng.so.16")
    ()
    """
    name = os.path.basename(path)
    among = families() if among is None else among
    named = next((f for f in among if any(fnmatchcase(name, p) for p in f.patterns)), None)
    if named is None and _NEVER.match(name):
        return ()
    if named is not None and not named.markers and named.name != "blas":
        return (Match(named, "name"),)
    markers = [marker for family in among for marker in family.markers]
    try:
        exported = elf.exports(path, markers) if read and elf.supported() else None
    except elf.Refused:
        exported = None
    if exported is None:
        return (Match(named, "name"),) if named else ()
    if named is not None and exported.intersection(named.markers):
        return (Match(named, "name and symbols", exported),)
    matches = [f for f in among if exported.intersection(f.markers)]
    if matches:
        return tuple(Match(family, "symbols", exported) for family in matches)
    return (Match(named, "name"),) if named else ()


def owner(path: str, family: LibraryInfo, prefix: str = sys.prefix) -> str:
    """Returns the origin of a file: a package, the environment, or the system.

    Examples
    --------
    >>> blas = registry.find("openblas")
    >>> owner("/v/lib/python3.11/site-packages/numpy.libs/libscipy_openblas64_-32a4b2a6.so", blas)
    'numpy'
    >>> owner("/usr/lib/x86_64-linux-gnu/libopenblas.so.0", blas, prefix="/v")
    'system'
    """
    match = re.search(r"/(?:site|dist)-packages/([^/]+)/", path)
    if match:
        package = match[1].removesuffix(".libs").replace("_", "-")
        return "scikit-learn" if package == "sklearn" else package
    if re.match(r"(/usr)?/lib(32|64|x32)?/", path):
        return "system"
    if path.startswith(os.path.join(os.path.realpath(prefix), "")) or path.startswith(
        os.path.join(prefix, "")
    ):
        return family.distribution or "environment"
    return os.path.dirname(path)
