"""Calls with 64-bit integers for libraries that take 32-bit ones: the arguments of the routines that NumPy calls by reference.

NumPy's wheel passes 64-bit integers. Where a library has 32-bit ones only, a compiled function made from a routine's row here
converts them; the routine's family is checked at 32 bits before, as every other.
"""

from __future__ import annotations

from ... import _exchange

__all__ = ["address", "kinds", "largest"]

LARGEST = 16_000
"""Rows or columns up to which a call is converted. Workspaces of singular values and of eigenvalues have up to four times the
square as many elements, and their sizes, too, have to be 32-bit integers."""

# One letter for each argument: "d" a dimension, "i" another integer, "o" an integer that is written, "v" a vector of integers
# that is written (as many as the least dimension), "w" integer workspace whose first element is a result, "x" the rest.
_ARGUMENTS = {
    "copy": "ixixi",
    "gesv": "dixivxio",
    "getrf": "ddxivo",
    "potrf": "xdxio",
    "geqrf": "ddxixxio",
    "orgqr": "dddxixxio",
    "ungqr": "dddxixxio",
    "syevd": "xxdxixxiwio",
    "heevd": "xxdxixxixiwio",
}
_REAL = {"gesdd": "xddxixxixixixo", "geev": "xxdxixxxixixio", "gelsd": "ddixixixxoxiwo"}
_COMPLEX = {"gesdd": "xddxixxixixixxo", "geev": "xxdxixxixixixo", "gelsd": "ddixixixxoxixwo"}
_NO_WORKSPACE = frozenset(("copy", "gesv", "getrf", "potrf"))


def kinds(routine: str) -> str:
    """Returns the kinds of a routine's arguments in the Fortran interface, "" for one that cannot be converted.

    >>> kinds("dgesv"), kinds("zgesdd"), kinds("dgetrs")
    ('dixivxio', 'xddxixxixixixxo', '')
    """
    letter, name = routine[:1], routine[1:]
    if letter not in tuple("sdcz"):
        return ""
    return _ARGUMENTS.get(name) or (_COMPLEX if letter in "cz" else _REAL).get(name, "")


def largest(routine: str) -> int:
    """Returns the rows or columns up to which a routine is converted.

    >>> largest("dgesv") == 2**31 - 1, largest("dgesdd")
    (True, 16000)
    """
    return 2**31 - 1 if routine[1:] in _NO_WORKSPACE else LARGEST


_functions: dict[tuple[int, int], int] = {}


def address(routine: str, wide: int, narrow: int) -> int:
    """Returns a function that calls `narrow`, or `wide` where a number has more than 32 bits; 0 if no more can be made."""
    key = wide, narrow
    if key not in _functions:
        found = _exchange.narrow_call(wide, narrow, kinds(routine), largest(routine))
        if not found:
            return 0
        _functions[key] = found
    return _functions[key]
