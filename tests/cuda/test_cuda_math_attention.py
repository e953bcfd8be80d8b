"""Attention of CUDA arrays made of products: against float64, on a CuPy without a device and a cuBLAS that computes with NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import _core, switches
from backline.errors import NoKernel
from backline.libraries.cuda.attention import philox
from backline.libraries.cuda.attention.cuda_math_attention import scores_of
from backline.nn.attention import SDPBackend, sdpa_kernel
from backline.problems.attention_problem import attention_problem
from fakes import philox as definition
from fakes.computing import Blas, Lt
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.insert import inserted
from support import clean

real = pytest.importorskip("nvmath.bindings.cublas")
real_lt = pytest.importorskip("nvmath.bindings.cublasLt")
pytestmark = pytest.mark.usefixtures("clean")
assert clean

HALF, BRAIN, SINGLE, DOUBLE = (np.dtype(d) for d in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
ALLOWED = {HALF: 2e-3, BRAIN: 2e-2, SINGLE: 1e-5, DOUBLE: 1e-12}


class Machine:
    """The modules that libraries find: `blas.log` has the calls of cuBLAS."""

    def __init__(self) -> None:
        self.cupy, self.blas = CuPy(H100), Blas(real)

    def modes(self) -> list[tuple[int, int]]:
        """Types of the matrices and compute type of each product."""
        return [(call["atype"], call["compute_type"]) for name, call in self.blas.log if name.startswith("gemm")]


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cublas=made.blas, cublasLt=Lt(real_lt)), sdpa_kernel(SDPBackend.MATH):
        yield made


def attend(*args: Any, **kwargs: Any) -> Any:
    return backline.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def slopes(*args: Any, **kwargs: Any) -> Any:
    return backline.nn.grad.scaled_dot_product_attention_backward(*args, **kwargs)


def there(array: Any) -> Any:
    return ndarray(array) if isinstance(array, np.ndarray) else array


def close(found: Any, wanted: Any, allowed: float) -> None:
    """Equal but for rounding; what is not finite is so in the same places."""
    a, b = found.get().astype(np.float64), np.asarray(wanted, np.float64)
    assert a.shape == b.shape
    finite = np.isfinite(b)
    assert (np.isfinite(a) == finite).all()
    assert np.abs(a - b)[finite].max(initial=0) <= allowed * max(1.0, np.abs(b[finite]).max(initial=0))


def out(rng: np.random.Generator, *shape: int) -> Any:
    mask = rng.random(shape) < 0.6
    mask[..., 1, :] = False
    return mask


def added(rng: np.random.Generator, *shape: int) -> Any:
    mask = rng.standard_normal(shape).astype(np.float32)
    mask[..., :2] = -np.inf
    return mask


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"options": {"is_causal": True}},
    "shared heads": {"key": (2, 2, 7, 8), "value": (2, 2, 7, 6), "options": {"enable_gqa": True, "is_causal": True}},
    "shared heads, others of the value": {"key": (2, 2, 7, 8), "value": (2, 1, 7, 6), "options": {"enable_gqa": True}},
    "no batch": {"query": (4, 5, 8), "key": (2, 7, 8), "value": (2, 7, 6), "options": {"enable_gqa": True}},
    "matrices": {"query": (5, 8), "key": (7, 8), "value": (7, 6), "options": {"scale": -0.3}},
    "broadcast": {"key": (1, 4, 7, 8), "value": (2, 1, 7, 6)},
    "mask of bool": {"mask": (out, 2, 4, 5, 7)},
    "mask of keys": {"mask": (out, 5, 7), "key": (2, 2, 7, 8), "value": (2, 2, 7, 6), "options": {"enable_gqa": True}},
    "mask added": {"mask": (added, 2, 1, 1, 7)},
    "no key": {"key": (2, 4, 0, 8), "value": (2, 4, 0, 6)},
    "no query": {"query": (2, 4, 0, 8)},
    "no head dim": {"query": (2, 4, 5, 0), "key": (2, 4, 7, 0)},
}  # fmt: skip


def arrays_of(case: dict[str, Any], dtype: np.dtype[Any], seed: int = 5) -> tuple[list[Any], Any, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    shapes = (case.get("query", (2, 4, 5, 8)), case.get("key", (2, 4, 7, 8)), case.get("value", (2, 4, 7, 6)))
    mask = case["mask"][0](rng, *case["mask"][1:]) if "mask" in case else None
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes], mask, case.get("options", {})


@pytest.mark.parametrize(("name", "dtype"), [
    *((name, SINGLE) for name in CASES), *((name, dtype) for name in ("plain", "shared heads", "mask added") for dtype in (HALF, BRAIN, DOUBLE)),
])  # fmt: skip
def test_against_float64(machine: Machine, name: str, dtype: np.dtype[Any]) -> None:
    (q, k, v), mask, options = arrays_of(CASES[name], dtype)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    wanted = attend(*wide, mask, **options)
    found = attend(*map(there, (q, k, v, mask)), **options)
    assert type(found) is ndarray and found.dtype == dtype
    close(found, wanted, ALLOWED[dtype])
    g = np.random.default_rng(6).standard_normal(wanted.shape).astype(dtype)
    wanted = slopes(*wide, g.astype(np.float64), mask, **options)
    found = slopes(*map(there, (q, k, v, g, mask)), **options)
    for one, of, expected in zip(found, (q, k, v, mask), wanted, strict=True):
        if expected is None:
            assert one is None
            continue
        assert one.dtype == of.dtype and one.shape == of.shape
        close(one, expected, 4 * ALLOWED[dtype])


def test_what_is_left_out_does_not_count(machine: Machine) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 6, 8)).astype(np.float32) for _ in range(3))
    mask = np.ones((6, 6), bool)
    mask[:3, 2:5] = False
    k[..., 2, :], v[..., 3, 1], v[..., 4, 2] = np.nan, np.inf, -np.inf
    for options in ({"attn_mask": mask}, {"is_causal": True}):
        given = {n: there(x) for n, x in options.items()}
        close(attend(*map(there, (q, k, v)), **given), attend(q, k, v, **options), 1e-5)
        for one, wanted in zip(slopes(*map(there, (q, k, v, q)), **given)[:3], slopes(q, k, v, q, **options)[:3], strict=True):
            close(one, wanted, 1e-4)


def test_half_precisions_are_computed_in_float32_unless_a_switch_permits_less(machine: Machine) -> None:
    (q, k, v), _, _ = arrays_of({}, HALF)
    attend(*map(there, (q, k, v)))
    assert machine.modes() == [(0, 68), (0, 68)]
    machine.blas.log.clear()
    with switches.scope({"cuda.fp16_bf16_reduction_math_sdp": True}):
        close(attend(*map(there, (q, k, v))), attend(*(x.astype(np.float64) for x in (q, k, v))), 2e-3)
        assert machine.modes() == [(2, 68), (2, 68)]
        assert backline.explain(backline.nn.functional.scaled_dot_product_attention, *map(there, (q, k, v))).algorithm == "math_half"


def test_products_obey_what_switches_say_of_products(machine: Machine) -> None:
    (q, k, v), _, _ = arrays_of({}, SINGLE)
    for asked, effective in (("ieee", "f32"), ("tf32", "tf32")):
        with switches.scope({"cuda.matmul.fp32_precision": asked}):
            machine.blas.log.clear()
            attend(*map(there, (q, k, v)))
            modes = [call["mode"] for name, call in machine.blas.log if name == "set_math_mode" and call["mode"]]
            assert modes == ([3, 3] if asked == "tf32" else [])
            choice = backline.explain(backline.nn.functional.scaled_dot_product_attention, *map(there, (q, k, v)))
            assert (choice.library, choice.algorithm, choice.effective_precision) == ("cupy", "math", effective)
            assert "products by cublas gemm" in choice.candidates[0].reason
    with switches.scope({"only": ("cupy",)}), pytest.raises(NoKernel, match="nothing for its products"):
        attend(*map(there, (q, k, v)))


def test_query_and_key_each_take_the_root_of_the_scale(machine: Machine) -> None:
    q = np.full((1, 1, 1, 4), 1e30, np.float32)
    k = np.zeros((1, 1, 2, 4), np.float32)
    k[..., 0, :] = 1e30
    v = np.array([[[[1.0], [2.0]]]], np.float32)
    assert attend(*map(there, (q, k, v)), scale=1e-40).get().item() == pytest.approx(1.0), "1e60 would be infinite"


def test_the_products_are_planned_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.engine import choose

    arrays = tuple(map(there, arrays_of({}, SINGLE)[0]))
    attend(*arrays)
    monkeypatch.setattr(choose, "plan_for", None)
    attend(*arrays)
    assert len(machine.modes()) == 4


def test_the_first_product_of_shared_heads_is_one_regular_batch() -> None:
    q, k = np.zeros((2, 8, 5, 16), np.float32), np.zeros((2, 2, 7, 16), np.float32)
    problem = scores_of(replace(attention_problem(q, k, k, enable_gqa=True), device="cuda:0"), SINGLE)
    assert (problem.batch, problem.m, problem.n, problem.k) == ((2, 2), 4 * 5, 7, 16)
    assert problem.operands[1].strides == (2 * 7 * 16 * 4, 7 * 16 * 4, 4, 64)


# --- dropout -----------------------------------------------------------------------------------------------------------------


def test_random_numbers_are_those_of_the_definition() -> None:
    """Philox 4x32-10 as its authors published it: counters and keys of zeros, of ones, and of digits of pi."""
    assert [int(w) for w in definition.words(0, 0, 0, 0, 0)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert [int(w) for w in definition.words(2**64 - 1, ones, ones, ones, ones)] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    digits = 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344
    assert [int(w) for w in definition.words(0x299F31D0A4093822, *digits)] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 20, 30), (1, 1), (3, 5, 4), (2, 7, 1), (1, 6, 33), (2, 0, 5), (2, 3, 0)])
def test_the_kernel_draws_four_keys_at_a_time(machine: Machine, shape: tuple[int, ...], dtype: str) -> None:
    for seed in (0, 9, 2**63 + 5, 2**64 - 1, 2**70 + 9):
        found = philox.kept(machine.cupy, shape, seed, 0.3, np.dtype(dtype))
        assert found.shape == shape and found.dtype == dtype
        assert (found.host == definition.kept(shape, seed, 0.3).astype(dtype)).all()
    assert (philox.kept(machine.cupy, shape, 1, 1.0, np.dtype(dtype)).host == 0).all()
    share = (definition.kept((40, 50), 9, 0.3) == 0).mean()
    assert abs(share - 0.3) < 0.06


def test_a_hundred_steps_are_one_plan(machine: Machine) -> None:
    """Products and masks are planned for the first seed, and for no other one."""
    (q, k, v), _, _ = arrays_of({}, SINGLE)
    device = [there(x) for x in (q, k, v)]
    attend(*device, dropout_p=0.5, seed=1000)
    before, plan = _core.memo_info(), _core.last_plan()
    found = {attend(*device, dropout_p=0.5, seed=seed).host.tobytes() for seed in range(100)}
    after = _core.memo_info()
    assert len(found) > 90 and _core.last_plan() is plan
    assert (after["misses"], after["size"]) == (before["misses"], before["size"])


@pytest.mark.parametrize("name", CASES)
def test_the_log_sum_exp(machine: Machine, name: str) -> None:
    """It is that of the CPU, and gradients that are given it are those that are not."""
    (q, k, v), mask, options = arrays_of(CASES[name], SINGLE)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    wanted = attend(*wide, mask, **options, return_lse=True)
    found = attend(*map(there, (q, k, v, mask)), **options, return_lse=True)
    assert type(found.lse) is ndarray and found.lse.dtype == np.float32
    close(found.output, wanted.output, ALLOWED[SINGLE])
    assert (np.isneginf(found.lse.host) == np.isneginf(wanted.lse)).all()
    some = np.isfinite(wanted.lse)
    np.testing.assert_allclose(found.lse.host[some], wanted.lse[some], atol=1e-5, rtol=1e-5)
    g = np.random.default_rng(6).standard_normal(wanted.output.shape).astype(np.float32)
    expected = slopes(*wide, g.astype(np.float64), mask, **options)
    given = slopes(*map(there, (q, k, v, g, mask)), **options, output=found.output, lse=found.lse)
    for one, of in zip(given, expected, strict=True):
        if of is not None:
            close(one, of, 4 * ALLOWED[SINGLE])


def test_dropout_leaves_out_the_same_in_both_directions(machine: Machine) -> None:
    (q, k, v), _, _ = arrays_of({"value": (2, 4, 7, 8)}, DOUBLE)
    kept = definition.kept((2, 4, 5, 7), 11, 0.4)
    scores = q @ k.swapaxes(-1, -2) * 8**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    close(attend(*map(there, (q, k, v)), dropout_p=0.4, seed=11), (weights * kept) @ v, 1e-12)
    found = slopes(*map(there, (q, k, v, q)), dropout_p=0.4, seed=11)
    close(found.value, (weights * kept).swapaxes(-1, -2) @ q, 1e-12)
    changed = q @ v.swapaxes(-1, -2) * kept
    ds = weights * (changed - (changed * weights).sum(-1, keepdims=True))
    close(found.query, ds @ k * 8**-0.5, 1e-12)
