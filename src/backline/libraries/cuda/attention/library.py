"""Attention of CuPy's arrays by our own kernels in Triton: "flash" and "efficient".

Both are one family of kernels: a running maximum and sum over tiles of keys, so that nothing grows with queries x keys. "flash"
is for half precisions without a mask; "efficient" has masks, float32, and heads whose value has another dim. Which of them may
run a Problem is said by `libraries.attention_constraints`, what the kernels are told is in `_attention_recipe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from .... import switches
from ....problems import Problem
from ....problems.attention_problem import AttentionProblem
from ....switches.definitions import KERNELS
from ...attention_constraints import Facts, refusal
from ...base import Algorithm, Handler, Library, Refusal
from ..common import bindings
from ..common.device_facts import capability, index_of
from ..common.device_plan import DevicePlan, prepared
from . import kernel_compiler as compiler
from . import packaged_kernels as packaged
from .launch_sequence import limits, recipe

__all__ = ["Triton", "disabled", "listed"]

OLDEST = (7, 5)
LANGUAGE, KEY = "triton", "CUDA"
WAYS = {"flash": "flash_attention", "efficient": "efficient_attention", "efficient_tf32": "efficient_attention"}
OPERATIONS = "python_native.disabled_operations"
KEYS = "python_native.disabled_dispatch_keys"
NOTE = "NaN or infinity in a key or value spread even where a mask leaves it out"
PACKAGED = "packaged kernel, which the driver translates"


def disabled(problem: Problem, values: Any) -> tuple[str, str]:
    """Returns why switches disable kernels written in Python for an operation, and which switch; two empty strings if none."""
    language = f"python_native.{LANGUAGE}.enabled"
    if not values[language]:
        return f"{LANGUAGE} is disabled by {language}", language
    if problem.op in values[OPERATIONS]:
        return f"operation {problem.op} is disabled by {OPERATIONS}", OPERATIONS
    if KEY in values[KEYS]:
        return f"dispatch key {KEY} is disabled by {KEYS}", KEYS
    return "", ""


def _unfit(name: str, problem: AttentionProblem, facts: Facts) -> str:
    """Returns why an algorithm cannot run a Problem: the rules of its kernel first, then the limits of our implementation."""
    reason = refusal(WAYS[name], problem, facts)
    if reason:
        return reason
    if facts.capability is None or facts.capability < OLDEST:
        return f"Triton compiles for compute capability 7.5 and newer, not {facts.capability}"
    if name == "efficient_tf32":
        if problem.dtype.name != "float32":
            return f"TF32 is a precision of float32, not of {problem.dtype.name}"
        if facts.capability < (8, 0):
            return f"TF32 takes compute capability 8.0, not {facts.capability}"
    return limits(problem)


def listed(problem: AttentionProblem, facts: Facts, values: Any, absent: str = "") -> Iterator[Algorithm | Refusal]:
    """Lists the Algorithms for attention or its gradients on a device, and Refusals with reasons for the rest.

    `absent` is why there is no Triton, and only the packaged kernels can run; empty where there is one.
    """
    library = Triton.name
    for kernel in KERNELS:
        if kernel == "overrideable":
            yield Refusal(library, kernel, "no extension has registered one")
    off, switch = disabled(problem, values)
    for name, kernel in WAYS.items():
        reason = off or _unfit(name, problem, facts) or (absent and _not_packaged(name, problem, facts, absent))
        if reason:
            yield Refusal(library, name, reason, switch if off else "")
            continue
        precision = "tf32" if name == "efficient_tf32" else "" if problem.dtype.name == "float32" else "f32 accumulation"
        notes = [NOTE] if problem.mask is not None or problem.is_causal else []
        notes += [PACKAGED] if absent else []
        note = "; ".join(notes)
        yield Algorithm(
            library=library, name=name, precision=precision, level="threads", basis="construction", note=note, traits=(kernel,)
        )


def _not_packaged(name: str, problem: AttentionProblem, facts: Facts, absent: str) -> str:
    """Returns why an algorithm that needs Triton cannot run without it; empty if it can."""
    assert facts.capability is not None
    made = recipe(problem, facts.capability, name == "efficient_tf32")
    lacks = packaged.lacks(made)
    if not lacks and packaged.driver_refuses(made):
        return f"{absent}; of the kernels that come with Backline, {packaged.driver_refuses(made)}"
    return f"{absent}; the kernels that come with Backline are none for it: {lacks}" if lacks else ""


def _algorithms(context: Any, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    values = switches.current()
    strict = bool(values["deterministic"]) and not values["warn_only"]
    return listed(problem, Facts(capability(index_of(problem)), strict=strict), values, compiler.reason())


def _prepare(context: Any, problem: AttentionProblem, algorithm: Algorithm) -> DevicePlan:
    from .kernel_launcher import Run

    made = recipe(problem, capability(index_of(problem)), algorithm.name == "efficient_tf32")
    return prepared(problem, lambda: Run(problem, made), f"Triton {algorithm.name}")


class Triton(Library):
    """Kernels in Triton, which compiles them; CuPy loads and launches what it made. Without Triton, those that are packaged."""

    handlers: ClassVar = {AttentionProblem: Handler(_algorithms, _prepare)}

    def reason(self) -> str:
        absent = compiler.reason()
        return bindings.reason("cupy") or ("" if absent and packaged.version() else absent)

    def version(self) -> str | None:
        return (packaged.version() if compiler.reason() else compiler.version()) or None

    def details(self) -> dict[str, Any]:
        absent = compiler.reason()
        config = f"packaged kernels only: {absent}" if absent and self.available() else ""
        return {"version": self.version(), "path": None, "cache": compiler.folder(), "config": config, "pool": ""}
