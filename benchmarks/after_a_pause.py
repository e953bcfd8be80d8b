"""Short calls of a program that does something else in between: ``python benchmarks/after_a_pause.py [--json]``.

Before each call Python computes for 20 milliseconds on one thread, so that the threads of every pool but NumPy's sleep. The
figure is the median of the calls, contestants in turn; in the column `woken` the threads are woken for calls of any length.
Beside it, the time of the same call right after others. Run it where nothing else runs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import scipy.special

import backline
from backline import _core, linalg
from backline.nn import functional as F
from side_by_side import PAUSE, Table, show

try:
    import torch
except ImportError:  # without it, NumPy and SciPy are the peers
    torch = None  # type: ignore[assignment]

BETWEEN = 0.02  # seconds of other work before each call; threads of PyTorch's libgomp, which Backline then shares, spin for 5 ms
ROUNDS, CALLS = 5, 40
rng = np.random.default_rng(1)
Call = Callable[[], Any]


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def rows() -> dict[str, dict[str, Call]]:
    """Calls of each operation by Backline and by others."""
    found: dict[str, dict[str, Call]] = {}

    def add(name: str, ours: Call, numpy: Call | None, theirs: Call | None) -> None:
        calls = {"backline": ours, "woken": ours, "numpy": numpy, "torch": theirs if torch is not None else None}
        found[name] = {who: call for who, call in calls.items() if call is not None}

    for dtype, n in ((np.float32, 100), (np.float64, 100), (np.float32, 200), (np.float64, 200)):
        a = numbers(n, n, dtype=dtype)
        t = torch.from_numpy(a) if torch is not None else None
        add(f"matmul {a.dtype} {n}", lambda a=a: backline.matmul(a, a), lambda a=a: a @ a, lambda t=t: t @ t)
    for rows, columns in ((40, 300), (300, 250), (900, 1100)):
        x = numbers(rows, columns)
        t = torch.from_numpy(x) if torch is not None else None
        add(f"relu {rows}x{columns}", lambda x=x: F.relu(x), lambda x=x: np.maximum(x, 0), lambda t=t: torch.relu(t))
        add(
            f"softmax {rows}x{columns}", lambda x=x: F.softmax(x, -1), lambda x=x: scipy.special.softmax(x, -1),
            lambda t=t: torch.softmax(t, -1),
        )  # fmt: skip
        add(f"gelu {rows}x{columns}", lambda x=x: F.gelu(x), None, lambda t=t: torch.nn.functional.gelu(t))
        add(
            f"layer_norm {rows}x{columns}", lambda x=x: F.layer_norm(x, x.shape[-1:]), None,
            lambda t=t: torch.nn.functional.layer_norm(t, t.shape[-1:]),
        )  # fmt: skip
    image, weight = numbers(1, 96, 14, 14), numbers(96, 1, 3, 3)
    ti, tw = (torch.from_numpy(image), torch.from_numpy(weight)) if torch is not None else (None, None)
    add(
        "conv2d depthwise 1x96x14x14", lambda: F.conv2d(image, weight, padding=1, groups=96), None,
        lambda: torch.nn.functional.conv2d(ti, tw, padding=1, groups=96),
    )  # fmt: skip
    stack = numbers(60, 30, 30)
    ts = torch.from_numpy(stack) if torch is not None else None
    add("matmul float32 60x30x30", lambda: backline.matmul(stack, stack), lambda: stack @ stack, lambda: ts @ ts)
    spd = stack @ np.swapaxes(stack, -1, -2) + 30 * np.eye(30, dtype=np.float32)
    tp = torch.from_numpy(spd) if torch is not None else None
    theirs = (lambda: np.linalg.cholesky(spd), lambda: torch.linalg.cholesky(tp))
    add("cholesky float32 60x30x30", lambda: linalg.cholesky(spd), *theirs)
    return found


def work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def timed(call: Call, between: float, *, wakes: bool = False) -> list[float]:
    """Seconds of calls, with other work before each of them; a call that `wakes` takes the threads for awake."""
    _core.team_stays_awake(math.inf if wakes else BETWEEN / 2)
    times = []
    for _ in range(CALLS):
        if between:
            work(between)
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    table = Table("after_a_pause", ["numpy", "torch"] if torch is not None else ["numpy"], ["backline", "woken"])
    for name, calls in rows().items():
        times: dict[str, list[float]] = {who: [] for who in calls}
        hot: list[float] = []
        for _ in range(ROUNDS):
            for who, call in calls.items():
                time.sleep(PAUSE)  # until the threads of the one before sleep
                for _ in range(3):
                    call()
                hot += timed(call, 0.0) if who == "backline" else []
                times[who] += timed(call, BETWEEN, wakes=who == "woken")
        calls["backline"]()
        choice = backline.explain()
        ran = f"{choice.library} {choice.algorithm} x{choice.chosen.threads if choice.chosen else 0}"
        table.add(name, {who: median(each) for who, each in times.items()}, f"{ran}; {show(median(hot))} without a pause")
    if "--json" in sys.argv:
        table.save(between=BETWEEN)


if __name__ == "__main__":
    if torch is not None:
        torch.set_grad_enabled(False)
    main()
