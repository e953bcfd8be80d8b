"""The maths libraries of another process, or of a script at its end, and what else can be asked of what a script leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailable, BacklineError, BadValue
from ..libraries.process_report import conflicts_of, described

if TYPE_CHECKING:
    from ..libraries.in_process import LoadedLibrary

__all__ = ["at_the_end_of", "conflicts_of", "described", "gather"]


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
    if not os.path.isfile(script):
        raise BadValue(f"--process: {script!r} is no number of a process and no file", remedy="backline info --process script.py")
    return at_the_end_of([script, *arguments], "libraries", {}) | {"executable": sys.executable}


def at_the_end_of(command: Sequence[str], task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a task of `TASKS` finds in a process that has run a script, just before it ends.

    Parameters
    ----------
    command
        The script, or "-m" and a module, then arguments.
    task, options
        The task, and what it is called with.

    Raises
    ------
    BadValue
        There is no such script or module.
    ScriptEnded
        The process ended before the task was done.
    """
    from ..engine.script_runs import check_module, check_script
    from ..launch import instances

    check_script(list(command))
    check_module(command)
    script = command[command[0] == "-m"]
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        path = os.path.join(folder, "found.json")
        # -P: nothing is imported from the folder that this is started in; `run` puts the script's own there.
        program = [sys.executable, "-P", "-c", f"from {__name__} import run; run()", task, json.dumps(options), path, *command]
        status = subprocess.run(program, stdout=sys.stderr, check=False).returncode
        try:
            with open(path, encoding="utf-8") as stream:
                content: dict[str, Any] = json.load(stream)
        except (OSError, ValueError):
            raise ScriptEnded(f"{script} ended {instances.ending(status)} before its libraries were listed") from None
    return content | {"what": script + (f" (ended {instances.ending(status)})" if status else "")}


def _libraries() -> dict[str, Any]:
    from ..libraries import in_process

    mapped = in_process.loaded()
    return {"mapped": described(mapped, os.environ), "conflicts": conflicts_of(mapped)}


def _doctor(quick: bool) -> dict[str, Any]:
    from ..diagnosis.table import doctor

    return doctor(quick=quick).as_dict()


#: What can be asked of a process as a script leaves it.
TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {"libraries": _libraries, "doctor": _doctor}


def run() -> None:
    """Runs the script that the command line names, and at its end the task, of which it writes what that found."""
    from ..interop.exchanged_program import run_program

    task, options, path, *command = sys.argv[1:]
    here = os.getpid()
    sys.path.insert(0, os.getcwd())  # where `python -m` begins to look for modules; a script's folder is put in its place
    try:
        status = run_program(command)
    finally:
        if os.getpid() == here:  # a forked child comes by here too
            content = TASKS[task](**json.loads(options))
            with open(path, "w", encoding="utf-8") as stream:
                json.dump(content, stream)
    sys.exit(status)
