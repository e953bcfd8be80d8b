"""Calls that find no memory: an error that says so, whichever library runs, and the process goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backline import libraries

PROGRAM = """
import resource, sys
import numpy as np, backline

dtype = np.float64 if sys.argv[1] == "blis" else np.float32  # BLIS before 1.1 is refused for float32
x, w = np.ones((512, 1024), dtype), np.ones((1024, 1024), dtype)
with backline.use(sys.argv[1], only=True):
    backline.matmul(x, w)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[2]) << 20), before[1]))
    kept, said = [], ""
    for n in range(1, 60):
        try:
            kept.append(backline.matmul(x[:, n:], w[n:]))
        except Exception as error:
            said = " ".join(c.__name__ for c in type(error).__mro__)
            break
    resource.setrlimit(resource.RLIMIT_AS, before)
    kept.clear()
    assert (backline.matmul(x, w) == 1024).all()
print(said)
"""


@pytest.mark.other_os
@pytest.mark.skipif(sys.platform != "linux", reason="what is used is read from /proc")
@pytest.mark.parametrize("room", [1, 8])
def test_a_product_without_memory(room: int) -> None:
    for library in ("onednn", "xnnpack", "openblas", "mkl", "blis"):
        if not libraries.get(library).available():
            continue
        command = [sys.executable, "-c", PROGRAM, library, str(room)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"{library}: {done.stderr}"
        assert {"MemoryError", "NoKernel"} & set(done.stdout.split()), f"{library}: {done.stdout}"
