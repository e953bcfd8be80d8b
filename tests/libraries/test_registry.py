"""The registry of libraries: its rows, and a library that is added by one row and one class."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path

import pytest

from backline import backends, libraries, switches
from backline.cli import docs
from backline.errors import BadValue
from backline.libraries import registry
from backline.libraries.base import Library
from backline.libraries.presence import availability
from backline.libraries.probing import probe_program
from support import python

RUNNING = [row for row in registry.ROWS if row.implementation]

TOY = """
from collections.abc import Iterator
from typing import Any

import numpy as np

from backline.libraries import Algorithm, Library, PythonPlan


class Toy(Library):
    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "1.2"

    def algorithms(self, problem: Any, threads: int) -> Iterator[Algorithm]:
        if problem.op == "matmul" and len(problem.operands[0].shape) == 2:
            yield Algorithm(library="toy", name="product", level="threads", basis="construction")

    def prepare(self, problem: Any, algorithm: Algorithm) -> Any:
        return PythonPlan(lambda a, b: np.einsum("ij,jk->ik", a, b))

    def report(self) -> dict[str, Any]:
        return {"name": "toy", "title": self.title, "available": True, "reason": "", "version": "1.2", "path": None}
"""

ADDED = """
import importlib
import numpy as np
import backline
from backline import libraries, switches

libraries.register(libraries.LibraryInfo(
    "toy", "Toy", implementation="toy_library:Toy", families=("matmul",), caches=("plan_cache",), install="it comes with the tests",
    about="Toy: products by einsum.", seen_running="everything, in the tests",
    switches=(switches.Switch("toy.size", int, 3, doc="A size."),),
))
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of a program that has the class of the library."""
    (tmp_path / "toy_library.py").write_text(TOY)
    return tmp_path


def run(toy: Path, program: str) -> str:
    done = python(ADDED + textwrap.dedent(program), env={"PYTHONPATH": str(toy), "BACKLINE_TUNING": "", "BACKLINE_PLUGINS": "0"})
    return str(done.stdout)


# --- the rows


def test_a_name_a_module_and_a_class_belong_to_one_row() -> None:
    for field in ("name", "backend", "implementation", "variable"):
        values = [getattr(row, field) for row in registry.ROWS if getattr(row, field)]
        assert len(values) == len({*values}), field
    assert {row.version_of for row in registry.ROWS} - {""} <= {row.name for row in registry.ROWS}
    assert {name.partition(".")[0] for name in probe_program.CHECKS} <= {row.name for row in registry.ROWS}


@pytest.mark.parametrize("row", RUNNING, ids=lambda row: row.name)
def test_a_class_has_what_its_row_says(row: registry.LibraryInfo) -> None:
    module, _, name = row.implementation.partition(":")
    kind = getattr(importlib.import_module(module), name)
    assert issubclass(kind, Library)
    library = kind()
    assert library.info is row
    assert (kind.name, kind.title, kind.how_to_get, kind.switch) == (row.name, row.title, row.install, row.switch)
    assert (kind.families, kind.devices, kind.openmp, kind.kernels, kind.engines) == (
        row.families, row.devices, row.openmp, row.kernels, row.engines,
    )  # fmt: skip
    assert row.switch in ("", *switches.declared())


def test_every_library_and_module_has_a_row() -> None:
    assert [row.name for row in RUNNING] == [name for name in libraries.names() if registry.find(name)]
    for name in backends._MODULES:
        row = registry.find(name)
        assert row is None or row.backend == name or row.name == name
    assert {"cpu", "mha", "quantized", "xeon"} == {name for name in backends._MODULES if registry.find(name) is None}


def test_a_backend_and_its_library_give_the_same_answer() -> None:
    for row in RUNNING:
        if row.backend and row.backend != "python_native":
            assert availability(row.backend) is libraries.get(row.name)
            assert getattr(backends, row.backend).is_available() == libraries.get(row.name).available()


def test_a_class_without_a_row_sets_its_attributes_itself() -> None:
    class Plain(Library):
        name, title, families = "plain", "Plain", ("fft",)

    assert Plain.switch == "plain.enabled"
    assert (Plain().info.name, Plain().info.title, Plain().info.families, Plain().info.switch) == ("plain", "Plain", ("fft",), "plain.enabled")


def test_an_unknown_name() -> None:
    assert registry.find("nosuch") is None and registry.find("") is None
    with pytest.raises(BadValue, match="there is no library 'nosuch'"):
        libraries.info("nosuch")


def test_the_stubs_are_those_of_the_rows() -> None:
    """Made anew by ``python -c 'from backline.cli import docs; docs.write_stubs()'``."""
    folder = Path(backends.__file__).parent
    assert {path.name: path.read_text() for path in folder.glob("*.pyi") if path.name[0] != "_"} == docs.stubs()


# --- a library is one row and one class


def test_it_is_listed_and_has_a_switch_and_a_module(toy: Path) -> None:
    run(
        toy,
        """
        import sys
        from backline import backends
        assert "toy" in libraries.names() and "toy" in switches.library_names()
        assert "toy" in dir(backends) and "toy_library" not in sys.modules
        from backline.backends import toy
        assert importlib.import_module("backline.backends.toy") is toy is backends.toy
        assert toy.__doc__.startswith("Toy: products by einsum.") and toy.plan_cache.size == 0
        assert (toy.enabled, toy.is_available(), toy.is_enabled(), toy.version()) == (True, True, True, "1.2")
        assert switches.lookup("toy.enabled").env == "BACKLINE_TOY_ENABLED"
        with toy.flags(enabled=False, size=4):
            assert toy.size == switches.get("toy.size") == 4
            assert not toy.enabled and not toy.is_enabled()
        backends.prefer = ("toy",)
        """,
    )


def test_calls_run_on_it_and_explain_lists_it(toy: Path) -> None:
    run(
        toy,
        """
        a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
        with backline.backends.flags(prefer=("toy",)):
            choice = backline.explain(backline.mm, a, b)
            assert (choice.library, choice.algorithm) == ("toy", "product"), choice
            assert np.array_equal(backline.mm(a, b), a @ b)
        with backline.backends.toy.flags(enabled=False):
            (refused,) = [c for c in backline.explain(backline.mm, a, b).candidates if c.library == "toy"]
        assert refused.verdict == "refused" and refused.switch == "toy.enabled"
        libraries.unregister("toy")
        assert "toy" not in [c.library for c in backline.explain(backline.mm, a, b).candidates]
        """,
    )


def test_it_is_measured(toy: Path) -> None:
    run(
        toy,
        """
        from backline.engine import choose
        from backline.engine.tuning import measure
        a = np.ones((8, 8))
        problem = backline.explain(backline.mm, a, a).problem
        algorithms = [one for one in choose.eligible(problem, 1) if one.library == "toy"]
        record = measure.measure_problem(problem, algorithms, 1, budget=0.1)
        assert list(record.errors) == ["toy.product@1"] and record.errors["toy.product@1"] < 1e-12, record
        """,
    )


def test_info_and_the_pages_show_it(toy: Path) -> None:
    run(
        toy,
        """
        from backline.cli import docs, info
        (report,) = [each for each in info.gather()["libraries"] if each["name"] == "toy"]
        assert (report["title"], report["version"], report["how to get"]) == ("Toy", "1.2", "it comes with the tests")
        assert "## backends.toy\\n\\nToy: products by einsum.\\n" in docs.page() and "| `toy.enabled` |" in docs.page()
        assert "| `toy` | NumPy | everything, in the tests |" in docs.status()
        """,
    )
