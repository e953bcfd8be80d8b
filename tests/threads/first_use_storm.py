"""Fresh processes in which many threads make the first call of everything at once: none may hang, fail, or give a wrong result.

    python tests/threads/first_use_storm.py --processes 300 --jobs 2

Each process has a seed, which decides what its threads do and in which order; `--first` repeats one. Every third process also
turns libraries off and on meanwhile, and every fourth forks at the end. A summary is printed, and the exit status is 1 if anything
was wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

Case = tuple[str, tuple[str, ...], Callable[[], Any], Callable[[], Any], float]
THREADS = 8


def _windows(x: Any, rows: int, columns: int) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, (rows, columns), (2, 3))


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cases() -> list[Case]:
    """Name, libraries that have it, the call, what NumPy makes of it, and how far apart they may be."""
    import backline as bl
    from backline import fft, linalg, quantized
    from backline.nn import functional as F

    rng = np.random.default_rng(7)
    f32, blas = np.float32, ("mkl", "openblas", "blis")
    lapack, every = ("mkl", "openblas"), ("mkl", "openblas", "blis", "onednn", "xnnpack")
    transforms = ("mkl", "fftw", "scipy")
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 260))
    z = rng.standard_normal((130, 130)) + 1j * rng.standard_normal((130, 130))
    y = rng.standard_normal((130, 3)) + 0j
    square = rng.standard_normal((150, 150)) + 20 * np.eye(150)
    positive = square @ square.T / 150
    stack = rng.standard_normal((12, 40, 30))
    signal = rng.standard_normal((16, 1000))
    image, kernel = rng.standard_normal((2, 8, 20, 20)).astype(f32), rng.standard_normal((12, 8, 3, 3)).astype(f32)
    rows, weight = rng.standard_normal((64, 96)).astype(f32), rng.standard_normal((80, 96)).astype(f32)
    q, k, v = (rng.standard_normal((2, 4, 60, 32)).astype(f32) for _ in range(3))
    heads, ends = rng.standard_normal((64, 4, 32)).astype(f32), [0, 20, 20, 40, 64]
    parts = [heads[start:stop] for start, stop in pairwise(ends) if stop > start]
    eight, one = rng.standard_normal((96, 96)).astype(ml_dtypes.float8_e4m3fn), np.ones(1, f32)
    whole, experts = rng.integers(-128, 128, (96, 96)).astype(np.int8), rng.standard_normal((3, 200, 60))
    steps, first = rng.standard_normal((5, 4, 16)).astype(f32), np.zeros((1, 4, 24), f32)
    params = tuple(0.2 * rng.standard_normal(shape).astype(f32) for shape in ((24, 16), (24, 24), (24,), (24,)))

    def recurrent() -> Any:
        h, out = first[0], []
        for x in steps:
            h = np.tanh(x @ params[0].T + params[2] + h @ params[1].T + params[3])
            out.append(h)
        return np.stack(out)

    return [
        ("mm float64", blas, lambda: bl.mm(a, b), lambda: a @ b, 1e-11),
        ("mm float32", every, lambda: bl.mm(a.astype(f32), b.astype(f32)), lambda: a @ b, 1e-3),
        ("mm complex128", blas, lambda: bl.mm(z, z), lambda: z @ z, 1e-10),
        ("bmm", blas, lambda: bl.bmm(stack, stack.swapaxes(1, 2)), lambda: stack @ stack.swapaxes(1, 2), 1e-11),
        ("mv", blas, lambda: bl.mv(a, b[:, 0]), lambda: a @ b[:, 0], 1e-11),
        ("einsum", blas, lambda: bl.einsum("bik,bjk->ij", stack, stack), lambda: np.einsum("bik,bjk->ij", stack, stack), 1e-10),
        ("solve", lapack, lambda: linalg.solve(z, y), lambda: np.linalg.solve(z, y), 1e-9),
        ("inv", lapack, lambda: linalg.inv(square), lambda: np.linalg.inv(square), 1e-10),
        ("cholesky", lapack, lambda: linalg.cholesky(positive), lambda: np.linalg.cholesky(positive), 1e-10),
        ("eigvalsh", lapack, lambda: linalg.eigvalsh(positive), lambda: np.linalg.eigvalsh(positive), 1e-10),
        ("svdvals", lapack, lambda: linalg.svdvals(square), lambda: np.linalg.svd(square, compute_uv=False), 1e-10),
        ("fft", transforms, lambda: fft.fft(signal), lambda: np.fft.fft(signal), 1e-10),
        ("rfft", transforms, lambda: fft.rfft(signal.astype(f32)), lambda: np.fft.rfft(signal), 1e-2),
        ("fft2", transforms, lambda: fft.fft2(stack), lambda: np.fft.fft2(stack), 1e-10),
        ("linear", every, lambda: F.linear(rows, weight), lambda: rows @ weight.T, 1e-3),
        ("conv2d", ("onednn", "xnnpack", *lapack), lambda: F.conv2d(image, kernel),
         lambda: np.einsum("nchwij,ocij->nohw", _windows(image, 3, 3), kernel, optimize=True), 1e-3),
        ("max_pool2d", ("onednn",), lambda: F.max_pool2d(image, 2), lambda: _windows(image, 2, 2)[:, :, ::2, ::2].max((4, 5)), 0),
        ("softmax", ("onednn",), lambda: F.softmax(rows, -1), lambda: _softmax(rows), 1e-5),
        ("layer_norm", ("onednn",), lambda: F.layer_norm(rows, (96,)),
         lambda: (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-5), 1e-4),
        ("rms_norm", ("numpy",), lambda: F.rms_norm(rows, (96,), eps=1e-5),
         lambda: rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5), 1e-4),
        ("attention", lapack, lambda: F.scaled_dot_product_attention(q, k, v),
         lambda: _softmax(q @ k.swapaxes(2, 3) / np.sqrt(f32(32))) @ v, 1e-4),
        ("varlen_attn", lapack, lambda: F.varlen_attn(heads, heads, heads, ends),
         lambda: np.concatenate([_softmax(np.einsum("qhe,khe->hqk", x, x) / np.sqrt(f32(32))) @ x.swapaxes(0, 1) for x in parts], 1).swapaxes(0, 1),
         1e-4),
        ("rnn", ("onednn", *lapack), lambda: bl.nn.rnn_tanh(steps, first, params, True, 1, 0.0, False, False, False)[0],
         recurrent, 1e-4),
        ("quantized", ("onednn",), lambda: quantized.linear_dynamic(rows, quantized.linear_prepack(quantized.quantize_weights(weight))),
         lambda: rows @ weight.T, 1.5),
        ("scaled_mm", every, lambda: F.scaled_mm(eight, eight, one, "TensorWise", one, "TensorWise", output_dtype=f32),
         lambda: eight.astype(f32) @ eight.astype(f32), 1e-3),
        ("int_mm", every, lambda: quantized.int_mm(whole, whole), lambda: whole.astype(int) @ whole.astype(int), 0),
        ("grouped_mm", blas, lambda: F.grouped_mm(a, experts, offs=np.array([90, 90, 300])),
         lambda: np.concatenate([a[:90] @ experts[0], a[90:] @ experts[2]]), 1e-11),
    ]  # fmt: skip


def storm(seed: int, limit: float) -> list[str]:
    """One process: what went wrong in it."""
    work = cases()
    results: list[tuple[str, Case, Any]] = []
    wrong: list[str] = []
    barrier = threading.Barrier(THREADS + 1)
    stop = threading.Event()

    def calls(number: int, mine: random.Random) -> None:
        import backline as bl

        order = [(case, library) for case in work for library in ("", mine.choice(case[1]))]
        mine.shuffle(order)
        if seed % 2:  # some hammer on one case first
            order.insert(0, (work[seed % len(work)], work[seed % len(work)][1][0]))
        barrier.wait()
        for case, library in order[:16]:
            threads = mine.randint(1, 2)
            try:
                with ExitStack() as scopes:
                    scopes.enter_context(bl.num_threads(threads))
                    if library:
                        scopes.enter_context(bl.use(library))
                    results.append((f"{case[0]} {library} {threads}", case, case[2]()))
            except Exception:
                wrong.append(f"{case[0]} {library} on {threads}: {traceback.format_exc()[-1500:]}")

    def toggles() -> None:
        from backline.switches.store import assign

        barrier.wait()
        while not stop.is_set():
            for name in ("mkl.enabled", "blis.enabled", "fftw.enabled"):
                assign(name, False)
                time.sleep(0.001)
                assign(name, True)

    threads = [threading.Thread(target=calls, args=(n, random.Random(f"{seed} {n}"))) for n in range(THREADS)]
    other = toggles if seed % 3 == 2 else barrier.wait
    threads.append(threading.Thread(target=other))
    for thread in threads:
        thread.start()
    for thread in threads[:-1]:
        thread.join()
    stop.set()
    threads[-1].join()
    if seed % 4 == 3 and (status := _forked_child(limit)):
        wrong.append(f"a child that was forked afterwards ended with {status}")
    for what, case, result in results:
        wanted = case[3]()
        if not np.allclose(result, wanted, rtol=case[4], atol=case[4]):
            wrong.append(f"{what}: off by {np.abs(np.asarray(result) - wanted).max():.3g}")
    return wrong


def _forked_child(limit: float) -> int:
    """Returns how a fork ends that computes; not tried while threads import, which Python itself does not survive."""
    import backline as bl

    child = os.fork()
    if child == 0:
        faulthandler.enable()  # a crash tells where
        faulthandler.register(signal.SIGALRM, chain=True)  # and so does a hang, which this then ends
        signal.alarm(int(limit))
        ones = np.ones((200, 200))
        product, inverse = bl.mm(ones, ones), bl.linalg.inv(2 * np.eye(70))
        os._exit(0 if (product == 200).all() and np.allclose(inverse, np.eye(70) / 2) else 3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(seed: int, seconds: float) -> str:
    """A process of its own with that seed; what went wrong, or an empty string."""
    command = [sys.executable, os.path.abspath(__file__), "--seed", str(seed), "--timeout", str(seconds)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        said = child.communicate(timeout=seconds + 30)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        said = child.communicate()[0].decode(errors="replace")
        return f"seed {seed} hangs\n{said[-4000:]}"
    return "" if child.returncode == 0 else f"seed {seed} ended with {child.returncode}\n{said[-4000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=20, help="how many")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process; longer is a hang")
    parser.add_argument("--seed", type=int, help="be the process with this seed")
    given = parser.parse_args()
    if given.seed is not None:
        faulthandler.dump_traceback_later(given.timeout, exit=True)
        wrong = storm(given.seed, given.timeout / 2)
        print("\n".join(wrong))
        return 1 if wrong else 0
    begin = time.monotonic()
    faults = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for done, fault in enumerate(pool.map(lambda n: run(given.first + n, given.timeout), range(given.processes)), 1):
            if fault:
                faults.append(fault)
                print(fault, flush=True)
            elif done % 25 == 0:
                print(f"{done} processes: {len(faults)} faults", flush=True)
    took = time.monotonic() - begin
    print(f"{given.processes} processes of {THREADS} threads in {took:.0f} s: {len(faults)} hung, failed or were wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
