"""Exchanges the calls of modules of NumPy and SciPy that are imported while an exchange holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

__all__ = ["watch"]


_PACKAGES = ("scipy.fft",)
"""Packages with more to exchange than the addresses of extension modules, once they are imported."""


class _Finder:
    """Stands at the head of ``sys.meta_path`` as long as an exchange holds, and sees extension modules being loaded."""

    def __init__(self, loaded: Callable[[], object]) -> None:
        self.loaded = loaded

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(("scipy.", "numpy.")):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or not (isinstance(spec.loader, ExtensionFileLoader) or fullname in _PACKAGES):
            return None  # the finders behind this one look again, and find the same
        spec.loader = cast(Any, _Loader(spec.loader, self.loaded))
        return spec


class _Loader:
    """The loader of a module, followed by the function."""

    def __init__(self, real: Loader, loaded: Callable[[], object]) -> None:
        self._real, self._loaded = real, loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._loaded()


_finder: _Finder | None = None


def watch(loaded: Callable[[], object] | None) -> None:
    """Calls a function whenever an extension module of NumPy or SciPy has been loaded; with None, no longer."""
    global _finder
    finders = cast("list[Any]", sys.meta_path)
    if _finder is not None and _finder in finders:
        finders.remove(_finder)
    _finder = None if loaded is None else _Finder(loaded)
    if _finder is not None:
        finders.insert(0, _finder)
