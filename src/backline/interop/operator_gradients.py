"""Gradients of Backline's operations by Backline's operations, for frameworks that ask for them.

They are written once for all frameworks, with what the arrays of PyTorch and JAX have in common. Each function takes a namespace
of the registered operators of the framework, the arguments of the call by name, its results, and the gradients of these. It
returns the gradients of its arrays by name, lists for lists; what is costly is a function, which is called where the gradient is
wanted. What has no entry in `GRADIENTS` has no gradient in Backline.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..errors import BadValue

__all__ = ["BY_RESULTS", "GRADIENTS", "no_gradient"]

Arguments = dict[str, Any]
Lazy = Callable[[], Any]
Gradient = Callable[[Any, Arguments, tuple[Any, ...], tuple[Any, ...]], dict[str, Any]]


def no_gradient(name: str) -> BadValue:
    """The error for an operation that has no gradient here."""
    return BadValue(
        f"{name}: Backline has no gradient of this operation",
        remedy="the framework's own operation, or operands that need no gradient: x.detach(), lax.stop_gradient(x)",
    )  # fmt: skip


def _summed(gradient: Any, shape: Any) -> Any:
    """The gradient of an array that was broadcast, summed over the axes that this added or repeated."""
    shape, given = tuple(shape), tuple(gradient.shape)
    if shape == given:
        return gradient
    added = len(given) - len(shape)
    repeated = (axis + added for axis, n in enumerate(shape) if n == 1 and given[axis + added] != 1)
    axes = (*range(added), *repeated)
    return (gradient.sum(axes) if axes else gradient).reshape(shape)


# Products -----------------------------------------------------------------------------------------------------------------


def _of_product(ops: Any, a: Any, b: Any, g: Any) -> tuple[Lazy, Lazy]:
    """Gradients of ``a @ b`` as `matmul` has it: vectors and batches included."""
    if a.ndim == b.ndim == 1:
        return lambda: g * b.conj(), lambda: g * a.conj()
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    whole = g[..., None, :] if a.ndim == 1 else g[..., None] if b.ndim == 1 else g
    return (
        lambda: _summed(ops.matmul(whole, right.conj().mT), left.shape).reshape(a.shape),
        lambda: _summed(ops.matmul(left.conj().mT, whole), right.shape).reshape(b.shape),
    )


def _product(second: str) -> Gradient:
    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        first, other = _of_product(ops, a["input"], a[second], grads[0])
        return {"input": first, second: other}

    return gradient


def _vdot(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    (g,) = grads
    return {"input": g.conj() * a["other"], "other": g * a["input"]}


def _outer(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    (g,) = grads
    return {"input": ops.matmul(g, a["vec2"].conj()), "vec2": ops.matmul(g.mT, a["input"].conj())}


def _added(first: str, second: str) -> Gradient:
    """Of ``beta * input + alpha * first @ second``."""

    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        (g,) = grads
        alpha, beta = a["alpha"], a["beta"]
        scaled = g if alpha == 1 else g * alpha.conjugate()
        one, other = _of_product(ops, a[first], a[second], scaled)
        return {"input": _summed(g if beta == 1 else g * beta.conjugate(), a["input"].shape), first: one, second: other}

    return gradient


def _einsum(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    text = a["equation"].replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if not arrow or "." in text or any(len(set(term)) < len(term) for term in terms):
        raise BadValue(
            f"einsum: no gradient of the equation {text!r}",
            cause="it has no arrow, an ellipsis, or a label twice in one operand",
            remedy="write it with an arrow and a label for every axis",
        )  # fmt: skip
    arrays, (g,) = list(a["operands"]), grads

    def one(i: int) -> Any:
        others = [j for j in range(len(arrays)) if j != i]
        known = {*output, *(label for j in others for label in terms[j])}
        equation = ",".join([output, *(terms[j] for j in others)]) + "->" + "".join(n for n in terms[i] if n in known)
        found = ops.einsum(equation, [g, *(arrays[j].conj() for j in others)])
        if len(known & {*terms[i]}) < len(terms[i]):  # labels that were summed over in this operand alone
            sizes = iter(found.shape)
            found = found.reshape(tuple(next(sizes) if label in known else 1 for label in terms[i]))
            wide = zip(terms[i], found.shape, arrays[i].shape, strict=True)
            found = ops.spread(found, tuple(n if label in known else size for label, n, size in wide))
        return _summed(found, arrays[i].shape)

    return {"operands": [one(i) for i in range(len(arrays))]}


# Layers -------------------------------------------------------------------------------------------------------------------


def _activated(ops: Any, function: Any, a: Arguments, gradient: Any) -> Any:
    """The gradient of what goes into the activation of a layer, which is computed again without it."""
    if a["activation"] is None:
        return gradient
    before = function(**{**a, "activation": None})
    if a["activation"].startswith("gelu"):
        return ops.gelu_input(before, gradient, "tanh" if a["activation"] == "gelu_tanh" else "none")
    return getattr(ops, f"{a['activation']}_input")(before, gradient)


def _linear(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    g = _activated(ops, ops.linear, a, grads[0])
    x, w = a["input"], a["weight"]
    rows = prod(x.shape[:-1])
    flat = g.reshape((rows, w.shape[0]))
    return {
        "input": lambda: ops.matmul(flat, w.conj()).reshape(x.shape),
        "weight": lambda: ops.matmul(flat.mT, x.reshape((rows, x.shape[-1])).conj()),
        "bias": lambda: flat.sum((0,)), "residual": g,
    }  # fmt: skip


def _conv(rank: int) -> Gradient:
    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        g = _activated(ops, getattr(ops, f"conv{rank}d"), a, grads[0])
        x, w = a["input"], a["weight"]
        single = x.ndim == rank + 1
        images, whole = (x[None], g[None]) if single else (x, g)
        numbers = (a["stride"], a["padding"], a["dilation"], a["groups"])

        def by_input() -> Any:
            found = getattr(ops, f"conv{rank}d_input")(tuple(images.shape), w, whole, *numbers)
            return found[0] if single else found

        return {
            "input": by_input, "residual": g,
            "weight": lambda: getattr(ops, f"conv{rank}d_weight")(images, tuple(w.shape), whole, *numbers),
            "bias": lambda: whole.sum((0, *range(2, rank + 2))),
        }  # fmt: skip

    return gradient


def _conv_transpose(rank: int) -> Gradient:
    name = f"conv_transpose{rank}d"

    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        g = _activated(ops, getattr(ops, name), a, grads[0])
        x, w = a["input"], a["weight"]
        steps = tuple(a["stride"]) if isinstance(a["stride"], (tuple, list)) else (a["stride"],) * rank
        extra = tuple(a["output_padding"]) if isinstance(a["output_padding"], (tuple, list)) else (a["output_padding"],) * rank
        if any(more >= step for more, step in zip(extra * rank, steps * rank, strict=False)):
            raise BadValue(
                f"{name}: no gradient where output_padding={extra} reaches a whole stride of {steps}",
                cause="the convolution of the gradient has more points than the input", remedy="backline.nn.grad",
            )  # fmt: skip
        single = x.ndim == rank + 1
        images, whole = (x[None], g[None]) if single else (x, g)
        numbers = (a["stride"], a["padding"], a["dilation"], a["groups"])

        def by_input() -> Any:
            found = getattr(ops, f"conv{rank}d")(whole, w.conj(), None, *numbers)
            return found[0] if single else found

        return {
            "input": by_input, "residual": g,
            "weight": lambda: getattr(ops, f"conv{rank}d_weight")(whole, tuple(w.shape), images, *numbers).conj(),
            "bias": lambda: whole.sum((0, *range(2, rank + 2))),
        }  # fmt: skip

    return gradient


def _by_input(name: str, *settings: str) -> Gradient:
    """An operation of nn.functional whose gradient is ``name_input`` of its input."""

    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        return {"input": getattr(ops, f"{name}_input")(a["input"], grads[0], *(a[key] for key in settings))}

    return gradient


def _by_size(name: str, *settings: str) -> Gradient:
    """One whose gradient needs the size of its input only."""

    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        size = tuple(a["input"].shape)
        return {"input": getattr(ops, f"{name}_input")(size, grads[0], *(a[key] for key in settings))}

    return gradient


def _by_result(name: str) -> Gradient:
    """A softmax, whose gradient needs its result."""

    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        ndim = a["input"].ndim
        dim = (0 if ndim in (0, 1, 3) else 1) if a["dim"] is None else a["dim"]
        return {"input": ops.cast(getattr(ops, f"{name}_input")(results[0], grads[0], dim), a["input"])}

    return gradient


def _elementary(slope: Callable[[Any, Any], Any]) -> Gradient:
    """An elementary function, by its derivative."""

    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        return {"input": grads[0] * slope(ops, a["input"]).conj()}

    return gradient


def _layer_norm(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    found = ops.layer_norm_backward(a["input"], grads[0], a["normalized_shape"], a["weight"], a["eps"])
    given = dict(zip(("input", "weight", "bias"), found, strict=True))
    return {name: None if a[name] is None else ops.cast(gradient, a[name]) for name, gradient in given.items()}


def _attention(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    found = ops.scaled_dot_product_attention_backward(a["query"], a["key"], a["value"], grads[0], *(
        a[name] for name in ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa", "seed")
    ))  # fmt: skip
    return dict(zip(("query", "key", "value", "attn_mask"), found, strict=False))


def _recurrent(name: str, states: int) -> Gradient:
    settings = ("has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first", "lengths", "seed")

    def gradient(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
        found = list(getattr(ops, f"{name}_backward")(a["input"], a["hx"], a["params"], *grads, *(a[key] for key in settings)))
        start, params = found[1 : 1 + states], found[1 + states :]
        return {"input": found[0], "hx": start if states > 1 else start[0], "params": params}

    return gradient


# Linear algebra and transforms ----------------------------------------------------------------------------------------------


def _inv(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    adjoint = results[0].conj().mT
    return {"A": -ops.matmul(ops.matmul(adjoint, grads[0]), adjoint)}


def _solve(ops: Any, a: Arguments, results: tuple[Any, ...], grads: tuple[Any, ...]) -> dict[str, Any]:
    matrix, x, (g,) = a["A"], results[0], grads
    if not a["left"]:
        by_right = ops.linalg_solve(matrix.conj().mT, g, left=False)
        by_matrix = -ops.matmul(x.conj().mT, by_right)
        return {"A": _summed(by_matrix, matrix.shape), "B": _summed(by_right, a["B"].shape)}
    by_right = ops.linalg_solve(matrix.conj().mT, g)
    if x.ndim == matrix.ndim - 1:  # vectors
        by_matrix = -by_right[..., :, None] * x.conj()[..., None, :]
    else:
        by_matrix = -ops.matmul(by_right, x.conj().mT)
    return {"A": _summed(by_matrix, matrix.shape), "B": _summed(by_right, a["B"].shape)}


GRADIENTS: dict[str, Gradient] = {
    "matmul": _product("other"), "mm": _product("mat2"), "bmm": _product("mat2"), "mv": _product("vec"),
    "dot": _product("tensor"), "vdot": _vdot, "outer": _outer,
    "addmm": _added("mat1", "mat2"), "baddbmm": _added("batch1", "batch2"),
    "einsum": _einsum, "linear": _linear, "layer_norm": _layer_norm, "scaled_dot_product_attention": _attention,
    "softmax": _by_result("softmax"), "log_softmax": _by_result("log_softmax"),
    **{name: _elementary(lambda ops, x: ops.exp(x)) for name in ("exp", "expm1")},
    "log": _elementary(lambda ops, x: 1 / x), "log1p": _elementary(lambda ops, x: 1 / (1 + x)),
    "sin": _elementary(lambda ops, x: ops.cos(x)), "cos": _elementary(lambda ops, x: -ops.sin(x)),
    **{name: _by_input(name) for name in ("relu", "silu", "tanh", "sigmoid")}, "gelu": _by_input("gelu", "approximate"),
    **{f"conv{rank}d": _conv(rank) for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _conv_transpose(rank) for rank in (1, 2, 3)},
    **{
        f"max_pool{rank}d": _by_input(f"max_pool{rank}d", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
        for rank in (1, 2, 3)
    },
    "avg_pool1d": _by_size("avg_pool1d", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    **{
        name: _by_size(name, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
        for name in ("avg_pool2d", "avg_pool3d")
    },
    **{name: _by_size(name, "output_size") for name in (f"adaptive_avg_pool{rank}d" for rank in (1, 2, 3))},
    "lstm": _recurrent("lstm", 2), **{name: _recurrent(name, 1) for name in ("gru", "rnn_tanh", "rnn_relu")},
    "linalg_inv": _inv, "linalg_solve": _solve,
}  # fmt: skip
# Operations of which the gradient needs the results.
BY_RESULTS = ("softmax", "log_softmax", "linalg_inv", "linalg_solve")
