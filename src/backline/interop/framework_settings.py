"""The settings that Backline and another framework both have: one row each, with how it is read and written there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

from ..records import Record

__all__ = ["FRAMEWORKS", "Framework", "Setting"]


class Setting(Record):
    """One switch of Backline, and the setting of a framework that means the same.

    Parameters
    ----------
    switch
        Name of the switch.
    theirs
        What the framework calls it, for the table.
    read, write
        Functions of the framework's module (and a value).
    words
        Backline's values and the framework's, where they differ. A value that is missing here cannot be said there.
    save
        Function of the module that returns one which puts back what holds now; None where writing what was read does that.
    also
        Further values of the framework, and Backline's that mean the same: what is read there, and never written.
    """

    switch: str
    theirs: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], Any]
    words: Mapping[Any, Any] | None = None
    save: Callable[[Any], Callable[[], None]] | None = None
    also: Mapping[Any, Any] = MappingProxyType({})


class Framework(Record):
    """A framework whose settings can be read and written while a program runs.

    Parameters
    ----------
    name
        Name of the package that is imported.
    settings
        What can be set there.
    without
        Switches that mean something there, and why they cannot be set.
    """

    name: str
    settings: tuple[Setting, ...]
    without: Mapping[str, str]


def _attribute(path: str, switch: str = "") -> Setting:
    """A setting that is an attribute: ``torch.backends.cudnn.enabled``."""
    *parts, last = path.split(".")

    def owner(module: Any) -> Any:
        for part in parts:
            module = getattr(module, part)
        return module

    return Setting(
        switch or path.removeprefix("backends."), path, lambda module: getattr(owner(module), last),
        lambda module, value: setattr(owner(module), last, value),
    )  # fmt: skip


def _functions(switch: str, theirs: str, get: str, put: str, words: Mapping[Any, Any] | None = None) -> Setting:
    """A setting with a function that returns it and one that takes it."""

    def find(module: Any, path: str) -> Any:
        for part in path.split("."):
            module = getattr(module, part)
        return module

    return Setting(switch, theirs, lambda module: find(module, get)(), lambda module, value: find(module, put)(value), words)


def _deterministic_level(torch: Any, value: bool) -> None:
    torch.use_deterministic_algorithms(value, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())


def _warn_only(torch: Any, value: bool) -> None:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=value)


_PRECISIONS = tuple(
    f"backends.{node}.fp32_precision"
    for node in ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
)
_SDP = {name: f"backends.cuda.{name}" for name in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")}

TORCH = Framework(
    "torch",
    (
        _functions("num_threads", "set_num_threads", "get_num_threads", "set_num_threads"),
        Setting(
            "deterministic", "use_deterministic_algorithms",
            lambda t: t.are_deterministic_algorithms_enabled(), _deterministic_level,
        ),
        Setting(
            "warn_only", "use_deterministic_algorithms(warn_only=)",
            lambda t: t.is_deterministic_algorithms_warn_only_enabled(), _warn_only,
        ),
        _attribute("utils.deterministic.fill_uninitialized_memory", "utils.deterministic.fill_uninitialized_memory"),
        _attribute("backends.fp32_precision"),
        # Its attribute writes the node above it.
        Setting(
            "mkldnn.fp32_precision", "backends.mkldnn.set_flags(_fp32_precision=)", lambda t: t.backends.mkldnn.fp32_precision,
            lambda t, value: t.backends.mkldnn.set_flags(_fp32_precision=value),
        ),
        _attribute("backends.cudnn.fp32_precision"),
        *map(_attribute, _PRECISIONS),
        _attribute("backends.cuda.matmul.allow_fp16_accumulation"),
        _attribute("backends.cudnn.enabled"), _attribute("backends.cudnn.benchmark"),
        _attribute("backends.cudnn.benchmark_limit"), _attribute("backends.cudnn.deterministic"),
        _attribute("backends.mkldnn.enabled"), _attribute("backends.mkldnn.deterministic"),
        Setting(
            "nnpack.enabled", "backends.nnpack.set_flags", lambda t: t._C._get_nnpack_enabled(),
            lambda t, value: t.backends.nnpack.set_flags(value),
        ),
        _attribute("backends.opt_einsum.enabled"), _attribute("backends.opt_einsum.strategy"),
        _attribute("backends.quantized.engine"),
        _functions(
            "mha.fastpath", "backends.mha.set_fastpath_enabled",
            "backends.mha.get_fastpath_enabled", "backends.mha.set_fastpath_enabled",
        ),
        *(
            _functions(f"cuda.{name}", f"backends.cuda.enable_{name}", f"{path}_enabled", f"backends.cuda.enable_{name}")
            for name, path in _SDP.items()
        ),
        _functions(
            "cuda.fp16_bf16_reduction_math_sdp", "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
            "backends.cuda.fp16_bf16_reduction_math_sdp_allowed", "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
        ),
        Setting(
            "cuda.preferred_linalg_library", "backends.cuda.preferred_linalg_library",
            lambda t: t.backends.cuda.preferred_linalg_library().name.lower(),
            lambda t, value: t.backends.cuda.preferred_linalg_library(value),
        ),
        Setting(
            "cuda.preferred_blas_library", "backends.cuda.preferred_blas_library",
            lambda t: t.backends.cuda.preferred_blas_library().name.lower(),
            lambda t, value: t.backends.cuda.preferred_blas_library(value),
        ),
    ),
    {
        "determinism_level": "torch promises the same bits from run to run only, on the same number of threads",
        "benchmark": "torch measures convolutions of cuDNN only: set cudnn.benchmark",
        "cuda.cufft_plan_cache.max_size": "it is a setting of one device there: torch.backends.cuda.cufft_plan_cache[i].max_size",
        "prefer": "torch has no choice of libraries on the CPU",
        "only": "torch has no choice of libraries on the CPU",
        "emulate": "torch computes in the precision that the device has",
        "promote": "torch has rules of its own",
    },
)  # fmt: skip


_JAX_PRECISION = "jax_default_matmul_precision"


def _jax_precision(jax: Any, value: Any) -> None:
    jax.config.update(_JAX_PRECISION, value)


def _jax_precision_now(jax: Any) -> Callable[[], None]:
    """Puts back the value of the process: where a scope of JAX is open, this thread reads that of the scope."""
    with ThreadPoolExecutor(1) as pool:
        process_wide = pool.submit(getattr, jax.config, _JAX_PRECISION).result()
    return functools.partial(_jax_precision, jax, process_wide)


JAX = Framework(
    "jax",
    (
        Setting(
            "fp32_precision", _JAX_PRECISION, lambda jax: jax.config.jax_default_matmul_precision, _jax_precision,
            {"none": None, "ieee": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}, _jax_precision_now,
            {
                "float32": "ieee", "F32_F32_F32": "ieee", "high": "tf32", "TF32_TF32_F32": "tf32", "BF16_BF16_F32": "bf16",
                "default": "none",
            },
        ),
    ),
    {
        "num_threads": "XLA makes its pool when the CPU backend starts: limit the cores of the process (taskset, backline run)",
        "deterministic": "XLA reads XLA_FLAGS=--xla_gpu_deterministic_ops=true when it starts; its CPU code has no such flag",
        "benchmark": "XLA's autotuning is set when its backend starts: XLA_FLAGS=--xla_gpu_autotune_level=4",
        "opt_einsum.strategy": "jax.numpy.einsum takes it with each call: optimize=",
        "prefer": "XLA has no choice of libraries",
        "only": "XLA has no choice of libraries",
    },
)  # fmt: skip


def _cufft_plans(cupy: Any) -> Any:
    return cupy.fft.config.get_plan_cache()


CUPY = Framework(
    "cupy",
    (
        Setting(
            "cuda.cufft_plan_cache.max_size", "fft.config.get_plan_cache().set_size", lambda cupy: _cufft_plans(cupy).get_size(),
            lambda cupy, value: _cufft_plans(cupy).set_size(value),
        ),
    ),
    {
        "cuda.matmul.fp32_precision": "CuPy reads CUPY_TF32 when it is imported",
        "fp32_precision": "CuPy reads CUPY_TF32 when it is imported",
        "deterministic": "CuPy has no such setting; CUBLAS_WORKSPACE_CONFIG is read when cuBLAS starts",
        "num_threads": "CuPy computes on the device",
    },
)  # fmt: skip


def _pools(threadpoolctl: Any) -> list[Any]:
    return [pool for pool in threadpoolctl.ThreadpoolController().lib_controllers if not pool.internal_api.startswith("backline")]


def _numpys_pools(numpy: Any) -> list[Any]:
    """The pool of the BLAS that NumPy's wheel brought."""
    import threadpoolctl

    return [pool for pool in _pools(threadpoolctl) if "numpy.libs" in (pool.filepath or "")]


def _threads(theirs: str, pools: Callable[[Any], list[Any]]) -> Setting:
    def write(module: Any, value: int) -> None:
        for pool in pools(module):
            pool.set_num_threads(value)

    def save(module: Any) -> Callable[[], None]:
        held = [(pool, pool.num_threads) for pool in pools(module)]

        def put_back() -> None:
            for pool, count in held:
                pool.set_num_threads(count)

        return put_back

    def most(module: Any) -> int | None:
        return max((pool.num_threads for pool in pools(module)), default=None)

    return Setting("num_threads", theirs, most, write, None, save)


THREADPOOLCTL = Framework("threadpoolctl", (_threads("threads of every pool in the process", _pools),), {})
NUMPY = Framework(
    "numpy",
    (_threads("threads of the BLAS in NumPy's wheel", _numpys_pools),),
    {
        "prefer": "backline.numpy runs under this switch; NumPy's own functions have one BLAS",
        "only": "backline.numpy runs under this switch; NumPy's own functions have one BLAS",
        "deterministic": "NumPy's BLAS has no such setting; on one thread its bits are the same from run to run",
    },
)
FRAMEWORKS: dict[str, Framework] = {each.name: each for each in (TORCH, JAX, CUPY, NUMPY, THREADPOOLCTL)}
