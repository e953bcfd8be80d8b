"""The command: ``python -m fuzz --seconds 3600 --seed 7``, or ``--case 7:1234`` to repeat one."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from .worker import Journal, careful

TESTS = Path(__file__).parents[1]
# Fresh memory is filled with 0xFE, which is no plausible number; threads that wait do not keep a core busy.
ENVIRONMENT = {
    "MALLOC_PERTURB_": "1", "OMP_WAIT_POLICY": "PASSIVE", "BACKLINE_CONFIG": "", "BACKLINE_TUNING": "", "PYTHONFAULTHANDLER": "1",
}  # fmt: skip


class Run:
    """A series of child processes that work through the cases of a seed."""

    def __init__(self, folder: Path, seed: int, families: str = "", libraries: str = "", limit: float = 60.0, prelude: str = "", shrink: bool = True) -> None:
        self.folder, self.seed, self.families, self.libraries, self.limit = folder, seed, families, libraries, limit
        self.shrink = shrink  # whether crashes are made smaller, which takes a process for each attempt
        self.prelude = prelude  # a program that the child runs first; tests plant faults with it
        self.lost: Counter[str] = Counter()  # what crashed or stood still, how often
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, seconds: float, last: int | None = None, first: int = 0) -> None:
        """Runs cases from `first` on, up to `last` or until the time is over."""
        until, index = time.time() + seconds, first
        while time.time() < until and (last is None or index < last):
            journal = Journal(self.folder / "journal", new=True)
            try:
                ended, log = self._child(index, until, -1 if last is None else last - index, journal)
                reached, _calls, what = journal.read()
            finally:
                journal.close()
            if reached < 0:
                raise SystemExit(f"the fuzzer does not start: {ended}\n{log[-3000:]}")
            index = reached
            if what != "the end":
                self._lose(reached, what, ended, log)
                index += 1

    def _child(self, first: int, until: float, cases: int, journal: Journal) -> tuple[str, str]:
        """Runs a child until it ends, crashes or stands still; how it ended, and what it wrote."""
        words = {
            "folder": self.folder, "seed": self.seed, "first": first, "until": until, "cases": cases,
            "families": self.families, "libraries": self.libraries,
        }  # fmt: skip
        arguments = [f"--{k}={v}" for k, v in words.items()]
        command = [sys.executable, "-m", "fuzz.worker", *arguments]
        if self.prelude:
            command = [sys.executable, "-c", f"{self.prelude}\nfrom fuzz import worker\nworker.main()", *arguments]
        with tempfile.TemporaryFile("w+") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment())
            last, since = None, time.monotonic()
            try:
                while child.poll() is None:
                    time.sleep(0.2)
                    now = journal.read()
                    if now != last:
                        last, since = now, time.monotonic()
                    elif time.monotonic() - since > (self.limit if now[0] >= 0 else self.limit * 4):
                        child.kill()
                        child.wait()
                        return "hang", _read(log)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
            return ("ended" if child.returncode == 0 else f"status {child.returncode}"), _read(log)

    def _lose(self, index: int, what: str, ended: str, log: str) -> None:
        """Notes a crash or hang: the case, what ran, and the end of what was written. What crashed three times is not run again."""
        op, _, by = what.removeprefix("shrinking ").partition(" by ")
        kind = "hang" if ended == "hang" else f"crash, {ended}"
        self.lost[what] += 1
        if self.lost[what] == 3:
            skip = sorted(name for name, count in self.lost.items() if count >= 3)
            (self.folder / "skip.json").write_text(json.dumps(skip))
        code, case = ("", f"{self.seed}:{index}") if self.lost[what] > 1 else self._smaller(f"{self.seed}:{index}", by, ended)
        finding = {"key": [op, by, kind], "op": op, "by": by, "kind": kind, "text": log[-1500:], "case": case, "code": code}
        if self.lost[what] == 1:
            with (self.folder / "findings.jsonl").open("a") as out:
                print(json.dumps(finding), file=out, flush=True)

    def _smaller(self, case: str, by: str, ended: str) -> tuple[str, str]:
        """A program for the same crash with smaller sizes, and its case: each attempt is a process of its own."""
        if not by or ended == "hang" or not self.shrink:
            return "", case
        for plain in ("2LVO", "2VO", "4LVO", "4VO", "9LVO", "9VO", "17VO", "0LVO", "0VO", "0O", "0"):
            command = [sys.executable, "-m", "fuzz", f"--case={case}:{plain}", f"--by={by}", f"--families={self.families}", f"--libraries={self.libraries}"]
            tried = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=self.limit * 2, check=False)
            if tried.returncode < 0:
                return tried.stdout.partition("\nrunning ")[0], f"{case}:{plain}"
        return "", case

    @staticmethod
    def _environment() -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
        return {**os.environ, **ENVIRONMENT, "PYTHONPATH": path}

    def summary(self) -> dict[str, Any]:
        """Counts, and the findings: for each key the smallest case."""
        counts: Counter[str] = Counter()
        for path in self.folder.glob("counts-*.json"):
            counts.update(json.loads(path.read_text()))
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        path = self.folder / "findings.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            finding = json.loads(line)
            key = tuple(finding.pop("key"))
            finding["count"] = counts.get("finding " + " | ".join(key)) or max(self.lost[f"{key[0]} by {key[1]}"], 1)
            found[key] = finding
        plain = {k: v for k, v in sorted(counts.items()) if not k.startswith("finding ")}
        return {"seed": self.seed, "counts": plain, "calls": sum(v for k, v in plain.items() if k.startswith("library ")), "findings": list(found.values())}


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())


def repeat(case: str, by: str, families: str, libraries: str) -> int:
    """Runs one case here, and prints what it calls and what was wrong."""
    import backline

    from . import driver
    from .arrays import Plain

    careful()
    backline.set_num_threads(1)
    seed, index, *plain = case.split(":")
    made = driver.Case(driver.Choice(families, libraries), int(seed), int(index), Plain.parse(plain[0]) if plain else None)
    print(driver.code_of(made), flush=True)
    found = driver.run_case(made, lambda text: print("running", text, flush=True), Counter(), by)
    for finding in found:
        print(f"\n{finding.op} by {finding.by}: {finding.kind}\n    {finding.text}")
    return 1 if found else 0


def report(summary: dict[str, Any], seconds: float) -> None:
    counts = summary["counts"]
    print(f"seed {summary['seed']}: {counts.get('cases', 0)} cases, {summary['calls']} calls in {seconds:.0f} s")
    for f in summary["findings"]:
        print(f"\n{f['op']} by {f['by']}: {f['kind']} (seen {f['count']} times)\n    {f['text'][:600]}\n    make fuzz CASE={f['case']}")
        if f["code"]:
            print("    " + f["code"].replace("\n", "\n    "))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first case's number")
    parser.add_argument("--families", default="", help="families or operations, with commas between them; default: all")
    parser.add_argument("--libraries", default="", help="libraries alone; default: all, and the default choice")
    parser.add_argument("--case", default="", help="SEED:NUMBER, and what it was shrunk to: runs this case alone")
    parser.add_argument("--by", default="", help="with --case: runs what runs it by this name alone")
    parser.add_argument("--json", type=Path, help="a file for counts and findings")
    given = parser.parse_args()
    if given.case:
        return repeat(given.case, given.by, given.families, given.libraries)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="backline-fuzz-") as folder:
        run = Run(Path(folder), given.seed, given.families, given.libraries)
        try:
            run.run(given.seconds, first=given.first)
        except KeyboardInterrupt:
            print("interrupted")
        summary = run.summary()
    report(summary, time.monotonic() - started)
    if given.json:
        given.json.write_text(json.dumps(summary, indent=1))
    return 1 if summary["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
