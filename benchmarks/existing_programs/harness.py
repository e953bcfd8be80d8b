"""Options, the timed section and the file of results of the programs in this folder. It knows nothing of what runs it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["main"]


def main(load: Callable[[bool], Any], compute: Callable[[Any], Mapping[str, Any]]) -> None:
    """Loads data, computes once or several times, prints the seconds of each time and the results.

    Imports and loading are not timed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="less data: to see that it works")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--save", default="", metavar="FILE.npz", help="keep results and times")
    args = parser.parse_args()
    data = load(args.small)
    seconds = []
    for _ in range(args.repeats):
        begin = time.perf_counter()
        results = compute(data)
        seconds.append(time.perf_counter() - begin)
    for name, value in results.items():
        array = np.asarray(value)
        print(f"{name:24}", np.array2string(array.ravel()[:4], precision=6), "..." if array.size > 4 else "")
    print("seconds", *(f"{each:.4f}" for each in seconds))
    if args.save:
        np.savez(args.save, seconds=seconds, **{f"result {name}": value for name, value in results.items()})
