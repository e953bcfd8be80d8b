"""Launches of compiled kernels: modules are CuPy's, and so are arrays and streams."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from ....errors import BackendUnavailable
from ....problems.attention_problem import AttentionGrads, AttentionLSE, AttentionProblem
from ..common import alignment, bindings, faults, ptx_versions
from . import kernel_compiler as compiler
from . import packaged_kernels as packaged
from .launch_sequence import KERNELS, Recipe, Step, Tile, parameters, signed

__all__ = ["Run"]

ALIGNED = 16  # bytes: what the kernels' loads rely on
NO_SCRATCH = (np.uint64(0), np.uint64(0))  # two parameters that Triton adds
SCALARS: dict[str, Any] = {"i32": np.int32, "i64": np.int64, "fp32": np.float32}


class _Launch(NamedTuple):
    function: Any
    grid: tuple[int]
    block: tuple[int]
    pointers: tuple[str, ...]
    scalars: tuple[Any, ...]
    seed_at: int | None  # the place of the seed among them; None where there is none
    shared: int

    def seeded(self, seed: int) -> tuple[Any, ...]:
        """The scalars with a seed, of which the low 64 bits count."""
        if self.seed_at is None:
            return self.scalars
        return (*self.scalars[: self.seed_at], np.int64(signed(seed)), *self.scalars[self.seed_at + 1 :])


class Run:
    """A recipe of attention, or of its gradients, for the device that is current, as a function of the arrays of a call."""

    def __init__(self, problem: AttentionProblem, made: Recipe) -> None:
        self.roles = tuple(o.role for o in problem.operands)
        self.made = {each.role: (each.shape, np.dtype(problem.dtype if each.dtype != "float32" else "f4")) for each in made.made}
        self.results = made.results
        self.launches = tuple(_prepared(step) for step in made.steps)

    def __call__(self, *arrays: Any, seed: int = 0) -> Any:
        cupy = bindings.cupy()
        at = {role: _read(role, array) for role, array in zip(self.roles, arrays, strict=True)}
        at |= {role: cupy.empty(shape, dtype) for role, (shape, dtype) in self.made.items()}
        for launch in self.launches:
            pointers = (np.uint64(at[role].data.ptr if role else 0) for role in launch.pointers)
            arguments = (*pointers, *(launch.seeded(seed) if seed else launch.scalars), *NO_SCRATCH)
            launch.function(launch.grid, launch.block, arguments, shared_mem=launch.shared)
        if len(self.results) == 1:
            return at[self.results[0]]
        if len(self.results) == 2:
            return AttentionLSE(*(at[role] for role in self.results))
        query, key, value = (at[role] for role in self.results)
        return AttentionGrads(query, key, value, None)


def _read(role: str, array: Any) -> Any:
    """An operand as the kernels read it: results of the forward pass without gaps, and all but a mask aligned."""
    if role in ("output", "lse"):
        array = bindings.cupy().ascontiguousarray(array)
    return array if role == "mask" else _aligned(array)


def _aligned(array: Any) -> Any:
    """The array, or a dense copy of one that does not start where the kernels read from.

    The copy has the strides of the array, in elements: the kernel was compiled for them.
    """
    return array if array.data.ptr % ALIGNED == 0 else alignment.copied(array, ALIGNED)


def _kernel(step: Step) -> tuple[Tile, compiler.Compiled]:
    """A kernel for a step, and its tile: Triton's; where there is no Triton, the packaged one."""
    absent = compiler.reason()
    if not absent:
        return compiler.chosen(step)
    found = packaged.find(step)
    if found is None:
        raise BackendUnavailable(f"there is no Triton to compile {step.variant.kernel}", cause=absent, remedy=compiler.HOW_TO_GET)
    return found


def _prepared(step: Step) -> _Launch:
    tile, compiled = _kernel(step)
    kinds = [kind for _, kind, _ in parameters(step.variant)][len(KERNELS[step.variant.kernel][0]) :]
    scalars = tuple(SCALARS[kind](value) for kind, value in zip(kinds, step.scalars, strict=True))
    names = KERNELS[step.variant.kernel][1]
    seed_at = names.index("seed") if "seed" in names else None
    block = (32 * compiled.warps,)
    return _Launch(_function(compiled), (step.programs(tile),), block, step.pointers, scalars, seed_at, compiled.shared)


def _function(compiled: compiler.Compiled) -> Any:
    """The kernel, loaded for the current device; from its PTX where the driver does not take the cubin."""
    cupy = bindings.cupy()
    key = (cupy, cupy.cuda.runtime.getDevice(), compiled)
    found = _loaded.get(key)
    if found is None:
        try:
            found = _load(compiled, "cubin") if compiled.cubin else _translated(compiled)
        except RuntimeError:
            if not compiled.cubin:
                raise
            found = _translated(compiled)
        _loaded[key] = found  # two threads load it twice at worst
    return found


def _translated(compiled: compiler.Compiled) -> Any:
    """The kernel from its PTX; raises `LibraryFailed` with the driver that it takes where this one refuses it."""
    try:
        return _load(compiled, "ptx")
    except RuntimeError as error:
        if faults.lost(bindings.cupy().cuda.runtime.getDevice()):
            raise
        raise ptx_versions.refused(f"the kernel {compiled.entry}", compiled.ptx, error) from error


_loaded: dict[Any, Any] = {}


def _load(compiled: compiler.Compiled, kind: str) -> Any:
    import tempfile

    code = compiled.cubin if kind == "cubin" else compiled.ptx

    # From a file of our own: one in the cache may be another by now.
    with tempfile.TemporaryDirectory(prefix="backline-") as folder:
        path = os.path.join(folder, f"{compiled.entry}.{kind}")
        with open(path, "wb") as file:
            file.write(code)
        function = bindings.cupy().RawModule(path=path).get_function(compiled.entry)
        # It is read when something is first asked of the function, or set.
        function.max_dynamic_shared_size_bytes = compiled.shared
        return function
