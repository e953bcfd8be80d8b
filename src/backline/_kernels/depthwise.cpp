// Depthwise convolutions: every channel by itself, without columns or a product. Plain functions over plain memory, which plans call by
// address as they call a vendor's. Weights are (features, taps), or (taps, channels) with channels last.
#include "convolution.hpp"
#include "kernels.hpp"
#include "lanes.hpp"
#include "targets.hpp"

#include <cmath>
#include <utility>

namespace backline {
namespace {

// Copies n elements by the widest pieces of up to Bytes that fit; the last piece overlaps the one before it.
template <int Bytes, class T>
BACKLINE_INLINE void copy_row(T *to, const T *from, int64_t n) {
    constexpr int64_t count = Bytes / int64_t(sizeof(T));
    if constexpr (count > 1) {
        if (n < count) return copy_row<Bytes / 2>(to, from, n);
    }
    for (int64_t i = 0; i + count <= n; i += count) std::memcpy(to + i, from + i, Bytes);
    if (count > 1 && n % count) std::memcpy(to + n - count, from + n - count, Bytes);
}

// Lines of an image, with zeros around it, from which some rows of the result are computed: sums stay in registers over all taps. With
// a stride a line is several, each of the elements that one tap meets. A zero times a weight that is not finite would be no zero, so
// that such weights, and shapes beyond the limits, are left to the other loop.
template <class T>
struct Lines {
    static constexpr int64_t kElements = 4096, kTaps = 64;  // of all lines; of a row of the kernel

    const Geometry &g;
    int64_t step = g.stride[2], span = (g.kernel[2] - 1) * g.dilation[2] / step;
    int64_t length = 0, pitch = 0;  // elements of a line, and from one row of the image to the next
    int64_t begin = 0;              // the first point that the lines are for
    int64_t offsets[kTaps];
    alignas(64) T elements[kElements];

    explicit Lines(const Geometry &given) : g(given) {}

    static int64_t rows_of(const Geometry &g, int64_t points) { return (points - 1) * g.stride[1] + (g.kernel[1] - 1) * g.dilation[1] + 1; }

    // Whether lines for `rows` rows of `width` points have room.
    bool fit(int64_t rows, int64_t width) const {
        const bool plane = g.kernel[0] == 1 && g.points[0] == 1 && g.before[0] == 0;
        return plane && g.step[2] == int64_t(sizeof(T)) && g.kernel[2] <= kTaps && rows_of(g, rows) * step * (width + span) <= kElements;
    }

    // The most rows of `width` points that lines have room for: all, or a multiple of `each`.
    int64_t most_rows(int64_t width, int64_t each) const {
        const int64_t points = g.points[1], lines = kElements / (step * (width + span));
        const int64_t most = (lines - (g.kernel[1] - 1) * g.dilation[1] - 1) / g.stride[1] + 1;
        return most >= points ? points : std::max(most / each * each, std::min(points, each));
    }

    // Makes lines for `width` points from `first` on, all 0.
    void prepare(int64_t first, int64_t width, int64_t rows) {
        begin = first, length = width + span, pitch = step * length;
        for (int64_t k = 0; k < g.kernel[2]; ++k) offsets[k] = k * g.dilation[2] % step * length + k * g.dilation[2] / step;
        std::fill(elements, elements + rows_of(g, rows) * pitch, T(0));
    }

    // Copies what the rows of points from y on need.
    template <int Bytes>
    BACKLINE_INLINE void load(const char *plane, int64_t y, int64_t rows) {
        const int64_t count = rows_of(g, rows), top = y * g.stride[1] - g.before[1];
        for (int64_t phase = 0; phase < step; ++phase) {
            // Element i of the line is at i * step + left in the image.
            const int64_t left = begin * step + phase - g.before[2];
            const int64_t from = left >= 0 ? 0 : std::min((-left + step - 1) / step, length);
            const int64_t rest = g.image[2] - 1 - left, end = rest < 0 ? from : std::clamp(rest / step + 1, from, length);
            T *to = elements + phase * length + from;
            for (int64_t row = 0; row < count; ++row, to += pitch) {
                if (!within(g, 1, top + row)) std::fill(to, to + (end - from), T(0));
                else copy<Bytes>(to, reinterpret_cast<const T *>(plane + (top + row) * g.step[1]) + from * step + left, end - from);
            }
        }
    }

  private:
    template <int Bytes>
    BACKLINE_INLINE void copy(T *to, const T *from, int64_t n) const {
        using L = Lanes<T, Bytes>;
        if (step == 2 && n > L::count) return every_other<Bytes>(to, from, n, std::make_integer_sequence<int, L::count>());
        if (step > 1) {
            for (int64_t i = 0; i < n; ++i) to[i] = backline::load<T>(from + i * step);
            return;
        }
        copy_row<Bytes>(to, from, n);
    }

    // From two vectors the even elements; nothing behind the last one that is wanted is read, so the last two overlap.
    template <int Bytes, int... I>
    BACKLINE_INLINE void every_other(T *to, const T *from, int64_t n, std::integer_sequence<int, I...>) const {
        using L = Lanes<T, Bytes>;
        typename L::Vector a, b, even;
        constexpr int count = L::count;
        for (int64_t i = 0; i + count < n; i += count) {
            L::load(a, from + 2 * i), L::load(b, from + 2 * i + count);
            even = __builtin_shufflevector(a, b, (2 * I)...);
            L::store(even, to + i);
        }
        const int64_t i = n - count;
        L::load(a, from + 2 * i), L::load(b, from + 2 * i + count - 1);
        even = __builtin_shufflevector(a, b, (2 * I < count ? 2 * I : 2 * I + 1)...);
        L::store(even, to + i);
    }
};

// R rows of N vectors, which begin at `starts`; `left` elements of each row are there from its first one on. With K, the kernel has so
// many rows, one below the other as those of the result are: each line is read once for all rows that need it. An element's sum has
// the same order either way.
template <int K, int N, int R, class T, int Bytes>
BACKLINE_INLINE void depthwise_block(const Lines<T> &lines, const T *elements, const T *weights, T *to, const int64_t *starts,
                                     int64_t left) {
    using L = Lanes<T, Bytes>;
    const Geometry &g = lines.g;
    typename L::Vector sums[R][N], v;
    T edge[R * N * L::count];  // of rows that end inside of a vector
    const bool whole = starts[N - 1] + L::count <= left;
    T *at = to;
    int64_t row = g.points[2];
    if (!whole) {
        at = edge, row = N * L::count;
        for (int r = 0; g.keep && r < R; ++r) copy_row<Bytes>(at + r * row, to + r * g.points[2], left);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            sums[r][n] = typename L::Vector{};
            if (g.keep) L::load(sums[r][n], at + r * row + starts[n]);
        }
    for (int64_t kx = 0; kx < g.kernel[2]; ++kx) {
        const T *from = elements + lines.offsets[kx];
        if constexpr (K > 0) {
            T column[K];
            for (int ky = 0; ky < K; ++ky) column[ky] = load<T>(weights + ky * g.kernel[2] + kx);
#pragma GCC unroll 16
            for (int line = 0; line < R + K - 1; ++line, from += lines.pitch)
                for (int n = 0; n < N; ++n) {
                    L::load(v, from + starts[n]);
#pragma GCC unroll 8
                    for (int ky = 0; ky < K; ++ky)
                        if (line >= ky && line - ky < R) sums[line - ky][n] += column[ky] * v;
                }
        } else {
            for (int64_t ky = 0; ky < g.kernel[1]; ++ky, from += g.dilation[1] * lines.pitch) {
                const T weight = load<T>(weights + ky * g.kernel[2] + kx);
                for (int r = 0; r < R; ++r)
                    for (int n = 0; n < N; ++n) {
                        L::load(v, from + r * g.stride[1] * lines.pitch + starts[n]);
                        sums[r][n] += weight * v;
                    }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) L::store(sums[r][n], at + r * row + starts[n]);
    for (int r = 0; !whole && r < R; ++r) copy_row<Bytes>(to + r * g.points[2], at + r * row, left);
}

struct DepthwiseRows {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Geometry &g, const char *image, const char *weights, char *result, int64_t features) {
        Lines<T> lines(g);
        constexpr int64_t count = Lanes<T, Bytes>::count;
        const int64_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
        const T *w = reinterpret_cast<const T *>(weights);
        bool finite = true;
        for (int64_t i = 0; i < features * taps; ++i) finite &= std::isfinite(load<T>(w + i));
        if (!finite || !lines.fit(std::min<int64_t>(g.points[1], 8), std::min<int64_t>((g.points[2] + count - 1) / count, 4) * count))
            return apart<T>(g, image, weights, result, features);
        const int64_t rows = g.stride[1] == 1 && g.dilation[1] == 1 ? g.kernel[1] : 0;
        switch (rows) {
            case 3: return strips<3, T, Bytes>(lines, image, w, result, features);
            case 5: return strips<5, T, Bytes>(lines, image, w, result, features);
            case 7: return strips<7, T, Bytes>(lines, image, w, result, features);
            default: strips<0, T, Bytes>(lines, image, w, result, features);
        }
    }

  private:
    // Rows of N vectors whose sums fit into the registers, of which AVX-512 has 32 and others 16, beside a column of weights.
    template <int N, int Bytes>
    static constexpr int kRows = std::min(8, (Bytes == 64 ? 16 : 8) / N);

    // With K, narrow strips: their registers hold more rows, and a line that is read serves more of them. Else wide ones, for which fewer
    // lines are copied.
    template <int K, class T, int Bytes>
    static BACKLINE_INLINE void strips(Lines<T> &lines, const char *image, const T *weights, char *result, int64_t features) {
        constexpr int64_t count = Lanes<T, Bytes>::count;
        const int64_t points = lines.g.points[2];
        for (int64_t x = 0; x < points;) {
            const int64_t vectors = (points - x + count - 1) / count;
            constexpr int kWide = K == 0 ? 4 : 2;
            if (vectors >= kWide) x = strip<K, kWide, T, Bytes>(lines, x, image, weights, result, features);
            else if (vectors >= 2) x = strip<K, 2, T, Bytes>(lines, x, image, weights, result, features);
            else x = strip<K, 1, T, Bytes>(lines, x, image, weights, result, features);
        }
    }

    // N vectors of all rows; returns the first point after them.
    template <int K, int N, class T, int Bytes>
    static BACKLINE_INLINE int64_t strip(Lines<T> &lines, int64_t x, const char *image, const T *weights, char *result, int64_t features) {
        const Geometry &g = lines.g;
        constexpr int64_t count = Lanes<T, Bytes>::count, width = N * count;
        constexpr int R = kRows<N, Bytes>, kHalf = R / 2;
        const int64_t next = x + width;
        int64_t starts[N];
        for (int n = 0; n < N; ++n) starts[n] = n * count;
        if (!g.keep) {  // whole vectors, if need be of points that others compute, too
            if (x && next > g.points[2]) x = g.points[2] - width;
            if (g.points[2] >= count)
                for (int n = 0; n < N; ++n) starts[n] = std::min(starts[n], g.points[2] - count - x);
        }
        const int64_t most = lines.most_rows(width, R);
        lines.prepare(x, width, most);
        for (int64_t f = 0; f < features; ++f) {
            const char *plane = image + f / g.features * g.step_channel;
            T *to = reinterpret_cast<T *>(result + f * g.step_result) + x;
            const T *w = weights + f * g.kernel[1] * g.kernel[2];
            for (int64_t top = 0; top < g.points[1]; top += most) {
                // The last rows together with some before them, unless those would be added twice.
                if (!g.keep) top = std::min(top, g.points[1] - most);
                const int64_t rows = std::min(most, g.points[1] - top);
                lines.template load<Bytes>(plane, top, rows);
                for (int64_t y = 0; y < rows;) {
                    if (rows - y >= R || (!g.keep && rows >= R)) {
                        y = block<K, N, R, Bytes>(lines, top, std::min(y, rows - R), w, to, starts, x);
                    } else if (rows - y >= kHalf || (!g.keep && rows >= kHalf)) {
                        y = block<K, N, kHalf, Bytes>(lines, top, std::min(y, rows - kHalf), w, to, starts, x);
                    } else {
                        y = block<0, N, 1, Bytes>(lines, top, y, w, to, starts, x);
                    }
                }
            }
        }
        return next;
    }

    // R rows from y on, of those whose lines are there from `top` on; returns the next row.
    template <int K, int N, int R, int Bytes, class T>
    static BACKLINE_INLINE int64_t block(const Lines<T> &lines, int64_t top, int64_t y, const T *w, T *to, const int64_t *starts, int64_t x) {
        const Geometry &g = lines.g;
        const T *elements = lines.elements + y * g.stride[1] * lines.pitch;
        depthwise_block<K, N, R, T, Bytes>(lines, elements, w, to + (top + y) * g.points[2], starts, g.points[2] - x);
        return y + R;
    }

    // Tap by tap, each only where it meets the image.
    template <class T>
    static BACKLINE_INLINE void apart(const Geometry &g, const char *image, const char *weights, char *result, int64_t features) {
        constexpr int64_t size = sizeof(T);
        const int64_t step = g.stride[2] * g.step[2], width = g.points[2], line = width * size;
        for (int64_t f = 0; f < features; ++f, result += g.step_result) {
            const char *plane = image + f / g.features * g.step_channel;
            char *to = result;
            for (int64_t z = 0; z < g.points[0]; ++z)
                for (int64_t y = 0; y < g.points[1]; ++y, to += line) {
                    if (!g.keep) std::memset(to, 0, size_t(line));
                    const char *w = weights + f * g.kernel[0] * g.kernel[1] * g.kernel[2] * size;
                    for (int64_t kz = 0; kz < g.kernel[0]; ++kz)
                        for (int64_t ky = 0; ky < g.kernel[1]; ++ky) {
                            int64_t iz = place(g, 0, z, kz), iy = place(g, 1, y, ky);
                            if (!within(g, 0, iz) || !within(g, 1, iy)) {
                                w += g.kernel[2] * size;
                                continue;
                            }
                            for (int64_t kx = 0; kx < g.kernel[2]; ++kx, w += size) {
                                const Inside inside(g, 2, kx);
                                const T factor = load<T>(w);
                                char *out = to + inside.from * size;
                                const char *from = plane + iz * g.step[0] + iy * g.step[1] + place(g, 2, inside.from, kx) * g.step[2];
                                const int64_t n = inside.to - inside.from;
                                if (step == size) {
                                    for (int64_t i = 0; i < n; ++i)
                                        store(out + i * size, T(load<T>(out + i * size) + factor * load<T>(from + i * size)));
                                } else {
                                    for (int64_t i = 0; i < n; ++i)
                                        store(out + i * size, T(load<T>(out + i * size) + factor * load<T>(from + i * step)));
                                }
                            }
                        }
                }
        }
    }
};

// Some channels of P points that follow each other in a line, whose sums stay in registers over all taps: N vectors, or numbers. Of
// several points no tap is left or right of the image.
template <class V, int N, int P>
BACKLINE_INLINE void depthwise_channels(const Geometry &g, const char *image, const char *weights, char *to, const int64_t *at,
                                        int64_t row) {
    constexpr size_t size = sizeof(V);
    const int64_t apart = g.stride[2] * g.step[2];
    V sum[P][N] = {}, factor, other;
    auto each = [&](auto move) __attribute__((always_inline)) {  // one by one: arrays that are copied whole do not stay in registers
        for (int p = 0; p < P; ++p)
            for (size_t i = 0; i < N; ++i) move(sum[p][i], to + p * g.step_result + i * size);
    };
    if (g.keep) each([](V &v, const char *from) __attribute__((always_inline)) { std::memcpy(&v, from, size); });
    for (int64_t kz = 0; kz < g.kernel[0]; ++kz)
        for (int64_t ky = 0; ky < g.kernel[1]; ++ky) {
            int64_t iz = at[0] + kz * g.dilation[0], iy = at[1] + ky * g.dilation[1];
            const char *w = weights + (kz * g.kernel[1] + ky) * g.kernel[2] * row;
            if (!within(g, 0, iz) || !within(g, 1, iy)) continue;
            for (int64_t kx = 0; kx < g.kernel[2]; ++kx, w += row) {
                int64_t ix = at[2] + kx * g.dilation[2];
                if (P == 1 && !within(g, 2, ix)) continue;
                const char *from = image + iz * g.step[0] + iy * g.step[1] + ix * g.step[2];
                for (size_t i = 0; i < N; ++i) {
                    std::memcpy(&factor, w + i * size, size);
                    for (int p = 0; p < P; ++p) {
                        std::memcpy(&other, from + p * apart + i * size, size);
                        sum[p][i] += factor * other;
                    }
                }
            }
        }
    each([](V &v, char *there) __attribute__((always_inline)) { std::memcpy(there, &v, size); });
}

struct DepthwisePoints {
    static constexpr int kTogether = 4;  // points

    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Geometry &g, const char *image, const char *weights, char *to, int64_t first,
                                    int64_t count) {
        const int64_t last = (g.kernel[2] - 1) * g.dilation[2];
        Point p(g, first);
        while (count > 0) {
            const int64_t x = place(g, 2, p.x, 0), end = place(g, 2, p.x + kTogether - 1, 0) + last;
            const bool inside = p.x + kTogether <= g.points[2] && within(g, 2, x) && within(g, 2, end);
            const int64_t points = inside && count >= kTogether ? kTogether : 1;
            const int64_t at[3] = {place(g, 0, p.z, 0), place(g, 1, p.y, 0), x};
            if (points == 1) channels<T, Bytes, 1>(g, image, weights, to, at);
            else channels<T, Bytes, kTogether>(g, image, weights, to, at);
            for (int64_t i = 0; i < points; ++i) p.next(g);
            count -= points, to += points * g.step_result;
        }
    }

  private:
    // As many vectors at a time as there are registers for, then one, then narrower ones: the channels from c on.
    template <class T, int Bytes, int P, int Vectors = (P > 1 ? 2 : 128 / Bytes)>
    static BACKLINE_INLINE void channels(const Geometry &g, const char *image, const char *weights, char *to, const int64_t *at,
                                         int64_t c = 0) {
        using V = typename Lanes<T, Bytes>::Vector;
        constexpr int64_t size = sizeof(T);
        auto some = [&](auto *none, auto vectors) __attribute__((always_inline)) {
            using E = std::remove_pointer_t<decltype(none)>;
            constexpr int number = decltype(vectors)::value;
            constexpr int64_t each = number * sizeof(E) / size;
            for (; c + each <= g.channels; c += each)
                depthwise_channels<E, number, P>(g, image + c * size, weights + c * size, to + c * size, at, g.channels * size);
        };
        constexpr std::integral_constant<int, 1> one;
        if constexpr (Vectors > 1) some(static_cast<V *>(nullptr), std::integral_constant<int, Vectors>{});
        some(static_cast<V *>(nullptr), one);
        if constexpr (Bytes > 16) channels<T, Bytes / 2, P, 1>(g, image, weights, to, at, c);
        else some(static_cast<T *>(nullptr), one);
    }
};

void depthwise_rows_item(const Geometry *g, const char *image, const char *weights, char *to, int64_t features) {
    TypedVersions<DepthwiseRows>::table[g->level][g->item == 8](*g, image, weights, to, features);
}

void depthwise_points_item(const Geometry *g, const char *image, const char *weights, char *to, int64_t first, int64_t count) {
    TypedVersions<DepthwisePoints>::table[g->level][g->item == 8](*g, image, weights, to, first, count);
}

}  // namespace

int add_depthwise(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("depthwise_rows", depthwise_rows_item),
                                   kernel("depthwise_points", depthwise_points_item)});
}

}  // namespace backline
