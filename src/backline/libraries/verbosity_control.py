"""Control of a library's verbose output: a line for each of its calls, and the reading of these lines.

A library keeps its level for the whole process. It is therefore set around each call that asks for another one than the
library stands at, while the calls of other threads wait.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import _core, libraries
from ..switches.starting_values import starting_mkl, starting_mkldnn
from . import registry
from .base import Library

__all__ = ["VerbosityControl", "backend_of", "library_of", "read_mkl", "read_onednn", "voice_of"]

_STARTING = {"mkl": starting_mkl, "mkldnn": starting_mkldnn}
_PREFIXES = {"mkl": ("MKL_VERBOSE",), "mkldnn": ("onednn_verbose", "dnnl_verbose", "mkldnn_verbose")}


class VerbosityControl:
    """The verbose level of one library."""

    def __init__(self, library: Library, set_level: Callable[[int], int]) -> None:
        self.backend = backend_of(library)  # module of the switchboard it belongs to, "mkl"
        self.switch = f"{self.backend}.verbose_level"  # that holds the level asked for
        starting = _STARTING.get(self.backend)
        # Level that the environment gave the library: what it has between the calls that set another one.
        self.initial_level = starting()[0] if starting else 0
        native = getattr(getattr(library, "traits", None), "native", None)
        # Keeps calls of other threads out while one runs at its own level; calls that prepare plans take it too.
        self.rwlock = _core.ReadWriteLock() if native is None else native.rwlock
        self.prefixes: tuple[str, ...] = _PREFIXES.get(self.backend, ())  # how its lines begin; none if that is not known
        # Whether it tells at level 2 of what it prepares. MKL prepares nothing: its level 2 is about calls on a GPU.
        self.creates = self.backend != "mkl"
        self._level = self.initial_level
        self._set = set_level

    def level(self, snapshot: Any) -> int:
        """Returns the level that a Snapshot asks for."""
        asked: int = snapshot.get(self.switch, self.initial_level)
        return asked

    @contextmanager
    def at(self, level: int) -> Iterator[None]:
        """Have the library to oneself, at a level. Hold `stdout.turn` around it: then no two threads wait for each other."""
        self.rwlock.acquire_write()
        try:
            if level == self._level:
                yield
                return
            before, former = self._level, self._set(level)
            self._level = level
            try:
                yield
            finally:
                self._level = before
                self._set(former)
        finally:
            self.rwlock.release_write()


def backend_of(library: Library) -> str:
    """Returns the module of the switchboard that a library belongs to: mkldnn is oneDNN's.

    >>> backend_of(libraries.get("mkl"))
    'mkl'
    """
    return library.info.backend or library.name


def library_of(backend: str) -> Library | None:
    """Returns the library behind a module of the switchboard, if calls can run on one."""
    row = registry.find(backend)
    name = backend if row is None else row.name
    return libraries.get(name) if name in libraries.names() and (row is None or row.backend == backend) else None


_controls: dict[int, tuple[Library, VerbosityControl | None]] = {}


def voice_of(library: Library) -> VerbosityControl | None:
    """The control of a library that is loaded; None if it cannot be made to print.

    A library of a plug-in has one if it has a method ``set_verbose(level)`` that returns the former level.
    """
    found = _controls.get(id(library))
    if found is None:  # the entry holds the library: its id stays its own
        found = _controls.setdefault(id(library), (library, _make(library)))
    return found[1]


def _make(library: Library) -> VerbosityControl | None:
    own = getattr(library, "set_verbose", None)
    if own is None and library.name == "mkl":
        own = _mkl(library)
    return None if own is None else VerbosityControl(library, own)


def _mkl(library: Any) -> Callable[[int], int] | None:
    address = library.traits.native.address("MKL_Verbose") if library.traits else 0
    if not address:
        return None
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(address)
    level = starting_mkl()[0]

    def set_level(new: int) -> int:
        nonlocal level
        former, level = level, new  # its own answer is the former level in some releases, the new one in others
        if function(new) < 0:
            function(1)  # one that does not know level 2
        return former

    return set_level


# Reading ----------------------------------------------------------------------------------------------------------------------

_MKL_CALL = re.compile(
    r"MKL_VERBOSE (?P<function>\w+)\((?P<arguments>.*)\) (?P<time>\d+(?:\.\d*)?(?:e[+-]?\d+)?) ?(?P<unit>[num]?s)\b(?P<rest>.*)",
    re.ASCII,  # digits of other scripts are no numbers of MKL
)
_PER_MS = {"s": 1e-3, "ms": 1.0, "us": 1e3, "ns": 1e6}


def read_mkl(line: str) -> dict[str, Any]:
    """Parses a line of MKL: function, arguments, milliseconds, and the settings after them by MKL's own names.

    A line of another kind, such as the one with the version, is under "text".

    >>> line = "MKL_VERBOSE SGEMM_64(N,N,4,4,4,0x7f,0x55,4,0x55,4,0x7e,0x56,4) 43.5us CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:2"
    >>> read_mkl(line)["function"], read_mkl(line)["milliseconds"], read_mkl(line)["NThr"]
    ('SGEMM_64', 0.0435, 2)
    """
    match = _MKL_CALL.match(line)
    if match is None:
        return {"text": line.removeprefix("MKL_VERBOSE").strip()}
    settings = dict(word.split(":", 1) for word in match["rest"].split() if ":" in word)
    return {
        "function": match["function"],
        "arguments": tuple(match["arguments"].split(",")) if match["arguments"] else (),
        "milliseconds": float(match["time"]) / _PER_MS[match["unit"]],
        **{name: int(value) if value.isdigit() else value for name, value in settings.items()},
    }


_ONEDNN_FIELDS = ("engine", "primitive", "implementation", "propagation", "memory", "attributes", "auxiliary", "problem")


def read_onednn(line: str) -> dict[str, Any]:
    """Parses a line of oneDNN: operation ("exec", "create:cache_miss"), engine, primitive, implementation, milliseconds, ...

    The lines of releases 2 and 3 differ in what comes before the operation. A line of another kind is under "text".

    >>> line = "onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx2,undef,src_f32::blocked:ab::f0,,,4x8:8x2,0.05"
    >>> found = read_onednn(line)
    >>> found["operation"], found["primitive"], found["problem"], found["milliseconds"]
    ('exec', 'matmul', '4x8:8x2', 0.05)
    """
    words = line.split(",")
    at = next((i for i, word in enumerate(words[1:5], 1) if word.split(":")[0] in ("exec", "create")), 0)
    milliseconds = _number(words[-1])
    if not at or milliseconds is None or len(words) < at + 4:
        return {"text": ",".join(words[1:])}
    fields = dict(zip(_ONEDNN_FIELDS, words[at + 1 : -1], strict=False))
    return {"operation": words[at], **fields, "milliseconds": milliseconds}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
