"""Calls of cuBLAS and cuBLASLt for every kind of data and every switch: values only, nothing is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from backline import libraries, switches
from backline.backends import _validators, cuda
from backline.engine import choose, eligibility
from backline.errors import BadValue, NoKernel
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cublas import library as cublas
from backline.libraries.cuda.cublaslt import library as cublaslt
from backline.problems import Operand, Problem
from backline.problems.linear_problem import LinearProblem
from backline.problems.matmul_problem import MatmulProblem
from backline.switches import store
from fakes.cupy_standin import A100, H100, T4, CuPy
from fakes.insert import inserted
from support import clean, dtype_of

pytestmark = pytest.mark.usefixtures("clean", "device")
assert clean

SM90, SM80, SM75, SM61 = (9, 0), (8, 0), (7, 5), (6, 1)
MIB = 1 << 20


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose devices are an H100, an A100 and a T4."""
    monkeypatch.setattr(_validators, "_there", lambda name: name != "composable_kernel")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    with inserted(cupy=CuPy(H100, A100, T4), cublas=object(), cublasLt=object()):
        yield


def operand(role: str, dtype: str, *shape: int, repeated: tuple[int, ...] = ()) -> Operand:
    kind = dtype_of(dtype)
    steps, step = [], kind.itemsize
    for axis in reversed(range(len(shape))):
        steps.append(0 if axis in repeated else step)
        step *= 1 if axis in repeated else shape[axis]
    return Operand(role, kind, shape, tuple(reversed(steps)))


def product(dtype: str = "float32", *, device: str = "cuda:0", batch: tuple[int, ...] = (), **more: Any) -> MatmulProblem:
    m, n, k = more.pop("sizes", (64, 32, 16))
    operands = more.pop("operands", (operand("a", dtype, *batch, m, k), operand("b", dtype, *batch, k, n)))
    parameters = more.pop("parameters", ())
    return MatmulProblem(
        "matmul", operands, parameters, "matmul", m=m, n=n, k=k, batch=batch, result=(*batch, m, n), device=device, **more
    )


def layer(dtype: str, activation: str | None = "relu", *roles: str, device: str = "cuda:0", k: int = 16) -> LinearProblem:
    m, n = 64, 32
    made = [operand("a", dtype, m, k), operand("b", dtype, k, n)]
    made += [operand("bias", dtype, m, n, repeated=(0,))] if "bias" in roles else []
    made += [operand("residual", dtype, m, n)] if "residual" in roles else []
    given = (("activation", activation),) if activation else ()
    return LinearProblem("linear", tuple(made), given, "matmul", m=m, n=n, k=k, batch=(), result=(m, n), device=device)


def chosen(problem: Problem) -> Algorithm:
    found = choose.choose(problem, measure=False).chosen
    assert found is not None
    return found


def taken(problem: Problem, having: tuple[int, int] = SM90) -> Any:
    """The recipe of what is chosen."""
    algorithm = chosen(problem)
    module: Any = {"cublas": cublas, "cublaslt": cublaslt}[algorithm.library]
    return module.recipe(problem, algorithm.name, switches.current(), having)


def refused(problem: Problem, **more: Any) -> dict[str, tuple[str, str]]:
    choice = choose.choose(problem, measure=False, **more)
    return {f"{c.library} {c.algorithm}": (c.reason, c.switch) for c in choice.candidates if c.verdict == "refused"}


ON_LT = {"cuda.preferred_blas_library": "cublaslt"}
FP16, BF16 = (f"cuda.matmul.allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16"))
FAST = "cuda.matmul.allow_fp16_accumulation"
TF32 = {"cuda.matmul.fp32_precision": "tf32"}
WHOLE, WIDE, ALONE = (True, True), (False, True), (False, False)

# dtype, switches -> math mode, compute type of cuBLAS; compute type, reduction mask of cuBLASLt; precision that is reported.
ROWS = [
    ("float32", {}, (0, 68), (68, 7), ""),
    ("float32", {"cuda.matmul.fp32_precision": "ieee"}, (0, 68), (68, 7), ""),
    ("float32", TF32, (3, 68), (77, 7), "tf32"),
    ("float32", {"fp32_precision": "tf32"}, (3, 68), (77, 7), "tf32"),
    ("float32", {"cuda.matmul.allow_tf32": True}, (3, 68), (77, 7), "tf32"),
    ("float32", {"float32_matmul_precision": "high"}, (3, 68), (77, 7), "tf32"),
    ("complex64", {}, (0, 68), (68, 7), ""),
    ("complex64", TF32, (3, 68), (77, 7), "tf32"),
    ("float64", {}, (0, 70), (70, 7), ""),
    ("float64", TF32, (0, 70), (70, 7), ""),
    ("complex128", {}, (0, 70), (70, 7), ""),
    ("float16", {}, (0, 68), (68, 7), "f32 accumulation"),
    ("float16", {FP16: WHOLE}, (0, 68), (68, 7), "f32 accumulation"),
    ("float16", {BF16: ALONE}, (0, 68), (68, 7), "f32 accumulation"),
    ("bfloat16", {}, (0, 68), (68, 7), "f32 accumulation"),
    ("bfloat16", {FP16: ALONE, FAST: True}, (0, 68), (68, 7), "f32 accumulation"),
    ("float16", {FP16: False}, (16, 68), (68, 2), "f32 accumulation"),
    ("float16", {FP16: WIDE}, (16, 68), (68, 2), "f32 accumulation"),
    ("bfloat16", {BF16: WIDE}, (16, 68), (68, 2), "f32 accumulation"),
    ("float16", {FP16: ALONE}, None, (68, 0), "f32 accumulation"),
    ("bfloat16", {BF16: ALONE}, None, (68, 0), "f32 accumulation"),
    ("float16", {FAST: True}, (0, 64), (64, 7), "f16 accumulation"),
    ("float16", {FAST: True, FP16: WIDE}, (0, 64), (64, 7), "f16 accumulation"),
    ("float16", {FAST: True, FP16: ALONE}, None, (68, 0), "f32 accumulation"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "given", "plain", "lt", "precision"), ROWS)
@pytest.mark.parametrize("batch", [(), (5,)])
def test_what_each_switch_makes_of_each_dtype(
    dtype: str, given: dict[str, Any], plain: Any, lt: tuple[int, int], precision: str, batch: tuple[int, ...]
) -> None:
    problem = product(dtype, batch=batch)
    with switches.scope(given):
        algorithm = chosen(problem)
        assert algorithm.library == ("cublaslt" if plain is None else "cublas")
        assert algorithm.precision == precision
        if plain is not None:
            made = taken(problem)
            assert (made.way.mode, made.way.compute) == plain
            assert made.routine == ("gemm_strided_batched_ex" if batch else "gemm_ex")
        with switches.scope(ON_LT):
            made = taken(problem)
            assert isinstance(made, cublaslt.Recipe) and (made.way.compute, made.way.mask) == lt
            assert made.epilogue == 1


def test_the_order_of_the_calls() -> None:
    around = ("set_stream", "set_workspace")
    assert taken(product()).calls == (*around, "gemm_ex")
    with switches.scope(TF32):
        assert taken(product()).calls == (*around, "set_math_mode", "gemm_ex", "set_math_mode")
    emulated = cublas.recipe(product(), "gemm_bf16x9", switches.current(), SM90)
    settings = ("set_math_mode", "set_emulation_strategy")
    assert emulated.calls == (*around, *settings, "gemm_ex", *reversed(settings))


def test_emulation_is_not_listed_and_no_value_asks_for_it() -> None:
    made = cublas.recipe(product(), "gemm_bf16x9", switches.current(), SM90)
    assert (made.way.mode, made.way.compute, made.way.strategy) == (4, 78, 2)
    assert not any("bf16x9" in a.name for a in cublas.listed(product(), SM90))
    with pytest.raises(BadValue):
        cuda.matmul.fp32_precision = "bfx9"


def test_the_only_combination_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadValue):
        cuda.matmul.allow_fp16_reduced_precision_reduction = (True, False)


def test_without_splits_cublas_has_nothing_and_names_what_has() -> None:
    with switches.scope({FP16: ALONE, "only": ("cublas",)}), pytest.raises(NoKernel) as caught:
        chosen(product("float16"))
    assert "cuda.preferred_blas_library = 'cublaslt'" in str(caught.value) and FP16 in str(caught.value)
    with switches.scope({FP16: ALONE}):
        assert refused(product("float16"))["cublas gemm_wide_sums"][1] == FP16


@pytest.mark.parametrize(("index", "name"), [(0, "gemm_tf32"), (1, "gemm_tf32"), (2, "gemm")])
def test_tf32_takes_a_device_that_has_it(index: int, name: str) -> None:
    with switches.scope(TF32):
        problem = product(device=f"cuda:{index}")
        assert chosen(problem).name == name
        if index == 2:
            assert refused(problem)["cublas gemm_tf32"][0] == "tf32 takes compute capability 8.0; the device has 7.5"


def test_tf32_that_the_environment_turns_off_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with switches.scope(TF32):
        assert chosen(product()).name == "gemm"
        assert "NVIDIA_TF32_OVERRIDE=0" in refused(product())["cublas gemm_tf32"][0]
        assert "NVIDIA_TF32_OVERRIDE=0" in refused(product())["cublaslt matmul_tf32"][0]


@pytest.mark.parametrize(("having", "there"), [(SM90, True), (SM75, True), ((7, 0), True), (SM61, False)])
def test_accumulation_in_float16_takes_a_device_that_has_it(having: tuple[int, int], there: bool) -> None:
    for library in (cublas, cublaslt):
        names = [a.name for a in library.listed(product("float16"), having) if isinstance(a, Algorithm)]
        assert any(name.endswith("_fp16") for name in names) is there


@pytest.mark.parametrize(
    ("dtype", "compute", "scale"),
    [("float16", 64, "float16"), ("float16", 68, "float32"), ("bfloat16", 68, "float32"), ("float32", 68, "float32"),
     ("float32", 77, "float32"), ("float64", 70, "float64"), ("complex64", 68, "complex64"), ("complex128", 70, "complex128")],
)  # fmt: skip
def test_alpha_and_beta_follow_the_compute_type(dtype: str, compute: int, scale: str) -> None:
    assert cublas.scale_type(dtype, compute) == np.dtype(scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_batch_is_one_call_with_steps_and_pointers_only_where_there_is_no_step(dtype: str) -> None:
    steps = taken(product(dtype, batch=(3, 4)))
    assert steps.routine == "gemm_strided_batched_ex" and steps.gemm.batch == 12 and steps.gemm.uniform
    repeated = operand("a", dtype, 3, 4, 64, 16, repeated=(1,)), operand("b", dtype, 3, 4, 16, 32)
    tables = taken(product(dtype, batch=(3, 4), operands=repeated))
    assert tables.routine == "gemm_batched_ex"
    size = dtype_of(dtype).itemsize * 64 * 16
    assert tables.gemm.second.items == tuple(i * size for i in (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2))
    (why,) = [r.reason for r in cublaslt.listed(product(dtype, batch=(3, 4), operands=repeated), SM90)]
    assert "cuBLAS takes others" in why


def test_rows_of_a_batch_that_share_a_matrix_are_one_product() -> None:
    shared = operand("a", "float32", 5, 64, 16), operand("b", "float32", 16, 32)
    gemm = taken(product(batch=(5,), operands=shared)).gemm
    assert (gemm.m, gemm.n, gemm.k, gemm.batch) == (32, 5 * 64, 16, 1)
    other = operand("a", "float32", 64, 16), operand("b", "float32", 5, 16, 32)
    gemm = taken(product(batch=(5,), operands=other)).gemm
    assert gemm.batch == 5 and gemm.second.items == 0


def test_sizes_beyond_32_bits_take_the_routines_for_them() -> None:
    wide = 2**31 + 8
    long = operand("a", "float16", 2, wide), operand("b", "float16", wide, 2)
    made = cublas.recipe(product("float16", sizes=(2, 2, wide), operands=long), "gemm", switches.current(), SM90)
    assert made.routine == "gemm_ex_64" and made.calls[-1] == "gemm_ex_64"


# --- workspaces ----------------------------------------------------------------------------------------------------


def sizes(having: tuple[int, int]) -> tuple[int, int]:
    now = switches.current()
    return tuple(cublas.workspace_bytes(name, now, having) for name in ("cublas", "cublaslt"))  # type: ignore[return-value]  # one for each of two names


def test_the_workspace_is_what_is_recommended_until_somebody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(SM90) == (32 * MIB, 32 * MIB) and sizes(SM80) == (8519680, 8519680)
    assert taken(product()).workspace == 32 * MIB
    assert cublas.recipe(product(), "gemm", switches.current(), SM80).workspace == 8519680
    with switches.scope({"cuda.cublas_workspace_size": 1 << 16}):
        assert sizes(SM90) == (1 << 16, 1 << 16) and taken(product()).workspace == 1 << 16
        with switches.scope({"cuda.cublaslt_workspace_size": 1 << 20, **ON_LT}):
            assert sizes(SM90) == (1 << 16, 1 << 16), "they share one"
            assert taken(product()).workspace == 1 << 16
            monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")
            assert sizes(SM90) == (1 << 16, 1 << 20)
    with switches.scope({"cuda.cublas_workspace_size": 0}):
        assert taken(product()).workspace == 0


def test_cublas_own_variable_says_the_size_and_a_setting_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "64")
    store._restart()
    assert sizes(SM90) == (8519680, 64 << 10)
    with switches.scope({"cuda.cublas_workspace_size": 4 << 10}):
        assert sizes(SM90) == (4 << 10, 4 << 10)


# --- which library -------------------------------------------------------------------------------------------------


def test_cublas_is_first_unless_the_other_is_preferred() -> None:
    assert chosen(product()).library == "cublas"
    with switches.scope(ON_LT):
        assert chosen(product()).library == "cublaslt"
    with switches.scope({"cuda.preferred_blas_library": "hipblaslt"}):
        assert chosen(product()).library == "cublaslt"
    with switches.scope(ON_LT), switches.scope({"cuda.preferred_blas_library": "hipblas"}):
        assert chosen(product()).library == "cublas"


def one_row(dtype: str, **more: Any) -> MatmulProblem:
    """A linear layer without an activation is a product with a C that is one row."""
    c = more.pop("c", operand("c", dtype, 64, 32, repeated=(0,)))
    operands = operand("a", dtype, 64, 16), operand("b", dtype, 16, 32), c
    return product(dtype, operands=operands, parameters=(("alpha", 1), ("beta", more.pop("beta", 1))), **more)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_bias_is_for_the_library_that_adds_it_in_the_same_kernel(dtype: str) -> None:
    made = taken(one_row(dtype))
    assert isinstance(made, cublaslt.Recipe) and (made.epilogue, made.bias) == (4, 2)
    with switches.scope({"cuda.preferred_blas_library": "cublas"}):
        assert isinstance(taken(one_row(dtype)), cublas.Recipe), "a preference goes before that"


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_bias_of_complex_numbers_is_added_before(dtype: str) -> None:
    assert isinstance(taken(one_row(dtype)), cublas.Recipe)


def test_c_is_no_bias_where_it_differs_from_row_to_row_or_is_scaled() -> None:
    whole = operand("c", "float32", 64, 32)
    assert cublaslt.bias_of(one_row("float32", c=whole)) is None and cublaslt.bias_of(one_row("float32", beta=2)) is None
    assert cublaslt.bias_of(one_row("float32")) == 2


@pytest.mark.parametrize(
    ("activation", "roles", "epilogue"),
    [("relu", ("bias",), 4), ("relu", ("bias", "residual"), 4), (None, ("bias", "residual"), 4), (None, ("residual",), 1), ("relu", ("residual",), 1)],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_layers_are_kernels_with_an_epilogue(activation: str | None, roles: tuple[str, ...], epilogue: int, dtype: str) -> None:
    problem = layer(dtype, activation, *roles)
    made = taken(problem)
    assert made.epilogue == epilogue and made.bias == (2 if "bias" in roles else None)
    assert "bias" not in roles or made.gemm.target.rows == problem.n, "a bias is as long as the kernel's columns"
    after = [c for c in choose.choose(problem, measure=False).candidates if c.library == "cublas" and c.verdict == "next"]
    assert after and all(c.algorithm.endswith("_pointwise") for c in after), "cuBLAS has products; what comes after is another kernel"


@pytest.mark.parametrize("roles", [(), ("bias",), ("residual",), ("bias", "residual")])
def test_relu_is_no_epilogue_since_nothing_says_that_it_keeps_nan(roles: tuple[str, ...]) -> None:
    refused, *found = cublaslt.listed(layer("float16", "relu", *roles), SM90)
    assert isinstance(refused, Refusal) and refused.name == "relu_epilogue" and "may make 0 of a NaN" in refused.reason
    within = " and ".join(roles)
    assert {a.note for a in found if isinstance(a, Algorithm)} == {f"{within} in the same kernel; then " * bool(within) + "relu in one kernel of CuPy's"}
    assert all(("epilogue" in a.traits) == bool(roles) for a in found if isinstance(a, Algorithm))
    choice = choose.choose(layer("float16", "relu", *roles), measure=False)
    assert any(c.algorithm == "relu_epilogue" and "NaN" in c.reason for c in choice.candidates), "explain shows it"
    assert not any(isinstance(a, Refusal) for a in cublaslt.listed(layer("float16", None, *roles), SM90))


def test_what_no_kernel_has_is_refused_with_the_reason() -> None:
    (why,) = cublaslt.listed(layer("float32", "gelu", "bias"), SM90)
    assert isinstance(why, Refusal) and why.reason == "its kernels have relu and gelu_tanh, not gelu"
    (why,) = cublaslt.listed(layer("float32", None, "bias", k=0), SM90)
    assert isinstance(why, Refusal) and "without terms" in why.reason
    for library in (cublas, cublaslt):
        (why,) = library.listed(product("int32"), SM90)
        assert isinstance(why, Refusal) and "not int32" in why.reason
        (why,) = library.listed(Problem("linalg.inv", (operand("a", "float32", 3, 3),), device="cuda:0"), SM90)
        assert isinstance(why, Refusal) and why.reason == "it has matrix products, not linalg.inv"


def test_they_are_not_asked_about_arrays_of_the_cpu() -> None:
    listed = eligibility.able(product(device="cpu"), 1, switches.current(), [], choose.planner)
    assert not {"cublas", "cublaslt"} & {a.library for a in listed}


# --- determinism ---------------------------------------------------------------------------------------------------


def test_the_same_bits_are_promised_and_each_stream_has_its_own_handle() -> None:
    assert not taken(product()).own_handle
    for level in ("run", "threads"):
        with switches.scope({"deterministic": True, "determinism_level": level}):
            assert chosen(product()).basis == "promise" and taken(product()).own_handle


# --- addresses -----------------------------------------------------------------------------------------------------


def test_alignments_that_an_algorithm_is_asked_for() -> None:
    found = {dtype: cublaslt.recipe(product(dtype), "matmul", switches.current(), SM90).alignments
             for dtype in ("float16", "float32", "complex64", "complex128")}  # fmt: skip
    assert found == {"float16": (256, 16, 2), "float32": (256, 16, 4), "complex64": (256, 16, 8), "complex128": (256, 16)}


# --- presence ------------------------------------------------------------------------------------------------------


def test_the_version_is_the_librarys_own_and_takes_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries import presence

    for name in ("cublas", "cublaslt"):
        found = presence.Found("", (), f"/fake/lib{name}.so.13", {"version": "13.1.0"})
        monkeypatch.setitem(presence._presences, name, presence.Presence(presence.registry.LibraryInfo(name, name), lambda row, found=found: found))
        library = libraries.get(name)
        assert library.version() == "13.1.0" and library.report()["path"] == f"/fake/lib{name}.so.13"
        assert library.available() and library.devices == ("cuda",)


def test_what_is_missing_is_said_in_the_order_in_which_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.libraries import presence, python_packages
    from backline.libraries.cuda.common import bindings

    bindings.inserted.clear()
    for name in ("cublas", "cublaslt", "cuda"):
        absent = presence.Found(f"no {name}", ())
        monkeypatch.setitem(presence._presences, name, presence.Presence(presence.registry.LibraryInfo(name, name.upper()), lambda row, absent=absent: absent))
    monkeypatch.setattr(python_packages, "find", lambda name, part="": (None, (), f"there is no package {name}"))
    assert libraries.get("cublas").reason() == "there is no package cupy (pip install 'backline[cuda13]')"
    monkeypatch.setattr(python_packages, "find", lambda name, part="": ("/there", (), ""))
    assert libraries.get("cublas").reason() == "CUDA: no cuda"
    bindings.inserted["cupy"] = object()
    assert libraries.get("cublas").reason() == "CUBLASLT: no cublaslt"
