"""Record what torch.linalg gives where its rules decide: shapes, dtypes, empty results, infinities, conventions.

Run ``python tests/contract/data/record_torch.py`` in an environment with PyTorch; it writes torch_linalg.json beside this file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SINGULAR = [[1.0, 2.0], [2.0, 4.0]]
PLAIN = [[4.0, 1.0, 0.0], [2.0, 5.0, 1.0], [0.0, 1.0, 6.0]]
DEFINITE = [[4.0, 2.0], [2.0, 5.0]]
TALL = [[1.0, 2.0], [3.0, 4.0], [5.0, 7.0], [1.0, 0.0]]


def cases() -> dict[str, Any]:
    """Name -> (function, arguments, keywords, whether to compare absolute values); ("zeros", shape) stands for an array."""
    z = lambda *shape: ("zeros", shape)  # noqa: E731  # a short name in a table of cases
    inf = float("inf")
    found: dict[str, Any] = {}

    def add(function: str, *args: Any, absolute: bool = False, **kwargs: Any) -> None:
        found[f"{function} {len(found)}"] = (function, args, kwargs, absolute)

    for f in (
        "det",
        "slogdet",
        "inv",
        "inv_ex",
        "cholesky",
        "cholesky_ex",
        "eigh",
        "eigvalsh",
        "eigvals",
        "lu_factor",
        "lu_factor_ex",
        "svdvals",
    ):
        for x in (z(0, 0), z(2, 0, 0), z(0, 2, 2)):
            add(f, x)
    for x in (z(0, 3), z(3, 0), z(2, 0, 3)):
        for f in ("svdvals", "qr", "svd", "matrix_rank", "pinv", "lu"):
            add(f, x, absolute=True)
        add("qr", x, "complete", absolute=True)
        add("qr", x, "r", absolute=True)
        add("svd", x, False, absolute=True)
    for f in ("det", "slogdet", "inv_ex", "lu_factor_ex", "cond", "matrix_rank", "pinv", "svdvals"):
        add(f, SINGULAR)
        add(f, [[0.0, 0.0], [0.0, 0.0]])
    for f in ("inv", "cholesky", "lu_factor"):
        add(f, SINGULAR if f != "cholesky" else [[1.0, 2.0], [2.0, 1.0]])
    add("cholesky_ex", [[1.0, 2.0], [2.0, 4.5]])
    for p in (None, 2, -2, 1, -1, inf, -inf, "fro", "nuc"):
        add("cond", PLAIN, p)
        if p is not None:
            add("matrix_norm", PLAIN, p)
            add("matrix_norm", [PLAIN, PLAIN], p, keepdim=True)
            add("matrix_norm", [PLAIN, PLAIN], p, dim=(0, 2))
    for p in (2, 1, 0, 3, 0.5, -1, inf, -inf):
        add("vector_norm", TALL, p)
        add("vector_norm", TALL, p, 0)
        add("vector_norm", TALL, p, (0, 1), True)
    add(
        "vector_norm",
        z(
            0,
        ),
    )
    add(
        "vector_norm",
        z(
            0,
        ),
        inf,
    )
    add("norm", TALL)
    add("norm", TALL, 1)
    add("norm", [3.0, 4.0], 1)
    add("norm", TALL, 2, 0)
    for n in (0, 1, 5, -2):
        add("matrix_power", PLAIN, n)
    add("matrix_power", SINGULAR, -1)
    for args in (
        (PLAIN, [1.0, 2.0, 3.0]),
        ([PLAIN, PLAIN], [[1.0, 2.0, 3.0]] * 2),
        ([PLAIN, PLAIN], [1.0, 2.0, 3.0]),
        (PLAIN, TALL[:3]),
    ):
        add("solve", *args)
        add("solve_ex", *args)
    add("solve", SINGULAR, [1.0, 1.0])
    add("solve", PLAIN, [1.0, 2.0])
    add("solve", z(0, 0), z(0, 3))
    add("solve_triangular", PLAIN, TALL[:3], upper=True)
    add("solve_triangular", PLAIN, TALL[:3], upper=False, unitriangular=True)
    for driver in ("gelsy", "gels", "gelsd", "gelss"):
        add("lstsq", TALL, [[1.0], [2.0], [3.0], [5.0]], driver=driver)
        add("lstsq", [TALL, TALL], [[[1.0], [2.0], [3.0], [5.0]]] * 2, driver=driver)
        add("lstsq", [list(x) for x in zip(*TALL, strict=True)], [[1.0], [2.0]], driver=driver)
    add("lstsq", SINGULAR, [[1.0], [2.0]], driver="gelsd")
    add("lstsq", TALL, [[1.0], [2.0], [3.0]])
    add("eigh", DEFINITE, absolute=True)
    add("eigh", [[1.0, 9.0], [2.0, 1.0]], "U", absolute=True)
    add("cholesky", DEFINITE, upper=True)
    add("qr", TALL, absolute=True)
    add("lu", PLAIN)
    add("lu_factor", PLAIN)
    add("matrix_rank", PLAIN, rtol=0.9)
    add("matrix_rank", PLAIN, atol=100.0)
    add("pinv", TALL)
    add("multi_dot", [DEFINITE, DEFINITE, DEFINITE])
    return found


def record() -> dict[str, Any]:
    """Run every case in torch, in float64."""
    import torch

    def tensor(x: Any) -> Any:
        if isinstance(x, tuple) and x and x[0] == "zeros":
            return torch.zeros(x[1], dtype=torch.float64)
        return torch.tensor(x, dtype=torch.float64) if isinstance(x, list) else x

    def coded(x: Any) -> Any:
        t = tensor(x)
        if isinstance(t, torch.Tensor):
            return {"array": t.flatten().tolist(), "shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
        return x

    def shown(t: Any, absolute: bool) -> Any:
        values = t.abs() if absolute else t.real if t.is_complex() else t
        return {"array": values.flatten().tolist(), "shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}

    found: dict[str, Any] = {}
    for name, (function, args, kwargs, absolute) in cases().items():
        many = function == "multi_dot"
        case: dict[str, Any] = {"function": function, "args": [coded(x) for x in args], "kwargs": kwargs, "absolute": absolute}
        if many:
            continue
        try:
            result = getattr(torch.linalg, function)(*(tensor(x) for x in args), **kwargs)
        except (RuntimeError, IndexError) as error:
            case["error"] = str(error).splitlines()[0]
        else:
            case["result"] = [shown(t, absolute) for t in (result if isinstance(result, tuple) else (result,))]
        found[name] = case
    return {"torch": torch.__version__, "cases": found}


if __name__ == "__main__":
    target = Path(__file__).with_name("torch_linalg.json")
    target.write_text(json.dumps(record(), indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(f"{target}: {target.stat().st_size} bytes")
