"""Fourier transforms by cuFFT, of CuPy's arrays: recipes are carried out on the caller's current stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from ....problems.fft_problem import FftProblem
from ...base import Algorithm, Handler, Planner, Refusal
from ..common import bindings
from ..common.binding_library import BindingLibrary
from ..common.device_facts import capability, index_of
from ..common.device_plan import DevicePlan, at, refuse_overlaps_of_out
from . import transform_plans
from .transform_sequence import half_refusal, recipe, refusal
from .transform_steps import Buffer, Copy, Exec, Recipe, Scale, Slices, Widen, Zero

__all__ = ["CuFFT"]


def _algorithms(context: Any, problem: FftProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    reason = refusal(problem)
    if reason:
        yield Refusal("cufft", "plan", reason)
        return
    if problem.dtype.name == "float16" and problem.axes and not problem.empty:
        reason = half_refusal(problem, capability(index_of(problem)))
        if reason:
            yield Refusal("cufft", "half", reason)
        else:
            note = "computed in float16, whose largest number is 65504"
            yield Algorithm(
                library="cufft", name="half", precision="f16", level="threads", basis="construction", note=note,
                traits=("half transform",),
            )  # fmt: skip
    yield Algorithm(library="cufft", name="plan", level="threads", basis="construction")


def _prepare(planner: Planner, problem: FftProblem, algorithm: Algorithm) -> DevicePlan:
    device = index_of(problem)
    errors = (bindings.cufft().cuFFTError,)
    return DevicePlan(_Run(problem, recipe(problem, algorithm.name), device, planner), device, f"cuFFT, {problem.key}", errors)


class CuFFT(BindingLibrary):
    """libcufft, the GPU library of Fourier transforms."""

    modules = ("cufft",)
    handlers: ClassVar = {FftProblem: Handler(_algorithms, _prepare)}


class _Run:
    """Carries out a recipe."""

    def __init__(self, problem: FftProblem, made: Recipe, device: int, planner: Planner) -> None:
        self.problem, self.recipe, self.device, self.planner = problem, made, device, planner

    def __call__(self, *arrays: Any) -> Any:
        refuse_overlaps_of_out(self.problem, arrays)
        cupy = bindings.cupy()
        made = self.recipe
        for index, multiple in made.needs:
            if at(arrays[made.buffers[index].operand]) % multiple:
                assert made.otherwise is not None
                made = made.otherwise
                break
        buffers = [arrays[b.operand] if b.operand >= 0 else _memory(cupy, b) for b in made.buffers]
        for step in made.steps:
            if isinstance(step, Exec):
                plan = transform_plans.plan(step.key, self.device, self.planner)
                plan.run(at(buffers[step.source]), at(buffers[step.target]), step.direction, step.offsets)
            elif isinstance(step, Copy):
                source, target = _part(buffers[step.source], step.slices), _part(buffers[step.target], step.into)
                if step.conj:
                    cupy.conjugate(source, out=target)
                else:
                    target[...] = source
            elif isinstance(step, Zero):
                part = _part(buffers[step.target], step.slices)
                if step.imag:
                    part = part.imag
                part[...] = 0
            elif isinstance(step, Widen):
                pairs, part = buffers[step.source], _part(buffers[step.target], step.into)
                part.real[...], part.imag[...] = pairs[..., 0], pairs[..., 1]
            else:
                _scale(cupy, buffers[step.target], step)
        return buffers[made.result]


def _memory(cupy: Any, buffer: Buffer) -> Any:
    """A new array that lies as a buffer says."""
    shape = tuple(buffer.shape[axis] for axis in buffer.order)
    if buffer.pairs:
        shape = (*shape, 2)
    made = cupy.empty(shape, buffer.dtype)
    if buffer.order == tuple(range(len(buffer.shape))):
        return made
    back = [buffer.order.index(axis) for axis in range(len(buffer.shape))]
    return made.transpose((*back, len(back)) if buffer.pairs else back)


def _part(array: Any, slices: Slices) -> Any:
    return array[tuple(slice(*s) for s in slices)]


def _scale(cupy: Any, array: Any, step: Scale) -> None:
    # As real numbers: an infinity times a complex number has no infinite part that is not multiplied by its zero.
    parts = array[..., None].view(array.dtype.char.lower()) if array.dtype.kind == "c" else array
    cupy.multiply(parts, step.factor, out=parts)
