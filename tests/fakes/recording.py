"""A binding that writes down the calls made to it: names, arguments and enums are checked against the real module.

The real modules import without a driver, so a call that the true function would not take is a TypeError here as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

signature = cache(inspect.signature)  # a quarter of the time of a test that makes many calls

class Recording:
    """Answers like a binding module, but writes calls down instead of making them.

    Parameters
    ----------
    module
        The real module, such as ``nvmath.bindings.cublas``.
    answers
        Name of a function -> what it returns; a callable is called with the arguments, and may raise.
    log
        Where calls are written, as pairs of name and arguments; several fakes may share one, for the order among them.
    """

    def __init__(self, module: Any, answers: dict[str, Any] | None = None, log: list[tuple[str, dict[str, Any]]] | None = None) -> None:
        self.module, self.answers, self.log = module, dict(answers or {}), [] if log is None else log

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.module, name)
        if isinstance(real, type) or not callable(real):
            return real  # enums, exceptions, constants
        shape = signature(real)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            given = dict(shape.bind(*args, **kwargs).arguments)
            self.log.append((name, given))
            answer = self.answers.get(name)
            return answer(**given) if isinstance(answer, Callable) else answer  # type: ignore[arg-type]  # a Callable at run time

        stand_in.__signature__ = shape  # type: ignore[attr-defined]  # what `inspect.signature` looks at first
        return stand_in

    @property
    def names(self) -> list[str]:
        """Names of the calls so far."""
        return [name for name, _ in self.log]

    def calls(self, name: str) -> list[dict[str, Any]]:
        """Arguments of the calls of one function."""
        return [given for each, given in self.log if each == name]


def error(kind: type[Exception], text: str) -> Exception:
    """An exception of a binding. Its own constructor asks the library for words, which takes a driver."""
    return kind.__new__(kind, text)
