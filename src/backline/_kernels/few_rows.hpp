// Products of a few rows with a matrix, which is read once.
#pragma once
#include <cstdint>

namespace backline {

// In the order of libraries/kernels/few_rows.py.
enum FewRowsType : int64_t { kOfFloats, kOfDoubles, kOfFloat16, kOfBfloat16 };

// Written by libraries/kernels/few_rows.py: eight bytes for each field, in this order. Rows lie one behind the other, in the type that is
// computed in, and so do results of a row.
struct FewRows {
    int64_t type, level;
    int64_t rows, length;  // rows, and elements of each
    int64_t dots;          // whether the elements that one result is made of are neighbours, or those that belong to one element of a row
    int64_t step;          // bytes to the next such neighbours
    int64_t target_step;   // bytes from one row of results to the next
    int64_t keep;          // whether results are added to what is there
};

// Some columns of the matrix.
void few_rows(const FewRows *p, int64_t columns, const char *rows, const char *matrix, char *to);

}  // namespace backline
