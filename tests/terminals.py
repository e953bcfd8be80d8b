"""Runs the command line on a pseudo-terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

from processes import started

__all__ = ["on_terminal", "plain"]

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(columns: int, *arguments: str, status: int = 0, **more: str) -> str:
    """Returns what `backline` writes to a terminal of so many columns, stdout and stderr together."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "backline", *arguments]
    environment = clean | {"TERM": "xterm-256color"} | more
    with started(command, stdin=subprocess.DEVNULL, stdout=side, stderr=side, env=environment) as child:
        os.close(side)
        text = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # how Linux tells that the other side is closed
                break
            if not part:
                break
            text += part
        os.close(main)
        assert child.wait() == status, text.decode()
    return text.decode().replace("\r\n", "\n")


def plain(text: str) -> list[str]:
    """The lines that are left on the terminal: without colours, and of a bar the last state."""
    return [ESCAPE.sub("", line).rpartition("\r")[2] for line in text.split("\n")]
