"""Errata of this machine: defects that `backline check kernels` found, kept as JSON in the user's data folder.

A row holds for one build of a library (its version, size and the head of its file) on one processor model, and for one exact
Problem. A file that is damaged or too large is left alone, with one warning; to add rows to it is an error.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..errors import BadValue
from .erratum import Erratum

if TYPE_CHECKING:
    from .base import Library

__all__ = ["LocalErratum", "forget", "identity", "keep", "local_rows", "local_rows_of", "path", "reload"]

VERSION = 1
MOST_BYTES = 32 << 20  # room for `MOST_ROWS` rows of the usual 1 to 2 KiB
MOST_ROWS = 10_000
LONGEST = 4_000  # characters of a text
HEAD = 1 << 16  # bytes of a file that tell it from another build: linkers put its build's identity there
_FIELDS = frozenset(
    {"id", "library", "operations", "condition", "evidence", "remedy", "algorithm", "problem", "build", "processor"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalErratum(Erratum):
    """A row with the build of the library and the processor that it was seen on."""

    build: str  # the digest that `identity` returns for the library
    processor: str  # model of the processor


def path() -> str:
    """Returns the file's path, empty if there is none; the variable BACKLINE_ERRATA names another, or none if it is empty."""
    named = os.environ.get("BACKLINE_ERRATA")
    if named is not None:
        return named
    import platformdirs

    folder = platformdirs.user_data_dir("backline", appauthor=False)
    # Where platformdirs takes a relative XDG_DATA_HOME, what runs would depend on where a program is started.
    return os.path.join(folder, "errata.json") if os.path.isabs(folder) else ""


def processor() -> str:
    """Returns the model of the processor."""
    from ..native.machine import machine

    here = machine()
    return here.cpu.model or here.architecture


def identity(library: Library) -> str:
    """Returns a digest that tells one build of a library from another: version, kernels in use, and size and head of its file."""
    sets = library.instruction_sets() or ("any",)
    return _identity(" ".join((library.version() or "", *sets)), library.report().get("path") or "")


@lru_cache(maxsize=32)
def _identity(version: str, file: str) -> str:
    import hashlib

    digest = hashlib.sha256(version.encode())
    try:
        with open(file, "rb") as stream:
            digest.update(stream.read(HEAD))
            digest.update(str(os.fstat(stream.fileno()).st_size).encode())
    except OSError:
        from .._version import __version__  # a library without a file is a part of Backline

        digest.update(__version__.encode())
    return digest.hexdigest()[:32]


_read: tuple[str, tuple[LocalErratum, ...]] | None = None


def reload() -> None:
    """Has the file read again by whatever needs its rows next."""
    global _read
    _read = None


def local_rows() -> tuple[LocalErratum, ...]:
    """Returns every row of the file, for other builds and processors too."""
    global _read
    file = path()
    if _read is None or _read[0] != file:
        _read = file, _load(file)
    return _read[1]


def local_rows_of(library: Library) -> list[LocalErratum]:
    """Returns the rows for a library as it is loaded here."""
    of_it = [row for row in local_rows() if row.library == library.name]
    if not of_it:
        return []
    build, model = identity(library), processor()
    return [row for row in of_it if row.build == build and row.processor == model]


def _load(file: str) -> tuple[LocalErratum, ...]:
    try:
        return _content(file)
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"{file} is not used: {error} (`backline check kernels --forget` removes it)", RuntimeWarning, stacklevel=2)
        return ()


def _content(file: str) -> tuple[LocalErratum, ...]:
    if not file or not os.path.isfile(file):
        return ()
    with open(file, "rb") as stream:
        return _rows(stream.read(MOST_BYTES + 1))


def _rows(content: bytes) -> tuple[LocalErratum, ...]:
    import json  # most machines have no such file

    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES} bytes")
    found = json.loads(content)
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("rows"), list):
        raise ValueError(f"it is no table of errata of version {VERSION}")
    if len(found["rows"]) > MOST_ROWS:
        raise ValueError(f"it has more than {MOST_ROWS} rows")
    return tuple(_row(each) for each in found["rows"])


def _row(values: Any) -> LocalErratum:
    if not isinstance(values, dict) or set(values) != _FIELDS:
        raise ValueError("a row has other fields than it should")
    operations = values["operations"]
    if not isinstance(operations, list):
        raise ValueError("operations of a row are no list")
    for text in (*operations, *(v for k, v in values.items() if k != "operations")):
        if not isinstance(text, str) or len(text) > LONGEST:
            raise ValueError(f"a field of a row is no text of up to {LONGEST} characters")
    if not values["problem"] or not values["library"]:
        raise ValueError("a row names no library or no problem")
    return LocalErratum(**{**values, "operations": tuple(operations)})


def keep(rows: Iterable[LocalErratum]) -> int:
    """Adds rows to the file; returns how many are new. Without rows nothing is written.

    Raises `BadValue` where BACKLINE_ERRATA is empty, so that there is no file, and `OSError` where that is damaged, cannot be
    written, or would be one that is not read again.
    """
    file = path()
    if not file:
        raise BadValue(
            "no row can be kept", cause="BACKLINE_ERRATA is empty, which means no file", remedy="name a file in it, or unset it"
        )
    try:
        known = {(r.library, r.algorithm, r.problem, r.build, r.processor): r for r in _content(file)}
    except (ValueError, RecursionError) as error:
        raise OSError(f"{file} is damaged; `backline check kernels --forget` removes it") from error
    before, rows = len(known), list(rows)
    for row in rows:
        known[row.library, row.algorithm, row.problem, row.build, row.processor] = row
    if rows:
        _write(file, [*known.values()])
    return len(known) - before


def forget() -> int:
    """Removes the file; returns how many rows it had."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        count = len(local_rows())
    file = path()
    if file and os.path.isfile(file):
        os.remove(file)
    return count


def _write(file: str, rows: list[LocalErratum]) -> None:
    import json

    from ..native.whole_file import write_whole

    table = {"version": VERSION, "rows": [{k: v for k, v in asdict(row).items() if k in _FIELDS} for row in rows]}
    content = json.dumps(table, indent=1, sort_keys=True).encode()
    try:
        _rows(content)
    except ValueError as error:
        raise OSError(f"{file} is not written: {error}") from error
    os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
    write_whole(file, content)
