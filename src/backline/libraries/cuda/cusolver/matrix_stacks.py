"""Stacks of matrices on a device, as routines that work on columns want them, and what the calls of a Plan have in common.

A `stack` is an array of shape (items, columns, rows) in one piece, so that each item lies in memory column by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common import bindings, pointer_tables
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
        self._kept: list[Any] = []  # memory that routines use, until the call is over

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

    def tables(self, *batches: tuple[int, int], items: int) -> list[int]:
        """Addresses of tables of the items of some batches: of each, the address of the first and bytes from item to item."""
        steps = ((items, tuple(step for _, step in batches)),)
        made = pointer_tables.tables([base for base, _ in batches], steps)
        self._kept.append(made)
        return [at(made, i) for i in range(len(batches))]

    def tables_of(self, *stacks: Any) -> list[int]:
        """The same of stacks."""
        return self.tables(*((at(s), s.strides[0]) for s in stacks), items=stacks[0].shape[0])
