"""Decisions about recurrent networks by cuDNN: what it takes, its algorithms, and the numbers that describe a network to it.

Nothing here needs cuDNN or a device. Numbers are those of the enums in cuDNN 9's headers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....problems.rnn_problem import RnnProblem
from ...base import Algorithm, Refusal
from ..common.device_facts import DeviceInfo, lacks

__all__ = ["RnnRecipe", "refusal", "rnn_algorithms", "rnn_recipe", "same_bits"]

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
FLOAT, DOUBLE = 0, 1
DEFAULT_MATH, TENSOR_OP_MATH, FMA_MATH = 0, 1, 3
NO_BIAS, DOUBLE_BIAS = 0, 2
SEQ_MAJOR_UNPACKED, BATCH_MAJOR_UNPACKED = 0, 2
ALGOS = {"rnn": 0, "rnn_persist": 1, "rnn_small": 3}  # CUDNN_RNN_ALGO_STANDARD, _PERSIST_STATIC, _PERSIST_STATIC_SMALL_H
LARGEST = 2**31 - 1
BFLOAT16 = 91300  # PyTorch's pull request 164411
# Largest hidden size for the kernels that keep all of the state's weights in registers: forward, and with gradients.
SMALL = {"rnn_relu": (384, 256), "rnn_tanh": (384, 256), "lstm": (192, 128), "gru": (192, 128)}
CONFIG = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True, slots=True)
class RnnRecipe:
    """Description of a network in cuDNN's terms."""

    algo: int
    mode: int
    biases: int
    directions: int
    # dtype, compute, math: data type of arrays and weights, that of the arithmetic, and what tensor cores may do.
    dtype: int
    compute: int
    math: int
    features: int
    hidden: int
    layers: int
    steps: int
    batch: int
    layout: int
    training: bool  # whether a reserve space is filled, which the gradients and dropout need
    dropout: float  # probability that an element between two layers is left out


def same_bits() -> bool:
    """Tells whether cuDNN's recurrent networks promise the same bits in each run.

    NVIDIA's release notes promise it where cuBLAS has workspaces of one size alone, which is said in the environment.
    """
    return re.fullmatch(r":[0-9]+:[0-9]+", os.environ.get(CONFIG, "").strip()) is not None


def refusal(p: RnnProblem, having: tuple[int, int], version: int) -> str:
    """Returns why a version of cuDNN cannot run a network on a device with a compute capability, or an empty string."""
    if p.dtype.name not in TYPES:
        return f"its recurrent networks are of {', '.join(TYPES)}, not of {p.dtype.name}"
    if p.empty:
        return "an empty network needs no library"
    if p.parameter("dropout", 0.0) == 1:
        return "it divides by what dropout keeps, and a dropout of 1 keeps nothing"
    if p.steps * p.batch * max(p.features, p.directions * p.hidden * p.gates) > LARGEST:
        return f"it counts the elements of a sequence up to {LARGEST}"
    if p.dtype.name == "bfloat16":
        if version < BFLOAT16:
            return f"it has recurrent networks of bfloat16 from {BFLOAT16} on, and this is {version}"
        return lacks("bfloat16", (8, 0), having)
    return ""


def _persistent_refusal(name: str, p: RnnProblem, device: DeviceInfo) -> str:
    """Returns why an algorithm that keeps weights on the chip is not used; the limits are those that PyTorch keeps to."""
    if p.dtype.name == "float64":
        return "its persistent kernels do not take float64"
    if p.get("lengths") is not None or p.batch_first:
        return "its persistent kernels take sequences of one length, the steps first"
    if p.parameter("dropout"):
        return "what dropout leaves out must not depend on the algorithm"
    if name == "rnn_small":
        most = SMALL[p.mode][p.is_gradient]
        return "" if p.hidden <= most else f"a hidden size of {p.hidden} is more than {most}"
    if p.dtype.name != "float16":
        return "it is for float16"
    if p.layers > 1 or p.directions > 1 or p.hidden > 1024 or p.hidden % 128 or p.features % 128:
        return "it is for one layer and direction, and sizes that are multiples of 128, the hidden one up to 1024"
    major, minor = device.capability
    if major < 8 or minor == 6 or device.multiprocessors < 98:
        return f"it is not used on capability {major}.{minor} with {device.multiprocessors} multiprocessors"
    if p.mode == "gru" or p.batch % 8 or p.batch > 128:
        return "it is for batches of 8, 16, ... 128, and not for GRU"
    if p.mode != "lstm" and p.batch >= 96 and p.hidden >= 896:
        return "it is slow for large plain networks"
    return ""


def _ways(p: RnnProblem) -> Iterator[tuple[str, str]]:
    """Names of algorithms and their precision: what keeps weights on the chip first, and tf32 before float32."""
    for name in ("rnn_small", "rnn_persist", "rnn"):
        if p.dtype.name == "float32":
            yield f"{name}_tf32", "tf32"
            yield name, ""
        else:
            yield name, "f32 accumulation" if p.dtype.itemsize == 2 else ""


def rnn_algorithms(p: RnnProblem, device: DeviceInfo, version: int) -> Iterator[Algorithm | Refusal]:
    """Lists the Algorithms and Refusals of a version of cuDNN, as it numbers it, for a recurrent network on a device."""
    reason = refusal(p, device.capability, version)
    if reason:
        yield Refusal("cudnn", "", reason)
        return
    notes = []
    if p.get("lengths") is not None:
        notes.append("waits: cuDNN takes the lengths from the host")
    if p.parameter("dropout"):
        notes.append("dropout by cuDNN's own numbers")
    steady = same_bits()
    if not steady:
        notes.append(f"the same bits each time are promised only with {CONFIG}=:4096:2 in the environment")
    for name, precision in _ways(p):
        kind = name.removesuffix("_tf32")
        why = lacks("tf32", (8, 0), device.capability) if precision == "tf32" else ""
        why = why or (_persistent_refusal(kind, p, device) if kind != "rnn" else "")
        if why:
            yield Refusal("cudnn", name, why)
        else:
            yield Algorithm(
                library="cudnn", name=name, precision=precision, level="threads" if steady else "off", basis="promise",
                note="; ".join(notes),
            )  # fmt: skip


def rnn_recipe(p: RnnProblem, name: str) -> RnnRecipe:
    """Returns the description of a network for an Algorithm that `rnn_algorithms` listed."""
    dropout = float(p.parameter("dropout", 0.0))
    math: dict[Any, int] = {"float16": TENSOR_OP_MATH, "bfloat16": TENSOR_OP_MATH, "float64": DEFAULT_MATH}
    algo = ALGOS[name.removesuffix("_tf32")]
    return RnnRecipe(
        algo=algo, mode=MODES[p.mode],
        biases=DOUBLE_BIAS if p.biases or algo else NO_BIAS,  # persistent kernels always add them: zeros where there are none
        directions=p.directions, dtype=TYPES[p.dtype.name], compute=DOUBLE if p.dtype.name == "float64" else FLOAT,
        # Without a word against it, float32 goes through tensor cores as tf32 where a device has these.
        math=math.get(p.dtype.name, DEFAULT_MATH if name.endswith("_tf32") else FMA_MATH), features=p.features,
        hidden=p.hidden, layers=p.layers, steps=p.steps, batch=p.batch,
        layout=BATCH_MAJOR_UNPACKED if p.batch_first else SEQ_MAJOR_UNPACKED, training=p.is_gradient or dropout > 0,
        dropout=dropout,
    )  # fmt: skip
