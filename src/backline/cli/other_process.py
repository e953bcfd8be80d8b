"""The maths libraries of another process, or of a script at its end: ``backline info --process``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailable, BacklineError, BadValue
from ..libraries.process_report import conflicts_of, described

if TYPE_CHECKING:
    from ..libraries.in_process import LoadedLibrary

__all__ = ["conflicts_of", "described", "gather"]


class ScriptEnded(BacklineError, RuntimeError):
    """A script that was run to see its libraries ended without telling them."""


def gather(process: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what is mapped into a process, by its number, or into one that runs a script, when that ends.

    Raises
    ------
    BackendUnavailable
        No such process, no right to read it, or another system than Linux.
    ScriptEnded
        The script failed.
    """
    if sys.platform != "linux":
        raise BackendUnavailable("--process: not here", cause=f"{sys.platform} lists no mapped files", remedy="Linux")
    return _of_number(int(process)) if process.isdecimal() else _of_script(process, arguments)


def _of_number(number: int) -> dict[str, Any]:
    from ..libraries import in_process

    try:
        mapped = in_process.loaded_in(number)
        executable = os.readlink(f"/proc/{number}/exe")
        with open(f"/proc/{number}/environ", "rb") as stream:
            pairs = [entry.partition(b"=") for entry in stream.read().split(b"\0") if entry]
    except OSError as error:
        remedy = "run it as the same user" if isinstance(error, PermissionError) else "ps lists the processes"
        raise BackendUnavailable(f"process {number} cannot be read: {error.strerror}", remedy=remedy) from None
    environ = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    started = [_with_threads(library, environ) for library in mapped]
    return {
        "what": f"process {number}", "executable": executable, "mapped": described(started, environ),
        "conflicts": conflicts_of(started, environ),
    }  # fmt: skip


def _with_threads(library: LoadedLibrary, environ: Mapping[str, str]) -> LoadedLibrary:
    """Fills in the thread count that a library was started with: one set since by a call cannot be read from outside."""
    from ..libraries import thread_scopes

    scope = thread_scopes.scope_of(library)
    texts = [environ.get(name, "").split(",")[0].strip() for name in scope.variables] if scope else []
    counts = [int(text) for text in texts if text.isascii() and text.isdecimal() and int(text[:9]) > 0]
    return replace(library, threads=counts[0]) if counts and library.threads is None else library


def _of_script(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    from ..launch import instances

    if not os.path.isfile(script):
        raise BadValue(f"--process: {script!r} is no number of a process and no file", remedy="backline info --process script.py")
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        path = os.path.join(folder, "libraries.json")
        command = [sys.executable, "-c", f"from {__name__} import run; run()", path, script, *arguments]
        status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        try:
            with open(path, encoding="utf-8") as stream:
                content: dict[str, Any] = json.load(stream)
        except (OSError, ValueError):
            raise ScriptEnded(f"{script} ended {instances.ending(status)} before its libraries were listed") from None
    return content | {"what": script + (f" (ended {instances.ending(status)})" if status else ""), "executable": sys.executable}


def run() -> None:
    """Runs the script that the command line names, and writes at its end which libraries are mapped."""
    import runpy

    from ..libraries import in_process

    path, script = sys.argv[1:3]
    here = os.getpid()
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        if os.getpid() == here:  # a forked child comes by here too
            mapped = in_process.loaded()
            with open(path, "w", encoding="utf-8") as stream:
                json.dump({"mapped": described(mapped, os.environ), "conflicts": conflicts_of(mapped)}, stream)
