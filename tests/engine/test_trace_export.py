"""Traces as tables, as JSON, in Chrome's format and in logs; the facts of events; the machine's peaks."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import fft, linalg, switches
from backline.engine import machine_peak, trace_export, trace_facts
from backline.engine.events import Event, Trace
from backline.engine.tuning import record_store
from backline.errors import BadType
from backline.native.machine import fingerprint
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean
A = np.ones((40, 40), np.float32)
PEAKS = machine_peak.Peaks({"f32": 1e6, "f64": 2e6}, 10.0, {}, 2)


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_peak, "known", lambda: PEAKS)


def test_an_event_has_rate_part_of_the_peak_precision_and_level(peaks: None) -> None:
    with backline.trace() as events:
        backline.mm(A, A)
        fft.fft(np.ones(64))
        backline.mm(A.astype(np.float64), A.astype(np.float64))
    first = events[0]
    assert first.flops == 2 * 40**3 and first.gflops == pytest.approx(first.flops / first.seconds * 1e-9)
    assert first.of_peak == pytest.approx((first.gflops or 0) / 1e6) and first.precision == "f32"
    assert first.determinism == first.choice.chosen.level
    assert events[2].of_peak == pytest.approx((events[2].gflops or 0) / 2e6) and events[2].precision == "f64"


def test_what_was_not_measured_is_none_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_peak, "known", machine_peak.Peaks)
    with backline.trace() as events:
        backline.mm(A, A)
    assert events[0].of_peak is None and events[0].gflops
    content = json.loads(events.to_json())
    assert content["peak"]["gflops"] is None and content["events"][0]["of_peak"] is None
    assert "" in [row[2] for row in events.table().rows]


def test_the_first_call_has_its_plan_made_and_later_ones_find_it() -> None:
    x = np.ones((19, 23), np.float32)
    with backline.num_threads(1), backline.trace() as events:  # a busy machine may change the number of threads
        for _ in range(3):
            backline.matmul(x, x.T)
    assert [event.planned for event in events] == [True, False, False]
    with backline.num_threads(1), backline.trace() as events:
        backline.matmul(x, x.T)
    assert [event.planned for event in events] == [False]


def test_plans_in_python_are_told_apart_too() -> None:
    x = np.ones((17, 5))
    with backline.use("numpy"), backline.num_threads(1):
        with backline.trace() as events:
            for _ in range(3):
                linalg.qr(x)
        with backline.trace() as later:
            linalg.qr(x)
    assert [event.planned for event in events] == [True, False, False] and [event.planned for event in later] == [False]


def test_calls_of_ever_new_shapes_are_described_when_they_are_read() -> None:
    x = np.ones((90, 90), np.float32)
    with backline.num_threads(1):
        for n in range(20, 50):
            backline.matmul(x[:n, :n], x[:n, :n])
        with backline.trace() as events:
            for n in range(50, 60):
                backline.matmul(x[:n, :n], x[:n, :n])
    later = [type(event._source) is tuple for event in events]
    for n, event in zip(range(50, 60), events, strict=True):
        assert event.planned and event.choice is event.choice and event.choice.problem.operands[0].shape == (n, n)
        assert event.flops == 2 * n**3 and event.library in backline.libraries.names()
    assert not any(type(event._source) is tuple for event in events) and len(later) == 10


def test_provenance_names_the_scope_the_assignment_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with backline.trace() as events:
        with backline.backends.flags(deterministic=True):
            line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]  # CPython has frames
            backline.mm(A, A)
        backline.backends.fallback = "warn"
        try:
            backline.mm(A, A)
            with switches.scope(max_error=1e-3):
                backline.mm(A, A)
        finally:
            backline.backends.fallback = "allow"
    value, origin = events[0].provenance["deterministic"]
    assert value == "True" and origin.startswith(f"scope ({__file__}:{line}")
    assert "deterministic" not in events[1].provenance
    assert events[2].provenance["max_error"][0] == "0.001"
    assert events[1].provenance["fallback"] == ("'warn'", "the process, changed since"), "it was assigned another value since"


def test_tables_and_summaries_add_up(peaks: None) -> None:
    with backline.use("numpy"), backline.trace() as events:
        for _ in range(4):
            backline.mm(A, A)
        linalg.inv(np.eye(5))
    table, summary = events.table(), events.summary()
    assert len(table) == 5 and len(summary) == 2 and len(str(table).splitlines()) == 6
    by_op = {row[0]: row for row in summary.rows}
    assert by_op["mm"][1:3] == ("numpy", "4") and by_op["inv"][2] == "1" and by_op["mm"][8] == "f32"
    assert sum(int(row[2]) for row in summary.rows) == len(events)
    assert "mm" in summary._repr_html_() and "<TextTable of 2 rows" in repr(summary)
    assert str(backline.trace().table()) == str(backline.trace().summary()) == "no events"


def test_json_is_json_and_is_written(tmp_path: Path, peaks: None) -> None:
    with backline.trace() as events, backline.backends.flags(deterministic=True):
        backline.mm(A, A)
    file = tmp_path / "events.json"
    content = json.loads(events.to_json(str(file)))
    assert json.loads(file.read_text()) == content and content["machine"] == fingerprint()
    (event,) = content["events"]
    assert event["problem"] == "matmul f32 40x40 40x40" and event["op"] == "mm" and event["bytes"] == 2 * A.nbytes
    assert event["switches"]["deterministic"]["value"] == "True" and event["planned"] in (True, False)
    assert content["peak"]["gflops"] == {"f32": 1e6, "f64": 2e6}


def test_chromes_format_has_times_durations_and_threads(tmp_path: Path) -> None:
    before = time.time_ns() / 1e3
    with backline.trace() as events:
        backline.mm(A, A)
        backline.mm(A, A)
    after = time.time_ns() / 1e3
    untimed = Event("exchanged.dgemm", events[0].choice, 1.0)
    events.append(untimed)
    file = tmp_path / "trace.json"
    content = json.loads(events.to_chrome(str(file)))
    assert json.loads(file.read_text()) == content and content["otherData"] == {"events without a time": 1}
    names, *rows = content["traceEvents"]
    assert names["ph"] == "M" and names["name"] == "thread_name" and len(rows) == 2
    for row in rows:
        assert (
            row.keys() >= {"ph", "name", "cat", "ts", "dur", "pid", "tid", "args"}
            and row["ph"] == "X"
            and row["pid"] == os.getpid()
        )
        assert isinstance(row["tid"], int) and row["dur"] > 0 and row["args"]["problem"] == "matmul f32 40x40 40x40"
        # Wall clocks may be set while a test runs, by less than a minute.
        assert before - 6e7 < row["ts"] < after + 6e7
    assert {row["tid"] for row in rows} == {names["tid"]} and names["args"]["name"] == f"thread {threading.get_ident()}"


def test_events_are_logged_where_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="backline"), backline.trace().logged() as events:
        backline.mm(A, A)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("backline", "DEBUG") and record.args == (events[0],)
    assert "matmul f32 40x40 40x40" in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="backline"), backline.trace().logged() as quiet:
        backline.mm(A, A)
    assert len(quiet) == 1 and not caplog.records
    mine = logging.getLogger("tests.of.backline")
    with caplog.at_level(logging.INFO, logger=mine.name), backline.trace().logged(mine, logging.INFO):
        backline.mm(A, A)
    assert [r.name for r in caplog.records] == [mine.name]
    with pytest.raises(BadType, match="level as a number, not 'INFO'"):
        backline.trace().logged(level="INFO")  # type: ignore[arg-type]  # wrong on purpose


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with backline.trace() as events:
        backline.mm(A, A)
    for file in (tmp_path / "no" / "x.json", tmp_path):
        with pytest.raises(OSError) as refused:
            events.to_json(str(file))
        assert refused.value.filename == str(file) and refused.value.filename2 is None
    assert list(tmp_path.iterdir()) == []


def test_recording_computes_nothing_that_reading_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("computed while it was recorded")

    for name in ("provenance", "flops", "gflops", "of_peak", "as_dict"):
        monkeypatch.setattr(trace_facts, name, refuse)
    monkeypatch.setattr(machine_peak, "known", refuse)
    with backline.trace() as events:
        backline.mm(A, A)
    assert len(events) == 1


def test_recording_runs_few_functions() -> None:
    """The cost of a trace in calls of Python, which do not depend on the machine: the collector, the event, and its fields."""
    import sys

    backline.mm(A, A)
    seen: list[str] = []

    def count(frame: Any, what: str, argument: Any) -> None:
        if what in ("call", "c_call"):
            seen.append(frame.f_code.co_name if what == "call" else argument.__name__)

    with backline.trace() as events:
        backline.mm(A, A)
        sys.setprofile(count)
        try:
            backline.mm(A, A)
        finally:
            sys.setprofile(None)
    assert len(events) == 2 and seen.count("__call__") == 1 and len([name for name in seen if name != "setprofile"]) <= 20, seen


def test_summaries_count_calls_that_an_event_stands_for() -> None:
    with backline.trace() as events:
        backline.mm(A, A)
    choice = events[0].choice
    group = trace_export._Group()
    group.add(events[0])
    assert group.calls == 1 and group.seconds == events[0].seconds and group.level == choice.chosen.level  # type: ignore[union-attr]  # something was chosen
    assert isinstance(events, Trace)


# Peaks ----------------------------------------------------------------------------------------------------------------


def test_peaks_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_TUNING", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr(machine_peak, "LARGE", 64)
    monkeypatch.setattr(machine_peak, "SMALL", 32)
    monkeypatch.setattr(machine_peak, "COPIED", 1 << 20)
    monkeypatch.setattr(machine_peak.machine_load, "between", lambda *readings, **how: type("Quiet", (), {"disturbed": ""})())
    record_store.reload()
    assert not machine_peak.known() and machine_peak.known().gflops == {}
    said: list[str] = []
    found = machine_peak.measure(said.append)
    assert found.gflops.keys() >= {"f32", "f64"} and said and found.threads == switches.get("num_threads")
    assert all(0 < rate < math.inf for rate in found.gflops.values()) and found.gigabytes and 0 < found.gigabytes < math.inf
    assert machine_peak.measure(said.append) is found and len(said) == 1
    record_store.reload()
    assert machine_peak.known() == found, "the file has them"
    again = machine_peak.measure(again=True)
    assert again.created >= found.created
    with backline.trace() as events:
        backline.mm(A, A)
    assert events[0].of_peak is not None
    record_store.reload()


def test_peaks_of_a_busy_machine_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_peak, "_products", lambda unit, threads: {"numpy.matmul@n": 0.01} if unit == "f32" else {})
    monkeypatch.setattr(machine_peak, "_copies", lambda threads: 0.1)
    states = ["another program ran", ""]
    monkeypatch.setattr(
        machine_peak.machine_load, "between", lambda *readings, **how: type("Load", (), {"disturbed": states.pop(0)})()
    )
    record_store.reload()
    assert machine_peak.measure().disturbed == "another program ran"
    found = machine_peak.measure()
    assert found.disturbed == "" and found.gflops == {"f32": pytest.approx(100.0)} and found.gigabytes == pytest.approx(10.0)
    record_store.reload()
