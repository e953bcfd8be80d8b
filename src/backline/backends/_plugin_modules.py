"""Backend modules of plug-ins: ``backline.backends.<name>`` is the plug-in's own module, or one made here.

They are importable by that name like any other module, so that ``from backline.backends import strassen``, pickling and reloading
work; for this a finder is added at the end of ``sys.meta_path``. It answers for names in this package that no file here has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from .. import libraries
from . import _module_factory

__all__: list[str] = []

_PACKAGE = __name__.rpartition(".")[0]


class _Finder:
    """Finds backend modules of plug-ins, and makes those that a plug-in does not bring."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, backend = name.rpartition(".")
        if package != _PACKAGE or backend.startswith("_"):
            return None
        from ..switches import plugins  # here and below: it is much to import, and few programs need it

        plugins.discover()
        plugin = plugins.found().get(backend)
        # The stubs ask for all that old loaders had; `create_module` and `exec_module` are enough.
        return None if plugin is None else ModuleSpec(name, _Loader(), origin=plugin.file or plugin.library)  # type: ignore[arg-type]


class _Loader:
    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None  # the usual empty one

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        from ..switches import plugins

        plugins.discover(f"{name}.")  # where its class declares its switches, they are needed now
        plugin = plugins.found()[name]
        own = plugin.backend or plugins.backend_of(name)
        if own:
            try:
                sys.modules[module.__name__] = import_module(own)  # the import system takes what is there then
                return
            except Exception as error:  # any error of its own; one broken plug-in must not break dir() and completion
                plugins.complain(name, f"its backend module {own} is ignored, it cannot be imported: {plugins.words_of(error)}")
        # Not by setattr: when the module is reloaded, its class refuses names that are no switches.
        vars(module).update(
            __doc__=f"{libraries.get(name).title}: a plug-in, of {plugin.source}.",
            __all__=["flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"],
        )
        _module_factory.install(module.__name__, plans=name)


sys.meta_path[:] = [*(finder for finder in sys.meta_path if getattr(finder, "__module__", "") != __name__), _Finder]
