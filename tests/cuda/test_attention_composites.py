"""Multi-head attention, and attention over packed sequences, on CuPy's arrays: computed by its stand-in, compared with the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core
from backline.errors import BadType, BadValue, NoKernel
from backline.nn import functional as F
from backline.nn import grad as G
from backline.nn.attention import SDPBackend, sdpa_kernel
from fakes import philox
from fakes.cupy_standin import ndarray
from fakes.gpu_machine import GpuMachine
from fakes.solver_machine import real_types
from support import clean, dtype_of

real_types()
pytestmark = pytest.mark.usefixtures("clean", "machine", "by_the_formula")
assert clean
Array = Any
NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}


@pytest.fixture
def by_the_formula() -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH):
        yield


def there(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(there, value))
    return ndarray(value) if isinstance(value, np.ndarray) else value


def wide(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(wide, value))
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind in "fV" else value


RNG = np.random.default_rng(5)
N, L, S, E, HEADS = 2, 5, 7, 12, 3


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape)


SELF, KEYS, VALUES = numbers(N, L, E), numbers(N, S, E), numbers(N, S, E)
PACKED, BIAS, OUT, OUT_BIAS = numbers(3 * E, E) / 3, numbers(3 * E), numbers(E, E) / 3, numbers(E)
TAKEN_OUT = RNG.random((L, S)) < 0.4
TAKEN_OUT[1] = True  # a query without keys
PADDING = np.arange(S)[None] >= np.array([[S], [4]])
CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "self": ((SELF, SELF, SELF), {}),
    "self, without a bias": ((SELF, SELF, SELF), {"bias": None}),
    "self, causal": ((SELF, SELF, SELF), {"is_causal": True}),
    "cross": ((SELF, KEYS, VALUES), {}),
    "key is value": ((SELF, KEYS, KEYS), {"attn_mask": TAKEN_OUT}),
    "no batch": ((SELF[0], KEYS[0], VALUES[0]), {"key_padding_mask": PADDING[1]}),
    "two masks": ((SELF, KEYS, VALUES), {"attn_mask": TAKEN_OUT, "key_padding_mask": PADDING}),
    "added": ((SELF, KEYS, VALUES), {"attn_mask": np.where(TAKEN_OUT, -np.inf, numbers(L, S)), "key_padding_mask": PADDING}),
    "mask of each head": ((SELF, KEYS, VALUES), {"attn_mask": RNG.random((N * HEADS, L, S)) < 0.3}),
    "causal and padding": ((KEYS, KEYS, KEYS), {"is_causal": True, "key_padding_mask": PADDING}),
    "other features": ((SELF, numbers(N, S, 4), numbers(N, S, 6)), {"weight": (numbers(E, E), numbers(E, 4), numbers(E, 6))}),
}  # fmt: skip


def given(name: str, dtype: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a case in a dtype; arrays that are one stay one."""
    sources, options = CASES[name]
    kept: dict[int, Any] = {}

    def cast(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(cast, value))
        if isinstance(value, np.ndarray) and value.dtype != bool:
            return kept.setdefault(id(value), value.astype(dtype_of(dtype)))
        return value

    options = {key: cast(value) for key, value in options.items()}
    weight, bias = options.pop("weight", cast(PACKED)), options.pop("bias", cast(BIAS))
    return (*map(cast, sources), HEADS, weight, bias, cast(OUT), cast(OUT_BIAS)), options


def on(move: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call of moved arrays, among which one that is in several places stays one."""
    kept: dict[int, Any] = {}

    def one(value: Any) -> Any:
        return kept.setdefault(id(value), move(value)) if isinstance(value, np.ndarray) else move(value)

    return tuple(map(one, args)), {key: one(value) for key, value in options.items()}


def compared(found: Any, wanted: Any, allowed: float) -> None:
    assert type(found) is ndarray and found.shape == wanted.shape
    np.testing.assert_allclose(found.host.astype(np.float64), wanted, atol=allowed * max(1.0, np.abs(wanted).max()), rtol=0)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(("name", "dtype"), [
    *((name, dtype) for name in CASES for dtype in ("float32", "float64")), *((name, d) for name in ("self", "added") for d in ("float16", "bfloat16")),
])  # fmt: skip
def test_multi_head_attention(name: str, dtype: str, need_weights: bool) -> None:
    args, options = given(name, dtype)
    there_args, there_options = on(there, args, options)
    wide_args, wide_options = on(wide, args, options)
    found = F.multi_head_attention(*there_args, **there_options, need_weights=need_weights)
    wanted = F.multi_head_attention(*wide_args, **wide_options, need_weights=need_weights)
    compared(found.output, wanted.output, NEAR[dtype])
    assert found.output.dtype == dtype_of(dtype) and (found.weights is None) == (not need_weights)
    if need_weights:
        compared(found.weights, wanted.weights, NEAR[dtype])
        each = F.multi_head_attention(*there_args, **there_options, need_weights=True, average_attn_weights=False)
        wanted = F.multi_head_attention(*wide_args, **wide_options, need_weights=True, average_attn_weights=False)
        compared(each.weights, wanted.weights, NEAR[dtype])


@pytest.mark.parametrize("more", [
    {"bias_k": numbers(1, 1, E), "bias_v": numbers(1, 1, E)}, {"add_zero_attn": True}, {"static_k": numbers(N * HEADS, 4, E // HEADS), "static_v": numbers(N * HEADS, 4, E // HEADS)},
    {"bias_k": numbers(1, 1, E), "bias_v": numbers(1, 1, E), "add_zero_attn": True, "attn_mask": TAKEN_OUT},
    {"key_padding_mask": PADDING, "add_zero_attn": True}, {"key_padding_mask": np.where(PADDING, -np.inf, 0.25), "add_zero_attn": True},
], ids=lambda more: " ".join(more))  # fmt: skip
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_forward(more: dict[str, Any], need_weights: bool) -> None:
    sources = [x.swapaxes(0, 1) for x in (SELF, KEYS, VALUES)]
    args = (*sources, E, HEADS, PACKED, BIAS, more.get("bias_k"), more.get("bias_v"), more.get("add_zero_attn", False), 0.0, OUT, OUT_BIAS)
    options = {key: value for key, value in more.items() if key not in ("bias_k", "bias_v", "add_zero_attn")} | {"need_weights": need_weights}
    there_args, there_options = on(there, args, options)
    found, wanted = F.multi_head_attention_forward(*there_args, **there_options), F.multi_head_attention_forward(*args, **options)
    compared(found.output, wanted.output, 1e-12)
    if need_weights:
        compared(found.weights, wanted.weights, 1e-12)


def test_dropout_leaves_out_what_attention_leaves_out() -> None:
    (query, _, _, *rest), _ = given("self", "float64")
    x, moved = there(query), [there(value) for value in rest]
    once, again, other = (F.multi_head_attention(x, x, x, *moved, dropout_p=0.5, seed=seed) for seed in (3, 3, 4))
    assert (once.output.host == again.output.host).all() and (once.output.host != other.output.host).any()
    shown = F.multi_head_attention(x, x, x, *moved, dropout_p=0.5, seed=3, need_weights=True, average_attn_weights=False)
    compared(shown.output, once.output.host, 1e-12)
    assert ((shown.weights.host == 0) == (philox.kept((N, HEADS, L, L), 3, 0.5) == 0)).all()
    before = _core.memo_info()["size"]
    for seed in range(20):
        F.multi_head_attention(x, x, x, *moved, dropout_p=0.5, seed=seed)
    assert _core.memo_info()["size"] == before


def test_self_attention_is_one_projection(made: GpuMachine) -> None:
    args, options = on(there, *given("self", "float32"))
    F.multi_head_attention(*args, **options)
    choice = backline.explain()
    assert choice is not None
    with backline.trace() as events:
        F.multi_head_attention(*args, **options)
    assert [event.op for event in events].count("linear") == 2, "that of all three, and that of the result"
    explained = backline.explain(F.multi_head_attention, *args, **options)
    assert (explained.library, explained.algorithm) == ("cupy", "composed")


def test_arrays_of_several_kinds_are_refused() -> None:
    args, _ = given("self", "float32")
    with pytest.raises(BadType, match="NumPy"):
        F.multi_head_attention(there(args[0]), *args[1:])
    with pytest.raises(BadType, match="NumPy"):
        F.multi_head_attention(*on(there, args[:3], {})[0], *args[3:])


@pytest.mark.parametrize("dtype", list(NEAR))
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences(dtype: str, causal: bool) -> None:
    q, k, v = (numbers(12, 2, d).astype(dtype_of(dtype)) for d in (8, 8, 6))
    for positions in (([0, 4, 8, 12], [0, 4, 8, 12]), ([0, 1, 7, 7, 12], [0, 3, 5, 6, 12])):
        found = F.varlen_attn(*map(there, (q, k, v)), *positions, is_causal=causal, return_lse=True)
        wanted = F.varlen_attn(*map(wide, (q, k, v)), *positions, is_causal=causal, return_lse=True)
        compared(found.output, wanted.output, NEAR[dtype])
        some = np.isfinite(wanted.lse)
        np.testing.assert_allclose(found.lse.host[some], wanted.lse[some], atol=1e-4 if dtype != "float64" else 1e-12)
        g = numbers(*wanted.output.shape).astype(dtype_of(dtype))
        slopes = G.varlen_attn_backward(*map(there, (q, k, v, g)), *positions, is_causal=causal)
        known = G.varlen_attn_backward(*map(there, (q, k, v, g)), *positions, is_causal=causal, output=found.output, lse=found.lse)
        expected = G.varlen_attn_backward(*map(wide, (q, k, v, g)), *positions, is_causal=causal)
        for one, other, want in zip(slopes[:3], known[:3], expected[:3], strict=True):
            compared(one, want, 4 * NEAR[dtype])
            compared(other, want, 4 * NEAR[dtype])


def test_positions_are_not_copied_to_the_host() -> None:
    x = there(numbers(4, 2, 8))
    with pytest.raises(BadValue, match="never copies between devices implicitly"):
        F.varlen_attn(x, x, x, there(np.array([0, 4])))
    with pytest.raises(NoKernel, match="never copies between devices implicitly"):
        F.varlen_attn(x, x, x, there(np.array([0, 4])), None, 4)
    with pytest.raises(BadValue, match="decreases"):
        F.varlen_attn(x, x, x, [0, 5, 4])
