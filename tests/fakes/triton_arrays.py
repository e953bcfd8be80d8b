"""NumPy arrays as Triton's interpreter takes tensors: by address, dtype and a copy that is the array itself."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Pointer"]


class Pointer:
    """An array for a kernel that runs in Triton's interpreter: it reads and writes the array's own memory."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.dtype = array, {"bool": "int8"}.get(array.dtype.name, array.dtype.name)

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def untyped_storage(self) -> Pointer:
        return self

    def cpu(self) -> Pointer:
        return self

    def new_empty(self, size: int, device: str = "") -> Pointer:
        return Pointer(self.array)

    def set_(self, *args: Any) -> None:
        """It is the same memory already."""

    copy_ = storage_offset = size = stride = set_
