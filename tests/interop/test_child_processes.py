"""Child processes of a program: their calls are recorded with its own, and they go on under its exchange."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backline.interop import child_processes, program_runs
from backline.interop.program_determinism import verify_program
from exchange_support import child, wheels_only
from processes import wrapped
from support import need

pytestmark = wheels_only
PLAIN = ("--disable-numactl", "--disable-taskset", "--disable-iomp", "--use-default-allocator")

# Each way of starting a process makes products of another size.
FAMILY = """
import multiprocessing, os, signal, subprocess, sys, warnings
import numpy as np

def product(n):
    a = np.full((n, n), 1.0)
    return float((a @ a[:, :5]).sum())

def product_and_death(n):
    product(n)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of forks beside the threads of OpenBLAS
    product(40)
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # which is terminated
        assert len(set(pool.map(product, [41, 41]))) == 1
    for how, n in (("fork", 42), ("spawn", 43)):
        process = multiprocessing.get_context(how).Process(target=product_and_death, args=(n,))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    command = "import numpy as np, sys; a = np.ones((44, 44)); a @ a[:, :5]; print(sys.argv[1:])"
    subprocess.run([sys.executable, "-c", command, "an argument"], check=True)
"""
LOKY = """
import numpy as np
from joblib import Parallel, delayed

def product(n):
    a = np.full((n, n), 1.0)
    return float((a @ a[:, :5]).sum())

if __name__ == "__main__":
    assert len(set(Parallel(n_jobs=2)(delayed(product)(45) for _ in range(3)))) == 1
"""


def products(run: program_runs.ProgramRun) -> dict[int, int]:
    """Returns how often matrices of n columns were multiplied by five columns."""
    rows = [r for r in run.calls if r.symbol.routine == "dgemm" and r.call is not None and r.call.integers["n"] == 5]
    return {r.call.integers["m"]: r.count for r in rows if r.call is not None}


def test_calls_of_child_processes_are_recorded_however_they_start_and_end(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(FAMILY)
    run = program_runs.run("numpy", [str(tmp_path / "job.py")], program_runs.environment(1), show=False)
    assert run.status == 0 and run.failed == "", run.said
    assert products(run) == {40: 1, 41: 2, 42: 1, 43: 1, 44: 1}
    assert run.processes >= 5 and run.output == "['an argument']\n"


def test_calls_of_joblibs_workers_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(LOKY)
    run = program_runs.run("numpy", [str(tmp_path / "job.py")], program_runs.environment(1), show=False)
    assert run.status == 0, run.said
    assert products(run) == {45: 3} and run.processes >= 2


def python(*words: str, **environment: str) -> tuple[str, str]:
    """Returns what a Python prints, started as a child of a program under an exchange."""
    carried = {child_processes.PREFIX: sys.prefix, child_processes.SETTINGS: '{"choice": "numpy", "folder": ""}'}
    path = {child_processes.PATH: os.pathsep.join([child_processes.FOLDER, environment.pop("PYTHONPATH", "")])}
    done = subprocess.run(
        wrapped([sys.executable, *words]), capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | carried | path | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_a_child_is_what_it_would_be_until_it_imports_numpy(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.customized = 'by the environment'\n")
    text = "import sys; print(getattr(sys, 'customized', ''), 'backline' in sys.modules, 'child_start' in str(sys.path))"
    assert python("-c", text, PYTHONPATH=str(tmp_path))[0] == "by the environment False False\n"
    assert python("-c", text)[0].endswith(" False False\n")
    text = "import numpy, sys; print('backline.interop.child_processes' in sys.modules)"
    assert python("-c", text) == ("True\n", "")
    assert python("-c", text, BACKLINE_CHILD_PREFIX="/another/installation") == ("False\n", "")


def test_a_child_whose_exchange_fails_runs_on_and_says_so() -> None:
    text = "import numpy as np; print(np.ones(3) @ np.ones(3))"
    for settings in ('{"choice": "openblass", "folder": ""}', '{"choice": "numpy", "folder": "/no/such/folder"}', "no JSON"):
        out, err = python("-c", text, BACKLINE_CHILD_SETTINGS=settings)
        assert out == "3.0\n" and "runs NumPy as it is, and its calls are not recorded: " in err, err


def test_a_spawned_child_runs_under_the_exchange_of_its_program(tmp_path: Path) -> None:
    need("openblas")
    (tmp_path / "job.py").write_text(
        "import subprocess, sys\n"
        "command = 'import numpy, backline; print(backline.interop.numpy.status().choice, backline.get_num_threads())'\n"
        "subprocess.run([sys.executable, '-c', command], check=True)\n"
    )
    command = wrapped([sys.executable, "-m", "backline", "run", *PLAIN, "--blas", "openblas", str(tmp_path / "job.py")])
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0 and done.stdout == "openblas 1\n", done.stdout + done.stderr


# The file of recorded calls -----------------------------------------------------------------------------------------------


def test_a_file_of_calls_is_made_once_and_checked_when_it_is_read(tmp_path: Path) -> None:
    text = """
        import os, sys, numpy as np
        from backline.interop.exchange import recorded_calls
        path, a = sys.argv[1], np.ones((46, 46))
        recorded_calls.record_in_file(path)
        for again in (path, path + "2"):
            try:
                recorded_calls.record_in_file(again)
            except ValueError as error:
                print(error)
        with recorded_calls.recording() as record:
            a @ a[:, :5]
            pid = os.fork()
            if pid == 0:
                a @ a[:, :5]
                os.kill(os.getpid(), 9)
            os.waitpid(pid, 0)
        processes, rows = recorded_calls.read_file(path)
        print(processes, [(r.package, r.call.integers["m"], r.count, r.library) for r in rows if r.symbol.routine == "dgemm"])
    """
    said = child(text, arguments=(str(tmp_path / "x.calls"),))
    assert said.count("calls are noted in a file already") == 2 and "2 [('numpy', 46, 2, 'numpy')]" in said
    whole = (tmp_path / "x.calls").read_bytes()
    for name, content in (("short", whole[:-1]), ("other", b"x" + whole[1:]), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        text = """
            import sys
            from backline.interop.exchange import recorded_calls
            try:
                recorded_calls.read_file(sys.argv[1])
            except ValueError as error:
                print(error)
        """
        assert "is no table of calls of this version" in child(text, arguments=(str(tmp_path / name),))
    text = """
        import sys
        from backline.interop.exchange import recorded_calls
        with recorded_calls.recording():
            pass
        for path, kind in ((sys.argv[1], ValueError), ("/no/such/folder/calls", OSError)):
            try:
                (recorded_calls.record_in_file if kind is ValueError else recorded_calls.read_file)(path)
            except kind as error:
                print(error)
    """
    said = child(text, arguments=(str(tmp_path / "late.calls"),))
    assert "a file comes before the first recorder" in said and "No such file" in said


# Determinism of programs that never import Backline -----------------------------------------------------------------------


def script(folder: Path, text: str) -> list[str]:
    (folder / "job.py").write_text(text)
    return [str(folder / "job.py")]


def test_a_program_that_prints_the_same_is_deterministic(tmp_path: Path) -> None:
    words = script(tmp_path, "import numpy as np\na = np.eye(50)\nprint((a @ a[:, :5]).sum())\n")
    steps: list[str] = []
    report = verify_program(words, "numpy", runs=2, threads=(1,), step=steps.append)
    assert report and report.level == "run" and report.operations >= 1 and report.difference is None
    assert steps == ["run 1 on 1 thread", "run 2 on 1 thread"]


@pytest.mark.parametrize(
    ("text", "threads", "level", "what", "cause"),
    [
        ("import os\nprint('process', os.getpid())", (1,), "off", "output", "which differ by"),
        ("import os\nprint(os.environ['OPENBLAS_NUM_THREADS'])", (1, 2), "run", "output", "1 number"),
        (
            "import os, numpy as np\na = np.eye(50)\n"
            "for _ in range(int(os.environ['OPENBLAS_NUM_THREADS'])):\n    a @ a[:, :5]\nprint(1)",
            (1, 2), "run", "calls", "was called 1 times, then 2; the output is the same",
        ),
    ],
)  # fmt: skip
def test_the_first_difference_of_a_program_is_named(
    text: str, threads: tuple[int, ...], level: str, what: str, cause: str, tmp_path: Path
) -> None:
    report = verify_program(script(tmp_path, text), "numpy", runs=2 if len(threads) == 1 else 1, threads=threads)
    assert not report and report.level == level
    assert report.difference is not None and report.difference.what == what and cause in report.difference.cause
    assert report.difference.remedy in str(report)


def test_the_command_compares_a_program_under_an_exchange(tmp_path: Path) -> None:
    need("openblas")
    words = script(tmp_path, "import numpy as np\na = np.eye(300)\nprint((a @ a).sum())\n")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "backline", "check", "determinism", "--runs", "2", "--threads", "1", *options, *words]
        return subprocess.run(wrapped(command), capture_output=True, text=True, timeout=200, check=False)

    done = run("--blas", "openblas")
    assert done.returncode == 0 and "from run to run" in done.stdout, done.stdout + done.stderr
    assert "no library that can be exchanged" in run("--blas", "openblass").stderr
    words = script(tmp_path, "print(end='')")
    done = run("--blas", "numpy")
    assert done.returncode == 3 and "nothing to compare" in done.stderr, done.stdout + done.stderr
    words = script(tmp_path, "raise SystemExit(7)")
    assert "ended with status 7" in run("--blas", "numpy").stderr
