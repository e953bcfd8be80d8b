"""Tables of what switches permit, prefer and demand of algorithms, beyond what holds for every library.

A line here is all it takes for a switch to have its say in a choice; `choose` reads the tables and knows none of the names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import switches
from ..libraries import fixed_order
from ..libraries.base import LEADS, Algorithm
from ..problems import Problem
from ..switches.definitions import KERNELS

__all__ = ["benchmarks", "determinism", "determinism_level", "device_of", "forbids", "learns", "preferred", "priority"]


class Permit(NamedTuple):
    """An algorithm with a trait runs only while a switch reads so."""

    switch: str
    allows: Callable[[Any], bool]
    why: str


def _true(value: Any) -> bool:
    return bool(value)


_MATMUL = "cuda.matmul.allow"

# Trait of an algorithm -> the switch that must permit it. The values are as they are stored.
PERMITS: dict[str, Permit] = {
    "fp16 reduction": Permit(f"{_MATMUL}_fp16_reduced_precision_reduction", lambda v: v == "yes", "sums in float16"),
    "fp16 split-k": Permit(f"{_MATMUL}_fp16_reduced_precision_reduction", lambda v: v in ("yes", "no"), "splits k"),
    "bf16 reduction": Permit(f"{_MATMUL}_bf16_reduced_precision_reduction", lambda v: v == "yes", "sums in bfloat16"),
    "bf16 split-k": Permit(f"{_MATMUL}_bf16_reduced_precision_reduction", lambda v: v in ("yes", "no"), "splits k"),
    "fp16 accumulation": Permit("cuda.matmul.allow_fp16_accumulation", _true, "accumulates in float16"),
    "half transform": Permit("cuda.matmul.allow_fp16_accumulation", _true, "accumulates in float16"),
    "flash_attention": Permit("cuda.flash_sdp", _true, "is flash attention"),
    "efficient_attention": Permit("cuda.mem_efficient_sdp", _true, "is memory-efficient attention"),
    "math": Permit("cuda.math_sdp", _true, "is attention made of products and softmax"),
    "cudnn_attention": Permit("cuda.cudnn_sdp", _true, "is cuDNN's attention"),
    "overrideable": Permit("cuda.overrideable_sdp", _true, "is attention of an extension"),
    "half math": Permit("cuda.fp16_bf16_reduction_math_sdp", _true, "computes attention in half precision"),
    "fused": Permit("mha.fastpath", _true, "fuses multi-head attention"),
    "tuned search": Permit("miopen.immediate", lambda v: not v, "searches for the fastest solution"),
    "depthwise by cudnn": Permit("cudnn.depthwise_kernel", lambda v: v != "native", "is cuDNN's depthwise kernel"),
    "metal": Permit("mps.enabled", _true, "computes on Metal"),
    "depthwise by us": Permit("cudnn.depthwise_kernel", lambda v: v != "cudnn", "is the depthwise kernel of our own"),
}  # fmt: skip

# Library -> a switch that must be on for it beside its own.
GATES = {"miopen": "cudnn.enabled"}

# Library -> the switch that says how many bytes an algorithm with the trait "workspace <bytes>" may take.
WORKSPACES = {"cublas": "cuda.cublas_workspace_size", "cublaslt": "cuda.cublaslt_workspace_size"}

# Library -> the switch that asks it, alone, to give the same bits again; and the families that switch is about.
DETERMINISTIC = {
    "onednn": ("mkldnn.deterministic", ("matmul", "conv", "neural", "rnn", "quantized")),
    "cudnn": ("cudnn.deterministic", ("conv", "rnn")),
}

# Kind of device and family -> the switch that says which library is tried first, and its words that are not library names.
PREFERENCES = {
    ("cuda", "linalg"): ("cuda.preferred_linalg_library", {}),
    ("cuda", "matmul"): ("cuda.preferred_blas_library", {"ck": "composable_kernel"}),
    ("rocm", "attention"): ("cuda.preferred_rocm_fa_library", {"ck": "composable_kernel"}),
}


# Backend -> the kind of arrays that its switches are about; those of the others are not bound to one.
DEVICES = {"cuda": "cuda", "cudnn": "cuda", "cusparselt": "cuda", "miopen": "rocm", "mkldnn": "cpu", "mps": "mps"}


# Traits of what runs before anything else that may: code that somebody registered, and kernels that do more of the work.
FIRST = frozenset({"override", "epilogue", "eight-bit"})


def _kind(problem: Problem) -> str:
    return problem.device.partition(":")[0]


def device_of(switch: Any) -> str:
    """The kind of arrays that a switch is about, or empty for any.

    Examples
    --------
    >>> device_of(switches.lookup("cuda.matmul.allow_tf32")), device_of(switches.lookup("cuda.flash_sdp"))
    ('cuda', '')
    """
    if switch.name == "cuda.preferred_rocm_fa_library":
        return "rocm"
    if switch.governs == ("attention",):
        return ""  # the attention switches of cuda hold on every device
    return DEVICES.get(switch.backend.partition(".")[0], "")


def forbids(algorithm: Algorithm, snapshot: Any) -> tuple[str, str]:
    """Returns the reason that a switch forbids an algorithm, and the switch; two empty strings if none does."""
    gate = GATES.get(algorithm.library, "")
    if gate and not snapshot[gate]:
        return f"{gate} is off, which is about it too", gate
    for trait in algorithm.traits:
        permit = PERMITS.get(trait)
        if permit is not None and not permit.allows(snapshot[permit.switch]):
            return f"it {permit.why}, which {permit.switch} = {snapshot[permit.switch]!r} forbids", permit.switch
        if trait.startswith("workspace ") and algorithm.library in WORKSPACES:
            size = switches.get(WORKSPACES[algorithm.library])
            if int(trait[10:]) > int(size):  # type: ignore[arg-type]  # the switch is an int
                return f"it needs a workspace of {trait[10:]} bytes, and may have {size}", WORKSPACES[algorithm.library]
        if trait.startswith("engine "):
            engine = switches.get("quantized.engine")
            if trait != f"engine {engine}":
                return f"it belongs to engine {trait[7:]!r}, and quantized.engine is {engine!r}", "quantized.engine"
    return "", ""


def determinism(algorithm: Algorithm, problem: Problem, level: str, snapshot: Any) -> tuple[str, str]:
    """The determinism level asked of an algorithm, and the switch that asks."""
    switch, families = DETERMINISTIC.get(algorithm.library, ("", ()))
    if level == "off" and switch and problem.family in families and snapshot[switch]:
        return "run", switch
    return level, "determinism_level" if algorithm.reaches("run") else "deterministic"


def determinism_level(problem: Problem, snapshot: Any) -> str:
    """Returns the determinism level that the switches ask of everything that may run a Problem: "off", "run" or "threads"."""
    return fixed_order.level(problem.family, _kind(problem), snapshot)


def benchmarks(problem: Problem, snapshot: Any) -> tuple[bool, int]:
    """Tells if candidates are timed, and how many at most (0: all). What a library times within itself does not count."""
    if _kind(problem) == "mps":  # operands that are made for a measurement are not MLX's, which would be lazy too
        return False, 0
    return (True, snapshot["benchmark_limit"]) if snapshot["benchmark"] is True else (False, 0)


def learns(problem: Problem, snapshot: Any) -> tuple[bool, str]:
    """Tells if real calls are timed to learn from, as `benchmark` = "online" asks; if it asks in vain, why, in words."""
    if snapshot["benchmark"] != "online":
        return False, ""
    kind = _kind(problem)
    about = [switch for switch, families in DETERMINISTIC.values() if problem.family in families]
    here = [switch for switch in about if DEVICES[switch.partition(".")[0]] == kind]
    strict = next((switch for switch in ("deterministic", *here) if snapshot[switch]), "")
    if strict:
        return False, f"nothing is learned online while {strict} is on"
    if kind != "cpu":
        return False, "nothing is learned online on this device"
    if problem.packed or problem.converted:
        return False, "nothing is learned online of packed or converted operands"
    if problem.parameter("overwrite", False):
        return False, "nothing is learned online of calls that overwrite their operands"
    return True, ""


def preferred(problem: Problem, snapshot: Any) -> tuple[tuple[str, ...], str]:
    """Libraries to try first, and the switch that says so."""
    if snapshot["prefer"]:
        return snapshot["prefer"], "prefer"
    switch, words = PREFERENCES.get((_kind(problem), problem.family), ("", {}))
    word = snapshot[switch] if switch else "default"
    return ((), "") if word == "default" else ((words.get(word, word),), switch)


def priority(algorithm: Algorithm, snapshot: Any) -> int:
    """Place in the order in which algorithms are tried: that of an attention kernel; 0 for others, and `FIRST` before all.

    An attention kernel that leads on its device comes before the others, unless a priority was set.
    """
    if not FIRST.isdisjoint(algorithm.traits):
        return -2
    order = tuple(dict.fromkeys((*snapshot["sdp_priority"], *KERNELS)))
    place = next((order.index(trait) for trait in algorithm.traits if trait in order), None)
    if place is not None and LEADS in algorithm.traits and not snapshot["sdp_priority"]:
        return -1
    return place or 0
