"""The CUDA C++ of batch normalisation in training, and of its gradients; `row_source` has what it is made of.

cuDNN's graphs have nodes of batch normalisation as well. They are not used: they have one engine, which
compiles a kernel at run time for each shape, for numbers of channels that are multiples of its vectors alone, and none for
float64 (`tests/cudnn/test_batch_norm.py`); and they return inverse deviations in the place of variances. These kernels read the
input as often (twice; in gradients three times), for every layout and dtype, in an order that the shape decides.
"""

from __future__ import annotations

__all__ = ["BATCH", "CHANNELS"]

# Sums of channels over everything else. COLUMNS: channels lie side by side, a thread for each; else each channel lies in
# pieces of `inner` elements, and a block is for one. VECTOR: whole chunks lie in such pieces. INDEX counts a channel's elements.
CHANNELS = r"""
struct Batch {
    const T *x, *g;
    T *y;
    S *partial;  // of several blocks for a channel: four fields of moments, then two of sums
    L images, channels, inner;
    int parts;
    const void *weight, *bias;
    int weight_kind, bias_kind;
    double eps;
};

__device__ inline L rank() { return COLUMNS ? threadIdx.y : threadIdx.x; }
__device__ inline L size() { return COLUMNS ? blockDim.y : blockDim.x; }
__device__ inline L channel() { return COLUMNS ? (L)blockIdx.x * 32 + threadIdx.x : blockIdx.x; }
template <class M> __device__ inline M combined(M m) {
#if COLUMNS
    return along(m);
#else
    return across(m);
#endif
}
__device__ inline L place(const Batch &p, L c, L e) {
    if (COLUMNS) return e * p.channels + c;
    const INDEX inner = p.inner, image = (INDEX)e / inner;
    return ((L)image * p.channels + c) * p.inner + ((INDEX)e - image * inner);
}
__device__ inline S first_of(const Batch &p, L c) {
    const S v = c < p.channels ? wide(p.x[place(p, c, 0)]) : S(0);
    return is_finite(v) ? v : S(0);
}

// Calls f(places, count, e, step) for the chunks of a thread, of the part of a channel that is this block's: the elements of a
// channel that a chunk holds are e, e + step, and so on.
template <class F> __device__ inline void each_chunk(const Batch &p, L c, F f) {
    const L all = p.images * p.inner, step = size() * V;
    const L steps = ((all + step - 1) / step + p.parts - 1) / p.parts, from = steps * step * blockIdx.y;
    const L to = c >= p.channels ? 0 : all < from + steps * step ? all : from + steps * step;
    for (L e = from + rank() * (VECTOR ? V : 1); e < to; e += step) {
        L at[V];
        int count = VECTOR ? V : 0;
        if (VECTOR)
            at[0] = place(p, c, e);
        else
            for (int j = 0; j < V; ++j)
                if (e + j * size() < to) {
                    at[j] = place(p, c, e + j * size());
                    count = j + 1;
                }
        f(at, count, e, VECTOR ? (L)1 : size());
    }
}
__device__ inline void fetch(const T *x, const L *at, int count, S shift, S *v) {
    if (VECTOR)
        load(x + at[0], V, !apart(x + at[0]), shift, v);
    else
        for (int j = 0; j < V; ++j) v[j] = j < count ? wide(x[at[j]]) - shift : S(0);
}
__device__ inline void store(T *y, const L *at, int count, const S *v) {
    if (VECTOR)
        store(y + at[0], V, !apart(y + at[0]), v);
    else
        for (int j = 0; j < V; ++j) if (j < count) put(y[at[j]], v[j]);
}

__device__ inline S &field(const Batch &p, int which, int part, L c) {
    return p.partial[((L)which * p.parts + part) * p.channels + c];
}

"""

BATCH = r"""
__device__ inline Moments own_moments(const Batch &p, L c, S shift) {
    Moments m = Moments::none();
    each_chunk(p, c, [&](const L *at, int count, L, L) {
        S v[V];
        fetch(p.x, at, count, shift, v);
        m.add(v, count);
    });
    return combined(m);
}
__device__ inline void keep_moments(const Batch &p, L c, Moments m) {
    if (rank() || c >= p.channels) return;
    const S values[4] = {m.count, m.mean, m.squares, m.sum};
    for (int k = 0; k < 4; ++k) field(p, k, blockIdx.y, c) = values[k];
}
__device__ inline Moments all_moments(const Batch &p, L c) {
    Moments m = Moments::none();
    for (L part = rank(); part < p.parts && c < p.channels; part += size())
        m = Moments::join(m, {field(p, 0, part, c), field(p, 1, part, c), field(p, 2, part, c), field(p, 3, part, c)});
    return combined(m);
}

// Phases: 0 does all of it, where a channel has one block; else 1 keeps the moments of parts, and 2 does what is left.
extern "C" __global__ __launch_bounds__(1024) void batch_norm_train(
    const T *x, T *y, S *mean, S *variance, S *partial, L images, L channels, L inner, int parts, int phase, double eps,
    const void *weight, const void *bias, int weight_kind, int bias_kind)
{
    const Batch p = {x, 0, y, partial, images, channels, inner, parts, weight, bias, weight_kind, bias_kind, eps};
    const L c = channel();
    const S shift = first_of(p, c);
    if (phase == 1) {
        keep_moments(p, c, own_moments(p, c, shift));
        return;
    }
    const Moments m = phase ? all_moments(p, c) : own_moments(p, c, shift);
    if (rank() == 0 && c < channels && blockIdx.y == 0) {
        mean[c] = shift + (is_finite(m.mean) ? m.mean : m.sum / m.count);
        variance[c] = m.variance();
    }
    const S inverse = S(1) / root(m.variance() + S(eps));
    const S w = c < channels ? parameter(weight, weight_kind, c, S(1)) : S(1);
    const S b = c < channels ? parameter(bias, bias_kind, c, S(0)) : S(0);
    const bool scaled = weight_kind || bias_kind;
    each_chunk(p, c, [&](const L *at, int count, L, L) {
        S v[V];
        fetch(x, at, count, shift, v);
        for (int j = 0; j < V; ++j) v[j] = (v[j] - m.mean) * inverse;
        if (scaled)
            for (int j = 0; j < V; ++j) v[j] = v[j] * w + b;
        store(y, at, count, v);
    });
}

// Phases: 0 does all of it; else 1 keeps the moments of parts, 2 the sums of parts, and 3 does what is left.
extern "C" __global__ __launch_bounds__(1024) void batch_norm_grad(
    const T *x, const T *g, T *y, T *by_weight, T *by_bias, S *partial, L images, L channels, L inner, int parts, int phase,
    double eps, const void *weight, int weight_kind)
{
    const Batch p = {x, g, y, partial, images, channels, inner, parts, weight, 0, weight_kind, 0, eps};
    const L c = channel();
    const S shift = first_of(p, c);
    if (phase == 1) {
        keep_moments(p, c, own_moments(p, c, shift));
        return;
    }
    const Moments m = phase ? all_moments(p, c) : own_moments(p, c, shift);
    const S inverse = S(1) / root(m.variance() + S(eps));
    Two sums = Two::none();
    if (phase == 3) {
        for (L part = rank(); part < parts && c < channels; part += size())
            sums = Two::join(sums, {field(p, 4, part, c), field(p, 5, part, c)});
    } else {
        each_chunk(p, c, [&](const L *at, int count, L, L) {
            S v[V], h[V], one = S(0), other = S(0);
            fetch(x, at, count, shift, v);
            fetch(g, at, count, S(0), h);
            for (int j = 0; j < V; ++j) {
                if (j >= count) continue;
                one += h[j];
                other += h[j] * ((v[j] - m.mean) * inverse);
            }
            sums = Two::join(sums, {one, other});
        });
    }
    sums = combined(sums);
    if (rank() == 0 && c < channels) {
        if (phase == 2) {
            field(p, 4, blockIdx.y, c) = sums.one;
            field(p, 5, blockIdx.y, c) = sums.other;
        } else if (blockIdx.y == 0) {
            put(by_weight[c], sums.other);
            put(by_bias[c], sums.one);
        }
    }
    if (phase == 2) return;
    const S w = c < channels ? parameter(weight, weight_kind, c, S(1)) : S(1);
    const S mean = w * sums.one / m.count, slope = w * sums.other / m.count;
    each_chunk(p, c, [&](const L *at, int count, L, L) {
        S v[V], h[V];
        fetch(x, at, count, shift, v);
        fetch(g, at, count, S(0), h);
        for (int j = 0; j < V; ++j) v[j] = inverse * (h[j] * w - mean - (v[j] - m.mean) * inverse * slope);
        store(y, at, count, v);
    });
}
"""
