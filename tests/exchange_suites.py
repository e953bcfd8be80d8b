"""The linear algebra tests that NumPy and SciPy ship, under each library: ``make test-exchange``.

Each suite runs in a process of its own, first on what NumPy and SciPy brought along, then exchanged for each library. A test that
fails there, and not in the first run, has to be in `EXCEPTIONS` with the reason. The exit status is 0 if there is no other.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence

SUITES = (
    "numpy.linalg", "scipy.linalg", "scipy.sparse.linalg", "numpy.fft", "scipy.fft", "scipy.optimize.tests.test_lsq_linear",
    "scipy.optimize.tests.test_nnls", "scipy.optimize.tests.test_least_squares", "scipy.optimize.tests.test_minpack",
)  # fmt: skip

EXCEPTIONS: dict[tuple[str, str], dict[str, str]] = {}
"""By suite and library: part of a test's name, and why it may fail."""

PROGRAM = """
import sys
import numpy, scipy.linalg, pytest
from backline.interop import numpy as exchange
exchange.use(sys.argv[1])
options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "-rfE"]
status = pytest.main(["--pyargs", sys.argv[2], *options, *sys.argv[3:]])
now = exchange.status()
print("addresses:", now.slots)
assert now.choice == sys.argv[1]
sys.exit(status)
"""


def failures(suite: str, library: str, more: Sequence[str]) -> tuple[set[str], str]:
    """The names of the tests that fail, and the last lines that pytest prints."""
    # Fast tests of each package; those marked slow take minutes and test no other routines.
    command = [sys.executable, "-c", PROGRAM, library, suite, "-m", "not slow", "-W", "ignore", *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/tmp")
    found = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE))
    lines = [line for line in result.stdout.splitlines() if re.search(r"\d+ (passed|failed|error)|^addresses", line)]
    if result.returncode not in (0, 1) or not lines or (result.returncode == 1 and not found):
        # Never the same as in another run: a run that breaks off is a failure under each library.
        found.add(f"the run on {library} ended with status {result.returncode}: {(result.stdout + result.stderr)[-1500:]}")
    return found, "; ".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--libraries", default="mkl,openblas,blis")
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("more", nargs="*", help="arguments for pytest, after --")
    args = parser.parse_args()
    from backline import libraries

    wrong = 0
    for suite in args.suites.split(","):
        usual, last = failures(suite, "numpy", args.more)
        print(f"{suite} as it is: {last}", *sorted(usual), sep="\n  ", flush=True)
        for library in args.libraries.split(","):
            if not libraries.get(library).available():
                print(f"{suite} on {library}: not available: {libraries.get(library).reason()}")
                continue
            found, last = failures(suite, library, args.more)
            argued = EXCEPTIONS.get((suite, library), {})
            new = {test for test in found - usual if not any(part in test for part in argued)}
            print(
                f"{suite} on {library}: {last}; {len(found - usual) - len(new)} argued, {len(new)} not",
                *sorted(new),
                sep="\n  ",
                flush=True,
            )
            wrong += len(new)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
