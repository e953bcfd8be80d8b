"""Libraries in C that stand in for XNNPACK and NNPACK: the same functions, plain loops inside, and an eye on how they are called.

They are for what no machine has all of: every generation of an interface, and files that CI cannot install. What an argument of
the wrong kind would do to the real one, it does to these: they are compiled from the same declarations.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["NNPACK_SOURCE", "XNNPACK_SOURCE", "compiled"]

_POOL = r"""
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct pool { size_t threads; } *pthreadpool_t;
pthreadpool_t pthreadpool_create(size_t n) { pthreadpool_t p = malloc(sizeof *p); p->threads = n; return p; }
size_t pthreadpool_get_threads_count(pthreadpool_t p) { return p ? p->threads : 1; }
"""

# CACHES: 0 to 2 arguments before the result of a create. SIZES: 0 at setup; 1 by reshape, 2 with workspace, 3 and its alignment.
XNNPACK_SOURCE = (
    _POOL
    + r"""
typedef struct op {
    int kind, state;  /* 0 convolution, 1 transposed, 2 linear; 0 made, 1 shaped, 2 set up */
    uint32_t n[11];
    size_t c[4];
    float *kernel, *bias, low, high;
    uint32_t flags, extra[2];
    size_t batch, h, w;
    const float *in;
    float *out;
    void *room;
    size_t threads;
} *op_t;
#define OK 0
#define INVALID 2
#define STATE 3
static long live, most, packed, runs, threads_seen;
long stand_in_live(void) { return live; }
long stand_in_most(void) { return most; }
long stand_in_packed(void) { return packed; }
long stand_in_runs(void) { return runs; }
long stand_in_threads(void) { return threads_seen; }
int xnn_initialize(const void *allocator) { return allocator ? INVALID : OK; }
#if CACHES == 2
#define CACHE void *code_cache, void *weights_cache,
#define USE_CACHE if ((code_cache && *(char *)code_cache) || (weights_cache && !*(void **)weights_cache)) abort();
#elif CACHES == 1
#define CACHE void *weights_cache,
#define USE_CACHE if (weights_cache && !*(void **)weights_cache) abort();
#else
#define CACHE
#define USE_CACHE
#endif
static float *copy(const float *x, size_t n) { float *y = malloc(4 * n); memcpy(y, x, 4 * n); return y; }
static op_t make(int kind, const float *kernel, size_t weights, const float *bias, size_t features, float low, float high, uint32_t flags) {
    op_t op = calloc(1, sizeof *op);
    op->kind = kind; op->kernel = copy(kernel, weights); op->bias = bias ? copy(bias, features) : calloc(features, 4);
    op->low = low; op->high = high; op->flags = flags;
    ++packed;
    if (++live > most) most = live;
    return op;
}
#define IMAGES(NAME, KIND) \
int xnn_create_##NAME(uint32_t top, uint32_t right, uint32_t bottom, uint32_t left, uint32_t kh, uint32_t kw, uint32_t sh, uint32_t sw, \
        uint32_t dh, uint32_t dw, uint32_t groups, size_t ci, size_t co, size_t xs, size_t ys, const float *kernel, const float *bias, \
        float low, float high, uint32_t flags, CACHE op_t *out) { \
    if (!kh || !kw || !sh || !sw || !dh || !dw || !groups || !ci || !co || xs < groups * ci || ys < groups * co || !(low < high) || flags) return INVALID; \
    USE_CACHE \
    op_t op = make(KIND, kernel, groups * co * kh * kw * ci, bias, groups * co, low, high, flags); \
    uint32_t n[11] = {top, right, bottom, left, kh, kw, sh, sw, dh, dw, groups}; \
    size_t c[4] = {ci, co, xs, ys}; \
    memcpy(op->n, n, sizeof n); memcpy(op->c, c, sizeof c); \
    *out = op; \
    return OK; \
}
IMAGES(convolution2d_nhwc_f32, 0)
IMAGES(deconvolution2d_nhwc_f32, 1)
int xnn_create_fully_connected_nc_f32(size_t ci, size_t co, size_t xs, size_t ys, const float *kernel, const float *bias, float low,
        float high, uint32_t flags, CACHE op_t *out) {
    if (!ci || !co || xs < ci || ys < co || !(low < high) || flags > 1) return INVALID;
    USE_CACHE
    op_t op = make(2, kernel, ci * co, bias, co, low, high, flags);
    size_t c[4] = {ci, co, xs, ys};
    memcpy(op->c, c, sizeof c);
    *out = op;
    return OK;
}
static size_t points(op_t op, int axis) {
    size_t size = axis ? op->w : op->h, pad = op->n[axis ? 3 : 0] + op->n[axis ? 1 : 2], reach = (op->n[4 + axis] - 1) * op->n[8 + axis] + 1;
    if (op->kind == 1) return op->n[6 + axis] * (size - 1) + op->extra[axis] + reach - pad;
    return (size + pad - reach) / op->n[6 + axis] + 1;
}
static int shape(op_t op, int kind, size_t batch, size_t h, size_t w, uint32_t eh, uint32_t ew, pthreadpool_t pool) {
    if (op->kind != kind || !h || !w) return INVALID;
    if (kind == 1 && (eh >= op->n[6] || ew >= op->n[7])) return INVALID;
    op->batch = batch; op->h = h; op->w = w; op->extra[0] = eh; op->extra[1] = ew;
    op->threads = pool ? pool->threads : 1;
    op->state = 1;
    return OK;
}
static int setup(op_t op, void *room, const float *in, float *out) {
    if (op->state < 1 || !in || !out) return STATE;
    op->in = in; op->out = out; op->room = room; op->state = 2;
    return OK;
}
#if SIZES == 0
int xnn_setup_convolution2d_nhwc_f32(op_t op, size_t batch, size_t h, size_t w, const float *in, float *out, pthreadpool_t pool) {
    int s = shape(op, 0, batch, h, w, 0, 0, pool); return s ? s : setup(op, 0, in, out); }
int xnn_setup_deconvolution2d_nhwc_f32(op_t op, size_t batch, size_t h, size_t w, uint32_t eh, uint32_t ew, const float *in, float *out, pthreadpool_t pool) {
    int s = shape(op, 1, batch, h, w, eh, ew, pool); return s ? s : setup(op, 0, in, out); }
int xnn_setup_fully_connected_nc_f32(op_t op, size_t batch, const float *in, float *out, pthreadpool_t pool) {
    int s = shape(op, 2, batch, 1, 1, 0, 0, pool); return s ? s : setup(op, 0, in, out); }
#else
#if SIZES == 3
#define WANTED size_t *bytes, size_t *alignment,
#define TELL *bytes = 4 * h * w; *alignment = 64;
#elif SIZES == 2
#define WANTED size_t *bytes,
#define TELL *bytes = 4 * h * w;
#else
#define WANTED
#define TELL
#endif
int xnn_reshape_convolution2d_nhwc_f32(op_t op, size_t batch, size_t h, size_t w, WANTED size_t *oh, size_t *ow, pthreadpool_t pool) {
    int s = shape(op, 0, batch, h, w, 0, 0, pool);
    if (s) return s;
    TELL
    if (oh) *oh = points(op, 0);
    if (ow) *ow = points(op, 1);
    return OK;
}
int xnn_reshape_deconvolution2d_nhwc_f32(op_t op, size_t batch, size_t h, size_t w, uint32_t eh, uint32_t ew, size_t *oh, size_t *ow, pthreadpool_t pool) {
    int s = shape(op, 1, batch, h, w, eh, ew, pool);
    if (s) return s;
    if (oh) *oh = points(op, 0);
    if (ow) *ow = points(op, 1);
    return OK;
}
int xnn_reshape_fully_connected_nc_f32(op_t op, size_t batch, pthreadpool_t pool) { return shape(op, 2, batch, 1, 1, 0, 0, pool); }
#if SIZES == 1
int xnn_setup_convolution2d_nhwc_f32(op_t op, const float *in, float *out) { return setup(op, 0, in, out); }
#else
int xnn_setup_convolution2d_nhwc_f32(op_t op, void *room, const float *in, float *out) {
    if (!room || (uintptr_t)room % 64) return INVALID;
    memset(room, 0x5a, 4 * op->h * op->w);
    return setup(op, room, in, out);
}
#endif
int xnn_setup_deconvolution2d_nhwc_f32(op_t op, const float *in, float *out) { return setup(op, 0, in, out); }
int xnn_setup_fully_connected_nc_f32(op_t op, const float *in, float *out) { return setup(op, 0, in, out); }
#endif
static float clamp(op_t op, float x) { /* as the real one: NaN is lost */
    x = x > op->low ? x : op->low;
    return x < op->high ? x : op->high;
}
int xnn_run_operator(op_t op, pthreadpool_t pool) {
    if (op->state != 2) return STATE;
    if ((pool ? pool->threads : 1) != op->threads) return STATE;
    ++runs;
    if ((long)op->threads > threads_seen) threads_seen = (long)op->threads;
    if (op->kind == 2) {
        for (size_t r = 0; r < op->batch; ++r)
            for (size_t o = 0; o < op->c[1]; ++o) {
                float sum = op->bias[o];
                for (size_t i = 0; i < op->c[0]; ++i)
                    sum += op->in[r * op->c[2] + i] * op->kernel[op->flags ? i * op->c[1] + o : o * op->c[0] + i];
                op->out[r * op->c[3] + o] = clamp(op, sum);
            }
        return OK;
    }
    size_t oh = points(op, 0), ow = points(op, 1), ci = op->c[0], co = op->c[1], g = op->n[10];
    for (size_t b = 0; b < op->batch; ++b)
        for (size_t y = 0; y < oh; ++y)
            for (size_t x = 0; x < ow; ++x)
                for (size_t o = 0; o < g * co; ++o) {
                    float sum = op->bias[o];
                    for (size_t i = 0; i < op->n[4]; ++i)
                        for (size_t j = 0; j < op->n[5]; ++j) {
                            ptrdiff_t u = (ptrdiff_t)(i * op->n[8]), v = (ptrdiff_t)(j * op->n[9]), p, q;
                            if (op->kind == 0) {
                                p = (ptrdiff_t)(y * op->n[6]) + u - op->n[0];
                                q = (ptrdiff_t)(x * op->n[7]) + v - op->n[3];
                            } else {
                                p = (ptrdiff_t)y + op->n[0] - u;
                                q = (ptrdiff_t)x + op->n[3] - v;
                                if (p < 0 || q < 0 || p % op->n[6] || q % op->n[7]) continue;
                                p /= op->n[6];
                                q /= op->n[7];
                            }
                            if (p < 0 || q < 0 || p >= (ptrdiff_t)op->h || q >= (ptrdiff_t)op->w) continue;
                            for (size_t c = 0; c < ci; ++c)
                                sum += op->in[((b * op->h + (size_t)p) * op->w + (size_t)q) * op->c[2] + o / co * ci + c] *
                                       op->kernel[((o * op->n[4] + i) * op->n[5] + j) * ci + c];
                        }
                    op->out[((b * oh + y) * ow + x) * op->c[3] + o] = clamp(op, sum);
                }
    return OK;
}
int xnn_delete_operator(op_t op) { free(op->kernel); free(op->bias); free(op); --live; return OK; }
"""
)

NNPACK_SOURCE = (
    _POOL
    + r"""
struct size { size_t width, height; };
struct padding { size_t top, right, bottom, left; };
static long calls, transforms, with_pool;
long stand_in_calls(void) { return calls; }
long stand_in_transforms(void) { return transforms; }
long stand_in_with_pool(void) { return with_pool; }
int nnp_initialize(void) { return INITIALISED; }
int nnp_convolution_inference(int algorithm, int strategy, size_t ci, size_t co, struct size in, struct padding pad, struct size k,
        struct size step, const float *input, const float *kernel, const float *bias, float *output, void *room, size_t *bytes,
        int activation, const void *parameters, pthreadpool_t pool, void *profile) {
    if (!ci || !co) return 4;
    if (!in.width || !in.height) return 10;
    if (pad.top >= k.height || pad.bottom >= k.height || pad.left >= k.width || pad.right >= k.width) return 12;
    if (activation || parameters || profile) return 28;
    if (algorithm < 1 || algorithm > 5) return 16;
    size_t largest = algorithm == 1 ? 8 : algorithm == 2 ? 16 : algorithm == 3 ? 3 : algorithm == 5 ? 1 : 1000;
    if (k.width > largest || k.height > largest || (algorithm == 3 && (k.width != 3 || k.height != 3))) return 26;
    if (algorithm != 4 && (step.width != 1 || step.height != 1)) return 26;
    if (algorithm == 5 && strategy != 1) return 27;
    size_t weights = 4 * ci * co * k.width * k.height;
    size_t wanted = algorithm == 5 ? 0 : strategy == 1 ? 64 + weights : strategy == 2 ? weights : 64;
    if (!room && wanted) {
        if (!bytes) return 53;
        *bytes = wanted;
        return 0;
    }
    if (!room && bytes && !*bytes && input == (const float *)1) return 0; /* asked for a size of 0 */
    if (wanted && *bytes < wanted) return 53;
    if ((uintptr_t)room % 64) return 54;
    if (pool && pool->threads < 2) abort();
    __atomic_add_fetch(&with_pool, pool != 0, __ATOMIC_RELAXED);
    if (strategy != 3) __atomic_add_fetch(&transforms, 1, __ATOMIC_RELAXED);
    if (strategy == 2) {
        for (size_t i = 0; i < weights / 4; ++i) ((float *)room)[i] = -kernel[i];
        return 0;
    }
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    memset(room, 0x77, wanted);
    float sign = strategy == 3 ? -1.0f : 1.0f;
    size_t oh = (in.height + pad.top + pad.bottom - k.height) / step.height + 1, ow = (in.width + pad.left + pad.right - k.width) / step.width + 1;
    int spoilt = 0; /* a transform spreads what is not finite */
    if (algorithm < 4) for (size_t i = 0; i < ci * in.height * in.width; ++i) spoilt |= !isfinite(input[i]);
    for (size_t o = 0; o < co; ++o)
        for (size_t y = 0; y < oh; ++y)
            for (size_t x = 0; x < ow; ++x) {
                float sum = bias[o];
                for (size_t c = 0; c < ci; ++c)
                    for (size_t i = 0; i < k.height; ++i)
                        for (size_t j = 0; j < k.width; ++j) {
                            size_t p = y * step.height + i - pad.top, q = x * step.width + j - pad.left;
                            if (p < in.height && q < in.width)
                                sum += input[(c * in.height + p) * in.width + q] * sign * kernel[((o * ci + c) * k.height + i) * k.width + j];
                        }
                output[(o * oh + y) * ow + x] = spoilt ? NAN : sum;
            }
    return 0;
}
"""
)


def compiled(folder: Path, name: str, source: str, **macros: int) -> Path:
    """A shared library of that name in the folder.

    Not the name that it stands in for: a search that comes later would find it in this process.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed"
    text = folder / f"{name}.c"
    text.write_text(source)
    defined = [f"-D{key}={value}" for key, value in macros.items()]
    command = [compiler, "-O2", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), *defined, str(text), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / name
