"""The programs of benchmarks/programs.py compute the same on every side, and the benchmark says so or fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = (
    "PCA and kernel ridge", "Gaussian process", "Kalman filters", "matrix factorization", "spectrogram", "CNN float32", "CNN bfloat16",
    "CNN int8", "transformer float32", "transformer bfloat16", "transformer int8", "tensor network",
)  # fmt: skip


@pytest.fixture
def suite() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        import program_suite

        yield program_suite
    finally:
        sys.path.remove(str(FOLDER))


def results(suite: Any, name: str, side: str) -> dict[str, Any]:
    ops = suite.operations(side)
    program = next(each for each in suite.programs() if each.name == name)
    found = program.build(ops, program.inputs(True))()
    return {result: ops.numpy(value) for result, value in found.items()}


def test_the_programs_are_these(suite: Any) -> None:
    assert tuple(program.name for program in suite.programs()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_program_computes_what_numpy_does(suite: Any, name: str) -> None:
    bound = next(program.bound for program in suite.programs() if program.name == name)
    reference = results(suite, name, "numpy")
    assert all(np.abs(value).max() > 0 for value in reference.values())
    far = suite.differences(results(suite, name, "backline"), reference)
    assert max(far.values()) <= bound, far


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_program_computes_what_pytorch_does(suite: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    bound = next(program.bound for program in suite.programs() if program.name == name)
    with torch.no_grad():  # PyTorch's side turns gradients off when it is imported: they are on again for other tests
        far = suite.differences(results(suite, name, "torch"), results(suite, name, "numpy"))
    assert max(far.values()) <= bound, far


@pytest.mark.parametrize("name", NAMES)
def test_data_are_the_same_every_time(suite: Any, name: str) -> None:
    first, second = (results(suite, name, "numpy") for _ in range(2))
    assert all(np.array_equal(first[result], second[result]) for result in first)


def test_differences_are_relative_to_the_largest_element(suite: Any) -> None:
    wanted = {"a": np.array([1.0, -4.0]), "b": np.zeros(2)}
    assert suite.differences({"a": np.array([1.0, -3.0]), "b": np.array([0.0, 0.5])}, wanted) == {"a": 0.25, "b": 0.5}
    broken = {"a": np.array([1.0, np.nan]), "b": np.zeros(3)}
    assert suite.differences(broken, wanted) == {"a": np.inf, "b": np.inf}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    import backline

    source = str(Path(backline.__file__).parents[1])
    return subprocess.run(
        [sys.executable, str(FOLDER / "programs.py"), "--small", "--rounds", "1", "--seconds", "0", "--threads", "1", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def test_the_benchmark_prints_a_table_of_all_sides() -> None:
    done = run("spectro", "factor", "--sides", "numpy,untuned,tuned")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["matrix factorization", "spectrogram", "geometric mean", "least"], done.stdout
    assert all(float(cell) > 0 for row in rows for cell in (row[3], row[5]))


def test_an_unknown_side_is_refused() -> None:
    done = run("--sides", "numpy,fortran")
    assert done.returncode == 1
    assert "there is no fortran" in done.stderr


def test_a_wrong_result_fails_the_run(tmp_path: Path) -> None:
    """A side whose products are off, put in by a module of that name in front of the others."""
    script = tmp_path / "wrong.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(FOLDER)!r})\n"
        "import numpy as np, programs\n"
        "from program_suite import Program\n"
        "class Side:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def ask(self, build, results):\n"
        "        np.savez(results, total=np.array([1.0 if self.name == 'numpy' else 1.1]))\n"
        "        return {'first': 0.0}\n"
        "programs.built(Program('sum', None, None, bound=1e-3), [Side('numpy'), Side('untuned')])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert "sum: untuned is off from NumPy by {'total': 0.1" in done.stderr.replace("0.10000000000000009", "0.1")


def test_the_table_shows_how_many_times_faster(suite: Any) -> None:
    script = (
        f"import sys, json; sys.path.insert(0, {str(FOLDER)!r}); import programs\n"
        "rows = [{'row': 'a', 'seconds': {'numpy': 4.0, 'untuned': 1.0}}, {'row': 'b', 'seconds': {'numpy': 1.0, 'untuned': 1.0}}]\n"
        "print(json.dumps(programs.summary(rows, ['untuned'], ['numpy'])))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=100)
    assert json.loads(done.stdout) == {"untuned": {"numpy": {"geometric mean": 2.0, "least": 1.0}}}
