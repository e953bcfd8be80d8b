"""Asks a child process whether a library can be used, so that one that crashes takes the child with it and not us.

The answer is kept in the user's cache folder for as long as the file stays the same.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main", "verdict"]

SECONDS = 60


def verdict(name: str, path: str) -> str:
    """What is wrong with the file as the library of that name, or ""."""
    status = os.stat(path)
    key = f"{name} {path} {status.st_size} {status.st_mtime_ns} {status.st_ino}"
    known = _read()
    if key in known:
        return known[key]
    wrong = _ask(name, path)
    known[key] = wrong
    _write(known)
    return wrong


def _ask(name: str, path: str) -> str:
    import subprocess

    environment = {**os.environ, f"BACKLINE_{name.upper()}_LIBRARY": path, CHILD: "1"}
    try:
        child = subprocess.run(
            [sys.executable, "-c", "from backline.libraries import isolated; isolated.main()", name],
            env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"hangs when asked (no answer in {SECONDS} seconds)"
    if child.returncode < 0:
        import signal

        return f"crashes when asked ({signal.Signals(-child.returncode).name})"
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        return f"fails when asked: {lines[-1] if lines else f'status {child.returncode}'}"
    return child.stdout.strip()


CHILD = "_BACKLINE_PROBED_IN_CHILD"


def main() -> None:
    """In the child: load, probe, print the reason if there is one."""
    from . import get

    library = get(sys.argv[1])
    reason = library.reason()
    print(reason)


def _file() -> str:
    import platformdirs

    return os.path.join(platformdirs.user_cache_dir("backline"), "probes.json")


def _read() -> dict[str, str]:
    import json

    try:
        with open(_file(), encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, ValueError):
        return {}  # a cache: whatever is wrong with it, the probe can be made again
    if not isinstance(content, dict):
        return {}
    return {str(k): str(v) for k, v in content.items()}


def _write(known: dict[str, str]) -> None:
    import json

    path = _file()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(known, stream, indent=0, sort_keys=True)
        os.replace(temporary, path)
    except OSError:
        return  # a read-only home costs a probe in the next process, nothing else
