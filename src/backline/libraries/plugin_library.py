"""The library of a plug-in, as the engine sees it: imported at first need, and guarded.

Code of a plug-in may be missing, may raise anything, and may return anything. Each of these becomes a reason that `explain`
shows, with the name of the plug-in; none reaches the user as a crash of a call that another library can run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .. import switches
from ..errors import BackendUnavailable, UnknownName
from ..problems import Problem
from ..switches import plugins
from ..switches.plugin_file import DEVICES, line_of
from ..switches.switch import show
from .base import LEVELS, NO_PLANNER, Algorithm, Library, Planner, Refusal, planner_for

__all__ = ["Plugged"]

_BASES = ("promise", "measured", "construction")
_METHODS = ("reason", "version", "algorithms", "prepare", "report")


class Plugged(Library):
    """Stands for the Library that a plug-in brings, under the plug-in's name.

    What the plug-in's file says is answered without its code. The class is imported and called when more is asked.
    """

    def __init__(self, plugin: plugins.Plugin) -> None:
        self.plugin = plugin
        self.name = plugin.name
        self.title = plugin.title
        self.how_to_get = plugin.how_to_get
        self.switch = f"{plugin.name}.enabled"
        self._made: Library | None = None
        self._fault = ""
        self._reason: str | None = None
        self._making: set[int] = set()  # threads that are at it

    @property
    def who(self) -> str:
        """The plug-in in words."""
        return f"plug-in {self.name} of {self.plugin.source}"

    def load(self) -> Library | None:
        """Returns the Library itself, imported and made if it was not; None if that cannot be done, and `reason` tells why."""
        if self._made is not None or self._fault:
            return self._made
        if threading.get_ident() in self._making:
            return None  # its own __init__ asks for it
        try:
            kind = plugins.load(self.name)
        except BackendUnavailable as error:
            if plugins.failed(self.name):
                self._fault = error.message
            return None
        self._fault = self._unfit(kind)
        if self._fault:
            return None
        self._making.add(threading.get_ident())
        try:
            made = kind()
        except (Exception, SystemExit) as error:  # any error of its own
            self._fault = f"{self.who}: {kind.__name__}() raised {plugins.words_of(error)}"
            return None
        finally:
            self._making.discard(threading.get_ident())
        if not self.plugin.file:
            self.title = line_of(made.title) if isinstance(made.title, str) and made.title else self.name
            self.how_to_get = line_of(made.how_to_get) if isinstance(made.how_to_get, str) else ""
        self._made = self.__dict__["_made"] or made  # two threads may have made one: the first counts
        return self._made

    def _unfit(self, kind: type) -> str:
        if not issubclass(kind, Library):
            return f"{self.who}: {self.plugin.library} is no subclass of backline.libraries.Library"
        missing = [name for name in _METHODS if getattr(kind, name, None) is getattr(Library, name)]
        if missing:
            return f"{self.who}: {self.plugin.library} has no method {', '.join(missing)}"
        if kind.name != self.name:
            return f"{self.who}: the name of {self.plugin.library} is {show(kind.name)}, and must be {self.name!r}"
        return ""

    # What the file may say, and the class says otherwise -----------------------------------------------------------

    @property
    def families(self) -> tuple[str, ...]:  # type: ignore[override]  # asked, where the class has a constant
        return self._stated("families", (), ())

    @property
    def devices(self) -> tuple[str, ...]:  # type: ignore[override]  # asked, where the class has a constant
        return self._stated("devices", ("cpu",), DEVICES)

    @property
    def openmp(self) -> bool:  # type: ignore[override]  # asked, where the class has a constant
        return getattr(self.load(), "openmp", False) is True

    def _stated(self, what: str, otherwise: tuple[str, ...], forbidden: tuple[str, ...]) -> tuple[str, ...]:
        stated = getattr(self.plugin, what)
        if stated is None:
            if self._made is None and not self.allowed():
                return forbidden  # the switch refuses it anyway: no reason to import it
            stated = getattr(self.load(), what, otherwise)
        return tuple(stated) if isinstance(stated, (tuple, list)) else otherwise

    def allowed(self) -> bool:
        """Tells whether the switches let it run calls here."""
        only = switches.current()["only"]
        return bool(switches.get(self.switch)) and (not only or self.name in only)  # type: ignore[operator]  # names

    # The methods of a Library ------------------------------------------------------------------------------------

    def reason(self) -> str:
        if self._reason is None:
            made = self.load()
            if made is None:
                return self._fault or f"{self.who} is being imported"
            try:
                self._reason = "" if made.available() else line_of(str(made.reason())) or "it says that it is not available"
            except Exception as error:  # any error of its own
                self._reason = f"{self.who}: asking whether it is available raised {plugins.words_of(error)}"
        return self._reason

    def version(self) -> str | None:
        made = self.load()
        try:
            version = None if made is None else made.version()
            return None if version is None else line_of(str(version))
        except Exception:  # any error of its own; an absent library has no version either
            return None

    def algorithms(self, problem: Problem, threads: int, planner: Planner = NO_PLANNER) -> Iterator[Algorithm | Refusal]:
        made = self.load()
        if made is None:
            yield Refusal(self.name, "", self.reason())
            return
        try:
            found = list(made.algorithms(problem, threads, *planner_for(made, planner)))
        except Exception as error:  # any error of its own
            yield Refusal(self.name, "", f"{self.who}: algorithms() raised {plugins.words_of(error)}")
            return
        for each in found:
            wrong = self._wrong(each, threads)
            if wrong:
                yield Refusal(self.name, "", f"{self.who}: algorithms() yielded {show(each)}: {wrong}")
            elif isinstance(each, Refusal):
                yield replace(each, name=line_of(each.name), reason=line_of(each.reason))
            else:
                yield replace(each, note=line_of(each.note))

    def _wrong(self, found: Any, threads: int) -> str:
        """Returns the fault of an item that its `algorithms` yielded, or an empty string."""
        if not isinstance(found, (Algorithm, Refusal)):
            return "an Algorithm or a Refusal is wanted"
        if found.library != self.name:
            return f"its library must be {self.name!r}"
        texts = ("name", "reason", "switch") if isinstance(found, Refusal) else ("name", "precision", "pool", "note", "isa")
        if not all(isinstance(getattr(found, text), str) for text in texts):
            return f"its {', '.join(texts)} must be str"
        if isinstance(found, Refusal):
            return ""
        if not found.name or "@" in found.name or not found.name.isprintable():
            return "its name must be a word"
        if type(found.threads) is not int or not 1 <= found.threads <= threads:
            return f"its threads must be 1 to {threads}, as many as are allowed"
        if found.scaled and found.threads != threads:
            return f"it is scaled, so its threads must be {threads}, the number allowed"
        if not isinstance(found.traits, tuple):
            return "its traits must be a tuple"
        if found.level not in LEVELS or found.basis not in _BASES:
            return f"level must be one of {', '.join(LEVELS)}, and basis one of {', '.join(_BASES)}"
        return ""

    def prepare(self, problem: Problem, algorithm: Algorithm, planner: Planner = NO_PLANNER) -> Any:
        made = self.load()
        if made is None:
            raise BackendUnavailable(self.reason())
        try:
            plan = made.prepare(problem, algorithm, *planner_for(made, planner))
            if not callable(plan):
                raise TypeError(f"the plan {show(plan)} is no function of the arrays")
            plan.choice = None  # the engine writes its Choice there
        except (RuntimeError, MemoryError):
            raise
        except Exception as error:  # any error of its own: the next algorithm takes its place
            raise BackendUnavailable(f"{self.who}: prepare() of {algorithm.name} raised {plugins.words_of(error)}") from error
        return plan

    def report(self) -> dict[str, Any]:
        reason = self.reason()
        facts: dict[str, Any] = {
            "name": self.name, "title": self.title, "available": not reason, "reason": reason, "version": self.version(),
            "found by": self.who, "how to get": self.how_to_get,
        }  # fmt: skip
        made = self.load()
        if made is None:
            return facts
        try:
            own = dict(made.report())
        except Exception as error:  # any error of its own
            own = {"config": f"{self.who}: report() raised {plugins.words_of(error)}"}
        return {str(key): value for key, value in own.items()} | facts

    def __getattr__(self, name: str) -> Any:
        # Further names of the Library itself, for the plug-in's own backend module.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = self.load()
        if made is None:
            # Of this kind, and not BackendUnavailable, so that hasattr() answers.
            raise UnknownName(f"library {self.name} has no name {show(name)} now.", cause=self.reason())
        return getattr(made, name)

    def __repr__(self) -> str:
        return f"<library {self.name}: {self.who}>"
