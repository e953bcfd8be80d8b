"""Live bindings, watched: each call is made, and its name and arguments are written down."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backline.libraries.cuda.common import bindings
from fakes.insert import inserted

__all__ = ["Watch", "watched"]

LIBRARIES = ("cublas", "cublasLt", "cusolverDn", "cufft")


class Watch:
    """The object that stands where a binding's module did.

    Parameters
    ----------
    module
        The module, which makes the calls.
    log
        Where they are written, as pairs of name and arguments.

    Attributes
    ----------
    fails
        Name of a function -> what it raises instead of being called.
    """

    def __init__(self, module: Any, log: list[tuple[str, dict[str, Any]]]) -> None:
        self.module, self.log = module, log
        self.fails: dict[str, Exception] = {}
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = self._made.get(name)
        if found is None:
            real = getattr(self.module, name)
            found = self._made[name] = real if isinstance(real, type) or not callable(real) else self._calling(name, real)
        return found

    def _calling(self, name: str, real: Any) -> Any:
        shape = inspect.signature(real)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.log.append((name, dict(shape.bind(*args, **kwargs).arguments)))
            if name in self.fails:
                raise self.fails[name]
            return real(*args, **kwargs)

        return call


class Calls:
    """The calls that were made while a block was open.

    Attributes
    ----------
    cublas, cublasLt, cusolverDn, cufft
        The watches, of those that are watched.
    """

    def __init__(self, log: list[tuple[str, dict[str, Any]]], watches: dict[str, Watch]) -> None:
        self.log = log
        self.__dict__ |= watches

    def names(self) -> list[str]:
        """Names of the calls, in order."""
        return [name for name, _ in self.log]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Arguments of the calls of one function."""
        return [given for each, given in self.log if each == name]

    def forget(self) -> None:
        """Begin anew."""
        self.log.clear()


_watches: dict[str, Watch] = {}  # handles belong to a module: each binding has one watch, so that it makes its handles once
_log: list[tuple[str, dict[str, Any]]] = []


@contextmanager
def watched(*names: str, fresh: bool = False) -> Iterator[Calls]:
    """While it is open, calls of these bindings (of all, without names) are written down. Plans are made anew before and after.

    What a handle was told before it need not be told again: with `fresh`, handles are new.
    """
    chosen = {}
    for name in names or LIBRARIES:
        live = getattr(bindings, name)()
        if fresh or name not in _watches or _watches[name].module is not live:
            _watches[name] = Watch(live, _log)
        chosen[name] = _watches[name]
    _log.clear()
    with inserted(**chosen):
        try:
            yield Calls(_log, chosen)
        finally:
            for watch in chosen.values():
                watch.fails.clear()
