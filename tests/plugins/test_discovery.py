"""Which entry points count, what a refused one says, and that looking for them neither imports nor breaks anything."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import backline
from backline import backends, libraries, switches
from backline.errors import BadValue, UnknownName
from backline.switches import plugin_search, plugins, store
from support import forget_plugins

Maker = Callable[..., Path]
FILE = 'library = "{0}.code:Thing"\n[[switches]]\nname = "size"\nkind = "int"\ndefault = 3\ndoc = "A size."\n'
CODE = """
from backline.libraries import Algorithm, Library, PythonPlan, Refusal
from backline.switches import AtLeast, Switch

class Thing(Library):
    name = title = {name!r}
    {more}
    def reason(self): return ""
    def version(self): return "1"
    def algorithms(self, problem, threads):
        yield Algorithm(library=self.name, name="only", level="threads", basis="construction")
    def prepare(self, problem, algorithm):
        import numpy as np
        return PythonPlan(lambda a, b: np.full(problem.result, 7.0))
    def report(self): return {{}}
"""


def said(read: Callable[[], object] = plugins.discover) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read(), read()
    assert all(w.category is RuntimeWarning for w in caught)
    return [str(w.message) for w in caught]


def thing(name: str, more: str = "") -> str:
    return CODE.format(name=name, more=more)


def test_a_plugin_is_found_once_and_nothing_of_it_is_imported(make: Maker) -> None:
    make(
        "some-plugin",
        {"thing": "some_package:thing.toml"},
        {"some_package/__init__.py": "1 / 0", "some_package/thing.toml": FILE.format("some_package")},
    )
    assert plugins.discover() is True and plugins.discover() is False
    plugin = plugins.found()["thing"]
    assert (plugin.source, plugin.library, plugin.title) == ("some-plugin 1.0", "some_package.code:Thing", "thing")
    assert switches.get("thing.size") == 3 and "thing" in switches.library_names() and "thing" in libraries.names()
    assert "some_package" not in sys.modules
    with pytest.raises(TypeError):
        plugins.found()["other"] = plugin  # type: ignore[index]


def test_a_file_may_lie_in_a_package_below_and_in_a_namespace(make: Maker) -> None:
    make(
        "a",
        {"one": "top_level.below:one.toml"},
        {"top_level/__init__.py": "1 / 0", "top_level/below/__init__.py": "1 / 0", "top_level/below/one.toml": FILE.format("x")},
    )
    make("b", {"two": "no_init:data-2.toml [extra]"}, {"no_init/data-2.toml": FILE.format("x")})
    assert said() == [] and sorted(plugins.found()) == ["one", "two"]


def test_a_class_is_imported_at_the_first_question_only_it_can_answer(make: Maker) -> None:
    more = 'families, switches = ("linalg",), (Switch("thing.size", int, 3, AtLeast(1), doc="A size."),)'
    make(
        "some-plugin",
        {"thing": "lazy_package.code:Thing"},
        {"lazy_package/__init__.py": "", "lazy_package/code.py": thing("thing", more)},
    )
    assert "thing" in libraries.names() and switches.get("thing.enabled") is True and "lazy_package" not in sys.modules
    library = libraries.get("thing")
    assert (library.name, library.title, library.switch) == (
        "thing",
        "thing",
        "thing.enabled",
    ) and "lazy_package" not in sys.modules
    with switches.scope({"thing.enabled": False}):
        libraries.ready()
        assert library.families == () and "lazy_package" not in sys.modules
    assert plugins.unread("thing.size") is not None and plugins.unread("thing") is None and plugins.unread("numpy.size") is None
    with pytest.raises(UnknownName, match="siez"):
        switches.get("thing.siez")
    assert "lazy_package.code" in sys.modules and switches.get("thing.size") == 3 and library.families == ("linalg",)
    assert plugins.unread("thing.size") is None


REFUSED = [
    ("numpy", "a library 'numpy', which a plug-in cannot replace"),
    ("mkl", "a library 'mkl'"),
    ("onednn", "a library 'onednn'"),
    ("mkldnn", "a switch mkldnn.enabled already"),
    ("cublas", "a library 'cublas'"),
    ("cuda", "a switch cuda."),
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


def test_every_name_of_the_backends_is_refused() -> None:
    public = [name for name in (*backends.__all__, *vars(backends)) if name.islower() and not name.startswith("_")]
    assert [name for name in public if not plugin_search._refusal(name, {})] == []


@pytest.mark.parametrize(("name", "reason"), REFUSED, ids=[r[0] for r in REFUSED])
def test_a_plugin_replaces_nothing_of_backline(make: Maker, name: str, reason: str) -> None:
    before, there = dict(switches.all_switches()), libraries.names()
    make("bad-plugin", {name: "bad_package:thing.toml"}, {"bad_package/thing.toml": FILE.format("bad_package")})
    forget_plugins()
    (message,) = said(lambda: (plugins.discover(), libraries.names()))
    for part in ("bad-plugin 1.0", "the plug-in is refused", reason, "BACKLINE_PLUGINS=0"):
        assert part in message
    assert dict(switches.all_switches()) == before and libraries.names() == there


def test_every_library_and_backend_of_backline_is_protected() -> None:
    for name in {*libraries._SHIPPED, *switches.library_names(), *dir(backends)}:
        assert plugin_search._refusal(name, {}), name


VALUES = [
    ("nowhere_at_all:thing.toml", "no file thing.toml in the package nowhere_at_all"),
    ("bad_package:other.toml", "no file other.toml in the package bad_package"),
    ("bad_package.below:thing.toml", "no file thing.toml"),
    ("sys:thing.toml", "no file thing.toml"),
    ("bad_package", "neither"),
    ("bad_package:", "neither"),
    (":thing.toml", "neither"),
    ("bad package:thing.toml:x", "neither"),
    ("../bad_package:thing.toml", "neither"),
    ("bad_package:../thing.toml", "neither"),
    ("bad_package:/etc/thing.toml", "neither"),
    ("bad_package:.toml", "neither"),
    ("bad_package:Thing.method", "neither"),
    ("bad_package:thing.tom", "neither"),
]


@pytest.mark.parametrize(("value", "reason"), VALUES, ids=[v[0] for v in VALUES])
def test_an_entry_point_that_leads_nowhere_is_one_warning(make: Maker, value: str, reason: str) -> None:
    make("bad-plugin", {"thing": value, "good": "bad_package:thing.toml"}, {"bad_package/thing.toml": FILE.format("bad_package")})
    (message,) = said()
    assert "plug-in thing of bad-plugin 1.0" in message and reason in message
    assert [*plugins.found()] == ["good"] and "thing.enabled" not in switches.declared()


def test_all_that_is_wrong_with_a_file_is_one_warning(make: Maker) -> None:
    text = FILE.format("bad_package") + 'kind = "int"\n'.replace("kind", "knid") + '[[switches]]\nname = "flags"\n'
    folder = make(
        "bad-plugin", {"thing": "bad_package:thing.toml"}, {"bad_package/thing.toml": 'title = 3\nbackend = "x y"\n' + text}
    )
    (message,) = said()
    for part in (
        "bad-plugin 1.0",
        str(folder / "bad_package" / "thing.toml"),
        "title = 3",
        "backend = 'x y'",
        "'knid'",
        "'flags'",
        "uninstall bad-plugin",
    ):
        assert part in message
    assert switches.get("thing.size") == 3


def test_a_warning_has_an_end(make: Maker) -> None:
    text = FILE.format("bad_package") + "".join(f"wrong{i} = {i}\n" for i in range(50))
    make("bad-plugin", {"thing": "bad_package:thing.toml"}, {"bad_package/thing.toml": text})
    (message,) = said()
    assert "and 40 more" in message and len(message) < 3000


def test_the_first_of_two_with_one_name_counts(make: Maker) -> None:
    for name in ("b-plugin", "a-plugin"):
        package = name.replace("-", "_")
        make(name, {"thing": f"{package}:thing.toml"}, {f"{package}/thing.toml": FILE.format(package)})
    (message,) = said()
    assert "plug-in thing of b-plugin" in message and "a-plugin 1.0 brings a library of the same name" in message
    assert plugins.found()["thing"].library == "a_plugin.code:Thing"


def test_of_two_versions_the_one_that_would_be_imported_counts(make: Maker) -> None:
    make("some-plugin", {"old": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("old_place")})
    make(
        "some-plugin", {"thing": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("new_place")}, version="2.0"
    )
    assert said() == []
    assert [(p.name, p.source, p.library) for p in plugins.found().values()] == [
        ("thing", "some-plugin 2.0", "new_place.code:Thing")
    ]


def test_switches_that_share_an_environment_variable(make: Maker) -> None:
    one = FILE.format("x").replace('"size"', '"of_it_size"')
    make("a", {"part": "package_one:thing.toml"}, {"package_one/thing.toml": one})
    make("b", {"part_of_it": "package_two:thing.toml"}, {"package_two/thing.toml": FILE.format("x")})
    (message,) = said()
    assert "switch part_of_it.size is ignored: BACKLINE_PART_OF_IT_SIZE" in message and "part.of_it_size" in message
    assert "part_of_it.size" not in switches.declared() and switches.get("part_of_it.enabled") is True


def test_a_plugin_that_could_not_be_turned_off_is_refused(make: Maker) -> None:
    one = FILE.format("x").replace('"size"', '"two_enabled"')
    make("a", {"part": "package_one:thing.toml"}, {"package_one/thing.toml": one})
    make("b", {"part_two": "package_two:thing.toml"}, {"package_two/thing.toml": FILE.format("x")})
    (message,) = said()
    assert "the plug-in is refused: BACKLINE_PART_TWO_ENABLED" in message and [*plugins.found()] == ["part"]


@pytest.mark.parametrize(
    "damage",
    [
        ("entry_points.txt", b"[backline.libraries]\nthing\n"),
        ("entry_points.txt", b"\xff\xfe[backline.libraries]\nthing = a:b.toml\n"),
        ("METADATA", b""),
        ("METADATA", None),
    ],
)
def test_damaged_metadata_of_somebody_else_is_one_warning(make: Maker, damage: tuple[str, bytes | None]) -> None:
    folder = make("bad-plugin", {"thing": "bad_package:thing.toml"}, {"bad_package/thing.toml": FILE.format("x")})
    make("good-plugin", {"good": "good_package:thing.toml"}, {"good_package/thing.toml": FILE.format("x")})
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

    make("some-plugin", {"thing": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("x")})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Broken])
    (message,) = said()
    assert "plug-ins cannot be looked for (OSError: the network is down)" in message
    monkeypatch.delattr(Broken, "find_distributions")
    sys.meta_path.insert(0, Broken)  # type: ignore[arg-type]
    forget_plugins()
    (message,) = said()
    assert "the package some_package cannot be looked for (OSError: the network is down)" in message


@pytest.mark.parametrize("word", ["0", "off", "FALSE", " no "])
def test_looking_can_be_turned_off(make: Maker, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    make("some-plugin", {"thing": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("x")})
    monkeypatch.setenv("BACKLINE_PLUGINS", word)
    assert said() == [] and not plugins.found() and "thing" not in libraries.names()
    with pytest.raises(UnknownName):
        switches.get("thing.size")


def test_a_strange_word_turns_nothing_off_and_is_said(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    make("some-plugin", {"thing": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("x")})
    monkeypatch.setenv("BACKLINE_PLUGINS", "maybe")
    (message,) = said()
    assert "BACKLINE_PLUGINS = 'maybe'" in message and "1, 0" in message and "thing" in plugins.found()


def test_where_warnings_are_errors_each_is_raised_once_and_all_works_after(make: Maker) -> None:
    make(
        "bad-plugin",
        {"numpy": "x:y.toml", "mkl": "x:y.toml", "good": "good_package:thing.toml"},
        {"good_package/thing.toml": FILE.format("x")},
    )
    for name in ("mkl", "numpy"):
        with pytest.raises(RuntimeWarning, match=f"plug-in {name}"):
            plugins.discover()
    assert plugins.discover() is False and switches.get("good.size") == 3


def test_values_from_outside_reach_switches_that_come_late(make: Maker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make("some-plugin", {"thing": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("x")})
    (tmp_path / "backline.toml").write_text("[thing]\nsize = 5\nenabled = false\n")
    monkeypatch.setenv("BACKLINE_THING_SIZE", "6")
    store._restart()
    assert said(switches.current) == []
    assert (switches.get("thing.size"), switches.get("thing.enabled")) == (6, False)
    assert switches.origin("thing.enabled").kind == "project file"


def test_a_bad_value_from_outside_is_said_once_also_where_warnings_are_errors(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("some-plugin", {"thing": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("x")})
    monkeypatch.setenv("BACKLINE_THING_SIZE", "many")
    store._restart()
    switches.current()
    with pytest.raises(RuntimeWarning, match="BACKLINE_THING_SIZE = 'many'"):
        switches.get("thing.size")
    assert switches.get("thing.size") == 3 and switches.get("thing.enabled") is True
    forget_plugins()
    switches.current()
    (message,) = said(lambda: (plugins.discover(), switches.current()))
    assert "BACKLINE_THING_SIZE = 'many'" in message and "any int" in message


def test_a_key_of_a_class_that_nobody_asked_yet_is_no_mistake(make: Maker, tmp_path: Path) -> None:
    more = 'switches = (Switch("thing.size", int, 3, AtLeast(1), doc="A size."),)'
    make(
        "some-plugin",
        {"thing": "patient_package.code:Thing"},
        {"patient_package/__init__.py": "", "patient_package/code.py": thing("thing", more)},
    )
    (tmp_path / "backline.toml").write_text("[thing]\nsize = 5\n[thnig]\nsize = 5\n")
    store._restart()
    with pytest.raises(BadValue) as caught:
        switches.current()
    message = str(caught.value)
    assert "'thnig.size' = 5" in message and "'thing.size'" not in message and "patient_package" not in sys.modules
    assert switches.get("thing.size") == 5


CLASSES = [
    ('"x"', "a tuple of Switch is wanted"),
    ('("x",)', "'x' in class_package.code:Thing.switches is ignored"),
    ('(Switch("other.size", int, 3, doc="A size."),)', "switch other.size is ignored: its name must be thing."),
    ('(Switch("size", int, 3, doc="A size."),)', "switch size is ignored"),
    ('(Switch("thing.sub.size", int, 3, doc="A size."),)', "switch thing.sub.size is ignored"),
    ('(Switch("thing.enabled", bool, False, doc="On."),)', "switch thing.enabled is ignored"),
    ('(Switch("thing.flags", bool, False, doc="On."),)', "switch thing.flags is ignored"),
    ('(Switch("thing.other", bool, False, doc="On.", library="numpy"),)', "only thing.enabled allows a library"),
    ('(); backend = "a/b.py"', "backend = 'a/b.py' is ignored"),
]


@pytest.mark.parametrize(("value", "reason"), CLASSES, ids=[c[0][:40] for c in CLASSES])
def test_bad_switches_of_a_class_are_left_out(make: Maker, value: str, reason: str) -> None:
    make("some-plugin", {"thing": "class_package.code:Thing"}, {"class_package/code.py": thing("thing", f"switches = {value}")})
    (message,) = said(libraries.ready)
    assert "plug-in thing of some-plugin 1.0" in message and reason in message
    assert [name for name in switches.declared() if name.startswith("thing.")] == ["thing.enabled"]
    assert libraries.get("thing").available()


def test_switches_of_a_class_behind_a_file_are_those_of_the_file(make: Maker) -> None:
    more = 'switches = (Switch("thing.size", int, 3, doc="A size."), Switch("thing.more", int, 3, doc="More."))'
    make(
        "some-plugin",
        {"thing": "both_package:thing.toml"},
        {"both_package/code.py": thing("thing", more), "both_package/thing.toml": FILE.format("both_package")},
    )
    (message,) = said(lambda: libraries.get("thing").version())
    assert "thing.more: the switches of its class are not asked" in message and "thing.more" not in switches.declared()


def test_a_backend_module_is_made_or_brought(make: Maker) -> None:
    own = '"""Mine."""\nfrom backline.switches.switch_module import install\nextra = 3\ninstall(__name__, "two")'
    files = {
        "one_package/thing.toml": FILE.format("x"),
        "one_package/mine.py": own,
        "one_package/code.py": thing("three", 'backend = "one_package.mine3"'),
        "one_package/mine3.py": own.replace("two", "three"),
    }
    files["one_package/two.toml"] = 'backend = "one_package.mine"\n' + FILE.format("x")
    make(
        "some-plugin", {"one": "one_package:thing.toml", "two": "one_package:two.toml", "three": "one_package.code:Thing"}, files
    )
    assert backends.one.size == 3 and backends.one.__name__ == "backline.backends.one"
    assert backends.two.size == 3 and backends.two.extra == 3 and backends.two.__name__ == "one_package.mine"
    assert backends.three.extra == 3 and backends.three.__name__ == "one_package.mine3"
    assert {"one", "two", "three"} <= set(dir(backends))


def test_a_backend_module_that_fails_is_one_warning_and_another_takes_its_place(make: Maker) -> None:
    text = 'backend = "failing_package.gone"\n' + FILE.format("failing_package")
    make(
        "some-plugin",
        {"thing": "failing_package:thing.toml"},
        {"failing_package/thing.toml": text, "failing_package/code.py": thing("thing")},
    )
    with pytest.warns(RuntimeWarning, match="its backend module failing_package.gone is ignored.*ModuleNotFoundError"):
        module = backends.thing
    assert module.__name__ == "backline.backends.thing" and module.size == 3 and module.is_available()
    assert backends.thing is module


def test_a_library_that_the_program_registered_first_stays(make: Maker) -> None:
    make("some-plugin", {"thing": "some_package:thing.toml"}, {"some_package/thing.toml": FILE.format("x")})
    space: dict[str, type] = {}
    exec(thing("thing"), space)
    mine = space["Thing"]()
    libraries.register(mine)
    assert libraries.names()[-1] == "thing" and libraries.get("thing") is mine
    libraries.unregister("thing")
    assert libraries.get("thing") is not mine and libraries.get("thing").reason()
    with pytest.raises(BadValue, match="there is no library 'thnig'"):
        libraries.unregister("thnig")


def test_installing_a_plugin_changes_no_choice_by_itself(make: Maker) -> None:
    import numpy as np

    a = np.ones((6, 6))
    before = backline.explain(backline.mm, a, a)
    make(
        "some-plugin",
        {"thing": "quiet_package:thing.toml"},
        {"quiet_package/thing.toml": FILE.format("quiet_package"), "quiet_package/code.py": thing("thing")},
    )
    forget_plugins()
    after = backline.explain(backline.mm, a, a)
    assert (after.library, after.algorithm) == (before.library, before.algorithm)
    assert "thing" in [c.library for c in after.candidates if c.verdict == "next"]
    with backline.use("thing"):
        assert (backline.mm(a, a) == 7).all()
