"""The presence of the files and packages behind backends: found or not, working or not, and the version.

Some libraries are only looked for, and calls on CUDA's need files beside the library's own. A file is found as every library's is
(`find`), then a child process loads and tests it (`probe_process`): a file that is there but cannot be loaded or initialised
counts as absent, with the reason. Nothing is loaded into this process.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .. import libraries
from ..errors import BackendUnavailable, BadValue
from ..native.library_search import VARIABLE, Finding, LibrarySpec, Step, search
from ..native.process_map import mapped_files
from . import openmp_runtimes, python_packages, registry
from .availability import Availability, Version
from .probing.probe_process import ask

__all__ = [
    "Presence", "acl_available", "availability", "cuda_devices", "cuda_is_built", "driving", "max_alg_id", "mentions",
    "metal_facts", "mlx_importable", "names", "presence", "unavailable",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: a path and the facts that the library told, or a reason."""

    reason: str
    searched: tuple[str, ...]
    path: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""


class Presence(Availability):
    """The presence of one file or package. It is looked for when it is first asked about, and the answer is kept.

    Attributes
    ----------
    name : str
        The name it is asked for by.
    title : str
        Its name as its makers write it.
    how_to_get : str
        A command, or where it comes with.

    Examples
    --------
    >>> presence("xnnpack").available() == (presence("xnnpack").reason() == "")
    True
    """

    def __init__(self, row: registry.LibraryInfo, look: Callable[[registry.LibraryInfo], Found] | None = None) -> None:
        self.row, self.name, self.title, self.how_to_get = row, row.name, row.title, row.install
        self._look = look
        self._found: Found | None = None

    def __repr__(self) -> str:
        return f"<Presence of {self.title}: {self.path or self.reason() or 'there'}>"

    def _known(self) -> Found:
        found = self._found
        if found is None:
            try:
                found = (self._look or _LOOK.get(self.name, _look_for))(self.row)
            except (OSError, RuntimeError, ValueError, ImportError) as error:
                # A folder that cannot be read, an import hook that fails: whether a library is there must be answerable.
                found = Found(f"{type(error).__name__}: {error}", ())
            self._found = found
        return found

    def version(self) -> Version:
        """Returns the version as the library tells it: an int or a text as is its makers' custom; None if absent or untold."""
        if self.name == "openmp":
            return openmp_runtimes.version()
        told: Version = self._known().facts.get("version")
        if not told and self.row.version_of:
            return availability(self.row.version_of).version()
        return told or None

    def reason(self) -> str:
        return self._known().reason

    def searched(self) -> tuple[str, ...]:
        """Returns every place looked in, with the result."""
        return self._known().searched

    @property
    def path(self) -> str | None:
        """The file, or the package's folder; also of one that is there and does not work."""
        return self._known().path

    @property
    def facts(self) -> Mapping[str, Any]:
        """Further facts that it told."""
        return MappingProxyType(dict(self._known().facts))

    def remedy(self) -> str:
        return self._known().remedy or self.how_to_get

    def forget(self) -> None:
        """Has it looked for again when next asked: for tests, and after an installation."""
        self._found = None


# --- files --------------------------------------------------------------------------------------------------------


def _look_for(row: registry.LibraryInfo) -> Found:
    machine = platform.machine()
    if row.machines and machine.lower() not in row.machines:
        return Found(f"{row.title} is for {row.machines[0]}; this is {machine}", (), remedy=f"a machine with {row.machines[0]}")
    finding = find(row)
    searched = tuple(str(step) for step in finding.steps)
    remedy = f"{row.install}; or set {row.variable} to the file's absolute path"
    if finding.path is None:
        files = ", ".join(row.files)
        if not finding.step:  # otherwise a file was named, and that one was refused
            return Found(f"{finding.reason} ({files})", searched, remedy=remedy)
        return Found(finding.reason, searched, remedy=finding.remedy)
    reasons = []
    for each in (finding, *finding.others):
        assert each.path is not None
        facts = dict(ask(row.name, each.path)[0])
        reason = facts.pop("reason", "")
        if not reason:
            return Found("", searched, each.path, facts)
        reasons.append(reason if reason.startswith("cannot be loaded: ") else f"{each.path} {reason}")
    if finding.step == VARIABLE:
        remedy = f"name another file, or unset {row.variable}; {row.install}"
    return Found("; ".join(reasons), searched, finding.path, remedy=remedy)


def find(row: registry.LibraryInfo) -> Finding:
    """Finds the file of a library: the usual search, then files that contain it, then its makers' own folders."""
    finding = search(row.spec)
    if finding or finding.step:
        return finding
    loaded = [file.path for file in mapped_files() if file.name in row.inside and not file.deleted] if row.inside else []
    installed = [os.path.join(folder, name) for name in row.files for folder in row.folders]
    for name, paths in (("inside other packages", loaded), ("its installer's folders", installed)):
        tried = [search(row.spec, path) for path in paths if os.path.lexists(path)]
        found = next((each for each in tried if each), None)
        if found is not None:
            steps = (*finding.steps, Step(name, (str(found.path),), "found"))
            return Finding(row.spec, found.path, name, steps, info=found.info)
        looked = row.inside if paths is loaded else row.folders
        if looked:
            refused = "; ".join(each.reason for each in tried)
            steps = (*finding.steps, Step(name, looked, f"refused {refused}" if refused else "nothing"))
            finding = Finding(row.spec, None, "", steps, refused or finding.reason, finding.remedy)
    return finding


# --- packages, and runtimes that others bring ---------------------------------------------------------------------


def _look_for_metal(row: registry.LibraryInfo) -> Found:
    folder, searched, reason = python_packages.find("mlx", "core")
    if folder is None:
        return Found(reason, searched)
    facts = dict(python_packages.ask_mlx())
    reason = facts.pop("reason")
    return Found(reason, searched, folder, facts, "a Mac with Apple silicon" if reason else "")


def _look_for_opt_einsum(row: registry.LibraryInfo) -> Found:
    folder, searched, reason = python_packages.find("opt_einsum")
    return Found(reason, searched, folder, {} if reason else {"version": python_packages.version("opt_einsum")})


def _look_for_openmp(row: registry.LibraryInfo) -> Found:
    loaded = openmp_runtimes.runtimes()
    if loaded and not os.environ.get(row.variable):
        first = next((runtime for runtime in loaded if runtime.serves), loaded[0])
        return Found("", tuple(f"already in this process: {runtime.path}" for runtime in loaded), first.path)
    return _look_for(row)


_LOOK: dict[str, Callable[[registry.LibraryInfo], Found]] = {
    "openmp": _look_for_openmp, "mps": _look_for_metal, "opt_einsum": _look_for_opt_einsum,
}  # fmt: skip
"""Searches for what is no file, or not only one."""

_presences: dict[str, Presence] = {}


def names() -> tuple[str, ...]:
    """Returns the names that `presence` takes.

    >>> {"cuda", "onednn", "opt_einsum"} <= set(names())
    True
    """
    return tuple(row.name for row in registry.rows() if row.files or row.name in _LOOK)


def presence(name: str) -> Presence:
    """Returns the presence of the file or package behind a backend.

    Parameters
    ----------
    name : str
        One of `names`.

    Raises
    ------
    BadValue
        For another name.

    Examples
    --------
    >>> presence("opt_einsum").available()
    True
    """
    row = registry.find(name)
    if row is None or row.name not in names():
        raise BadValue(f"there is no library {name!r}", remedy=f"one of: {', '.join(names())}")
    if row.name not in _presences:
        _presences.setdefault(row.name, Presence(row))
    return _presences[row.name]


def unavailable(name: str, what: str) -> BackendUnavailable:
    """Returns the error for something that needs a library which is not there.

    Parameters
    ----------
    name : str
        One of `names`.
    what : str
        What needs it: ``preferred_linalg_library("cusolver")``.

    Returns
    -------
    BackendUnavailable
        It says what was looked for, every place looked in, and how to get it.

    Examples
    --------
    >>> print(unavailable("kleidiai", "kleidiai.kernels()").message)
    kleidiai.kernels() needs KleidiAI, which is not available.
    """
    wanted = presence(name)
    reason, remedy = wanted.reason(), wanted.remedy()
    if not reason:
        # The library is sound; what drives it may not be there: CuPy, a binding, a device.
        reason, other = driving(name)
        reason = f"{wanted.title} is at {wanted.path}, but " + (f"cannot be used: {reason}" if reason else "does not have it")
        remedy = other or remedy
    elif wanted.searched():
        reason += f"; looked in {'; '.join(wanted.searched())}"
    return BackendUnavailable(f"{what} needs {wanted.title}, which is not available.", cause=reason, remedy=remedy)


def driving(name: str) -> tuple[str, str]:
    """Returns the reason why calls cannot run on a library whose file is there, and a remedy; two empty texts if they can.

    Examples
    --------
    >>> driving("opt_einsum")
    ('', '')
    """
    row = registry.find(name)
    if row is not None and not row.implementation:
        return "", ""
    library = libraries.get(row.name if row is not None else name)
    return ("", "") if library.available() else (library.reason(), library.remedy())


def availability(name: str) -> Availability:
    """Returns the object that tells whether the library behind a backend can be used.

    Parameters
    ----------
    name : str
        A library, or a module of `backends`.

    Returns
    -------
    Availability
        The library itself where calls can run on it, else the presence of its file or package.

    Raises
    ------
    BadValue
        For another name.

    Examples
    --------
    >>> availability("mkldnn") is libraries.get("onednn"), availability("opt_einsum") is presence("opt_einsum")
    (True, True)
    """
    row = registry.find(name)
    if row is None or row.implementation:
        return libraries.get(name if row is None else row.name)
    return presence(name)


# --- facts that single backends ask for ---------------------------------------------------------------------------


def cuda_is_built() -> bool:
    """Tells whether CuPy, for the arrays, and cuBLAS are found; that needs neither driver nor device."""
    return not python_packages.find("cupy")[2] and presence("cublas").available()


def cuda_devices() -> int:
    """Returns the number of CUDA devices that the driver reports; 0 without one."""
    return int(presence("cuda").facts.get("devices", 0))


_LARGEST_BY_VERSION = {400: 4, 502: 5, 602: 37}
_largest: dict[str, int | None] = {}  # by path


def max_alg_id() -> int | None:
    """Returns the number of algorithms of cuSPARSELt for a small product; None if it is absent or has no device to ask."""
    library = presence("cusparselt")
    number, path = library.version(), library.path
    if number in _LARGEST_BY_VERSION:
        return _LARGEST_BY_VERSION[int(number)]
    if not library.available() or path is None:
        return None
    if path not in _largest:
        _largest[path] = ask("cusparselt.max_alg_id", path)[0].get("max_alg_id")
    return _largest[path]


def acl_available() -> bool:
    """Tells whether the oneDNN that is found was built on the Arm Compute Library, linked to it or holding it."""
    library = presence("mkldnn")
    if platform.machine().lower() not in ("aarch64", "arm64") or not library.available() or library.path is None:
        return False
    info = search(LibrarySpec("onednn"), library.path).info
    if info is not None and any(name.startswith("libarm_compute") for name in info.needed):
        return True
    return mentions(library.path, b"arm_compute")


def mentions(path: str, word: bytes) -> bool:
    """Tells whether the bytes of a file contain a word; it is read in pieces."""
    piece, rest = 1 << 20, b""
    with open(path, "rb") as file:
        while data := file.read(piece):
            if word in rest + data:
                return True
            rest = data[-len(word) :]
    return False


def mlx_importable() -> bool:
    """Tells whether MLX can be found for import; it is not imported.

    >>> mlx_importable() in (True, False)
    True
    """
    return not python_packages.find("mlx", "core")[2]


def metal_facts() -> Mapping[str, str | int]:
    """Returns facts about the Metal device, empty without one: its "name", and the number of its "cores" (0 where untold)."""
    library = presence("mps")
    return {"name": library.facts["name"], "cores": python_packages.gpu_cores()} if library.available() else {}
