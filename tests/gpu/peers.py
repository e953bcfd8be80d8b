"""Backline, PyTorch and CuPy in turn: each section's cases, timed by events, in a process of their own that may import PyTorch.

``python peers.py FILE SECTION ...`` writes one line of JSON for each thing that was timed, as soon as it was. A peer that is not
installed, or that has no such operation, leaves a line that says so. No timing decides anything.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["SECTIONS", "measure", "read"]

Clock = Callable[..., list[float]]
ROUNDS, RUNS = 3, 4  # the peers take turns so often, for so many runs each


class Case(NamedTuple):
    """One thing that every peer can do: what it is, and the function of each peer, by name."""

    op: str
    shape: Any
    dtype: str
    ways: dict[str, Callable[[], Any]]
    flops: float = 0.0


def _there(cupy: Any, torch: Any, *shape: int, dtype: str = "float32", seed: int = 0) -> tuple[Any, Any]:
    """The same numbers for Backline and CuPy, and for PyTorch."""
    import ml_dtypes

    array = cupy.asarray(_numbers(shape, seed))
    other = None if torch is None else torch.from_dlpack(array).to(getattr(torch, dtype))
    if dtype == "bfloat16":
        return cupy.asarray(_numbers(shape, seed).astype(ml_dtypes.bfloat16)), other
    return array.astype(dtype), other


@lru_cache(maxsize=4)
def _numbers(shape: tuple[int, ...], seed: int) -> Any:
    import numpy as np

    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _products(cupy: Any, torch: Any, small: bool) -> Iterator[Case]:
    import backline
    from backline.backends import cuda

    n = 64 if small else 8192
    for name, dtype, precision in (("float32", "float32", "ieee"), ("tf32", "float32", "tf32"), ("bfloat16",) * 2 + ("",), ("float16",) * 2 + ("",)):
        (a, ta), (b, tb) = (_there(cupy, torch, n, n, dtype=dtype, seed=seed) for seed in (1, 2))
        out = cupy.empty((n, n), a.dtype)

        def ours(a: Any = a, b: Any = b, out: Any = out, precision: str = precision) -> Any:
            with cuda.matmul.flags(fp32_precision=precision) if precision else nullcontext():
                return backline.matmul(a, b, out=out)

        ways: dict[str, Callable[[], Any]] = {"backline": ours}
        if torch is not None:
            kept = torch.empty((n, n), dtype=ta.dtype, device="cuda")

            def theirs(a: Any = ta, b: Any = tb, out: Any = kept, precision: str = precision) -> Any:
                torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
                return torch.matmul(a, b, out=out)

            ways["torch"] = theirs
        if name == "float32":  # CuPy computes in TF32 by an environment variable only, and bfloat16 without tensor cores
            ways["cupy"] = lambda a=a, b=b, out=out: cupy.matmul(a, b, out=out)
        yield Case(f"matmul {name}", [n, n, n], dtype, ways, 2.0 * n**3)
    (a, ta), (b, tb) = (_there(cupy, torch, 16, 16, seed=seed) for seed in (1, 2))
    ways = {"backline": lambda: backline.matmul(a, b), "cupy": lambda: cupy.matmul(a, b)}
    if torch is not None:
        ways["torch"] = lambda: torch.matmul(ta, tb)
    yield Case("matmul, launch", [16, 16, 16], "float32", ways)


def _convolution(cupy: Any, torch: Any, small: bool) -> Iterator[Case]:
    from backline import switches
    from backline.nn import functional

    batch, channels, side = (2, 8, 8) if small else (32, 128, 56)
    for dtype in ("float32", "float16"):
        (x, tx), (w, tw) = (
            _there(cupy, torch, *shape, dtype=dtype, seed=seed)
            for seed, shape in ((1, (batch, channels, side, side)), (2, (channels, channels, 3, 3)))
        )
        for benchmark in (False, True):
            def ours(x: Any = x, w: Any = w, benchmark: bool = benchmark) -> Any:
                with switches.scope({"cudnn.benchmark": benchmark}):
                    return functional.conv2d(x, w, padding=1)

            ways: dict[str, Callable[[], Any]] = {"backline": ours}
            if torch is not None:
                def theirs(x: Any = tx, w: Any = tw, benchmark: bool = benchmark) -> Any:
                    torch.backends.cudnn.benchmark = benchmark
                    return torch.nn.functional.conv2d(x, w, padding=1)

                ways["torch"] = theirs
            op = f"conv2d{', benchmark' if benchmark else ''}"
            yield Case(op, [batch, channels, side, side], dtype, ways, 2.0 * batch * side**2 * channels**2 * 9)


def _attention(cupy: Any, torch: Any, small: bool) -> Iterator[Case]:
    from backline.nn import functional
    from backline.nn.attention import SDPBackend, sdpa_kernel

    for dims in (64,) if small else (64, 128):
        shape = (1, 1, 32, dims) if small else (2, 16, 4096, dims)
        (q, tq), (k, tk), (v, tv) = (_there(cupy, torch, *shape, dtype="bfloat16", seed=seed) for seed in (1, 2, 3))
        for causal in (False, True):
            ways: dict[str, Callable[[], Any]] = {}
            for kernel in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
                def ours(q: Any = q, k: Any = k, v: Any = v, causal: bool = causal, kernel: str = kernel) -> Any:
                    with sdpa_kernel(SDPBackend[kernel]):
                        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

                ways[f"backline {kernel}"] = ours
                if torch is not None:
                    def theirs(q: Any = tq, k: Any = tk, v: Any = tv, causal: bool = causal, kernel: str = kernel) -> Any:
                        from torch.nn import attention

                        with attention.sdpa_kernel(getattr(attention.SDPBackend, kernel)), torch.no_grad():
                            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

                    ways[f"torch {kernel}"] = theirs
            flops = 4.0 * shape[0] * shape[1] * shape[2] ** 2 * dims / (2 if causal else 1)
            yield Case(f"attention{', causal' if causal else ''}", list(shape), "bfloat16", ways, flops)


def _algebra(cupy: Any, torch: Any, small: bool) -> Iterator[Case]:
    from backline import fft, linalg

    def case(op: str, shape: list[int], dtype: str, ours: Any, theirs: Any, cupys: Any) -> Case:
        return Case(op, shape, dtype, {"backline": ours, "cupy": cupys} | ({"torch": theirs} if torch is not None else {}))

    batch, n = (2, 64) if small else (64, 65536)
    x, tx = _there(cupy, torch, batch, n)
    yield case("rfft", [batch, n], "float32", lambda: fft.rfft(x), lambda: torch.fft.rfft(tx), lambda: cupy.fft.rfft(x))
    n = 16 if small else 2048
    (a, ta), (b, tb) = (_there(cupy, torch, n, m, dtype="float64", seed=seed) for seed, m in ((1, n), (2, 16 if not small else 2)))
    yield case("solve", [n, n], "float64", lambda: linalg.solve(a, b), lambda: torch.linalg.solve(ta, tb), lambda: cupy.linalg.solve(a, b))
    n = 16 if small else 1024
    s, ts = _there(cupy, torch, n, n, dtype="float64", seed=3)
    s, ts = s + s.T, None if ts is None else ts + ts.T
    yield case("eigh", [n, n], "float64", lambda: linalg.eigh(s), lambda: torch.linalg.eigh(ts), lambda: cupy.linalg.eigh(s))


def _layers(cupy: Any, torch: Any, small: bool) -> Iterator[Case]:
    """Rows that are reduced: what takes time is to read and to write them."""
    from backline.nn import functional

    f = torch.nn.functional if torch is not None else None

    def case(op: str, shape: tuple[int, ...], dtype: str, ours: Any, theirs: Any) -> Case:
        return Case(op, list(shape), dtype, {"backline": ours} | ({"torch": theirs} if torch is not None else {}))

    for dtype in ("float32", "bfloat16"):
        for rows, n in ((64, 32),) if small else ((32768, 1024), (256, 131072), (1 << 20, 64)):
            (x, tx), (w, tw) = (_there(cupy, torch, *shape, dtype=dtype, seed=seed) for seed, shape in enumerate(((rows, n), (n,))))
            yield case("softmax", (rows, n), dtype, lambda x=x: functional.softmax(x, -1), lambda x=tx: f.softmax(x, -1))
            yield case("layer_norm", (rows, n), dtype, lambda x=x, w=w, n=n: functional.layer_norm(x, n, w, w),
                       lambda x=tx, w=tw, n=n: f.layer_norm(x, (n,), w, w))  # fmt: skip
            yield case("rms_norm", (rows, n), dtype, lambda x=x, w=w, n=n: functional.rms_norm(x, n, w), lambda x=tx, w=tw, n=n: f.rms_norm(x, (n,), w))
        shape = (2, 8, 6, 6) if small else (64, 256, 56, 56)
        (x, tx), (w, tw) = (_there(cupy, torch, *sizes, dtype=dtype, seed=seed) for seed, sizes in enumerate((shape, shape[1:2])))
        yield case("batch_norm, training", shape, dtype, lambda x=x, w=w: functional.batch_norm(x, None, None, w, w, True),
                   lambda x=tx, w=tw: f.batch_norm(x, None, None, w, w, True))  # fmt: skip
        yield case("softmax over channels", shape, dtype, lambda x=x: functional.softmax(x, 1), lambda x=tx: f.softmax(x, 1))


def _calls(cupy: Any, torch: Any, small: bool) -> Iterator[Case]:
    """Small ones, of which the processor's part is what takes time."""
    import backline
    from backline import fft
    from backline.nn import functional

    def case(op: str, dtype: str, ours: Any, theirs: Any, cupys: Any, *shapes: tuple[int, ...]) -> Case:
        pairs = [_there(cupy, torch, *shape, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
        a, t = zip(*pairs, strict=True)
        ways = {"backline": lambda: ours(*a)} | ({"torch": lambda: theirs(*t)} if torch is not None else {})
        return Case(op, list(shapes[0]), dtype, ways | ({"cupy": lambda: cupys(*a)} if cupys is not None else {}))

    f = torch.nn.functional if torch is not None else None
    yield case("call of matmul", "float32", backline.matmul, torch and torch.matmul, cupy.matmul, (64, 64), (64, 64))
    yield case("call of linear", "float32", functional.linear, f and f.linear, None, (64, 64), (64, 64), (64,))
    yield case("call of conv2d", "float32", functional.conv2d, f and f.conv2d, None, (1, 8, 16, 16), (8, 8, 3, 3))
    yield case("call of softmax", "float32", lambda x: functional.softmax(x, -1), lambda x: f.softmax(x, -1), None, (64, 64))
    yield case("call of rfft", "float32", fft.rfft, torch and torch.fft.rfft, cupy.fft.rfft, (64, 64))
    yield case("call of einsum", "float32", lambda x, y: backline.einsum("ij,jk", x, y), lambda x, y: torch.einsum("ij,jk", x, y),
               lambda x, y: cupy.einsum("ij,jk", x, y), (64, 64), (64, 64))  # fmt: skip


def _until_it_returns(cupy: Any, calls: int) -> Clock:
    """A clock of the processor: microseconds until a call returns, the mean of some; the device is waited for before."""

    def clock(function: Callable[[], Any], runs: int = 4, warm: int = 3) -> list[float]:
        found = []
        for run in range(warm + runs):
            cupy.cuda.get_current_stream().synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            if run >= warm:
                found.append((time.perf_counter() - begin) / calls * 1e6)
        return found

    return clock


SECTIONS: dict[str, Callable[[Any, Any, bool], Iterator[Case]]] = {
    "products": _products, "convolution": _convolution, "attention": _attention, "algebra": _algebra,
    "layers": _layers, "calls": _calls,
}  # fmt: skip


def measure(
    name: str, cupy: Any, clock: Clock, torch: Any, *, rehearsed: bool = False, seconds: float = 15.0,
    tell: Callable[[dict[str, Any]], None] = lambda line: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Time one section: the peers take turns, each for some runs.

    Parameters
    ----------
    name
        Of `SECTIONS`.
    cupy, torch
        The modules; None for PyTorch where there is none.
    clock
        ``clock(function, runs=, warm=)``: microseconds. What a call costs the processor is told by another one.
    rehearsed
        Whether small sizes will do.
    seconds
        After which no further case begins.
    tell
        Is given each line as soon as it is known.

    Returns
    -------
    list of dict
        ``{op, shape, dtype, library, times_us}``, or ``{..., error}``.
    """
    found: list[dict[str, Any]] = []
    if name == "calls":
        clock = _until_it_returns(cupy, 1 if rehearsed else 50)
    end = time.monotonic() + seconds
    for case in SECTIONS[name](cupy, torch, rehearsed):
        about = {"section": name, "op": case.op, "shape": case.shape, "dtype": case.dtype, "flops": case.flops}
        if time.monotonic() > end:
            lines = [{**about, "library": library, "error": f"not reached within {seconds:g} s"} for library in case.ways]
        else:
            lines = _in_turn(case, about, clock, 1 if rehearsed else ROUNDS)
        for line in lines:
            found.append(line)
            tell(line)
    return found


def _in_turn(case: Case, about: dict[str, Any], clock: Clock, rounds: int) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {library: [] for library in case.ways}
    errors: dict[str, str] = {}
    for turn in range(rounds):
        for library, way in case.ways.items():
            if library in errors:
                continue
            try:
                times[library] += clock(way, runs=RUNS, warm=3 if turn == 0 else 1)
            except Exception as error:  # one peer that cannot do it leaves the others their turns
                errors[library] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return [
        {**about, "library": library, **({"error": errors[library]} if library in errors else {"times_us": times[library]})}
        for library in case.ways
    ]


def ratios(lines: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median of each library over that of the first one, by case."""
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        if "times_us" in line:
            found.setdefault(f"{line['op']} {line['dtype']} {'x'.join(map(str, line['shape']))}", {})[line["library"]] = statistics.median(line["times_us"])
    return {case: {library: t / next(iter(times.values())) for library, t in times.items()} for case, times in found.items()}


def read(path: Path, printed: str, late: str = "") -> dict[str, Any]:
    """Returns what another process wrote, by section.

    Under "printed" is the end of what it printed, under "late" what is said where it was ended before its time.
    """
    found: dict[str, Any] = {name: [] for name in SECTIONS}
    if path.exists():
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            found[line["section"]].append(line)
    return {**found, "printed": printed[-3000:], "late": late}


def main(path: str, *sections: str) -> None:
    # CuPy first: the libraries that both packages come with are then those that Backline runs on.
    from gpu.machine import Machine

    machine = Machine()
    machine.preload()
    try:
        import torch
    except ImportError as error:
        print(f"no PyTorch: {error}")
        torch = None
    with open(path, "w", encoding="utf-8", buffering=1) as file:
        for name in sections:
            try:
                measure(name, machine.cupy(), machine.clock, torch, tell=lambda line: print(json.dumps(line), file=file))
            except Exception as error:  # a section that cannot be set up leaves the others
                line = {"section": name, "op": name, "shape": [], "dtype": "", "library": "backline", "error": f"{type(error).__name__}: {error}"}
                print(json.dumps(line), file=file)
            machine.cupy().get_default_memory_pool().free_all_blocks()
            if torch is not None:
                torch.cuda.empty_cache()
    machine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
