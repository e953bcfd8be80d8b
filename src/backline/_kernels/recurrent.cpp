// Recurrent networks: all steps of some sequences of a layer in one direction, with the products of a BLAS for the state.
// A plain function over plain memory, which plans call by address as they call a vendor's.
#include "activations.hpp"
#include "cblas.hpp"
#include "kernels.hpp"

#include <algorithm>

namespace backline {
namespace {

enum Cell : int64_t { kLstm, kGru, kTanh, kRelu };

// In the constant memory of a plan, one 64-bit integer after the other. Steps between elements count elements.
struct Layer {
    int64_t gemm, gemv;            // addresses
    int64_t item, level;           // bytes of an element; vector instructions: 0 what all have, 1 AVX2 with FMA, 2 AVX-512
    int64_t cell, steps, batch, hidden;
    int64_t directions, parts;     // items: of each direction, so many parts of the batch
    int64_t gates_step, gates_row, gates_direction;  // of the products of the input
    int64_t out_step, out_row;     // of the output
    int64_t slab;                  // rows of weights that are multiplied with one state after the other; 0: products of matrices
};

template <class T, int Bytes>
struct Math : Activated<T, Bytes> {
    using L = Lanes<T, Bytes>;
    using V = typename L::Vector;

    static BACKLINE_INLINE void sum(V &v, const T *a, const T *b, int64_t n) {
        V other;
        L::load_some(v, a, n);
        L::load_some(other, b, n);
        v += other;
    }
};

// One step of one sequence. `bias` has the sums of both biases; for GRU the last third is that of the input alone, and one more
// part follows, that of the state.
template <class T, int Bytes>
BACKLINE_INLINE void lstm_row(const T *gates, const T *bias, T *h, T *c, T *out, int64_t n) {
    using M = Math<T, Bytes>;
    using V = typename M::V;
    for (int64_t j = 0; j < n; j += M::L::count) {
        int64_t some = n - j;
        V i, f, g, o, memory;
        M::sum(i, gates + j, bias + j, some);
        M::sum(f, gates + n + j, bias + n + j, some);
        M::sum(g, gates + 2 * n + j, bias + 2 * n + j, some);
        M::sum(o, gates + 3 * n + j, bias + 3 * n + j, some);
        M::L::load_some(memory, c + j, some);
        M::sigmoid(i);
        M::sigmoid(f);
        M::tanh(g);
        M::sigmoid(o);
        memory = f * memory + i * g;
        M::L::store_some(memory, c + j, some);
        M::tanh(memory);
        o *= memory;
        M::L::store_some(o, h + j, some);
        M::L::store_some(o, out + j, some);
    }
}

template <class T, int Bytes>
BACKLINE_INLINE void gru_row(const T *gates, const T *state, const T *bias, T *h, T *out, int64_t n) {
    using M = Math<T, Bytes>;
    using V = typename M::V;
    for (int64_t j = 0; j < n; j += M::L::count) {
        int64_t some = n - j;
        V r, z, fresh, s, before;
        M::sum(s, state + j, bias + j, some);
        M::L::load_some(r, gates + j, some);
        r += s;
        M::sum(s, state + n + j, bias + n + j, some);
        M::L::load_some(z, gates + n + j, some);
        z += s;
        M::sigmoid(r);
        M::sigmoid(z);
        M::sum(s, state + 2 * n + j, bias + 3 * n + j, some);
        M::sum(fresh, gates + 2 * n + j, bias + 2 * n + j, some);
        fresh += r * s;
        M::tanh(fresh);
        M::L::load_some(before, h + j, some);
        fresh = (T(1) - z) * fresh + z * before;
        M::L::store_some(fresh, h + j, some);
        M::L::store_some(fresh, out + j, some);
    }
}

template <class T, int Bytes>
BACKLINE_INLINE void plain_row(bool relu, const T *gates, const T *bias, T *h, T *out, int64_t n) {
    using M = Math<T, Bytes>;
    using V = typename M::V;
    V zero = V{};
    for (int64_t j = 0; j < n; j += M::L::count) {
        V x;
        M::sum(x, gates + j, bias + j, n - j);
        if (relu) x = x < zero ? zero : x;  // NaN stays NaN
        else M::tanh(x);
        M::L::store_some(x, h + j, n - j);
        M::L::store_some(x, out + j, n - j);
    }
}

struct Weights {
    const char *state, *input_bias, *state_bias;  // biases may be missing
};

struct Job {
    template <class T, int Bytes>
    static BACKLINE_INLINE void run(const Layer &p, int64_t item, char *all_gates, const Weights &w, const char *h0, const char *c0,
                                    const int64_t *lengths, char *all_out, char *all_h, char *all_c, char *work) {
        const int64_t d = item / p.parts, part = item % p.parts, n = p.hidden;
        const int64_t first = p.batch * part / p.parts, rows = p.batch * (part + 1) / p.parts - first;
        const int64_t width = n * (p.cell == kLstm ? 4 : p.cell == kGru ? 3 : 1);
        const size_t bytes = size_t(rows * n) * sizeof(T);
        const int64_t at = (d * p.batch + first) * n;
        T *gates = reinterpret_cast<T *>(all_gates) + d * p.gates_direction + first * p.gates_row;
        T *out = reinterpret_cast<T *>(all_out) + first * p.out_row + d * n;
        T *h = reinterpret_cast<T *>(all_h) + at, *c = nullptr;
        const T *weights = reinterpret_cast<const T *>(w.state);
        T *bias = reinterpret_cast<T *>(work), *state = bias + 4 * n;
        std::memcpy(h, reinterpret_cast<const T *>(h0) + at, bytes);
        if (p.cell == kLstm) {
            c = reinterpret_cast<T *>(all_c) + at;
            std::memcpy(c, reinterpret_cast<const T *>(c0) + at, bytes);
        }
        for (int64_t i = 0; i < 4 * n; ++i) bias[i] = T(0);
        if (w.input_bias) {
            const T *a = reinterpret_cast<const T *>(w.input_bias), *b = reinterpret_cast<const T *>(w.state_bias);
            const int64_t apart = p.cell == kGru ? 2 * n : width;  // from here on they stay apart
            for (int64_t i = 0; i < width; ++i) {
                bias[i] = i < apart ? a[i] + b[i] : a[i];
                if (i >= apart) bias[n + i] = b[i];
            }
        }
        const auto gemm = reinterpret_cast<Gemm<T>>(p.gemm);
        const auto gemv = reinterpret_cast<Gemv<T>>(p.gemv);
        for (int64_t s = 0; s < p.steps; ++s) {
            const int64_t t = d ? p.steps - 1 - s : s;
            T *now = gates + t * p.gates_step, *to = out + t * p.out_step;
            // Sequences that are there at this step, from the first to the last of them.
            int64_t from = 0, end = rows;
            if (lengths) {
                while (from < end && lengths[first + from] <= t) ++from;
                while (from < end && lengths[first + end - 1] <= t) --end;
            }
            // Onto the products of the input; GRU's must stay apart from them.
            const int64_t count = end - from, step = p.cell == kGru ? width : p.gates_row;
            T *target = (p.cell == kGru ? state : now) + from * step;
            const T keep = p.cell == kGru ? T(0) : T(1);
            if (count == 1) {
                gemv(kRowMajor, kPlain, width, n, T(1), weights, n, h + from * n, 1, keep, target, 1);
            } else if (count > 1 && p.slab) {
                for (int64_t j = 0; j < width; j += p.slab)
                    for (int64_t i = 0; i < count; ++i)
                        gemv(kRowMajor, kPlain, std::min(p.slab, width - j), n, T(1), weights + j * n, n, h + (from + i) * n, 1, keep,
                             target + i * step + j, 1);
            } else if (count > 1) {
                gemm(kRowMajor, kPlain, kTransposed, count, width, n, T(1), h + from * n, n, weights, n, keep, target, step);
            }
            for (int64_t i = 0; i < rows; ++i) {
                T *result = to + i * p.out_row;
                if (lengths && lengths[first + i] <= t) {
                    std::memset(result, 0, size_t(n) * sizeof(T));
                    continue;
                }
                const T *mine = now + i * p.gates_row;
                switch (p.cell) {
                    case kLstm: lstm_row<T, Bytes>(mine, bias, h + i * n, c + i * n, result, n); break;
                    case kGru: gru_row<T, Bytes>(mine, state + i * width, bias, h + i * n, result, n); break;
                    default: plain_row<T, Bytes>(p.cell == kRelu, mine, bias, h + i * n, result, n);
                }
            }
        }
    }
};

// What a PreparedCall calls for every item: some sequences of a layer in one direction. The gates hold the products of the input,
// and are overwritten.
void recurrent_steps(const Layer *p, int64_t item, char *gates, const char *w0, const char *a0, const char *b0, const char *w1,
                const char *a1, const char *b1, const char *h0, const char *c0, const int64_t *lengths, char *out, char *h,
                char *c, char *work) {
    const Weights weights = item / p->parts ? Weights{w1, a1, b1} : Weights{w0, a0, b0};
    TypedVersions<Job>::table[p->level][p->item == 8](*p, item, gates, weights, h0, c0, lengths, out, h, c, work);
}

}  // namespace

int add_recurrent(PyObject *, PyObject *addresses) {
    return add_kernels(addresses, {kernel("recurrent_steps", recurrent_steps)});
}

}  // namespace backline
