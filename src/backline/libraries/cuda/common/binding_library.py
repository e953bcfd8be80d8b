"""The base of the libraries that are called through bindings, and the ways of a product that two of them have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ....problems import Problem
from ...base import Algorithm, Library, Planner, Refusal
from ...presence import presence
from . import bindings
from .device_facts import capability, index_of, lacks

__all__ = ["BindingLibrary", "GemmWay", "listed_ways"]


class BindingLibrary(Library):
    """A library of CUDA's whose handlers are given the planner. Its version is told by its file, without driver or device."""

    modules: ClassVar[tuple[str, ...]] = ()  # functions of `bindings` that it needs beside CuPy

    def reason(self) -> str:
        return bindings.reason("cupy", *self.modules)

    def version(self) -> str | None:
        told = presence(self.name).version()
        return None if told is None else str(told)

    def capability(self, problem: Problem) -> tuple[int, int]:
        return capability(index_of(problem))

    def context(self, planner: Planner) -> Any:
        return planner

    def details(self) -> dict[str, Any]:
        found = presence(self.name)
        facts = {} if found.path is None else {"version": BindingLibrary.version(self), "path": found.path}
        return facts | {"search": list(found.searched()), "pool": ""}


@dataclass(frozen=True, slots=True)
class GemmWay:
    """One way to compute products of a dtype. Modes and masks have the numbers of the libraries' headers."""

    name: str  # of the Algorithm
    compute: int  # compute type
    precision: str = ""  # as an Algorithm says it
    traits: tuple[str, ...] = ()  # what switches may forbid
    least: tuple[int, int] = (0, 0)  # compute capability that it needs
    mode: int = 0  # of cuBLAS: math mode of the handle during the call
    strategy: int = 0  # of cuBLAS: emulation strategy of the handle during the call
    mask: int = 0  # of cuBLASLt: how the parts of a sum that is split along k may be added up
    proposal: int = 0  # of cuBLASLt: which of the algorithms that its heuristics name, 0 for the one that it recommends


def listed_ways(
    library: str, ways: tuple[GemmWay, ...], having: tuple[int, int], note: str = "", traits: tuple[str, ...] = ()
) -> Iterator[Algorithm | Refusal]:
    """Lists the Algorithms of ways, and Refusals of those that a device with a compute capability lacks."""
    for way in ways:
        why = lacks(way.precision, way.least, having)
        if why:
            yield Refusal(library, way.name, why)
        else:
            # Its makers promise the same bits in each run; threads of the CPU have no part in it.
            yield Algorithm(
                library=library, name=way.name, precision=way.precision, level="threads", basis="promise", note=note,
                traits=(*way.traits, *traits),
            )  # fmt: skip
