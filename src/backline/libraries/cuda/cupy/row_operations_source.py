"""The CUDA C++ of operations on rows and columns, and of the two ways through an array; `row_source` has what they are made of.

Rows that threads keep in registers are reduced twice where that takes less than one reduction of pairs.
"""

from __future__ import annotations

__all__ = ["ROWS"]

# Operations on rows. `add` takes elements, less what `shift` said of the first one, and those of a second array; `out` makes a
# result of them at the place i of a row.
ROWS = r"""
struct Given {
    const T *x, *g;
    T *y;
    L rows, n, inner;  // inner: elements from one of a row to the next
    const void *weight, *bias, *mean, *variance;
    int weight_kind, bias_kind, mean_kind, variance_kind;
    L channels;  // that rows belong to in turn; 0 where each element of a row has a channel of its own
    double eps;
    S *kept;  // for each row what its first element was taken for, mean and inverse deviation; the gradient of layer_norm has it
};

// What operations have unless they say otherwise: one array, and one reduction of it. Those of two go over a row AGAIN, with what
// the first one gave: `more` takes elements, which it may change where they are kept, and `finish` what came of them; `leads` in
// one thread of a row. `at` is called before `out` for a chunk; `fill` stands where a chunk has no element.
struct Plain {
    enum { TWO = 0, REDUCES = 1, AGAIN = 0 };
    typedef Two N;
    static __device__ S shift(S) { return S(0); }
    static __device__ S fill() { return S(0); }
    __device__ void more(N &, const S *, const S *, int, const Given &, L) const {}
    __device__ void finish(const N &, S, const Given &, L, bool) {}
    __device__ void at(const Given &, L, int) {}
};

struct Softmax : Plain {
    typedef Peak M;
    static __device__ S fill() { return -infinity(); }
    static __device__ void add(M &m, const S *v, const S *, int) { m.add(v); }
    S most, inverse;
    __device__ Softmax(const M &m, const Given &, L) : most(m.most), inverse(S(1) / m.sum) {}
    __device__ S out(S v, S, const Given &, L, int) const { return raised(v - most) * inverse; }
};

struct LogSoftmax : Plain {
    typedef Peak M;
    static __device__ S fill() { return -infinity(); }
    static __device__ void add(M &m, const S *v, const S *, int) { m.add(v); }
    S most, total;
    __device__ LogSoftmax(const M &m, const Given &, L) : most(m.most), total(logged(m.sum)) {}
    __device__ S out(S v, S, const Given &, L, int) const { return v - most - total; }
};

// Of rows that threads keep: a second reduction takes less than what combines sums for different largest elements.
struct KeptSoftmax : Plain {
    enum { AGAIN = 1 };
    typedef Most M;
    typedef Sum N;
    static __device__ S fill() { return -infinity(); }
    static __device__ void add(M &m, const S *v, const S *, int) {
        for (int j = 0; j < V; ++j) m.most = larger(m.most, v[j]);
    }
    S most, inverse;
    __device__ KeptSoftmax(const M &m, const Given &, L) : most(m.most) {}
    __device__ void more(N &sums, S *v, const S *, int, const Given &, L) const {
        for (int j = 0; j < V; ++j) sums.sum += v[j] = raised(v[j] - most);
    }
    __device__ void finish(const N &sums, S, const Given &, L, bool) { inverse = S(1) / sums.sum; }
    __device__ S out(S v, S, const Given &, L, int) const { return v * inverse; }
};

struct KeptLogSoftmax : KeptSoftmax {
    S total;
    __device__ KeptLogSoftmax(const M &m, const Given &p, L row) : KeptSoftmax(m, p, row) {}
    __device__ void more(N &sums, const S *v, const S *, int, const Given &, L) const {
        for (int j = 0; j < V; ++j) sums.sum += raised(v[j] - most);
    }
    __device__ void finish(const N &sums, S, const Given &, L, bool) { total = logged(sums.sum); }
    __device__ S out(S v, S, const Given &, L, int) const { return v - most - total; }
};

// Of the result x and the gradient g.
struct SoftmaxGrad : Plain {
    enum { TWO = 1 };
    typedef Sum M;
    static __device__ void add(M &m, const S *v, const S *g, int count) {
        S more = S(0);
        for (int j = 0; j < V; ++j) if (j < count) more += v[j] * g[j];
        m.sum += more;
    }
    S sum;
    __device__ SoftmaxGrad(const M &m, const Given &, L) : sum(m.sum) {}
    __device__ S out(S v, S g, const Given &, L, int) const { return v * (g - sum); }
};

struct LogSoftmaxGrad : Plain {
    enum { TWO = 1 };
    typedef Sum M;
    static __device__ void add(M &m, const S *, const S *g, int count) {
        S more = S(0);
        for (int j = 0; j < V; ++j) if (j < count) more += g[j];
        m.sum += more;
    }
    S sum;
    __device__ LogSoftmaxGrad(const M &m, const Given &, L) : sum(m.sum) {}
    __device__ S out(S v, S g, const Given &, L, int) const { return g - raised(v) * sum; }
};

// Elements times a weight, plus a bias.
struct Scaled : Plain {
    S w[V], b[V];
    __device__ void at(const Given &p, L i, int count) {
        parameters(p.weight, p.weight_kind, i, count, S(1), w);
        parameters(p.bias, p.bias_kind, i, count, S(0), b);
    }
};

// Differences from the first element are small where the mean is large beside the deviation, so their mean has more digits.
struct Normalised : Scaled {
    S mean, inverse;
    static __device__ S shift(S first) { return is_finite(first) ? first : S(0); }
    __device__ S out(S v, S, const Given &p, L, int j) const {
        v = (v - mean) * inverse;
        return p.weight_kind || p.bias_kind ? v * w[j] + b[j] : v;
    }
};

struct LayerNorm : Normalised {
    typedef Moments M;
    static __device__ void add(M &m, const S *v, const S *, int count) { m.add(v, count); }
    __device__ LayerNorm(const M &m, const Given &p, L) {
        mean = m.mean;
        inverse = S(1) / root(m.variance() + S(p.eps));
    }
};

// Of rows that threads keep: the mean, then the squares of differences from it.
struct KeptLayerNorm : Normalised {
    enum { AGAIN = 1 };
    typedef Sum M, N;
    static __device__ void add(M &m, const S *v, const S *, int) {
        S more = S(0);
        for (int j = 0; j < V; ++j) more += v[j];
        m.sum += more;
    }
    __device__ KeptLayerNorm(const M &m, const Given &p, L) { mean = m.sum / S(p.n); }
    __device__ void more(N &sums, const S *v, const S *, int count, const Given &, L) const {
        S squares = S(0);
        for (int j = 0; j < V; ++j) squares += j < count ? (v[j] - mean) * (v[j] - mean) : S(0);
        sums.sum += squares;
    }
    __device__ void finish(const N &sums, S, const Given &p, L, bool) { inverse = S(1) / root(sums.sum / S(p.n) + S(p.eps)); }
};

// Of the input x and the gradient g: the second sums are of g times the weight, and of that times normalised elements.
struct LayerNormGrad : Plain {
    enum { TWO = 1, AGAIN = 1 };
    typedef Moments M;
    static __device__ S shift(S first) { return is_finite(first) ? first : S(0); }
    static __device__ void add(M &m, const S *v, const S *, int count) { m.add(v, count); }
    static __device__ S scaled(S g, const Given &p, L i) { return g * parameter(p.weight, p.weight_kind, i, S(1)); }
    S mean, inverse, level, slope;
    __device__ LayerNormGrad(const M &m, const Given &p, L) : mean(m.mean), inverse(S(1) / root(m.variance() + S(p.eps))) {}
    __device__ void more(Two &sums, const S *v, const S *g, int count, const Given &p, L i) const {
        S one = S(0), other = S(0);
        for (int j = 0; j < V; ++j)
            if (j < count) {
                const S h = scaled(g[j], p, i + j);
                one += h;
                other += h * ((v[j] - mean) * inverse);
            }
        sums = Two::join(sums, {one, other});
    }
    __device__ void finish(const Two &sums, S shift, const Given &p, L row, bool leads) {
        level = sums.one / S(p.n);
        slope = sums.other / S(p.n);
        if (!leads || row >= p.rows) return;
        const S values[3] = {shift, mean, inverse};
        for (int k = 0; k < 3; ++k) p.kept[k * p.rows + row] = values[k];
    }
    __device__ S out(S v, S g, const Given &p, L i, int) const {
        return inverse * (scaled(g, p, i) - level - (v - mean) * inverse * slope);
    }
};

struct RmsNorm : Scaled {
    typedef Sum M;
    static __device__ void add(M &m, const S *v, const S *, int) {
        S more = S(0);
        for (int j = 0; j < V; ++j) more += v[j] * v[j];
        m.sum += more;
    }
    S inverse;
    __device__ RmsNorm(const M &m, const Given &p, L) : inverse(S(1) / root(m.sum / S(p.n) + S(p.eps))) {}
    __device__ S out(S v, S, const Given &, L, int j) const { return v * inverse * w[j]; }
};

// By statistics that are given for each channel.
struct BatchNorm : Plain {
    enum { REDUCES = 0 };
    typedef Sum M;
    static __device__ void add(M &, const S *, const S *, int) {}
    S mean, scale, bias;
    __device__ void of(const Given &p, L c) {
        mean = parameter(p.mean, p.mean_kind, c, S(0));
        scale = S(1) / root(parameter(p.variance, p.variance_kind, c, S(1)) + S(p.eps));
        bias = parameter(p.bias, p.bias_kind, c, S(0));
    }
    L channel;
    __device__ BatchNorm(const M &, const Given &p, L row) : channel(p.channels ? row % p.channels : -1) {
        if (p.channels && row < p.rows) of(p, channel);
    }
    __device__ S out(S v, S, const Given &p, L i, int) {
        if (!p.channels) of(p, i);
        const S y = (v - mean) * scale;
        return p.weight_kind || p.bias_kind ? y * parameter(p.weight, p.weight_kind, p.channels ? channel : i, S(1)) + bias : y;
    }
};

// `count` elements from p on, which `whole` lets be loaded at once; behind them, `fill`.
__device__ inline void load(const T *p, int count, bool whole, S shift, S *v, S fill = S(0)) {
    if (whole && count == V) {
        Chunk c;
        c.all = *(const uint4 *)p;
        for (int j = 0; j < V; ++j) v[j] = wide(c.each[j]) - shift;
    } else {
        for (int j = 0; j < V; ++j) v[j] = j < count ? wide(p[j]) - shift : fill;
    }
}
__device__ inline void store(T *p, int count, bool whole, const S *v) {
    Chunk c;
    if (BL_PAIRS && sizeof(T) == 2) {
#if BL_PAIRS
        for (int j = 0; j < V / 2; ++j) c.pairs[j % 4] = pair(T(), v[2 * j], v[2 * j + 1]);
#endif
    } else {
        for (int j = 0; j < V; ++j) put(c.each[j], v[j]);
    }
    if (whole && count == V) *(uint4 *)p = c.all;
    else for (int j = 0; j < V; ++j) if (j < count) p[j] = c.each[j];
}

__device__ inline int held(L n, L at) { return n - at >= V ? V : n > at ? int(n - at) : 0; }

// Rows that lie in one piece, each by blockDim.x threads that keep K chunks of it; K = 0: in a loop that reads it twice.
template <class Op, int K> __device__ void by_rows(const Given p) {
    const L step = (L)blockDim.x * V;
    for (L begin = (L)blockIdx.x * blockDim.y; begin < p.rows; begin += (L)gridDim.x * blockDim.y) {
        const L row = begin + threadIdx.y, n = row < p.rows ? p.n : 0, at = (L)threadIdx.x * V;
        const T *x = p.x + (n ? row * p.n : 0), *g = p.g + (Op::TWO && n ? row * p.n : 0);
        T *y = p.y + (n ? row * p.n : 0);
        const bool whole = !apart(x) && !apart(y) && !(Op::TWO && apart(g));
        const S shift = n ? Op::shift(wide(x[0])) : S(0);
        typename Op::M m = Op::M::none();
        S v[K ? K : 1][V], h[K && Op::TWO ? K : 1][V];
        auto fetch = [&](L i, int count) {
            load(x + i, count, whole, shift, v[0], Op::fill());
            if (Op::TWO) load(g + i, count, whole, S(0), h[0]);
        };
        if (K) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                const int count = held(n, at + k * step);
                load(x + at + k * step, count, whole, shift, v[k], Op::fill());
                if (Op::TWO) load(g + at + k * step, count, whole, S(0), h[Op::TWO ? k : 0]);
                Op::add(m, v[k], h[Op::TWO ? k : 0], count);
            }
        } else if (Op::REDUCES) {
            for (L i = at; i < n; i += step) {
                const int count = held(n, i);
                fetch(i, count);
                Op::add(m, v[0], h[0], count);
            }
        }
        if (Op::REDUCES) m = across(m);
        Op op(m, p, row);
        if (Op::AGAIN) {
            typename Op::N sums = Op::N::none();
#pragma unroll
            for (int k = 0; k < (K ? K : 1); ++k)
                for (L i = at + k * step; i < n; i += K ? n : step) {
                    const int count = held(n, i);
                    if (!K) fetch(i, count);
                    op.more(sums, v[k], h[Op::TWO ? k : 0], count, p, i);
                }
            op.finish(across(sums), shift, p, row, threadIdx.x == 0);
        }
#pragma unroll
        for (int k = 0; k < (K ? K : 1); ++k)
            for (L i = at + k * step; i < n; i += K ? n : step) {
                const int count = held(n, i);
                if (!K) fetch(i, count);
                op.at(p, i, count);
                for (int j = 0; j < V; ++j) v[k][j] = op.out(v[k][j], h[Op::TWO ? k : 0][j], p, j < count ? i + j : i, j);
                store(y + i, count, whole, v[k]);
            }
    }
}

// Rows whose elements lie `inner` apart: a thread for each that lies beside the other, blockDim.y threads for one.
template <class Op> __device__ void by_columns(const Given p) {
    for (L begin = (L)blockIdx.x * 32; begin < p.rows; begin += (L)gridDim.x * 32) {
        const L column = begin + threadIdx.x, n = column < p.rows ? p.n : 0;
        const L from = n ? column / p.inner * p.n * p.inner + column % p.inner : 0, step = (L)blockDim.y * V;
        const S shift = n ? Op::shift(wide(p.x[from])) : S(0);
        typename Op::M m = Op::M::none();
        S v[V], h[V];
        auto fetch = [&](L i, int count) {
            for (int j = 0; j < V; ++j) v[j] = j < count ? wide(p.x[from + (i + j) * p.inner]) - shift : Op::fill();
            for (int j = 0; j < V; ++j) h[j] = Op::TWO && j < count ? wide(p.g[from + (i + j) * p.inner]) : S(0);
        };
        for (L i = (L)threadIdx.y * V; i < n; i += step) {
            const int count = held(n, i);
            fetch(i, count);
            Op::add(m, v, h, count);
        }
        Op op(along(m), p, column);
        if (Op::AGAIN) {
            typename Op::N sums = Op::N::none();
            for (L i = (L)threadIdx.y * V; i < n; i += step) {
                const int count = held(n, i);
                fetch(i, count);
                op.more(sums, v, h, count, p, i);
            }
            op.finish(along(sums), shift, p, column, threadIdx.y == 0);
        }
        for (L i = threadIdx.y; i < n; i += blockDim.y) {
            const L place = from + i * p.inner;
            op.at(p, i, 1);
            put(p.y[place], op.out(wide(p.x[place]) - shift, Op::TWO ? wide(p.g[place]) : S(0), p, i, 0));
        }
    }
}
"""
