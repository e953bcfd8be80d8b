// Products of int8 with exact sums, on processors that have no instructions for them. Plain functions over plain memory, which plans call
// by address as they call a vendor's.
//
// An instruction multiplies bytes, of which those of rows have no sign, and adds up pairs of products in 16 bits, where they saturate:
// not if those of rows have 7 bits, as engines make them that know about it. Elsewhere bytes become 16-bit integers, whose products are
// added up in pairs of 32 bits.
//
// Weights are packed: of 16 outputs those of four terms lie together, the terms of each output one behind the other.
#include "../_core/bits.hpp"
#include "conversions.hpp"
#include "kernels.hpp"
#include "targets.hpp"
#include "word_pairs.hpp"

#include <algorithm>

namespace backline {
namespace {

constexpr int64_t kOuts = 16;         // outputs whose weights lie together
constexpr int64_t kTerms = 4;         // terms of each
constexpr int64_t kFours = kOuts * kTerms;

// In the constant memory of a plan, one 64-bit integer after the other.
struct ByteProduct {
    int64_t level;      // of vector instructions: 0 what all have, 1 AVX2, 2 AVX-512
    int64_t terms;      // of a sum
    int64_t is_signed;  // 1: rows are int8, 0: uint8
    int64_t step;       // sums from one row to the next
    int64_t together;   // rows that are copied at once: they stay in a cache
    int64_t groups;     // sums of rows from one to the next, where they are wanted
};

constexpr int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <int Bytes>
struct ByteVectors {
    typedef uint32_t Sums __attribute__((vector_size(Bytes)));  // sums beyond 32 bits wrap around
    typedef int32_t Pairs __attribute__((vector_size(Bytes)));
    typedef int16_t Words __attribute__((vector_size(Bytes)));
    typedef uint16_t Plain __attribute__((vector_size(Bytes)));
    static constexpr int count = Bytes / 4, vectors = int(kOuts) / count;
    static constexpr bool of_bytes = Bytes > kPlainBytes;  // whether there is the instruction that multiplies bytes
    // Rows whose sums fit into the registers, beside what is multiplied.
    static constexpr int rows = Bytes == 64 ? 12 : Bytes == 32 ? 4 : 1, rows_of_bytes = Bytes == 64 ? 12 : 5;
};

// Rows as bytes of at most 7 bits, `length` bytes from one to the next.
struct SevenBits {
    template <int Bytes>
    static constexpr int rows = ByteVectors<Bytes>::rows_of_bytes;

    template <int R, int Bytes>
    static BACKLINE_INLINE void add([[maybe_unused]] typename ByteVectors<Bytes>::Sums (&sums)[R][ByteVectors<Bytes>::vectors],
                                    [[maybe_unused]] const uint8_t *from, [[maybe_unused]] int64_t length, [[maybe_unused]] const int8_t *weights) {
#if defined(__x86_64__)
        using B = ByteVectors<Bytes>;
        constexpr int N = B::vectors;
        const typename B::Words ones = typename B::Words{} + 1;
        typename B::Sums factors[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) std::memcpy(&factors[n], weights + n * Bytes, Bytes);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const typename B::Sums x = typename B::Sums{} + load<uint32_t>(from + r * length);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
                const typename B::Sums factor = factors[n];
                typename B::Words words;
                typename B::Pairs pairs;
                asm("vpmaddubsw %2, %1, %0" : "=v"(words) : "v"(x), "v"(factor));
                pairs_of(pairs, words, ones);
                sums[r][n] += typename B::Sums(pairs);
            }
        }
#endif
    }
};

// Rows of 16-bit integers: pairs of the even terms of each four, and half a row later those of the odd ones.
struct SixteenBits {
    template <int Bytes>
    static constexpr int rows = ByteVectors<Bytes>::rows;

    template <int R, int Bytes>
    static BACKLINE_INLINE void add(typename ByteVectors<Bytes>::Sums (&sums)[R][ByteVectors<Bytes>::vectors], const uint8_t *from, int64_t length,
                                    const int8_t *weights) {
        using B = ByteVectors<Bytes>;
        constexpr int N = B::vectors;
        typename B::Words even[N], odd[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            typename B::Words both;
            std::memcpy(&both, weights + n * Bytes, Bytes);
            even[n] = (both << 8) >> 8, odd[n] = both >> 8;
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            add_half<B>(sums[r], from + r * length, even);
            add_half<B>(sums[r], from + r * length + length / 2, odd);
        }
    }

  private:
    template <class B>
    static BACKLINE_INLINE void add_half(typename B::Sums (&sums)[B::vectors], const uint8_t *from, const typename B::Words (&half)[B::vectors]) {
        const typename B::Sums all = typename B::Sums{} + load<uint32_t>(from);
        typename B::Words x;
        std::memcpy(&x, &all, sizeof x);
#pragma GCC unroll 4
        for (int n = 0; n < B::vectors; ++n) {
            const typename B::Words factor = half[n];
            typename B::Pairs pairs;
            pairs_of(pairs, x, factor);
            sums[n] += typename B::Sums(pairs);
        }
    }
};

// Sums of R rows and 16 outputs, of which `outs` are there.
template <class Kind, int R, int Bytes>
BACKLINE_INLINE void block(const uint8_t *rows, int64_t length, const int8_t *weights, int64_t fours, int32_t *to, int64_t step, int64_t outs) {
    using B = ByteVectors<Bytes>;
    constexpr int N = B::vectors;
    typename B::Sums sums[R][N] = {};
    for (int64_t k = 0; k < fours; ++k) Kind::template add<R, Bytes>(sums, rows + k * kTerms, length, weights + k * kFours);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
        int32_t *here = to + r * step, edge[kOuts];
        int32_t *at = outs < kOuts ? edge : here;
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) std::memcpy(at + n * B::count, &sums[r][n], Bytes);
        if (outs < kOuts) std::copy(edge, edge + outs, here);
    }
}

// As many rows as there are, fewer than R + 1.
template <class Kind, int R, int Bytes>
BACKLINE_INLINE void few(int64_t count, const uint8_t *rows, int64_t length, const int8_t *weights, int64_t fours, int32_t *to, int64_t step,
                         int64_t outs) {
    if constexpr (R > 0) {
        if (count < R) return few<Kind, R - 1, Bytes>(count, rows, length, weights, fours, to, step, outs);
        block<Kind, R, Bytes>(rows, length, weights, fours, to, step, outs);
    }
}

// All outputs of some rows, `length` bytes from one to the next.
template <class Kind, int Bytes>
BACKLINE_INLINE void product(const ByteProduct &p, const uint8_t *rows, int64_t length, const int8_t *weights, int32_t *sums, int64_t count,
                             int64_t outs) {
    constexpr int64_t R = Kind::template rows<Bytes>;
    const int64_t fours = (p.terms + kTerms - 1) / kTerms;
    for (int64_t o = 0; o < outs; o += kOuts, weights += fours * kFours) {
        const int64_t here = std::min(kOuts, outs - o);
        int64_t i = 0;
        for (; i + R <= count; i += R)
            block<Kind, R, Bytes>(rows + i * length, length, weights, fours, sums + i * p.step + o, p.step, here);
        few<Kind, R - 1, Bytes>(count - i, rows + i * length, length, weights, fours, sums + i * p.step + o, p.step, here);
    }
}

struct Products {
    template <int Bytes>
    static BACKLINE_INLINE void run(const ByteProduct &p, const uint8_t *x, int64_t step_x, const int8_t *weights, uint8_t *copy, int32_t *sums,
                                    int32_t *of_rows, int64_t rows, int64_t outs) {
        const int64_t length = up_to(p.terms, Bytes);
        for (int64_t first = 0; first < rows; first += p.together, x += p.together * step_x) {
            const int64_t count = std::min(p.together, rows - first);
            int32_t *to = sums + first * p.step;
            if (of_rows)
                for (int64_t i = 0; i < count; ++i) of_rows[(first + i) * p.groups] = sum_of(p, x + i * step_x);
            if (ByteVectors<Bytes>::of_bytes && !p.is_signed && seven_bits<Bytes>(p, x, step_x, count)) {
                const bool whole = p.terms % kTerms == 0;  // else fours of terms would end in the next row
                if (!whole) copy_rows<Bytes>(p, x, step_x, copy, length, count);
                product<SevenBits, Bytes>(p, whole ? x : copy, whole ? step_x : length, weights, to, count, outs);
                continue;
            }
            for (int64_t i = 0; i < count; ++i) widen<Bytes>(p, x + i * step_x, copy + i * 2 * length, length);
            product<SixteenBits, Bytes>(p, copy, 2 * length, weights, to, count, outs);
        }
    }

  private:
    static BACKLINE_INLINE int32_t sum_of(const ByteProduct &p, const uint8_t *row) {
        int32_t all = 0;
        for (int64_t k = 0; k < p.terms; ++k) all += p.is_signed ? int32_t(int8_t(row[k])) : int32_t(row[k]);
        return all;
    }

    // A vector of a row, zeros behind it.
    template <class V>
    static BACKLINE_INLINE void read(V &v, const uint8_t *from, int64_t left) {
        if (left >= int64_t(sizeof v)) {
            std::memcpy(&v, from, sizeof v);
            return;
        }
        uint8_t end[sizeof v] = {};
        std::memcpy(end, from, size_t(left));
        std::memcpy(&v, end, sizeof v);
    }

    template <int Bytes>
    static BACKLINE_INLINE bool seven_bits(const ByteProduct &p, const uint8_t *x, int64_t step, int64_t count) {
        typename ByteVectors<Bytes>::Plain v, all{};
        for (int64_t i = 0; i < count; ++i, x += step) {
            for (int64_t k = 0; k < p.terms; k += Bytes) {
                read(v, x + k, p.terms - k);
                all |= v;
            }
        }
        uint64_t parts[Bytes / 8], any = 0;
        std::memcpy(parts, &all, sizeof parts);
        for (uint64_t part : parts) any |= part;
        return !(any & 0x8080808080808080);
    }

    template <int Bytes>
    static BACKLINE_INLINE void copy_rows(const ByteProduct &p, const uint8_t *x, int64_t step, uint8_t *to, int64_t length, int64_t count) {
        typename ByteVectors<Bytes>::Plain v;
        for (int64_t i = 0; i < count; ++i, x += step, to += length)
            for (int64_t k = 0; k < length; k += Bytes) {
                read(v, x + k, p.terms - k);
                std::memcpy(to + k, &v, sizeof v);
            }
    }

    template <int Bytes>
    static BACKLINE_INLINE void widen(const ByteProduct &p, const uint8_t *from, uint8_t *to, int64_t length) {
        using Plain = typename ByteVectors<Bytes>::Plain;
        Plain v;
        for (int64_t k = 0; k < length; k += Bytes) {
            read(v, from + k, p.terms - k);
            if (p.is_signed) {
                typename ByteVectors<Bytes>::Words words, even, odd;
                std::memcpy(&words, &v, sizeof words);
                even = (words << 8) >> 8, odd = words >> 8;
                std::memcpy(to + k, &even, sizeof even);
                std::memcpy(to + length + k, &odd, sizeof odd);
            } else {
                const Plain even = v & 0xFF, odd = v >> 8;
                std::memcpy(to + k, &even, sizeof even);
                std::memcpy(to + length + k, &odd, sizeof odd);
            }
        }
    }
};

void byte_product(const ByteProduct *p, const uint8_t *x, int64_t step_x, const int8_t *weights, uint8_t *copy, int32_t *sums, int32_t *of_rows,
                  int64_t rows, int64_t outs) {
    VectorVersions<Products>::table[p->level](*p, x, step_x, weights, copy, sums, of_rows, rows, outs);
}

// Weights (outs, channels, taps) of one group, packed with the terms as images with channels last have them, and the sum of each output's.
void pack_bytes(const int8_t *weights, int8_t *packed, int32_t *sums, int64_t outs, int64_t channels, int64_t taps) {
    const int64_t terms = channels * taps, panel = up_to(terms, kTerms) * kOuts;
    std::fill(packed, packed + up_to(outs, kOuts) / kOuts * panel, int8_t(0));
    for (int64_t o = 0; o < outs; ++o, weights += terms) {
        int8_t *to = packed + o / kOuts * panel + o % kOuts * kTerms;
        int32_t all = 0;
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t tap = 0; tap < taps; ++tap) {
                const int64_t k = tap * channels + c;
                to[k / kTerms * kFours + k % kTerms] = weights[c * taps + tap];
                all += weights[c * taps + tap];
            }
        sums[o] = all;
    }
}

// A matrix whose columns, the outputs, lie one behind the other, `step` bytes apart: packed without sums.
void pack_columns(const int8_t *matrix, int64_t step, int8_t *packed, int64_t outs, int64_t terms) {
    const int64_t fours = (terms + kTerms - 1) / kTerms, whole = terms / kTerms;
    for (int64_t first = 0; first < outs; first += kOuts, matrix += kOuts * step, packed += fours * kFours)
        for (int64_t o = 0; o < kOuts; ++o) {
            const bool there = first + o < outs;
            const int8_t *from = there ? matrix + o * step : matrix;
            int8_t *to = packed + o * kTerms;
            for (int64_t k = 0; k < whole; ++k)
                if (there) std::memcpy(to + k * kFours, from + k * kTerms, kTerms);
                else std::memset(to + k * kFours, 0, kTerms);
            if (whole == fours) continue;
            std::memset(to + whole * kFours, 0, kTerms);
            if (there) std::copy(from + whole * kTerms, from + terms, to + whole * kFours);
        }
}

// The same of a matrix whose rows lie one behind the other: columns of a line of the cache at a time.
void pack_rows(const int8_t *matrix, int64_t step, int8_t *packed, int64_t outs, int64_t terms) {
    typedef int8_t Row __attribute__((vector_size(kOuts)));
    typedef int16_t Pairs __attribute__((vector_size(kOuts)));
    const int64_t panel = up_to(terms, kTerms) * kOuts;
    for (int64_t line = 0; line < outs; line += 4 * kOuts)
        for (int64_t k = 0; k < terms; k += kTerms)
            for (int64_t o = line; o < std::min(line + 4 * kOuts, outs); o += kOuts) {
                const int64_t here = std::min(kOuts, outs - o);
                Row rows[kTerms] = {};
                for (int64_t i = 0; i < std::min(kTerms, terms - k); ++i) {
                    const int8_t *from = matrix + (k + i) * step + o;
                    if (here == kOuts) std::memcpy(&rows[i], from, sizeof(Row));
                    else std::memcpy(&rows[i], from, size_t(here));
                }
                Pairs pairs[kTerms], fours[kTerms];
                for (int half = 0; half < 2; ++half) {  // terms 0 and 1, then 2 and 3, side by side
                    const Row low = __builtin_shufflevector(rows[2 * half], rows[2 * half + 1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                    const Row high =
                        __builtin_shufflevector(rows[2 * half], rows[2 * half + 1], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                    std::memcpy(&pairs[half], &low, sizeof low);
                    std::memcpy(&pairs[2 + half], &high, sizeof high);
                }
                for (int half = 0; half < 2; ++half) {
                    fours[2 * half] = __builtin_shufflevector(pairs[2 * half], pairs[2 * half + 1], 0, 8, 1, 9, 2, 10, 3, 11);
                    fours[2 * half + 1] = __builtin_shufflevector(pairs[2 * half], pairs[2 * half + 1], 4, 12, 5, 13, 6, 14, 7, 15);
                }
                std::memcpy(packed + o / kOuts * panel + k * kOuts, fours, sizeof fours);
            }
}

}  // namespace

int add_int8_products(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("byte_product", byte_product),
                                   kernel("pack_bytes", pack_bytes),
                                   kernel("pack_columns", pack_columns),
                                   kernel("pack_rows", pack_rows)});
}

}  // namespace backline
