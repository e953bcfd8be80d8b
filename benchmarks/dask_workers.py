"""A job of several Dask workers beside one process: ``python benchmarks/dask_workers.py [--workers 1 2 4] [--repeats 5]``.

The job is products by blocks, a singular value decomposition of a tall matrix, transforms and convolutions of a batch. It runs
under determinism level "threads" and under settings that are no defaults. Questions that are answered for each number of workers:

- are the results those of one process, bit by bit?
- does every worker have the settings?
- what does a worker cost? `register` is the time of giving settings to all workers, at its least. `overhead` is the processor
  time of all workers and of the scheduler for the job, less that of one process: messages, copies, and blocks that are sent.

The workers are processes of this machine with one thread each, so the job gets faster up to the number of its cores. Below the
table stand the bytes that registering sends to each worker, and what the settings of a task add to the task.

``--many 10 100 300`` registers with so many workers of one process, which talk by TCP and do nothing else: the time
that messages take, on one processor for all sides.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("BACKLINE_TUNING", "")

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import backline
from backline import switches
from backline.interop import dask as blocks
from backline.interop.dask.block_function import BlockFunction
from backline.interop.dask.plugins import BacklineWorker
from backline.interop.dask.worker_settings import collect

SETTINGS: dict[str, Any] = {
    "deterministic": True,
    "determinism_level": "threads",
    "num_threads": 1,
    "fallback": "error",
    "promote": "numpy",
}


def job(size: int) -> list[Any]:
    """The expressions of the job; `size` is that of its largest matrix."""
    rng = da.random.default_rng(1)  # made on the workers: the same numbers wherever a block is made
    a = rng.standard_normal((size, size), chunks=size // 4).astype(np.float32)
    tall = rng.standard_normal((8 * size, 64), chunks=(size, 64))
    images = rng.standard_normal((16, 8, 64, 64), chunks=(2, 8, 64, 64)).astype(np.float32)
    weight = np.random.default_rng(1).standard_normal((16, 8, 3, 3)).astype(np.float32)
    return [
        blocks.matmul(a, a.T), *blocks.linalg.svd(tall), blocks.fft.rfft(tall),
        blocks.nn.conv2d(images, weight, padding=1),
    ]  # fmt: skip


def told() -> tuple[Any, ...]:
    return tuple(switches.get(name) for name in SETTINGS)


def processor_time() -> float:
    return time.process_time()


def least(function: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def used(client: Client) -> float:
    """Processor time of the workers and of this process, in which the scheduler is."""
    return sum(client.run(processor_time).values()) + time.process_time()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--many", type=int, nargs="+", default=[])
    arguments = parser.parse_args()
    if arguments.many:
        many(arguments.many, arguments.repeats)
        return
    with switches.scope(SETTINGS):
        expressions = job(arguments.size)
        alone = dask.compute(*expressions, scheduler="synchronous")
        processor: list[float] = []
        for _ in range(arguments.repeats):
            begin = time.process_time()
            dask.compute(*expressions, scheduler="synchronous")
            processor.append(time.process_time() - begin)
        wall = least(lambda: dask.compute(*expressions, scheduler="synchronous"), arguments.repeats)
        print(f"{'workers':>8}{'register':>12}{'job':>10}{'processor':>12}{'overhead':>11}  {'bits':<6}settings")
        print(f"{'none':>8}{'':>12}{wall:>9.3f}s{min(processor):>11.3f}s{'':>11}")
        rows = [row(count, expressions, alone, min(processor), arguments.repeats) for count in arguments.workers]
        if len(rows) > 1:
            (few, first, less), (most, last, more) = rows[0], rows[-1]
            added = most - few
            register, overhead = (last - first) / added * 1e3, (more - less) / added * 1e3
            print(f"\nper added worker: register {register:.1f} ms, overhead {overhead:.0f} ms of processor time")
        sizes()


def row(count: int, expressions: list[Any], alone: tuple[Any, ...], one: float, repeats: int) -> tuple[int, float, float]:
    with (
        LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(count)
        registering = least(lambda: blocks.register(client), repeats)
        kept = set(client.run(told).values()) == {told()}
        result = client.gather(client.compute(expressions))  # which loads libraries
        same = all(np.array_equal(x, y) for x, y in zip(alone, result, strict=True))
        walls, processor = [], []
        for _ in range(repeats):
            before, begin = used(client), time.perf_counter()
            result = client.gather(client.compute(expressions))
            walls.append(time.perf_counter() - begin)
            processor.append(used(client) - before)
            same &= all(np.array_equal(x, y) for x, y in zip(alone, result, strict=True))
            del result
        spent = min(processor)
        bits, settings = ("same" if same else "OTHER"), ("kept" if kept else "LOST")
        print(
            f"{count:>8}{registering * 1e3:>9.1f} ms{min(walls):>9.3f}s{spent:>11.3f}s{spent - one:>10.3f}s  {bits:<6}{settings}",
            flush=True,
        )
        return count, registering, spent - one


def many(counts: list[int], repeats: int) -> None:
    """Prints the time of registering with many workers of this process."""
    print(f"{'workers':>8}{'register':>12}{'for each':>12}")
    for count in counts:
        with (
            LocalCluster(
                n_workers=count, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=":0", silence_logs=50
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):  # fmt: skip
            client.wait_for_workers(count)
            seconds = least(lambda: blocks.register(client), repeats)
            print(f"{count:>8}{seconds * 1e3:>9.0f} ms{seconds / count * 1e3:>9.2f} ms", flush=True)


def sizes() -> None:
    """Prints the bytes that are sent."""
    from backline.engine.tuning.record import TuningRecord

    rng = np.random.default_rng(1)
    algorithms = [f"{library}.gemm@{threads}" for library in ("mkl", "openblas", "blis", "numpy") for threads in ("1", "n")]
    versions = {"mkl": "2026.2.0", "openblas": "0.3.34", "blis": "1.0", "numpy": "2.4.6"}

    def numbers(scale: float) -> dict[str, float]:
        return dict(zip(algorithms, map(float, scale * rng.uniform(1, 2, len(algorithms))), strict=True))

    records = [
        TuningRecord(
            f"matmul f32 {n}x{n} {n}x{n}", 2, medians=numbers(1e-6 * n), minima=numbers(1e-6 * n), errors=numbers(1e-7),
            runs=dict.fromkeys(algorithms, 60), covered=tuple(algorithms), winner=algorithms[0], versions=versions,
            place=f"matmul|f32|square|{n / 100:.2f}", machine="intel-xeon-processor-2c-00000000", seed=int(rng.integers(1 << 62)),
            created="2026-11-23T03:00:00.000000Z", backline=backline.__version__,
        )
        for n in range(1000, 2000)
    ]  # fmt: skip
    with backline.num_threads(1):
        plain, task = len(pickle.dumps(BacklineWorker())), len(pickle.dumps(BlockFunction("matmul")))
        exchange = len(pickle.dumps({"rows": (("*", "mkl"),), "small": (), "keep_pools": False}))
        snapshot = len(pickle.dumps(switches.current()))
        switched = len(pickle.dumps(collect()["switches"]))
        full = len(pickle.dumps(BacklineWorker(collect(records))))
    text = statistics.mean(len(record.line()) for record in records)
    print(
        f"\nbytes: a Snapshot {snapshot}, its switches as plain values {switched}, an exchange {exchange}, the plug-in {plain}; "
        f"a tuning record {text:.0f} as text, {(full - plain) / len(records):.0f} as sent (of {len(records)}); "
        f"the function of a task {task}"
    )


if __name__ == "__main__":
    main()
