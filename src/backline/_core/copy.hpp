// Two-dimensional strided copies, with the few element conversions that plans need.
#pragma once
#include <cstdint>

namespace backline {

enum class Element : int {
    raw2, raw4, raw8, raw16,        // same bits, by item size
    conj8, conj16,                  // complex64 and complex128, imaginary part negated
    f16_f32, bf16_f32, f32_f16, f32_bf16,
    i64_i32, i32_i64,
    count
};

struct Copy2D {
    Element element;
    int64_t rows, cols;
    int64_t src0, src1, dst0, dst1;  // strides in bytes
    void run(const char *src, char *dst) const;
};

// What a plan does to one triangle of a matrix in place.
enum class TriangleMode : int { zero_upper, zero_lower, unit_diagonal, mirror_lower, mirror_upper, count };

struct Triangle {
    TriangleMode mode;
    int64_t rows, cols, stride0, stride1;  // strides in bytes
    int itemsize;
    bool complex;
    void run(char *data) const;
};

constexpr int kFloat16 = -2;  // in the place of an item size: 2 is bfloat16

// Whether every element of a real matrix is finite (complex ones have twice the columns).
struct Finite {
    int64_t rows, cols, stride0, stride1;  // strides in bytes
    int itemsize;                          // 2, kFloat16, 4 or 8
    int64_t info;                          // reported in the place of LAPACK's info where one is not
    bool run(const char *data) const;
};

// Whether a vector of int32 lies between two bounds: indices that native code would follow out of its arrays.
struct Range {
    int64_t count, stride;  // stride in bytes
    int64_t low, high;
    int64_t info;  // reported in the place of LAPACK's info where it does not
    bool run(const char *data) const;
};

}  // namespace backline
