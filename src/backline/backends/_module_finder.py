"""Backend modules without a file: made from the rows of the libraries, or of plug-ins, which may bring modules of their own.

They are importable by their name like any other module, so that ``from backline.backends import blis``, pickling and reloading
work; for this a finder is added at the end of ``sys.meta_path``. It answers for names in this package that no file here has.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from .. import libraries, switches
from ..libraries import registry
from . import _module_factory

__all__ = ["Names"]

_PACKAGE = __name__.rpartition(".")[0]


class _Finder:
    """Finds backend modules that no file has."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, backend = name.rpartition(".")
        if package != _PACKAGE or backend.startswith("_"):
            return None
        row = _row(backend)
        if row is not None:
            return ModuleSpec(name, _RowLoader(), origin=row.implementation)  # type: ignore[arg-type]  # as below
        from ..switches import plugins  # here and below: it is much to import, and few programs need it

        plugins.discover()
        plugin = plugins.found().get(backend)
        # The stubs ask for all that old loaders had; `create_module` and `exec_module` are enough.
        return None if plugin is None else ModuleSpec(name, _Loader(), origin=plugin.file or plugin.library)  # type: ignore[arg-type]


class _RowLoader:
    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None  # the usual empty one

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        row = _row(module.__name__.rpartition(".")[2])
        assert row is not None
        _fill(module, row.about, row.name, row.caches, row.returned)


class _Loader(_RowLoader):
    @staticmethod
    def exec_module(module: ModuleType) -> None:
        from ..switches import plugins

        name = module.__name__.rpartition(".")[2]
        plugins.discover(f"{name}.")  # where its class declares its switches, they are needed now
        plugin = plugins.found()[name]
        own = plugin.backend or plugins.backend_of(name)
        if own:
            try:
                sys.modules[module.__name__] = import_module(own)  # the import system takes what is there then
                return
            except Exception as error:  # any error of its own; one broken plug-in must not break dir() and completion
                plugins.complain(name, f"its backend module {own} is ignored, it cannot be imported: {plugins.words_of(error)}")
        _fill(module, f"{libraries.get(name).title}: a plug-in, of {plugin.source}.", name, ("plan_cache",))


def _row(backend: str) -> registry.LibraryInfo | None:
    row = registry.find(backend)
    return row if row is not None and row.backend == backend else None


def _fill(module: ModuleType, about: str, library: str, caches: tuple[str, ...], returned: tuple[str, ...] = ()) -> None:
    prefix = module.__name__.rpartition(".")[2]
    own = {s.attribute: s.kind for s in switches.all_switches().values() if s.backend == prefix and s.as_attribute}
    names = sorted({"flags", "is_available", "is_enabled", "set_flags", "version", *caches, *own})
    # Not by setattr: the class of a reloaded module refuses such names.
    vars(module).update(__doc__=about, __all__=names, __annotations__=own, __file__=__file__)
    plans, transforms = (library if cache in caches else "" for cache in ("plan_cache", "fft_plan_cache"))
    _module_factory.install(module.__name__, plans=plans, transforms=transforms, model=returned)


class Names(Collection[str]):
    """The names of the backend modules: those that no library is behind, and those of the rows, whenever they were added.

    >>> "mkldnn" in Names(), "onednn" in Names()
    (True, False)
    """

    _OTHERS = ("cpu", "mha", "quantized", "xeon")

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._OTHERS, *(row.backend for row in registry.rows() if row.backend)}))

    def __contains__(self, name: object) -> bool:
        return name in self._OTHERS or any(row.backend == name for row in registry.rows() if row.backend)

    def __len__(self) -> int:
        return sum(1 for _ in self)


sys.meta_path[:] = [*(finder for finder in sys.meta_path if getattr(finder, "__module__", "") != __name__), _Finder]
