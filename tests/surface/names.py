"""The table of names: the 140 of the model, those of our own, and every switch behind them.

Written from the specification of the surface, not from the declarations: what is missing there shows in the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from backline.switches.enumerations import BlasBackend, LinalgBackend, ROCmFABackend

# --- names -------------------------------------------------------------------------------------------------------
#
# A line: name, kind, and for functions and classes the parameters as a call sees them. "..." stands for further keywords of our
# own, which default to None. Kinds: "switch" and "handle" and "list" are attributes; "fixed" is a constant; "item" is [ ].

MODEL = {
    "": """
        fp32_precision switch
        set_flags function (_fp32_precision=None, ...)
        flags function (fp32_precision=None, ...)
        disable_global_flags function ()
        flags_frozen function ()
        ContextProp class (getter, setter)
        PropModule class (m, name)
    """,
    "cpu": "get_cpu_capability function ()",
    "cuda": """
        is_built function ()
        matmul handle
        cufft_plan_cache handle
        cuBLASModule class ()
        cuFFTPlanCacheManager class ()
        cuFFTPlanCache class (device_index)
        cuFFTPlanCacheAttrContextProp class (getter, setter)
        preferred_linalg_library function (backend=None)
        preferred_blas_library function (backend=None)
        cublas_workspace_size function (size=None)
        cublaslt_workspace_size function (size=None)
        blas_workspace_size function (size=None, backend=None)
        preferred_rocm_fa_library function (backend=None)
        is_ck_sdpa_available function ()
        SDPAParams class (query, key, value, attn_mask, dropout, is_causal, enable_gqa)
        flash_sdp_enabled function ()
        mem_efficient_sdp_enabled function ()
        math_sdp_enabled function ()
        cudnn_sdp_enabled function ()
        enable_flash_sdp function (enabled)
        enable_mem_efficient_sdp function (enabled)
        enable_math_sdp function (enabled)
        enable_cudnn_sdp function (enabled)
        fp16_bf16_reduction_math_sdp_allowed function ()
        allow_fp16_bf16_reduction_math_sdp function (enabled)
        is_flash_attention_available function (device=None)
        can_use_flash_attention function (params, debug=False)
        can_use_efficient_attention function (params, debug=False)
        can_use_cudnn_attention function (params, debug=False)
        sdp_kernel function (enable_flash=True, enable_math=True, enable_mem_efficient=True, enable_cudnn=True)
    """,
    "cuda.matmul": """
        allow_tf32 switch
        allow_fp16_reduced_precision_reduction switch
        allow_fp16_reduced_precision_reduction_split_k fixed
        allow_bf16_reduced_precision_reduction switch
        allow_bf16_reduced_precision_reduction_split_k fixed
        allow_fp16_accumulation switch
        fp32_precision switch
    """,
    "cuda.cufft_plan_cache": """
        __getitem__ item (device)
        caches list
        size fixed
        clear function ()
        max_size switch
    """,
    "cudnn": """
        is_available function ()
        version function ()
        CUDNN_TENSOR_DTYPES fixed
        is_acceptable function (tensor)
        enabled switch
        benchmark switch
        benchmark_limit switch
        deterministic switch
        allow_tf32 switch
        fp32_precision switch
        conv handle
        depthwise_kernel switch
        set_flags function (_enabled=None, _benchmark=None, _benchmark_limit=None, _deterministic=None, _allow_tf32=None, _fp32_precision=None, _depthwise_kernel=None)
        flags function (enabled=None, benchmark=None, benchmark_limit=None, deterministic=None, allow_tf32=None, fp32_precision=None, depthwise_kernel=None)
    """,
    "cudnn.conv": "fp32_precision switch\n backend fixed\n op fixed",
    "cudnn.rnn": """
        fp32_precision switch
        Unserializable class (inner)
        get_cudnn_mode function (mode)
        init_dropout_state function (dropout, train, dropout_seed, dropout_state)
    """,
    "cusparselt": "is_available function ()\n version function ()\n get_max_alg_id function ()",
    "kleidiai": "is_available function ()",
    "mha": "get_fastpath_enabled function ()\n set_fastpath_enabled function (value)",
    "miopen": "immediate switch\n set_flags function (_immediate=None, ...)\n flags function (immediate=None, enabled=None)",
    "mkl": "is_available function ()\n VERBOSE_OFF fixed\n VERBOSE_ON fixed\n verbose function (enable)",
    "mkldnn": """
        is_available function ()
        is_acl_available function ()
        enabled switch
        deterministic switch
        allow_tf32 switch
        fp32_precision switch
        matmul handle
        conv handle
        rnn handle
        set_flags function (_enabled=None, _deterministic=None, _allow_tf32=None, _fp32_precision=None)
        flags function (enabled=None, deterministic=None, allow_tf32=None, fp32_precision=None)
        VERBOSE_OFF fixed
        VERBOSE_ON fixed
        VERBOSE_ON_CREATION fixed
        verbose function (level)
    """,
    "mkldnn.matmul": "fp32_precision switch\n backend fixed\n op fixed",
    "mkldnn.conv": "fp32_precision switch\n backend fixed\n op fixed",
    "mkldnn.rnn": "fp32_precision switch\n backend fixed\n op fixed",
    "mps": """
        is_built function ()
        is_available function ()
        is_macos_or_newer function (major, minor)
        is_macos13_or_newer function (minor=0)
        get_name function ()
        get_core_count function ()
    """,
    "nnpack": "is_available function ()\n set_flags function (_enabled=None)\n flags function (enabled=None)",
    "openmp": "is_available function ()",
    "opt_einsum": """
        is_available function ()
        get_opt_einsum function ()
        enabled switch
        strategy switch
        set_flags function (_enabled=None, _strategy=None)
        flags function (enabled=None, strategy=None)
    """,
    "python_native": """
        all_dsls list
        available_dsls list
        get_dsl_operations function (dsl_name)
        disable_operations function (*op_symbols)
        enable_operations function (*op_symbols)
        disable_dispatch_keys function (*dispatch_keys)
        enable_dispatch_keys function (*dispatch_keys)
        operations_disabled function (*op_symbols)
        is_operation_disabled function (op_symbol)
        is_dsl_disabled function (dsl_name)
        DSLController class (dsl_name)
    """,
    "quantized": "engine switch\n supported_engines list",
    "xeon.run_cpu": "create_args function (parser=None)\n main function (args)",
    "xnnpack": "enabled switch",
}  # fmt: skip

PER_MODULE = {"": 7, "cpu": 1, "cuda": 30, "cuda.matmul": 7, "cuda.cufft_plan_cache": 5, "cudnn": 14, "cudnn.conv": 3, "cudnn.rnn": 4,
              "cusparselt": 3, "kleidiai": 1, "mha": 2, "miopen": 3, "mkl": 4, "mkldnn": 15, "mkldnn.matmul": 3, "mkldnn.conv": 3,
              "mkldnn.rnn": 3, "mps": 6, "nnpack": 3, "openmp": 1, "opt_einsum": 6, "python_native": 11, "quantized": 2,
              "xeon.run_cpu": 2, "xnnpack": 1}  # fmt: skip

_FLAGS = "flags function (...)\n set_flags function (...)\n"
_UNIFORM = "is_available function ()\n version function ()\n enabled switch\n is_enabled function ()\n" + _FLAGS
_PLANS = "plan_cache handle\n"
_TRANSFORMS = "fft_plan_cache handle\n"
OWN = {
    "": """
        fallback switch
        benchmark switch
        benchmark_limit switch
        benchmark_overhead switch
        deterministic switch
        warn_only switch
        determinism_level switch
        promote switch
        emulate switch
        num_threads switch
        prefer switch
        only switch
        max_error switch
        share_processors switch
        effective_precision function ()
        GenericModule class (m, name)
    """,
    "cpu": _FLAGS,
    "cuda": _FLAGS + """
        is_available function ()
        version function ()
        BlasBackend class
        LinalgBackend class
        ROCmFABackend class
        SDPBackend class
    """,
    "cuda.matmul": _FLAGS,
    "cuda.cufft_plan_cache": "flags function (max_size=None)",
    "cudnn": "is_enabled function ()\n rnn module",
    "cudnn.conv": "flags function (fp32_precision=None)",
    "cudnn.rnn": "flags function (fp32_precision=None)\n set_flags function (_fp32_precision=None)",
    "mha": _FLAGS,
    "mkl": _UNIFORM + _PLANS + _TRANSFORMS,
    "fftw": _UNIFORM + _TRANSFORMS + """
        planning switch
        plan_time_limit switch
        export_wisdom function (path)
        import_wisdom function (path)
    """,
    "mkldnn": _UNIFORM,
    **dict.fromkeys(("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"), "flags function (fp32_precision=None)"),
    "openmp": _UNIFORM + "runtimes function ()\n num_threads function (n)",
    "python_native": "flags function (cutedsl=None, triton=None, ...)\n set_flags function (_cutedsl=None, _triton=None, ...)\n cutedsl handle\n triton handle",
    **dict.fromkeys(("python_native.cutedsl", "python_native.triton"), """
        name fixed
        available fixed
        version fixed
        enabled switch
        enable function ()
        disable function ()
        disabled function ()
    """),
    "quantized": _FLAGS,
    "xeon": "run_cpu module",
    "xeon.run_cpu": "CPUInfo class (text=None, ...)",
    **dict.fromkeys(("cusparselt", "kleidiai", "miopen", "mps", "nnpack", "opt_einsum", "xnnpack"), _UNIFORM),
    "numpy": _UNIFORM + _PLANS + _TRANSFORMS,
    "scipy": _UNIFORM + _TRANSFORMS,
    "libmvec": _UNIFORM,
    **dict.fromkeys(("openblas", "blis"), _UNIFORM + _PLANS),
    "kernels": _UNIFORM + _PLANS + _TRANSFORMS,
}  # fmt: skip
MODULES = sorted({path.partition(".")[0] for path in (*MODEL, *OWN)} - {""})


@dataclass(frozen=True)
class Name:
    """One name: where it is, what it is, and how it is called."""

    path: str
    name: str
    kind: str
    signature: str = ""

    @property
    def full(self) -> str:
        return f"{self.path}.{self.name}".lstrip(".")


def lines(table: dict[str, str]) -> list[Name]:
    return [Name(path, *line.split(maxsplit=2)) for path, text in table.items() for line in text.splitlines() if line.strip()]


# --- switches ----------------------------------------------------------------------------------------------------

ON_OFF = (True, False)
CPU_WORDS = ("none", "ieee", "tf32", "bf16")
CUDA_WORDS = ("none", "ieee", "tf32")
COUNTS = (0, 1, 10, 2**70)
LIBRARIES = ((), ("mkl",), ("blis", "mkl"), ("cusolver", "magma", "cublas"))
DETECTED = "what the machine has"


@dataclass(frozen=True)
class Setting:
    """A switch: its values, and how it is reached where that is not as an attribute of its module.

    `v` in a text stands for the value. `legal` are the values as they are given and read; `alike` those that read as another
    one. `bad` are illegal values of the right type. `least` is the bound of a number.
    """

    kind: type
    default: Any
    legal: tuple[Any, ...]
    alike: tuple[tuple[Any, Any], ...] = ()
    bad: tuple[Any, ...] = ()
    read: str = ""
    write: str = ""
    flags: str = ""
    set_flags: str = ""
    least: int | None = None
    query: bool = False  # None asks instead of setting


def _by_function(module: str, name: str, read: str, write: str, *values: Any, **more: Any) -> dict[str, Setting]:
    ways = {"flags": f"backends.{module}.flags({name}=v)", "set_flags": f"backends.{module}.set_flags(_{name}=v)"}
    read, write = f"backends.{module}.{read}", f"backends.{module}.{write}"
    return {f"{module}.{name}": Setting(*values, read=read, write=write, **ways, **more)}


def _by_name(name: str) -> dict[str, str]:
    return {"read": f"switches.get({name!r})", "write": f"switches.assign({name!r}, v)"}


def _only_by_name(name: str, *values: Any, **more: Any) -> dict[str, Setting]:
    return {name: Setting(*values, **_by_name(name), flags="-", set_flags="-", **more)}


_ENABLED = Setting(bool, True, ON_OFF)
_OFF = Setting(bool, False, ON_OFF)
_LIMIT = Setting(int, 10, COUNTS, least=0)
_CPU_NODE = Setting(str, "none", CPU_WORDS)
_CUDA_NODE = Setting(str, "none", CUDA_WORDS, bad=("bf16",))
_HANDLE = {"set_flags": "-"}
_REDUCTION = Setting(
    bool, True, ON_OFF, (((True,), True), ([False], False), ((True, True), True), ((False, True), False), ([False, False], False)),
    bad=((True, False), (), (True, True, True)),
)  # fmt: skip


def _preferred(name: str, kind: Any, fresh: Any, legal: tuple[Any, ...], **more: Any) -> dict[str, Setting]:
    """Words and members are taken, and members are read."""
    call = f"preferred_{name}_library"
    alike = [(m.name.lower(), m) for m in legal] + [*more.items()] + [(m, fresh) for m in kind if m not in legal]
    return _by_function("cuda", call, f"{call}()", f"{call}(v)", str, fresh, legal, tuple(alike), query=True)


SETTINGS: dict[str, Setting] = {
    "fp32_precision": _CPU_NODE,
    "fallback": Setting(str, "allow", ("allow", "warn", "error")),
    "benchmark": Setting(bool, False, (*ON_OFF, "online")),
    "benchmark_limit": _LIMIT,
    "deterministic": _OFF,
    "warn_only": _OFF,
    "determinism_level": Setting(str, "run", ("run", "threads")),
    "emulate": _OFF,
    "num_threads": Setting(int, DETECTED, (1, 2, 77, 1024), least=1),
    "prefer": Setting(tuple, (), LIBRARIES, ((["mkl", "blis", "mkl"], ("mkl", "blis")),), (("blas",), ("mkl", "lapack"))),
    "only": Setting(tuple, (), LIBRARIES, bad=(("blas",), ("MKL",))),
    "promote": Setting(str, "error", ("error", "numpy"), bad=("numpys",)),
    "share_processors": _ENABLED,
    "max_error": Setting(float, math.inf, (0.0, 1e-6, 3.5, math.inf), ((2, 2.0),), (-1e-9, math.nan), least=0),
    **_only_by_name("sdp_priority", tuple, (), ((), ("math",), ("cudnn_attention", "flash_attention")), bad=(("flash",),)),
    "float32_matmul_precision": Setting(
        str, "highest", ("highest", "high", "medium"), (("HIGH", "high"), ("Medium", "medium")), ("foo",),
        "backline.get_float32_matmul_precision()", "backline.set_float32_matmul_precision(v)"),
    "utils.deterministic.fill_uninitialized_memory": Setting(
        bool, True, ON_OFF, read="backline.utils.deterministic.fill_uninitialized_memory",
        flags="backline.utils.deterministic.flags(fill_uninitialized_memory=v)", set_flags="-"),
    "benchmark_overhead": Setting(float, 0.03, (0.0, 0.03, 0.5, 1.0), ((1, 1.0),), (-1e-9, 1.5, math.inf, math.nan), least=0),
    "nn.attention.WARN_FOR_UNFUSED_KERNELS": Setting(
        bool, False, ON_OFF, read="backline.nn.attention.WARN_FOR_UNFUSED_KERNELS", flags="-", set_flags="-"),
    **dict.fromkeys(
        (f"{name}.enabled" for name in ("numpy", "openblas", "mkl", "blis", "mkldnn", "nnpack", "xnnpack", "kleidiai", "openmp",
                                         "opt_einsum", "cudnn", "cusparselt", "miopen", "mps", "fftw", "scipy", "libmvec", "kernels")), _ENABLED),
    "fftw.planning": Setting(str, "estimate", ("estimate", "measure", "patient")),
    "fftw.plan_time_limit": Setting(float, 10.0, (0.0, 2.5, math.inf), ((3, 3.0),), (-1.0, math.nan), least=0),
    **_only_by_name("mkl.verbose_level", int, 0, (0, 1, 2), bad=(3, -1)),
    **_only_by_name("mkldnn.verbose_level", int, 0, (0, 1, 2), bad=(3, -1)),
    **_by_function("cpu", "capability", "get_cpu_capability()", "set_flags(v)", str, DETECTED, (), (("default", "DEFAULT"),), ("avx9",)),
    "mkldnn.deterministic": _OFF,
    "mkldnn.allow_tf32": _OFF,
    **dict.fromkeys(("mkldnn.fp32_precision",), _CPU_NODE),
    **{f"mkldnn.{op}.fp32_precision": Setting(str, "none", CPU_WORDS, **_HANDLE) for op in ("matmul", "conv", "rnn")},
    "opt_einsum.strategy": Setting(str, "auto", (
        "auto", "greedy", "optimal", "auto-hq", "branch-1", "branch-2", "branch-all", "dp", "dynamic-programming", "eager",
        "opportunistic", "random-greedy", "random-greedy-128")),
    **_by_function("mha", "fastpath", "get_fastpath_enabled()", "set_fastpath_enabled(v)", bool, True, ON_OFF),
    "quantized.engine": Setting(str, "x86", ("x86", "onednn", "fbgemm", "qnnpack", "reference"), bad=("none", "auto")),
    **_preferred("linalg", LinalgBackend, LinalgBackend.Default, tuple(LinalgBackend)),
    **_preferred("rocm_fa", ROCmFABackend, ROCmFABackend.Default, tuple(ROCmFABackend)),
    **_preferred("blas", BlasBackend, BlasBackend.Cublas, tuple(BlasBackend)[1:], default=BlasBackend.Cublas,
                 hipblas=BlasBackend.Cublas, hipblaslt=BlasBackend.Cublaslt),
    **_by_function("cuda", "cublas_workspace_size", "cublas_workspace_size()", "cublas_workspace_size(v)", int, 8_519_680, (0, 1, 10**7), least=0, query=True),
    **_by_function("cuda", "cublaslt_workspace_size", "cublaslt_workspace_size()", "cublaslt_workspace_size(v)", int, 8_519_680, (0, 1, 10**6), ((10**8, 8_519_680),), least=0, query=True),
    **{key: value for name in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
       for key, value in _by_function("cuda", name, f"{name}_enabled()", f"enable_{name}(v)", bool, True, ON_OFF).items()},
    **_by_function("cuda", "fp16_bf16_reduction_math_sdp", "fp16_bf16_reduction_math_sdp_allowed()", "allow_fp16_bf16_reduction_math_sdp(v)", bool, False, ON_OFF),
    **_only_by_name("cuda.overrideable_sdp", bool, True, ON_OFF),
    "cuda.matmul.allow_tf32": _OFF,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": _REDUCTION,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": _REDUCTION,
    "cuda.matmul.allow_fp16_accumulation": _OFF,
    "cuda.matmul.fp32_precision": _CUDA_NODE,
    "cuda.cufft_plan_cache.max_size": Setting(int, 4096, COUNTS, least=0, **_HANDLE),
    **_only_by_name("cuda.cufft_plan_cache.by_device", tuple, (), ((), ("0=7", "1=100")), bad=(("one",), ("1=-1",))),
    "cudnn.benchmark": _OFF,
    "cudnn.benchmark_limit": _LIMIT,
    "cudnn.deterministic": _OFF,
    "cudnn.allow_tf32": _ENABLED,
    "cudnn.fp32_precision": _CUDA_NODE,
    "cudnn.depthwise_kernel": Setting(str, "auto", ("auto", "cudnn", "native")),
    "cudnn.conv.fp32_precision": Setting(str, "tf32", CUDA_WORDS, bad=("bf16",), **_HANDLE),
    "cudnn.rnn.fp32_precision": Setting(str, "tf32", CUDA_WORDS, bad=("bf16",)),
    "miopen.immediate": _OFF,
    **{f"python_native.{name}.enabled": Setting(bool, True, ON_OFF, flags=f"backends.python_native.flags({name}=v)",
                                                set_flags=f"backends.python_native.set_flags(_{name}=v)") for name in ("cutedsl", "triton")},
    "python_native.disabled_operations": Setting(tuple, (), ((), ("a",), ("b", "a")), **_by_name("python_native.disabled_operations")),
    **_only_by_name("python_native.also_disabled_operations", tuple, (), ((), ("a",), ("b", "a"))),
    "python_native.disabled_dispatch_keys": Setting(tuple, (), ((), ("CPU",), ("MPS", "CUDA")), **_by_name("python_native.disabled_dispatch_keys")),
}  # fmt: skip


# --- the machine -------------------------------------------------------------------------------------------------


@pytest.fixture
def everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with one GPU and all libraries, so that every legal value can be set."""
    from backline.backends import _module_factory, _validators
    from backline.libraries import devices, quantized_engines

    monkeypatch.setattr(_module_factory, "available", lambda backend: True)
    monkeypatch.setattr(_validators, "_there", lambda name: True)
    monkeypatch.setattr(quantized_engines, "reason", lambda name: "" if name in quantized_engines._ORDER else f"there is no engine {name!r}")
    monkeypatch.setattr(quantized_engines.platform, "machine", lambda: "x86_64")
    for name, answer in (("count", 1), ("current", 0)):
        monkeypatch.setattr(devices, name, lambda answer=answer: answer)
    monkeypatch.setattr(devices, "capability", lambda index: (8, 0))
