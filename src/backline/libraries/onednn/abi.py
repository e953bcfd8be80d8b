"""Numbers and structures of oneDNN's C interface, releases 3.2 and later.

Later releases add values and leave these as they are.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

import numpy as np

__all__ = [
    "ALLOCATED_BY_NOBODY", "CPU", "DATA_TYPES", "FPMATH_STRICT", "IN_ORDER", "MAX_NDIMS", "NO_FURTHER", "STATUS", "TAG_ANY",
    "UNIMPLEMENTED", "USER_SCRATCHPAD", "Alg", "Arg", "Direction", "ExecArg", "Isa", "LayoutQuery", "Norm", "Prop", "Query",
    "Runtime", "Version", "data_type", "dims", "exec_args", "post_op_arg", "status_text", "zero_points",
]  # fmt: skip

CPU = 1
IN_ORDER = 1
USER_SCRATCHPAD = 1
FPMATH_STRICT = 0
TAG_ANY = 1
MAX_NDIMS = 12
ALLOCATED_BY_NOBODY = 0  # the handle of a memory object whose data is somewhere else each time

OUT_OF_MEMORY = 1
STATUS = {
    0: "success", 1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 4: "no further implementation",
    5: "runtime error", 6: "not required", 7: "invalid graph", 8: "invalid operation of a graph", 9: "invalid shape",
    10: "invalid data type",
}  # fmt: skip
UNIMPLEMENTED, NO_FURTHER = 3, 4

DATA_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6, "float64": 7}


class Prop(IntEnum):
    """Propagation kinds of primitives."""

    FORWARD_TRAINING = 64
    FORWARD_INFERENCE = 96
    BACKWARD = 128


class Alg(IntEnum):
    """Algorithms of primitives and of post-operations."""

    CONVOLUTION_DIRECT = 1
    CONVOLUTION_AUTO = 3
    DECONVOLUTION_DIRECT = 10
    RELU = 32
    TANH = 33
    LINEAR = 38
    LOGISTIC = 41
    GELU_TANH = 43
    SWISH = 44
    GELU_ERF = 49
    BINARY_ADD = 131056
    POOLING_MAX = 511
    POOLING_AVG_INCLUDE_PADDING = 767
    POOLING_AVG_EXCLUDE_PADDING = 1023
    SOFTMAX = 196608
    LOG_SOFTMAX = 196609


class Direction(IntEnum):
    """In which order a recurrent network takes the steps."""

    FORWARD = 1
    REVERSE = 2


class Norm(IntEnum):
    """Flags of normalisations."""

    GLOBAL_STATS = 1
    SCALE = 2
    SHIFT = 4


class Query(IntEnum):
    """Queries of a primitive descriptor."""

    INPUTS = 3
    IMPLEMENTATION = 8
    SRC = 129
    DIFF_SRC = 130
    WEIGHTS = 131
    DIFF_WEIGHTS = 132
    DST = 133
    DIFF_DST = 134
    WORKSPACE = 135
    SCRATCHPAD = 136


class LayoutQuery(IntEnum):
    """Queries of a memory descriptor."""

    STRIDES = 14
    NDIM = 256
    DATA_TYPE = 258
    PADDED_SIZES = 260
    FORMAT_KIND = 262
    INNER_COUNT = 263
    INNER_SIZES = 264
    INNER_AXES = 265


BLOCKED = 2  # kind of a format: elements lie in blocks, by strides


class Arg(IntEnum):
    """Indices of the memory arguments of an execution."""

    SRC = 1
    SRC_1 = 2
    SRC_ITER = 2  # of recurrent networks: the state before the first step, and LSTM's memory
    SRC_ITER_C = 3
    DST = 17
    DST_ITER = 18
    DST_ITER_C = 19
    WEIGHTS = 33
    WEIGHTS_ITER = 34
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    WORKSPACE = 64
    SCRATCHPAD = 80
    DIFF_SRC = 129
    DIFF_DST = 145
    DIFF_WEIGHTS = 161
    DIFF_SCALE = 255
    DIFF_SHIFT = 256


def post_op_arg(position: int, arg: Arg) -> int:
    """The argument of a post-operation, by its position among them.

    >>> post_op_arg(0, Arg.WEIGHTS)
    32801
    """
    return 32768 * (position + 1) | arg


def zero_points(arg: Arg) -> int:
    """The argument that the zero points of another one are.

    >>> zero_points(Arg.SRC)
    8193
    """
    return 8192 | arg


class Runtime(IntEnum):
    """Runtimes that oneDNN can be built with."""

    NONE = 0
    SEQUENTIAL = 1
    OPENMP = 2
    TBB = 4
    THREADPOOL = 8
    OPENCL = 256
    SYCL = 512


class Isa(IntEnum):
    """Bits of the instruction sets in use: those that matter here. Each contains those below it, but for AVX2_VNNI."""

    AVX2 = 0x04
    AVX2_VNNI = 0x08
    AVX512 = 0x20
    AVX512_VNNI = 0x40
    AVX512_BF16 = 0x80
    AVX512_FP16 = 0x100
    AMX_BF16 = 0x800


class Version(ctypes.Structure):
    """``dnnl_version_t``."""

    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class ExecArg(ctypes.Structure):
    """``dnnl_exec_arg_t``: one argument of an execution."""

    _fields_ = (("arg", ctypes.c_int), ("memory", ctypes.c_void_p))


def exec_args(pairs: list[tuple[int, int]]) -> bytes:
    """The bytes of an array of execution arguments, from pairs of argument and address of a memory object.

    >>> len(exec_args([(Arg.SRC, 4096), (Arg.DST, 8192)]))
    32
    """
    return bytes((ExecArg * len(pairs))(*(ExecArg(int(arg), memory) for arg, memory in pairs)))


def dims(values: Any) -> Any:
    """A ``dnnl_dims_t``.

    >>> dims((2, 3))[:3]
    [2, 3, 0]
    """
    return (ctypes.c_int64 * MAX_NDIMS)(*(int(v) for v in values))


def data_type(dtype: np.dtype[Any]) -> int:
    """oneDNN's number of a dtype, 0 for one that it does not have.

    >>> data_type(np.dtype("float32")), data_type(np.dtype("complex64"))
    (3, 0)
    """
    return DATA_TYPES.get(dtype.name, 0)


def status_text(status: int) -> str:
    """Returns the number and the name of a status as text.

    >>> status_text(3)
    'status 3, unimplemented'
    """
    return f"status {status}, {STATUS.get(status, 'not known')}"
