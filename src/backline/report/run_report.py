"""Makes the report of a program: runs it recorded, then adds the machine, hashes of files, and what is measured or checked."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from .._version import __version__
from ..engine import machine_peak, ranking
from ..engine.script_runs import NothingToTune, check_module, check_script
from ..engine.verify_determinism import verify_script
from ..errors import BacklineError
from ..launch import instances
from ..launch.saved_report import KIND, SCHEMA, THREADS
from ..native.machine import fingerprint, machine

__all__ = ["report_of"]


def report_of(
    argv: Sequence[str], *, check_determinism: bool = False, step: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Runs a program and returns its report, as JSON takes it; ``status`` in it is the program's exit status.

    Parameters
    ----------
    argv
        The script's path and its arguments, or "-m", a module and its arguments.
    check_determinism
        Whether the script is run again, some times, and its operations are compared bit for bit.
    step
        Told what begins.

    Raises
    ------
    BadValue
        There is no such script or module.
    """
    check_script(argv)
    check_module(argv)
    started = datetime.now(UTC)
    code, content = _run(argv)
    status = code if code >= 0 else 128 - code  # as shells have it
    content["notes"] = [*_notes(code, content), *content.get("notes", [])]
    step("hashes of the libraries' files")
    for row in content["mapped"]:
        row["sha256"], row["bytes"] = _hash(row["path"])
    peak = machine_peak.measure(step)
    if not peak:
        content["notes"].append("The machine's peak could not be measured, so no rate is compared with it.")
    elif peak.disturbed:
        content["notes"].append(f"The machine's peak was measured while {peak.disturbed}.")
    here = machine()
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "created": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": list(argv),
        "folder": os.getcwd(),
        "status": status,
        "ending": instances.ending(code) if code else "",
        "backline": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "numpy": _numpy(),
        "fingerprint": fingerprint(),
        "machine": {
            "processor": here.cpu.model or here.architecture, "capability": here.capability, "cores": here.physical_cores,
            "usable": len(here.usable_cpus), "quota": here.quota, "l2": here.l2, "l3": here.l3, "memory": here.memory,
            "system": here.system, "libc": here.libc, "architecture": here.architecture,
        },
        "variables": {name: os.environ[name] for name in THREADS if os.environ.get(name)},
        "ranking": {key: value for key, value in ranking.report().items() if isinstance(value, (str, int, float))},
        "peak": asdict(peak) | {"gflops": dict(peak.gflops), "by": dict(peak.by)},
        "determinism": _checked(argv, step) if check_determinism else None,
        **content,
    }  # fmt: skip


_NOTHING: dict[str, Any] = {
    "seconds": 0.0, "complete": False, "error": "", "disturbed": "", "processes": 0, "notes": [], "exchanged": [], "mapped": [],
    "conflicts": [], "switches": [], "libraries": [], "operations": [], "records": [], "plans": {}, "threads": 0, "refusals": [],
}  # fmt: skip


def _run(argv: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Runs the program recorded; returns its exit status, negative for a signal, and what was written of it."""
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        output = os.path.join(folder, "run.json")
        command = [sys.executable, "-m", "backline.report.reported_program", output, str(os.getpid()), *argv]
        sys.stdout.flush()
        child = subprocess.Popen(command)
        while True:
            try:
                code = child.wait()
                break
            except KeyboardInterrupt:  # the program was told, too; it decides what to do about it
                continue
        try:
            with open(output, encoding="utf-8") as stream:
                content: dict[str, Any] = json.load(stream)
        except (OSError, ValueError):
            content = {}
    return code, {**_NOTHING, **content}


def _notes(code: int, content: dict[str, Any]) -> list[str]:
    """Returns what a reader has to know before the figures."""
    notes = []
    if code:
        why = f": {content['error']}" if content["error"] else ""
        notes.append(f"The program ended {instances.ending(code)}{why}. The report shows what ran until then.")
    if not content["complete"]:
        notes.append(
            "The program ended without a last word (by a signal, os._exit, or by replacing its process), so what it did in its "
            "last two seconds may be missing."
        )
    if content["processes"]:
        count = content["processes"]
        notes.append(
            f"The program started other processes, {count} time{'' if count == 1 else 's'}: what those computed is not covered."
        )
    if content["disturbed"]:
        notes.append(f"Times are of a busy machine: {content['disturbed']}.")
    if not content["operations"]:
        notes.append("The program called no operation of Backline.")
    if content["exchanged"] and any(row["library"] == "numpy" for row in content["operations"]):
        notes.append("Operations that Backline ran by NumPy's own functions may be listed among NumPy's calls, too.")
    return notes


def _hash(path: str) -> tuple[str, int]:
    """Returns the SHA-256 of a file and its size; nothing for one that cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest(), os.fstat(stream.fileno()).st_size
    except OSError:
        return "", 0


def _numpy() -> str:
    import numpy

    return numpy.__version__


def _checked(argv: Sequence[str], step: Callable[[str], None]) -> dict[str, Any]:
    """Returns what repeated runs of the script have in common, or why that is not known."""
    try:
        report = verify_script(argv, step=step)
    except (NothingToTune, BacklineError) as error:
        return {"failed": error.message}
    return {"rows": [list(row) for row in report.rows()], "failed": ""} | {
        "difference": [list(row) for row in report.difference.rows()] if report.difference is not None else []
    }
