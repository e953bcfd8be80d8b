"""Problems: what is asked of a library, without the data.

A Problem is a value: equal Problems may share a Plan. It knows the operation, the operands with their layouts, the
parameters, and the few derived facts every library needs (sizes, floating-point operations, bytes). It does not know
which library will run it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .length_factors import factors_of, lengths_in
from .memory_layout import contiguous_strides, is_contiguous, matrix_layout
from .names import SHORT, short
from .symbolic_sizes import SIZE_STEPS, WORK_STEPS, log2_in_steps

__all__ = ["SHORT", "Operand", "Place", "Problem", "operand", "short"]

_SHAPES = re.compile(r" (\d[\dx]*)(?=[ :]|$)")

# Operation -> how many of its arrays, from the first on, are compared with those that were measured. Others, such as a bias,
# may be there or not, and their sizes follow from the first.
SIZED = {"matmul": 2, "linear": 2, "conv": 2, "conv_transpose": 2, "layer_norm": 1, "batch_norm": 1, "batch_norm_train": 1}


@dataclass(frozen=True, slots=True)
class Operand:
    """One array of a call: its part in the Problem, dtype, shape, strides in bytes, and whether it is aligned."""

    role: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True

    @classmethod
    def contiguous(cls, role: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Operand:
        """Returns the operand that a new array in C order is."""
        return cls(role, dtype, shape, contiguous_strides(shape, dtype.itemsize))

    def is_contiguous(self, order: Sequence[int] | None = None) -> bool:
        """Tells if the array is aligned, and contiguous with its axes in this order, the outermost in memory first; C without."""
        return self.aligned and is_contiguous(self.shape, self.strides, self.dtype.itemsize, order)

    @property
    def nbytes(self) -> int:
        size = self.dtype.itemsize
        for n in self.shape:
            size *= n
        return size

    def extent(self) -> tuple[int, int]:
        """Lowest and one past the highest byte touched, relative to the data pointer."""
        if 0 in self.shape:
            return 0, 0
        low = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s < 0)
        high = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s > 0)
        return low, high + self.dtype.itemsize

    def empty(self) -> np.ndarray[Any, Any]:
        """Returns a new array of this shape, dtype and alignment, with these strides, which may be negative, zero or wide."""
        low, high = self.extent()
        shift = 0 if self.aligned else 1
        memory = np.empty(high - low + 64 + shift, np.uint8)
        start = -memory.ctypes.data % 64 + shift
        array: np.ndarray[Any, Any] = np.ndarray(self.shape, self.dtype, memory.data, start - low, self.strides)
        return array

    def layout(self) -> str:
        """C or F for a matrix that BLAS takes as it is (row or column major), X for one that must be copied first.

        >>> import numpy as np
        >>> operand("a", np.zeros((3, 4)).T).layout()
        'F'
        """
        if len(self.shape) < 2:
            return "C" if not self.shape or self.strides[0] == self.dtype.itemsize or self.shape[0] == 1 else "X"
        return matrix_layout(self.shape[-2:], self.strides[-2:], self.dtype.itemsize, self.aligned)[0]

    def text(self) -> str:
        size = "x".join(map(str, self.shape)) or "scalar"
        layout = self.layout()
        return size if layout == "C" else f"{size}:{layout}"


def operand(role: str, array: np.ndarray[Any, Any]) -> Operand:
    """The Operand that describes an array."""
    return Operand(role, array.dtype, array.shape, array.strides, array.flags.aligned)


class Place(NamedTuple):
    """The facts that times are predicted by.

    Attributes
    ----------
    op, dtype, shape_class : str
        Operation, short name of the dtype, class of the shape.
    work : float
        log2 of the floating-point operations; 0 for less than one.
    sizes : tuple of float
        log2 of the sizes of the arrays, as the key of the Problem lists them, but for those beyond `SIZED`.
    factors : tuple of float
        Of transforms what the prime factors of their lengths tell, as `length_factors` has it; empty for all else.
    """

    op: str
    dtype: str
    shape_class: str
    work: float
    sizes: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Returns the place as tuning records hold it, beside the key, which has the sizes and their factors."""
        return f"{self.op}|{self.dtype}|{self.shape_class}|{self.work:.2f}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Returns the place that a text names.

        Examples
        --------
        >>> Place.parse("matmul|f32|square|25.58")
        Place(op='matmul', dtype='f32', shape_class='square', work=25.58, sizes=(), factors=())
        >>> Place.parse("fft.c2c|c64|1d batch 31-smooth|12").shape_class  # as records of earlier versions have it
        '1d batch'
        """
        op, dtype, shape_class, work = text.split("|")
        if op.startswith("fft."):
            shape_class = " ".join(word for word in shape_class.split() if word in ("1d", "2d", "batch"))
        return cls(op, dtype, shape_class, float(work))

    def sized_as(self, key: str) -> Place:
        """Returns the place with the sizes of the arrays that the key of its Problem has, and with their factors.

        Examples
        --------
        >>> Place.parse("matmul|f32|thin|16").sized_as("matmul f32 64x32 32x16:F 64x16 alpha=2 beta=1").sizes
        (6.0, 5.0, 5.0, 4.0)
        """
        shapes = _SHAPES.findall(key)[: SIZED.get(self.op)]
        sizes = tuple(log2_in_steps(int(n), SIZE_STEPS) for shape in shapes for n in shape.split("x"))
        return self._replace(sizes=sizes, factors=factors_of(lengths_in(key)) if self.op.startswith("fft.") else ())


@dataclass(frozen=True)
class Problem:
    """Operation, operands in the order of the call, parameters.

    Parameters
    ----------
    op
        Name of the operation, such as ``"matmul"`` or ``"linalg.inv"``.
    operands
        Every array of the call, outputs that the caller provides included (role ``"out"``).
    parameters
        Pairs of name and value, sorted by name; values are hashable.
    family
        The op family, "matmul": what switches say they govern.
    device
        Where the arrays are: "cpu", "cuda:0", "mps".
    converted
        Arrays of the call that are converted to the dtype of their operand before anything runs, in words: "input i64 -> f64".
    """

    op: str
    operands: tuple[Operand, ...]
    parameters: tuple[tuple[str, Any], ...] = ()
    family: str = field(default="", compare=False)
    device: str = field(default="cpu", kw_only=True)
    converted: tuple[str, ...] = field(default=(), compare=False, kw_only=True)

    def __init_subclass__(cls) -> None:
        cls.__hash__ = Problem.__hash__  # type: ignore[method-assign]  # else `dataclass` makes one that computes it every time

    def __hash__(self) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash((self.op, self.operands, self.parameters, self.device))
        return known

    def __getstate__(self) -> dict[str, Any]:
        # Another process has other hashes.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @staticmethod
    def parse(text: str) -> Problem:
        """Returns the Problem that a line of text describes, as `str` and `key` write it; `problem_text` says how.

        Raises
        ------
        BadValue
            A word is not understood, which the message names; or the operation refuses these arrays.

        Examples
        --------
        >>> str(Problem.parse("matmul f32 64x32 32x16:F"))
        'matmul f32 64x32 32x16:F'
        """
        from .problem_text import read  # few programs come by

        problem: Problem = read(text)
        return problem

    def parameter(self, name: str, default: Any = None) -> Any:
        for key, value in self.parameters:
            if key == name:
                return value
        return default

    def index(self, role: str) -> int | None:
        """Position of the operand with this role among the arrays of the call, or None."""
        for i, o in enumerate(self.operands):
            if o.role == role:
                return i
        return None

    def get(self, role: str) -> Operand | None:
        """The operand with this role, or None."""
        for o in self.operands:
            if o.role == role:
                return o
        return None

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return self.operands[0].dtype

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the numbers that a Plan is given with the arrays of a call, by keyword: they change from call to call.

        They are no part of the Problem, so that one Plan runs all of these calls.
        """
        return ()

    @cached_property
    def packed(self) -> bool:
        """True if the weights stay the same for as long as a plan lives, which then keeps them as its library wants them.

        Such a plan belongs to the object that owns the weights: no cache hands it to anybody else.
        """
        return bool(self.parameter("packed"))

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of the usual algorithm; complex ones count as the real ones they take."""
        return 0.0

    def shape_class(self) -> str:
        """Returns the class of the shape beyond its size: vectors, batches, thin matrices, kernels of one point."""
        return "batch" if getattr(self, "items", 1) > 1 else ""

    def factors(self) -> tuple[float, ...]:
        """Returns what the prime factors of the lengths tell where they count."""
        return ()

    def place(self) -> Place:
        """Returns where the Problem stands among those whose times are known."""
        return self._place

    @cached_property
    def _place(self) -> Place:
        compared = self._shown[: SIZED.get(self.op)]
        sizes = tuple(log2_in_steps(n, SIZE_STEPS) for o in compared for n in o.shape)
        work = log2_in_steps(self.flops, WORK_STEPS)
        return Place(self.op, short(self.dtype), self.shape_class(), work, sizes, self.factors())

    @cached_property
    def summands(self) -> int:
        """Rounded terms that an element of the result is the sum of: what its rounding error grows with."""
        return 1

    @cached_property
    def bytes(self) -> int:
        return sum(o.nbytes for o in self.operands)

    @property
    def _shown(self) -> tuple[Operand, ...]:
        """Operands that are read, as the key lists them.

        Packed weights come first in a call, and after its input here; what a product is added to comes after its operands.
        """
        read = [o for o in self.operands if o.role != "out"]
        if self.packed or self.get("c") is not None:
            read.sort(key=lambda o: 2 if o.role == "c" else int(o.role not in ("a", "input")))
        return tuple(read)

    @cached_property
    def key(self) -> str:
        """One line that names the Problem, in tuning records and on the command line.

        Alignment and exact strides are not in it, only what decides the speed: sizes, dtype, layout class, parameters.
        """
        parts = [self.op, short(self.dtype), *(o.text() for o in self._shown)]
        shown = ((k, v) for k, v in self.parameters if v not in (None, False) or (v == 0 and k in ("alpha", "beta")))
        parts += [f"{k}={v}" for k, v in shown if k != "check"]
        out = self.get("out")
        if out is not None:
            parts.append("out" if out.layout() == "C" else f"out:{out.layout()}")
        if self.device != "cpu":
            parts.append(f"on {self.device}")
        return " ".join(parts)

    def __str__(self) -> str:
        return self.key
