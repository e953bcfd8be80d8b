"""The declarations: every switch there is, in the order in which tables and ``flags()`` list them.

A name is that of the module, a dot and that of the attribute; those of the root have no dot.
"""

from __future__ import annotations

import math
from typing import Any

from .cpu_capability import UpToDetected, starting_capability
from .legal import AtLeast, Between, EachOf, Fraction, Pairs, Strategies
from .lookup import library_names
from .precision_tree import (
    CUDA,
    CUDA_MATMUL,
    CUDNN_OPS,
    FACTORY,
    LEGAL,
    MKLDNN_MATMUL,
    MKLDNN_OPS,
    MatmulPrecisionWord,
    Precision,
    TF32Switch,
)
from .starting_values import (
    MOST_THREADS,
    RECOMMENDED,
    starting_cublas,
    starting_cublaslt,
    starting_mkl,
    starting_mkldnn,
    starting_threads,
)
from .switch import FAMILIES, Addition, EnumSwitch, FlagOrWord, Reduction, Switch
from .switch_registry import register

__all__ = ["KERNELS"]

KERNELS = ("flash_attention", "efficient_attention", "math", "cudnn_attention", "overrideable")
"""Attention kernels in their default order, in lower case; enums.SDPBackend has the same names."""

_MATMUL = ("matmul", "attention", "einsum")  # what reads the matmul nodes of fp32_precision
_FP32 = (*_MATMUL, "conv", "rnn")
_BLAS = ("matmul", "conv", "rnn", "attention", "linalg")
_PROMOTED = ("matmul", "conv", "rnn", "attention", "neural", "linalg", "einsum")
_LIBRARIES = EachOf(library_names, "a tuple of library names")


def _kernels() -> tuple[str, ...]:
    return KERNELS


_KERNELS = EachOf(_kernels, "a tuple of attention kernels")
_HIP = {"hipblas": "cublas", "hipblaslt": "cublaslt"}


def _precision(backend: str, governs: tuple[str, ...], doc: str, **more: Any) -> Precision:
    name = f"{backend}.fp32_precision".lstrip(".")
    legal = LEGAL[:3] if name in CUDA else LEGAL
    return Precision(name, str, more.pop("default", "none"), legal, doc, governs, **more)


def _enabled(backend: str, library: str, governs: tuple[str, ...], doc: str) -> Switch:
    return Switch(f"{backend}.enabled", bool, True, None, doc, governs, library=library)


def _hidden(name: str, kind: type, default: Any, legal: Any, governs: tuple[str, ...], doc: str, **more: Any) -> Switch:
    return Switch(name, kind, default, legal, doc, governs, as_attribute=False, **more)


_ROOT = (
    _precision("", _FP32, "Precision that float32 inputs may be reduced to, where no switch below says otherwise."),
    Switch("fallback", str, "allow", ("allow", "warn", "error"),
           "What happens when a preference cannot be kept: take the next library, warn, or raise.", FAMILIES),
    FlagOrWord("benchmark", bool, False, None,
               "Time the candidates once per signature and keep the fastest; 'online' times them in real calls.", FAMILIES,
               words=("online",)),
    Switch("benchmark_limit", int, 10, AtLeast(0), "Most candidates timed per signature; 0 times all.", FAMILIES),
    Switch("deterministic", bool, False, None,
           "Use only what gives the same bits again, as strongly as determinism_level says.", FAMILIES),
    Switch("warn_only", bool, False, None, "While deterministic: warn instead of raising where nothing conforms.", FAMILIES),
    Switch("determinism_level", str, "run", ("run", "threads"),
           "Same bits from run to run, or also for any number of threads.", FAMILIES),
    Switch("emulate", bool, False, None, "Round inputs to the precision requested where the hardware has none of it.",
           _FP32, library="emulated"),
    Switch("num_threads", int, starting_threads, Between(1, MOST_THREADS), "Threads a library call may use.", FAMILIES),
    Switch("prefer", tuple, (), _LIBRARIES, "Libraries to try first, in this order.", FAMILIES),
    Switch("only", tuple, (), _LIBRARIES, "The only libraries allowed; empty allows all.", FAMILIES),
    Switch("max_error", float, math.inf, AtLeast(0),
           "Largest relative error that an algorithm may have: as tuning measured it, else by the shipped figures.", FAMILIES),
    Switch("promote", str, "error", ("error", "numpy"),
           "Operands of several dtypes, or integers where floats are needed: an error, or converted as NumPy does.", _PROMOTED),
    Switch("share_processors", bool, True, None,
           "Use fewer threads while other programs, or other threads of this one, keep processors busy.", FAMILIES),
    Switch("benchmark_overhead", float, 0.03, Fraction(),
           "Most of the time of all calls that learning takes while benchmark is 'online', as a fraction.", FAMILIES),
    _hidden("sdp_priority", tuple, (), _KERNELS, ("attention",), "Attention kernels to try first, in this order.",
            in_flags=False),
    MatmulPrecisionWord("float32_matmul_precision", str, "highest", ("highest", "high", "medium"),
             "Precision of float32 products in one word, on CUDA and CPU.", _MATMUL, as_attribute=False,
             nodes=(CUDA_MATMUL, MKLDNN_MATMUL)),
    Switch("utils.deterministic.fill_uninitialized_memory", bool, True, None,
           "While deterministic: fill new memory with NaN, the largest integer or True.", ("memory",)),
)  # fmt: skip

_CPU = (
    _enabled("numpy", "numpy", ("matmul", "conv", "rnn", "attention", "neural", "linalg", "quantized"),
             "NumPy's own routines may run calls."),
    _enabled("openblas", "openblas", _BLAS, "OpenBLAS, loaded directly, may run calls."),
    _enabled("mkl", "mkl", (*_BLAS, "fft"), "Intel's MKL may run calls."),
    _hidden("mkl.verbose_level", int, starting_mkl, (0, 1, 2), _BLAS,
            "MKL prints a line for each call: 1 at its end, 2 also its timing.", in_flags=False),
    _enabled("blis", "blis", ("matmul", "conv", "rnn"), "BLIS may run calls."),
    _enabled("fftw", "fftw", ("fft",), "FFTW may run calls."),
    _enabled("scipy", "scipy", ("fft",), "SciPy's own Fourier transforms may run calls."),
    Switch("fftw.planning", str, "estimate", ("estimate", "measure", "patient"),
           "Planning of FFTW: by rules, by timing some plans, or by timing many, which takes seconds for each signature.",
           ("fft",)),
    Switch("fftw.plan_time_limit", float, 10.0, AtLeast(0),
           "Seconds after which FFTW ends its timing of one signature and takes the best way found so far.", ("fft",)),
    _hidden("cpu.capability", str, starting_capability, UpToDetected(), FAMILIES,
            "Highest instruction set that libraries may use.", variables={"ATEN_CPU_CAPABILITY": None}),
    _enabled("mkldnn", "onednn", ("matmul", "conv", "neural", "rnn", "quantized"), "oneDNN may run calls."),
    Switch("mkldnn.deterministic", bool, False, None,
           "oneDNN runs only what gives the same bits again; from 3.4 on it is asked to by its attribute.",
           ("matmul", "conv", "neural", "rnn", "quantized")),
    TF32Switch("mkldnn.allow_tf32", bool, False, None,
               "Products, convolutions and recurrent networks on CPU arrays may use tf32.", _FP32, nodes=MKLDNN_OPS),
    _precision("mkldnn", _FP32, "Precision that float32 inputs may be reduced to on CPU arrays."),
    _precision("mkldnn.matmul", _MATMUL, "Precision that float32 inputs of products may be reduced to on CPU arrays."),
    _precision("mkldnn.conv", ("conv",), "Precision that float32 inputs of convolutions may be reduced to on CPU arrays."),
    _precision("mkldnn.rnn", ("rnn",), "Precision that float32 inputs of recurrent networks may be reduced to on CPU arrays."),
    _hidden("mkldnn.verbose_level", int, starting_mkldnn, (0, 1, 2), ("matmul", "conv", "neural", "rnn"),
            "oneDNN prints a line for each execution (1), and for each primitive made (2).", in_flags=False),
    _enabled("nnpack", "nnpack", ("conv",), "NNPACK may run calls."),
    _enabled("xnnpack", "xnnpack", ("matmul", "conv"), "XNNPACK may run calls."),
    _enabled("libmvec", "libmvec", ("neural",), "libmvec may run calls."),
    _enabled("kleidiai", "kleidiai", ("matmul",), "KleidiAI may run calls."),
    Switch("openmp.enabled", bool, True, None, "Libraries that thread by OpenMP may use more than one thread.", FAMILIES,
           library=""),
    Switch("opt_einsum.enabled", bool, True, None,
           "The path of a contraction is searched by opt_einsum; otherwise it is from left to right.", ("einsum",), library=""),
    Switch("opt_einsum.strategy", str, "auto", Strategies(), "Strategy by which opt_einsum searches the path.", ("einsum",)),
    _hidden("mha.fastpath", bool, True, None, ("attention",), "Multi-head attention may run as one fused operation."),
    Switch("quantized.engine", str, "auto", ("x86", "onednn", "fbgemm", "qnnpack", "reference"),
           "Engine that packs and runs operations on int8; unless set, the first of x86, onednn and reference that may run.",
           ("quantized",), unset="auto"),
)  # fmt: skip

_CUDA = (
    EnumSwitch("cuda.preferred_linalg_library", str, "default", ("default", "cusolver", "magma"),
               "Library tried first for linear algebra on CUDA arrays.", ("linalg",), as_attribute=False, enum="LinalgBackend",
               variables={"TORCH_LINALG_PREFER_CUSOLVER": {"1": "cusolver", "0": "default"},
                          "TORCH_LINALG_PREFER_HIPSOLVER": {"1": "cusolver", "0": "default"}}),
    EnumSwitch("cuda.preferred_blas_library", str, "default", ("default", "cublas", "cublaslt", "ck"),
               "Library tried first for products on CUDA arrays.", ("matmul",), as_attribute=False, enum="BlasBackend",
               synonyms=_HIP, variables={"TORCH_BLAS_PREFER_CUBLASLT": {"1": "cublaslt", "0": "default"},
                                         "TORCH_BLAS_PREFER_HIPBLASLT": {"1": "cublaslt", "0": "default"}}),
    EnumSwitch("cuda.preferred_rocm_fa_library", str, "default", ("default", "aotriton", "ck"),
               "Library tried first for flash attention on ROCm arrays.", ("attention",), as_attribute=False,
               enum="ROCmFABackend", variables={"TORCH_ROCM_FA_PREFER_CK": {"1": "ck", "0": "default"}}),
    _hidden("cuda.cublas_workspace_size", int, starting_cublas, AtLeast(0), ("matmul", "linalg"),
            "Bytes of cuBLAS's workspace, one per handle and stream.", unset=RECOMMENDED),
    _hidden("cuda.cublaslt_workspace_size", int, starting_cublaslt, AtLeast(0), ("matmul",),
            "Bytes of cuBLASLt's workspace.", unset=RECOMMENDED),
    _hidden("cuda.flash_sdp", bool, True, None, ("attention",), "Flash attention may run, on any device."),
    _hidden("cuda.mem_efficient_sdp", bool, True, None, ("attention",), "Memory-efficient attention may run, on any device."),
    _hidden("cuda.math_sdp", bool, True, None, ("attention",), "Attention made of products and softmax may run, on any device."),
    _hidden("cuda.cudnn_sdp", bool, True, None, ("attention",), "cuDNN's attention may run."),
    _hidden("cuda.fp16_bf16_reduction_math_sdp", bool, False, None, ("attention",),
            "Attention made of products and softmax may compute half-precision inputs in half precision, on any device."),
    Switch("nn.attention.WARN_FOR_UNFUSED_KERNELS", bool, False, None,
           "Warn once for each shape, with the reasons, where attention runs on no fused kernel.", ("attention",),
           in_flags=False),
    _hidden("cuda.overrideable_sdp", bool, True, None, ("attention",), "Attention that an extension registered may run."),
    TF32Switch("cuda.matmul.allow_tf32", bool, False, None, "Products on CUDA arrays may use tf32.", _MATMUL,
             nodes=(CUDA_MATMUL,)),
    Reduction("cuda.matmul.allow_fp16_reduced_precision_reduction", bool, "yes", None,
              "Sums of float16 products may be reduced in float16.", ("matmul",)),
    Reduction("cuda.matmul.allow_bf16_reduced_precision_reduction", bool, "yes", None,
              "Sums of bfloat16 products may be reduced in bfloat16.", ("matmul",)),
    Switch("cuda.matmul.allow_fp16_accumulation", bool, False, None,
           "Products and Fourier transforms of float16 may accumulate in float16.", ("matmul", "fft")),
    _precision("cuda.matmul", _MATMUL, "Precision that float32 inputs of products may be reduced to on CUDA arrays.",
               variables={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": {"1": "tf32", "0": "none"}}),
    Switch("cuda.cufft_plan_cache.max_size", int, 4096, AtLeast(0), "Most cuFFT plans kept for each device.", ("fft",)),
    _hidden("cuda.cufft_plan_cache.by_device", tuple, (), Pairs(), ("fft",),
            "The same for single devices, as texts: '1=100' is 100 for device 1.", in_flags=False),
    Switch("cudnn.enabled", bool, True, None, "cuDNN may run calls, and on AMD's GPUs MIOpen.", ("conv", "rnn"), library="cudnn"),
    Switch("cudnn.benchmark", bool, False, None, "Time cuDNN's plans for a convolution once and keep the fastest.", ("conv",)),
    Switch("cudnn.benchmark_limit", int, 10, AtLeast(0), "Most plans timed per convolution; 0 times all.", ("conv",)),
    Switch("cudnn.deterministic", bool, False, None, "cuDNN runs only what gives the same bits again.", ("conv", "rnn")),
    TF32Switch("cudnn.allow_tf32", bool, True, None, "Convolutions and recurrent networks on CUDA may use tf32.",
             ("conv", "rnn"), nodes=CUDNN_OPS),
    _precision("cudnn", _FP32, "Precision that float32 inputs may be reduced to on CUDA arrays, products included."),
    Switch("cudnn.depthwise_kernel", str, "auto", ("auto", "cudnn", "native"),
           "Who runs depthwise convolutions of half precision: by shape, or always one.", ("conv",)),
    _precision("cudnn.conv", ("conv",), "Precision that float32 inputs of convolutions may be reduced to on CUDA arrays.",
               default=FACTORY, unset=FACTORY),
    _precision("cudnn.rnn", ("rnn",), "Precision that float32 inputs of recurrent networks may be reduced to on CUDA arrays.",
               default=FACTORY, unset=FACTORY),
    _enabled("cusparselt", "cusparselt", ("sparse",), "cuSPARSELt may run products of 2:4 sparse operands."),
    Switch("miopen.immediate", bool, False, None,
           "MIOpen takes its first solution for a convolution instead of searching for the fastest.", ("conv",)),
    _enabled("miopen", "miopen", ("conv", "rnn"), "MIOpen may run calls."),
    _enabled("mps", "mlx", FAMILIES, "MLX arrays compute on Metal; off: on MLX's CPU stream."),
    Switch("python_native.cutedsl.enabled", bool, True, None, "Kernels written in CuTe DSL may run.", ("attention",), library="",
           in_flags=False),
    Switch("python_native.triton.enabled", bool, True, None, "Kernels written in Triton may run.", ("attention",), library="",
           in_flags=False),
    _hidden("python_native.disabled_operations", tuple, (), None, ("attention",),
            "Operations that kernels written in Python may not override."),
    Addition("python_native.also_disabled_operations", tuple, (), None, "Operations to disable besides those that are disabled.",
             ("attention",), as_attribute=False, nodes=("python_native.disabled_operations",), in_flags=False),
    _hidden("python_native.disabled_dispatch_keys", tuple, (), None, ("attention",),
            "Kinds of device on which kernels written in Python may not run."),
)  # fmt: skip

for _switch in (*_ROOT, *_CPU, *_CUDA):
    register(_switch)
