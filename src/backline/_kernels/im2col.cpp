// Convolution as a matrix product: images spread into columns, columns added up into images, bias and activation after it.
// Plain functions over plain memory, which plans call by address as they call a vendor's.
#include "convolution.hpp"
#include "kernels.hpp"

#include <complex>

namespace backline {
namespace {

enum Type : int64_t { kFloat32, kFloat64, kComplex64, kComplex128 };

struct Raw16 {
    uint64_t a, b;
};

// Lines are short, often a few elements: without a call of the C library, whose way in costs more than they do.
template <class T>
inline void copy_line(char *to, const char *from, int64_t bytes) {
    if (bytes > 256) {
        std::memcpy(to, from, size_t(bytes));
    } else if (bytes >= 16) {
        for (int64_t i = 0; i + 16 <= bytes; i += 16) std::memcpy(to + i, from + i, 16);
        std::memcpy(to + bytes - 16, from + bytes - 16, 16);
    } else if (sizeof(T) < 8 && bytes >= 8) {  // two words that overlap
        const uint64_t first = load<uint64_t>(from), last = load<uint64_t>(from + bytes - 8);
        store(to, first), store(to + bytes - 8, last);
    } else {
        for (int64_t i = 0; i < bytes; i += int64_t(sizeof(T))) store(to + i, load<T>(from + i));
    }
}

// What stands for the padding: zeros, or of bytes the one that their zero point is.
template <class T>
inline void pad_line(char *to, int64_t bytes, uint8_t byte) {
    T one{};
    if constexpr (sizeof(T) == 1) one = T(byte);
    const int value = sizeof(T) == 1 ? byte : 0;
    if (bytes > 256) {
        std::memset(to, value, size_t(bytes));
    } else if (bytes >= 16) {
        for (int64_t i = 0; i + 16 <= bytes; i += 16) std::memset(to + i, value, 16);
        std::memset(to + bytes - 16, value, 16);
    } else {
        for (int64_t i = 0; i < bytes; i += int64_t(sizeof(T))) store(to + i, one);
    }
}

// One row for each (channel, tap), in it the points first .. first + count.
template <class T>
void spread_rows(const Geometry &g, const char *image, char *to, int64_t channels, int64_t first, int64_t count, uint8_t pad = 0) {
    constexpr int64_t size = sizeof(T);
    const int64_t step = g.stride[2] * g.step[2];
    const Point start(g, first);
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t kz = 0; kz < g.kernel[0]; ++kz)
            for (int64_t ky = 0; ky < g.kernel[1]; ++ky)
                for (int64_t kx = 0; kx < g.kernel[2]; ++kx) {
                    const Inside inside(g, 2, kx);
                    Point p = start;
                    for (int64_t left = count; left > 0; p.next_line(g)) {
                        const int64_t x = p.x, n = std::min(g.points[2] - x, left);
                        const int64_t iz = place(g, 0, p.z, kz), iy = place(g, 1, p.y, ky);
                        int64_t from = std::clamp(inside.from, x, x + n), end = std::clamp(inside.to, from, x + n);
                        if (!within(g, 0, iz) || !within(g, 1, iy)) from = end = x + n;
                        pad_line<T>(to, (from - x) * size, pad);
                        char *line = to + (from - x) * size;
                        if (end > from) {
                            const char *source = image + c * g.step_channel + iz * g.step[0] + iy * g.step[1] +
                                                 place(g, 2, from, kx) * g.step[2];
                            if (step == size) {
                                copy_line<T>(line, source, (end - from) * size);
                            } else {
                                for (int64_t i = 0; i < end - from; ++i)
                                    store(line + i * size, load<T>(source + i * step));
                            }
                        }
                        pad_line<T>(to + (end - x) * size, (x + n - end) * size, pad);
                        to += n * size;
                        left -= n;
                    }
                }
}

// One row for each point first .. first + count, in it every (tap, channel).
template <class T>
void spread_points(const Geometry &g, const char *image, char *to, int64_t channels, int64_t first, int64_t count, uint8_t pad = 0) {
    constexpr int64_t size = sizeof(T);
    const int64_t run = channels * size;
    const bool dense = g.step_channel == size;
    // Neighbouring taps are neighbours in memory: one copy for a whole row of them.
    const bool rows = dense && g.step[2] == run && (g.dilation[2] == 1 || g.kernel[2] == 1);
    Point p(g, first);
    for (int64_t i = 0; i < count; ++i, p.next(g))
        for (int64_t kz = 0; kz < g.kernel[0]; ++kz)
            for (int64_t ky = 0; ky < g.kernel[1]; ++ky) {
                int64_t iz = place(g, 0, p.z, kz), iy = place(g, 1, p.y, ky), ix = place(g, 2, p.x, 0);
                if (!within(g, 0, iz) || !within(g, 1, iy)) {
                    pad_line<T>(to, g.kernel[2] * run, pad);
                    to += g.kernel[2] * run;
                    continue;
                }
                const char *line = image + iz * g.step[0] + iy * g.step[1];
                if (rows) {
                    int64_t from = std::clamp<int64_t>(-ix, 0, g.kernel[2]);
                    int64_t end = std::clamp<int64_t>(g.image[2] - ix, from, g.kernel[2]);
                    pad_line<T>(to, from * run, pad);
                    copy_line<T>(to + from * run, line + (ix + from) * run, (end - from) * run);
                    pad_line<T>(to + end * run, (g.kernel[2] - end) * run, pad);
                    to += g.kernel[2] * run;
                    continue;
                }
                for (int64_t kx = 0; kx < g.kernel[2]; ++kx, to += run) {
                    int64_t at = place(g, 2, p.x, kx);
                    const char *source = line + at * g.step[2];
                    if (!within(g, 2, at)) {
                        pad_line<T>(to, run, pad);
                    } else if (dense) {
                        copy_line<T>(to, source, run);
                    } else {
                        for (int64_t c = 0; c < channels; ++c) store(to + c * size, load<T>(source + c * g.step_channel));
                    }
                }
            }
}

// The reverse of spread_rows over all points: every column is added to where it came from.
template <class T>
void add_rows(const Geometry &g, const char *columns, char *image, int64_t channels) {
    constexpr int64_t size = sizeof(T);
    const int64_t step = g.stride[2] * g.step[2];
    for (int64_t c = 0; c < channels; ++c, image += g.step_channel) {
        if (!g.keep)
            for (int64_t z = 0; z < g.image[0]; ++z)
                for (int64_t y = 0; y < g.image[1]; ++y) {
                    char *line = image + z * g.step[0] + y * g.step[1];
                    if (g.step[2] == size) {
                        std::memset(line, 0, size_t(g.image[2] * size));
                    } else {
                        for (int64_t x = 0; x < g.image[2]; ++x) std::memset(line + x * g.step[2], 0, size_t(size));
                    }
                }
        for (int64_t kz = 0; kz < g.kernel[0]; ++kz)
            for (int64_t ky = 0; ky < g.kernel[1]; ++ky)
                for (int64_t kx = 0; kx < g.kernel[2]; ++kx) {
                    const Inside inside(g, 2, kx);
                    for (int64_t z = 0; z < g.points[0]; ++z)
                        for (int64_t y = 0; y < g.points[1]; ++y, columns += g.points[2] * size) {
                            int64_t iz = place(g, 0, z, kz), iy = place(g, 1, y, ky), n = inside.to - inside.from;
                            if (!within(g, 0, iz) || !within(g, 1, iy) || !n) continue;
                            const char *from = columns + inside.from * size;
                            char *to = image + iz * g.step[0] + iy * g.step[1] + place(g, 2, inside.from, kx) * g.step[2];
                            if (step == size) {
                                for (int64_t i = 0; i < n; ++i)
                                    store(to + i * size, T(load<T>(to + i * size) + load<T>(from + i * size)));
                            } else {
                                for (int64_t i = 0; i < n; ++i)
                                    store(to + i * step, T(load<T>(to + i * step) + load<T>(from + i * size)));
                            }
                        }
                }
    }
}

// After the product: bias along the rows or along the columns, and relu. NaN stays NaN.
struct Finish {
    int64_t type, relu;
    int64_t row_bias, column_bias;  // bytes from one element of the bias to the next; both 0: there is none
    int64_t row_step;               // of the result, in bytes; its columns are neighbours
};

template <class T>
inline T positive(T x) {
    return x < T(0) ? T(0) : x;
}
template <class T>
inline std::complex<T> positive(std::complex<T> x) {  // never asked for
    return x;
}

template <class T>
void finish_rows(const Finish &f, char *data, const char *bias, int64_t rows, int64_t columns) {
    constexpr int64_t size = sizeof(T);
    for (int64_t i = 0; i < rows; ++i, data += f.row_step) {
        if (f.row_bias) {
            const T b = load<T>(bias + i * f.row_bias);
            for (int64_t j = 0; j < columns; ++j) store(data + j * size, T(load<T>(data + j * size) + b));
        } else if (f.column_bias == size) {
            for (int64_t j = 0; j < columns; ++j) store(data + j * size, T(load<T>(data + j * size) + load<T>(bias + j * size)));
        } else if (f.column_bias) {
            for (int64_t j = 0; j < columns; ++j)
                store(data + j * size, T(load<T>(data + j * size) + load<T>(bias + j * f.column_bias)));
        }
        if (f.relu)
            for (int64_t j = 0; j < columns; ++j) store(data + j * size, positive(load<T>(data + j * size)));
    }
}

// Rows of bytes as columns, eight by eight: images with channels first as those with channels last, and back.
struct Square {
    uint64_t rows[8];

    // Exchanges what lies across the diagonal, in blocks of so many bits and rows.
    template <int Bits, int Rows>
    void exchange(uint64_t low) {
        for (int i = 0; i < 8; ++i) {
            if (i & Rows) continue;
            const uint64_t a = rows[i], b = rows[i + Rows];
            rows[i] = (a & low) | ((b & low) << Bits);
            rows[i + Rows] = ((a >> Bits) & low) | (b & ~low);
        }
    }
    void turn() {
        exchange<32, 4>(0x00000000FFFFFFFF);
        exchange<16, 2>(0x0000FFFF0000FFFF);
        exchange<8, 1>(0x00FF00FF00FF00FF);
    }
};

void turn_bytes(const uint8_t *from, uint8_t *to, int64_t rows, int64_t columns, int64_t step_from, int64_t step_to) {
    const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (int64_t j = 0; j < whole_columns; j += 8) {
        for (int64_t i = 0; i < whole_rows; i += 8) {
            Square block;
            for (int k = 0; k < 8; ++k) std::memcpy(&block.rows[k], from + (i + k) * step_from + j, 8);
            block.turn();
            for (int k = 0; k < 8; ++k) std::memcpy(to + (j + k) * step_to + i, &block.rows[k], 8);
        }
        for (int64_t i = whole_rows; i < rows; ++i)
            for (int64_t k = j; k < j + 8; ++k) to[k * step_to + i] = from[i * step_from + k];
    }
    for (int64_t j = whole_columns; j < columns; ++j)
        for (int64_t i = 0; i < rows; ++i) to[j * step_to + i] = from[i * step_from + j];
}

// What plans call ------------------------------------------------------------------------------------------------------

// run(T{}) for the element type of so many bytes, which is only moved, and for one that is computed with.
template <class Run>
void by_size(int64_t item, const Run &run) {
    switch (item) {
        case 4: return run(uint32_t{});
        case 8: return run(uint64_t{});
        case 16: return run(Raw16{});
    }
}
template <class Run>
void by_type(int64_t type, const Run &run) {
    switch (type) {
        case kFloat32: return run(float{});
        case kFloat64: return run(double{});
        case kComplex64: return run(std::complex<float>{});
        case kComplex128: return run(std::complex<double>{});
    }
}

void im2col_rows(const Geometry *g, const char *image, char *to, int64_t channels, int64_t first, int64_t count) {
    by_size(g->item, [&](auto element) { spread_rows<decltype(element)>(*g, image, to, channels, first, count); });
}

void im2col_points(const Geometry *g, const char *image, char *to, int64_t channels, int64_t first, int64_t count) {
    by_size(g->item, [&](auto element) { spread_points<decltype(element)>(*g, image, to, channels, first, count); });
}

// The same of bytes, where the zero point stands for what is padded.
void im2col_byte_rows(const Geometry *g, const char *image, char *to, int64_t channels, int64_t first, int64_t count,
                      const int32_t *zero) {
    spread_rows<uint8_t>(*g, image, to, channels, first, count, uint8_t(*zero));
}

void im2col_byte_points(const Geometry *g, const char *image, char *to, int64_t channels, int64_t first, int64_t count,
                        const int32_t *zero) {
    spread_points<uint8_t>(*g, image, to, channels, first, count, uint8_t(*zero));
}

void im2col_add(const Geometry *g, const char *columns, char *image, int64_t channels) {
    by_type(g->type, [&](auto element) { add_rows<decltype(element)>(*g, columns, image, channels); });
}

void im2col_finish(const Finish *f, char *data, const char *bias, int64_t rows, int64_t columns) {
    by_type(f->type, [&](auto element) { finish_rows<decltype(element)>(*f, data, bias, rows, columns); });
}

}  // namespace

int add_im2col(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("im2col_rows", im2col_rows),
                                   kernel("im2col_points", im2col_points),
                                   kernel("im2col_byte_rows", im2col_byte_rows),
                                   kernel("im2col_byte_points", im2col_byte_points),
                                   kernel("turn_bytes", turn_bytes),
                                   kernel("im2col_add", im2col_add),
                                   kernel("im2col_finish", im2col_finish)});
}

}  // namespace backline
