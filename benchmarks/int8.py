"""int8 against float32 of the same shape, and against PyTorch's int8: ``python benchmarks/int8.py [--threads N] [--rounds N]``.

Weights are packed beforehand on all sides, but for `int_mm`, the product of two int8 matrices, which NumPy computes in float64.
"float32" is Backline's own, tuned, in its faster order of memory; "torch" is the fastest of PyTorch's engines for int8, on images
with channels last. The dynamic rows take and return float32 on all sides. Without ``--threads``, once on one thread and once on
two. Every integer is held against the exact engine in NumPy first.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import backline
from backline import backends, quantized
from backline.engine import ranking_files
from backline.nn import functional
from side_by_side import Table, compare, torch_or_none

Array = np.ndarray[Any, Any]

rng = np.random.default_rng(1)

LINEAR = ((1024, 1024, 1024), (16, 1024, 1024), (1, 1024, 1024))
CONV = ((8, 64, 64, 56, 3, 1), (8, 256, 256, 14, 3, 1), (1, 256, 1024, 14, 1, 1), (1, 32, 32, 112, 3, 32))
SMALL = (8, 8, 8)


def last(array: Array) -> Array:
    """The same images with their channels last in memory."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def scales_of(x: Array, real: Array) -> tuple[float, int, float, int]:
    """Scales and zero points that cover an input and its result."""
    found: list[Any] = []
    for values in (x, real):
        observer = quantized.MinMaxObserver()
        observer(values)
        found += observer.calculate_qparams()
    return found[0], found[1], found[2], found[3]


def tuned(run: Callable[[], Any]) -> Any:
    """A call whose library was chosen by measuring."""
    with backends.flags(benchmark=True, benchmark_limit=0):
        run()
    return run


def exact(pack: Any, operation: Any, *arguments: Any, result: Any) -> None:
    """Stop where a result is not that of the exact engine."""
    with backends.quantized.flags(engine="reference"):
        reference = pack()
    wanted = operation(arguments[0], reference, *arguments[1:])
    assert np.array_equal(result.int_repr, wanted.int_repr), "other integers than those of the exact engine"


def torch_weights(torch: Any, weight: Array) -> Any:
    w = quantized.quantize_weights(weight)
    scales, zeros = torch.from_numpy(w.scales.astype(np.float64)), torch.zeros(len(weight), dtype=torch.int64)
    return torch.quantize_per_channel(torch.from_numpy(weight), scales, zeros, 0, torch.qint8)


def of_torch(torch: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Contestants by engine, for the engines that take it."""
    found = {}
    for engine in ("fbgemm", "onednn", "x86"):
        if engine not in torch.backends.quantized.supported_engines:
            continue
        torch.backends.quantized.engine = engine
        try:
            runs = make()
            for run in runs.values():
                run()
        except RuntimeError:
            continue  # not for this shape
        found |= {f"torch {engine} {kind}": run for kind, run in runs.items()}
    return found


def measure(table: Table, label: str, contestants: dict[str, Any], floats: list[str], rounds: int) -> None:
    choice = backline.explain()
    note = f"{choice.library} {choice.algorithm} x{choice.chosen.threads}, {choice.chosen.note}"
    times = compare(contestants, rounds=rounds)
    times["float32"] = min(times[name] for name in floats)
    theirs = [seconds for name, seconds in times.items() if name.startswith("torch ")]
    if theirs:
        times["torch"] = min(theirs)
    table.add(label, times, note)
    table.rows[-1]["speed_over_float32"] = times["float32"] / times["backline"]


def linear(table: Table, shape: tuple[int, int, int], threads: int, rounds: int, torch: Any) -> None:
    rows, outs, terms = shape
    x, weight = rng.standard_normal((rows, terms), np.float32), rng.standard_normal((outs, terms), np.float32)
    bias = rng.standard_normal(outs, np.float32)
    step, zero, out_step, out_zero = scales_of(x, x @ weight.T + bias)
    layer = functional.prepack_linear(weight, bias)
    floats = {
        "float32 plain": tuned(lambda: functional.linear(x, weight, bias)),
        "float32 packed": tuned(lambda: layer(x)),
    }
    packed, xq = quantized.linear_prepack(quantized.quantize_weights(weight), bias), quantized.quantize(x, step, zero)

    def static() -> Any:
        return quantized.linear(xq, packed, out_step, out_zero)

    def pack() -> Any:
        return quantized.linear_prepack(quantized.quantize_weights(weight), bias)

    exact(pack, quantized.linear, xq, out_step, out_zero, result=static())
    theirs = {}
    if torch:

        def make() -> dict[str, Any]:
            # Each has its own: with the engine onednn PyTorch crashes where one packed weight is used for both.
            w, v = (torch.ops.quantized.linear_prepack(torch_weights(torch, weight), torch.from_numpy(bias)) for _ in range(2))
            tx, tq = torch.from_numpy(x), torch.quantize_per_tensor(torch.from_numpy(x), step, zero, torch.quint8)
            ops = torch.ops.quantized
            return {"static": lambda: ops.linear(tq, w, out_step, out_zero), "dynamic": lambda: ops.linear_dynamic(tx, v)}

        theirs = of_torch(torch, make)
    for kind, run in (("static", static), ("dynamic", lambda: quantized.linear_dynamic(x, packed))):
        run()
        mine = {name: other for name, other in theirs.items() if name.endswith(kind)}
        label = f"linear {rows}x{terms}x{outs} {kind} T{threads}"
        measure(table, label, {"backline": run, **floats, **mine}, list(floats), rounds)


def conv(table: Table, case: tuple[int, ...], threads: int, rounds: int, torch: Any) -> None:
    batch, channels, features, size, kernel, groups = case
    padding = kernel // 2
    x = rng.standard_normal((batch, channels, size, size), np.float32)
    weight = rng.standard_normal((features, channels // groups, kernel, kernel), np.float32)
    bias = rng.standard_normal(features, np.float32)
    words = {"padding": padding, "groups": groups}
    step, zero, out_step, out_zero = scales_of(x, functional.conv2d(x, weight, bias, **words))
    floats = {}
    for order, images in (("nchw", x), ("nhwc", last(x))):
        floats[f"float32 {order}"] = tuned(lambda images=images: functional.conv2d(images, weight, bias, **words))
        layer = functional.prepack_conv2d(weight, bias, **words)
        floats[f"float32 {order} packed"] = tuned(lambda images=images, layer=layer: layer(images))
    packed = quantized.conv2d_prepack(quantized.quantize_weights(weight), bias, **words)
    first, xq = quantized.quantize(x, step, zero), quantized.quantize(last(x), step, zero)

    def run() -> Any:
        return quantized.conv2d(xq, packed, out_step, out_zero)

    def pack() -> Any:
        return quantized.conv2d_prepack(quantized.quantize_weights(weight), bias, **words)

    exact(pack, quantized.conv2d, xq, out_step, out_zero, result=run())
    theirs = {}
    if torch:

        def make() -> dict[str, Any]:
            w = torch.ops.quantized.conv2d_prepack(
                torch_weights(torch, weight), torch.from_numpy(bias), [1, 1], [padding] * 2, [1, 1], groups
            )
            tx = torch.from_numpy(x).contiguous(memory_format=torch.channels_last)
            tq = torch.quantize_per_tensor(tx, step, zero, torch.quint8)
            return {"static": lambda: torch.ops.quantized.conv2d(tq, w, out_step, out_zero)}

        theirs = of_torch(torch, make)
    run()
    parts = f" groups {groups}" if groups > 1 else ""
    label = f"conv {kernel}x{kernel} {channels}-{features} {size}^2 N{batch}{parts} T{threads}"
    others = {"backline nchw": lambda: quantized.conv2d(first, packed, out_step, out_zero)}
    measure(table, label, {"backline": run, **others, **floats, **theirs}, list(floats), rounds)


def int_mm(table: Table, shape: tuple[int, int, int], threads: int, rounds: int, torch: Any) -> None:
    """A product of two int8 matrices, the second one as it is in memory and its transpose."""
    rows, outs, terms = shape
    a, b = (rng.integers(-128, 128, each, np.int8) for each in ((rows, terms), (terms, outs)))
    x, y = a.astype(np.float32), b.astype(np.float32)
    floats = {"float32 plain": tuned(lambda: backline.matmul(x, y))}
    turned = np.ascontiguousarray(b.T).T
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int32)
    for name, matrix in (("", b), (" transposed", turned)):
        assert np.array_equal(quantized.int_mm(a, matrix), wanted)
        theirs = {"numpy": lambda matrix=matrix: (a.astype(np.float64) @ matrix.astype(np.float64)).astype(np.int32)}
        if torch:
            left, right = torch.from_numpy(a), torch.from_numpy(matrix)
            theirs["torch int_mm"] = lambda left=left, right=right: torch._int_mm(left, right)
        label = f"int_mm {rows}x{terms}x{outs}{name} T{threads}"
        mine = {"backline": lambda matrix=matrix: quantized.int_mm(a, matrix)}
        mine["backline"]()
        measure(table, label, {**mine, **floats, **theirs}, list(floats), rounds)


def number(flag: str, default: int | None) -> int | None:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


def main() -> None:
    asked, rounds = number("--threads", None), number("--rounds", 9) or 9
    torch = torch_or_none(asked or 1)
    warnings.filterwarnings("ignore", message=".*torch.quantize_per", category=UserWarning)
    table = Table(f"int8_{ranking_files.here()}", ["float32", *(["torch"] if torch else [])])
    for threads in (asked,) if asked else (1, 2):
        if torch:
            torch.set_num_threads(threads)
            torch.set_grad_enabled(False)
        with backline.num_threads(threads):
            for shape in (*LINEAR, SMALL):
                linear(table, shape, threads, rounds, torch)
                int_mm(table, shape, threads, rounds, torch)
            for case in CONV:
                conv(table, case, threads, rounds, torch)
    gains = {r["row"]: r["speed_over_float32"] for r in table.rows}
    wanted = ("linear 1024x1024x1024 static", "conv 3x3 64-64", "conv 3x3 256-256")
    asked_of = {name: gain for name, gain in gains.items() if name.startswith(wanted)}
    for name, gain in gains.items():
        print(f"  {name:<34} {gain:5.2f} times the speed of float32")
    summary: dict[str, Any] = {
        "threads": [asked] if asked else [1, 2], "rounds": rounds, "engine": str(backends.quantized.engine),
        "least_speed_over_float32": min(asked_of.values()), "speed_over_float32": table.speed_over("float32"),
    }  # fmt: skip
    if torch:
        summary["speed_over_torch"] = table.speed_over("torch")
    table.save(**summary)


if __name__ == "__main__":
    main()
