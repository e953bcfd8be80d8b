"""Backline: `torch.backends` without PyTorch, for NumPy arrays.

One switchboard over the maths libraries on this machine. Operations have torch's names; `backends` has the switches; `explain`
and `trace` show what runs and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import backends, errors, interop
from ._version import __version__ as __version__
from .determinism import (
    are_deterministic_algorithms_enabled,
    empty,
    get_deterministic_debug_mode,
    get_float32_matmul_precision,
    is_deterministic_algorithms_warn_only_enabled,
    set_deterministic_debug_mode,
    set_float32_matmul_precision,
    use_deterministic_algorithms,
)
from .settings import (
    get_num_interop_threads,
    get_num_threads,
    num_threads,
    set_flush_denormal,
    set_num_interop_threads,
    set_num_threads,
    use,
)

if TYPE_CHECKING:
    from . import cuda, fft, linalg, nn, quantized, sparse, utils
    from . import numpy as numpy
    from .diagnosis.table import doctor
    from .engine.check_precision import check_precision
    from .engine.explanation import explain
    from .engine.shadow import shadow
    from .engine.verify_determinism import verify_determinism
    from .interop.frameworks import apply_to, read_from
    from .interop.workers import carry, worker_initializer
    from .ops.distances import cdist
    from .ops.einsum.einsum_operation import einsum
    from .ops.elementary import cos, exp, expm1, log, log1p, sin
    from .ops.exponential import matrix_exp
    from .ops.factorizations import cholesky_inverse, cholesky_solve
    from .ops.matrix_chains import chain_matmul, tensordot
    from .ops.matrix_products import addmm, baddbmm, bmm, dot, matmul, mm, mv, outer, vdot
    from .ops.packed_matrix import prepack
    from .ops.seeds import manual_seed
    from .ops.short_time import stft
    from .ops.small_products import addbmm, cross, diagonal, inner, kron, trace, vander
    from .ops.symmetric_indefinite import orgqr

__all__ = [
    "addbmm", "addmm", "apply_to", "are_deterministic_algorithms_enabled", "backends", "baddbmm", "bmm", "carry", "cdist",
    "chain_matmul", "check_precision", "cholesky_inverse", "cholesky_solve", "cos", "cross", "cuda", "diagonal", "doctor",
    "dot", "einsum", "empty", "errors", "exp", "explain", "expm1", "fft", "get_deterministic_debug_mode",
    "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads", "inner", "interop",
    "is_deterministic_algorithms_warn_only_enabled", "kron", "linalg", "log", "log1p", "manual_seed", "matmul", "matrix_exp",
    "mm", "mv", "nn", "num_threads", "orgqr", "outer", "prepack", "quantized", "read_from", "set_deterministic_debug_mode",
    "set_float32_matmul_precision", "set_flush_denormal", "set_num_interop_threads", "set_num_threads", "shadow", "sin",
    "sparse", "stft", "tensordot", "trace", "use", "use_deterministic_algorithms", "utils", "vander", "vdot",
    "verify_determinism", "worker_initializer",
]  # fmt: skip

# `numpy` is no part of that: a star import must not replace NumPy.

# The switchboard is imported with the package; operations when one of their names is first asked for.
_LATER = dict.fromkeys(("__config__", "cuda", "fft", "linalg", "nn", "numpy", "quantized", "sparse", "utils"), "")
for _module, _names in {
    "diagnosis.table": "doctor",
    "engine.check_precision": "check_precision",
    "engine.explanation": "explain",
    "engine.shadow": "shadow",
    "engine.verify_determinism": "verify_determinism",
    "interop.frameworks": "apply_to read_from",
    "interop.workers": "carry worker_initializer",
    "ops.distances": "cdist",
    "ops.einsum.einsum_operation": "einsum",
    "ops.elementary": "cos exp expm1 log log1p sin",
    "ops.exponential": "matrix_exp",
    "ops.factorizations": "cholesky_inverse cholesky_solve",
    "ops.matrix_chains": "chain_matmul tensordot",
    "ops.matrix_products": "addmm baddbmm bmm dot matmul mm mv outer vdot",
    "ops.packed_matrix": "prepack",
    "ops.seeds": "manual_seed",
    "ops.short_time": "stft",
    "ops.small_products": "addbmm cross diagonal inner kron trace vander",
    "ops.symmetric_indefinite": "orgqr",
}.items():
    _LATER |= dict.fromkeys(_names.split(), _module)


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        where = _LATER[name]
        found = getattr(import_module(f"{__name__}.{where}"), name) if where else import_module(f"{__name__}.{name}")
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({"__config__", "__version__", "numpy", *__all__})
