"""Every switch of the table in `names`: each legal value by each way of giving it, and each class of illegal value refused."""

from __future__ import annotations

import contextvars
import re
import warnings
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from names import DETECTED, SETTINGS, Setting, everything_is_there

import backline
from backline import backends, processors, switches
from backline.errors import BadType, BadValue
from backline.switches import store
from backline.switches.cpu_capability import legal_words

pytestmark = pytest.mark.usefixtures("everything_is_there")
assert everything_is_there
SPACE = {"backline": backline, "backends": backends, "switches": switches}
WRITES = ("assignment", "set_flags", "flags", "scope")


def texts(name: str) -> dict[str, str]:
    """Way -> the expression or statement, in which v is the value."""
    setting = SETTINGS[name]
    home, _, attribute = f"backends.{name}".rpartition(".")
    found = {
        "assignment": setting.write or f"{setting.read or f'backends.{name}'} = v",
        "set_flags": setting.set_flags or f"{home}.set_flags(_{attribute}=v)",
        "flags": setting.flags or f"{home}.flags({attribute}=v)",
        "scope": f"switches.scope({{{name!r}: v}})",
    }
    return {way: text for way, text in found.items() if text != "-"}


CASES = [(name, way) for name in SETTINGS for way in texts(name)]


def read(name: str) -> Any:
    return eval(SETTINGS[name].read or f"backends.{name}", SPACE)


def give(name: str, way: str, value: Any) -> Any:
    """Give a switch a value; returns what is to be entered for it, if anything is."""
    text = texts(name)[way]
    if way in ("flags", "scope"):
        return eval(text, {**SPACE, "v": value})
    exec(text, {**SPACE, "v": value})
    return None


def legal(name: str) -> list[tuple[Any, Any]]:
    """Returns what may be given, and how it reads."""
    setting = SETTINGS[name]
    found = [(value, value) for value in setting.legal] + list(setting.alike)
    if setting.kind is bool:
        found += [(np.bool_(value), value) for value in (True, False)]
    if setting.kind is int:
        found += [(np.int64(value), value) for value in setting.legal if value < 2**62]
    if name == "cpu.capability":
        found += [(word, switches.cpu_capability.NAMES[word]) for word in legal_words()]
    return found


def start(name: str) -> Any:
    return {"num_threads": processors.usable_cores(), "cpu.capability": switches.cpu_capability.NAMES[legal_words()[-1]]}.get(name, SETTINGS[name].default)


# --- legal values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_the_default(name: str) -> None:
    assert read(name) == start(name) and type(read(name)) is type(start(name))
    assert SETTINGS[name].default != DETECTED or start(name) != DETECTED


@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_legal_value_round_trips(name: str, way: str) -> None:
    before = switches.current()
    for value, reading in legal(name):
        with switches.scope():
            scope = give(name, way, value)
            if scope is None:
                assert read(name) == reading and type(read(name)) is type(reading), value
            else:
                with scope as entered:
                    assert entered is scope and read(name) == reading and type(read(name)) is type(reading), value
        assert switches.current() is before
    value, reading = next((pair for pair in legal(name) if pair[1] != start(name)), legal(name)[0])
    scope = give(name, way, value)
    elsewhere = contextvars.Context().run(read, name)
    assert elsewhere == (reading if scope is None else start(name)), "outside of any scope the base is written, and by no scope"


def as_text(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "1" if value else "0"
    return ",".join(map(as_text, value)) if isinstance(value, (tuple, list)) else str(value)


def plain(name: str) -> list[tuple[Any, Any]]:
    """Those that can be written in a file or a variable."""
    return [(value, reading) for value, reading in legal(name) if not isinstance(value, (Enum, np.generic))]


def variable(name: str) -> str:
    return "BACKLINE_" + name.upper().replace(".", "_")


@pytest.mark.parametrize("name", SETTINGS)
def test_every_legal_value_comes_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, reading in plain(name):
        monkeypatch.setenv(variable(name), as_text(value))
        store._restart()
        assert read(name) == reading and type(read(name)) is type(reading), value
        if value != ():  # nothing at all in a variable is as if there were none
            kind = switches.origin(name).kind
            assert kind == "environment" or (kind, value) == ("default", False), "an allow_tf32 may find nothing to change"
    monkeypatch.delenv(variable(name))
    store._restart()
    assert read(name) == start(name)


def as_toml(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(as_toml, value))}]"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_legal_value_comes_from_a_file(name: str, tmp_path: Path) -> None:
    for value, reading in plain(name):
        (tmp_path / "backline.toml").write_text(f"{name} = {as_toml(value)}\n")
        store._restart()
        assert read(name) == reading and type(read(name)) is type(reading), value


# --- illegal ones --------------------------------------------------------------------------------------------------

NO_TYPE: dict[type, tuple[Any, ...]] = {
    bool: (1, 0, 1.0, "True", b"1", np.int64(1), object),
    int: (True, np.True_, 1.0, "1", (1,), object),
    float: (True, "1", (1.0,), object),
    str: (1, True, 1.5, b"none", ["none"], object),
    tuple: ("mkl", 1, ("mkl", 1), {"mkl"}, object),
}


def wrong_types(name: str) -> list[Any]:
    """None is one of them where it neither asks nor keeps."""
    setting = SETTINGS[name]
    given = [value for value in NO_TYPE[setting.kind] if not (name.endswith("precision_reduction") and value == (1,))]
    return given + ([1, "yes", (True, 1)] if name.endswith("precision_reduction") else [])


def wrong_values(name: str) -> list[Any]:
    setting, words = SETTINGS[name], words_of(name)
    found = list(setting.bad)
    if setting.least is not None:
        found += [setting.least - 1, -(2**70)]
    if setting.kind is str:
        found += ["", "nonsense", f"{words[0]} ", *([] if name == "float32_matmul_precision" else [words[0].upper()])]
    return found


def words_of(name: str) -> list[str]:
    setting = SETTINGS[name]
    if name == "cpu.capability":
        return list(legal_words())
    found = [value.name.lower() if isinstance(value, Enum) else value for value in setting.legal]
    return [*found, *(["default"] if "blas" in name else [])]


def legal_text(name: str) -> list[str]:
    """Returns what an error must say of the legal values."""
    setting = SETTINGS[name]
    if name.endswith("precision_reduction"):
        return ["True", "False", "(True, True)", "(False, True)", "(False, False)"]
    if setting.kind is bool:
        return ["True", "False"]
    if setting.least is not None:
        return [str(setting.least), "an integer" if setting.kind is int else "a number"]
    if name in ("prefer", "only"):
        return [repr(each) for each in switches.library_names()]
    if name == "sdp_priority":
        return ["'flash_attention'", "'efficient_attention'", "'math'", "'cudnn_attention'", "'overrideable'"]
    if setting.kind is tuple:
        return ["tuple"] if not setting.bad else ["texts", "1=100"]
    return [repr(word) for word in words_of(name)]


def check(name: str, way: str, value: Any, error: type[Exception]) -> None:
    before = switches.current()
    with pytest.raises(error) as caught:
        give(name, way, value)
    text = str(caught.value)
    one_device = name.replace("cache.max_size", "cache.device0.max_size")
    assert (name in text or one_device in text) and repr(value)[:60] in text, text
    for word in legal_text(name):
        assert word in text, text
    if error is BadType:
        assert type(value).__name__ in text
    assert not re.search(r"%[sdr]|\{\w*\}", text), "residue of a format"
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, TypeError if error is BadType else ValueError)
    assert switches.current() is before


@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_class_of_illegal_value_is_refused(name: str, way: str) -> None:
    for value in wrong_types(name):
        check(name, way, value, BadType)
    for value in wrong_values(name):
        check(name, way, value, BadValue)
    if way == "assignment" and not SETTINGS[name].query and "set_flags(" not in texts(name)[way]:
        check(name, way, None, BadType)
    else:
        before = switches.current()
        with give(name, way, None) or switches.scope():
            assert switches.current() is before, "None keeps, or asks"


UNREADABLE: dict[type, str] = {bool: "maybe", int: "many", float: "much", str: "nonsense", tuple: "nonsense"}


@pytest.mark.parametrize("name", [name for name in SETTINGS if SETTINGS[name].kind is not tuple or SETTINGS[name].bad])
def test_an_illegal_variable_warns_once_and_the_default_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = UNREADABLE[SETTINGS[name].kind]
    monkeypatch.setenv(variable(name), text)
    store._restart()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read(name) == read(name) == start(name)
    (message,) = [str(each.message) for each in caught]
    assert variable(name) in message and repr(text) in message and "ignored" in message
    for word in legal_text(name):
        assert word in message, message


def test_the_table_has_every_class() -> None:
    assert {setting.kind for setting in SETTINGS.values()} == {*NO_TYPE}
    assert all(setting.legal or setting.alike for setting in SETTINGS.values())
    assert isinstance(next(iter(SETTINGS.values())), Setting)
