"""Neural-network operations, in modules that are imported when they are first asked for.

`functional` has the operations, `grad` their gradients; `attention` chooses the kernels of attention.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import attention as attention
    from . import functional as functional
    from . import grad as grad

__all__ = ["attention", "functional", "grad"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"{__name__} has no attribute {name!r}")
    from ..errors import UnknownName
    from ..switches.declare import nearest

    raise UnknownName(f"{__name__} has no name {name!r}.", remedy=f"the nearest names: {', '.join(nearest(name, __all__)[:3])}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
