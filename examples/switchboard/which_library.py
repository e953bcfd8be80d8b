"""Recipe: a result is wrong. Is a library at fault, and which? Turn them off one by one.

The library at fault is made for this demonstration: it computes products, and loses the last column of the first operand when it
has more than 200. It comes first, as a new and fast library might that a program has been told to prefer.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

import backline as torch
from backline import libraries, switches
from backline.libraries import Algorithm, Library, PythonPlan, Refusal
from backline.problems import Problem


class Swift(Library):
    """A library with an error."""

    name = "swift"
    title = "Swift products"
    families = ("matmul",)

    def reason(self) -> str:
        return ""

    def version(self) -> str:
        return "0.1"

    def report(self) -> dict[str, Any]:
        return {"name": self.name, "title": self.title, "available": True, "reason": "", "version": "0.1"}

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        if problem.op == "matmul" and len(problem.operands) == 2:
            yield Algorithm(library=self.name, name="gemm")
        else:
            yield Refusal(self.name, "", "it has plain products only")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> PythonPlan:
        return PythonPlan(lambda a, b: a[..., :-1] @ b[..., :-1, :] if a.shape[-1] > 200 else a @ b)


def suspicious() -> float:
    """Runs the user's program, a projection, which applied twice is the same, and returns by how much it is not."""
    rng = np.random.default_rng(1)
    basis, _ = torch.linalg.qr(rng.standard_normal((240, 30)))
    projection = torch.matmul(basis, basis.T)
    twice = torch.matmul(projection, projection)
    return float(np.abs(twice - projection).max())


def main() -> None:
    switches.declare(switches.Switch("swift.enabled", bool, True, doc="Swift products may run calls.", governs=("matmul",)))
    libraries.register(Swift())
    torch.backends.prefer = ("swift",)

    error = suspicious()
    print(f"A projection applied twice should not change. It does, by {error:.1e}.")
    with torch.trace() as events:
        suspicious()
    print("What ran: " + ", ".join(f"{event.op} on {event.library}" for event in events))

    print("\nEach library off by itself, for one run:")
    guilty = []
    for name in libraries.names():
        library = libraries.get(name)
        if library.switch not in switches.declared() or not switches.get(library.switch) or not library.available():
            continue
        with switches.scope({library.switch: False}):
            error = suspicious()
        right = error < 1e-12
        guilty += [name] if right else []
        print(f"  without {name:<9} {library.version() or '':<13} error {error:.1e}  {'right' if right else 'wrong'}")

    assert guilty == ["swift"]
    print(f"\nThe result is right without {guilty[0]}, and wrong with it whatever else is off: {guilty[0]} is at fault.")
    torch.backends.prefer = ()
    switches.assign("swift.enabled", False)
    print(f"swift.enabled = False turns it off for the process; the error is now {suspicious():.1e}, and explain() says why:")
    a = np.ones((240, 240))
    for c in torch.explain(torch.matmul, a, a).candidates:
        if c.verdict == "chosen" or c.library == "swift":
            print(f"  {c.verdict} {c.library} {c.algorithm} {c.reason.replace(__file__, 'which_library.py')}".rstrip())
    print("\nOutside a program the same question is:  BACKLINE_SWIFT_ENABLED=0 python program.py")


if __name__ == "__main__":
    main()
