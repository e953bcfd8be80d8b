"""``backline switches``: every switch with its value, where that comes from, and what it governs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import show

__all__ = ["switches"]


def switches(
    name: Annotated[str | None, typer.Argument(help="One switch, or a backend such as mkl.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the switches: name, value, where it came from, what it governs."""
    from .. import switches as store
    from ..switches.declared import lookup

    declared = store.declared()
    chosen = list(declared)
    if name is not None:
        chosen = [n for n in declared if n == name or n.startswith(f"{name}.")] or [lookup(name).name]
    rows = [_content(declared[n]) for n in chosen]
    if json:
        show.as_json(rows)
    elif name is not None and len(rows) == 1:
        row = rows[0]
        labels = ("name", "value", "origin", "governs", "legal", "default", "environment", "when", "doc")
        show.table([(label, _text(row[label])) for label in labels])
    else:
        cells = [(r["name"], repr(r["value"]), r["origin"], ", ".join(r["governs"])) for r in rows]
        changed = ["" if r["kind"] == "default" else "cyan" for r in rows]
        show.table(cells, ("name", "value", "from", "governs"), styles=changed)


def _content(switch: Any) -> dict[str, Any]:
    from .. import switches as store

    origin = store.origin(switch.name)
    default, why = switch.starting()
    return {
        "name": switch.name,
        "value": store.get(switch.name),
        "kind": origin.kind,
        "origin": "default" if origin.kind == "default" else str(origin),
        "governs": list(switch.governs),
        "legal": switch.legal_text() or f"any {switch.kind.__name__}",
        "default": default if why == "declaration" else f"{default} ({why})",
        "environment": switch.env,
        "when": {"call": "read at every call", "load": "read when the library is loaded"}[switch.when],
        "doc": switch.doc,
    }


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
