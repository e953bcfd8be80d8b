"""Backline's operations as operators of PyTorch, which `torch.compile` takes into its graphs as they are.

Importing this module registers them, if PyTorch is installed: ``torch.ops.backline.matmul(a, b)`` computes what
``backline.matmul`` does, under the switches that hold where it runs, on CPU tensors and without copying them. Shapes and dtypes
of results are known without computing, and gradients are recorded where Backline has them. `register` returns the names.

Results are new and contiguous; of images whose channels are last in memory, with theirs last as well.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..errors import BackendUnavailable
from ..libraries.host_arrays import torch_dtype, torch_memory, torch_tensor
from .operator_gradients import BY_RESULTS, GRADIENTS, no_gradient
from .operators import Operator, Parameter, operators

__all__ = ["register"]


@functools.cache
def register() -> tuple[str, ...]:
    """Registers the operators with PyTorch, once; importing this module does so.

    Returns
    -------
    tuple of str
        Their names in ``torch.ops.backline``.

    Raises
    ------
    BackendUnavailable
        PyTorch is not installed.

    Notes
    -----
    It is called when `backline.interop.torch` is imported; ``torch.ops.backline.matmul(a, b)`` is such an operator.
    """
    try:
        torch = import_module("torch")
    except ImportError as error:
        why = f"torch cannot be imported: {error}"
        raise BackendUnavailable(why, cause="it is not installed here", remedy="install torch") from None
    library = torch.library.Library("backline", "DEF")
    _kept.append(library)  # what it registers goes with it
    for operator in operators().values():
        for name, schema in _schemas(operator):
            library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
            library.impl(name, functools.partial(_run, operator), "CPU")
            full = f"backline::{name}"
            torch.library.register_fake(full, functools.partial(_fake, operator), lib=library)
            torch.library.register_autograd(
                full, functools.partial(_backward, operator), setup_context=functools.partial(_save, operator), lib=library
            )
    return tuple(operators())


_kept: list[Any] = []


# Defaults of parameters that take a text as well, where that is the other overload: what the numbers' default means.
_TEXTS = {"padding": "valid"}


def _schemas(operator: Operator) -> Iterator[tuple[str, str]]:
    """Yields name and schema of every overload: one more for a parameter that takes a text as well."""
    results = ", ".join(["Tensor"] * operator.results)
    returns = "Tensor[]" if operator.results == 0 else results if operator.results == 1 else f"({results})"
    declared = [_declared(p, required=p.or_text and isinstance(p.default, str)) for p in operator.parameters]
    yield operator.name, f"{operator.name}({', '.join(declared)}) -> {returns}"
    for i, text in enumerate(operator.parameters):
        if text.or_text:
            default = text.default if isinstance(text.default, str) else _TEXTS.get(text.name, inspect.Parameter.empty)
            own = text.replaced(type="str", default=default)
            before = [_declared(p, required=own.required) for p in operator.parameters[:i]]
            declared = [*before, _declared(own), *map(_declared, operator.parameters[i + 1 :])]
            name = f"{operator.name}.{text.name}"
            yield name, f"{name}({', '.join(declared)}) -> {returns}"


def _declared(parameter: Parameter, required: bool = False) -> str:
    default = parameter.default
    if required or parameter.required:
        return f"{parameter.type} {parameter.name}"
    if isinstance(default, tuple):
        text = f"[{', '.join(map(str, default))}]"
    else:
        text = f'"{default}"' if isinstance(default, str) else str(default)
    return f"{parameter.type} {parameter.name}={text}"


def _converted(arguments: dict[str, Any], one: Any) -> dict[str, Any]:
    """The arguments with every tensor, in lists too, replaced by what `one` makes of it and its name, and dtypes by NumPy's."""
    torch = sys.modules["torch"]

    def value(name: str, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            return one(given, name)
        if isinstance(given, (list, tuple)):
            return tuple(value(name, part) for part in given)
        if isinstance(given, torch.SymInt):
            return int(given)
        own = torch_dtype(given)
        return given if own is None else own.name

    return {name: value(name, given) for name, given in arguments.items()}


def _tensors(arguments: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    _converted(arguments, lambda tensor, name: found.append(tensor))
    return found


def _run(operator: Operator, *args: Any, **kwargs: Any) -> Any:
    views: list[Any] = []

    def view(tensor: Any, name: str) -> Any:
        views.append(torch_memory(tensor, f"{operator.name}: {name}"))
        return views[-1]

    arguments = operator.bind(args, kwargs)
    results = operator.call(_converted(arguments, view))
    format_ = _memory_format(operator, arguments)

    def tensor(result: Any) -> Any:
        for view in views:
            if np.may_share_memory(result, view):
                result = result.copy()
        return torch_tensor(result).contiguous(memory_format=format_(result.ndim))

    return _returned(operator, [tensor(result) for result in results])


def _fake(operator: Operator, *args: Any, **kwargs: Any) -> Any:
    torch = sys.modules["torch"]
    arguments = operator.bind(args, kwargs)
    described = _converted(arguments, lambda tensor, name: _Described(tensor))
    format_ = _memory_format(operator, arguments)
    device = next((tensor.device for tensor in _tensors(arguments)), None)
    results = [
        torch.empty(shape, dtype=getattr(torch, dtype.name), device=device, memory_format=format_(len(shape)))
        for shape, dtype in operator.describe(described)
    ]
    return _returned(operator, results)


class _Described:
    """Shape and dtype of a tensor, as NumPy has them."""

    def __init__(self, tensor: Any) -> None:
        self.shape, self.dtype = tuple(map(int, tensor.shape)), torch_dtype(tensor.dtype)


def _returned(operator: Operator, results: list[Any]) -> Any:
    return results[0] if operator.results == 1 else results if operator.results == 0 else tuple(results)


def _memory_format(operator: Operator, arguments: dict[str, Any]) -> Any:
    """Returns a function that tells the memory format of a result by its number of axes."""
    torch = sys.modules["torch"]
    if operator.row.family in ("conv", "neural"):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        first = _tensors(arguments)[0]
        if first.ndim in formats and not first.is_contiguous() and first.is_contiguous(memory_format=formats[first.ndim]):
            return lambda ndim: formats[ndim] if ndim == first.ndim else torch.contiguous_format
    return lambda ndim: torch.contiguous_format


# Gradients ----------------------------------------------------------------------------------------------------------------


class _Operators:
    """The registered operators by name, as `operator_gradients` calls them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"].ops.backline, name)

    @staticmethod
    def cast(tensor: Any, like: Any) -> Any:
        return tensor.to(like.dtype)

    @staticmethod
    def spread(tensor: Any, shape: tuple[int, ...]) -> Any:
        return tensor.expand(shape)


def _save(operator: Operator, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    arguments = operator.bind(inputs, {})
    results = output if isinstance(output, (tuple, list)) else (output,)
    saved: list[Any] = []

    def place(tensor: Any, name: str) -> Any:
        saved.append(tensor)
        return _Place(len(saved) - 1)

    ctx.arguments = _places(arguments, place)
    ctx.count = len(saved)
    ctx.save_for_backward(*saved, *(results if operator.name in BY_RESULTS else ()))


class _Place:
    """The number of a tensor among those that were saved."""

    def __init__(self, index: int) -> None:
        self.index = index


def _places(arguments: dict[str, Any], place: Any) -> dict[str, Any]:
    torch = sys.modules["torch"]

    def value(name: str, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            return place(given, name)
        is_tensors = isinstance(given, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in given)
        return [value(name, part) for part in given] if is_tensors else given

    return {name: value(name, given) for name, given in arguments.items()}


def _backward(operator: Operator, ctx: Any, *grads: Any) -> Any:
    gradient = GRADIENTS.get(operator.name)
    if gradient is None:
        raise no_gradient(f"torch.ops.backline.{operator.name}")
    saved = ctx.saved_tensors

    def filled(given: Any) -> Any:
        if isinstance(given, _Place):
            return saved[given.index]
        return [filled(part) for part in given] if isinstance(given, list) and given and isinstance(given[0], _Place) else given

    arguments = {name: filled(given) for name, given in ctx.arguments.items()}
    found = gradient(_Operators(), arguments, tuple(saved[ctx.count :]), grads)

    def wanted(value: Any, given: Any) -> Any:
        if isinstance(given, list):
            return [wanted(part, tensor) for part, tensor in zip(value, given, strict=True)]
        differentiable = given.is_floating_point() or given.is_complex()
        return value if differentiable else None

    results = []
    for parameter, needed in zip(operator.parameters, ctx.needs_input_grad, strict=False):
        given = arguments[parameter.name]
        needed = any(needed) if isinstance(needed, (list, tuple)) else needed
        if not parameter.is_array or given is None or parameter.name not in found or not needed:
            results.append([None] * len(given) if parameter.is_list and given is not None else None)
            continue
        value = found[parameter.name]
        results.append(wanted(value() if callable(value) else value, given))
    return tuple(results)


if find_spec("torch") is not None:
    register()
