"""Search for plug-ins among the installed distributions, and the reasons why some are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword

from ..errors import BacklineError
from ..switches.switch import show
from ..switches.switch_registry import all_switches, register
from . import registry
from .registry import LibraryInfo

__all__ = ["GROUP", "Plugin", "is_reference", "line_of", "remedy", "search", "words_of"]

GROUP = "backline.libraries"
VARIABLE = "BACKLINE_PLUGINS"

_LONGEST = 200  # characters of a text that tables print

# Names in the root of the backends that are no switches, nor modules with switches.
_NO_SWITCHES = (
    "annotations", "disable_global_flags", "effective_precision", "flags", "flags_frozen", "set_flags", "xeon",
)  # fmt: skip


class Plugin:
    """A library that another distribution brings along.

    Attributes
    ----------
    name
        Name of the entry point: of the library, of its module in `backends` and of its switches.
    reference
        Value of the entry point, "package.module:ROW".
    source
        The distribution and its version, for messages.
    row
        Its row; until its module is imported, and where it cannot be used, one that has the name only.
    fault
        Why it cannot be used, with the remedy; empty otherwise.
    is_read
        Whether its row was read, in vain or not.
    """

    def __init__(self, name: str, reference: str, source: str) -> None:
        self.name, self.reference, self.source = name, reference, source
        self.row = LibraryInfo(name, implementation=reference, install=remedy(source))
        self.fault = ""
        self.is_read = False

    @property
    def who(self) -> str:
        """The plug-in in words."""
        return f"plug-in {self.name} of {self.source}"


def search() -> tuple[dict[str, Plugin], list[str]]:
    """Finds every plug-in, adds its row to the registry and declares the switch that allows it; imports nothing.

    Returns
    -------
    tuple
        The plug-ins by name, and one text for each fault.
    """
    accepted: dict[str, Plugin] = {}
    unsaid: list[str] = []
    if not _wanted(unsaid):
        return accepted, unsaid
    try:
        points = sorted(_entry_points(unsaid))
    except Exception as error:  # of a finder that another package installed
        unsaid.append(f"backline: plug-ins cannot be looked for ({words_of(error)}); set {VARIABLE}=0 to do without")
        points = []
    for name, value, source in points:
        fault = _refusal(name, accepted)
        if not fault:
            plugin = Plugin(name, re.sub(r"\s*\[.*\]\s*\Z", "", value).replace(" ", ""), source)
            try:
                register(registry.enabling_switch(plugin.row))
                registry.add(plugin.row)
                accepted[name] = plugin
            except BacklineError as error:  # its environment variable is another switch's
                fault = f"{error.message} {error.cause}"
        if fault:
            unsaid.append(f"backline: plug-in {line_of(name)} of {source} is refused: {fault}; {remedy(source)}")
    return accepted, unsaid


def _wanted(unsaid: list[str]) -> bool:
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word not in ("", "1", "true", "on", "yes", "0", "false", "off", "no"):
        legal = "legal values: 1, 0; plug-ins are found by the entry points of installed packages"
        unsaid.append(f"backline: {VARIABLE} = {show(word)} is ignored; {legal}")
    return word not in ("0", "false", "off", "no")


def _entry_points(unsaid: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yields name, value and distribution of each entry point of the group."""
    from importlib import metadata

    for distribution in metadata.distributions():
        try:
            text = distribution.read_text("entry_points.txt")
            if not text or GROUP not in text:
                continue
            if "Name" not in distribution.metadata:
                raise ValueError("it has no name")
            name = distribution.metadata["Name"]
            if metadata.distribution(name).read_text("entry_points.txt") != text:
                continue  # another version of it comes first on the path: that is the one which would be imported
            source = line_of(f"{name} {distribution.version or '?'}")
            points = [(p.name, p.value, source) for p in distribution.entry_points if p.group == GROUP]
        except Exception as error:  # metadata of another package, damaged in any way
            where = line_of(str(getattr(distribution, "_path", "of an unknown path")))
            unsaid.append(
                f"backline: the distribution {where} is ignored when looking for plug-ins: its metadata cannot be read "
                f"({words_of(error)}); install it anew, or set {VARIABLE}=0"
            )
            continue
        yield from dict.fromkeys(points)


def _refusal(name: str, accepted: Mapping[str, Plugin]) -> str:
    """Returns the reason why no plug-in may have this name, or an empty string."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or iskeyword(name):
        return f"its name {show(name)} is no lower-case identifier of at most 40 characters"
    if name in accepted:
        return f"{accepted[name].source} brings a library of the same name"
    row = registry.find(name)
    if row is not None:
        return f"Backline has a library {row.name!r} (backends.{row.backend or row.name}), which a plug-in cannot replace"
    clashes = [switch for switch in all_switches() if switch == name or switch.startswith(f"{name}.")]
    if clashes:
        return f"there is a switch {clashes[0]} already, which a plug-in cannot replace"
    if name in _NO_SWITCHES:
        return f"backline.backends.{name} exists already"
    return ""


# --- texts -------------------------------------------------------------------------------------------------


def is_reference(text: object) -> bool:
    """Tells whether `text` names something in a module.

    >>> is_reference("package.module:Class"), is_reference("package.module"), is_reference("../package:Class")
    (True, False, False)
    """
    module, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    return bool(colon) and all(part.isidentifier() and not iskeyword(part) for part in (*module.split("."), name))


def line_of(text: str) -> str:
    """Returns text of any kind as one line of bounded length, for tables and messages."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _LONGEST]).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def words_of(error: BaseException) -> str:
    """Returns an error of another package's code as one line."""
    try:
        return line_of(f"{type(error).__name__}: {error}")
    except Exception:  # the __str__ of another package must not replace our own message
        return type(error).__name__


def remedy(source: str) -> str:
    """Returns the remedy for a plug-in of this distribution."""
    return f"fix or uninstall {source.rpartition(' ')[0]}, or set {VARIABLE}=0"
