"""Recurrent networks by oneDNN: every algorithm against a loop in float64, what is refused, precision, and bits."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import backends, libraries, nn
from backline.libraries.base import Algorithm, Refusal
from recurrent import compare, make, oracle
from support import BFLOAT16, THREADS, arrays_in, clean, misaligned, need, problem_of, rng, seed

__all__ = ["clean", "rng", "seed"]

Array = Any
MODES = ("lstm", "gru", "rnn_tanh")
BF16 = 4e-2  # of states that are rounded to bfloat16 at every step

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(scope="module", autouse=True)
def library() -> Any:
    return need("onednn")


def ways(mode: str, call: dict[str, Any], threads: int = THREADS, **further: Any) -> Iterator[tuple[Algorithm, Any, list[Array]]]:
    """Every algorithm for a call, its plan, and the arrays that it takes."""
    lib, problem = libraries.get("onednn"), problem_of(f"nn.{mode}", *call.values(), **further)
    for found in lib.algorithms(problem, threads):
        if isinstance(found, Algorithm):
            yield found, lib.prepare(problem, found), arrays_in(tuple(call.values()), further)


def reasons(mode: str, call: dict[str, Any], **further: Any) -> str:
    found = libraries.get("onednn").algorithms(problem_of(f"nn.{mode}", *call.values(), **further), THREADS)
    return "; ".join(f"{f.name}: {f.reason}" for f in found if isinstance(f, Refusal))


def check(mode: str, call: dict[str, Any], what: str) -> int:
    wanted, ran = oracle(mode, call), 0
    for way, plan, arrays in ways(mode, call):
        before = [a.copy() for a in arrays]
        got = plan(*arrays)
        for a, b in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(a, b)
        if way.precision:
            assert all(part.dtype == call["input"].dtype for part in got)
            for part, right in zip(got, wanted, strict=True):
                np.testing.assert_allclose(part.astype(float), right, rtol=BF16, atol=BF16, err_msg=f"{way.key} {what}")
        else:
            compare(got, wanted, np.float32, f"{way.key} {what}")
        ran += 1
    return ran


@pytest.mark.parametrize("mode", MODES)
def test_every_algorithm(mode: str, rng: np.random.Generator) -> None:
    forms = itertools.product((1, 5), (1, 3), (False, True), (False, True))
    for steps, layers, bidirectional, batch_first in forms:
        for batch, hidden, biases, features in ((1, 9, True, 4), (5, 3, False, 1), (17, 33, True, 40)):
            call = make(rng, mode, steps, batch, features, hidden, layers=layers, bidirectional=bidirectional, biases=biases,
                        batch_first=batch_first, dtype=np.float32)  # fmt: skip
            assert check(mode, call, f"{steps=} {batch=} {hidden=} {layers=} {bidirectional=} {batch_first=}")


@pytest.mark.parametrize("mode", MODES)
def test_bfloat16(mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 4, 3, 5, 6, layers=2, bidirectional=True, dtype=BFLOAT16)
    has = libraries.get("onednn").traits.engine.bf16
    if mode == "gru" or not has:
        assert not check(mode, call, "") and ("infinity" if has else "no instructions for bfloat16") in reasons(mode, call)
    else:
        assert check(mode, call, "bfloat16")


@pytest.mark.parametrize("mode", MODES)
def test_any_layout(mode: str, rng: np.random.Generator) -> None:
    call = make(rng, mode, 4, 5, 3, 6, bidirectional=True, dtype=np.float32)
    changes = (misaligned, lambda a: np.array(a, order="F"), lambda a: np.repeat(a, 2, -1)[..., ::2], lambda a: a[::-1].copy()[::-1])
    for change in changes:
        strange = {
            name: change(v) if isinstance(v, np.ndarray) else tuple(map(change, v)) if isinstance(v, tuple) else v
            for name, v in call.items()
        }
        assert check(mode, strange, "")


@pytest.mark.parametrize("mode", MODES)
def test_saturated_gates_and_what_is_not_finite(mode: str, rng: np.random.Generator) -> None:
    for value, hidden in itertools.product((1e30, -1e30, 1e-40, np.nan, np.inf, -np.inf), (5, 32)):
        call = make(rng, mode, 2, 8, 1, hidden, biases=False, dtype=np.float32)
        call["input"][0, 3] = value
        with np.errstate(all="ignore"):
            assert check(mode, call, f"{value}")


def test_dropout_between_layers(rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 4, 3, 5, 6, layers=2, dtype=np.float32) | {"dropout": 0.5, "train": True}
    with backends.flags(only=("numpy",)):
        wanted = nn.lstm(*call.values(), seed=5)
    for way, plan, arrays in ways("lstm", call, seed=5):
        if not way.precision:
            for part, right in zip(plan(*arrays), wanted, strict=True):
                np.testing.assert_allclose(part, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("biases", [False, True])
def test_weights_are_read_at_every_call(biases: bool, rng: np.random.Generator) -> None:
    call = make(rng, "lstm", 3, 2, 4, 5, biases=biases, dtype=np.float32)
    for way, plan, arrays in ways("lstm", call):
        plan(*arrays)
        for p in call["params"]:
            p[...] = (rng.standard_normal(p.shape) / 3).astype(np.float32)
        if not way.precision:
            compare(plan(*arrays), oracle("lstm", call), np.float32, way.key)


def test_arrays_named_in_another_order(rng: np.random.Generator) -> None:
    call = make(rng, "gru", 3, 2, 4, 5, dtype=np.float32)
    with backends.flags(prefer=("onednn",)):
        compare(nn.gru(**dict(reversed(call.items()))), oracle("gru", call), np.float32, "reversed")
        assert backline.explain().library == "onednn"


# What is refused ------------------------------------------------------------------------------------------------------------


def test_what_it_has_not_is_refused_with_the_reason(rng: np.random.Generator) -> None:
    relu = make(rng, "rnn_relu", 3, 2, 4, 5, dtype=np.float32)
    assert "its relu makes 0 of NaN" in reasons("rnn_relu", relu)
    lstm = make(rng, "lstm", 3, 2, 4, 5, dtype=np.float32)
    assert "all of one length" in reasons("lstm", lstm, lengths=np.array([3, 1]))
    assert "no recurrent network of float64" in reasons("lstm", make(rng, "lstm", 3, 2, 4, 5))
    assert "empty" in reasons("lstm", make(rng, "lstm", 0, 2, 4, 5, dtype=np.float32))
    x, hx, params, *rest = lstm.values()
    problem = problem_of("nn.grad.lstm_backward", x, hx, params, None, hx[0], None, *rest)
    (refused,) = libraries.get("onednn").algorithms(problem, THREADS)
    assert "gradients" in refused.reason


# Precision ------------------------------------------------------------------------------------------------------------------


def test_the_switch_permits_bfloat16(rng: np.random.Generator) -> None:
    if not libraries.get("onednn").traits.engine.bf16:
        assert "no instructions for bfloat16" in reasons("lstm", make(rng, "lstm", 3, 2, 4, 5, dtype=np.float32))
        return
    call = make(rng, "lstm", 3, 2, 4, 5, dtype=np.float32)

    def verdict() -> Any:
        return next(c for c in backline.explain("nn.lstm", *call.values()).candidates if (c.library, c.algorithm) == ("onednn", "bf16"))

    assert verdict().verdict == "refused" and verdict().switch == "mkldnn.rnn.fp32_precision"
    for scope in (backends.mkldnn.rnn.flags(fp32_precision="bf16"), backends.mkldnn.flags(fp32_precision="bf16")):
        with scope:
            assert verdict().verdict != "refused"
            with backends.flags(emulate=True):
                choice = backline.explain("nn.lstm", *call.values())
                assert (choice.library, choice.algorithm, choice.effective_precision) == ("onednn", "bf16", "bf16")
                for part, right in zip(nn.lstm(*call.values()), oracle("lstm", call), strict=True):
                    np.testing.assert_allclose(part, right, rtol=BF16, atol=BF16)
    with backends.mkldnn.rnn.flags(fp32_precision="tf32"):
        assert verdict().verdict == "refused"
    rows = [r for r in backends.effective_precision() if (r.operation, r.library) == ("rnn", "onednn")]
    assert [r.effective for r in rows] == ["ieee"]


# Bits -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_levels_are_true(mode: str, rng: np.random.Generator) -> None:
    for steps, batch, features, hidden in ((6, 1, 200, 300), (5, 33, 65, 130), (7, 3, 700, 64), (3, 16, 256, 256)):
        call = make(rng, mode, steps, batch, features, hidden, bidirectional=True, dtype=np.float32)
        bits: dict[str, set[bytes]] = {}
        for threads in (1, 2, 3):
            for way, plan, arrays in ways(mode, call, threads):
                runs = {b"".join(part.tobytes() for part in plan(*arrays)) for _ in range(3)}
                assert len(runs) == 1 or way.level == "off", way.key
                if way.level == "threads":
                    bits.setdefault(way.name, set()).update(runs)
        assert bits and all(len(found) == 1 for found in bits.values()), mode


def test_two_threads_share_a_plan(rng: np.random.Generator) -> None:
    calls = [make(rng, "lstm", 6, 4, 32, 48, dtype=np.float32) for _ in range(2)]
    wanted = [oracle("lstm", call) for call in calls]
    wrong: list[str] = []

    def work(plan: Any, i: int) -> None:
        arrays = arrays_in(tuple(calls[i].values()), {})
        for _ in range(40):
            for got, right in zip(plan(*arrays), wanted[i], strict=True):
                if not np.allclose(got, right, rtol=2e-5, atol=2e-5):
                    wrong.append(f"call {i}")

    for way, plan, _ in ways("lstm", calls[0]):
        if not way.precision:
            running = [threading.Thread(target=work, args=(plan, i)) for i in range(2)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
    assert not wrong


@pytest.mark.parametrize("mode", MODES)
def test_measuring_finds_every_way_right(mode: str, rng: np.random.Generator) -> None:
    from backline.engine import choose
    from backline.engine.tuning import measure

    call = make(rng, mode, 40, 4, 30, 50, layers=2, dtype=np.float32)
    problem = problem_of(f"nn.{mode}", *call.values())
    with backends.mkldnn.flags(fp32_precision="bf16"):
        record = measure.measure_problem(problem, choose.eligible(problem, THREADS), THREADS, timing=False)
    assert not record.rejected
