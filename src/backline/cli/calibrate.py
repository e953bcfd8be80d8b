"""``backline calibrate``: measure this machine, so that choices for untuned shapes are its own."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from . import output
from .progress import Progress

__all__ = ["calibrate"]

NAMES = {
    "products": "matrix products", "halves": "16-bit products and layers", "algebra": "linear algebra", "layers": "layers",
    "transforms": "Fourier transforms",
}  # fmt: skip


def calibrate(
    seconds: Annotated[float, typer.Option(help="Seconds to measure for.", min=1.0)] = 60.0,
    threads: Annotated[int | None, typer.Option(help="Threads a call may use.", min=1)] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what was measured already, too.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure this machine's libraries on shapes of all kinds, in a minute, and keep the times for every later program.

    Run it where nothing else runs. It goes on where it ended: a second minute measures more shapes, more --seconds larger ones.
    """
    from .. import switches
    from ..engine import calibration as engine
    from ..engine import machine_peak
    from ..engine.tuning import record_store

    with Progress() as progress, switches.scope({} if threads is None else {"num_threads": threads}):
        done = engine.calibrate(seconds, again=again, progress=progress.measured)
        peak = machine_peak.measure(progress.step, again=again)
    content = _content(done, record_store.path()) | {"peak": peak.as_dict()}
    if json:
        output.as_json(content)
    else:
        _print(content)


def _content(done: Any, path: str) -> dict[str, Any]:
    parts = []
    for part, records in done.records.items():
        gains = list(done.gains.get(part, {}).values())
        parts.append(
            {
                "part": part,
                "problems": len(records),
                "better": sum(gain > 1.05 for gain in gains),
                "gain": math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 1.0,
            }
        )
    return {
        "parts": parts, "measured": done.measured, "known": done.known, "left": done.left, "repeated": done.repeated,
        "disturbed": [r.disturbed for r in done.disturbed], "seconds": round(done.spent, 1), "file": path,
    }  # fmt: skip


def _print(content: dict[str, Any]) -> None:
    rows = [(NAMES[p["part"]], str(p["problems"]), str(p["better"]), f"{p['gain']:.2f}x") for p in content["parts"]]
    output.heading("measured")
    output.table(rows, ("shapes of", "problems", "another choice is faster", "on average"), right=[1, 2, 3], indent=2, title=True)
    facts = [("time", f"{content['measured']} problems in {content['seconds']:.0f} s")]
    if content["known"]:
        facts.append(("known", f"{content['known']} measured before; --again measures them anew"))
    if content["left"]:
        facts.append(("left", f"{content['left']} for which there was no time; the next run goes on with them"))
    if content["repeated"]:
        facts.append(("repeated", f"{content['repeated']} whose times made no sense beside others"))
    if content["disturbed"]:
        busy = f"{len(content['disturbed'])} timed on a busy machine, the last while {content['disturbed'][-1]}"
        facts.append(("busy", f"{busy}; they do not count, and the next run measures them again"))
    rates = ", ".join(f"{unit} {rate:.0f}" for unit, rate in (content["peak"]["gflops"] or {}).items())
    if rates:
        facts.append(("peak", f"{rates} GFLOP/s, memory {content['peak']['gigabytes'] or 0:.0f} GB/s"))
    facts.append(("kept in", content["file"] or "no file: it held for this run only"))
    output.table(facts, indent=2)
