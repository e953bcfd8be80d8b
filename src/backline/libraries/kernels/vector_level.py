"""The vector instructions that the loops of `_kernels` use."""

from __future__ import annotations

from ... import _kernels
from .. import capability

__all__ = ["vector_level"]

LEVELS = ("avx2", "avx512")


def vector_level() -> int:
    """Returns the highest level of vector instructions that the processor has and the cap allows."""
    allowed = [level for level, word in enumerate(LEVELS, 1) if capability.allows(word)]
    return min(max(allowed, default=0), _kernels.instruction_level)
