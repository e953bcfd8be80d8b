"""Fourier transforms, tuned, against numpy.fft, scipy.fft, PyTorch and pyFFTW: ``python benchmarks/fft.py [--threads N]``.

Further options: ``--rounds N``, and ``--only scipy,numpy`` for the libraries that Backline may use (its results go to a file of
their own). Without ``--threads``, once on one thread and once on two. SciPy gets as many workers, PyTorch and pyFFTW as many
threads. pyFFTW's plans are measured ones, made before the clock runs, with at most some seconds for each, and write into an
array of their own; it is left out where it is not installed. Every result is compared with NumPy's in float64 before it is timed.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft

import backline
from backline import backends, fft
from side_by_side import Table, call, compare, torch_or_none

Array = np.ndarray[Any, Any]

rng = np.random.default_rng(1)
PLANNING = 5.0  # seconds that pyFFTW may look for a plan


@dataclass(frozen=True)
class Case:
    label: str
    shape: tuple[int, ...]
    axes: int = 1  # the last so many are transformed

    @property
    def name(self) -> str:
        return {1: "fft", 2: "fft2", 3: "fftn"}[self.axes]


CASES = (
    Case("2^10", (1 << 10,)),
    Case("2^16", (1 << 16,)),
    Case("2^20", (1 << 20,)),
    Case("1000003, a prime", (1_000_003,)),
    Case("3*5*7*11*13", (3 * 5 * 7 * 11 * 13,)),
    Case("1024 of 1024", (1024, 1024)),
    Case("512^2", (512, 512), 2),
    Case("2048^2", (2048, 2048), 2),
    Case("128^3", (128, 128, 128), 3),
)


def numbers(shape: tuple[int, ...], dtype: str) -> Array:
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def pyfftw_or_none() -> Any:
    try:
        import pyfftw
    except ImportError:
        print("pyFFTW is not installed: its column is left out (pip install pyfftw)")
        return None
    return pyfftw


def pyfftw_plan(pyfftw: Any, x: Array, axes: int, threads: int) -> Any:
    half = x.shape if x.dtype.kind == "c" else (*x.shape[:-1], x.shape[-1] // 2 + 1)
    a = pyfftw.empty_aligned(x.shape, x.dtype)
    b = pyfftw.empty_aligned(half, "complex64" if x.dtype in (np.float32, np.complex64) else "complex128")
    last = tuple(range(x.ndim - axes, x.ndim))
    flags = ("FFTW_MEASURE",)
    plan = pyfftw.FFTW(a, b, last, flags=flags, threads=threads, planning_timelimit=PLANNING)
    if not pyfftw.is_byte_aligned(x):  # planned again for such arrays: else every call would copy
        flags = ("FFTW_MEASURE", "FFTW_UNALIGNED")
        plan = pyfftw.FFTW(a, b, last, flags=flags, threads=threads, planning_timelimit=PLANNING)
    return plan


def error_of(result: Array, x: Array, name: str) -> float:
    wanted = getattr(np.fft, name)(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64))
    return float(np.linalg.norm(result - wanted) / np.linalg.norm(wanted))


def row(table: Table, case: Case, dtype: str, threads: int, rounds: int, torch: Any, pyfftw: Any) -> None:
    x = numbers(case.shape, dtype)
    name = case.name if x.dtype.kind == "c" else f"r{case.name}"
    ours = getattr(fft, name)
    with backends.flags(benchmark=True, benchmark_limit=0):
        ours(x)
    error, epsilon = error_of(ours(x), x, name), float(np.finfo(dtype).eps)
    assert error < 8 * epsilon, f"{case.label} {dtype}: off by {error:.0e}"
    choice = backline.explain()
    contestants: dict[str, Any] = {
        "backline": call("f(x)", f=ours, x=x),
        "numpy": call("f(x)", f=getattr(np.fft, name), x=x),
        "scipy": call("f(x, workers=n)", f=getattr(scipy.fft, name), x=x, n=threads),
    }
    if torch:
        contestants["torch"] = call("f(x)", f=getattr(torch.fft, name), x=torch.from_numpy(x))
    if pyfftw:
        contestants["pyfftw"] = call("p(x)", p=pyfftw_plan(pyfftw, x, case.axes, threads), x=x)
    times = compare(contestants, rounds=rounds)
    kind = "c" if x.dtype.kind == "c" else "r"
    label = f"{kind} {case.label} {'f32' if epsilon > 1e-10 else 'f64'} T{threads}"
    table.add(label, times, f"{choice.library} {choice.algorithm} x{choice.chosen.threads}")


def option(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else ""


def main() -> None:
    asked, rounds = int(option("--threads") or 0), int(option("--rounds") or 9)
    only = tuple(filter(None, option("--only").split(",")))
    torch, pyfftw = torch_or_none(asked or 1), pyfftw_or_none()
    peers = ["numpy", "scipy", *(["torch"] if torch else []), *(["pyfftw"] if pyfftw else [])]
    table = Table("_".join(["fft", *only]), peers)
    with ExitStack() as stack:
        if only:
            stack.enter_context(backline.use(*only, only=True))
        for threads in (asked,) if asked else (1, 2):
            if torch:
                torch.set_num_threads(threads)
                torch.set_grad_enabled(False)
            with backline.num_threads(threads):
                for case in CASES:
                    for dtype in ("complex64", "complex128", "float32", "float64"):
                        row(table, case, dtype, threads, rounds, torch, pyfftw)
    summary: dict[str, Any] = {"threads": [asked] if asked else [1, 2], "rounds": rounds, "only": only}
    for peer in peers:
        summary[f"speed_over_{peer}"] = table.speed_over(peer)
    worst = max(table.rows, key=lambda r: r["of_best_peer"])
    single = [r["seconds"]["backline"] / r["seconds"]["scipy"] for r in table.rows if " 2^10 " in r["row"]]
    summary |= {"worst_of_best_peer": worst["of_best_peer"], "worst_row": worst["row"], "n_1024_of_scipy": single}
    over = ", ".join(f"{peer} {summary[f'speed_over_{peer}']:.2f}" for peer in peers)
    print(f"\ngeometric means of the speed over {over}")
    print(f"worst row {worst['row']}: {worst['of_best_peer']:.2f} of the best peer's time")
    print(f"a single transform of 1024 points: {', '.join(f'{s:.2f}' for s in single)} of SciPy's time")
    table.save(**summary)


if __name__ == "__main__":
    main()
