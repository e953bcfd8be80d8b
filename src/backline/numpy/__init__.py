"""NumPy, with products, contractions, linear algebra and Fourier transforms run by Backline.

``import backline.numpy as np`` is the whole port of a program: every name of numpy is here. Those in `ROUTED` call Backline's
operations, under its switches, where their operands are ordinary arrays of floats; NumPy's own function gets integers, subclasses
and rarer parameters. `axis` and `keepdims` may be called `dim` and `keepdim` there. The operator ``@`` stays NumPy's own.
"""

from __future__ import annotations

from typing import Any

import numpy

from . import fft as fft
from . import linalg as linalg
from .products import dot as dot
from .products import einsum as einsum
from .products import inner as inner
from .products import matmul as matmul
from .products import matvec as matvec
from .products import tensordot as tensordot
from .products import vdot as vdot
from .products import vecmat as vecmat

ROUTED = ("dot", "einsum", "fft", "inner", "linalg", "matmul", "matvec", "tensordot", "vdot", "vecmat")
__all__ = sorted({*numpy.__all__, *ROUTED})


def __getattr__(name: str) -> Any:
    try:
        return getattr(numpy, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and numpy has none") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(numpy)})
