"""Runs a function when another package is imported, if it ever is: so that it costs nothing where it is not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import MetaPathFinder
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["when_imported"]


def when_imported(name: str, run: Callable[[ModuleType], object]) -> None:
    """Call `run` with the module `name`: now if it is imported already, else as soon as it has been."""
    if name in sys.modules:
        run(sys.modules[name])
    else:
        sys.meta_path.insert(0, cast("MetaPathFinder", _Finder(name, run)))


class _Finder:  # without the abstract classes of importlib, which are much to import
    """Waits at the head of ``sys.meta_path`` for one module, and leaves with it."""

    def __init__(self, name: str, run: Callable[[ModuleType], object]) -> None:
        self._name, self._run = name, run

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        finders = cast("list[Any]", sys.meta_path)
        if fullname != self._name or self not in finders:
            return None
        from importlib.util import find_spec

        finders.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            finders.insert(0, self)  # it may be installed later
            return None
        spec.loader = cast(Any, _Loader(spec.loader, self._run))
        return spec


class _Loader:
    """The package's own loader, followed by the function."""

    def __init__(self, real: Any, run: Callable[[ModuleType], object]) -> None:
        self._real, self._run = real, run

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return cast("ModuleType | None", self._real.create_module(spec))

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._run(module)
