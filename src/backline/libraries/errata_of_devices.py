"""Shipped errata of libraries for GPUs: rows of `errata_table`.

Each rests on public reports, which it names, or on what row of the check on a GPU showed it (docs/devices.md). Versions are
written as cuDNN counts them, 91501 for 9.15.1.
"""

from __future__ import annotations

from functools import partial

from .erratum import Erratum

__all__ = ["ROWS"]

_cudnn = partial(Erratum, library="cudnn")
_CONVOLUTIONS = ("conv", "conv_transpose", "conv_grad_input", "conv_grad_weight")
_BACKWARD = ("nn.grad.scaled_dot_product_attention_backward",)
_BOTH = ("nn.functional.scaled_dot_product_attention", *_BACKWARD)
_PACKED_BACKWARD = ("nn.grad.packed_attention_backward",)
_PACKED = ("nn.functional.packed_attention", *_PACKED_BACKWARD)

ROWS: tuple[Erratum, ...] = (
    _cudnn(
        id="cudnn-attention-partial-tile",
        operations=_BOTH,
        before="91501",
        edge="lengths-not-of-128",
        condition="attention where the number of queries or of keys is no multiple of 128: it reads and writes out of bounds",
        evidence="PyTorch issue 169849 and its pull requests 167101, 171532 and 171627 of 2025-12: compute-sanitizer finds "
        "accesses out of bounds with 261 queries, and captured graphs fail; PyTorch left cuDNN out there up to 9.15.0. "
        "cudnn-frontend issue 160: NaN in gradients, H100, 9.12, where the length is no such multiple.",
        remedy="cuDNN 9.15.1 or later",
    ),
    _cudnn(
        id="cudnn-attention-masked-half-tile",
        operations=_BACKWARD,
        since="91900",
        before="92600",
        capabilities=("9.0",),
        edge="masked-length-64-of-128",
        condition="gradients of attention with a mask where the number of queries or of keys leaves 64 when divided by 128: NaN",
        evidence="PyTorch issue 196678 of 2026-09, H100 and H200, 9.19 and 9.20: NaN in the query's gradient where the logarithm"
        " of a row's sum is below -88.7, for lengths of 64, 192, 320, ... Pull request 628 of cudnn-frontend names 9.26"
        " as the release with the remedy.",
        remedy="cuDNN 9.26 or later",
    ),
    _cudnn(
        id="cudnn-attention-packed-half-tile",
        operations=_PACKED_BACKWARD,
        since="91900",
        before="92600",
        capabilities=("9.0",),
        condition="gradients of attention over packed sequences, whose lengths are not known before: NaN where a sequence has 64 "
        "keys more than a multiple of 128",
        evidence="Pull request 628 of cudnn-frontend of 2026-08, H100: the kernel masks keys in tiles of 64 and reads tiles of "
        "128, so that numbers behind the last key count where the logarithm of a row's sum is below -88.7. As "
        "cudnn-attention-masked-half-tile; that packed sequences are without it was not shown.",
        remedy="cuDNN 9.26 or later",
    ),
    _cudnn(
        id="cudnn-attention-one-query",
        operations=_BACKWARD,
        since="92500",
        edge="one-query",
        condition="gradients of attention of one query: NaN, and a segmentation fault while plans are made",
        evidence="cudnn-frontend issue 1072 of 2026-09, H200, 9.25.1 and 9.26.0: every element of the key's and the value's "
        "gradient is NaN where the logarithm of the row's sum is about -122. Issue 1071, 9.26.0: segmentation fault "
        "with one batch, head and query. No release without it is known.",
    ),
    _cudnn(
        id="cudnn-attention-few-key-heads",
        operations=(*_BOTH, *_PACKED),
        since="91900",
        capabilities=("10",),
        edge="grouped-with-few-heads",
        condition="attention with fewer heads of keys than of queries, and fewer than 8 of them: wrong numbers",
        evidence="PyTorch issue 193893 of 2026-08, B200, 9.19 and 9.20: generated text is corrupted in 92 % of runs, with MATH "
        "and EFFICIENT_ATTENTION in none. No release without it is known.",
    ),
    _cudnn(
        id="cudnn-rnn-small-half",
        operations=("rnn_tanh_grad", "rnn_relu_grad"),
        dtypes=("f16",),
        algorithm="rnn_small",
        edge="both-directions",
        condition="gradients of a network of float16 in two directions, with cells of tanh or relu, by the algorithm for small "
        "hidden sizes: wrong numbers",
        evidence="Row RNN-1 of the check on a GPU, 2026-11, H100, 9.19.0: gradients of the input, and of the weights in one of "
        "the directions, are off by their own size, the same each time, for hidden sizes of 64, 128 and 256 (33 is right), "
        "whatever lies in the workspace; PyTorch 2.11 with this cuDNN is off as far. LSTM, GRU, bfloat16, float32, one "
        "direction and the standard algorithm are right. Which releases and devices have it is not known, so every one is "
        "assumed to.",
    ),
    _cudnn(
        id="cudnn-conv3d-half",
        operations=_CONVOLUTIONS,
        dtypes=("f16", "bf16"),
        since="90800",
        before="91500",
        edge="volumes",
        condition="convolution in three dimensions of float16 or bfloat16: wrong numbers",
        evidence="PyTorch issue 163539 of 2025-09, bfloat16, input (1, 16, 124, 1282, 722), kernel (1, 3, 3); its pull requests "
        "163581 and 166480 leave cuDNN 9.8 to 9.14 out.",
        remedy="cuDNN 9.15 or later",
    ),
    _cudnn(
        id="cudnn-conv3d-tf32",
        operations=_CONVOLUTIONS,
        dtypes=("f32",),
        algorithm="*_tf32*",
        since="91002",
        before="91600",
        edge="volumes",
        condition="convolution of float32 in three dimensions by tf32: wrong numbers",
        evidence="PyTorch pull request 167024 of 2025-11: a broken kernel in 9.10.2 to 9.15, as NVIDIA reports, without a "
        "narrower condition.",
        remedy="cuDNN 9.16 or later",
    ),
    _cudnn(
        id="cudnn-engine-5",
        operations=("conv",),
        capabilities=("8.6",),
        engines=(5,),
        condition="convolution by engine 5 on compute capability 8.6: other bits from run to run",
        evidence="PyTorch pull requests 188318 and 189207 of 2026-07, A10G and A2. H100 and H200 are not concerned.",
    ),
    _cudnn(
        id="cudnn-engines-58-63",
        operations=_CONVOLUTIONS,
        capabilities=("12.0",),
        engines=(58, 63),
        condition="convolution by engine 58 or 63 on compute capability 12.0: accesses out of bounds",
        evidence="PyTorch pull request 191701 of 2026-07: both may call a kernel of cuBLASLt that has the defect; cuBLAS 13.6.1 "
        "is said to be without it. Which cuBLAS runs inside cuDNN is not known, so every version is assumed to have it.",
    ),
)
