"""Folders that libraries lie in: those of this interpreter's packages, and those that the system's loader searches.

All of them are absolute: what a program runs must not depend on the working directory.
"""

from __future__ import annotations

import os
import re
import sys

__all__ = ["loader_configuration", "prefix_folders", "site_folders", "system_folders"]


def prefix_folders() -> list[str]:
    """Returns the folders where wheels put plain libraries: the environment's lib folder, and the user's if it is in use."""
    import site

    prefixes = [sys.prefix]
    if site.ENABLE_USER_SITE:
        prefixes.append(site.getuserbase())
    return [os.path.join(prefix, "lib") for prefix in prefixes if os.path.isabs(prefix)]


def site_folders() -> list[str]:
    """Returns the site-packages of this interpreter, the user's own among them if this interpreter uses it.

    Not `sys.path`: that may hold the working directory or whatever a program added.
    """
    import site

    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [folder for folder in dict.fromkeys(folders) if os.path.isabs(folder) and os.path.isdir(folder)]


def system_folders(notes: list[str] | None = None) -> list[str]:
    """Returns the folders the system's loader searches, in its order, each once.

    Parameters
    ----------
    notes : list of str, optional
        Gets a line for each entry of LD_LIBRARY_PATH that is not followed. An empty entry means the working
        directory to the loader; a relative one depends on it.

    Returns
    -------
    list of str
        Absolute folders that exist.
    """
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    value = os.environ.get(variable, "") if os.name == "posix" else ""
    folders = []
    for entry in re.split("[:;]", value) if value else ():
        if os.path.isabs(entry):
            folders.append(entry)
        elif notes is not None:
            what = f"relative entry {entry!r}" if entry else "an empty entry"
            notes.append(f"{what} of {variable} ignored")
    if sys.platform.startswith("linux"):
        # Only Debian's and portable builds of Python know the word; others do not use such folders.
        triplet = getattr(sys.implementation, "_multiarch", "") or f"{os.uname().machine}-linux-gnu"
        folders += loader_configuration()
        folders += [f"/usr/local/lib/{triplet}", f"/lib/{triplet}", f"/usr/lib/{triplet}"]
        folders += ["/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    elif os.name == "posix":
        folders += ["/opt/homebrew/lib", "/usr/local/lib", "/usr/lib"]
    else:
        folders += [os.path.join(sys.prefix, "Library", "bin")]
    # /lib is a link to /usr/lib on most systems: each place once.
    seen: dict[str, str] = {}
    for folder in folders:
        if os.path.isdir(folder):
            seen.setdefault(os.path.realpath(folder), folder)
    return list(seen.values())


def loader_configuration(path: str = "/etc/ld.so.conf", depth: int = 0) -> list[str]:
    """Returns the folders an ld.so.conf names, includes followed; [] if it is not there.

    The loader's own cache is left alone: its format is private, and the text it was made from says the same.
    """
    import glob

    folders: list[str] = []
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.partition("#")[0].strip() for line in file]
    except OSError:
        return folders
    for line in lines:
        if line.startswith(("include ", "include\t")) and depth < 4:
            pattern = os.path.join(os.path.dirname(path), line.split(None, 1)[1])
            for included in sorted(glob.glob(pattern)):
                folders += loader_configuration(included, depth + 1)
        elif os.path.isabs(line):
            folders.append(line)
    return folders
