"""Code of a plug-in may do anything; a call that another library can run still runs, and `explain` says what happened."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.errors import NoKernel
from backline.libraries.base import FileLibrary

Maker = Callable[..., Path]
A = np.arange(9.0).reshape(3, 3)

HEAD = "from backline.libraries import Algorithm, Library, PythonPlan, Refusal\nfrom backline.libraries.base import FileLibrary\n"
GOOD = {
    "reason": "return ''",
    "version": "return '1'",
    "algorithms": "yield Algorithm(library=self.name, name='only')",
    "prepare": "return PythonPlan(lambda a, b: a @ b)",
    "report": "return {'path': 'here'}",
}
ARGUMENTS = {"algorithms": ", problem, threads", "prepare": ", problem, algorithm"}


def source(changes: dict[str, str | None], head: str = HEAD, base: str = "Library") -> str:
    bodies = {**GOOD, **changes}
    lines = [f"    def {m}(self{ARGUMENTS.get(m, '')}):\n        {body}\n" for m, body in bodies.items() if body is not None]
    return f"{head}class Thing({base}):\n    extra = 5\n" + "".join(lines)


def handled(algorithms: str = "yield Algorithm(library='thing', name='only')", prepare: str = "return PythonPlan(lambda a, b: a @ b)") -> str:
    return f"""{HEAD}
from backline.libraries.base import Handler
from backline.problems.matmul_problem import MatmulProblem

def algorithms(library, problem, threads):
    {algorithms}

def prepare(library, problem, algorithm):
    {prepare}

class Thing(Library):
    handlers = {{MatmulProblem: Handler(algorithms, prepare)}}
    def reason(self): return ""
    def version(self): return "1"
"""


Plug = Callable[..., Any]


@pytest.fixture
def plug(make: Maker) -> Plug:
    def install(code: str, more: str = "") -> Any:
        row = f'from backline.libraries import LibraryInfo\nROW = LibraryInfo("thing", implementation="guard_package.code:Thing"{more})\n'
        files = {"guard_package/__init__.py": "", "guard_package/code.py": code, "guard_package/row.py": row}
        make("bad-plugin", {"thing": "guard_package.row:ROW"}, files)
        return libraries.get("thing")

    return install


def refusals() -> list[str]:
    choice = backline.explain(backline.mm, A, A)
    assert choice.library != "thing"
    return [c.reason for c in choice.candidates if c.library == "thing" and c.verdict == "refused"]


WHOLE = [
    ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    ("import no_such_module_at_all", "cannot be imported: ModuleNotFoundError"),
    ("def broken(:", "cannot be imported: SyntaxError"),
    ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    ("class Mean(Exception):\n    def __str__(self): raise ValueError\nraise Mean", "cannot be imported: Mean"),
    ("raise ValueError('line\\nline\\x1b[31m' + 'x' * 9999)", "cannot be imported: ValueError: line line [31mxxx"),
    ("", "is unusable: the module guard_package.code has no Thing"),
    ("Thing = None", "is unusable: guard_package.code:Thing is None"),
    ("Thing = 3", "its implementation guard_package.code:Thing is 3, and no class"),
    ("class Thing: pass", "is no subclass of backline.libraries.Library"),
    (source({"prepare": None}), "its implementation guard_package.code:Thing lacks prepare"),
    (source({"prepare": None, "algorithms": None}), "guard_package.code:Thing lacks handlers"),
    (source(dict.fromkeys(GOOD)), "guard_package.code:Thing lacks reason, version, handlers"),
    (source({"__init__": "raise OSError('no licence')"}), "Thing() raised OSError: no licence"),
    (source({"__init__": "import sys; sys.exit('bye')"}), "Thing() raised SystemExit: bye"),
    (
        source({"__init__": "import backline, numpy; backline.mm(numpy.eye(2), numpy.eye(2)); 1 / 0"}),
        "Thing() raised ZeroDivisionError",
    ),
    (f"import backline, numpy\nbackline.mm(numpy.eye(2), numpy.eye(2))\n{source({'reason': '1 / 0'})}", "ZeroDivisionError"),
    (source({"reason": "return 'the moon is full'"}), "not available: the moon is full"),
    (source({"reason": "1 / 0"}), "asking whether it is available raised ZeroDivisionError"),
    (source({"reason": "return 'a' + chr(10) + 'b'"}), "not available: a b"),
    (source({"reason": None}, base="FileLibrary"), "guard_package.code:Thing lacks load"),
    (source({"algorithms": "1 / 0"}), "algorithms() raised ZeroDivisionError"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='only'); 1 / 0"}), "algorithms() raised ZeroDivisionError"),
    (source({"algorithms": "return None"}), "algorithms() raised TypeError"),
    (source({"algorithms": "yield 'only'"}), "yielded 'only': an Algorithm or a Refusal is wanted"),
    (source({"algorithms": "yield Algorithm(library='numpy', name='matmul')"}), "its library must be 'thing'"),
    (source({"algorithms": "yield Refusal('numpy', 'matmul', 'no')"}), "its library must be 'thing'"),
    (source({"algorithms": "yield Refusal(self.name, 'matmul', None)"}), "its name, reason, switch must be str"),
    (source({"algorithms": "yield Refusal(self.name, 'm', 'line' + chr(10) + 'line' + chr(27) + 'x' * 9999)"}), "line line xxx"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='')"}), "its name must be a word"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='a@n')"}), "its name must be a word"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='only', threads=threads + 1)"}), "its threads must be 1 to"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='only', threads=0)"}), "its threads must be 1 to"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='only', threads=1.0)"}), "its threads must be 1 to"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='only', scaled=True)"}), "it is scaled"),
    (
        source({"algorithms": "yield Algorithm(library=self.name, name='only', level='always')"}),
        "level must be one of off, run, threads",
    ),
    (source({"algorithms": "yield Algorithm(library=self.name, name='only', basis='hope')"}), "basis one of promise"),
    (source({"algorithms": "yield Algorithm(library=self.name, name='only', traits=['fused'])"}), "its traits must be a tuple"),
    (handled("yield 1 / 0"), "algorithms() raised ZeroDivisionError"),
    (handled("return 3"), "algorithms() raised TypeError"),
    (handled("yield Algorithm(library='numpy', name='only')"), "its library must be 'thing'"),
    (handled().replace("{MatmulProblem: Handler(algorithms, prepare)}", "3"), "algorithms() raised AttributeError"),
]


@pytest.mark.parametrize(("code", "reason"), WHOLE, ids=[f"{i} {w[1][:50]}" for i, w in enumerate(WHOLE)])
def test_a_broken_library_is_one_refusal_and_the_call_runs(plug: Plug, code: str, reason: str) -> None:
    library = plug(code)
    with switches.scope(num_threads=2):
        found = refusals()
        assert len(found) == 1 and reason in found[0] and len(found[0]) < 700 and found[0].isprintable()
        assert reason.endswith(("full", "a b", "xxx")) or "plug-in thing of bad-plugin 1.0" in found[0]
        with backline.use("thing"):
            assert np.array_equal(backline.mm(A, A), A @ A)
        with backline.use("thing", only=True), pytest.raises(NoKernel, match="thing"):
            backline.mm(A, A)
    assert library.version() in ("1", None)
    facts = library.report()
    assert facts["name"] == "thing" and facts["available"] == (not facts["reason"]) == library.available()
    assert not hasattr(library, "no_such_name")
    assert "plug-in thing of bad-plugin 1.0" in repr(library) and libraries.get("thing") is library


@pytest.mark.parametrize("form", ["methods", "handlers"])
@pytest.mark.parametrize(
    "body", ["1 / 0", "return 3", "return lambda *arrays: 3 if True else len", "return len", "raise RuntimeError('no')"]
)
def test_what_cannot_be_prepared_makes_room_for_the_next(plug: Plug, form: str, body: str) -> None:
    plug(source({"prepare": body}) if form == "methods" else handled(prepare=body))
    with backline.use("thing"):
        result = backline.mm(A, A)
        if "lambda" in body:
            assert result == 3
        else:
            assert np.array_equal(result, A @ A)
            assert [c.verdict for c in backline.explain().candidates if c.library == "thing"] == ["refused"]


def test_answers_of_other_kinds_do_no_harm(plug: Plug) -> None:
    library = plug(source({"version": "1 / 0", "report": "return 3"}) + "    families = 3\n    devices = None\n    title = 3\n    name = 'other'\n")
    assert library.version() is None and (library.families, library.devices, library.name) == ((), ("cpu",), "thing")
    assert "report() raised TypeError" in library.report()["config"] and library.title == "thing"
    assert backline.explain(backline.mm, A, A).library


def test_the_row_counts(plug: Plug) -> None:
    library = plug(source({}), ', title="A thing", families=("linalg",), devices=("cpu", "cuda"), openmp=True, install="ask"')
    assert (library.families, library.devices, library.openmp, library.how_to_get) == (("linalg",), ("cpu", "cuda"), True, "ask")
    assert library.extra == 5 and library.report()["path"] == "here" and library.report()["title"] == "A thing"
    assert "thing" not in [c.library for c in backline.explain(backline.mm, A, A).candidates]
    assert "thing" in [c.library for c in backline.explain(backline.linalg.inv, A + np.eye(3)).candidates]


def test_precision_and_determinism_hold_for_it(plug: Plug) -> None:
    plug(handled("yield Algorithm(library='thing', name='coarse', precision='tf32', level='off')"))
    a = A.astype(np.float32)

    def verdict() -> tuple[str, str]:
        (one,) = [c for c in backline.explain(backline.mm, a, a).candidates if c.library == "thing"]
        return one.verdict, one.switch

    with backline.use("thing"):
        assert verdict()[0] == "refused"  # float32 stays float32 unless the user allows less
        with backline.backends.flags(fp32_precision="tf32"):
            assert verdict()[0] == "chosen"
            with backline.backends.flags(deterministic=True):
                assert verdict()[0] == "refused"


IN_C = """
import ctypes
from backline.native.library_search import search

class Thing(FileLibrary):
    handlers = {MatmulProblem: Handler(algorithms, prepare)}
    loads = 0
    def load(self):
        self.loads += 1
        self.finding = search(self.spec)
        if self.finding.path is None:
            return self.finding.reason
        self.functions = ctypes.CDLL(self.finding.path)
        return ""
    def version(self): return "1"
"""


def test_a_library_in_c_is_loaded_once_and_when_it_is_needed(plug: Plug) -> None:
    library = plug(handled() + IN_C, ', files=("libm.so.6",), needs=("cos",)')
    assert isinstance(library, FileLibrary) and not library.loaded() and library.loads == 0 and not libraries.is_loaded("thing")
    with backline.use("thing"):
        assert np.array_equal(backline.mm(A, A), A @ A) and backline.explain().library == "thing"
    assert library.loads == 1 and library.loaded() and libraries.is_loaded("thing")
    report = library.report()
    assert report["path"].endswith("libm.so.6") and report["available"] and "plug-in" not in report["found by"]


def test_a_library_in_c_whose_file_is_named_and_missing(plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_THING_LIBRARY", "/no/such/file.so")
    library = plug(handled() + IN_C, ', files=("libm.so.6",)')
    with backline.use("thing"):
        (reason,) = refusals()
    assert "/no/such/file.so" in reason and library.version() == "1" and not library.report()["available"]


def test_a_failed_import_is_not_tried_at_every_call(plug: Plug) -> None:
    plug("import sys\nsys.guard_count = getattr(sys, 'guard_count', 0) + 1\n1 / 0")
    try:
        for _ in range(3):
            backline.explain(backline.mm, A, A)
        assert sys.guard_count == 1  # type: ignore[attr-defined]  # what the plug-in adds
    finally:
        del sys.guard_count  # type: ignore[attr-defined]  # what the plug-in adds


def test_a_library_may_compute_while_it_is_made(plug: Plug) -> None:
    library = plug(source({"__init__": "import backline, numpy; self.product = backline.mm(numpy.eye(2), numpy.eye(2))"}))
    assert library.available() and np.array_equal(library.product, np.eye(2)) and libraries.get("thing") is library
