// How one source is compiled for several instruction sets.
#pragma once

// Inlined into functions that are compiled for one instruction set each.
#define BACKLINE_INLINE inline __attribute__((always_inline))

#define BACKLINE_AVX2 __attribute__((target("avx2,fma")))
#define BACKLINE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))

namespace backline {

// Instruction sets that functions are chosen by: 0 is what every processor has, 1 AVX2 with FMA, 2 AVX-512 (F, BW, DQ, VL).
constexpr int kLevels = 3;

int best_level();  // of this processor

}  // namespace backline
