"""Lines that public programs have about ``torch.backends``, each in a form of our own: what it sets, and what it reads then.

A line is a statement or several; what stands after ``=>`` is an expression that is read in the end and is the same for torch,
unless the line is among `DIFFERENT`, with the reason.
"""

from __future__ import annotations

LINES = """
torch.backends.cudnn.benchmark = True => torch.backends.cudnn.benchmark
torch.backends.cudnn.benchmark = False => torch.backends.cudnn.benchmark
torch.backends.cudnn.deterministic = True; torch.backends.cudnn.benchmark = False => (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
torch.backends.cudnn.enabled = False => torch.backends.cudnn.enabled
torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark = True, True => torch.backends.cudnn.enabled
torch.backends.cudnn.fastest = None
cudnn = torch.backends.cudnn; cudnn.benchmark = not cudnn.benchmark => cudnn.benchmark
setattr(torch.backends.cudnn, 'deterministic', True) => getattr(torch.backends.cudnn, 'deterministic')
torch.backends.cudnn.allow_tf32 = True => torch.backends.cudnn.allow_tf32
torch.backends.cudnn.allow_tf32 = False => torch.backends.cudnn.allow_tf32
torch.backends.cuda.matmul.allow_tf32 = True => torch.backends.cuda.matmul.allow_tf32
torch.backends.cuda.matmul.allow_tf32 = False => torch.backends.cuda.matmul.allow_tf32
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True => (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
torch.backends.cuda.matmul.allow_tf32 = True => torch.get_float32_matmul_precision()
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False => torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False => torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False) => torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction_split_k
torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = [True] => torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction_split_k
torch.backends.cuda.matmul.allow_fp16_accumulation = True => torch.backends.cuda.matmul.allow_fp16_accumulation
hasattr(torch.backends.cuda.matmul, 'allow_fp16_accumulation') => hasattr(torch.backends.cuda.matmul, 'allow_tf32')
old = torch.backends.cuda.matmul.allow_tf32; torch.backends.cuda.matmul.allow_tf32 = not old; torch.backends.cuda.matmul.allow_tf32 = old => torch.backends.cuda.matmul.allow_tf32
torch.backends.cuda.matmul.fp32_precision = 'tf32' => torch.backends.cuda.matmul.fp32_precision
torch.backends.cuda.matmul.fp32_precision = 'ieee' => torch.backends.cuda.matmul.fp32_precision
torch.backends.cudnn.conv.fp32_precision = 'tf32' => torch.backends.cudnn.conv.fp32_precision
torch.backends.cudnn.conv.fp32_precision = 'ieee'; torch.backends.cudnn.rnn.fp32_precision = 'ieee' => (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision)
torch.backends.cudnn.fp32_precision = 'tf32' => torch.backends.cuda.matmul.fp32_precision
torch.backends.fp32_precision = 'tf32' => torch.backends.fp32_precision
torch.backends.fp32_precision = 'ieee' => (torch.backends.mkldnn.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)
torch.backends.mkldnn.matmul.fp32_precision = 'bf16' => torch.backends.mkldnn.matmul.fp32_precision
torch.backends.mkldnn.conv.fp32_precision = 'tf32' => torch.backends.mkldnn.conv.fp32_precision
torch.backends.mkldnn.rnn.fp32_precision = 'ieee' => torch.backends.mkldnn.rnn.fp32_precision
torch.set_float32_matmul_precision('high') => torch.get_float32_matmul_precision()
torch.set_float32_matmul_precision('highest') => torch.get_float32_matmul_precision()
torch.set_float32_matmul_precision('medium') => torch.get_float32_matmul_precision()
torch.set_float32_matmul_precision('high') => torch.backends.cuda.matmul.allow_tf32
torch.set_float32_matmul_precision(torch.get_float32_matmul_precision()) => torch.get_float32_matmul_precision()
torch.backends.mkldnn.enabled = False => torch.backends.mkldnn.enabled
torch.backends.mkldnn.deterministic = True => torch.backends.mkldnn.deterministic
torch.backends.mkldnn.allow_tf32 = True => torch.backends.mkldnn.allow_tf32
with torch.backends.mkldnn.flags(enabled=False): seen = torch.backends.mkldnn.enabled => (seen, torch.backends.mkldnn.enabled)
with torch.backends.mkldnn.flags(enabled=True, deterministic=True): seen = torch.backends.mkldnn.deterministic => (seen, torch.backends.mkldnn.deterministic)
with torch.backends.cudnn.flags(enabled=False): seen = torch.backends.cudnn.enabled => (seen, torch.backends.cudnn.enabled)
with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True): seen = torch.backends.cudnn.deterministic => (seen, torch.backends.cudnn.deterministic)
with torch.backends.cudnn.flags(True, True, 10, True, False): seen = torch.backends.cudnn.allow_tf32 => (seen, torch.backends.cudnn.deterministic)
with torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=5): seen = torch.backends.cudnn.benchmark => (seen, torch.backends.cudnn.benchmark)
with torch.backends.cudnn.flags(benchmark=True): seen = torch.backends.cudnn.enabled => torch.backends.cudnn.benchmark
torch.backends.cudnn.set_flags(True, False, True, True) => (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
torch.backends.cudnn.set_flags(_enabled=True, _benchmark=True, _deterministic=False, _allow_tf32=True) => torch.backends.cudnn.benchmark
old = torch.backends.cudnn.set_flags(False); torch.backends.cudnn.set_flags(*old) => torch.backends.cudnn.enabled
with torch.backends.flags(fp32_precision='tf32'): seen = torch.backends.fp32_precision => (seen, torch.backends.fp32_precision)
with torch.backends.nnpack.flags(enabled=False): pass => torch.backends.nnpack.set_flags(True)
with torch.backends.miopen.flags(immediate=True): seen = torch.backends.miopen.immediate => (seen, torch.backends.miopen.immediate)
torch.backends.miopen.immediate = True => torch.backends.miopen.immediate
torch.backends.mkldnn.set_flags(False) => torch.backends.mkldnn.enabled
torch.backends.opt_einsum.enabled = False => torch.backends.opt_einsum.enabled
torch.backends.opt_einsum.strategy = 'greedy' => torch.backends.opt_einsum.strategy
torch.backends.opt_einsum.strategy = 'dynamic-programming' => torch.backends.opt_einsum.strategy
torch.backends.opt_einsum.strategy = 'random-greedy' => torch.backends.opt_einsum.strategy
with torch.backends.opt_einsum.flags(enabled=False): seen = torch.backends.opt_einsum.enabled => (seen, torch.backends.opt_einsum.enabled)
with torch.backends.opt_einsum.flags(strategy='optimal'): seen = torch.backends.opt_einsum.strategy => (seen, torch.backends.opt_einsum.strategy)
pass => torch.backends.opt_einsum.is_available() and torch.backends.opt_einsum.get_opt_einsum().__name__
torch.backends.quantized.engine = 'x86' => torch.backends.quantized.engine
torch.backends.quantized.engine = 'onednn' => torch.backends.quantized.engine
torch.backends.quantized.engine = torch.backends.quantized.engine => torch.backends.quantized.engine
engines = torch.backends.quantized.supported_engines => 'x86' in engines and 'onednn' in engines
torch.backends.mha.set_fastpath_enabled(False) => torch.backends.mha.get_fastpath_enabled()
old = torch.backends.mha.get_fastpath_enabled(); torch.backends.mha.set_fastpath_enabled(old) => torch.backends.mha.get_fastpath_enabled()
torch.backends.cuda.enable_flash_sdp(False) => torch.backends.cuda.flash_sdp_enabled()
torch.backends.cuda.enable_mem_efficient_sdp(False) => torch.backends.cuda.mem_efficient_sdp_enabled()
torch.backends.cuda.enable_math_sdp(False) => torch.backends.cuda.math_sdp_enabled()
torch.backends.cuda.enable_cudnn_sdp(False) => torch.backends.cuda.cudnn_sdp_enabled()
torch.backends.cuda.enable_math_sdp(enabled=True) => torch.backends.cuda.math_sdp_enabled()
if hasattr(torch.backends.cuda, 'enable_cudnn_sdp'): torch.backends.cuda.enable_cudnn_sdp(False)
[f(True) for f in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp)] => torch.backends.cuda.flash_sdp_enabled()
torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True) => torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
with torch.backends.cuda.sdp_kernel(enable_flash=True, enable_math=False, enable_mem_efficient=False): seen = torch.backends.cuda.math_sdp_enabled() => (seen, torch.backends.cuda.math_sdp_enabled())
with torch.backends.cuda.sdp_kernel(True, False, False): seen = torch.backends.cuda.mem_efficient_sdp_enabled() => seen
with torch.backends.cuda.sdp_kernel(**{'enable_math': False}): seen = torch.backends.cuda.flash_sdp_enabled() => seen
from contextlib import nullcontext; context = torch.backends.cuda.sdp_kernel(enable_flash=False) if hasattr(torch.backends.cuda, 'sdp_kernel') else nullcontext()
import torch.nn.attention as a; exec("with a.sdpa_kernel(a.SDPBackend.MATH): seen = torch.backends.cuda.flash_sdp_enabled()") => torch.backends.cuda.flash_sdp_enabled()
import torch.nn.attention as a; exec("with a.sdpa_kernel([a.SDPBackend.FLASH_ATTENTION, a.SDPBackend.MATH], set_priority=True): pass") => int(a.SDPBackend.MATH)
import torch.nn.attention as a; a.WARN_FOR_UNFUSED_KERNELS = True => a.WARN_FOR_UNFUSED_KERNELS
torch.backends.cuda.preferred_linalg_library('default') => str(torch.backends.cuda.preferred_linalg_library())
torch.backends.cuda.preferred_linalg_library(torch.backends.cuda.preferred_linalg_library()) => int(torch.backends.cuda.preferred_linalg_library())
torch.backends.cuda.preferred_linalg_library(backend=None) => repr(torch.backends.cuda.preferred_linalg_library())
torch.backends.cuda.preferred_blas_library('cublas') => str(torch.backends.cuda.preferred_blas_library())
torch.backends.cuda.preferred_blas_library(torch.backends.cuda.preferred_blas_library()) => torch.backends.cuda.preferred_blas_library().name
torch.backends.cuda.preferred_blas_library(backend='hipblas') => repr(torch.backends.cuda.preferred_blas_library())
torch.backends.cuda.preferred_rocm_fa_library('default') => str(torch.backends.cuda.preferred_rocm_fa_library())
pass => (torch.backends.cuda.is_built(), torch.backends.cuda.is_ck_sdpa_available(), torch.backends.cuda.is_flash_attention_available())
pass => (torch.backends.mps.is_available(), torch.backends.mps.is_built())
pass => (hasattr(torch.backends, 'mps') and torch.backends.mps.is_available(), torch.backends.mps.is_macos13_or_newer())
pass => getattr(torch.backends, 'mps', None) is not None and torch.backends.mps.is_macos_or_newer(14, 0)
pass => (torch.backends.cudnn.is_available(), torch.backends.cudnn.version())
torch.backends.cudnn.version() and torch.backends.cudnn.version() >= 8000 => torch.backends.cudnn.version() is None
pass => torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available() and torch.backends.openmp.is_available()
pass => (torch.backends.cusparselt.is_available(), torch.backends.cusparselt.version(), torch.backends.cusparselt.get_max_alg_id())
pass => torch.backends.kleidiai.is_available()
pass => torch.backends.cpu.get_cpu_capability() in ('DEFAULT', 'AVX2', 'AVX512')
pass => torch.backends.cudnn.is_acceptable.__name__
with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_OFF): pass => torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON).enable
with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_OFF): pass => torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION).level
torch.use_deterministic_algorithms(True) => torch.are_deterministic_algorithms_enabled()
torch.use_deterministic_algorithms(True, warn_only=True) => torch.is_deterministic_algorithms_warn_only_enabled()
torch.use_deterministic_algorithms(mode=True) => torch.get_deterministic_debug_mode()
torch.set_deterministic_debug_mode('warn') => torch.get_deterministic_debug_mode()
torch.set_deterministic_debug_mode(0) => torch.are_deterministic_algorithms_enabled()
torch.utils.deterministic.fill_uninitialized_memory = False => torch.utils.deterministic.fill_uninitialized_memory
torch.set_num_threads(1) => torch.get_num_threads()
torch.set_flush_denormal(False) => torch.get_num_interop_threads() >= 1
pass => isinstance(torch.__config__.show(), str) and isinstance(torch.__config__.parallel_info(), str)
torch.backends.disable_global_flags() => torch.backends.flags_frozen()
torch.backends.disable_global_flags(); exec("with torch.backends.cudnn.flags(enabled=False): seen = torch.backends.cudnn.enabled") => torch.backends.cudnn.enabled
from torch.backends import cudnn; cudnn.benchmark = True => torch.backends.cudnn.benchmark
import torch.backends.cudnn as cudnn; cudnn.deterministic = True => torch.backends.cudnn.deterministic
from torch.backends.cuda import sdp_kernel, SDPBackend => int(SDPBackend.EFFICIENT_ATTENTION)
from torch.backends import ContextProp, PropModule, __allow_nonbracketed_mutation; exec("with __allow_nonbracketed_mutation(): torch.backends.cudnn.enabled = False") => torch.backends.cudnn.enabled
read = torch.backends._get_fp32_precision_getter('cuda', 'conv') => read()
torch.backends._set_fp32_precision_setter('mkldnn', 'matmul')('bf16') => torch.backends._FP32Precision('mkldnn', 'matmul').fp32_precision
torch.backends.python_native.disable_operations('scaled_mm'); torch.backends.python_native.enable_operations('scaled_mm') => torch.backends.python_native.is_operation_disabled('scaled_mm')
import pickle => pickle.loads(pickle.dumps(torch.backends.cudnn.rnn.Unserializable(3))).get()
"""

DIFFERENT = {
    "torch.backends.cudnn.fastest = None": "a name that does not exist is refused: it sets nothing",
}


def rows() -> list[tuple[str, str]]:
    """Statement and expression of each line."""
    found = [line.partition(" => ") for line in LINES.strip().splitlines()]
    return [(statement, expression or "None") for statement, _, expression in found]
