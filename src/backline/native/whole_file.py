"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["write_whole"]


def write_whole(path: str, content: bytes) -> None:
    """Writes a file, with the permissions that the process gives new ones.

    Where an `OSError` is raised, it names the file, what was there before still is, and nothing is left beside it.
    """
    try:
        _write(path, content)
    except OSError as error:  # not the name of the temporary file, which nobody knows
        raise OSError(error.errno, error.strerror or str(error), path) from None


def _write(path: str, content: bytes) -> None:
    import tempfile

    handle, temporary = tempfile.mkstemp(prefix=".backline-", dir=os.path.dirname(os.path.abspath(path)))
    try:
        with open(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
