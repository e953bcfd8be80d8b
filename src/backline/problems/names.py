"""Short names of dtypes, and the gates of recurrent cells: what keys and texts of Problems have in common."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["GATES", "SHORT", "name_of", "short"]

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Rows of weights for each hidden element: LSTM's input, forget, cell and output gate; GRU's reset, update and new one."""
SHORT = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128",
    "bool": "b1", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "longdouble": "f80", "clongdouble": "c160",
}  # fmt: skip


def short(dtype: np.dtype[Any]) -> str:
    """Short name of a dtype, as problems, tuning records and tables write it.

    Examples
    --------
    >>> import numpy as np
    >>> short(np.dtype("float32"))
    'f32'
    """
    name = name_of(dtype)
    return SHORT.get(name, name)


@lru_cache(maxsize=256)
def name_of(dtype: np.dtype[Any]) -> str:
    """The name of a dtype, which NumPy puts together anew for every reader.

    Examples
    --------
    >>> name_of(np.dtype("f4"))
    'float32'
    """
    return dtype.name
