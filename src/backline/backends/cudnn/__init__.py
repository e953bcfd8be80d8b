"""cuDNN: convolution, recurrent networks and attention on NVIDIA GPUs."""

from __future__ import annotations

from typing import Final, Literal

import ml_dtypes as _ml_dtypes
import numpy as _numpy

from ... import switches as _switches
from ...errors import BadType as _BadType
from ...switches.switch import show as _show
from .. import _module_factory

__all__ = [
    "CUDNN_TENSOR_DTYPES", "allow_tf32", "benchmark", "benchmark_limit", "conv", "depthwise_kernel", "deterministic", "enabled",
    "flags", "fp32_precision", "is_acceptable", "is_available", "is_enabled", "rnn", "set_flags", "version",
]  # fmt: skip

CUDNN_TENSOR_DTYPES: Final = frozenset(map(_numpy.dtype, ("float16", "float32", "float64", _ml_dtypes.bfloat16)))
"""The dtypes that cuDNN takes."""

enabled: bool
benchmark: bool
benchmark_limit: int
deterministic: bool
allow_tf32: bool
fp32_precision: Literal["none", "ieee", "tf32"]
depthwise_kernel: Literal["auto", "cudnn", "native"]
is_available: _module_factory.IsTrue
is_enabled: _module_factory.IsTrue
version: _module_factory.Version
flags: _module_factory.Flags
set_flags: _module_factory.SetFlags


def is_acceptable(tensor: object) -> bool:
    """Tells whether cuDNN would take an array: it is enabled and there, and the array is on a GPU and of a dtype it takes.

    Parameters
    ----------
    tensor
        An array of NumPy, CuPy or MLX.

    Raises
    ------
    BadType
        Not an array.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.backends import cudnn
    >>> cudnn.is_acceptable(np.zeros(3, np.float32))
    False
    """
    dtype = getattr(tensor, "dtype", None)
    if dtype is None or not hasattr(tensor, "shape"):
        raise _BadType(
            f"cudnn.is_acceptable takes an array, not {type(tensor).__name__}: {_show(tensor)}",
            remedy="an array of NumPy or CuPy",
        )
    on_cuda = hasattr(tensor, "__cuda_array_interface__")
    accepted = on_cuda and dtype in CUDNN_TENSOR_DTYPES
    return accepted and bool(_switches.get("cudnn.enabled")) and _module_factory.available("cudnn")


conv = _module_factory.precision(__name__, "cuda", "conv")


def _older_order(values: dict[str, object]) -> dict[str, object]:
    """Leaves a bool out that is given for ``benchmark_limit``, as torch does without cuDNN; with cuDNN it is refused.

    Calls of ``flags`` and ``set_flags`` that are older than this argument give the next one in its place.
    """
    limit = values.get("cudnn.benchmark_limit")
    if isinstance(limit, (bool, _numpy.bool_)) and not _module_factory.available("cudnn"):
        return {name: value for name, value in values.items() if name != "cudnn.benchmark_limit"}
    return values


_module_factory.install(__name__, lazy=("rnn",), lenient=_older_order)
