"""Lets Python processes that a program starts go on with what it runs under: the exchange, and the recording of its calls.

Children that are forked have both by themselves. In others Python imports `sitecustomize` at its start, from a folder that stands
first in PYTHONPATH, and that module waits until the process imports NumPy. So what holds in a program holds in the workers of
multiprocessing and joblib, and in what it starts with the same Python. It does not reach a Python that ignores its environment
(``-E``, ``-I``), one of another installation, or one whose PYTHONPATH the program has replaced.
"""

from __future__ import annotations

import json
import os
import sys
import time

from .. import settings, switches
from ..launch import messages
from ..libraries.reference.numpy_threads import openblas_thread_count
from . import numpy
from .exchange import loaded_objects, recorded_calls
from .exchange.choices import ORIGINAL

__all__ = ["FOLDER", "PATH", "PREFIX", "SETTINGS", "SUFFIX", "begin", "carry", "new_file"]

PREFIX, SETTINGS, PATH = "BACKLINE_CHILD_PREFIX", "BACKLINE_CHILD_SETTINGS", "PYTHONPATH"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child_start")
SUFFIX = ".calls"
"""The names of files with recorded calls end so."""

_recording: recorded_calls.Recording | None = None  # of this process, to its end


def carry(choice: str, folder: str = "") -> None:
    """Has child processes that are started from now on make an exchange, and record their calls in files of a folder.

    Parameters
    ----------
    choice
        What `backline.interop.numpy.use` takes, as text; "numpy" exchanges nothing.
    folder
        Where the files are to be; "" for none.
    """
    others = [entry for entry in os.environ.get(PATH, "").split(os.pathsep) if entry and entry != FOLDER]
    os.environ[PATH] = os.pathsep.join([FOLDER, *others])
    os.environ[PREFIX] = sys.prefix
    os.environ[SETTINGS] = json.dumps({"choice": choice, "folder": folder})


def new_file(folder: str) -> str:
    """Returns the path of a file for the calls of this process."""
    return os.path.join(folder, f"{os.getpid()}-{time.time_ns()}{SUFFIX}")


def begin() -> None:
    """Makes the exchange and begins to record, as the environment says: called in a child when it has imported NumPy.

    A failure is told on stderr: the child computes with what NumPy and SciPy brought along, as without Backline.
    """
    global _recording
    try:
        carried = json.loads(os.environ[SETTINGS])
        choice, folder = str(carried["choice"]), str(carried["folder"])
        if folder:
            recorded_calls.record_in_file(new_file(folder))
        if choice != ORIGINAL:
            _keep_thread_count()
            numpy.use(choice)
        if folder:
            _recording = recorded_calls.recording().__enter__()
    except Exception as error:  # an import of NumPy must not fail for this
        messages.line(f"process {os.getpid()} runs NumPy as it is, and its calls are not recorded: {error}")


def _keep_thread_count() -> None:
    """Gives the new library the threads that NumPy's own has: joblib and others tell their workers by variables of its."""
    if switches.origin("num_threads").kind != "default":
        return
    files = {file for module in loaded_objects.modules(["numpy"]) for file in module.origins}
    counts = [functions[0]() for file in files if (functions := openblas_thread_count(file)) is not None]
    if counts and min(counts) < settings.get_num_threads():
        settings.set_num_threads(min(counts))
