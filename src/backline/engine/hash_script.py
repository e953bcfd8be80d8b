"""Runs a script and writes down hashes of all that its operations computed: the child process of `backline check determinism`.

Called as ``python hash_script.py LAYOUT OUTPUT PARENT SCRIPT [ARGUMENTS]``: the number of a layout of memory, and what
`trace_script` takes.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # this folder is no place to import from

from backline.engine.run_hashes import RunHashes
from backline.engine.tuning import trace_script
from backline.native.moved_memory import moved_memory

__all__: list[str] = []

if __name__ == "__main__":
    with moved_memory(int(sys.argv[1])):
        trace_script.main(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:], RunHashes())
