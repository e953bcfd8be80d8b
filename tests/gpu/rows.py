"""What the check on a GPU has to prove, row by row. Every test in this folder names the row it belongs to."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ROWS", "Row"]


class Row(NamedTuple):
    """One thing to prove: the part of the check it belongs to, and what it is about."""

    section: str
    title: str


def _rows(section: str, prefix: str, *titles: str) -> dict[str, Row]:
    return {f"{prefix}-{number}": Row(section, title) for number, title in enumerate(titles, 1)}


ROWS: dict[str, Row] = {
    **_rows(
        "environment", "ENV",
        "versions of the libraries and bindings, and that they work together", "the device is what Backline takes it for",
        "PyTorch is absent",
    ),
    **_rows(
        "products", "BLAS",
        "float32 as IEEE has it", "float32 by TF32", "float32 emulated by bfloat16", "half types, reductions in reduced precision allowed",
        "half types, split-K allowed", "half types, no split-K", "float16 accumulated in float16", "batches of half types",
        "sizes of workspaces", "the preferred BLAS library", "the same bits each time",
    ),
    **_rows(
        "cuBLASLt and groups", "LT",
        "int8 with sums of int32", "float8 with scales", "gelu in the kernel of the product", "products of groups in one call",
        "algorithms of the heuristics, timed",
    ),
    **_rows(
        "convolution", "CONV",
        "cuDNN can be disabled", "deterministic", "precision", "benchmark", "benchmark_limit", "the cache of plans",
        "out of memory while benchmarking", "depthwise kernel", "three dimensions, groups, transposed", "the host's part of a call",
    ),
    **_rows(
        "transforms", "FFT",
        "one cache for a device", "what tells plans apart", "max_size", "size and clear", "work areas and eviction", "half precision",
    ),
    **_rows(
        "linear algebra", "LA",
        "cholesky", "cholesky_solve and cholesky_inverse", "lu_factor", "lu_solve, cuSOLVER preferred", "lu_solve, square right-hand sides",
        "lu_solve, other right-hand sides", "triangular_solve", "qr", "eigh", "eig", "svd by gesvdj", "svd by a named driver", "inv",
        "lstsq", "info of the _ex functions",
    ),
    **_rows(
        "attention", "SDPA",
        "what every backend asks for", "what FLASH asks for", "what EFFICIENT asks for", "what CUDNN asks for", "MATH", "FLASH", "EFFICIENT",
        "CUDNN", "priority", "multi-head attention and packed sequences", "gradients from the log-sum-exp",
    ),
    **_rows("launch", "TRI", "a kernel compiled here, launched by CuPy", "a kernel as PTX, launched by CuPy"),
    **_rows("sparse", "SP", "prune, compress, search, multiply"),
    **_rows("described devices", "DEV", "plans for the described device are those of the device itself"),
    **_rows("MAGMA", "MAG", "absent: refused, and nothing changes"),
    **_rows(
        "elementwise", "ELEM",
        "activations, softmax, norms, pooling, dropout and their gradients", "linear algebra and sums made of other operations",
        "linear layers and what follows their product",
    ),
    **_rows("arrays", "ARR", "misaligned views", "2**31 elements and more", "memory nearly full", "NaN through relu"),
    **_rows("peers", "PERF", "products", "convolution", "attention", "transforms and linear algebra",
        "softmax and normalisation"),
    **_rows("peers", "CALL", "what a call costs the processor"),
}  # fmt: skip
ROWS |= _rows(
    "recurrent networks", "RNN",
    "cuDNN's results and gradients", "precision", "sequences of several lengths", "dropout", "the same bits each time",
    "step by step",
)  # fmt: skip
