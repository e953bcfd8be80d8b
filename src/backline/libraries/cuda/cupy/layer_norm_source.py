"""The CUDA C++ of the gradients of layer normalisation by weight and bias: sums over rows.

`LayerNormGrad` of `row_operations_source` runs first, and keeps what the elements of each row are normalised by: three
numbers for a row, so that these sums read input and gradient once. A place in the rows is a channel here, as in
`batch_norm_source`: threads, then blocks, share its elements in parts that the shape decides, and the sums of the parts are
combined in one order.
"""

from __future__ import annotations

__all__ = ["LAYER_SUMS"]

# Phases: 0 does all of it, where a place has one block; else 1 keeps the sums of parts, and 2 combines them.
LAYER_SUMS = r"""
extern "C" __global__ __launch_bounds__(1024) void layer_norm_sums(
    const T *x, const T *g, const S *kept, T *by_weight, T *by_bias, S *partial, L images, L channels, L inner, int parts,
    int phase)
{
    const Batch p = {x, g, 0, partial, images, channels, inner, parts, 0, 0, 0, 0, 0};
    const L c = channel(), rows = images * inner;
    Two sums = Two::none();
    if (phase == 2) {
        for (L part = rank(); part < parts && c < channels; part += size())
            sums = Two::join(sums, {field(p, 0, part, c), field(p, 1, part, c)});
    } else {
        each_chunk(p, c, [&](const L *at, int count, L row, L step) {
            S v[V], h[V], one = S(0), other = S(0);
            fetch(x, at, count, S(0), v);
            fetch(g, at, count, S(0), h);
            for (int j = 0; j < V; ++j) {
                if (j >= count) continue;
                const S *of = kept + row + j * step;
                one += h[j];
                other += h[j] * ((v[j] - of[0] - of[rows]) * of[2 * rows]);
            }
            sums = Two::join(sums, {one, other});
        });
    }
    sums = combined(sums);
    if (rank() || c >= channels) return;
    if (phase == 1) {
        field(p, 0, blockIdx.y, c) = sums.one;
        field(p, 1, blockIdx.y, c) = sums.other;
    } else {
        put(by_weight[c], sums.other);
        put(by_bias[c], sums.one);
    }
}
"""
