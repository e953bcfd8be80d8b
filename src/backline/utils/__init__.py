"""Small things beside the operations, under torch's names."""

from __future__ import annotations

from . import deterministic

__all__ = ["deterministic"]
