// What attentions of 16-bit floats by loops of ours have in common.
#pragma once
#include "../_core/copy.hpp"
#include "attention.hpp"

namespace backline {

// One head, for one block of query rows.
struct HeadOfHalves {
    const Attention &p;
    char *work;
    const char *keys, *values;
    int64_t count;       // rows
    int64_t ld, ldo;     // elements of a row of scores, and of a row of the result
    int64_t first = 0;   // key of the tile

    void widen(const char *from, int64_t n, float *to) const {
        const Element element = p.stored == Stored::float16 ? Element::f16_f32 : Element::bf16_f32;
        Copy2D{element, 1, n, 0, 2, 0, int64_t(sizeof *to)}.run(from, reinterpret_cast<char *>(to));
    }

    // The value of a key of the tile, in float; `at` is where there is room for it.
    const float *value(int64_t j, int64_t at) const {
        float *to = reinterpret_cast<float *>(work + at);
        widen(values + (first + j) * p.value[2], p.out_dim, to);
        return to;
    }
};

}  // namespace backline
