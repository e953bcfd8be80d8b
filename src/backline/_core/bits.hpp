// Memory and bits of numbers, whatever the alignment.
#pragma once
#include <cstring>

namespace backline {

template <class T>
inline __attribute__((always_inline)) T load(const void *from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}

template <class T>
inline __attribute__((always_inline)) void store(void *to, T value) {
    std::memcpy(to, &value, sizeof(T));
}

// The same bits as another type: std::bit_cast of C++20.
template <class To, class From>
inline __attribute__((always_inline)) To bits_as(From value) {
    static_assert(sizeof(To) == sizeof(From));
    return load<To>(&value);
}

}  // namespace backline
