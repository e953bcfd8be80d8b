// Calls of vendors' functions by address, with arguments that a plan describes: 64-bit integers and pointers, floats and doubles.
//
// Two ways. The direct one has integer-class arguments and floating-point arguments in two lists: in the System V x86-64 ABI and in
// AAPCS64 on Linux the two classes are assigned to registers independently of each other, what does not fit in the integer registers
// goes to 8-byte stack slots in order, and a callee never looks at arguments it does not have. So a function can be called through a
// prototype that lists all its integers, then all its floats, then the rest of its integers. A float argument travels in the low half
// of its register, hence as a bit pattern. No vendor function used here has more than eight floating arguments.
//
// Other ABIs look at the order of all arguments (Windows), pad floats in registers otherwise (RISC-V) or pack the stack (Apple's arm64):
// there libffi calls, which is told the types in order. Integers are 64 bits wide for it, too; where an ABI packs `int` arguments on
// the stack that is still their place as long as no two of them follow one another there, and in no function called here they do.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#ifdef BACKLINE_LIBFFI
#include <ffi.h>
#elif !((defined(__x86_64__) && !defined(_WIN32)) || (defined(__aarch64__) && defined(__linux__)))
#error "the direct call is proved for System V x86-64 and Linux AArch64 only; configure with -DBACKLINE_LIBFFI=ON"
#endif

namespace backline {

constexpr int kMaxInts = 24;
constexpr int kMaxFloats = 4;

enum class ReturnKind : int { none, float32, float64, status };  // status: an int that is 0 unless the call failed
enum class ArgumentType : char { integer, float32, float64 };

#ifdef BACKLINE_LIBFFI

constexpr const char *kCallConvention = "libffi";

class CallInterface {
  public:
    // The types are those of the arguments in order; false if libffi cannot make such a call.
    bool prepare(ReturnKind returns, const std::vector<ArgumentType> &types) {
        prepared_ = std::make_unique<Prepared>();
        prepared_->order = types;
        for (ArgumentType type : types)
            prepared_->types.push_back(type == ArgumentType::integer   ? &ffi_type_sint64
                                       : type == ArgumentType::float32 ? &ffi_type_float
                                                                       : &ffi_type_double);
        ffi_type *result = returns == ReturnKind::none      ? &ffi_type_void
                           : returns == ReturnKind::float32 ? &ffi_type_float
                           : returns == ReturnKind::float64 ? &ffi_type_double
                                                            : &ffi_type_sint32;
        return ffi_prep_cif(&prepared_->cif, FFI_DEFAULT_ABI, unsigned(types.size()), result, prepared_->types.data()) == FFI_OK;
    }

    // R is void, int64_t for a status, or double; of a float that is returned the double has the bits in its low half.
    template <class R>
    R call(void *address, const int64_t *ints, int, const double *floats) const {
        void *values[kMaxInts + kMaxFloats];
        void **next = values;
        for (ArgumentType type : prepared_->order)
            *next++ = type == ArgumentType::integer ? static_cast<void *>(const_cast<int64_t *>(ints++))
                                                    : static_cast<void *>(const_cast<double *>(floats++));
        union {
            ffi_arg integer;
            double number;
        } result{};
        ffi_call(&prepared_->cif, FFI_FN(address), &result, values);
        if constexpr (std::is_same_v<R, int64_t>) return int64_t(result.integer);
        else if constexpr (std::is_same_v<R, double>) return result.number;
    }

  private:
    struct Prepared {
        ffi_cif cif;  // points into `types`
        std::vector<ffi_type *> types;
        std::vector<ArgumentType> order;
    };
    std::unique_ptr<Prepared> prepared_;
};

#else

constexpr const char *kCallConvention = "direct";

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

// Nothing is to be prepared: the lists of integers and floats are all that a direct call needs.
class CallInterface {
  public:
    bool prepare(ReturnKind, const std::vector<ArgumentType> &) { return true; }

    template <class R>
    R call(void *address, const int64_t *ints, int count, const double *floats) const {
        return call_native<R>(address, ints, count, floats);
    }
};

#endif

}  // namespace backline
