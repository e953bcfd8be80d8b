"""Backline's operations for functions that JAX traces: under `jit`, `vmap` and `grad`, on the CPU.

``backline.interop.jax.matmul(a, b)`` computes what ``backline.matmul`` does, by `jax.pure_callback`. ``dir`` of this module
lists the names. Gradients are those that Backline has.

- The settings are those that hold where the function is traced: `jit` keeps them with the compiled function.
- Numbers of 64 bits need ``jax.config.update("jax_enable_x64", True)``, as everywhere in JAX. Without it operands and results of
  float64 are refused instead of rounded; indices are int32.
- A callback runs on a thread of XLA. Backline's operations call nothing of JAX there, which is what makes callbacks hang.
- Where JAX is on a GPU, operands are copied to the host and results back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from .. import switches
from ..errors import BackendUnavailable, BadType
from ..problems.neural_problem import ELEMENTARY
from .operator_gradients import BY_RESULTS, GRADIENTS, no_gradient
from .operators import Operator, operators

__all__: list[str] = []

_WIDE = {"float64": "float32", "complex128": "complex64"}
_NARROW = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32)}
# Operations on the last axes alone, which take any axes before these: one call for a whole batch of `vmap`.
_BATCHED = frozenset(
    f"linalg_{name}"
    for name in (
        "cholesky", "cholesky_ex", "det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inv_ex", "lu_factor", "lu_factor_ex",
        "matrix_exp", "pinv", "qr", "slogdet", "svd", "svdvals",
    )
) | {"relu", "silu", "tanh", "sigmoid", "gelu", *ELEMENTARY}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in operators():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = _public(operators()[name])
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    return sorted(operators())


def _jax() -> Any:
    try:
        return import_module("jax")
    except ImportError as error:
        why = f"jax cannot be imported: {error}"
        raise BackendUnavailable(why, cause="it is not installed here", remedy="install jax") from None


def _public(operator: Operator) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        jax = _jax()
        arrays: list[Any] = []

        def place(value: Any, name: str) -> Any:
            arrays.append(_checked(jax, value, f"{operator.name}: {name}"))
            return _Place(len(arrays) - 1)

        arguments = operator.bind(args, kwargs)
        fixed = []
        for parameter in operator.parameters:
            value = arguments[parameter.name]
            if parameter.is_list and value is not None:
                value = tuple(place(part, parameter.name) for part in value)
            elif parameter.is_array and value is not None:
                value = place(value, parameter.name)
            elif parameter.name == "dtype" and value is not None:
                value = np.dtype(value).name
            elif isinstance(value, list):
                value = tuple(value)
            fixed.append((parameter.name, value))
        return _call(operator.name, tuple(fixed), switches.current())(*arrays)

    function.__name__ = function.__qualname__ = operator.name
    function.__module__ = __name__
    function.__doc__ = (
        f"Computes ``backline.{operator.row.name}`` in a function that JAX traces.\n\n"
        f"Takes {', '.join(parameter.name for parameter in operator.parameters)}, as that does."
    )
    return function


class _Place:
    """The number of an array among those of a call: equal, and with one hash, where the number is."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and other.index == self.index

    def __hash__(self) -> int:
        return hash((_Place, self.index))


def _checked(jax: Any, value: Any, where: str) -> Any:
    """An argument as an array of JAX; one that JAX would round is refused."""
    name = getattr(getattr(value, "dtype", None), "name", "")
    if name in _WIDE and not isinstance(value, jax.Array) and not jax.config.jax_enable_x64:
        raise BadType(
            f"{where} has dtype {name}", cause=f"JAX would round it to {_WIDE[name]}",
            remedy=f'jax.config.update("jax_enable_x64", True), or x.astype({_WIDE[name]})',
        )  # fmt: skip
    if not isinstance(value, jax.Array) and not isinstance(value, (np.ndarray, np.generic)):
        raise BadType(f"{where} is a {type(value).__name__}, not an array of JAX", remedy="jax.numpy.asarray(x)")
    return jax.numpy.asarray(value)


def _filled(fixed: tuple[tuple[str, Any], ...], arrays: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments by name, with the arrays in their places."""

    def value(given: Any) -> Any:
        if isinstance(given, _Place):
            return arrays[given.index]
        return tuple(map(value, given)) if isinstance(given, tuple) else given

    return {name: value(given) for name, given in fixed}


@functools.lru_cache(maxsize=4096)
def _call(name: str, fixed: tuple[tuple[str, Any], ...], snapshot: switches.Snapshot) -> Callable[..., Any]:
    """A function of the arrays alone, which JAX can trace and differentiate."""
    jax, operator = _jax(), operators()[name]

    def primal(*arrays: Any) -> Any:
        described = operator.describe(_filled(fixed, arrays))
        shapes = [jax.ShapeDtypeStruct(shape, _dtype(jax, name, dtype)) for shape, dtype in described]

        def host(*given: Any) -> list[Any]:
            arguments = _filled(fixed, tuple([np.asarray(array) for array in given]))
            with nullcontext() if switches.current() is snapshot else snapshot.apply():
                results = operator.call(arguments)
            return [np.ascontiguousarray(r, s.dtype).reshape(r.shape) for r, s in zip(results, shapes, strict=True)]

        found = jax.pure_callback(host, shapes, *arrays, vmap_method=_vmap_method(name, arrays))
        return found[0] if operator.results == 1 else tuple(found)

    def forward(*arrays: Any) -> Any:
        results = function(*arrays)
        return results, (arrays, results if name in BY_RESULTS else None)

    def backward(kept: Any, cotangents: Any) -> tuple[Any, ...]:
        gradient = GRADIENTS.get(name)
        if gradient is None:
            raise no_gradient(f"backline.interop.jax.{name}")
        arrays, results = kept
        # JAX's cotangents of complex numbers are the conjugates of PyTorch's gradients, whose convention the table has.
        grads = tuple(g.conj() for g in (cotangents if isinstance(cotangents, tuple) else (cotangents,)))
        known = () if results is None else results if isinstance(results, tuple) else (results,)
        found = gradient(_Operators(), _filled(fixed, arrays), known, grads)
        by_place: dict[int, Any] = {}
        for parameter, place in fixed:
            value = found.get(parameter)
            value = value() if callable(value) else value
            places = place if isinstance(place, tuple) else (place,)
            values = value if isinstance(place, tuple) and value is not None else (value,) * len(places)
            by_place |= {p.index: v for p, v in zip(places, values, strict=True) if isinstance(p, _Place)}
        return tuple(_cotangent(jax, array, by_place.get(i)) for i, array in enumerate(arrays))

    function = jax.custom_vjp(primal)
    function.defvjp(forward, backward)
    return function  # type: ignore[no-any-return]  # a callable object of JAX


def _cotangent(jax: Any, array: Any, gradient: Any) -> Any:
    if not jax.numpy.issubdtype(array.dtype, jax.numpy.inexact):
        return np.zeros(array.shape, jax.dtypes.float0)
    return jax.numpy.zeros_like(array) if gradient is None else gradient.conj().astype(array.dtype)


def _dtype(jax: Any, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if jax.config.jax_enable_x64:
        return dtype
    if dtype.name in _WIDE:
        raise BadType(
            f"{name}: the result is {dtype}", cause="JAX has numbers of 32 bits unless it is told otherwise",
            remedy='jax.config.update("jax_enable_x64", True), or operands of float32',
        )  # fmt: skip
    return _NARROW.get(dtype, dtype)


def _vmap_method(name: str, arrays: tuple[Any, ...]) -> str:
    """The method of `vmap`: one call with one more axis in front of all arrays, or one call for each item."""
    matrices = name == "matmul" and len({array.ndim for array in arrays}) == 1 and arrays[0].ndim >= 2
    return "broadcast_all" if name in _BATCHED or matrices else "sequential"


class _Operators:
    """The operations of this module by name, as `operator_gradients` calls them."""

    def __getattr__(self, name: str) -> Any:
        return _public(operators()[name])

    @staticmethod
    def cast(array: Any, like: Any) -> Any:
        return array.astype(like.dtype)

    @staticmethod
    def spread(array: Any, shape: tuple[int, ...]) -> Any:
        return _jax().numpy.broadcast_to(array, shape)
