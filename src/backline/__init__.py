"""Backline: `torch.backends` without PyTorch, for NumPy arrays.

One switchboard over the maths libraries on this machine. Operations have torch's names; `backends` has the switches; `explain`
and `trace` show what runs and why.
"""

from __future__ import annotations

from . import backends, errors, linalg
from .engine.events import trace
from .engine.explain import explain
from .ops.matmul import addmm, baddbmm, bmm, dot, matmul, mm, mv, outer, vdot
from .ops.packed import prepack
from .ops.products import chain_matmul, tensordot
from .ops.solve import cholesky_inverse, cholesky_solve
from .settings import get_num_threads, num_threads, set_num_threads, use

__version__ = "0.1.0"

__all__ = [
    "addmm", "backends", "baddbmm", "bmm", "chain_matmul", "cholesky_inverse", "cholesky_solve", "dot", "errors", "explain",
    "get_num_threads", "linalg", "matmul", "mm", "mv", "num_threads", "outer", "prepack", "set_num_threads", "tensordot",
    "trace", "use", "vdot",
]  # fmt: skip
