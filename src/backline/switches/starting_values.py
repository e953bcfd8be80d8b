"""Values that switches start with where the machine, or environment variables of the libraries, decide them.

They are read when a switch is first needed, never at import. The sizes of cuBLAS's workspaces are what cuBLAS recommends for the
device unless a variable says otherwise, which is not asked before a size is needed.
"""

from __future__ import annotations

import os
import re
from typing import Final

from .. import _core

__all__ = [
    "MOST_THREADS", "RECOMMENDED", "recommended", "shared", "starting_cublas", "starting_cublaslt", "starting_mkl",
    "starting_mkldnn", "starting_threads",
]  # fmt: skip

# --- threads -------------------------------------------------------------------------------------------------------

MOST_THREADS: int = _core.most_threads
"""No call may use more: OpenBLAS, MKL and BLIS keep tables of their threads, and with 5,000 or more they hang or crash."""


def starting_threads() -> tuple[int, str]:
    """Returns the thread count to start with, and where it came from.

    The larger of OMP_NUM_THREADS and MKL_NUM_THREADS where either holds a number, else `usable_cores`; MOST_THREADS where that is
    more.
    """
    from ..processors import usable_cores  # not at the top: `import backline` imports this module

    asked = {name: _first_number(os.environ.get(name, "")) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    name = max(asked, key=asked.__getitem__)
    if asked[name]:
        return min(asked[name], MOST_THREADS), name
    return min(usable_cores(), MOST_THREADS), "usable physical cores"


def _first_number(text: str) -> int:
    # OpenMP allows a list, one number per nesting level: "8,2". The first is the outermost.
    word = text.split(",")[0].strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else 0


# --- levels of the verbose switches, which libraries take from the environment when they are loaded ------------------------

# Words of oneDNN that stand for the lines of a level. It knows others (error, check, dispatch, debuginfo=...), which print
# something else; while only these are given, its level counts as 0 and no call changes what it prints.
_WORDS = {"profile_exec": 1, "profile_create": 2, "profile": 2, "all": 2}


def starting_mkl() -> tuple[int, str]:
    """Returns the level that MKL_VERBOSE asks for, and where it came from; 0 for what is no level."""
    text = os.environ.get("MKL_VERBOSE", "").strip()
    if not text:
        return 0, "MKL_VERBOSE is not set"
    return int(text) if text in ("1", "2") else 0, "MKL_VERBOSE"


def starting_mkldnn() -> tuple[int, str]:
    """Returns the level that ONEDNN_VERBOSE, or else DNNL_VERBOSE, asks for, and where it came from; 0 for what is no level.

    oneDNN takes a number, or words with commas between: ``profile_exec`` is level 1, ``profile`` and ``all`` are level 2.
    """
    for name in ("ONEDNN_VERBOSE", "DNNL_VERBOSE"):
        text = os.environ.get(name, "").strip().lower()
        if text.isascii() and text.isdigit():
            return min(int(text[-9:]), 2), name
        if text:
            return max(_WORDS.get(word.strip(), 0) for word in text.split(",")), name
    return 0, "ONEDNN_VERBOSE is not set"


# --- sizes of cuBLAS's workspaces ------------------------------------------------------------------------------------------

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
