"""Attention of CuPy's arrays by our own kernels in Triton: "flash" and "efficient".

Both are one family of kernels: a running maximum and sum over tiles of keys, so that nothing grows with queries x keys. "flash"
is for half precisions without a mask; "efficient" has masks, float32, and heads whose value has another dim. Which of them may
run a Problem is said by `libraries.attention`, what the kernels are told is in `_attention_recipe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ... import switches
from ...problems import Problem
from ...problems.attention import AttentionProblem
from ...switches.table import KERNELS
from ..attention import Facts, refusal
from ..base import Algorithm, Library, Refusal
from . import _attention_compile as compiler
from . import _bindings
from ._attention_recipe import limits, recipe
from ._device import capability, index_of
from ._plan import DevicePlan

__all__ = ["Triton", "disabled", "listed"]

OLDEST = (7, 5)
WAYS = {"flash": "flash_attention", "efficient": "efficient_attention", "efficient_tf32": "efficient_attention"}
OPERATIONS = "python_native.disabled_operations"
KEYS = "python_native.disabled_dispatch_keys"
NOTE = "NaN or infinity in a value spread even where a mask leaves its key out"


def disabled(problem: Problem, values: Any) -> tuple[str, str]:
    """Why switches keep kernels written in Python from an operation, and which; two empty strings if none does.

    Parameters
    ----------
    problem
        What is asked, of arrays of CUDA.
    values
        Of the switches, by name.
    """
    if problem.op in values[OPERATIONS]:
        return f"operation {problem.op} is disabled by {OPERATIONS}", OPERATIONS
    if "CUDA" in values[KEYS]:
        return f"dispatch key CUDA is disabled by {KEYS}", KEYS
    return "", ""


def _unfit(name: str, problem: AttentionProblem, facts: Facts) -> str:
    """Why a way is none for a Problem: the rules of its kernel, and then what ours cannot do."""
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


def listed(problem: Problem, facts: Facts, values: Any) -> Iterator[Algorithm | Refusal]:
    """What there is for a Problem on a device, and why the rest is not.

    Parameters
    ----------
    problem
        Attention, or its gradients.
    facts
        Of the device.
    values
        Of the switches, by name.
    """
    library = Triton.name
    if not isinstance(problem, AttentionProblem):
        yield Refusal(library, "", f"our kernels are for attention, not {problem.op}")
        return
    for kernel in KERNELS:
        if kernel == "overrideable":
            yield Refusal(library, kernel, "no extension has registered one")
    off, switch = disabled(problem, values)
    for name, kernel in WAYS.items():
        reason = off or _unfit(name, problem, facts)
        if reason:
            yield Refusal(library, name, reason, switch if off else "")
            continue
        precision = "tf32" if name == "efficient_tf32" else "" if problem.dtype.name == "float32" else "f32 accumulation"
        note = NOTE if problem.mask is not None or problem.is_causal else ""
        yield Algorithm(library, name, 1, False, precision, "threads", "construction", "", note, (kernel,))


class Triton(Library):
    """Kernels in Triton, which compiles them; CuPy loads and launches what it made."""

    name = "triton"
    title = "attention kernels in Triton"
    families = ("attention",)
    devices = ("cuda",)
    switch = "python_native.triton.enabled"
    kernels = ("flash_attention", "efficient_attention")
    how_to_get = compiler.HOW_TO_GET

    def reason(self) -> str:
        return _bindings.reason("cupy") or compiler.reason()

    def version(self) -> str | None:
        return compiler.version() or None

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        values = switches.current()
        strict = bool(values["deterministic"]) and not values["warn_only"]
        yield from listed(problem, Facts(capability(index_of(problem)), strict=strict), values)

    def prepare(self, problem: Problem, algorithm: Algorithm) -> DevicePlan:
        from ._attention_launch import Run

        assert isinstance(problem, AttentionProblem)
        device = index_of(problem)
        made = recipe(problem, capability(device), algorithm.name == "efficient_tf32")
        with _bindings.cupy().cuda.Device(device):
            function = Run(problem, made)
        return DevicePlan(function, device, f"Triton {algorithm.name}", ())

    def report(self) -> dict[str, Any]:
        reason = self.reason()
        facts = {"name": self.name, "title": self.title, "available": not reason, "reason": reason}
        return facts | {"version": self.version(), "path": None, "cache": compiler.folder(), "pool": ""}
