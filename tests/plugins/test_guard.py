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
from backline.switches import plugins

Maker = Callable[..., Path]
FORMS = ("file", "class")
A = np.arange(9.0).reshape(3, 3)

HEAD = "from backline.libraries import Algorithm, Library, PythonPlan, Refusal\n"
GOOD = {
    "reason": "return ''",
    "version": "return '1'",
    "algorithms": "yield Algorithm(library=self.name, name='only')",
    "prepare": "return PythonPlan(lambda a, b: a @ b)",
    "report": "return {'path': 'here'}",
}
ARGUMENTS = {"algorithms": ", problem, threads", "prepare": ", problem, algorithm"}


def source(changes: dict[str, str | None], head: str = HEAD, base: str = "Library", name: str = "'thing'") -> str:
    bodies = {**GOOD, **changes}
    lines = [f"    def {m}(self{ARGUMENTS.get(m, '')}):\n        {body}\n" for m, body in bodies.items() if body is not None]
    return f"{head}class Thing({base}):\n    name = title = {name}\n" + "".join(lines)


@pytest.fixture
def plug(make: Maker) -> Callable[[str, str], Any]:
    def install(form: str, code: str) -> Any:
        value = "guard_package:thing.toml" if form == "file" else "guard_package.code:Thing"
        make(
            "bad-plugin",
            {"thing": value},
            {
                "guard_package/__init__.py": "",
                "guard_package/code.py": code,
                "guard_package/thing.toml": 'library = "guard_package.code:Thing"',
            },
        )
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
    ("", "is unusable: guard_package.code:Thing is None, and no class"),
    ("Thing = 3", "is unusable: guard_package.code:Thing is 3, and no class"),
    ("class Thing: pass", "is no subclass of backline.libraries.Library"),
    (source({"prepare": None, "report": None}), "has no method prepare, report"),
    (source({}, name="'other'"), "the name of guard_package.code:Thing is 'other', and must be 'thing'"),
    (source({}, name="''"), "is '', and must be 'thing'"),
    (source({"__init__": "raise OSError('no licence')"}), "Thing() raised OSError: no licence"),
    (source({"__init__": "import sys; sys.exit('bye')"}), "Thing() raised SystemExit: bye"),
    (
        source({"__init__": "import backline, numpy; backline.mm(numpy.eye(2), numpy.eye(2)); 1 / 0"}),
        "Thing() raised ZeroDivisionError",
    ),
    (source({"reason": "return 'the moon is full'"}), "not available: the moon is full"),
    (source({"reason": "1 / 0"}), "asking whether it is available raised ZeroDivisionError"),
    (source({"reason": "return 'a' + chr(10) + 'b'"}), "not available: a b"),
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
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("code", "reason"), WHOLE, ids=[w[1][:50] for w in WHOLE])
def test_a_broken_library_is_one_refusal_and_the_call_runs(
    plug: Callable[[str, str], Any], form: str, code: str, reason: str
) -> None:
    library = plug(form, code)
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
    assert "bad-plugin 1.0" in repr(library)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "body", ["1 / 0", "return 3", "return lambda *arrays: 3 if True else len", "return len", "raise RuntimeError('no')"]
)
def test_what_cannot_be_prepared_makes_room_for_the_next(plug: Callable[[str, str], Any], form: str, body: str) -> None:
    plug(form, source({"prepare": body}))
    with backline.use("thing"):
        result = backline.mm(A, A)
        if "lambda" in body:
            assert result == 3
        else:
            assert np.array_equal(result, A @ A)
            assert [c.verdict for c in backline.explain().candidates if c.library == "thing"] == ["refused"]


def test_answers_of_other_kinds_do_no_harm(plug: Callable[[str, str], Any]) -> None:
    library = plug(
        "class",
        source({"version": "1 / 0", "report": "return 3"})
        + "    families = 3\n    devices = None\n    openmp = 'x'\n    title = 3\n",
    )
    assert library.version() is None and library.families == () and library.devices == ("cpu",) and library.openmp is False
    assert "report() raised TypeError" in library.report()["config"] and library.title == "thing"
    assert backline.explain(backline.mm, A, A).library


def test_what_the_class_says_of_itself_counts_where_no_file_speaks(plug: Callable[[str, str], Any]) -> None:
    library = plug(
        "class",
        source({})
        + "    families = ('linalg',)\n    devices = ('cpu', 'cuda')\n    openmp = True\n    how_to_get = 'ask'\n    extra = 5\n",
    )
    assert (library.families, library.devices, library.openmp, library.how_to_get) == (("linalg",), ("cpu", "cuda"), True, "ask")
    assert library.extra == 5 and library.report()["path"] == "here"
    assert "thing" not in [c.library for c in backline.explain(backline.mm, A, A).candidates]
    assert "thing" in [c.library for c in backline.explain(backline.linalg.inv, A + np.eye(3)).candidates]


def test_a_failed_import_is_not_tried_at_every_call(plug: Callable[[str, str], Any]) -> None:
    plug("file", "import sys\nsys.guard_count = getattr(sys, 'guard_count', 0) + 1\n1 / 0")
    try:
        for _ in range(3):
            backline.explain(backline.mm, A, A)
        assert sys.guard_count == 1  # type: ignore[attr-defined]
    finally:
        del sys.guard_count  # type: ignore[attr-defined]


def test_a_failed_import_is_said_where_a_switch_of_it_was_asked_for(plug: Callable[[str, str], Any]) -> None:
    plug("class", "1 / 0")
    with (
        pytest.warns(RuntimeWarning, match="plug-in thing of bad-plugin 1.0: .*ZeroDivisionError"),
        pytest.raises(AttributeError),
    ):
        switches.get("thing.size")
    with pytest.raises(AttributeError):
        switches.get("thing.size")


def test_a_module_may_ask_for_its_own_switches_while_it_is_imported(plug: Callable[[str, str], Any]) -> None:
    code = """
from backline import switches
from backline.errors import UnknownName
try:
    switches.get("thing.size")
    asked = "answered"
except UnknownName:
    asked = "unknown as yet"
"""
    plug("class", code + source({}) + "    switches = (switches.Switch('thing.size', int, 3, doc='A size.'),)\n")
    import guard_package.code as module  # type: ignore[import-not-found]

    assert module.asked == "unknown as yet"
    assert switches.get("thing.size") == 3 and not plugins.failed("thing") and libraries.get("thing").available()
