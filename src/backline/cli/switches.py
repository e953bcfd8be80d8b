"""``backline switches``: every switch with its value, where that comes from, and what it governs; one in full; the pages."""

from __future__ import annotations

from textwrap import wrap
from typing import Annotated, Any

import typer

from . import output

__all__ = ["switches"]

CHANGED = "cyan"
WIDTH = 76  # of a cell with the names of operations
BESIDE = 40  # columns of a terminal that are left to what stands beside such a cell


def _completed(incomplete: str) -> list[str]:
    """The switches and backends whose names begin so."""
    from .. import switches as store

    return [name for name in _known(store.all_switches()) if name.startswith(incomplete)]


def _known(names: Any) -> list[str]:
    """Names of switches and of all that has switches."""
    parts = [name.split(".") for name in names]
    return list(dict.fromkeys(".".join(words[:n]) for words in parts for n in range(len(words), 0, -1)))


def switches(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A switch, or a backend such as mkldnn; with --docs or --status, the file to write.", autocompletion=_completed
        ),
    ] = None,
    docs: Annotated[bool, typer.Option("--docs", help="Write the reference page, to the file or here.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Write the page of what is not there yet.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the switches: value, where it came from, what it governs. With a NAME: all there is to know of one.

    With --json a list is an array of objects, one switch an object, and --status an array of what is missing.
    """
    from .. import libraries

    if docs or status:
        _write(name, docs, status, json)
        return
    libraries.ready()  # plug-ins declare theirs
    chosen = _named(name)
    if name is not None and len(chosen) == 1 and not (json and chosen[0].name != name):
        content = _in_full(chosen[0])
        output.as_json(content) if json else _print(content)
    elif json:
        output.as_json([_content(switch) for switch in chosen])
    else:
        _list([_content(switch) for switch in chosen])


def _named(name: str | None) -> list[Any]:
    """The switch of that name, or those of a backend; all without a name."""
    from .. import switches as store
    from ..errors import UnknownName
    from ..switches.switch import nearest

    every = store.all_switches()
    if name is None:
        return list(every.values())
    if name in every:
        return [every[name]]
    found = [switch for each, switch in every.items() if each.startswith(f"{name}.")]
    if not found:
        near = ", ".join(nearest(name, _known(every))[:5])
        raise UnknownName(f"there is no switch {name!r}, nor a backend of that name.", remedy=f"the nearest names: {near}")
    return found


# --- what is known -------------------------------------------------------------------------------------------


def _content(switch: Any) -> dict[str, Any]:
    """A row of the list."""
    from .. import switches as store
    from .docs import default_text, governs_text, legal_text, variables
    from .governed import waiting

    decides = _deciding(switch)
    origin = decides.origin
    is_default = origin.kind == "default"
    text = "default" if is_default and origin.where == "declaration" else str(origin)
    if decides.switch != switch.name and not is_default:
        text = f"{decides.switch}: {text}"
    return {
        "name": switch.name,
        "value": store.get(switch.name),
        "kind": origin.kind,
        "origin": text,
        "view of": list(switch.nodes) if isinstance(switch, store.DerivedSwitch) else [],
        "governs": list(switch.governs),
        "governs as text": governs_text(switch),
        "legal": legal_text(switch, here=True),
        "default": default_text(switch),
        "environment": variables(switch),
        "when": {"call": "at every call", "load": "when its library is loaded"}[switch.when],
        "doc": switch.doc,
        "waiting": waiting(switch),
    }


def _deciding(switch: Any) -> Any:
    """Returns the setting that decides a switch's value: its own, a node's above it, or one that it derives from."""
    from .. import switches as store

    return store.deciding(switch.name, lambda node: store.history(node)[0])


def _in_full(switch: Any) -> dict[str, Any]:
    """Everything about one switch. Libraries are loaded to be asked."""
    from .. import switches as store
    from .governed import governed, made_of

    content = _content(switch)
    decides = _deciding(switch)
    content["decides"] = decides.switch
    content["note"] = _note(switch, content["value"])
    content["said"] = [
        _said(each, holds=n == 0, decides=decides.switch) for node in _nodes(switch) for n, each in enumerate(store.history(node))
    ]
    content["operations"] = [
        {"family": each.family, "operations": list(each.operations), "libraries": list(each.libraries)}
        for each in ([] if content["waiting"] else governed(switch))
    ]
    content["made of these"] = {family: made_of(family) for family in ([] if content["waiting"] else switch.governs)}
    return content


def _note(switch: Any, value: Any) -> str:
    """Returns the reason that a switch's value is not what the setting that decides it says."""
    from .. import switches as store
    from ..switches.precision_tree import CUDA
    from .docs import value_text

    held = store.current()
    if switch.name in CUDA and held[_deciding(switch).switch] == "bf16":
        return "bf16 does not exist for float32 inputs on CUDA"
    if switch.name in store.declared() and value != held.resolved(switch.name):
        return f"stored: {value_text(switch, held[switch.name])}"
    return ""


def _said(said: Any, holds: bool, decides: str) -> dict[str, Any]:
    from .. import switches as store
    from .docs import value_text

    text = value_text(store.lookup(said.switch), said.value)
    return {
        "switch": said.switch, "value": text, "kind": said.origin.kind, "where": said.origin.where, "holds": holds,
        "decides": holds and said.switch == decides,
    }  # fmt: skip


def _nodes(switch: Any) -> list[str]:
    """Returns the places of a switch's value by precedence: its own, those above it; of a derived switch, its nodes'."""
    from .. import switches as store
    from ..switches.precision_tree import PARENT

    found: dict[str, None] = {}
    for node in switch.nodes if isinstance(switch, store.DerivedSwitch) else (switch.name,):
        at = node
        while at:
            found.pop(at, None)  # what several nodes have above them comes after all of them
            found[at] = None
            at = PARENT.get(at, "")
    return list(found)


# --- printing ------------------------------------------------------------------------------------------------


def _list(rows: list[dict[str, Any]]) -> None:
    cells = [
        (r["name"], repr(r["value"]), f"view, {r['origin']}" if r["view of"] else r["origin"], r["governs as text"]) for r in rows
    ]
    styles = [CHANGED if r["kind"] != "default" else "dim" if r["waiting"] else "" for r in rows]
    output.table(cells, ("name", "value", "from", "governs"), styles=styles)


def _print(content: dict[str, Any]) -> None:
    output.line(content["name"], "bold")
    output.line(f"  {content['doc']}")
    output.line()
    rows = [("reads", _reads(content))]
    if content["view of"]:
        rows.append(("view of", ", ".join(content["view of"])))
    own, *others = content["environment"]
    rows += [
        ("legal", content["legal"]),
        ("default", content["default"]),
        ("environment", own + (f", else {', '.join(others)}" if others else "")),
        ("read", content["when"]),
        ("governs", content["governs as text"]),
    ]
    if content["waiting"]:
        rows.append(("without effect", content["waiting"]))
    output.table(rows, indent=2)
    _chain(content)
    if not content["waiting"]:
        _operations(content)


def _reads(content: dict[str, Any]) -> str:
    """The value and what it comes from."""
    value, decides = content["value"], content["decides"]
    word = value if isinstance(value, str) else repr(value)
    place = next(s for s in content["said"] if s["decides"])
    where = place["kind"] + (f" ({place['where']})" if place["where"] != "declaration" else "")
    note = f" ({content['note']})" if content["note"] else ""
    return f"{word}{note}, from {decides}: {where}" if decides != content["name"] else f"{word}{note}, {where}"


def _chain(content: dict[str, Any]) -> None:
    output.heading("what was said, the strongest first")
    said = content["said"]
    several = len({s["switch"] for s in said}) > 1
    cells, styles = [], []
    for s in said:
        mark = "holds" if s["decides"] else "" if s["holds"] else "covered"
        where = s["kind"] if s["where"] == "declaration" else f"{s['kind']} ({s['where']})"
        cells.append((s["switch"] if several else "", s["value"], where, mark))
        styles.append(CHANGED if s["decides"] and s["kind"] != "default" else "dim" if mark == "covered" else "")
    output.table(cells, styles=styles, indent=2)


def _operations(content: dict[str, Any]) -> None:
    output.heading("operations")
    cells: list[tuple[str, str, str]] = []
    for family in content["governs"]:
        groups = [g for g in content["operations"] if g["family"] == family]
        for group in groups:
            having = ", ".join(group["libraries"]) or "no library here"
            cells += _wrapped(family, group["operations"], having)
        composed = content["made of these"].get(family, []) if groups else []
        cells += _wrapped(family, composed, "made of these") if composed else []
        if not groups:
            cells.append((family, "none in this build", ""))
    output.table([(f if n == 0 or cells[n - 1][0] != f else "", ops, who) for n, (f, ops, who) in enumerate(cells)], indent=2)


def _wrapped(family: str, operations: list[str], having: str) -> list[tuple[str, str, str]]:
    columns = min(max((output.width() or 2 * WIDTH) - BESIDE, BESIDE), WIDTH)
    lines = wrap(", ".join(operations), columns, break_long_words=False)
    return [(family, line, having if n == 0 else "") for n, line in enumerate(lines)]


# --- pages ---------------------------------------------------------------------------------------------------


def _write(file: str | None, docs: bool, status: bool, json: bool) -> None:
    import sys
    from dataclasses import asdict
    from pathlib import Path

    from ..errors import BadValue
    from . import docs as pages

    if docs and status:
        raise BadValue("--docs and --status are two pages", remedy="one at a time")
    if json:
        content = [asdict(each) for each in pages.pending()] if status else [_content(switch) for switch in pages.own()]
        output.as_json(content)
        return
    text = pages.page() if docs else pages.status()
    if file is None:
        sys.stdout.write(text)
        return
    Path(file).write_text(text, encoding="utf-8")
    output.line(f"wrote {file}")
