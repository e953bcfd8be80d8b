"""The constraints of attention kernels: each one on both sides, their order, and a second opinion on random problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline import switches
from backline.errors import BadType, BadValue
from backline.libraries import attention_constraints, devices
from backline.libraries.attention_constraints import Facts, order, refusal
from backline.problems import Operand
from backline.problems.attention_problem import AttentionProblem, attention_problem, wrong
from backline.switches.definitions import KERNELS

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {name: BF16 if name == "bfloat16" else np.dtype(name) for name in ("float16", "bfloat16", "float32", "float64", "int8")}
HOPPER = Facts((9, 0), 92300, (1, 24))


def dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(n, 1)
    return tuple(reversed(strides))


def ask(
    device: str = "cpu",
    *,
    dtype: str = "float16",
    b: Any = 2,
    h: Any = 8,
    lq: int = 16,
    lk: int = 16,
    d: Any = 64,
    mask: tuple[int, ...] | None = None,
    mask_dtype: str = "bool",
    rank: int = 4,
    step: int = 1,
    mask_needs_grad: bool = False,
    is_dense: bool = True,
    alignment: int = 256,
    **parameters: Any,
) -> AttentionProblem:
    """A problem of the given facts. b, h and d are numbers, or one for each of query, key and value."""
    three = [(x if isinstance(x, tuple) else (x, x, x)) for x in (b, h, d)]
    operands = []
    for i, role in enumerate(("query", "key", "value")):
        shape = (three[0][i], three[1][i], lk if i else lq, three[2][i])[4 - rank :]
        strides = dense(shape, DTYPES[dtype].itemsize)
        operands.append(Operand(role, DTYPES[dtype], shape, (*strides[:-1], strides[-1] * step)))
    if mask is not None:
        kind = np.dtype(bool) if mask_dtype == "bool" else DTYPES[mask_dtype]
        operands.append(Operand("mask", kind, mask, dense(mask, kind.itemsize)))
    return AttentionProblem(
        "nn.functional.scaled_dot_product_attention", tuple(operands), tuple(sorted(parameters.items())), "attention",
        device=device, alignment=alignment, mask_needs_grad=mask_needs_grad, dense=is_dense,
    )  # fmt: skip


# --- each constraint, both sides ----------------------------------------------------------------------------------

FLASH_CPU = [
    # what fails, what stands in the reason, what just passes
    ({"is_dense": False}, "dense", {}),
    ({"dropout_p": 0.1}, "no dropout, and it is 0.1", {"dropout_p": 0.0}),
    ({"rank": 3}, "4-D", {}),
    ({"b": (2, 1, 1)}, "batch", {"b": 1}),
    ({"h": (8, 4, 4)}, "as many heads", {"h": (8, 4, 4), "enable_gqa": True}),
    ({"mask": (16, 8)}, "mask must be", {"mask": (16, 16)}),
    ({"mask": (2, 16, 16)}, "mask must be", {"mask": (16, 1)}),
    ({"mask": (2, 4, 16, 16)}, "mask must be", {"mask": (2, 8, 16, 16)}),
    ({"mask": (3, 1, 1, 1)}, "mask must be", {"mask": (1, 1, 1, 1)}),
    ({"mask": (16,)}, "mask must be", {"mask": (1, 16)}),
    ({"mask": (16, 16), "mask_needs_grad": True}, "no gradient", {"mask": (1, 1)}),
    ({"d": (64, 64, 32)}, "one head dim", {"d": 32}),
    ({"lq": 0}, "zero", {"lq": 1}),
    ({"lk": 0}, "zero", {"lk": 1}),
    ({"step": 2}, "contiguous", {}),
    ({"dtype": "int8"}, "dtype", {"dtype": "float64"}),
    ({"dtype": "int8"}, "dtype", {"dtype": "bfloat16"}),
]
FUSED_CUDA = [
    ({"rank": 3}, "4-D", {}),
    ({"lq": 0}, "zero", {"lq": 2}),
    ({"lk": 0}, "zero", {"lk": 16}),
    ({"b": (2, 1, 1)}, "batch", {"b": 1}),
    ({"h": (8, 4, 4)}, "as many heads", {"h": (8, 4, 4), "enable_gqa": True}),
    ({"step": 2}, "contiguous", {}),
]
FLASH_CUDA = [
    *FUSED_CUDA,
    ({"mask": (16, 16)}, "no mask", {}),
    ({"d": (64, 64, 32)}, "one head dim", {"d": 32}),
    ({"d": (64, 32, 32)}, "one head dim", {"d": 32}),
    ({"d": 264}, "at most 256, not 264", {"d": 256}),
    ({"facts": Facts((7, 5))}, "capability must be 8.0 to 12.1, not (7, 5)", {"facts": Facts((8, 0))}),
    ({"facts": Facts((12, 2))}, "capability", {"facts": Facts((12, 1))}),
    ({"facts": Facts(None)}, "capability", {}),
    ({"dtype": "float32"}, "float16 or bfloat16, not float32", {"dtype": "bfloat16"}),
    ({"is_causal": True, "lk": 8}, "as many queries as keys", {"is_causal": True}),
    ({"lk": 8, "is_causal": True}, "as many queries as keys", {"lk": 8}),
    *(
        ({"d": 200, "needs_grad": True, "facts": Facts(c)}, "backward pass", {"d": d, "needs_grad": grad, "facts": Facts(c)})
        for c in ((8, 6), (8, 9), (12, 0), (12, 1))
        for d, grad in ((192, True), (232, True), (200, False))
    ),
    ({"d": 224, "needs_grad": True, "facts": Facts((8, 9))}, "backward pass", {"d": 225, "needs_grad": True, "facts": Facts((8, 9))}),
    (
        {"d": 232, "needs_grad": True, "dropout_p": 0.5, "facts": Facts((8, 6))},
        "backward pass",
        {"d": 232, "needs_grad": True, "dropout_p": 0.5, "facts": Facts((8, 0))},
    ),
    ({"d": 200, "needs_grad": True, "facts": Facts((8, 6))}, "backward pass", {"d": 200, "needs_grad": True, "facts": HOPPER}),
]
EFFICIENT_CUDA = [
    *FUSED_CUDA,
    ({"facts": Facts((4, 9))}, "capability must be 5.0 to 12.1", {"facts": Facts((5, 0))}),
    ({"facts": Facts((13, 0))}, "capability", {"facts": Facts((12, 1))}),
    ({"d": (64, 32, 64)}, "query and key must have one head dim", {"d": (64, 64, 32)}),
    ({"d": 60}, "multiples", {"d": 56}),
    ({"d": (64, 64, 60)}, "multiples", {"d": (64, 64, 56)}),
    ({"d": 0}, "multiples", {"d": 8}),
    ({"d": 6, "dtype": "float32"}, "multiples", {"d": 4, "dtype": "float32"}),
    ({"d": 6, "dtype": "float32"}, "multiples", {"d": 6, "dtype": "float32", "facts": Facts((7, 5))}),
    ({"d": 4, "facts": Facts((7, 5))}, "multiples", {"d": 8, "facts": Facts((7, 5))}),
    ({"d": 0, "dtype": "float32", "facts": Facts((7, 5))}, "multiples", {"d": 1, "dtype": "float32", "facts": Facts((7, 5))}),
    ({"alignment": 8}, "8 bytes", {"alignment": 16}),
    ({"alignment": 8, "dtype": "float32"}, "8 bytes", {"alignment": 16, "dtype": "float32"}),
    ({"alignment": 2}, "2 bytes", {"alignment": 2, "facts": Facts((7, 5))}),
    ({"dtype": "float64", "d": 64}, "dtype", {"dtype": "float32"}),
    ({"dtype": "bfloat16", "facts": Facts((7, 5))}, "dtype", {"dtype": "bfloat16", "facts": Facts((8, 0))}),
]
CUDNN_CUDA = [
    *FUSED_CUDA,
    ({"facts": replace(HOPPER, strict=True)}, "same bits", {}),
    ({"dtype": "float32"}, "float16 or bfloat16", {"dtype": "bfloat16"}),
    ({"facts": replace(HOPPER, capability=(7, 5))}, "capability", {"facts": replace(HOPPER, capability=(8, 0))}),
    ({"facts": replace(HOPPER, capability=(12, 2))}, "capability", {"facts": replace(HOPPER, capability=(12, 1))}),
    ({"mask": (16, 8)}, "mask must be", {"mask": (1, 16)}),
    ({"mask": (2, 1, 16, 8)}, "mask must be", {"mask": (2, 1, 16, 16)}),
    ({"mask": (16, 16), "mask_needs_grad": True}, "no gradient", {"mask": (16, 16)}),
    ({"dropout_p": 0.1}, "1/16, not 0.1", {"dropout_p": 0.125}),
    ({"dropout_p": 0.03125}, "1/16", {"dropout_p": 0.0625}),
    ({"dropout_p": 0.5, "facts": replace(HOPPER, cudnn=91100)}, "9.11 to 9.13", {"dropout_p": 0.5, "facts": replace(HOPPER, cudnn=91099)}),
    ({"dropout_p": 0.5, "facts": replace(HOPPER, cudnn=91399)}, "9.11 to 9.13", {"dropout_p": 0.5, "facts": replace(HOPPER, cudnn=91400)}),
    ({"dropout_p": 0.5, "facts": replace(HOPPER, cudnn=91200)}, "9.11 to 9.13", {"facts": replace(HOPPER, cudnn=91200)}),
    ({"dropout_p": 0.5, "lq": 1}, "more than one query", {"dropout_p": 0.0, "lq": 1}),
    ({"dropout_p": 0.5, "lq": 1}, "more than one query", {"dropout_p": 0.5, "lq": 2}),
    ({"b": 65536}, "65535", {"b": 65535}),
    ({"h": 65536}, "65535", {"h": 65535}),
    ({"d": 60}, "multiples of 8", {"d": 56}),
    ({"d": (64, 64, 60)}, "multiples of 8", {"d": (64, 64, 32)}),
    ({"d": 136, "facts": replace(HOPPER, cudnn=92200)}, "at most 128", {"d": 128, "facts": replace(HOPPER, cudnn=92200)}),
    ({"d": (192, 192, 128), "facts": Facts((9, 0), 91099)}, "at most 128", {"d": (192, 192, 128), "facts": Facts((9, 0), 91100)}),
    ({"d": (192, 192, 128), "facts": Facts((10, 3), 91100)}, "at most 128", {"d": (192, 192, 128), "facts": Facts((10, 0), 91100)}),
    ({"d": 192, "facts": Facts((9, 0), 91100)}, "at most 128", {"d": 192}),
    ({"d": 256, "facts": replace(HOPPER, cudnn=92200)}, "at most 128", {"d": 256, "facts": replace(HOPPER, cudnn=92201)}),
    ({"d": 256, "facts": replace(HOPPER, frontend=(1, 23, 9))}, "at most 128", {"d": 256, "facts": replace(HOPPER, frontend=(1, 24, 0))}),
    ({"d": 256, "facts": replace(HOPPER, frontend=())}, "at most 128", {"d": 256}),
    ({"d": 256, "facts": replace(HOPPER, capability=(8, 0))}, "at most 128", {"d": 256, "facts": replace(HOPPER, capability=(10, 3))}),
    ({"d": 264}, "at most 128", {"d": 256}),
    ({"lk": 1}, "more than one key", {"lk": 2}),
]
TABLES = {
    ("flash_attention", "cpu"): FLASH_CPU,
    ("flash_attention", "cuda:0"): FLASH_CUDA,
    ("efficient_attention", "cuda:0"): EFFICIENT_CUDA,
    ("cudnn_attention", "cuda:0"): CUDNN_CUDA,
    ("flash_attention", "mps"): [({"dropout_p": 0.1}, "dropout", {"mask": (16, 16)})],
}
CASES = [(*key, *row) for key, rows in TABLES.items() for row in rows]


def asked(kernel: str, device: str, given: dict[str, Any]) -> str:
    given = dict(given)
    facts = given.pop("facts", HOPPER if device.startswith("cuda") else Facts())
    return refusal(kernel, ask(device, **given), facts)


@pytest.mark.parametrize(("kernel", "device", "fails", "text", "passes"), CASES)
def test_a_constraint_refuses_what_fails_it_and_nothing_else(kernel, device, fails, text, passes):
    assert text in asked(kernel, device, fails)
    assert asked(kernel, device, passes) == ""


@pytest.mark.parametrize("kernel", ["flash_attention", "cudnn_attention"])
def test_a_stride_does_not_matter_where_flash_and_cudnn_have_one_element(kernel):
    one = ask("cuda:0", d=1, step=2)
    if kernel == "flash_attention":
        assert refusal(kernel, one, HOPPER) == ""
    else:
        assert "multiples of 8" in refusal(kernel, one, HOPPER)  # beyond the stride
    assert "contiguous" in refusal("efficient_attention", one, HOPPER)


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "mps"])
@pytest.mark.parametrize("kernel", ["math", "overrideable"])
def test_math_and_extensions_take_what_the_others_refuse(kernel, device):
    problem = ask(device, dtype="float64", rank=3, d=(3, 3, 5), dropout_p=0.3, lk=1, step=2)
    assert refusal(kernel, problem, Facts()) == ""


@pytest.mark.parametrize(
    ("kernel", "device", "where"),
    [("efficient_attention", "cpu", "cuda"), ("cudnn_attention", "mps", "cuda"), ("flash_attention", "tpu:0", "cpu or cuda or mps")],
)
def test_a_kernel_refuses_other_devices(kernel, device, where):
    assert refusal(kernel, ask(device), HOPPER) == f"it is for arrays on {where}, not on {device.partition(':')[0]}"


@pytest.mark.parametrize("key", [key for key in TABLES if key[1] != "mps"], ids=str)
def test_the_first_constraint_that_fails_is_the_reason(key):
    kernel, device = key
    rules = attention_constraints.RULES[kernel, device.partition(":")[0]]
    spoilt = ask(device, rank=3, dtype="int8", b=(2, 1, 1), lq=0, step=2, is_dense=False)
    first = next(rule for rule in rules if not rule.holds(spoilt, Facts()))
    assert refusal(kernel, spoilt, Facts()) == first.text.format(p=spoilt, f=Facts())
    fused = ["4-D", "no length", "batch", "heads", "contiguous"]
    written = [next((word for word in fused if word in rule.text), "") for rule in rules[:5]]
    if device == "cuda:0":
        assert written == fused


# --- what is refused before any kernel ----------------------------------------------------------------------------

MEANINGLESS = [
    ({"mask": (16, 16), "is_causal": True}, "exclude each other"),
    ({"dropout_p": 1.5}, "between 0 and 1, but got 1.5"),
    ({"dropout_p": -0.1}, "between 0 and 1"),
    ({"dropout_p": float("nan")}, "between 0 and 1"),
    ({"rank": 1}, "2 dimensions"),
    ({"d": (64, 32, 32)}, "query and key must have one head dim, not 64 and 32"),
    ({"mask": (16, 16), "mask_dtype": "float64"}, "mask must be bool, float32 or float16"),
    ({"h": (8, 3, 3), "enable_gqa": True}, "divide"),
    ({"h": (8, 4, 3), "enable_gqa": True}, "divide"),
    ({"h": (8, 0, 0), "enable_gqa": True}, "divide"),
]


@pytest.mark.parametrize(("given", "text"), MEANINGLESS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_refuses_the_same_things_alike(kernel, given, text):
    for device in ("cpu", "cuda:0"):
        reason = refusal(kernel, ask(device, **given), HOPPER)
        assert text in reason and reason == wrong(ask(device, **given))


def test_keys_and_values_of_other_lengths_are_refused_by_every_kernel():
    problem = attention_problem(*(np.zeros((1, 1, n, 8), "f2") for n in (4, 4, 5)))
    assert all(refusal(k, problem, HOPPER) == "key and value must have one length, not 4 and 5" for k in KERNELS)


def test_unequal_dtypes_are_refused_by_every_kernel():
    problem = attention_problem(np.zeros((1, 1, 2, 8), "f4"), np.zeros((1, 1, 2, 8), "f4"), np.zeros((1, 1, 2, 8), "f8"))
    assert all("one dtype, not query float32, key float32, value float64" in refusal(k, problem, HOPPER) for k in KERNELS)


@pytest.mark.parametrize("mask_dtype", ["bool", "float32", "float16"])
def test_masks_may_be_bool_float32_or_of_the_querys_dtype(mask_dtype):
    assert wrong(ask(mask=(16, 16), mask_dtype=mask_dtype)) == ""


# --- a second opinion ---------------------------------------------------------------------------------------------


def opinion(kernel: str, p: AttentionProblem, f: Facts) -> bool:
    """The rules again, written down anew from their description, as one condition for each kernel."""
    (bq, hq, lq, dq), (bk, hk, lk, dk), (bv, hv, _, dv) = (o.shape for o in p.operands[:3])
    mask, name = p.get("mask"), p.dtype.name
    if mask is not None and p.is_causal:
        return False
    if p.enable_gqa and (hk == 0 or hv == 0 or hq % hk or hq % hv):
        return False
    fits = mask is None or (
        not p.mask_needs_grad
        and len(mask.shape) in (2, 4)
        and all(n in (1, m) for n, m in zip(mask.shape[::-1], (lk, lq, hq, bq), strict=False))
    )
    step = p.operands[0].strides[-1] // p.dtype.itemsize
    half, heads = name in ("float16", "bfloat16"), hq == hk == hv
    if p.device == "cpu":
        return (
            kernel == "flash_attention" and p.dropout == 0 and bq == bk == bv and (heads or p.enable_gqa) and fits and dq == dk == dv
            and 0 not in (lq, lk) and step == 1 and name in ("float16", "bfloat16", "float32", "float64")
        )  # fmt: skip
    c = f.capability
    common = 0 not in (lq, lk) and bq == bk == bv and (heads or p.enable_gqa)
    if not common or c is None:
        return False
    loose = step == 1 or all(d == 1 for d in (dq, dk, dv))
    modern = (8, 0) <= c <= (12, 1)
    if kernel == "flash_attention":
        ok = loose and mask is None and dq == dk == dv <= 256 and modern and half and (not p.is_causal or lq == lk)
        if p.needs_grad and c in ((8, 6), (8, 9), (12, 0), (12, 1)):
            ok = ok and (dq <= 192 or (dq > 224 and not p.dropout))
        return ok
    if kernel == "efficient_attention":
        unit = 8 if half else (4 if c >= (8, 0) else 1)
        return (
            step == 1 and (5, 0) <= c <= (12, 1) and dq == dk and all(d > 0 and d % unit == 0 for d in (dq, dk, dv))
            and (c < (8, 0) or p.alignment % (unit * p.dtype.itemsize) == 0)
            and (name in ("float16", "float32") or (name == "bfloat16" and c >= (8, 0)))
        )  # fmt: skip
    dims = all(d % 8 == 0 for d in (dq, dk, dv)) and (
        max(dq, dk, dv) <= 128
        or ((dq, dk, dv) == (192, 192, 128) and c in ((9, 0), (10, 0)) and f.cudnn >= 91100)
        or (max(dq, dk, dv) <= 256 and (c == (9, 0) or c[0] == 10) and f.cudnn > 92200 and f.frontend >= (1, 24))
    )
    dropout = not p.dropout or (p.dropout * 16 == int(p.dropout * 16) and not 91100 <= f.cudnn <= 91399 and lq != 1)
    return loose and not f.strict and half and modern and fits and dropout and max(bq, hq) <= 65535 and dims and lk != 1


@st.composite
def problems(draw: st.DrawFn, device: str) -> AttentionProblem:
    pick = lambda *values: draw(st.sampled_from(values))  # noqa: E731  # a short name for what is drawn often
    h = pick(8, 8, 8, (8, 4, 4), (8, 2, 4), (8, 3, 3))
    gqa = draw(st.booleans())
    mask = pick(None, None, (16, 16), (1, 8), (16, 8), (2, 8, 16, 8), (1, 1, 1, 1), (3, 1, 1, 1), (2, 16, 8))
    return ask(
        device, dtype=pick("float16", "float16", "bfloat16", "float32", "float64"), b=pick(2, 2, 2, (2, 1, 1), 1), h=h,
        lq=pick(16, 16, 1, 0), lk=pick(8, 16, 1, 0), d=pick(64, 64, 128, 256, 192, 200, 232, 1, 4, 6, 0, (192, 192, 128), (64, 64, 32)),
        mask=mask, mask_needs_grad=draw(st.booleans()) and draw(st.booleans()), step=pick(1, 1, 1, 2),
        alignment=pick(256, 16, 8, 2), enable_gqa=gqa, is_causal=draw(st.booleans()), needs_grad=draw(st.booleans()),
        dropout_p=pick(0.0, 0.0, 0.0, 0.25, 0.3),
    )  # fmt: skip


FACTS = st.builds(
    Facts,
    st.sampled_from([None, (4, 9), (5, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (12, 2)]),
    st.sampled_from([0, 91099, 91100, 91399, 91400, 92200, 92201]),
    st.sampled_from([(), (1, 23, 1), (1, 24), (2, 0)]),
    st.booleans(),
)


@settings(max_examples=600, deadline=None)
@given(data=st.data(), kernel=st.sampled_from(["flash_attention", "efficient_attention", "cudnn_attention"]), facts=FACTS)
def test_the_tables_agree_with_a_second_opinion(data, kernel, facts):
    device = data.draw(st.sampled_from(["cpu", "cuda:0", "cuda:0"]))
    problem = data.draw(problems(device))
    assert (refusal(kernel, problem, facts) == "") == bool(opinion(kernel, problem, facts))


# --- order, facts, providers --------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(KERNELS), unique=True).map(tuple))
def test_after_any_priority_each_kernel_is_in_the_order_exactly_once(priority):
    found = order(priority)
    assert found[: len(priority)] == priority and sorted(found) == sorted(KERNELS)
    assert [k for k in found if k not in priority] == [k for k in KERNELS if k not in priority]


def test_the_standing_order_is_the_same_on_every_device():
    assert order(()) == ("flash_attention", "efficient_attention", "math", "cudnn_attention", "overrideable")


def test_every_kernel_has_a_switch():
    assert tuple(attention_constraints.SWITCHES) == KERNELS and all(name in switches.declared() for name in attention_constraints.SWITCHES.values())


@pytest.mark.parametrize(("deterministic", "warn_only", "strict"), [(False, False, False), (True, False, True), (True, True, False)])
def test_facts_know_whether_determinism_is_demanded(deterministic, warn_only, strict):
    with switches.scope(deterministic=deterministic, warn_only=warn_only):
        assert attention_constraints.facts_of("cpu") == Facts(strict=strict)
        assert attention_constraints.facts_of("cuda:0").strict is strict


def test_facts_are_those_of_the_arrays_own_device(monkeypatch):
    monkeypatch.setattr(devices, "capability", lambda index: {0: (8, 0), 1: (9, 0)}[index])
    monkeypatch.setattr(devices, "current", lambda: 1)
    assert [attention_constraints.facts_of(device).capability for device in ("cuda:0", "cuda:1", "cuda")] == [(8, 0), (9, 0), (9, 0)]


def test_the_frontends_version_is_asked_of_its_package(monkeypatch):
    from importlib import metadata

    attention_constraints._frontend.cache_clear()
    monkeypatch.setattr(metadata, "version", lambda name: {"nvidia-cudnn-frontend": "1.24.0rc1"}[name])
    assert attention_constraints._frontend() == (1, 24)
    attention_constraints._frontend.cache_clear()


# --- describing arrays --------------------------------------------------------------------------------------------


def test_numpy_arrays_are_described_as_they_lie():
    x = np.zeros((2, 8, 16, 64), np.float32)
    y = np.zeros((2, 16, 8, 128), np.float32).swapaxes(1, 2)[..., ::2]
    problem = attention_problem(x, y, x, np.ones((16, 16), bool), scale=0.5)
    assert problem.device == "cpu" and problem.last_strides() == (1, 2, 1) and problem.scale == 0.5
    assert problem.mask is not None and problem.mask.shape == (16, 16) and problem.dense
    assert attention_problem(x, x, x).scale == 0.125
    assert attention_problem(x, x, x) == attention_problem(x, x, x) != attention_problem(x, x, x, is_causal=True)
    assert attention_problem(x, x, x, is_causal=True).flops == attention_problem(x, x, x).flops / 2 == 2 * 8 * 16 * 16 * 128
    assert not attention_problem(x, x, np.ma.masked_array(x)).dense


def test_the_alignment_is_that_of_the_least_aligned_array():
    whole = np.zeros(4096 + 64, np.float16)
    start = -whole.ctypes.data // 2 % 128  # where 256 bytes begin
    aligned = whole[start : start + 1024].reshape(1, 1, 16, 64)
    late = whole[start + 8 : start + 8 + 1024].reshape(1, 1, 16, 64)
    assert attention_problem(aligned, aligned, aligned).alignment == 256
    assert attention_problem(aligned, late, aligned).alignment == 16


class Device:
    def __init__(self, index: int) -> None:
        self.id = index


class Memory:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class CuPyArray:
    """The part of an array of CuPy that is looked at."""

    def __init__(self, shape: tuple[int, ...], dtype: str = "float16", index: int = 0, ptr: int = 512) -> None:
        self.shape, self.dtype, self.strides = shape, DTYPES[dtype], dense(shape, DTYPES[dtype].itemsize)
        self.device, self.data = Device(index), Memory(ptr)


class MLXArray:
    """The part of an array of MLX that is looked at: no strides, no address, a dtype with a name of its own."""

    class _DType:
        def __str__(self) -> str:
            return "mlx.core.bfloat16"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, self._DType()


MLXArray.__module__ = "mlx.core"


def test_cuda_arrays_are_described_with_their_device():
    q, k = CuPyArray((2, 8, 16, 64), index=1), CuPyArray((2, 8, 16, 64), index=1, ptr=512 + 32)
    problem = attention_problem(q, k, q)
    assert (problem.device, problem.kind, problem.alignment) == ("cuda:1", "cuda", 32)
    assert problem.last_strides() == (1, 1, 1) and refusal("flash_attention", problem, HOPPER) == ""


def test_mlx_arrays_are_described():
    problem = attention_problem(*[MLXArray((2, 8, 16, 64))] * 3)
    assert problem.device == "mps" and problem.dtype == BF16 and problem.last_strides() == (1, 1, 1)


def test_what_is_no_array_or_on_several_devices_is_refused():
    x = np.zeros((2, 8, 16, 64), np.float16)
    with pytest.raises(BadType, match="key is list, not an array"):
        attention_problem(x, [1, 2], x)
    with pytest.raises(BadValue, match="query on cpu, key on cuda:0, value on cpu"):
        attention_problem(x, CuPyArray((2, 8, 16, 64)), x)
