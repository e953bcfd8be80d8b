"""The number of threads that a library gets by default: the physical cores that this process may use.

It is read when a switch is first needed, never at import.
"""

from __future__ import annotations

import os

from .. import _core

__all__ = ["MOST_THREADS", "starting_threads"]

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
