"""``python -m backline``: the command line; with a script, or with -m and a module, a program on the libraries chosen for it.

The program runs as under ``backline run --tuned``, or as the variable ``BACKLINE_EXCHANGE`` says, in this process and without
the launcher.
"""

import os
import sys

from backline.cli import app, runs_program
from backline.interop.exchanged_program import main

if __name__ == "__main__":
    if runs_program(sys.argv[1:]):
        sys.exit(main([os.environ.get("BACKLINE_EXCHANGE", "").strip() or "tuned", *sys.argv[1:]]))
    app(prog_name="backline")
