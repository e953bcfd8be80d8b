"""The Memo: a second call of the same signature runs no Python code; everything that matters tells two calls apart."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, linalg
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean


def events_of(call: Any) -> list[str]:
    """Names of the Python functions that a call runs, beside the call itself."""
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


A, B = np.ones((6, 5)), np.ones((5, 4))
S = np.eye(4) * 3


@pytest.mark.parametrize("library", ["openblas", "mkl", "blis"])
def test_a_hit_runs_no_python_frame(library: str) -> None:
    need(library)
    out = np.empty((6, 4))
    calls = {
        "mm": lambda: backline.mm(A, B),
        "matmul out": lambda: backline.matmul(A, B, out=out),
        "keywords": lambda: backline.mm(mat2=B, input=A, out=out),
        "addmm": lambda: backline.addmm(out, A, B, alpha=2.5, beta=0.0),
        "mv": lambda: backline.mv(A, B[:, 0]),
        "strided": lambda: backline.mm(A[::-1], B[:, ::2]),
        "dot": lambda: backline.dot(A[0], A[1]),
    }
    if library != "blis":
        calls |= {
            "inv": lambda: linalg.inv(S), "solve": lambda: linalg.solve(S, B[:4]), "cholesky": lambda: linalg.cholesky(S, upper=True),
            "eigvalsh": lambda: linalg.eigvalsh(S), "svdvals": lambda: linalg.svdvals(S),
        }  # fmt: skip
    with backline.use(library, only=True):
        for name, call in calls.items():
            assert events_of(call), f"{name}: the first call asks the engine"
            assert events_of(call) == [], name
    with backline.num_threads(1):
        assert events_of(lambda: backline.mm(A, B)), "other switches, another plan"


def test_a_hit_allocates_nothing_but_its_result() -> None:
    need("openblas")
    a = np.ones((40, 40))
    out = np.empty((40, 40))
    backline.mm(a, a, out=out)
    backline.mm(a, a)
    tracemalloc.start()
    try:
        backline.mm(a, a, out=out)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(100):
            backline.mm(a, a, out=out)
        now, peak = tracemalloc.get_traced_memory()
        assert now - before < 600 and peak - before < 2000, (now - before, peak - before)
        before = tracemalloc.get_traced_memory()[0]
        kept = [backline.mm(a, a) for _ in range(10)]
        grown = tracemalloc.get_traced_memory()[0] - before
        assert 10 * a.nbytes <= grown < 10 * (a.nbytes + 400), grown
        assert len(kept) == 10
    finally:
        tracemalloc.stop()


def misses() -> int:
    return _core.memo_info()["misses"]


def asks(call: Any) -> int:
    """Returns how often a call went to the engine."""
    before = misses()
    call()
    return misses() - before


def test_everything_that_matters_is_in_the_key() -> None:
    a, b = np.ones((4, 4)), np.ones((4, 4))
    frozen = a.copy()
    frozen.flags.writeable = False
    raw = np.frombuffer(bytearray(129), np.uint8)[1:].view(np.float64).reshape(4, 4)
    different = [
        lambda: backline.mm(a, b), lambda: backline.mm(a.T, b), lambda: backline.mm(a[::-1], b), lambda: backline.mm(a[:3], b),
        lambda: backline.mm(frozen, b), lambda: backline.mm(raw, b), lambda: backline.mm(a.astype("f"), b.astype("f")),
        lambda: backline.matmul(a, b), lambda: backline.mm(a, mat2=b), lambda: backline.mm(input=a, mat2=b),
        lambda: backline.mm(mat2=b, input=a), lambda: backline.mm(a, b, out=None), lambda: backline.mm(a, b, out=np.empty((4, 4))),
        lambda: backline.addmm(a, a, b), lambda: backline.addmm(a, a, b, alpha=1), lambda: backline.addmm(a, a, b, alpha=1.0),
        lambda: backline.addmm(a, a, b, beta=1), lambda: backline.addmm(a, a, b, alpha=2), lambda: backline.addmm(a, a, b, beta=-0.0),
        lambda: backline.addmm(a, a, b, beta=0.0), lambda: linalg.cholesky(a + 4 * np.eye(4)), lambda: linalg.eigh(a),
        lambda: linalg.eigh(a, "L"), lambda: linalg.eigh(a, "U"), lambda: linalg.svd(a), lambda: linalg.svd(a, False),
        lambda: linalg.svd(a, full_matrices=False), lambda: linalg.svd(a, driver="gesvd"),
    ]  # fmt: skip
    assert [asks(call) for call in different] == [1] * len(different)
    assert [asks(call) for call in different] == [0] * len(different)


def test_equal_calls_on_other_arrays_share_a_plan() -> None:
    backline.mm(np.ones((3, 3)), np.ones((3, 3)))
    plan = _core.last_plan()
    assert (backline.mm(np.full((3, 3), 2.0), np.ones((3, 3))) == 6).all()
    assert _core.last_plan() is plan


def test_switches_lead_to_another_plan_and_back() -> None:
    need("openblas")
    a = np.ones((300, 300))
    backline.mm(a, a)
    first = _core.last_plan()
    with backline.num_threads(1):
        backline.mm(a, a)
        inner = _core.last_plan()
        assert inner is not first and inner.choice.chosen.threads == 1
    backline.mm(a, a)
    assert _core.last_plan() is first and first.choice.chosen.threads == 2
    with backline.num_threads(1):
        assert asks(lambda: backline.mm(a, a)) == 0 and _core.last_plan() is inner
    backline.set_num_threads(1)
    backline.mm(a, a)
    assert _core.last_plan().choice.chosen.threads == 1
    backline.set_num_threads(2)
    assert asks(lambda: backline.mm(a, a)) == 0 and _core.last_plan() is first


def test_the_number_of_entries_is_bounded_and_the_least_used_go_first() -> None:
    bound = _core.memo_info()["max_size"]
    arrays = [np.ones((2, n)) for n in range(1, 60)]
    try:
        _core.memo_max_size(16)
        keep = arrays[0]
        for a in arrays:
            backline.mm(keep, keep.T)  # used all the time
            backline.mm(a, a.T)
            assert _core.memo_info()["size"] <= 16
        assert asks(lambda: backline.mm(keep, keep.T)) == 0
        assert asks(lambda: backline.mm(arrays[-1], arrays[-1].T)) == 0
        assert asks(lambda: backline.mm(arrays[1], arrays[1].T)) == 1
        _core.memo_max_size(0)
        assert _core.memo_info()["size"] == 0
        assert asks(lambda: backline.mm(keep, keep.T)) == asks(lambda: backline.mm(keep, keep.T)) == 1
        for size in (1, 2, 3):
            _core.memo_max_size(size)
            for a in arrays[:9]:
                backline.mm(a, a.T)
                assert _core.memo_info()["size"] <= size
    finally:
        _core.memo_max_size(bound)
    with pytest.raises(ValueError, match="0 or more"):
        _core.memo_max_size(-1)


def test_a_large_memo_keeps_its_entries_apart() -> None:
    calls = [(m, n) for m in range(1, 30) for n in range(1, 30)]
    for m, n in calls:
        backline.outer(np.ones(m), np.ones(n))
    before = misses()
    for m, n in calls:
        assert backline.outer(np.ones(m), np.ones(n)).shape == (m, n)
    assert misses() == before


def test_failures_are_not_remembered() -> None:
    def call() -> None:
        with pytest.raises(ValueError, match="do not fit"):
            backline.mm(np.ones((2, 3)), np.ones((2, 3)))

    assert [asks(call) for _ in range(2)] == [1, 1]
