"""The scope of each switch: operations by family, the libraries that have them, and what this build lacks.

An operation belongs to the family that its Problem says. To learn it, a small Problem of the operation is made, without data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .. import libraries, switches
from ..engine.choose import planner
from ..engine.eligibility import algorithms_of
from ..engine.policy import device_of
from ..errors import BacklineError
from ..libraries import attention_constraints
from ..libraries.base import Algorithm, Library
from ..problems import Problem
from ..problems.op_registry import composites, import_operations, operations
from ..switches.precision_tree import Precision
from ..switches.switch import FAMILIES

__all__ = ["Governed", "families", "governed", "library_of", "made_of", "sample", "waiting"]

# What an operation may be given; the first that it takes is its sample.
_FORMS = (
    "8x8", "8x8 8x8", "8x8 8", "8 8", "8x8 8x8 8x8", "2x8x8 2x8x8", "2x8x8 2x8x8 2x8x8", "8x8 8 8x8", "8x8 8x8 upper=True", "8",
    "2x4x8x8 2x4x8x8 2x4x8x8", "2x4x8x8 8x4x3x3", "2x4x8 8x4x3", "2x4x8x8x8 8x4x3x3x3", "8x2x8 hidden=8",
    "2x4x8 kernel_size=2", "2x4x8x8 kernel_size=2", "2x4x8x8x8 kernel_size=2", "8x8 dim=-1",
)  # fmt: skip

# Kind of arrays that the switches of a backend are about; those of the others are not bound to one.
_ARRAYS = {"cuda": "CUDA", "rocm": "ROCm", "cpu": "CPU", "mps": "MLX"}


# Switches that are about one operation of their family.
_SINGLE = {"mha.fastpath": "nn.functional.multi_head_attention_forward"}


def _heads() -> tuple[Any, ...]:
    x, packed, out = (np.empty(shape, np.float32) for shape in ((2, 4, 8), (24, 8), (8, 8)))
    return x, x, x, 2, packed, None, out, None


def _sparse() -> tuple[Any, ...]:
    from ..sparse import compress

    x = np.eye(8, dtype=np.float32)
    return compress(x), x


# Operations that no line of text is given for.
_ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "nn.functional.multi_head_attention": _heads, "sparse.matmul": _sparse, "sparse.search": _sparse,
}  # fmt: skip


@lru_cache(maxsize=512)
def sample(op: str) -> Problem | None:
    """A small float32 Problem of an operation, or None where none of the usual forms fits it."""
    if op in _ARGUMENTS:
        problem: Problem = operations[op].build(*_ARGUMENTS[op]())
        return problem
    for form in _FORMS:
        try:
            return Problem.parse(f"{op} f32 {form}")
        except (BacklineError, TypeError, ValueError, IndexError, AttributeError):
            continue  # it wants other arrays
    return None


def families() -> dict[str, list[str]]:
    """The operations of this build that a library runs, by family; families without one are there too.

    Examples
    --------
    >>> "matmul" in families()["matmul"], "linalg.svd" in families()["linalg"]
    (True, True)
    """
    found: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for op, row in operations.items():
        found.setdefault(row.family, []).append(op)
    return found


def made_of(family: str) -> list[str]:
    """The operations that are made of others, some of them of this family.

    Examples
    --------
    >>> "chain_matmul" in made_of("matmul")
    True
    """

    def belongs(op: str) -> bool:
        if op in composites:
            return any(belongs(part) for part in composites[op])
        return operations[op].family == family

    import_operations()
    return [op for op in composites if belongs(op)]


def library_of(switch: switches.Switch) -> str:
    """The library that a switch is about, or empty: the one it allows, or that its module's ``enabled`` allows.

    Examples
    --------
    >>> library_of(switches.lookup("mkldnn.deterministic")), library_of(switches.lookup("mkldnn.fp32_precision"))
    ('onednn', '')
    """
    if switch.allows:
        return switch.allows
    if isinstance(switch, (Precision, switches.DerivedSwitch)):
        return ""  # they hold for every library
    enabled = switches.declared().get(f"{switch.backend}.enabled")
    return enabled.allows if enabled is not None else ""


def waiting(switch: switches.Switch) -> str:
    """Returns the reason that a switch has no effect in this build yet, or an empty string.

    Examples
    --------
    >>> waiting(switches.lookup("mkl.enabled"))
    ''
    """
    governed = [family for family in switch.governs if family in FAMILIES]
    there = families()
    if governed and not any(there[family] for family in governed):
        return f"there is no operation of {_and(governed)} yet"
    library = library_of(switch)
    if library and library not in libraries.names():
        return f"{library} is not supported yet"
    kernel = next((kernel for kernel, name in attention_constraints.SWITCHES.items() if name == switch.name), "")
    if kernel and not any(kernel in libraries.info(name).kernels for name in libraries.names()):
        return f"no supported library has the kernel {kernel}"
    operation = _SINGLE.get(switch.name, "")
    if operation and operation not in operations:
        return f"there is no {operation} yet"
    device = device_of(switch)
    # Kernels in Python take what they are registered for: that says nothing of what this build supports.
    supported = [name for name in libraries.names() if name != "python_native"]
    if device and not any(device in libraries.info(name).devices for name in supported):
        return f"no supported library takes {_ARRAYS[device]} arrays"
    return ""


@dataclass(frozen=True, slots=True)
class Governed:
    """Operations of one family that the same libraries have.

    Attributes
    ----------
    family
        The family.
    operations
        Names.
    libraries
        Libraries found on this machine that have them, as far as the switch is about them.
    """

    family: str
    operations: tuple[str, ...]
    libraries: tuple[str, ...]


def governed(switch: switches.Switch) -> list[Governed]:
    """The operations that a switch has a say in. Libraries are loaded to be asked."""
    there = families()
    device, only = device_of(switch) or "cpu", library_of(switch)
    found = []
    for family in switch.governs:
        groups: dict[tuple[str, ...], list[str]] = {}
        for op in there.get(family, ()):
            having = tuple(library.name for library in _able(op, device) if only in ("", library.name))
            if having or not only:
                groups.setdefault(having, []).append(op)
        found += [Governed(family, tuple(ops), having) for having, ops in groups.items()]
    return found


def _able(op: str, device: str) -> list[Library]:
    """The libraries here that have an algorithm for the sample of an operation, whatever the switches say."""
    problem = sample(op)
    if problem is None:
        return []
    able = []
    for library in libraries.all_libraries():
        if device not in library.devices or (library.families and problem.family not in library.families):
            continue
        if library.available() and any(isinstance(a, Algorithm) for a in algorithms_of(library, problem, 1, planner)):
            able.append(library)
    return able


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
