"""The loops of the compiled module `_kernels`, as a library: what they compute, they compute without any other library.

Where a loop of `_kernels` prepares or finishes what another library computes, such as the columns that a product is made of, the
algorithm is that library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ... import _kernels
from ..._version import __version__
from ...problems.attention_problem import AttentionProblem
from ...problems.conv_problem import ConvProblem
from ...problems.einsum_problem import EinsumProblem
from ...problems.elements_problem import ElementsProblem
from ...problems.fft_problem import FftProblem
from ...problems.linalg_problem import LinalgProblem
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.neural_problem import NeuralProblem
from ...problems.norm_problem import NormProblem
from ...problems.quantized_problem import QuantizedProblem
from ...problems.scaled_problem import ScaledProblem
from ..base import Algorithm, Handler, Library, Refusal
from ..fft_steps import PLANNED_AFTER
from .attention_loops import attention_algorithms, prepare_attention
from .bfloat16_tiles import TILES, prepare_tiles, tile_algorithms
from .compiled_loops import compiled_algorithms, prepare_compiled
from .depthwise_conv import depthwise_algorithms, prepare_depthwise
from .element_loops import element_algorithms, prepare_elements
from .few_rows import FEW_ROWS, few_rows_algorithms, prepare_few_rows
from .int8_matmul import prepare_scaled, scaled_algorithms
from .int8_products import Packing, packing, prepare_quantized, quantized_algorithms
from .mixed_radix import mixed_radix_algorithms, prepare_mixed_radix
from .norm_loops import norm_algorithms, prepare_norm
from .small_products import SMALL_PRODUCTS, prepare_small_products, small_product_algorithms
from .small_spectra import prepare_spectra
from .small_systems import SPECTRA, prepare_systems, system_algorithms
from .vector_level import vector_levels

__all__ = ["Kernels"]


def _product_algorithms(p: MatmulProblem | LinearProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    yield from few_rows_algorithms(p, threads)
    yield from small_product_algorithms(p, threads)
    yield from tile_algorithms(p, threads)


_PRODUCTS: dict[str, Callable[..., Any]] = {
    FEW_ROWS: prepare_few_rows, SMALL_PRODUCTS: prepare_small_products, TILES: prepare_tiles,
}  # fmt: skip


def _prepare_product(p: MatmulProblem | LinearProblem, algorithm: Algorithm) -> Any:
    return _PRODUCTS[algorithm.name](p, algorithm)


def _prepare_lanes(p: LinalgProblem, algorithm: Algorithm) -> Any:
    return (prepare_spectra if p.op in SPECTRA else prepare_systems)(p, algorithm)


class Kernels(Library):
    """A part of Backline, and always there."""

    handlers: ClassVar = {
        MatmulProblem: Handler.plain(_product_algorithms, _prepare_product),
        LinearProblem: Handler.plain(_product_algorithms, _prepare_product),
        AttentionProblem: Handler.plain(attention_algorithms, prepare_attention),
        ConvProblem: Handler.plain(depthwise_algorithms, prepare_depthwise),
        NeuralProblem: Handler.plain(compiled_algorithms, prepare_compiled),
        NormProblem: Handler.plain(norm_algorithms, prepare_norm),
        EinsumProblem: Handler.plain(element_algorithms, prepare_elements),
        ElementsProblem: Handler.plain(element_algorithms, prepare_elements),
        QuantizedProblem: Handler.plain(quantized_algorithms, prepare_quantized),
        ScaledProblem: Handler.plain(scaled_algorithms, prepare_scaled),
        FftProblem: Handler.plain(mixed_radix_algorithms, prepare_mixed_radix, one_shape=PLANNED_AFTER),
        LinalgProblem: Handler.plain(system_algorithms, _prepare_lanes),
    }

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return __version__

    def instruction_sets(self) -> tuple[str, ...] | None:
        return vector_levels()

    def packing(self, problem: QuantizedProblem) -> Packing | None:
        """Returns the packed layout of a weight, or None if the Problem needs none."""
        return packing(problem)

    def details(self) -> dict[str, Any]:
        return {"path": _kernels.__file__}
