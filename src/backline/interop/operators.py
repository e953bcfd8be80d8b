"""Backline's operations as other frameworks register them: names, parameters, results, made from the rows of the operations.

Each operation has one flat name, as PyTorch has them: ``linalg.qr`` is ``linalg_qr``, ``fft.fft`` is ``fft_fft``; operations of
`nn.functional`, `nn.grad` and `nn` have the name they have there. They return new arrays: parameters for outputs are left out,
and so are operations that have no row, that take or return what no framework has (packed weights, int8 with scales), or that have
results of a size that depends on the data.
"""

from __future__ import annotations

import functools
import inspect
import re
from importlib import import_module
from typing import Any, get_origin

import numpy as np

from ..errors import BadValue
from ..libraries.array_kinds import Described, meta_array
from ..ops.result_shapes import Results, results_of
from ..problems.memory_layout import contiguous_strides
from ..problems.op_registry import Op, operations
from ..records import Record

__all__ = ["Operator", "Parameter", "operators"]

# What a parameter may be, by its annotation; the words are those of PyTorch's schemas.
_TYPES = {
    "Array": "Tensor", "Array | None": "Tensor?",
    "tuple[Array, Array]": "Tensor[]", "tuple[Array, ...]": "Tensor[]", "Sequence[Array]": "Tensor[]",
    "bool": "bool", "bool | None": "bool?", "str": "str", "str | None": "str?",
    "int": "int", "int | None": "int?", "float": "float", "float | None": "float?", "complex": "Scalar",
    "Sequence[int]": "int[]", "int | Sequence[int]": "int[1]", "int | Sequence[int] | None": "int[1]?",
    "tuple[int, int]": "int[2]",
}  # fmt: skip
# Those whose annotation says less than frameworks have to know.
_BY_NAME = {"dtype": "ScalarType?", "atol": "float?", "rtol": "float?", "normalized_shape": "int[1]"}
_FAMILIES = ("matmul", "linalg", "fft", "neural", "conv", "attention", "rnn", "einsum")
# Left out beside outputs: what changes the number of results, or destroys an operand.
_LEFT_OUT = ("out", "return_indices", "return_lse", "overwrite_input", "memory_limit", "check_errors")
# Rows of which the public function has another name.
_PUBLIC = {
    "nn.grad.layer_norm_gradients": "nn.grad.layer_norm_backward",
    "nn.grad.batch_norm_gradients": "nn.grad.batch_norm_backward",
}
# Whether there are residuals depends on the rank of the data, `batch_norm` writes to operands, weights of attention may be None;
# the others take a call apart into problems of other shapes.
_NOT_DESCRIBED = (
    "linalg.lstsq", "linalg.multi_dot", "linalg.tensorinv", "linalg.tensorsolve", "tensordot", "inner",
    "nn.functional.batch_norm", "nn.functional.multi_head_attention_forward",
)  # fmt: skip
_PREFIXES = ("nn.functional.", "nn.grad.", "nn.")


class Parameter(Record):
    """One parameter of an operator.

    Attributes
    ----------
    name
        Its name.
    type
        What it takes, in the words of PyTorch's schemas: "Tensor?", "int[2]".
    or_text
        Whether it takes a text as well.
    default
        Its default; `inspect.Parameter.empty` where it has none.
    """

    name: str
    type: str
    default: Any
    or_text: bool = False

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def is_array(self) -> bool:
        return self.type.startswith("Tensor")

    @property
    def is_list(self) -> bool:
        return self.type == "Tensor[]"


class Operator(Record):
    """One operation of Backline, as a framework registers it.

    Attributes
    ----------
    name
        Its flat name.
    row
        Its row among the operations.
    function
        The public operation.
    parameters
        What it takes, in order.
    results
        How many arrays it returns; 0 where the call decides that, and it returns a list.
    variadic
        Whether the operation takes the arrays of its last parameter as positional arguments: einsum.
    """

    name: str
    row: Op
    function: Any
    parameters: tuple[Parameter, ...]
    results: int
    variadic: bool

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments by name, defaults included."""
        if len(args) > len(self.parameters):
            raise TypeError(f"{self.name}() takes {len(self.parameters)} arguments, not {len(args)}")
        if len(args) == len(self.parameters) and not kwargs:
            return dict(zip(self._names, args, strict=True))
        found = dict(zip(self._names, args, strict=False))
        for name, value in kwargs.items():
            if name in found or name not in self._names:
                known = ", ".join(self._names)
                raise TypeError(f"{self.name}() got an unexpected argument {name!r}, or got it twice; it has {known}")
            found[name] = value
        for parameter in self.parameters:
            if parameter.name not in found:
                if parameter.required:
                    raise TypeError(f"{self.name}() misses the argument {parameter.name!r}")
                found[parameter.name] = parameter.default
        return {name: found[name] for name in self._names}

    def call(self, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Runs the operation on NumPy arrays, and returns its results as a tuple of arrays."""
        args, kwargs = self._passed(arguments)
        result = self.function(*args, **kwargs)
        parts = result if isinstance(result, tuple) else (result,)
        return tuple([np.asarray(part) for part in parts if part is not None])

    def describe(self, arguments: dict[str, Any]) -> Results:
        """Returns shapes and dtypes of the results; of arrays it reads shape and dtype only."""

        def meta(value: Any) -> Any:
            if isinstance(value, (tuple, list)):
                return tuple(meta(part) for part in value)
            if not hasattr(value, "shape"):
                return value
            shape, dtype = tuple(map(int, value.shape)), np.dtype(value.dtype)
            return meta_array(Described(dtype, shape, contiguous_strides(shape, dtype.itemsize), "cpu"))

        described = {p.name: meta(arguments[p.name]) if p.is_array else arguments[p.name] for p in self.parameters}
        args, kwargs = self._passed(described)
        found = results_of(self.row.build(*args, **kwargs))
        if found is None:
            raise BadValue(
                f"{self.name}: the shapes of the results are not known before it runs", cause="these arguments take it apart",
                remedy="run it outside the compiled function",
            )  # fmt: skip
        return found

    def _passed(self, arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = {name: tuple(value) if type(value) is list else value for name, value in arguments.items()}
        dropped = given.get("dropout_p") or (given.get("dropout") and given.get("train"))
        if dropped and given.get("seed") is None:
            raise BadValue(
                f"{self.name}: dropout without a seed", cause="a compiled function may run a call once for two, or twice for one",
                remedy="seed=, another one for each call",
            )  # fmt: skip
        if self.variadic:
            *rest, last = given.values()
            return (*rest, *last), {}
        return tuple([given[name] for name in self._by_position]), {name: given[name] for name in self._by_name}

    @property
    def signature(self) -> inspect.Signature:
        assert self.row.signature is not None
        return self.row.signature

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @functools.cached_property
    def _by_position(self) -> tuple[str, ...]:
        """Parameters that are given by position: those before the first that is left out or has to be named."""
        found = []
        for name, parameter in self.signature.parameters.items():
            if name not in self._names or parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                break
            found.append(name)
        return tuple(found)

    @functools.cached_property
    def _by_name(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters if p.name not in self._by_position)


def _type_of(row: Op, parameter: inspect.Parameter) -> str | None:
    annotation = re.sub(r"(?<=.) \| str\b", "", str(parameter.annotation))
    if parameter.name in _BY_NAME:
        return _BY_NAME[parameter.name]
    if "Sizes" in annotation:
        found = re.search(r"([123])d(?:_|$)", row.name)
        rank = found[1] if found else "1"
        optional = "?" if parameter.default is None else ""
        return f"int[{rank}]{optional}"
    return _TYPES.get(annotation)


def _parameters(row: Op) -> tuple[Parameter, ...] | None:
    assert row.signature is not None
    found = []
    for parameter in row.signature.parameters.values():
        if parameter.name in _LEFT_OUT:
            continue
        type_ = "Tensor[]" if parameter.kind is parameter.VAR_POSITIONAL else _type_of(row, parameter)
        if type_ is None:
            return None
        found.append(Parameter(parameter.name, type_, parameter.default, "| str" in str(parameter.annotation)))
    return tuple(found)


def _function(name: str) -> Any:
    module, _, last = f"backline.{_PUBLIC.get(name, name)}".rpartition(".")
    return getattr(import_module(module), last, None)


def _results(row: Op, function: Any) -> int:
    results = row.results
    if results is None and hasattr(function, "__wrapped__"):  # composed of others, and annotated with what it returns
        inner = inspect.unwrap(function)
        results = inner.__globals__.get(inner.__annotations__.get("return"))
    of_tuple = get_origin(results) or results
    if not (isinstance(of_tuple, type) and issubclass(of_tuple, tuple)):
        return 1
    fields = getattr(results, "_fields", None)
    if fields is None:  # tuple[Array, Array], or a class of as many as there are parameters
        return len(getattr(results, "__args__", ()))
    optional = any("None" in str(annotation) for annotation in results.__annotations__.values())
    return 0 if optional else len(fields)


@functools.cache
def operators() -> dict[str, Operator]:
    """Returns the operators by name.

    >>> found = operators()
    >>> [str(p.type) for p in found["matmul"].parameters], found["linalg_svd"].results
    (['Tensor', 'Tensor'], 3)
    """
    found = {}
    for row in operations.values():
        if row.family not in _FAMILIES or row.name in _NOT_DESCRIBED or row.signature is None:
            continue
        name = _PUBLIC.get(row.name, row.name)
        function, parameters = _function(row.name), _parameters(row)
        if not callable(function) or parameters is None or not any(p.is_array for p in parameters):
            continue
        prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
        flat = name.removeprefix(prefix).replace(".", "_")
        variadic = any(p.kind is p.VAR_POSITIONAL for p in row.signature.parameters.values())
        found[flat] = Operator(flat, row, function, parameters, _results(row, function), variadic)
    return found
