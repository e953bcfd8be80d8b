"""Differences of what is refused: values, names and types; and preferences that cannot be kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differences import difference, in_torch

import backline
from backline import backends, errors
from backline.backends import cuda, cudnn, mha, mkl, mps, quantized, xnnpack
from backline.nn import functional
from backline.nn.attention import SDPBackend, sdpa_kernel

X = np.ones((1, 2, 4, 8), np.float32)


@difference(
    "Errors", "an unknown name is assigned",
    torch="`cudnn.benchmak = True` makes an attribute that nothing reads; so on most modules.",
    backline="AttributeError with the nearest names.",
    why="A slip of the pen must not pass for a setting.",
    remedy="The name meant; values of your own go into a variable of your own. A plug-in adds a module ([plug-ins](plugins.md)).",
)  # fmt: skip
def unknown() -> None:
    for module, name in ((cudnn, "benchmak"), (mkl, "typo"), (cuda, "_initialized"), (backends, "npu")):
        with pytest.raises(AttributeError):
            setattr(module, name, True)


@in_torch(unknown)
def _(torch: Any) -> None:
    torch.backends.cudnn.benchmak = True
    torch.backends.mkl.typo = True
    assert not torch.backends.cudnn.benchmark


@difference(
    "Errors", "one class for bad values, one for bad types",
    torch="RuntimeError, TypeError or AssertionError, whose text may name another switch.",
    backline="`BadValue` is a RuntimeError and a ValueError, `BadType` a RuntimeError and a TypeError. The text names the switch, the value, the legal "
    "ones and the remedy.",
    why="Programs catch either; the reader needs all of it.",
    remedy="`except RuntimeError`, as for torch.",
)  # fmt: skip
def classes() -> None:
    with pytest.raises(RuntimeError, match=r"cudnn.conv.fp32_precision = 'foo'[\s\S]*tf32") as caught:
        cudnn.conv.fp32_precision = "foo"  # type: ignore[assignment]  # wrong on purpose
    assert isinstance(caught.value, ValueError)
    with pytest.raises(TypeError, match=r"mha\.fastpath") as caught:
        mha.set_fastpath_enabled("x")  # type: ignore[arg-type]  # wrong on purpose
    assert isinstance(caught.value, RuntimeError)


@difference(
    "Errors", "every value is checked",
    torch="`mha.set_fastpath_enabled(\"x\")`, `cudnn.benchmark_limit = \"x\"` without cuDNN and `opt_einsum.enabled = \"x\"` pass.",
    backline="They are refused, whether or not the library is there; a set that fails changes nothing.",
    why="A program that runs on one machine would fail on the next.",
    remedy="A value of the right type.",
)  # fmt: skip
def values() -> None:
    for write in (lambda: mha.set_fastpath_enabled("x"), lambda: setattr(cudnn, "benchmark_limit", "x")):  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(errors.BadType):
            write()
    with pytest.raises(errors.BadValue), cudnn.flags(enabled=False, fp32_precision="foo"):  # type: ignore[arg-type]  # wrong on purpose
        pass
    assert cudnn.enabled and mha.get_fastpath_enabled() and cudnn.benchmark_limit == 10


@in_torch(values)
def _(torch: Any) -> None:
    torch.backends.mha.set_fastpath_enabled("x")
    torch.backends.cudnn.benchmark_limit = "x"


@difference(
    "Errors", "a function is replaced by another value",
    torch="`torch.backends.mkl.verbose = True` replaces the function, and nothing is printed.",
    backline="Refused; a function may be replaced by a function, as test-suites do.",
    why="Who writes this wants the library's lines, and gets none.",
    remedy="`with mkl.verbose(1):`, or MKL_VERBOSE=1 in the environment.",
)  # fmt: skip
def replaced() -> None:
    with pytest.raises(errors.ReadOnly, match="verbose"):
        mkl.verbose = True  # type: ignore[assignment]  # wrong on purpose


@in_torch(replaced)
def _(torch: Any) -> None:
    torch.backends.mkl.verbose = True
    assert torch.backends.mkl.verbose is True


@difference(
    "Errors", "the quantized engine none",
    torch="Older releases list \"none\" in `supported_engines` and accept it; 2.13 refuses it.",
    backline="`quantized.engine` is the best engine there is; \"none\", \"\" and numbers are refused with the list.",
    why="An operation without an engine can only fail.",
    remedy="An engine of `quantized.supported_engines`.",
)  # fmt: skip
def engines() -> None:
    assert quantized.engine in quantized.supported_engines and "none" not in quantized.supported_engines
    for engine in ("none", "", 3):
        with pytest.raises(RuntimeError, match="engine"):
            quantized.engine = engine  # type: ignore[assignment]  # wrong on purpose


@difference(
    "Errors", "lists of attention kernels",
    torch="`sdpa_kernel([\"math\"])` and `sdpa_kernel([])` are accepted, a tuple is refused; the default backends stay off or on as it happens.",
    backline="Members of `SDPBackend`, one or more, in a list or tuple; anything else is refused.",
    why="A scope that switches everything off by a wrong word ends in an error far away.",
    remedy="`sdpa_kernel([SDPBackend.MATH])`.",
)  # fmt: skip
def kernels() -> None:
    for wrong in ([], ["math"]):
        with pytest.raises(RuntimeError), sdpa_kernel(wrong):  # type: ignore[arg-type]  # wrong on purpose
            pass
    with sdpa_kernel((SDPBackend.MATH,)):
        assert cuda.math_sdp_enabled() and not cuda.flash_sdp_enabled()


@in_torch(kernels)
def _(torch: Any) -> None:
    with torch.nn.attention.sdpa_kernel([]), torch.nn.attention.sdpa_kernel(["math"]):
        pass
    with pytest.raises(AssertionError):
        torch.nn.attention.sdpa_kernel((torch.nn.attention.SDPBackend.MATH,)).__enter__()


@difference(
    "Errors", "a mask beside is_causal",
    torch="Refused by the MATH kernel, computed by FLASH on the CPU.",
    backline="Refused, whichever kernel would run.",
    why="A result must not depend on the choice of a kernel.",
    remedy="`attn_mask & np.tril(...)`, or one of the two.",
)  # fmt: skip
def mask() -> None:
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(kernel), pytest.raises(errors.BadValue, match="exclude"):
            functional.scaled_dot_product_attention(X, X, X, attn_mask=np.ones((4, 4), np.float32), is_causal=True)


@in_torch(mask)
def _(torch: Any) -> None:
    x, attention = torch.ones(1, 2, 4, 8), torch.nn.attention
    with attention.sdpa_kernel([attention.SDPBackend.FLASH_ATTENTION]):
        torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(4, 4), is_causal=True)
    with attention.sdpa_kernel([attention.SDPBackend.MATH]), pytest.raises(RuntimeError):
        torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(4, 4), is_causal=True)


@difference(
    "Preferences", "a library that is not there is preferred",
    torch="`preferred_linalg_library(\"magma\")` without MAGMA raises, and may leave the preference stored.",
    backline="`BackendUnavailable` with what was looked for, where, and how to get it; nothing is stored.",
    why="The next call would meet a preference that nobody could set.",
    remedy="`except RuntimeError`, or `preferred_linalg_library(\"default\")`.",
)  # fmt: skip
def absent() -> None:
    with pytest.raises(errors.BackendUnavailable, match="MAGMA"):
        cuda.preferred_linalg_library("magma")
    assert cuda.preferred_linalg_library().name == "Default"


@in_torch(absent)
def _(torch: Any) -> None:
    with pytest.raises(RuntimeError):
        torch.backends.cuda.preferred_linalg_library("magma")
    assert "Magma" in str(torch.backends.cuda.preferred_linalg_library())


@difference(
    "Preferences", "a preference is not a demand",
    torch="Where the preferred library lacks an operation, another one runs; nothing tells.",
    backline="The same, and `explain()` gives the reason; `backends.fallback = \"error\"` makes it an error, \"warn\" a warning.",
    why="Both are wanted, and neither may be silent.",
    remedy="`backline.use(\"openblas\", only=True)` for a demand.",
)  # fmt: skip
def preference() -> None:
    with backline.use("blis"):
        assert "blis" in str(backline.explain(backline.linalg.cholesky, np.eye(4)))
    with backends.flags(fallback="error"), backline.use("blis"), pytest.raises(errors.FallbackRefused, match=r"(?i)blis"):
        backline.linalg.cholesky(np.eye(4))


@difference(
    "Preferences", "the order of attention kernels",
    torch="On some GPUs cuDNN's kernel comes first; `set_priority` holds on CUDA.",
    backline="FLASH, EFFICIENT, MATH, CUDNN on every device; an order that is set holds on every device, the CPU too.",
    why="A release or a device must not change the kernel.",
    remedy="`sdpa_kernel([...], set_priority=True)`.",
)  # fmt: skip
def order() -> None:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert "math" in str(backline.explain(functional.scaled_dot_product_attention, X, X, X)).split("chosen", 1)[1].split("\n")[0]


@difference(
    "Preferences", "precision is a permission",
    torch="`fp32_precision = \"tf32\"` does nothing where the hardware has none of it, in silence.",
    backline="The same, and `explain()` and `backends.effective_precision()` say what is in effect; `backends.emulate = True` rounds the inputs, so that "
    "the error can be measured anywhere.",
    why="Without it, a program cannot know which precision it has.",
    remedy="`explain().effective_precision`.",
)  # fmt: skip
def permission() -> None:
    a = np.full((64, 64), 1 + 2**-20, np.float32)
    with backends.flags(fp32_precision="tf32", emulate=True):
        assert (backline.matmul(a, a) == 64).all() and "emulated" in backline.explain().effective_precision
    assert (backline.matmul(a, a) != 64).all()


@difference(
    "Preferences", "timing of candidates",
    torch="`cudnn.benchmark` times convolutions on CUDA; a shape met while it was off is not timed later.",
    backline="`backends.benchmark` times every operation on every device, once for a shape, whenever it is on; determinism switches timing off.",
    why="The switch means the same for all libraries.",
    remedy="Nothing: `cudnn.benchmark` governs cuDNN as it does in torch.",
)  # fmt: skip
def benchmark() -> None:
    a = np.ones((5, 7))
    with backends.flags(benchmark=True, benchmark_limit=1, deterministic=True):
        backline.matmul(a, a.T)
        assert "determin" in str(backline.explain())


@difference(
    "Preferences", "the plan cache of a device that is not there",
    torch="Without CUDA every use of `cufft_plan_cache` raises.",
    backline="`size` is 0, `max_size` its default and `clear()` does nothing; setting or indexing raises `BackendUnavailable`.",
    why="Clean-up code runs on every machine; a limit that has no effect is an error.",
    remedy="`if cuda.is_available():` before the assignment.",
)  # fmt: skip
def plan_cache() -> None:
    if cuda.is_available():
        return
    cuda.cufft_plan_cache.clear()
    assert cuda.cufft_plan_cache.size == 0 and cuda.cufft_plan_cache.max_size == 4096
    with pytest.raises(errors.BackendUnavailable):
        cuda.cufft_plan_cache.max_size = 0


@in_torch(plan_cache)
def _(torch: Any) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(AssertionError):
            torch.backends.cuda.cufft_plan_cache.clear()


@difference(
    "Preferences", "`is_available()` looks at the machine",
    torch="Tells what the binary was compiled with (`mkl`, `openmp`, `mkldnn`, `nnpack`).",
    backline="Tells that a library was found and can be loaded now; a broken one is not available, and `backline info` says why.",
    why="Backline drives the libraries of the machine, it brings none.",
    remedy="Nothing.",
)  # fmt: skip
def available() -> None:
    from backline import libraries

    for name in ("mkl", "onednn", "nnpack"):
        module = {"onednn": "mkldnn"}.get(name, name)
        assert getattr(backends, module).is_available() is libraries.get(name).available()


@difference(
    "Preferences", "libraries can be switched off one by one",
    torch="`xnnpack.enabled` cannot be set, `mkl.enabled = False` is an attribute without effect, `openmp` has none.",
    backline="Every library has `enabled`, `is_enabled()`, `flags()`; off is a prohibition that no fallback passes over.",
    why="Where a library is wrong or slow it must be possible to do without it.",
    remedy="Nothing.",
)  # fmt: skip
def switched_off() -> None:
    xnnpack.enabled = False
    assert not xnnpack.enabled and not xnnpack.is_enabled()
    with mkl.flags(enabled=False):
        assert "mkl" not in str(backline.explain(backline.matmul, np.eye(3), np.eye(3)).library)


@in_torch(switched_off)
def _(torch: Any) -> None:
    import torch.backends.xnnpack

    with pytest.raises(RuntimeError):
        torch.backends.xnnpack.enabled = False
    assert not hasattr(torch.backends.mkl, "enabled") and not hasattr(torch.backends.openmp, "enabled")


@difference(
    "Preferences", "questions about a device that is not there",
    torch="`mps.is_macos_or_newer(14, 0)` raises in builds without MPS; `can_use_flash_attention` is False for arrays on the CPU.",
    backline="False off macOS; `can_use_*` answer for the device of the arrays they are given.",
    why="A question has an answer on every machine.",
    remedy="Nothing.",
)  # fmt: skip
def questions() -> None:
    import sys

    assert mps.is_macos_or_newer(14, 0) in ((False,) if sys.platform != "darwin" else (True, False))
    assert cuda.can_use_flash_attention(cuda.SDPAParams(X, X, X, None, 0.0, False, False)) in (True, False)
    assert cuda.is_flash_attention_available("cpu") in (True, False)


@in_torch(questions)
def _(torch: Any) -> None:
    import sys

    x = torch.ones(1, 2, 4, 8)
    assert not torch.backends.cuda.can_use_flash_attention(torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, False, False))
    if sys.platform != "darwin":
        with pytest.raises(RuntimeError):
            torch.backends.mps.is_macos_or_newer(14, 0)
