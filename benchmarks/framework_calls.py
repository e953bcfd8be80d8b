"""The cost of one call on arrays of PyTorch and JAX, beside NumPy's and the frameworks' own: microseconds, the least of many.

    PYTHONPATH=/folder/with/torch/or/jax python benchmarks/framework_calls.py

A framework that is not installed is left out. The counts of Python calls do not depend on the machine's load.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np

import backline


def least(function: Callable[[], Any], repeats: int = 200, calls: int = 20) -> float:
    """Microseconds of one call."""
    best = float("inf")
    for _ in range(repeats):
        start = perf_counter()
        for _ in range(calls):
            function()
        best = min(best, perf_counter() - start)
    return best / calls * 1e6


def python_calls(function: Callable[[], Any]) -> int:
    """Calls of Python functions that one call makes."""
    seen = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        seen += event == "call"

    function()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen - 1  # the function itself


def main() -> None:
    print(f"{'call':42} {'8x8':>9} {'256x256':>9}  Python calls")
    arrays = [np.random.default_rng(0).standard_normal((n, n)).astype(np.float32) for n in (8, 256)]

    def row(name: str, function: Callable[[Any, Any], Any], operands: list[Any]) -> None:
        times = [least(lambda a=a: function(a, a)) for a in operands]
        print(f"{name:42} {times[0]:9.2f} {times[1]:9.2f}  {python_calls(lambda: function(operands[0], operands[0]))}")

    row("backline.matmul, NumPy", backline.matmul, arrays)
    row("numpy.matmul", np.matmul, arrays)
    if find_spec("torch"):
        import torch

        from backline.interop.torch import register

        register()
        tensors = [torch.from_numpy(a) for a in arrays]
        row("backline.matmul, tensors", backline.matmul, tensors)
        row("torch.ops.backline.matmul", torch.ops.backline.matmul, tensors)
        row("torch.matmul", torch.matmul, tensors)
    if find_spec("jax"):
        import jax

        from backline.interop import jax as operations

        values = [jax.numpy.asarray(a) for a in arrays]
        row("backline.matmul, JAX", lambda a, b: backline.matmul(a, b).block_until_ready(), values)
        traced, own = jax.jit(operations.matmul), jax.jit(jax.numpy.matmul)
        row("backline.interop.jax.matmul under jit", lambda a, b: traced(a, b).block_until_ready(), values)
        row("jax.numpy.matmul under jit", lambda a, b: own(a, b).block_until_ready(), values)
        empty = jax.jit(lambda a: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(a.shape, a.dtype), a))
        row("a callback that does nothing, under jit", lambda a, b: empty(a).block_until_ready(), values)


if __name__ == "__main__":
    main()
