"""A library whose products are wrong for one shape, for tests that find it: in this process, or as a plug-in of another one."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from backline import libraries
from backline.libraries.base import Algorithm, Handler, Library, PythonPlan
from backline.problems.matmul_problem import MatmulProblem

__all__ = ["NAME", "SHAPE", "Erring", "planted", "registered", "script"]

SHAPE = (7, 5, 6)
NAME = "blis"  # takes the place of a library that there is: a switch of another name would stay for all later tests

planted: dict[str, Callable[[Any], Any]] = {}
"""The change that a right product undergoes, under the name "product"."""


def algorithms(library: Library, problem: MatmulProblem, threads: int) -> Iterator[Algorithm]:
    if problem.op == "matmul" and len(problem.result) == 2:
        yield Algorithm(library=NAME, name="sum", level="threads", basis="construction")


def prepare(library: Library, problem: MatmulProblem, algorithm: Algorithm) -> PythonPlan:
    def product(a: Any, b: Any, out: Any = None) -> Any:
        found = a @ b
        if (problem.m, problem.k, problem.n) == SHAPE and "product" in planted:
            found = planted["product"](found)
        if out is None:
            return found
        out[...] = found
        return out

    return PythonPlan(product)


class Erring(Library):
    name = NAME
    handlers: ClassVar = {MatmulProblem: Handler(algorithms, prepare)}

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1"


def registered(plant: Callable[[Any], Any]) -> None:
    """Makes it a library of this process; `libraries.unregister(NAME)` undoes it."""
    planted["product"] = plant
    libraries.register(Erring())


# Two algorithms, of which one is wrong for a shape: by so much, or so slowly, or by a crash.
CODE = """
import os, time
import numpy as np
from backline.libraries.base import Algorithm, Handler, Library, PythonPlan
from backline.problems.matmul_problem import MatmulProblem

def algorithms(library, problem, threads):
    if problem.op == "matmul" and len(problem.result) == 2:
        yield Algorithm(library="erring", name="wide" if problem.n > 8 else "narrow", level="threads", basis="construction")

def prepare(library, problem, algorithm):
    def product(a, b):
        if (problem.m, problem.k, problem.n) == {shape}:
            {fault}
        return a @ b
    return PythonPlan(product)

class Erring(Library):
    handlers = {{MatmulProblem: Handler(algorithms, prepare)}}
    def reason(self): return ""
    def version(self): return "1"
"""
ROW = """
from backline.libraries import LibraryInfo
ROW = LibraryInfo("erring", "Erring", implementation="backline_erring.code:Erring", families=("matmul",), about="Wrong.")
"""


def _install(folder: Path, fault: str) -> None:
    """Writes a package with the library and its entry point into a folder, which a process finds by PYTHONPATH."""
    package, info = folder / "backline_erring", folder / "backline_erring-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "row.py").write_text(ROW)
    (package / "code.py").write_text(CODE.format(shape=SHAPE, fault=fault))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: backline-erring\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[backline.libraries]\nerring = backline_erring.row:ROW\n")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a script, and installs the plug-in for processes that begin: with a fault, or with none."""

    def write(text: str, fault: str = "return a @ b") -> str:
        if not (tmp_path / "site").exists():
            _install(tmp_path / "site", fault)
        paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.setenv("BACKLINE_PLUGINS", "1")
        path = tmp_path / "job.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write
