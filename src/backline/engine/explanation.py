"""Asking what would run, and what ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from ..errors import BadType, BadValue
from ..problems import Problem
from .choice import Choice
from .choose import choose

__all__ = ["composites", "explain", "explainers", "import_operations", "later", "of_problem", "operation_families",
           "problem_builders"]  # fmt: skip



class _Builders(dict[str, Callable[..., Problem]]):
    """Finds operations that nobody has asked for yet as well."""

    def __missing__(self, name: str) -> Callable[..., Problem]:
        if not later:
            raise KeyError(name)
        import_operations()
        return self[name]


# Operation name -> how its Problem is made from arguments; ops/ fills it.
problem_builders: dict[str, Callable[..., Problem]] = _Builders()
# Operation name -> the family of its Problems.
operation_families: dict[str, str] = {}
# Operations of several steps -> what tells which libraries would run them.
explainers: dict[str, Callable[[Problem], Choice]] = {}
# Operations made of others -> what they call.
composites: dict[str, tuple[str, ...]] = {}
# Modules that are imported when something in them is asked for, and that have further operations; the package fills it.
later: list[str] = []


def import_operations() -> None:
    """Import every module that has operations."""
    from importlib import import_module

    while later:
        import_module(later[0])
        later.pop(0)


def explain(op: Any = None, /, *args: Any, **kwargs: Any) -> Choice:
    """Tell which library would run an operation and why, without running it; or what ran last.

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
    if isinstance(op, _core.Operation) and hasattr(op, "problem"):  # a layer that owns its weights
        return choose(op.problem(*args, **kwargs), measure=False)
    name = op if isinstance(op, str) else f"{getattr(op, '__module__', '')}.{getattr(op, '__qualname__', '')}"
    name = name.removeprefix("backline.")
    if name not in problem_builders:
        import_operations()
    if name in composites:
        parts = " and ".join(composites[name])
        raise BadValue(f"{name} is made of other operations: {parts}", remedy=f"explain {parts}, or trace() a run of it")
    if name not in problem_builders:
        if not isinstance(op, str) and not callable(op):
            raise BadType(f"explain takes an operation or its name, not {type(op).__name__}")
        from ..switches.switch import nearest

        close = nearest(name, [*problem_builders, *composites])
        raise BadValue(f"{name} is not an operation of backline", remedy=f"one of: {', '.join(close[:5])}")
    return of_problem(problem_builders[name](*args, **kwargs))


def of_problem(problem: Problem) -> Choice:
    """What would run for a Problem, and why; nothing is measured."""
    explainer = explainers.get(problem.op)
    return explainer(problem) if explainer else choose(problem, measure=False)
