"""The CUDA C++ that kernels of rows and channels are made of: elements, and statistics of parts of a row.

They are CUDA C++ compiled by NVRTC, through CuPy, and not Triton: CuPy is there wherever its arrays are, rows are short or long,
strided or not, and the arithmetic of the same source can be compiled for a processor, where tests compare its numbers with
float64.

Values are computed in float32, those of float64 in float64. A thread takes chunks of 16 bytes. Which thread takes which elements
depends on the shape alone, not on addresses: where an address is no multiple of 16, the same elements are loaded one by one, so
that results have the same bits for every alignment. Partial results are combined in one order; nothing is added by atomics.

``BACKLINE_HOST`` is defined where the source is compiled for a processor, which then has functions of these names.
"""

from __future__ import annotations

__all__ = ["HEAD", "STATISTICS", "TYPES"]

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
__device__ inline bool is_finite(S v) { return v - v == S(0); }
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
__device__ inline float finite_limit(float) { return 3.402823466e38f; }
__device__ inline double finite_limit(double) { return 1.7976931348623157e308; }
__device__ inline S largest() { return finite_limit(S(0)); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

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
