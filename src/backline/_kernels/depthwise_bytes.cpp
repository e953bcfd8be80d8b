// Sums of depthwise convolutions of bytes with channels last, one feature for each channel; what is padded has the value of the zero point.
// Taps are taken in pairs, whose bytes become 16-bit integers side by side: one instruction multiplies them and adds each two products.
// Plain functions over plain memory, which plans call by address as they call a vendor's.
#include "conversions.hpp"
#include "convolution.hpp"
#include "kernels.hpp"
#include "targets.hpp"
#include "word_pairs.hpp"

#include <utility>

namespace backline {
namespace {

// Channels of a block are as many as a vector has 16-bit integers. The last block may overlap the one before.
template <int Bytes>
struct ChannelPairs {
    using Words = typename VectorOf<int16_t, Bytes>::Type;
    using Sums = typename VectorOf<uint32_t, Bytes>::Type;  // sums beyond 32 bits wrap around
    using Pairs = typename VectorOf<int32_t, Bytes>::Type;
    static constexpr int64_t block = Bytes / 2;

    // Integers of two taps side by side, of the lower and of the upper four channels of each eight.
    static BACKLINE_INLINE void together(Words &low, Words &high, const Words &a, const Words &b) {
        together(low, high, a, b, std::make_integer_sequence<int, int(block)>());
    }
    // Sums of a block in the order of its channels.
    static BACKLINE_INLINE void write(int32_t *to, const Sums &low, const Sums &high) {
        write(to, low, high, std::make_integer_sequence<int, int(block / 2)>());
    }
    static BACKLINE_INLINE int64_t blocks(int64_t channels) { return (channels + block - 1) / block; }
    static BACKLINE_INLINE int64_t begin(int64_t number, int64_t channels) { return std::max<int64_t>(std::min(number * block, channels - block), 0); }

    // Bytes of a block as 16-bit integers, zeros where there are fewer channels.
    template <class S>
    static BACKLINE_INLINE void load(Words &v, const S *from, int64_t channels) {
        if (channels >= block) return Conversions<Bytes>::widen(v, from);
        S few[block] = {};
        std::memcpy(few, from, size_t(channels));
        Conversions<Bytes>::widen(v, few);
    }

  private:
    template <int... I>
    static BACKLINE_INLINE void together(Words &low, Words &high, const Words &a, const Words &b, std::integer_sequence<int, I...>) {
        low = __builtin_shufflevector(a, b, (I / 8 * 8 + I % 8 / 2 + I % 2 * int(block))...);
        high = __builtin_shufflevector(a, b, (I / 8 * 8 + I % 8 / 2 + 4 + I % 2 * int(block))...);
    }
    template <int... I>
    static BACKLINE_INLINE void write(int32_t *to, const Sums &low, const Sums &high, std::integer_sequence<int, I...>) {
        constexpr int half = int(sizeof...(I));
        const Sums first = __builtin_shufflevector(low, high, (I / 8 * 4 + I % 4 + I % 8 / 4 * half)...);
        const Sums second = __builtin_shufflevector(low, high, ((I + half) / 8 * 4 + I % 4 + (I + half) % 8 / 4 * half)...);
        std::memcpy(to, &first, sizeof first);
        std::memcpy(to + half, &second, sizeof second);
    }
};

// Weights tap by tap become those of each block, pair by pair; one is 0 where the number of taps is odd.
struct WeightPairs {
    template <int Bytes>
    static BACKLINE_INLINE void run(const Geometry &g, const int8_t *weights, int16_t *to) {
        using C = ChannelPairs<Bytes>;
        const int64_t taps = g.kernel[1] * g.kernel[2], channels = g.channels;
        for (int64_t i = 0; i < C::blocks(channels); ++i) {
            const int8_t *from = weights + C::begin(i, channels);
            for (int64_t tap = 0; tap < taps; tap += 2, to += 2 * C::block) {
                typename C::Words a, b{}, low, high;
                C::load(a, from + tap * channels, channels);
                if (tap + 1 < taps) C::load(b, from + (tap + 1) * channels, channels);
                C::together(low, high, a, b);
                std::memcpy(to, &low, Bytes);
                std::memcpy(to + C::block, &high, Bytes);
            }
        }
    }
};

template <class S>
struct BytePoints {
    // In `seen` and `offsets` there is room for every tap and one more, in `outside` for the zero point of every channel.
    template <int Bytes>
    static BACKLINE_INLINE void run(const Geometry &g, const S *image, const int16_t *weights, int32_t *sums, int64_t first, int64_t count,
                                    int32_t zero, const S **seen, int64_t *offsets, S *outside) {
        const int64_t taps = g.kernel[1] * g.kernel[2];
        std::fill(outside, outside + g.channels, S(zero));
        for (int64_t tap = 0; tap < taps; ++tap)
            offsets[tap] = tap / g.kernel[2] * g.dilation[1] * g.step[1] + tap % g.kernel[2] * g.dilation[2] * g.step[2];
        offsets[taps] = 0;  // beside the last one of an odd number, whose partner's weight is 0
        Point p(g, first);
        for (int64_t i = 0; i < count; ++i, p.next(g), sums += g.channels) {
            const int64_t y = place(g, 1, p.y, 0), x = place(g, 2, p.x, 0);
            if (within(g, 1, y) && within(g, 1, y + (g.kernel[1] - 1) * g.dilation[1]) && within(g, 2, x) &&
                within(g, 2, x + (g.kernel[2] - 1) * g.dilation[2])) {
                const S *window = image + y * g.step[1] + x * g.step[2];
                channels<Bytes>(g, taps, weights, sums, [=](int64_t tap) __attribute__((always_inline)) { return window + offsets[tap]; });
                continue;
            }
            look(g, image, seen, outside, y, x);
            seen[taps] = outside;
            channels<Bytes>(g, taps, weights, sums, [=](int64_t tap) __attribute__((always_inline)) { return seen[tap]; });
        }
    }

  private:
    // What each tap of a window sees: a place in the image, or `outside`.
    static void look(const Geometry &g, const S *image, const S **seen, const S *outside, int64_t y, int64_t x) {
        for (int64_t ky = 0; ky < g.kernel[1]; ++ky) {
            const int64_t iy = y + ky * g.dilation[1];
            for (int64_t kx = 0; kx < g.kernel[2]; ++kx) {
                const int64_t ix = x + kx * g.dilation[2];
                *seen++ = within(g, 1, iy) && within(g, 2, ix) ? image + iy * g.step[1] + ix * g.step[2] : outside;
            }
        }
    }

    // Sums of all channels of a window, where tap number t sees what at(t) returns.
    template <int Bytes, class At>
    static BACKLINE_INLINE void channels(const Geometry &g, int64_t taps, const int16_t *weights, int32_t *sums, At at) {
        using C = ChannelPairs<Bytes>;
        for (int64_t i = 0; i < C::blocks(g.channels); ++i) {
            const int64_t c = C::begin(i, g.channels);
            typename C::Sums low{}, high{};
            for (int64_t tap = 0; tap < taps; tap += 2, weights += 2 * C::block) {
                typename C::Words a, b, x, y, of_low, of_high;
                typename C::Pairs pairs;
                C::load(a, at(tap) + c, g.channels);
                C::load(b, at(tap + 1) + c, g.channels);
                C::together(x, y, a, b);
                std::memcpy(&of_low, weights, Bytes);
                std::memcpy(&of_high, weights + C::block, Bytes);
                pairs_of(pairs, x, of_low);
                low += typename C::Sums(pairs);
                pairs_of(pairs, y, of_high);
                high += typename C::Sums(pairs);
            }
            if (g.channels >= C::block) {
                C::write(sums + c, low, high);
                continue;
            }
            int32_t few[C::block];
            C::write(few, low, high);
            std::copy(few, few + g.channels, sums);
        }
    }
};

template <class S>
void depthwise_bytes(const Geometry *g, const S *image, const int16_t *weights, int32_t *sums, int64_t first, int64_t count,
                     const int32_t *zero, const S **seen, int64_t *offsets, S *outside) {
    VectorVersions<BytePoints<S>>::table[g->level](*g, image, weights, sums, first, count, *zero, seen, offsets, outside);
}

void pair_weights(const Geometry *g, const int8_t *weights, int16_t *to) { VectorVersions<WeightPairs>::table[g->level](*g, weights, to); }

}  // namespace

int add_depthwise_bytes(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("depthwise_uint8", depthwise_bytes<uint8_t>),
                                   kernel("depthwise_int8", depthwise_bytes<int8_t>),
                                   kernel("pair_weights", pair_weights)});
}

}  // namespace backline
