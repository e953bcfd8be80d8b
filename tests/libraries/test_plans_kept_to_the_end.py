"""Plans that live until the interpreter ends, in a module that is taken down after Backline's, free what they own without a word."""

from __future__ import annotations

import subprocess
import sys

EVERY_LIBRARY = """
import numpy as np
import backline
from backline import libraries
from backline.engine.tuning import sample_operands as sample
from backline.problems.op_registry import operations
from backline.libraries.base import Algorithm
x, a, w = np.ones((1, 2, 8, 8), np.float32), np.ones((8, 8), np.float32), np.ones((4, 2, 3, 3), np.float32)
problems = [
    operations["matmul"].build(a, a), operations["fft.fft"].build(np.ones(64)), operations["fft.rfft"].build(np.ones(64, np.float32)),
    operations["nn.functional.conv2d"].build(x, w), operations["nn.functional.softmax"].build(x, 1), operations["linalg.inv"].build(a),
]
np.kept, ran = [], set()
for problem in problems:
    arrays = sample.arrays_for(problem, 1)
    for name in libraries.names():
        library = libraries.get(name)
        if library.available() and not (library.families and problem.family not in library.families):
            for algorithm in library.algorithms(problem, 1):
                if isinstance(algorithm, Algorithm):
                    plan = library.prepare(problem, algorithm)
                    plan(*arrays)
                    np.kept.append(plan)
                    ran.add(name)
print(*sorted(ran))
"""

# MKL compiles kernels on some processors only, so a stand-in for its functions hands out a handle here.
KERNEL = """
import ctypes
import numpy as np
from backline.problems.op_registry import operations
from backline.libraries.mkl.library import _Kernels

class Native:
    def address(self, name):
        return FREE

    def call(self, address, *arguments, restype=None):
        if len(arguments) > 2:  # a kernel is made; its handle is the first argument
            arguments[0]._obj.value = 7
        return 0 if len(arguments) > 2 else address

a = np.ones((8, 8), np.float32)
"""
KEPT = """
FREE = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
np.kept = _Kernels(Native()).prepare(operations["matmul"].build(a, a))
"""
DROPPED = """
free = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda handle: print("freed", handle) or 0)
FREE = ctypes.cast(free, ctypes.c_void_p).value
_Kernels(Native()).prepare(operations["matmul"].build(a, a))
"""


def run(code: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, done.stderr


def test_plans_of_every_library() -> None:
    ran, complaints = run(EVERY_LIBRARY)
    assert complaints == "" and "numpy" in ran.split()


def test_kernels_that_mkl_compiled() -> None:
    assert run(KERNEL + KEPT) == ("", "")


def test_a_kernel_that_nothing_needs_is_freed() -> None:
    assert run(KERNEL + DROPPED) == ("freed 7\n", "")
