"""Which rounds of a comparison count."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "side_by_side.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("BACKLINE_CONFIG", "BACKLINE_TUNING"):  # which the script sets for its process
        monkeypatch.setenv(name, "")
    spec = importlib.util.spec_from_file_location("side_by_side", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAUSE", 0.0)
    return module


@pytest.mark.parametrize(("shared", "again"), [
    ([False] * 4, 0),
    ([False, True, False, False, False, False], 2),  # the rounds before and after that look
    ([True] * 7, 3),  # as many as asked for: what lasts is how the machine is
])  # fmt: skip
def test_rounds_at_whose_ends_threads_share_a_core_are_made_again(
    shared: list[bool], again: int, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, number = list(shared), iter(range(100))
    monkeypatch.setattr(script, "share_a_core", lambda: looks.pop(0))

    class Numbered(script.Timer):  # a round's time is its number, in hundredths of a second from 0.2 on
        def timeit(self, count: int = 1) -> float:
            return (20 + next(number) // 2) / 100  # the call before counts, too

    times = script.round_by_round({"one": Numbered()}, seconds=0.0, rounds=3)["one"]
    assert script.made_again == [again] and not looks
    assert times == [(20 + n) / 100 for n in range(again + 3) if again == 3 <= n or not shared[n] | shared[n + 1]]


def test_what_takes_over_a_second_is_called_once_a_round(script: Any) -> None:
    calls: list[int] = []

    class Slow(script.Timer):
        def timeit(self, count: int = 1) -> float:
            calls.append(count)
            return 2.0

    assert script.round_by_round({"one": Slow()}, seconds=0.0, rounds=3, quiet=False) == {"one": [2.0] * 3}
    assert calls == [1] * 3


def test_what_takes_seconds_beside_milliseconds_is_timed_in_one_round(script: Any) -> None:
    calls: list[str] = []

    def contestant(name: str, seconds: float) -> Any:
        class Timed(script.Timer):
            def timeit(self, count: int = 1) -> float:
                calls.append(name)
                return seconds * count

        return Timed()

    contestants = {"fast": contestant("fast", 0.011), "slow": contestant("slow", 1.05), "hopeless": contestant("hopeless", 1.2)}
    times = script.round_by_round(contestants, seconds=0.0, rounds=3, quiet=False)
    assert {name: len(each) for name, each in times.items()} == dict.fromkeys(contestants, 3)
    assert calls.count("hopeless") == 1 and calls.count("slow") == 3


def test_beside_other_work_no_round_is_made_again(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "share_a_core", lambda: pytest.fail("asked"))
    assert len(script.round_by_round({"one": lambda: None}, seconds=0.0, rounds=2, quiet=False)["one"]) == 2
