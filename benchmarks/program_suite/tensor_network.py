"""Tensor networks by einsum: the energy of a chain of spins, and the norm of a sheet of tensors.

The chain is a matrix product state and a Heisenberg Hamiltonian as a matrix product operator (Schollwoeck, 2011), contracted site
by site. The sheet is a projected entangled pair state whose two layers are joined; its norm is contracted from a boundary, tensor
by tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import Program

ROWS, COLUMNS = 4, 4
SITE = "awb,asc,wstv,btd->cvd"  # environment, state, Hamiltonian and state again
# The bonds of the edge and the one to the left, then a tensor's: above, left, below, right.
ABSORB = ("abcdl,alxr->xbcdr", "abcdl,blxr->axcdr", "abcdl,clxr->abxdr", "abcdl,dlxr->abcxr")


def hamiltonian() -> Any:
    """Returns one site of the operator; its axes are left bond, spin, spin, right bond."""
    up, z, one = np.array([[0.0, 1], [0, 0]]), np.diag([0.5, -0.5]), np.eye(2)
    site = np.zeros((5, 2, 2, 5))
    site[0, :, :, 0] = site[4, :, :, 4] = one
    for n, (left, right) in enumerate(((up.T, up), (up, up.T), (z, z)), 1):
        site[n, :, :, 0] = left
        site[4, :, :, n] = right * (1.0 if n == 3 else 0.5)
    return site


def inputs(small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    sites, bond, double = (6, 8, 2) if small else (32, 160, 9)
    ranks = [1, *(min(bond, 2 ** min(n, sites - n)) for n in range(1, sites)), 1]
    chain = [rng.standard_normal((ranks[n], 2, ranks[n + 1])) / (2 * ranks[n]) ** 0.5 for n in range(sites)]
    sheet = []
    for row in range(ROWS):
        for column in range(COLUMNS):
            inside = (row > 0, column > 0, row < ROWS - 1, column < COLUMNS - 1)
            tensor = rng.standard_normal([double if bond else 1 for bond in inside]) + 0.5
            sheet.append(tensor / np.linalg.norm(tensor))
    return {"chain": chain, "sheet": sheet}


def build(ops: Any, data: dict[str, Any]) -> Any:
    chain, sheet = ([ops.array(tensor) for tensor in data[name]] for name in ("chain", "sheet"))
    site = ops.array(hamiltonian())
    start = np.zeros((1, 5, 1))
    start[0, 4, 0] = 1
    left, one, edge = ops.array(start), ops.array(np.ones((1, 1))), ops.array(np.ones((1,) * (COLUMNS + 1)))

    def run() -> Mapping[str, Any]:
        environment, overlap, norm = left, one, edge
        for tensor in chain:
            environment = ops.einsum(SITE, environment, tensor, site, tensor)
            overlap = ops.einsum("ab,asc,bsd->cd", overlap, tensor, tensor)
        for n, tensor in enumerate(sheet):
            norm = ops.einsum(ABSORB[n % COLUMNS], norm, tensor)
        energy = float(environment[0, 0, 0]) / float(overlap[0, 0])
        return {"energy": energy, "overlap": overlap, "norm": norm}

    return run


PROGRAMS = [Program("tensor network", inputs, build, bound=1e-7)]
