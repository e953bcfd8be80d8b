"""Explanations of what would run, and of what ran."""

from __future__ import annotations

from typing import Any

from .. import _core
from ..errors import BadType, BadValue
from ..libraries import host_arrays
from ..problems import Problem
from ..problems.op_registry import composites, operations
from .choice import Choice
from .choose import choose
from .processor_share import scope_here

__all__ = ["explain", "of_problem"]


def explain(op: Any = None, /, *args: Any, **kwargs: Any) -> Choice:
    """Tells which library would run an operation and why, without running it; or what ran last.

    Parameters
    ----------
    op
        An operation of backline or its dotted name; without one, the operation that this thread ran last.
    *args, **kwargs
        What the operation would be given.

    Returns
    -------
    Choice
        Prints as a table: the library and algorithm taken, every other candidate with the reason it was not, the switches
        that mattered with their origin, requested and effective precision, what is promised about bits.

    Raises
    ------
    BadValue
        Nothing ran yet; or the operation is one made of others, which the message names.

    Examples
    --------
    >>> import numpy as np, backline
    >>> a = np.ones((4, 4), np.float32)
    >>> backline.explain(backline.matmul, a, a).problem.key
    'matmul f32 4x4 4x4'
    """
    if op is None:
        plan = _core.last_plan()
        if plan is None:
            raise BadValue("no operation ran in this thread yet", remedy="run one, or name it: explain(op, *args)")
        choice: Choice = plan.choice
        return choice
    args, kwargs = host_arrays.as_numpy("explain", args, kwargs)
    if isinstance(op, _core.Operation) and hasattr(op, "problem"):  # a layer that owns its weights
        with scope_here():
            return choose(op.problem(*args, **kwargs), measure=False)
    name = op if isinstance(op, str) else f"{getattr(op, '__module__', '')}.{getattr(op, '__qualname__', '')}"
    name = name.removeprefix("backline.")
    if name in composites and name not in operations:
        parts = " and ".join(composites[name])
        raise BadValue(f"{name} is made of other operations: {parts}", remedy=f"explain {parts}, or trace() a run of it")
    if name not in operations:
        if not isinstance(op, str) and not callable(op):
            raise BadType(f"explain takes an operation or its name, not {type(op).__name__}")
        from ..switches.switch import nearest

        close = nearest(name, [*operations, *composites])
        raise BadValue(f"{name} is not an operation of backline", remedy=f"one of: {', '.join(close[:5])}")
    return of_problem(operations[name].build(*args, **kwargs))


def of_problem(problem: Problem) -> Choice:
    """Tells what would run for a Problem, and why; nothing is measured."""
    row = operations.get(problem.op)
    with scope_here():
        choice: Choice = choose(problem, measure=False) if row is None or row.explain is None else row.explain(problem)
    return choice
