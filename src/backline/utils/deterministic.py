"""What determinism asks of memory that nobody has written."""

from __future__ import annotations

from ..switches.module import install as _install

__all__ = ["fill_uninitialized_memory"]

fill_uninitialized_memory: bool
"""While determinism is on: fill new memory with NaN, the largest integer or True."""

_install(__name__, "utils.deterministic")
