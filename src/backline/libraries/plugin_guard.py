"""The library of a plug-in, made from its row and guarded.

Code of a plug-in may be missing, may raise anything, and may return anything. Each of these becomes a reason that `explain`
shows, with the name of the plug-in; none reaches the user as a crash of a call that another library can run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..errors import BackendUnavailable
from ..problems import Problem
from ..switches.switch import show
from . import plugins
from .base import LEVELS, NULL_PLANNER, Algorithm, FileLibrary, Library, Planner, Refusal, planner_for
from .plugin_search import Plugin, line_of, remedy, words_of

__all__ = ["make"]

_BASES = ("promise", "measured", "construction")
_here = threading.local()  # of this thread: the names of the plug-ins whose libraries it is making


def make(plugin: Plugin) -> Library:
    """Returns the library of a plug-in: of the class that its row names, or one that tells why there is none."""
    plugins.read(plugin.name)
    if not plugin.is_read:
        return _Unusable(plugin, "", being_made=True)
    if plugin.fault:
        return _Unusable(plugin, plugin.fault)
    names: tuple[str, ...] = getattr(_here, "making", ())
    if plugin.name in names:
        return _Unusable(plugin, "", being_made=True)
    _here.making = (*names, plugin.name)
    try:
        return _made(plugin)
    finally:
        _here.making = names


def _made(plugin: Plugin) -> Library:
    kind, fault = plugins.referred(plugin.row.implementation)
    if kind is None and not fault:
        return _Unusable(plugin, "", being_made=True)
    fault = fault or _unfit(kind, plugin.row.implementation)
    if not fault:
        guarded: Any = type(kind.__name__, (_Guarded, kind), {"plugin": plugin, "__module__": kind.__module__})
        try:
            guarded._describe(plugin.row)
            library: Library = guarded()
            return library
        except (Exception, SystemExit) as error:  # any error of its own
            fault = f"is unusable: {kind.__name__}() raised {words_of(error)}"
    return _Unusable(plugin, f"{plugin.who} {fault}; {remedy(plugin.source)}")


def _unfit(kind: Any, reference: str) -> str:
    """Returns the reason why a class cannot be the implementation of a library, or an empty string."""
    if not isinstance(kind, type):
        return f"is unusable: its implementation {reference} is {line_of(show(kind))}, and no class"
    if not issubclass(kind, Library):
        return f"is unusable: its implementation {reference} is no subclass of backline.libraries.Library"
    wanted = ("reason", "version") if kind.handlers else ("reason", "version", "algorithms", "prepare")
    missing = [name for name in wanted if getattr(kind, name) is getattr(Library, name)]
    if issubclass(kind, FileLibrary) and kind.reason is FileLibrary.reason and kind.load is FileLibrary.load:
        missing.insert(0, "load")
    if {"algorithms", "prepare"}.issubset(missing):
        missing[-2:] = ["handlers"]
    return f"is unusable: its implementation {reference} lacks {', '.join(missing)}" if missing else ""


class _Unusable(Library):
    """Stands for the library of a plug-in that cannot be used."""

    def __init__(self, plugin: Plugin, reason: str, being_made: bool = False) -> None:
        row = self._row = plugin.row
        self.name, self.title, self.switch = row.name, row.title, row.switch
        self.families, self.devices = row.families, row.devices
        self.how_to_get = remedy(plugin.source)
        self.being_made = being_made
        self._reason = reason or f"{plugin.who} is being imported"

    def reason(self) -> str:
        return self._reason

    def version(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"<library {self.name}: {self._reason}>"


class _Guarded(Library):
    """Base that comes before the class of a plug-in: its errors become reasons, and what it yields is checked."""

    plugin: Plugin

    def available(self) -> bool:
        return self.reason() == ""

    def reason(self) -> str:
        try:
            return line_of(str(super().reason()))
        except Exception as error:  # any error of its own
            return f"{self.plugin.who}: asking whether it is available raised {words_of(error)}"

    def version(self) -> str | None:
        try:
            version = super().version()
            return None if version is None else line_of(str(version))
        except Exception:  # any error of its own; an absent library has no version either
            return None

    def concerns(self, kind: type[Problem], op: str, device: str) -> bool:
        try:
            return super().concerns(kind, op, device)
        except Exception:  # any error of its own; `algorithms` tells
            return True

    def algorithms(self, problem: Problem, threads: int, planner: Planner = NULL_PLANNER) -> Iterator[Algorithm | Refusal]:
        try:
            listed = list(super().algorithms(problem, threads, *planner_for(self, planner)))
        except Exception as error:  # any error of its own
            yield Refusal(self.name, "", f"{self.plugin.who}: algorithms() raised {words_of(error)}")
            return
        for each in listed:
            wrong = self._wrong(each, threads)
            if wrong:
                yield Refusal(self.name, "", f"{self.plugin.who}: algorithms() yielded {show(each)}: {wrong}")
            elif isinstance(each, Refusal):
                yield replace(each, name=line_of(each.name), reason=line_of(each.reason))
            else:
                yield replace(each, note=line_of(each.note))

    def _wrong(self, listed: Any, threads: int) -> str:
        """Returns the fault of an item that its `algorithms` yielded, or an empty string."""
        if not isinstance(listed, (Algorithm, Refusal)):
            return "an Algorithm or a Refusal is wanted"
        if listed.library != self.name:
            return f"its library must be {self.name!r}"
        texts = ("name", "reason", "switch") if isinstance(listed, Refusal) else ("name", "precision", "pool", "note", "isa")
        if not all(isinstance(getattr(listed, text), str) for text in texts):
            return f"its {', '.join(texts)} must be str"
        if isinstance(listed, Refusal):
            return ""
        if not listed.name or "@" in listed.name or not listed.name.isprintable():
            return "its name must be a word"
        if type(listed.threads) is not int or not 1 <= listed.threads <= threads:
            return f"its threads must be 1 to {threads}, as many as are allowed"
        if listed.scaled and listed.threads != threads:
            return f"it is scaled, so its threads must be {threads}, the number allowed"
        if not isinstance(listed.traits, tuple):
            return "its traits must be a tuple"
        if listed.level not in LEVELS or listed.basis not in _BASES:
            return f"level must be one of {', '.join(LEVELS)}, and basis one of {', '.join(_BASES)}"
        return ""

    def prepare(self, problem: Problem, algorithm: Algorithm, planner: Planner = NULL_PLANNER) -> Any:
        try:
            plan = super().prepare(problem, algorithm, *planner_for(self, planner))
            if not callable(plan):
                raise TypeError(f"the plan {show(plan)} is no function of the arrays")
            plan.choice = None  # the engine writes its Choice there
        except (RuntimeError, MemoryError):
            raise
        except Exception as error:  # any error of its own: the next algorithm takes its place
            what = f"{self.plugin.who}: prepare() of {algorithm.name} raised {words_of(error)}"
            raise BackendUnavailable(what) from error
        return plan

    def report(self) -> dict[str, Any]:
        reason = self.reason()
        facts = {"name": self.name, "title": self.title, "available": not reason, "reason": reason, "how to get": self.how_to_get}
        try:
            own = dict(super().report())
        except Exception as error:  # any error of its own
            own = {"config": f"{self.plugin.who}: report() raised {words_of(error)}"}
        own = {str(key): value for key, value in own.items()}
        return {"found by": self.plugin.who} | own | facts | {"version": self.version()}

    def __repr__(self) -> str:
        return f"<library {self.name}: {self.plugin.who}>"
