// What CUDA's C++ has and the host's has not, for sources of kernels that g++ compiles: threads of a block take turns, and wait
// for each other, or for those of their warp, at barriers.
#pragma once
#include <csetjmp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <limits>
#include <type_traits>
#include <tuple>
#include <utility>
#include <ucontext.h>
#include <vector>
#if __has_include(<cuda_runtime_api.h>)
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#else  // the types of CUDA that kernels here need
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct dim3 { unsigned x, y, z; };
#endif

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define BACKLINE_HOST  // kernels with assembler of the device in them leave it out

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;

namespace hollow {
struct Turn { ucontext_t begin; jmp_buf at; bool begun, over; };
static Turn *turns;
static jmp_buf scheduler;
static unsigned current;
static void (*body)();

// Threads that wait for each other. One that has ended is waited for no more.
struct Meeting {
    unsigned members, arrived;
    unsigned long generation;
    void open() { arrived = 0; ++generation; }
};
static Meeting whole, warps[32];
static unsigned long long slots[1024];  // what threads of a warp hand each other

static void leave(Meeting &m) {
    if (--m.members && m.arrived == m.members) m.open();
}
static void enter() {
    body();
    turns[current].over = true;
    leave(whole);
    leave(warps[current / 32]);
    _longjmp(scheduler, 1);
}
inline void wait() { if (!_setjmp(turns[current].at)) _longjmp(scheduler, 1); }
static void meet(Meeting &m) {
    const unsigned long generation = m.generation;
    if (++m.arrived == m.members)
        m.open();
    else
        while (m.generation == generation) wait();
}
inline void place(unsigned t) {
    current = t;
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}

// Every thread of a block comes as far as its next barrier, or its end, before the first goes on.
static void block(unsigned threads, std::vector<char> &stacks, std::vector<Turn> &all) {
    static ucontext_t back;
    const size_t room = 64 << 10;
    stacks.resize(threads * room);
    all.resize(threads);
    turns = all.data();
    for (Turn &t : all) t.begun = t.over = false;
    whole = {threads, 0, 0};
    for (unsigned w = 0; w < 32; ++w) warps[w] = {threads > 32 * w ? std::min(threads - 32 * w, 32u) : 0, 0, 0};
    volatile bool more = true;
    while (more) {
        more = false;
        for (volatile unsigned t = 0; t < threads; t = t + 1) {
            if (turns[t].over) continue;
            more = true;
            place(t);
            if (_setjmp(scheduler)) continue;
            if (turns[t].begun) _longjmp(turns[t].at, 1);
            turns[t].begun = true;
            getcontext(&turns[t].begin);
            turns[t].begin.uc_stack.ss_sp = stacks.data() + t * room;
            turns[t].begin.uc_stack.ss_size = room;
            turns[t].begin.uc_link = nullptr;
            makecontext(&turns[t].begin, enter, 0);
            swapcontext(&back, &turns[t].begin);
        }
    }
}

static void **given;
template <auto Kernel> struct Called;
template <class... A, void (*Kernel)(A...)> struct Called<Kernel> {
    template <size_t... I> static void with(std::index_sequence<I...>) { Kernel(*static_cast<std::decay_t<A> *>(given[I])...); }
    static void once() { with(std::index_sequence_for<A...>{}); }
};

template <auto Kernel, bool Barriers>
void launch(dim3 grid, dim3 threads, void **arguments) {
    gridDim = grid;
    blockDim = threads;
    given = arguments;
    body = Called<Kernel>::once;
    std::vector<char> stacks;
    std::vector<Turn> all;
    const unsigned count = threads.x * threads.y * threads.z;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                blockIdx = {x, y, z};
                if (Barriers)
                    block(count, stacks, all);
                else
                    for (unsigned t = 0; t < count; ++t) { place(t); body(); }
            }
}
}  // namespace hollow

inline void __syncthreads() { hollow::meet(hollow::whole); }
inline void __syncwarp(unsigned = 0) { hollow::meet(hollow::warps[hollow::current / 32]); }
// Every thread of a warp takes part. As on a device, one whose source is beyond its part of the warp gets its own value.
template <class T> T hollow_from(T v, unsigned lane) {
    static_assert(sizeof(T) <= 8, "");
    unsigned long long bits = 0;
    memcpy(&bits, &v, sizeof v);
    hollow::slots[hollow::current] = bits;
    __syncwarp();
    bits = hollow::slots[hollow::current / 32 * 32 + lane];
    __syncwarp();
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> T __shfl_down_sync(unsigned, T v, unsigned by, int width = 32) {
    const unsigned lane = hollow::current % 32;
    return hollow_from(v, lane % width + by < (unsigned)width ? lane + by : lane);
}
template <class T> T __shfl_xor_sync(unsigned, T v, int mask, int width = 32) {
    const unsigned lane = hollow::current % 32, other = lane ^ mask;
    return hollow_from(v, other / width == lane / width ? other : lane);
}
template <class T> T __shfl_sync(unsigned, T v, int from, int width = 32) {
    const unsigned lane = hollow::current % 32;
    return hollow_from(v, lane / width * width + from % width);
}
inline float bl_half(unsigned short bits) { _Float16 h; memcpy(&h, &bits, 2); return h; }
inline unsigned short bl_half_bits(float v) { const _Float16 h = v; unsigned short bits; memcpy(&bits, &h, 2); return bits; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __float_as_uint(float v) { unsigned u; memcpy(&u, &v, 4); return u; }
inline int __float_as_int(float v) { int u; memcpy(&u, &v, 4); return u; }
inline float __uint_as_float(unsigned v) { float u; memcpy(&u, &v, 4); return u; }
inline float __int_as_float(int v) { float u; memcpy(&u, &v, 4); return u; }
inline double __longlong_as_double(long long v) { double u; memcpy(&u, &v, 8); return u; }
inline long long __double_as_longlong(double v) { long long u; memcpy(&u, &v, 8); return u; }
inline float __int2float_rn(int v) { return v; }
template <class T> T __ldg(const T *p) { return *p; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline double rsqrt(double v) { return 1 / std::sqrt(v); }
inline float rsqrt(float v) { return 1 / std::sqrt(v); }
template <class T> T atomicAdd(T *p, T v) { T old = *p; *p = old + v; return old; }
template <class T> T atomicExch(T *p, T v) { T old = *p; *p = v; return old; }
template <class T> T atomicCAS(T *p, T c, T v) { T old = *p; if (old == c) *p = v; return old; }
template <class T> T atomicMin(T *p, T v) { T old = *p; *p = std::min(old, v); return old; }
template <class T> T atomicMax(T *p, T v) { T old = *p; *p = std::max(old, v); return old; }
template <class T, class U> auto min(T a, U b) { return a < b ? a : b; }
template <class T, class U> auto max(T a, U b) { return a > b ? a : b; }
using std::abs;  // on its own the name is that of integers
using std::isnan; using std::isinf; using std::isfinite; using std::signbit;
