"""Values from outside the program: the user's file, the project's file, and the environment.

Configuration is data. It is checked and never run. All faults of one file are reported at once, with the file, the
line where it can be told, the key, the value and the legal values: in an error for the project's file, in a warning for
the user's, which no program is to blame for, and for the environment. A value that is wrong is left out and the others
count; a file that cannot be read as TOML is left out as a whole.

| source | where | keys |
|---|---|---|
| user file | BACKLINE_CONFIG, else ``config.toml`` in the user's configuration folder | at the top |
| project file | ``backline.toml``, or ``pyproject.toml``, in the working directory or above it | at the top; in ``[tool.backline]`` |
| environment | BACKLINE_ and the switch's name in capitals, dots as underscores | |

A file writes ``fallback = "warn"`` for a switch of the root and ``[mkl]`` ``enabled = false`` (or
``mkl.enabled = false``) for one of a library.
"""  # noqa: E501  # a table

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..errors import BacklineError, BadValue
from . import toml
from .provenance import steps_out
from .switch import Switch, Value, nearest, show
from .switch_registry import find_more

__all__ = ["Source", "read_sources", "refuse", "unknown_keys", "warn_about"]

_LARGEST = 1 << 20  # bytes; a configuration is a page of text, and anything larger is a mistake
_LONGEST_LINE = 400  # characters that are looked at for the line of a key
_MOST_UNKNOWN = 20  # unknown keys of a file that are named one by one
# Keys of project files that are no switches: `engine.tuning.project_records` reads it.
_OTHER_KEYS = {"project file": frozenset({"tuning"})}


@dataclass(slots=True)
class Source:
    """Values from one file, or from the environment.

    Attributes
    ----------
    kind
        "user file", "project file" or "environment".
    label
        The file's path, or "the environment".
    values
        By switch: the value, and where it stands.
    raw
        By key: what stands there, unread, for switches that a plug-in declares later.
    faults
        One text for each thing that is wrong.
    """

    kind: str
    label: str
    values: dict[str, tuple[Value, str]] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def take(self, switch: Switch) -> list[str]:
        """Reads the value of `switch` from `raw`, if there is one, and returns the faults in it."""
        key = switch.env if self.kind == "environment" else switch.name
        if key not in self.raw:
            return self._take_other(switch) if self.kind == "environment" else []
        text = self.raw[key]
        try:
            if self.kind != "environment":
                self.values[switch.name] = switch.check(text), f"{self.label}:{key}"
            elif text.strip() or switch.kind is tuple:  # an empty variable counts as unset
                self.values[switch.name] = switch.parse(text), key
        except BacklineError:
            legal = switch.legal_text(text)
            return [f"{self.at(key)}{key} = {show(text)} is ignored; legal values: {legal}"]
        return []

    def _take_other(self, switch: Switch) -> list[str]:
        """Reads the variables that other programs have for the same."""
        faults = []
        for key, words in switch.variables.items():
            text = self.raw.get(key, "").strip()
            if not text:
                continue
            try:
                value = switch.parse(text) if words is None else switch.check(words[text])
                self.values[switch.name] = value, f"{key}={text}"
                break
            except (BacklineError, KeyError):
                legal = switch.legal_text(text) if words is None else ", ".join(words)
                faults.append(f"{key} = {show(text)} is ignored; legal values: {legal}")
        return faults

    def at(self, key: str) -> str:
        """Returns the line of `key` as text, if it is known."""
        return f"line {self.lines[key]}: " if key in self.lines else ""


def read_sources(switches: Mapping[str, Switch]) -> list[Source]:
    """Reads both files and the environment, the weakest first. `Source.take` then finds the values of switches in them."""
    sources = (_user_file(), _project_file(), _environment(switches))
    return [source for source in sources if source is not None]


def warn_about(source: Source, faults: list[str]) -> None:
    """Issues one warning that lists `faults` of a source; none if there are none."""
    if faults:
        import warnings

        label = source.label if source.kind == "environment" else f"{source.kind} {source.label}"
        text = f"backline, {label}: " + "; ".join(faults)
        warnings.warn(text, RuntimeWarning, stacklevel=steps_out())


def refuse(source: Source) -> None:
    """Raises one `BadValue` that lists what is wrong with `source`, if anything is."""
    if source.faults:
        raise BadValue(
            f"{source.kind} {source.label}: " + "; ".join(source.faults),
            cause="the values named are left out; the others hold, and this is said once",
            remedy="fix the file",
        )


# --- files ---------------------------------------------------------------------------------------------


def _user_file() -> Source | None:
    named = os.environ.get("BACKLINE_CONFIG")
    if named is not None:
        if not named.strip():
            return None  # BACKLINE_CONFIG= switches the user's file off
        path = os.path.abspath(os.path.expanduser(named.strip()))
        if not os.path.isfile(path):
            return Source("user file", path, faults=["BACKLINE_CONFIG names it, but there is no such file"])
        return _read(path, "user file")
    from platformdirs import user_config_dir

    path = os.path.join(user_config_dir("backline", appauthor=False), "config.toml")
    return _read(path, "user file") if os.path.isfile(path) else None


def _project_file() -> Source | None:
    try:
        folder = os.getcwd()
    except OSError:
        return None  # the working directory was removed
    while True:
        path = os.path.join(folder, "backline.toml")
        if os.path.isfile(path):
            return _read(path, "project file")
        path = os.path.join(folder, "pyproject.toml")
        if os.path.isfile(path):
            source = _read(path, "project file", ("tool", "backline"))
            if source is not None:
                return source
        above = os.path.dirname(folder)
        if above == folder or os.path.exists(os.path.join(folder, ".git")):
            return None
        folder = above


def _read(path: str, kind: str, table: tuple[str, ...] = ()) -> Source | None:
    """Reads one TOML file; None if it has no such `table`, that is if it has nothing for Backline."""
    source = Source(kind, path)
    text = ""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            source.faults.append(f"the file is ignored: it is larger than {_LARGEST} bytes")
            return source if not table else None
        text = data.decode("utf-8-sig")
        content: Any = toml.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # tomllib raises plain ones for numbers beyond all bounds
        if table and not re.search(r"^\s*\[\s*tool\s*\.\s*backline\b", text, re.MULTILINE):
            return None  # a broken file that has no table for Backline is not reported
        source.faults.append(f"the file is ignored as a whole: {_reason(error)}")
        return source
    for part in table:
        content = content.get(part) if isinstance(content, dict) else None
    if content is None:
        return None
    if not isinstance(content, dict):
        source.faults.append(f"{'.'.join(table)} is ignored: it is no table")
        return source
    source.raw = dict(_flatten(content))
    source.lines = _line_numbers(text, table)
    return source


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start})"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, toml.LongKey):
        return str(error)
    return f"it is not TOML: {error}"


def _flatten(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields dotted keys and their values. Tables deeper than any switch's stay values: they are reported like unknown keys."""
    todo = [("", 1, content)]
    while todo:
        prefix, depth, table = todo.pop()
        for key, value in table.items():
            if isinstance(value, dict) and value and depth < toml.MOST_PARTS:
                todo.append((f"{prefix}{key}.", depth + 1, value))
            else:
                yield f"{prefix}{key}", value


def _line_numbers(text: str, table: tuple[str, ...]) -> dict[str, int]:
    """Returns the lines of the keys, as far as a plain look at the text tells; the parser does not say."""
    lines: dict[str, int] = {}
    prefix = ""
    skip = ".".join(table) + "." if table else ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole[:_LONGEST_LINE]
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(#.*)?$", line)
        key = re.match(r"\s*([A-Za-z0-9_.\-\"' ]+?)\s*=", line)
        if header:
            prefix = _plain(header[1]) + "."
            name = prefix[:-1]
        elif key:
            name = prefix + _plain(key[1])
        else:
            continue
        if name.startswith(skip):
            lines.setdefault(name[len(skip) :], number)
    return lines


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def unknown_keys(source: Source, switches: Mapping[str, Switch]) -> list[str]:
    """Returns a text for each key of a file that is no switch. Called without the lock: it may find plug-ins."""
    if source.kind == "environment" or all(key in switches for key in source.raw):
        return []
    other = _OTHER_KEYS.get(source.kind, ())
    unknown = [key for key in source.raw if key not in switches and key not in other and not find_more(key)]
    faults = []
    for key in unknown[:_MOST_UNKNOWN]:
        near = ", ".join(nearest(key, switches)[:3])
        faults.append(f"{source.at(key)}{show(key)} = {show(source.raw[key])} is no switch; the nearest names: {near}")
    if len(unknown) > _MOST_UNKNOWN:
        faults.append(f"{len(unknown) - _MOST_UNKNOWN} more keys are no switches")
    return faults


# --- the environment -----------------------------------------------------------------------------------


def _environment(switches: Mapping[str, Switch]) -> Source | None:
    others = {name for switch in switches.values() for name in switch.variables}
    variables = {name: value for name, value in os.environ.items() if name.startswith("BACKLINE_") or name in others}
    if not variables:
        return None
    source = Source("environment", "the environment", raw=variables)
    known = frozenset(switch.env for switch in switches.values())
    for name in variables:
        if name not in known and name not in others and (near := _likely_meant(name, known)):
            source.faults.append(f"{name} = {show(variables[name])} sets nothing; the nearest name: {near}")
    return source


@lru_cache(maxsize=64)  # it takes longer than all the rest of reading the environment
def _likely_meant(name: str, known: frozenset[str]) -> str:
    """Returns the variable that is nearly `name`, if any: others of ours and of other people begin like those of switches."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name[:100], known, 1, 0.9)), "")
