"""Where MLX runs a Problem: on Metal, on its CPU stream, or on either; told by values, without asking a device."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from ...problems import Problem

__all__ = ["CPU", "METAL", "Device", "device_of", "not_on_metal", "reduces"]

METAL, CPU = "metal", "cpu"
REDUCED = ("matmul", "conv", "attention")  # families that multiply matrices on the GPU's matrix units
_ARCHITECTURE = re.compile(r"applegpu_g(\d+)([a-z]?)")


@dataclass(frozen=True, slots=True)
class Device:
    """What placement depends on.

    Attributes
    ----------
    metal
        Whether MLX has a Metal device.
    tf32
        Whether float32 products are reduced to about TF32 there.
    """

    metal: bool = False
    tf32: bool = False


def device_of(mx: Any) -> Device:
    """The Device of this process; MLX reads ``MLX_ENABLE_TF32`` once, when it first needs it."""
    if not mx.metal.is_available():
        return Device()
    allowed = os.environ.get("MLX_ENABLE_TF32", "1") != "0"
    return Device(True, allowed and has_matrix_units(str(mx.device_info(mx.gpu).get("architecture", ""))))


def has_matrix_units(architecture: str) -> bool:
    """Whether a GPU has the units in which MLX reduces float32: from the 17th generation on, in phones from the 18th.

    Examples
    --------
    >>> has_matrix_units("applegpu_g17s"), has_matrix_units("applegpu_g17p"), has_matrix_units("applegpu_g13g")
    (True, False, False)
    """
    found = _ARCHITECTURE.match(architecture)
    return found is not None and int(found[1]) >= (18 if found[2] == "p" else 17)


def not_on_metal(problem: Problem, device: Device) -> str:
    """Why a Problem does not run on Metal; empty where it does.

    Examples
    --------
    >>> not_on_metal(Problem("fft.c2c", (), family="fft"), Device(metal=False))
    'MLX has no Metal device here'
    """
    if not device.metal:
        return "MLX has no Metal device here"
    if problem.family == "linalg":
        return "MLX has linear algebra on its CPU stream only"
    if any(o.dtype.name == "float64" for o in problem.operands):
        return "Metal has no float64"
    return ""


def reduces(problem: Problem, device: Device) -> bool:
    """Whether float32 is reduced in a Problem on Metal."""
    return device.tf32 and problem.family in REDUCED and problem.dtype.name in ("float32", "complex64")
