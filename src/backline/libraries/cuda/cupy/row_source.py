"""The CUDA C++ of kernels that reduce each row, or column, of an array and write a result for each of its elements.

They are CUDA C++ compiled by NVRTC, through CuPy, and not Triton: CuPy is there wherever its arrays are, rows are short or long,
strided or not, and the arithmetic of the same source can be compiled for a processor, where tests compare its numbers with
float64.

Values are computed in float32, those of float64 in float64. A thread takes chunks of 16 bytes. Which thread takes which elements
depends on the shape alone, not on addresses: where an address is no multiple of 16, the same elements are loaded one by one, so
that results have the same bits for every alignment. Partial results are combined in one order; nothing is added by atomics.

``BACKLINE_HOST`` is defined where the source is compiled for a processor, which then has functions of these names.
"""

from __future__ import annotations

__all__ = ["HEAD", "ROWS", "STATISTICS", "TYPES"]

TYPES = {"float16": ("Half", "float"), "bfloat16": ("BFloat", "float"), "float32": ("float",) * 2, "float64": ("double",) * 2}
"""The type of elements and that of computation, by dtype."""

# T, S: elements, computation. V: elements of a chunk. ELEMENT and COMPUTE are replaced by the types.
HEAD = r"""
typedef long long L;
struct Half { unsigned short bits; };
struct BFloat { unsigned short bits; };
// Whether one instruction rounds two numbers to 16 bits, and one to bfloat16.
#if !defined(BACKLINE_HOST) && __CUDA_ARCH__ >= 800
#define BL_PAIRS 1
__device__ inline unsigned pair(Half, float low, float high) {
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
__device__ inline unsigned pair(BFloat, float low, float high) {
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
template <class E> __device__ inline unsigned pair(E, E, E) { return 0; }
#else
#define BL_PAIRS 0
#endif
#ifndef BACKLINE_HOST
__device__ inline float bl_half(unsigned short bits) { float v; asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits)); return v; }
__device__ inline unsigned short bl_half_bits(float v) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
#endif
__device__ inline float wide(Half v) { return bl_half(v.bits); }
__device__ inline float wide(BFloat v) { return __uint_as_float((unsigned)v.bits << 16); }
template <class E> __device__ inline E wide(E v) { return v; }
__device__ inline void put(Half &to, float v) { to.bits = bl_half_bits(v); }
__device__ inline void put(BFloat &to, float v) {
#if BL_PAIRS
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(v));
#else
    const unsigned u = __float_as_uint(v);  // to nearest, ties to even; a NaN keeps its sign and is made quiet
    to.bits = v == v ? (u + 0x7fff + (u >> 16 & 1)) >> 16 : u >> 16 | 0x40;
#endif
}
template <class E> __device__ inline void put(E &to, E v) { to = v; }

typedef ELEMENT T;
typedef COMPUTE S;
enum { V = 16 / sizeof(T) };
union Chunk { uint4 all; T each[V]; unsigned pairs[4]; };
__device__ inline bool apart(const void *p) { return (unsigned long long)p % 16 != 0; }

__device__ inline S infinity() { return S(__uint_as_float(0x7f800000u)); }
__device__ inline float finite_limit(float) { return 3.402823466e38f; }
__device__ inline double finite_limit(double) { return 1.7976931348623157e308; }
__device__ inline S largest() { return finite_limit(S(0)); }
__device__ inline bool is_finite(S v) { return v - v == S(0); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }
__device__ inline float raised(float v) { return expf(v); }
__device__ inline double raised(double v) { return exp(v); }
__device__ inline float logged(float v) { return logf(v); }
__device__ inline double logged(double v) { return log(v); }
__device__ inline float root(float v) { return sqrtf(v); }
__device__ inline double root(double v) { return sqrt(v); }

// Parameters have the dtype of the elements (kind 1) or float32 (kind 2); kind 0: there are none.
__device__ inline S parameter(const void *p, int kind, L i, S none) {
    return kind == 0 ? none : kind == 1 ? wide(((const T *)p)[i]) : S(((const float *)p)[i]);
}
// Those of `count` elements from i on.
__device__ inline void parameters(const void *p, int kind, L i, int count, S none, S *v) {
    const T *from = (const T *)p + i;
    if (kind == 1 && count == V && !apart(from)) {
        Chunk c;
        c.all = *(const uint4 *)from;
        for (int j = 0; j < V; ++j) v[j] = wide(c.each[j]);
    } else {
        for (int j = 0; j < V; ++j) v[j] = j < count ? parameter(p, kind, i + j, none) : none;
    }
}
"""

# Loops over a chunk have a fixed number of steps, so that the compiler unrolls them and keeps the chunk in registers.
# Statistics of a part of a row, which `join` combines with those of another part.
STATISTICS = r"""
__device__ inline S down(S v, int step, int width) { return __shfl_down_sync(0xffffffffu, v, step, width); }
__device__ inline S first(S v, int width) { return __shfl_sync(0xffffffffu, v, 0, width); }

struct Sum {
    S sum;
    static __device__ Sum none() { return {S(0)}; }
    static __device__ Sum join(Sum a, Sum b) { return {a.sum + b.sum}; }
    __device__ Sum down(int step, int width) const { return {::down(sum, step, width)}; }
    __device__ Sum first(int width) const { return {::first(sum, width)}; }
};

struct Two {
    S one, other;
    static __device__ Two none() { return {S(0), S(0)}; }
    static __device__ Two join(Two a, Two b) { return {a.one + b.one, a.other + b.other}; }
    __device__ Two down(int step, int width) const { return {::down(one, step, width), ::down(other, step, width)}; }
    __device__ Two first(int width) const { return {::first(one, width), ::first(other, width)}; }
};

// The largest element, NaN aside.
struct Most {
    S most;
    static __device__ Most none() { return {-largest()}; }
    static __device__ Most join(Most a, Most b) { return {larger(a.most, b.most)}; }
    __device__ Most down(int step, int width) const { return {::down(most, step, width)}; }
    __device__ Most first(int width) const { return {::first(most, width)}; }
};

// That, and the sum of exp(x - largest): one pass over a row gives both. A NaN, or an infinite difference of infinities, makes
// the sum one; `none` is finite, so that parts without elements make none.
struct Peak {
    S most, sum;
    static __device__ Peak none() { return {-largest(), S(0)}; }
    static __device__ Peak join(Peak a, Peak b) {
        const S most = larger(a.most, b.most);
        return {most, a.sum * raised(a.most - most) + b.sum * raised(b.most - most)};
    }
    __device__ Peak down(int step, int width) const { return {::down(most, step, width), ::down(sum, step, width)}; }
    __device__ Peak first(int width) const { return {::first(most, width), ::first(sum, width)}; }
    __device__ void add(const S *v) {
        S top = most, more = S(0);
        for (int j = 0; j < V; ++j) top = larger(top, v[j]);
        for (int j = 0; j < V; ++j) more += raised(v[j] - top);
        sum = sum * raised(most - top) + more;
        most = top;
    }
};

// Count, mean, and sum of the squares of differences from the mean, combined as by T. Chan, G. Golub and R. LeVeque,
// "Algorithms for computing the sample variance", 1983: no difference of large sums is taken. `sum` is the plain one.
struct Moments {
    S count, mean, squares, sum;
    static __device__ Moments none() { return {S(0), S(0), S(0), S(0)}; }
    static __device__ Moments join(Moments a, Moments b) {
        if (b.count == S(0)) return a;
        if (a.count == S(0)) return b;
        const S count = a.count + b.count, share = b.count / count, gap = b.mean - a.mean;
        return {count, a.mean + gap * share, a.squares + b.squares + gap * gap * (a.count * share), a.sum + b.sum};
    }
    __device__ Moments down(int step, int width) const {
        return {::down(count, step, width), ::down(mean, step, width), ::down(squares, step, width), ::down(sum, step, width)};
    }
    __device__ Moments first(int width) const {
        return {::first(count, width), ::first(mean, width), ::first(squares, width), ::first(sum, width)};
    }
    __device__ void add(const S *v, int n) {
        if (n == 0) return;
        S sum = S(0), squares = S(0);
        for (int j = 0; j < V; ++j) if (j < n) sum += v[j];
        const S mean = n == V ? sum * (S(1) / S(V)) : sum / S(n);
        for (int j = 0; j < V; ++j) if (j < n) squares += (v[j] - mean) * (v[j] - mean);
        *this = join(*this, {S(n), mean, squares, sum});
    }
    __device__ S variance() const { return squares / count; }
};

// What the threads of a block that have the same threadIdx.y found, combined, for each of them: blockDim.x is a power of two
// up to 32, or a multiple of 32 where blockDim.y is 1.
template <class M> __device__ M across(M v) {
    __shared__ M room[32];
    const int width = blockDim.x < 32 ? blockDim.x : 32, warps = blockDim.x / 32;
    for (int step = width / 2; step; step /= 2) v = M::join(v, v.down(step, width));
    if (warps < 2) return v.first(width);
    __syncthreads();  // the room may still be read for the reduction before
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < warps ? room[threadIdx.x] : M::none();
        for (int step = 16; step; step /= 2) v = M::join(v, v.down(step, 32));
        if (threadIdx.x == 0) room[0] = v;
    }
    __syncthreads();
    return room[0];
}

// What the threads of a block that have the same threadIdx.x found: blockDim.x is 32, blockDim.y a power of two up to 16.
template <class M> __device__ M along(M v) {
    __shared__ M room[16][32];
    for (int step = blockDim.y / 2; step; step /= 2) {
        __syncthreads();
        room[threadIdx.y][threadIdx.x] = v;
        __syncthreads();
        if (threadIdx.y < step) v = M::join(v, room[threadIdx.y + step][threadIdx.x]);
    }
    __syncthreads();
    if (threadIdx.y == 0) room[0][threadIdx.x] = v;
    __syncthreads();
    v = room[0][threadIdx.x];
    return v;
}
"""

# Operations on rows. `add` takes elements, less what `shift` said of the first one, and those of a second array; `out` makes a
# result of them at the place i of a row.
ROWS = r"""
struct Given {
    const T *x, *g;
    T *y;
    L rows, n, inner;  // inner: elements from one of a row to the next
    const void *weight, *bias, *mean, *variance;
    int weight_kind, bias_kind, mean_kind, variance_kind;
    L channels;  // that rows belong to in turn; 0 where each element of a row has a channel of its own
    double eps;
    S *kept;  // for each row what its first element was taken for, mean and inverse deviation; the gradient of layer_norm has it
};

// What operations have unless they say otherwise: one array, and one reduction of it. Those of two go over a row AGAIN, with what
// the first one gave: `more` takes elements, which it may change where they are kept, and `finish` what came of them; `leads` in
// one thread of a row. `at` is called before `out` for a chunk; `fill` stands where a chunk has no element.
struct Plain {
    enum { TWO = 0, REDUCES = 1, AGAIN = 0 };
    typedef Two N;
    static __device__ S shift(S) { return S(0); }
    static __device__ S fill() { return S(0); }
    __device__ void more(N &, const S *, const S *, int, const Given &, L) const {}
    __device__ void finish(const N &, S, const Given &, L, bool) {}
    __device__ void at(const Given &, L, int) {}
};

struct Softmax : Plain {
    typedef Peak M;
    static __device__ S fill() { return -infinity(); }
    static __device__ void add(M &m, const S *v, const S *, int) { m.add(v); }
    S most, inverse;
    __device__ Softmax(const M &m, const Given &, L) : most(m.most), inverse(S(1) / m.sum) {}
    __device__ S out(S v, S, const Given &, L, int) const { return raised(v - most) * inverse; }
};

struct LogSoftmax : Plain {
    typedef Peak M;
    static __device__ S fill() { return -infinity(); }
    static __device__ void add(M &m, const S *v, const S *, int) { m.add(v); }
    S most, total;
    __device__ LogSoftmax(const M &m, const Given &, L) : most(m.most), total(logged(m.sum)) {}
    __device__ S out(S v, S, const Given &, L, int) const { return v - most - total; }
};

// Of rows that threads keep: a second reduction takes less than what combines sums for different largest elements.
struct KeptSoftmax : Plain {
    enum { AGAIN = 1 };
    typedef Most M;
    typedef Sum N;
    static __device__ S fill() { return -infinity(); }
    static __device__ void add(M &m, const S *v, const S *, int) {
        for (int j = 0; j < V; ++j) m.most = larger(m.most, v[j]);
    }
    S most, inverse;
    __device__ KeptSoftmax(const M &m, const Given &, L) : most(m.most) {}
    __device__ void more(N &sums, S *v, const S *, int, const Given &, L) const {
        for (int j = 0; j < V; ++j) sums.sum += v[j] = raised(v[j] - most);
    }
    __device__ void finish(const N &sums, S, const Given &, L, bool) { inverse = S(1) / sums.sum; }
    __device__ S out(S v, S, const Given &, L, int) const { return v * inverse; }
};

struct KeptLogSoftmax : KeptSoftmax {
    S total;
    __device__ KeptLogSoftmax(const M &m, const Given &p, L row) : KeptSoftmax(m, p, row) {}
    __device__ void more(N &sums, const S *v, const S *, int, const Given &, L) const {
        for (int j = 0; j < V; ++j) sums.sum += raised(v[j] - most);
    }
    __device__ void finish(const N &sums, S, const Given &, L, bool) { total = logged(sums.sum); }
    __device__ S out(S v, S, const Given &, L, int) const { return v - most - total; }
};

// Of the result x and the gradient g.
struct SoftmaxGrad : Plain {
    enum { TWO = 1 };
    typedef Sum M;
    static __device__ void add(M &m, const S *v, const S *g, int count) {
        S more = S(0);
        for (int j = 0; j < V; ++j) if (j < count) more += v[j] * g[j];
        m.sum += more;
    }
    S sum;
    __device__ SoftmaxGrad(const M &m, const Given &, L) : sum(m.sum) {}
    __device__ S out(S v, S g, const Given &, L, int) const { return v * (g - sum); }
};

struct LogSoftmaxGrad : Plain {
    enum { TWO = 1 };
    typedef Sum M;
    static __device__ void add(M &m, const S *, const S *g, int count) {
        S more = S(0);
        for (int j = 0; j < V; ++j) if (j < count) more += g[j];
        m.sum += more;
    }
    S sum;
    __device__ LogSoftmaxGrad(const M &m, const Given &, L) : sum(m.sum) {}
    __device__ S out(S v, S g, const Given &, L, int) const { return g - raised(v) * sum; }
};

// Elements times a weight, plus a bias.
struct Scaled : Plain {
    S w[V], b[V];
    __device__ void at(const Given &p, L i, int count) {
        parameters(p.weight, p.weight_kind, i, count, S(1), w);
        parameters(p.bias, p.bias_kind, i, count, S(0), b);
    }
};

// Differences from the first element are small where the mean is large beside the deviation, so their mean has more digits.
struct LayerNorm : Scaled {
    typedef Moments M;
    static __device__ S shift(S first) { return is_finite(first) ? first : S(0); }
    static __device__ void add(M &m, const S *v, const S *, int count) { m.add(v, count); }
    S mean, inverse;
    __device__ LayerNorm(const M &m, const Given &p, L) : mean(m.mean), inverse(S(1) / root(m.variance() + S(p.eps))) {}
    __device__ S out(S v, S, const Given &p, L, int j) const {
        v = (v - mean) * inverse;
        return p.weight_kind || p.bias_kind ? v * w[j] + b[j] : v;
    }
};

// Of rows that threads keep: the mean, then the squares of differences from it.
struct KeptLayerNorm : Scaled {
    enum { AGAIN = 1 };
    typedef Sum M, N;
    static __device__ S shift(S first) { return is_finite(first) ? first : S(0); }
    static __device__ void add(M &m, const S *v, const S *, int) {
        S more = S(0);
        for (int j = 0; j < V; ++j) more += v[j];
        m.sum += more;
    }
    S mean, inverse;
    __device__ KeptLayerNorm(const M &m, const Given &p, L) : mean(m.sum / S(p.n)) {}
    __device__ void more(N &sums, const S *v, const S *, int count, const Given &, L) const {
        S squares = S(0);
        for (int j = 0; j < V; ++j) squares += j < count ? (v[j] - mean) * (v[j] - mean) : S(0);
        sums.sum += squares;
    }
    __device__ void finish(const N &sums, S, const Given &p, L, bool) { inverse = S(1) / root(sums.sum / S(p.n) + S(p.eps)); }
    __device__ S out(S v, S, const Given &p, L, int j) const {
        v = (v - mean) * inverse;
        return p.weight_kind || p.bias_kind ? v * w[j] + b[j] : v;
    }
};

// Of the input x and the gradient g: the second sums are of g times the weight, and of that times normalised elements.
struct LayerNormGrad : Plain {
    enum { TWO = 1, AGAIN = 1 };
    typedef Moments M;
    static __device__ S shift(S first) { return is_finite(first) ? first : S(0); }
    static __device__ void add(M &m, const S *v, const S *, int count) { m.add(v, count); }
    static __device__ S scaled(S g, const Given &p, L i) { return g * parameter(p.weight, p.weight_kind, i, S(1)); }
    S mean, inverse, level, slope;
    __device__ LayerNormGrad(const M &m, const Given &p, L) : mean(m.mean), inverse(S(1) / root(m.variance() + S(p.eps))) {}
    __device__ void more(Two &sums, const S *v, const S *g, int count, const Given &p, L i) const {
        S one = S(0), other = S(0);
        for (int j = 0; j < V; ++j)
            if (j < count) {
                const S h = scaled(g[j], p, i + j);
                one += h;
                other += h * ((v[j] - mean) * inverse);
            }
        sums = Two::join(sums, {one, other});
    }
    __device__ void finish(const Two &sums, S shift, const Given &p, L row, bool leads) {
        level = sums.one / S(p.n);
        slope = sums.other / S(p.n);
        if (!leads || row >= p.rows) return;
        const S values[3] = {shift, mean, inverse};
        for (int k = 0; k < 3; ++k) p.kept[k * p.rows + row] = values[k];
    }
    __device__ S out(S v, S g, const Given &p, L i, int) const {
        return inverse * (scaled(g, p, i) - level - (v - mean) * inverse * slope);
    }
};

struct RmsNorm : Scaled {
    typedef Sum M;
    static __device__ void add(M &m, const S *v, const S *, int) {
        S more = S(0);
        for (int j = 0; j < V; ++j) more += v[j] * v[j];
        m.sum += more;
    }
    S inverse;
    __device__ RmsNorm(const M &m, const Given &p, L) : inverse(S(1) / root(m.sum / S(p.n) + S(p.eps))) {}
    __device__ S out(S v, S, const Given &, L, int j) const { return v * inverse * w[j]; }
};

// By statistics that are given for each channel.
struct BatchNorm : Plain {
    enum { REDUCES = 0 };
    typedef Sum M;
    static __device__ void add(M &, const S *, const S *, int) {}
    S mean, scale, bias;
    __device__ void of(const Given &p, L c) {
        mean = parameter(p.mean, p.mean_kind, c, S(0));
        scale = S(1) / root(parameter(p.variance, p.variance_kind, c, S(1)) + S(p.eps));
        bias = parameter(p.bias, p.bias_kind, c, S(0));
    }
    L channel;
    __device__ BatchNorm(const M &, const Given &p, L row) : channel(p.channels ? row % p.channels : -1) {
        if (p.channels && row < p.rows) of(p, channel);
    }
    __device__ S out(S v, S, const Given &p, L i, int) {
        if (!p.channels) of(p, i);
        const S y = (v - mean) * scale;
        return p.weight_kind || p.bias_kind ? y * parameter(p.weight, p.weight_kind, p.channels ? channel : i, S(1)) + bias : y;
    }
};

// `count` elements from p on, which `whole` lets be loaded at once; behind them, `fill`.
__device__ inline void load(const T *p, int count, bool whole, S shift, S *v, S fill = S(0)) {
    if (whole && count == V) {
        Chunk c;
        c.all = *(const uint4 *)p;
        for (int j = 0; j < V; ++j) v[j] = wide(c.each[j]) - shift;
    } else {
        for (int j = 0; j < V; ++j) v[j] = j < count ? wide(p[j]) - shift : fill;
    }
}
__device__ inline void store(T *p, int count, bool whole, const S *v) {
    Chunk c;
    if (BL_PAIRS && sizeof(T) == 2) {
#if BL_PAIRS
        for (int j = 0; j < V / 2; ++j) c.pairs[j % 4] = pair(T(), v[2 * j], v[2 * j + 1]);
#endif
    } else {
        for (int j = 0; j < V; ++j) put(c.each[j], v[j]);
    }
    if (whole && count == V) *(uint4 *)p = c.all;
    else for (int j = 0; j < V; ++j) if (j < count) p[j] = c.each[j];
}

__device__ inline int held(L n, L at) { return n - at >= V ? V : n > at ? int(n - at) : 0; }

// Rows that lie in one piece, each by blockDim.x threads that keep K chunks of it; K = 0: in a loop that reads it twice.
template <class Op, int K> __device__ void by_rows(const Given p) {
    const L step = (L)blockDim.x * V;
    for (L begin = (L)blockIdx.x * blockDim.y; begin < p.rows; begin += (L)gridDim.x * blockDim.y) {
        const L row = begin + threadIdx.y, n = row < p.rows ? p.n : 0, at = (L)threadIdx.x * V;
        const T *x = p.x + (n ? row * p.n : 0), *g = p.g + (Op::TWO && n ? row * p.n : 0);
        T *y = p.y + (n ? row * p.n : 0);
        const bool whole = !apart(x) && !apart(y) && !(Op::TWO && apart(g));
        const S shift = n ? Op::shift(wide(x[0])) : S(0);
        typename Op::M m = Op::M::none();
        S v[K ? K : 1][V], h[K && Op::TWO ? K : 1][V];
        auto fetch = [&](L i, int count) {
            load(x + i, count, whole, shift, v[0], Op::fill());
            if (Op::TWO) load(g + i, count, whole, S(0), h[0]);
        };
        if (K) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                const int count = held(n, at + k * step);
                load(x + at + k * step, count, whole, shift, v[k], Op::fill());
                if (Op::TWO) load(g + at + k * step, count, whole, S(0), h[Op::TWO ? k : 0]);
                Op::add(m, v[k], h[Op::TWO ? k : 0], count);
            }
        } else if (Op::REDUCES) {
            for (L i = at; i < n; i += step) {
                const int count = held(n, i);
                fetch(i, count);
                Op::add(m, v[0], h[0], count);
            }
        }
        if (Op::REDUCES) m = across(m);
        Op op(m, p, row);
        if (Op::AGAIN) {
            typename Op::N sums = Op::N::none();
#pragma unroll
            for (int k = 0; k < (K ? K : 1); ++k)
                for (L i = at + k * step; i < n; i += K ? n : step) {
                    const int count = held(n, i);
                    if (!K) fetch(i, count);
                    op.more(sums, v[k], h[Op::TWO ? k : 0], count, p, i);
                }
            op.finish(across(sums), shift, p, row, threadIdx.x == 0);
        }
#pragma unroll
        for (int k = 0; k < (K ? K : 1); ++k)
            for (L i = at + k * step; i < n; i += K ? n : step) {
                const int count = held(n, i);
                if (!K) fetch(i, count);
                op.at(p, i, count);
                for (int j = 0; j < V; ++j) v[k][j] = op.out(v[k][j], h[Op::TWO ? k : 0][j], p, j < count ? i + j : i, j);
                store(y + i, count, whole, v[k]);
            }
    }
}

// Rows whose elements lie `inner` apart: a thread for each that lies beside the other, blockDim.y threads for one.
template <class Op> __device__ void by_columns(const Given p) {
    for (L begin = (L)blockIdx.x * 32; begin < p.rows; begin += (L)gridDim.x * 32) {
        const L column = begin + threadIdx.x, n = column < p.rows ? p.n : 0;
        const L from = n ? column / p.inner * p.n * p.inner + column % p.inner : 0, step = (L)blockDim.y * V;
        const S shift = n ? Op::shift(wide(p.x[from])) : S(0);
        typename Op::M m = Op::M::none();
        S v[V], h[V];
        auto fetch = [&](L i, int count) {
            for (int j = 0; j < V; ++j) v[j] = j < count ? wide(p.x[from + (i + j) * p.inner]) - shift : Op::fill();
            for (int j = 0; j < V; ++j) h[j] = Op::TWO && j < count ? wide(p.g[from + (i + j) * p.inner]) : S(0);
        };
        for (L i = (L)threadIdx.y * V; i < n; i += step) {
            const int count = held(n, i);
            fetch(i, count);
            Op::add(m, v, h, count);
        }
        Op op(along(m), p, column);
        if (Op::AGAIN) {
            typename Op::N sums = Op::N::none();
            for (L i = (L)threadIdx.y * V; i < n; i += step) {
                const int count = held(n, i);
                fetch(i, count);
                op.more(sums, v, h, count, p, i);
            }
            op.finish(along(sums), shift, p, column, threadIdx.y == 0);
        }
        for (L i = threadIdx.y; i < n; i += blockDim.y) {
            const L place = from + i * p.inner;
            op.at(p, i, 1);
            put(p.y[place], op.out(wide(p.x[place]) - shift, Op::TWO ? wide(p.g[place]) : S(0), p, i, 0));
        }
    }
}
"""
