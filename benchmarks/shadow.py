"""Costs of shadow runs: calls in a scope of `backline.shadow` beside the same calls without one.

    python benchmarks/shadow.py [--seconds 5] [--every 100]

For each operation: the time of a call without a scope, the least of many blocks; what the scope adds, by all blocks and by the
least ones, in turn in one process; the overhead that the scope itself counted; and how many calls were compared and deferred.
The last rows have a scope of which no call is ever due: what counting costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import backline


def calls() -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    tiny, small, large, tall = numbers(8, 8), numbers(64, 64), numbers(512, 512), numbers(400, 60)
    image, kernel = numbers(2, 8, 32, 32), numbers(16, 8, 3, 3)
    conv2d, softmax = backline.nn.functional.conv2d, backline.nn.functional.softmax
    return {
        "matmul 8x8": lambda: backline.matmul(tiny, tiny),
        "matmul 64x64": lambda: backline.matmul(small, small),
        "matmul 512x512": lambda: backline.matmul(large, large),
        "softmax 400x60": lambda: softmax(tall, dim=1),
        "svd 400x60": lambda: backline.linalg.svd(tall, full_matrices=False),
        "conv2d 2x8x32x32": lambda: conv2d(image, kernel),
        "fft 512x512": lambda: backline.fft.fft(large),
    }


def block(call: Callable[[], Any], number: int) -> float:
    begin = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - begin) / number


def compare(name: str, call: Callable[[], Any], seconds: float, **more: Any) -> str:
    block(call, 10)
    number = max(int(0.005 / block(call, 10)), 1)
    with backline.shadow("numpy", **more) as s:
        block(call, 10)
    without, inside = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        without.append(block(call, number))
        with s:
            inside.append(block(call, number))
    # Every block has its share of what is computed again, so the sums are compared beside the least.
    added = sum(inside) / sum(without) - 1
    least = min(inside) / min(without) - 1
    row = f"{name:<20}{1e6 * min(without):>12.2f}{100 * added:>9.1f} %{100 * least:>9.1f} %{100 * s.overhead:>9.1f} %"
    return f"{row}{s.calls:>10}{s.deferred:>10}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row")
    parser.add_argument("--every", type=int, default=100)
    given = parser.parse_args()
    print(f"{'call':<20}{'us alone':>12}{'added':>11}{'least':>11}{'counted':>11}{'compared':>10}{'deferred':>10}")
    for name, call in calls().items():
        print(compare(name, call, given.seconds, every=given.every))
    for name in ("matmul 8x8", "matmul 64x64"):
        print(compare(f"{name}, never", calls()[name], given.seconds, every=1 << 60))


if __name__ == "__main__":
    main()
