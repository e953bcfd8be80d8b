"""Differences of what operations accept and return."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from differences import difference, in_torch

import backline
from backline import errors, fft, linalg, quantized
from backline.backends import quantized as engines
from backline.nn import functional


@difference(
    "Operations", "one dtype in a call",
    torch="Products, `kron` and the like refuse mixed dtypes, or promote some of them.",
    backline="Mixed dtypes are refused, or all of them are converted by NumPy's rule where `backends.promote = \"numpy\"`.",
    why="A float32 program that meets one float64 array would compute everything in float64 without a word.",
    remedy="`x.astype(...)`, or the switch ([dtypes](dtypes.md)).",
)  # fmt: skip
def one_dtype() -> None:
    a, b = np.ones((2, 2), np.float32), np.ones((2, 2))
    with pytest.raises(errors.BadType, match="promote"):
        backline.matmul(a, b)
    for function in (backline.kron, backline.inner, backline.cdist, linalg.vecdot):
        with pytest.raises(errors.BadType):
            function(a, b)
        with backline.backends.flags(promote="numpy"):
            assert function(a, b).dtype == np.float64, function


@difference(
    "Operations", "`check_errors` of the `_ex` functions",
    torch="`inv_ex(A, check_errors=True)` raises where the matrix is singular.",
    backline="True is refused.",
    why="`info` would always be 0 then.",
    remedy="The function without `_ex`, which raises.",
)  # fmt: skip
def check_errors() -> None:
    for function in (linalg.inv_ex, linalg.cholesky_ex, linalg.ldl_factor_ex):
        with pytest.raises(errors.BadValue, match="which raises"):
            function(np.eye(2), check_errors=True)


@difference(
    "Operations", "fractional factors of integers",
    torch="`addmm`, `addbmm` and `baddbmm` of integers cut `alpha=0.6` off to 0.",
    backline="Refused.",
    why="The factor that was asked for is not the one that is applied.",
    remedy="A whole number, or arrays of floats.",
)  # fmt: skip
def fractional_factors() -> None:
    a = np.ones((2, 2), np.int64)
    with pytest.raises(errors.BacklineError):
        backline.addmm(a, a, a, alpha=0.6)


@difference(
    "Operations", "symmetric indefinite factorizations",
    torch="`ldl_factor` of a matrix with a zero block ends in an internal assertion; `ldl_solve` takes pivots of any values.",
    backline="`LinAlgError`; pivots are int32, in the form that `ldl_factor` returns, and checked.",
    why="LAPACK follows pivots out of the array.",
    remedy="`pivots.astype(np.int32)`.",
)  # fmt: skip
def indefinite() -> None:
    with pytest.raises(errors.LinAlgError):
        linalg.ldl_factor(np.zeros((2, 2)))
    factors, pivots = linalg.ldl_factor(np.eye(2))[:2]
    with pytest.raises(errors.BacklineError):
        linalg.ldl_solve(factors, pivots + 9, np.ones((2, 1)))


@difference(
    "Operations", "labels of `ctc_loss`",
    torch="Labels outside 0 to C-1 are not checked.",
    backline="Refused. Arrays are NumPy's.",
    why="They would be read from outside of the probabilities.",
    remedy="Labels below the number of classes; a copy on the host.",
)  # fmt: skip
def labels() -> None:
    with pytest.raises(errors.BadValue):
        functional.ctc_loss(np.zeros((4, 1, 3), np.float32), np.array([[7]]), [4], [1])


@difference(
    "Operations", "`cdist` with p = inf beside NaN",
    torch="The distance to a row with NaN is 0 or a number.",
    backline="The distance is NaN.",
    why="The largest difference is not known.",
    remedy="`np.nan_to_num`, where a number is wanted.",
)  # fmt: skip
def distances() -> None:
    assert np.isnan(backline.cdist(np.array([[np.nan, 1.0]]), np.zeros((1, 2)), p=np.inf)).all()


@in_torch(distances)
def _(torch: Any) -> None:
    assert not torch.cdist(torch.tensor([[float("nan"), 1.0]]), torch.zeros(1, 2), p=float("inf")).isnan().all()


@difference(
    "Operations", "dtypes of frequencies",
    torch="`fftfreq` gives float32, and of 0 points an empty tensor.",
    backline="float64, as NumPy; `dtype=` gives another. 0 points are refused.",
    why="NumPy's default float is float64; a transform has a point.",
    remedy="`dtype=np.float32`.",
)  # fmt: skip
def frequencies() -> None:
    assert fft.fftfreq(4).dtype == np.float64 and fft.fftfreq(4, dtype=np.float32).dtype == np.float32
    with pytest.raises(errors.BadValue):
        fft.fftfreq(0)


@in_torch(frequencies)
def _(torch: Any) -> None:
    assert torch.fft.fftfreq(4).dtype == torch.float32 and torch.fft.fftfreq(0).numel() == 0


@difference(
    "Operations", "softmax of complex numbers as real ones",
    torch="`softmax(x, dtype=float32)` of complex numbers drops the imaginary parts, with a warning.",
    backline="Refused.",
    why="Half of the input would be left out.",
    remedy="`x.real`.",
)  # fmt: skip
def complex_softmax() -> None:
    with pytest.raises(errors.BadType):
        functional.softmax(np.ones(3, np.complex64), 0, dtype=np.float32)


@difference(
    "Operations", "16-bit matrices in another dtype",
    torch="`matrix_norm(x, 2, dtype=float32)` of float16 is refused.",
    backline="Converted first, then computed. Max pools take integers of every width, with and without indices.",
    why="What was asked for can be computed.",
    remedy="Nothing.",
)  # fmt: skip
def converted_first() -> None:
    assert linalg.matrix_norm(np.eye(2, dtype=np.float16), 2, dtype=np.float32).dtype == np.float32
    assert functional.max_pool1d(np.arange(4, dtype=np.uint16)[None], 2).tolist() == [[1, 3]]


@difference(
    "Operations", "orders and tolerances",
    torch="`norm(x, True)` is the 1-norm, `vector_norm(x, nan)` NaN; a tolerance of `pinv` with more axes than the matrices repeats them.",
    backline="Refused.",
    why="A bool is no order; the result has the shape of the matrices.",
    remedy="1; a number; `np.broadcast_to` of the matrices first.",
)  # fmt: skip
def orders() -> None:
    for order in (True, float("nan")):
        with pytest.raises(errors.BacklineError):
            linalg.vector_norm(np.ones(2), order)
    with pytest.raises(errors.BacklineError):
        linalg.pinv(np.eye(2), rtol=np.ones((3,)))


@difference(
    "Operations", "convolution of an image without points",
    torch="Refused, even where padding gives it points.",
    backline="The bias, or zeros, where padding gives it points.",
    why="That is the convolution of the padding.",
    remedy="Nothing.",
)  # fmt: skip
def no_points() -> None:
    found = functional.conv1d(np.zeros((1, 1, 0), np.float32), np.ones((1, 1, 2), np.float32), np.ones(1, np.float32), padding=1)
    assert found.tolist() == [[[1.0]]]


@difference(
    "Operations", "results of 32 dimensions and of the other byte order",
    torch="No limit in `kron`; tensors have one byte order.",
    backline="`kron` takes up to 32 dimensions. No result is in the other byte order, so `diagonal` of such an array is a copy, not a view.",
    why="NumPy's arrays have at most 64 dimensions, and the product has twice as many while it is made.",
    remedy="`reshape`; `x.astype(x.dtype.newbyteorder(\"=\"))` first.",
)  # fmt: skip
def shapes_and_bytes() -> None:
    x = np.eye(2).astype(">f8")
    found = linalg.diagonal(x)
    assert found.dtype.isnative and not np.shares_memory(found, x)
    with pytest.raises(errors.BacklineError):
        backline.kron(np.ones((1,) * 33), np.ones((1,) * 33))


@difference(
    "Operations", "int8 results beyond all scales",
    torch="fbgemm gives the least integer for a result past int32; with qnnpack a bias past int32 saturates; int8 activations are refused.",
    backline="Results saturate; a bias of more than 2^31-1 units, and scales whose product is outside float32's normal range, are refused; "
    "int8 activations are taken.",
    why="A wrong scale should show.",
    remedy="Other scales, or the engine reference.",
)  # fmt: skip
def scales() -> None:
    with engines.flags(engine="qnnpack"):
        packed = quantized.linear_prepack(quantized.quantize_weights(np.eye(2)), np.full(2, 1e30, np.float32))
        with pytest.raises(errors.BadValue):
            quantized.linear(quantized.QArray(np.ones((1, 2), np.uint8), 1e-6, 0), packed, 1.0, 0)


@difference(
    "Operations", "attention over packed sequences",
    torch="`torch.nn.attention.varlen.varlen_attn`, on CUDA devices alone; `window_size=(-1, 0)` is causal, `return_aux=AuxRequest(lse=True)` returns "
    "the log-sum-exp too; windows, pages of keys (`block_table`, `seqused_k`) and `num_splits`.",
    backline="`nn.functional.varlen_attn`, on the CPU as well; `is_causal=True`, `return_lse=True`, as in `scaled_dot_product_attention`. `cu_seq_k`, "
    "`max_q` and `max_k` may be left out. Windows and pages are not there.",
    why="One operation has one way to say causal.",
    remedy="A call of `scaled_dot_product_attention` for each sequence, with `attn_mask` for a window.",
)  # fmt: skip
def packed_sequences() -> None:
    x = np.random.default_rng(0).standard_normal((5, 1, 2))
    output, lse = functional.varlen_attn(x, x, x, [0, 2, 5], is_causal=True, return_lse=True)
    assert output.shape == x.shape and lse.shape == (5, 1)
    last = functional.scaled_dot_product_attention(*(x[2:, 0],) * 3, is_causal=True)
    np.testing.assert_allclose(output[2:, 0], last)
    assert "window_size" not in inspect.signature(functional.varlen_attn).parameters


@in_torch(packed_sequences)
def _(torch: Any) -> None:
    from torch.nn.attention.varlen import varlen_attn

    assert {"window_size", "return_aux", "block_table", "seqused_k", "num_splits"} <= set(inspect.signature(varlen_attn).parameters)
    x, ends = torch.ones(5, 1, 8), torch.tensor([0, 2, 5], dtype=torch.int32)
    with pytest.raises(NotImplementedError):
        varlen_attn(x, x, x, ends, ends, 3, 3)


@difference(
    "Operations", "products of 8-bit matrices and of groups",
    torch="`nn.functional.scaled_mm` has scales of blocks; `torch._int_mm` is private; `grouped_mm` takes int32 offsets.",
    backline="Scales are one for a matrix or one for each row. `quantized.int_mm`. `grouped_mm` takes int32 and int64 offsets, which must not decrease, "
    "on the CPU and on devices; rows beyond the last offset are zeros.",
    why="Only the newest devices have kernels for scales of blocks; an offset that decreases is a mistake.",
    remedy="`matmul` of `x.astype(np.float32) * scales`, with scales that are repeated over their blocks.",
)  # fmt: skip
def eight_bits_and_groups() -> None:
    import ml_dtypes

    a, one = np.eye(4).astype(ml_dtypes.float8_e4m3fn), np.ones(1, np.float32)
    with pytest.raises(errors.BadValue, match="blocks"):
        functional.scaled_mm(a, a, one, "BlockWise1x32", one, "TensorWise")
    assert np.array_equal(quantized.int_mm(np.eye(4, dtype=np.int8), np.eye(4, dtype=np.int8)), np.eye(4))
    with pytest.raises(errors.BadValue, match="decrease"):
        functional.grouped_mm(np.ones((4, 2)), np.ones((2, 2, 3)), offs=np.array([3, 1]))
    assert not functional.grouped_mm(np.ones((4, 2)), np.ones((1, 2, 3)), offs=np.array([3])).any(axis=1)[3]


@in_torch(eight_bits_and_groups)
def _(torch: Any) -> None:
    assert "BlockWise1x32" in torch.nn.functional.ScalingType.__members__ and not hasattr(torch, "int_mm")
    a, b = torch.ones(4, 16, dtype=torch.bfloat16), torch.ones(1, 16, 16, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"int32|Int"):
        torch.nn.functional.grouped_mm(a, b, offs=torch.tensor([4]))
