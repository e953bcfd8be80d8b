"""Operations on int8, and the engines that pack and run them.

The engines "fbgemm" and "qnnpack" are those libraries' ranges and rounding, computed by the libraries there are.
"""

from __future__ import annotations

from typing import Literal

from . import _module_factory

__all__ = ["engine", "flags", "set_flags", "supported_engines"]

engine: Literal["x86", "onednn", "fbgemm", "qnnpack", "reference"]
supported_engines: list[str]
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def _supported() -> list[str]:
    """Engines that are available, the best first. Read-only."""
    from ..libraries import quantized_engines

    return quantized_engines.supported()


_computed = {"supported_engines": (_supported, "backline.backends.quantized.engine")}
_module_factory.install(__name__, present=False, computed=_computed)
