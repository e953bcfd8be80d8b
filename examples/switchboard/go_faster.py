"""Recipe: make a program faster with one switch, and see what it changed.

Untuned, a ranking that Backline brings along says which library runs what. It was measured on another machine. With `benchmark`
on, the candidates of each operation and shape are timed once, here, and the fastest runs from then on.

The table compares the times that Backline took of the candidates in turn. Calls that a program times before and after, by itself,
are compared at different load: on two threads, one takes a hundred times as long while another program has one of two processors.
"""

import os
import time

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


def who(choice) -> str:
    return f"{choice.library} {choice.algorithm} x{choice.chosen.threads}"


def timed(choice, algorithm) -> float | None:
    """Seconds of an algorithm among the candidates of a choice, if it was timed."""
    return next((c.seconds for c in choice.candidates if c.detail is not None and c.detail.key == algorithm.key), None)


def words(before: float | None, after: float | None) -> str:
    """Says in words how much faster or slower a call became."""
    if not before or not after:
        return "not compared"
    if before / after > 1.1:
        return f"{before / after:.1f} times as fast"
    if after / before > 1.1:
        return f"{after / before:.1f} times as slow"
    return "about as fast"


def shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def main() -> None:
    before = {name: torch.explain(*call) for name, call in CALLS.items()}

    torch.backends.benchmark = True
    start = time.perf_counter()
    for function, *arrays in CALLS.values():
        function(*arrays)  # the first call of a shape times the candidates
    spent = time.perf_counter() - start
    after = {name: torch.explain(*call) for name, call in CALLS.items()}

    print(f"{'operation':<32} {'before':<24} {'ms':>7}   {'with benchmark = True':<24} {'ms':>7}")
    gain = {}
    for name in CALLS:
        old, new = before[name], after[name]
        old_time, new_time = timed(new, old.chosen), timed(new, new.chosen)
        mark = ""
        if who(old) != who(new):
            gain[name] = old_time / new_time if old_time and new_time else 0.0
            mark = "   " + words(old_time, new_time)
        print(f"{name:<32} {who(old):<24} {shown(old_time):>7}   {who(new):<24} {shown(new_time):>7}{mark}")
    print(f"\n{len(gain)} of {len(CALLS)} run another way now; timing the candidates took {spent:.1f} s, once.")

    example = max(gain or CALLS, key=lambda name: gain.get(name, 1.0))
    print(f"\nWhy, for example: {example}")
    print(f"  before:  {before[example].basis}")
    print(f"  now:     {after[example].basis}")
    print("  what was timed:")
    for verdict, library, algorithm, taken, reason in after[example].rows():
        if taken:
            print(f"    {verdict:<7} {library:<9} {algorithm:<14} {taken:>9}  {reason}".rstrip())


if __name__ == "__main__":
    main()
