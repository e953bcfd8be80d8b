"""Xeon: the launcher, which starts instances of a program, each on cores and memory of its own.

It works on every processor; the name is the model's. `run_cpu` is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...switches.switch_module import install as _install

if TYPE_CHECKING:
    from . import run_cpu

__all__ = ["run_cpu"]

_install(__name__, "xeon", lazy=("run_cpu",))
