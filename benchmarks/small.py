"""The cost of a call: small products, scopes, half precision, a packed operand: ``python benchmarks/small.py``."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import backline
from backline import backends
from side_by_side import Table, call, compare, show, threads_asked, torch_or_none

rng = np.random.default_rng(1)
threads = threads_asked()
torch = torch_or_none(threads)
peers = ["numpy", "torch"] if torch else ["numpy"]


def products() -> None:
    table = Table("small", peers)
    for n in (2, 8, 16, 32, 64, 128):
        a = rng.standard_normal((n, n)).astype(np.float32)
        out = np.empty_like(a)
        with backends.flags(benchmark=True, benchmark_limit=0):
            backline.matmul(a, a)
            backline.matmul(a, a, out=out)
        contestants = {"backline": call("f(a, a)", f=backline.matmul, a=a), "numpy": call("f(a, a)", f=np.matmul, a=a)}
        into = {
            "backline": call("f(a, a, out=out)", f=backline.matmul, a=a, out=out),
            "numpy": call("f(a, a, out=out)", f=np.matmul, a=a, out=out),
        }
        backline.matmul(a, a)
        choice = backline.explain()
        if torch:
            t, o = torch.from_numpy(a), torch.from_numpy(out)
            contestants["torch"] = call("f(t, t)", f=torch.mm, t=t)
            into["torch"] = call("f(t, t, out=o)", f=torch.mm, t=t, o=o)
        table.add(f"float32 {n}x{n}", compare(contestants), f"{choice.library} {choice.algorithm}")
        table.add(f"float32 {n}x{n} out=", compare(into), f"{choice.library} {choice.algorithm}")
    table.save(threads=threads)


def half() -> None:
    table = Table("half", ["float32"], ours="half")
    n = 1024
    single = rng.standard_normal((n, n)).astype(np.float32)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        a = single.astype(dtype)
        with backends.flags(benchmark=True, benchmark_limit=0):
            backline.matmul(a, a)
            backline.matmul(single, single)
        times = compare({"half": lambda a=a: backline.matmul(a, a), "float32": lambda: backline.matmul(single, single)})
        table.add(f"{np.dtype(dtype).name} {n}x{n}", times)
    table.save(threads=threads)


def packed() -> None:
    table = Table("packed", [*peers, *(["torch linear"] if torch else [])])
    for m, k, n in ((4, 1024, 4096), (1, 1024, 4096), (16, 1024, 4096)):
        a = rng.standard_normal((m, k)).astype(np.float32)
        b = rng.standard_normal((k, n)).astype(np.float32)
        weights = backline.prepack(b)
        with backends.flags(benchmark=True, benchmark_limit=0):
            weights.product(a)
        weights.product(a)
        choice = backline.explain()
        contestants = {"backline": lambda a=a, w=weights: w.product(a), "numpy": lambda a=a, b=b: np.matmul(a, b)}
        if torch:
            ta, tb = torch.from_numpy(a), torch.from_numpy(b)
            tt = tb.t().contiguous()
            contestants["torch"] = lambda ta=ta, tb=tb: torch.mm(ta, tb)
            contestants["torch linear"] = lambda ta=ta, tt=tt: torch.nn.functional.linear(ta, tt)
        table.add(f"float32 {m}x{k}x{n} packed", compare(contestants), f"{choice.library} {choice.algorithm}")
    table.save(threads=threads)


def scopes() -> None:
    mkl = backends.mkl

    def enter() -> None:
        with mkl.flags(enabled=False):
            pass

    a = np.ones((8, 8), np.float32)

    def around_a_call() -> None:
        with backline.num_threads(1):
            backline.matmul(a, a)

    around_a_call()
    product = call("f(a, a)", f=backline.matmul, a=a)
    times = compare({"scope": enter, "scope and 8x8 product": around_a_call, "8x8 product": product})
    print("\n".join(f"{name:<24} {show(t)}" for name, t in times.items()))


if __name__ == "__main__":
    products()
    half()
    packed()
    scopes()
