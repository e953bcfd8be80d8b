"""Runs a script for `backline bisect`: its child process, in which some calls are run by the reference library.

Called as ``python bisect_script.py ORDER OUTPUT PARENT SCRIPT [ARGUMENTS]``, the last four as `trace_script` takes them. ORDER is
a file with a JSON object: the reference library, the calls that run as chosen, and the file that calls are written down to.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # this folder is no place to import from

import json
import re
import threading
import time
from collections import Counter
from typing import Any

from backline import _core
from backline.engine.library_remedy import SEVERAL
from backline.engine.shadow import on_library
from backline.engine.tuning import trace_script
from backline.errors import NoKernel

__all__: list[str] = []

clock = time.perf_counter


class Redirected:
    """Runs the calls of the process: those of an order as they would run, the others by the reference library."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.against: str = order["against"]
        # Shape of a Problem -> numbers of the calls, from 1 on, that run as chosen; None for all there are.
        self.chosen: dict[str, set[int]] | None = None
        if order["chosen"] is not None:
            self.chosen = {shape: set(numbers) for shape, numbers in order["chosen"].items()}
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self.lock = threading.Lock()
        self.tracer = _core.CallSampler(self.run, 0)
        # Each call is written down before it runs, so that the record has the one that crashes. It is kept open to the end.
        self.record = open(order["record"], "w", encoding="utf-8") if order["record"] else None  # noqa: SIM115

    def run(self, sampler: Any, operation: Any, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one call."""
        choice = plan.choice
        # Libraries return some results by rows and others by columns: what follows is the same call all the same.
        shape = re.sub(r":[CFX]\b", "", choice.problem.key)
        with self.lock:
            self.counts[shape] += 1
            number = self.counts[shape]
            if self.record is not None:
                call = [choice.library or SEVERAL, choice.algorithm or "", shape, number]
                self.record.write(json.dumps(call) + "\n")
                self.record.flush()
        begin = clock()
        try:
            if self.chosen is None or number in self.chosen.get(shape, ()):
                return operation(*args, **kwargs)
            return self._by_reference(operation, args, kwargs)
        finally:
            with self.lock:
                self.seconds += clock() - begin

    def _by_reference(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            with on_library(self.against):
                return operation(*args, **kwargs)
        except NoKernel:
            return operation(*args, **kwargs)

    def entries(self) -> list[dict[str, Any]]:
        """Returns the time that calls took."""
        return [{"seconds": self.seconds}]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as stream:
        redirected = Redirected(json.load(stream))
    trace_script.main(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:], redirected)
