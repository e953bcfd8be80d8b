"""Search for plug-ins among the installed distributions, and the reasons why some are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword

from .plugin_file import Plugin, enabled, is_module, is_reference, line_of, read
from .switch import show
from .switch_registry import all_switches, known_libraries

__all__ = ["GROUP", "noted", "remedy", "search", "words_of"]

GROUP = "backline.libraries"
VARIABLE = "BACKLINE_PLUGINS"

# Names in the root of the backends that are no switches, nor modules with switches.
_NO_SWITCHES = (
    "annotations", "disable_global_flags", "effective_precision", "flags", "flags_frozen", "set_flags", "xeon",
)  # fmt: skip


def search() -> tuple[dict[str, Plugin], list[str]]:
    """Returns every plug-in that may be used, by name, and one text for each fault. Declares and imports nothing."""
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
        faults: list[str] = []
        refused = _refusal(name, accepted)
        plugin = None if refused else _read(name, value, source, faults)
        if plugin is not None:
            refused = _clashes(plugin, accepted, faults)
        if refused:
            faults = [f"the plug-in is refused: {refused}"]
        unsaid += noted(name, source, faults)
    return accepted, unsaid


def _wanted(unsaid: list[str]) -> bool:
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word not in ("", "1", "true", "on", "yes", "0", "false", "off", "no"):
        unsaid.append(f"backline: {VARIABLE} = {show(word)} is ignored; legal values: 1, 0")
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
    if name in known_libraries():
        return f"Backline has a library {name!r}, which a plug-in cannot replace"
    # A list first, here and below: another thread may declare a switch meanwhile.
    clashes = [switch for switch in list(all_switches()) if switch == name or switch.startswith(f"{name}.")]
    if clashes:
        return f"there is a switch {clashes[0]} already, which a plug-in cannot replace"
    if name in _NO_SWITCHES:
        return f"backline.backends.{name} exists already"
    return ""


def _read(name: str, value: str, source: str, faults: list[str]) -> Plugin | None:
    module, colon, what = re.sub(r"\s*\[.*\]\s*\Z", "", value).replace(" ", "").partition(":")
    if colon and is_module(module) and re.fullmatch(r"[\w-][\w.-]*\.toml", what):
        path = _path(module, what, faults)
        if not path:
            return None
        plugin, wrong = read(path, name, source)
        faults += [f"in {path}: {wrong[0]}", *wrong[1:]] if wrong else []
    elif is_reference(f"{module}{colon}{what}"):
        plugin = Plugin(name, f"{module}:{what}", source, title=name, switches=(enabled(name),))
    else:
        faults.append(f'its entry point {show(value)} is neither "package:file.toml" nor "package.module:Class"')
        return None
    return plugin


def _path(module: str, file: str, faults: list[str]) -> str:
    """Returns the path of a data file of a package; the package is found and not imported."""
    from importlib.util import find_spec

    top, *below = module.split(".")
    try:
        spec = find_spec(top)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    except Exception as error:  # finders of any kind may be installed
        faults.append(f"the package {top} cannot be looked for ({words_of(error)})")
        return ""
    for folder in folders:
        path = os.path.join(folder, *below, file)
        if os.path.isfile(path):
            return path
    faults.append(f"there is no file {file} in the package {module} (looked in {', '.join(folders) or 'no folder'})")
    return ""


def _clashes(plugin: Plugin, accepted: dict[str, Plugin], faults: list[str]) -> str:
    """Accepts a plug-in without those switches whose environment variable is another's; or returns why it is refused."""
    from dataclasses import replace

    declared = [*list(all_switches().values()), *(switch for other in accepted.values() for switch in other.switches)]
    variables = {switch.env: switch.name for switch in declared}
    clashing = [switch for switch in plugin.switches if switch.env in variables]
    for switch in clashing:
        reason = f"{switch.env}, the variable of {switch.name}, is that of {variables[switch.env]} already"
        if switch.library:
            return reason
        faults.append(f"switch {switch.name} is ignored: {reason}")
    accepted[plugin.name] = replace(plugin, switches=tuple(s for s in plugin.switches if s not in clashing))
    return ""


# --- what is wrong -----------------------------------------------------------------------------------------


def words_of(error: BaseException) -> str:
    """Returns an error of another package's code as one line."""
    try:
        return line_of(f"{type(error).__name__}: {error}")
    except Exception:  # the __str__ of another package must not replace our own message
        return type(error).__name__


def remedy(source: str) -> str:
    """Returns the remedy for a plug-in of this distribution."""
    return f"fix or uninstall {source.rpartition(' ')[0]}, or set {VARIABLE}=0"


def noted(name: str, source: str, faults: list[str]) -> list[str]:
    """Returns all that is wrong with one plug-in as one text for a warning; none if nothing is."""
    if not faults:
        return []
    shown = [*faults[:10], f"and {len(faults) - 10} more"] if len(faults) > 10 else faults
    return [f"backline, plug-in {line_of(name)} of {source}: {'; '.join(shown)}; {remedy(source)}"]
