"""The variables an instance gets: threads, the OpenMP runtime, the memory allocator, what is preloaded.

A variable that is set already is the user's: it is kept, and a note gives both values.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from ..native import elf
from ..native.library_folders import site_folders, system_folders
from .counts import Note

__all__ = ["common", "find_library", "keep", "preload", "search_folders"]

KMP_AFFINITY = "granularity=fine,compact,1,0"
KMP_BLOCKTIME = "1"
MALLOC_CONF = "oversize_threshold:1,background_thread:true,metadata_thp:auto"

#: Names of each library's files, best first, and the packages that bring it. Debian's smaller tcmalloc has its own name.
FILES = {
    "iomp5": (("libiomp5",), "intel-openmp"),
    "tcmalloc": (("libtcmalloc", "libtcmalloc_minimal"), "libtcmalloc-minimal4 or gperftools"),
    "jemalloc": (("libjemalloc",), "libjemalloc2 or jemalloc"),
}


def search_folders(environ: Mapping[str, str], packages: Sequence[str] | None = None) -> list[str]:
    """Folders in which libraries are looked for, in order, each once; relative ones are left out.

    Parameters
    ----------
    environ : mapping
        Environment variables.
    packages : sequence of str, optional
        Folders of installed packages, in the place of this interpreter's.

    Examples
    --------
    >>> search_folders({"CONDA_PREFIX": "/opt/conda", "VIRTUAL_ENV": "venv"}, [])[0]
    '/opt/conda/lib'
    """
    triplet = getattr(sys.implementation, "_multiarch", "") or f"{os.uname().machine}-linux-gnu"
    prefixes = (environ.get("CONDA_PREFIX", ""), environ.get("VIRTUAL_ENV", ""), sys.prefix)
    folders = [os.path.join(prefix, "lib") for prefix in prefixes if prefix]
    for site in site_folders() if packages is None else packages:
        for pattern in ("*/lib", "*"):  # wheels keep libraries in the package, or in a folder lib of it
            folders += sorted(glob.glob(os.path.join(glob.escape(site), pattern, "")))
    folders += [os.path.join(os.path.expanduser("~"), ".local/lib"), "/usr/local/lib", "/usr/local/lib64"]
    folders += ["/usr/lib", "/usr/lib64", f"/usr/lib/{triplet}"]
    return [folder for folder in dict.fromkeys(f.rstrip("/") for f in folders) if os.path.isabs(folder)]


def find_library(name: str, folders: Iterable[str]) -> str | None:
    """The first sound file of a library that can be preloaded: "libtcmalloc.so", else its highest version.

    Parameters
    ----------
    name : str
        "iomp5", "tcmalloc" or "jemalloc".
    folders : iterable of str
        Where to look, in order.
    """
    stems = FILES[name][0]
    folders = list(folders)
    for stem in stems:
        pattern = re.compile(rf"{re.escape(stem)}\.so((?:\.[0-9]+)*)")
        for folder in folders:
            found = []
            for path in glob.glob(os.path.join(glob.escape(folder), f"{stem}.so*")):
                match = pattern.fullmatch(os.path.basename(path))
                if match:
                    found.append((match[1] != "", [-int(n) for n in match[1].split(".")[1:]], path))
            for _, _, path in sorted(found):
                # The loader parts the list of what to preload at spaces and colons, and has no way to quote them.
                if not re.search(r"[\s:]", path) and _sound(path):
                    return path
    return None


def _sound(path: str) -> bool:
    if not elf.supported():
        return os.path.isfile(path)
    try:
        elf.inspect(path)
    except elf.Refused:
        return False
    return True


def preload(old: str, added: Sequence[str]) -> tuple[str, list[Note]]:
    """Write LD_PRELOAD: what is added, then what was there and exists.

    Parameters
    ----------
    old : str
        Its value so far.
    added : sequence of str
        Files to load before those.

    Examples
    --------
    >>> preload("/nowhere/libx.so", [])
    ('', [Note(level='warning', text='LD_PRELOAD: /nowhere/libx.so does not exist and was dropped')])
    """
    kept, notes = [], []
    for entry in re.split(r"[\s:]+", old.strip(": \t\n")) if old.strip(": \t\n") else ():
        if _loadable(entry):
            kept.append(entry)
        else:
            notes.append(Note("warning", f"LD_PRELOAD: {entry} does not exist and was dropped"))
    return ":".join(dict.fromkeys([*added, *kept])), notes


def _loadable(entry: str) -> bool:
    if "$" in entry:  # $LIB and $ORIGIN are the loader's to fill in
        return True
    if "/" in entry:
        return os.path.exists(entry)
    return any(os.path.exists(os.path.join(folder, entry)) for folder in system_folders())


def _is(name: str, path: str) -> bool:
    """Tells if a file has the name of a library, with or without a version."""
    return any(re.fullmatch(rf"{re.escape(stem)}\.so(\.[0-9]+)*", os.path.basename(path)) for stem in FILES[name][0])


def keep(environ: Mapping[str, str], name: str, value: str) -> tuple[dict[str, str], list[Note]]:
    """Set a variable unless it is set.

    Examples
    --------
    >>> keep({}, "KMP_BLOCKTIME", "1")
    ({'KMP_BLOCKTIME': '1'}, [])
    >>> keep({"KMP_BLOCKTIME": "200"}, "KMP_BLOCKTIME", "1")[0]
    {}
    """
    if name not in environ:
        return {name: value}, []
    if environ[name] == value:
        return {}, []
    text = f"{name} is set: keeping {name}={environ[name]}, the launcher would have set {name}={value}"
    return {}, [Note("warning", text)]


def common(
    environ: Mapping[str, str],
    *,
    allocator: str = "any",
    iomp: bool = True,
    affinity: bool = True,
    folders: Sequence[str] | None = None,
) -> tuple[dict[str, str], list[Note]]:
    """The variables that all instances share, and what to tell the user of them.

    Parameters
    ----------
    environ : mapping
        The variables so far.
    allocator : str
        "tcmalloc", "jemalloc", "any" for the first of these that there is, "" for the system's.
    iomp : bool
        Whether to preload Intel's OpenMP runtime.
    affinity : bool
        Whether that runtime may bind its threads. With the hardware threads of all nodes it would leave half of them out.
    folders : sequence of str, optional
        Where to look for libraries, in the place of `search_folders`.

    Returns
    -------
    dict, list of Note
        Only what changes. LD_PRELOAD may become empty.
    """
    changes: dict[str, str] = {}
    notes: list[Note] = []
    if folders is None:
        folders = search_folders(environ)
    old = environ.get("LD_PRELOAD", "")
    text, dropped = preload(old, [])
    before = text.split(":") if text else []

    def find(name: str) -> str | None:
        return next((path for path in before if _is(name, path)), None) or find_library(name, folders)

    added = []
    if iomp:
        path = find("iomp5")
        if path is None:
            how = FILES["iomp5"][1]
            notes.append(Note("info", f"libiomp5 is not installed (package {how}): the program's own OpenMP runtime serves"))
        else:
            added.append(path)
            wanted = {"KMP_BLOCKTIME": KMP_BLOCKTIME} | ({"KMP_AFFINITY": KMP_AFFINITY} if affinity else {})
            for name, value in wanted.items():
                change, said = keep(environ, name, value)
                changes |= change
                notes += said
    names = {"any": ("tcmalloc", "jemalloc"), "": ()}.get(allocator, (allocator,))
    # Two allocators at once help nobody: with a free choice, one that is preloaded already stays the only one.
    path = next((p for p in before for name in names if _is(name, p)), None) or next(filter(None, map(find, names)), None)
    if path is not None:
        added.append(path)
        if allocator == "jemalloc":
            change, said = keep(environ, "MALLOC_CONF", MALLOC_CONF)
            changes |= change
            notes += said
    elif names:
        missing = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not installed"
        how = " or ".join(FILES[name][1] for name in names)
        notes.append(Note("warning", f"{missing} (packages {how}): the system's memory allocator serves, which may be slower"))
    value = preload(old, added)[0]
    if value != old:
        changes["LD_PRELOAD"] = value
    return changes, [*dropped, *notes]
