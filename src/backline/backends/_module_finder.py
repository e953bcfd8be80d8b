"""Backend modules without a file: made from the rows of the libraries, those of plug-ins included.

They are importable by their name like any other module, so that ``from backline.backends import blis``, pickling and reloading
work; for this a finder is added at the end of ``sys.meta_path``. It answers for names in this package that no file here has.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
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
        if _row(backend) is None:
            libraries.names()  # plug-ins are looked for
        row = _row(backend)
        # The stubs ask for all that old loaders had; `create_module` and `exec_module` are enough.
        return None if row is None else ModuleSpec(name, _Loader(), origin=row.implementation)  # type: ignore[arg-type]


class _Loader:
    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None  # the usual empty one

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        backend = module.__name__.rpartition(".")[2]
        if _row(backend) not in registry.ROWS:
            from ..libraries import plugins  # here: few programs need it

            if backend in plugins.found():
                plugins.read(backend)
        row = _row(backend)
        assert row is not None
        _fill(module, row.about, row.name, row.caches, row.returned)


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
