"""Constraints of each attention kernel, as tables, and the first constraint that a Problem fails.

A decision here needs no device: it takes the Problem and `Facts`, which are plain values. Whether a kernel is switched on is for
the switches, in which order the kernels are tried is for the engine, and who has a kernel is answered by `providers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from .. import switches
from ..problems.attention_problem import AttentionProblem, wrong
from ..switches.definitions import KERNELS
from .base import Library, Refusal

__all__ = ["RULES", "SWITCHES", "Facts", "Rule", "facts_of", "order", "providers", "refusal", "refused_kernels"]

SWITCHES = {
    "flash_attention": "cuda.flash_sdp",
    "efficient_attention": "cuda.mem_efficient_sdp",
    "math": "cuda.math_sdp",
    "cudnn_attention": "cuda.cudnn_sdp",
    "overrideable": "cuda.overrideable_sdp",
}
"""The switch of each kernel."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a decision depends on beside the Problem."""

    capability: tuple[int, int] | None = None  # of the device; None where it has none, or it is not known
    cudnn: int = 0  # cuDNN's version as it counts them: 91500 for 9.15.0; 0 without it
    frontend: tuple[int, ...] = ()  # version of cuDNN's frontend, (1, 24); empty without it
    strict: bool = False  # whether determinism is asked for and nothing else will do


Holds: TypeAlias = Callable[[AttentionProblem, Facts], bool]


class Rule(NamedTuple):
    """One constraint: what must hold in words, what there is instead, and the test.

    `text` is a format of ``p``, the Problem, and ``f``, the Facts.
    """

    text: str
    holds: Holds


# --- the tests ----------------------------------------------------------------------------------------------------

_HALF = ("float16", "bfloat16")
_LOWEST, _HIGHEST = (8, 0), (12, 1)
_SMALL_BACKWARD = ((8, 6), (8, 9), (12, 0), (12, 1))  # their shared memory does not hold the backward pass of larger heads


def _same(numbers: tuple[int, ...]) -> bool:
    return len(set(numbers)) == 1


def _dtype(*names: str) -> Holds:
    return lambda p, f: p.dtype.name in names


def _capability(lowest: tuple[int, int]) -> Holds:
    return lambda p, f: f.capability is not None and lowest <= f.capability <= _HIGHEST


def _mask_broadcasts(p: AttentionProblem, f: Facts) -> bool:
    if p.mask is None:
        return True
    whole = (p.batches[0], p.heads[0], p.lengths[0], p.lengths[1])
    shape = p.mask.shape
    return len(shape) in (2, 4) and all(n in (1, m) for n, m in zip(shape, whole[-len(shape) :], strict=True))


def _mask_needs_none(p: AttentionProblem, f: Facts) -> bool:
    return p.mask is None or not p.mask_needs_grad


def _last_stride(p: AttentionProblem, f: Facts) -> bool:
    return all(step == 1 for step in p.last_strides())


def _last_stride_or_single(p: AttentionProblem, f: Facts) -> bool:
    return all(step == 1 or dim == 1 for step, dim in zip(p.last_strides(), p.dims, strict=True))


def _heads_divide(p: AttentionProblem, f: Facts) -> bool:
    queries, keys, values = p.heads
    return _same(p.heads) or (p.enable_gqa and bool(keys and values) and not queries % keys and not queries % values)


def _flash_backward(p: AttentionProblem, f: Facts) -> bool:
    if not p.needs_grad or f.capability not in _SMALL_BACKWARD:
        return True
    return p.dims[0] <= 192 or (p.dims[0] > 224 and p.dropout == 0)


def _efficient_multiple(p: AttentionProblem, f: Facts) -> int:
    """Elements that the head dims must be a multiple of for EFFICIENT on CUDA."""
    if p.dtype.itemsize == 2:
        return 8
    return 4 if f.capability is not None and f.capability >= (8, 0) else 1


def _efficient_dims(p: AttentionProblem, f: Facts) -> bool:
    return all(dim > 0 and dim % _efficient_multiple(p, f) == 0 for dim in p.dims)


def _efficient_offset(p: AttentionProblem, f: Facts) -> bool:
    if f.capability is None or f.capability < (8, 0):
        return True
    return p.alignment % (_efficient_multiple(p, f) * p.dtype.itemsize) == 0


def _efficient_dtype(p: AttentionProblem, f: Facts) -> bool:
    if p.dtype.name == "bfloat16":
        return f.capability is not None and f.capability >= (8, 0)
    return p.dtype.name in ("float16", "float32")


def _cudnn_dropout(p: AttentionProblem, f: Facts) -> bool:
    return p.dropout == 0 or not 91100 <= f.cudnn < 91400


def _cudnn_dims(p: AttentionProblem, f: Facts) -> bool:
    if any(dim % 8 for dim in p.dims):
        return False
    if max(p.dims) <= 128:
        return True
    if p.dims == (192, 192, 128) and f.capability in ((9, 0), (10, 0)) and f.cudnn >= 91100:
        return True
    if max(p.dims) > 256 or f.capability is None:
        return False
    return (f.capability == (9, 0) or f.capability[0] == 10) and f.cudnn > 92200 and f.frontend >= (1, 24)


def _cudnn_backward(p: AttentionProblem, f: Facts) -> bool:
    if not p.needs_grad or max(p.dims) <= 128 or p.dims == (192, 192, 128):
        return True
    blackwell = f.capability is not None and f.capability[0] == 10
    return p.dims == (256, 256, 256) and not (blackwell and p.dropout)


# --- the tables ---------------------------------------------------------------------------------------------------

_FOUR = Rule("query, key and value must be 4-D, not {p.shapes}", lambda p, f: all(len(shape) == 4 for shape in p.shapes))
_LENGTH = Rule("no length may be zero: they are {p.lengths}", lambda p, f: 0 not in p.lengths)
_BATCH = Rule("query, key and value must have one batch size, not {p.batches}", lambda p, f: _same(p.batches))
_MASK = Rule(
    "the mask must be (Lq or 1, Lk or 1), or (batch or 1, heads or 1, Lq or 1, Lk or 1), not {p.mask.shape}", _mask_broadcasts
)
_MASK_GRADIENT = Rule("the mask may need no gradient", _mask_needs_none)
_EQUAL_DIMS = Rule("query, key and value must have one head dim, not {p.dims}", lambda p, f: _same(p.dims))
_HALF_ONLY = Rule("the dtype must be float16 or bfloat16, not {p.dtype.name}", _dtype(*_HALF))
_AMPERE = Rule("the compute capability must be 8.0 to 12.1, not {f.capability}", _capability(_LOWEST))
_STRIDE = "query, key and value must be contiguous along the head dim"

_FLASH_CPU = (
    Rule("the operands must be dense arrays", lambda p, f: p.dense),
    Rule("there may be no dropout, and it is {p.dropout}", lambda p, f: p.dropout == 0),
    _FOUR,
    _BATCH,
    Rule(
        "query, key and value must have as many heads each, or enable_gqa be set: they have {p.heads}",
        lambda p, f: p.enable_gqa or _same(p.heads),
    ),
    _MASK,
    _MASK_GRADIENT,
    _EQUAL_DIMS,
    _LENGTH,
    Rule(_STRIDE, _last_stride),
    Rule(
        "the dtype must be float32, float64, bfloat16 or float16, not {p.dtype.name}", _dtype("float32", "float64", *_HALF)
    ),
)


def _fused(last_stride: Holds) -> tuple[Rule, ...]:
    heads = (
        "query, key and value must have as many heads each, or with enable_gqa those of key and value divide the query's, "
        "not {p.heads}"
    )
    return (_FOUR, _LENGTH, _BATCH, Rule(heads, _heads_divide), Rule(_STRIDE, last_stride))


_FLASH_CUDA = (
    *_fused(_last_stride_or_single),
    Rule("there may be no mask", lambda p, f: p.mask is None),
    _EQUAL_DIMS,
    Rule("the head dim must be at most 256, not {p.dims[0]}", lambda p, f: p.dims[0] <= 256),
    _AMPERE,
    _HALF_ONLY,
    Rule("causal needs as many queries as keys, not {p.lengths}", lambda p, f: not p.is_causal or p.lengths[0] == p.lengths[1]),
    Rule(
        "the backward pass on capability {f.capability} needs a head dim of at most 192, or above 224 without dropout, "
        "not {p.dims[0]}",
        _flash_backward,
    ),
)
_EFFICIENT_CUDA = (
    *_fused(_last_stride),
    Rule("the compute capability must be 5.0 to 12.1, not {f.capability}", _capability((5, 0))),
    Rule("query and key must have one head dim, not {p.dims}", lambda p, f: p.dims[0] == p.dims[1]),
    Rule("the head dims must be multiples of 8 (float32: of 4, and any before capability 8.0), not {p.dims}", _efficient_dims),
    Rule("query, key and value must start at such a multiple too, not at {p.alignment} bytes", _efficient_offset),
    Rule(
        "the dtype must be float16, float32, or from capability 8.0 bfloat16, not {p.dtype.name} on {f.capability}",
        _efficient_dtype,
    ),
)
_CUDNN_CUDA = (
    *_fused(_last_stride_or_single),
    Rule("the same bits are asked for (deterministic without warn_only)", lambda p, f: not f.strict),
    _HALF_ONLY,
    _AMPERE,
    _MASK,
    _MASK_GRADIENT,
    Rule("dropout must be a multiple of 1/16, not {p.dropout}", lambda p, f: (p.dropout * 16).is_integer()),
    Rule("cuDNN 9.11 to 9.13 have no dropout: this is {f.cudnn}", _cudnn_dropout),
    Rule("dropout needs more than one query", lambda p, f: p.dropout == 0 or p.lengths[0] != 1),
    Rule(
        "batch and heads must be at most 65535, not {p.batches[0]} and {p.heads[0]}",
        lambda p, f: max(p.batches[0], p.heads[0]) <= 65535,
    ),
    Rule(
        "the head dims must be multiples of 8 and at most 128, not {p.dims}: cuDNN 9.11 has 192 with 128 for the value on "
        "capability 9.0 and 10.0; one above 9.22, with frontend 1.24, has 256 on 9.0 and 10.x; this is cuDNN {f.cudnn}, "
        "frontend {f.frontend}, capability {f.capability}",
        _cudnn_dims,
    ),
    Rule(
        "the backward pass has head dims of at most 128, 192 with 128 for the value, or 256 (on capability 10.x without "
        "dropout), not {p.dims}",
        _cudnn_backward,
    ),
    Rule("there must be more than one key", lambda p, f: p.lengths[1] != 1),
)
_FLASH_MPS = (Rule("there may be no dropout, and it is {p.dropout}", lambda p, f: p.dropout == 0),)

RULES: dict[tuple[str, str], tuple[Rule, ...]] = {
    ("flash_attention", "cpu"): _FLASH_CPU,
    ("flash_attention", "cuda"): _FLASH_CUDA,
    ("flash_attention", "mps"): _FLASH_MPS,
    ("efficient_attention", "cuda"): _EFFICIENT_CUDA,
    ("cudnn_attention", "cuda"): _CUDNN_CUDA,
}
"""Kernel and kind of device -> what must hold, in the order in which it is checked. math and overrideable take every Problem."""

_ANYWHERE = ("math", "overrideable")


def refusal(kernel: str, problem: AttentionProblem, facts: Facts) -> str:
    """Returns the first constraint that keeps a kernel from running a Problem; an empty string if it can run it.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems.attention_problem import attention_problem
    >>> x = np.zeros((2, 8, 16, 64), np.float32)
    >>> refusal("flash_attention", attention_problem(x, x, x), Facts())
    ''
    >>> refusal("flash_attention", attention_problem(x, x, x, dropout_p=0.5), Facts())
    'there may be no dropout, and it is 0.5'
    """
    reason = wrong(problem)
    if reason or kernel in _ANYWHERE:
        return reason
    rules = RULES.get((kernel, problem.kind))
    if rules is None:
        where = " or ".join(device for name, device in RULES if name == kernel)
        return f"it is for arrays on {where}, not on {problem.kind}"
    for rule in rules:
        if not rule.holds(problem, facts):
            return rule.text.format(p=problem, f=facts)
    return ""


def order(priority: tuple[str, ...]) -> tuple[str, ...]:
    """Returns every kernel once: those of `priority` first, then the others in their standing order.

    Examples
    --------
    >>> order(("math",))
    ('math', 'flash_attention', 'efficient_attention', 'cudnn_attention', 'overrideable')
    """
    return tuple(dict.fromkeys((*priority, *KERNELS)))


# --- what there is ------------------------------------------------------------------------------------------------


def facts_of(device: str) -> Facts:
    """Returns the Facts that hold here for arrays on a device, such as "cpu" or "cuda:0"."""
    kind, _, index = device.partition(":")
    values = switches.current()
    strict = bool(values["deterministic"]) and not values["warn_only"]
    if kind != "cuda":
        return Facts(strict=strict)
    from . import devices
    from .presence import presence

    number = int(index) if index else devices.current()
    return Facts(devices.capability(number), int(presence("cudnn").version() or 0), _frontend(), strict)


def refused_kernels(library: str, problem: AttentionProblem) -> Iterator[Refusal]:
    """Refuses the kernels that no library has for arrays of the CPU, or of MLX."""
    for kernel in KERNELS:
        if kernel == "overrideable":
            yield Refusal(library, kernel, "no extension has registered one")
        elif kernel not in ("math", "flash_attention"):
            yield Refusal(library, kernel, refusal(kernel, problem, facts_of(problem.device)))


@lru_cache(maxsize=1)
def _frontend() -> tuple[int, ...]:
    """Returns the version of the package that builds cuDNN's graphs, which is not imported for this."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        text = version("nvidia-cudnn-frontend")
    except PackageNotFoundError:
        return ()
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def providers(kernel: str, kind: str) -> tuple[list[Library], list[str]]:
    """Returns the libraries that have a kernel for a kind of device and may run, and the reasons of those that may not.

    A Library says by its attribute ``kernels`` which it has.
    """
    from . import get, info, names

    found, reasons = [], []
    for name in names():
        row = info(name)
        if row.families and "attention" not in row.families:
            continue  # first: for this, the library of a plug-in need not be imported
        if kind not in row.devices or kernel not in row.kernels:
            continue
        library = get(name)
        if not switches.current().get(library.switch, True):
            reasons.append(f"{library.name} is disabled by {library.switch}, {switches.origin(library.switch)}")
        elif not library.available():
            reasons.append(f"{library.name} is not available: {library.reason()}")
        else:
            found.append(library)
    return found, reasons
