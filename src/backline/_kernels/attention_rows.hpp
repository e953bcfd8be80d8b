// The two products of an attention of few queries, as when one token after the other is generated: keys and values are read once, as they
// lie in memory.
#pragma once
#include "attention_halves.hpp"
#include "few_rows.hpp"

#include <algorithm>

namespace backline {

// Of 16-bit floats, which are computed with as floats.
struct RowProducts : HeadOfHalves {
    const AttentionRows &at;

    // With the scale that belongs to the scores.
    void take_rows(const char *query) {
        float *to = reinterpret_cast<float *>(work + at.query);
        for (int64_t row = 0; row < count; ++row, query += p.query[2], to += p.dim) {
            widen(query, p.dim, to);
            for (int64_t i = 0; i < p.dim; ++i) to[i] *= float(p.scale);
        }
    }

    void scores(int64_t from, int64_t width, float *to) {
        const FewRows product{type(), p.level, count, p.dim, 1, p.key[2], ld * int64_t(sizeof(float)), 0};
        few_rows(&product, width, work + at.query, keys + from * p.key[2], reinterpret_cast<char *>(to));
    }

    void take_values(int64_t from, int64_t) { first = from; }

    void add(const float *weights, int64_t width, bool begun, float *out) { add_keys(weights, 0, width, begun, out); }

    void add_some(const float *weights, int64_t from, int64_t to, float *out) {
        if (from < to) add_keys(weights, from, to, true, out);
    }

    const float *value(int64_t j) const { return HeadOfHalves::value(j, at.row); }

  private:
    int64_t type() const { return p.stored == Stored::float16 ? kOfFloat16 : kOfBfloat16; }

    void add_keys(const float *weights, int64_t from, int64_t to, bool begun, float *out) {
        float *dense = reinterpret_cast<float *>(work + at.weights);
        for (int64_t row = 0; row < count; ++row) std::copy(weights + row * ld + from, weights + row * ld + to, dense + row * (to - from));
        const FewRows product{type(), p.level, count, to - from, 0, p.value[2], ldo * int64_t(sizeof(float)), begun};
        few_rows(&product, p.out_dim, work + at.weights, values + (first + from) * p.value[2], reinterpret_cast<char *>(out));
    }
};

}  // namespace backline
