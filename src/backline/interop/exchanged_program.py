"""Runs a Python program under an exchange: ``python -m backline.interop.exchanged_program mkl [-m] PROGRAM [ARGUMENTS]``.

It is what ``backline run --blas mkl PROGRAM`` starts. The program sees the arguments, the name ``__main__`` and the import path
that it would have without it; its exit status is the status.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from types import TracebackType

from ..errors import BacklineError, BadType, BadValue

__all__ = ["main", "run_program"]


def main(words: Sequence[str]) -> int:
    """Makes the exchange and runs the program; 2 for a library or a script that does not exist, 1 if the exchange is refused."""
    library, *rest = words
    from ..launch import messages
    from . import child_processes, numpy
    from .exchange.choices import ORIGINAL

    if rest[0] != "-m" and not os.path.exists(rest[0]):
        messages.error(f"there is no script {rest[0]!r}")
        return 2

    try:
        numpy.use(library)
    except (BadValue, BadType) as error:
        messages.error(str(error))
        return 2
    except BacklineError as error:
        messages.error(str(error))
        return 1
    if library != ORIGINAL:
        child_processes.carry(library)
    if library == "tuned":
        for note in numpy.status().notes:
            messages.line(note)
    return run_program(rest)


def run_program(words: Sequence[str]) -> int:
    """Runs a script, or a module after "-m", as Python would: what it raises is shown without the frames above it.

    Returns 2 where there is no such module to run.
    """
    try:
        if words[0] == "-m":
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = words
            sys.path[0] = os.path.dirname(os.path.abspath(words[0]))  # where `python -m` put the working directory
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        if words[0] == "-m" and isinstance(error, ImportError) and _below(error.__traceback__) is None:
            from ..launch import messages

            messages.error(f"there is no module {words[1]!r} to run: {error}")
            return 2
        _show_from_the_program()
        raise
    return 0


def _below(trace: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that is the program's; None where it had not begun."""
    while trace is not None and trace.tb_frame.f_code is not run_program.__code__:
        trace = trace.tb_next
    trace = trace and trace.tb_next
    while trace is not None and trace.tb_frame.f_globals.get("__name__") == "runpy":
        trace = trace.tb_next
    return trace


def _show_from_the_program() -> None:
    """Takes the frames above the program out of what the hook of this process shows of the error that ends it."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = _below(trace)
        shown(kind, error.with_traceback(own), own)

    sys.excepthook = hook


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
