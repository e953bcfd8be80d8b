"""Products and LAPACK, tuned, against NumPy, SciPy and PyTorch: ``python benchmarks/tables.py [gemm|lapack] [--threads N]``.

Each shape is tuned first (every algorithm measured once), then compared. `of best peer` is our time over the shortest of
the others': under 1 is faster. `solve` has 16 right-hand sides.
"""

from __future__ import annotations

import sys

import numpy as np
import scipy.linalg as sl

import backline
from backline import backends, linalg
from side_by_side import Table, compare, threads_asked, torch_or_none

rng = np.random.default_rng(1)
threads = threads_asked()
torch = torch_or_none(threads)


def ran_on() -> str:
    choice = backline.explain()
    return f"{choice.library} {choice.algorithm} x{choice.chosen.threads}"


def tuned(call):
    with backends.flags(benchmark=True, benchmark_limit=0):
        call()
    call()
    return call


def gemm() -> None:
    table = Table(f"gemm_{threads}_threads", ["numpy", "torch"] if torch else ["numpy"])
    shapes = [((n, n), (n, n)) for n in (64, 256, 1024, 2048)] + [((20000, 64), (64, 64)), ((512, 32, 32), (512, 32, 32))]
    for dtype in (np.float32, np.float64):
        for sa, sb in shapes:
            a, b = rng.standard_normal(sa).astype(dtype), rng.standard_normal(sb).astype(dtype)
            contestants = {
                "backline": tuned(lambda a=a, b=b: backline.matmul(a, b)),
                "numpy": lambda a=a, b=b: np.matmul(a, b),
            }
            note = ran_on()
            if torch:
                ta, tb = torch.from_numpy(a), torch.from_numpy(b)
                contestants["torch"] = lambda ta=ta, tb=tb: torch.matmul(ta, tb)
            label = f"{np.dtype(dtype).name} {'x'.join(map(str, sa))} {'x'.join(map(str, sb))}"
            table.add(label, compare(contestants), note)
    over = {p: table.speed_over(p) for p in table.peers}
    print("\ngeometric mean of the speed over", ", ".join(f"{p} {v:.2f}" for p, v in over.items()))
    table.save(threads=threads, speed_over=over, worst=max(r["of_best_peer"] for r in table.rows))


OPERATIONS = {
    "inv": (np.linalg.inv, lambda a: sl.inv(a, check_finite=False)),
    "cholesky": (np.linalg.cholesky, lambda a: sl.cholesky(a, lower=True, check_finite=False)),
    "lu_factor": (None, lambda a: sl.lu_factor(a, check_finite=False)),
    "solve": (np.linalg.solve, lambda a, b: sl.solve(a, b, check_finite=False)),
    "qr": (np.linalg.qr, lambda a: sl.qr(a, mode="economic", check_finite=False)),
    "eigh": (np.linalg.eigh, lambda a: sl.eigh(a, check_finite=False)),
    "svd": (np.linalg.svd, lambda a: sl.svd(a, check_finite=False)),
    "svdvals": (lambda a: np.linalg.svd(a, compute_uv=False), lambda a: sl.svdvals(a, check_finite=False)),
}


def lapack() -> None:
    table = Table(f"lapack_{threads}_threads", ["numpy", "scipy", *(["torch"] if torch else [])])
    for n in (64, 512, 1500):
        for dtype in (np.float32, np.float64):
            a = rng.standard_normal((n, n)).astype(dtype)
            definite = (a @ a.T + n * np.eye(n)).astype(dtype)
            for op, (in_numpy, in_scipy) in OPERATIONS.items():
                args = [definite if op in ("cholesky", "eigh") else a]
                if op == "solve":
                    args.append(rng.standard_normal((n, 16)).astype(dtype))
                ours = getattr(linalg, op)
                contestants = {"backline": tuned(lambda f=ours, args=args: f(*args))}
                note = ran_on()
                if in_numpy:
                    contestants["numpy"] = lambda f=in_numpy, args=args: f(*args)
                contestants["scipy"] = lambda f=in_scipy, args=args: f(*args)
                if torch:
                    tensors = [torch.from_numpy(x) for x in args]
                    theirs = getattr(torch.linalg, op)
                    contestants["torch"] = lambda f=theirs, t=tensors: f(*t)
                times = compare(contestants, rounds=9 if n < 1000 else 5)
                table.add(f"{op} {np.dtype(dtype).name} {n}", times, note)
    over = {p: table.speed_over(p) for p in table.peers}
    print("\ngeometric mean of the speed over", ", ".join(f"{p} {v:.2f}" for p, v in over.items()))
    table.save(threads=threads, speed_over=over, worst=max(r["of_best_peer"] for r in table.rows))


if __name__ == "__main__":
    for name in [x for x in sys.argv[1:] if x in ("gemm", "lapack")] or ["gemm", "lapack"]:
        {"gemm": gemm, "lapack": lapack}[name]()
