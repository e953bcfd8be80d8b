"""Stacks of matrices on a device, as routines that work on columns want them, and what the calls of a Plan have in common.

A `stack` is an array of shape (items, columns, rows) in one piece, so that each item lies in memory column by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common import bindings
from ..common.device_plan import at
from .routine_table import LETTER, Recipe

__all__ = ["ADJOINT", "LEFT", "LOWER", "PLAIN", "RIGHT", "TRANSPOSED", "UPPER", "Settings", "Stacks"]

# As cuBLAS numbers operations, triangles and sides.
PLAIN, TRANSPOSED, ADJOINT = 0, 1, 2
LOWER, UPPER = 0, 1
LEFT, RIGHT = 0, 1


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that the calls of a Plan have in common."""

    recipe: Recipe  # what is called
    device: int  # index of the device, which is current when a call is made
    dtype: np.dtype[Any]  # of the matrices
    own_handle: bool  # whether each stream has a cuBLAS handle of its own
    workspace: int  # bytes of cuBLAS's workspace

    @property
    def real(self) -> np.dtype[Any]:
        """Dtype of absolute values."""
        return np.dtype(self.dtype.char.lower())


class Stacks:
    """Arrays of one call of a Plan, for whoever computes on them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.dtype, self.real = settings.dtype, settings.real
        self.complex = settings.dtype.kind == "c"
        self.letter = LETTER[settings.dtype.name]
        self.xp: Any = bindings.cupy()

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        return self.xp.empty(shape, self.dtype if dtype is None else dtype)

    def infos(self, items: int) -> Any:
        """Returns an array of zeros to which routines write their status codes, one for each item."""
        return self.xp.zeros((items,), np.int32)

    def stack(self, array: Any) -> Any:
        """A copy of matrices (items, rows, columns), column by column."""
        items, rows, columns = array.shape
        made = self.empty(items, columns, rows)
        made[...] = array.swapaxes(1, 2)
        return made

    def table(self, base: int, items: int, step: int) -> Any:
        """Addresses of the items of a batch, on the device."""
        return self.xp.arange(items, dtype=np.int64) * step + base

    def tables(self, *stacks: Any) -> list[Any]:
        return [self.table(at(s), s.shape[0], s.strides[0]) for s in stacks]
