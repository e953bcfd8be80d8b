"""What holds for every test: no configuration or tuning of the developer's own, and no test that is silently skipped.

A test that is skipped in every configuration that CI has tests nothing. With ``CI=true`` a skip therefore counts as a failure,
unless the test carries one of the markers in `MAY_SKIP`. The reason "MKL is not installed" is none of them: CI installs it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator

import pytest

# Marker -> why a test with it may be skipped in CI. A marker here needs a reason that CI cannot mend by installing something.
MAY_SKIP = {
    "gpu": "needs a GPU; the CI machine has none",
    "triton": "needs Triton: 272 MB that CI leaves out to stay quick; `make test-triton` runs these",
    "cudnn": "needs cuDNN, 1 GB with what it needs, and puts a stub of the driver in its place: `make test-cudnn` runs these",
    "torch": "needs PyTorch beside Backline: 200 MB that CI leaves out to stay quick; developers run these",
    "other_os": "tests what another operating system does",
    "other_arch": "tests what another processor architecture does",
    "cpu_kernel": "needs a kernel that the vendor compiles for some processors only, such as MKL's JIT kernels",
}

_folder = tempfile.mkdtemp(prefix="backline-tests-")

# At import, so that nothing of Backline can have read them yet; child processes inherit them.
for _name in [*os.environ]:
    if _name.startswith("BACKLINE_") and not _name.endswith("_LIBRARY"):
        del os.environ[_name]
os.environ |= {
    "BACKLINE_CONFIG": "",
    "BACKLINE_TUNING": "",
    "COLUMNS": "140",
    **{f"XDG_{kind}_HOME": os.path.join(_folder, kind.lower()) for kind in ("CONFIG", "CACHE", "DATA", "STATE")},
}


def pytest_configure(config: pytest.Config) -> None:
    for marker, why in MAY_SKIP.items():
        config.addinivalue_line("markers", f"{marker}: {why}")
    if os.environ.get("CI", "").lower() in ("true", "1"):
        # As a plugin of its own: hooks of this file would see the tests below this folder only, not the package's doctests.
        config.pluginmanager.register(_NoSkips())


def pytest_unconfigure() -> None:
    shutil.rmtree(_folder, ignore_errors=True)


class _NoSkips:
    """Makes failures of skips."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # An expected failure is reported as a skip as well.
        if report.skipped and not hasattr(report, "wasxfail") and not any(item.get_closest_marker(name) for name in MAY_SKIP):
            _fail(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.skipped:  # importorskip at the top of a file
            _fail(report)
        return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = (
        f"skipped in CI ({reason}). CI installs what the tests need: mend .ci/run or the test, or give the test one of the "
        f"markers {', '.join(MAY_SKIP)} (tests/conftest.py says what each is for)."
    )
