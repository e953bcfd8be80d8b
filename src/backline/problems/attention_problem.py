"""The Problem of scaled dot product attention, and what no kernel may be asked.

Query, key and value are ``(..., heads, length, head dim)``. What single kernels cannot do is another matter
(`libraries.attention_constraints`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadType, BadValue
from . import Operand, Problem
from .dtypes import bfloat16, compute_dtype
from .memory_layout import contiguous_strides

__all__ = ["AttentionGrads", "AttentionLSE", "AttentionProblem", "SoftmaxAttention", "attention_problem", "wrong"]

_ALIGNED = 256  # bytes: what every allocator of GPU memory gives, and more than any kernel wants
_ARRAYS = "an array of NumPy, CuPy or MLX"


class AttentionGrads(NamedTuple):
    """Gradients of attention with respect to its query, key and value, and to a mask that is added (else None)."""

    query: np.ndarray[Any, Any]
    key: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    attn_mask: np.ndarray[Any, Any] | None


class AttentionLSE(NamedTuple):
    """Output of attention, and of each of its rows the log-sum-exp: log of the sum of the exponentials of the scores."""

    output: np.ndarray[Any, Any]
    lse: np.ndarray[Any, Any]


class SoftmaxAttention(Problem):
    """Common to the Problems of attention: roles ``query``, ``key`` and ``value``, and the parameters that all of them have."""

    @cached_property
    def qkv(self) -> tuple[Operand, ...]:
        """Query, key and value, whatever the order in which the call lists them."""
        roles = {o.role: o for o in self.operands}
        return roles["query"], roles["key"], roles["value"]

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return self.qkv[0].dtype

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Head dims of query, key and value."""
        return tuple(o.shape[-1] for o in self.qkv)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of query, key and value; of packed sequences the ones that none of them exceeds."""
        raise NotImplementedError

    @property
    def is_causal(self) -> bool:
        return bool(self.parameter("is_causal", False))

    @property
    def enable_gqa(self) -> bool:
        return bool(self.parameter("enable_gqa", False))

    @property
    def returns_lse(self) -> bool:
        return bool(self.parameter("return_lse", False))

    @cached_property
    def lse_dtype(self) -> np.dtype[Any]:
        """Dtype of the log-sum-exp: what softmax is computed in."""
        return compute_dtype(self.dtype)

    @cached_property
    def scale(self) -> float:
        given = self.parameter("scale")
        if given is not None:
            return float(given)
        return float(self.dims[0]) ** -0.5 if self.dims[0] else 1.0

    @cached_property
    def summands(self) -> int:
        return max(self.dims[0] + self.lengths[1], 1)

    def shape_class(self) -> str:
        return "causal" if self.is_causal else ""


@dataclass(frozen=True)
class AttentionProblem(SoftmaxAttention):
    """``softmax(scale * query @ key.T + mask) @ value``.

    Roles: ``query``, ``key``, ``value``, ``mask`` where there is one, ``grad`` where gradients are asked for, and with that
    ``output`` and ``lse`` where the call has what attention gave. Parameters: ``dropout_p``, ``is_causal``, ``scale`` (None: one
    over the root of the head dim), ``enable_gqa``, ``needs_grad``, and ``return_lse`` where the log-sum-exp is a result. The seed
    of dropout is a run-time scalar: Plans are given it with the arrays.

    Parameters
    ----------
    alignment
        Largest power of two that divides the addresses of query, key and value, up to 256.
    mask_needs_grad
        Whether a gradient of the mask is wanted.
    dense
        Whether all operands are dense arrays.
    """

    alignment: int = _ALIGNED
    mask_needs_grad: bool = False
    dense: bool = True

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of query, key and value."""
        return tuple(o.shape for o in self.qkv)

    @cached_property
    def mask(self) -> Operand | None:
        return self.get("mask")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of query, key and value."""
        return tuple(shape[-2] for shape in self.shapes)

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Heads of query, key and value; 1 where an operand has no such axis."""
        return tuple(shape[-3] if len(shape) > 2 else 1 for shape in self.shapes)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Batch of query, key and value: all axes before the heads."""
        return tuple(math.prod(shape[:-3]) for shape in self.shapes)

    @property
    def dropout(self) -> float:
        return float(self.parameter("dropout_p", 0.0))

    @property
    def scalars(self) -> tuple[str, ...]:
        return ("seed",) if self.dropout else ()

    @property
    def needs_grad(self) -> bool:
        return bool(self.parameter("needs_grad", False))

    @cached_property
    def flops(self) -> float:
        # Two products; a causal mask leaves half of each.
        (queries, keys, _), (dim, _, out) = self.lengths, self.dims
        return 2.0 * self.batches[0] * self.heads[0] * queries * keys * (dim + out) * (0.5 if self.is_causal else 1.0)

    @property
    def kind(self) -> str:
        """Kind of device, such as "cpu" or "cuda"."""
        return self.device.partition(":")[0]

    def last_strides(self) -> tuple[int, ...]:
        """Strides of query, key and value along the head dim, in elements; 0 where it is no whole number of them."""
        return tuple(0 if o.strides[-1] % o.dtype.itemsize else o.strides[-1] // o.dtype.itemsize for o in self.qkv)


def attention_problem(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    needs_grad: bool = False,
    return_lse: bool = False,
) -> AttentionProblem:
    """Describe a call, without the data.

    Parameters
    ----------
    query, key, value, attn_mask
        Arrays of NumPy, CuPy or MLX, all on one device; the mask may be None.
    dropout_p, is_causal, scale, enable_gqa
        As for ``scaled_dot_product_attention``.
    needs_grad
        Whether a backward pass is asked for.
    return_lse
        Whether the log-sum-exp of the scores is a result.

    Raises
    ------
    BadType
        An operand is no array.
    BadValue
        The operands are on several devices.

    Examples
    --------
    >>> x = np.zeros((2, 8, 16, 64), np.float32)
    >>> problem = attention_problem(x, x, x, is_causal=True)
    >>> problem.heads, problem.lengths, problem.dims, problem.device
    ((8, 8, 8), (16, 16, 16), (64, 64, 64), 'cpu')
    """
    arrays = {"query": query, "key": key, "value": value}
    if attn_mask is not None:
        arrays["mask"] = attn_mask
    described = {role: _describe(role, array) for role, array in arrays.items()}
    devices = dict.fromkeys(device for _, device, _ in described.values())
    if len(devices) > 1:
        where = ", ".join(f"{role} on {device}" for role, (_, device, _) in described.items())
        raise BadValue(f"attention of arrays on several devices: {where}", remedy="move them to one device")
    parameters: dict[str, Any] = {
        "dropout_p": float(dropout_p), "enable_gqa": bool(enable_gqa), "is_causal": bool(is_causal),
        "needs_grad": bool(needs_grad or any(_wants_grad(arrays[role]) for role in ("query", "key", "value"))),
        "scale": None if scale is None else float(scale),
    }  # fmt: skip
    if return_lse:
        parameters["return_lse"] = True
    return AttentionProblem(
        "nn.functional.scaled_dot_product_attention",
        tuple(operand for operand, _, _ in described.values()),
        tuple(sorted(parameters.items())),
        "attention",
        device=next(iter(devices)),
        alignment=min(_alignment(address) for role, (_, _, address) in described.items() if role != "mask"),
        mask_needs_grad=_wants_grad(attn_mask),
        dense=all(_is_dense(array) for array in arrays.values()),
    )


def wrong(problem: AttentionProblem) -> str:
    """Say what makes a Problem meaningless, so that every kernel refuses it alike; an empty string if nothing does.

    Examples
    --------
    >>> x = np.zeros((8, 16, 64), np.float32)
    >>> wrong(attention_problem(x, x, x, dropout_p=1.5))
    'dropout probability has to be between 0 and 1, but got 1.5'
    """
    names = ("query", "key", "value")
    ranks = tuple(len(shape) for shape in problem.shapes)
    if min(ranks) < 2:
        return f"query, key and value need 2 dimensions or more, not {_listed(ranks)}; expected all to be at least 2 dimensional"
    dtypes = tuple(o.dtype for o in problem.qkv)
    if len(set(dtypes)) > 1:
        which = ", ".join(f"{name} {dtype.name}" for name, dtype in zip(names, dtypes, strict=True))
        return f"query, key and value need one dtype, not {which}; Expected query, key, and value to have the same dtype"
    if problem.dims[0] != problem.dims[1]:
        return f"query and key must have one head dim, not {problem.dims[0]} and {problem.dims[1]}"
    if problem.lengths[1] != problem.lengths[2]:
        return f"key and value must have one length, not {problem.lengths[1]} and {problem.lengths[2]}"
    if problem.mask is not None and problem.is_causal:
        return "a mask and is_causal exclude each other: Explicit attn_mask should not be set when is_causal=True"
    if problem.mask is not None and problem.mask.dtype not in (np.dtype(bool), np.dtype(np.float32), dtypes[0]):
        return (
            f"the mask must be bool, float32 or {dtypes[0].name} like the query, not {problem.mask.dtype.name};"
            " Expected attn_mask dtype to be bool or float or to match query dtype"
        )
    if not 0 <= problem.dropout <= 1:
        return f"dropout probability has to be between 0 and 1, but got {problem.dropout}"
    queries, keys, values = problem.heads
    if problem.enable_gqa and (not keys or not values or queries % keys or queries % values):
        return f"with enable_gqa the heads of key and value must divide those of the query, not {_listed(problem.heads)}"
    return ""


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


# --- arrays -------------------------------------------------------------------------------------------------------


def _describe(role: str, array: Any) -> tuple[Operand, str, int]:
    """The operand, the device it is on, and its address; 0 where that is not told."""
    if isinstance(array, np.ndarray):
        address = array.__array_interface__["data"][0]
        return Operand(role, array.dtype, array.shape, array.strides, array.flags.aligned), "cpu", int(address)
    kind = type(array).__module__.partition(".")[0]
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or dtype is None:
        from ..switches.switch import show

        raise BadType(f"attention: {role} is {type(array).__name__}, not an array: {show(array)}", remedy=_ARRAYS)
    shape, dtype = tuple(int(n) for n in shape), _dtype(dtype)
    strides = getattr(array, "strides", None)
    if callable(getattr(array, "stride", None)):  # PyTorch counts elements
        strides = tuple(int(step) * dtype.itemsize for step in array.stride())
    if strides is None:  # MLX does not tell; its kernels take any
        strides = contiguous_strides(shape, dtype.itemsize)
    return Operand(role, dtype, shape, tuple(strides)), _device(array, kind), _address(array)


def _dtype(dtype: Any) -> np.dtype[Any]:
    name = str(getattr(dtype, "name", dtype)).rpartition(".")[2]
    try:
        return bfloat16() if name == "bfloat16" else np.dtype(name)
    except TypeError:
        raise BadType(f"attention: {name!r} is no dtype that is known here") from None


def _device(array: Any, kind: str) -> str:
    if kind == "mlx":
        return "mps"
    device = getattr(array, "device", None)
    index = getattr(device, "id", None)
    if isinstance(index, int):  # CuPy
        return f"cuda:{index}"
    text = str(device)
    return text if text.startswith("cuda") else "cpu"


def _address(array: Any) -> int:
    data = getattr(array, "data_ptr", None)
    if callable(data):
        return int(data())
    return int(getattr(getattr(array, "data", None), "ptr", 0))


def _alignment(address: int) -> int:
    return min(address & -address, _ALIGNED) or _ALIGNED


def _wants_grad(array: Any) -> bool:
    return getattr(array, "requires_grad", False) is True


def _is_dense(array: Any) -> bool:
    # A sparse array counts its entries that are there; PyTorch's tensors name their layout.
    sparse = hasattr(array, "nnz") or str(getattr(array, "layout", "torch.strided")) != "torch.strided"
    return not sparse and not isinstance(array, np.ma.MaskedArray)
