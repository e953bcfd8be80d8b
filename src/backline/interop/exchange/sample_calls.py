"""Random operands of a recorded call, and what a function is called with to repeat it."""

from __future__ import annotations

import math
import struct
from typing import Any, cast

import numpy as np

from ... import _exchange
from .routines import letter
from .signatures import FLAGS, INTEGER_ARRAYS, INTEGERS, REAL_ARRAYS, REAL_SCALARS, RESULTS, ROW_MAJOR, SCALARS, WORKSPACE, Call

__all__ = ["Operands", "Prepared"]

_DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
_C_VALUES = {
    "transa": {"N": 111, "T": 112, "C": 113}, "uplo": {"U": 121, "L": 122}, "diag": {"N": 131, "U": 132},
    "side": {"L": 141, "R": 142},
}  # fmt: skip
# A reflector of a vector that is almost the first unit vector: products of many of them stay orthogonal.
_TINY, _TAU = 1e-8, 2.0


class Operands:
    """Arrays and numbers for one call; all libraries are called with the same ones.

    Parameters
    ----------
    call : Call
        Sizes and flags.
    width : int
        Bytes of an integer.
    seed : int
        Of the random numbers.
    """

    def __init__(self, call: Call, width: int, seed: int) -> None:
        self.call, self.signature = call, call.signature
        self.letter = letter(self.signature.routine)
        self.dtype = np.dtype(_DTYPES[self.letter])
        self.real = np.dtype(np.float32 if self.letter in "sc" else np.float64)
        self.integer = np.dtype(np.int32 if width == 4 else np.int64)
        self.most = max([call.integers[name] for name in ("m", "n", "k", "nrhs") if name in call.integers], default=1)
        self.random = np.random.default_rng(seed)
        self.arrays = {name: self._array(name) for name in self.signature.arguments if self._is_operand(name)}
        self.first = {name: self.arrays[name].copy() for name in self.signature.overwritten}

    @staticmethod
    def bytes_of(call: Call) -> int:
        """Returns about how much memory the operands of a call take, workspace included."""
        size = np.dtype(_DTYPES[letter(call.signature.routine)]).itemsize
        elements = sum(_elements(call, name) for name in call.signature.extents)
        return 3 * size * elements

    def _is_operand(self, name: str) -> bool:
        known = FLAGS | INTEGERS | WORKSPACE | RESULTS | SCALARS | REAL_SCALARS | {"order", "work", "rwork", "iwork"}
        return name not in known

    def _array(self, name: str) -> Any:
        call = self.call
        if name in INTEGER_ARRAYS:
            # As pivots: no rows are exchanged. As columns to be pivoted: all may be.
            return (
                np.arange(1, 2 * self.most + 65, dtype=self.integer)
                if name == "ipiv"
                else np.zeros(2 * self.most + 64, self.integer)
            )
        if name not in self.signature.extents:
            values = np.zeros(self.most + 1, self.real if name in REAL_ARRAYS else self.dtype)
            if name == "tau":
                values[:] = _TAU
            return values
        values = self.random.random(_elements(call, name)) - 0.5
        if self.letter in "cz":
            values = values + 1j * (self.random.random(values.size) - 0.5)
        values = values.astype(self.dtype)
        if name in self.signature.dominant:
            step = call.integers[f"ld{name}"] + 1
            diagonal = values[: step * min(call.extent(name)) : step]
            diagonal[...] = diagonal.real + self.most  # that of a Hermitian matrix's factor is real
        if name == "a" and "tau" in self.signature.arguments and self.signature.unique:
            values *= _TINY
        return values

    def refill(self) -> None:
        """Gives the operands that a call overwrites their first values."""
        for name, values in self.first.items():
            self.arrays[name][...] = values

    def copies(self) -> list[tuple[int, int, int]]:
        """Returns what has to be copied before a call: (to, from, bytes)."""
        return [(self.arrays[name].ctypes.data, values.ctypes.data, values.nbytes) for name, values in self.first.items()]

    def result(self) -> Any:
        """Returns a copy of the array in which all libraries agree but for rounding; None where there is none."""
        name = self.signature.unique
        if not name or self.call.flags.get("range", "A") != "A":
            return None
        return self.arrays[name].copy()

    def bound(self) -> float:
        """Returns the relative error that rounding explains."""
        return 100.0 * float(np.finfo(cast(Any, self.real)).eps) * (10 + self.most)


def _elements(call: Call, name: str) -> int:
    """Elements of an array as the call sees it: leading dimensions and increments included."""
    extent = call.extent(name)
    if len(extent) == 1:
        step = abs(call.integers[f"inc{name}"])
        return 1 + max(extent[0] - 1, 0) * step
    rows, columns = extent
    lines = rows if call.flags.get("order") == str(ROW_MAJOR) else columns
    return max(call.integers[f"ld{name}"] * lines, 1)


class Prepared:
    """One function with everything that it is called with; it owns its workspace.

    Parameters
    ----------
    address : int
        The function.
    operands : Operands
        What it computes with.
    """

    def __init__(self, address: int, operands: Operands) -> None:
        self.address, self.operands = address, operands
        self.copies = operands.copies()
        self._kept: list[Any] = []
        self.info = np.zeros((), operands.integer)
        self.spaces = {"lwork": 1, "lrwork": 1, "liwork": 1}
        if "lwork" in operands.signature.arguments:
            self._ask()
        self._allocate()
        self.words, self.numbers = self._arguments(self.spaces)

    def _ask(self) -> None:
        """Asks the library how much workspace it wants."""
        self._allocate()
        words, numbers = self._arguments(dict.fromkeys(self.spaces, -1))
        _exchange.timed_calls(self.address, words, numbers, 1, [])
        for name, array in (("lwork", self.work), ("lrwork", self.rwork), ("liwork", self.iwork)):
            first = float(np.real(array[0]))
            self.spaces[name] = math.ceil(first * (1 + 1e-6)) if math.isfinite(first) and 0 < first < 2**40 else 1

    def _allocate(self) -> None:
        o, sizes = self.operands, self.operands.call.integers
        least = min(sizes.get("m", o.most), sizes.get("n", o.most))
        spectral = "jobz" in o.call.flags and "s" in o.signature.arguments  # gesdd does not say how much rwork it wants
        reals = max(5 * least * least + 7 * least, 2 * o.most * least + 2 * least * least + least) if spectral else 0
        self.work = np.zeros(max(self.spaces["lwork"], 64), o.dtype)
        self.rwork = np.zeros(
            max(self.spaces["lrwork"], reals, 64 * o.most + 64) if "rwork" in o.signature.arguments else 64, o.real
        )
        self.iwork = np.zeros(max(self.spaces["liwork"], 64 * o.most + 64) if "iwork" in o.signature.arguments else 64, o.integer)

    def _arguments(self, spaces: dict[str, int]) -> tuple[bytes, bytes]:
        """Returns the words that are passed as integers and pointers, and the numbers by value."""
        o = self.operands
        self._kept = []
        words, numbers = [], []
        by_value = o.signature.interface == "cblas"
        own = {"work": self.work, "rwork": self.rwork, "iwork": self.iwork, "info": self.info}
        for name in o.signature.arguments:
            if name in FLAGS or name == "order":
                text = o.call.flags[name]
                if by_value:
                    kind = "transa" if name.startswith("trans") else name
                    words.append(int(text) if name == "order" else _C_VALUES[kind][text])
                    continue
                value = np.frombuffer(text.encode(), np.uint8)
            elif name in INTEGERS or name in WORKSPACE:
                number = o.call.integers[name] if name in INTEGERS else spaces[name]
                if by_value:
                    words.append(number)
                    continue
                value = np.array(number, o.integer)
            elif name in SCALARS or name in REAL_SCALARS:
                dtype = o.real if name in REAL_SCALARS else o.dtype
                value = np.array(_scalar(name, o.real), dtype)
                if by_value and dtype.kind == "f":
                    numbers.append(struct.pack("<f4x" if dtype.itemsize == 4 else "<d", float(value)))
                    continue
            elif name in own:
                value = own[name]
            elif name in RESULTS:
                value = np.zeros((), o.integer)
            else:
                value = o.arrays[name]
            self._kept.append(value)
            words.append(value.ctypes.data)
        if not by_value:
            words += [1] * len(o.signature.flags)  # lengths of the flags
        return struct.pack(f"<{len(words)}q", *words), b"".join(numbers)

    def run(self) -> float:
        """Calls the function once on fresh operands, and returns the seconds."""
        return self.batch(1)

    def batch(self, count: int) -> float:
        """Calls the function so often, and returns the seconds of one call."""
        return _exchange.timed_calls(self.address, self.words, self.numbers, count, self.copies) / count


def _scalar(name: str, real: Any) -> float:
    fixed = {"alpha": 1.0, "ralpha": 1.0, "vlow": -1e9, "vup": 1e9, "rcond": float(np.finfo(real).eps)}
    return fixed.get(name, 0.0)
