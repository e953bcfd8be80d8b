"""``backline info``: this machine, its libraries, what is in the process, and how they go together."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from . import cluster, other_process, output

__all__ = ["info"]


def info(
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.", metavar="[ARGS]...")] = None,
    process: Annotated[
        str,
        typer.Option(help="The maths libraries of another process: its number, or a script to run.", metavar="PID|SCRIPT"),
    ] = "",
    scheduler: Annotated[
        str, typer.Option(help="The libraries of every worker of a Dask cluster, and what differs.", metavar="ADDRESS")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the machine, the libraries with version and path or why not, thread runtimes, conflicts, the tuning file."""
    if scheduler:
        if process or arguments:
            raise typer.BadParameter("--scheduler shows the workers of a cluster: it goes with no --process and no arguments")
        cluster.info(scheduler, json=json)
        return
    if process:
        content = other_process.gather(process, arguments or [])
        if json:
            output.as_json(content)
            return
        output.line(f"{content['what']}, {content['executable']}", "bold")
        _mapped(content["mapped"], content["what"])
        _conflicts(content["conflicts"])
        return
    if arguments:
        raise typer.BadParameter(f"{' '.join(arguments)}: there is no script to run with it; --process SCRIPT names one")
    content = gather()
    if json:
        output.as_json(content)
        return
    _machine(content)
    _switches(content["switches"])
    _libraries(content["libraries"])
    if content["plug-ins"]:
        output.heading("plug-ins that cannot be used")
        for text in content["plug-ins"]:
            output.line(f"  {text}", output.STYLES["missing"])
    _mapped(content["mapped"], "this process")
    _conflicts(content["conflicts"])
    _tuning(content["tuning"])


def gather() -> dict[str, Any]:
    """Returns everything that is shown. Libraries are loaded for it."""
    import numpy

    import backline

    from .. import libraries
    from ..engine import ranking
    from ..engine.tuning import record_store
    from ..libraries import errata, in_process, plugins, presence
    from ..native.machine import fingerprint, machine

    here = machine()
    reports = [library.report() for library in libraries.all_libraries()]
    for report, library in zip(reports, libraries.all_libraries(), strict=True):
        report["errata"] = [row.id for row in errata.applying(library)] if report["available"] else []
        report["how to get"] = presence.driving(library.name)[1] or library.how_to_get
    mapped = in_process.loaded()
    return {
        "backline": backline.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "numpy": numpy.__version__,
        "threads": backline.get_num_threads(),
        "machine": asdict(here) | {"fingerprint": fingerprint(), "cpu": {"model": here.cpu.model, "vendor": here.cpu.vendor}},
        "libraries": reports,
        "plug-ins": [text.removeprefix("backline: ") for text in plugins.faults()],
        "mapped": other_process.described(mapped, os.environ),
        "conflicts": other_process.conflicts_of(mapped),
        "switches": _set_switches(),
        "ranking": ranking.report(),
        "tuning": record_store.report(),
    }  # fmt: skip


def _machine(content: dict[str, Any]) -> None:
    here = content["machine"]
    cores = f"{here['physical_cores']} cores, {len(here['usable_cpus'])} processors usable"
    if here["quota"] is not None:
        cores += f", a quota of {here['quota']:g}"
    output.line("machine", "bold")
    output.table(
        [
            ("processor", f"{here['cpu']['model'] or here['architecture']} ({here['capability']}), {cores}"),
            ("caches", f"L2 {output.size(here['l2'])}, L3 {output.size(here['l3'])}; memory {output.size(here['memory'])}"),
            ("system", ", ".join(filter(None, (here["system"], here["libc"], here["architecture"])))),
            ("python", f"{content['python']}, NumPy {content['numpy']}, backline {content['backline']}"),
            ("threads", f"{content['threads']} for one call"),
            ("known as", here["fingerprint"]),
            ("untuned", _ranking(content["ranking"])),
        ],
        indent=2,
    )


def _ranking(found: dict[str, Any]) -> str:
    same = found["class"] == found["shipped for"]
    nearest = "" if same else f", the nearest there is; this is {found['class']}"
    on = f"{found['measured on']}, {found['cores']} cores"
    count = found["measured here"]
    here = f"{count} problems measured here" if count else "`backline calibrate` measures this machine in a minute"
    if found["measured on a busy machine"]:
        here += f", {found['measured on a busy machine']} others were measured beside other programs and do not count"
    return f"choices by the ranking of {found['shipped for']}, measured on {on}{nearest}; {here}"


def _libraries(reports: list[dict[str, Any]]) -> None:
    output.heading("libraries")
    missing: dict[tuple[str, str], list[str]] = {}
    for r in reports:
        if not r["available"]:
            missing.setdefault((" ".join(r["reason"].split()), r.get("how to get") or ""), []).append(r["name"])
    rows, styles = [], []
    for r in reports:
        if r["available"]:
            facts = [r.get("integers", ""), f"threads: {r['pool']}" if r.get("pool") else "", r.get("found by", "")]
            count = len(r["errata"])
            facts.append(f"{count} errat{'um' if count == 1 else 'a'} (`backline check errata`)" if count else "")
            said = "; ".join(filter(None, facts)) or "part of backline"
            rows.append((r["name"], r["version"] or "", r.get("path") or "", said))
            styles.append("")
    together = []
    for (reason, how), names in missing.items():
        get = f"to get it: {how}" if how and how not in reason else ""
        if len(names) == 1:
            rows.append((names[0], "missing", reason, get))
            styles.append(output.STYLES["missing"])
        else:  # one cause, one line: all that is NVIDIA's where there is no CUDA
            together.append(f"  missing: {', '.join(names)}: " + "; ".join(filter(None, (reason, get.replace(" it:", " them:")))))
    output.table(rows, styles=styles, indent=2)
    for text in together:
        output.line(text, output.STYLES["missing"])


def _set_switches() -> list[dict[str, Any]]:
    """Returns the switches that something sets, with the origin of each value."""
    from .. import switches

    said = [switches.history(name)[0] for name in switches.declared()]
    return [
        {"name": each.switch, "value": each.value, "kind": each.origin.kind, "where": each.origin.where}
        for each in said
        if each.origin.kind != "default"
    ]


def _switches(rows: list[dict[str, Any]]) -> None:
    output.heading("switches that are set")
    output.table([(r["name"], repr(r["value"]), f"{r['kind']} ({r['where']})") for r in rows], indent=2)
    if not rows:
        output.line("  none")


def _threads(count: int | None) -> str:
    return "" if count is None else f"{count} thread{'' if count == 1 else 's'}"


def _mapped(mapped: list[dict[str, Any]], where: str) -> None:
    runtimes = [m for m in mapped if m["kind"] in ("openmp", "threads")]
    others = [m for m in mapped if m["kind"] not in ("openmp", "threads") and "." not in m["family"]]
    for title, found in ((f"thread runtimes in {where}", runtimes), (f"maths libraries in {where}", others)):
        output.heading(title)
        rows = [
            (
                m["family"], m["version"], " ".join(filter(None, (m["owner"], m["release"]))),
                _threads(m["threads"]),
                m["path"], "; ".join(filter(None, (m["scope"], "serves OpenMP" if m["serves_openmp"] else ""))),
            )
            for m in found
        ]  # fmt: skip
        output.table(rows, indent=2)
        if not rows:
            output.line("  none")


def _conflicts(conflicts: list[dict[str, Any]]) -> None:
    output.heading("conflicts")
    if not conflicts:
        output.line("  none")
    for c in conflicts:
        output.line(f"  {c['severity']}: {c['kind']}", output.STYLES.get(c["severity"], ""))
        output.table([("means", c["meaning"]), ("remedy", c["remedy"]), *(("file", f) for f in c["files"])], indent=4)


def _tuning(tuning: dict[str, Any]) -> None:
    output.heading("tuning")
    if not tuning["path"]:
        rows = [("file", "none is kept (BACKLINE_TUNING is empty)")]
    else:
        rows = [("file", tuning["path"] + ("" if tuning["exists"] else " (not there yet: `backline tune SCRIPT` writes it)"))]
    newest = f", the newest of {tuning['newest'][:10]}" if tuning["newest"] else ""
    rows.append(("records", f"{tuning['records']} for this machine{newest}"))
    if tuning["other_machines"]:
        rows.append(("", f"{tuning['other_machines']} of other machines"))
    if tuning["problem"]:
        rows.append(("not used", tuning["problem"]))
    if tuning["project"]:
        said = tuning["project_problem"] or f"{tuning['project_records']} records for this class of processors"
        rows.append(("project", f"{tuning['project']}: {said}"))
    for name, why in list(tuning["dropped"].items())[:5]:
        rows.append(("left out", f"{name}: {why}"))
    if len(tuning["dropped"]) > 5:
        rows.append(("", f"and {len(tuning['dropped']) - 5} more (--json shows all)"))
    output.table(rows, indent=2)
