"""The CUDA C++ of what surrounds the product of a linear layer with int8 weights: range, quantization and real results.

Every step is an operation of the host's definition, in its precision, so that results have the host's bits. Products and sums
that must not become fused ones are written as intrinsics, which compilers leave alone; ``BACKLINE_HOST`` is defined where the
source is compiled for a processor, which has no fused ones unless it is told.
"""

from __future__ import annotations

__all__ = ["BLOCK", "MOST_PARTS", "QUANTIZE", "RANGE", "REAL", "SHIFT"]

BLOCK = 256  # threads
MOST_PARTS = 1024  # ranges that blocks hand on: as many blocks as the largest devices run at a time
SHIFT = 128  # what is uint8 on the host is int8 here, less this

_HEAD = rf"""
typedef long long L;
enum {{ THREADS = {BLOCK}, WARPS = THREADS / 32, SHIFT = {SHIFT} }};
__device__ inline bool is_odd(float v) {{ return v - v != 0.0f; }}  // NaN or infinity
__device__ inline float none() {{ return __uint_as_float(0x7fc00000u); }}
#ifdef BACKLINE_HOST
inline float times(float a, float b) {{ return a * b; }}
inline double times(double a, double b) {{ return a * b; }}
inline float plus(float a, float b) {{ return a + b; }}
inline double plus(double a, double b) {{ return a + b; }}
#else
__device__ inline float times(float a, float b) {{ return __fmul_rn(a, b); }}
__device__ inline double times(double a, double b) {{ return __dmul_rn(a, b); }}
__device__ inline float plus(float a, float b) {{ return __fadd_rn(a, b); }}
__device__ inline double plus(double a, double b) {{ return __dadd_rn(a, b); }}
#endif
"""

_RANGE_OF_BLOCK = r"""
#define ALL 0xffffffffu
// The least and the greatest of 0 and some numbers; both are NaN where one of these is no finite number.
struct Range {
    float low, high;
    __device__ void take(float v) {
        if (is_odd(v)) low = high = none();
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    __device__ void join(Range b) {
        low = b.low < low || b.low != b.low ? b.low : low;
        high = b.high > high || b.high != b.high ? b.high : high;
    }
};

// That of all threads of a block, for each of them.
__device__ inline Range of_block(Range r) {
    __shared__ float lows[WARPS], highs[WARPS];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    for (int step = 16; step; step /= 2) {
        Range other = {__shfl_down_sync(ALL, r.low, step), __shfl_down_sync(ALL, r.high, step)};
        r.join(other);
    }
    if (thread % 32 == 0) lows[thread / 32] = r.low, highs[thread / 32] = r.high;
    __syncthreads();
    Range all = {0.0f, 0.0f};
    for (int w = 0; w < WARPS; ++w) {
        Range other = {lows[w], highs[w]};
        all.join(other);
    }
    return all;
}
"""

# The range of what each block reads of an array. What is least does not depend on the order, so neither do bits on the address.
RANGE = (
    _HEAD
    + _RANGE_OF_BLOCK
    + r"""
union Chunk { uint4 all; float each[4]; };
extern "C" __global__ __launch_bounds__(256) void value_range(const float *x, L count, float *parts) {
    const L first = (L)blockIdx.x * THREADS + threadIdx.x, step = (L)gridDim.x * THREADS;
    const L chunks = (unsigned long long)x % 16 ? 0 : count / 4;
    Range r = {0.0f, 0.0f};
    for (L i = first; i < chunks; i += step) {
        Chunk c;
        c.all = ((const uint4 *)x)[i];
        for (int j = 0; j < 4; ++j) r.take(c.each[j]);
    }
    for (L i = 4 * chunks + first; i < count; i += step) r.take(x[i]);
    r = of_block(r);
    if (threadIdx.x == 0) parts[2 * blockIdx.x] = r.low, parts[2 * blockIdx.x + 1] = r.high;
}
"""
)

# Scale and zero point of the whole range, and integers of rows, filled up with zeros to `width`, a multiple of 4; their sums too
# where SUMS is 1. LANES threads share a row. Each block finds scale and zero point by itself: it costs less than a launch.
# ROUNDED is 1 for the engines that work in float32.
QUANTIZE = (
    _HEAD
    + _RANGE_OF_BLOCK
    + r"""
union Four { signed char each[4]; unsigned all; };
union Chunk { uint4 all; float each[4]; };
#if ROUNDED
// As PyTorch chooses them for both engines; the host has it as `input_parameters`.
__device__ inline void parameters(Range r, int least, int most, float *step, int *zero) {
    const float smallest = 6.1e-5f, steps = (float)(most - least);
    double low = r.low, high = r.high, scale = (high - low) / (most - least);
    const float narrow = (float)scale;
    if (narrow == 0.0f || is_odd(1.0f / narrow)) scale = 0.1;
    if (scale < (double)smallest) {
        const float by = smallest / (float)scale;
        if (low == 0) high = times(smallest, steps);
        else if (high == 0) low = -times(smallest, steps);
        else low = times((float)low, by), high = times((float)high, by);
        scale = smallest;
    }
    const double down = low / scale, up = high / scale;
    const bool from_low = plus(fabs((double)least), -fabs(down)) < plus(fabs((double)most), -fabs(up));
    const double wanted = rint(from_low ? plus((double)least, -down) : plus((double)most, -up));
    *step = (float)scale;
    *zero = wanted < least ? least : wanted > most ? most : (int)wanted;
}
// x * (1 / step) + zero in one fused operation, then to the nearest, ties to even. `by` is the reciprocal.
__device__ inline float near(float v, float step, float by, int zero) { return rintf(fmaf(v, by, (float)zero)); }
#else
__device__ inline void parameters(Range r, int least, int most, float *step, int *zero) {
    const double low = r.low, high = r.high;
    double scale = low == 0 && high == 0 ? 1.0 : plus(high / (most - least), -(low / (most - least)));
    const double smallest = 1.1754943508222875e-38, largest = 3.4028234663852886e38;
    *step = (float)(scale < smallest ? smallest : scale > largest ? largest : scale);
    const double wanted = rint(-low / (double)*step) + least;
    *zero = wanted < least ? least : wanted > most ? most : (int)wanted;
}
// The integer nearest to v / step as real numbers, ties to even, plus the zero point. The quotient was rounded before it was
// rounded to an integer, which is at most one off; what is left of v is exact, and tells.
__device__ inline float near(float v, float step, float by, int zero) {
    float n = rintf(v / step);
    const float rest = fmaf(-n, step, v), twice = rest + rest;
    const bool odd = (int)n & 1;
    if (twice > step || (twice == step && odd)) n += 1.0f;
    else if (twice < -step || (twice == -step && odd)) n -= 1.0f;
    return n + (float)zero;
}
#endif

extern "C" __global__ __launch_bounds__(256) void quantize_rows(
    const float *x, const float *parts, int blocks, signed char *q, int *sums, float *chosen, L rows, L terms, L width, int least,
    int most) {
    __shared__ float step;
    __shared__ int zero;
    __shared__ int partial[WARPS];
    const int thread = threadIdx.y * LANES + threadIdx.x;
    Range r = {0.0f, 0.0f};
    for (int i = thread; i < blocks; i += THREADS) {
        Range other = {parts[2 * i], parts[2 * i + 1]};
        r.join(other);
    }
    r = of_block(r);
    if (thread == 0) {
        if (r.low == r.low) {
            parameters(r, least, most, &step, &zero);
        } else {
            step = none();
            zero = 0;
        }
        if (blockIdx.x == 0) chosen[0] = step, chosen[1] = (float)zero;
    }
    __syncthreads();
    const float by = 1.0f / step;
    const bool finite = step == step, chunks = terms % 4 == 0 && (unsigned long long)x % 16 == 0;
    for (L row = (L)blockIdx.x * (THREADS / LANES) + threadIdx.y; row < rows; row += (L)gridDim.x * (THREADS / LANES)) {
        const float *from = x + row * terms;
        int sum = 0;
        for (L column = 4 * threadIdx.x; column < width; column += 4 * LANES) {
            Four four;
            Chunk chunk;
            if (chunks && column < terms) chunk.all = *(const uint4 *)(from + column);
            else
                for (int j = 0; j < 4; ++j) chunk.each[j] = column + j < terms ? from[column + j] : 0.0f;
            for (int j = 0; j < 4; ++j) {
                int value = 0;
                if (finite && column + j < terms) {
                    const float v = near(chunk.each[j], step, by, zero);
                    value = (v < 0.0f ? 0 : v > 255.0f ? 255 : (int)v) - SHIFT;
                }
                four.each[j] = (signed char)value;
                sum += value;
            }
            *(unsigned *)(q + row * width + column) = four.all;
        }
#if SUMS
        for (int by_lanes = 16; by_lanes; by_lanes /= 2) sum += __shfl_down_sync(ALL, sum, by_lanes);
#if LANES > 32
        if (thread % 32 == 0) partial[thread / 32] = sum;
        __syncthreads();
        if (thread == 0)
            for (int w = 1; w < LANES / 32; ++w) sum += partial[w];
        __syncthreads();
#endif
        if (threadIdx.x == 0) sums[row] = sum;
#endif
    }
}
"""
)

# From sums of products to real numbers. With q = x / step + zero - SHIFT the sum of (q + SHIFT - zero) (w - weight_zero) is
# that of q w, plus (SHIFT - zero) (the sum of w, less terms weight_zero), less weight_zero times the sum of q; integers are
# exact.
# Sum: type of the sums of products. ENGINE: 0 for those with one rounding, 1 for FBGEMM's definition, 2 for QNNPACK's.
# BIAS: whether there is one. SUMS: whether weights have zero points. EACH: 1 where each output has a scale of its own, 0 for one
# for all; so EACH_ZERO of zero points.
REAL = (
    _HEAD
    + r"""
extern "C" __global__ __launch_bounds__(256) void real_rows(
    const Sum *products, const float *chosen, const int *sums, const int *of_weight, const float *scales, const int *zeros,
    const float *bias, float *y, L rows, L outs, L apart, L terms) {
    const L column = (L)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= outs) return;
    const float step = chosen[0], scale = scales[EACH ? column : 0];
    const L shift = SHIFT - (int)chosen[1], weight_zero = SUMS ? zeros[EACH_ZERO ? column : 0] : 0;
    const L always = shift * (of_weight[column] - terms * weight_zero);
#if ENGINE
    const float unit = times(step, scale), added = BIAS ? bias[column] : 0.0f;
#else
    const double unit = times((double)step, (double)scale), added = BIAS ? (double)bias[column] : 0.0;
#endif
    for (L row = (L)blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += (L)gridDim.y * blockDim.y) {
        L whole = (L)products[row * apart + column] + always;
        if (SUMS) whole -= weight_zero * sums[row];
#if ENGINE == 1
        const float units = (float)whole;
        y[row * outs + column] = BIAS ? fmaf(units, unit, added) : times(units, unit);
#elif ENGINE == 2
        const float value = times((float)whole, unit);
        y[row * outs + column] = BIAS ? plus(value, added) : value;
#else
        const double value = times((double)whole, unit);
        y[row * outs + column] = (float)(BIAS ? plus(value, added) : value);
#endif
    }
}
"""
)
