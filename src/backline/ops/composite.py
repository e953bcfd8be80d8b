"""Operations made of others, on arrays that are not NumPy's: what they are checked with and which functions they use.

Such an operation is written once, with NumPy's names. `functions` gives the namespace of an array's kind: `numpy`, CuPy, or MLX's
with the names and habits of NumPy's. Nothing is copied to or from a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.array_kinds import describe, kind_of, likeness
from ..libraries.reference.array_namespaces import NUMPY, Space, mlx_space
from .linalg_checks import FLOATS, not_square
from .operation import check_array, check_out
from .promote import again, names_of

__all__ = [
    "cast",
    "dtype_of",
    "functions",
    "given",
    "into",
    "like",
    "matrices",
    "native",
    "natively",
    "on_its_device",
    "one_kind",
    "plain",
    "space_of",
]

Array = np.ndarray[Any, Any]  # or one of CuPy or MLX, which type checkers have no type for
F = TypeVar("F", bound=Callable[..., Any])


def given(value: Any, where: str) -> Array:
    """The value if it is an array of any kind that operations take.

    Raises
    ------
    BadType
        For anything else.
    """
    return value if kind_of(value) is not None else check_array(value, where)


def dtype_of(array: Array) -> np.dtype[Any]:
    """The dtype of an array of any kind, as NumPy has it.

    >>> dtype_of(np.zeros(2, np.float32)).name
    'float32'
    """
    kind = kind_of(array)
    found: np.dtype[Any] = array.dtype if kind is None else kind.dtype(array)
    return found


def like(value: Any) -> Any:
    """A NumPy array like one of another kind, to check; other values as they are."""
    kind = kind_of(value)
    return value if kind is None else likeness(describe(value, kind))


def native(array: Array) -> Array:
    """The array in this machine's byte order: itself, or a copy."""
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def cast(array: Array, dtype: Any) -> Array:
    """An array of any kind in a dtype of NumPy's."""
    kind = kind_of(array)
    if kind is not None and kind.package == "mlx":
        converted: Array = functions(array).astype(array, dtype)
        return converted
    return array.astype(dtype)


def functions(array: Array) -> Any:
    """The namespace for arrays like this one."""
    kind = kind_of(array)
    if kind is None:
        return np
    if kind.package == "cupy":
        from ..libraries.cuda.common import bindings

        return bindings.cupy()
    if kind.package == "mlx":
        from ..libraries.mlx.mlx_names import names

        return names()
    raise BadType(f"there are no operations made of others for arrays of {kind.title}")


def space_of(array: Array) -> Space:
    """What formulas compute with for arrays like this one."""
    kind = kind_of(array)
    if kind is None:
        return NUMPY
    if kind.package == "cupy":
        from ..libraries.cuda.cupy.library import space

        return space()
    if kind.package == "mlx":
        from ..libraries.mlx.mlx_names import names

        return mlx_space(names()._mx)
    raise BadType(f"there are no operations made of others for arrays of {kind.title}")


def one_kind(where: str, **arrays: Any) -> None:
    """Refuse arrays of several kinds, or on several devices, in one call; None is none.

    Raises
    ------
    BadType, BadValue
        The message names them.
    """
    found: dict[str, str] = {}
    devices: list[str] = []
    for name, value in arrays.items():
        if value is None or not (isinstance(value, np.ndarray) or kind_of(value)):
            continue
        kind = kind_of(value)
        found.setdefault("NumPy" if kind is None else kind.title, name)
        devices.append("cpu" if kind is None else kind.device(value))
    if len(found) > 1:
        raise BadType(
            f"{where}: {' and '.join(f'{name} is an array of {kind}' for kind, name in found.items())}",
            cause="one call takes arrays of one kind",
            remedy="convert them first: nothing is copied to or from a device behind your back",
        )  # fmt: skip
    if len(set(devices)) > 1:
        raise BadValue(f"{where}: arrays are on {' and '.join(dict.fromkeys(devices))}", remedy="copy them to one device first")


def matrices(where: str, A: Any, *, square: bool = False) -> Array:
    """The value if it is a matrix or a batch of them, of numbers that linear algebra takes, in an array of any kind."""
    array = given(A, f"{where}: A")
    dtype = dtype_of(array)
    if dtype.name not in FLOATS:
        cause = f"Expected a floating point or complex tensor as input: linear algebra takes {', '.join(FLOATS)}"
        raise BadType(f"{where}: A has dtype {dtype}", cause=cause)
    if array.ndim < 2:
        raise BadValue(f"{where}: A must have at least 2 dimensions, it has shape {tuple(array.shape)}")
    if square and array.shape[-1] != array.shape[-2]:
        raise not_square(where, "A", tuple(array.shape))
    return array


def plain(result: Any) -> Array:
    """A result without axes as a scalar, where its kind has those: in NumPy."""
    value: Array = result[()] if isinstance(result, np.ndarray) else result
    return value


def into(out: Any, where: str, result: Any) -> Array:
    """The result, in the array that the caller gives for it if there is one.

    Raises
    ------
    BadType, BadValue
        An array of another kind, shape or dtype, or of a kind that nothing is written to.
    """
    if out is None:
        value: Array = result
        return value
    kind = kind_of(result)
    if kind is None and kind_of(out) is None:
        check_out(out, f"{where}: out", np.shape(result), np.asarray(result).dtype)
    else:
        one_kind(where, out=out, result=result)
        if kind_of(out) is None:
            raise BadType(f"{where}: out must be an array of {kind.title if kind else 'NumPy'}, not {type(out).__name__}")
        if kind is not None and kind.package == "mlx":
            raise BadType(f"{where}: out", cause="arrays of MLX are values that nothing is written to", remedy="take the result")
        if tuple(out.shape) != tuple(result.shape):
            raise BadValue(f"{where}: out has shape {tuple(out.shape)}, the result has shape {tuple(result.shape)}")
        if dtype_of(out) != dtype_of(result):
            raise BadType(f"{where}: out has dtype {dtype_of(out)}, the result has dtype {dtype_of(result)}")
    out[...] = result
    written: Array = out
    return written


def natively(function: F) -> F:
    """Decorator: arrays of the other byte order are converted before the function gets them, all but `out`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        converted: dict[int, Array] = {}  # what is one array in several places stays one

        def own(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value if value.dtype.isnative else converted.setdefault(id(value), native(value))
            return type(value)(map(own, value)) if type(value) in (tuple, list) else value

        return function(*map(own, args), **{name: value if name == "out" else own(value) for name, value in kwargs.items()})

    return call  # type: ignore[return-value]  # it has the signature of `function`, which `wraps` does not say


def on_its_device(function: F) -> F:
    """Decorator: what the function makes is made on the device that its first array is on."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if args and type(args[0]) is np.ndarray:
                return function(*args, **kwargs)
            with _device(args, kwargs):
                return function(*args, **kwargs)
        except BadType as error:
            return again(function, error, names_of(function), args, kwargs)

    return call  # type: ignore[return-value]  # it has the signature of `function`, which `wraps` does not say


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in (*args, *kwargs.values()):
        for part in value if isinstance(value, (tuple, list)) else (value,):
            kind = kind_of(part)
            if kind is not None and kind.package == "cupy":
                from ..libraries.cuda.common import bindings

                return bindings.cupy().cuda.Device(int(part.device.id))
    return nullcontext()
