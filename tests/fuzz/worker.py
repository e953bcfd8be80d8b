"""The process that makes calls: it may crash or hang, and leaves in its journal what it was doing."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import struct
import sys
import time
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path

HEAD = struct.Struct("<qqH")
SIZE = 4096


class Journal:
    """The case and the call that runs now, in a file that outlives the process."""

    def __init__(self, path: Path, new: bool = False) -> None:
        if new or not path.exists():
            path.write_bytes(HEAD.pack(-1, 0, 0).ljust(SIZE, b"\0"))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), SIZE)
        self.index, self.calls = -1, 0

    def note(self, text: str) -> None:
        self.calls += 1
        data = text.encode()[:3000]
        self.map[HEAD.size : HEAD.size + len(data)] = data
        HEAD.pack_into(self.map, 0, self.index, self.calls, len(data))

    def close(self) -> None:
        self.map.close()

    def read(self) -> tuple[int, int, str]:
        """Index of the case, calls so far, what was being called."""
        index, calls, length = HEAD.unpack_from(self.map, 0)
        return index, calls, self.map[HEAD.size : HEAD.size + length].decode(errors="replace")


def work(folder: Path, seed: int, first: int, until: float, cases: int, families: str, libraries: str) -> None:
    """Runs cases from `first` on until the time is over or so many were run; faults go to a file as they are found."""
    import backline

    from . import driver  # after the environment is set

    backline.set_num_threads(1)
    journal = Journal(folder / "journal")
    choice = driver.Choice(families, libraries)
    counts: Counter[str] = Counter()
    path = folder / "findings.jsonl"
    seen = {tuple(json.loads(line)["key"]) for line in path.read_text().splitlines()} if path.exists() else set()
    index, saved = first, time.monotonic()
    skipped = folder / "skip.json"
    skip = frozenset(json.loads(skipped.read_text())) if skipped.exists() else frozenset()
    with path.open("a") as out:
        while time.time() < until and cases:
            cases -= 1
            journal.index = index
            journal.note("making the case")
            try:
                case = driver.Case(choice, seed, index)
                found = driver.run_case(case, journal.note, counts, skip=skip)
            except Exception as error:
                # The fuzzer's own mistake, or an operation that fails before it has a Problem: both are to be looked at.
                found = [driver.Finding(getattr(locals().get("case"), "op", "?"), "making the case", type(error).__name__, repr(error), f"{seed}:{index}")]
            counts["cases"] += 1
            for finding in found:
                key = finding.key
                counts["findings"] += 1
                counts["finding " + " | ".join(key)] += 1
                if key in seen:
                    continue
                seen.add(key)
                journal.note(f"shrinking {finding.op} by {finding.by}")
                # Before shrinking, which may crash.
                print(json.dumps({"key": key, **asdict(finding)}), file=out, flush=True)
                smaller = driver.shrink(choice, finding, seed, index)
                if smaller is not finding:
                    print(json.dumps({"key": key, **asdict(smaller)}), file=out, flush=True)
            index += 1
            if time.monotonic() - saved > 2:
                saved = time.monotonic()
                _save(folder, counts)
                # Caches are bounded, but a vendor's may not be: the parent starts another process.
                if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 3 << 20:
                    break
        journal.index = index
        journal.note("the end")
        _save(folder, counts)


def _save(folder: Path, counts: Counter[str]) -> None:
    temporary = folder / f"counts-{os.getpid()}.tmp"
    temporary.write_text(json.dumps(counts))
    temporary.replace(folder / f"counts-{os.getpid()}.json")


def careful() -> None:
    """Bounds what a call may take: one that asks for more is a mistake, and must not take the machine with it."""
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    for name in ("seed", "first", "cases"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--families", default="")
    parser.add_argument("--libraries", default="")
    given = parser.parse_args()
    careful()
    work(given.folder, given.seed, given.first, given.until, given.cases, given.families, given.libraries)


if __name__ == "__main__":
    sys.exit(main())
