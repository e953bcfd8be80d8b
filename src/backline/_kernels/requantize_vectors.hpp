// Sums of int8 products to integers of another scale by AVX-512's instructions that pack and saturate, where `vectors` of Numbers says so.
#pragma once
#include "requantize.hpp"
#if defined(__x86_64__)
// GCC 12 takes the undefined inputs of its own intrinsics for a mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace backline {

constexpr int64_t kTogether = 64;  // sums

// A product is added to 1.5 * 2^23, beside which the unit of float32 is 1, without a rounding in between: the sum is the product rounded
// once to an integer, ties to even. Its bits are ordered as integers are, and saturate beyond that range, too; below 0 they would not.
// `Far` says that a sum may be.
template <bool Far>
BACKLINE_AVX512 BACKLINE_INLINE void rescale_together(const Layer &g, const Numbers &n, const Scales &by, const int32_t *sums, uint8_t *to) {
    constexpr int kLanes = 16;
    const __m512 magic = _mm512_set1_ps(kMagic32);
    const __m512i none = _mm512_castps_si512(magic), zero = _mm512_set1_epi16(int16_t(n.zero));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);  // packing interleaves
    __m512i whole[4];
    for (int k = 0; k < 4; ++k) {
        const int64_t at = kLanes * k;
        const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(sums + at), _mm512_loadu_si512(by.added + at));
        __m512 value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(by.narrow + at), magic);
        if (Far) value = _mm512_max_ps(value, _mm512_setzero_ps());
        whole[k] = _mm512_sub_epi32(_mm512_castps_si512(value), none);
    }
    const __m512i first = _mm512_adds_epi16(_mm512_packs_epi32(whole[0], whole[1]), zero);
    const __m512i second = _mm512_adds_epi16(_mm512_packs_epi32(whole[2], whole[3]), zero);
    const __m512i packed = g.low < 0 ? _mm512_packs_epi16(first, second) : _mm512_packus_epi16(first, second);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, packed));
}

}  // namespace backline
#endif
