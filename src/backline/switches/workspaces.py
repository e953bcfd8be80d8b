"""Starting sizes of cuBLAS's workspaces, from cuBLAS's own environment variables.

Where no variable says, the size is what cuBLAS recommends for the device, which is not asked before a size is needed.
"""

from __future__ import annotations

import os
import re
from typing import Final

__all__ = ["RECOMMENDED", "recommended", "shared", "starting_cublas", "starting_cublaslt"]

KIB: Final = 1024
RECOMMENDED: Final = -1
"""Stored until a size is set; it cannot be assigned, and no getter returns it."""


def recommended(capability: tuple[int, int] | None) -> int:
    """Returns the bytes that cuBLAS recommends for a device of this compute capability, or without a device.

    Examples
    --------
    >>> recommended((8, 0)), recommended((9, 0)) >> 20
    (8519680, 32)
    """
    return 32 * KIB * KIB if capability == (9, 0) else 8320 * KIB


def shared() -> bool:
    """Tells whether cuBLASLt uses cuBLAS's workspace, as TORCH_CUBLASLT_UNIFIED_WORKSPACE says (it does unless that is 0)."""
    return os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1").strip() != "0"


def starting_cublas() -> tuple[int, str]:
    """Returns the sum of the blocks that CUBLAS_WORKSPACE_CONFIG asks for (":KiB:count", repeated).

    Examples
    --------
    >>> _blocks(":4096:2:16:8")
    8519680
    """
    text = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    size = _blocks(text)
    return (RECOMMENDED, "declaration") if size is None else (size, f"CUBLAS_WORKSPACE_CONFIG={text}")


def _blocks(text: str) -> int | None:
    pairs = re.findall(r":(\d+):(\d+)", text)
    if not pairs or "".join(f":{size}:{count}" for size, count in pairs) != text.strip():
        return None
    return sum(int(size) * KIB * int(count) for size, count in pairs)


def starting_cublaslt() -> tuple[int, str]:
    """Returns the size in CUBLASLT_WORKSPACE_SIZE, which is in KiB, and its origin."""
    text = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "").strip()
    if not re.fullmatch("[0-9]+", text):
        return RECOMMENDED, "declaration"
    return int(text) * KIB, f"CUBLASLT_WORKSPACE_SIZE={text}"
