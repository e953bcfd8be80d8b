// Sums of depthwise convolutions of bytes with channels last, one feature for each channel; what is padded has the value of the zero point.
// The weights lie tap by tap. A product of two bytes has room in 16 bits, where one instruction makes many. Plain functions over plain
// memory, which plans call by address as they call a vendor's.
#include "conversions.hpp"
#include "convolution.hpp"
#include "kernels.hpp"
#include "targets.hpp"

#include <utility>

namespace backline {
namespace {

template <class S>
struct BytePoints {
    template <int Bytes>
    static BACKLINE_INLINE void run(const Geometry &g, const S *image, const int8_t *weights, int32_t *sums, int64_t first, int64_t count,
                                    int32_t zero) {
        constexpr int64_t each = Bytes / 2;
        Point p(g, first);
        for (int64_t i = 0; i < count; ++i, p.next(g), sums += g.channels) {
            const int64_t y = place(g, 1, p.y, 0), x = place(g, 2, p.x, 0);
            int64_t c = 0;
            for (; c + each <= g.channels; c += each) channels<Bytes>(g, image + c, weights + c, sums + c, y, x, zero);
            for (; c < g.channels; ++c) {
                int32_t sum = 0;
                taps(g, image + c, weights + c, y, x, [&](const S *seen, const int8_t *tap) { sum += (seen ? int32_t(*seen) : zero) * int32_t(*tap); });
                sums[c] = sum;
            }
        }
    }

  private:
    // Calls run(what a tap sees, or nullptr outside of the image; its weights).
    template <class Run>
    static BACKLINE_INLINE void taps(const Geometry &g, const S *image, const int8_t *weights, int64_t y, int64_t x, Run run) {
        const int64_t down = g.dilation[1] * g.step[1], along = g.dilation[2] * g.step[2];
        if (within(g, 1, y) && within(g, 1, y + (g.kernel[1] - 1) * g.dilation[1]) && within(g, 2, x) &&
            within(g, 2, x + (g.kernel[2] - 1) * g.dilation[2])) {
            const S *line = image + y * g.step[1] + x * g.step[2];
            for (int64_t ky = 0; ky < g.kernel[1]; ++ky, line += down) {
                const S *seen = line;
                for (int64_t kx = 0; kx < g.kernel[2]; ++kx, seen += along, weights += g.channels) run(seen, weights);
            }
            return;
        }
        for (int64_t ky = 0; ky < g.kernel[1]; ++ky) {
            const int64_t iy = y + ky * g.dilation[1];
            const bool line = within(g, 1, iy);
            for (int64_t kx = 0; kx < g.kernel[2]; ++kx, weights += g.channels) {
                const int64_t ix = x + kx * g.dilation[2];
                run(line && within(g, 2, ix) ? image + iy * g.step[1] + ix * g.step[2] : nullptr, weights);
            }
        }
    }

    template <int Bytes>
    static BACKLINE_INLINE void channels(const Geometry &g, const S *image, const int8_t *weights, int32_t *sums, int64_t y, int64_t x,
                                         int32_t zero) {
        using Words = typename VectorOf<int16_t, Bytes>::Type;
        using Sums = typename VectorOf<int32_t, Bytes>::Type;
        Sums even{}, odd{};
        taps(g, image, weights, y, x, [&](const S *seen, const int8_t *tap) __attribute__((always_inline)) {
            Words a = Words{} + int16_t(zero), b;
            if (seen) Conversions<Bytes>::widen(a, seen);
            Conversions<Bytes>::widen(b, tap);
            a *= b;
            Sums both;
            std::memcpy(&both, &a, sizeof both);
            even += (both << 16) >> 16;
            odd += both >> 16;
        });
        write(sums, even, odd, std::make_integer_sequence<int, Bytes / 8>());
    }

    template <class V, int... I>
    static BACKLINE_INLINE void write(int32_t *to, const V &even, const V &odd, std::integer_sequence<int, I...>) {
        constexpr int half = int(sizeof...(I)), count = 2 * half;
        const V first = __builtin_shufflevector(even, odd, (I % 2 ? count + I / 2 : I / 2)..., (I % 2 ? count + half / 2 + I / 2 : half / 2 + I / 2)...);
        const V second = __builtin_shufflevector(even, odd, (I % 2 ? count + half + I / 2 : half + I / 2)...,
                                                 (I % 2 ? count + half + half / 2 + I / 2 : half + half / 2 + I / 2)...);
        std::memcpy(to, &first, sizeof first);
        std::memcpy(to + count, &second, sizeof second);
    }
};

template <class S>
void depthwise_bytes(const Geometry *g, const S *image, const int8_t *weights, int32_t *sums, int64_t first, int64_t count,
                     const int32_t *zero) {
    VectorVersions<BytePoints<S>>::table[g->level](*g, image, weights, sums, first, count, *zero);
}

}  // namespace

int add_depthwise_bytes(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("depthwise_uint8", depthwise_bytes<uint8_t>), kernel("depthwise_int8", depthwise_bytes<int8_t>)});
}

}  // namespace backline
