// Copies of matrices whose rows lie without gaps on one side and whose columns do on the other.
#pragma once
#include <cstdint>

namespace backline {

// Copies `rows` rows of `cols` elements of 2, 4 or 8 bytes into columns. Steps are bytes from one row, or column, to the next.
template <int Size>
void transpose(int64_t rows, int64_t cols, const char *from, int64_t row_step, char *to, int64_t column_step);

}  // namespace backline
