"""NumPy's and SciPy's functions on the libraries that can take the place of their BLAS: ``python benchmarks/exchange.py``.

Also: the time of an exchange, and what a call costs that passes a threshold of sizes. Every round of a row exchanges the
library, waits until the threads of the one before have stopped spinning, makes one call that is not counted, and times the calls
after it; the order changes from round to round. The figure is the median, or with ``--best`` the least, for a machine that
others use as well.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg
import threadpoolctl

import backline
from backline import _exchange, libraries
from backline.interop import numpy as exchange
from backline.interop.exchange import narrow_calls
from side_by_side import PAUSE

STOCK = "numpy"
rng = np.random.default_rng(1)


def functions() -> dict[str, Callable[[], Any]]:
    """The rows of the table."""

    def square(n: int, dtype: type = np.float64) -> Any:
        return (rng.standard_normal((n, n)) + n * np.eye(n)).astype(dtype)

    a8, a64, a500, a512, a1024 = square(8), square(64), square(500, np.float32), square(512), square(1024, np.float32)
    symmetric, small, tall = a512 + a512.T, rng.standard_normal((200, 200)), rng.standard_normal((4, 1024)).astype(np.float32)
    wide, x = rng.standard_normal((1024, 4096)).astype(np.float32), rng.standard_normal(1_000_000)
    general = rng.standard_normal((512, 512))
    long, image = rng.standard_normal(1 << 18), rng.standard_normal((512, 512)).astype(np.float32)
    return {
        "np.matmul 8x8": lambda: a8 @ a8,
        "np.matmul 64x64": lambda: a64 @ a64,
        "np.matmul f32 500": lambda: a500 @ a500,
        "np.matmul f32 1024": lambda: a1024 @ a1024,
        "np.matmul f32 4x1024x4096": lambda: tall @ wide,
        "np.matmul a, a.T f64 512": lambda: a512 @ a512.T,
        "np.dot 10^6": lambda: x @ x,
        "np.matmul 512 x vector": lambda: a512 @ x[:512],
        "np.linalg.solve 8": lambda: np.linalg.solve(a8, a8),
        "np.linalg.solve 512": lambda: np.linalg.solve(a512, a512),
        "np.linalg.inv 64": lambda: np.linalg.inv(a64),
        "np.linalg.inv 512": lambda: np.linalg.inv(a512),
        "np.linalg.svd 16": lambda: np.linalg.svd(small[:16, :16]),
        "np.linalg.svd 512": lambda: np.linalg.svd(general),
        "np.linalg.eigh 16": lambda: np.linalg.eigh(symmetric[:16, :16]),
        "np.linalg.eigh 512": lambda: np.linalg.eigh(symmetric),
        "np.linalg.cholesky 8": lambda: np.linalg.cholesky(a8 @ a8.T),
        "np.linalg.cholesky 512": lambda: np.linalg.cholesky(symmetric + 600 * np.eye(512)),
        "np.linalg.qr 512": lambda: np.linalg.qr(general),
        "np.linalg.eig 200": lambda: np.linalg.eig(small),
        "np.linalg.lstsq 512x200": lambda: np.linalg.lstsq(general[:, :200], general[:, 200:210], rcond=None),
        "scipy.linalg.inv 512": lambda: scipy.linalg.inv(general, check_finite=False),
        "scipy.linalg.lu_factor 512": lambda: scipy.linalg.lu_factor(general, check_finite=False),
        "scipy.linalg.svd 512": lambda: scipy.linalg.svd(general, check_finite=False),
        "scipy.linalg.expm 200": lambda: scipy.linalg.expm(small / 20),
        "scipy.linalg.schur complex 200": lambda: scipy.linalg.schur(small, output="complex"),
        "scipy.linalg.sqrtm 200": lambda: scipy.linalg.sqrtm(small @ small.T),
        "np.fft.fft 1024": lambda: np.fft.fft(long[:1024]),
        "np.fft.fft 2^18": lambda: np.fft.fft(long),
        "np.fft.rfft2 f32 512": lambda: np.fft.rfft2(image),
        "scipy.fft.rfft 2^18": lambda: scipy.fft.rfft(long),
        "scipy.fft.fft2 f32 512": lambda: scipy.fft.fft2(image),
    }  # fmt: skip


def timed(function: Callable[[], Any], seconds: float) -> float:
    """Seconds of a call."""
    function()
    calls, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds or not calls:
        function()
        calls += 1
    return spent / calls


def row(function: Callable[[], Any], contestants: list[str], rounds: int, seconds: float, best: bool) -> dict[str, float]:
    """Seconds of a call under each library."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name in random.sample(contestants, len(contestants)):
            with exchange.use(name):
                time.sleep(PAUSE)
                times[name].append(timed(function, seconds))
    return {name: min(found) if best else statistics.median(found) for name, found in times.items()}


FIRST = """
import sys, time, numpy, scipy.linalg
from backline.interop import numpy as exchange
begin, cpu = time.perf_counter(), time.process_time()
exchange.use(sys.argv[1])
between = time.perf_counter()
exchange.restore()
print(between - begin, time.perf_counter() - between, time.process_time() - cpu)
"""


def swaps(name: str) -> None:
    """Prints what an exchange takes with SciPy imported: the first of a process, and later ones."""
    runs = [subprocess.run([sys.executable, "-c", FIRST, name], capture_output=True, text=True, check=True) for _ in range(5)]
    first, first_back, cpu = (min(times) * 1e3 for times in zip(*(map(float, r.stdout.split()) for r in runs), strict=True))
    with exchange.use(name):
        addresses = exchange.status().slots
    later = []
    for _ in range(20):
        begin = time.perf_counter()
        exchange.use(name)
        between = time.perf_counter()
        exchange.restore()
        later.append((between - begin, time.perf_counter() - between))
    there, back = (statistics.median(times) * 1e3 for times in zip(*later, strict=True))
    print(
        f"exchange for {name:9} {addresses:5} addresses: first of a process {first:6.1f} ms ({cpu:.1f} ms of CPU with its end, "
        f"which takes {first_back:.1f} ms), "
        f"then {there:5.1f} ms, restoring {back:5.1f} ms"
    )


def shims() -> None:
    """Prints what functions cost that stand before a routine."""
    nothing = _exchange.no_function()
    addresses = {
        "by size": _exchange.shim(nothing, nothing, 0, bytes((2, 3, 4)), 1000, b""),
        "by size, the width of integers checked": _exchange.shim(
            nothing, nothing, 3, bytes((3, 4, 5)), 1000, bytes((3, 4, 5, 7, 9, 11))
        ),
        "integers converted (heevd)": _exchange.narrow_call(nothing, nothing, narrow_calls.kinds("zheevd"), 16_000),
    }
    direct = call_nanoseconds(0)
    for title, address in addresses.items():
        print(f"per call, {title}: {call_nanoseconds(address) - direct:.1f} ns more than a call")
    for name in (n for n in ("mkl", "openblas", "blis") if libraries.get(n).available()):
        with exchange.use(name):
            found = exchange.status().routines
            straight = sum(r.slots for r in found if r.library == name and r.small is None)
            sized = sum(r.slots for r in found if r.small is not None)
            print(f"{name:9} {straight:5} addresses lead to it straight, {sized:4} by size")


def call_nanoseconds(address: int) -> float:
    """Least time of a call of an address; its arguments are integers of 8."""
    return min(_exchange.call_seconds(address, 5000) for _ in range(2000)) / 5000 * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of calls in each round")
    parser.add_argument("--best", action="store_true", help="the least time instead of the median")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--libraries", default="mkl,openblas,blis")
    parser.add_argument("--threads", default="1,2", help="of every library, one table each")
    args = parser.parse_args()
    names = [name for name in args.libraries.split(",") if libraries.get(name).available()]
    for name in names:
        swaps(name)
    shims()
    for threads in map(int, args.threads.split(",")):
        backline.set_num_threads(threads)
        with threadpoolctl.threadpool_limits(threads):  # NumPy's own OpenBLAS among them
            table(names, threads, args)


def table(names: list[str], threads: int, args: argparse.Namespace) -> None:
    """Prints the rows on so many threads, and the geometric means of the ratios."""
    contestants = [STOCK, *names]
    heads = "".join(f"{name:>12}" for name in contestants) + "".join(f"{name:>10}" for name in names)
    print(f"\n{f'milliseconds, {threads} threads':32}{heads}")
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for title, function in functions().items():
        if args.only in title:
            found = row(function, contestants, args.rounds, args.seconds, args.best)
            times = "".join(f"{found[name] * 1e3:12.4f}" for name in contestants)
            for name in names:
                ratios[name].append(found[STOCK] / found[name])
            print(f"{title:32}{times}" + "".join(f"{ratios[name][-1]:9.2f}x" for name in names), flush=True)
    means = "".join(f"{statistics.geometric_mean(found):9.2f}x" for found in ratios.values() if found)
    print(f"{'geometric mean':32}{'':{12 * len(contestants)}}{means}")


if __name__ == "__main__":
    main()
