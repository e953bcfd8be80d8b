"""The processor time of a call on CUDA arrays, beside CuPy and PyTorch: ``python benchmarks/device_calls.py [--out FILE]``.

Calls are timed until they return; the device works on meanwhile, and is waited for between rounds. Without a device it says so
and ends with status 1. ``--stand-in`` needs none: CuPy is on the device of `idle_device`, where every launch returns at once,
so what is left is the cost of Backline, of CuPy's launches and of the bindings.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import backline
import backline.nn.functional as F
from backline import fft
from backline.errors import BacklineError

CALLS, ROUNDS = 50, 60
Contestants = dict[str, Callable[[], Any]]


def measure(contestants: Contestants, wait: Callable[[], None]) -> dict[str, dict[str, float]]:
    """Microseconds of a call: median and least of the rounds."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for function in contestants.values():
        for _ in range(20):
            function()
    order = list(contestants)
    for _ in range(ROUNDS):
        random.shuffle(order)
        for name in order:
            function = contestants[name]
            wait()
            begin = time.perf_counter()
            for _ in range(CALLS):
                function()
            times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    wait()
    return {name: {"median_us": statistics.median(t), "least_us": min(t)} for name, t in times.items()}


def cases(array: Callable[..., Any], cupy: Any, torch: Any) -> dict[str, Contestants]:
    """Returns the contestants, by name."""
    found: dict[str, Contestants] = {}

    def add(name: str, ours: Callable[..., Any], arrays: tuple[Any, ...], theirs: Any = None, of_torch: Any = None) -> None:
        found[name] = {"backline": lambda: ours(*arrays)}
        if theirs is not None:
            found[name]["cupy"] = lambda: theirs(*arrays)
        if torch is not None and of_torch is not None:
            tensors = tuple(torch.from_dlpack(a) for a in arrays)
            found[name]["torch"] = lambda: of_torch(*tensors)

    for n in (16, 64, 256):
        a, b, out = array(n, n), array(n, n), array(n, n)
        add(f"matmul {n}x{n}", backline.matmul, (a, b), cupy.matmul, torch and torch.mm)
    add(
        "matmul 64x64, out=", lambda x, y, z: backline.matmul(x, y, out=z), (a[:64, :64], b[:64, :64], out[:64, :64]),
        lambda x, y, z: cupy.matmul(x, y, out=z), torch and (lambda x, y, z: torch.mm(x, y, out=z)),
    )  # fmt: skip
    add("bmm 8x16x16", backline.bmm, (array(8, 16, 16), array(8, 16, 16)), cupy.matmul, torch and torch.bmm)
    layer = (array(64, 64), array(64, 64), array(64))
    add("linear 64x64x64", F.linear, layer, None, torch and torch.nn.functional.linear)
    add("fft 64x64", fft.fft, (array(64, 64, dtype=np.complex64),), cupy.fft.fft, torch and torch.fft.fft)
    add("fft inverse 64x64", fft.ifft, (array(64, 64, dtype=np.complex64),), cupy.fft.ifft, torch and torch.fft.ifft)
    chain = (array(32, 64), array(64, 32), array(32, 16))
    add(
        "einsum ij,jk,kl->il", lambda *x: backline.einsum("ij,jk,kl->il", *x), chain, lambda *x: cupy.einsum("ij,jk,kl->il", *x),
        torch and (lambda *x: torch.einsum("ij,jk,kl->il", *x)),
    )  # fmt: skip
    # Batches whose items lie no fixed step apart: cuBLAS is given tables of their addresses.
    irregular = (array(4, 1, 16, 16), array(3, 16, 16))
    add("matmul of 4x1 and 3 of 16x16", backline.matmul, irregular, cupy.matmul, torch and torch.matmul)
    add("softmax 64x64", lambda x: F.softmax(x, -1), (array(64, 64),), None, torch and (lambda x: torch.softmax(x, -1)))
    image = (array(1, 8, 16, 16), array(8, 8, 3, 3))
    add("conv2d 1x8x16x16", F.conv2d, image, None, torch and torch.nn.functional.conv2d)
    return found


def on_a_device() -> tuple[dict[str, Contestants], Callable[[], None], str]:
    """The cases on a GPU, how it is waited for, and its name. Ends the program where there is none."""
    try:
        import cupy

        name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except (ImportError, RuntimeError) as error:
        sys.exit(f"no CUDA device that CuPy can use: {' '.join(str(error).split())}. --stand-in measures what needs none.")
    try:
        import torch
    except ImportError:
        torch = None
    rng = np.random.default_rng(1)

    def array(*shape: int, dtype: Any = np.float32) -> Any:
        return cupy.asarray(rng.standard_normal(shape).astype(dtype))

    return cases(array, cupy, torch), cupy.cuda.Device(0).synchronize, name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stand-in", action="store_true", help="on a device that does nothing")
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    parser.add_argument("--only", default="", help="cases whose name begins with this")
    asked = parser.parse_args()
    if asked.stand_in:
        from idle_device import begin

        array, cupy, _ = begin()
        found, wait, name = cases(array, cupy, None), (lambda: None), "stand-in"
        found = {case: {"backline": contestants["backline"]} for case, contestants in found.items()}
    else:
        found, wait, name = on_a_device()
    print(f"{name}: microseconds until a call returns, median (least)")
    results: dict[str, Any] = {}
    for case, contestants in found.items():
        if not case.startswith(asked.only):
            continue
        try:
            contestants["backline"]()
        except BacklineError as error:
            print(f"{case:<22}{type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        chosen = backline.explain()
        times = measure(contestants, wait)
        results[case] = {"library": chosen.library, "algorithm": chosen.algorithm, "times": times}
        shown = "".join(f"{who:>10} {t['median_us']:6.2f} ({t['least_us']:.2f})" for who, t in times.items())
        print(f"{case:<22}{chosen.library:>9} {chosen.algorithm:<12}{shown}", flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps({"device": name, "cases": results}, indent=1) + "\n")
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
