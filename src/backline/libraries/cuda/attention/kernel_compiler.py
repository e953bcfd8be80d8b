"""Kernels in Triton, compiled for a device that need not be here, and kept on disk.

Triton is a compiler here and nothing else: it is imported when something has to be compiled, and never launches. What is kept is
data: a cubin, the PTX it was made from, and a description that is checked when it is read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

from ....errors import BackendUnavailable
from ....native.whole_file import write_whole
from ... import python_packages
from .launch_sequence import KERNELS, Step, Tile, Variant, parameters, shared_limit

__all__ = ["Compiled", "build", "chosen", "folder", "keep", "key_of", "read", "reason", "source_digest"]

FORMAT = 1
LEAST = (3, 6)
HOW_TO_GET = "pip install triton"
PTX_VERSION = 87  # which drivers of CUDA 12.8 and later translate
MAGIC = {"cubin": b"\x7fELF", "ptx": b"//"}

_lock = Lock()
_chosen: dict[Hashable, tuple[Tile, Compiled]] = {}  # every seed of dropout is a Problem of its own, and the kernel is the same


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A kernel for one capability."""

    entry: str  # name of its function
    warps: int  # of a program: 32 threads each
    shared: int  # bytes of shared memory that a program needs
    # cubin, ptx: its code, and what a driver can translate.
    cubin: bytes
    ptx: bytes


def reason() -> str:
    """Returns why kernels cannot be compiled, or an empty string, without importing Triton."""
    absent = python_packages.find("triton")[2]
    if absent:
        return f"{absent} ({HOW_TO_GET})"
    told = version()
    numbers = tuple(int(n) for n in re.findall(r"\d+", told)[:2])
    return "" if numbers >= LEAST else f"Triton {told or 'of no version'} is older than {LEAST[0]}.{LEAST[1]} ({HOW_TO_GET})"


def version() -> str:
    """Triton's version; empty without it."""
    return python_packages.version("triton") or ""


def folder() -> str:
    """Returns the folder in which compiled kernels are stored."""
    import platformdirs

    return os.path.join(platformdirs.user_cache_dir("backline"), "triton")


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest of the kernels' text."""
    with open(os.path.join(os.path.dirname(__file__), "triton_kernels.py"), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def key_of(variant: Variant, tile: Tile) -> str:
    """Name of what is compiled of a variant with a tile, by this Triton."""
    what = (FORMAT, version(), PTX_VERSION, source_digest(), sorted(asdict(variant).items()), sorted(asdict(tile).items()))
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:32]
    return f"{variant.kernel}-sm{variant.capability[0]}{variant.capability[1]}-{digest}"


def chosen(step: Step) -> tuple[Tile, Compiled]:
    """The first of a step's tiles whose program fits into the device's shared memory, and its kernel.

    Raises `BackendUnavailable` where Triton is absent, or compiles none of them.
    """
    known = (step.variant, step.tiles, version(), folder())
    if known in _chosen:
        return _chosen[known]
    limit, last = shared_limit(step.variant.capability), ""
    for tile in step.tiles:
        key = key_of(step.variant, tile)
        with _lock:
            found = read(key) or _compile(step.variant, tile, key)
        if found.shared <= limit:
            _chosen[known] = tile, found
            return tile, found
        last = f"with {tile} it needs {found.shared} bytes of shared memory, and there are {limit}"
    raise BackendUnavailable(f"{step.variant.kernel} does not fit on capability {step.variant.capability}", cause=last)


def _compile(variant: Variant, tile: Tile, key: str) -> Compiled:
    try:
        made = build(variant, tile)
    except ImportError as error:
        raise BackendUnavailable("Triton cannot be imported.", cause=str(error), remedy=HOW_TO_GET) from error
    except Exception as error:  # whatever a compiler raises, another library may still run the Problem
        raise BackendUnavailable(f"Triton cannot compile {variant.kernel}", cause=f"{type(error).__name__}: {error}") from error
    keep(key, made)
    return made


def build(variant: Variant, tile: Tile) -> Compiled:
    """Compile with Triton: seconds, without a GPU."""
    # Ignored: Triton is not installed where types are checked, or it is.
    from triton import compile as translate
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from . import triton_kernels

    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for place, (name, kind, divisor) in enumerate(parameters(variant)):
        signature[name] = kind
        if divisor > 1:
            attributes[(place,)] = [["tt.divisibility", divisor]]
    signature |= dict.fromkeys(KERNELS[variant.kernel][2], "constexpr")
    source = ASTSource(getattr(triton_kernels, variant.kernel), signature, variant.fixed(tile), attributes)
    target = GPUTarget("cuda", 10 * variant.capability[0] + variant.capability[1], 32)
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "ptx_version": PTX_VERSION, "enable_fp_fusion": True}
    made = translate(source, target=target, options=options)
    scratch = (getattr(made.metadata, "global_scratch_size", 0), getattr(made.metadata, "profile_scratch_size", 0))
    if any(scratch):
        raise ValueError(f"the kernel wants {scratch} bytes of scratch memory, and is given none")
    ptx = made.asm["ptx"]
    ptx = ptx.encode() if isinstance(ptx, str) else ptx
    told = made.metadata
    return Compiled(str(told.name), int(told.num_warps), int(told.shared), bytes(made.asm["cubin"]), ptx)


# --- on disk -----------------------------------------------------------------------------------------------------------------


def read(key: str) -> Compiled | None:
    """Returns the kernel stored under a key; None if there is none, or if the files differ from what was written."""
    import json

    try:
        with open(os.path.join(folder(), f"{key}.json"), encoding="utf-8") as file:
            told = json.load(file)
        codes = {}
        for kind in MAGIC:
            with open(os.path.join(folder(), f"{key}.{kind}"), "rb") as file:
                codes[kind] = file.read()
    except (OSError, ValueError):
        return None
    return _checked(key, told, codes)


def _checked(key: str, told: Any, codes: dict[str, bytes]) -> Compiled | None:
    if not isinstance(told, dict) or told.get("format") != FORMAT or told.get("key") != key:
        return None
    entry, warps, shared = told.get("entry"), told.get("warps"), told.get("shared")
    if not isinstance(entry, str) or not entry.isidentifier():
        return None
    if type(warps) is not int or type(shared) is not int or not 1 <= warps <= 32 or not 0 <= shared < 2**20:
        return None
    for kind, magic in MAGIC.items():
        if not codes[kind].startswith(magic) or told.get(kind) != hashlib.sha256(codes[kind]).hexdigest():
            return None
    return Compiled(entry, warps, shared, codes["cubin"], codes["ptx"])


def keep(key: str, made: Compiled) -> None:
    """Keep it on disk. Where that cannot be written it is compiled again in the next process."""
    import json

    told = {"format": FORMAT, "key": key, "entry": made.entry, "warps": made.warps, "shared": made.shared}
    codes = {"cubin": made.cubin, "ptx": made.ptx}
    told |= {kind: hashlib.sha256(code).hexdigest() for kind, code in codes.items()}
    # The description last: it says that the others are whole.
    files = {**codes, "json": json.dumps(told, sort_keys=True).encode()}
    try:
        os.makedirs(folder(), mode=0o700, exist_ok=True)
        for kind, content in files.items():
            write_whole(os.path.join(folder(), f"{key}.{kind}"), content)
    except OSError:
        return
