"""The cost of a call that was made before: it reads no switch one by one, and nothing is chosen again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, linalg, switches
from backline.engine import choose, eligibility
from backline.switches import snapshot, store
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean

READS = {  # every way there is to read a switch
    snapshot.Snapshot: ("__getitem__", "get", "resolved", "__contains__", "__iter__", "keys", "values", "items"),
    snapshot._Resolved: ("__getitem__", "__missing__", "get"),
    store: ("get", "origin", "history"),
    switches: ("get", "origin", "history"),
    choose: ("choose", "plan_for"),
    eligibility: ("able",),
    libraries: ("all_libraries", "info", "is_loaded", "names"),
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Returns how often each of them is called from now on."""
    count: Counter[str] = Counter()

    def counting(owner: Any, name: str) -> Any:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            count[f"{getattr(owner, '__name__', owner)}.{name}"] += 1
            return real(*args, **kwargs)

        return call

    for owner, names in READS.items():
        for name in names:
            monkeypatch.setattr(owner, name, counting(owner, name))
    return count


A = np.eye(6) * 3
CALLS = {
    "mm": lambda: backline.mm(A, A), "matmul": lambda: backline.matmul(A, A), "mv": lambda: backline.mv(A, A[0]),
    "addmm": lambda: backline.addmm(A, A, A, alpha=2.0), "inv": lambda: linalg.inv(A), "solve": lambda: linalg.solve(A, A),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_hit_reads_no_switch_one_by_one(name: str, counted: Counter[str]) -> None:
    need("openblas")
    call = CALLS[name]
    with backline.use("openblas"):
        call()
        first = dict(counted)
        assert first["backline.engine.choose.choose"] == 1 and first["Snapshot.__getitem__"] > 5, "a first call asks"
        counted.clear()
        for _ in range(50):
            call()
        assert counted == Counter()


def test_a_hit_in_a_scope_that_was_open_before_reads_none_either(counted: Counter[str]) -> None:
    need("openblas")
    flags = backline.backends.cudnn.flags(allow_tf32=False), backline.use("openblas"), backline.num_threads(1)
    for turn in range(4):
        with flags[0], flags[1], flags[2]:
            counted.clear()
            backline.mm(A, A)
            assert counted["backline.engine.choose.choose"] == (turn == 0)
            assert turn == 0 or counted == Counter()
            with backline.backends.flags(fallback="warn"):
                backline.mm(A, A)
    counted.clear()
    backline.set_num_threads(3)  # another base is another set of values, and is asked about once
    for turn in range(3):
        backline.mm(A, A)
        assert counted["backline.engine.choose.choose"] == 1, turn
