"""Elementwise work on CuPy's arrays in one pass each: C++ that CuPy compiles, when it is first needed, into a kernel.

Values are computed in float32, those of float64 in float64; halves are widened when they are read and rounded when they are
written. The parts of formulas that are no activations have the names and the meaning of `array_namespaces.PIECES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ....problems.neural_problem import ELEMENTARY
from . import bindings
from .dense_views import order_of, seen

__all__ = ["ACTIVATIONS", "KERNELS", "PREAMBLE", "SLOPES", "Kernel", "dropped", "epilogue", "kernel", "made"]

PREAMBLE = r"""
template <typename T> struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };
template <typename S> __device__ inline S bl_sigmoid(S x) {
    S e = exp(x < S(0) ? x : -x);  // never above 1: nothing overflows
    return (x >= S(0) ? S(1) : e) / (S(1) + e);
}
template <typename S> __device__ inline S bl_near(S x, S most) { return x > most ? most : x < -most ? -most : x; }
"""
_WIDE = "typedef Wide<T>::type S; "
_ROOT_HALF, _ROOT_2_PI = f"S({math.sqrt(0.5)!r})", f"S({math.sqrt(2 * math.pi)!r})"
_TWICE, _CUBIC = f"S({2 * math.sqrt(2 / math.pi)!r})", "S(0.044715)"  # of Hendrycks and Gimpel, arXiv:1606.08415

LANES = 1 << 17  # threads of dropout: as many as large devices run at a time
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645  # of PCG64


class Kernel(NamedTuple):
    """Parameters of a ``cupy.ElementwiseKernel``."""

    inputs: str
    outputs: str
    body: str


_kept: dict[tuple[Any, str, Kernel], Callable[..., Any]] = {}  # by the CuPy that has it compiled; names may be alike

# Of a value v. A NaN stays one; erfc of the negative, for 1 + erf would cancel where v is negative.
ACTIVATIONS = {
    "relu": "v <= S(0) ? S(0) : v",
    "gelu": f"v * (S(0.5) * erfc(-{_ROOT_HALF} * v))",
    "gelu_tanh": f"v * bl_sigmoid({_TWICE} * (v + {_CUBIC} * v * v * v))",
    "silu": "v * bl_sigmoid(v)",
    "tanh": "tanh(v)",
    "sigmoid": "bl_sigmoid(v)",
    **{name: f"{name}(v)" for name in ELEMENTARY},
}

# What the gradient is multiplied by, of a value v. Beyond the bounds a slope is 0 or 1, and 0 times infinity is not meant.
SLOPES = {
    "gelu": f"S n = bl_near(v, S(100)); S d = S(0.5) * erfc(-{_ROOT_HALF} * v) + n * exp(S(-0.5) * n * n) / {_ROOT_2_PI};",
    "gelu_tanh": f"S n = bl_near(v, S(100)); S u = {_TWICE} * (n + {_CUBIC} * n * n * n); "
    f"S r = {_TWICE} * (S(1) + S(3) * {_CUBIC} * n * n); S s = bl_sigmoid(u); S d = s + n * s * bl_sigmoid(-u) * r;",
    "silu": "S n = bl_near(v, S(1000)); S d = bl_sigmoid(n) * (S(1) + n * bl_sigmoid(-n));",
    "tanh": "S d = S(4) * bl_sigmoid(S(2) * v) * bl_sigmoid(S(-2) * v);",  # 1 - tanh(v)^2, without the cancellation
    "sigmoid": "S d = bl_sigmoid(v) * bl_sigmoid(-v);",
}

KERNELS: dict[str, Kernel] = {
    **{name: Kernel("T x", "T y", f"{_WIDE}S v = S(x); y = T({text});") for name, text in ACTIVATIONS.items()},
    **{
        f"{name}_grad": Kernel("T x, T g", "T y", f"{_WIDE}S v = S(x); {text} y = T(d * S(g));") for name, text in SLOPES.items()
    },
    "relu_grad": Kernel("T x, T g", "T y", f"{_WIDE}S v = S(x); y = v <= S(0) ? T(0.0f) : g;"),  # a NaN lets the gradient through
    "erfc": Kernel("T x", "T y", "y = erfc(x);"),
    "shifted_exp": Kernel("T x, T m", "T y", "y = exp(x - m);"),
    "divided": Kernel("T x, T s", "T y", "y = x / s;"),
    "less": Kernel("T x, T m, T s", "T y", "y = x - m - s;"),
    "times": Kernel("T x, T z", "T y", "y = x * z;"),
    "softmax_moved": Kernel("T x, T g, T s", "T y", "y = x * (g - s);"),
    "log_softmax_moved": Kernel("T x, T g, T s", "T y", "y = g - exp(x) * s;"),
    "squared": Kernel("T x, T m", "T y", "y = (x - m) * (x - m);"),
    "normalised": Kernel("T x, T m, T r", "T y", "y = (x - m) * r;"),
    "scaled": Kernel("T x, T m, T r, T w, T b", "T y", "y = (x - m) * r * w + b;"),
    "norm_moved": Kernel("T x, T g, T r, T a, T b", "T y", "y = r * (g - a - x * b);"),
    "blended": Kernel(
        "T r, Q n, float64 keep, float64 share", "T y",
        "typedef Wide<T>::type S; y = T(S(double(S(r)) * keep + double(Wide<Q>::type(n)) * share));",
    ),
}  # fmt: skip


def made(name: str, of: Kernel, preamble: str = PREAMBLE) -> Callable[..., Any]:
    """A kernel of this name, made once."""
    cupy = bindings.cupy()
    found = _kept.get((cupy, name, of))
    if found is None:
        found = cupy.ElementwiseKernel(of.inputs, of.outputs, of.body, f"backline_{name}", preamble=preamble)
        _kept[cupy, name, of] = found
    return found


class _AsItLies:
    """A kernel, run on arrays seen as the first one lies in memory; the output comes last if it is to be a certain one."""

    __slots__ = ("inputs", "kernel")

    def __init__(self, kernel: Callable[..., Any], inputs: int) -> None:
        self.kernel, self.inputs = kernel, inputs

    def __call__(self, *arrays: Any) -> Any:
        order = order_of(arrays[0])
        if order is None or any(array.ndim > len(order) for array in arrays):
            return self.kernel(*arrays)
        result = self.kernel(*(seen(array, order) for array in arrays))
        if len(arrays) > self.inputs:
            return arrays[-1]
        return result.transpose(tuple(order.index(axis) for axis in range(len(order))))


def kernel(name: str) -> Callable[..., Any]:
    """The kernel with this name: a function of arrays, and of the output if it is to be a certain one."""
    return _as_it_lies(name, KERNELS[name])


def _as_it_lies(name: str, of: Kernel) -> Callable[..., Any]:
    return _AsItLies(made(name, of), of.inputs.count(",") + 1)


def epilogue(activation: str | None, roles: tuple[str, ...]) -> Callable[..., Any]:
    """The kernel of what follows a product: ``activation(x + bias + residual)``, rounded once to the dtype of its output.

    `roles` are those of what is added, in the order of the call. Inputs are the product, of float32 or float64, then what is
    added, of the dtype of the output T.
    """
    total = " + ".join(["S(x)", *(f"S({role})" for role in roles)])
    inputs = ", ".join(["P x", *(f"T {role}" for role in roles)])
    text = ACTIVATIONS[activation] if activation else "v"
    name = "_".join(["linear", *roles, activation or "plain"])
    return _as_it_lies(name, Kernel(inputs, "T y", f"{_WIDE}S v = {total}; y = T({text});"))


# One number of the generator for each element. The state of an element is as many steps further as the element has before it: a
# thread takes these steps once, by squaring (F. Brown, "Random Number Generation with Arbitrary Strides", 1994), and from one of
# its elements to the next all steps between them at once, by the product and the sum that the host has computed for so many.
# Threads that are neighbours have neighbouring elements. The output function is XSL-RR of M. O'Neill's PCG.
_DROPPED = Kernel(
    "raw T x, uint64 high, uint64 low, uint64 inc_high, uint64 inc_low, uint64 jump_high, uint64 jump_low, uint64 more_high, "
    "uint64 more_low, int64 count, int64 apart, float64 rate, float64 scale",
    "raw T y",
    _WIDE
    + r"""
    unsigned long long steps = (unsigned long long)i + 1;
    Bits state = {high, low}, plus = {inc_high, inc_low}, times = {0x2360ed051fc65da4ULL, 0x4385df649fccf645ULL};
    Bits all_times = {0, 1}, all_plus = {0, 0};
    for (; steps; steps >>= 1) {
        if (steps & 1) { all_times = bl_mul(all_times, times); all_plus = bl_add(bl_mul(all_plus, times), plus); }
        plus = bl_add(bl_mul(times, plus), plus);
        times = bl_mul(times, times);
    }
    state = bl_add(bl_mul(state, all_times), all_plus);
    Bits jump = {jump_high, jump_low}, more = {more_high, more_low};
    for (long long j = i; j < count; j += apart) {
        unsigned long long word = state.high ^ state.low;
        unsigned turn = (unsigned)(state.high >> 58);
        word = (word >> turn) | (word << ((64 - turn) & 63));
        double number = (double)(word >> 11) * (1.0 / 9007199254740992.0);
        y[j] = T(S(x[j]) * S(number >= rate ? scale : 0.0));
        state = bl_add(bl_mul(state, jump), more);
    }
    """,
)
_BITS = r"""
struct Bits { unsigned long long high, low; };
__device__ inline unsigned long long bl_high(unsigned long long a, unsigned long long b) {
    unsigned long long al = a & 0xffffffffULL, ah = a >> 32, bl = b & 0xffffffffULL, bh = b >> 32;
    unsigned long long middle = ah * bl + ((al * bl) >> 32), other = al * bh + (middle & 0xffffffffULL);
    return ah * bh + (middle >> 32) + (other >> 32);
}
__device__ inline Bits bl_mul(Bits a, Bits b) {
    Bits c = {bl_high(a.low, b.low) + a.high * b.low + a.low * b.high, a.low * b.low};
    return c;
}
__device__ inline Bits bl_add(Bits a, Bits b) {
    Bits c = {a.high + b.high, a.low + b.low};
    c.high += c.low < a.low;
    return c;
}
"""


def dropped(x: Any, state: int, increment: int, rate: float, scale: float) -> Any:
    """Returns an array with elements dropped, by the numbers of ``numpy.random.PCG64`` in a state, computed where they are used.

    The array is in C order, and has elements.
    """
    y = bindings.cupy().empty(x.size, x.dtype)
    apart = min(x.size, LANES)
    power, total = _steps(apart)
    numbers = (state, increment, power, increment * total)
    words = [np.uint64((number >> shift) & (2**64 - 1)) for number in numbers for shift in (64, 0)]
    made("dropped", _DROPPED, PREAMBLE + _BITS)(x.reshape(-1), *words, x.size, apart, rate, scale, y, size=apart)
    return y.reshape(x.shape)


@lru_cache(maxsize=64)
def _steps(count: int) -> tuple[int, int]:
    """Returns what so many steps of PCG64 multiply its state with, and the increments that they add, modulo 2**128."""
    power, total, times, plus = 1, 0, MULTIPLIER, 1
    while count:
        if count & 1:
            power, total = power * times % 2**128, (total * times + plus) % 2**128
        plus, times = plus * (times + 1) % 2**128, times * times % 2**128
        count >>= 1
    return power, total
