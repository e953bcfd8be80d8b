"""einsum: sums of products of arrays, as an equation writes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from ... import _core
from ...engine.choice import Choice
from ...engine.choose import choose, plan_for
from ...engine.plan_templates import Part, template_of
from ...engine.tuning import record_store
from ...errors import BadType, BadValue
from ...libraries import host_arrays
from ...libraries.array_kinds import kind_of, learn
from ...problems import Operand, Problem
from ...problems.einsum_problem import EinsumProblem, joined, parse, sublist
from ...problems.op_registry import Op, operations
from .. import device_dispatch, promote
from ..array_arguments import check_array, check_out, given
from ..linalg_checks import whole
from ..operation import published
from . import device
from .contraction_choice import EinsumChoice, choice_of
from .plan import Contraction

__all__ = ["einsum"]

Array = np.ndarray[Any, Any]

_PIECES = "\0"  # first in a tuple of the parts of an equation: texts of up to 32 characters are what the Memo keys on
_LENGTH = 32


def _einsum(*args: Any, out: Array | None = None, memory_limit: int | str | None = None) -> EinsumProblem:
    """Sum of products of arrays, over the labels that the output has not.

    Parameters
    ----------
    equation
        Labels of the operands' axes, separated by commas, and after ``->`` those of the result: ``"bij,bjk->bik"``. Labels are
        letters; ``...`` stands for axes without a label. A label repeated in one operand takes its diagonal; axes of size 1 are
        repeated. Without an arrow the result has the axes of the ellipsis, then the labels that occur once, capitals first.
    *operands
        Arrays of one dtype, also as one list. Or no equation, and after each array the list of its labels, ints from 0 (A) to 51
        (z) and ``...``; the result's may be given last.
    out
        Array of the result's shape and dtype, any strides; must not overlap the operands.
    memory_limit
        Most elements that an intermediate result may have, or "max_input" for those of the largest operand; None for no limit.
        What stays above it in any order is contracted at once, without intermediate results, which can take very long.

    Returns
    -------
    ndarray
        The result; a scalar where it has no axes. As in NumPy and PyTorch, a view of the operand where there is only one and
        nothing is added up.

    Raises
    ------
    BadValue
        An equation that cannot be read, or does not fit the operands; the message names operand, label and sizes.
    BadType
        Operands that are not arrays or have different dtypes; labels that are not ints.

    Notes
    -----
    With three operands or more, opt_einsum finds the order, as ``backends.opt_einsum`` says; without it, it is from left to
    right. Each step is a matrix product of a BLAS library wherever it can be: transposes become flags, axes next to each other in
    memory become one, and an operand is copied only where its axes lie too far apart. Sums and products of elements that need no
    product of matrices are one loop of the library `kernels`, with sums kept in float64. The order and the plan of every step are
    kept for the next call with such operands; ``explain`` shows them. 16-bit floats accumulate in float32 and round once.

    Examples
    --------
    >>> import numpy as np, backline
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> backline.einsum("ij,jk->ik", a, b)
    array([[ 3.,  3.],
           [12., 12.]])
    >>> float(backline.einsum("ii", np.eye(3)))
    3.0
    >>> backline.einsum(a, [0, 1], [1, 0]).shape
    (3, 2)
    """
    equation, operands = _read(args)
    inputs = tuple(_operand(i, value) for i, value in enumerate(operands))
    for i, o in enumerate(inputs):
        if o.dtype != inputs[0].dtype:
            raise BadType(
                f"einsum: operand {i} has dtype {o.dtype}, operand 0 has {inputs[0].dtype}",
                cause="it runs in one dtype, and an implicit conversion could cost more than the sum",
                remedy=f"x.astype(np.{inputs[0].dtype.name})",
            )
    limit = _limit(memory_limit, inputs)
    problem = joined(parse(equation), inputs, limit)
    if out is None:
        return problem
    check_out(out, "einsum: out", problem.result, problem.dtype)
    given = Operand("out", out.dtype, out.shape, out.strides, out.flags.aligned)
    return joined(parse(equation), (*inputs, given), limit)


def _operand(index: int, value: Any) -> Operand:
    array = check_array(value, f"einsum: operand {index}")
    return Operand(f"in{index}", array.dtype, array.shape, array.strides, array.flags.aligned)


def _limit(value: Any, inputs: tuple[Operand, ...]) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        if value != "max_input":
            raise BadValue(f"einsum: memory_limit={value!r}", remedy="'max_input', a number of elements, or None")
        return max(int(np.prod(o.shape, dtype=np.int64)) for o in inputs)
    limit = whole("einsum", "memory_limit", value, "a number of elements, 'max_input' or None")
    if limit < 1:
        raise BadValue(f"einsum: memory_limit={limit}", cause="it is a number of elements", remedy="1 or more, or None")
    return limit


# The forms of a call --------------------------------------------------------------------------------------------------


def _read(args: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Equation and operands of a call in any of its forms."""
    if not args:
        raise BadValue("einsum: there is no equation and no operand", remedy='einsum("ij,jk->ik", a, b)')
    first = args[0]
    if isinstance(first, tuple) and first and first[0] == _PIECES:
        first = "".join(first[1:])
    if isinstance(first, (np.ndarray, np.generic)) or kind_of(first) is not None:
        return _from_lists(args)
    if not isinstance(first, str):
        raise BadType(f"einsum: the equation is a str, not {type(first).__name__}", remedy='einsum("ij,jk->ik", a, b)')
    operands = list(args[1:])
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not operands:
        raise BadValue(
            f"einsum: the equation {first!r} has no operand", cause="it takes the equation string and at least one operand"
        )
    return first, operands


def _from_lists(args: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The equation of ``operand, labels, operand, labels, ..., labels of the result``."""
    if len(args) < 2:
        raise BadValue("einsum: operand 0 has no list of labels, and there is no equation")
    pairs, last = divmod(len(args), 2)
    operands = [args[2 * i] for i in range(pairs)]
    terms = []
    for i in range(pairs):
        if not isinstance(operands[i], np.generic):
            given(operands[i], f"einsum: operand {i}")
        terms.append(sublist(args[2 * i + 1], f"operand {i}"))
    if last and isinstance(args[-1], (np.ndarray, np.generic)):
        raise BadValue(f"einsum: operand {pairs} has no list of labels")
    equation = ",".join(terms)
    return equation + (f"->{sublist(args[-1], 'the output')}" if last else ""), operands


def _accepted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> EinsumProblem:
    """The Problem, its operands converted if they have to be, and may be; `explain` numbers them without the equation."""
    places = count()
    names = tuple(f"operand {next(places)}" if isinstance(a, np.ndarray) or kind_of(a) else "operands" for a in args)
    problem = promote.accepted(_as_written, names, args, kwargs)
    assert isinstance(problem, EinsumProblem)
    return problem


def _resolve(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    problem = _accepted(args, kwargs)
    if problem.device != "cpu":
        plan = device.DeviceContraction(problem, plan_for).plan()
        return promote.ConvertedPlan(plan, problem) if problem.converted else plan
    contraction = Contraction(problem, plan_for)
    plain = isinstance(args[0], (str, tuple)) and not isinstance(args[1], tuple)
    plan = contraction.plan("plain" if plain else "nested")
    if contraction.direct is not plan:
        plan.choice = choice_of(contraction)
    return promote.ConvertedPlan(plan, problem) if problem.converted else plan


class _Step:
    """Stands for the Plan of a step."""

    def __init__(self, choice: Any = None) -> None:
        self.choice = choice


def _one_product(*args: Any, **kwargs: Any) -> Part | None:
    """The one product that an einsum of two operands may be."""
    problem = _einsum(*args, **kwargs)
    if len(problem.inputs) != 2 or kwargs.get("out") is not None or not record_store.empty():
        return None
    contraction = Contraction(problem, lambda step: _Step())
    if contraction.single is None:
        return None
    return Part(contraction.single, problem, None if contraction.direct is not None else _told)


def _told(problem: Problem, choice: Callable[[Problem], Choice]) -> Choice:
    assert isinstance(problem, EinsumProblem)
    return choice_of(Contraction(problem, lambda step: _Step(choice(step)), dry=True))


def _templated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return template_of(_one_product, args, kwargs)


def _general(*args: Any, **kwargs: Any) -> Any:
    """A call that cannot be memoised as it is: an equation and arrays are made of it."""
    result = host_arrays.call(einsum, args, kwargs, ("equation",))
    if result is not NotImplemented:
        return result
    for name in kwargs:
        if name not in _PARAMETERS:
            raise TypeError(f"einsum() got an unexpected keyword argument {name!r}; it has out, memory_limit")
    equation, operands = _read(args)
    there = device_dispatch.among(tuple(operands), kwargs)
    arrays = operands if there else [check_array(_plain(x), f"einsum: operand {i}") for i, x in enumerate(operands)]
    out = kwargs.get("out")
    limit = kwargs.get("memory_limit")
    if isinstance(limit, np.integer):
        limit = int(limit)
    more: dict[str, Any] = {"memory_limit": limit} if limit is not None else {}
    text = str(equation).replace(" ", "")
    form: Any = text
    if not text.isascii() or len(text) > _LENGTH:
        form = (_PIECES, *(text[i : i + _LENGTH] for i in range(0, len(text), _LENGTH)))
    target = out
    if out is not None and type(out) is not np.ndarray and isinstance(out, np.ndarray) and not isinstance(out, np.ma.MaskedArray):
        target = out.view(np.ndarray)
    call = (form, *arrays)
    if out is not None:
        more["out"] = target
    if there:
        found = [(x, kind) for x in (*arrays, out) if (kind := kind_of(x)) is not None]
        if any(learn(x, kind) for x, kind in found) or not _same(call, args):
            return einsum(*call, **more)
        return _core.run("einsum", _resolve(call, more), *arrays, *([] if out is None else [out]))
    if _same(call, args) and target is out:
        plan = _resolve(call, more)  # there are too many arrays for the Memo, or one is no good: then this raises
        given = [] if out is None else [out]
        return plan(*arrays, *given) if isinstance(plan, _core.PreparedCall) else plan(*call, *given)
    result = einsum(*call, **more)
    return result if out is None else out


def _same(call: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
    """Returns true if nothing was converted: the same objects, and an equation that is not in parts."""
    if len(call) != len(args) or type(call[0]) is not type(args[0]) or call[0] != args[0]:
        return False
    return all(a is b for a, b in zip(call[1:], args[1:], strict=True))


def _plain(value: Any) -> Any:
    """An array of native byte order and of no subclass, where that changes nothing."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufcV":
        return np.asarray(value)
    if isinstance(value, np.ndarray) and not isinstance(value, (np.ma.MaskedArray, np.matrix)):
        if type(value) is not np.ndarray:
            value = value.view(np.ndarray)
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
    return value


def _explain(problem: Problem) -> EinsumChoice:
    class Chosen:
        def __init__(self, step: Problem) -> None:
            self.choice = choose(step, measure=False)

    assert isinstance(problem, EinsumProblem)
    if problem.device != "cpu":
        return choice_of(device.DeviceContraction(problem, Chosen))
    return choice_of(Contraction(problem, Chosen, dry=True))


def _signature() -> inspect.Signature:
    equation = inspect.Parameter("equation", inspect.Parameter.POSITIONAL_ONLY, annotation="str")
    operands = inspect.Parameter("operands", inspect.Parameter.VAR_POSITIONAL, annotation="Array")
    rest = [p for p in inspect.signature(_einsum).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return inspect.Signature([equation, operands, *rest])


_PARAMETERS = ("out", "memory_limit")
_compiled = _core.Operation("einsum", _PARAMETERS, _resolve, _general, foreign=True, templated=_templated)
einsum = published(_compiled, _einsum, "backline", _signature())


def _problem(*args: Any, equation: str = "", **kwargs: Any) -> EinsumProblem:
    """The Problem; the equation may come as a keyword, as the keys of Problems have it."""
    return _accepted((equation, *args) if equation else args, kwargs)


def _as_written(*args: Any, **kwargs: Any) -> EinsumProblem:
    listed = len(args) == 2 and isinstance(args[1], list)
    if device_dispatch.among(args, kwargs) or (listed and device_dispatch.among(tuple(args[1]), {})):
        text, operands = _read(args)
        made = device_dispatch.problem_of("einsum", _einsum, (text, *operands), kwargs)
        assert isinstance(made, EinsumProblem)
        return made
    if args and isinstance(args[0], str):
        args = (args[0], *map(_plain, args[1:])) if not (len(args) == 2 and isinstance(args[1], (list, tuple))) else args
    return _einsum(*args, **kwargs)


operations["einsum"] = Op(name="einsum", family="einsum", signature=_signature(), build=_problem, explain=_explain)
