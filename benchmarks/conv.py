"""Convolutions, tuned, against NumPy and PyTorch: ``python benchmarks/conv.py [--threads N] [--rounds N] [--packed]``.

Every shape is timed in both orders of memory, channels first (nchw) and channels last (nhwc), and each side counts by its faster
one. Without ``--threads``, once on one thread and once on two. Weights are given anew to every call on all sides, as networks do
in training; nobody may keep a packed copy of them. With ``--packed`` they are prepacked on all sides, as they are for inference:
`prepack_conv2d` here; in PyTorch every form of it that takes the shape, the plain call included, and the fastest counts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import backline
from backline import backends
from backline.nn import functional
from side_by_side import Table, compare, torch_or_none

Array = np.ndarray[Any, Any]

rng = np.random.default_rng(1)


@dataclass(frozen=True)
class Case:
    label: str
    batch: int
    channels: int
    features: int
    image: tuple[int, ...]
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False

    @property
    def name(self) -> str:
        """Of the function, here and in PyTorch."""
        return f"conv_transpose{len(self.image)}d" if self.transposed else f"conv{len(self.image)}d"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        kernel = (self.kernel,) * len(self.image)
        if self.transposed:
            return (self.channels, self.features // self.groups, *kernel)
        return (self.features, self.channels // self.groups, *kernel)

    @property
    def keywords(self) -> dict[str, int]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}


CASES = (
    Case("3x3 64-64 56^2 N1", 1, 64, 64, (56, 56), 3, padding=1),
    Case("3x3 64-64 56^2 N8", 8, 64, 64, (56, 56), 3, padding=1),
    Case("7x7 s2 3-64 224^2", 1, 3, 64, (224, 224), 7, stride=2, padding=3),
    Case("1x1 256-1024 14^2", 1, 256, 1024, (14, 14), 1),
    Case("3x3 256-256 14^2 N8", 8, 256, 256, (14, 14), 3, padding=1),
    Case("depthwise 3x3 32 112^2", 1, 32, 32, (112, 112), 3, padding=1, groups=32),
    Case("5x5 64-64 56^2", 1, 64, 64, (56, 56), 5, padding=2),
    Case("3x3 64-64 224^2", 1, 64, 64, (224, 224), 3, padding=1),
    Case("3x3 64-64 56^2 dilation 2", 1, 64, 64, (56, 56), 3, padding=2, dilation=2),
    Case("3x3 128-128 28^2 groups 32", 1, 128, 128, (28, 28), 3, padding=1, groups=32),
    Case("transposed 4x4 s2 64-32 28^2", 1, 64, 32, (28, 28), 4, stride=2, padding=1, transposed=True),
    Case("conv1d 9 64-64 4096", 1, 64, 64, (4096,), 9, padding=4),
    Case("conv3d 3^3 16-32 16x56^2", 1, 16, 32, (16, 56, 56), 3, padding=1),
    Case("3x3 8-8 8^2, the cost of a call", 1, 8, 8, (8, 8), 3, padding=1),
)


def last(array: Array) -> Array:
    """The same numbers with their channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def plain(case: Case, x: Array, weight: Array) -> Array:
    """The convolution as one writes it with NumPy alone: windows of the padded images, times the weights."""
    rank, groups = len(case.image), case.groups
    stride, reach = case.stride, case.dilation * (case.kernel - 1)
    margin = case.padding
    if case.transposed:  # zeros between the points, and the kernel turned round
        spread = np.zeros((*x.shape[:2], *((n - 1) * stride + 1 for n in x.shape[2:])), x.dtype)
        spread[(..., *(slice(None, None, stride),) * rank)] = x
        x, margin, stride = spread, reach - margin, 1
        weight = np.flip(weight, tuple(range(2, 2 + rank))).swapaxes(0, 1)
    padded = np.pad(x, ((0, 0), (0, 0), *((margin, margin),) * rank))
    windows = sliding_window_view(padded, (reach + 1,) * rank, tuple(range(2, 2 + rank)))
    windows = windows[(..., *(slice(None, None, stride),) * rank, *(slice(None, None, case.dilation),) * rank)]
    contracted = [1, *range(2 + rank, 2 + 2 * rank)], [1, *range(2, 2 + rank)]
    parts = zip(np.split(windows, groups, 1), np.split(weight, groups), strict=True)
    return np.concatenate([np.moveaxis(np.tensordot(w, v, contracted), -1, 1) for w, v in parts], 1)


def tuned(case: Case, x: Array, weight: Array, packed: bool) -> Any:
    function, keywords = getattr(functional, case.name), case.keywords
    layer = getattr(functional, f"prepack_{case.name}")(weight, **keywords) if packed else None

    def run() -> Array:
        return layer(x) if layer else function(x, weight, **keywords)

    with backends.flags(benchmark=True, benchmark_limit=0):
        run()
    return run


def prepacked(torch: Any, case: Case, x: Any, weight: Any) -> dict[str, Any]:
    """PyTorch's own ways to pack weights for a shape: those of its compiler, and the older one of `mkldnn_prepacked`."""
    rank = len(case.image)
    stride, padding, dilation = ([n] * rank for n in (case.stride, case.padding, case.dilation))
    sizes, groups, none = list(x.shape), case.groups, [0] * rank
    ops = torch.ops.mkldnn

    def pointwise() -> Any:
        if case.transposed:
            w = ops._reorder_convolution_transpose_weight(weight, padding, none, stride, dilation, groups, sizes)
            run = ops._convolution_transpose_pointwise.default
            return lambda: run(x, w, None, padding, none, stride, dilation, groups, "none", [], "")
        w = ops._reorder_convolution_weight(weight, padding, stride, dilation, groups, sizes)
        run = ops._convolution_pointwise.default
        return lambda: run(x, w, None, padding, stride, dilation, groups, "none", [], "")

    def context() -> Any:
        if case.transposed or rank != 2:
            raise RuntimeError("for images only")
        w = torch.ops.mkldnn_prepacked.conv2d_prepack(weight, None, stride, padding, dilation, groups, sizes, "none")
        run = torch.ops.mkldnn_prepacked.conv2d_run.default
        return lambda: run(x, w)

    found, plain = {}, getattr(torch.nn.functional, case.name)(x, weight, **case.keywords)
    for make in (pointwise, context):
        try:
            run = make()
            got = run()
        except RuntimeError:
            continue  # not for this shape
        assert torch.allclose(got, plain, rtol=1e-3, atol=1e-2), f"{case.label}: {make.__name__} computes something else"
        found[make.__name__] = run
    return found


def row(table: Table, case: Case, threads: int, rounds: int, torch: Any, packed: bool) -> None:
    first = rng.standard_normal((case.batch, case.channels, *case.image), np.float32)
    weight = rng.standard_normal(case.weight_shape, np.float32)
    inputs = {"nchw": first, "nhwc": last(first)}
    contestants: dict[str, Any] = {}
    notes = {}
    wanted = plain(case, first, weight)
    size = float(np.abs(wanted).max())
    for order, x in inputs.items():
        ours = contestants[f"backline {order}"] = tuned(case, x, weight, packed)
        error = float(np.abs(ours() - wanted).max()) / size
        assert error < 1e-5, f"{case.label} {order}: off by {error:.0e}"
        choice = backline.explain()
        notes[f"backline {order}"] = f"{choice.library} {choice.algorithm} x{choice.chosen.threads}, {order}"
    contestants["numpy"] = lambda: plain(case, first, weight)
    if torch:
        theirs, keywords = getattr(torch.nn.functional, case.name), case.keywords
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}  # it has none for signals
        for order, x in inputs.items():
            tx, tw = torch.from_numpy(x.copy(order="K")), torch.from_numpy(weight)
            if order == "nhwc" and tx.dim() in formats:
                tw = tw.contiguous(memory_format=formats[tx.dim()])
            contestants[f"torch {order}"] = lambda tx=tx, tw=tw: theirs(tx, tw, **keywords)
            for name, run in (prepacked(torch, case, tx, tw) if packed else {}).items():
                contestants[f"torch {order} {name}"] = run
    times = compare(contestants, rounds=rounds)
    for order in inputs if torch and packed else ():  # the fastest of its forms
        times[f"torch {order}"] = min(seconds for name, seconds in times.items() if name.startswith(f"torch {order}"))
    best = min(notes, key=lambda name: times[name])
    table.add(f"{case.label} T{threads}", {"backline": times[best], **times}, notes[best])


def number(flag: str, default: int | None) -> int | None:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


def main() -> None:
    asked = number("--threads", None)
    rounds = number("--rounds", 9) or 9
    packed = "--packed" in sys.argv
    torch = torch_or_none(asked or 1)
    table = Table("conv_packed" if packed else "conv", ["numpy", *(["torch nchw", "torch nhwc"] if torch else [])])
    for threads in (asked,) if asked else (1, 2):
        if torch:
            torch.set_num_threads(threads)
            torch.set_grad_enabled(False)
        with backline.num_threads(threads):
            for case in CASES:
                row(table, case, threads, rounds, torch, packed)
    summary: dict[str, Any] = {"threads": [asked] if asked else [1, 2], "rounds": rounds}
    if torch:  # over its faster order, row by row
        for r in table.rows:
            r["seconds"]["torch"] = min(r["seconds"]["torch nchw"], r["seconds"]["torch nhwc"])
            r["of_torch"] = r["seconds"]["backline"] / r["seconds"]["torch"]
        over, worst = table.speed_over("torch"), max(r["of_torch"] for r in table.rows)
        print(f"\ngeometric mean of the speed over torch {over:.2f}, worst row {worst:.2f} of its time")
        summary |= {"speed_over_torch": over, "worst_of_torch": worst}
    summary["speed_over_numpy"] = table.speed_over("numpy")
    table.save(**summary)


if __name__ == "__main__":
    main()
