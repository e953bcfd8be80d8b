"""opt_einsum: in which order a contraction of several operands is done. The order decides how much work it is."""

import backline as torch
from backline.problems.contraction_planner import contraction_path

opt_einsum = torch.backends.opt_einsum
EQUATION = "ij,jk,kl,lm->im"
SHAPES = ((500, 4), (4, 500), (500, 4), (4, 500))
SIZES = {letter: n for term, shape in zip(EQUATION.partition("->")[0].split(","), SHAPES, strict=True)
         for letter, n in zip(term, shape, strict=True)}  # fmt: skip


def work(path: tuple[tuple[int, ...], ...]) -> int:
    """Multiplications that the steps of a path take."""
    terms, output = EQUATION.partition("->")[0].split(","), EQUATION.partition("->")[2]
    total = 0
    for step in path:
        taken = [terms[i] for i in step]
        terms = [term for i, term in enumerate(terms) if i not in step]
        letters = set("".join(taken))
        cost = 1
        for letter in letters:
            cost *= SIZES[letter]
        total += cost
        terms.append("".join(sorted(letters & set("".join(terms) + output))))
    return total


def show(what: str) -> None:
    path = contraction_path(EQUATION, SHAPES)
    print(f"  {what:<22} {work(path):>12,} multiplications, steps {path}")


print(f"opt_einsum: {opt_einsum.version() if opt_einsum.is_available() else 'not on this machine'}")
print(f"{EQUATION} of shapes {SHAPES}")
with opt_einsum.flags(enabled=False):
    show("enabled = False")
if opt_einsum.is_available():
    show(f"strategy = {opt_einsum.strategy!r}")
    for strategy in ("greedy", "optimal"):
        opt_einsum.strategy = strategy
        show(f"strategy = {strategy!r}")
try:
    opt_einsum.strategy = "best"
except ValueError as error:
    print(f"\n{str(error).splitlines()[0]}")
