"""Softmax, normalisation, activations and multi-head attention, against NumPy and PyTorch.

``python benchmarks/neural.py [--threads N] [--rounds N] [--gradients]``: without ``--threads``, once on one thread and once on
two. Sizes fit a cache or do not. With ``--gradients``, the gradients instead; PyTorch takes what a gradient needs of its forward
pass anew, as backline does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import backline
from backline.nn import functional, grad
from side_by_side import Table, compare, torch_or_none

Array = np.ndarray[Any, Any]
Calls = tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any] | None]

rng = np.random.default_rng(1)
SMALL, MIDDLE, LARGE = (64, 768), (512, 1024), (8192, 1024)
SOFTMAX = ((128, 1000), (32, 16032), (4096, 64), (8, 50257))
IMAGES = ((8, 64, 56, 56), (32, 32, 8, 8))
HEADS = ((8, 128, 512, 8), (1, 1024, 512, 8), (32, 16, 256, 4))  # batch, length, features, heads


def draw(*shape: int) -> Array:
    return rng.standard_normal(shape, np.float32)


def stable_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    result: Array = e / e.sum(-1, keepdims=True)
    return result


def stable_log_softmax(x: Array) -> Array:
    x = x - x.max(-1, keepdims=True)
    result: Array = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return result


def normalised(x: Array, w: Array, b: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * w + b


PLAIN: dict[str, Callable[[Array], Array]] = {
    "softmax": stable_softmax, "log_softmax": stable_log_softmax, "relu": lambda x: np.maximum(x, 0),
    # NumPy has no error function: the form with tanh stands for both.
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x / (1 + np.exp(-x)), "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


def pointwise(name: str, shape: tuple[int, ...], torch: Any) -> Calls:
    x, more = draw(*shape), (-1,) if "softmax" in name else ()
    ours = getattr(functional, name)
    if not torch:
        return lambda: ours(x, *more), lambda: PLAIN[name](x), None
    tx, theirs = torch.from_numpy(x), getattr(torch if name in ("tanh", "sigmoid") else torch.nn.functional, name)
    return lambda: ours(x, *more), lambda: PLAIN[name](x), lambda: theirs(tx, *more)


def layer_norm(shape: tuple[int, ...], torch: Any) -> Calls:
    x, w, b = draw(*shape), draw(shape[-1]), draw(shape[-1])
    tensors = [torch.from_numpy(a) for a in (x, w, b)] if torch else []
    return (
        lambda: functional.layer_norm(x, shape[-1], w, b),
        lambda: normalised(x, w, b),
        (lambda: torch.nn.functional.layer_norm(tensors[0], shape[-1:], *tensors[1:])) if torch else None,
    )


def multi_head(shape: tuple[int, ...], torch: Any) -> Calls:
    batch, length, size, heads = shape
    x, weight, bias = draw(batch, length, size), draw(3 * size, size) / 20, draw(3 * size)
    out, out_bias = draw(size, size) / 20, draw(size)
    dim = size // heads

    def plain() -> Array:
        q, k, v = np.moveaxis((x @ weight.T + bias).reshape(batch, length, 3, heads, dim), (2, 3), (0, 2))
        attended = stable_softmax(q @ k.swapaxes(-1, -2) / np.float32(dim**0.5)) @ v
        return np.asarray(attended.swapaxes(1, 2).reshape(batch, length, size) @ out.T + out_bias)

    def ours() -> Array:
        return functional.multi_head_attention(x, x, x, heads, weight, bias, out, out_bias).output

    if not torch:
        return ours, plain, None
    module = torch.nn.MultiheadAttention(size, heads, batch_first=True).eval()
    module.in_proj_weight.copy_(torch.from_numpy(weight))
    module.in_proj_bias.copy_(torch.from_numpy(bias))
    module.out_proj.weight.copy_(torch.from_numpy(out))
    module.out_proj.bias.copy_(torch.from_numpy(out_bias))
    tx = torch.from_numpy(x)
    return ours, plain, lambda: module(tx, tx, tx, need_weights=False)[0]


def forward(torch: Any) -> dict[str, Calls]:
    rows: dict[str, Calls] = {}
    for name in ("softmax", "log_softmax"):
        rows |= {f"{name} {r}x{n}": pointwise(name, (r, n), torch) for r, n in SOFTMAX}
    for shape in (SMALL, MIDDLE, LARGE):
        size = "x".join(map(str, shape))
        rows[f"layer_norm {size}"] = layer_norm(shape, torch)
        rows |= {f"{name} {size}": pointwise(name, shape, torch) for name in ("gelu", "silu", "relu", "tanh", "sigmoid")}
    rows |= {f"multi_head_attention {n}x{m}x{e} {h} heads": multi_head((n, m, e, h), torch) for n, m, e, h in HEADS}
    return rows


def backward(torch: Any) -> dict[str, Calls]:
    """Here NumPy is what backline has of it."""
    aten = torch.ops.aten if torch else None
    rows: dict[str, Calls] = {}

    def add(label: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        def by_numpy() -> Any:
            with backline.backends.flags(only=("numpy",)):
                return ours()

        rows[label] = ours, by_numpy, theirs if torch else None

    for shape in (MIDDLE, LARGE):
        size = "x".join(map(str, shape))
        x, g, w = draw(*shape), draw(*shape), draw(shape[-1])
        tx, tg, tw = (torch.from_numpy(a) if torch else None for a in (x, g, w))
        add(f"relu {size}", lambda x=x, g=g: grad.relu_input(x, g), lambda x=tx, g=tg: aten.threshold_backward(g, x, 0))
        add(f"gelu {size}", lambda x=x, g=g: grad.gelu_input(x, g), lambda x=tx, g=tg: aten.gelu_backward(g, x))
        add(f"silu {size}", lambda x=x, g=g: grad.silu_input(x, g), lambda x=tx, g=tg: aten.silu_backward(g, x))
        y = functional.softmax(x, -1)
        ty = torch.from_numpy(y) if torch else None
        add(
            f"softmax {size}", lambda y=y, g=g: grad.softmax_input(y, g, -1),
            lambda y=ty, g=tg: aten._softmax_backward_data(g, y, -1, y.dtype),
        )  # fmt: skip
        n = shape[-1]

        def theirs(x: Any = tx, g: Any = tg, w: Any = tw, n: int = n) -> Any:
            _, mean, inverse = aten.native_layer_norm(x, [n], w, w, 1e-5)
            return aten.native_layer_norm_backward(g, x, [n], mean, inverse, w, w, [True, True, True])

        add(f"layer_norm {size}", lambda x=x, g=g, w=w, n=n: grad.layer_norm_backward(x, g, n, w), theirs)
    for images in IMAGES:
        size = "x".join(map(str, images))
        x, w = draw(*images), draw(images[1])
        g, half = draw(*images), draw(*images[:2], images[2] // 2, images[3] // 2)
        tx, tg, th, tw = (torch.from_numpy(a) if torch else None for a in (x, g, half, w))

        def pooled(x: Any = tx, g: Any = th) -> Any:
            _, places = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
            return aten.max_pool2d_with_indices_backward(g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places)

        add(f"max_pool2d {size}", lambda x=x, g=half: grad.max_pool2d_input(x, g, 2), pooled)
        add(
            f"avg_pool2d {size}", lambda x=x, g=half: grad.avg_pool2d_input(x.shape, g, 2),
            lambda x=tx, g=th: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None),
        )  # fmt: skip

        def batch(x: Any = tx, g: Any = tg, w: Any = tw) -> Any:
            _, mean, inverse = aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5)
            return aten.native_batch_norm_backward(g, x, w, None, None, mean, inverse, True, 1e-5, [True, True, True])

        add(f"batch_norm {size}", lambda x=x, g=g, w=w: grad.batch_norm_backward(x, g, w), batch)
    return rows


def agree(ours: Any, theirs: Any) -> float:
    """Largest distance of the results, relative to the largest element of each."""
    mine = ours if isinstance(ours, tuple) else (ours,)
    others = theirs if isinstance(theirs, tuple) else (theirs,)
    pairs = ((a, np.asarray(b)) for a, b in zip(mine, others, strict=False))
    return max(float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-30) for a, b in pairs)


def number(flag: str, default: int | None) -> int | None:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


def main() -> None:
    asked, rounds = number("--threads", None), number("--rounds", 9) or 9
    gradients = "--gradients" in sys.argv
    torch = torch_or_none(asked or 1)
    table = Table("neural_gradients" if gradients else "neural", ["numpy", *(["torch"] if torch else [])])
    for threads in (asked,) if asked else (1, 2):
        if torch:
            torch.set_num_threads(threads)
            torch.set_grad_enabled(False)
        with backline.num_threads(threads):
            for label, (ours, plain, theirs) in (backward if gradients else forward)(torch).items():
                with backline.backends.flags(benchmark=True, benchmark_limit=0):
                    error = agree(ours(), (theirs or plain)())
                ours()
                assert error < (2e-3 if "gelu" in label and not theirs else 1e-4), f"{label}: off by {error:.0e}"
                choice = backline.explain()
                contestants = {"backline": ours, "numpy": plain} | ({"torch": theirs} if theirs else {})
                note = f"{choice.library} {choice.algorithm} x{choice.chosen.threads}"
                times = compare(contestants, rounds=rounds)
                table.add(f"{label} T{threads}", times, note)
    summary: dict[str, Any] = {"threads": [asked] if asked else [1, 2], "rounds": rounds}
    if torch:
        for r in table.rows:
            r["of_torch"] = r["seconds"]["backline"] / r["seconds"]["torch"]
        worst = max(table.rows, key=lambda r: r["of_torch"])
        over = table.speed_over("torch")
        print(f"\ngeometric mean of the speed over torch {over:.2f}, worst row {worst['of_torch']:.2f} of its time")
        summary |= {"speed_over_torch": over, "worst_of_torch": worst["of_torch"]}
    summary["speed_over_numpy"] = table.speed_over("numpy")
    table.save(**summary)


if __name__ == "__main__":
    main()
