// Attention, softmax(scale * Q K^T + mask) V, for one block of query rows of one head at a time, over tiles of keys with a
// running maximum and sum; one tile may hold all keys. Two products are calls of a BLAS library on one thread, or loops of ours; the rest is
// here.
#pragma once
#include <cstdint>

namespace backline {

enum class Stored : int64_t { as_computed, float16, bfloat16, float32 };
enum class Loops : int64_t { tiles, rows };  // products of bfloat16 by AMX, or of few rows of 16-bit floats
enum class MaskKind : int64_t { none, taken, added };  // taken: bytes, not 0 where a key takes part

// One prepared attention, written by libraries/kernels/attention_items.py: eight bytes for each field, in this order. Strides are in
// bytes: of the batch, the heads, the rows, and along a row; rows of the output have no gaps.
struct Attention {
    int64_t gemm, gemv;             // addresses of cblas_?gemm and cblas_?gemv; without the first, a Loops
    int64_t itemsize;               // 4 or 8: float32 or float64 is what is computed in
    Stored stored, stored_mask;     // how the operands, and a mask that is added, lie in memory
    int64_t level;                  // of vector instructions; see targets.hpp
    int64_t rows, tile;             // query rows of a block, keys of a tile
    int64_t heads, queries, keys;   // heads of the query; lengths
    int64_t dim, out_dim;           // of query and key; of value
    int64_t per_key, per_value;     // query heads that share a head of the key, of the value
    int64_t direct_q, direct_k, direct_v;  // whether BLAS can read an operand where it is
    int64_t query[4], key[4], value[4], out[3];
    MaskKind mask_kind;
    int64_t mask[4];
    int64_t causal;                 // key j takes part for query i if j <= i
    double scale;
};

// Places in the workspace of a thread for products by AMX, in bytes.
struct AttentionTiles {
    int64_t query, key, value, weights, row;
};

// And for products of few rows.
struct AttentionRows {
    int64_t query, weights, row;
};

}  // namespace backline
