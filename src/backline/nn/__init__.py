"""Neural-network operations, in modules that are imported when they are first asked for.

`functional` has the operations, `grad` their gradients; `attention` chooses the kernels of attention. `lstm`, `gru`, `rnn_tanh`
and `rnn_relu` are recurrent networks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..ops.recurrent import gru, lstm, rnn_relu, rnn_tanh
    from . import attention as attention
    from . import functional as functional
    from . import grad as grad

__all__ = ["attention", "functional", "grad", "gru", "lstm", "rnn_relu", "rnn_tanh"]

_RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")


def __getattr__(name: str) -> Any:
    if name in _RECURRENT:
        found = getattr(import_module("backline.ops.recurrent"), name)
        globals()[name] = found
        return found
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"{__name__} has no attribute {name!r}")
    from ..errors import UnknownName
    from ..switches.switch import nearest

    raise UnknownName(f"{__name__} has no name {name!r}.", remedy=f"the nearest names: {', '.join(nearest(name, __all__)[:3])}")


def __dir__() -> list[str]:
    return sorted(__all__)
