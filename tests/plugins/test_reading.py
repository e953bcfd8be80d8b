"""What a plug-in's file may say, and what becomes of all that it may not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from backline.switches import plugin_file
from backline.switches.legal import AtLeast, EachOf
from backline.switches.plugin_file import DEVICES, RESERVED, Plugin, read
from backline.switches.switch import FAMILIES

GOOD = """
title = "Good"
library = "package.module:Class"
families = ["matmul", "linalg"]
devices = ["cpu", "cuda"]
how_to_get = "pip install it"
backend = "package.backend"

[[switches]]
name = "fast"
kind = "bool"
default = false
doc = "Be fast."

[[switches]]
name = "limit"
kind = "int"
default = 3
minimum = 1
doc = "A number."
governs = ["linalg"]

[[switches]]
name = "ratio"
kind = "float"
default = 1
minimum = 0.5
doc = "A ratio."

[[switches]]
name = "good.mode"
kind = "str"
default = "slow"
legal = ["slow", "fast"]
doc = "A word."

[[switches]]
name = "parts"
kind = "tuple"
default = ["a"]
legal = ["a", "b"]
doc = "Some words."

[[switches]]
name = "steps"
kind = "int"
default = 8
legal = [8, 16]
doc = "One of two."
"""


def reads(tmp_path: Path, text: str | bytes) -> tuple[Plugin | None, list[str]]:
    path = tmp_path / "good.toml"
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    return read(str(path), "good", "some-plugin 1.0")


def test_all_that_a_file_may_say(tmp_path: Path) -> None:
    plugin, faults = reads(tmp_path, GOOD)
    assert faults == [] and plugin is not None
    assert (plugin.name, plugin.library, plugin.title, plugin.how_to_get) == (
        "good",
        "package.module:Class",
        "Good",
        "pip install it",
    )
    assert (plugin.families, plugin.devices, plugin.backend) == (("matmul", "linalg"), ("cpu", "cuda"), "package.backend")
    found = {s.name: s for s in plugin.switches}
    assert list(found) == ["good.enabled", "good.fast", "good.limit", "good.ratio", "good.mode", "good.parts", "good.steps"]
    assert found["good.enabled"].allows == "good" and found["good.enabled"].governs == plugin.families
    assert [s.allows for s in plugin.switches[1:]] == [""] * 6
    assert found["good.limit"].governs == ("linalg",) and found["good.fast"].governs == ("matmul", "linalg")
    assert found["good.limit"].legal == AtLeast(1) and found["good.ratio"].check(0.5) == 0.5
    assert found["good.mode"].legal == ("slow", "fast") and found["good.steps"].legal == (8, 16)
    assert found["good.parts"].check(["b", "a"]) == ("b", "a") and isinstance(found["good.parts"].legal, EachOf)
    assert reads(tmp_path, GOOD)[0] == plugin, "reading it again declares nothing new"


def test_a_library_is_enough(tmp_path: Path) -> None:
    plugin, faults = reads(tmp_path, 'library = "package:Class"')
    assert faults == [] and plugin is not None
    assert (plugin.title, plugin.families, plugin.devices, plugin.backend) == ("good", None, None, "")
    assert [s.name for s in plugin.switches] == ["good.enabled"] and plugin.switches[0].governs == FAMILIES


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["library = None", '"package.module:Class"']),
        ('library = "package.module"', ["library = 'package.module'"]),
        ('library = "../evil:Class"', ["library"]),
        ('library = "package:Class.method"', ["library"]),
        ('library = "package:import os"', ["library"]),
        ("library = 3", ["library = 3"]),
        ("library = ['package:Class']", ["library = ['package:Class']"]),
        ("library = ", ["not TOML"]),
        (b"\xff\xfe", ["not UTF-8 (byte 0)"]),
        (b"\x00", ["not TOML"]),
        (b"# " + b"x" * (1 << 16), ["larger than 65536 bytes"]),
        (b"a = " + b"[" * 60_000, ["nested too deeply"]),
        (b"a = " + b"9" * 5000, ["not TOML"]),
        (b"a = 1\na = 2", ["not TOML"]),
    ],
)
def test_a_file_without_a_library_is_refused_as_a_whole(tmp_path: Path, text: str | bytes, parts: list[str]) -> None:
    plugin, faults = reads(tmp_path, text)
    assert plugin is None and len(faults) == 1
    for part in [*parts, "the file is ignored"]:
        assert part in faults[0]


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    plugin, faults = read(str(tmp_path), "good", "some-plugin 1.0")
    assert plugin is None and "Is a directory" in faults[0]


# The value, what the fault must name, what is left of the key.
KEYS = [
    ("title = 3", ["title = 3", "printable"], {"title": "good"}),
    ('title = "two\\nlines"', ["title = 'two\\nlines'"], {"title": "good"}),
    (f'title = "{"x" * 300}"', ["title = 'xxx", "at most 200"], {"title": "good"}),
    ('title = "\\u001b[31mred"', ["title = '\\x1b[31mred'"], {"title": "good"}),
    ("how_to_get = []", ["how_to_get = []"], {"how_to_get": ""}),
    ('families = ["matmul", "matmull"]', ["'matmull' in families", "'matmul'"], {"families": ("matmul",)}),
    ('families = "matmul"', ["families = 'matmul'", "a list is wanted", "'fft'"], {"families": None}),
    ("families = []", ["families = []"], {"families": None}),
    ("families = [[1], {a = 2}]", ["[1] in families"], {"families": None}),
    ('devices = ["cuda:0"]', ["'cuda:0' in devices", "'cuda', 'cpu', 'mps'"], {"devices": None}),
    ('backend = "package/backend.py"', ["backend = 'package/backend.py'", '"package.module"'], {"backend": ""}),
    ('backend = "class"', ["backend = 'class'"], {"backend": ""}),
    ("backend = false", ["backend = False"], {"backend": ""}),
    ('libary = "x"', ["'libary' = 'x' is ignored", "nearest first: library"], {}),
    ("switches = 3", ["switches = 3", "[[switches]]"], {}),
    ("switches = [3]", ["switches, number 1: 3", "[[switches]]"], {}),
    ('[switches]\nname = "fast"', ["switches = {'name': 'fast'}", "[[switches]]"], {}),
]


@pytest.mark.parametrize(("line", "parts", "left"), KEYS, ids=[k[0][:30] for k in KEYS])
def test_a_bad_key_is_left_out_and_the_rest_counts(tmp_path: Path, line: str, parts: list[str], left: dict[str, object]) -> None:
    plugin, faults = reads(tmp_path, 'library = "package:Class"\n' + line)
    assert plugin is not None and plugin.library == "package:Class" and len(faults) == 1
    for part in parts:
        assert part in faults[0]
    for key, value in left.items():
        assert getattr(plugin, key) == value
    assert [s.name for s in plugin.switches] == ["good.enabled"]


SWITCH = {"name": '"limit"', "kind": '"int"', "default": "3", "doc": '"A number."'}
SWITCHES = [
    ({"name": None}, ["number 1", "name = None", "identifier"]),
    ({"name": '"Limit"'}, ["name = 'Limit'"]),
    ({"name": '"a.b"'}, ["name = 'a.b'"]),
    ({"name": '"other.limit"'}, ["name = 'other.limit'"]),
    ({"name": '"class"'}, ["name = 'class'"]),
    ({"name": '"_limit"'}, ["name = '_limit'"]),
    ({"name": '"lïmit"'}, ["name = 'lïmit'"]),
    ({"name": '""'}, ["name = ''"]),
    ({"name": "3"}, ["name = 3"]),
    *(({"name": f'"{word}"'}, [f"every backend has the name '{word}'"]) for word in RESERVED),
    ({"kind": None}, ["good.limit", "kind = None", "'int'"]),
    ({"kind": '"integer"'}, ["kind = 'integer'", "nearest first: 'int'"]),
    ({"kind": "[]"}, ["kind = []"]),
    ({"default": None}, ["good.limit", "no default"]),
    ({"default": '"3"'}, ["default", "takes an int, not str: '3'"]),
    ({"default": "true"}, ["default", "not bool"]),
    ({"default": "3.5"}, ["default", "not float"]),
    ({"default": "1979-05-27"}, ["default", "not date"]),
    ({"default": "{a = 1}"}, ["default", "not dict"]),
    ({"default": "[1]"}, ["default", "not tuple"]),
    ({"kind": '"float"', "default": "nan"}, ["default = nan"]),
    ({"kind": '"tuple"', "default": '"abc"'}, ["default", "takes a tuple of str, not str: 'abc'"]),
    ({"kind": '"tuple"', "default": "[1]"}, ["default", "takes a tuple of str"]),
    ({"doc": None}, ["good.limit", "no doc"]),
    ({"minimum": "4"}, ["default", "good.limit = 3", "4 (the nearest)"]),
    ({"minimum": '"4"'}, ["minimum = '4'"]),
    ({"minimum": "1.5"}, ["minimum = 1.5"]),
    ({"minimum": "true"}, ["minimum = True"]),
    ({"kind": '"float"', "minimum": "nan"}, ["minimum = nan"]),
    ({"kind": '"str"', "default": '"a"', "minimum": "1"}, ["minimum = 1", "'int' and 'float' only"]),
    ({"legal": "[1, 3]", "minimum": "1"}, ["both legal and minimum"]),
    ({"legal": "[1, 2]"}, ["default", "good.limit = 3", "legal values, the nearest first: 2, 1"]),
    ({"legal": "[1, '3']"}, ["legal", "takes an int, not str: '3'"]),
    ({"legal": "3"}, ["legal = 3", "list"]),
    ({"legal": "[]"}, ["legal = []"]),
    ({"legal": str([*range(200)])}, ["legal", "1 to 100"]),
    ({"kind": '"bool"', "default": "true", "legal": "[true]"}, ["legal", "True or False"]),
    ({"kind": '"tuple"', "default": '["a"]', "legal": "[1]"}, ["legal = [1]", "names"]),
    ({"kind": '"tuple"', "default": '["c"]', "legal": '["a", "b"]'}, ["default", "('c',)", "'a', 'b'"]),
]


@pytest.mark.parametrize(("change", "parts"), SWITCHES, ids=[str(c[0])[:50] for c in SWITCHES])
def test_a_bad_switch_is_left_out_and_the_others_count(tmp_path: Path, change: dict[str, str | None], parts: list[str]) -> None:
    table = {**SWITCH, **change}
    lines = [f"{key} = {value}" for key, value in table.items() if value is not None]
    other = '[[switches]]\nname = "other"\nkind = "bool"\ndefault = true\ndoc = "Fine."'
    plugin, faults = reads(tmp_path, "\n".join(['library = "package:Class"', "[[switches]]", *lines, other]))
    assert plugin is not None and [s.name for s in plugin.switches] == ["good.enabled", "good.other"]
    assert len(faults) == 1, faults
    for part in [*parts, "ignored"]:
        assert part in faults[0]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('defualt = 4', ["good.limit", "'defualt' = 4", "nearest first: default"]),
        ('governs = ["matmul", "fast"]', ["good.limit", "'fast' in", "governs"]),
        ('governs = 3', ["governs = 3"]),
    ],
)  # fmt: skip
def test_what_is_not_needed_of_a_switch_is_left_out_alone(tmp_path: Path, line: str, parts: list[str]) -> None:
    lines = [f"{key} = {value}" for key, value in SWITCH.items()]
    plugin, faults = reads(tmp_path, "\n".join(['library = "package:Class"', "[[switches]]", *lines, line]))
    assert plugin is not None and plugin.switches[1].check(3) == 3 and len(faults) == 1
    for part in parts:
        assert part in faults[0]


def test_a_switch_is_declared_once(tmp_path: Path) -> None:
    lines = "\n".join(f"{key} = {value}" for key, value in SWITCH.items())
    plugin, faults = reads(tmp_path, f'library = "package:Class"\n[[switches]]\n{lines}\n[[switches]]\n{lines}')
    assert plugin is not None and len(plugin.switches) == 2
    assert len(faults) == 1 and "number 2" in faults[0] and "BACKLINE_GOOD_LIMIT" in faults[0]


def test_there_is_an_end_to_switches(tmp_path: Path) -> None:
    tables = "\n".join(f'[[switches]]\nname = "s{i}"\nkind = "bool"\ndefault = true\ndoc = "One."' for i in range(150))
    plugin, faults = reads(tmp_path, f'library = "package:Class"\n{tables}')
    assert plugin is not None and len(plugin.switches) == 101 and faults == ["150 switches: all after the first 100 are ignored"]


def test_the_documentation_names_every_key_and_word() -> None:
    text = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")
    for word in (*plugin_file._KEYS, *plugin_file._SWITCH_KEYS, *plugin_file._KINDS):
        assert f"`{word}`" in text or f'`"{word}"`' in text or f"[[{word}]]" in text, word
    for word in (*FAMILIES, *DEVICES):
        assert word in text, word
    for number in ("64 KiB", "at most 100", "at most 40"):
        assert number in text
