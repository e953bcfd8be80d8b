"""Files of made-up plug-ins, and what is said when they are found."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from backline.libraries import plugins

__all__ = ["CODE", "ROW", "SIZE", "files", "imported", "said"]

SIZE = 'Switch("{name}.size", int, 3, AtLeast(1), doc="A size.")'
ROW = """
from backline.libraries import LibraryInfo
from backline.switches import AtLeast, DerivedSwitch, Switch

ROW = LibraryInfo({name!r}, implementation="{package}.code:Thing", switches=({switches},){more})
"""
CODE = """
from backline.libraries.base import Algorithm, Handler, Library, PythonPlan
from backline.problems.matmul_problem import MatmulProblem

def algorithms(library, problem, threads):
    yield Algorithm(library=library.name, name="only", level="threads", basis="construction")

def prepare(library, problem, algorithm):
    import numpy as np
    return PythonPlan(lambda a, b: np.full(problem.result, 7.0))

class Thing(Library):
    handlers = {MatmulProblem: Handler(algorithms, prepare)}
    def reason(self): return ""
    def version(self): return "1"
"""


def said(read: Callable[[], object] = plugins.discover) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(), read()
    assert all(w.category is RuntimeWarning for w in caught)
    return [str(w.message) for w in caught]


def files(package: str, name: str = "thing", more: str = "", switches: str = SIZE, code: str = CODE) -> dict[str, str]:
    """The files of a package with a row and a class, and an ``__init__`` that does nothing."""
    row = ROW.format(name=name, package=package, switches=switches.format(name=name), more=more)
    return {f"{package}/__init__.py": "", f"{package}/row.py": row, f"{package}/code.py": code}


def imported(package: str) -> list[str]:
    return sorted(name for name in sys.modules if name.partition(".")[0] == package)
