"""Sizes that stand for those of later calls: expressions are right for other sizes wherever the conditions hold."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import numpy as np
import pytest

from backline.problems import operand
from backline.problems.symbolic_sizes import SizeTrace, SymbolicSize, Untraceable, log2_in_steps


def traced(*shapes: tuple[int, ...]) -> tuple[SizeTrace, list[Any]]:
    trace = SizeTrace()
    return trace, [trace.array(np.empty(shape), i) for i, shape in enumerate(shapes)]


def values_of(*arrays: np.ndarray[Any, Any]) -> list[int]:
    return [n for a in arrays for n in (*a.shape, *a.strides)]


def holds(trace: SizeTrace, values: list[int]) -> bool:
    """Tells if the conditions of a trace hold for other sizes."""
    known = list(values)
    for remainder, dividend, divisor in trace.quotients:
        a, b = (sum(int(f) * math.prod(known[i] for i in m) for m, f in terms) for terms in (dividend, divisor))
        if not b:
            return False
        known.append(a % b if remainder else a // b)
    for terms, bounds in trace.conditions.items():
        value = sum(f * math.prod(known[i] for i in m) for m, f in terms)
        if (bounds.low is not None and value < bounds.low) or (bounds.high is not None and value > bounds.high):
            return False
        if value in bounds.excluded:
            return False
    return True


def decisions(rng: random.Random, numbers: list[Any]) -> Any:
    """A random computation with decisions in it, the same one for the same generator."""
    pool = list(numbers)
    for _ in range(12):
        a, b, c = rng.choice(pool), rng.choice(pool), rng.randint(-3, 9)
        kind = rng.randrange(12)
        if kind == 0:
            pool.append(a + b)
        elif kind == 1:
            pool.append(a - c)
        elif kind == 2:
            pool.append(a * b if len(pool) < 9 else a * c)
        elif kind == 3:
            pool.append(a // (c or 2))
        elif kind == 4:
            pool.append(a % 7)
        elif kind == 5:
            pool.append(a if a < b else c)
        elif kind == 6:
            pool.append(max(a, b, c))
        elif kind == 7:
            pool.append(abs(a - b))
        elif kind == 8:
            pool.append(-a if a == b else a)
        elif kind == 9:
            pool.append(c if a >= 3 * b + c else b)
        elif kind == 10 and b != 0:
            pool.append(a // b)
        else:
            pool.append(math.prod((a, c)) if a else c)
    return tuple(pool)


@pytest.mark.parametrize("seed", range(150))
def test_what_is_followed_holds_for_all_sizes_that_satisfy_the_conditions(seed: int) -> None:
    rng = random.Random(seed)
    trace, (a, b) = traced((5, 9), (4,))
    symbolic = decisions(random.Random(seed), [*a.shape, *b.shape])
    assert trace.evaluated(symbolic, trace.values[: len(trace.symbols)]) == decisions(random.Random(seed), [5, 9, 4])
    for _ in range(300):
        arrays = np.empty((rng.randint(0, 12), rng.randint(0, 12))), np.empty(rng.randint(0, 12))
        values = values_of(*arrays)
        if holds(trace, values):
            expected = decisions(random.Random(seed), [*arrays[0].shape, *arrays[1].shape])
            assert trace.evaluated(symbolic, values) == expected, arrays[0].shape
    assert holds(trace, values_of(np.empty((5, 9)), np.empty(4))), "they hold for the call itself"


@pytest.mark.parametrize(
    "use",
    [
        range, hash, str, repr, float, int, math.log2, bytearray, "{}".format, "x".__mul__, [0].__mul__, np.empty,
        lambda n: {n: 1}, lambda n: f"{n}", lambda n: struct.pack("<q", n), lambda n: (1, 2)[n],
        lambda n: 2**n, lambda n: n**0.5, lambda n: round(n), lambda n: n & 1,
    ],
)  # fmt: skip
def test_whatever_needs_a_number_is_refused(use: Any) -> None:
    _, (a,) = traced((1, 3))
    with pytest.raises(TypeError):
        use(a.shape[0])


def test_a_quotient_may_be_used_as_a_number_that_it_then_has_to_be() -> None:
    trace, (a,) = traced((40, 3))
    parts = -(-a.shape[0] // 16)
    assert len(range(parts)) == 3
    assert holds(trace, values_of(np.empty((48, 3)))) and not holds(trace, values_of(np.empty((49, 3))))


def test_arrays_have_no_elements_and_are_described_like_others() -> None:
    x = np.empty((6, 5))[::2].T
    trace = SizeTrace()
    a = trace.array(x, 0)
    assert isinstance(a, np.ndarray) and a.ndim == 2 and a.flags.aligned and a.flags.writeable
    described = operand("a", a)
    assert trace.evaluated((described.shape, described.strides), values_of(x)) == (x.shape, x.strides)
    assert described.layout() == operand("a", x).layout() == "F"
    for use in (np.asarray, len, np.sum, lambda a: a[0], lambda a: a.T, lambda a: a + 1):
        with pytest.raises((TypeError, AttributeError)):
            use(a)


def test_work_counts_in_quarters_of_a_doubling() -> None:
    trace, (a,) = traced((100, 100))
    m, n = a.shape
    assert log2_in_steps(2.0 * m * n, 4) == math.log2(20000.0) and log2_in_steps(0.0, 4) == 0
    assert trace.levels == [((((0, 1), 2.0),), 4)] and holds(trace, values_of(np.empty((100, 130))))
    log2_in_steps(2.0 * m * n, 4)
    assert len(trace.levels) == 1
    _, (tiny,) = traced((0, 3))
    assert log2_in_steps(2.0 * tiny.shape[0], 4) == 0


def test_sizes_are_no_integers() -> None:
    _, (a,) = traced((4, 4))
    assert not isinstance(a.shape[0], int) and type(a.shape[0]) is SymbolicSize
    assert a.shape[0] - a.shape[0] == 0 and type(a.strides[0] * 6 // 3 - 2 * a.strides[0]) is int
    with pytest.raises(Untraceable):
        a.shape[0].__index__()
