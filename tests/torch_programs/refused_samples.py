"""The kinds of operator samples that Backline refuses on purpose, or answers in another dtype than torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from samples import Outcome

# Samples that are refused or have another dtype, over all operations.
MOST = 330

# Calls that PyTorch's tests say are errors, and that have a result here: pools of arrays without elements, a row of the differences.
ACCEPTED = [r"^nn\.functional\.max_pool[13]d: float32\[0, "]


@dataclass(frozen=True)
class Kind:
    """A kind of sample: operations and text of the outcome as patterns, and what the page says of it."""

    operations: str
    kind: str
    text: str
    what: str
    why: str
    instead: str

    def covers(self, outcome: Outcome) -> bool:
        """Tells whether an outcome is of this kind."""
        return (
            outcome.kind == self.kind
            and re.fullmatch(self.operations, outcome.operation) is not None
            and re.search(self.text, outcome.detail) is not None
        )


KINDS = [
    Kind(
        r"fft\..*", "other dtype", "^(complex128 instead of complex64|float64 instead of float32)$",
        "`fft.*` of integers: complex128 or float64; torch gives its default dtype, complex64 or float32",
        "Backline has no default dtype; integers become float64 as everywhere in NumPy", "`x.astype(np.float32)`",
    ),
    Kind(
        r"baddbmm|addmm|addbmm", "refused", "integers would cut it off",
        "`alpha` or `beta` with a fraction, for integers: torch cuts it off, 0.6 to 0",
        "the result would be that of another number than the one given", "an integer, or `x.astype(np.float64)`",
    ),
    Kind(
        r"nn\.functional\.batch_norm", "refused", r"momentum=-",
        "`batch_norm(momentum=-1.2)`: torch extrapolates the running statistics",
        "the running variance becomes negative, and later results NaN", "a number from 0 to 1",
    ),
    Kind(
        r"nn\.functional\.(layer|rms)_norm", "refused", r"eps ?= ?-",
        "`layer_norm(eps=-0.5)`, `rms_norm(eps=-0.5)`: torch takes the root of what may be negative",
        "NaN or not depends on the data", "0 or more",
    ),
    Kind(
        r"nn\.functional\.rms_norm", "refused", "has dtype complex",
        "`rms_norm` of complex numbers: torch divides by the root of the mean of their squares, which is complex",
        "it is no norm, and may be 0", "`x / np.sqrt((abs(x) ** 2).mean(-1, keepdims=True))`",
    ),
    Kind(
        r"stft", "refused", "window has dtype complex",
        "`stft(window=)` of complex numbers", "a window is real, in the precision of the input", "`window.real`",
    ),
    Kind(
        r"stft", "refused", "return_complex=False",
        "`stft(return_complex=False)`: torch returns real and imaginary parts along a further axis",
        "the result is complex", "`y.view(np.float32).reshape(*y.shape, 2)`",
    ),
    Kind(
        r"nn\.functional\.batch_norm", "refused", r"must have shape \(N, C, \.\.\.\)",
        "`batch_norm` of one dimension without elements: torch takes it though it refuses those with elements",
        "there is no axis of channels", "`x.reshape(0, 1)`",
    ),
    Kind(
        r"nn\.functional\.avg_pool[123]d", "refused", "has dtype int64",
        "`avg_pool*d` of integers: torch cuts the means off to integers",
        "a mean of integers is seldom one", "`x.astype(np.float64)`",
    ),
    Kind(
        r"(log_)?softmax with_dtype", "refused", "has dtype complex",
        "`softmax(dtype=)` of complex numbers: torch drops the imaginary parts",
        "nobody who has complex numbers means that", "`x.real`",
    ),
    Kind(
        r"empty", "refused", "device",
        "`empty(device=\"cpu\")`, `requires_grad=`",
        "an array is where it was made, and has no gradient", "leave them out; `cupy.empty` makes an array on a device",
    ),
    Kind(
        r"exp|expm1|log|log1p|sin|cos", "refused", "has dtype (bool|u?int[0-9]+)",
        "`exp`, `log`, `sin` and their like of integers",
        "the result would have another dtype", "`x.astype(np.float64)`, or the switch `promote`",
    ),
    Kind(
        r"log1p", "refused", "has dtype complex",
        "`log1p` of complex numbers",
        "NumPy's loop loses digits near 0, and no other library has one", "`np.log1p(x)`",
    ),
    Kind(
        r"nn\.functional\.silu complex|sigmoid|tanh", "refused", "has dtype (complex64|complex128|int64)",
        "`tanh`, `sigmoid`, `silu` of complex numbers or integers",
        "they are layers of networks here, which have real floating dtypes", "`np.tanh(x)`; `x.astype(np.float32)`",
    ),
]  # fmt: skip


def kind_of(outcome: Outcome) -> Kind | None:
    """Returns the kind that an outcome is of, if it is one that is listed."""
    return next((kind for kind in KINDS if kind.covers(outcome)), None)


def table() -> str:
    """Returns the kinds as a table for the page."""
    lines = ["| samples | why | instead |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {kind.what} | {kind.why} | {kind.instead} |" for kind in KINDS)])
