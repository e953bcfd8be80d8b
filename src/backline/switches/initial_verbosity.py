"""Initial levels of the verbose switches: those that libraries take from the environment when they are loaded."""

from __future__ import annotations

import os

__all__ = ["starting_mkl", "starting_mkldnn"]

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
