"""The processor: its instruction sets, and a cap on those that libraries may use."""

from __future__ import annotations

from . import _module_factory

__all__ = ["flags", "get_cpu_capability", "set_flags"]

flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def get_cpu_capability() -> str:
    """Returns the instruction set that libraries may use: DEFAULT, AVX2, AVX512, SVE256, VSX or Z VECTOR.

    It is what the processor has, or less where ATEN_CPU_CAPABILITY, BACKLINE_CPU_CAPABILITY or ``flags(capability=…)`` caps it.
    A cap reaches into a library that reads it once (MKL, OpenBLAS, oneDNN) if it is set before the library is loaded;
    ``explain()`` says where it came too late.

    Examples
    --------
    >>> from backline.backends import cpu
    >>> with cpu.flags(capability="default"):
    ...     cpu.get_cpu_capability()
    'DEFAULT'
    """
    from ..libraries import capability

    return capability.effective()


_module_factory.install(__name__, present=False)
