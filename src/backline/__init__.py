"""Backline: `torch.backends` without PyTorch, for NumPy arrays.

One switchboard over the maths libraries on this machine. Operations have torch's names; `backends` has the switches; `explain`
and `trace` show what runs and why.
"""

from __future__ import annotations

from . import backends
from .engine.choose import choose as _choose
from .engine.events import trace
from .engine.explain import explain
from .ops.matmul import addmm, baddbmm, bmm, chain_matmul, dot, matmul, mm, mv, outer, tensordot, vdot
