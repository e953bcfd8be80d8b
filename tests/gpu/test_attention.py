"""Attention on CUDA arrays: how exact each kernel is in both directions, and which one is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, switches
from backline.engine import first_sights
from backline.errors import BacklineError, NoKernel
from backline.libraries import attention_constraints
from backline.libraries.base import NULL_PLANNER
from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cudnn.attention_plans import AttentionPlan
from backline.libraries.cuda.cudnn.sdpa_graphs import attention_recipe
from backline.nn.attention import SDPBackend, sdpa_kernel
from gpu.arrays import normal, wide
from gpu.variants import ALLOWED, TF32_SHOWS, Case, attend, by_erratum, compiled, deviation, only, parameters, plans_of, slopes

FLASH, EFFICIENT, CUDNN, MATH = (SDPBackend[f"{n}_ATTENTION" if n != "MATH" else n] for n in ("FLASH", "EFFICIENT", "CUDNN", "MATH"))
RAGGED = ((300, 300), (37, 37))
OTHER_KEYS = ((256, 333), (40, 29))
Size = Callable[[Any, Any], Any]

FLASH_CASES = (
    Case(grad=True), Case(causal=True, grad=True), Case(dim=128, causal=True, grad=True), Case(dim=128),
    Case(dim=256, grad=True), Case(dim=256, causal=True), Case("bfloat16", 128, causal=True, grad=True), Case("bfloat16"),
    Case(causal=True, grad=True, shared=4), Case(causal=True, grad=True, lengths=RAGGED), Case(grad=True, lengths=OTHER_KEYS),
    Case(dim=96),
)  # fmt: skip
EFFICIENT_CASES = (
    Case("float32", grad=True), Case("float32", tf32=True, grad=True), Case("float32", 128), Case("float32", causal=True, lengths=OTHER_KEYS),
    Case(grad=True, mask="bool", shared=2), Case("bfloat16", 128, mask="added"), Case("float32", mask="added", lengths=OTHER_KEYS),
    Case(vdim=128, grad=True), Case(dim=256),
)  # fmt: skip
CUDNN_CASES = (
    Case(grad=True), Case(dim=128, causal=True, grad=True), Case("bfloat16", causal=True, grad=True), Case("bfloat16", 128),
    Case(shared=4, causal=True, grad=True), Case(mask="bool"), Case("bfloat16", mask="added"), Case(lengths=OTHER_KEYS), Case(vdim=128),
)  # fmt: skip
DROPPED = Case(dropout=0.25, grad=True, lengths=((256, 256), (24, 24)))


@pytest.fixture(scope="module")
def kernels(rehearsed: bool, device: Any) -> tuple[int, float, list[str]]:
    """All kernels of this file, compiled before the first row."""
    made = [step for case in (*FLASH_CASES, *EFFICIENT_CASES, DROPPED) for step in sized(case, rehearsed).steps(device.capability)]
    return compiled(made, rehearsed)


def sized(case: Case, rehearsed: bool) -> Case:
    object.__setattr__(case, "rehearsed", rehearsed)
    return case


# --- MATH -------------------------------------------------------------------------------------------------------------

MATH_CASES = (
    Case("float32", grad=True), Case("float32", causal=True, grad=True), Case("float32", 128, shared=4, grad=True),
    Case("float32", 256, mask="added", grad=True, lengths=OTHER_KEYS), Case("float16", mask="bool", shared=2, grad=True),
    Case("bfloat16", 128, causal=True, grad=True), Case("float64", grad=True), Case("float64", vdim=32, mask="bool", grad=True),
    Case("float32", tf32=True, grad=True),
)  # fmt: skip


@pytest.mark.gpu(row="SDPA-5")
@pytest.mark.parametrize("case", parameters(MATH_CASES))
def test_math(row: Any, xp: Any, rehearsed: bool, case: Case) -> None:
    row.expect("products and a softmax: as exact as the dtype, half types as float32 is; rows without a key are zeros")
    first, back, choice = sized(case, rehearsed).run(xp, MATH)
    row.observe(f"{case}: {first:.2g}, gradients {back:.2g}", choice.candidates[0].reason)
    assert (choice.library, choice.algorithm) == ("cupy", "math")
    assert first <= case.allowed and back <= 4 * case.allowed
    if case.tf32:
        assert "gemm_tf32" in choice.candidates[0].reason
        assert rehearsed or first > TF32_SHOWS


@pytest.mark.gpu(row="SDPA-5")
def test_the_gradient_of_a_mask(row: Any, xp: Any, rehearsed: bool) -> None:
    row.expect("MATH has the gradient of a mask that is added")
    case = sized(MATH_CASES[3], rehearsed)
    given = case.arrays(xp, grad=True)
    mask = given.pop("attn_mask")
    with only(MATH):
        found = slopes(given["query"], given["key"], given["value"], given["grad_output"], mask).attn_mask
    error = deviation(found, case.wanted[1].attn_mask)
    row.observe(f"error {error:.2g}")
    assert error <= 4e-5 * max(1.0, float(np.abs(case.wanted[1].attn_mask).max()))


@pytest.mark.gpu(row="SDPA-5")
def test_math_in_half_precision_where_a_switch_permits_it(row: Any, xp: Any, rehearsed: bool) -> None:
    row.expect("allow_fp16_bf16_reduction_math_sdp: products of half types; without it of float32")
    case = sized(Case(grad=True), rehearsed)
    errors = {}
    for permitted in (False, True):
        with switches.scope({"cuda.fp16_bf16_reduction_math_sdp": permitted}):
            first, back, choice = case.run(xp, MATH)
        errors[choice.algorithm] = max(first, back)
        assert first <= case.allowed and back <= 4 * case.allowed
    row.observe(f"errors {', '.join(f'{name} {error:.2g}' for name, error in errors.items())}")
    assert list(errors) == ["math", "math_half"]


@pytest.mark.gpu(row="SDPA-5")
def test_what_a_mask_leaves_out_does_not_count(row: Any, xp: Any) -> None:
    row.expect("NaN and infinity in keys and values that are left out go nowhere")
    hosts = [normal((1, 2, 64, 64), "float32", i) for i in range(3)]
    hosts[1][..., 60, :], hosts[2][..., 61, 3], hosts[2][..., 62, 4] = np.nan, np.inf, np.nan
    arrays = [*map(xp.asarray, hosts)]
    with only(MATH):
        found = wide(attend(*arrays, is_causal=True))
        wanted = attend(*map(wide, hosts), is_causal=True)
    finite = np.isfinite(wanted)
    assert (np.isfinite(found) == finite).all() and np.abs(found - wanted)[finite].max() <= 1e-5
    row.observe(f"{int((~finite).sum())} of {finite.size} elements are not finite, the right ones")


# --- fused kernels ----------------------------------------------------------------------------------------------------


def _check(row: Any, xp: Any, rehearsed: bool, case: Case, kernel: SDPBackend, algorithm: str) -> None:
    try:
        first, back, choice = sized(case, rehearsed).run(xp, kernel)
    except NoKernel as refused:
        if not by_erratum(refused):
            raise
        row.observe(f"{case}: refused by an erratum")
        return
    row.observe(f"{case}: {first:.2g}" + (f", gradients {back:.2g}" if case.grad else ""), f"{choice.library} {choice.algorithm}")
    assert choice.algorithm == algorithm
    assert first <= case.allowed and back <= 4 * case.allowed


@pytest.mark.gpu(row="SDPA-6")
@pytest.mark.parametrize("case", FLASH_CASES, ids=str)
def test_flash(row: Any, xp: Any, rehearsed: bool, kernels: Any, case: Case) -> None:
    row.expect(f"error at most {ALLOWED['float16']} in float16, {ALLOWED['bfloat16']} in bfloat16; gradients four times that")
    count, seconds, failed = kernels
    row.observe(f"{count} kernels compiled in {seconds:.1f} s{'; ' if failed else ''}{'; '.join(failed)}")
    _check(row, xp, rehearsed, case, FLASH, "flash")


@pytest.mark.gpu(row="SDPA-6", needs=("cublas",))
def test_dropout_of_flash_leaves_out_what_that_of_math_leaves_out(row: Any, xp: Any, rehearsed: bool, kernels: Any) -> None:
    row.expect("one seed, the same weights: FLASH against MATH in float64")
    case = sized(DROPPED, rehearsed)
    given, double = case.arrays(xp, grad=True), case.arrays(xp, grad=True, dtype="float64")

    def both(arrays: dict[str, Any]) -> tuple[Any, ...]:
        qkv = (arrays["query"], arrays["key"], arrays["value"])
        return attend(*qkv, **case.options), *slopes(*qkv, arrays["grad_output"], **case.options)[:3]

    with only(MATH):
        wanted = [wide(x) for x in both(double)]
    with only(FLASH):
        found = both(given)
    errors = [deviation(one, of) / max(1.0, float(np.abs(of).max())) for one, of in zip(found, wanted, strict=True)]
    row.observe(f"errors {', '.join(f'{e:.2g}' for e in errors)}")
    assert errors[0] <= case.allowed and max(errors) <= 4 * case.allowed


@pytest.mark.gpu(row="SDPA-7")
@pytest.mark.parametrize("case", parameters(EFFICIENT_CASES))
def test_efficient(row: Any, xp: Any, rehearsed: bool, kernels: Any, case: Case) -> None:
    row.expect("as FLASH; float32 within 1e-5, in TF32 only where it is permitted; masks, other lengths, other dims of the value")
    algorithm = "efficient"
    if case.tf32:  # the permission is not an order: the way is named
        with only(EFFICIENT, tf32=True):
            listed = backline.explain(backline.nn.functional.scaled_dot_product_attention, **case_arrays(xp, case, rehearsed)).candidates
        assert any(c.algorithm == "efficient_tf32" and c.verdict != "refused" for c in listed)
        with backline.use("triton", only=True):
            error = _tf32(xp, case)
        row.observe(f"{case}: {error:.2g} in TF32", "efficient_tf32")
        assert error <= case.allowed and (rehearsed or error > TF32_SHOWS)
        return
    _check(row, xp, rehearsed, case, EFFICIENT, algorithm)


def case_arrays(xp: Any, case: Case, rehearsed: bool) -> dict[str, Any]:
    return sized(case, rehearsed).arrays(xp) | case.options


def _tf32(xp: Any, case: Case) -> float:
    """The error of the way with TF32, prepared by name."""
    library = backline.libraries.get("triton")
    with only(EFFICIENT, tf32=True):
        problem = backline.explain(backline.nn.functional.scaled_dot_product_attention, **case.arrays(xp), **case.options).problem
        way = next(a for a in library.algorithms(problem, 1) if a.name == "efficient_tf32")
        found = library.prepare(problem, way)(*case.arrays(xp).values())
    return deviation(found, case.wanted[0])


@pytest.mark.gpu(row="SDPA-8")
@pytest.mark.parametrize("case", CUDNN_CASES, ids=str)
def test_cudnn(row: Any, xp: Any, rehearsed: bool, case: Case) -> None:
    row.expect("as FLASH, by plans of cuDNN")
    algorithm = "sdpa"
    _check(row, xp, rehearsed, case, CUDNN, algorithm)


@pytest.mark.gpu(row="SDPA-8")
def test_cudnn_gives_the_same_bits_where_they_are_asked_for(row: Any, xp: Any, rehearsed: bool) -> None:
    row.expect("deterministic with warn_only: the backward pass that promises it, bit for bit the same in five runs")
    case = sized(CUDNN_CASES[1], rehearsed)
    given = case.arrays(xp, grad=True)
    arrays = (given["query"], given["key"], given["value"], given["grad_output"])
    with only(CUDNN), switches.scope({"deterministic": True, "warn_only": True}):
        runs = [[xp.asnumpy(g).tobytes() for g in slopes(*arrays, **case.options)[:3]] for _ in range(5)]
        choice = backline.explain()
    row.observe(f"{choice.algorithm}: {len({tuple(run) for run in runs})} different results")
    assert choice.algorithm == "sdpa_backward_steady" and all(run == runs[0] for run in runs)


@pytest.mark.gpu(row="SDPA-8", needs=("cublas",))
def test_how_exact_cudnn_is_in_float32(row: Any, xp: Any, rehearsed: bool, device: Any) -> None:
    row.expect("float32 is kept out of CUDNN; what it would be is recorded")
    case = sized(Case("float32"), rehearsed)
    given = case.arrays(xp)
    with only(CUDNN), pytest.raises(NoKernel, match="float16 or bfloat16"):
        attend(**given)
    with sdpa_kernel(MATH):
        problem = backline.explain(backline.nn.functional.scaled_dot_product_attention, **given).problem
    plans, why = plans_of(problem, device)
    text = f"no plan: {why}"
    if plans:
        try:
            with xp.cuda.Device(0):
                run = AttentionPlan(problem, attention_recipe(problem, "sdpa"), bindings.cudnn(), 0, NULL_PLANNER)
                error = deviation(run(*given.values()), case.wanted[0])
            text = f"error {error:.2g}: {'no' if error <= TF32_SHOWS else 'yes, it is reduced to'} TF32 ({plans[0]})"
        except (BacklineError, bindings.cudnn().cudnnGraphNotSupportedError, RuntimeError) as error:
            text = f"{len(plans)} plans, none runs: {' '.join(str(error).split())[:200]}"
    row.observe(text)
    row.finding(5, f"cuDNN's attention of float32: {text}")


# --- which one --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu(row="SDPA-9")
def test_the_order_of_kernels(row: Any, xp: Any, rehearsed: bool, kernels: Any) -> None:
    row.expect(
        "by default FLASH, or CUDNN where it leads for the device and the heads; CUDNN after set_priority; the default again afterwards; "
        "the next where one is switched off"
    )
    first_sights.clear()  # rows before this one have had other shapes
    _core.memo_clear()
    case = sized(Case(grad=True), rehearsed)
    given, wanted = case.arrays(xp), case.wanted[0]

    def chosen() -> tuple[str, str]:
        assert deviation(attend(**given), wanted) <= case.allowed
        choice = backline.explain()
        return choice.library, choice.algorithm

    seen = [chosen()]
    with sdpa_kernel([CUDNN, FLASH, EFFICIENT, MATH], set_priority=True):
        seen.append(chosen())
    seen.append(chosen())
    for off in ("cuda.flash_sdp", "cuda.mem_efficient_sdp", "cuda.math_sdp"):
        seen.append(_without(chosen, ("cuda.flash_sdp", "cuda.mem_efficient_sdp", "cuda.math_sdp"), off))
    with sdpa_kernel([FLASH, EFFICIENT]), backline.backends.python_native.triton.disabled(), pytest.raises(NoKernel, match=r"triton\.enabled"):
        attend(**given)
    row.observe(" > ".join(algorithm for _, algorithm in seen))
    flash, math = ("triton", "flash"), ("cupy", "math")
    cudnn, rest = ("cudnn", "sdpa"), [("triton", "efficient"), math, ("cudnn", "sdpa")]
    assert seen in ([flash, cudnn, flash, *rest], [cudnn] * 6)
    with pytest.raises(NoKernel), switches.scope(dict.fromkeys(attention_constraints.SWITCHES.values(), False)):
        attend(**given)


def _without(chosen: Callable[[], tuple[str, str]], names: tuple[str, ...], last: str) -> tuple[str, str]:
    """Returns what is chosen while the switches up to one are off."""
    with switches.scope(dict.fromkeys(names[: names.index(last) + 1], False)):
        return chosen()


@pytest.mark.gpu(row="SDPA-9", needs=("jax",))
def test_a_second_opinion(row: Any, xp: Any, rehearsed: bool, kernels: Any) -> None:
    row.expect("JAX computes the same attention, with a causal mask and shared heads")
    jax = importlib.import_module("jax")
    for case in (Case(causal=True), Case(causal=True, shared=4)):
        sized(case, rehearsed)
        # Its axes are batch, length, heads, head dim.
        q, k, v = (jax.numpy.asarray(case.hosts[n].astype(np.float32).swapaxes(1, 2)) for n in ("query", "key", "value"))
        with jax.default_matmul_precision("highest"):
            told = np.asarray(jax.nn.dot_product_attention(q, k, v, is_causal=True)).swapaxes(1, 2).astype(np.float64)
        errors = {}
        for kernel in (FLASH, EFFICIENT, CUDNN, MATH):
            try:
                with only(kernel):
                    errors[kernel.name] = deviation(attend(**case.arrays(xp), **case.options), told)
            except NoKernel as refused:
                assert by_erratum(refused), refused
        row.observe(f"JAX {jax.__version__} on {jax.default_backend()}, {case}: {', '.join(f'{n} {e:.2g}' for n, e in errors.items())}")
        assert max(errors.values()) <= case.allowed


@pytest.mark.gpu(row="SDPA-6", needs=("cudnn",))
@pytest.mark.parametrize("dim", [64, 128])
def test_flash_and_cudnn_agree_and_are_timed(row: Any, xp: Any, size: Size, clock: Any, kernels: Any, dim: int) -> None:
    row.expect("at the size that is timed both give the same, result and gradients; nothing follows from the times")
    batch, heads, length = size((4, 16, 2048), (1, 2, 32))
    q, k, v, g = (xp.asarray(normal((batch, heads, length, dim), "float16", i)) for i in range(4))
    directions = {"forward": partial(attend, q, k, v, is_causal=True), "both": partial(slopes, q, k, v, g, is_causal=True)}
    for direction, function in directions.items():
        medians, results = [], []
        for kernel in (FLASH, CUDNN):
            with only(kernel):
                found = function()
                choice = backline.explain()
                times = clock(function)
            results.append([wide(each) for each in (found[:3] if direction == "both" else [found])])
            medians.append(sorted(times)[len(times) // 2])
            row.timing(
                op=f"attention {direction}, causal", shape=(batch, heads, length, dim), dtype="float16", library=choice.library,
                algorithm=choice.algorithm, times_us=times,
            )  # fmt: skip
        apart = max(deviation(one, other) / max(1.0, float(np.abs(other).max())) for one, other in zip(*results, strict=True))
        ours, theirs = medians
        row.observe(f"d {dim} {direction}: {apart:.2g} apart")
        row.finding(
            6,
            f"d {dim} {direction}: FLASH takes {ours:.0f} us, cuDNN {theirs:.0f} us, {ours / max(theirs, 1e-9):.2f} times as long",
        )
        assert apart <= (2 if direction == "forward" else 8) * ALLOWED["float16"]  # each may err by half of it


@pytest.mark.gpu(row="SDPA-5", needs=("cublasLt",))
def test_products_of_math_are_the_engines(row: Any, xp: Any, rehearsed: bool) -> None:
    row.expect("the products of MATH are chosen as products are: by the preferred library")
    case = sized(Case("float32"), rehearsed)
    seen = []
    for library in ("cublas", "cublaslt"):
        with switches.scope({"cuda.preferred_blas_library": library}):
            first, _, choice = case.run(xp, MATH)
        assert first <= case.allowed
        seen.append(choice.candidates[0].reason)
        assert f"products by {library} " in seen[-1]
    row.observe("; ".join(seen))


# --- dropout, lengths, and what is made of attention ----------------------------------------------------------------------


@pytest.mark.gpu(row="SDPA-8")
def test_the_seed_of_cudnn_is_told_with_the_call(row: Any, xp: Any, rehearsed: bool) -> None:
    row.expect("cuDNN's dropout: one seed leaves out the same weights each time, another one others; as many as asked for")
    case = sized(Case(dropout=0.25, lengths=((256, 256), (24, 24))), rehearsed)
    given = case.arrays(xp)
    length = given["key"].shape[2]
    given["value"] = xp.asarray(np.ascontiguousarray(np.broadcast_to(np.eye(length, 64, dtype=np.float16), given["value"].shape)))
    with only(CUDNN):
        first, again, other = (wide(attend(**given, dropout_p=0.25, seed=seed)) for seed in (7, 7, 8))
    seen = first[..., : min(length, 64)] == 0
    share = float(seen.mean())
    row.observe(f"{share:.3f} of the weights left out; {float((first != other).mean()):.3f} of the results differ with another seed")
    assert (first == again).all()
    assert rehearsed or ((first != other).any() and abs(share - 0.25) < 0.02)


@pytest.mark.gpu(row="SDPA-8")
@pytest.mark.parametrize("case", [Case(mask="bool", grad=True, lengths=((192, 192), (64, 64))), Case(mask="bool", grad=True, lengths=((320, 448), (64, 64)))], ids=str)
def test_a_mask_where_64_queries_are_left_of_128(row: Any, xp: Any, rehearsed: bool, case: Case) -> None:
    row.expect("gradients with a mask are numbers where the length leaves 64 when divided by 128, or are refused as an erratum")
    try:
        first, back, choice = sized(case, rehearsed).run(xp, CUDNN)
    except NoKernel as error:
        row.observe(f"{case}: refused: {' '.join(str(error).split())[:200]}")
        assert by_erratum(error), "nothing else is against it"
        return
    row.observe(f"{case}: {first:.2g}, gradients {back:.2g}", f"{choice.library} {choice.algorithm}")
    assert first <= case.allowed and back <= 4 * case.allowed


@pytest.mark.gpu(row="SDPA-10")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_multi_head_attention(row: Any, xp: Any, dtype: str) -> None:
    row.expect("multi-head attention, with its weights and without, as on the host in float64")
    x, weight, out = normal((2, 96, 128), dtype, 1), normal((384, 128), dtype, 2) / 12, normal((128, 128), dtype, 3) / 12
    hosts = [x, weight.astype(x.dtype), out.astype(x.dtype)]
    double, there = [wide(a) for a in hosts], [xp.asarray(a) for a in hosts]

    def run(arrays: list[Any], **options: Any) -> Any:
        query, packed, last = arrays
        return backline.nn.functional.multi_head_attention(query, query, query, 2, packed, None, last, None, is_causal=True, **options)

    errors = []
    for options in ({}, {"need_weights": True}):
        found, wanted = run(there, **options), run(double, **options)
        errors += [deviation(one, of) for one, of in zip(found, wanted, strict=True) if of is not None]
    once, again, other = (wide(run(there, dropout_p=0.5, seed=seed).output) for seed in (1, 1, 2))
    row.observe(f"{dtype}: errors {', '.join(f'{e:.2g}' for e in errors)}")
    assert max(errors) <= 4 * ALLOWED[dtype]
    assert (once == again).all() and (once != other).any()


PACKED = {"alike": ([64, 64, 72, 100], None), "empty ones": ([0, 70, 0, 129, 1, 100, 0], [3, 90, 0, 64, 200, 0, 7])}


@pytest.mark.gpu(row="SDPA-10")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences(row: Any, xp: Any, name: str, dtype: str) -> None:
    row.expect("sequences of several lengths, packed, and their gradients: each as if it were alone; positions on either side")
    (queries, keys), given = PACKED[name], {"is_causal": True, "enable_gqa": True}
    counts = zip(map(sum, (queries, keys or queries, keys or queries, queries)), (4, 2, 2, 4), strict=True)
    hosts = [normal((n, h, 64), dtype, i) for i, (n, h) in enumerate(counts)]
    positions = [None if each is None else np.cumsum([0, *each]) for each in (queries, keys)]
    moved = [*(None if each is None else xp.asarray(each) for each in positions), max(queries), max(keys or queries)]
    wanted = backline.nn.functional.varlen_attn(*map(wide, hosts[:3]), *positions, return_lse=True, **given)
    slopes_wanted = backline.nn.grad.varlen_attn_backward(*map(wide, hosts), *positions, **given)
    arrays, some, cases = [*map(xp.asarray, hosts)], np.isfinite(wanted.lse), {"host": positions}
    with backline.trace() as events:
        backline.nn.functional.varlen_attn(*arrays[:3], *positions, **given)
    if at_once := any(event.op == "packed_attention" for event in events):
        cases["device"] = moved
    for where, told in cases.items():
        found = backline.nn.functional.varlen_attn(*arrays[:3], *told, return_lse=True, **given)
        known = backline.nn.grad.varlen_attn_backward(*arrays, *told, output=found.output, lse=found.lse, **given)
        again = backline.nn.grad.varlen_attn_backward(*arrays, *told, **given)
        errors = [deviation(found.output, wanted.output), deviation(found.lse[some], wanted.lse[some])]
        errors += [deviation(one, of) for each in (known, again) for one, of in zip(each[:3], slopes_wanted[:3], strict=True)]
        row.observe(f"{where}, in one call: {at_once}; errors {', '.join(f'{e:.2g}' for e in errors)}")
        assert errors[0] <= 4 * ALLOWED[dtype] and errors[1] <= 1e-3 and max(errors[2:]) <= 8 * ALLOWED[dtype]
        assert np.isneginf(wide(found.lse)[~some]).all() and not wide(found.output)[~some].any(), "queries without keys"


@pytest.mark.gpu(row="SDPA-10")
def test_a_nan_in_a_packed_sequence(row: Any, xp: Any) -> None:
    row.expect("a NaN in one of several packed sequences does not reach those before it; whether it reaches the next is recorded")
    hosts = [normal((300, 4, 64), "float16", i) for i in range(3)]
    for x in hosts[1:]:
        x[100:200] = np.nan
    found = wide(backline.nn.functional.varlen_attn(*map(xp.asarray, hosts), [0, 60, 100, 200, 300]))
    reached = [bool(np.isnan(found[at]).any()) for at in (slice(0, 60), slice(60, 100), slice(200, 300))]
    row.observe(f"{backline.explain().chosen.key}: NaN in the first sequence, the one before, the one behind: {reached}")
    assert np.isnan(found[100:200]).all() and not reached[0]
