"""Every name of the switchboard, by the table in `names`: there, called as it says, reading and refusing as it says."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from names import MODEL, MODULES, OWN, PER_MODULE, SETTINGS, Name, everything_is_there, lines

import backline
from backline import backends, switches
from backline.errors import BadType, BadValue, ReadOnly, UnknownName

SPACE = {"backline": backline, "backends": backends, "switches": switches, "np": np}
ALL = [*lines(MODEL), *lines(OWN)]


pytestmark = pytest.mark.usefixtures("everything_is_there")
assert everything_is_there


def at(path: str) -> Any:
    found: Any = backends
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    return found


def public(thing: Any) -> set[str]:
    """Names that completion shows; a plain module says which they are."""
    plain = type(thing) is types.ModuleType
    return {name for name in (thing.__all__ if plain else dir(thing)) if not name.startswith("_")}


def parameters(thing: Any) -> str:
    empty = inspect.Parameter.empty
    return f"({', '.join(str(p.replace(annotation=empty)) for p in inspect.signature(thing).parameters.values())})"


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ALL, ids=lambda row: row.full)
def test_a_name(row: Name) -> None:
    home = at(row.path)
    thing = home[0] if row.kind == "item" else getattr(home, row.name)
    assert row.kind == "item" or row.name in public(home)
    if row.signature:
        wanted = row.signature
        found = parameters(type(home).__getitem__).replace("(self, ", "(") if row.kind == "item" else parameters(thing)
        if "..." in wanted:
            first, rest = wanted[1:-4].rstrip(", "), re.sub(r"_?\w+=None(, )?", "", found)
            assert found.startswith(f"({first}") and rest == "()", found
        else:
            assert found == wanted
    if row.kind in ("function", "class"):
        assert callable(thing) and thing.__doc__ and isinstance(thing, type) == (row.kind == "class")
        assert thing.__name__ == row.name
    elif row.kind == "switch":
        assert row.full in SETTINGS and switches.lookup(row.full).doc
    elif row.kind == "list":
        assert isinstance(thing, list)
    elif row.kind == "module":
        assert isinstance(thing, types.ModuleType)
    if row.kind not in ("switch", "item", "class") and type(home) is not types.ModuleType:
        with pytest.raises(ReadOnly, match=row.name):
            setattr(home, row.name, None)
    if type(home) is not types.ModuleType and row.kind != "item":
        with pytest.raises(UnknownName, match=row.name):
            delattr(home, row.name)
    assert row.kind == "item" or type(getattr(home, row.name)) is type(thing)


def test_there_are_140_of_140() -> None:
    rows = lines(MODEL)
    assert len(rows) == len({row.full for row in rows}) == 140
    assert {path: sum(row.path == path for row in rows) for path in MODEL} == PER_MODULE
    handles = {row.full for row in rows if row.kind == "handle"}
    assert len({*MODEL} - handles) == 19, "modules"
    assert sum(row.path in handles for row in rows) == 24, "names of sub-objects"


@pytest.mark.parametrize("path", sorted({*MODEL, *OWN}))
def test_every_public_name_is_in_the_table(path: str) -> None:
    table = {row.name for row in ALL if row.path == path and row.kind != "item"}
    assert public(at(path)) == table | ({*MODULES} if not path else set())


def test_every_module_is_in_the_table() -> None:
    folder = Path(backends.__file__).parent
    found = {path.stem if path.suffix else path.name for path in folder.iterdir() if not path.name.startswith("_")}
    assert found - {"py.typed"} <= {*MODULES} == {*backends._MODULES}


def test_every_switch_is_in_the_table() -> None:
    declared = {name for name in switches.all_switches() if not re.search(r"\.device\d+\.", name)}
    assert declared == {*SETTINGS}


# --- what is read where nothing was set ----------------------------------------------------------------------------

NUMBER_OR_TEXT = (int, str, type(None))
ANSWERS: dict[str, Any] = {
    "backends.flags_frozen()": False,
    "backends.set_flags()": ("none",),
    "backends.effective_precision()": list,
    "backends.cpu.get_cpu_capability()": str,
    "backends.cuda.is_built()": bool,
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction_split_k": True,
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction_split_k": True,
    "backends.cuda.matmul.set_flags()": (False, True, True, False, "none"),
    "backends.cuda.cufft_plan_cache.size": 0,
    "backends.cuda.cufft_plan_cache.clear()": None,
    "backends.cuda.cufft_plan_cache['cuda:0'].max_size": 4096,
    "backends.cuda.cufft_plan_cache[0] in backends.cuda.cufft_plan_cache.caches": True,
    "backends.cuda.cuFFTPlanCache(0).size": 0,
    "backends.cuda.is_ck_sdpa_available()": bool,
    "backends.cuda.is_flash_attention_available()": bool,
    "backends.cuda.is_flash_attention_available('mps')": bool,
    "backends.cuda.blas_workspace_size()": 8_519_680,
    "backends.cuda.blas_workspace_size(backend='cublaslt')": 8_519_680,
    "backends.cuda.SDPBackend is backline.nn.attention.SDPBackend": True,
    "[(m.name, m.value) for m in backends.cuda.LinalgBackend]": [("Default", 0), ("Cusolver", 1), ("Magma", 2)],
    "[(m.name, m.value) for m in backends.cuda.BlasBackend]": [("Default", 0), ("Cublas", 1), ("Cublaslt", 2), ("Ck", 3)],
    "[(m.name, m.value) for m in backends.cuda.ROCmFABackend]": [("Default", 0), ("AOTriton", 1), ("Ck", 2)],
    "[(m.name, m.value) for m in backends.cuda.SDPBackend]": [
        ("ERROR", -1), ("MATH", 0), ("FLASH_ATTENTION", 1), ("EFFICIENT_ATTENTION", 2), ("CUDNN_ATTENTION", 3), ("OVERRIDEABLE", 4)],
    "sorted(map(str, backends.cudnn.CUDNN_TENSOR_DTYPES))": ["bfloat16", "float16", "float32", "float64"],
    "type(backends.cudnn.CUDNN_TENSOR_DTYPES)": frozenset,
    "backends.cudnn.is_acceptable(np.zeros(3))": False,
    "(backends.cudnn.conv.backend, backends.cudnn.conv.op)": ("cuda", "conv"),
    "backends.cudnn.set_flags()": (True, False, 10, False, True, "none", "auto"),
    "[backends.cudnn.rnn.get_cudnn_mode(m) for m in ('RNN_RELU', 'RNN_TANH', 'LSTM', 'GRU')]": [0, 1, 2, 3],
    "backends.cudnn.rnn.Unserializable('inner').get()": "inner",
    "backends.cudnn.rnn.init_dropout_state(0.5, False, 1, {})": None,
    "backends.cusparselt.get_max_alg_id()": (int, type(None)),
    "backends.miopen.set_flags()": (False,),
    "(backends.mkl.VERBOSE_OFF, backends.mkl.VERBOSE_ON)": (0, 1),
    "(backends.mkldnn.VERBOSE_OFF, backends.mkldnn.VERBOSE_ON, backends.mkldnn.VERBOSE_ON_CREATION)": (0, 1, 2),
    "backends.mkldnn.is_acl_available()": bool,
    "backends.mkldnn.set_flags()": (True, False, False, "none"),
    "[(h.backend, h.op) for h in (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)]": [
        ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")],
    "backends.mps.is_built()": bool,
    "backends.mps.is_macos_or_newer(99, 0)": False,
    "backends.mps.is_macos13_or_newer()": bool,
    "backends.nnpack.set_flags()": (True,),
    "backends.opt_einsum.set_flags()": (True, "auto"),
    "backends.openmp.runtimes()": list,
    "backends.python_native.all_dsls": ["cutedsl", "triton"],
    "[name in backends.python_native.all_dsls for name in backends.python_native.available_dsls]": list,
    "backends.python_native.get_dsl_operations('triton')": ["nn.functional.scaled_dot_product_attention", "nn.grad.scaled_dot_product_attention_backward"],
    "backends.python_native.get_dsl_operations('cutedsl')": [],
    "backends.python_native.get_dsl_operations('fortran')": [],
    "(backends.python_native.is_operation_disabled('x'), backends.python_native.is_dsl_disabled('x'))": (False, False),
    "(backends.python_native.triton.name, backends.python_native.triton.enabled)": ("triton", True),
    "backends.python_native.triton.available": bool,
    "backends.python_native.DSLController('cutedsl').name": "cutedsl",
    "backends.quantized.supported_engines": ["x86", "onednn", "fbgemm", "qnnpack", "reference"],
    "backends.xeon.run_cpu.create_args().parse_args(['a.py']).ninstances": -1,
    "backline.are_deterministic_algorithms_enabled()": False,
    "backline.is_deterministic_algorithms_warn_only_enabled()": False,
    "backline.get_deterministic_debug_mode()": 0,
    "backline.get_num_interop_threads()": int,
    **{f"backends.{name}.is_available()": bool for name in MODULES if f"{name}.enabled" in SETTINGS},
    **{f"backends.{name}.is_enabled()": bool for name in MODULES if f"{name}.enabled" in SETTINGS},
    **{f"backends.{name}.version()": NUMBER_OR_TEXT for name in (*MODULES, "cuda") if f"{name}.enabled" in SETTINGS},
    **{f"backends.{name}.set_flags()": (True,) for name in ("mkl", "openblas", "numpy", "blis", "openmp", "mps", "kleidiai", "cusparselt", "xnnpack", "scipy", "libmvec", "kernels")},
    "backends.fftw.set_flags()": (True, "estimate", 10.0),
}  # fmt: skip


@pytest.mark.parametrize("call", ANSWERS)
def test_an_answer(call: str) -> None:
    answer, wanted = eval(call, SPACE), ANSWERS[call]
    one_of = wanted if isinstance(wanted, tuple) else (wanted,)
    if all(isinstance(kind, type) for kind in one_of) and wanted is not frozenset:
        assert isinstance(answer, one_of)
    else:
        assert answer == wanted and type(answer) is type(wanted)


# --- what functions refuse -----------------------------------------------------------------------------------------

# Call -> the error, and words of its text: what was called, what was given, what is legal.
REFUSED: dict[str, tuple[Any, ...]] = {
    "backends.cudnn.rnn.get_cudnn_mode('lstm')": (BadValue, "get_cudnn_mode", "'lstm'", "'LSTM', "),
    "backends.cudnn.rnn.get_cudnn_mode(2)": (BadType, "get_cudnn_mode", "int", "'GRU'"),
    "backends.cudnn.rnn.init_dropout_state(1.5, True, 1, {})": (BadValue, "init_dropout_state", "1.5", "0 to 1"),
    "backends.cudnn.rnn.init_dropout_state(0.5, 1, 1, {})": (BadType, "train", "int", "bool"),
    "backends.cudnn.is_acceptable(3)": (BadType, "is_acceptable", "int", "array"),
    "backends.cuda.is_flash_attention_available('tpu')": (BadValue, "is_flash_attention_available", "'tpu'", "'cpu'", "'mps'"),
    "backends.cuda.is_flash_attention_available(0)": (BadType, "is_flash_attention_available", "int", "'cuda'"),
    "backends.cuda.can_use_flash_attention(3)": (BadType, "can_use_flash_attention", "int", "SDPAParams"),
    "backends.cuda.can_use_efficient_attention(3)": (BadType, "can_use_efficient_attention", "int", "SDPAParams"),
    "backends.cuda.can_use_cudnn_attention(3)": (BadType, "can_use_cudnn_attention", "int", "SDPAParams"),
    "backends.cuda.SDPAParams(1, 2, 3, None, 0.0, False, False)": (BadType, "query", "1", "int", "array"),
    "backends.cuda.blas_workspace_size(backend='ck')": (BadValue, "blas_workspace_size", "'ck'", "cublaslt"),
    "backends.cuda.blas_workspace_size(backend='cublaz')": (BadValue, "blas_workspace_size", "'cublaz'", "'cublas', "),
    "backends.cuda.blas_workspace_size(-1)": (BadValue, "workspace_size", "-1", "0"),
    "backends.cuda.cufft_plan_cache[1]": (BadValue, "cufft_plan_cache[1]", "0 <= index < 1"),
    "backends.cuda.cufft_plan_cache[-1]": (BadValue, "cufft_plan_cache[-1]", "0 <= index < 1"),
    "backends.cuda.cufft_plan_cache['cpu']": (BadValue, "'cpu'", "0 <= index < 1"),
    "backends.cuda.cufft_plan_cache[None]": (BadValue, "None", "0 <= index < 1"),
    "backends.cuda.cufft_plan_cache[True]": (BadType, "cufft_plan_cache", "bool", "index"),
    "backends.cuda.cufft_plan_cache.max_sise": (UnknownName, "max_sise", "max_size"),
    "backends.cuda.cuFFTPlanCache(1)": (BadValue, "0 <= index < 1"),
    "backends.mkl.verbose(3)": (BadValue, "mkl.verbose", "3", "2, 1, 0"),
    "backends.mkl.verbose('on')": (BadType, "mkl.verbose", "str", "'on'"),
    "backends.mkldnn.verbose(-1)": (BadValue, "mkldnn.verbose", "-1", "0, 1, 2"),
    "backends.mkldnn.verbose(True)": (BadType, "mkldnn.verbose", "bool", "True"),
    "backends.python_native.disable_operations('a', 3)": (BadType, "disable_operations", "int", "3", "str"),
    "backends.python_native.enable_operations(None)": (BadType, "enable_operations", "NoneType", "str"),
    "backends.python_native.disable_dispatch_keys(3)": (BadType, "disable_dispatch_keys", "int", "str"),
    "backends.python_native.enable_dispatch_keys(['CPU'])": (BadType, "enable_dispatch_keys", "list", "str"),
    "backends.python_native.operations_disabled(3)": (BadType, "operations_disabled", "int", "str"),
    "backends.python_native.DSLController('tritn')": (UnknownName, "'tritn'", "triton"),
    "backends.python_native.tritn": (UnknownName, "'tritn'", "triton"),
    "backends.openmp.num_threads(0)": (BadValue, "num_threads", "0", "1"),
    "backends.quantized.flags(engine='none')": (BadValue, "quantized.engine", "'none'", "'onednn'", "'reference'"),
    "backends.cuda.matmul.flags(allow_tf23=True)": (TypeError, "allow_tf23", "allow_tf32"),
    f"backends.flags({', '.join(['None'] * 17)})": (TypeError, "at most 16"),
    "backends.cudnn.flags(True, enabled=True)": (TypeError, "multiple values", "enabled"),
    "backline.set_deterministic_debug_mode(3)": (BadValue, "debug mode", "3", "'warn'"),
    "backline.set_deterministic_debug_mode('x')": (BadValue, "debug mode", "'x'", "'error'"),
    "backline.set_deterministic_debug_mode(True)": (BadType, "set_deterministic_debug_mode", "bool", "0, 1, 2"),
    "backline.use_deterministic_algorithms(1)": (BadType, "deterministic", "int", "True, False"),
    "backline.use_deterministic_algorithms(True, warn_only='x')": (BadType, "warn_only", "str", "True, False"),
    "backline.use_deterministic_algorithms(True, level='always')": (BadValue, "determinism_level", "'always'", "'run'"),
    "backline.set_num_interop_threads(0)": (BadValue, "num_interop_threads", "0", "1"),
    "backline.set_flush_denormal(1)": (BadType, "set_flush_denormal", "int", "True, False"),
    "backline.utils.deterministic.fill_memory": (UnknownName, "fill_memory", "fill_uninitialized_memory"),
    "backline.nn.attention.sdpa_kernel('math')": (BadType, "sdpa_kernel", "'math'", "SDPBackend.MATH"),
}  # fmt: skip


@pytest.mark.parametrize("call", REFUSED)
def test_a_refusal(call: str) -> None:
    error, *words = REFUSED[call]
    before = switches.current()
    with pytest.raises(error) as caught:
        eval(call, SPACE)
    assert type(caught.value) is error and switches.current() is before
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not re.search(r"%[sd]|{\w*}|<function|<bound", str(caught.value))


def test_the_deprecated_scope_warns_and_refuses_what_is_no_bool() -> None:
    for name in ("enable_flash", "enable_math", "enable_mem_efficient", "enable_cudnn"):
        with pytest.warns(FutureWarning, match="sdpa_kernel"), pytest.raises(BadType, match=f"{name} = 1"):
            backends.cuda.sdp_kernel(**{name: 1})
