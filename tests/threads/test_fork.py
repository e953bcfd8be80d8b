"""Forked children: right results on one thread, and no wait for threads that do not exist there."""

from __future__ import annotations

from pathlib import Path

import pytest

from backline import libraries
from stand_ins import compiled
from support import need, python

HEAD = """
import os, signal, sys, threading, warnings
import numpy as np
import backline
from backline import linalg
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
a, small, long = rng.random((500, 500)), rng.random((8, 8)), rng.random(12000)
def right():
    ok = bool(np.allclose(backline.mm(a, a)[:3], np.einsum("ij,jk->ik", a[:3], a)))
    ok &= bool(np.allclose(backline.mm(small, small), np.einsum("ij,jk->ik", small, small)))
    ok &= bool(np.allclose(backline.dot(long, long), np.sum(long * long)))
    ok &= bool(np.allclose(backline.mv(a, a[0]), np.sum(a * a[0], axis=1)))
    ok &= bool(np.allclose(backline.bmm(np.stack([a, a]), np.stack([a, a]))[0, :3], np.einsum("ij,jk->ik", a[:3], a)))
    return ok
def run_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # a child that hangs dies
        try:
            os._exit(0 if work() else 1)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(2)
    return os.waitpid(pid, 0)[1]
"""


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis"])
def test_a_child_computes_and_does_not_hang(library: str) -> None:
    need(library)
    python(
        HEAD
        + f"""
with backline.use({library!r}, only=True), backline.num_threads(2):
    assert right()
    status = run_child(right)
    assert status == 0, status
    def in_thread():
        found = []
        t = threading.Thread(target=lambda: found.append(right_in_scope()))
        t.start(); t.join()
        return found == [True]
    def right_in_scope():
        with backline.use({library!r}, only=True):
            return right()
    assert run_child(in_thread) == 0
    def again():  # a child of the child
        return right() and run_child(right) == 0
    assert run_child(again) == 0
    assert right(), "the parent after its children"
    assert backline.explain(backline.mm, a, a).chosen.threads == 2
    assert run_child(lambda: backline.explain(backline.mm, a, a).chosen.threads == 1) == 0
    if {library!r} != "blis":
        assert run_child(lambda: np.allclose(linalg.inv(a) @ a, np.eye(500), atol=1e-6)) == 0
"""
    )


def test_a_child_is_told_once_that_it_has_one_thread() -> None:
    need("openblas")
    python(
        HEAD
        + """
backline.mm(a, a)
def told():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        backline.mm(a, a); backline.mv(a, a[0])
    return len([w for w in seen if "forked child" in str(w.message)]) == 1
assert run_child(told) == 0
"""
    )


def test_a_child_of_a_busy_parent() -> None:
    """Other threads of the parent are inside libraries, and hold locks, while it forks."""
    need("openblas")
    python(
        HEAD
        + """
stop = threading.Event()
# Modules that a call imports must be there by now: CPython's import locks do not survive a fork in the middle of an import.
begun = threading.Barrier(4)
def busy(k):
    with backline.num_threads(1 + k % 2):
        backline.mm(a, a)
        begun.wait()
        while not stop.is_set():
            backline.mm(a, a)
threads = [threading.Thread(target=busy, args=(k,)) for k in range(3)]
for t in threads: t.start()
begun.wait()
assert right()
try:
    statuses = [run_child(right) for _ in range(10)]
finally:
    stop.set()
for t in threads: t.join()
assert statuses == [0] * 10, statuses
""",
        timeout=120,
    )


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis"])
def test_a_pool_of_forked_processes(library: str) -> None:
    need(library)
    python(
        f"""
import multiprocessing, warnings
import numpy as np
import backline
warnings.simplefilter("ignore")
def work(seed):
    a = np.random.default_rng(seed).random((300, 300))
    with backline.use({library!r}, only=True):
        return bool(np.allclose(backline.mm(a, a)[:2], np.einsum("ij,jk->ik", a[:2], a)))
if __name__ == "__main__":
    with backline.num_threads(2):
        assert work(0)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            assert pool.map_async(work, range(9)).get(timeout=50) == [True] * 9
"""
    )


SLOW_TO_END = """
#include <pthread.h>
#include <unistd.h>
/* As libraries that keep memory for each thread: when a thread ends they free it, under a lock. */
static pthread_key_t key;
static volatile int locked;
static void freed(void *unused) { (void)unused; locked = 1; usleep(300000); locked = 0; }
int keep(void) { return pthread_key_create(&key, freed) || pthread_setspecific(key, &key); }
int is_locked(void) { return locked; }
"""


def test_a_fork_waits_for_threads_that_are_ending(tmp_path: Path) -> None:
    """`join` returns before the system's thread has ended; what libraries do then may be under a lock, which the child would keep."""
    library = compiled(tmp_path, "slow_to_end.so", SLOW_TO_END)
    python(
        HEAD
        + f"""
import ctypes
slow = ctypes.CDLL({str(library)!r})
def work():
    backline.mm(small, small)
    assert slow.keep() == 0
assert right()  # a library has run: forks are watched from here on
for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    status = run_child(lambda: slow.is_locked() == 0 and right())
    assert status == 0, status
"""
    )


CALLS_PYTHON = """
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
/* A program of its own: a thread that calls Python once, works on without it, and ends when it is told to, slowly. */
static pthread_key_t key;
static void (*call)(void);
static atomic_int called, ends, computes, locked;
static pthread_t thread;
static void freed(void *unused) { (void)unused; locked = 1; usleep(300000); locked = 0; }
static void *live(void *unused) {
    (void)unused;
    pthread_setspecific(key, &key);
    call();
    called = 1;
    while (!ends) if (!computes) usleep(1000);
    return 0;
}
int start(void (*function)(void), int busy) {
    call = function, computes = busy;
    return pthread_key_create(&key, freed) || pthread_create(&thread, 0, live, 0);
}
int has_called(void) { return called; }
int is_locked(void) { return locked; }
void end(void) { ends = 1; while (!locked) usleep(100); }
void join(void) { pthread_join(thread, 0); }
"""


@pytest.mark.parametrize("busy", [0, 1])
def test_a_fork_does_not_wait_for_a_thread_of_another_program_that_lives_on(tmp_path: Path, busy: int) -> None:
    """It ran a Plan once and has no state of Python's since; when it ends, a fork waits for it as for any other."""
    library = compiled(tmp_path, "calls_python.so", CALLS_PYTHON)
    python(
        HEAD
        + f"""
import ctypes, time
program = ctypes.CDLL({str(library)!r})
assert right()  # a library has run: forks are watched from here on
@ctypes.CFUNCTYPE(None)
def from_outside():
    backline.mm(small, small)
    threading.current_thread()  # `threading` makes an object for it, which stays
assert program.start(from_outside, {busy}) == 0
while not program.has_called():
    time.sleep(0.001)
def seconds_of_a_fork():
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os._exit(program.is_locked())
    spent = time.perf_counter() - start
    assert os.waitpid(pid, 0)[1] == 0
    return spent
spent = min(seconds_of_a_fork() for _ in range(3))
assert spent < 0.5, spent
program.end()
seconds_of_a_fork()  # the child would see the lock
assert not program.is_locked()
program.join()
"""
    )


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis", "onednn"])
def test_a_library_that_a_child_loads_runs_on_one_thread_there(library: str) -> None:
    """The parent's thread team exists in the child by name only: a library that starts on all cores would wait for it for ever."""
    need(library)
    other = next((name for name in ("openblas", "blis", "mkl") if name != library and libraries.get(name).available()), "")
    if not other:
        pytest.skip("there is no other library that brings a team")
    python(
        HEAD
        + f"""
with backline.use({other!r}), backline.num_threads(2):
    assert right()  # there is a team
def loads():
    assert not backline.libraries.get({library!r}).loaded()
    with backline.use({library!r}):
        return right()
import backline.libraries
assert run_child(loads) == 0
"""
    )
