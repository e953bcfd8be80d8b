"""Classes of processors whose measurements resemble each other: maker, instruction set, number of cores."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from ..processors import physical_cores
from .machine import cpu_info

__all__ = ["ProcessorClass", "class_of", "nearest_first", "this_class"]

_MAKERS = {
    "GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd",
    "Apple": "apple", "Arm": "arm", "Ampere": "arm", "NVIDIA": "arm",
}  # fmt: skip
# Instruction sets, the least first. They are compared by their distance here; those of Arm follow those of x86-64.
_SETS = ("sse", "avx2", "avx512", "amx", "neon", "sve")
_STEPS = (1, 2, 4, 8, 16, 32, 64, 128)
_NAME = re.compile(r"([a-z]+)-([a-z0-9]+)-(\d+)c")


class ProcessorClass(NamedTuple):
    """A class of processors.

    Attributes
    ----------
    maker : str
        "intel", "amd", "arm", "apple" or "other".
    instructions : str
        "sse", "avx2", "avx512", "amx", "neon" or "sve".
    cores : int
        Physical cores that the process may use, rounded down to a power of two; 128 at most.
    """

    maker: str
    instructions: str
    cores: int

    @property
    def wide(self) -> bool:
        """Tells whether it has AVX-512."""
        return self.instructions in ("avx512", "amx")

    def __str__(self) -> str:
        """Returns the name that a file of the class has.

        Examples
        --------
        >>> str(ProcessorClass("intel", "amx", 2))
        'intel-amx-2c'
        """
        return f"{self.maker}-{self.instructions}-{self.cores}c"

    @classmethod
    def parse(cls, name: str) -> ProcessorClass | None:
        """Returns the class of a name; None for another text.

        Examples
        --------
        >>> ProcessorClass.parse("amd-avx512-2c")
        ProcessorClass(maker='amd', instructions='avx512', cores=2)
        """
        match = _NAME.fullmatch(name)
        return cls(match[1], match[2], int(match[3])) if match and match[2] in _SETS else None


def class_of(maker: str, flags: Iterable[str], capability: str, cores: int) -> ProcessorClass:
    """Returns the class of a processor.

    Parameters
    ----------
    maker
        As the processor names its maker.
    flags
        Its features, as the Linux kernel spells them.
    capability
        Instruction set that libraries may use, as ``cpu.capability`` spells it: less than the flags tell where it is capped.
    cores
        Physical cores.

    Examples
    --------
    >>> str(class_of("GenuineIntel", {"amx_tile", "avx512f"}, "avx512", 6)), str(class_of("AuthenticAMD", (), "avx2", 1))
    ('intel-amx-4c', 'amd-avx2-1c')
    """
    have = set(flags)
    if capability == "avx512":
        instructions = "amx" if "amx_tile" in have else "avx512"
    elif have & {"asimd", "neon"}:
        instructions = "sve" if capability == "sve256" else "neon"
    else:
        instructions = "avx2" if capability == "avx2" else "sse"
    return ProcessorClass(_MAKERS.get(maker, "other"), instructions, max(step for step in _STEPS if step <= max(cores, 1)))


@lru_cache(maxsize=4)
def this_class(capability: str) -> ProcessorClass:
    """Returns the class of this processor under a cap on its instructions."""
    cpu = cpu_info()
    return class_of(cpu.vendor, cpu.flags, capability, physical_cores())


def nearest_first(here: ProcessorClass, known: Iterable[ProcessorClass], halves: bool = False) -> list[ProcessorClass]:
    """Sorts classes by nearness to another: those of the same maker first, then by instruction set, then by number of cores.

    For floats of 16 bits (`halves`), whether a class has AVX-512 counts before all: only there are instructions for them.

    Vendors' libraries take other kernels on other makers' processors, which changes more than the instruction set does, and
    that changes more than the number of cores.

    Examples
    --------
    >>> here = ProcessorClass("intel", "avx2", 8)
    >>> [str(found) for found in nearest_first(here, [ProcessorClass("amd", "avx2", 8), ProcessorClass("intel", "amx", 2)])]
    ['intel-amx-2c', 'amd-avx2-8c']
    """

    def distance(there: ProcessorClass) -> tuple[bool, bool, int, float, ProcessorClass]:
        apart = abs(_SETS.index(there.instructions) - _SETS.index(here.instructions))
        cores = abs(math.log2(there.cores / here.cores))
        return halves and there.wide != here.wide, there.maker != here.maker, apart, cores, there

    return sorted(known, key=distance)
