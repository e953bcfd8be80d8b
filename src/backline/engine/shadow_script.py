"""Runs a script for `backline check results`: its child process, which computes every call again, or by the other library alone.

Called as ``python shadow_script.py MODE AGAINST TOLERANCE OUTPUT PARENT SCRIPT [ARGUMENTS]``: "beside" or "instead", a library or
"wider", a number or nothing, and what `trace_script` takes.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # this folder is no place to import from

import threading
from typing import Any

from backline.engine.library_remedy import SEVERAL
from backline.engine.result_sketch import sketch
from backline.engine.shadow import Shadow, on_library
from backline.engine.shadow_compare import arrays_of
from backline.engine.shadow_records import ShadowRecord
from backline.engine.tuning import trace_script
from backline.errors import NoKernel

__all__: list[str] = []


class ScriptShadow(Shadow):
    """Computes every call of the process again, and writes down what each was given and returned."""

    def __init__(self, against: str, tolerance: float | None, instead: bool) -> None:
        super().__init__(against, 1, tolerance, "record", None)
        self.instead = instead
        self.tracer = self.sampler()
        self.found: list[dict[str, Any]] = []
        self._here = threading.local()  # the record of the call that this thread makes

    def _note(self, record: ShadowRecord) -> None:
        super()._note(record)
        self._here.record = record

    def _due(self, sampler: Any, operation: Any, plan: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        choice = plan.choice
        inputs = sketch(arrays_of(args, {name: value for name, value in kwargs.items() if name != "out"}))
        self._here.record = None
        result = self._instead(operation, args, kwargs) if self.instead else super()._due(sampler, operation, plan, args, kwargs)
        record = self._here.record
        with self._lock:
            self.found.append({
                "op": choice.problem.op, "key": choice.problem.key, "library": choice.library or SEVERAL, "inputs": inputs,
                "result": sketch(result),
                "tolerance": self._allowed(choice, result), "reason": self.uncompared.get(choice.problem.key, ""),
                "record": None if record is None else record.as_dict(),
            })  # fmt: skip
        return result

    def _instead(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            with on_library(self.against):
                return operation(*args, **kwargs)
        except NoKernel:
            return operation(*args, **kwargs)

    def entries(self) -> list[dict[str, Any]]:
        """Returns what each call was given and returned, and what the comparison found."""
        return self.found


if __name__ == "__main__":
    mode, against, tolerance = sys.argv[1:4]
    shadow = ScriptShadow(against, float(tolerance) if tolerance else None, mode == "instead")
    trace_script.main(sys.argv[4], int(sys.argv[5]), sys.argv[6], sys.argv[7:], shadow)
