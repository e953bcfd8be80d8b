"""Host time of calls on CUDA arrays, without a device: ``python benchmarks/device_host_times.py [--before PYTHON] [--out FILE]``.

`idle_device` says what is true there and what returns at once. A figure is the microseconds until a call returns, the least of
the rounds, beside what no load of the machine changes: the calls of functions that the interpreter counts, and the launches of
kernels. Calls of one shape come again and again; of "new shapes" each comes once, as where a key cache grows.

``--before PYTHON`` names the interpreter of an environment with another checkout: the same is measured there, in turn with here,
and both stand side by side. What cuDNN's frontend and its own functions take of a convolution is told apart at the end.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

CALLS, ROUNDS, WARM, SHAPES, SEEDS = 40, 25, 8, 40, 100
Case = tuple[str, Callable[[], Any]]


def cases(array: Callable[..., Any]) -> Iterator[Case]:
    """Yields calls of one shape, by name."""
    import backline
    import backline.nn.functional as F
    from backline import fft
    from backline.nn import grad

    half = np.float16
    a, b, out = array(64, 64), array(64, 64), array(64, 64)
    yield "matmul 64x64", lambda: backline.matmul(a, b)
    yield "matmul 64x64, out=", lambda: backline.matmul(a, b, out=out)
    left, right = array(4, 1, 64, 64), array(1, 5, 64, 64)
    yield "pointer-array product 4x5x64x64", lambda: backline.matmul(left, right)
    x, w, bias = array(8, 16, 32, 32), array(16, 16, 3, 3), array(16)
    yield "conv2d", lambda: F.conv2d(x, w, padding=1)
    into = array(8, 16, 32, 32)
    yield "conv2d, out=", lambda: F.conv2d(x, w, padding=1, out=into)
    last = array(8, 32, 32, 16).transpose(0, 3, 1, 2)
    w_last = array(16, 3, 3, 16).transpose(0, 3, 1, 2)
    yield "conv2d, channels last", lambda: F.conv2d(last, w_last, padding=1)
    yield from layers(array, last, w)
    yield "conv2d, bias, relu", lambda: F.conv2d(x, w, bias, padding=1, activation="relu")
    yield "conv2d_weight", lambda: grad.conv2d_weight(x, w.shape, into, padding=1)
    yield "conv_transpose2d", lambda: F.conv_transpose2d(x, w, padding=1)
    yield "conv_transpose2d_weight", lambda: grad.conv_transpose2d_weight(x, w.shape, into, padding=1)
    q, k, v = (array(2, 8, 128, 64, dtype=half) for _ in range(3))
    yield "attention", lambda: F.scaled_dot_product_attention(q, k, v)
    seeds = itertools.count()
    yield (
        f"attention, dropout, {SEEDS} seeds",
        lambda: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, seed=next(seeds)),
    )  # fmt: skip
    kept = F.scaled_dot_product_attention(q, k, v, return_lse=True)
    yield (
        "attention, gradients from the log-sum-exp",
        lambda: grad.scaled_dot_product_attention_backward(q, k, v, q, output=kept.output, lse=kept.lse),
    )  # fmt: skip
    rows, ends = array(2048, 8, 64, dtype=half), np.cumsum([0, *([100, 156] * 8)])
    yield "packed attention, 16 sequences", lambda: F.varlen_attn(rows, rows, rows, ends)
    told = F.varlen_attn(rows, rows, rows, ends, return_lse=True)
    yield (
        "packed attention, gradients",
        lambda: grad.varlen_attn_backward(rows, rows, rows, rows, ends, output=told.output, lse=told.lse),
    )  # fmt: skip
    wave = array(64, 64, dtype=np.complex64)
    yield "fft", lambda: fft.fft(wave)
    yield "ifft", lambda: fft.ifft(wave)
    yield "rfft", lambda: fft.rfft(a)
    yield "einsum ij,jk->ik", lambda: backline.einsum("ij,jk->ik", a, b)
    batch = array(8, 64, 64)
    yield "einsum bij,jk,kl->bil", lambda: backline.einsum("bij,jk,kl->bil", batch, a, b)
    yield "softmax", lambda: F.softmax(a, -1)
    gamma, beta, images = array(64), array(64), array(8, 64, 8, 8)
    yield "layer_norm", lambda: F.layer_norm(a, (64,), gamma, beta)
    yield "layer_norm_backward", lambda: grad.layer_norm_backward(a, b, (64,), gamma)
    yield "batch_norm", lambda: F.batch_norm(images, None, None, gamma, beta, training=True)
    pooled = array(8, 64, 4, 4)
    yield "max_pool2d", lambda: F.max_pool2d(images, 3, 2, 1)
    yield "max_pool2d_input", lambda: grad.max_pool2d_input(images, pooled, 3, 2, 1)
    yield "avg_pool2d", lambda: F.avg_pool2d(images, 3, 2, 1)
    yield "avg_pool2d_input", lambda: grad.avg_pool2d_input(images.shape, pooled, 3, 2, 1)


def new_shapes(array: Callable[..., Any]) -> Iterator[tuple[str, Callable[[int], Callable[[], Any]]]]:
    """Yields functions that give the call of the n-th shape, by name."""
    import backline
    import backline.nn.functional as F
    from backline import fft
    from backline.nn import grad

    def product(n: int) -> Callable[[], Any]:
        a, b = array(17 + n, 64), array(64, 48)
        return lambda: backline.matmul(a, b)

    def ragged(n: int) -> Callable[[], Any]:
        x, w = array(1 + n, 16, 16, 16), array(16, 16, 3, 3)
        return lambda: F.conv2d(x, w, padding=1)

    def growing(n: int) -> Callable[[], Any]:
        q, k, v = array(1, 8, 1, 64, dtype=np.float16), *(array(1, 8, 129 + n, 64, dtype=np.float16) for _ in "kv")
        return lambda: F.scaled_dot_product_attention(q, k, v)

    def prompts(n: int) -> Callable[[], Any]:
        q, k, v, g = (array(1, 8, 129 + n, 64, dtype=np.float16) for _ in range(4))
        return lambda: grad.scaled_dot_product_attention_backward(q, k, v, g, is_causal=True)

    def transform(n: int) -> Callable[[], Any]:
        x = array(4, 65 + n, dtype=np.complex64)
        return lambda: fft.fft(x)

    def layer(n: int) -> Callable[[], Any]:
        x, w, b = array(17 + n, 64), array(32, 64), array(32)
        return lambda: F.linear(x, w, b)

    def packed(n: int) -> Callable[[], Any]:
        x = array(1900 + n, 8, 64, dtype=np.float16)
        ends = np.linspace(0, 1900 + n, 17).astype(np.int64)
        return lambda: F.varlen_attn(x, x, x, ends, None, 256, 256)

    yield "new shapes: matmul", product
    yield "new shapes: linear", layer
    yield "new shapes: conv2d, last batches", ragged
    yield "new shapes: attention, growing keys", growing
    yield "new shapes: attention, gradients of prompts", prompts
    yield "new shapes: packed attention", packed
    yield "new shapes: fft", transform


def layers(array: Callable[..., Any], images: Any, kernel: Any) -> Iterator[Case]:
    """Yields calls of layers that own their weights, where a checkout has such on devices, after the plain operations."""
    import backline
    import backline.nn.functional as F
    from backline import quantized

    rows, weight, bias = array(64, 64), array(64, 64), array(64)
    yield "linear", lambda: F.linear(rows, weight, bias, activation="relu")
    yield "conv2d, channels last, weight in C order", lambda: F.conv2d(images, kernel, padding=1)
    try:
        linear, conv = F.prepack_linear(weight, bias, activation="relu"), F.prepack_conv2d(kernel, padding=1)
    except backline.errors.BacklineError:
        return
    with backline.backends.quantized.flags(engine="reference"):
        whole = quantized.linear_prepack(quantized.quantize_weights(np.ones((64, 64), np.float32)), np.ones(64, np.float32))
    yield "linear, packed", lambda: linear(rows)
    yield "conv2d, channels last, packed", lambda: conv(images)
    yield "linear_dynamic, int8", lambda: quantized.linear_dynamic(rows, whole)


def counted(call: Callable[[], Any]) -> int:
    """Calls of functions, in Python and in C, that the interpreter sees during one call."""
    seen = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen - 1  # the one that ends it


def _timed(call: Callable[[], Any], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times * 1e6


def measured(only: str) -> dict[str, dict[str, Any]]:
    """The figures of every case, by name."""
    from idle_device import begin

    array, _, driver = begin()
    import backline

    found: dict[str, dict[str, Any]] = {}
    for name, call in cases(array):
        if only not in name:
            continue
        try:
            for _ in range(WARM):
                call()
        except Exception as error:  # one case less, and why
            found[name] = {"error": " ".join(str(error).split())[:150]}
            continue
        chosen = backline.explain()
        before = driver.hollow_launches()
        calls = counted(call)
        launches = driver.hollow_launches() - before
        rounds = [_timed(call, 1 if "seeds" in name else CALLS) for _ in range(SEEDS if "seeds" in name else ROUNDS)]
        found[name] = {
            "by": chosen.chosen.key.partition("@")[0], "least": min(rounds), "median": statistics.median(rounds), "calls": calls,
            "launches": launches,
        }  # fmt: skip
    for name, make in new_shapes(array):
        if only not in name:
            continue
        try:
            calls_of = [make(n) for n in range(2 * SHAPES)]
            for call in calls_of[:SHAPES]:  # what is common to all of them is known then
                call()
            rounds = [_timed(call, 1) for call in calls_of[SHAPES:-1]]
            calls = counted(calls_of[-1])
        except Exception as error:  # one case less, and why
            found[name] = {"error": " ".join(str(error).split())[:150]}
            continue
        by = backline.explain().chosen.key.partition("@")[0]
        found[name] = {"by": by, "least": min(rounds), "median": statistics.median(rounds), "calls": calls, "launches": 0}
    if only in "cuDNN alone":
        found |= dict(alone(array))
    return found


def alone(array: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields what a run of cuDNN's plan takes, by the function that the frontend documents and by its compiled half."""
    from backline.libraries.cuda.common import bindings
    from backline.libraries.cuda.cudnn import graph_cache, graphs

    kept = [
        plans
        for plans in (each.value for each in graph_cache._kept._entries.values())
        if plans.spec.node == "conv_fprop" and not plans.failed
    ]
    plans, module = kept[0], bindings.cudnn()
    index, handle = plans.ready[0], graphs.handle_for(module, 0)
    memory = array(1 << 22)
    pointers = {uid: int(memory.data.ptr) for uid in (1, 2, 3)}
    python = {"compiled": False} if "compiled" in inspect.signature(graphs.build).parameters else {}
    graph = graphs.build(module, plans.spec, (9, 0), **python)
    graph.build_plan_at_index(index)
    half, place = graph._lowered_graph, graph.plans[index].cpp_index
    ways: dict[str, Callable[[], Any]] = {
        "cuDNN alone: execute_plan_at_index": lambda: graph.execute_plan_at_index(pointers, 0, index=index, handle=handle),
        "cuDNN alone: its compiled half, a dict": lambda: half._execute_plan_at_index(pointers, 0, place, handle.backend_handle),
    }
    calls = getattr(plans, "calls", None)
    if calls is not None:
        ways["cuDNN alone: its compiled half, an array"] = lambda: calls[index](pointers, 0, handle)
    for name, call in ways.items():
        rounds = [_timed(call, CALLS) for _ in range(ROUNDS)]
        yield (
            name,
            {"by": "cudnn", "least": min(rounds), "median": statistics.median(rounds), "calls": counted(call), "launches": 0},
        )


def _elsewhere(python: str, only: str) -> dict[str, dict[str, Any]]:
    command = [python, __file__, "--json", f"--only={only}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "BACKLINE_TUNING": ""})
    return json.loads(done.stdout.splitlines()[-1])


def _least(runs: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Of several runs, each case where it took the least."""
    return {name: min((run[name] for run in runs), key=lambda row: row.get("least", 0.0)) for name in runs[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", metavar="PYTHON", help="interpreter of an environment with the checkout to compare with")
    parser.add_argument("--runs", type=int, default=2, help="processes of each side, in turn")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--out", type=Path, help="write the figures to this file, as JSON")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.json:
        print(json.dumps(measured(asked.only)))
        return 0
    sides = {"here": sys.executable} if asked.before is None else {"before": asked.before, "here": sys.executable}
    runs: dict[str, list[dict[str, dict[str, Any]]]] = {side: [] for side in sides}
    for _ in range(asked.runs):
        for side, python in sides.items():
            runs[side].append(_elsewhere(python, asked.only))
    found = {side: _least(each) for side, each in runs.items()}
    print("microseconds until a call returns (the median of its rounds), calls of functions, launches")
    for name in found["here"]:
        shown = [f"{name:<40}"]
        for side in sides:
            row = found[side].get(name, {"error": "no such case"})
            if "error" in row:
                shown.append(f"{side}: {row['error'][:60]}")
            else:
                numbers = f"{row['least']:8.1f} ({row['median']:.1f})"
                shown.append(f"{numbers:<20}{row['calls']:>6}{row['launches']:>4}  {row['by']:<22}")
        print(" | ".join(shown))
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
