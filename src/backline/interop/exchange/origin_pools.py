"""The thread counts of the OpenBLAS copies that NumPy and SciPy brought along.

Where most of a package's calls run on another library, the few that are left would wake the old copy's threads between those of
the new one, and each pool waits by spinning: a call that alternates then takes up to ten times as long. So the old copy has one
thread as long as the exchange lasts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...libraries.reference.numpy_threads import openblas_thread_count

__all__ = ["limit", "limited"]

_former: dict[str, int] = {}  # number of threads to put back, by file


def limited() -> tuple[str, ...]:
    """Returns the files of the copies that have one thread now because of an exchange."""
    return tuple(_former)


def limit(files: Iterable[str]) -> None:
    """Sets these copies to one thread, and those that are not named any more to what they had."""
    files = set(files)
    for file in [file for file in _former if file not in files]:
        former, functions = _former.pop(file), openblas_thread_count(file)
        if functions is not None and functions[0]() == 1:  # unless somebody has set it since
            functions[1](former)
    for file in files - set(_former):
        functions = openblas_thread_count(file)
        if functions is not None and functions[0]() > 1:
            _former[file] = functions[0]()
            functions[1](1)
