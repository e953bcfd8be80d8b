"""einsum, tuned, against NumPy, opt_einsum and PyTorch: ``python benchmarks/einsum.py [--threads N] [--rounds N]``.

Each equation is contracted by `backline.einsum`, by `np.einsum(optimize=True)`, by `opt_einsum.contract` on NumPy and by
`torch.einsum`; the 4x4 product also by `np.einsum` as it is, whose cost is that of a call. Without ``--threads``, once on one
thread and once on two; NumPy's own BLAS is told the same number.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import opt_einsum

import backline
from backline import backends
from backline.native.process_map import mapped_files
from side_by_side import Table, call, compare, torch_or_none

Array = np.ndarray[Any, Any]

rng = np.random.default_rng(1)


@dataclass(frozen=True)
class Case:
    label: str
    equation: str
    sizes: dict[str, int]

    def operands(self) -> list[Array]:
        terms = self.equation.partition("->")[0].split(",")
        return [rng.standard_normal([self.sizes[x] for x in term], np.float32) for term in terms]


def sizes(labels: str, *numbers: int) -> dict[str, int]:
    """Of each label; one number is that of all."""
    return dict(zip(labels, numbers if len(numbers) > 1 else numbers * len(labels), strict=True))


CASES = (
    Case("4x4 ij,jk->ik", "ij,jk->ik", sizes("ijk", 4)),
    Case("512 ij,jk->ik", "ij,jk->ik", sizes("ijk", 512)),
    Case("512 ij,jk->ki", "ij,jk->ki", sizes("ijk", 512)),
    Case("scores bhqd,bhkd->bhqk", "bhqd,bhkd->bhqk", sizes("bhqkd", 8, 8, 128, 128, 64)),
    Case("scores bqhd,bkhd->bhqk", "bqhd,bkhd->bhqk", sizes("bhqkd", 8, 8, 128, 128, 64)),
    Case("values bhqk,bkhd->bqhd", "bhqk,bkhd->bqhd", sizes("bhqkd", 8, 8, 128, 128, 64)),
    Case("outer bi,bj->bij 64 128", "bi,bj->bij", sizes("bij", 64, 128, 128)),
    Case("outer bi,bj->bij 16 512", "bi,bj->bij", sizes("bij", 16, 512, 512)),
    Case("outer bi,bj->bij 2000 8", "bi,bj->bij", sizes("bij", 2000, 8, 8)),
    Case("3: chain ij,jk,kl->il", "ij,jk,kl->il", sizes("ijkl", 100, 400, 300, 50)),
    Case("3: bilinear bi,oij,bj->bo", "bi,oij,bj->bo", sizes("bioj", 64, 96, 64, 80)),
    Case("3: batched bij,bjk,bkl->bil", "bij,bjk,bkl->bil", sizes("bijkl", 32, 40, 50, 60, 30)),
    Case("4: tucker abcd,ae,bf,cg->efgd", "abcd,ae,bf,cg->efgd", sizes("abcdefg", 24, 24, 24, 24, 12, 12, 12)),
    Case("4: integrals pi,qa,pqrs,rj->iajs", "pi,qa,pqrs,rj->iajs", sizes("pqrsiaj", 24, 24, 24, 24, 8, 16, 8)),
    Case("4: ring ab,bc,cd,da->", "ab,bc,cd,da->", sizes("abcd", 120)),
    Case("8: ring of 8", "ab,bc,cd,de,ef,fg,gh,ha->", sizes("abcdefgh", 60)),
    Case("8: network, small", "abc,bde,dfg,fhi,ha,cj,ej,gi->", sizes("abcdefghij", 6)),
    Case("8: network, large", "abc,bde,dfg,fhi,haj,ckl,ekm,gilmj->", sizes("abcdefghijklm", 10)),
    Case("8: peps", "abe,bcf,cdg,dah,efij,ghji,kea,kcd->ki", sizes("abcdefghijk", 4)),
)


def set_numpys_threads(threads: int) -> None:
    """Of NumPy's BLAS, where it is the OpenBLAS of a wheel."""
    path = next((f.path for f in mapped_files() if "numpy.libs" in f.path and "openblas" in f.path), None)
    if path is not None:
        ctypes.CDLL(path).scipy_openblas_set_num_threads64_(threads)


def row(table: Table, case: Case, threads: int, rounds: int, torch: Any) -> None:
    operands = case.operands()
    names = {f"x{i}": x for i, x in enumerate(operands)}
    given = ", ".join(names)
    wanted = np.einsum(case.equation, *operands, optimize=True)
    with backends.flags(benchmark=True, benchmark_limit=0):
        result = backline.einsum(case.equation, *operands)
        error = float(np.abs(result - wanted).max() / max(np.abs(wanted).max(), 1e-30))
        assert error < 1e-3, f"{case.label}: off by {error:.0e}"
        choice: Any = backline.explain()
        steps = getattr(choice, "steps", ())
        note = f"{choice.library} {choice.algorithm}"
        if steps:
            note += f" ({'+'.join(dict.fromkeys(s.choice.library for s in steps if s.choice))})"
        contestants = {
            "backline": call(f"f(e, {given})", f=backline.einsum, e=case.equation, **names),
            "numpy": call(f"f(e, {given}, optimize=True)", f=np.einsum, e=case.equation, **names),
            "opt_einsum": call(f"f(e, {given})", f=opt_einsum.contract, e=case.equation, **names),
        }
        if len(operands) == 2 and case.sizes["j" if "j" in case.sizes else "d"] == 4:
            contestants["numpy plain"] = call(f"f(e, {given})", f=np.einsum, e=case.equation, **names)
        if torch:
            tensors = {name: torch.from_numpy(x) for name, x in names.items()}
            contestants["torch"] = call(f"f(e, {given})", f=torch.einsum, e=case.equation, **tensors)
        times = compare(contestants, rounds=rounds)
    table.add(f"{case.label} T{threads}", times, note)


def number(flag: str, default: int | None) -> int | None:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


def main() -> None:
    asked = number("--threads", None)
    rounds = number("--rounds", 9) or 9
    torch = torch_or_none(asked or 1)
    table = Table("einsum", ["numpy", "opt_einsum", "numpy plain", *(["torch"] if torch else [])])
    for threads in (asked,) if asked else (1, 2):
        if torch:
            torch.set_num_threads(threads)
            torch.set_grad_enabled(False)
        set_numpys_threads(threads)
        backline.set_num_threads(threads)
        for case in CASES:
            row(table, case, threads, rounds, torch)
    worst = max(table.rows, key=lambda r: r["of_best_peer"])
    small = [r["seconds"]["backline"] / r["seconds"]["numpy plain"] for r in table.rows if "numpy plain" in r["seconds"]]
    print(f"\nworst: {worst['row']}, {worst['of_best_peer']:.2f} of the best; the 4x4 call takes {max(small):.2f} of np.einsum's")
    if "--no-save" not in sys.argv:
        table.save(worst=worst["of_best_peer"], small_call_of_numpy=max(small))


if __name__ == "__main__":
    main()
