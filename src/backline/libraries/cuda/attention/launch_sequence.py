"""Launches of our attention kernels for a Problem: which kernels in which order, their tiles, arguments and temporaries.

All of it is values. A step of a recipe names its arrays by role: those of the Problem, and in capitals those that are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from ....problems import Operand
from ....problems.attention_problem import AttentionProblem

__all__ = ["KERNELS", "Made", "Recipe", "Step", "Tile", "Variant", "limits", "parameters", "recipe", "shared_limit", "signed"]

LOG2_E = 1.4426950408889634
LARGEST = 2**31 - 1
LARGEST_DIM = 256
STEP_LIMIT = 2**31 // 256  # of a stride: offsets within a tile are numbers of 32 bits
Value: TypeAlias = int | float | bool | str

_FRONT = ("B_q", "H_q", "M_q", "B_k", "H_k", "M_k", "B_v", "H_v", "M_v", "B_bias", "H_bias", "M_bias", "N_bias")
_GRAD = ("B_g", "H_g", "M_g")
_TILED = ("D", "DV", "PD", "PDV", "BM", "BN", "BIAS", "CAUSAL", "DROPOUT", "PRECISION")
_BACKWARD = (*_FRONT, *_GRAD, "heads", "each_k", "Lq", "Lk", "qk_scale", "scale", "dropout", "rescale", "seed")

KERNELS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "attention_forward": (
        ("Q", "K", "V", "Bias", "O", "LSE"),
        (*_FRONT, "heads", "each_k", "each_v", "Lq", "Lk", "qk_scale", "dropout", "rescale", "seed"),
        (*_TILED, "SAVE"),
    ),
    "attention_backward_delta": (("O", "G", "Delta"), (*_GRAD, "heads", "Lq"), ("DV", "PDV", "BM")),
    "attention_backward_keys": (("Q", "K", "V", "Bias", "G", "LSE", "Delta", "DK", "DV_"), _BACKWARD, _TILED),
    "attention_backward_queries": (("Q", "K", "V", "Bias", "G", "LSE", "Delta", "DQ"), _BACKWARD, _TILED),
}
"""Kernel -> its parameters in order: pointers, scalars, and what is fixed when it is compiled."""

_REALS = ("qk_scale", "scale", "dropout", "rescale")
_POINTED = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "bool": "*i8", "": "*i8"}


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile sizes and launch parameters of a kernel: rows and keys of a tile, warps of a program, stages of its loads."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Properties, besides the tile, for which a kernel is compiled."""

    kernel: str  # one of `KERNELS`
    # dtype, bias: names of the dtypes of query, key, value and results, and of the mask; empty without one.
    dtype: str
    bias: str
    constants: tuple[tuple[str, Value], ...]  # what is fixed, by name; without rows and keys of the tile
    divisor: int  # elements that every stride is a multiple of, at most 16
    capability: tuple[int, int]  # of the device

    def fixed(self, tile: Tile) -> dict[str, Value]:
        """Returns the kernel's compile-time constants by name, those of the tile included."""
        names = KERNELS[self.kernel][2]
        return {n: v for n, v in (*self.constants, ("BM", tile.rows), ("BN", tile.keys)) if n in names}


@dataclass(frozen=True, slots=True)
class Made:
    """An array that a recipe makes: zeros and ones are not in it, the kernels write all of it."""

    role: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Step:
    """One launch."""

    variant: Variant  # what is launched
    tiles: tuple[Tile, ...]  # the first of them whose shared memory the device has is taken, when the kernel is compiled
    pointers: tuple[str, ...]  # roles of the arrays, "" for none
    scalars: tuple[int | float, ...]  # values, in order
    # count, length: a program for each tile of `length` rows, or for the kernel of keys of as many keys, `count` times.
    count: int
    length: int

    def programs(self, tile: Tile) -> int:
        size = tile.keys if self.variant.kernel == "attention_backward_keys" else tile.rows
        return self.count * -(-self.length // size)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The steps of an attention, the arrays made for them, and which of these are the result."""

    steps: tuple[Step, ...]
    made: tuple[Made, ...]
    results: tuple[str, ...]


def parameters(variant: Variant) -> Iterator[tuple[str, str, int]]:
    """Of each parameter that is no constant: name, Triton's type, and what its value is a multiple of."""
    pointers, scalars, _ = KERNELS[variant.kernel]
    for name in pointers:
        if name == "Bias":  # of any alignment
            yield name, _POINTED[variant.bias], 1
        else:
            yield name, "*fp32" if name in ("LSE", "Delta") else _POINTED[variant.dtype], 16
    for name in scalars:
        if name in _REALS:
            yield name, "fp32", 1
        elif name == "seed" or name.endswith("_bias"):
            yield name, "i64", 1
        elif name[1:2] == "_":
            yield name, "i32" if name[0] == "M" else "i64", variant.divisor
        else:
            yield name, "i32", 1


# --- what a Problem must be --------------------------------------------------------------------------------------------------


def limits(p: AttentionProblem) -> str:
    """Returns why the kernels cannot run a Problem that its rules allow; empty if they can."""
    if max(p.dims) > LARGEST_DIM:
        return f"our kernel holds head dims of at most {LARGEST_DIM}, not {p.dims}"
    for o in p.operands:
        strides = [step for n, step in zip(o.shape, o.strides, strict=True) if n > 1]
        if any(step % o.dtype.itemsize for step in strides):
            return f"the strides of {o.role} are no whole elements"
        if o.role != "mask" and any(abs(step) // o.dtype.itemsize > STEP_LIMIT for step in strides[-2:]):
            return f"rows of {o.role} are more than {STEP_LIMIT} elements apart"
    if max(p.lengths) > LARGEST - 256 or p.batches[0] * p.heads[0] * -(-max(p.lengths) // 16) > LARGEST:
        return f"it is too large: {p.batches[0]} x {p.heads[0]} heads, lengths {p.lengths}"
    if p.mask is not None and len(p.mask.shape) > 4:
        return f"the mask may have 4 dimensions at most, not {p.mask.shape}"
    if p.returns_lse and 0 in p.dims:
        return "there is no head dim to compute a log-sum-exp of"
    grad = p.get("grad")
    if grad is None:
        return ""
    if grad.shape[-1] > 1 and grad.strides[-1] != grad.dtype.itemsize:
        return "the gradient of the result must be contiguous along the head dim"
    if p.heads[1] != p.heads[2]:
        return f"our backward pass needs as many heads of value as of key, not {p.heads[2]} and {p.heads[1]}"
    if p.mask_needs_grad:
        return "our backward pass gives no gradient of a mask"
    return ""


def shared_limit(capability: tuple[int, int]) -> int:
    """Bytes of shared memory that one program may have."""
    if capability in ((8, 0), (8, 7)):
        return 166912
    if capability[0] in (9, 10, 11):
        return 232448
    return 101376 if capability >= (8, 0) else 65536


def _forward_tiles(pad: int, half: bool, dropout: bool, capability: tuple[int, int]) -> tuple[Tile, ...]:
    small = (Tile(64, 64, 4, 2), Tile(64, 32, 4, 2), Tile(32, 32, 4, 1), Tile(16, 16, 4, 1))
    if not half:
        return (Tile(64, 32, 4, 2), *small[2:]) if pad <= 64 else (Tile(32, 32, 4, 2), *small[2:])
    if dropout or capability < (8, 0):  # random numbers take registers
        return small if pad <= 128 else small[1:]
    if pad <= 64:
        return (Tile(128, 64, 4, 3), *small)
    if pad <= 128:
        return (Tile(128, 128, 8, 2) if capability[0] in (9, 10) else Tile(128, 64, 8, 3), Tile(128, 32, 4, 2), *small)
    return (*((Tile(128, 64, 8, 2),) if capability[0] in (9, 10) else ()), Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), *small)


def _backward_tiles(pad: int, half: bool, dropout: bool, capability: tuple[int, int]) -> tuple[Tile, ...]:
    small = (Tile(32, 32, 4, 1), Tile(16, 16, 4, 1))
    if not half or dropout or capability < (8, 0):
        return small
    if pad <= 64:
        return (Tile(64, 64, 4, 2), *small)
    return (Tile(64, 64, 8, 2), Tile(64, 64, 8, 1), *small) if pad <= 128 else (Tile(64, 64, 8, 1), *small)


# --- the recipe --------------------------------------------------------------------------------------------------------------


def _elements(o: Operand) -> tuple[int, ...]:
    """Strides of batch, heads, rows and columns in elements; 0 along axes that the operand has not or has one of."""
    steps = tuple(0 if n == 1 else step // o.dtype.itemsize for n, step in zip(o.shape, o.strides, strict=True))
    return (0,) * (4 - len(steps)) + steps


def _padded(dim: int) -> int:
    return max(16, 1 << (dim - 1).bit_length())


def recipe(p: AttentionProblem, capability: tuple[int, int], tf32: bool = False) -> Recipe:
    """The recipe of attention or its gradients that neither the rules of its kernel nor `limits` refuse.

    `tf32`: whether products of float32 may be computed in TF32.
    """
    (batch, heads, queries, dim), (_, key_heads, keys, _), (_, value_heads, _, vdim) = p.shapes
    dtype, grad = p.dtype.name, p.get("grad")
    named = {"query": "DQ", "key": "DK", "value": "DV_"}
    out = Made("O", (batch, heads, queries, vdim), dtype)
    made: tuple[Made, ...] = (out,)
    results: tuple[str, ...] = ("O",)
    lines = (batch, heads, queries)
    lse, delta = Made("LSE", lines, "float32"), Made("Delta", lines, "float32")
    given = p.get("lse") is not None  # and the output: nothing of the forward pass is computed again
    if grad is not None:
        grads = tuple(Made(named[o.role], o.shape, dtype) for o in p.qkv)
        made = (*grads, delta) if given else (out, *grads, lse, delta)
        results = ("DQ", "DK", "DV_")
    elif p.returns_lse:
        made, results = (out, lse), ("O", "LSE")
    if 0 in (batch, heads, dim, vdim):
        return Recipe((), made, results)
    half, pad = p.dtype.itemsize == 2, max(_padded(dim), _padded(vdim))
    values: dict[str, int | float] = {
        "heads": heads, "each_k": heads // key_heads, "each_v": heads // value_heads, "Lq": queries, "Lk": keys,
        "qk_scale": p.scale * LOG2_E, "scale": p.scale, "dropout": p.dropout,
        "rescale": 1 / (1 - p.dropout) if p.dropout < 1 else 0.0, "seed": 0,  # every call has its own
    }  # fmt: skip
    divisor = 16
    for letter, o in zip("qkvg", (*p.qkv, *((grad,) if grad is not None else ())), strict=False):
        for axis, apart in zip("BHM", _elements(o)[:3], strict=True):
            values[f"{axis}_{letter}"] = apart
            divisor = gcd(divisor, apart)
    mask = _elements(p.mask) if p.mask is not None else (0, 0, 0, 0)
    values |= {f"{axis}_bias": apart for axis, apart in zip("BHMN", mask, strict=True)}
    kind = 0 if p.mask is None else 1 if p.mask.dtype.kind == "b" else 2
    constants: dict[str, Value] = {
        "D": dim, "DV": vdim, "PD": _padded(dim), "PDV": _padded(vdim), "BIAS": kind, "CAUSAL": p.is_causal,
        "DROPOUT": p.dropout > 0, "PRECISION": "tf32" if tf32 or half else "ieee", "SAVE": grad is not None or p.returns_lse,
    }  # fmt: skip
    roles = {"Q": "query", "K": "key", "V": "value", "Bias": "mask" if kind else "", "G": "grad"}
    if given:
        roles |= {"O": "output", "LSE": "lse"}
    elif grad is None and not p.returns_lse:
        roles["LSE"] = ""

    def step(kernel: str, tiles: tuple[Tile, ...], count: int, length: int) -> Step:
        pointers, scalars, fixed = KERNELS[kernel]
        kept = tuple((name, constants[name]) for name in fixed if name in constants)
        bias = p.mask.dtype.name if p.mask is not None and "Bias" in pointers else ""
        variant = Variant(kernel, dtype, bias, kept, divisor, capability)
        arrays = tuple(roles.get(name, name) for name in pointers)
        return Step(variant, tiles, arrays, tuple(values[name] for name in scalars), count, length)

    first = step("attention_forward", _forward_tiles(pad, half, p.dropout > 0, capability), batch * heads, queries)
    if grad is None:
        return Recipe((first,), made, results)
    tiles = _backward_tiles(pad, half, p.dropout > 0, capability)
    return Recipe(
        (
            *(() if given else (first,)),
            step("attention_backward_delta", (Tile(32, 0, 4, 1),), batch * heads, queries),
            step("attention_backward_keys", tiles, batch * key_heads, keys),
            step("attention_backward_queries", tiles, batch * heads, queries),
        ),
        made,
        results,
    )


def signed(seed: int) -> int:
    """The low 64 bits of a seed, as a signed number of that many."""
    return (seed + 2**63) % 2**64 - 2**63
