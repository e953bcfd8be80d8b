"""Operations beside other work, against NumPy, SciPy and PyTorch: ``python benchmarks/busy.py [quiet] [busy] [pinned] [quota]``.

- ``quiet``: nothing else runs.
- ``busy``: beside a process that keeps one processor busy, and that the system may put on any.
- ``pinned``: on one processor, as under ``taskset``.
- ``quota``: in a control group with one processor's worth of time, on all processors; left out where none can be made.
- ``after-numpy``: as quiet, but a product by NumPy comes before each call, which is timed alone. NumPy's BLAS spins meanwhile.

Each is a process of its own. Untuned; `of best peer` is our time over the shortest of the others'. ``--rows REGEX`` takes some.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONDITIONS = ("quiet", "busy", "pinned", "quota", "after-numpy")
BURN = "import os\nwhile os.getppid() == {parent}: sum(range(100000))"
SECONDS = 0.15  # of calls a round: as long as many slices of time that the system gives to programs in turn


@contextmanager
def burning() -> Iterator[None]:
    """A process that keeps a processor busy."""
    with subprocess.Popen([sys.executable, "-c", BURN.format(parent=os.getpid())]) as burner:
        try:
            yield
        finally:
            burner.kill()


@contextmanager
def limited() -> Iterator[str]:
    """A control group of one processor's worth of time, of version 2 or 1; its folder."""
    root = Path("/sys/fs/cgroup")
    second = (root / "cgroup.controllers").exists()
    folder = (root if second else root / "cpu") / f"backline-busy-{os.getpid()}"
    folder.mkdir()
    try:
        if second:
            (folder / "cpu.max").write_text("100000 100000")
        else:
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text("100000")
        yield str(folder)
    finally:
        for _ in range(50):  # until the system has taken the processes out of it
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.1)


# --- one condition, in a process of its own ---------------------------------------------------------------------------------


def rows(torch: Any) -> Iterator[tuple[str, dict[str, Callable[[], Any]]]]:
    import numpy as np
    import scipy.linalg as sl

    import backline
    from backline import linalg
    from backline.nn import functional

    rng = np.random.default_rng(1)

    def made(*shape: int, dtype: Any = np.float32) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    def peer(function: Callable[..., Any], *arrays: Any, **more: Any) -> Callable[[], Any]:
        tensors = [torch.from_numpy(a) for a in arrays]
        return lambda: function(*tensors, **more)

    for dtype in (np.float32, np.float64):
        for n in (256, 512, 1024):
            a, b = made(n, n, dtype=dtype), made(n, n, dtype=dtype)
            found: dict[str, Callable[[], Any]] = {
                "backline": lambda a=a, b=b: backline.matmul(a, b),
                "numpy": lambda a=a, b=b: np.matmul(a, b),
            }
            if torch:
                found["torch"] = peer(torch.matmul, a, b)
            yield f"matmul {np.dtype(dtype).name} {n}", found
    operations: list[tuple[str, int, Any, Any]] = [
        ("inv", 300, np.linalg.inv, lambda a: sl.inv(a, check_finite=False)),
        ("solve", 500, np.linalg.solve, lambda a, b: sl.solve(a, b, check_finite=False)),
        ("svd", 300, np.linalg.svd, lambda a: sl.svd(a, check_finite=False)),
        ("qr", 500, np.linalg.qr, lambda a: sl.qr(a, mode="economic", check_finite=False)),
        ("eigh", 300, np.linalg.eigh, lambda a: sl.eigh(a, check_finite=False)),
        ("cholesky", 800, np.linalg.cholesky, lambda a: sl.cholesky(a, lower=True, check_finite=False)),
        ("lu_factor", 500, None, lambda a: sl.lu_factor(a, check_finite=False)),
    ]
    for dtype in (np.float32, np.float64):
        for op, n, in_numpy, in_scipy in operations:
            a, ours = made(n, n, dtype=dtype), getattr(linalg, op)
            arrays = [a @ a.T + n * np.eye(n, dtype=dtype) if op in ("cholesky", "eigh") else a]
            if op == "solve":
                arrays.append(made(n, 16, dtype=dtype))
            found = {"backline": lambda f=ours, x=arrays: f(*x), "scipy": lambda f=in_scipy, x=arrays: f(*x)}
            if in_numpy is not None:
                found["numpy"] = lambda f=in_numpy, x=arrays: f(*x)
            if torch:
                found["torch"] = peer(getattr(torch.linalg, op), *arrays)
            yield f"{op} {np.dtype(dtype).name} {n}", found
    images, weight, hidden, matrix = made(8, 32, 56, 56), made(64, 32, 3, 3), made(2048, 1000), made(1024, 1000)
    q, k = made(4, 8, 128, 64), made(4, 8, 128, 64)
    layers: list[tuple[str, Callable[[], Any], Any, tuple[Any, ...], Any]] = [
        ("conv2d 8x32x56x56 64x32x3x3", lambda: functional.conv2d(images, weight, padding=1),
         torch and (lambda x, w: torch.nn.functional.conv2d(x, w, padding=1)), (images, weight), None),
        ("softmax 2048x1000", lambda: functional.softmax(hidden, dim=-1),
         torch and (lambda x: torch.softmax(x, -1)), (hidden,), None),
        ("linear 2048x1000 1024x1000", lambda: functional.linear(hidden, matrix),
         torch and torch.nn.functional.linear, (hidden, matrix), lambda: hidden @ matrix.T),
        ("einsum bhqd,bhkd->bhqk 4x8x128x64", lambda: backline.einsum("bhqd,bhkd->bhqk", q, k),
         torch and (lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y)), (q, k),
         lambda: np.einsum("bhqd,bhkd->bhqk", q, k, optimize=True)),
    ]  # fmt: skip
    for label, ours, theirs, arrays, in_numpy in layers:
        found = {"backline": ours}
        if in_numpy is not None:
            found["numpy"] = in_numpy
        if torch:
            found["torch"] = peer(theirs, *arrays)
        yield f"{label}", found


def after_numpy(contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of a call that comes right after a product by NumPy."""
    import statistics

    import numpy as np

    a = np.random.default_rng(2).standard_normal((512, 512))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(5):
        for name, call in contestants.items():
            time.sleep(0.15)
            for _ in range(12):
                a @ a
                begin = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(condition: str, pattern: str) -> None:
    import backline
    from side_by_side import Table, compare, torch_or_none

    torch = torch_or_none(backline.get_num_threads())
    table = Table(f"busy_{condition}", ["numpy", "scipy", *(["torch"] if torch else [])])
    for label, contestants in rows(torch):
        if not re.search(pattern, label) or len(contestants) == 1:
            continue
        contestants["backline"]()
        if condition == "after-numpy":
            times = after_numpy(contestants)
        else:
            times = compare(contestants, seconds=SECONDS, rounds=7, quiet=condition == "quiet")
        contestants["backline"]()
        chosen = backline.explain().chosen
        table.add(label, times, f"{chosen.library} {chosen.name} x{chosen.threads}")
    ratios = [row["of_best_peer"] for row in table.rows]
    slow = sum(r > 1.5 for r in ratios)
    over = {p: table.speed_over(p) for p in table.peers if any(p in row["seconds"] for row in table.rows)}
    print(f"\n{condition}: worst {max(ratios):.2f} of the best peer; {slow} of {len(ratios)} rows over 1.5")
    table.save(condition=condition, worst=max(ratios), over_1_5=slow, speed_over=over)


def run(condition: str, pattern: str) -> None:
    """Measures under a condition, in a process of its own."""
    child = [sys.executable, __file__, "--measure", condition, "--rows", pattern]
    print(f"\n=== {condition}\n", flush=True)
    if condition == "busy":
        with burning():
            subprocess.run(child, check=True)
    elif condition == "pinned":
        one = min(os.sched_getaffinity(0))
        subprocess.run(child, check=True, preexec_fn=lambda: os.sched_setaffinity(0, {one}))
    elif condition == "quota":
        try:
            with limited() as folder:
                subprocess.run(child, check=True, preexec_fn=lambda: Path(folder, "cgroup.procs").write_text(str(os.getpid())))
        except subprocess.CalledProcessError:
            raise
        except (OSError, subprocess.SubprocessError) as error:
            print(f"left out: no control group can be made here ({error})")
    else:
        subprocess.run(child, check=True)


if __name__ == "__main__":
    pattern = sys.argv[sys.argv.index("--rows") + 1] if "--rows" in sys.argv else ""
    if "--measure" in sys.argv:
        measure(sys.argv[sys.argv.index("--measure") + 1], pattern)
    else:
        for condition in [name for name in CONDITIONS if name in sys.argv] or CONDITIONS:
            run(condition, pattern)
