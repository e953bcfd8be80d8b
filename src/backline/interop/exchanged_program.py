"""Runs a Python program under an exchange: ``python -m backline.interop.exchanged_program mkl [-m] PROGRAM [ARGUMENTS]``.

It is what ``backline run --blas mkl PROGRAM`` starts. The program sees the arguments, the name ``__main__`` and the import path
that it would have without it; its exit status is the status.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

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
    """Runs a script, or a module after "-m", as Python would."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))  # where `python -m` put the working directory
        runpy.run_path(words[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
