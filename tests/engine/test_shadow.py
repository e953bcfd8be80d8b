"""Shadow runs: planted errors are found, right results are not blamed, what is written to is compared, the cost is bounded."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from erring import NAME, SHAPE, registered
from valid_calls import arguments, call, operations

import backline
from backline import _core, errors, libraries, linalg, switches
from backline.engine import shadow as module
from backline.engine.shadow_compare import distance, distance_of
from backline.errors import BadType, BadValue, ResultsDiffer, UnknownName
from backline.nn import functional
from backline.problems.op_registry import operations as rows
from support import clean, rng, seed

pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed

M, K, N = SHAPE
A, B = np.arange(1.0, 1 + M * K).reshape(M, K), np.arange(1.0, 1 + K * N).reshape(K, N)


@pytest.fixture
def erring() -> Iterator[Callable[[Callable[[Any], Any]], None]]:
    """Registers a library that errs for one shape, by a function of the right product."""
    yield registered
    libraries.unregister(NAME)
    _core.memo_clear()


def every(against: str = "numpy", **more: Any) -> module.Shadow:
    return backline.shadow(against, **{"every": 1, "budget": None, **more})


def product(a: Any = A, b: Any = B, **more: Any) -> Any:
    with backline.use(NAME):
        return backline.matmul(a, b, **more)


def one_element(found: Any) -> Any:
    found = found.copy()
    found[1, 2] *= 1 + 1e-3
    return found


PLANTS: dict[str, Callable[[Any], Any]] = {
    "one element": one_element,
    "a sign": lambda found: -found,
    "zeros": lambda found: 0 * found,
    "nan": lambda found: np.where(found == found.max(), np.nan, found),
    "infinity": lambda found: np.where(found == found.max(), np.inf, found),
    "float32": lambda found: found.astype(np.float32).astype(found.dtype) * (1 + 1e-7),
    "its rows": lambda found: found[::-1],
}


@pytest.mark.parametrize("against", ["numpy", "wider"])
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_errors_are_found(erring: Callable[..., None], plant: str, against: str) -> None:
    erring(PLANTS[plant])
    with every(against) as s:
        product(A[:, :4], B[:4])
        product()
        product(A.T.copy(), A)
    assert [record.key for record in s.drifted] == [f"matmul f64 {M}x{K} {K}x{N}"] and s.calls == 3
    worst = s.worst
    assert worst is not None and worst.drifts and worst is s.drifted[0]
    assert (worst.library, worst.algorithm, worst.against, worst.number) == (NAME, "sum", against, 1)
    assert worst.difference > worst.tolerance > 0
    assert "1 drift" in s.table() and worst.key in s.table() and "3 calls compared, 1 drifts" in repr(s)


def test_what_is_done_about_it(erring: Callable[..., None]) -> None:
    erring(one_element)
    with every(action="raise"), pytest.raises(ResultsDiffer) as caught:
        product()
    text = str(caught.value)
    assert f"matmul f64 {M}x{K} {K}x{N}: {NAME} sum and numpy differ by" in text
    assert "rounding explains" in text and f"backline.backends.{NAME}.enabled = False" in text
    assert isinstance(caught.value, ArithmeticError) and "ResultsDiffer" in errors.__all__
    with every(action="warn"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        product(), product()
    assert len(said) == 1 and f"{NAME} sum against numpy: drifts" in str(said[0].message) and said[0].filename == __file__
    with every(tolerance=0.1) as s:
        product()
    assert not s.drifted and s.worst is not None and 1e-5 < s.worst.difference < 1e-2 and s.worst.tolerance == 0.1
    with every() as s:  # recorded and no more
        product()
    assert len(s.drifted) == 1 and product().shape == (M, N)


def test_operands_that_are_written_to(erring: Callable[..., None], rng: np.random.Generator) -> None:
    erring(lambda found: found + 1)
    out = np.full((M, N), np.nan)
    with every() as s:
        assert product(out=out) is out
    assert len(s.drifted) == 1 and np.array_equal(out, A @ B + 1)
    libraries.unregister(NAME)
    a, b = rng.standard_normal((6, 6)) + 6 * np.eye(6), rng.standard_normal((6, 2))
    kept = a.copy(), b.copy()
    with every("wider", action="raise") as s, backline.use("numpy"):
        x = linalg.solve(a, b, out=np.empty_like(b))
        backline.addmm(np.ones((6, 2)), a, b, beta=2.0, out=np.zeros((6, 2)))
        c = np.ones((6, 2))
        backline.addmm(c, a, b, beta=2.0, out=c)
    assert s.calls == 3 and np.array_equal(a, kept[0]) and np.array_equal(b, kept[1])
    assert np.allclose(a @ x, b) and np.allclose(c, 2 + a @ b)


def test_results_that_are_not_unique(rng: np.random.Generator) -> None:
    """Signs and phases of vectors, ill-conditioned operands, tuples and batches."""
    n = 12
    general = rng.standard_normal((3, n, n)) + 1j * rng.standard_normal((3, n, n))
    symmetric = general + np.swapaxes(general, -1, -2).conj()
    hilbert = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    x = np.arange(n, dtype=float)
    with every(action="raise") as s:
        for a in (general, general.real, general.real.astype(np.float32), hilbert, np.ones((n, n)), np.zeros((n, n)), np.eye(n)):
            for run in (linalg.svd, linalg.qr, linalg.svdvals):
                run(a)
        for a in (symmetric, symmetric.real, np.ones((n, n)), np.eye(n)):
            linalg.eigh(a), linalg.eigvalsh(a)
        for a in (general, general.real, hilbert):
            linalg.lu_factor(a), linalg.eig(a), linalg.solve(a, np.broadcast_to(x[:, None], (*a.shape[:-1], 1)).astype(a.dtype)), linalg.inv(a)
    assert not s.drifted
    libraries_used = {record.library for record in s.records}
    assert "numpy" not in libraries_used  # those agree with themselves, and are not computed again


@pytest.mark.parametrize("against", ["numpy", "wider"])
def test_no_false_alarm(against: str) -> None:
    """One call of every public operation."""
    with every(against, action="raise") as s, np.errstate(all="ignore"):
        for name in operations():
            call(name, arguments(name))
    assert not s.drifted and s.calls > 20


def test_strange_numbers_and_shapes(rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, 9)).astype(np.float32)
    strange = x.copy()
    strange[2, 3], strange[5, 5], strange[7, 1] = np.nan, np.inf, -np.inf
    tiny, huge = x * np.float32(1e-40), x * np.float32(1e37)
    with every(action="raise") as s, np.errstate(all="ignore"):
        for a in (x[:0], x[:, :0], x[:1, :1], strange, tiny, x[::-2, ::-1], x.T, np.asfortranarray(x), np.broadcast_to(x[0], (4, 9))):
            backline.matmul(a, a.T)
            functional.softmax(a, -1), functional.relu(a), functional.gelu(a)
            backline.fft.fft(a, dim=0) if a.size else None
        functional.softmax(huge, 1)
        backline.matmul(np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2))
        backline.einsum("ij,jk,kl->il", x, x, x)
        backline.matmul(x.astype(np.float16), x.astype(np.float16))
        for a in (x, np.ones((2, 2), np.float32), np.array([[1, 2], [2, 4 + 1e-6]], np.float32), np.eye(9, dtype=np.float32)):
            for order in (-2, 2, "nuc", "fro", 1, -1):
                linalg.matrix_norm(a, order)  # the least singular value of a singular matrix has no digit in common
            linalg.cond(a), linalg.det(a), linalg.pinv(a), linalg.matrix_rank(a)
    assert not s.drifted and not any(key.startswith("einsum") for key in s.uncompared)


def test_distances() -> None:
    x = np.array([1.0, -2.0])
    assert distance(x, x) == distance((x, None, 3), (x, None, 3)) == distance(x[:0], x[:0]) == 0
    assert distance(x, x[:1]) == distance((x, x), (x,)) == distance(x, np.array([1.0, np.nan])) == np.inf
    assert distance(np.array([np.inf, 1]), np.array([-np.inf, 1])) == np.inf
    assert distance(np.array([np.inf, 1]), np.array([np.inf, 1])) == distance(np.array([np.nan]), np.array([np.nan])) == 0
    assert distance(x + 1j, x + 1j) == 0 and 0 < distance(x, x + 1e-9j) < 1e-8
    assert distance(np.array([3, 5]), np.array([3, 7])) == 2 and distance(0 * x, 0 * x) == 0 and distance(x, 0 * x) > 1e300
    assert distance(np.array([True]), np.array([False])) == 1


def test_condition_numbers_have_as_many_digits_as_the_matrix_leaves_them() -> None:
    problem = rows["linalg.cond"].build(np.eye(2))
    apart = partial(distance_of, problem)
    assert apart(np.inf, 5e16) < 1e-16 and apart(np.array([np.inf, 2.0]), np.array([4e16, 2.0])) < 1e-16 and apart(np.nan, np.nan) == 0
    assert apart(2.0, 2.1) > 0.01 and apart(np.inf, 100.0) > 0.005 and apart(1e4, 2e4) > 1e-5 and apart(np.nan, 1.0) == np.inf
    assert distance_of(rows["linalg.det"].build(np.eye(2)), np.inf, 5e16) == np.inf


def test_reduced_precision_is_allowed_for(rng: np.random.Generator) -> None:
    x = rng.standard_normal((64, 64)).astype(np.float32)
    for precision in ("tf32", "bf16"):
        with switches.scope({"fp32_precision": precision}), every(action="raise") as s:
            backline.matmul(x, x), backline.einsum("ij,jk->ik", x, x)
        assert not s.drifted


def test_float64_looks_at_coarser_results_only(erring: Callable[..., None]) -> None:
    erring(lambda found: found * (1 + found.dtype.type(1e-3)))
    with every("float64") as s:
        product()
        product(A.astype(np.float32), B.astype(np.float32))
    assert [record.key for record in s.drifted] == [f"matmul f32 {M}x{K} {K}x{N}"]
    assert list(s.uncompared) == [f"matmul f64 {M}x{K} {K}x{N}"]


def test_what_cannot_be_computed_again(erring: Callable[..., None]) -> None:
    erring(lambda found: found)
    with every(NAME) as s, backline.use("numpy"):
        linalg.svdvals(A)
        backline.matmul(A, B)
    assert s.calls == 1 and s.worst is not None and s.worst.library == "numpy"
    assert next(iter(s.uncompared.values())).startswith(f"{NAME} cannot run it: ")
    assert "not compared: linalg.svdvals" in str(s)
    with every() as s, pytest.raises(errors.LinAlgError):
        linalg.cholesky(-np.eye(3))
    with every() as s, pytest.raises(BadValue):
        backline.matmul(A, A)


# Scopes -----------------------------------------------------------------------------------------------------------------


def test_it_holds_here_alone(erring: Callable[..., None]) -> None:
    erring(lambda found: found)
    thread = threading.Thread(target=product)
    with every() as s:
        thread.start()
        thread.join()
        assert s.calls == 0
        product()
        with every() as inner:
            product()
        assert (s.calls, inner.calls) == (2, 1)
        with backline.trace() as events:
            product()
    product()
    assert s.calls == 3 and [event.library for event in events] == [NAME]
    with backline.trace() as events, every() as s:
        product()
    assert s.calls == 1 and [event.library for event in events] == [NAME]  # the shadow run is no Event
    assert switches.tracer() is None


def test_tasks_have_their_own(erring: Callable[..., None]) -> None:
    erring(lambda found: found)

    async def job(on: bool) -> int:
        if not on:
            product()
            await asyncio.sleep(0)
            product()
            return 0
        async with every() as s:
            await asyncio.sleep(0)
            product()
            await asyncio.sleep(0)
            return s.calls

    async def both() -> list[int]:
        return await asyncio.gather(job(True), job(False), job(True))

    assert asyncio.run(both()) == [1, 0, 1]


def test_one_in_so_many(erring: Callable[..., None]) -> None:
    erring(lambda found: found)
    with backline.shadow(every=10, budget=None) as s:
        for _ in range(2000):
            product()
    assert 100 < s.calls < 400 and [record.number for record in s.records] == list(range(1, s.calls + 1))


def test_the_budget_is_kept(erring: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by the calls: a call takes a millisecond, one more by the other library as well."""
    erring(lambda found: found)
    now = [0.0]
    monkeypatch.setattr(module, "clock", lambda: now[0])

    def slow(*given: Any) -> Any:
        now[0] += 1e-3
        return again(*given)

    again = module.again
    monkeypatch.setattr(module, "again", slow)
    with backline.shadow(every=1, budget=0.03) as s:
        for _ in range(20_000):
            product()
            now[0] += 1e-3
        spent = now[0] - 20.0
        assert 0.9 * 0.03 * 20 < spent < 0.03 * 20 + 2e-3
        assert s.deferred > 0 and s.overhead < 0.0302 and "deferred to keep to the budget" in s.table()
    with backline.shadow(every=1, budget=0.0) as s:
        for _ in range(200):
            product()
    assert 1e-3 * s.calls <= module.ALLOWANCE + 2e-3


def test_loading_is_not_counted_against_the_budget(erring: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by shadow runs alone: a second for the first, a millisecond for the others."""
    erring(lambda found: found)
    now, again = [0.0], module.again
    monkeypatch.setattr(module, "clock", lambda: now[0])

    def slow(*given: Any) -> Any:
        now[0] += 1e-3 if now[0] else 1.0
        return again(*given)

    monkeypatch.setattr(module, "again", slow)
    with backline.shadow(every=1) as s:
        for _ in range(200):
            product()
    assert 0.8 * module.ALLOWANCE < 1e-3 * s.calls <= module.ALLOWANCE + 2e-3 and s.deferred > 0


def test_a_wider_reference_of_a_product_is_cheap_enough(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(module, "clock", lambda: 0.0)
    x = rng.standard_normal((300, 300))
    with backline.shadow("wider", every=1) as s:
        backline.matmul(x, x)
    assert s.calls == 1 and s.deferred == 0 and not s.drifted


def test_nothing_compared_is_no_agreement(erring: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    erring(lambda found: found)
    with every(NAME) as s:
        product()
    assert s.already == 1 and not s.records and f"nothing was compared: {NAME} itself ran" in str(s)
    assert f"calls that {NAME} itself ran: 1" in str(s) and f"nothing was compared: {NAME} itself ran" in repr(s)
    monkeypatch.setattr(module, "ALLOWANCE", 0.0)
    with backline.shadow(every=1, budget=0.0) as s:
        product()
    assert s.deferred == 1 and "nothing was compared: the budget deferred" in str(s) and "nothing was compared" in repr(s)
    with every() as s:
        pass
    assert str(s) == "nothing was compared: no call was due" and "1 call compared" not in repr(s)


def test_a_tolerance_below_rounding(erring: Callable[..., None]) -> None:
    erring(lambda found: found * (1 + 4 * np.finfo(found.dtype).eps))
    with every(tolerance=0.0, action="raise") as s, pytest.raises(ResultsDiffer) as caught:
        product()
    (record,) = s.drifted
    assert record.is_rounding and record.tolerance == 0 and record.difference <= record.rounding
    text = str(caught.value)
    assert "tolerance=0; rounding explains" in text and "no library is at fault" in text and "enabled = False" not in text
    assert "1 drift as rounding does" in s.table()
    erring(one_element)
    with every(tolerance=0.0) as s:
        product()
    assert not s.drifted[0].is_rounding and "as rounding does" not in s.table()


def test_words_that_mean_nothing() -> None:
    legal = ({"every": 2}, {"budget": 1})
    assert all(backline.shadow(**right) for right in legal)  # type: ignore[arg-type]  # values of several types
    for wrong in (
        {"against": "no such library"}, {"every": 0}, {"every": True}, {"tolerance": -1.0}, {"action": "shout"}, {"budget": "x"},
        {"budget": 2}, {"budget": -0.1},
    ):  # fmt: skip
        with pytest.raises((BadValue, UnknownName)):
            backline.shadow(**wrong)  # type: ignore[arg-type]  # values of several types
    with pytest.raises(BadType):
        backline.shadow(3)  # type: ignore[arg-type]  # values of several types
