"""Fourier transforms whose lengths keep changing: nothing is planned for a length, and results are those of numpy.fft."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core
from backline.engine import fft_plan_caches, ranking
from backline.libraries.fft_steps import PLANNED_AFTER
from backline.libraries.numpy.transform_loops import MOST_ELEMENTS
from support import clean, misaligned

pytestmark = pytest.mark.usefixtures("clean")
assert clean

Array = Any
rng = np.random.default_rng(8)
KNOWN = 40  # calls after which lengths of a range have a template


@pytest.fixture(autouse=True)
def order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SciPy, which is always there, comes before NumPy's loops."""
    order = ("scipy.c2c@1", "scipy.r2c@1", "scipy.c2r@1", "kernels.mixed_radix@1")
    monkeypatch.setattr(ranking, "order_of", lambda problem, own=True: order)
    _core.memo_clear()
    yield
    _core.memo_clear()


def numbers(*shape: int, dtype: str = "complex128") -> Array:
    x = rng.standard_normal(shape)
    return np.asarray(x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x, dtype)


fft = backline.fft
# Operand of a length, the call, and NumPy's.
CALLS: dict[str, tuple[Callable[[int], Array], Callable[[Array], Array], Callable[[Array], Array]]] = {
    "fft": (numbers, fft.fft, np.fft.fft),
    "ifft": (numbers, fft.ifft, np.fft.ifft),
    "ifft ortho": (numbers, lambda x: fft.ifft(x, norm="ortho"), lambda x: np.fft.ifft(x, norm="ortho")),
    "fft forward": (numbers, lambda x: fft.fft(x, norm="forward"), lambda x: np.fft.fft(x, norm="forward")),
    "fft of real numbers": (lambda n: numbers(n, dtype="float64"), fft.fft, np.fft.fft),
    "ifft of real numbers": (lambda n: numbers(n, dtype="float64"), fft.ifft, np.fft.ifft),
    "rfft": (lambda n: numbers(n, dtype="float64"), fft.rfft, np.fft.rfft),
    "irfft": (lambda n: numbers(n + 1), fft.irfft, np.fft.irfft),
    "hfft": (lambda n: numbers(n + 1), fft.hfft, np.fft.hfft),
    "ihfft": (lambda n: numbers(n, dtype="float64"), fft.ihfft, np.fft.ihfft),
    "cut": (lambda n: numbers(n + 20), lambda x: fft.fft(x, 17), lambda x: np.fft.fft(x, 17)),
    "filled up": (lambda n: numbers(n), lambda x: fft.fft(x, 300), lambda x: np.fft.fft(x, 300)),
    "rows": (lambda n: numbers(5, n), fft.fft, np.fft.fft),
    "columns": (lambda n: numbers(n, 3), lambda x: fft.fft(x, dim=0), lambda x: np.fft.fft(x, axis=0)),
    "rfft of columns": (
        lambda n: numbers(n, 3, dtype="float64"), lambda x: fft.rfft(x, dim=0), lambda x: np.fft.rfft(x, axis=0),
    ),
    "steps": (lambda n: numbers(3 * n)[::3], fft.fft, np.fft.fft),
    "backwards": (lambda n: numbers(n)[::-1], fft.fft, np.fft.fft),
    "misaligned": (lambda n: misaligned(numbers(n)), fft.fft, np.fft.fft),
    "a batch": (lambda n: numbers(2, 3, n), fft.ifft, np.fft.ifft),
    "two axes": (lambda n: numbers(n, 7), fft.fft2, np.fft.fft2),
    "two axes back": (lambda n: numbers(n, 6), fft.irfft2, np.fft.irfft2),
    "two axes of real numbers": (lambda n: numbers(n, 7, dtype="float64"), fft.fft2, np.fft.fft2),
    "all axes": (lambda n: numbers(2, n, 3, dtype="float64"), fft.rfftn, np.fft.rfftn),
}  # fmt: skip


def same(got: Array, wanted: Array, eps: float = 2.3e-16) -> bool:
    size = float(np.linalg.norm(wanted.ravel())) or 1.0
    far = float(np.linalg.norm((got - wanted).ravel())) / size
    return got.shape == wanted.shape and far <= 8 * eps * np.log2(max(wanted.size, 4))


def python_of(call: Callable[[], object]) -> list[str]:
    """Names of the Python functions that a call runs."""
    seen: list[str] = []

    def watch(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [name for name in seen if "<lambda>" not in name]


def changing(name: str, calls: int = KNOWN) -> None:
    make, ours, _ = CALLS[name]
    for n in range(30, 30 + calls):
        ours(make(n))


@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_numpy(name: str) -> None:
    make, ours, theirs = CALLS[name]
    generator = random.Random(name)
    for n in [*(generator.randint(1, 250) for _ in range(80)), 1, 2, 3, 4, 127, 128, 1, 2]:
        x = make(n)
        wanted = theirs(x)
        for which in ("first", "second"):
            assert same(ours(x), wanted), f"length {n}, the {which} time"


@pytest.mark.parametrize("name", CALLS)
def test_a_new_length_runs_no_python(name: str) -> None:
    make, ours, _ = CALLS[name]
    changing(name)
    odd, even = make(91), make(92)
    assert python_of(lambda: ours(odd)) == [] and python_of(lambda: ours(even)) == []


def test_single_precision_is_rounded_once() -> None:
    for n in (*range(30, 30 + KNOWN), 97, 256, 1009, 4096):  # as NumPy, computed in float64
        x = numbers(n, dtype="complex64")
        got = fft.fft(x)
        assert got.dtype == np.complex64 and same(got, np.fft.fft(x.astype(np.complex128)), 1e-8)
    assert (backline.explain().library, backline.explain().algorithm) == ("numpy", "loops")


def test_numbers_that_are_none_pass() -> None:
    changing("fft")
    for value in (np.nan, np.inf):
        x = numbers(95)
        x[3] = value
        with np.errstate(all="ignore"):
            assert np.array_equal(np.isnan(fft.fft(x)), np.isnan(np.fft.fft(x)))
    tiny = numbers(96) * 1e-310
    assert same(fft.fft(tiny) * 2.0**1000, np.fft.fft(tiny) * 2.0**1000, 1e-13)


def test_given_outputs_are_written_and_must_not_overlap() -> None:
    for n in range(30, 30 + KNOWN):
        x, out = numbers(n), np.full(n, np.nan, complex)
        assert fft.fft(x, out=out) is out and same(out, np.fft.fft(x))
    x, out = numbers(90), np.full(90, np.nan, complex)
    assert python_of(lambda: fft.fft(x, out=out)) == [] and same(out, np.fft.fft(x))
    spread = np.full((90, 2), np.nan, complex)
    assert same(fft.fft(x, out=spread[:, 1]), np.fft.fft(x)) and np.isnan(spread[:, 0]).all()
    whole = numbers(200)
    with pytest.raises(backline.errors.BadValue, match="overlap"):
        fft.fft(whole[:91], out=whole[50:141])
    with pytest.raises(backline.errors.BadValue, match="shape"):
        fft.fft(numbers(91), out=np.empty(90, complex))


def test_wrong_arguments_are_refused_as_ever() -> None:
    changing("rfft")
    with pytest.raises(backline.errors.BadType):
        fft.rfft(numbers(91))
    with pytest.raises(backline.errors.BadValue, match="Invalid number of data points"):
        fft.rfft(np.empty(0))
    with pytest.raises(backline.errors.BadAxis):
        fft.rfft(numbers(91, dtype="float64"), dim=1)


def test_explain_tells_of_the_call_that_was_made() -> None:
    changing("fft")
    x = numbers(93)
    fft.fft(x)
    told, asked = backline.explain(), backline.explain(fft.fft, x)
    assert told.problem == asked.problem and (told.library, told.algorithm) == ("numpy", "loops")
    reasons = {c.library: c.reason for c in told.candidates}
    assert reasons["scipy"].endswith("shapes keep changing here"), reasons
    with backline.trace() as events:
        fft.fft(numbers(94))
    assert [e.choice.problem.lengths for e in events] == [(94,)]


def test_a_length_that_is_used_often_has_a_plan_of_its_own() -> None:
    changing("fft")
    x = numbers(89)
    for _ in range(PLANNED_AFTER + 2):
        assert same(fft.fft(x), np.fft.fft(x))
    assert backline.explain().library == "scipy"
    assert fft_plan_caches.cache("scipy").size


def test_large_transforms_are_planned_each_for_itself() -> None:
    for n in range(MOST_ELEMENTS + 1, MOST_ELEMENTS + 14):
        fft.rfft(np.zeros(2 * n))
        assert backline.explain().library == "scipy"


def test_memory_of_plans_does_not_grow() -> None:
    changing("fft")
    before = sum(fft_plan_caches.cache(name).size for name in ("scipy", "mkl", "fftw", "numpy"))
    for n in range(100, 400):
        fft.fft(numbers(n))
    assert sum(fft_plan_caches.cache(name).size for name in ("scipy", "mkl", "fftw", "numpy")) == before
