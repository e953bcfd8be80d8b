"""Attention kernels that come with Backline, for machines without Triton: PTX, which a driver translates for its device.

``benchmarks/make_attention_ptx.py`` compiles them. They are for half precisions, head dims of 64 and 128, without mask and
dropout, written for compute capability 8.0; every later device runs them, without what its tensor cores have learned since.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..common.ptx_versions import driver_refuses_ptx
from .kernel_compiler import Compiled, source_digest
from .launch_sequence import Recipe, Step, Tile, Variant, shared_limit

__all__ = [
    "CAPABILITY", "DIMS", "DIVISOR", "DTYPES", "FILE", "SHARED", "Packaged", "driver_refuses", "find", "lacks", "name_of",
    "packed", "read", "version",
]  # fmt: skip

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attention_sm80.json.xz")
FORMAT = 1
CAPABILITY = (8, 0)
DTYPES = ("float16", "bfloat16")
DIMS = (64, 128)
DIVISOR = 8  # elements: 16 bytes, which is what one load of a thread takes
SHARED = shared_limit((8, 6))  # bytes: the least that a device from capability 8.0 on gives a program


class Packaged(NamedTuple):
    """Content of the file of packaged kernels."""

    triton: str  # version of the Triton that wrote it
    source: str  # digest of the kernels' text that it was made from
    kernels: dict[str, tuple[Tile, Compiled]]  # tile and code by `name_of` what they were compiled for


def name_of(variant: Variant) -> str:
    """Returns the name of a packaged kernel: all that it is compiled for, except the device and the divisor of the strides."""
    constants = (f"{name}={value}" for name, value in sorted(variant.constants))
    return " ".join((variant.kernel, variant.dtype, variant.bias or "-", *constants))


def packed(triton: str, kernels: Iterable[tuple[Variant, Tile, Compiled]]) -> bytes:
    """The content of the file."""
    rows = [
        {
            "name": name_of(variant), "tile": [tile.rows, tile.keys, tile.warps, tile.stages], "entry": made.entry,
            "warps": made.warps, "shared": made.shared, "ptx": made.ptx.decode("ascii"),
        }
        for variant, tile, made in kernels
    ]  # fmt: skip
    told = {"format": FORMAT, "triton": triton, "source": source_digest(), "kernels": rows}
    return lzma.compress(json.dumps(told, sort_keys=True).encode(), preset=9 | lzma.PRESET_EXTREME)


@lru_cache(maxsize=1)
def read() -> Packaged:
    """Returns the content of the file; without kernels if the file is missing or has another format."""
    try:
        with open(FILE, "rb") as file:
            told: Any = json.loads(lzma.decompress(file.read()))
    except (OSError, lzma.LZMAError, ValueError):
        return Packaged("", "", {})
    if told.get("format") != FORMAT:
        return Packaged("", "", {})
    kernels = {
        row["name"]: (Tile(*row["tile"]), Compiled(row["entry"], row["warps"], row["shared"], b"", row["ptx"].encode("ascii")))
        for row in told["kernels"]
    }
    return Packaged(told["triton"], told["source"], kernels)


def version() -> str:
    """Version of the Triton that wrote the packaged kernels."""
    return read().triton


def find(step: Step) -> tuple[Tile, Compiled] | None:
    """The packaged kernel for a step, and its tile; None if there is none."""
    variant = step.variant
    if variant.capability < CAPABILITY or variant.divisor % DIVISOR:
        return None
    return read().kernels.get(name_of(variant))


def lacks(made: Recipe) -> str:
    """Returns the kernel of a recipe that is not packaged; empty if all are."""
    for step in made.steps:
        if find(step) is None:
            if step.variant.divisor % DIVISOR:
                return f"rows that are multiples of {DIVISOR} elements apart"
            return name_of(replace(step.variant, constants=()))
    return ""


def driver_refuses(made: Recipe) -> str:
    """Returns why the driver does not take the packaged kernels of a recipe, and the driver that does; empty if it takes them."""
    for step in made.steps:
        found = find(step)
        reason, remedy = driver_refuses_ptx(found[1].ptx) if found is not None else ("", "")
        if reason:
            return f"{reason}: {remedy}"
    return ""
