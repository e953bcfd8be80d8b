"""Discovery of entry points: those that count, what a refused one says; looking for them imports and breaks nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from plugin_files import CODE, files, imported, said

import backline
from backline import backends, libraries, switches
from backline.errors import BadValue, UnknownName
from backline.libraries import plugin_search, plugins, registry
from backline.libraries.recognition import classify
from backline.switches import store
from backline.switches.switch import FAMILIES
from support import forget_plugins

Maker = Callable[..., Path]


def test_a_plugin_is_found_once_and_nothing_of_it_is_imported(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, {**files("some_package"), "some_package/__init__.py": "1 / 0"})
    assert plugins.discover() is False and list(plugins.found()) == ["thing"]
    plugin = plugins.found()["thing"]
    assert (plugin.source, plugin.reference, plugin.is_read) == ("some-plugin 1.0", "some_package.row:ROW", False)
    assert switches.get("thing.enabled") is True and "thing" in switches.library_names() and "thing" in libraries.names()
    assert "thing" in dir(backends) and registry.find("thing") is plugin.row
    assert imported("some_package") == []
    with pytest.raises(TypeError):
        plugins.found()["other"] = plugin  # type: ignore[index]  # refused: it cannot be written to


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
        plugins.read("thing")
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
    sys.meta_path.insert(0, Broken)  # type: ignore[arg-type]  # a finder that lacks what the protocol asks for
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


def test_its_file_is_recognised_in_a_process(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package", more=', kind="nn", patterns=("libthing.so*",)'))
    assert classify("/nowhere/libthing.so.1") == ()
    libraries.ready()
    (match,) = classify("/nowhere/libthing.so.1")
    assert match.family is libraries.info("thing")


def test_the_pages_do_not_depend_on_plugins(make: Maker) -> None:
    from backline.cli import docs

    before = docs.page(), docs.status()
    make("some-plugin", {"thing": "some_package.row:ROW"}, files("some_package", more=', seen_running="nothing"'))
    forget_plugins()
    libraries.ready()
    assert switches.get("thing.size") == 3 and (docs.page(), docs.status()) == before
