"""Times several ways of doing the same thing in one run, in turn.

Every round shuffles the contestants. Before each one there is a pause, so that the spinning threads of the one before do not
spoil it, and one or two calls that are not counted. The figure is the median over the rounds. A round that began or ended while
the threads got much less done than before, as where a hypervisor has two of them share a core, is made again. A contestant that
took seconds, and a hundred times as long as the fastest, is timed in one round.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from timeit import Timer
from typing import Any

# A benchmark reads no configuration and no tuning of the machine it runs on: it tunes for itself.
os.environ["BACKLINE_CONFIG"] = os.environ["BACKLINE_TUNING"] = ""

RESULTS = Path(__file__).parent / "results"
PAUSE = 0.15  # NumPy's OpenBLAS spins for 2^28 cycles after a call, which is 0.11 s at 2.4 GHz
made_again: list[int] = []  # rounds, by comparison, since a table was saved


def call(statement: str, **names: Any) -> Timer:
    """A contestant that costs no Python frame of its own: ``call("f(a, b)", f=np.matmul, a=a, b=b)``."""
    return Timer(statement, globals=names)


Contestants = dict[str, Timer | Callable[[], Any]]


def compare(contestants: Contestants, *, seconds: float = 0.02, rounds: int = 9, quiet: bool = True) -> dict[str, float]:
    """Median seconds of a call for each contestant; `seconds` of calls a round, at least one call."""
    times = round_by_round(contestants, seconds=seconds, rounds=rounds, quiet=quiet)
    return {name: statistics.median(t) for name, t in times.items()}


def round_by_round(contestants: Contestants, *, seconds: float, rounds: int, quiet: bool = True) -> dict[str, list[float]]:
    """Seconds of a call in each round, for each contestant; where it is not `quiet` on purpose, no round is made again."""
    timers = {name: c if isinstance(c, Timer) else Timer(c) for name, c in contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    order = list(contestants)
    started = time.perf_counter()
    done = again = 0
    before = quiet and share_a_core()

    def enough() -> bool:
        taken = time.perf_counter() - started
        return done >= rounds or (done >= 5 and taken > 20) or (done >= 3 and taken > 60)

    def hopeless(name: str) -> bool:
        """Tells whether a contestant took seconds for what another does in milliseconds, as NumPy does in products of float16."""
        return done > 0 and times[name][0] > max(1, 100 * min(first for first, *_ in times.values()))

    while not enough():
        random.shuffle(order)
        this = {name: times[name][0] for name in order if hopeless(name)}
        for name in (name for name in order if name not in this):
            time.sleep(PAUSE)
            once = timers[name].timeit(1)
            if once < 0.1:  # the first call may have planned, which the calls that count do not
                once = timers[name].timeit(1)
            count = max(1, min(20000, int(seconds / max(once, 1e-6))))
            # Beside a second nothing is won by a call more: NumPy takes 40 for float16 2048x2048.
            this[name] = once if once > 1 else timers[name].timeit(count) / count
        spoilt, before = before, quiet and share_a_core()
        if (spoilt or before) and again < rounds:
            again += 1
            continue
        done += 1
        for name, taken in this.items():
            times[name].append(taken)
    made_again.append(again)
    return times


def share_a_core() -> bool:
    """Returns whether the threads get much less done than they have in this process."""
    import backline
    from backline.engine.tuning import machine_load, team_speedup

    threads = backline.get_num_threads()
    if not team_speedup.available(threads):
        return False
    time.sleep(PAUSE)
    now = replace(machine_load.read(), speedup=team_speedup.measured(threads))
    return machine_load.between(now, now, threads).crowded


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def show(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


class Table:
    """Rows of times, printed as they come and kept as JSON."""

    def __init__(self, name: str, peers: list[str], ours: str | list[str] = "backline") -> None:
        self.ways = [ours] if isinstance(ours, str) else ours  # several ways of ours, of which the first counts
        self.name, self.peers, self.ours = name, peers, self.ways[0]
        self.rows: list[dict[str, Any]] = []
        self._head = False

    def add(self, label: str, times: dict[str, float], note: str = "") -> None:
        if not self._head:
            titles = ["", *self.ways, *self.peers, "of best peer", "ran on"]
            print("  ".join(f"{t:>12}" if i else f"{t:<34}" for i, t in enumerate(titles)), flush=True)
            self._head = True
        best = min(times[p] for p in self.peers if p in times)
        ratios = {way: times[way] / best for way in self.ways}
        self.rows.append({"row": label, "seconds": times, "of_best_peer": ratios[self.ours], "of_best": ratios, "ran_on": note})
        cells = [show(times[c]) if c in times else "-" for c in [*self.ways, *self.peers]]
        print(
            f"{label:<34}  "
            + "  ".join(f"{c:>12}" for c in [*cells, " ".join(f"{r:.2f}" for r in ratios.values())])
            + f"  {note}",
            flush=True,
        )

    def speed_over(self, peer: str, select: Callable[[str], bool] = lambda label: True) -> float:
        """Geometric mean of peer's time over ours."""
        pairs = [r["seconds"] for r in self.rows if peer in r["seconds"] and select(r["row"])]
        return geometric_mean([s[peer] / s[self.ours] for s in pairs])

    def save(self, **more: Any) -> None:
        import numpy as np

        from backline import libraries
        from backline.native.machine import machine

        m = machine()
        versions = {n: libraries.get(n).version() for n in libraries.names()}
        for module in ("scipy", "torch"):
            if module in sys.modules:
                versions[module] = sys.modules[module].__version__
        content = {
            "command": " ".join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d"), "cpu": m.cpu.model,
            "cores": m.physical_cores, "versions": {**versions, "numpy": np.__version__}, "summary": more,
            **({"rounds_made_again": sum(made_again)} if made_again else {}), "rows": self.rows,
        }  # fmt: skip
        made_again.clear()  # the next table has its own
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        path.write_text(json.dumps(content, indent=1, default=str) + "\n")
        print(f"\n{path}")


def torch_or_none(threads: int) -> Any:
    """PyTorch with that many threads, where it is installed."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: its column is left out (pip install torch==2.13.0)")
        return None
    torch.set_num_threads(threads)
    return torch


def threads_asked() -> int:
    """The number after --threads, else what backline would use."""
    import backline

    if "--threads" in sys.argv:
        backline.set_num_threads(int(sys.argv[sys.argv.index("--threads") + 1]))
    return backline.get_num_threads()
