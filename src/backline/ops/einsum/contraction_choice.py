"""Explanation of an einsum: its path, what the path saves, and the Choice of every step."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.choice import Candidate, Choice
from ...libraries.base import LEVELS, Algorithm
from ...problems import short
from ...problems.contraction_planner import origin
from .steps import Step, StepWriter

__all__ = ["EinsumChoice", "choice_of"]


@dataclass(slots=True, repr=False)
class EinsumChoice(Choice):
    """The Choice of an einsum: those of its steps together.

    `chosen` names the library that all steps run on, or "several".

    Attributes
    ----------
    path
        Positions of the operands of each contraction; a result is put at the end of those that are left.
    steps
        Every Step with its equation, operations and Choice.
    flops_naive, flops
        Operations of the sum as it is written, and of the steps.
    largest
        Elements of the largest intermediate result.
    """

    path: tuple[tuple[int, ...], ...] = ()
    steps: tuple[Step, ...] = ()
    flops_naive: float = 0.0
    flops: float = 0.0
    largest: int = 0

    def lines(self) -> list[tuple[str, str]]:
        """The head of the table: pairs of label and text."""
        rows = super(EinsumChoice, self).lines()
        path = " ".join(f"({','.join(map(str, step))})" for step in self.path) or "one operand"
        ratio = f", {self.flops_naive / self.flops:.3g} times fewer" if 0 < self.flops < self.flops_naive else ""
        size = self.largest * self.problem.dtype.itemsize
        between = f"{self.largest} elements, {_bytes(size)}" if self.largest else "none"
        rows[2:2] = [
            ("path", path),
            ("operations", f"{self.flops_naive:.3g} as written, {self.flops:.3g} in this order{ratio}"),
            ("intermediate", f"largest: {between}"),
        ]
        return rows

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The table: step, library, algorithm, time, what it computes."""
        found = []
        for i, step in enumerate(self.steps):
            library, algorithm, time = "", step.kind, ""
            what = step.equation
            if step.choice is not None and step.choice.chosen is not None:
                chosen = step.choice.chosen
                library, algorithm = chosen.library, chosen.name + (f" x{chosen.threads}" if chosen.threads > 1 else "")
                time = next((row[3] for row in step.choice.rows()), "")
                what += f"  {step.choice.problem.key.partition(' equation=')[0]}"
            found.append((f"step {i + 1}", library, algorithm, time, what))
        return found


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def choice_of(contraction: StepWriter) -> EinsumChoice:
    """Returns what was chosen for the steps of a contraction."""
    problem = contraction.problem
    choices = [step.choice for step in contraction.steps if step.choice is not None]
    taken = [c.chosen for c in choices if c.chosen is not None]
    names = list(dict.fromkeys(a.library for a in taken)) or [contraction.home]
    level = min((a.level for a in taken), key=LEVELS.index, default="threads")
    bases = [a.basis for a in taken if a.level == level] or ["construction"]
    count = len(contraction.steps)
    chosen = Algorithm(
        library=names[0] if len(names) == 1 else "several", name=f"{count} step{'s' if count != 1 else ''}",
        threads=max((a.threads for a in taken), default=1), scaled=any(a.scaled for a in taken), level=level, basis=bases[0],
        traits=tuple(dict.fromkeys(t for a in taken for t in a.traits)),
    )  # fmt: skip
    # The step with the most operations stands for all where there is one answer only.
    main = max((s for s in contraction.steps if s.choice is not None), key=lambda s: s.flops, default=None)
    of_main = main.choice if main is not None and main.choice is not None else None
    found = EinsumChoice(
        problem, chosen, [Candidate(a.library, a.name, "chosen", s.equation, detail=a) for s, a in _taken(contraction)],
        origin(len(problem.terms), problem.parameter("memory_limit")), of_main.threads if of_main else 1,
        of_main.determinism if of_main else "off",
        {name: said for c in choices for name, said in c.switches.items()},
        list(dict.fromkeys(text for c in choices for text in c.fallbacks)),
        of_main.requested if of_main else "", of_main.effective if of_main else "",
        path=contraction.path, steps=tuple(contraction.steps), flops_naive=problem.flops,
        flops=sum(s.flops for s in contraction.steps),
        largest=max((s.elements for s in contraction.steps[:-1] if s.kind != "copy"), default=0),
    )  # fmt: skip
    if short(problem.dtype) in ("f16", "bf16") and not contraction.direct:
        found.effective = "f32, rounded once"
    return found


def _taken(contraction: StepWriter) -> list[tuple[Step, Algorithm]]:
    return [(s, s.choice.chosen) for s in contraction.steps if s.choice is not None and s.choice.chosen is not None]
