"""Entry points that lead to no row, rows with wrong values, and rows that come late."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from plugin_files import ROW, SIZE, files, imported, said

import backline
from backline import backends, libraries, switches
from backline.errors import UnknownName
from backline.libraries import plugins
from support import forget_plugins

Maker = Callable[..., Path]


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
    ("bad_package.row:ROW", "ROW = None", "bad_package.row:ROW is None"),
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
        sys.modules["backline.switches.switch_registry"].remove("part.two_enabled")  # type: ignore[attr-defined]  # reached as a module
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
    import asking_package.row as module  # type: ignore[import-not-found]  # made by the test

    assert module.asked == "unknown as yet"
    assert switches.get("thing.size") == 3 and not plugins.found()["thing"].fault and libraries.get("thing").available()


def test_a_failed_import_is_not_tried_at_every_call(make: Maker) -> None:
    count = "import sys\nsys.plugin_count = getattr(sys, 'plugin_count', 0) + 1\n1 / 0"
    make("some-plugin", {"thing": "count_package.row:ROW"}, {**files("count_package"), "count_package/row.py": count})
    a = np.eye(3)
    try:
        assert len(said(lambda: backline.explain(backline.mm, a, a))) == 1
        backline.explain(backline.mm, a, a)
        assert sys.plugin_count == 1  # type: ignore[attr-defined]  # what the plug-in adds
    finally:
        del sys.plugin_count  # type: ignore[attr-defined]  # what the plug-in adds
