"""Keeps what testing a library in a child process said, for as long as the file and everything it depends on stay the same.

In this process, and in the file ``library-probes.json`` of the user's cache folder: there only what a child said that finished.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Any, cast

from ... import switches
from ...native import loading, thread_team
from ...native.machine import cpu_info
from ...native.whole_file import write_whole
from . import probe_process
from .probe_program import Facts

__all__ = ["Proof", "identity", "prove", "prove_by_class", "prove_found", "usable_threads"]

Identity = tuple[int, ...]

HEAD = 4096
LARGEST = 1 << 20  # bytes of the file
LONGEST = 4000  # of a text in it
MOST = 256  # entries
#: Variables that decide what a library does when it is loaded, by how their names begin.
PREFIXES = (
    "BLIS_", "DNNL_", "DYLD_", "FFTW_", "GOMP_", "GOTO_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_",
    "TBB_",
)  # fmt: skip

_known: dict[str, Facts] = {}


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of testing a file."""

    path: str  # the file
    facts: Facts  # what the test said; "reason" is empty if the library is fit
    identity: Identity  # which file that was

    @property
    def reason(self) -> str:
        """Returns what is wrong with the file, or an empty string."""
        said: str = self.facts["reason"]
        alone = not said or not self.path or said.startswith("cannot be loaded: ")
        return said if alone else f"{self.path} {said}"

    def replaced(self) -> str:
        """Returns what is wrong if the path leads to another file by now than the one that was tested, or an empty string."""
        return "" if identity(self.path) == self.identity else f"{self.path} was replaced while it was being loaded"


def identity(path: str) -> Identity:
    """Returns size, time of change, place and the first bytes of a file, as numbers; raises `OSError` where it is not there."""
    status = os.stat(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        head = os.read(descriptor, HEAD)
    finally:
        os.close(descriptor)
    return (status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, zlib.crc32(head))


def prove(name: str, path: str, question: str, options: Facts, *, changes: dict[str, str] | None = None) -> Proof:
    """Tests a library in a child process, unless that was done: in this process, or by an earlier one with the same settings.

    `question`, `options` and `changes` are for `probe_process.ask`. Raises `OSError` where the file is not there.
    """
    import json

    which = identity(path)
    subject = json.dumps({**options, "path": path}, sort_keys=True)
    # A library's other parts lie beside it: the folder changes when one is added, replaced or removed.
    beside = os.stat(os.path.dirname(os.path.realpath(path))).st_mtime_ns
    key = f"{name} {path} {' '.join(map(str, which))} {beside} {_settings(subject, changes or {}):08x}"
    facts = _known.get(key)
    if facts is None:
        kept = _read()
        facts = kept.get(key)
        if facts is None:
            begin = time.perf_counter()
            facts, finished = probe_process.ask(question, subject, changes=changes)
            loading.testing_seconds += time.perf_counter() - begin
            # What cannot be loaded may lack a library that is installed tomorrow, in another folder.
            lasting = finished and not facts["reason"].startswith("cannot be loaded")
            if lasting and identity(path) == which:
                _write({**kept, key: facts})
        _known[key] = facts
    return Proof(path, facts, which)


def usable_threads() -> int:
    """Threads that a library is tested on: as many as calls may use."""
    return 1 if thread_team.forked() else cast(int, switches.get("num_threads"))


def prove_found(library: Any, finding: Any) -> Proof:
    """Keeps what the search for a library's file found, and tests that file; without one, the reason is that of the search."""
    library.finding, path = finding, finding.path
    if path is None:
        return Proof("", {"reason": finding.reason}, ())
    return prove_by_class(library.name, path, usable_threads())


def prove_by_class(name: str, path: str, threads: int) -> Proof:
    """Has the class of a library test a file in a child process: its method `test` returns the facts.

    Raises `OSError` where the file is not there.
    """
    import numpy
    import platformdirs

    from ... import _core, _kernels
    from .. import capability

    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    others = [os.path.dirname(os.path.dirname(os.path.abspath(module.__file__ or ""))) for module in (numpy, platformdirs)]
    compiled = {module.__name__: module.__file__ for module in (_core, _kernels)}
    options = {"name": name, "folders": list(dict.fromkeys([own, *others])), "compiled": compiled}
    changes = {
        "BACKLINE_CONFIG": "", "BACKLINE_TUNING": "", "BACKLINE_PLUGINS": "0",
        "BACKLINE_NUM_THREADS": str(threads), "BACKLINE_CPU_CAPABILITY": capability.effective().lower().replace(" ", ""),
    }  # fmt: skip
    return prove(name, path, "library", options, changes=changes)


def _settings(subject: str, changes: dict[str, str]) -> int:
    """A number for everything but the file that an answer depends on."""
    from ..._version import __version__

    variables = {**probe_process.environment(), **changes}
    own = sorted(f"{k}={v}" for k, v in variables.items() if k.startswith(PREFIXES))
    cpu = cpu_info()
    system = os.uname().release if hasattr(os, "uname") else ""
    own += sorted(f"{k}={v}" for k, v in changes.items())
    parts = (__version__, sys.version, sys.executable, system, cpu.model, subject, *own)
    return zlib.crc32("\0".join(parts).encode("utf-8", "surrogateescape"))


def _file() -> str:
    import platformdirs

    return os.path.join(platformdirs.user_cache_dir("backline"), "library-probes.json")


def _read() -> dict[str, Facts]:
    """Returns what earlier processes wrote; nothing where the file is not as `_write` writes it, whoever changed it."""
    import json

    path = _file()
    if not os.path.isabs(path):
        return {}  # what a program loads must not depend on where it is started
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {}
            data = stream.read(LARGEST + 1)
        content = json.loads(data) if len(data) <= LARGEST else {}
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: facts for key, facts in content.items() if len(key) <= LONGEST and _sound(facts)}


def _sound(facts: Any) -> bool:
    """Tells whether a value has the form of an answer: texts by name, "reason" among them."""
    return (
        isinstance(facts, dict)
        and isinstance(facts.get("reason"), str)
        and len(facts) <= 8
        and all(isinstance(value, str) and len(value) <= LONGEST for value in facts.values())
    )


def _write(known: dict[str, Facts]) -> None:
    import json

    path = _file()
    if not os.path.isabs(path):
        return
    kept = dict([(key, facts) for key, facts in known.items() if _sound(facts)][-MOST:])
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_whole(path, json.dumps(kept, indent=0).encode("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return  # a read-only home costs a probe in the next process, nothing else
