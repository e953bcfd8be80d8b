"""Recipes of our attention kernels for a Problem on a device, and their refusals: values alone, no device and no Triton."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.backends import python_native
from backline.errors import NoKernel
from backline.libraries.attention_constraints import Facts
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.attention import kernel_compiler
from backline.libraries.cuda.attention import library as attention
from backline.libraries.cuda.attention.launch_sequence import (
    KERNELS,
    Recipe,
    Tile,
    limits,
    parameters,
    recipe,
    shared_limit,
    signed,
)
from backline.nn.attention import SDPBackend, sdpa_kernel
from backline.problems import operand
from backline.problems.attention_problem import AttentionProblem, attention_problem
from fakes.cupy_standin import A100, H100, T4, CuPy, ndarray
from fakes.insert import inserted
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

HALF, BRAIN, SINGLE = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


def problem(
    queries: int = 64, keys: int = 0, dim: int = 64, vdim: int = 0, dtype: Any = HALF, heads: int = 4, shared: int = 1,
    mask: Any = None, grad: bool = False, dropout: float = 0.0, **options: Any,
) -> AttentionProblem:  # fmt: skip
    q = np.zeros((2, heads, queries, dim), dtype)
    k, v = (np.zeros((2, heads // shared, keys or queries, d), dtype) for d in (dim, vdim or dim))
    p = attention_problem(q, k, v, mask, dropout, enable_gqa=shared > 1, **options)
    if grad:
        given = np.zeros((2, heads, queries, vdim or dim), dtype)
        parameters = tuple(sorted({**dict(p.parameters), "needs_grad": True}.items()))
        added = mask is not None and mask.dtype != bool
        p = replace(p, operands=(*p.operands, operand("grad", given)), parameters=parameters, mask_needs_grad=added)
    return replace(p, device="cuda:0", alignment=256)


def said(p: AttentionProblem, capability: tuple[int, int] = (9, 0), **values: Any) -> dict[str, Algorithm | Refusal]:
    return {found.name: found for found in attention.listed(p, Facts(capability), {**switches.current(), **values})}


def reason(p: AttentionProblem, way: str, capability: tuple[int, int] = (9, 0)) -> str:
    found = said(p, capability)[way]
    return found.reason if isinstance(found, Refusal) else ""


def test_half_precisions_have_both_kernels() -> None:
    for dtype in (HALF, BRAIN):
        found = said(problem(dtype=dtype))
        for way, trait in (("flash", "flash_attention"), ("efficient", "efficient_attention")):
            made = found[way]
            assert isinstance(made, Algorithm)
            assert (made.traits, made.level, made.basis, made.precision) == ((trait,), "threads", "construction", "f32 accumulation")
        assert "TF32 is a precision of float32" in reason(problem(dtype=dtype), "efficient_tf32")


@pytest.mark.parametrize(("p", "capability", "words"), [
    (problem(mask=np.zeros((64, 64), bool)), (9, 0), "no mask"),
    (problem(vdim=32), (9, 0), "one head dim"),
    (problem(dim=264), (9, 0), "at most 256"),
    (problem(), (7, 5), "8.0 to 12.1"),
    (problem(), (13, 0), "8.0 to 12.1"),
    (problem(dtype=SINGLE), (9, 0), "float16 or bfloat16"),
    (problem(64, 65, is_causal=True), (9, 0), "as many queries as keys"),
    (problem(dim=200, grad=True), (8, 6), "at most 192"),
    (problem(dim=232, grad=True, dropout=0.5), (12, 0), "without dropout"),
    (problem(heads=4, shared=1), (9, 0), ""),
    (problem(heads=4, shared=2), (9, 0), ""),
    (problem(dim=256, grad=True), (9, 0), ""),
    (problem(dim=232, grad=True), (8, 9), ""),
    (problem(is_causal=True, dropout=0.5), (12, 1), ""),
])  # fmt: skip
def test_flash(p: AttentionProblem, capability: tuple[int, int], words: str) -> None:
    told = reason(p, "flash", capability)
    assert words in told and bool(words) == bool(told)


@pytest.mark.parametrize(("p", "capability", "words"), [
    (problem(), (4, 9), "5.0 to 12.1"),
    (problem(), (6, 1), "7.5 and newer"),
    (problem(dim=60), (9, 0), "multiples of 8"),
    (problem(dim=64, vdim=12), (9, 0), "multiples of 8"),
    (problem(dim=6, dtype=SINGLE), (9, 0), "of 4"),
    (problem(dim=6, dtype=SINGLE), (7, 5), ""),
    (problem(dtype=BRAIN), (7, 5), "bfloat16"),
    (problem(dtype=np.dtype(np.float64)), (9, 0), "float16, float32"),
    (problem(dim=512), (9, 0), "at most 256"),
    (problem(mask=np.zeros((64, 64), np.float32), grad=True), (9, 0), "gradient of a mask"),
    (problem(mask=np.zeros((64, 64), bool), grad=True), (9, 0), ""),
    (problem(mask=np.zeros((2, 1, 1, 64), np.float32)), (9, 0), ""),
    (problem(64, 65, is_causal=True), (8, 0), ""),
    (problem(dim=64, vdim=128), (10, 0), ""),
    (problem(dtype=SINGLE), (8, 0), ""),
])  # fmt: skip
def test_efficient(p: AttentionProblem, capability: tuple[int, int], words: str) -> None:
    told = reason(p, "efficient", capability)
    assert words in told and bool(words) == bool(told)


def test_tf32_takes_float32_and_tensor_cores() -> None:
    found = said(problem(dtype=SINGLE))["efficient_tf32"]
    assert isinstance(found, Algorithm) and found.precision == "tf32"
    assert "8.0" in reason(problem(dtype=SINGLE), "efficient_tf32", (7, 5))


def test_layouts_that_the_kernels_cannot_address() -> None:
    p = problem()
    q = p.operands[0]
    far = replace(q, strides=(*q.strides[:2], 2**26, 2))
    assert "elements apart" in limits(replace(p, operands=(far, *p.operands[1:])))
    odd = replace(q, strides=(*q.strides[:2], 129, 2))
    assert "whole elements" in limits(replace(p, operands=(odd, *p.operands[1:])))
    p = problem(grad=True)
    gaps = replace(p.operands[3], strides=(*p.operands[3].strides[:3], 4))
    assert "contiguous" in limits(replace(p, operands=(*p.operands[:3], gaps)))


@pytest.mark.parametrize(("values", "switch"), [
    ({"python_native.disabled_operations": ("nn.functional.scaled_dot_product_attention",)}, "python_native.disabled_operations"),
    ({"python_native.disabled_dispatch_keys": ("CUDA",)}, "python_native.disabled_dispatch_keys"),
])  # fmt: skip
def test_disabled_by_operation_or_key(values: dict[str, Any], switch: str) -> None:
    found = said(problem(), **values)
    for way in attention.WAYS:
        told = found[way]
        assert isinstance(told, Refusal) and told.switch == switch and f"disabled by {switch}" in told.reason


# --- recipes -----------------------------------------------------------------------------------------------------------------


def test_the_recipe_of_a_forward_pass() -> None:
    p = problem(queries=100, dim=64)
    made = recipe(p, (9, 0))
    (step,) = made.steps
    assert made.results == ("O",) and [m.role for m in made.made] == ["O"] and made.made[0].shape == (2, 4, 100, 64)
    assert step.pointers == ("query", "key", "value", "", "O", "")
    named = dict(zip(KERNELS["attention_forward"][1], step.scalars, strict=True))
    assert (named["B_q"], named["H_q"], named["M_q"], named["Lq"], named["heads"], named["each_k"]) == (4 * 100 * 64, 6400, 64, 100, 4, 1)
    assert named["qk_scale"] == pytest.approx(64**-0.5 * np.log2(np.e))
    assert step.programs(Tile(64, 32, 4, 1)) == 2 * 4 * 2
    assert step.variant.divisor == 16


def test_the_recipe_of_a_backward_pass() -> None:
    p = problem(queries=100, keys=70, dim=64, vdim=32, shared=2, grad=True)
    made = recipe(p, (9, 0))
    assert [s.variant.kernel for s in made.steps] == [
        "attention_forward", "attention_backward_delta", "attention_backward_keys", "attention_backward_queries",
    ]  # fmt: skip
    shapes = {m.role: (m.shape, m.dtype) for m in made.made}
    assert shapes["DQ"] == ((2, 4, 100, 64), "float16") and shapes["DV_"] == ((2, 2, 70, 32), "float16")
    assert shapes["LSE"] == shapes["Delta"] == ((2, 4, 100), "float32")
    tile = Tile(32, 64, 4, 1)
    assert [s.programs(tile) for s in made.steps] == [32, 32, 2 * 2 * 2, 32]
    for step in made.steps:
        pointers, scalars, _ = KERNELS[step.variant.kernel]
        assert len(step.pointers) == len(pointers) and len(step.scalars) == len(scalars)
        assert [name for name, _, _ in parameters(step.variant)] == [*pointers, *scalars]


def test_nothing_to_attend_to_launches_nothing() -> None:
    x = np.zeros((0, 4, 8, 16), HALF)
    p = replace(attention_problem(x, x, x), device="cuda:0")
    assert recipe(p, (9, 0)) == Recipe((), recipe(p, (9, 0)).made, ("O",))


def test_strides_say_what_may_be_read_at_once() -> None:
    for dim, divisor in ((64, 16), (40, 8), (20, 4)):
        p = problem(dim=dim, heads=1, dtype=SINGLE)
        step = recipe(p, (9, 0)).steps[0]
        assert step.variant.divisor == divisor
        by_name = {name: (kind, multiple) for name, kind, multiple in parameters(step.variant)}
        assert by_name["M_k"] == ("i32", divisor) and by_name["B_q"] == ("i64", divisor) and by_name["Q"] == ("*fp32", 16)
        assert by_name["Lk"] == ("i32", 1) and by_name["qk_scale"] == ("fp32", 1) and by_name["seed"] == ("i64", 1)


def test_a_mask_is_broadcast_by_strides() -> None:
    p = problem(mask=np.zeros((2, 1, 1, 64), np.float32))
    step = recipe(p, (9, 0)).steps[0]
    named = dict(zip(KERNELS["attention_forward"][1], step.scalars, strict=True))
    assert [named[f"{axis}_bias"] for axis in "BHMN"] == [64, 0, 0, 1]
    assert dict(step.variant.constants)["BIAS"] == 2 and step.variant.bias == "float32" and step.pointers[3] == "mask"


def test_tiles_for_each_device() -> None:
    for capability in ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)):
        for dim in (16, 64, 128, 256):
            for dtype in (HALF, SINGLE):
                for step in recipe(problem(dim=dim, dtype=dtype, grad=True), capability).steps:
                    assert all(t.warps in (4, 8) and t.stages >= 1 for t in step.tiles)
                    # The last one is small enough for every device.
                    assert step.tiles[-1].rows <= 32
    assert (shared_limit((9, 0)), shared_limit((8, 0)), shared_limit((8, 9)), shared_limit((7, 5))) == (232448, 166912, 101376, 65536)


def test_seeds_are_numbers_of_64_bits() -> None:
    assert [signed(seed) for seed in (5, 2**63, 2**64 + 1)] == [5, -(2**63), 1]
    step = recipe(problem(dropout=0.5), (9, 0)).steps[0]
    assert step.scalars[-1] == 0, "every call puts its own in the place of this one"


# --- choices -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[CuPy]:
    monkeypatch.setattr(kernel_compiler, "reason", lambda: "")
    made = CuPy(H100, A100, T4)
    with inserted(cupy=made):
        yield made


def explained(*args: Any, device: int = 0, dtype: Any = HALF, **kwargs: Any) -> Any:
    x = ndarray(np.zeros((1, 2, 8, 16), dtype), device)
    return backline.explain(backline.nn.functional.scaled_dot_product_attention, x, x, x, *args, **kwargs)


def test_flash_is_first_and_switches_decide(machine: CuPy) -> None:
    assert (explained().library, explained().algorithm) == ("triton", "flash")
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert explained().algorithm == "efficient"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert explained().algorithm == "efficient"
    with switches.scope({"cuda.flash_sdp": False}):
        assert explained().algorithm == "efficient"


def test_tf32_only_where_it_is_permitted(machine: CuPy) -> None:
    assert explained(dtype=np.float32).algorithm == "efficient"
    with switches.scope({"cuda.matmul.fp32_precision": "tf32"}):
        assert any(c.algorithm == "efficient_tf32" and c.verdict != "refused" for c in explained(dtype=np.float32).candidates)


def test_a_language_that_is_disabled_runs_nothing(machine: CuPy) -> None:
    x = ndarray(np.zeros((1, 2, 8, 16), HALF))
    with (
        python_native.triton.disabled(),
        switches.scope({"cuda.math_sdp": False, "cuda.cudnn_sdp": False}),
        pytest.raises(NoKernel, match=r"python_native.triton.enabled"),
    ):
        backline.nn.functional.scaled_dot_product_attention(x, x, x)


def test_what_decides_whether_it_is_asked() -> None:
    library = libraries.get("triton")
    assert library.info is libraries.info("triton")
    assert (library.families, library.devices, library.switch, library.kernels) == (
        ("attention",), ("cuda",), "python_native.triton.enabled", ("flash_attention", "efficient_attention"),
    )  # fmt: skip
    report = library.report()
    assert report["name"] == "triton" and report["available"] == (report["reason"] == "")
