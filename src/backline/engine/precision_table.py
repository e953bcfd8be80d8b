"""The table of requested and effective precision: every operation, and every library that has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import libraries, switches
from ..problems import Operand, Problem, operand
from ..problems.conv_problem import ConvProblem
from ..problems.matmul_problem import MatmulProblem
from ..problems.rnn_problem import RnnProblem
from .choice import Candidate
from .choose import planner
from .effective_precision import FINENESS, node, permitted, requested, spelled
from .eligibility import able

__all__ = ["EffectivePrecision", "Row", "table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    device, operation, library
        Where, what, who.
    switch
        The switch that has a say.
    requested, effective
        What it reads as, and what the library computes in.
    reason
        Why the two differ, if they do.
    """

    device: str
    operation: str
    library: str
    switch: str
    requested: str
    effective: str
    reason: str = ""


class EffectivePrecision(list[Row]):
    """Rows of requested and effective precision; prints as a table."""

    def __str__(self) -> str:
        heads = ("device", "operation", "library", "requested", "effective", "why")
        lines = [heads, *((r.device, r.operation, r.library, r.requested, r.effective, r.reason) for r in self)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        from html import escape

        rows = [(r.device, r.operation, r.library, r.requested, r.effective, r.reason) for r in self]
        cells = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        heads = "".join(f"<th>{h}</th>" for h in ("device", "operation", "library", "requested", "effective", "why"))
        return f"<table><tr>{heads}</tr>{cells}</table>"


def table() -> EffectivePrecision:
    """The precision of every operation under the switches that hold here, for each library that is there."""
    rows = EffectivePrecision()
    snapshot = switches.current()
    for device in ("cpu", "cuda", "mps"):
        for operation in ("matmul", "conv", "rnn"):
            problem = _sample(device, operation)
            wish = requested(problem, snapshot)
            found = list(_effective(problem, snapshot))
            rows += [Row(device, operation, library, node(problem), wish, effective, why) for library, effective, why in found]
            if not found:
                rows.append(Row(device, operation, "-", node(problem), wish, "-", "no library here runs it"))
    return rows


def _sample(device: str, operation: str) -> Problem:
    size = 64
    square = [Operand(role, np.dtype(np.float32), (size, size), (4 * size, 4)) for role in "ab"]
    if operation == "matmul":
        return MatmulProblem(
            "matmul", tuple(square), (), "matmul", m=size, n=size, k=size, batch=(), result=(size, size), device=device
        )  # fmt: skip
    if operation == "conv":
        shapes = (1, 16, 16, 16), (16, 16, 3, 3)
        arrays = [operand(role, np.empty(shape, np.float32)) for role, shape in zip(("input", "weight"), shapes, strict=True)]
        return ConvProblem(
            "conv", tuple(arrays), (), "conv", stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), output_padding=(0, 0),
            batch=1, channels=16, features=16, image=(16, 16), kernel=(3, 3), result=(1, 16, 16, 16), device=device,
        )  # fmt: skip
    roles = {"input": (16, 1, size), "h0": (1, 1, size), "c0": (1, 1, size), "p0": (4 * size, size), "p1": (4 * size, size)}
    cells = [operand(role, np.empty(shape, np.float32)) for role, shape in roles.items()]
    return RnnProblem(
        "lstm", tuple(cells), (), "rnn", steps=16, batch=1, features=size, hidden=size, biases=False, result=(16, 1, size),
        device=device,
    )  # fmt: skip


def _effective(problem: Problem, snapshot: Any) -> Iterator[tuple[str, str, str]]:
    refused: list[Candidate] = []
    could = able(problem, snapshot["num_threads"], snapshot, refused, planner)
    kept = permitted(could, problem, snapshot, refused)
    wish = requested(problem, snapshot)
    for library in dict.fromkeys(a.library for a in could):
        mine = [a for a in kept if a.library == library]
        if not mine:
            why = next((c.reason for c in reversed(refused) if c.library == library), "")
            yield library, "-", why
            continue
        best = min(mine, key=lambda a: FINENESS.get(a.precision, 2))
        effective = spelled(best, node(problem))
        kept_wish = best.precision == wish or wish not in FINENESS
        why = "" if kept_wish else f"{libraries.get(library).title} has no {wish} for this here"
        yield library, effective, why
