"""Placement of Problems on MLX's Metal device, its CPU stream, or either, decided from values without querying a device."""

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
    """Properties of MLX's device that placement depends on."""

    metal: bool = False  # whether MLX has a Metal device
    tf32: bool = False  # whether float32 products are reduced to about TF32 there


def device_of(mx: Any) -> Device:
    """The Device of this process; MLX reads ``MLX_ENABLE_TF32`` once, when it first needs it."""
    if not mx.metal.is_available():
        return Device()
    allowed = os.environ.get("MLX_ENABLE_TF32", "1") != "0"
    return Device(True, allowed and has_matrix_units(str(mx.device_info(mx.gpu).get("architecture", ""))))


def has_matrix_units(architecture: str) -> bool:
    """Tells whether a GPU has matrix units in which MLX reduces float32: generation 17 or later, in phones 18 or later.

    Examples
    --------
    >>> has_matrix_units("applegpu_g17s"), has_matrix_units("applegpu_g17p"), has_matrix_units("applegpu_g13g")
    (True, False, False)
    """
    found = _ARCHITECTURE.match(architecture)
    return found is not None and int(found[1]) >= (18 if found[2] == "p" else 17)


def not_on_metal(problem: Problem, device: Device) -> str:
    """Returns the reason why a Problem does not run on Metal, or an empty string.

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
    """Tells whether a Problem on Metal computes float32 products in reduced precision."""
    return device.tf32 and problem.family in REDUCED and problem.dtype.name in ("float32", "complex64")
