"""The libraries that a program chose for its routines, and what is decided from that for each slot."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from ... import _exchange
from ...errors import BadType, BadValue
from . import fourier_functions, function_checks, narrow_calls, routines, targets
from .loaded_objects import Module, Slot
from .routines import Symbol

__all__ = ["ORIGINAL", "Choice", "Decision", "decide", "decide_slot", "parse"]

ORIGINAL = "numpy"
"""The name of what NumPy and SciPy brought along."""

_EXCHANGED = ("blas", "level1", "lapack", "fft")  # families that can be

# Measured to be slower than what NumPy has. A program that names the routine has it exchanged all the same.
_SLOWER: Mapping[tuple[str, str], str] = {
    ("mkl", "geev"): "MKL was measured to be slower",
    ("mkl", "gees"): "MKL was measured to be slower",
    ("mkl", "geesx"): "MKL was measured to be slower",
}


@dataclass(frozen=True)
class Choice:
    """The library of each routine.

    Attributes
    ----------
    rows : tuple of (str, str)
        A routine, a pattern of names, a family or "*", and a library. A routine's own name counts before patterns, these before
        families, and these before "*".
    small : tuple of (str, int)
        Products of sizes below which the former library is kept, by the name of a routine, or without its letter, in place of the
        shipped.
    title : str
        What it is called, in place of the rows.
    """

    rows: tuple[tuple[str, str], ...]
    small: tuple[tuple[str, int], ...] = ()
    title: str = ""

    def __str__(self) -> str:
        if self.title:
            return self.title
        if [pattern for pattern, _ in self.rows] == ["*"]:
            return self.rows[0][1]
        return ", ".join(f"{pattern}={library}" for pattern, library in self.rows)

    def library(self, routine: str, family: str) -> tuple[str, bool]:
        """Returns the library chosen for a routine, and whether the routine itself was named."""
        rows = dict(self.rows)
        rest = rows.get(family, rows.get("*", ORIGINAL))
        # Together or not at all: calls that alternate between two pools of threads take many times as long.
        if family == "level1":
            return rest, False
        if routine in rows:
            return rows[routine], True
        for pattern, library in self.rows:
            if pattern != "*" and pattern not in routines.FAMILIES and fnmatchcase(routine, pattern):
                return library, False
        return rest, False

    def libraries(self) -> tuple[str, ...]:
        """Returns the libraries chosen, in order, without "numpy"."""
        return tuple(dict.fromkeys(library for _, library in self.rows if library != ORIGINAL))

    def transforms(self) -> str:
        """Returns the library chosen for Fourier transforms."""
        return self.library("fft", "fft")[0]

    def threshold(self, routine: str, shipped: int) -> int:
        """Returns the product of sizes from which on a routine is exchanged."""
        small = dict(self.small)
        return small.get(routine, small.get(routine[1:], shipped))


def parse(choice: str | Mapping[str, str], small: Mapping[str, int] | None = None) -> Choice:
    """Returns what a program wrote, checked: a library, or libraries by routine.

    Raises
    ------
    BadType, BadValue
        It is neither, or names a library that there is none of.

    Examples
    --------
    >>> str(parse("mkl")), str(parse("dgesdd=mkl,*=openblas"))
    ('mkl', 'dgesdd=mkl, *=openblas')
    >>> parse({"?gesdd": "mkl", "blas": "openblas"}).library("zgesdd", "lapack")
    ('mkl', False)
    """
    if isinstance(choice, str):
        pairs = [part.partition("=") for part in choice.split(",")] if "=" in choice else [("*", "=", choice)]
        rows: Mapping[str, str] = {left.strip(): right.strip() for left, _, right in pairs}
    elif isinstance(choice, Mapping):
        rows = choice
    else:
        raise BadType(
            f"a choice of libraries is a name or a mapping, not {type(choice).__name__}",
            remedy='"mkl", or {"dgesdd": "mkl", "*": "openblas"}',
        )
    if not rows:
        raise BadValue("the mapping of routines to libraries is empty", remedy='name a library, as in {"*": "mkl"}')
    for pattern, library in rows.items():
        if not isinstance(pattern, str) or not isinstance(library, str):
            raise BadType(f"{pattern!r}: {library!r} is not a pair of names", remedy='write {"dgesdd": "mkl"}')
        known = (*targets.NAMES, ORIGINAL)
        if library not in known and (pattern != "fft" or library not in fourier_functions.LIBRARIES):
            near = difflib.get_close_matches(library, known, 1)
            remedy = f"write {near[0]!r}" if near else f"one of: {', '.join(known)}"
            cause = "" if pattern == "*" else f"it is asked for {pattern!r}"
            if library in fourier_functions.LIBRARIES:
                cause, remedy = "of what can be, it has Fourier transforms only", f'write {{"fft": {library!r}}}'
            raise BadValue(f"{library!r} is no library that can be exchanged", cause=cause, remedy=remedy)
    thresholds = {}
    for name, product in (small or {}).items():
        if isinstance(product, bool) or not isinstance(product, int) or product < 0:
            raise BadValue(f"small[{name!r}] = {product!r} is not a product of sizes", remedy="an integer, 0 for no threshold")
        if name not in routines.SIZED:
            raise BadValue(
                f"small has no {name!r}",
                cause="only some routines have thresholds",
                remedy=f"one of: {', '.join(routines.SIZED)}",
            )
        thresholds[name] = product
    return Choice(tuple(rows.items()), tuple(sorted(thresholds.items())))


@dataclass(frozen=True, slots=True)
class Decision:
    """The library that a slot is to lead to.

    Attributes
    ----------
    module : Module
        The extension module.
    slot : Slot
        The slot.
    library : str
        The library, "numpy" where the slot stays as it is.
    address : int
        What is to be written, 0 where it stays.
    reason : str
        Why it stays, though another library was chosen.
    shim : bool
        Whether the address is that of a function that keeps small calls with the former library.
    """

    module: Module
    slot: Slot
    library: str
    address: int = 0
    reason: str = ""
    shim: bool = False


def decide(choice: Choice, modules: Iterable[Module]) -> tuple[Decision, ...]:
    """Returns the decision for each slot; nothing is written.

    Raises
    ------
    BadValue
        A routine is named that nothing here calls, or that cannot be exchanged.
    BackendUnavailable
        A chosen library is not there.
    """
    modules = tuple(modules)
    _check_names(choice, {slot.symbol.routine for module in modules for slot in module.slots})
    if choice.transforms() in fourier_functions.LIBRARIES:
        targets.found(choice.transforms())  # or refused, whether or not an address leads to it
    known: dict[tuple[Symbol, int], tuple[str, int, str, bool]] = {}
    load = lru_cache(maxsize=None)(targets.load)
    decisions = []
    for module in modules:
        for slot in module.slots:
            key = slot.symbol, slot.function
            if key not in known:
                known[key] = _of_routine(choice, slot, load)
            decisions.append(Decision(module, slot, *known[key]))
    return tuple(decisions)


def decide_slot(choice: Choice, module: Module, slot: Slot) -> Decision:
    """Returns the decision for one slot.

    Raises
    ------
    BadValue
        The choice names the routine, which cannot be exchanged.
    BackendUnavailable
        The library is not there.
    """
    return Decision(module, slot, *_of_routine(choice, slot, targets.load))


def _check_names(choice: Choice, called: set[str]) -> None:
    for pattern, library in choice.rows:
        reason = fourier_functions.missing(library) if pattern == "fft" and library != ORIGINAL else ""
        if reason:
            raise BadValue(
                f"transforms cannot be exchanged for {library}'s", cause=reason,
                remedy=f"one of: {', '.join(fourier_functions.LIBRARIES)}",
            )  # fmt: skip
        if pattern in _EXCHANGED or any(c in pattern for c in "*?["):
            continue
        if pattern not in called:
            near = difflib.get_close_matches(pattern, sorted(called), 3)
            raise BadValue(
                f"{pattern!r} is no routine that NumPy or SciPy calls here",
                cause="names are those of BLAS and LAPACK; modules that are not imported yet are not known",
                remedy=f"write {' or '.join(map(repr, near))}" if near else "import the module that calls it first",
            )  # fmt: skip
        if library != ORIGINAL and routines.family(Symbol(pattern, "fortran", 4, True)) == "level1":
            raise BadValue(
                f"{pattern!r} cannot be exchanged by itself", cause="routines of level 1 are exchanged together, or not at all",
                remedy=f'write {{"level1": {library!r}}}',
            )  # fmt: skip


_DECLINED = {
    "complex result": "libraries differ in how they return a complex number",
    "utility": "what it answers belongs to the library that asks",
}


def _of_routine(choice: Choice, slot: Slot, load: Callable[[str], targets.Target]) -> tuple[str, int, str, bool]:
    """Returns library, address, reason and whether the address is a shim's."""
    symbol = slot.symbol
    family = routines.family(symbol)
    name, is_named = choice.library(symbol.routine, family)
    reason = ""
    if name != ORIGINAL:
        reason = _DECLINED.get(family, "")
        if not reason and not is_named:
            reason = _SLOWER.get((name, symbol.routine[1:]), "")
        if not reason:
            address, reason, shim = _address(choice, load(name), slot, family)
            if not reason:
                return name, address, "", shim
        if is_named:
            raise BadValue(f"{symbol.routine} cannot be exchanged for {name}'s", cause=reason, remedy="leave it out")
    return ORIGINAL, 0, reason, False


def _address(choice: Choice, target: targets.Target, slot: Slot, family: str) -> tuple[int, str, bool]:
    symbol = slot.symbol
    sizes = routines.sizes(symbol.routine, symbol.interface)
    width = symbol.width
    narrow = width == 8 and 8 not in target.namings
    converted = narrow and symbol.interface == "fortran"
    if narrow:
        # By value, a 64-bit integer is a 32-bit one to a function that looks at half of the register. By reference it is not.
        if not narrow_calls.kinds(symbol.routine) if converted else sizes is None:
            return 0, f"it is called with 64-bit integers, {target.title} here has 32-bit ones", False
        width = 4
    address = target.address(symbol.interface, symbol.routine, width)
    if not address:
        return 0, f"{target.title} has no {symbol.routine}", False
    wrong = function_checks.refusals(target, width)
    letter = routines.letter(symbol.routine)
    reasons = [r for (i, f, x), r in wrong.items() if (i, f) == (symbol.interface, family) and letter in ("", x)]
    if reasons:
        return 0, f"{target.title}: {reasons[0]}", False
    if converted:
        address = narrow_calls.address(symbol.routine, slot.function, address)
        if not address:
            return 0, _NO_MORE, False
    threshold = choice.threshold(symbol.routine, sizes.small) if sizes else 0
    if sizes is None or (threshold == 0 and (converted or not narrow)):
        return address, "", False
    mode = (2 if symbol.interface == "cblas" else 0) + (symbol.width == 8)
    return _shim(slot.function, address, mode, sizes.positions, threshold, sizes.integers if narrow else ())


_NO_MORE = "no more functions that stand before routines are left in this process"
_shims: dict[tuple[object, ...], int] = {}


def _shim(
    small: int, large: int, mode: int, sizes: tuple[int, ...], threshold: int, checked: tuple[int, ...]
) -> tuple[int, str, bool]:
    """Returns the shim for two functions: the one that was made before, if there is one."""
    key = small, large, mode, sizes, threshold, checked
    if key not in _shims:
        address = _exchange.shim(small, large, mode, bytes(sizes), threshold, bytes(checked))
        if not address:
            return 0, _NO_MORE, False
        _shims[key] = address
    return _shims[key], "", True
