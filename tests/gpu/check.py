"""The check on a GPU as pytest runs it: ``python -m pytest -m gpu``.

Rows are proved by tests. The exit status is 0 only where every row that was asked for was proved or recorded, or needs what this
machine has not; 1 where a row was refuted, or the machine is not ready; `NOT_REACHED` where rows are missing and none was refuted;
`GIVEN_UP` where a test did not come back.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from gpu import machine as machines
from gpu.results import KINDS, Recorder, Results, slug
from gpu.rows import ROWS

__all__ = ["Check"]

GRACE = 15.0  # seconds that a test may go on after the deadline
GIVEN_UP, NOT_REACHED = 3, 6
NO_TORCH = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
TITLES = {"not_reached": "not reached", "unavailable": "something is missing", "left_out": "not asked for"}

machine: Any = None
"""The machine; what rehearses the check puts another one here before it begins."""


class Check:
    """The plug-in of pytest; `tests/conftest.py` registers it.

    Attributes
    ----------
    machine
        Where the rows run.
    results
        What they found.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.machine, self.results = config, machine or machines.Machine(), Results()
        self.begun = time.monotonic()
        self.deadline = float(config.getoption("--gpu-deadline"))
        self.day = time.strftime("%Y%m%d")
        self.recorders: dict[str, Recorder] = {}
        self.asked: dict[str, str] = {}  # what tests need -> why it is missing; empty where it is not
        self.current: Recorder | None = None
        self.lost = ""  # the test after which the device answers everything with an error
        self.log: list[str] = []
        self.lock = threading.RLock()
        self.ended = False

    # --- before -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the machine ready, or end the run with what is missing."""
        without_torch(self.config)
        # What other packages find deprecated is not what is looked at here.
        self.config.addinivalue_line("filterwarnings", "default")
        self.config.option.continue_on_collection_errors = True
        try:
            self.machine.prepare()
            self.results.machine = self.machine.description()
        except machines.NotReady as error:
            self.results.notes = [*self.machine.notes, str(error)]
            self.write()
            self.machine.close()
            pytest.exit(f"the check on a GPU cannot begin: {error}\n{self.path('json')} says so", returncode=1)
        self.results.notes = self.machine.notes
        watch = threading.Timer(self.deadline + GRACE - self.spent(), self.give_up)
        watch.daemon = True
        watch.start()

    def spent(self) -> float:
        """Seconds since the check began."""
        return time.monotonic() - self.begun

    def pytest_report_header(self) -> list[str]:
        """Returns what is told before the first row."""
        return [f"the check on a GPU: {self.results.machine.get('card')}; files go to {self.folder}"]

    # --- rows ---------------------------------------------------------------------------------------------------------

    def recorder(self, item: pytest.Item) -> Recorder:
        """The recorder of a test."""
        return self.recorders[item.nodeid]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Refuse tests of rows that are not known; every other one counts from now on as not reached.

        Tests of rows that nobody asked for, and those that need what is missing here, are taken out.
        """
        unknown, wanted, aside = [], [*filter(None, self.config.getoption("--gpu-rows").split(","))], []
        self.results.wanted = {*wanted}
        for item in items:
            markers = [*item.iter_markers("gpu")]  # the test's, and those of its parameters, which may need more
            if not markers:
                continue
            name = next((marker.kwargs["row"] for marker in markers if "row" in marker.kwargs), None)
            if name not in ROWS:
                unknown.append(f"{item.nodeid} names the row {name!r}")
                continue
            mine = self.recorders[item.nodeid] = self.results.recorder(str(name), item.nodeid)
            if wanted and name not in wanted:
                mine.outcome = "left_out"
            else:
                needs = [*ROWS[name].needs, *(need for marker in markers for need in marker.kwargs.get("needs", ()))]
                mine.missing = [need for need in dict.fromkeys(needs) if self.lacks(need)]
                mine.outcome = "unavailable" if mine.missing else ""
            if mine.outcome:
                aside.append(item)
        unknown += [f"--gpu-rows names the row {name!r}" for name in wanted if name not in ROWS]
        if unknown:
            raise pytest.UsageError("; ".join(unknown))
        # The environment first, the peers last, whatever the files are called.
        sections = [*dict.fromkeys(row.section for row in ROWS.values())]
        rows = {item.nodeid: self.recorders[item.nodeid].id for item in items if item.nodeid in self.recorders}
        items.sort(key=lambda item: sections.index(ROWS[rows[item.nodeid]].section) if item.nodeid in rows else len(sections))
        if aside:
            self.config.hook.pytest_deselected(items=aside)
            items[:] = [item for item in items if item not in aside]

    def lacks(self, need: str) -> bool:
        """Tells whether something that tests need is missing here; why is noted in the results."""
        if need not in self.asked:
            self.asked[need] = self.machine.missing(need)
            if self.asked[need]:
                self.results.missing[need] = self.asked[need]
        return bool(self.asked[need])

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            mine = self.recorders.get(item.nodeid)
            if mine is not None and not mine.outcome:
                mine.outcome = "left_out"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.current = self.recorders.get(item.nodeid)
        if self.spent() > self.deadline:
            self.results.deadline_hit = True
            pytest.skip(f"not reached: {self.deadline:g} s are over")
        if self.lost:
            pytest.skip(f"not reached: the device was lost in {self.lost}; --gpu-rows=IDS runs some rows alone")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        mine = self.recorders.get(item.nodeid)
        if mine is not None:
            # Without the lock: a kernel that never ends keeps this waiting, and whoever gives up needs it.
            why = self.machine.lost() if report.failed and not self.lost else ""
            with self.lock:
                mine.seconds += report.duration
                if report.failed or hasattr(report, "wasxfail"):
                    mine.outcome = "failed"
                    mine.evidence.append(f"{item.name} {report.when}: {_last_line(report)}")
                    self.log.append(f"{item.nodeid} {report.when}\n{report.longreprtext}\n")
                    self.lost = self.lost or (f"{item.nodeid} ({why})" if why else "")
                elif report.skipped and mine.outcome != "failed":
                    mine.outcome = "not_reached"
                    mine.evidence.append(f"{item.name}: {_last_line(report)}")
                elif report.when == "call" and not mine.outcome:
                    mine.outcome = "passed"
                if report.when == "teardown":
                    self.log.append(f"{mine.id} {mine.outcome} {mine.seconds:.2f} s {item.nodeid}")
                    self.current = None
                    self.write()
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.log.append(f"{report.nodeid} cannot be collected\n{report.longreprtext}\n")
            self.results.notes.append(f"{report.nodeid} cannot be collected: {_last_line(report)}")

    # --- after --------------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Write what there is and end the process: a row did not come back."""
        with self.lock:
            if self.ended:
                return
            self.results.deadline_hit = True
            if self.current is not None and self.current.outcome != "failed":
                self.current.outcome = "not_reached"
                self.current.evidence.append(f"began, and had not ended after {self.deadline + GRACE:g} s")
            self.write()
        capture = self.config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend_global_capture(in_=True)
        print(
            f"\n{self.current.test if self.current else 'the check'} did not end: given up; {self.path('json')} has what was found",
            flush=True,
        )
        os._exit(GIVEN_UP)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        with self.lock:
            self.ended = True
            self.results.findings["12"] = [f"{self.spent():.0f} s from an empty cache to the last row"]
            self.write()
        if not self.results.complete() and session.exitstatus == 0:
            session.exitstatus = NOT_REACHED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        outcomes = self.results.outcomes()
        terminalreporter.section("rows")
        for kind in KINDS:
            names = [name for name, outcome in outcomes.items() if outcome == kind]
            if names:
                terminalreporter.write_line(f"{TITLES.get(kind, kind)} {len(names)}: {' '.join(names)}")
        for need, why in self.results.missing.items():
            terminalreporter.write_line(f"missing: {need}: {why}")
        if self.results.deadline_hit:
            terminalreporter.write_line(
                f"{self.deadline:g} s were over: --gpu-deadline=SECONDS gives more, --gpu-rows=IDS runs some rows alone"
            )
        terminalreporter.write_line(f"{self.spent():.0f} s; {self.path('json')}")

    def pytest_unconfigure(self) -> None:
        self.machine.close()

    # --- files --------------------------------------------------------------------------------------------------------

    @cached_property
    def folder(self) -> Path:
        """Returns where all files go: where ``--gpu-out`` says, else a new folder."""
        return Path(self.config.getoption("--gpu-out") or tempfile.mkdtemp(prefix="backline-gpu-check-")).absolute()

    def path(self, kind: str) -> Path:
        """Returns the path of the file of results ("json") or of the log ("log")."""
        return self.folder / f"gpu-{slug(self.results.machine.get('card', 'none'))}-{self.day}.{kind}"

    def fixture(self) -> Path:
        """Returns the path of the description of the device, which tests without one can be given."""
        return self.folder / f"cudnn_device_{slug(self.results.machine.get('card', 'none'))}.json"

    def write(self) -> None:
        """Write both, as far as things have come."""
        self.results.write(self.path("json"))
        outcomes = [f"{name} {outcome}" for name, outcome in self.results.outcomes().items()]
        text = "\n".join([*self.results.notes, "", *self.log, "", *outcomes, ""])
        self.path("log").write_text(text[-1_000_000:], encoding="utf-8")


def without_torch(config: pytest.Config) -> None:
    """Make PyTorch one that cannot be imported; begin anew without pytest's plug-ins where one of them has imported it."""
    if sys.modules.get("torch") is None:
        sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to forbid an import
        return
    if NO_TORCH in os.environ:
        pytest.exit(f"the check on a GPU cannot begin: PyTorch is imported although {NO_TORCH} is set", returncode=1)
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()  # the new process is to write where this one did
    os.environ[NO_TORCH] = "1"
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *config.invocation_params.args])


def _last_line(report: Any) -> str:
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return str(longrepr[2])
    crash = getattr(longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(longrepr)
    return " ".join(text.split())[:400]
