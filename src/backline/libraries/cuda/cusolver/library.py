"""cuSOLVER: dense linear algebra of CuPy's arrays, with cuBLAS's routines for batches and triangles.

Which routines run is decided in `cusolver_rules` and `cusolver_table`, for any device; a Plan makes the calls. Float32 is never
reduced to tf32 here, whatever the switches say of products. Calls that may raise wait for the device (see `Recipe.waits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np

from .... import switches
from ....problems.linalg_problem import LinalgProblem
from ...base import Algorithm, Handler, Planner, Refusal
from ...numpy.library import WRAP
from ...reference.empty_results import empty
from ..common import bindings
from ..common.binding_library import BindingLibrary
from ..common.device_facts import capability, index_of
from ..common.device_plan import DevicePlan, refuse_overlaps
from ..cublas.library import workspace_bytes
from .matrix_stacks import Settings
from .routine_table import choose, recipes, refusals
from .routines import Solver
from .solver_operations import OPERATIONS, Call
from .thresholds import Version

__all__ = ["CuSOLVER", "finish", "listed"]

PREFERENCE = "cuda.preferred_linalg_library"


def listed(problem: LinalgProblem, version: Version, preference: str) -> Iterator[Algorithm | Refusal]:
    """Lists cuSOLVER's Refusals and Algorithms for a Problem: the rules' choice first, then Algorithms to compare it with."""
    if problem.op not in OPERATIONS:
        yield Refusal("cusolver", "", f"it has no {problem.op}", lacks=True)
        return
    for name, reason in refusals(problem, version, preference):
        yield Refusal("cusolver", name, reason)
    for recipe in recipes(problem, version, preference):
        # Its makers promise the same bits in each run, unless they are let off; threads of the CPU have no part in it.
        level, basis = ("off", "promise") if recipe.any_order else ("threads", "promise")
        notes = [recipe.note, "sums in any order" if recipe.any_order else "", f"waits: {recipe.waits}" if recipe.waits else ""]
        yield Algorithm(library="cusolver", name=recipe.name, level=level, basis=basis, note="; ".join(filter(None, notes)))


def finish(problem: LinalgProblem, arrays: tuple[Any, ...], parts: tuple[Any, ...]) -> Any:
    """Results in the outputs that the caller gave, if any, and in the operation's named tuple."""
    outs = sorted(o.role for o in problem.operands if o.role.startswith("out"))
    if outs:
        given = [arrays[problem.index(role) or 0] for role in outs]
        for out, part in zip(given, parts, strict=True):
            out[...] = part
        parts = tuple(given)
    wrap = WRAP.get((problem.op, problem.parameter("check", True)))
    return wrap(*parts) if wrap else parts[0]


def refuse_outputs(problem: LinalgProblem, arrays: tuple[Any, ...]) -> None:
    """Refuse an output that overlaps another array of the call."""
    pairs = list(zip(arrays, problem.operands, strict=True))
    for i, (array, operand) in enumerate(pairs):
        if operand.role.startswith("out"):
            others = [pair for j, pair in enumerate(pairs) if j != i and (j > i or not pair[1].role.startswith("out"))]
            refuse_overlaps(array, operand, others)


def _run(problem: LinalgProblem, settings: Settings, *arrays: Any) -> Any:
    refuse_outputs(problem, arrays)
    roles = {o.role: array for o, array in zip(problem.operands, arrays, strict=True)}
    if settings.recipe.ways == ("empty",):
        return finish(problem, arrays, empty(problem, roles, bindings.cupy()))
    return finish(problem, arrays, OPERATIONS[problem.op](Call(problem, Solver(settings), roles)))


def _algorithms(version: Version, problem: LinalgProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    return listed(problem, version, str(switches.get(PREFERENCE)))


def _prepare(version: Version, problem: LinalgProblem, algorithm: Algorithm) -> DevicePlan:
    snapshot, device = switches.current(), index_of(problem)
    recipe = choose(problem, algorithm.name, version, str(snapshot[PREFERENCE]))
    workspace = workspace_bytes("cublas", snapshot, capability(device))
    settings = Settings(recipe, device, np.dtype(problem.dtype), bool(snapshot["deterministic"]), workspace)
    errors = (bindings.cusolver().cuSOLVERError, bindings.cublas().cuBLASError)
    return DevicePlan(partial(_run, problem, settings), device, f"cuSOLVER {algorithm.name}", errors)


class CuSOLVER(BindingLibrary):
    """libcusolver, called through nvmath's binding."""

    modules = ("cublas", "cusolverDn")
    handlers: ClassVar = {LinalgProblem: Handler(_algorithms, _prepare)}

    def context(self, planner: Planner) -> Version:
        told = (self.version() or "").split(".")
        return tuple(map(int, told)) if all(part.isdigit() for part in told) else None
