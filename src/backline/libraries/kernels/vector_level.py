"""The vector instructions that the loops of `_kernels` use."""

from __future__ import annotations

from ... import _kernels
from .. import capability

__all__ = ["vector_level", "vector_levels"]

LEVELS = ("avx2", "avx512")


def vector_levels() -> tuple[str, ...]:
    """Returns the vector instructions that the processor has and the cap allows, the lowest first."""
    return capability.allowed(LEVELS[: _kernels.instruction_level])


def vector_level() -> int:
    """Returns the highest level of vector instructions that is available and allowed: 2 for AVX-512, 1 for AVX2, else 0."""
    return len(vector_levels())
