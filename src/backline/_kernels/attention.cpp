#include "attention_rows.hpp"
#include "attention_tiles.hpp"

#include <algorithm>
#include <cmath>

#include "../_core/bits.hpp"
#include "../_core/copy.hpp"
#include "cblas.hpp"
#include "kernels.hpp"
#include "softmax.hpp"

namespace backline {
namespace {

// Workspace of one thread: offsets in bytes.
struct Layout {
    int64_t scores, out, before, query, key, value, most, sum, part, change, mask, end;
    int64_t ld;  // of the scores, in elements: not a power of two, whose rows would fall on the same lines of the cache
    int64_t ldo;  // of the result
    AttentionTiles tiles;
    AttentionRows few;
};

constexpr bool by_rows(const Attention &p) { return !p.gemm && Loops(p.gemv) == Loops::rows; }
constexpr bool by_tiles(const Attention &p) { return !p.gemm && Loops(p.gemv) == Loops::tiles; }

Layout layout(const Attention &p) {
    Layout w{};
    int64_t size = p.itemsize;
    auto take = [&](int64_t elements) {
        int64_t at = w.end;
        w.end += (elements * size + 63) / 64 * 64;
        return at;
    };
    int64_t rows = p.rows, tile = p.tile;
    w.ldo = p.out_dim;
#if defined(BACKLINE_TILES)
    if (by_tiles(p)) rows = whole_panels(rows), tile = whole_panels(tile), w.ldo = whole_panels(w.ldo);
#endif
    w.ld = tile + kPadding / size;
    w.scores = take(rows * w.ld);
    w.out = take(rows * w.ldo);
    w.before = take(rows * w.ldo);
    if (p.gemm) {
        w.query = take(p.direct_q ? 0 : p.rows * p.dim);
        w.key = take(p.direct_k ? 0 : p.tile * p.dim);
        w.value = take(p.direct_v ? 0 : p.tile * p.out_dim);
    }
    w.most = take(p.rows);
    w.sum = take(p.rows);
    w.part = take(p.rows);
    w.change = take(p.rows);
    w.mask = take(p.tile);
    if (by_rows(p)) w.few = {take(p.rows * p.dim), take(p.rows * p.tile), take(p.out_dim)};
#if defined(BACKLINE_TILES)
    if (by_tiles(p)) take_tiles(p, w.tiles, [&](int64_t bytes) { return take((bytes + size - 1) / size); });
#endif
    return w;
}

template <class T>
Element reading(Stored stored) {
    return stored == Stored::float16    ? Element::f16_f32
           : stored == Stored::bfloat16 ? Element::bf16_f32
           : sizeof(T) == 4             ? Element::raw4
                                        : Element::raw8;
}

// A matrix as BLAS can read it: where it is, or copied.
template <class T>
struct Matrix {
    const T *data;
    int64_t ld;
};
template <class T>
Matrix<T> matrix(const Attention &p, bool direct, const char *from, const int64_t *strides, int64_t rows, int64_t cols,
                 char *room) {
    constexpr int64_t size = sizeof(T);
    if (direct) return {reinterpret_cast<const T *>(from), strides[2] / size};
    Copy2D{reading<T>(p.stored), rows, cols, strides[2], strides[3], cols * size, size}.run(from, room);
    return {reinterpret_cast<const T *>(room), cols};
}

// The two products by a BLAS library.
template <class T>
struct BlasProducts {
    const Attention &p;
    const Layout &w;
    char *work;
    const char *keys, *values;  // of this head
    int64_t count;              // rows
    Matrix<T> rows{}, here{};   // here: values of a tile

    BACKLINE_INLINE void take_rows(const char *query) { rows = matrix<T>(p, p.direct_q, query, p.query, count, p.dim, work + w.query); }

    BACKLINE_INLINE void scores(int64_t from, int64_t width, T *to) {
        const Matrix<T> key = matrix<T>(p, p.direct_k, keys + from * p.key[2], p.key, width, p.dim, work + w.key);
        if (count == 1)
            reinterpret_cast<Gemv<T>>(p.gemv)(kRowMajor, kPlain, width, p.dim, T(p.scale), key.data, key.ld, rows.data, 1, T(0), to, 1);
        else
            reinterpret_cast<Gemm<T>>(p.gemm)(kRowMajor, kPlain, kTransposed, count, width, p.dim, T(p.scale), rows.data, rows.ld, key.data,
                                              key.ld, T(0), to, w.ld);
    }

    BACKLINE_INLINE void take_values(int64_t from, int64_t width) {
        here = matrix<T>(p, p.direct_v, values + from * p.value[2], p.value, width, p.out_dim, work + w.value);
    }

    BACKLINE_INLINE void add(const T *weights, int64_t width, bool begun, T *out) { add_keys(weights, 0, width, begun ? T(1) : T(0), out); }

    BACKLINE_INLINE void add_some(const T *weights, int64_t from, int64_t to, T *out) {
        if (from < to) add_keys(weights, from, to, T(1), out);
    }

    BACKLINE_INLINE const T *value(int64_t j) const { return here.data + j * here.ld; }

  private:
    BACKLINE_INLINE void add_keys(const T *weights, int64_t from, int64_t to, T before, T *out) {
        if (count == 1)
            reinterpret_cast<Gemv<T>>(p.gemv)(kRowMajor, kTransposed, to - from, p.out_dim, T(1), value(from), here.ld, weights + from, 1,
                                              before, out, 1);
        else
            reinterpret_cast<Gemm<T>>(p.gemm)(kRowMajor, kPlain, kPlain, count, p.out_dim, to - from, T(1), weights + from, w.ld, value(from),
                                              here.ld, before, out, w.ldo);
    }
};

// Whether any key of a tile takes part for any of the rows.
bool any_taken(const Attention &p, const char *mask, int64_t rows, int64_t width) {
    if (p.mask[2] == 0) rows = 1;
    if (p.mask[3] == 0) width = 1;
    for (int64_t i = 0; i < rows; ++i) {
        const char *row = mask + i * p.mask[2];
        if (p.mask[3] == 1 || width == 1) {
            char all = 0;
            for (int64_t j = 0; j < width; ++j) all |= row[j];
            if (all) return true;
        } else {
            for (int64_t j = 0; j < width; ++j)
                if (row[j * p.mask[3]]) return true;
        }
    }
    return false;
}

// One value of a mask that is added.
template <class T>
T added(const Attention &p, const char *at) {
    if (p.stored_mask == Stored::as_computed || p.stored_mask == Stored::float32) {
        return sizeof(T) == 8 && p.stored_mask == Stored::float32 ? T(load<float>(at)) : load<T>(at);
    }
    T value;
    Copy2D{reading<T>(p.stored_mask), 1, 1, 0, 2, 0, int64_t(sizeof(T))}.run(at, reinterpret_cast<char *>(&value));
    return value;
}

// A row of a mask that is added, as T without gaps.
template <class T>
const T *added_row(const Attention &p, const char *row, int64_t width, char *room) {
    int64_t size = sizeof(T);
    T *to = reinterpret_cast<T *>(room);
    if (sizeof(T) == 8 && p.stored_mask == Stored::float32) {
        for (int64_t j = 0; j < width; ++j) to[j] = added<T>(p, row + j * p.mask[3]);
        return to;
    }
    bool same = p.stored_mask == Stored::as_computed || p.stored_mask == Stored::float32;
    if (same && p.mask[3] == size && reinterpret_cast<uintptr_t>(row) % sizeof(T) == 0) return reinterpret_cast<const T *>(row);
    Element element = same ? (size == 4 ? Element::raw4 : Element::raw8) : reading<T>(p.stored_mask);
    Copy2D{element, 1, width, 0, p.mask[3], 0, size}.run(row, room);
    return to;
}

template <class T>
BACKLINE_INLINE void apply_mask(const Attention &p, T *s, const char *row, int64_t width, char *room) {
    if (p.mask_kind == MaskKind::taken) {
        const uint8_t *taken = reinterpret_cast<const uint8_t *>(row);
        if (p.mask[3] != 1) {
            uint8_t *to = reinterpret_cast<uint8_t *>(room);
            for (int64_t j = 0; j < width; ++j) to[j] = taken[j * p.mask[3]];
            taken = to;
        }
        for (int64_t j = 0; j < width; ++j) s[j] = taken[j] ? s[j] : kNothing<T>;
    } else {
        const T *add = added_row<T>(p, row, width, room);
        for (int64_t j = 0; j < width; ++j) {  // not the sum where the key takes no part: NaN less infinity is NaN
            T sum = s[j] + add[j];
            s[j] = add[j] == kNothing<T> ? kNothing<T> : sum;
        }
    }
}

template <class T>
BACKLINE_INLINE bool all_finite(const T *row, int64_t n) {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    constexpr Bits special = sizeof(T) == 4 ? Bits(0x7f800000u) : Bits(0x7ff0000000000000u);
    Bits found = 0;
    for (int64_t j = 0; j < n; ++j) found |= Bits((load<Bits>(row + j) & special) == special);
    return !found;
}

// One block of query rows of one head.
template <class T, int Bytes, class Products>
struct Block {
    const Attention &p;
    const Layout &w;
    Products products;
    const char *mask;  // at the block's first row
    char *work;
    int64_t first, count;
    T *scores, *out, *most, *sum, *part, *change;  // sum: of all weights so far; part: of those of a tile
    T *lse;                                        // of the rows, or nullptr where nobody asks for it
    bool begun = false;

    BACKLINE_INLINE void soften_rows(int64_t from, int64_t width) {
        for (int64_t i = 0; i < count; ++i) {
            T *s = scores + i * w.ld;
            if (p.causal) {
                int64_t some = std::clamp<int64_t>(first + i + 1 - from, 0, width);
                for (int64_t j = some; j < width; ++j) s[j] = kNothing<T>;
            }
            if (p.mask_kind != MaskKind::none)
                apply_mask<T>(p, s, mask + i * p.mask[2] + from * p.mask[3], width, work + w.mask);
            soften<T, Bytes>(s, width, most[i], part[i], change[i]);
        }
        exp_array<T, Bytes>(change, change, count);
        for (int64_t i = 0; i < count; ++i) {
            sum[i] = sum[i] * change[i] + part[i];
            if (!begun || change[i] == T(1)) continue;
            T *o = out + i * w.ldo, factor = change[i];
            for (int64_t j = 0; j < p.out_dim; ++j) o[j] *= factor;
        }
    }

    BACKLINE_INLINE void add_values(int64_t width) {
        products.add(scores, width, begun, out);
        begun = true;
    }

    bool takes_part(int64_t row, int64_t key) const {
        if (p.causal && key > first + row) return false;
        if (p.mask_kind == MaskKind::none) return true;
        const char *at = mask + row * p.mask[2] + key * p.mask[3];
        return p.mask_kind == MaskKind::taken ? *at != 0 : added<T>(p, at) != kNothing<T>;
    }

    // Where a weight of 0 means that the key takes no part, 0 times NaN or infinity must not be added. What is added is looked
    // at, being smaller than the values; only if it is not finite, keys with such values are added for each row by itself.
    BACKLINE_INLINE void add_values_with_care(int64_t from, int64_t width) {
        T *before = reinterpret_cast<T *>(work + w.before);
        const int64_t size = count * w.ldo;
        const bool had = begun;
        if (had) std::copy(out, out + size, before);
        add_values(width);
        bool finite = true;
        for (int64_t i = 0; finite && i < count; ++i) finite = all_finite<T>(out + i * w.ldo, p.out_dim);
        if (finite) return;
        if (had) std::copy(before, before + size, out);
        else std::fill(out, out + size, T(0));
        int64_t good = 0;
        for (int64_t j = 0; j < width; ++j) {
            const T *v = products.value(j);
            if (all_finite<T>(v, p.out_dim)) continue;
            products.add_some(scores, good, j, out);
            good = j + 1;
            v = products.value(j);
            for (int64_t i = 0; i < count; ++i) {
                if (!takes_part(i, from + j)) continue;
                T weight = scores[i * w.ld + j], *o = out + i * w.ldo;
                for (int64_t d = 0; d < p.out_dim; ++d) o[d] += weight * v[d];
            }
        }
        products.add_some(scores, good, width, out);
    }

    BACKLINE_INLINE void finish(char *to, int64_t stride) {
        // Of a row that may attend to no key the log of the sum of nothing: minus infinity.
        for (int64_t i = 0; lse && i < count; ++i) lse[i] = sum[i] == T(0) ? kNothing<T> : most[i] + std::log(sum[i]);
        for (int64_t i = 0; i < count; ++i) {
            T *o = out + i * w.ldo;
            if (!begun || sum[i] == T(0)) {
                std::fill(o, o + p.out_dim, T(0));
            } else {
                T whole = sum[i];
                for (int64_t j = 0; j < p.out_dim; ++j) o[j] /= whole;
            }
        }
        Element element = p.stored == Stored::float16    ? Element::f32_f16
                          : p.stored == Stored::bfloat16 ? Element::f32_bf16
                          : sizeof(T) == 4               ? Element::raw4
                                                         : Element::raw8;
        int64_t size = sizeof(T), item = p.stored == Stored::as_computed ? size : 2;
        Copy2D{element, count, p.out_dim, w.ldo * size, size, stride, item}.run(reinterpret_cast<char *>(out), to);
    }
};

struct Job {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Attention &p, int64_t item, const char *query, const char *key, const char *value,
                                    const char *mask, char *out, char *lse, char *work) {
        int64_t blocks = (p.queries + p.rows - 1) / p.rows;
        int64_t block = item % blocks, head = item / blocks % p.heads, batch = item / blocks / p.heads;
        // With a causal mask the last blocks are the longest: taken from both ends in turn, halves of the items weigh the same.
        if (p.causal) block = block % 2 ? blocks - 1 - block / 2 : block / 2;
        int64_t first = block * p.rows, count = std::min(p.rows, p.queries - first);
        const Layout w = layout(p);
        query += batch * p.query[0] + head * p.query[1] + first * p.query[2];
        key += batch * p.key[0] + head / p.per_key * p.key[1];
        value += batch * p.value[0] + head / p.per_value * p.value[1];
        out += batch * p.out[0] + head * p.out[1] + first * p.out[2];
        if (p.mask_kind != MaskKind::none) mask += batch * p.mask[0] + head * p.mask[1] + first * p.mask[2];
        T *log = lse ? reinterpret_cast<T *>(lse) + (batch * p.heads + head) * p.queries + first : nullptr;
#if defined(BACKLINE_TILES)
        if constexpr (Bytes == 64 && sizeof(T) == 4)
            if (by_tiles(p)) {
                TileProducts products{{p, work, key, value, count, w.ld, w.ldo}, w.tiles};
                return attend<T, Bytes>(p, w, products, first, query, mask, out, log, work);
            }
#endif
        if constexpr (sizeof(T) == 4)
            if (by_rows(p)) {
                RowProducts products{{p, work, key, value, count, w.ld, w.ldo}, w.few};
                return attend<T, Bytes>(p, w, products, first, query, mask, out, log, work);
            }
        BlasProducts<T> products{p, w, work, key, value, count};
        attend<T, Bytes>(p, w, products, first, query, mask, out, log, work);
    }

  private:
    template <class T, int Bytes, class Products>
    static BACKLINE_INLINE void attend(const Attention &p, const Layout &w, const Products &products, int64_t first, const char *query,
                                       const char *mask, char *out, T *lse, char *work) {
        const int64_t count = products.count;
        auto place = [&](int64_t offset) { return reinterpret_cast<T *>(work + offset); };
        Block<T, Bytes, Products> b{p, w, products, mask, work, first, count, place(w.scores), place(w.out), place(w.most), place(w.sum),
                                    place(w.part), place(w.change), lse};
        std::fill(b.most, b.most + count, kNothing<T>);
        std::fill(b.sum, b.sum + count, T(0));
        b.products.take_rows(query);
        int64_t end = p.causal ? std::min(p.keys, first + count) : p.keys;
        for (int64_t from = 0; from < end; from += p.tile) {
            int64_t width = std::min(p.tile, end - from);
            if (p.mask_kind == MaskKind::taken && !any_taken(p, mask + from * p.mask[3], count, width)) continue;
            b.products.scores(from, width, b.scores);
            b.soften_rows(from, width);
            b.products.take_values(from, width);
            bool all = p.mask_kind == MaskKind::none && !(p.causal && from + width > first + 1);
            if (all) b.add_values(width);
            else b.add_values_with_care(from, width);
        }
        b.finish(out, p.out[2]);
    }
};

struct Exponentials {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const char *from, char *to, int64_t n) {
        exp_array<T, Bytes>(reinterpret_cast<const T *>(from), reinterpret_cast<T *>(to), n);
    }
};

// What a PreparedCall calls for every item: a block of rows of one head of one element of the batch.
void attention_item(const Attention *p, int64_t item, const char *query, const char *key, const char *value, const char *mask,
                    char *out, char *lse, char *work) {
    TypedVersions<Job>::table[p->level][p->itemsize == 8](*p, item, query, key, value, mask, out, lse, work);
}

int64_t attention_workspace(PyObject *description) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(description, &data, &size) < 0) throw PythonError();
    Attention p;
    if (size != Py_ssize_t(sizeof p))
        throw python_error(PyExc_ValueError, "%zd bytes describe an attention, not %zd", Py_ssize_t(sizeof p), size);
    std::memcpy(&p, data, sizeof p);
#if defined(BACKLINE_TILES)
    constexpr bool tiles = true;
#else
    constexpr bool tiles = false;
#endif
    const bool halves = p.itemsize == 4 && (p.stored == Stored::float16 || p.stored == Stored::bfloat16);
    const bool products = by_tiles(p)  ? tiles && p.level == 2 && halves && p.stored == Stored::bfloat16
                          : by_rows(p) ? halves
                                       : p.gemm && p.gemv;
    bool sound = products && (p.itemsize == 4 || p.itemsize == 8) && p.level >= 0 && p.level <= best_level() &&
                 p.rows > 0 && p.tile > 0 && p.heads > 0 && p.queries > 0 && p.keys > 0 && p.dim > 0 && p.out_dim > 0 &&
                 p.per_key > 0 && p.per_value > 0;
    if (!sound) throw python_error(PyExc_ValueError, "no attention: a size, a level or an address that cannot be");
    return layout(p).end;
}

void attention_exp(void *from, void *to, int64_t n, int itemsize, int level) {
    if ((itemsize != 4 && itemsize != 8) || level < 0 || level > best_level())
        throw python_error(PyExc_ValueError, "attention_exp takes floats of 4 or 8 bytes, and levels up to %d", best_level());
    TypedVersions<Exponentials>::table[level][itemsize == 8](static_cast<const char *>(from), static_cast<char *>(to), n);
}

PyMethodDef methods[] = {
    function<attention_workspace>("attention_workspace", "Bytes of workspace that a thread needs, from the description as bytes."),
    function<attention_exp>("attention_exp",
                            "attention_exp(from, to, n, itemsize, level): e^x of n numbers <= 0 at an address, as attention computes it."),
    {}};

}  // namespace

int add_attention(PyObject *module, PyObject *addresses) {
    if (PyModule_AddFunctions(module, methods) < 0) return -1;
    return add_kernels(addresses, {kernel("attention", attention_item)});
}

}  // namespace backline
