"""Kalman filters, in float64: one long record step by step, and a bank of many targets at once.

The record is filtered forwards and smoothed backwards (Rauch, Tung and Striebel); the bank is filtered forwards. Every step is a
handful of products and solutions of matrices of 3 to 8 rows: what a program pays for is the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import Program

STEP = 0.1


def motion(axes: int, order: int) -> tuple[Any, Any, Any]:
    """Returns transition, noise and observation of points moving along axes: positions, velocities and so on to an order."""
    one = np.eye(order) + STEP * np.eye(order, k=1) + (STEP**2 / 2) * np.eye(order, k=2)
    spread = np.array([STEP**3 / 6, STEP**2 / 2, STEP][-order:])
    eye = np.eye(axes)
    noise = np.kron(eye, np.outer(spread, spread)) + 1e-9 * np.eye(axes * order)
    return np.kron(eye, one), noise, np.kron(eye, np.eye(1, order))


def record(rng: Any, batch: tuple[int, ...], steps: int, axes: int) -> Any:
    """Returns observations of positions: columns of coordinates, with noise, step by step."""
    position = np.cumsum(np.cumsum(rng.standard_normal((steps, *batch, axes, 1)), axis=0) * STEP, axis=0) * STEP
    return position + 0.1 * rng.standard_normal(position.shape)


def inputs(small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    one, many = motion(4, 2), motion(2, 3)
    targets, long, short = (7, 30, 8) if small else (400, 800, 40)
    return {"one": (*one, record(rng, (), long, 4)), "many": (*many, record(rng, (targets,), short, 2))}


def build(ops: Any, data: dict[str, Any]) -> Any:
    xp, matmul, solve, slogdet = ops.xp, ops.matmul, ops.solve, ops.slogdet

    def arrays(transition: Any, noise: Any, observe: Any, seen: Any) -> tuple[Any, ...]:
        size, batch = len(transition), seen.shape[1:-2]
        start = np.zeros((*batch, size, 1)), np.broadcast_to(10 * np.eye(size), (*batch, size, size)).copy()
        fixed = (transition, noise, observe, 0.01 * np.eye(seen.shape[-2]), *start)
        return tuple(map(ops.array, fixed)), [ops.array(each) for each in seen]

    def forwards(fixed: tuple[Any, ...], seen: list[Any]) -> tuple[list[Any], Any]:
        transition, noise, observe, error, x, p = fixed
        back, sight, likelihood, states = transition.mT, observe.mT, 0.0, []
        for z in seen:
            ahead = matmul(transition, x)
            spread = matmul(matmul(transition, p), back) + noise
            shown = matmul(observe, spread)
            innovation = matmul(shown, sight) + error
            surprise = z - matmul(observe, ahead)
            gain = solve(innovation, shown).mT
            x = ahead + matmul(gain, surprise)
            p = spread - matmul(gain, shown)
            distance = matmul(surprise.mT, solve(innovation, surprise))
            likelihood = likelihood - 0.5 * (distance[..., 0, 0] + slogdet(innovation)[1])
            states.append((x, p, ahead, spread))
        return states, likelihood

    def backwards(transition: Any, states: list[Any]) -> list[Any]:
        x, p = states[-1][:2]
        smooth = [x]
        for (here, covariance, _, _), (_, _, ahead, spread) in zip(states[-2::-1], states[:0:-1], strict=True):
            gain = solve(spread, matmul(transition, covariance)).mT
            x = here + matmul(gain, x - ahead)
            p = covariance + matmul(matmul(gain, p - spread), gain.mT)
            smooth.append(x)
        return smooth

    one, many = (arrays(*data[name]) for name in ("one", "many"))

    def run() -> Mapping[str, Any]:
        states, likelihood = forwards(*one)
        smooth = backwards(one[0][0], states)
        ends, likelihoods = forwards(*many)
        return {"smooth": xp.stack(smooth), "likelihood": likelihood, "ends": ends[-1][0], "likelihoods": likelihoods}

    return run


PROGRAMS = [Program("Kalman filters", inputs, build, bound=1e-7)]
