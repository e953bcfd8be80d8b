"""Reader of a plug-in's TOML file, which is checked and never run.

Whatever is wrong with one file is said in one warning, with the key, the value and the legal values; what is wrong is left
out and the rest counts. Only a file without a usable ``library`` is refused as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from ..errors import BacklineError
from . import toml
from .legal import AtLeast, EachOf
from .switch import FAMILIES, Switch, Value, nearest, show

__all__ = ["DEVICES", "RESERVED", "Plugin", "Words", "enabled", "is_module", "is_reference", "line_of", "read"]

DEVICES = ("cpu", "cuda", "mps")
RESERVED = ("enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version")
"""Names that every backend module has: no switch of a plug-in may take them."""

_LARGEST = 1 << 16  # bytes; such a file is a page of text
_MOST = 100  # switches, and legal values of one
_LONGEST = 200  # characters of a text that tables print
_KINDS: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str, "tuple": tuple}
_NEUTRAL: Mapping[type, Value] = {int: 0, float: 0.0, str: "", tuple: ()}
_KEYS = ("title", "library", "families", "devices", "how_to_get", "backend", "switches")
_SWITCH_KEYS = ("name", "kind", "default", "legal", "minimum", "doc", "governs")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One library that another distribution brings along.

    Attributes
    ----------
    name
        Name of the library, of its backend module and of its switches.
    library
        Reference to its class: "package.module:Class".
    source
        The distribution and its version, for messages.
    file
        Path of its TOML file; empty where the entry point names the class itself, which then says the rest.
    title, how_to_get
        Texts for tables.
    backend
        Its backend module; empty where Backline makes one.
    families, devices
        Operations and devices it serves; None if only the class knows.
    switches
        Its switches, as far as they are known without its code: ``<name>.enabled`` at least.
    """

    name: str
    library: str
    source: str
    file: str = ""
    title: str = ""
    how_to_get: str = ""
    backend: str = ""
    families: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    switches: tuple[Switch, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """A function that returns the same words each time; two of the same words are equal."""

    words: tuple[str, ...]

    def __call__(self) -> tuple[str, ...]:
        return self.words


def is_module(text: object) -> bool:
    """Tells whether `text` is a dotted name of a module.

    >>> is_module("package.module"), is_module("package:module"), is_module("../package")
    (True, False, False)
    """
    return isinstance(text, str) and all(part.isidentifier() and not iskeyword(part) for part in text.split("."))


def is_reference(text: object) -> bool:
    """Tells whether `text` names a class: ``package.module:Class``."""
    if not isinstance(text, str):
        return False
    module, colon, name = text.partition(":")
    return bool(colon) and is_module(module) and name.isidentifier()


def line_of(text: str) -> str:
    """Returns text of any kind as one line of bounded length, for tables and messages."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _LONGEST]).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def read(path: str, name: str, source: str) -> tuple[Plugin | None, list[str]]:
    """Reads the file of plug-in `name` and returns its content, and one text for each fault in it."""
    faults: list[str] = []
    content = _content(path, faults)
    if content is None:
        return None, faults
    faults += _unknown(content, _KEYS, "")
    library = content.get("library")
    if not is_reference(library):
        faults.append(f'the file is ignored as a whole: library = {show(library)} must be written "package.module:Class"')
        return None, faults
    backend = content.get("backend", "")
    if backend != "" and not is_module(backend):
        faults.append(f'backend = {show(backend)} is ignored: it must be written "package.module"')
        backend = ""
    title = _text(content, "title", faults) or name
    families = _words(content, "families", FAMILIES, faults)
    return (
        Plugin(
            name,
            str(library),
            source,
            path,
            title,
            _text(content, "how_to_get", faults),
            backend,
            families,
            _words(content, "devices", DEVICES, faults),
            tuple(_switches(enabled(name, families or FAMILIES, title), content.get("switches", []), faults)),
        ),
        faults,
    )


def _content(path: str, faults: list[str]) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            faults.append(f"the file is ignored: it is larger than {_LARGEST} bytes")
            return None
        return toml.loads(data.decode("utf-8-sig"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 (byte {error.start})"
    except RecursionError:
        reason = "it is nested too deeply"
    except toml.LongKey as error:
        reason = str(error)
    except ValueError as error:  # of TOML, or of a number with thousands of digits
        reason = f"it is not TOML: {line_of(str(error))}"
    faults.append(f"the file is ignored as a whole: {reason}")
    return None


def _unknown(content: Mapping[str, Any], known: Iterable[str], where: str) -> list[str]:
    return [
        f"{where}{show(key)} = {show(value)} is ignored; the keys are, the nearest first: {', '.join(nearest(key, known))}"
        for key, value in content.items()
        if key not in known
    ]


def _text(content: Mapping[str, Any], key: str, faults: list[str], where: str = "") -> str:
    text = content.get(key, "")
    if isinstance(text, str) and text.isprintable() and len(text) <= _LONGEST:
        return text
    faults.append(f"{where}{key} = {show(text)} is ignored: a line of at most {_LONGEST} printable characters is wanted")
    return ""


def _words(
    content: Mapping[str, Any], key: str, legal: tuple[str, ...], faults: list[str], where: str = ""
) -> tuple[str, ...] | None:
    """Returns the legal ones among the words of a list; None if there are none."""
    if key not in content:
        return None
    value = content[key]
    items = value if isinstance(value, list) else [value]
    wrong = [item for item in items if item not in legal] if isinstance(value, list) else items
    if wrong or not items:
        near = nearest(str(wrong[0]), legal) if wrong and isinstance(wrong[0], str) else legal
        what = f"{show(wrong[0])} in {where}{key}" if isinstance(value, list) and wrong else f"{where}{key} = {show(value)}"
        faults.append(f"{what} is ignored: a list is wanted of {', '.join(map(repr, near))}")
    return tuple(dict.fromkeys(item for item in items if item not in wrong)) or None


def _switches(first: Switch, tables: object, faults: list[str]) -> list[Switch]:
    """Returns the switches that the tables declare, after the `first`, which is declared anyway."""
    switches = [first]
    if not isinstance(tables, list):
        faults.append(f"switches = {show(tables)} is ignored: each switch is a table of its own, [[switches]]")
        return switches
    if len(tables) > _MOST:
        faults.append(f"{len(tables)} switches: all after the first {_MOST} are ignored")
    variables: set[str] = {first.env}
    for number, table in enumerate(tables[:_MOST], 1):
        where = f"switches, number {number}: "
        if not isinstance(table, dict):
            faults.append(f"{where}{show(table)} is ignored: a table is wanted, [[switches]]")
            continue
        switch = _switch(first.backend, table, first.governs, where, faults)
        if switch is not None and switch.env in variables:
            faults.append(f"{where}it is ignored: {switch.name} (environment {switch.env}) is declared above")
        elif switch is not None:
            variables.add(switch.env)
            switches.append(switch)
    return switches


def enabled(plugin: str, families: tuple[str, ...] = FAMILIES, title: str = "") -> Switch:
    """Returns the switch that every library has."""
    doc = f"{title or plugin}, a plug-in, may run calls."
    return Switch(f"{plugin}.enabled", bool, True, None, doc, families, library=plugin)


def _switch(plugin: str, table: Mapping[str, Any], families: tuple[str, ...], where: str, faults: list[str]) -> Switch | None:
    """Returns one switch; None, and the reason among the faults, if anything that matters is wrong."""
    name = table.get("name")
    short = name.removeprefix(f"{plugin}.") if isinstance(name, str) else ""
    if not short.isidentifier() or iskeyword(short) or short != short.lower() or not short.isascii() or short[0] == "_":
        faults.append(f"{where}it is ignored: name = {show(name)} is no lower-case identifier")
        return None
    if short in RESERVED:
        faults.append(f"{where}it is ignored: every backend has the name {show(short)} already")
        return None
    where = f"switch {plugin}.{short}: "
    faults += _unknown(table, _SWITCH_KEYS, where)
    word = table.get("kind")
    kind = _KINDS.get(word) if isinstance(word, str) else None
    if kind is None:
        near = ", ".join(map(repr, nearest(str(word), _KINDS)))
        faults.append(f"{where}it is ignored: kind = {show(word)}; legal values, the nearest first: {near}")
        return None
    doc = _text(table, "doc", faults, where)
    governs = _words(table, "governs", FAMILIES, faults, where) or families
    if "default" not in table:
        faults.append(f"{where}it is ignored: it has no default")
        return None
    default = table["default"]
    if isinstance(default, float) and math.isnan(default):
        faults.append(f"{where}it is ignored: default = nan is equal to nothing")
        return None
    if isinstance(default, list):
        default = tuple(default)
    key = "legal: "
    try:
        legal = _legal(f"{plugin}.{short}", kind, table)
        key = "default: "
        return Switch(f"{plugin}.{short}", kind, default, legal, doc, governs)
    except BacklineError as error:
        hint = f"; {error.remedy}" if error.remedy else ""
        faults.append(f"{where}it is ignored: {key if doc else ''}{error.message}{hint}")
    except _Wrong as error:
        faults.append(f"{where}it is ignored: {error}")
    return None


class _Wrong(Exception):
    """The legal values of a switch are wrong."""


def _legal(name: str, kind: type, table: Mapping[str, Any]) -> tuple[Value, ...] | AtLeast | EachOf | None:
    if "legal" in table and "minimum" in table:
        raise _Wrong("it has both legal and minimum; one of them is wanted")
    if "minimum" in table:
        low = table["minimum"]
        if kind not in (int, float) or isinstance(low, bool) or not isinstance(low, (int, kind)) or low != low:
            raise _Wrong(f"minimum = {show(low)} is wanted as a number, and for the kinds 'int' and 'float' only")
        return AtLeast(low)
    if "legal" not in table:
        return None
    values = table["legal"]
    if kind is bool:
        raise _Wrong("legal is for the other kinds; a bool is always True or False")
    if not isinstance(values, list) or not 0 < len(values) <= _MOST:
        raise _Wrong(f"legal = {show(values)} is wanted as a list of 1 to {_MOST} values")
    if kind is tuple:
        if not all(isinstance(item, str) for item in values):
            raise _Wrong(f"legal = {show(values)} is wanted as the names that may be in the tuple")
        return EachOf(Words(tuple(values)), "a tuple of the names")
    plain = Switch(name, kind, _NEUTRAL[kind], doc="Any value of the kind.")
    return tuple(plain.check(item) for item in values)
