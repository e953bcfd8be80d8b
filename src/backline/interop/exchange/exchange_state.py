"""The exchange of this process: which choices hold, what was written for them, and how it is taken back.

Everything is decided and checked before the first address is written, and all addresses are written or none. What runs in another
thread meanwhile ends in the function that it entered; a routine that is called by another module in several steps may take some
steps before the exchange and some after it. The old library stays loaded, so no address becomes invalid.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any

from ... import _exchange, switches
from ...errors import Frozen, LibraryFailed, NotDeterministic
from ...native import loading
from . import choices, fourier_functions, later_imports, layouts, loaded_objects, origin_pools, self_check, thread_counts
from .choices import ORIGINAL, Choice, Decision
from .loaded_objects import Module

__all__ = ["Layer", "decisions", "layer", "notes", "pop", "push", "record_by", "refuse_if_frozen"]


class Layer:
    """One choice that holds from `push` to `pop`; the last one counts."""

    __slots__ = ("choice", "keep_pools", "one_pool")

    def __init__(self, choice: Choice, *, keep_pools: bool = False, one_pool: bool = False) -> None:
        self.choice, self.keep_pools, self.one_pool = choice, keep_pools, one_pool


notes: list[str] = []
"""Deviations from the last choice, for the status."""

_layers: list[Layer] = []
_now: tuple[Decision, ...] = ()
_decided: dict[tuple[Choice, tuple[Module, ...]], tuple[Decision, ...]] = {}
_compared: set[tuple[Choice, tuple[Module, ...]]] = set()  # whose results agreed with those before
_originals: dict[int, int] = {}  # what a slot held before the first exchange, by its address
_ours: dict[int, set[int]] = {}  # all that an exchange ever put into it
_recorded: Callable[[tuple[Decision, ...]], tuple[Decision, ...]] | None = None
_applying = False


def decisions() -> tuple[Decision, ...]:
    """Returns the decisions that are in force, for every slot; empty where nothing is exchanged."""
    return _now


def layer() -> Layer | None:
    """Returns the layer that counts, None where there is none."""
    return _layers[-1] if _layers else None


def refuse_if_frozen(what: str) -> None:
    """Raise `Frozen` if process-wide settings cannot be changed any more: an exchange is one."""
    if switches.frozen():
        raise Frozen(
            f"{what} was refused: the base is frozen.",
            cause="disable_global_flags() was called, and the library under NumPy belongs to the whole process",
            remedy="exchange it before that call",
        )


def push(new: Layer) -> None:
    """Puts a choice in force; if that fails, all is as it was."""
    with loading.lock():
        _refuse_determinism(new.choice)
        notes.clear()
        former = layer()
        _apply(new, former)
        _layers.append(new)
        later_imports.watch(_module_loaded)


def pop(old: Layer | None = None) -> None:
    """Takes one choice back, or all: what holds then is the last one that is left, or what NumPy had."""
    with loading.lock():
        former = layer()
        if old is None:
            _layers.clear()
        elif old in _layers:
            _layers.remove(old)
        if layer() is not former:
            _apply(layer(), former)
        if not _layers:
            later_imports.watch(None)


def record_by(recorded: Callable[[tuple[Decision, ...]], tuple[Decision, ...]] | None) -> None:
    """Lets calls go where a function of the decisions says, from now on, whichever choice is in force; with None no longer."""
    global _recorded
    with loading.lock():
        before, _recorded = _recorded, recorded
        try:
            _apply(layer(), layer())
        except BaseException:
            _recorded = before
            raise


def _refuse_determinism(choice: Choice) -> None:
    if choice.libraries() and switches.get("deterministic"):
        raise NotDeterministic(
            f"NumPy's routines were not exchanged for {choice}",
            cause=f"deterministic is on ({switches.origin('deterministic')}), and NumPy's calls keep to no level of determinism",
            remedy="call Backline's own functions, or exchange with determinism off",
        )


def _apply(new: Layer | None, former: Layer | None) -> None:
    """Makes every slot lead where a layer wants it; after a failure, where the former layer did."""
    global _now, _applying
    wanted, key = _decisions(new)
    changes = _changes(wanted)
    transforms = new.choice.transforms() if new else ""
    compare = key is not None and key not in _compared and bool(changes or transforms in fourier_functions.LIBRARIES)
    paused = _exchange.recorded_pause(True)  # what is computed for the comparison is no call of the program
    _applying = True
    try:
        before = _results() if compare else {}
        _write(changes)
        try:
            _set_threads(wanted, new)
            fourier_functions.apply(transforms)
            wrong = self_check.disagreement(before, _results()) if compare else ""
            # The loader may have bound a slot late, in a thread that called through it while it was written.
            _write(_changes(wanted))
        except BaseException:
            _undo(changes, former)
            raise
        if wrong:
            _undo(changes, former)
            raise LibraryFailed(
                f"NumPy's routines were not exchanged for {new.choice if new else 'its own'}",
                cause=f"results before and after do not agree: {wrong}; all is as it was",
                remedy="choose another library; `backline check kernels` looks at each",
            )
        if key is not None:
            _compared.add(key)
        _now = wanted
    finally:
        _applying = False
        _exchange.recorded_pause(paused)


def _results() -> dict[str, Any]:
    # Without the scopes that are open here: neither their trace nor their settings are meant for this.
    return Context().run(self_check.results)


def _undo(changes: Iterable[tuple[int, int, int]], former: Layer | None) -> None:
    _write([(slot, value, held) for slot, held, value in changes if _exchange.read(slot) == value])
    _set_threads(_now, former)
    fourier_functions.apply(former.choice.transforms() if former else "")


def _decisions(new: Layer | None) -> tuple[tuple[Decision, ...], tuple[Choice, tuple[Module, ...]] | None]:
    if new is None:
        return (), None
    layouts.require_system()
    modules = layouts.require(loaded_objects.modules())
    key = new.choice, modules
    if key not in _decided:
        _decided[key] = choices.decide(new.choice, modules)
    return (_recorded(_decided[key]) if _recorded else _decided[key]), key


def _changes(wanted: Iterable[Decision]) -> list[tuple[int, int, int]]:
    """Returns (slot, what it holds, what it is to hold) where the two differ."""
    changes, aims = [], set()
    for decision in wanted:
        address = decision.slot.address
        if decision.address:
            aims.add(address)
            held = _exchange.read(address)
            if held != decision.address:
                _refuse_if_foreign(decision, held)
                changes.append((address, held, decision.address))
    for address, original in _originals.items():
        if address not in aims:
            held = _exchange.read(address)
            if held in _ours[address]:
                changes.append((address, held, original))
    return changes


def _refuse_if_foreign(decision: Decision, held: int) -> None:
    slot = decision.slot
    if held in (slot.original, slot.function) or held in _ours.get(slot.address, ()):
        return
    raise LibraryFailed(
        "NumPy's BLAS was not exchanged",
        cause=f"{decision.module.path} calls {slot.symbol.routine} in {loaded_objects.file_at(held) or 'memory of no file'}, "
        "and not in its own library: another program has exchanged it",
        remedy="undo the other exchange first",
    )


def _write(changes: list[tuple[int, int, int]]) -> None:
    """Writes all, or raises with nothing written."""
    if not changes:
        return
    try:
        for _ in range(3):  # the loader may bind a slot between reading and writing
            if _exchange.write(changes) < 0:
                break
            changes = [(slot, _exchange.read(slot), value) for slot, _, value in changes]
        else:
            raise OSError("the addresses change while they are written")
    except OSError as error:
        raise LibraryFailed(
            "NumPy's BLAS was not exchanged", cause=f"{error}; nothing was written", remedy="call Backline's own functions"
        ) from None
    for slot, held, value in changes:
        original = _originals.setdefault(slot, held)
        if value != original:
            _ours.setdefault(slot, set()).add(value)


def _set_threads(wanted: Iterable[Decision], new: Layer | None) -> None:
    """Sets the new library's thread count to Backline's, and that of the old copies to one where little is left to them."""
    thread_counts.hold(d.library for d in wanted if d.address and d.library != ORIGINAL)
    one_pool = new is not None and new.one_pool
    moved = {
        d.slot.function
        for d in wanted
        if d.address and d.library != ORIGINAL and (one_pool or d.slot.symbol.routine[1:] == "gemm")
    }
    keep = new is None or new.keep_pools
    origin_pools.limit(() if keep else {loaded_objects.file_at(function) for function in moved})


def _forked() -> None:
    global _applying
    _applying = False  # by a thread that does not exist in the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _module_loaded() -> None:
    """Called when a module of NumPy or SciPy has been imported under an exchange."""
    with loading.lock():
        held = layer()
        if _applying or held is None:
            return
        try:
            _apply(held, held)
        except Exception as error:
            # An import must not fail for this: the module calls what it was built with.
            text = f"a module that was imported now keeps its own BLAS: {error}"
            notes.append(text)
            warnings.warn(text, RuntimeWarning, stacklevel=2)
