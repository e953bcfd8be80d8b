"""Recipe: make a program faster with one switch, and see what it changed.

Untuned, a ranking that Backline brings along says which library runs what. It was measured on another machine. With `benchmark`
on, the candidates of each operation and shape are timed once, here, and the fastest runs from then on.
"""

import os
import time
from statistics import median

import numpy as np

# Nothing is kept of this demonstration. Without this line, every later program of yours would gain from what is measured here.
os.environ.setdefault("BACKLINE_TUNING", "")

import backline as torch

rng = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


CALLS = {
    "product, thin": (torch.matmul, array(2000, 16), array(16, 400)),
    "product, a batch of small ones": (torch.matmul, array(300, 24, 24), array(300, 24, 24)),
    "product, square": (torch.matmul, array(400, 400), array(400, 400)),
    "solve": (torch.linalg.solve, array(150, 150), array(150, 8)),
    "eigenvalues": (torch.linalg.eigvalsh, (lambda a: a + a.T)(array(120, 120))),
    "singular values": (torch.linalg.svdvals, array(200, 60)),
}


def timed(function, *arrays) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        function(*arrays)
        times.append(time.perf_counter() - start)
    return median(times[1:])


def who(choice) -> str:
    return f"{choice.library} {choice.algorithm} x{choice.chosen.threads}"


def main() -> None:
    before = {name: (torch.explain(*call), timed(*call)) for name, call in CALLS.items()}

    torch.backends.benchmark = True
    start = time.perf_counter()
    for function, *arrays in CALLS.values():
        function(*arrays)  # the first call of a shape times the candidates
    spent = time.perf_counter() - start
    after = {name: (torch.explain(*call), timed(*call)) for name, call in CALLS.items()}

    print(f"{'operation':<32} {'before':<24} {'ms':>7}   {'with benchmark = True':<24} {'ms':>7}")
    changed = []
    for name in CALLS:
        (old, old_time), (new, new_time) = before[name], after[name]
        mark = ""
        if who(old) != who(new):
            changed.append(name)
            gain = old_time / new_time
            mark = f"   {gain:.1f} times as fast" if gain > 1.1 else "   about as fast"
        print(f"{name:<32} {who(old):<24} {old_time * 1e3:7.3f}   {who(new):<24} {new_time * 1e3:7.3f}{mark}")
    print(f"\n{len(changed)} of {len(CALLS)} run another way now; timing the candidates took {spent:.1f} s, once.")

    gain = {name: before[name][1] / after[name][1] for name in changed or CALLS}
    shown = max(gain, key=gain.get)
    print(f"\nWhy, for example: {shown}")
    print(f"  before:  {before[shown][0].basis}")
    print(f"  now:     {after[shown][0].basis}")
    print("  what was timed:")
    for verdict, library, algorithm, taken, reason in after[shown][0].rows():
        if taken:
            print(f"    {verdict:<7} {library:<9} {algorithm:<14} {taken:>9}  {reason}".rstrip())


if __name__ == "__main__":
    main()
