"""Explanations of an exchange: the library that runs a routine of some sizes, the others, and the reason of each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from ... import switches
from ...engine import choice as engine_choice
from ...engine.choice import Candidate
from ...engine.tuning import record_store
from ...engine.tuning.record import TuningRecord
from ...errors import BacklineError, BadValue
from ...libraries.base import Algorithm
from ...libraries.reference.numpy_threads import openblas_thread_count
from . import choices, exchange_state, layouts, loaded_objects, narrow_calls, routines, signatures, targets, tuned_choice
from .choices import ORIGINAL, Choice
from .exchange_state import Layer
from .loaded_objects import Module, Slot
from .traced_calls import problem_of

__all__ = ["explain", "sizes_of"]

_NOTHING = Choice((("*", ORIGINAL),))
_ORDER = {"chosen": 0, "next": 1, "refused": 2}


def explain(routine: str, layer: Layer | None, package: str | None, sizes: Mapping[str, int]) -> engine_choice.Choice:
    """Tells which library runs a routine of some sizes under an exchange, and why; nothing is exchanged.

    Parameters
    ----------
    routine
        Its name.
    layer
        The exchange, None for none.
    package
        "numpy" or "scipy": who calls it. By default NumPy, or SciPy where NumPy does not.
    sizes
        Those by which small calls are told from large ones, by name.

    Raises
    ------
    BadValue
        Nothing here calls the routine; sizes are missing or are none of its.
    BackendUnavailable
        This system or this build of NumPy does not allow an exchange.
    """
    layouts.require_system()
    module, slot = _called(routine, package, layouts.require(loaded_objects.modules()))
    question = _Question(module, slot, layer, _checked(routine, sizes))
    return question.answer()


def sizes_of(routine: str) -> tuple[str, ...]:
    """Returns the names of the sizes on which the choice for a routine depends.

    Raises
    ------
    BadValue
        Nothing here calls the routine.
    BackendUnavailable
        This system or this build of NumPy does not allow an exchange.
    """
    layouts.require_system()
    _called(routine, None, layouts.require(loaded_objects.modules()))
    return signatures.work_names(routine)


def _called(routine: str, package: str | None, modules: tuple[Module, ...]) -> tuple[Module, Slot]:
    """Returns the first address through which a package calls a routine; the C interface, by which products are called, first."""
    if package not in (None, "numpy", "scipy"):
        raise BadValue(f"package={package!r} is none of those with an exchange", remedy='"numpy" or "scipy"')
    found = [(m, s) for m in modules for s in m.slots if s.function and package in (None, m.package)]
    same = [(m, s) for m, s in found if s.symbol.routine == routine]
    if not same:
        near = difflib.get_close_matches(str(routine).lower().rstrip("_"), sorted({s.symbol.routine for _, s in found}), 3)
        raise BadValue(
            f"{routine!r} is no routine that {'NumPy or SciPy' if package is None else package} calls here",
            cause="names are those of BLAS and LAPACK; modules that are not imported yet are not known",
            remedy=f"write {' or '.join(map(repr, near))}" if near else "import the module that calls it first: scipy.linalg",
        )
    return min(same, key=lambda pair: (pair[0].package, pair[1].symbol.interface))


def _checked(routine: str, sizes: Mapping[str, int]) -> dict[str, int]:
    wanted = signatures.work_names(routine)
    if set(sizes) != set(wanted):
        names = ", ".join(f"{name}=" for name in wanted)
        raise BadValue(
            f"{routine} was given the sizes {', '.join(sizes) or 'none'}",
            cause=f"a choice depends on {', '.join(wanted)}" if wanted else "no choice depends on its sizes",
            remedy=f"explain({routine!r}, {names})" if wanted else f"explain({routine!r})",
        )
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise BadValue(f"{name} = {size!r} is no size of {routine}", remedy="an integer, 0 or more")
    return {name: sizes[name] for name in wanted}


@dataclass
class _Question:
    """One routine with its sizes, and the exchange that is asked about."""

    module: Module
    slot: Slot
    layer: Layer | None
    sizes: dict[str, int]

    def __post_init__(self) -> None:
        self.symbol = self.slot.symbol
        self.choice = self.layer.choice if self.layer else _NOTHING
        self.is_tuned = self.choice.title == "tuned"
        self.work = math.prod(self.sizes.values())
        self.product = " * ".join(self.sizes)
        self.record = self._record() if self.is_tuned else None

    def answer(self) -> engine_choice.Choice:
        decision = choices.decide_slot(self.choice, self.module, self.slot)
        stays = decision.reason or self._too_small(decision.library, self.choice) or self._too_wide(decision.library)
        taken = ORIGINAL if stays else decision.library
        candidates = [self._candidate(taken, "chosen", self._why(taken, stays))]
        for name in (ORIGINAL, *targets.NAMES):
            if name != taken:
                refused = stays if name == decision.library else self._refused(name)
                candidates.append(self._candidate(name, "refused" if refused else "next", refused or self._why_not(name, taken)))
        candidates.sort(key=lambda c: _ORDER[c.verdict])
        chosen = candidates[0].detail
        assert chosen is not None
        found = engine_choice.Choice(
            problem_of(self.symbol, self._call(), self._shown_sizes()), chosen, candidates, self._basis(), targets.threads()
        )
        found.switches["num_threads"] = str(targets.threads()), str(switches.origin("num_threads"))
        return found

    def _shown_sizes(self) -> tuple[tuple[str, object], ...]:
        # The text of a Problem leaves out numbers that are 0, as False; here each size is to be seen.
        return tuple((name, size or "0") for name, size in self.sizes.items())

    def _call(self) -> signatures.Call | None:
        signature = signatures.find(self.symbol.routine, self.symbol.interface)
        return signatures.usual_call(signature, self.sizes) if signature else None

    def _record(self) -> TuningRecord | None:
        """The tuning record of calls of this class of sizes that took most time."""
        start = f"{tuned_choice.PREFIX}{self.module.package}.{self.symbol.routine} "
        found = [(s, r) for r in tuned_choice.records() if r.key.startswith(start) for s in tuned_choice.samples([r])]
        same = [(s.calls * s.stock, r) for s, r in found if s.work.bit_length() == max(self.work, 1).bit_length()]
        return max(same, key=lambda pair: pair[0])[1] if same else None

    # Why a call stays -----------------------------------------------------------------------------------------------------

    def _too_small(self, name: str, choice: Choice) -> str:
        row = routines.sizes(self.symbol.routine, self.symbol.interface)
        threshold = choice.threshold(self.symbol.routine, row.small) if row and name != ORIGINAL else 0
        if not threshold or self.work >= threshold:
            return ""
        return f"small: {self.product} is {self.work:,}, and calls go there from {threshold:,} on"

    def _too_wide(self, name: str) -> str:
        if name == ORIGINAL or self.symbol.width == 4 or 8 in targets.load(name).namings:
            return ""
        most = narrow_calls.largest(self.symbol.routine) if self.symbol.interface == "fortran" else 2**31 - 1
        wide = [f"{size_name} = {size:,}" for size_name, size in self.sizes.items() if size > most]
        return f"{wide[0]}: its integers have 32 bits, and calls go there up to {most:,}" if wide else ""

    def _refused(self, name: str) -> str:
        """The reason for which a library cannot run the routine, whatever is chosen; "" if it can."""
        if name == ORIGINAL:
            return ""
        if self.record is not None:
            for key, reason in self.record.rejected.items():
                if key.startswith(f"{name}."):
                    return reason
            most = cast(float, switches.get("max_error"))
            error = self.record.errors.get(self._key(name), 0.0)
            if error > most:
                return f"its result differs by {error:.1e}, and max_error is {most:g}"
        only = Choice((("level1", name), ("*", name)))
        try:
            reason = choices.decide_slot(only, self.module, self.slot).reason
        except BacklineError as error_:
            return error_.cause or str(error_)
        if reason or self.is_tuned:
            return reason or self._too_wide(name)
        return self._too_small(name, only) or self._too_wide(name)

    # Reasons --------------------------------------------------------------------------------------------------------------

    def _why(self, taken: str, stays: str) -> str:
        if self.layer is None:
            return "nothing is exchanged"
        if taken == ORIGINAL:
            if stays:
                return stays
            if not self.choice.libraries():
                return "no other library would save 3 % of the time of all recorded calls" if self.is_tuned else "chosen by name"
            return "no other library was measured to be faster by 3 %" if self.is_tuned else "not among what is exchanged"
        measured = self.is_tuned and self.record is not None
        return "measured to be faster" if measured else f"the exchange is for {self.choice}"

    def _why_not(self, name: str, taken: str) -> str:
        if name == ORIGINAL:
            return f"what {self.module.package} brought along" + (", on one thread meanwhile" if self._threads(name) == 1 else "")
        seconds, best = self._seconds(name), self._seconds(taken)
        if not self.is_tuned:
            return f'use("{name}") gives it this call'
        if seconds is None or best is None:
            return "not measured for this class of sizes: `backline tune SCRIPT` measures what a script calls"
        home = dict(self.choice.rows).get("*", ORIGINAL)
        if seconds < best and name != home != ORIGINAL:
            return f"beside {home} it would have to be {record_store.SECOND_POOL:g} times faster: two pools would wait"
        if seconds < best:
            return "faster for this class of sizes, but not by 3 % over all calls that go with it"
        return f"measured to take {seconds / best:.2f} times as long"

    def _basis(self) -> str:
        if self.layer is None:
            return "nothing is exchanged: NumPy and SciPy run on what they brought along"
        text = f"the exchange for {self.choice}"
        if self.record is not None:
            return f"{text}; tuning record of {self.record.created[:10]}: {self.record.key.removeprefix(tuned_choice.PREFIX)}"
        return f"{text}; no tuning record of this class of sizes" if self.is_tuned else text

    # Candidates -----------------------------------------------------------------------------------------------------------

    def _candidate(self, name: str, verdict: str, reason: str) -> Candidate:
        library = self.module.package if name == ORIGINAL else name
        detail = Algorithm(
            library=library, name=self.symbol.routine, threads=self._threads(name), scaled=True, level="off", basis="construction"
        )  # fmt: skip
        error = self.record.errors.get(self._key(name)) if self.record else None
        return Candidate(
            library, self.symbol.routine, verdict, reason, seconds=self._seconds(name), error=error,
            detail=detail if verdict != "refused" else None,
        )  # fmt: skip

    def _key(self, name: str) -> str:
        if name != ORIGINAL:
            return f"{name}.{self.symbol.routine}@n"
        on_one = self._threads(ORIGINAL) == 1
        key = f"{self.module.package}.{self.symbol.routine}@{'1' if on_one else 'n'}"
        return key if self.record is None or key in self.record.medians else key.removesuffix("1") + "n"

    def _seconds(self, name: str) -> float | None:
        return self.record.medians.get(self._key(name)) if self.record else None

    def _threads(self, name: str) -> int:
        if name != ORIGINAL:
            return targets.threads()
        functions = openblas_thread_count(loaded_objects.file_at(self.slot.function))
        limited = self.layer is not None and self.layer is not exchange_state.layer() and not self.layer.keep_pools
        return 1 if limited or functions is None else functions[0]()
