"""Einstein sums: reading an equation, and the Problem it makes of operands.

Labels are ASCII letters, in which case counts; spaces are ignored. A label repeated in one operand takes the diagonal, axes of
size 1 are repeated as often as others need, and an ellipsis stands for the axes that have no label.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import BadType, BadValue
from . import Operand, Problem

__all__ = ["EinsumProblem", "Equation", "contraction_flops", "joined", "parse", "sublist"]

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # those of the sublist form, by number
ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation as written: labels of each operand before and after the ellipsis, if it has one; the output's, or None."""

    inputs: tuple[tuple[str, ...], ...]  # ("ij",) without an ellipsis, ("i", "j") for "i...j"
    output: tuple[str, ...] | None


def parse(text: str) -> Equation:
    """Read an equation.

    Raises
    ------
    BadValue
        A character that has no meaning, a second arrow, a dot outside an ellipsis, a second ellipsis in one term, a label of the
        output that is repeated or that no input has.

    Examples
    --------
    >>> parse("i...j, jk")
    Equation(inputs=(('i', 'j'), ('jk',)), output=None)
    """
    terms: list[list[str]] = [[""]]
    arrow = False
    at = 0

    def where() -> str:
        return "the output" if arrow else f"operand {len(terms) - 1}"

    while at < len(text):
        character = text[at]
        if character in LETTERS:
            terms[-1][-1] += character
        elif character == ".":
            if text[at : at + 3] != ELLIPSIS:
                raise _wrong(
                    text,
                    f"a dot at index {at} that belongs to no ellipsis, in {where()}",
                    cause=f"found '.' for {where()} that is not part of any ellipsis",
                    remedy="three dots: ...",
                )
            if len(terms[-1]) == 2:
                raise _wrong(
                    text,
                    f"a second ellipsis at index {at}, in {where()}",
                    cause=f"found '.' for {where()} for which an ellipsis was already found",
                )
            terms[-1].append("")
            at += 2
        elif character == "," and not arrow:
            terms.append([""])
        elif text[at : at + 2] == "->":
            if arrow:
                raise _wrong(text, f"a second arrow '->' at index {at}")
            arrow = True
            terms.append([""])
            at += 1
        elif character != " ":
            cause = (
                "the output is one term"
                if character == ","
                else "invalid subscript given: labels are the letters a to z and A to Z, and subscripts must be in [a-zA-Z]"
            )
            raise _wrong(text, f"the character {character!r} at index {at}", cause=cause)
        at += 1
    output = tuple(terms.pop()) if arrow else None
    inputs = tuple(map(tuple, terms))
    if output is not None:
        _check_output(text, inputs, output)
    return Equation(inputs, output)


def _wrong(text: str, what: str, **more: str) -> BadValue:
    return BadValue(f"einsum: equation {text!r} has {what}", **more)


def _check_output(text: str, inputs: tuple[tuple[str, ...], ...], output: tuple[str, ...]) -> None:
    known = {label for term in inputs for label in "".join(term)}
    labels = "".join(output)
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise _wrong(
                text,
                f"the label {label!r} more than once in the output",
                cause=f"output subscript {label} appears more than once in the output",
            )
        if label not in known:
            raise _wrong(
                text, f"the label {label!r} in the output, which no operand has",
                cause=f"output subscript {label} does not appear in the equation for any input operand",
            )  # fmt: skip


def sublist(labels: Any, where: str) -> str:
    """The term that a list of ints and perhaps Ellipsis stands for: 0 is A, 26 is a.

    >>> sublist([26, ..., 1], "operand 0")
    'a...B'
    """
    from numpy import integer

    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise BadType(f"einsum: {where} has {type(labels).__name__} for its labels", remedy="a list of ints from 0 to 51")
    text = ""
    for label in labels:
        if label is Ellipsis:
            text += ELLIPSIS
        elif isinstance(label, bool) or not isinstance(label, (int, integer)):
            kind = type(label).__name__
            raise BadType(f"einsum: {where} has the label {label!r}, a {kind}", remedy="an int from 0 to 51, or ...")
        elif not 0 <= label < len(LETTERS):
            raise BadValue(f"einsum: {where} has the label {label}", cause="labels are 0 to 25 for A to Z, 26 to 51 for a to z")
        else:
            text += LETTERS[label]
    return text


# With operands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EinsumProblem(Problem):
    """A sum of products, over the labels that the output has not.

    Roles: ``in0``, ``in1``, ..., ``out``. Parameters: ``equation``, with an arrow and without an ellipsis or spaces, a letter for
    every axis; ``memory_limit``, the most elements that an intermediate result may have.

    Examples
    --------
    >>> import numpy as np
    >>> from backline.problems import operand
    >>> p = joined(parse("...i,i"), (operand("in0", np.ones((5, 4, 3))), operand("in1", np.ones(3))))
    >>> p.key, p.result
    ('einsum f64 5x4x3 3 equation=BAi,i->BA', (5, 4))
    """

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """Labels of each input, one for each of its axes."""
        inputs: str = self.parameter("equation").partition("->")[0]
        return tuple(inputs.split(","))

    @cached_property
    def output(self) -> str:
        """Labels of the output."""
        output: str = self.parameter("equation").partition("->")[2]
        return output

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.role != "out")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of every label: 1 only where all its axes have 1."""
        found: dict[str, int] = {}
        for term, o in zip(self.terms, self.inputs, strict=True):
            for label, n in zip(term, o.shape, strict=True):
                if found.get(label, 1) == 1:
                    found[label] = n
        return found

    @cached_property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(self.sizes[label] for label in self.output)

    @cached_property
    def summed(self) -> tuple[str, ...]:
        """The labels that are summed over."""
        return tuple(label for label in self.sizes if label not in self.output)

    @cached_property
    def flops(self) -> float:
        """Of the sum as it is written, all operands multiplied at once."""
        return contraction_flops(self.sizes, len(self.terms), bool(self.summed), self.dtype.kind == "c")

    @property
    def empty(self) -> bool:
        return 0 in self.sizes.values()


def contraction_flops(sizes: dict[str, int], operands: int, summed: bool, complex_: bool) -> float:
    """Operations of multiplying operands over labels of these sizes; complex ones count as the real ones they take."""
    total = 1.0
    for n in sizes.values():
        total *= n
    times, plus = (6.0, 2.0) if complex_ else (1.0, 1.0)
    return total * ((operands - 1) * times + summed * plus)


def _labels(taken: set[str]) -> Iterator[str]:
    """Labels that are not taken: letters first, then others that look like some."""
    yield from (letter for letter in LETTERS if letter not in taken)
    yield from map(chr, range(0x100, 0x4000))


def joined(equation: Equation, operands: tuple[Operand, ...], memory_limit: int | None = None) -> EinsumProblem:
    """The Problem of an equation and its operands, the output among them with the role "out" if it is given.

    Raises
    ------
    BadValue
        The number of operands is not that of the terms, labels do not fit an operand's axes, or sizes clash.
    """
    inputs = [o for o in operands if o.role != "out"]
    if len(inputs) != len(equation.inputs):
        few = "fewer" if len(inputs) < len(equation.inputs) else "more"
        raise BadValue(
            f"einsum: the equation has {len(equation.inputs)} terms, and {len(inputs)} operands were given",
            cause=f"{few} operands were provided than specified in the equation",
        )
    covered = []  # axes of each ellipsis
    for i, (term, o) in enumerate(zip(equation.inputs, inputs, strict=True)):
        count, rank = sum(map(len, term)), len(o.shape)
        if count > rank or (len(term) == 1 and count < rank):
            hint = "" if count > rank else "an ellipsis for the axes without a label"
            cause = f"the number of subscripts in the equation ({count}) does not match the number of dimensions ({rank})"
            cause = (
                cause
                if len(term) == 1
                else f"the number of subscripts in the equation ({count}) is more than the number of dimensions ({rank})"
            )
            raise BadValue(
                f"einsum: operand {i}, of shape {o.shape}, has {rank} axes, and its term {count} labels", cause=cause, remedy=hint
            )
        covered.append(rank - count)
    taken = {label for term in equation.inputs for label in "".join(term)}
    free = _labels(taken)
    # The last axis of an ellipsis is the first here: operands with fewer axes have them at the end.
    axes = [next(free) for _ in range(max(covered))]
    terms = []
    for term, count in zip(equation.inputs, covered, strict=True):
        terms.append(term[0] if len(term) == 1 else term[0] + "".join(reversed(axes[:count])) + term[1])
    _check_sizes(terms, inputs, axes)
    everything = "".join(reversed(axes))
    if equation.output is not None:
        output = everything.join(equation.output)
    else:
        together = "".join("".join(term) for term in equation.inputs)
        output = everything + "".join(sorted(label for label in taken if together.count(label) == 1))
    parameters: list[tuple[str, Any]] = [("equation", f"{','.join(terms)}->{output}")]
    if memory_limit is not None:
        parameters.append(("memory_limit", memory_limit))
    return EinsumProblem("einsum", operands, tuple(parameters), "einsum")


def _check_sizes(terms: list[str], inputs: list[Operand], axes: list[str]) -> None:
    """Axes of one label are equal in one operand, and in several where they are not 1."""
    known: dict[str, tuple[int, int]] = {}  # label: size, operand that has it
    for i, (term, o) in enumerate(zip(terms, inputs, strict=True)):
        here: dict[str, int] = {}
        for axis, (label, n) in enumerate(zip(term, o.shape, strict=True)):
            name = f"axis {axis} (of the ellipsis)" if label in axes else f"label {label!r}"
            if here.setdefault(label, n) != n:
                raise BadValue(
                    f"einsum: {name} of operand {i} has the sizes {here[label]} and {n}",
                    cause=f"subscript {label} is repeated for operand {i} but the sizes don't match, {n} != {here[label]}",
                )
            size, other = known.setdefault(label, (n, i))
            if size == 1 and n != 1:
                known[label] = (n, i)
            elif n not in (1, size):
                raise BadValue(
                    f"einsum: {name} of operand {i} has size {n}, and size {size} in operand {other}",
                    cause=f"operand {i} does not broadcast with previously seen size {size}",
                )
