# mypy: ignore-errors
# ruff: noqa: E741
# Triton's language is compiled from this text; types of Python do not describe it.
"""Attention in Triton: the text that `attention_compile` compiles, and that Triton's interpreter runs in tests.

One program computes a tile of rows; a tile of the scores is all that exists of them. Nothing is added atomically, so the bits are
always the same. Pointers step by 64-bit numbers from tile to tile, offsets within a tile fit in 32 bits. In every kernel:

``B_``, ``H_``, ``M_``, ``N_`` are strides in elements along batch, heads, rows, and for the bias also along keys; the last
stride of everything else is 1. ``D`` and ``DV`` are head dims, ``PD`` and ``PDV`` the powers of two that hold them. ``BIAS``: 0
none, 1 of bool, 2 added. Scores are those of base 2, for ``log2e`` is in ``qk_scale``; their log-sum-exp is in memory the natural
one, as everybody else has it.
"""

try:
    import triton
    import triton.language as tl
except ImportError:
    # Whoever only reads this file, for its documentation, needs no Triton.
    triton = None

    class tl:
        constexpr = None


__all__ = ["attention_backward_delta", "attention_backward_keys", "attention_backward_queries", "attention_forward"]


def kernel(function):
    return function if triton is None else triton.jit(function)


@kernel
def _kept(seed, batch_head, rows, start, dropout, BN: tl.constexpr):
    """Where weights are kept, for rows and BN keys from `start` on, both multiples of 4: by Philox.

    A counter is four keys, row, and batch and head; its four words are those of the keys in order.
    """
    quads = start // 4 + tl.arange(0, BN // 4)
    zero = rows[:, None] * 0 + quads[None, :] * 0
    first, second, third, fourth = tl.philox(seed, zero + quads[None, :], zero + rows[:, None], zero + batch_head, zero)
    word = tl.join(tl.join(first, third), tl.join(second, fourth)).reshape(rows.shape[0], BN)
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08 >= dropout


@kernel
def _taken(rows, keys, Lq, Lk, CAUSAL: tl.constexpr):
    """Where a key takes part, as far as lengths and the diagonal say."""
    taken = (rows < Lq) & (keys < Lk)
    if CAUSAL:
        taken = taken & (keys <= rows)
    return taken


@kernel
def _scores(
    qk, qk_scale, bias, rows, keys, M_bias, N_bias, Lq, Lk, BIAS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Scaled scores; minus infinity where a key takes no part."""
    qk = qk * qk_scale
    if BIAS != 0:
        inside = (rows < Lq) & (keys < Lk)
        at = bias + rows.to(tl.int64) * M_bias + keys.to(tl.int64) * N_bias
        if BIAS == 1:
            qk = tl.where(tl.load(at, mask=inside, other=0) != 0, qk, float("-inf"))
        else:
            added = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            # What is left out is left out whatever its score is.
            qk = tl.where(added == float("-inf"), float("-inf"), qk + added * 1.4426950408889634)
    if MASKED:
        qk = tl.where(_taken(rows, keys, Lq, Lk, CAUSAL), qk, float("-inf"))
    return qk


@kernel
def _forward_step(
    acc, most, total, q, k_at, v_at, bias, start, rows, M_k, M_v, M_bias, N_bias, Lq, Lk, qk_scale, batch_head, seed, dropout,
    D: tl.constexpr, DV: tl.constexpr, PD: tl.constexpr, PDV: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of keys: the running maximum, sum and result of a tile of rows."""
    dims, vdims, each = tl.arange(0, PD), tl.arange(0, PDV), tl.arange(0, BN)
    keys = start + each
    k_at += start * M_k.to(tl.int64) + (dims[:, None] + each[None, :] * M_k)
    v_at += start * M_v.to(tl.int64) + (each[:, None] * M_v + vdims[None, :])
    if MASKED:
        k = tl.load(k_at, mask=(dims[:, None] < D) & (keys[None, :] < Lk), other=0.0)
        v = tl.load(v_at, mask=(keys[:, None] < Lk) & (vdims[None, :] < DV), other=0.0)
    else:
        if PD == D:
            k = tl.load(k_at)
        else:
            k = tl.load(k_at, mask=dims[:, None] < D, other=0.0)
        if PDV == DV:
            v = tl.load(v_at)
        else:
            v = tl.load(v_at, mask=vdims[None, :] < DV, other=0.0)
    qk = tl.dot(q, k, input_precision=PRECISION)
    qk = _scores(qk, qk_scale, bias, rows[:, None], keys[None, :], M_bias, N_bias, Lq, Lk, BIAS, CAUSAL, MASKED)
    new = tl.maximum(most, tl.max(qk, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    p = tl.math.exp2(qk - safe[:, None])
    shrink = tl.math.exp2(most - safe)
    total = total * shrink + tl.sum(p, 1)
    if DROPOUT:
        p = tl.where(_kept(seed, batch_head, rows, start, dropout, BN), p, 0.0)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new, total


@kernel
def attention_forward(
    Q, K, V, Bias, O, LSE,
    B_q, H_q, M_q, B_k, H_k, M_k, B_v, H_v, M_v, B_bias, H_bias, M_bias, N_bias,
    heads, each_k, each_v, Lq, Lk, qk_scale, dropout, rescale, seed,
    D: tl.constexpr, DV: tl.constexpr, PD: tl.constexpr, PDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """The result, row by row dense; with SAVE also the log-sum-exp of each row, minus infinity where no key takes part."""
    tiles = tl.cdiv(Lq, BM)
    tile, batch_head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (batch_head // heads).to(tl.int64), batch_head % heads
    first = tile * BM
    rows, dims, vdims = first + tl.arange(0, BM), tl.arange(0, PD), tl.arange(0, PDV)
    q_at = Q + batch * B_q + head.to(tl.int64) * H_q + first.to(tl.int64) * M_q
    q_at += tl.arange(0, BM)[:, None] * M_q + dims[None, :]
    q = tl.load(q_at, mask=(rows[:, None] < Lq) & (dims[None, :] < D), other=0.0)
    k_at = K + batch * B_k + (head // each_k).to(tl.int64) * H_k
    v_at = V + batch * B_v + (head // each_v).to(tl.int64) * H_v
    bias = Bias + batch * B_bias + head.to(tl.int64) * H_bias
    most = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, PDV], tl.float32)
    end = Lk
    whole = Lk // BN * BN  # up to here no key of a tile is left out by lengths or the diagonal
    if CAUSAL:
        end = tl.minimum(Lk, first + BM)
        whole = tl.minimum(whole, first // BN * BN)
    for start in range(0, whole, BN):
        acc, most, total = _forward_step(
            acc, most, total, q, k_at, v_at, bias, start, rows, M_k, M_v, M_bias, N_bias, Lq, Lk, qk_scale, batch_head, seed,
            dropout, D, DV, PD, PDV, BN, BIAS, CAUSAL, DROPOUT, PRECISION, False,
        )  # fmt: skip
    for start in range(whole, end, BN):
        acc, most, total = _forward_step(
            acc, most, total, q, k_at, v_at, bias, start, rows, M_k, M_v, M_bias, N_bias, Lq, Lk, qk_scale, batch_head, seed,
            dropout, D, DV, PD, PDV, BN, BIAS, CAUSAL, DROPOUT, PRECISION, True,
        )  # fmt: skip
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    if DROPOUT:
        acc = acc * rescale
    here = batch_head.to(tl.int64) * Lq + first
    o_at = O + here * DV + tl.arange(0, BM)[:, None] * DV + vdims[None, :]
    tl.store(o_at, acc.to(O.dtype.element_ty), mask=(rows[:, None] < Lq) & (vdims[None, :] < DV))
    if SAVE:
        lse = (most + tl.math.log2(tl.where(total == 0.0, 1.0, total))) * 0.6931471805599453
        lse = tl.where(total == 0.0, float("-inf"), lse)
        tl.store(LSE + here + tl.arange(0, BM), lse, mask=rows < Lq)


@kernel
def _base_2(lse):
    """A natural log-sum-exp as one of base 2; of a row without keys infinity, by which its weights become zero."""
    return tl.where(lse == float("-inf"), float("inf"), lse * 1.4426950408889634)


@kernel
def attention_backward_delta(
    O, G, Delta, B_g, H_g, M_g, heads, Lq, DV: tl.constexpr, PDV: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """For each row, the sum of the result times its gradient."""
    tiles = tl.cdiv(Lq, BM)
    tile, batch_head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (batch_head // heads).to(tl.int64), batch_head % heads
    first = tile * BM
    each, vdims = tl.arange(0, BM), tl.arange(0, PDV)
    inside = ((first + each)[:, None] < Lq) & (vdims[None, :] < DV)
    here = batch_head.to(tl.int64) * Lq + first
    o = tl.load(O + here * DV + each[:, None] * DV + vdims[None, :], mask=inside, other=0.0).to(tl.float32)
    g_at = G + batch * B_g + head.to(tl.int64) * H_g + first.to(tl.int64) * M_g
    g = tl.load(g_at + each[:, None] * M_g + vdims[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(Delta + here + each, tl.sum(o * g, 1), mask=first + each < Lq)


@kernel
def attention_backward_keys(
    Q, K, V, Bias, G, LSE, Delta, DK, DV_,
    B_q, H_q, M_q, B_k, H_k, M_k, B_v, H_v, M_v, B_bias, H_bias, M_bias, N_bias, B_g, H_g, M_g,
    heads, each_k, Lq, Lk, qk_scale, scale, dropout, rescale, seed,
    D: tl.constexpr, DV: tl.constexpr, PD: tl.constexpr, PDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of keys and values: over all rows of all query heads that share them, one after the other."""
    tiles = tl.cdiv(Lk, BN)
    key_heads = heads // each_k
    tile, batch_key_head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, key_head = (batch_key_head // key_heads).to(tl.int64), batch_key_head % key_heads
    first = tile * BN
    keys, dims, vdims = first + tl.arange(0, BN), tl.arange(0, PD), tl.arange(0, PDV)
    across, each = tl.arange(0, BN), tl.arange(0, BM)
    k_in = (keys[:, None] < Lk) & (dims[None, :] < D)
    v_in = (keys[:, None] < Lk) & (vdims[None, :] < DV)
    k_at = K + batch * B_k + key_head.to(tl.int64) * H_k + first.to(tl.int64) * M_k
    v_at = V + batch * B_v + key_head.to(tl.int64) * H_v + first.to(tl.int64) * M_v
    k = tl.load(k_at + across[:, None] * M_k + dims[None, :], mask=k_in, other=0.0)
    v = tl.load(v_at + across[:, None] * M_v + vdims[None, :], mask=v_in, other=0.0)
    dk = tl.zeros([BN, PD], tl.float32)
    dv = tl.zeros([BN, PDV], tl.float32)
    begin = 0
    if CAUSAL:
        begin = first // BM * BM
    for member in range(0, each_k):
        head = key_head * each_k + member
        batch_head = (batch * heads + head).to(tl.int32)
        q_head = Q + batch * B_q + head.to(tl.int64) * H_q
        g_head = G + batch * B_g + head.to(tl.int64) * H_g
        bias = Bias + batch * B_bias + head.to(tl.int64) * H_bias
        line = batch_head.to(tl.int64) * Lq
        for start in range(begin, Lq, BM):
            rows = start + each
            q_at = q_head + start * M_q.to(tl.int64) + each[:, None] * M_q + dims[None, :]
            g_at = g_head + start * M_g.to(tl.int64) + each[:, None] * M_g + vdims[None, :]
            q = tl.load(q_at, mask=(rows[:, None] < Lq) & (dims[None, :] < D), other=0.0)
            g = tl.load(g_at, mask=(rows[:, None] < Lq) & (vdims[None, :] < DV), other=0.0)
            lse = _base_2(tl.load(LSE + line + rows, mask=rows < Lq, other=float("inf")))
            delta = tl.load(Delta + line + rows, mask=rows < Lq, other=0.0)
            qk = tl.dot(k, tl.trans(q), input_precision=PRECISION)
            qk = _scores(qk, qk_scale, bias, rows[None, :], keys[:, None], M_bias, N_bias, Lq, Lk, BIAS, CAUSAL, True)
            p = tl.math.exp2(qk - lse[None, :])
            dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
            used = p
            if DROPOUT:
                kept = tl.trans(_kept(seed, batch_head, rows, first, dropout, BN))
                used = tl.where(kept, p * rescale, 0.0)
                dp = tl.where(kept, dp * rescale, 0.0)
            dv = tl.dot(used.to(g.dtype), g, dv, input_precision=PRECISION)
            ds = tl.where(qk == float("-inf"), 0.0, p * (dp - delta[None, :]))
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    here = batch_key_head.to(tl.int64) * Lk + first
    tl.store(DK + here * D + across[:, None] * D + dims[None, :], (dk * scale).to(DK.dtype.element_ty), mask=k_in)
    tl.store(DV_ + here * DV + across[:, None] * DV + vdims[None, :], dv.to(DV_.dtype.element_ty), mask=v_in)


@kernel
def attention_backward_queries(
    Q, K, V, Bias, G, LSE, Delta, DQ,
    B_q, H_q, M_q, B_k, H_k, M_k, B_v, H_v, M_v, B_bias, H_bias, M_bias, N_bias, B_g, H_g, M_g,
    heads, each_k, Lq, Lk, qk_scale, scale, dropout, rescale, seed,
    D: tl.constexpr, DV: tl.constexpr, PD: tl.constexpr, PDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries, over all keys."""
    tiles = tl.cdiv(Lq, BM)
    tile, batch_head = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch, head = (batch_head // heads).to(tl.int64), batch_head % heads
    first = tile * BM
    rows, dims, vdims = first + tl.arange(0, BM), tl.arange(0, PD), tl.arange(0, PDV)
    each, across = tl.arange(0, BM), tl.arange(0, BN)
    q_in = (rows[:, None] < Lq) & (dims[None, :] < D)
    q_at = Q + batch * B_q + head.to(tl.int64) * H_q + first.to(tl.int64) * M_q
    g_at = G + batch * B_g + head.to(tl.int64) * H_g + first.to(tl.int64) * M_g
    q = tl.load(q_at + each[:, None] * M_q + dims[None, :], mask=q_in, other=0.0)
    g = tl.load(g_at + each[:, None] * M_g + vdims[None, :], mask=(rows[:, None] < Lq) & (vdims[None, :] < DV), other=0.0)
    k_head = K + batch * B_k + (head // each_k).to(tl.int64) * H_k
    v_head = V + batch * B_v + (head // each_k).to(tl.int64) * H_v
    bias = Bias + batch * B_bias + head.to(tl.int64) * H_bias
    line = batch_head.to(tl.int64) * Lq
    lse = _base_2(tl.load(LSE + line + rows, mask=rows < Lq, other=float("inf")))
    delta = tl.load(Delta + line + rows, mask=rows < Lq, other=0.0)
    dq = tl.zeros([BM, PD], tl.float32)
    end = Lk
    if CAUSAL:
        end = tl.minimum(Lk, first + BM)
    for start in range(0, end, BN):
        keys = start + across
        k_at = k_head + start * M_k.to(tl.int64) + across[:, None] * M_k + dims[None, :]
        v_at = v_head + start * M_v.to(tl.int64) + across[:, None] * M_v + vdims[None, :]
        k = tl.load(k_at, mask=(keys[:, None] < Lk) & (dims[None, :] < D), other=0.0)
        v = tl.load(v_at, mask=(keys[:, None] < Lk) & (vdims[None, :] < DV), other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        qk = _scores(qk, qk_scale, bias, rows[:, None], keys[None, :], M_bias, N_bias, Lq, Lk, BIAS, CAUSAL, True)
        p = tl.math.exp2(qk - lse[:, None])
        dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            dp = tl.where(_kept(seed, batch_head, rows, start, dropout, BN), dp * rescale, 0.0)
        ds = tl.where(qk == float("-inf"), 0.0, p * (dp - delta[:, None]))
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    here = (line + first) * D
    tl.store(DQ + here + each[:, None] * D + dims[None, :], (dq * scale).to(DQ.dtype.element_ty), mask=q_in)
