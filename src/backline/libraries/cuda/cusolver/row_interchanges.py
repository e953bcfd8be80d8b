"""Row interchanges, as LU with pivoting gives them, as one permutation: computed on the device, by a kernel of our own.

The interchanges of one matrix have to be followed one after another; those of other matrices are at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..common import bindings

__all__ = ["SOURCE", "permutation"]

# A block for each matrix. The permutation grows in shared memory if it has the room for it, else where it will be.
SOURCE = r"""
extern "C" __global__ void interchanges(const int *pivots, int *order, int n, int count, int backwards, int room)
{
    extern __shared__ int shared[];
    const int *pivot = pivots + (long long)blockIdx.x * count;
    int *result = order + (long long)blockIdx.x * n;
    int *rows = n <= room ? shared : result;
    for (int i = threadIdx.x; i < n; i += blockDim.x) rows[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int step = 0; step < count; ++step) {
            int i = backwards ? count - 1 - step : step, j = pivot[i] - 1;
            if (j < 0 || j >= n) continue;
            int row = rows[i];
            rows[i] = rows[j];
            rows[j] = row;
        }
    }
    __syncthreads();
    if (rows != result)
        for (int i = threadIdx.x; i < n; i += blockDim.x) result[i] = rows[i];
}
"""

THREADS = 128
ROOM = 12288  # rows: 48 KiB of shared memory, which every device has
_kernels: dict[Any, Any] = {}  # by the CuPy that compiled it


def permutation(pivots: Any, n: int, *, backwards: bool) -> Any:
    """The row that each of n rows comes from: int32 of shape (items, n), what `take_along_axis` wants.

    Pivots are int32 of shape (items, count), counted from 1, in one piece: row i was interchanged with row ``pivots[i]``.
    `backwards`: the last interchange first, which gives the inverse permutation.
    """
    cupy = bindings.cupy()
    kernel = _kernels.get(cupy)
    if kernel is None:
        kernel = _kernels[cupy] = cupy.RawKernel(SOURCE, "interchanges")
    items, count = pivots.shape
    order = cupy.empty((items, n), np.int32)
    sizes = (np.int32(v) for v in (n, count, backwards, ROOM))
    kernel((items,), (THREADS,), (pivots, order, *sizes), shared_mem=4 * n if n <= ROOM else 0)
    return order
