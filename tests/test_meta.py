"""Tests of the package as it is installed, and of the tests' own rules."""

from __future__ import annotations

import ast
import doctest
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import backline
import configurations
import processes
from backline import _core, _exchange, _kernels, fft, linalg
from backline.nn import functional, grad

HERE = Path(__file__).parent


def run_pytest(folder: Path, text: str, *, ci: str, configuration: str = "native") -> tuple[dict[str, int], str]:
    """Run a test file beside this folder's conftest.py; return pytest's counts and all that it printed."""
    for name in ("conftest.py", "processes.py", "configurations.py"):
        shutil.copy(HERE / name, folder)
    (folder / "test_it.py").write_text("import pytest\n" + text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", str(folder)]
    out = subprocess.run(command, env=os.environ | {"CI": ci, configurations.VARIABLE: configuration, configurations.SHARE: "1"}, capture_output=True, text=True, check=False, cwd=folder).stdout
    closing = out.strip().splitlines()[-1]
    return {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", closing)}, out


SKIPPED_INSIDE = "def test_it():\n    pytest.skip('MKL is not installed')\n"
SKIPPED_BY_MARK = "@pytest.mark.skipif(True, reason='MKL is not installed')\ndef test_it(): pass\n"
SKIPPED_BY_FIXTURE = "@pytest.fixture\ndef f(): pytest.skip('MKL is not installed')\ndef test_it(f): pass\n"
SKIPPED_FILE = "pytest.importorskip('no_such_module')\ndef test_it(): pass\n"


@pytest.mark.parametrize("text", [SKIPPED_INSIDE, SKIPPED_BY_MARK, SKIPPED_BY_FIXTURE])
def test_a_skip_is_a_failure_in_ci_and_nowhere_else(text: str, tmp_path: Path) -> None:
    assert run_pytest(tmp_path, text, ci="")[0]["skipped"] == 1
    counts, out = run_pytest(tmp_path, text, ci="true")
    assert "skipped" not in counts and counts.get("failed", 0) + counts.get("error", 0) == 1
    assert "skipped in CI (Skipped: MKL is not installed)" in out


def test_a_file_that_is_skipped_whole_is_a_failure_in_ci(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPPED_FILE, ci="")[0]["skipped"] == 1
    counts, out = run_pytest(tmp_path, SKIPPED_FILE, ci="true")
    assert "skipped" not in counts and counts["error"] == 1
    assert "no_such_module" in out


def test_what_ci_cannot_have_may_be_skipped(tmp_path: Path) -> None:
    counts, _ = run_pytest(tmp_path, "@pytest.mark.gpu\n" + SKIPPED_INSIDE, ci="true")
    assert counts["skipped"] == 1 and "failed" not in counts


@pytest.mark.parametrize(("name", "reason", "may"), [
    ("no-mkl", "mkl is not available: no file of this name was found", True),
    ("no-mkl", "MKL is not installed", True),
    ("no-mkl", "blis is not available: no file of this name was found", False),
    ("avx2", "mkl is not available: no file of this name was found", False),
])  # fmt: skip
def test_in_an_environment_without_a_library_its_tests_may_be_skipped_and_no_others(name: str, reason: str, may: bool, tmp_path: Path) -> None:
    if configurations.lacking(name):
        name = "native"
    text = f"def test_it():\n    pytest.skip({reason!r})\n"
    counts, _ = run_pytest(tmp_path, text, ci="true", configuration=name)
    assert counts == {"skipped": 1} if may else counts["failed"] == 1


@pytest.mark.parametrize("name", configurations.CONFIGURATIONS)
def test_libraries_hear_of_the_configuration(name: str, tmp_path: Path) -> None:
    if configurations.lacking(name):
        assert name not in ("native", "no-mkl", "no-system-libraries", "sse4")
        return
    found = configurations.CONFIGURATIONS[name]
    absent = [n for n in ("mkl", "blis", "xnnpack", "fftw", "openblas", "onednn") if n in found.absent]
    text = f"""
import os
import numpy as np
def test_it():
    import backline
    for variable, value in {found.environment!r}.items():
        assert os.environ[variable] == value
    for library in {absent!r}:
        assert not getattr(backline.backends, library).is_available()
    assert (backline.matmul(np.ones((70, 70)), np.ones((70, 70))) == 70).all()
"""
    counts, out = run_pytest(tmp_path, text, ci="true", configuration=name)
    assert counts == {"passed": 1}, out


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    counts, _ = run_pytest(tmp_path, "@pytest.mark.xfail\ndef test_it(): assert False\n", ci="true")
    assert counts["xfailed"] == 1 and "failed" not in counts


LEAVES_A_CHILD = "subprocess.Popen(['sleep', '300'])"
LEAVES_A_GRANDCHILD = "subprocess.run(['sh', '-c', 'sleep 300 > /dev/null 2>&1 & exit 0'])"
FAILS_BESIDE_A_CHILD = "subprocess.Popen(['sleep', '300']); raise ValueError"


@pytest.mark.parametrize("line", [LEAVES_A_CHILD, LEAVES_A_GRANDCHILD, FAILS_BESIDE_A_CHILD])
def test_a_process_that_a_test_leaves_running_is_an_error_and_is_killed(line: str, tmp_path: Path) -> None:
    text = f"import processes, subprocess\nprocesses.GRACE = 0.1\ndef test_it(): {line}\ndef test_other(): pass\n"
    counts, out = run_pytest(tmp_path, text, ci="")
    assert counts["error"] == 1 and counts["passed"] == (1 if "raise" in line else 2)
    (pid,) = {int(number) for number in re.findall(r"left processes behind, which were killed: process (\d+): sleep 300", out)}
    assert not processes.running(pid)


def test_the_child_of_a_test_ends_with_what_it_was_started_by() -> None:
    with processes.started(["sleep", "300"]) as child:
        assert processes.running(child.pid)
    assert child.returncode == -signal.SIGKILL
    # A test run that is itself killed cleans nothing up.
    program = (
        "import processes, time\nwith processes.started(['sh', '-c', 'echo $$; exec sleep 300'], text=True):\n    time.sleep(300)"
    )
    with processes.started([sys.executable, "-c", program], cwd=HERE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        assert processes.running(pid)
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait()
        for _ in range(3000):
            if not processes.running(pid):
                break
            time.sleep(0.01)
        assert not processes.running(pid)


def test_the_child_of_a_test_hears_signals_that_the_test_run_ignores() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it starts in the background
    try:
        with processes.started([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
            assert child.communicate(timeout=200)[0] == "True\n"
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("work", "status"), [
    (lambda: True, 0), (lambda: False, 1), (lambda: 1 / 0, 1), (lambda: time.sleep(300), -signal.SIGALRM), (lambda: sys.exit(0), 1),
])  # fmt: skip
def test_a_forked_child_ends_whatever_it_does(work: Callable[[], object], status: int) -> None:
    assert processes.forked(work, seconds=2) == status


def test_children_that_run_beside_a_test_are_started_so_that_they_end_with_it() -> None:
    """Nothing but `processes.started` begins them: whoever waits for the end at once calls `subprocess.run`."""
    # Two programs for developers end their children themselves.
    others = {HERE / "processes.py", Path(__file__), HERE / "fuzz/__main__.py", HERE / "threads/first_use_storm.py"}
    files = [p for p in HERE.rglob("*.py") if p not in others]
    assert not [str(p.relative_to(HERE)) for p in files if "Popen(" in p.read_text()]


@pytest.mark.parametrize("name", ["numpy", "openblas", "mkl", "blis"])
def test_every_library_that_ci_installs_can_run_calls(name: str) -> None:
    if not getattr(backline.backends, name).is_available():
        pytest.skip(f"{name} is not available here")  # a failure in CI: see conftest.py


def test_tests_read_no_configuration_of_the_developer() -> None:
    assert os.environ["BACKLINE_CONFIG"] == os.environ["BACKLINE_TUNING"] == ""
    assert Path(os.environ["XDG_CONFIG_HOME"]).parent.name.startswith("backline-tests-")


def test_the_version_has_one_place() -> None:
    assert importlib.metadata.version("backline") == backline.__version__


def test_the_installed_package_has_its_data_and_not_its_sources() -> None:
    installed = importlib.metadata.files("backline") or []
    names = {str(f) for f in installed}
    editable = any("editable" in name for name in names)
    folder = Path(backline.__file__).parent
    assert (folder / "py.typed").is_file() and all((folder / f"{name}.pyi").is_file() for name in ("_core", "_exchange", "_kernels"))
    assert len(list((folder / "engine/rankings").glob("*.json"))) >= 2
    if not editable:
        assert not [name for name in names if name.endswith((".cpp", ".hpp"))]


def test_the_package_itself_is_imported_for_its_compiled_parts_alone() -> None:
    """The linter of layers passes over imports of the package itself, such as ``from .. import _core``: they name nothing else."""
    package = Path(backline.__file__).parent
    above = {"__main__.py", "__config__.py"} | {f"cli/{f.name}" for f in (package / "cli").glob("*.py")}
    taken: dict[str, set[str]] = {}
    for file in package.rglob("*.py"):
        depth = len(file.relative_to(package).parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and ((node.level == depth and not node.module) or node.module == "backline"):
                taken.setdefault(file.relative_to(package).as_posix(), set()).update(alias.name for alias in node.names)
            elif isinstance(node, ast.Import) and "backline" in {alias.name for alias in node.names}:
                taken.setdefault(file.relative_to(package).as_posix(), set()).add("backline")
    modules = {path.stem for path in package.iterdir() if path.suffix in (".py", "") and not path.stem.startswith("__")}
    assert taken and not {
        file: names - modules for file, names in taken.items()
        if file not in above and file != "__init__.py" and names - modules - {"_core", "_exchange", "_kernels"}
    }  # fmt: skip


def test_the_core_was_compiled_without_unsafe_arithmetic() -> None:
    # Empty in a core that was built by hand, which no installation is.
    assert "-O3" in _core.cxx_flags
    assert not re.search(r"-ffast-math|-Ofast|-march|-funsafe|-ffinite", _core.cxx_flags)


@pytest.mark.parametrize("module", [_core, _exchange, _kernels], ids=lambda module: module.__name__)
def test_the_stub_names_what_a_compiled_module_has(module: ModuleType) -> None:
    text = Path(backline.__file__).with_name(f"{module.__name__.rpartition('.')[2]}.pyi").read_text()
    stubbed = set(re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE)) | set(re.findall(r"^(\w+):", text, re.MULTILINE))
    only_types = {"MemoInfo", "PoolInfo"}
    assert stubbed - only_types == {name for name in vars(module) if not name.startswith("__")}


OPERATIONS = {
    f"{module.__name__}.{name}": value
    for module in (backline, fft, linalg, functional, grad)
    for name in module.__all__
    if isinstance(value := getattr(module, name), _core.Operation)
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_examples_of_compiled_operations_run(name: str) -> None:
    """Pytest's collector of doctests looks at functions and classes only."""
    text = OPERATIONS[name].__doc__
    assert text, f"{name} has no docstring"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert len(test.examples) >= 2, f"{name} has no example"  # the first one imports
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=report.append)
    assert not result.failed, "".join(report)
