"""The extension modules of NumPy and SciPy in this process, and the addresses through which they call BLAS and LAPACK.

A slot is one such address, in the module's own table. The loader fills it when the module is loaded, or, for a slot that is bound
lazily, at the first call: until then it leads to the module's own code, which asks the loader.
"""

from __future__ import annotations

import bisect
import importlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ... import _exchange
from .routines import Symbol, parse

__all__ = ["Module", "Slot", "file_at", "import_scipy", "modules", "numpy_copies"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One address through which an extension module calls a routine.

    Attributes
    ----------
    address : int
        Where it is.
    symbol : Symbol
        What is called through it.
    kind : str
        Kind of its relocation: "JUMP_SLOT", "GLOB_DAT" or "R_64".
    original : int
        What it held when it was first read.
    function : int
        The function that the loader finds for it, 0 if none.
    """

    address: int
    symbol: Symbol
    kind: str
    original: int
    function: int


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A loaded extension module that calls BLAS or LAPACK.

    Attributes
    ----------
    package : str
        "numpy" or "scipy".
    path : str
        Its file.
    slots : tuple of Slot
        Its slots.
    origins : tuple of str
        Files of the libraries that the loader found for them.
    """

    package: str
    path: str
    slots: tuple[Slot, ...]
    origins: tuple[str, ...]

    @property
    def name(self) -> str:
        """File name without what the interpreter adds to it."""
        return os.path.basename(self.path).partition(".")[0]


_read: dict[tuple[str, int], Module | None] = {}  # by path and base address
_folders: dict[str, str] = {}  # of packages, by the folder as the loader was given it


def modules(packages: Iterable[str] = ("numpy", "scipy")) -> tuple[Module, ...]:
    """Returns the loaded extension modules of packages that call BLAS or LAPACK; each is read once.

    Examples
    --------
    >>> [module.package for module in modules(["numpy"]) if module.name == "_umath_linalg"]
    ['numpy']
    """
    folders = {}
    for package in packages:
        file = getattr(sys.modules.get(package), "__file__", None)
        if file:
            folders[os.path.dirname(os.path.realpath(file))] = package
    found = []
    for path, base, dynamic, start, end in _exchange.objects():
        key = (path, base)
        if key not in _read:
            package = _package(path, folders)
            if not package:
                continue  # and not kept: the package may be imported later
            _read[key] = _module(package, path, base, dynamic, start, end)
        module = _read[key]
        if module is not None and module.package in folders.values():
            found.append(module)
    return tuple(found)


def numpy_copies() -> tuple[str, ...]:
    """Returns the folders of all copies of NumPy that are loaded: a program may have brought one of its own.

    Examples
    --------
    >>> len(numpy_copies())
    1
    """
    names = [path for path, *_ in _exchange.objects() if os.path.basename(path).startswith("_multiarray_umath.")]
    return tuple(dict.fromkeys(os.path.dirname(os.path.dirname(path)) for path in names))


def _files() -> tuple[list[int], list[tuple[int, str]]]:
    """The loaded objects in order of address: where each begins, and where it ends, with its file."""
    rows = sorted((start, end, path) for path, _, _, start, end in _exchange.objects())
    return [start for start, _, _ in rows], [(end, path) for _, end, path in rows]


@lru_cache(maxsize=256)
def _real(path: str) -> str:
    return os.path.realpath(path)


def import_scipy() -> None:
    """Imports the modules of SciPy through which all its routines are called: addresses are known from them."""
    for name in ("scipy.linalg", "scipy.linalg.cython_blas", "scipy.linalg.cython_lapack"):
        importlib.import_module(name)


def file_at(address: int, files: tuple[list[int], list[tuple[int, str]]] | None = None) -> str:
    """Returns the file of the loaded object that an address lies in, "" if in none; `files` saves listing them."""
    starts, ends = files or _files()
    index = bisect.bisect_right(starts, address) - 1
    if index < 0 or address >= ends[index][0]:
        return ""
    return _real(ends[index][1])


def _package(path: str, folders: dict[str, str]) -> str:
    folder = os.path.dirname(path)
    real = _folders.get(folder)
    if real is None:
        real = _folders[folder] = os.path.realpath(folder)
    return next((name for root, name in folders.items() if real == root or real.startswith(root + os.sep)), "")


def _module(package: str, path: str, base: int, dynamic: int, start: int, end: int) -> Module | None:
    named = []
    for address, name, kind, value in _exchange.slots(base, dynamic):
        symbol = parse(name)
        if symbol is not None:
            named.append((address, symbol, kind, value, name))
    if not named:
        return None
    slots, origins, files = [], {}, _files()
    names: dict[int, str] = {}
    for (address, symbol, kind, value, _), function in zip(
        named, _exchange.resolve(path, [row[-1] for row in named]), strict=True
    ):
        if start <= function < end:
            continue  # a function of the module itself
        if function not in names:
            names[function] = file_at(function, files)
        origin = names[function]
        if _is_blas(symbol, origin):
            origins[origin] = True
            slots.append(Slot(address, symbol, kind, value, function))
    return Module(package, path, tuple(slots), tuple(origins)) if slots else None


# Of what has no prefix: a few names that BLAS and LAPACK have and no other Fortran library.
_KNOWN = frozenset(f"{x}{name}" for x in "sdcz" for name in ("gemm", "gemv", "gesv", "getrf", "potrf", "gesdd", "geev"))


def _is_blas(symbol: Symbol, origin: str) -> bool:
    return bool(origin) and (symbol.bundled or symbol.interface == "cblas" or symbol.routine in _KNOWN)
