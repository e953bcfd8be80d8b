"""FFTW: a library for each precision, and for each a part that divides transforms among threads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from ... import _core, switches
from ...errors import BackendUnavailable, BadValue
from ...native import thread_team
from ...native.library_search import search
from ...native.shared_library import NativeLibrary
from ...problems import operand
from ...problems.fft_problem import FftProblem
from ..base import Algorithm, FileLibrary, Handler, Refusal
from ..fft_steps import PLANNED_AFTER
from ..probing.probe_cache import prove_found
from . import wisdom
from .guru_transforms import LARGEST, fftw_algorithms, prepare_fftw
from .planner import Planner, planner_of

__all__ = ["FFTW"]

PRECISIONS = {"f": "float32", "": "float64"}


class FFTW(FileLibrary):
    """libfftw3 and libfftw3f of the system, or of a conda environment."""


    def __init__(self) -> None:
        self.planners: dict[str, Planner] = {}
        self.missing: dict[str, str] = {}
        self.thread_guard: Any = None
        self.pool = ""

    # loading

    def load(self) -> str:
        proof = prove_found(self, search(self.spec))
        if proof.reason:
            return proof.reason
        self._open(proof.path)
        wrong = proof.replaced() or self._wrong()
        if wrong:
            self.planners = {}
        return wrong

    def test(self, path: str) -> dict[str, str]:
        self._open(path)
        return {"reason": self._wrong()}

    def _wrong(self) -> str:
        """Returns what is wrong with the first file that computes wrongly, or an empty string."""
        checks = ((planner.base.path, _check(planner, letter)) for letter, planner in self.planners.items())
        return next((f"{path} {wrong}" for path, wrong in checks if wrong), "")

    def _open(self, path: str) -> None:
        threads = thread_team.bind()  # its libgomp is then the one we know
        names: dict[str, str] = {}
        planners: dict[str, Planner] = {}
        for letter in PRECISIONS:
            try:
                base = _native(path if letter == _letter(path) else _sibling(path, letter))
            except OSError as error:
                if letter == _letter(path):
                    raise
                self.missing[letter] = f"there is no FFTW for {PRECISIONS[letter]}: {error}"
                continue
            part = None
            if threads:
                try:
                    part = _native(_sibling(path, letter, "_omp"))
                except OSError as error:
                    names["threads"] = f"none: {error}"
            planners[letter] = planner_of(letter, base, part)
        if any(planner.threaded for planner in planners.values()):
            setter = thread_team.address("omp_set_num_threads")
            getter = thread_team.address("omp_get_max_threads")
            self.thread_guard = thread_team.thread_guard(setter, thread_team.LOCAL, whole=setter, get=getter)
            self.pool = thread_team.name()
            names["threads"] = "OpenMP"
        self.planners = planners
        build = next(iter(planners.values())).identity
        precisions = ", ".join(PRECISIONS[letter] for letter in planners)
        self.facts = {"config": build, "pool": self.pool, "precisions": precisions, **names}

    def version(self) -> str | None:
        return (next(iter(self.planners.values())).version or None) if self.available() else None

    def _algorithms(self, problem: FftProblem, threads: int) -> Iterator[Algorithm | Refusal]:
        letter = _precision(problem)
        planner = self.planners.get(letter)
        if planner is None:
            yield Refusal(self.name, "", self.missing[letter])
            return
        planning = str(switches.get("fftw.planning"))
        yield from fftw_algorithms(planner, problem, threads, planning, self.pool)

    def _prepare(self, problem: FftProblem, algorithm: Algorithm) -> Any:
        planner = self.planners[_precision(problem)]
        seconds = cast(float, switches.get("fftw.plan_time_limit"))
        try:
            plan = prepare_fftw(planner, problem, algorithm, seconds, self.thread_guard)
        except MemoryError as error:
            raise RuntimeError(str(error)) from error  # another library may need less
        if isinstance(plan, _core.PreparedCall):
            plan.rwlock = planner.base.rwlock
        return plan

    handlers: ClassVar = {FftProblem: Handler(_algorithms, _prepare, one_shape=PLANNED_AFTER)}

    # wisdom

    def export_wisdom(self) -> str:
        """Returns the wisdom that FFTW measured in this process or imported, as text; empty if there is none."""
        return wisdom.joined({letter: p.export() for letter, p in self.planners.items() if p.wise}) if self.available() else ""

    def import_wisdom(self, text: str, where: str = "wisdom") -> None:
        """Learn from a text that `export_wisdom` made: all of it, or nothing.

        Raises `BadValue` where it is damaged, or from another FFTW, and `BackendUnavailable` where there is no FFTW.
        """
        if not self.available():
            raise BackendUnavailable(f"{where} is for FFTW, which is not available.", cause=self.reason(), remedy=self.how_to_get)
        found = wisdom.blocks(text, {letter: p.version for letter, p in self.planners.items()}, where)
        before = {letter: (self.planners[letter].export(), self.planners[letter].wise) for letter in found}
        for letter, block in found.items():
            if not self.planners[letter].learn(block):
                for other, (known, wise) in before.items():
                    self.planners[other].forget()
                    if wise:
                        self.planners[other].learn(known)
                raise BadValue(
                    f"{where} is no wisdom of this FFTW",
                    cause=f"FFTW {self.planners[letter].identity} refuses its part for {PRECISIONS[letter]}",
                    remedy="a file that export_wisdom wrote on this machine",
                )
        _core.memo_clear()  # what was chosen without it is chosen anew

    def forget_wisdom(self) -> None:
        """Forget what was measured and learned."""
        for planner in self.planners.values():
            planner.forget()
        _core.memo_clear()


def _precision(problem: FftProblem) -> str:
    return "f" if problem.single and not problem.needs_double(LARGEST) else ""


def _letter(path: str) -> str:
    return "f" if re.match(r"libfftw3f[.-]", os.path.basename(path)) else ""


def _sibling(path: str, letter: str, part: str = "") -> str:
    """The file of another precision, or of the part for threads, beside one: ``libfftw3f_omp.so.3`` beside ``libfftw3.so.3``."""
    folder, name = os.path.split(path)
    return os.path.join(folder, re.sub(r"^libfftw3f?(?=[.-])", f"libfftw3{letter}{part}", name))


def _native(path: str) -> NativeLibrary:
    # MKL's parts export functions of the same names to everybody: without RTLD_DEEPBIND FFTW would call those.
    return NativeLibrary(path, mode=getattr(os, "RTLD_DEEPBIND", 0))


def _check(planner: Planner, letter: str) -> str:
    """Tests the transform of a unit impulse; returns the error found, or an empty string."""
    dtype = np.dtype(np.complex64 if letter else np.complex128)
    x = np.zeros(32, dtype)
    x[1] = 1
    problem = FftProblem("fft.c2c", (operand("input", x),), (), "fft", axes=(0,), lengths=(32,), result=(32,))
    wanted = np.exp(-2j * np.pi * np.arange(32) / 32)
    for scale in (1.0, 0.5):
        algorithm = Algorithm(library="fftw", name="estimate")
        got = prepare_fftw(planner, replace(problem, scale=scale), algorithm, 1.0, None)(x)
        if not np.allclose(got, wanted * scale, rtol=0, atol=1e-5):
            return "computes a wrong transform of 32 points"
    return ""
