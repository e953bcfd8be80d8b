"""Base class of OpenBLAS, MKL and BLIS: loading, probing, and handlers for products, LAPACK and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, cast

from ... import switches
from ...native import thread_team
from ...native.library_search import search
from ...problems import Problem
from ...problems.attention_problem import AttentionProblem
from ...problems.conv_problem import ConvProblem
from ...problems.linalg_problem import LinalgProblem
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.multi_head_problem import MultiHeadProblem
from ...problems.rnn_problem import RnnProblem
from ..base import Algorithm, FileLibrary, Handler, Refusal
from ..numpy.library import reference_plan
from ..probing.in_process_probe import probe
from ..probing.probe_cache import Proof, prove
from .blas_attention import attention_algorithms, prepare_attention
from .blas_linear import fused_linear_algorithms, prepare_fused_linear
from .blas_multi_head import fused_algorithms, prepare_fused
from .blas_product import BlasProduct
from .blas_rnn import prepare_rnn, rnn_algorithms
from .cblas import BlasTraits, matmul_algorithms, prepare_matmul, takes
from .im2col import conv_algorithms, prepare_conv
from .lapack import linalg_algorithms, prepare_linalg
from .product_parts import PARTS, ProductParts

__all__ = ["ATTENTION", "BlasLibrary", "prepare_product", "product_algorithms"]


Listed = Iterable[Algorithm | Refusal]


def _empty(library: BlasLibrary, problem: MatmulProblem | LinalgProblem) -> list[Algorithm]:
    """Returns an algorithm for an empty Problem: `only` must not be why a program's empty batch fails."""
    if not problem.empty or not takes(problem.dtype):
        return []
    return [Algorithm(library=library.name, name="empty", level="threads", basis="construction", note="nothing to compute")]


def product_algorithms(library: BlasLibrary, problem: MatmulProblem, threads: int) -> Listed:
    """Returns what a BLAS has for a product."""
    return _empty(library, problem) or matmul_algorithms(library.blas, problem, threads)


def prepare_product(library: BlasLibrary, problem: MatmulProblem, algorithm: Algorithm) -> Any:
    """Returns the Plan of an Algorithm that `product_algorithms` listed."""
    return (
        reference_plan(problem)
        if algorithm.name == "empty"
        else prepare_matmul(library.blas, problem, algorithm, library.product_kind(algorithm.name))
    )


def _prepare_linear(library: BlasLibrary, problem: LinearProblem, algorithm: Algorithm) -> Any:
    return prepare_fused_linear(library, library.blas, library.product_kind(algorithm.name), problem, algorithm)


def _linalg_algorithms(library: BlasLibrary, problem: LinalgProblem, threads: int) -> Listed:
    if not library.has_lapack and problem.op != "linalg.solve_triangular":  # which every BLAS has
        return (Refusal(library.name, "", f"{library.title} has no {problem.op}", lacks=True),)
    return _empty(library, problem) or linalg_algorithms(library.blas, problem, threads)


def _prepare_linalg(library: BlasLibrary, problem: LinalgProblem, algorithm: Algorithm) -> Any:
    if algorithm.name == "empty":
        return reference_plan(problem)

    def again(name: str) -> Any:
        other = Algorithm(library=library.name, name=name, threads=algorithm.threads, scaled=algorithm.scaled)
        return library.prepare(problem, other)

    return prepare_linalg(library.blas, problem, algorithm, again)


def _of_traits(
    algorithms: Callable[[BlasTraits, Any, int], Listed], prepare: Callable[[BlasTraits, Any, Algorithm], Any]
) -> Handler:
    """Returns the Handler of two functions that take the traits of a loaded library."""

    def prepared(library: BlasLibrary, problem: Problem, algorithm: Algorithm) -> Any:
        return reference_plan(problem) if algorithm.name == "empty" else prepare(library.blas, problem, algorithm)

    return Handler(lambda library, problem, threads: algorithms(library.blas, problem, threads), prepared)


ATTENTION = {
    AttentionProblem: _of_traits(attention_algorithms, prepare_attention),
    MultiHeadProblem: _of_traits(fused_algorithms, prepare_fused),
}
"""Handlers of the libraries whose products our attention kernels call."""


class BlasLibrary(FileLibrary):
    """Base of the libraries with a BLAS interface. A subclass opens the file."""

    has_lapack = True
    openmp = True  # what threads they start are those of the one team
    kernels: tuple[str, ...] = ()  # of attention
    handlers: ClassVar[Mapping[type[Problem], Handler]] = {
        MatmulProblem: Handler(product_algorithms, prepare_product),
        LinalgProblem: Handler(_linalg_algorithms, _prepare_linalg),
        ConvProblem: _of_traits(conv_algorithms, prepare_conv),
        LinearProblem: Handler(fused_linear_algorithms, _prepare_linear),
        RnnProblem: _of_traits(rnn_algorithms, prepare_rnn),
    }

    def __init__(self) -> None:
        self.traits: BlasTraits | None = None
        self.facts: dict[str, Any] = {}

    @property
    def blas(self) -> BlasTraits:
        """The loaded library."""
        assert self.traits is not None
        return self.traits

    def product_kind(self, name: str) -> type[BlasProduct]:
        """Returns what writes the steps of a product by an algorithm of this name."""
        return ProductParts if name.startswith(PARTS) else BlasProduct

    def open(self, path: str) -> BlasTraits:
        """Loads the file and returns its traits."""
        raise NotImplementedError

    def opened(self, traits: BlasTraits) -> None:
        """Called once it has computed something."""

    def load(self) -> str:
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
        self.facts = {"pool": traits.pool, "integers": f"{8 * traits.native.int_size}-bit", **self.facts}
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
