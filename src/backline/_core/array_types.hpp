// Arrays that are not NumPy's, as far as the Memo has to know them: by which of their attributes a Plan is found.
#pragma once
#include "memo.hpp"

namespace backline {

// Puts what decides about an array of a known type. False if the type is not known, if what it tells is not made of numbers,
// short texts, dtypes and tuples of them, or if telling it failed: then there is no key, and no error is set unless it is an
// interrupt. May run Python code.
bool put_described(Signature &signature, PyObject *array);

}  // namespace backline
