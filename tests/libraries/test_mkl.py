"""Promises of MKL about its bits, and the processes in which they hold."""

from __future__ import annotations

import pytest

from support import need, python

# The same numbers elsewhere in memory: a processor's own kernels begin loops by where an array lies.
MOVED = """
import numpy as np, backline
from backline import linalg
rng = np.random.default_rng(3)
def bits(result):
    return b"".join(np.ascontiguousarray(x).tobytes() for x in result)
different = []
with backline.use("mkl", only=True), backline.num_threads(1), backline.backends.flags(deterministic=True):
    for n in (20, 60, 140):
        a = rng.standard_normal((n, n))
        for function, x in ((linalg.eigh, a + a.T), (linalg.svd, a), (linalg.qr, a), (linalg.eig, a)):
            found, kept = set(), []
            for i in range(24):
                kept.append(np.empty(1 + 211 * i % 997))  # moves workspaces and results
                y = np.empty(n * n + 8)[i % 8 : i % 8 + n * n].reshape(n, n)
                y[...] = x
                found.add(bits(function(y)))
            if len(found) > 1:
                different.append((function.__name__, n, len(found)))
assert not different, different
"""


@pytest.mark.parametrize("before", ["", "import numpy as np, backline; backline.use('mkl', only=True).__enter__(); backline.mm(np.eye(9), np.eye(9))"])
def test_the_same_bits_wherever_arrays_lie(before: str) -> None:
    """Also where determinism is asked for only after MKL has computed."""
    need("mkl")
    python(f"{before}\n{MOVED}")


USED_BEFORE = """
import ctypes
import numpy as np, backline
from backline.errors import NotDeterministic
mkl = ctypes.CDLL(PATH, mode=ctypes.RTLD_GLOBAL)
mkl.MKL_Set_Threading_Layer(3)
a, out = np.ones((3, 3)), np.empty((3, 3))
at = lambda x: ctypes.c_void_p(x.ctypes.data)
mkl.cblas_dgemm(101, 111, 111, 3, 3, 3, ctypes.c_double(1), at(a), 3, at(a), 3, ctypes.c_double(0), at(out), 3)
b = np.ones((70, 70))
with backline.use("mkl", only=True):
    assert (backline.mm(b, b) == 70).all()
    print("level", backline.explain(backline.mm, b, b).chosen.level)
    with backline.backends.flags(deterministic=True):
        try:
            backline.mm(b, b)
        except NotDeterministic as error:
            print(error)
"""


def test_nothing_is_promised_where_another_user_of_mkl_came_first() -> None:
    said = python(USED_BEFORE.replace("PATH", repr(need("mkl").finding.path)), env={"MKL_CBWR": ""}).stdout
    assert said.startswith("level off") and "MKL was used in this process before" in said


def test_what_its_environment_variable_asks_for_is_promised() -> None:
    said = python(USED_BEFORE.replace("PATH", repr(need("mkl").finding.path)), env={"MKL_CBWR": "AUTO"}).stdout
    assert said.startswith(("level run", "level threads")) and "before" not in said


ASKED = """
import numpy as np, backline
a = np.ones((70, 70))
with backline.use("mkl", only=True):
    for level in LEVELS:
        with backline.backends.flags(deterministic=level != "", determinism_level=level or "run"):
            said = str(backline.explain(backline.mm, a, a))
            print(level or "off", "late" if "before determinism_level 'threads' was asked for" in said else "silent")
"""


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        (["", "run", "threads", ""], "off silent, run silent, threads late, off silent"),
        (["threads", "", "threads"], "threads silent, off silent, threads silent"),
    ],
)
def test_it_is_said_where_the_same_bits_for_any_number_of_threads_were_asked_for_late(levels: list[str], said: str) -> None:
    need("mkl")
    told = python(ASKED.replace("LEVELS", repr(levels)), env={"MKL_CBWR": ""}).stdout
    assert ", ".join(told.split("\n")[:-1]) == said
