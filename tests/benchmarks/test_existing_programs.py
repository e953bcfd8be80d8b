"""The programs of benchmarks/existing_programs.py compute the same on every library, and know nothing of Backline."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backline.interop import numpy as exchange
from backline.interop.exchange import layouts, loaded_objects
from support import need

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in (FOLDER / "existing_programs").glob("*.py") if path.stem != "harness")
#: Of small data: rounding is less, but where a function is minimised it decides as much where that stops.
BOUNDS = dict.fromkeys(SCRIPTS, 1e-8) | {"gaussian_process_sklearn": 1e-3, "optimisation_scipy": 1e-5}


@pytest.fixture(scope="module", autouse=True)
def found_by_name() -> Iterator[None]:
    """The folders from which a program and the benchmark are run."""
    folders = [str(FOLDER), str(FOLDER / "existing_programs")]
    sys.path[:0] = folders
    try:
        yield
    finally:
        for folder in folders:
            sys.path.remove(folder)
        sys.modules.pop("harness", None)


def loaded(name: str) -> Any:
    if "sklearn" in (FOLDER / f"existing_programs/{name}.py").read_text():
        pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location(f"existing_{name}", FOLDER / f"existing_programs/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_references: dict[str, Any] = {}


def reference(name: str) -> Any:
    """Program, data, and the results of NumPy and SciPy as they are installed."""
    if name not in _references:
        module = loaded(name)
        data = module.load(True)
        _references[name] = module, data, module.compute(data)
    return _references[name]


def test_the_benchmark_has_a_bound_for_each_program() -> None:
    import existing_programs

    assert sorted(existing_programs.BOUNDS) == SCRIPTS and len(SCRIPTS) == 6


@pytest.mark.parametrize("name", [*SCRIPTS, "harness"])
def test_no_program_imports_backline(name: str) -> None:
    tree = ast.parse((FOLDER / f"existing_programs/{name}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in imported if module.partition(".")[0] == "backline"]


def exchangeable(library: str) -> None:
    """Ends the test where NumPy's BLAS cannot be exchanged for a library."""
    if layouts.unsupported() or [slot for m in loaded_objects.modules() for slot in m.slots if not slot.symbol.bundled]:
        pytest.skip("NumPy is no wheel for Linux with glibc here")
    need(library)


@pytest.mark.parametrize("library", ["openblas", "mkl", "blis"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_computes_the_same_on_every_library(name: str, library: str) -> None:
    from program_suite import differences

    exchangeable(library)
    module, data, wanted = reference(name)
    with exchange.use(library):
        found = module.compute(data)
    assert found.keys() == wanted.keys() and all(np.isfinite(value).all() for value in found.values())
    far = differences(found, {key: np.asarray(value) for key, value in wanted.items()})
    assert max(far.values()) <= BOUNDS[name], far


def test_the_benchmark_runs() -> None:
    exchangeable("openblas")
    options = "--small --threads 1 --rounds 1 --repeats 1 --sides openblas signal"
    done = benchmark(options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "signal_scipy" in done.stdout and "geometric mean" in done.stdout
    refused = benchmark(options.replace("openblas", "nosuch"))
    assert refused.returncode == 2 and "there is no nosuch" in refused.stderr


def benchmark(options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "existing_programs.py"), *options.split()]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
