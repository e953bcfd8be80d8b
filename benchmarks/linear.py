"""Linear layers, tuned, against NumPy and PyTorch: ``python benchmarks/linear.py [--threads N] [--rounds N]``.

Every size is timed twice: with weights given anew to every call on all sides, and with weights prepacked: `prepack_linear` here;
in PyTorch the two forms that its compiler has for constant weights, oneDNN's and MKL's, and the plain call: the fastest counts.
Without ``--threads``, once on one thread and once on two.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import backline
from backline import backends
from backline.nn import functional
from side_by_side import Table, call, compare, torch_or_none

Array = np.ndarray[Any, Any]
ROWS = (1, 16, 128, 256, 1024)
SIZES = (*((rows, 1024, 1024) for rows in ROWS), (8, 8, 8))

rng = np.random.default_rng(1)


def prepacked(torch: Any, x: Any, weight: Any, bias: Any) -> dict[str, Any]:
    """PyTorch's calls with packed weights, where this build has them."""
    found: dict[str, Any] = {}
    plain = torch.nn.functional.linear(x, weight, bias)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
        f = torch.ops.mkldnn._linear_pointwise.default
        found["onednn"] = call('f(x, w, b, "none", [], "")', f=f, x=x, w=packed, b=bias), f(x, packed, bias, "none", [], "")
    except (RuntimeError, AttributeError):
        pass  # not in this build
    try:
        packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, len(x))
        f = torch.ops.mkl._mkl_linear.default
        timer = call("f(x, w, p, b, n)", f=f, x=x, w=packed, p=weight, b=bias, n=len(x))
        found["mkl"] = timer, f(x, packed, weight, bias, len(x))
    except (RuntimeError, AttributeError):
        pass
    for name, (_, got) in found.items():
        assert torch.allclose(got, plain, rtol=1e-3, atol=1e-2), f"PyTorch's {name} computes something else"
    return {f"torch {name}": run for name, (run, _) in found.items()}


def row(table: Table, size: tuple[int, int, int], threads: int, rounds: int, torch: Any, packed: bool) -> None:
    m, k, n = size
    x, weight, bias = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (n, k), (n,)))
    if packed:
        ours = call("f(x)", f=functional.prepack_linear(weight, bias), x=x)
    else:
        ours = call("f(x, w, b)", f=functional.linear, x=x, w=weight, b=bias)
    with backends.flags(benchmark=True, benchmark_limit=0):
        ours.timeit(1)
    ours.timeit(1)
    choice = backline.explain()
    contestants: dict[str, Any] = {"backline": ours, "numpy": call("x @ w + b", x=x, w=weight.T, b=bias)}
    if torch:
        tx, tw, tb = (torch.from_numpy(a) for a in (x, weight, bias))
        contestants["torch"] = call("f(x, w, b)", f=torch.nn.functional.linear, x=tx, w=tw, b=tb)
        if packed:
            contestants |= prepacked(torch, tx, tw, tb)
    times = compare(contestants, rounds=rounds)
    if torch:
        times["torch"] = min(seconds for name, seconds in times.items() if name.startswith("torch"))
    label = f"{'x'.join(map(str, size))}{' packed' if packed else ''} T{threads}"
    table.add(label, times, f"{choice.library} {choice.algorithm} x{choice.chosen.threads}")


def number(flag: str, default: int | None) -> int | None:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


def main() -> None:
    asked = number("--threads", None)
    rounds = number("--rounds", 9) or 9
    torch = torch_or_none(asked or 1)
    table = Table("linear", ["numpy", *(["torch"] if torch else [])])
    for threads in (asked,) if asked else (1, 2):
        if torch:
            torch.set_num_threads(threads)
            torch.set_grad_enabled(False)
        with backline.num_threads(threads):
            for size in SIZES:
                for packed in (False, True):
                    row(table, size, threads, rounds, torch, packed)
    summary: dict[str, Any] = {"threads": [asked] if asked else [1, 2], "rounds": rounds}
    if torch:
        for kind, select in (("given", lambda r: "packed" not in r), ("packed", lambda r: "packed" in r)):
            over = table.speed_over("torch", select)
            print(f"\nweights {kind}: geometric mean of the speed over torch {over:.2f}")
            summary[f"speed_over_torch_{kind}"] = over
    summary["speed_over_numpy"] = table.speed_over("numpy")
    table.save(**summary)


if __name__ == "__main__":
    main()
