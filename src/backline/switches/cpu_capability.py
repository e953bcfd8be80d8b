"""Class of vector instructions that this processor has, and the words for a cap on it.

Of each architecture there is one ladder of words, lowest first; a cap is a word not above the one detected.
Understanding texts is separate from reading them, so that processors of other machines can be tested.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import lru_cache

from ..records import Record
from .switch import Value, nearest

__all__ = ["NAMES", "UpToDetected", "at_most", "detected", "legal_words", "starting_capability", "word_of"]

#: The words, and the names under which capabilities are reported.
NAMES = {
    "default": "DEFAULT", "avx2": "AVX2", "avx512": "AVX512", "sve256": "SVE256", "vsx": "VSX", "zvector": "Z VECTOR",
}  # fmt: skip
_LADDERS = (("default", "avx2", "avx512"), ("default", "sve256"), ("default", "vsx"), ("default", "zvector"))


@lru_cache(maxsize=64)
def at_most(word: str, limit: str) -> bool:
    """Tells whether `word` is `limit` or below it on the same ladder.

    Examples
    --------
    >>> at_most("avx2", "avx512"), at_most("avx512", "avx2"), at_most("vsx", "avx512")
    (True, False, False)
    """
    return any(word in ladder[: ladder.index(limit) + 1] for ladder in _LADDERS if limit in ladder)


def word_of(flags: Iterable[str], architecture: str, sve_bytes: int | None = None) -> str:
    """Returns the word for a processor.

    Parameters
    ----------
    flags
        Features, as the Linux kernel spells them.
    architecture
        As ``os.uname().machine`` spells it.
    sve_bytes
        Length of an SVE vector, where there is one.

    Examples
    --------
    >>> word_of(["avx", "avx2", "fma"], "x86_64")
    'avx2'
    """
    have = set(flags)
    architecture = architecture.lower()
    if architecture in ("x86_64", "amd64"):
        if have >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"}:
            return "avx512"
        if have >= {"avx2", "fma"}:
            return "avx2"
    elif architecture in ("aarch64", "arm64"):
        if "sve" in have and sve_bytes == 32:
            return "sve256"
    elif architecture == "s390x":
        if "vx" in have:
            return "zvector"
    elif architecture == "ppc64le":
        return "vsx"
    return "default"


@lru_cache(maxsize=1)
def detected() -> str:
    """Returns the word for this processor; it is looked at once.

    Examples
    --------
    >>> detected() in NAMES
    True
    """
    flags = _kernel_flags()
    return word_of(flags, _architecture(), _sve_bytes() if "sve" in flags else None)


def legal_words() -> tuple[str, ...]:
    """Returns the words that can be a cap here: those up to the one detected, the lowest first."""
    return tuple(word for word in NAMES if at_most(word, detected()))


def starting_capability() -> tuple[str, str]:
    """Returns the cap to start with, which is none, and where it came from."""
    return detected(), "this processor"


class UpToDetected(Record):
    """Legal values of a cap: the words that this processor reaches.

    Examples
    --------
    >>> UpToDetected()("default"), UpToDetected()("AVX2")
    (True, False)
    """

    def __call__(self, value: Value) -> bool:
        return value in legal_words()

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to `value` first."""
        words = ", ".join(repr(word) for word in nearest(str(value), legal_words()))
        return f"{words} (this processor reaches {detected()!r})"


# --- reading -------------------------------------------------------------------------------------------


def _architecture() -> str:
    if hasattr(os, "uname"):
        return os.uname().machine
    import platform  # not at the top: it takes a millisecond

    return platform.machine()


def _kernel_flags() -> frozenset[str]:
    """Returns the features of the first processor, from the kernel; where it keeps no list, from NumPy."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:  # the first processor is enough, and a large machine has hundreds
                key, _, value = line.partition(":")
                if key.strip().lower() in ("flags", "features"):
                    return frozenset(value.split())
    except OSError:
        pass
    return _numpy_flags()


def _numpy_flags() -> frozenset[str]:
    from importlib import import_module

    try:
        features = import_module("numpy._core._multiarray_umath").__cpu_features__
    except (ImportError, AttributeError):
        return frozenset()  # private names of NumPy's, which may go: then nothing is known
    have = {name.lower() for name, present in features.items() if present}
    return frozenset(have | ({"fma"} if "fma3" in have else set()))


def _sve_bytes() -> int | None:
    """Returns the length of this process's SVE vectors, as the kernel sets it."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    get_length, length_bits = 51, 0xFFFF
    answer: int = ctypes.CDLL(None).prctl(get_length, 0, 0, 0, 0)
    return answer & length_bits if answer >= 0 else None
