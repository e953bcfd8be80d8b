"""The shipped errata, as data; docs/errata.md, made from it, shows them.

A condition is as wide as its evidence needs, and rather wider: what a refusal costs is the speed of the next library.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from .errata_of_devices import ROWS as DEVICES
from .erratum import Erratum

__all__ = ["TABLE"]

_CONVOLUTIONS = ("conv", "conv_transpose", "conv_grad_input", "conv_grad_weight")
_BLIS = (
    "Segmentation faults with operands that end at the end of a page, Debian 12's BLIS 0.9.0, AMD Zen 4, 2026-11: (16, 28) rows "
    "times (28, 100) columns reads a row behind the first operand; a result of (18, 34) from (18, 200) columns is read 8 bytes "
    "past its end. 62 of 4,560 random products of float32 crashed, none of float64, complex64 and complex128. BLIS issues 635 "
    "and 821 describe both."
)
_NO_AMX = "start the program with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, which has other kernels"
_BRGCONV = ("brgconv:avx512_core_amx*",)
_JOINED = (
    "without groups, and along the last axis without dilation and padding, whose channels fill no whole rows of 64 bytes, while "
    "those of several points do, of as many as divide the kernel's width and the stride"
)
_PASSED = "where along another axis than the last some points of the images are not read, and others behind them are"

_amx = partial(Erratum, library="onednn", isa="amx_bf16", remedy=_NO_AMX)


def _with_reduced(row: Erratum, condition: str) -> tuple[Erratum, Erratum]:
    """A row for bfloat16, and that for float32 which the same kernels compute in bfloat16."""
    evidence = f"As for bfloat16, whose kernels run it. {row.evidence}"
    return row, replace(row, id=f"{row.id}-reduced", dtypes=(), algorithm="nhwc_bf16", condition=condition, evidence=evidence)


TABLE: tuple[Erratum, ...] = (
    *_with_reduced(
        _amx(
            id="onednn-amx-conv-crash",
            operations=_CONVOLUTIONS,
            dtypes=("bf16",),
            edge="kernel-in-padding",
            condition="convolution by AMX in bfloat16 where some kernel element only meets padding, or some output "
            "point is computed from padding only",
            evidence="Segmentation fault on an Intel Xeon with AMX, oneDNN 3.2, 2026-11: conv2d of bfloat16, input (1, 2, 1, "
            "6), weight (4, 1, 2, 2), groups=2, dilation=3, padding=2. Release 3.14 is reported to crash on the same condition "
            "(oneDNN issue 5942).",
        ),
        "convolution of float32 that AMX computes in bfloat16 (fp32_precision 'bf16'), where some kernel "
        "element only meets padding, or some output point is computed from padding only",
    ),
    *_with_reduced(
        _amx(
            id="onednn-amx-conv-joined-channels",
            operations=("conv",),
            dtypes=("bf16",),
            kernels=_BRGCONV,
            edge="channels-joined-to-tiles",
            condition=f"convolution by AMX in bfloat16 {_JOINED}",
            evidence="Wrong throughout on an Intel Xeon with AMX, oneDNN 3.2 (brgconv:avx512_core_amx), 2026-12: images of 48 "
            "channels, kernel 2x2, stride=2. Of 1,983 random problems of this kind 649 were wrong, of those with one group and "
            "neither padding nor dilation nearly all. Release 3.12, inside PyTorch 2.13, is wrong with 24 channels, kernel 4x4, "
            "stride=4.",
        ),
        f"convolution of float32 that AMX computes in bfloat16 {_JOINED}",
    ),
    *_with_reduced(
        _amx(
            id="onednn-amx-conv-rows-passed-over",
            operations=("conv",),
            dtypes=("bf16",),
            kernels=_BRGCONV,
            edge="rows-passed-over",
            condition=f"convolution by AMX in bfloat16 {_PASSED}",
            evidence="Wrong, and the memory behind an array overwritten, on an Intel Xeon with AMX, oneDNN 3.2 "
            "(brgconv:avx512_core_amx), 2026-12: input (2, 64, 14, 128), weight (64, 64, 2, 8), stride=(3, 8); input "
            "(1, 40, 5, 5, 20), weight (16, 40, 1, 3, 4), stride=(4, 1, 1).",
        ),
        f"convolution of float32 that AMX computes in bfloat16 {_PASSED}",
    ),
    _amx(
        id="onednn-amx-int8-joined-channels",
        operations=("quantized.conv2d",),
        algorithm="int8",
        kernels=_BRGCONV,
        edge="channels-joined-to-tiles",
        condition=f"convolution by AMX in int8 {_JOINED}",
        evidence="Wrong throughout on an Intel Xeon with AMX, oneDNN 3.2 (brgconv:avx512_core_amx), 2026-12: images of 96 "
        "channels, kernel 2x2, stride=2.",
    ),
    _amx(
        id="onednn-amx-int8-rows-passed-over",
        operations=("quantized.conv2d",),
        algorithm="int8",
        kernels=_BRGCONV,
        edge="rows-passed-over",
        condition=f"convolution by AMX in int8 {_PASSED}",
        evidence="As in bfloat16, whose kernel is the same one: one of 422 random problems of this kind was wrong on an Intel "
        "Xeon with AMX, oneDNN 3.2, 2026-12.",
    ),
    _amx(
        id="onednn-amx-int8-padding",
        operations=("quantized.conv2d",),
        algorithm="int8",
        kernels=("jit:avx512_core_amx*",),
        edge="padded-above-only",
        condition="convolution by AMX in int8 of images that are padded above and below only, with a zero point other than 0, to "
        "rows of more than 32 points",
        evidence="Wrong in nearly all rows, and the memory behind an array overwritten, on an Intel Xeon with AMX, oneDNN 3.2 "
        "(jit:avx512_core_amx), 2026-12: input (1, 16, 3, 95), weight (96, 16, 3, 2), stride=(1, 2), padding=(2, 0). Of 14,088 "
        "random problems without this condition one was wrong, which falls under a row above.",
    ),
    *_with_reduced(
        _amx(
            id="onednn-amx-gradient-unwritten",
            operations=("conv_grad_input", "conv_grad_weight", "conv_transpose"),
            dtypes=("bf16",),
            edge="points-left-out",
            condition="gradient of a convolution by AMX in bfloat16 where some image point or kernel row takes no part",
            evidence="Uninitialised memory in results on an Intel Xeon with AMX, oneDNN 3.2, 2026-11, bfloat16: conv2d_weight, "
            "input (2, 4, 6, 2), weight (12, 1, 2, 2), stride=(2, 3), groups=4, padding=1; conv3d_input, input (2, 2, 5, 4, "
            "35), weight (3, 2, 2, 3, 1), stride=(2, 1, 3).",
        ),
        "gradient of a convolution of float32 that AMX computes in bfloat16, where some image point or kernel row takes no part",
    ),
    *_with_reduced(
        Erratum(
            id="onednn-bf16-weight-gradient",
            library="onednn",
            operations=("conv_grad_weight",),
            dtypes=("bf16",),
            isa="avx512_bf16",
            edge="uneven-windows",
            condition="gradient by the weights in bfloat16 where some kernel element or output point meets padding "
            "only, the kernel is longer than the image along an axis, or padding meets dilation",
            evidence="AMD Zen 4, oneDNN 3.2 (jit_bf16:avx512_core_bf16), 2026-11: of 624 random gradients 40 were wrong by up "
            "to 1e34 or crashed, all of them among the 263 under the condition; conv2d_weight of input (2, 4, 6, 2), weight "
            "(12, 1, 2, 2), stride=(2, 3), groups=4, padding=1 returns uninitialised memory, as on an Intel Xeon.",
        ),
        "gradient by the weights of float32 computed in bfloat16, where some kernel element or output "
        "point meets padding only, the kernel is longer than the image along an axis, or padding meets "
        "dilation",
    ),
    Erratum(
        id="onednn-conv-empty-window",
        library="onednn",
        operations=("conv",),
        since="3.3",
        isa="avx2",
        edge="kernel-in-padding",
        condition="convolution where some kernel element only meets padding, or some output point is computed from padding only",
        evidence="oneDNN issue 5942 of 2026-08: segmentation fault in float32 with AVX2 and with AVX-512, fixed after "
        "release 3.13. Release 3.2 was right in 136 problems under the condition, with AVX2 and AVX-512, 2026-11.",
    ),
    Erratum(
        id="onednn-weight-gradient-1x1",
        library="onednn",
        operations=("conv_grad_weight",),
        since="3.3",
        isa="avx2",
        edge="strided-point-kernel",
        condition="gradient by the weights of a kernel of one point with a stride",
        evidence="oneDNN issue 6035 of 2026: float32, channels last, fewer channels than a vector has: wrong, hangs or crashes "
        "with AVX2. Release 3.2 was run on shapes of that issue on AMD Zen 4 in 2026-11 and was right.",
    ),
    Erratum(
        id="onednn-row-with-gaps",
        library="onednn",
        operations=("matmul", "linear"),
        dtypes=("f32", "bf16"),
        since="3.3",
        isa="avx512",
        edge="row-with-gaps",
        condition="product of one row whose elements do not lie side by side, such as a column of a matrix, transposed",
        evidence="oneDNN 3.6.2 (the file in paddlepaddle 3.3.1), Intel Xeon with AMX, its kernels for AVX-512 and AMX, 2026-11: "
        "wrong in 24 of 24 such products of float32 and bfloat16, such as float32 (1, 16) with strides of 16 and 4 bytes times "
        "(16, 33); right with AVX2. Release 3.2 is right in all of them.",
    ),
    _amx(
        id="onednn-amx-transpose-reduced",
        operations=("conv_transpose",),
        algorithm="nhwc_bf16",
        since="3.3",
        condition="transposed convolution of float32 that AMX computes in bfloat16",
        evidence="oneDNN 3.6.2 (the file in paddlepaddle 3.3.1), Intel Xeon with AMX, 2026-11: relative errors of 0.1 to 0.4 "
        "with a bias, such as conv_transpose1d of input (2, 4, 5), weight (4, 4, 3), bias, stride=2. Right with its kernels for "
        "AVX-512, and in release 3.2.",
    ),
    Erratum(
        id="mkl-jit-reads-past-end",
        library="mkl",
        operations=("matmul",),
        dtypes=("f32", "c64"),
        algorithm="jit*",
        isa="avx2",
        edge="terms-not-in-fours",
        condition="compiled kernel in single precision for a product whose inner dimension k is not divisible by 4",
        evidence="Segmentation faults with operands that end at the end of a page, MKL 2026.2 with its kernels for AVX-512 and "
        "AVX2, 2026-11: complex64 (15, 2) times (2, 31), float32 (16, 2) times (2, 7), both column by column. 40 of 7,860 "
        "random products crashed: of complex64 with 1 to 3 terms, of float32 with 2, 6, 10, 18 or 22; none of float64 and "
        "complex128, none of 4, 8, 12, ...",
    ),
    Erratum(
        id="blis-sgemm-reads-past-end",
        library="blis",
        operations=("matmul",),
        dtypes=("f32", "f16", "bf16"),
        algorithm="gemm*",
        before="1.1",
        condition="product of float32, which may read past the end of an array",
        evidence=_BLIS,
        remedy="BLIS 1.1 or later",
    ),
    Erratum(
        id="blis-sgemm-reads-past-end-layers",
        library="blis",
        operations=(
            "linear",
            "conv",
            "conv_transpose",
            "conv_grad_input",
            "conv_grad_weight",
            "rnn_tanh",
            "rnn_relu",
            "lstm",
            "gru",
        ),
        dtypes=("f32", "f16", "bf16"),
        before="1.1",
        condition="layer by products of float32, which may read past the end of an array",
        evidence=_BLIS,
        remedy="BLIS 1.1 or later",
    ),
    Erratum(
        id="xnnpack-deconvolution-small",
        library="xnnpack",
        operations=("conv_transpose",),
        edge="result-below-stride",
        condition="transposed convolution whose result is smaller than its stride along an axis, not dilated, kernel >= stride",
        evidence="Segmentation fault, Debian 12's XNNPACK of 2022-02-16, AMD Zen 4, 2026-11: input (1, 1, 3, 1), weight "
        "(1, 1, 3, 3), stride=3, padding=2, output_padding=2. Of 5,572 random problems, 38 of the 167 under the condition "
        "crashed, and none of the others.",
    ),
    Erratum(
        id="mkl-qr-small",
        library="mkl",
        operations=("linalg.qr",),
        dtypes=("c64",),
        edge="both-sides-up-to-32",
        condition="QR of complex64 where no side of the matrix is longer than 32: NaN where columns depend on each other",
        evidence="NaN at the end of the diagonal of R, MKL 2026.2 with its generic and its AVX-512 kernels, AMD Zen 4, 2026-11: "
        "matrices of one row repeated, scaled by 1e-8 to 1e4. Of the 5,041 sizes up to 71x71, 205 and 226 fail, all with both "
        "sides from 5 to 20. complex128, float32 and float64 are right.",
    ),
    Erratum(
        id="mkl-dft-tail",
        library="mkl",
        algorithm="dfti",
        isa="avx512",
        operations=("fft.c2r",),
        dtypes=("f32", "c64"),
        edge="uneven-end",
        condition="float32 transforms to real results of an even length from 8192 on that is not divisible by 64",
        evidence="MKL 2026.2 with its kernels for AVX-512, 2026-11: errors of 1 to 8 % of the largest element in single "
        "transforms wherever the length modulo 64 was 36 to 62, from 8,232 to 1,547,910 points; irfft of 8,250 points is off by "
        "0.249. Seen on an Intel Xeon too. Right with its kernels for AVX2.",
    ),
    *DEVICES,
)
