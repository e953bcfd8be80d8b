"""2:4 sparse matrices, of which two in any four elements of a row are zero: GPUs multiply by them at up to twice the speed."""

from __future__ import annotations

from .ops.sparse_products import CompressedMatrix, ProductWay, compress, matmul, prune_2_4, search, to_sparse_semi_structured

__all__ = ["CompressedMatrix", "ProductWay", "compress", "matmul", "prune_2_4", "search", "to_sparse_semi_structured"]
