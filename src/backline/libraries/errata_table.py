"""The shipped errata, as data; docs/errata.md shows them.

A condition is as wide as its evidence needs, and rather wider: what a refusal costs is the speed of the next library.
"""

from __future__ import annotations

from .errata import Erratum

__all__ = ["TABLE"]

_CONVOLUTIONS = ("conv", "conv_transpose", "conv_grad_input", "conv_grad_weight")
_CRASH = (
    "Segmentation fault on an Intel Xeon with AMX, oneDNN 3.2, 2026-11: conv2d of bfloat16, input (1, 2, 1, 6), weight "
    "(4, 1, 2, 2), groups=2, dilation=3, padding=2. Release 3.14 is reported to crash on the same condition (oneDNN issue 5942)."
)
_UNWRITTEN = (
    "Uninitialised memory in results on an Intel Xeon with AMX, oneDNN 3.2, 2026-11, bfloat16: conv2d_weight, input (2, 4, 6, "
    "2), weight (12, 1, 2, 2), stride=(2, 3), groups=4, padding=1; conv3d_input, input (2, 2, 5, 4, 35), weight (3, 2, 2, 3, 1), "
    "stride=(2, 1, 3)."
)
_NO_AMX = "start the program with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, which has other kernels"

TABLE: tuple[Erratum, ...] = (
    Erratum(
        id="onednn-amx-conv-crash",
        library="onednn",
        operations=_CONVOLUTIONS,
        dtypes=("bf16",),
        isa="amx_bf16",
        edge="kernel-in-padding",
        condition="convolution by AMX in bfloat16 where a row of the kernel always lies in padding, or a position of it whole",
        evidence=_CRASH,
        remedy=_NO_AMX,
    ),
    Erratum(
        id="onednn-amx-conv-crash-reduced",
        library="onednn",
        operations=_CONVOLUTIONS,
        algorithm="nhwc_bf16",
        isa="amx_bf16",
        edge="kernel-in-padding",
        condition="the same of float32 that is reduced to bfloat16",
        evidence=f"As for bfloat16, whose kernels run it. {_CRASH}",
        remedy=_NO_AMX,
    ),
    Erratum(
        id="onednn-amx-gradient-unwritten",
        library="onednn",
        operations=("conv_grad_input", "conv_grad_weight", "conv_transpose"),
        dtypes=("bf16",),
        isa="amx_bf16",
        edge="points-left-out",
        condition="gradient of a convolution by AMX in bfloat16 where points of the image or rows of the kernel take no part",
        evidence=_UNWRITTEN,
        remedy=_NO_AMX,
    ),
    Erratum(
        id="onednn-amx-gradient-unwritten-reduced",
        library="onednn",
        operations=("conv_grad_input", "conv_grad_weight", "conv_transpose"),
        algorithm="nhwc_bf16",
        isa="amx_bf16",
        edge="points-left-out",
        condition="the same of float32 that is reduced to bfloat16",
        evidence=f"As for bfloat16, whose kernels run it. {_UNWRITTEN}",
        remedy=_NO_AMX,
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
)
