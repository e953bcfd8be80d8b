"""Start instances of a program, each on cores and memory of its own::

    python -m backline.backends.xeon.run_cpu [options] program [args...]

``backline run`` is the same command. docs/launcher.md explains the options; ``--help`` lists them.
"""

from __future__ import annotations

import sys

from backline.launch.arguments import create_args
from backline.launch.launcher import command, main
from backline.launch.topology import CPUInfo

__all__ = ["CPUInfo", "create_args", "main"]

if __name__ == "__main__":
    sys.exit(command())
