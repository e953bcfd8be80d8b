"""Many Python threads, scopes and libraries at once: results stay right and each call keeps its own settings."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg
from support import LIBRARIES, clean, need, new_seed, numpy_on_one_thread, python

pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread


def available() -> list[str]:
    return [name for name in LIBRARIES if backline.libraries.get(name).available()]


def test_threads_with_mixed_libraries_operations_and_scopes() -> None:
    seed = new_seed()
    source = np.random.default_rng(seed)
    matrices = [source.standard_normal((n, n)) + n * np.eye(n) for n in (3, 30, 90, 150)]
    products = [x @ x for x in matrices]
    inverses = [np.linalg.inv(x) for x in matrices]
    stack = source.standard_normal((20, 16, 16))
    names = available()
    failures: list[str] = []
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        barrier.wait()
        for step in range(60):
            name = names[int(rng.integers(len(names)))]
            threads = int(rng.integers(1, 3))
            i = int(rng.integers(len(matrices)))
            try:
                with backline.use(name), backline.num_threads(threads):
                    ok = np.allclose(backline.mm(matrices[i], matrices[i]), products[i])
                    ok &= np.allclose(linalg.inv(matrices[i]), inverses[i])
                    out = np.empty_like(stack)
                    ok &= np.allclose(backline.bmm(stack, stack, out=out), stack @ stack) and out is not stack
                    ok &= np.allclose(backline.mv(matrices[i], matrices[i][0]), matrices[i] @ matrices[i][0])
                    ok &= backline.get_num_threads() == threads
                    try:
                        linalg.cholesky(-np.eye(3))
                        ok = False
                    except linalg.LinAlgError:
                        pass
                    with backline.trace() as events:
                        backline.dot(matrices[i][0], matrices[i][0])
                    ok &= len(events) == 1
                if not ok:
                    failures.append(f"thread {number} step {step} {name} {threads} {i}")
            except Exception as error:
                failures.append(f"thread {number} step {step} {name}: {error!r}")
                return

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads), "threads wait for each other"
    assert not failures, failures[:5]


def test_the_caches_shrink_while_calls_run() -> None:
    """Plans are evicted under running calls: a plan must outlive what runs it."""
    from backline import _core
    from backline.engine import plan_caches

    need("openblas")
    a = np.random.default_rng(0).standard_normal((120, 120))
    expected = a @ a
    stop = threading.Event()
    wrong: list[Any] = []

    def work(width: int) -> None:
        while not stop.is_set():
            if not np.allclose(backline.mm(a, a[:, :width]), expected[:, :width]):
                wrong.append(width)

    threads = [threading.Thread(target=work, args=(20 * k + 20,)) for k in range(4)]
    for t in threads:
        t.start()
    for _ in range(200):
        plan_caches.clear()
        _core.memo_clear()
    stop.set()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("library", ["openblas", "mkl", "blis"])
def test_an_interrupt_leaves_the_library_usable(library: str) -> None:
    """KeyboardInterrupt between and during calls: the next call neither waits for ever nor runs with another's threads."""
    need(library)
    python(
        f"""
import signal, time
import numpy as np, backline
a = np.random.default_rng(0).random((400, 400))
expected = np.einsum("ij,jk->ik", a[:2], a)
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
hits = 0
for k in range(25):
    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0007 * k)
    try:
        while True:
            with backline.use({library!r}, only=True), backline.num_threads(1 + k % 2):
                backline.mm(a, a)
    except KeyboardInterrupt:
        hits += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    with backline.use({library!r}, only=True), backline.num_threads(2):
        assert np.allclose(backline.mm(a, a)[:2], expected)
assert hits == 25
thread_guard = backline.libraries.get({library!r}).traits.thread_guard
assert thread_guard.active == 0, thread_guard.active
"""
    )


def test_pools_of_python_threads_and_of_libraries_together() -> None:
    """ThreadPoolExecutor workers that each ask for two threads: counts of the process-wide libraries are not mixed up."""
    need("openblas")
    from concurrent.futures import ThreadPoolExecutor

    a = np.random.default_rng(0).standard_normal((200, 200))
    expected = a @ a

    def work(k: int) -> bool:
        with backline.use("openblas"), backline.num_threads(1 + k % 2):
            return bool(np.allclose(backline.mm(a, a), expected))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(60)))
