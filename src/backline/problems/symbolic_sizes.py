"""Sizes that stand for those of later calls: what is computed from them is followed, and what is decided is remembered.

A program whose shapes always change makes a Problem of each call, has an algorithm chosen and a Plan written down. All of that
is Python code that computes with the sizes of arrays. Here it runs once on `SymbolicSize` in the place of numbers: sums, products
and integer quotients of sizes stay expressions, and every comparison is answered for the sizes of this call and noted as a
condition. For any other call whose sizes satisfy the conditions the same code would have gone the same way, so that its Plan has
the same form, with the expressions evaluated.

This is safe because nothing else is possible: a `SymbolicSize` is no `int`, and whatever needs one (a loop over a range, a call
of a library, a hash, a text) raises `Untraceable`. Only an expression with a quotient in it may be used as a number: the
condition is then that it has this very value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

__all__ = [
    "SIZE_STEPS", "WORK_STEPS", "Bounds", "SizeTrace", "SymbolicArray", "SymbolicSize", "Terms", "Untraceable", "is_symbolic",
    "log2_in_steps", "rough",
]  # fmt: skip

WORK_STEPS = 4  # to a doubling of the work: within a step of it and of the sizes algorithms have one order
SIZE_STEPS = 1  # to a doubling of a size

Monomial = tuple[int, ...]  # numbers of quantities that are multiplied, in order; empty for a constant
Terms = tuple[tuple[Monomial, float], ...]  # a sum of monomials with their factors, in order
Quotient = tuple[bool, Terms, Terms]  # whether it is the remainder, the dividend, the divisor
Beside = Callable[[float, bool], float]  # the next number that a sum may be, above or below
Note = Callable[["Bounds", float, bool, Beside], None]


class Untraceable(TypeError):
    """A size was used in a way that cannot be followed."""


class Bounds:
    """Values that a sum may have: no less than `low`, no more than `high`, none of those excluded."""

    __slots__ = ("excluded", "high", "low")

    def __init__(self) -> None:
        self.low: float | None = None
        self.high: float | None = None
        self.excluded: set[float] = set()


class SizeTrace:
    """The quantities of one call, expressions of them, and the conditions under which what was computed holds.

    Attributes
    ----------
    symbols
        For each size and stride of the call's arrays: the number of the array, whether it is a stride, the axis.
    values
        Values in this call, of the symbols and behind them of the quotients.
    quotients
        Integer quotients and remainders of expressions, in the order in which they need each other.
    conditions
        Bounds by sum, its constant left out.
    levels
        Sums whose logarithms are a Problem's place in the ranking, with the steps to a doubling in which they count. Another call
        may have an algorithm of its own where one of them rounds to another step.

    Examples
    --------
    >>> trace = SizeTrace()
    >>> x = trace.array(np.zeros((6, 4)), 0)
    >>> x.shape[0] * 2 > x.shape[1], [(b.low, b.high) for b in trace.conditions.values()]
    (True, [(1, None)])
    >>> trace.evaluated((x.shape[0] * x.shape[1], x.strides[0] // 8), [10, 3, 24, 8])
    (30, 3)
    """

    def __init__(self) -> None:
        self.symbols: list[tuple[int, bool, int]] = []
        self.values: list[int] = []
        self.quotients: list[Quotient] = []
        self.conditions: dict[Terms, Bounds] = {}
        self.levels: list[tuple[Terms, int]] = []
        self._numbers: dict[Quotient, int] = {}
        self._last: tuple[tuple[int, ...], list[int]] = (), []

    def array(self, array: np.ndarray[Any, Any], position: int) -> SymbolicArray:
        """Returns what stands for an array of the call; all of them come before anything is computed."""
        shape = tuple(self._symbol(position, False, axis, n) for axis, n in enumerate(array.shape))
        strides = tuple(self._symbol(position, True, axis, n) for axis, n in enumerate(array.strides))
        return SymbolicArray(array, shape, strides)

    def _symbol(self, position: int, stride: bool, axis: int, value: int) -> SymbolicSize:
        assert not self.quotients
        self.symbols.append((position, stride, axis))
        self.values.append(value)
        return SymbolicSize(self, {(len(self.values) - 1,): 1}, value)

    def number(self, terms: dict[Monomial, float], value: float) -> Any:
        """Returns the sum of terms: a plain number where no quantity is left."""
        terms = {monomial: factor for monomial, factor in terms.items() if factor}
        if not terms:
            return value
        return terms[()] if terms.keys() == {()} else SymbolicSize(self, terms, value)

    def quotient(self, remainder: bool, dividend: Any, divisor: Any) -> SymbolicSize:
        """Returns the integer quotient or the remainder of two expressions as a quantity of its own."""
        key = (remainder, _ordered(dividend), _ordered(divisor))
        if any(isinstance(factor, float) for terms in key[1:] for _, factor in terms):
            raise Untraceable("an integer quotient of numbers that are no integers")
        known = self._numbers.get(key)
        if known is None:
            a, b = _value(dividend), _value(divisor)
            known = self._numbers[key] = len(self.values)
            self.quotients.append(key)
            self.values.append(a % b if remainder else a // b)
        return SymbolicSize(self, {(known,): 1}, self.values[known])

    def bounds(self, terms: Terms) -> Bounds:
        """Returns the bounds of a sum, to be narrowed."""
        return self.conditions.setdefault(terms, Bounds())

    def evaluated(self, value: Any, quantities: Sequence[int]) -> Any:
        """Returns a number, or a tuple or list of such, for another call.

        Parameters
        ----------
        value
            What was computed.
        quantities
            Values of the symbols in the other call.
        """
        known = self._known(tuple(quantities))

        def one(part: Any) -> Any:
            if type(part) is SymbolicSize:
                return _sum(_ordered(part), known)
            if hasattr(part, "evaluated_by"):  # what is computed from sizes, such as a `SymbolicFactor`
                return part.evaluated_by(one)
            return type(part)(map(one, part)) if type(part) in (tuple, list) else part

        return one(value)

    def _known(self, quantities: tuple[int, ...]) -> Sequence[int]:
        """The symbols and the quotients in another call."""
        last = self._last
        if last[0] != quantities or len(last[1]) != len(self.values):
            known = list(quantities)
            for remainder, dividend, divisor in self.quotients:
                a, b = int(_sum(dividend, known)), int(_sum(divisor, known))
                known.append(a % b if remainder else a // b)
            last = self._last = quantities, known  # at once: other threads may ask, too
        return last[1]


class SymbolicArray:
    """Stands for an array of the call: dtype, symbolic sizes and strides, alignment, and no data."""

    __slots__ = ("dtype", "flags", "ndim", "shape", "strides")
    __array_ufunc__ = None

    def __init__(self, array: np.ndarray[Any, Any], shape: tuple[Any, ...], strides: tuple[Any, ...]) -> None:
        self.dtype, self.ndim, self.shape, self.strides = array.dtype, array.ndim, shape, strides
        self.flags = SimpleNamespace(aligned=array.flags.aligned, writeable=array.flags.writeable)

    # The checker knows __class__ as an attribute that no property may take the place of.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what checks arguments takes it for an array
        return np.ndarray

    @property
    def size(self) -> Any:
        return math.prod(self.shape)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise Untraceable("the elements of an array are not there")

    def __len__(self) -> NoReturn:
        raise Untraceable("a length has to be an int")


def _value(number: Any) -> Any:
    return number.value if type(number) is SymbolicSize else number


def _terms(number: Any) -> dict[Monomial, float]:
    return number.terms if type(number) is SymbolicSize else {(): number}


def _ordered(number: Any) -> Terms:
    return tuple(sorted(_terms(number).items()))


def _sum(terms: Terms, values: Sequence[int]) -> Any:
    return sum(factor * math.prod(values[i] for i in monomial) for monomial, factor in terms)


def _is_number(value: Any) -> bool:
    return type(value) in (SymbolicSize, int, float, bool)


def _divided(terms: dict[Monomial, float], by: dict[Monomial, float]) -> dict[Monomial, float] | None:
    """Returns the exact quotient of two sums for all values of the quantities, where it is a sum, too; else None."""
    if any(isinstance(factor, float) for factor in (*terms.values(), *by.values())):
        return None
    if len(by) == 1:
        ((monomial, factor),) = by.items()
        result = {}
        for term, times in terms.items():
            rest = list(term)
            for i in monomial:
                if i not in rest:
                    return None
                rest.remove(i)
            if times % factor:
                return None
            result[tuple(rest)] = times // factor
        return result
    if terms.keys() != by.keys():
        return None
    ratio = next(iter(terms.values())) // next(iter(by.values()))
    return {(): ratio} if all(terms[m] == ratio * by[m] for m in terms) else None


def _operator(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: SymbolicSize, other: Any) -> Any:
        return combine(self, other) if _is_number(other) else NotImplemented

    return method


def _reflected(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return _operator(lambda self, other: combine(other, self))


def _add(a: Any, b: Any) -> Any:
    trace, terms = _trace(a, b), dict(_terms(a))
    for monomial, factor in _terms(b).items():
        terms[monomial] = terms.get(monomial, 0) + factor
    return trace.number(terms, _value(a) + _value(b))


def _multiply(a: Any, b: Any) -> Any:
    trace, terms = _trace(a, b), dict[Monomial, float]()
    for first, factor in _terms(a).items():
        for second, other in _terms(b).items():
            monomial = tuple(sorted((*first, *second)))
            terms[monomial] = terms.get(monomial, 0) + factor * other
    return trace.number(terms, _value(a) * _value(b))


def _subtract(a: Any, b: Any) -> Any:
    return _add(a, _multiply(b, -1)) if type(b) is SymbolicSize else _add(a, -b)


def _floor_divide(a: Any, b: Any) -> Any:
    trace = _trace(a, b)
    if b == 0:
        raise ZeroDivisionError("an integer quotient by zero")
    exact = _divided(_terms(a), _terms(b))
    return trace.quotient(False, a, b) if exact is None else trace.number(exact, _value(a) // _value(b))


def _modulo(a: Any, b: Any) -> Any:
    trace = _trace(a, b)
    if b == 0:
        raise ZeroDivisionError("a remainder by zero")
    return trace.quotient(True, a, b) if _divided(_terms(a), _terms(b)) is None else 0


def _trace(a: Any, b: Any) -> SizeTrace:
    found: SizeTrace = (a if type(a) is SymbolicSize else b).trace
    return found


def _comparison(holds: Callable[[float, float], bool], note: Note) -> Any:
    """Makes a method that compares a size with a number or another size, and notes the answer."""

    def method(self: SymbolicSize, other: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        difference = self - other
        if type(difference) is not SymbolicSize:
            return holds(difference, 0)
        answer = holds(difference.value, 0)
        terms = dict(difference.terms)
        bound = -terms.pop((), 0)
        real = any(isinstance(factor, float) for factor in (*terms.values(), bound))

        def beside(value: float, above: bool) -> float:
            if real:
                return math.nextafter(value, math.inf if above else -math.inf)
            return value + 1 if above else value - 1

        note(self.trace.bounds(tuple(sorted(terms.items()))), bound, answer, beside)
        return answer

    return method


def _at_least(bounds: Bounds, value: float) -> None:
    bounds.low = value if bounds.low is None else max(bounds.low, value)


def _at_most(bounds: Bounds, value: float) -> None:
    bounds.high = value if bounds.high is None else min(bounds.high, value)


def _note_less(bounds: Bounds, value: float, answer: bool, beside: Beside) -> None:
    if answer:
        _at_most(bounds, beside(value, False))
    else:
        _at_least(bounds, value)


def _note_at_most(bounds: Bounds, value: float, answer: bool, beside: Beside) -> None:
    if answer:
        _at_most(bounds, value)
    else:
        _at_least(bounds, beside(value, True))


def _note_greater(bounds: Bounds, value: float, answer: bool, beside: Beside) -> None:
    _note_at_most(bounds, value, not answer, beside)


def _note_at_least(bounds: Bounds, value: float, answer: bool, beside: Beside) -> None:
    _note_less(bounds, value, not answer, beside)


def _note_equal(bounds: Bounds, value: float, answer: bool, beside: Beside) -> None:
    if answer:
        _at_least(bounds, value)
        _at_most(bounds, value)
    else:
        bounds.excluded.add(value)


def _note_different(bounds: Bounds, value: float, answer: bool, beside: Beside) -> None:
    _note_equal(bounds, value, not answer, beside)


class SymbolicSize:
    """A size that is a sum of products of the quantities of a call, with its value in this call.

    Examples
    --------
    >>> trace = SizeTrace()
    >>> m, n = trace.array(np.zeros((6, 4)), 0).shape
    >>> (m * n + 1).value, m - m, (2 * m * n) // n == 2 * m
    (25, 0, True)
    >>> range(m)
    Traceback (most recent call last):
    ...
    backline.problems.symbolic_sizes.Untraceable: a size that is not known has to be an int
    """

    __slots__ = ("terms", "trace", "value")
    __array_ufunc__ = None  # NumPy's numbers leave operations to the methods below

    def __init__(self, trace: SizeTrace, terms: dict[Monomial, float], value: Any) -> None:
        self.trace, self.terms, self.value = trace, terms, value

    __add__, __radd__ = _operator(_add), _reflected(_add)
    __sub__, __rsub__ = _operator(_subtract), _reflected(_subtract)
    __mul__, __rmul__ = _operator(_multiply), _reflected(_multiply)
    __floordiv__, __rfloordiv__ = _operator(_floor_divide), _reflected(_floor_divide)
    __mod__, __rmod__ = _operator(_modulo), _reflected(_modulo)
    __lt__ = _comparison(lambda a, b: a < b, _note_less)
    __le__ = _comparison(lambda a, b: a <= b, _note_at_most)
    __gt__ = _comparison(lambda a, b: a > b, _note_greater)
    __ge__ = _comparison(lambda a, b: a >= b, _note_at_least)
    __eq__ = _comparison(lambda a, b: a == b, _note_equal)
    __ne__ = _comparison(lambda a, b: a != b, _note_different)

    def __truediv__(self, other: Any) -> Any:
        return self * (1.0 / other) if type(other) in (int, float) else NotImplemented

    def __pow__(self, exponent: Any) -> Any:
        return math.prod([self] * exponent) if type(exponent) is int and exponent > 0 else NotImplemented

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __index__(self) -> int:
        symbols = len(self.trace.symbols)
        if not any(i >= symbols for monomial in self.terms for i in monomial) or isinstance(self.value, float):
            raise Untraceable("a size that is not known has to be an int")
        self == self.value  # noqa: B015  # for the condition
        return int(self.value)

    def _refuse(self, *_: Any) -> NoReturn:
        raise Untraceable("a size that is not known has to be a number or a text")

    __hash__ = __int__ = __float__ = __complex__ = __round__ = __str__ = __repr__ = __format__ = _refuse


def is_symbolic(value: object) -> bool:
    """Tells if a value is a `SymbolicSize`."""
    return type(value) is SymbolicSize


def rough(size: Any) -> Any:
    """Returns a size for an estimate by which only the time depends: that of this call, without a condition."""
    return _value(size)


def log2_in_steps(value: Any, steps: int) -> float:
    """Returns log2 of a number, 0 for less than one.

    Of a symbolic one it is that of this call, and noted among the levels of its trace.

    Parameters
    ----------
    value
        Number of operations, or a size.
    steps
        Steps to a doubling: whoever reads the result must round it to these.

    Examples
    --------
    >>> log2_in_steps(8.0, 4)
    3.0
    """
    value = max(value, 1)
    if not is_symbolic(value):
        return math.log2(value)
    level = _ordered(value), steps
    if level not in value.trace.levels:
        value.trace.levels.append(level)
    return math.log2(_value(value))
