"""Kernels written in a Python kernel language, as a library: what `overrides` holds for an operation comes before all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..problems import Problem
from . import overrides
from .base import NULL_PLANNER, Algorithm, Library, Planner, PythonPlan, Refusal

__all__ = ["PythonKernels"]


class PythonKernels(Library):
    """The overrides that are registered; it has nothing for operations without one."""

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return None

    def concerns(self, kind: type[Problem], op: str, device: str) -> bool:
        return overrides.registered(op, overrides.KEYS[device.partition(":")[0]])

    def _considered(self, problem: Problem) -> dict[str, overrides.Verdict]:
        key = overrides.KEYS[problem.device.partition(":")[0]]
        found: dict[str, overrides.Verdict] = {}
        for verdict in overrides.considered(problem.op, key, problem):
            name = verdict.override.language
            same = sum(other.rstrip("0123456789 ") == name for other in found)
            found[f"{name} {same + 1}" if same else name] = verdict
        return found

    def algorithms(self, problem: Problem, threads: int, planner: Planner = NULL_PLANNER) -> Iterator[Algorithm | Refusal]:
        for name, verdict in self._considered(problem).items():
            if verdict.reason:
                yield Refusal(self.name, name, verdict.reason, verdict.switch)
            else:
                # What such a kernel promises of its bits nobody can tell here.
                which = f"override {id(verdict.override)}"  # a plan that was made for another one is no plan for this
                yield Algorithm(
                    library=self.name, name=name, level="off", traits=("override", which), note="in the operation's place"
                )

    def prepare(self, problem: Problem, algorithm: Algorithm, planner: Planner = NULL_PLANNER) -> Any:
        return PythonPlan(self._considered(problem)[algorithm.name].override.function)

    def details(self) -> dict[str, Any]:
        return {"path": None}
