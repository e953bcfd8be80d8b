"""Fixtures and rules of every test: no configuration or tuning of the developer's own, and no test that is silently skipped.

A test that is skipped in every configuration that CI has tests nothing. With ``CI=true`` a skip therefore counts as a failure,
unless the test carries one of the markers in `MAY_SKIP`. The reason "MKL is not installed" is none of them: CI installs it. Only
where a run is for an environment without MKL (`configurations`), which CI has beside the one with all libraries, may a test be
skipped for that reason.
"""

from __future__ import annotations

import compileall
import gc
import importlib.util
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Generator
from functools import lru_cache
from pathlib import Path

import pytest

# Every test module may import what lies beside this file: `support`, `processes` and others.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import configurations
import processes

# Marker -> why a test with it may be skipped in CI. A marker here needs a reason that CI cannot mend by installing something.
MAY_SKIP = {
    "gpu": "needs a GPU; the CI machine has none",
    "triton": "needs Triton, 272 MB: `make test-triton` runs these, in CI too",
    "cudnn": "needs cuDNN, 1 GB with what it needs, and puts a stub of the driver in its place: `make test-cudnn` runs these",
    "cupy": "needs CuPy and NVRTC, 250 MB with CUDA's headers, and puts a driver in its place: `make test-cupy` runs these",
    "torch": "needs PyTorch beside Backline, 200 MB and more: `make test-torch` runs these",
    "ray": "needs Ray, 250 MB: `make test-ray` runs these",
    "jax": "needs JAX beside Backline, 130 MB: `make test-jax` runs these",
    "chromium": "needs Chromium, 116 packages of Debian: `make test-report` runs these",
    "other_os": "tests what another operating system does",
    "other_arch": "tests what another processor architecture does",
    "cpu_kernel": "needs a kernel that the vendor compiles for some processors only, such as MKL's JIT kernels",
}

# The environment that this run is for: `configurations` has the table.
CONFIGURATION = os.environ.get(configurations.VARIABLE, "native")

_folder = tempfile.mkdtemp(prefix="backline-tests-")

# At import, so that nothing of Backline can have read them yet; child processes inherit them.
for _name in [*os.environ]:
    if _name.startswith("BACKLINE_") and not _name.startswith("BACKLINE_TEST_") and not _name.endswith("_LIBRARY"):
        del os.environ[_name]
os.environ |= {
    "BACKLINE_CONFIG": "",
    "BACKLINE_TUNING": "",
    "COLUMNS": "140",
    **configurations.environment(CONFIGURATION),
    **{f"XDG_{kind}_HOME": os.path.join(_folder, kind.lower()) for kind in ("CONFIG", "CACHE", "DATA", "STATE")},
}


GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    # With "=" between them: what follows a blank may be taken for a folder of tests before this file is found.
    group = parser.getgroup("gpu", "the check on a GPU: python -m pytest -m gpu --gpu-out=FOLDER")
    group.addoption(
        "--gpu-out", metavar="FOLDER", help="the folder that all its files go to; without it a new one, which is printed"
    )
    late = "rows later than this are not reached; the time to compile on a machine with few processors is counted"
    group.addoption("--gpu-deadline", metavar="SECONDS", default=1800.0, type=float, help=late)
    group.addoption("--gpu-rows", metavar="IDS", default="", help="run these alone: 'BLAS-1,FFT-2'")


def pytest_configure(config: pytest.Config) -> None:
    for marker, why in MAY_SKIP.items():
        config.addinivalue_line("markers", f"{marker}: {why}")
    if on_gpu(config):
        _check_on_gpu(config)
    else:
        config.pluginmanager.register(_NoProcessLeft())
    if os.environ.get("CI", "").lower() in ("true", "1"):
        # As a plugin of its own: hooks of this file would see the tests below this folder only, not the package's doctests.
        config.pluginmanager.register(_NoSkips())


def on_gpu(config: pytest.Config) -> bool:
    """Tells whether this run is the check on a GPU: ``-m gpu`` and nothing else."""
    return bool(config.option.markexpr.strip() == "gpu")


def _check_on_gpu(config: pytest.Config) -> None:
    """Nothing but the folder of these tests is collected; they need a machine that is ready."""
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args[:] = [str(GPU_TESTS)]
    sys.path.insert(0, str(GPU_TESTS.parent))
    from gpu.check import Check

    check = Check(config)
    config.pluginmanager.register(check, "gpu-check")
    check.begin()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One test of so many where that is asked for, and other ones in each configuration."""
    share = int(os.environ.get(configurations.SHARE, "1"))
    if share > 1:
        left_out = [item for item in items if zlib.crc32(f"{CONFIGURATION} {item.nodeid}".encode()) % share]
        config.hook.pytest_deselected(items=left_out)
        away = set(left_out)
        items[:] = [item for item in items if item not in away]


def pytest_collection_finish() -> None:
    """Keeps the collected tests out of garbage collection: a test that asks for one would wait a second while they are looked through."""
    _freeze()


@pytest.fixture(scope="module", autouse=True)
def _earlier_modules_are_kept_out_too() -> None:
    """Each would leave some ten thousand objects: by the end a collection, of which some modules make hundreds, took half a second."""
    _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Any other run leaves them alone."""
    return True if collection_path == GPU_TESTS and not on_gpu(config) else None


@pytest.fixture(autouse=True)
def no_seed_of_another_test() -> None:
    """No test finds the generator of a `manual_seed` that another test or an example has called."""
    random = sys.modules.get("backline.ops.seeds")
    if random is not None:
        random._generator = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compiled to bytecode once: hundreds of tests start an interpreter, and where PYTHONDONTWRITEBYTECODE is set each would compile."""
    package = importlib.util.find_spec("backline")
    if package is not None and package.origin and not hasattr(session.config, "workerinput"):
        compileall.compile_dir(os.path.dirname(package.origin), quiet=2)


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Makes measurements in tests count as taken on a quiet machine, and calls share it with nobody: no test decides by timing."""
    if on_gpu(request.config):
        yield
        return
    from backline import _core
    from backline.engine import choose
    from backline.engine.tuning import machine_load

    assert choose  # which has calls look at the load
    _core.share_processors(None, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_load, "read", lambda: machine_load.Reading(time.perf_counter(), 0.0))
        patch.setattr(machine_load, "spread", lambda samples: 1.0)
        patch.setattr(_core, "team_speedup", float)  # all threads have a core of their own
        yield


@pytest.fixture(scope="session", autouse=True)
def _settings_are_parsed_once() -> Generator[None, None, None]:
    """Each test reads the project's file anew, to start from untouched switches; the same text is parsed once."""
    from backline.switches import toml

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toml, "loads", lru_cache(maxsize=16)(toml.loads))
        yield


def pytest_unconfigure() -> None:
    shutil.rmtree(_folder, ignore_errors=True)


class _NoSkips:
    """Makes failures of skips."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # An expected failure is reported as a skip as well.
        skipped = report.skipped and not hasattr(report, "wasxfail")
        marked = any(item.get_closest_marker(name) for name in MAY_SKIP)
        if skipped and not marked and not configurations.may_skip(CONFIGURATION, _reason(report)):
            _fail(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.skipped and not configurations.may_skip(CONFIGURATION, _reason(report)):  # importorskip at the top of a file
            _fail(report)
        return report


class _NoProcessLeft:
    """Makes an error of a process that a test started and that still runs when the test and its fixtures have ended."""

    def __init__(self) -> None:
        self.known: set[int] = set()
        processes.adopt_orphans()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self.known = processes.children()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        try:
            return (yield)
        finally:
            if left := processes.left_behind(self.known):
                pytest.fail(f"the test left processes behind, which were killed: {'; '.join(left)}", pytrace=False)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = _reason(report)
    report.outcome = "failed"
    report.longrepr = (
        f"skipped in CI ({reason}). CI installs what the tests need: mend .ci/run or the test, or give the test one of the "
        f"markers {', '.join(MAY_SKIP)} (tests/conftest.py says what each is for)."
    )
