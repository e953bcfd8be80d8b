"""Rows of the check on a GPU: what it has to prove. Every test in this folder names the row it belongs to."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ROWS", "Row"]


class Row(NamedTuple):
    """One thing to prove: the part of the check it belongs to, what it is about, and what its tests need beside CuPy.

    `needs` are what `Machine.missing` knows: names, and the least version of a library or compute capability. A test that needs more than its row says so in its marker.
    """

    section: str
    title: str
    needs: tuple[str, ...] = ()


def _rows(section: str, prefix: str, *titles: str | tuple[str, ...], needs: tuple[str, ...] = ()) -> dict[str, Row]:
    """Rows of a section, numbered. A title alone, or a title and what this row needs in the place of `needs`."""
    given = [(title, *needs) if isinstance(title, str) else title for title in titles]
    return {f"{prefix}-{number}": Row(section, title, tuple(own)) for number, (title, *own) in enumerate(given, 1)}


AMPERE = "capability >= 8.0"  # from which devices have TF32, and cuDNN and FLASH attention
CUDNN_ATTENTION = ("cudnn", "cudnn >= 91501", AMPERE)  # before, an erratum keeps it to lengths that are multiples of 128

ROWS: dict[str, Row] = {
    **_rows(
        "environment", "ENV",
        "versions of the libraries and bindings, and that they work together", "the device is what Backline takes it for",
        "PyTorch is not asked for",
    ),
    **_rows(
        "products", "BLAS",
        "float32 as IEEE has it", ("float32 by TF32", "cublas", "cublasLt", AMPERE), "float32 emulated by bfloat16", "half types, reductions in reduced precision allowed",
        "half types, split-K allowed", "half types, no split-K", "float16 accumulated in float16", "batches of half types",
        "sizes of workspaces", "the preferred BLAS library", "the same bits each time", "what cuBLAS does with a workspace by itself",
        needs=("cublas", "cublasLt"),
    ),
    **_rows(
        "cuBLASLt and groups", "LT",
        "int8 with sums of int32", "float8 with scales", "gelu in the kernel of the product",
        ("products of groups in one call", "cublas", "cublasLt", "cublas >= 12.5"), "algorithms of the heuristics, timed",
        needs=("cublas", "cublasLt"),
    ),
    **_rows(
        "packed weights", "PACK",
        "int8 layers have the host's bits", "linear layers and matrices", ("convolutions read weights where they lie", "cudnn", "cublas"),
        "the time of an int8 layer",
        needs=("cublas", "cublasLt"),
    ),
    **_rows(
        "convolution", "CONV",
        ("cuDNN can be disabled", "cublas"), "deterministic", ("precision", "cudnn", "cublas", AMPERE), "benchmark", "benchmark_limit",
        ("the cache of plans", "cudnn", "cublas", AMPERE),
        "out of memory while benchmarking", "depthwise kernel", "three dimensions, groups, transposed", "the host's part of a call",
        needs=("cudnn", "cublas"),
    ),
    **_rows(
        "transforms", "FFT",
        "one cache for a device", "what tells plans apart", "max_size", "size and clear", "work areas and eviction", "half precision",
        needs=("cufft",),
    ),
    **_rows(
        "linear algebra", "LA",
        "cholesky", "cholesky_solve and cholesky_inverse", "lu_factor", "lu_solve, cuSOLVER preferred", "lu_solve, square right-hand sides",
        "lu_solve, other right-hand sides", "triangular_solve", "qr", "eigh", ("eig", "cusolverDn", "cublas", "cusolver >= 11.7.2"), "svd by gesvdj", "svd by a named driver", "inv",
        "lstsq", "info of the _ex functions",
        needs=("cusolverDn", "cublas"),
    ),
    **_rows(
        "attention", "SDPA",
        ("what every backend asks for", "triton", "cudnn", "cublas", AMPERE), ("what FLASH asks for", "triton", AMPERE),
        ("what EFFICIENT asks for", "triton", "cublas", AMPERE), ("what CUDNN asks for", "cublas", *CUDNN_ATTENTION), ("MATH", "cublas"),
        ("FLASH", "triton", AMPERE), ("EFFICIENT", "triton"), ("CUDNN", *CUDNN_ATTENTION), ("priority", "triton", "cudnn", "cublas", AMPERE),
        ("multi-head attention and packed sequences", "cublas"), ("gradients from the log-sum-exp", "cublas"),
        ("dropout of CUDNN", *CUDNN_ATTENTION), ("gradients with a mask, lengths of 128 k + 64", "cublas"),
        ("a growing key cache", *CUDNN_ATTENTION),
    ),
    **_rows("launch", "TRI", ("a kernel compiled here, launched by CuPy", "triton"), ("a kernel as PTX, launched by CuPy", AMPERE)),
    **_rows("sparse", "SP", "prune, compress, search, multiply", needs=("cusparseLt", AMPERE)),
    **_rows("described devices", "DEV", "plans for the described device are those of the device itself", needs=("cudnn", AMPERE)),
    **_rows("MAGMA", "MAG", "absent: refused, and nothing changes", needs=("no MAGMA", "cusolverDn", "cublas")),
    **_rows(
        "elementwise", "ELEM",
        "activations, softmax, norms, pooling, dropout and their gradients",
        ("linear algebra and sums made of other operations", "cusolverDn", "cublas"),
        ("linear layers and what follows their product", "cublas", "cublasLt"),
    ),
    **_rows(
        "arrays", "ARR", "misaligned views", "2**31 elements and more", "memory nearly full", "NaN through relu",
        needs=("cublas", "cublasLt", "cufft", "cusolverDn", "cudnn"),
    ),
    **_rows(
        "streams", "STR",
        "a stream that records a CUDA graph is refused", "streams of other packages", "the per-thread default stream",
        ("arrays on another device than the current one", "cublas", "cufft", "two devices"),
        needs=("cublas", "cufft"),
    ),
    **_rows(
        "peers", "PERF",
        ("products", "cublas"), ("convolution", "cublas"), ("attention", "cublas"),
        ("transforms and linear algebra", "cufft", "cusolverDn", "cublas"), "softmax and normalisation",
    ),
    **_rows("peers", "CALL", "what a call costs the processor", needs=("cublas", "cufft")),
}  # fmt: skip
ROWS |= _rows(
    "recurrent networks", "RNN",
    "cuDNN's results and gradients", ("precision", "cudnn", "cublas", AMPERE), "sequences of several lengths", "dropout", "the same bits each time",
    "step by step",
    needs=("cudnn", "cublas"),
)  # fmt: skip
