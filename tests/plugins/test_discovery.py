"""Which entry points count, what a refused one says, and that looking for them neither imports nor breaks anything."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import backline
from backline import backends, libraries, switches
from backline.errors import BadValue, UnknownName
from backline.libraries import plugin_search, plugins, registry
from backline.switches import store
from backline.switches.switch import FAMILIES
from support import forget_plugins

Maker = Callable[..., Path]
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


# --- finding -----------------------------------------------------------------------------------------------


def test_a_plugin_is_found_once_and_nothing_of_it_is_imported(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, {**files("some_package"), "some_package/__init__.py": "1 / 0"})
    assert plugins.discover() is False and list(plugins.found()) == ["thing"]
    plugin = plugins.found()["thing"]
    assert (plugin.source, plugin.reference, plugin.is_read) == ("some-plugin 1.0", "some_package.row:ROW", False)
    assert switches.get("thing.enabled") is True and "thing" in switches.library_names() and "thing" in libraries.names()
    assert "thing" in dir(backends) and registry.find("thing") is plugin.row
    assert imported("some_package") == []
    with pytest.raises(TypeError):
        plugins.found()["other"] = plugin  # type: ignore[index]


def test_the_row_is_imported_first_and_the_class_when_it_is_a_candidate(make: Maker) -> None:
    make("some-plugin", {"thing": "lazy_package.row:ROW [extra]"}, files("lazy_package", more=', families=("linalg",), title="A thing"'))
    a = np.eye(3)
    with switches.scope({"thing.enabled": False}):
        backline.mm(a, a)
    with backline.use("numpy", only=True):
        backline.mm(a, a)
    assert imported("lazy_package") == []
    backline.mm(a, a)  # which families it has is read from the row
    assert imported("lazy_package") == ["lazy_package", "lazy_package.row"]
    row = libraries.info("thing")
    assert row is registry.find("thing") is plugins.found()["thing"].row and row.families == ("linalg",)
    backline.explain(backline.linalg.inv, a)
    assert imported("lazy_package") == ["lazy_package", "lazy_package.code", "lazy_package.row"]
    library = libraries.get("thing")
    assert (library.name, library.title, library.switch, library.families) == ("thing", "A thing", "thing.enabled", ("linalg",))
    assert library.info is row


def test_the_switch_that_allows_it_is_that_of_the_row(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package", more=', families=("linalg",), title="A thing"'))
    plugins.discover()
    before = switches.lookup("thing.enabled")
    assert (before.doc, before.governs) == ("thing may run calls.", FAMILIES)
    with switches.scope({"thing.enabled": False}):
        libraries.ready("thing")
        assert switches.get("thing.enabled") is False
    after = switches.lookup("thing.enabled")
    assert (after.doc, after.governs, after.library) == ("A thing may run calls.", ("linalg",), "thing")
    assert [s for s in switches.declared() if s.startswith("thing.")] == ["thing.enabled", "thing.size"]


def test_a_row_is_read_at_the_first_question_only_it_can_answer(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    assert "thing" in libraries.names() and imported("some_package") == []
    with pytest.raises(UnknownName, match="siez"):
        switches.get("thing.siez")
    assert "some_package.row" in sys.modules and "some_package.code" not in sys.modules and switches.get("thing.size") == 3


REFUSED = [
    ("numpy", "a library 'numpy' (backends.numpy), which a plug-in cannot replace"),
    ("mkl", "a library 'mkl'"),
    ("onednn", "a library 'onednn' (backends.mkldnn)"),
    ("mkldnn", "a library 'onednn'"),
    ("cublas", "a library 'cublas'"),
    ("cuda", "a library 'cuda'"),
    ("tbb", "a library 'tbb'"),
    ("mha", "a switch mha."),
    ("fallback", "a switch fallback already"),
    ("prefer", "a switch prefer already"),
    ("flags", "backline.backends.flags exists already"),
    ("annotations", "backline.backends.annotations exists already"),
    ("Strassen", "no lower-case identifier"),
    ("a.b", "no lower-case identifier"),
    ("class", "no lower-case identifier"),
    ("_x", "no lower-case identifier"),
    ("x" * 41, "at most 40"),
    ("é", "no lower-case identifier"),
]


@pytest.mark.parametrize(("name", "reason"), REFUSED, ids=[r[0] for r in REFUSED])
def test_a_plugin_replaces_nothing_of_backline(make: Maker, name: str, reason: str) -> None:
    before, rows, there = dict(switches.all_switches()), list(registry.rows()), libraries.names()
    make("bad-plugin", {name: "bad_package.row:ROW"}, files("bad_package"))
    forget_plugins()
    (message,) = said(lambda: (plugins.discover(), libraries.names()))
    for part in ("of bad-plugin 1.0 is refused: ", reason, "uninstall bad-plugin", "BACKLINE_PLUGINS=0"):
        assert part in message
    assert dict(switches.all_switches()) == before and list(registry.rows()) == rows and libraries.names() == there


def test_every_name_of_backline_is_protected() -> None:
    public = [name for name in (*backends.__all__, *vars(backends)) if name.islower() and not name.startswith("_")]
    for name in {*public, *dir(backends), *switches.library_names(), *(row.name for row in registry.ROWS)}:
        assert plugin_search._refusal(name, {}), name


def test_the_first_of_two_with_one_name_counts(make: Maker) -> None:
    for name in ("b-plugin", "a-plugin"):
        package = name.replace("-", "_")
        make(name, {"thing": f"{package}.row:ROW"}, files(package))
    (message,) = said()
    assert "plug-in thing of b-plugin 1.0 is refused: a-plugin 1.0 brings a library of the same name" in message
    assert plugins.found()["thing"].reference == "a_plugin.row:ROW" and libraries.get("thing").available()


def test_of_two_versions_the_one_that_would_be_imported_counts(make: Maker) -> None:
    make("some-plugin", {"old": "old_place:ROW"})
    make("some-plugin", {"thing": "new_place:ROW"}, version="2.0")
    assert said() == []
    assert [(p.name, p.source, p.reference) for p in plugins.found().values()] == [("thing", "some-plugin 2.0", "new_place:ROW")]


@pytest.mark.parametrize(
    "damage",
    [
        ("entry_points.txt", b"[backline.libraries]\nthing\n"),
        ("entry_points.txt", b"\xff\xfe[backline.libraries]\nthing = a:b\n"),
        ("METADATA", b""),
        ("METADATA", None),
    ],
)
def test_damaged_metadata_of_somebody_else_is_one_warning(make: Maker, damage: tuple[str, bytes | None]) -> None:
    folder = make("bad-plugin", {"thing": "bad_package:ROW"})
    make("good-plugin", {"good": "good_package:ROW"})
    name, data = damage
    file = folder / "bad_plugin-1.0.dist-info" / name
    file.unlink() if data is None else file.write_bytes(data)
    messages = said()
    assert [*plugins.found()] in (["good"], ["good", "thing"])
    assert len(messages) == ("thing" not in plugins.found())
    assert all("bad_plugin-1.0.dist-info" in m and "BACKLINE_PLUGINS=0" in m for m in messages)


def test_a_finder_that_fails_is_one_warning(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name == "some_package":
                raise OSError("the network is down")

        @staticmethod
        def find_distributions(*context: object) -> list[object]:
            raise OSError("the network is down")

    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Broken])
    (message,) = said()
    assert "plug-ins cannot be looked for (OSError: the network is down)" in message
    monkeypatch.delattr(Broken, "find_distributions")
    sys.meta_path.insert(0, Broken)  # type: ignore[arg-type]
    forget_plugins()
    (message,) = said(libraries.ready)
    assert "plug-in thing of some-plugin 1.0 cannot be imported: OSError: the network is down" in message


@pytest.mark.parametrize("word", ["0", "off", "FALSE", " no "])
def test_looking_can_be_turned_off(make: Maker, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    monkeypatch.setenv("BACKLINE_PLUGINS", word)
    assert said() == [] and not plugins.found() and "thing" not in libraries.names()
    with pytest.raises(UnknownName):
        switches.get("thing.size")


@pytest.mark.parametrize("word", ["maybe", "/usr/share/backline/strassen.toml"])
def test_a_strange_word_turns_nothing_off_and_is_said(make: Maker, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    monkeypatch.setenv("BACKLINE_PLUGINS", word)
    (message,) = said()
    assert f"BACKLINE_PLUGINS = {word!r} is ignored; legal values: 1, 0; plug-ins are found by the entry points" in message
    assert "thing" in plugins.found()


def test_where_warnings_are_errors_each_is_raised_once_and_all_works_after(make: Maker) -> None:
    make("bad-plugin", {"numpy": "x:Y", "mkl": "x:Y", "good": "good_package.row:ROW"}, files("good_package", "good"))
    for name in ("mkl", "numpy"):
        with pytest.raises(RuntimeWarning, match=f"plug-in {name}"):
            plugins.discover()
    assert plugins.discover() is False and switches.get("good.size") == 3


# --- the row -----------------------------------------------------------------------------------------------

BROKEN = [
    ("bad_package:thing.toml", "", "leads to a TOML file, which is no plug-in any more; make the entry point lead to a LibraryInfo"),
    ("bad_package.code:Thing", "", "leads to the class Thing, which is no plug-in any more; make the entry point lead to a LibraryInfo"),
    ("bad_package", "", 'its entry point \'bad_package\' is not written "package.module:ROW"'),
    ("bad_package:", "", "is not written"),
    (":ROW", "", "is not written"),
    ("../bad_package:ROW", "", "is not written"),
    ("bad_package.row:ROW.name", "", "is not written"),
    ("bad_package.row:NOWHERE", "", "the module bad_package.row has no NOWHERE"),
    ("nowhere_at_all:ROW", "", "cannot be imported: ModuleNotFoundError"),
    ("bad_package.row:LibraryInfo", "", "leads to the class LibraryInfo"),
    ("bad_package.row:ROW", "ROW = 3", "leads to 3, and must lead to a LibraryInfo"),
    ("bad_package.row:ROW", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    ("bad_package.row:ROW", "import no_such_module_at_all", "cannot be imported: ModuleNotFoundError"),
    ("bad_package.row:ROW", "def broken(:", "cannot be imported: SyntaxError"),
    ("bad_package.row:ROW", "raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    ("bad_package.row:ROW", "class Mean(Exception):\n    def __str__(self): raise ValueError\nraise Mean", "cannot be imported: Mean"),
    ("bad_package.row:ROW", "raise ValueError('line\\nline\\x1b[31m' + 'x' * 9999)", "ValueError: line line [31mxxx"),
]


@pytest.mark.parametrize(("value", "row", "reason"), BROKEN, ids=[f"{b[0]} {b[1][:25]}" for b in BROKEN])
def test_an_entry_point_that_leads_to_no_row_is_one_warning_and_one_refusal(make: Maker, value: str, row: str, reason: str) -> None:
    content = files("bad_package")
    content["bad_package/row.py"] += row
    make("bad-plugin", {"thing": value}, content)
    a = np.arange(9.0).reshape(3, 3)
    (message,) = said(lambda: backline.mm(a, a))
    assert message.startswith("backline: plug-in thing of bad-plugin 1.0 ") and reason in message
    assert "uninstall bad-plugin, or set BACKLINE_PLUGINS=0" in message and message.isprintable() and len(message) < 700
    (refused,) = [c for c in backline.explain(backline.mm, a, a).candidates if c.library == "thing"]
    assert refused.verdict == "refused" and refused.reason == f"not available: {message.removeprefix('backline: ')}"
    assert (backline.mm(a, a) == a @ a).all()
    # Its switch and its module are there, so that what sets them does not fail.
    assert switches.get("thing.enabled") is True and not backends.thing.is_available() and backends.thing.version() is None
    report = libraries.get("thing").report()
    assert not report["available"] and reason in report["reason"] and "uninstall" in report["how to get"]
    with pytest.raises(UnknownName):
        switches.get("thing.size")


def test_the_remedy_for_an_old_plugin_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert "\n## Migration\n" in page


FIELDS = [
    ("more", ', devices="cpu"', "devices = 'cpu' must be a tuple"),
    ("more", ', families=["matmul"]', "families = ['matmul'] must be a tuple"),
    ("more", ", install=3", "install = 3 must be a str"),
    ("more", ", openmp=1", "openmp = 1 must be a bool"),
    ("more", ", prefix_files=3", "prefix_files = 3 must be a tuple"),
    ("more", ", caches=(3,)", "caches = (3,) must be a tuple of str"),
    ("more", ', title="two\\nlines"', "title = 'two\\nlines' must be one line"),
    ("more", f", install='{'x' * 300}'", "must be one line of at most 200"),
    ("more", ', backend="other"', "backend = 'other' must be 'thing'"),
    ("more", ', switch="fallback"', "switch = 'fallback' must be 'thing.enabled'"),
    ("more", ', families=("matmull",)', "'matmull' in families is none of matmul"),
    ("more", ', devices=("cuda:0",)', "'cuda:0' in devices is none of cpu"),
    ("name", "other", "name = 'other' must be 'thing'"),
    ("package", "../x", "implementation = '../x.code:Thing' must be written"),
    ("switches", '"x"', "'x' in switches is no Switch"),
    ("switches", 'DerivedSwitch("thing.size", int, 3, doc="A size.", nodes=("fallback",))', "in switches is no Switch"),
    ("switches", 'Switch("other.size", int, 3, doc="A size.")', "the switch other.size must be called thing."),
    ("switches", 'Switch("size", int, 3, doc="A size.")', "the switch size must be called thing."),
    ("switches", 'Switch("thing.sub.size", int, 3, doc="A size.")', "the switch thing.sub.size must be called thing."),
    ("switches", 'Switch("thing.enabled", bool, False, doc="On.")', "the switch thing.enabled must be called"),
    ("switches", 'Switch("thing.flags", bool, False, doc="On.")', "the switch thing.flags must be called"),
    ("switches", 'Switch("thing.other", bool, False, doc="On.", library="numpy")', "only thing.enabled does"),
    ("switches", f'{SIZE}, Switch("thing.size", int, 4, doc="A size.")', "thing.size (environment BACKLINE_THING_SIZE) is declared already"),
    ("switches", 'Switch("thing.size", int, 0, AtLeast(1), doc="A size.")', "cannot be imported: BadValue: thing.size = 0"),
    ("switches", 'Switch("thing.size", int, 3)', "cannot be imported: BadValue: switch thing.size has no doc"),
]


@pytest.mark.parametrize(("field", "value", "reason"), FIELDS, ids=[f[1][:45] for f in FIELDS])
def test_a_wrong_row_is_left_out_as_a_whole(make: Maker, field: str, value: str, reason: str) -> None:
    parts = {"name": "thing", "package": "bad_package", "switches": SIZE, "more": "", field: value}
    parts["switches"] = parts["switches"].format(name="thing")
    content = files("bad_package")
    content["bad_package/row.py"] = ROW.format(**parts)
    make("bad-plugin", {"thing": "bad_package.row:ROW"}, content)
    (message,) = said(libraries.ready)
    assert "plug-in thing of bad-plugin 1.0" in message and reason in message and "BACKLINE_PLUGINS=0" in message
    assert [name for name in switches.declared() if name.startswith(("thing.", "other."))] == ["thing.enabled"]
    assert not libraries.get("thing").available() and imported("bad_package") in ([], ["bad_package"], ["bad_package", "bad_package.row"])


def test_all_that_is_wrong_with_a_row_is_one_warning_that_has_an_end(make: Maker) -> None:
    many = "".join(f'Switch("other{i}.size", int, 3, doc="A size."), ' for i in range(50)).removesuffix(", ")
    make("bad-plugin", {"thing": "bad_package.row:ROW"}, files("bad_package", switches=many))
    (message,) = said(libraries.ready)
    assert "other0.size" in message and "and 40 more" in message and len(message) < 3000


def test_switches_that_share_an_environment_variable(make: Maker) -> None:
    size = 'Switch("part.of_it_size", int, 3, doc="A size.")'
    make("a", {"part": "package_one.row:ROW"}, files("package_one", "part", switches=size))
    make("b", {"part_of_it": "package_two.row:ROW"}, files("package_two", "part_of_it"))
    (message,) = said(libraries.ready)
    assert "plug-in part_of_it of b 1.0" in message and "part.of_it_size (environment BACKLINE_PART_OF_IT_SIZE)" in message
    assert "part_of_it.size" not in switches.declared() and switches.get("part_of_it.enabled") is True
    assert libraries.get("part").available() and not libraries.get("part_of_it").available()


def test_a_plugin_that_could_not_be_turned_off_is_refused(make: Maker) -> None:
    two = 'Switch("part.two_enabled", bool, True, doc="On.")'
    make("a", {"part": "package_one.row:ROW"}, files("package_one", "part", switches=two))
    plugins.discover()
    switches.get("part.two_enabled")
    forget_plugins()
    switches.declare(switches.Switch("part.two_enabled", bool, True, doc="On."))
    make("b", {"part_two": "package_two.row:ROW"}, files("package_two", "part_two"))
    try:
        messages = said()
    finally:
        sys.modules["backline.switches.switch_registry"].remove("part.two_enabled")  # type: ignore[attr-defined]
    assert any("plug-in part_two of b 1.0 is refused: " in m and "BACKLINE_PART_TWO_ENABLED" in m for m in messages)
    assert not plugins.found()


def test_a_module_may_ask_for_its_own_switches_while_it_is_imported(make: Maker) -> None:
    content = files("asking_package")
    asking = """
from backline import switches
from backline.errors import UnknownName
try:
    switches.get("thing.size")
    asked = "answered"
except UnknownName:
    asked = "unknown as yet"
"""
    content["asking_package/row.py"] = asking + content["asking_package/row.py"]
    make("some-plugin", {"thing": "asking_package.row:ROW"}, content)
    import asking_package.row as module  # type: ignore[import-not-found]

    assert module.asked == "unknown as yet"
    assert switches.get("thing.size") == 3 and not plugins.found()["thing"].fault and libraries.get("thing").available()


def test_a_failed_import_is_not_tried_at_every_call(make: Maker) -> None:
    count = "import sys\nsys.plugin_count = getattr(sys, 'plugin_count', 0) + 1\n1 / 0"
    make("some-plugin", {"thing": "count_package.row:ROW"}, {**files("count_package"), "count_package/row.py": count})
    a = np.eye(3)
    try:
        assert len(said(lambda: backline.explain(backline.mm, a, a))) == 1
        backline.explain(backline.mm, a, a)
        assert sys.plugin_count == 1  # type: ignore[attr-defined]
    finally:
        del sys.plugin_count  # type: ignore[attr-defined]


# --- values from outside ------------------------------------------------------------------------------------


def test_values_from_outside_reach_switches_that_come_late(make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    (tmp_path / "backline.toml").write_text('prefer = ["thing"]\n[thing]\nsize = 5\nenabled = false\n')
    monkeypatch.setenv("BACKLINE_THING_SIZE", "6")
    store._restart()
    assert said(switches.current) == []
    assert (switches.get("thing.size"), switches.get("thing.enabled"), switches.get("prefer")) == (6, False, ("thing",))
    assert switches.origin("thing.enabled").kind == "project file"


def test_a_bad_value_from_outside_is_said_once_also_where_warnings_are_errors(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    monkeypatch.setenv("BACKLINE_THING_SIZE", "many")
    store._restart()
    switches.current()
    with pytest.raises(RuntimeWarning, match="BACKLINE_THING_SIZE = 'many'"):
        switches.get("thing.size")
    assert switches.get("thing.size") == 3 and switches.get("thing.enabled") is True
    forget_plugins()
    switches.current()
    (message,) = said(lambda: (libraries.ready(), switches.current()))
    assert "BACKLINE_THING_SIZE = 'many'" in message and "1 (the nearest)" in message


def test_a_wrong_key_of_a_plugin_is_an_error_and_a_right_one_is_not(make: Maker, tmp_path: Path) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    (tmp_path / "backline.toml").write_text("[thing]\nsize = 5\nsiez = 5\n[thnig]\nsize = 5\n")
    store._restart()
    with pytest.raises(BadValue) as caught:
        switches.current()
    message = str(caught.value)
    assert "'thnig.size' = 5" in message and "'thing.siez' = 5" in message and "'thing.size'" not in message
    assert switches.get("thing.size") == 5 and "some_package.code" not in sys.modules


def test_a_key_of_a_plugin_that_cannot_be_read_is_no_mistake(make: Maker, tmp_path: Path) -> None:
    make("some-plugin", {"thing": "some_package:thing.toml"}, files("some_package"))
    (tmp_path / "backline.toml").write_text("[thing]\nsize = 5\n")
    store._restart()
    (message,) = said(switches.current)
    assert "leads to a TOML file" in message


# --- what follows from a row ----------------------------------------------------------------------------------


def test_a_library_that_the_program_registered_first_stays(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    space: dict[str, type] = {}
    exec(CODE, space)
    mine = space["Thing"]()
    mine.name = "thing"
    libraries.register(mine)
    assert libraries.names()[-1] == "thing" and libraries.get("thing") is mine
    libraries.ready()
    assert imported("some_package") == []
    libraries.unregister("thing")
    assert libraries.get("thing") is not mine and libraries.get("thing").available() and imported("some_package")
    with pytest.raises(BadValue, match="there is no library 'thnig'"):
        libraries.unregister("thnig")


def test_a_row_may_be_registered_by_the_program_in_its_place(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package"))
    libraries.ready()
    other = libraries.LibraryInfo("thing", "Another", "some_package.code:Thing")
    libraries.register(other)
    assert libraries.info("thing") is other and libraries.get("thing").title == "Another"
    libraries.unregister("thing")
    assert libraries.info("thing") is plugins.found()["thing"].row and libraries.get("thing").title == "thing"


def test_installing_a_plugin_changes_no_choice_by_itself(make: Maker) -> None:
    a = np.ones((6, 6))
    before = backline.explain(backline.mm, a, a)
    make("some-plugin", {"thing": "quiet_package.row:ROW"}, files("quiet_package"))
    forget_plugins()
    after = backline.explain(backline.mm, a, a)
    assert (after.library, after.algorithm) == (before.library, before.algorithm)
    assert "thing" in [c.library for c in after.candidates if c.verdict == "next"]
    with backline.use("thing"):
        assert (backline.mm(a, a) == 7).all()
        with backends.thing.flags(enabled=False):
            assert (backline.mm(a, a) == 6).all()


def test_the_pages_do_not_depend_on_plugins(make: Maker) -> None:
    from backline.cli import docs

    before = docs.page(), docs.status()
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package", more=', seen_running="nothing"'))
    forget_plugins()
    libraries.ready()
    assert switches.get("thing.size") == 3 and (docs.page(), docs.status()) == before
