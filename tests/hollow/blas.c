/* cuBLAS as far as products: computed one number after another, through the true binding. What else a binding or CuPy looks for is
 * there, does nothing and reports success: its names are in NAMES, which the test defines. Dtypes are those of cudaDataType. */
#include <complex.h>
#include <stdint.h>
#include <string.h>

typedef double complex Z;
enum { R32 = 0, R64 = 1, R16 = 2, C32 = 4, C64 = 5, RB16 = 14 };

static Z get(const void *p, int type, int64_t i) {
    uint32_t bits;
    float wide;
    switch (type) {
    case R32: return ((const float *)p)[i];
    case R64: return ((const double *)p)[i];
    case R16: return (float)((const _Float16 *)p)[i];
    case C32: return ((const float complex *)p)[i];
    case C64: return ((const Z *)p)[i];
    }
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&wide, &bits, 4);
    return wide;
}

static void put(void *p, int type, int64_t i, Z v) {
    float wide = (float)creal(v);
    uint32_t bits;
    switch (type) {
    case R32: ((float *)p)[i] = wide; return;
    case R64: ((double *)p)[i] = creal(v); return;
    case R16: ((_Float16 *)p)[i] = (_Float16)wide; return;
    case C32: ((float complex *)p)[i] = (float complex)v; return;
    case C64: ((Z *)p)[i] = v; return;
    }
    memcpy(&bits, &wide, 4);
    ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static Z turned(const void *p, int type, int op, int64_t ld, int64_t row, int64_t column) {
    Z v = get(p, type, op ? column + row * ld : row + column * ld);
    return op == 2 ? conj(v) : v;
}

int cublasCreate_v2(void **handle) { *handle = (void *)0x1000; return 0; }
int cublasGetProperty(int part, int *value) { *value = part ? 0 : 13; return 0; }

int cublasGemmStridedBatchedEx(void *h, int opa, int opb, int m, int n, int k, const void *alpha, const void *a, int ta, int lda, int64_t sa,
                               const void *b, int tb, int ldb, int64_t sb, const void *beta, void *c, int tc, int ldc, int64_t sc,
                               int count, int compute, int algorithm) {
    /* alpha and beta are of the dtype that is computed in. */
    int of = compute == 70 || compute == 71 || compute == 79 ? (tc == C64 ? C64 : R64) : compute == 64 || compute == 65 ? R16 : tc == C32 ? C32 : R32;
    Z x = get(alpha, of, 0), y = get(beta, of, 0);
    int64_t wide[] = {[R32] = 4, [R64] = 8, [R16] = 2, [C32] = 8, [C64] = 16, [RB16] = 2};
    if (lda < (opa ? k : m) || ldb < (opb ? n : k) || ldc < m) return 7;
    for (int64_t i = 0; i < count; i++)
        for (int64_t column = 0; column < n; column++)
            for (int64_t row = 0; row < m; row++) {
                const char *pa = (const char *)a + i * sa * wide[ta], *pb = (const char *)b + i * sb * wide[tb];
                char *pc = (char *)c + i * sc * wide[tc];
                Z sum = 0;
                for (int64_t j = 0; j < k; j++) sum += turned(pa, ta, opa, lda, row, j) * turned(pb, tb, opb, ldb, j, column);
                sum *= x;
                if (y != 0) sum += y * get(pc, tc, row + column * ldc);
                put(pc, tc, row + column * ldc, sum);
            }
    return 0;
}

int cublasGemmEx(void *h, int opa, int opb, int m, int n, int k, const void *alpha, const void *a, int ta, int lda, const void *b, int tb,
                 int ldb, const void *beta, void *c, int tc, int ldc, int compute, int algorithm) {
    return cublasGemmStridedBatchedEx(h, opa, opb, m, n, k, alpha, a, ta, lda, 0, b, tb, ldb, 0, beta, c, tc, ldc, 0, 1, compute, algorithm);
}

/* Sizes, operations and scalars of the groups lie in the host's memory, tables of addresses in the device's. */
int cublasGemmGroupedBatchedEx(void *h, const int *opa, const int *opb, const int *m, const int *n, const int *k, const void *alpha,
                               const void *const *a, int ta, const int *lda, const void *const *b, int tb, const int *ldb,
                               const void *beta, void *const *c, int tc, const int *ldc, int groups, const int *sizes, int compute) {
    int64_t of = compute == 70 ? 8 : 4, item = 0;
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < sizes[g]; i++, item++) {
            int status = cublasGemmEx(h, opa[g], opb[g], m[g], n[g], k[g], (const char *)alpha + g * of, a[item], ta, lda[g], b[item], tb, ldb[g],
                                      (const char *)beta + g * of, c[item], tc, ldc[g], compute, -1);
            if (status) return status;
        }
    return 0;
}

#define NOTHING(name) int name(void) { return 0; }
NAMES
