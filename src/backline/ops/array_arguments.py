"""Array arguments of any kind: their checks, their dtypes, and the functions of their namespace.

An operation composed of others is written once, with NumPy's names. `functions` gives the namespace of an array's kind: `numpy`,
CuPy, or MLX's with NumPy's names and conventions. Nothing is copied to or from a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadType, BadValue
from ..libraries.array_kinds import describe, kind_of, meta_array
from ..libraries.host_arrays import host_kind_of
from ..libraries.reference.array_namespaces import NUMPY, Space, mlx_space

__all__ = [
    "ONE_KIND", "cast", "check_array", "check_out", "dtype_of", "functions", "given", "into", "like", "native", "one_kind",
    "plain", "space_of",
]  # fmt: skip

# Cause and remedy of errors about arrays of several kinds.
ONE_KIND = {
    "cause": "one call takes arrays of one kind",
    "remedy": "convert them first: Backline never copies between devices implicitly",
}
Array = np.ndarray[Any, Any]  # or one of CuPy or MLX, which type checkers have no type for


def check_array(value: Any, where: str) -> np.ndarray[Any, Any]:
    """Returns the value if it is an array of NumPy's that operations take; a `BadType` says what to do about others."""
    if not isinstance(value, np.ndarray):
        kind = kind_of(value)
        if kind is not None:
            raise BadType(
                f"{where} must be a NumPy array, not one of {kind.title}", cause="this is computed on the host alone",
                remedy="a copy on the host, which the program makes: Backline never copies between devices implicitly",
            )  # fmt: skip
        host = host_kind_of(value)
        if host is not None:
            raise BadType(f"{where} must be a NumPy array, not one of {host.title}", **ONE_KIND)
        raise BadType(
            f"{where} must be a NumPy array, not {type(value).__name__}",
            remedy="np.asarray(x), or np.from_dlpack(x) without a copy",
        )
    if isinstance(value, (np.ma.MaskedArray, np.matrix)):
        raise BadType(
            f"{where} is a {type(value).__name__}, which has rules of its own",
            remedy="x.filled(...) or np.asarray(x)",
        )
    if value.dtype.hasobject or value.dtype.names is not None or (value.dtype.kind in "SUMmV" and value.dtype.name != "bfloat16"):
        raise BadType(f"{where} has dtype {value.dtype}, which is not a number", remedy="x.astype(np.float64)")
    return value


def check_out(out: np.ndarray[Any, Any], where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the output array if it can take the result."""
    check_array(out, where)
    if out.shape != shape:
        raise BadValue(f"{where} has shape {out.shape}, the result has shape {shape}")
    if out.dtype != dtype:
        raise BadType(f"{where} has dtype {out.dtype}, the result has dtype {dtype}")
    if not out.flags.writeable:
        raise BadValue(f"{where} is read-only", remedy="a writeable array: out.copy()")
    if out.size > 1 and any(s == 0 and n > 1 for s, n in zip(out.strides, out.shape, strict=True)):
        raise BadValue(f"{where} has elements that share memory (a stride of 0)", remedy="an array of its own: out.copy()")
    return out


def given(value: Any, where: str) -> Array:
    """Returns the value if it is an array of any kind that operations take; anything else is a `BadType`."""
    return value if kind_of(value) is not None else check_array(value, where)


def one_kind(where: str, **arrays: Any) -> None:
    """Refuses arrays of several kinds, or on several devices, in one call; None is none."""
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
            **ONE_KIND,
        )
    if len(set(devices)) > 1:
        raise BadValue(f"{where}: arrays are on {' and '.join(dict.fromkeys(devices))}", remedy="copy them to one device first")


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
    return value if kind is None else meta_array(describe(value, kind))


def native(array: Array) -> Array:
    """Returns the array in this machine's byte order: itself, or a copy."""
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def cast(array: Array, dtype: Any) -> Array:
    """Returns an array of any kind in a dtype of NumPy's."""
    kind = kind_of(array)
    if kind is not None and kind.package == "mlx":
        converted: Array = functions(array).astype(array, dtype)
        return converted
    return array.astype(dtype)


def plain(result: Any) -> Array:
    """Returns a result without axes as a scalar, where its kind has those: in NumPy."""
    return result[()] if isinstance(result, np.ndarray) else result


def into(out: Any, where: str, result: Any) -> Array:
    """Returns the result, in the array `out` that the caller gives for it if there is one; refuses one that cannot take it."""
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


def functions(array: Array) -> Any:
    """Returns the namespace for arrays like this one."""
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
    """Returns the namespace that formulas compute with for arrays like this one."""
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
