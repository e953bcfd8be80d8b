"""The process ends while daemon threads are inside calls: with the status it asked for, and without a crash."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support import need

PROGRAM = """
import os, sys, threading
import numpy as np
import backline
from backline import linalg

library, how = sys.argv[1:]
rng = np.random.default_rng(0)
wide, tall = rng.random((900, 900), np.float32), rng.random((64, 96), np.float32)
signals = rng.random((64, 1 << 14)).astype(np.complex64)
inside = threading.Semaphore(0)

def compute(number):
    with backline.num_threads(2), backline.use(library, only=True):
        while True:
            if library == "fftw":
                backline.fft.fft(signals)
            elif number % 2:
                backline.matmul(wide, wide)
            else:
                backline.matmul(tall, wide[:96])  # divided among threads by our own team
            inside.release()

threads = [threading.Thread(target=compute, args=(number,), daemon=True) for number in range(4)]
for thread in threads:
    thread.start()
for _ in range(8):
    inside.acquire()
if how == "exit":
    sys.exit(3)
elif how == "raise":
    raise ValueError("the end")
elif how == "_exit":
    os._exit(4)
elif how == "thread":
    other = threading.Thread(target=sys.exit, args=(5,))
    other.start(); other.join()
elif how == "fork":
    child = os.fork()
    if child == 0:
        backline.matmul(tall, wide[:96])
        sys.exit(6)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
"""
STATUS = {"return": 0, "exit": 3, "raise": 1, "_exit": 4, "thread": 0, "fork": 0}
TIMES = 2
# One library will do for the ways that do not depend on it.
CASES = [*(("openblas", how) for how in STATUS), *((library, "return") for library in ("mkl", "onednn", "fftw", "numpy"))]


@pytest.mark.parametrize(("library", "how"), CASES)
def test_the_status_is_that_of_the_program(library: str, how: str) -> None:
    need(library)
    for _ in range(TIMES):
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, library, how], capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == STATUS[how], ended.stderr


def test_a_call_that_takes_long_does_not_keep_the_process() -> None:
    """A call that cannot be waited for is left: the process ends with its own status, and what was printed is seen."""
    program = """
import ctypes, sys, threading
import numpy as np
from backline import _core

sleep = ctypes.cast(ctypes.CDLL(None).sleep, ctypes.c_void_p).value
entered = threading.Event()
plan = _core.PreparedCall(0, [], [(1, 1, [("call", sleep, [1000], 0, None)])], [], [], release_gil=True)

def call():
    entered.set()
    plan()

threading.Thread(target=call, daemon=True).start()
entered.wait()
while True:  # a plan that runs has been counted
    if plan.runs:
        break
libc = ctypes.CDLL(None)
locked = threading.Event()

def read():
    libc.flockfile(ctypes.c_void_p.in_dll(libc, "stdin"))  # as a thread does that waits for input
    locked.set()
    libc.pause()

threading.Thread(target=read, daemon=True).start()
locked.wait()
print("printed", end="")
libc.printf(b" by C")
sys.exit(7)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (7, "printed by C"), ended.stderr


def test_a_plan_written_in_python_that_was_stopped_inside_is_over() -> None:
    """The interpreter stops the thread in the call inside the plan; the exit handlers of the libraries still run."""
    program = """
import ctypes, sys, threading
from backline import _core

libc = ctypes.CDLL(None)
libc.strdup.restype = ctypes.c_void_p
text = ctypes.c_void_p(libc.strdup(b"handlers ran"))  # outlives the interpreter
libc.__cxa_atexit(ctypes.cast(libc.puts, ctypes.c_void_p), text, None)

sleep = ctypes.cast(libc.sleep, ctypes.c_void_p).value
inner = _core.PreparedCall(0, [], [(1, 1, [("call", sleep, [1], 0, None)])], [], [], release_gil=True)
outer = _core.Operation("outer", (), lambda args, kwargs: lambda: inner(), None)

threading.Thread(target=outer, daemon=True).start()
while not inner.runs:
    pass
sys.exit(7)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (7, "handlers ran\n"), ended.stderr
