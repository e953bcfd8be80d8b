"""Catches what native code writes to standard output during one call, and hands it to the user's own ``sys.stdout``.

A library prints through C's ``stdout`` to file descriptor 1, past ``sys.stdout``: in a notebook, or where ``sys.stdout`` was
replaced, its lines would go elsewhere. Descriptor 1 leads to a file in memory for the length of the call, so no pipe can fill up.

The descriptor belongs to the whole process. What other threads write to it meanwhile is passed on to where it was going; a
program that one of them starts during the call keeps the file as its standard output, and what it prints is lost.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any

__all__ = ["Capture", "turn"]

_STDOUT = 1
_FIRST_OTHER = 3  # a descriptor below would take the place of a standard one that is closed
_LINE_BUFFERED = 1  # _IOLBF

_turn = threading.RLock()
_watching = False


def turn() -> threading.RLock:
    """The lock that a thread holds while it has descriptor 1, or a library's verbose level, to itself."""
    global _watching
    if not _watching:
        _watching = True
        # The process does not end while descriptor 1 leads into memory, where what is printed last would be lost; a thread that
        # runs on for longer is not waited for.
        atexit.register(_turn.acquire, timeout=10)
        if hasattr(os, "register_at_fork"):  # nor does it fork: the child would print to where nobody reads
            os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)
    return _turn


class Capture:
    """A scope that catches what is written to descriptor 1.

    Leaving it passes on what was caught: the library's lines to ``sys.stdout``, the rest to the descriptor. Where ``sys.stdout``
    is that descriptor, all goes there as it came. Where the descriptor cannot be caught, the call runs without.

    Parameters
    ----------
    prefixes
        How lines of the library begin; none: every line is the library's.

    Attributes
    ----------
    lines
        After leaving: the library's lines, without their ends.
    """

    def __init__(self, prefixes: tuple[str, ...] = ()) -> None:
        self.lines: list[str] = []
        self._prefixes = tuple(prefix.encode() for prefix in prefixes)
        self._caught: list[bytes] = []  # the library's lines as they came
        self._file = self._saved = -1
        self._place = 0
        self._stream: Any = None

    def __enter__(self) -> Capture:
        turn().acquire()
        try:
            self._stream = sys.stdout
            self._direct = _is_descriptor(self._stream)
            if self._direct and self._stream is not None:
                # What the user printed before comes before. If that fails, so will the user's next print(), which says so.
                with suppress(Exception):
                    self._stream.flush()
            _flush(first=True)
            self._redirect()
        except BaseException:
            self._put_back()
            _turn.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            try:
                _flush()
                self._pass_on(self._saved)
            finally:
                self._put_back()
        finally:
            _turn.release()
        self.lines = [line.decode(errors="backslashreplace").rstrip("\r\n") for line in self._caught]
        if self._caught and not self._direct:
            self._tell(b"".join(self._caught))

    def _redirect(self) -> None:
        try:
            import fcntl

            self._file = _in_memory()
            try:
                self._saved = fcntl.fcntl(_STDOUT, fcntl.F_DUPFD_CLOEXEC, _FIRST_OTHER)
            except OSError:  # closed: take the place, unless another thread just did
                taken = fcntl.fcntl(self._file, fcntl.F_DUPFD, _STDOUT)
                if taken != _STDOUT:
                    os.close(taken)
                    raise
            else:
                os.dup2(self._file, _STDOUT)
        except (ImportError, OSError):  # no such system call, or no descriptor left: the library prints where it would anyway
            for descriptor in (self._file, self._saved):
                if descriptor >= 0:
                    os.close(descriptor)
            self._file = self._saved = -1

    def _pass_on(self, to: int) -> None:
        """Sort what has come since the last time: the library's lines are kept, the others go to a descriptor."""
        if self._file < 0:
            return
        others = []
        for line in self._read().splitlines(keepends=True):
            mine = not self._prefixes or line.startswith(self._prefixes)
            if mine:
                self._caught.append(line)
            if self._direct or not mine:
                others.append(line)
        _write(to, b"".join(others))

    def _read(self) -> bytes:
        parts = []
        while part := os.pread(self._file, 1 << 20, self._place):
            self._place += len(part)
            parts.append(part)
        return b"".join(parts)

    def _put_back(self) -> None:
        if self._file < 0:
            return
        try:
            if os.path.sameopenfile(self._file, _STDOUT):  # else somebody has put another file there, which is to stay
                if self._saved >= 0:
                    os.dup2(self._saved, _STDOUT)
                else:
                    os.close(_STDOUT)
        except OSError:
            pass  # somebody has closed it, which is to stay too
        finally:
            self._pass_on(self._saved)  # what another thread wrote in the last instant
            os.close(self._file)
            if self._saved >= 0:
                os.close(self._saved)
            self._file = self._saved = -1

    def _tell(self, text: bytes) -> None:
        try:
            self._stream.write(text.decode(errors="backslashreplace"))
        except Exception:  # a stranger's stream must not cost the result of a computation
            _write(_STDOUT, text)


def _is_descriptor(stream: Any) -> bool:
    """Tells if a stream writes to descriptor 1, as far as that can be known."""
    if stream is None:
        return True
    try:
        return bool(stream.fileno() == _STDOUT)
    except Exception:  # most streams without a descriptor raise OSError, but it may be any object
        return False


def _in_memory() -> int:
    """A descriptor of a new file that has no name."""
    import fcntl

    try:
        made = os.memfd_create("backline")
    except (AttributeError, OSError):  # another system, or a sandbox
        import tempfile

        with tempfile.TemporaryFile() as file:
            return fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_OTHER)
    if made >= _FIRST_OTHER:
        return made
    try:
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, _FIRST_OTHER)
    finally:
        os.close(made)


def _write(descriptor: int, text: bytes) -> None:
    """Write all of it; where nobody reads any more there is nobody to tell."""
    rest = memoryview(text)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            import select

            select.select([], [descriptor], [])
        except OSError:
            return


@cache
def _c_stdout() -> tuple[Any, Any] | None:
    """The C library and its ``stdout``, or None where it has another name."""
    try:
        c = ctypes.CDLL(None)
        return c, ctypes.c_void_p.in_dll(c, "__stdoutp" if sys.platform == "darwin" else "stdout")
    except (OSError, TypeError, ValueError):
        return None


def _flush(first: bool = False) -> None:
    """Flush C's ``stdout``. Not all streams: one that another thread reads from would make this wait for its input."""
    found = _c_stdout()
    if found is None:
        return
    c, stdout = found
    if first and hasattr(c, "__fbufsize"):
        c.__fbufsize.restype = ctypes.c_size_t
        # It takes its kind of buffer from what descriptor 1 is when it is first used. That must be the terminal, not our file.
        if c.__fbufsize(stdout) == 0 and os.isatty(_STDOUT):
            c.setvbuf(stdout, None, _LINE_BUFFERED, ctypes.c_size_t(0))
    c.fflush(stdout)
