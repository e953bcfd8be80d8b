// One way to call every vendor function: integer-class arguments and floating-point arguments in two lists.
//
// In the System V x86-64 ABI and in AAPCS64 on Linux the two classes are assigned to registers independently of
// each other, what does not fit in the integer registers goes to 8-byte stack slots in order, and a callee never
// looks at arguments it does not have. So a function can be called through a prototype that lists all its
// integers, then all its floats, then the rest of its integers. A float argument travels in the low half of
// its register, hence as a bit pattern. No vendor function used here has more than eight floating arguments.
#pragma once
#include <cstdint>

#if !((defined(__x86_64__) && !defined(_WIN32)) || (defined(__aarch64__) && defined(__linux__)))
#error "backline._core supports System V x86-64 and Linux AArch64; other calling conventions need libffi here"
#endif

namespace backline {

constexpr int kMaxInts = 24;
constexpr int kMaxFloats = 4;
template <class R>
inline R call_native(void *address, const int64_t *i, int count, const double *f) {
    using I = int64_t;
    using D = double;
    if (count <= 6) {
        using F = R (*)(I, I, I, I, I, I, D, D, D, D);
        return reinterpret_cast<F>(address)(i[0], i[1], i[2], i[3], i[4], i[5], f[0], f[1], f[2], f[3]);
    }
#if defined(__x86_64__)
    if (count <= 12) {
        using F = R (*)(I, I, I, I, I, I, D, D, D, D, I, I, I, I, I, I);
        return reinterpret_cast<F>(address)(i[0], i[1], i[2], i[3], i[4], i[5], f[0], f[1], f[2], f[3], i[6], i[7],
                                            i[8], i[9], i[10], i[11]);
    }
    using F = R (*)(I, I, I, I, I, I, D, D, D, D, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I);
    return reinterpret_cast<F>(address)(i[0], i[1], i[2], i[3], i[4], i[5], f[0], f[1], f[2], f[3], i[6], i[7], i[8],
                                        i[9], i[10], i[11], i[12], i[13], i[14], i[15], i[16], i[17], i[18], i[19],
                                        i[20], i[21], i[22], i[23]);
#else
    using F = R (*)(I, I, I, I, I, I, I, I, D, D, D, D, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I);
    return reinterpret_cast<F>(address)(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], f[0], f[1], f[2], f[3], i[8],
                                        i[9], i[10], i[11], i[12], i[13], i[14], i[15], i[16], i[17], i[18], i[19],
                                        i[20], i[21], i[22], i[23]);
#endif
}

}  // namespace backline
