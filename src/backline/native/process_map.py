"""The shared libraries that are mapped into this process: the list kept by the kernel.

Reading is separate from parsing, so that recorded lists can be tested. Away from Linux there is no such list
and the answer is empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MappedFile", "mapped_files", "parse_maps", "read_maps"]

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file of which this process has code mapped.

    Attributes
    ----------
    path : str
        Where it was when it was mapped.
    device, inode : str, int
        What identifies the file even when it has since been replaced.
    start, end : int
        The range of addresses that its mappings span.
    deleted : bool
        Whether the file has been removed or replaced since: an upgrade under a running process.
    """

    path: str
    device: str
    inode: int
    start: int
    end: int
    deleted: bool = False

    @property
    def name(self) -> str:
        """The file name without its folder."""
        return self.path.rpartition("/")[2]


def read_maps(process: int | None = None) -> str:
    """The kernel's list for this process, or "" where there is none.

    Of another `process`, by its number, an error says why there is none.
    """
    try:
        with open(f"/proc/{process or 'self'}/maps", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        if process is not None:
            raise
        return ""


def parse_maps(text: str) -> tuple[MappedFile, ...]:
    """The files with code in a list as `/proc/self/maps` has it, in order of address.

    Files that are only mapped as data (an array on disk, a font) are left out.

    Parameters
    ----------
    text : str
        The list. Lines that do not parse are skipped: the kernel may add kinds of its own.

    Returns
    -------
    tuple of MappedFile

    Examples
    --------
    >>> line = "7f00-7f80 r-xp 00000000 fe:00 42   /opt/my lib/libblis.so.4 (deleted)"
    >>> parse_maps(line)[0].name, parse_maps(line)[0].deleted
    ('libblis.so.4', True)
    """
    found: dict[tuple[str, int, str], list[int]] = {}
    code: set[tuple[str, int, str]] = set()
    for line in text.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith("/") or not fields[4].isdecimal():
            continue
        first, _, last = fields[0].partition("-")
        try:
            start, end = int(first, 16), int(last, 16)
        except ValueError:
            continue
        key = (fields[3], int(fields[4]), fields[5])
        span = found.setdefault(key, [start, end])
        span[0], span[1] = min(span[0], start), max(span[1], end)
        if "x" in fields[1]:
            code.add(key)
    files = []
    for key, (start, end) in found.items():
        if key in code:
            path = key[2].removesuffix(" (deleted)")
            deleted = path != key[2]
            # The kernel writes a line break in a name as \012.
            path = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)
            files.append(MappedFile(path, key[0], key[1], start, end, deleted))
    return tuple(files)


def mapped_files() -> tuple[MappedFile, ...]:
    """The files with code mapped into this process now."""
    return parse_maps(read_maps())
