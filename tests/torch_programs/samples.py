"""Runs the operator samples that ship inside PyTorch by torch and by Backline, and sorts the results.

`op_db` of ``torch.testing._internal`` lists operations with generators of arguments. Every operation that Backline has under the same
name is called with each of them, on tensors by torch and on NumPy arrays by Backline. A table is printed by ::

    python tests/torch_programs/samples.py [OPERATION ...]
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sample_checks import DROPS, agrees, distance, made_of

import backline

# The dtypes of the samples. bfloat16 is that of ml_dtypes, and left out where the package is missing.
DTYPES = ("float32", "float64", "complex64", "complex128", "int64", "float16", "bfloat16")

# Samples of an operation and dtype, every so many of them: op_db has 1,440 for max_pool2d, which differ little.
MOST_SAMPLES = 150

# Operations that op_db lists in the root module and Backline has in nn.functional.
IN_FUNCTIONAL = ("log_softmax", "sigmoid", "softmax", "tanh")

KINDS = ("equal", "wrong", "refused", "other dtype")


@dataclass(frozen=True)
class Outcome:
    """The result of one sample: which of `KINDS`, and what there is to say about it."""

    operation: str
    dtype: str
    kind: str
    detail: str = ""
    call: str = ""


def operations(names: list[str] | None = None) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Yields each OpInfo of torch with Backline's operation of that name."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        ours = _ours(info)
        if ours is not None and (not names or info.name in names):
            yield info, ours


def _ours(info: Any) -> Callable[..., Any] | None:
    found: Any = backline.nn.functional if info.name in IN_FUNCTIONAL else backline
    for part in info.name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        return None
    rewritten = _REWRITTEN.get((info.name, info.variant_test_name))
    return rewritten(found) if rewritten else found


# op_db wraps some operations in a function whose arguments are in another order.
_REWRITTEN: dict[tuple[str, str], Callable[..., Callable[..., Any]]] = {
    ("einsum", ""): lambda einsum: lambda tensors, equation: einsum(equation, tensors),
    ("linalg.lstsq", "grad_oriented"): lambda lstsq: lambda a, b, driver: lstsq(a, b, driver=driver)[:2],
    ("linalg.pinv", "singular"): lambda pinv: lambda a, b: pinv(backline.matmul(a, np.swapaxes(b, -1, -2))),
}


def outcomes(info: Any, ours: Callable[..., Any], dtypes: tuple[str, ...] = DTYPES) -> Iterator[Outcome]:
    """Yields what each sample of an operation came to."""
    import torch

    for name in dtypes:
        dtype = getattr(torch, name)
        if dtype not in info.dtypes or (name == "bfloat16" and _bfloat16() is None):
            continue
        torch.manual_seed(0)
        backline.manual_seed(0)  # some samples drop elements
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(info.sample_inputs("cpu", dtype))
            for sample in samples[:: -(-len(samples) // MOST_SAMPLES) or 1]:
                outcome = _outcome(info, ours, name, sample)
                if outcome is not None:
                    yield outcome


def _outcome(info: Any, ours: Callable[..., Any], dtype: str, sample: Any) -> Outcome | None:
    title = f"{info.name} {info.variant_test_name}".strip()
    positional, keywords = to_numpy((sample.input, *sample.args)), to_numpy(sample.kwargs)
    keywords.pop("requires_grad", None)
    before = to_numpy((sample.input, *sample.args)), to_numpy(sample.kwargs)
    try:
        wanted = to_numpy(info.op(sample.input, *sample.args, **sample.kwargs))
    except Exception:  # torch refuses its own sample here: there is nothing to hold against
        return None
    call = described(positional, keywords)
    try:
        got = ours(*positional, **keywords)
    except Exception as error:
        return Outcome(title, dtype, "refused", f"{type(error).__name__}: {error}", call)
    if info.name not in DROPS and not _same_bits((positional, keywords), before, info.name):
        return Outcome(title, dtype, "wrong", "an argument was written to", call)
    kind, detail = agrees(info.name, wanted, got, *before)
    if kind == "wrong" and _as_near(info, sample, wanted, got):
        kind, detail = "equal", ""
    return Outcome(title, dtype, kind, detail, call)


def _as_near(info: Any, sample: Any, wanted: Any, got: Any) -> bool:
    """Tells whether Backline's result is about as far from torch's in twice the precision as torch's own is: sums are rounded in another order."""
    try:
        truth = to_numpy(info.op(*_wide((sample.input, *sample.args)), **_wide(sample.kwargs)))
    except Exception:
        return False
    ours, theirs, true = made_of([got]), made_of([wanted]), made_of([truth])
    if [each.shape for each in ours] != [each.shape for each in true] or len(ours) != len(theirs):
        return False
    return all(distance(a, c) <= 8 * distance(b, c) for a, b, c in zip(ours, theirs, true, strict=True))


def _wide(value: Any) -> Any:
    import torch

    wider = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128}
    if isinstance(value, torch.Tensor):
        return value.detach().to(wider.get(value.dtype, value.dtype))
    if isinstance(value, dict):
        return {name: _wide(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_wide(each) for each in value)
    return value


def accepted_errors(info: Any, ours: Callable[..., Any]) -> Iterator[str]:
    """Yields the calls that PyTorch's tests say are errors, that torch refuses, and that Backline does not refuse by an error of its own."""
    for bad in info.error_inputs("cpu") if info.error_inputs_func else ():
        sample = bad.sample_input
        positional, keywords = to_numpy((sample.input, *sample.args)), to_numpy(sample.kwargs)
        try:
            info.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as theirs:
            try:
                ours(*positional, **keywords)
            except (backline.errors.BacklineError, np.linalg.LinAlgError):
                continue
            except Exception as error:
                yield f"{info.name}: {described(positional, keywords)}: {type(error).__name__}: {error}"
            else:
                yield f"{info.name}: {described(positional, keywords)} has a result; torch: {theirs}"


def _same_bits(one: Any, other: Any, name: str) -> bool:
    if name == "nn.functional.batch_norm":  # updates its running statistics
        return True
    flat, also = made_of(one), made_of(other)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(flat, also, strict=True))


def to_numpy(value: Any) -> Any:
    """Returns the value with NumPy's arrays, dtypes and strides in the place of torch's."""
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg()
        if value.dtype is torch.bfloat16:
            return value.view(torch.int16).numpy().view(_bfloat16())
        return value.numpy().view()
    if isinstance(value, torch.dtype):
        name = str(value).removeprefix("torch.")
        return np.dtype(_bfloat16() if name == "bfloat16" else {"chalf": "complex64"}.get(name, name))
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, dict):
        return {key: to_numpy(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(to_numpy(each) for each in value)
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(to_numpy(each) for each in value)
    return value


def _bfloat16() -> Any:
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def described(positional: Any, keywords: Any) -> str:
    """Returns a call's arguments as text, arrays by dtype and shape."""

    def text(value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return "(" + ", ".join(map(text, value)) + ")"
        return repr(value)

    return ", ".join([*map(text, positional), *(f"{name}={text(value)}" for name, value in keywords.items())])


def table(found: list[Outcome]) -> str:
    """Returns the counts of each kind as text, a line per operation."""
    width = max(len(each.operation) for each in found) + 2
    counts = Counter((each.operation, each.kind) for each in found)
    lines = ["operation".ljust(width) + "".join(kind.rjust(13) for kind in KINDS)]
    for operation in [*dict.fromkeys(each.operation for each in found), None]:
        row = [counts[operation, kind] if operation else sum(each.kind == kind for each in found) for kind in KINDS]
        lines.append((operation or f"{len(found)} samples").ljust(width) + "".join(str(number or "").rjust(13) for number in row))
    return "\n".join(lines)


def main(names: list[str]) -> None:
    found = [outcome for info, ours in operations(names) for outcome in outcomes(info, ours)]
    kinds = Counter((each.operation, each.kind, each.detail[:160]) for each in found if each.kind != "equal")
    for (operation, kind, detail), number in sorted(kinds.items()):
        example = next(each for each in found if (each.operation, each.kind, each.detail[:160]) == (operation, kind, detail))
        print(f"{number:5d} {operation} {kind}: {detail!r}\n      {example.call[:240]}")
    print(table(found))


if __name__ == "__main__":
    main(sys.argv[1:])
