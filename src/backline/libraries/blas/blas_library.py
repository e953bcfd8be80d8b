"""What OpenBLAS, MKL and BLIS have in common: found, checked, opened, probed; then products and LAPACK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from ... import switches
from ...native import thread_team
from ...native.library_search import Finding, LibrarySpec, search
from ...problems import Problem
from ...problems.attention_problem import AttentionProblem
from ...problems.conv_problem import ConvProblem
from ...problems.linalg_problem import LinalgProblem
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.multi_head_problem import MultiHeadProblem
from ...problems.rnn_problem import RnnProblem
from ..base import Algorithm, FileLibrary, Refusal
from ..numpy.library import reference_plan
from ..probing.in_process_probe import probe
from ..probing.probe_cache import Proof, prove
from .blas_attention import attention_algorithms, prepare_attention
from .blas_multi_head import fused_algorithms, prepare_fused
from .blas_rnn import prepare_rnn, rnn_algorithms
from .cblas import BlasTraits, matmul_algorithms, prepare_matmul, takes
from .im2col import conv_algorithms, prepare_conv
from .lapack import linalg_algorithms, prepare_linalg
from .linear_epilogue import linear_algorithms, prepare_linear

__all__ = ["BlasLibrary"]


class BlasLibrary(FileLibrary):
    """Base of the libraries with a BLAS interface. A subclass has a `spec` and opens the file."""

    spec: LibrarySpec
    has_lapack = True
    openmp = True  # what threads they start are those of the one team
    kernels: tuple[str, ...] = ()  # of attention

    def __init__(self) -> None:
        self.finding: Finding | None = None
        self.traits: BlasTraits | None = None
        self.facts: dict[str, str] = {}

    def open(self, path: str) -> BlasTraits:
        """Load the file and say what it is."""
        raise NotImplementedError

    def opened(self, traits: BlasTraits) -> None:
        """Called once it has computed something."""

    def load(self) -> str:
        try:
            self.finding = search(self.spec)
            if self.finding.path is None:
                return self.finding.reason
            proof = self._proof(self.finding.path)
            if proof.reason:
                return proof.reason
            traits = self.open(self.finding.path)
            wrong = proof.replaced()
            if wrong:
                return wrong
            wrong = probe(traits, has_lapack=self.has_lapack)
            if wrong:
                return f"{self.finding.path} {wrong}"
            self.opened(traits)
        except (OSError, RuntimeError, ValueError) as error:
            # dlopen's own text, or a symbol that is not what it should be: a reason, not a crash.
            return f"{type(error).__name__}: {error}"
        self.traits = traits
        return ""

    def _proof(self, path: str) -> Proof:
        """Loads the file and computes with it in a child process, as `open` and `probe` do here."""
        threads = 1 if thread_team.forked() else cast(int, switches.get("num_threads"))
        options = {"lapack": self.has_lapack, "libgomp": thread_team.path(), "threads": threads, **self.trial()}
        return prove(self.name, path, "blas", options)

    def trial(self) -> dict[str, Any]:
        """Returns how the child process is to open the file: "mode", "setup" and "set threads" of `probe_program`."""
        raise NotImplementedError

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        assert self.traits is not None
        mine = isinstance(problem, MatmulProblem) or self.has_lapack or problem.op == "linalg.solve_triangular"
        if isinstance(problem, (MatmulProblem, LinalgProblem)) and problem.empty and mine and takes(problem.dtype):
            # Nothing to compute, so `only` must not be why it fails: an empty batch is part of every program's life.
            yield Algorithm(library=self.name, name="empty", level="threads", basis="construction", note="nothing to compute")
        elif isinstance(problem, MatmulProblem):
            yield from matmul_algorithms(self.traits, problem, threads)
        elif isinstance(problem, LinalgProblem) and (self.has_lapack or problem.op == "linalg.solve_triangular"):
            yield from linalg_algorithms(self.traits, problem, threads)
        elif isinstance(problem, AttentionProblem) and self.kernels:
            yield from attention_algorithms(self.traits, problem, threads)
        elif isinstance(problem, MultiHeadProblem) and self.kernels:
            yield from fused_algorithms(self.traits, problem, threads)
        elif isinstance(problem, ConvProblem):
            yield from conv_algorithms(self.traits, problem, threads)
        elif isinstance(problem, LinearProblem):
            yield from linear_algorithms(self, problem, threads)
        elif isinstance(problem, RnnProblem):
            yield from rnn_algorithms(self.traits, problem, threads)
        else:
            yield Refusal(self.name, "", f"{self.title} has no {problem.op}")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        assert self.traits is not None
        if algorithm.name == "empty":
            return reference_plan(problem)
        if isinstance(problem, MatmulProblem):
            return prepare_matmul(self.traits, problem, algorithm)
        if isinstance(problem, ConvProblem):
            return prepare_conv(self.traits, problem, algorithm)
        if isinstance(problem, AttentionProblem):
            return prepare_attention(self.traits, problem, algorithm)
        if isinstance(problem, MultiHeadProblem):
            return prepare_fused(self.traits, problem, algorithm)
        if isinstance(problem, LinearProblem):
            return prepare_linear(self, problem, algorithm)
        if isinstance(problem, RnnProblem):
            return prepare_rnn(self.traits, problem, algorithm)
        assert isinstance(problem, LinalgProblem)

        def again(name: str) -> Any:
            return self.prepare(
                problem, Algorithm(library=self.name, name=name, threads=algorithm.threads, scaled=algorithm.scaled)
            )

        return prepare_linalg(self.traits, problem, algorithm, again)

    def report(self) -> dict[str, Any]:
        reason = self.reason()
        facts: dict[str, Any] = {"name": self.name, "title": self.title, "available": not reason, "reason": reason}
        if reason:
            facts["how to get"] = self.how_to_get
        if self.finding is not None:
            facts |= {"path": self.finding.path, "found by": self.finding.step, "search": [str(s) for s in self.finding.steps]}
        if self.traits is not None:
            native = self.traits.native
            facts |= {"version": self.version(), "pool": self.traits.pool, "integers": f"{8 * native.int_size}-bit", **self.facts}
        return facts
