"""Facts that hold alike for every Problem of one operation, dtype and device under one Snapshot.

A program whose shapes change makes a Problem for each; what does not depend on the shape is found once for all of them: libraries
that a switch refuses, the precision that is permitted, the switches that mattered, and the order in which libraries are asked.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import libraries, switches
from ..libraries import registry
from ..libraries.base import Algorithm
from ..problems import Operand, Problem
from ..switches.scope_state import process, states
from . import effective_precision, policy, precision_figures, ranking
from .choice import Candidate

__all__ = ["ProblemClass", "find", "of"]

MOST = 256  # classes that are kept; beyond, all are found anew
ORDERS = 1024  # of the libraries, likewise, of each class
PLACES = 64  # in a program where scopes are opened, likewise

# Families in which the ranking orders algorithms, after what switches say of attention kernels.
BY_RANK = ("attention", "conv", "fft", "linalg", "matmul", "neural", "quantized", "rnn")
HALF_ATTENTION = "cuda.fp16_bf16_reduction_math_sdp"  # permits what comes before any place of a ranking

Bound = tuple[bool, int, int, int, int]
Told = tuple[dict[str, Candidate], dict[str, tuple[str, str]]]


class ProblemClass:
    """The decisions that a class of Problems shares.

    Attributes
    ----------
    wish
        The precision that the switches ask for, as `effective_precision.requested`.
    names
        Libraries that may have something, in the order in which they are listed.
    ranked
        Whether the shipped ranking alone decides among what libraries have, where no tuning record does.
    listed
        Whether the order of the libraries alone decides, as it does on devices, where no tuning record does.
    allowed
        Libraries among `names` that no switch refuses.
    learns
        Whether real calls are timed, to learn from.
    repeats
        Whether a switch asks that calls give the same bits again: what runs the first ones runs all.
    """

    def __init__(self, family: str, op: str, dtype: np.dtype[Any], device: str, snapshot: Any) -> None:
        sample = Problem(op, (Operand("a", dtype, (), ()),), (), family, device=device)
        self._snapshot = snapshot
        self._kind = device.partition(":")[0]
        self._node = effective_precision.node(sample)
        self.wish = effective_precision.requested(sample, snapshot)
        self._floor = effective_precision.FINENESS.get(self.wish, 2)
        self.names, self._refused = [], {}  # the switch behind each refusal
        for name in libraries.names():
            row = libraries.info(name)
            if self._kind not in row.devices or (row.families and family not in row.families):
                continue
            self.names.append(name)
            if not snapshot.get(row.switch, True):
                self._refused[name] = row.switch
            elif snapshot["only"] and name not in snapshot["only"]:
                self._refused[name] = "only"
        self.allowed = [name for name in self.names if name not in self._refused]
        self._governing = [
            # One about arrays of another device, or a library that nothing drives, decides nothing here.
            name for name, switch in switches.declared().items()
            if family in switch.governs and policy.device_of(switch) in ("", self._kind)
            and not (switch.allows and switch.allows not in libraries.names())
        ]  # fmt: skip
        level = snapshot["determinism_level"] if snapshot["deterministic"] else "off"
        plain = (
            level == "off" and not snapshot["emulate"] and not policy.preferred(sample, snapshot)[0]
            and not policy.benchmarks(sample, snapshot)[0] and math.isinf(snapshot["max_error"])
        )  # fmt: skip
        half_math = family == "attention" and snapshot[HALF_ATTENTION]
        self.ranked = plain and device == "cpu" and family in BY_RANK and not half_math
        self.listed = plain and device != "cpu"
        self.learns = snapshot["benchmark"] == "online"
        some = (Algorithm(library=name, name="") for name in policy.DETERMINISTIC if name in self.names)
        self._levels = {a.library: policy.determinism(a, sample, level, snapshot)[0] for a in some}
        self.repeats = level != "off" or any(asked != "off" for asked in self._levels.values())
        self._told: dict[tuple[Any, ...], tuple[Any, Told]] = {}  # by the scopes that are open
        self._too_coarse: set[str] = set()  # keys of algorithms; the precision of one is the same for all Problems of a class
        # What the user names runs, however many digits it loses.
        self._named = {*snapshot["only"], *policy.preferred(sample, snapshot)[0]}
        self._sample = sample
        self._imprecise: dict[tuple[str, str], str] = {}
        self._orders: dict[tuple[int, tuple[str, str]], tuple[Any, Any, tuple[tuple[Bound, str], ...]]] = {}

    def told(self) -> Told:
        """Returns a refusal for each library that a switch refuses, and the switches that mattered, with their origins."""
        state = states.get(None)
        layers = state.layers if state is not None else ()
        if any(written is not None for _, _, written in layers):  # what was assigned there has places of its own
            return self._tell()
        opened = tuple((scope.name, scope.where, values) for scope, values, _ in layers)
        known = self._told.get(opened)
        if known is None or known[0] is not process.bare:  # every assignment makes a new one
            if len(self._told) >= PLACES:
                self._told.clear()
            known = self._told[opened] = process.bare, self._tell()
        return known[1]

    def _tell(self) -> Told:
        refused = {}
        for name, switch in self._refused.items():
            value = f"not among only = {self._snapshot['only']}" if switch == "only" else f"disabled by {switch}"
            refused[name] = Candidate(name, "", "refused", f"{value}, {switches.origin(switch)}", switch)
        matter = {}
        for name in self._governing:
            said = switches.history(name)[0]
            if said.origin.kind != "default":
                matter[name] = (repr(self._snapshot[name]), str(said.origin))
        return refused, matter

    def order(self, keys: tuple[str, ...], leaders: tuple[str, str]) -> tuple[tuple[Bound, str], ...]:
        """Returns the libraries in the order in which they are asked, each with the least place that its algorithms may have.

        Parameters
        ----------
        keys
            Keys of algorithms in the order of their predicted times.
        leaders
            Libraries that may come before any place in that order, such as one that has algorithms made for the shape; or empty.
        """
        known = self._orders.get((id(keys), leaders))
        if known is None or known[0] is not keys or known[1] is not ranking.LIBRARIES:
            if len(self._orders) >= ORDERS:  # every measurement that is kept makes new orders
                self._orders.clear()
            too_coarse = {*self._too_coarse, *(key for key in keys if ranking.fineness(key) < self._floor)}
            places = ranking.first_places(keys, too_coarse)
            bounds = [
                ((False, *ranking.may_lead(name, places, len(keys), leaders), i), name)
                for i, name in enumerate(self.names) if name not in self._refused
            ]  # fmt: skip
            known = self._orders[id(keys), leaders] = keys, ranking.LIBRARIES, tuple(sorted(bounds))
        return known[2]

    def conforms(self, algorithm: Algorithm) -> bool:
        """Tells whether an algorithm is as precise and as reproducible as the switches ask."""
        if effective_precision.FINENESS.get(algorithm.precision, 2) < self._floor:
            if algorithm.key not in self._too_coarse:
                self._too_coarse.add(algorithm.key)
                self._orders = {}  # no library is asked for the sake of this one any more
            return False
        return algorithm.reaches(self._levels.get(algorithm.library, "off")) and not self.imprecise(algorithm)

    def imprecise(self, algorithm: Algorithm) -> str:
        """Returns the reason why an algorithm is not chosen though it could be: it loses more digits than its family may."""
        if algorithm.library in self._named or algorithm.precision in effective_precision.FINENESS:
            return ""  # reduced precision is the business of the switches that permit it
        key = algorithm.library, algorithm.name
        known = self._imprecise.get(key)
        if known is None:
            known = self._imprecise[key] = precision_figures.refusal(self._sample, algorithm)
        return known

    def precise(self, algorithms: list[Algorithm], refused: list[Candidate]) -> list[Algorithm]:
        """Drops what is imprecise, unless nothing else is there."""
        kept = [a for a in algorithms if not self.imprecise(a)]
        if not kept:
            return algorithms
        for a in algorithms:
            reason = self.imprecise(a)
            if reason:
                refused.append(Candidate(a.library, a.name, "refused", reason, "prefer"))
        return kept

    def spelled(self, algorithm: Algorithm) -> str:
        """The precision an algorithm computes in, as reports write it."""
        return effective_precision.spelled(algorithm, self._node)


_known: dict[tuple[Any, ...], ProblemClass] = {}


def of(problem: Problem, snapshot: Any) -> ProblemClass:
    """Returns the class of a Problem under a Snapshot."""
    return find(problem.family, problem.op, problem.dtype, problem.device, snapshot)


def find(family: str, op: str, dtype: np.dtype[Any], device: str, snapshot: Any) -> ProblemClass:
    """Returns the class of Problems of an operation, dtype and device under a Snapshot."""
    key = (family, op, dtype, device, snapshot, registry.changes())
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST:
            _known.clear()
        found = _known[key] = ProblemClass(family, op, dtype, device, snapshot)
    return found
