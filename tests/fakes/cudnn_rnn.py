"""cuDNN's recurrent networks on the host: ``cudnn_rnn.c``, compiled once for all processes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["library", "mask"]

SOURCE = Path(__file__).with_name("cudnn_rnn.c")
WORD = (1 << 64) - 1


@cache
def library() -> Any:
    """The stand-in as ctypes loads it."""
    folder = Path(tempfile.gettempdir()) / f"backline-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"cudnn-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:24]}.so"
    if not target.exists():
        made = folder / f"{target.stem}.{os.getpid()}"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-std=gnu11", str(SOURCE), "-o", str(made), "-lm"], check=True)
        made.rename(target)
    found = ctypes.CDLL(str(target))
    found.standin_stream.restype = ctypes.c_void_p
    return found


def mask(seed: int, count: int, rate: float) -> list[float]:
    """Factors that the stand-in multiplies elements with, in the order it draws them: splitmix64 of a counter that the seed begins."""
    rate32 = ctypes.c_float(rate).value
    first = (seed * 0x9E3779B97F4A7C15 + 1) & WORD
    drawn = []
    for i in range(count):
        z = (first + i + 0x9E3779B97F4A7C15) & WORD
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
        uniform = ((z ^ z >> 31) >> 11) / 9007199254740992.0
        drawn.append(0.0 if uniform < rate32 else 1 / (1 - rate32))
    return drawn
