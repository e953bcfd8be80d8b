"""Reads the text of a convolution, a pooling or a recurrent network as the call of its operation.

These operations take more than arrays: sizes in the place of arrays, tuples of them, and pairs of numbers. The names and numbers
that keys of Problems have are understood too: ``conv f32 8x64x56x56 64x64x3x3 stride=2x2 last``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadValue
from .names import GATES

__all__ = ["KEYS", "WORDS", "call", "example", "operation_name"]

Array = Any
Shape = tuple[tuple[int, ...], str]
Make = Callable[..., Array]  # (shape, layout, dtype): an array without memory; dtype is that of the text unless given

WORDS = ("batch_first", "bidirectional", "last")
"""Words that stand alone, for a parameter that is True."""

KEYS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "batch_norm_train": ("nn.functional.batch_norm", {"running_mean": None, "running_var": None, "training": True}),
    "batch_norm_train_grad": ("nn.grad.batch_norm_gradients", {}),
    "layer_norm_grad": ("nn.grad.layer_norm_gradients", {}),
    **{
        f"{name}_grad": (f"nn.grad.{name}_input", {})
        for name in ("relu", "gelu", "silu", "tanh", "sigmoid", "softmax", "log_softmax")
    },
}
"""Names that only keys have -> the operation, and parameters that the name stands for."""

POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool")
PLACES = ("nn.functional.", "nn.", "nn.grad.")
SIZES = re.compile(r"\d+(x\d+)+")

_CONV, _POOL = '"conv2d f32 8x64x56x56 64x64x3x3 64 stride=2 padding=1x1 last"', '"max_pool2d f32 8x64x56x56 kernel_size=2x2"'
_EXAMPLES = {  # by what a name holds; the first that fits
    "conv_transpose": '"conv_transpose2d f32 1x64x28x28 64x32x4x4 stride=2 padding=1"',
    "pool1d_input": '"avg_pool1d_input f32 8x64x56 8x64x28 kernel_size=2", the input first',
    "pool2d_input": '"avg_pool2d_input f32 8x64x56x56 8x64x28x28 kernel_size=2", the input first',
    "pool3d_input": '"avg_pool3d_input f32 8x64x8x8x8 8x64x4x4x4 kernel_size=2", the input first',
    "_input": '"conv2d_input f32 8x64x56x56 64x64x3x3 8x64x54x54", the input\'s size first',
    "_weight": '"conv2d_weight f32 8x64x56x56 64x64x3x3 8x64x54x54", the weights\' size in the middle',
    "conv": _CONV,
    "adaptive": '"adaptive_avg_pool2d f32 8x64x56x56 output_size=7x7"',
    "pool": _POOL,
    **{mode: f'"{mode} f32 32x16x256 hidden=512 layers=2 bidirectional"' for mode in GATES},
    "layer_norm": '"layer_norm f32 512x1024 normalized_shape=(1024,)"',
    "functional.batch_norm": '"batch_norm f32 8x64x56x56 64 64", the running mean and variance after the input',
    "functional.linear": '"linear f32 64x128 256x128 256 activation=relu"',
    "rms_norm": '"rms_norm f32 512x1024 normalized_shape=(1024,)"',
    "softmax": '"softmax f32 128x1000 dim=-1"',
}


def example(name: str) -> str:
    """Returns an example of an operation's text, or an empty string for those that any text shows.

    >>> example("nn.functional.max_pool2d")
    'write it like "max_pool2d f32 8x64x56x56 kernel_size=2x2"'
    """
    found = next((text for part, text in _EXAMPLES.items() if part in name), "")
    return f"write it like {found}" if found else ""


def operation_name(name: str, words: Sequence[str], known: Mapping[str, Any]) -> str:
    """The name of an operation in full, from its last part or from the name that keys have; as it is where there is none.

    >>> operation_name("conv", ["f32", "1x2x8", "4x2x3"], {"nn.functional.conv1d": None})
    'nn.functional.conv1d'
    """
    if name in known:
        return name
    plain, gradient = re.sub("(_divided|_indices)?(_grad)?$", "", name), name.endswith("_grad")
    rank = max((word.count("x") - 1 for word in words if SIZES.fullmatch(word.partition(":")[0])), default=0)
    for word in words:
        if word.startswith(("kernel=", "output=")):
            rank = len(re.findall(r"\d+", word))
    if name in ("conv_grad_input", "conv_grad_weight"):
        wanted = f"nn.grad.conv{rank}d_{name.rpartition('_')[2]}"
    elif plain in POOLS or name in ("conv", "conv_transpose"):
        wanted = f"nn.grad.{plain}{rank}d_input" if gradient else f"nn.functional.{plain}{rank}d"
    elif gradient and plain in GATES:
        wanted = f"nn.grad.{plain}_backward"
    else:
        return next((place + name for place in PLACES if place + name in known), name)
    return wanted if wanted in known else name


def call(name: str, shapes: Sequence[Shape], keywords: dict[str, Any], make: Make) -> tuple[list[Any], dict[str, Any]] | None:
    """Arguments of an operation, by position and by name; None where every shape is an array and every word a parameter.

    Raises
    ------
    BadValue
        The text lacks something, or has too much.
    """
    keywords = {key: _numbers(value) for key, value in keywords.items()}
    short = name.rpartition(".")[2]
    mode = short.removesuffix("_backward")
    if name.startswith("nn.") and mode in GATES:
        return _recurrent(name, mode, list(shapes), keywords, make)
    if name.startswith(("nn.functional.", "nn.grad.")) and (short.startswith("conv") or "_pool" in short):
        made = _Layer(name, list(shapes), keywords, make)
        return made.pooling() if "_pool" in short else made.convolution()
    arrays = [make(*shape) for shape in shapes]
    if short.removesuffix("_input") in ("softmax", "log_softmax") and "axis" in keywords:
        return arrays, {**{k: v for k, v in keywords.items() if k != "axis"}, "dim": keywords["axis"]}
    if short in ("layer_norm", "rms_norm", "layer_norm_gradients"):
        if isinstance(axes := keywords.get("axes"), int):
            keywords = {**{k: v for k, v in keywords.items() if k != "axes"}, "normalized_shape": shapes[0][0][-axes:]}
        return _normalization(name, arrays, keywords)
    if short == "batch_norm_gradients" or (short == "batch_norm" and "running_mean" in keywords):
        return _normalization(name, arrays, keywords)
    if short == "linear" and _is_key_of_linear(shapes):
        return _linear(name, shapes, keywords, make)
    return None


def _normalization(name: str, arrays: list[Array], keywords: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """A normalization with scale and shift, or the gradients of one, which have that of the result in the place of the shift."""
    names = ("input", "grad_output", "weight") if name.endswith("_gradients") else ("input", "weight", "bias")
    if len(arrays) > 3:
        raise BadValue(f"{name} has three shapes at most, not {len(arrays)}", remedy=example(name))
    return [], {**keywords, **dict(zip(names, arrays, strict=False))}


def _is_key_of_linear(shapes: Sequence[Shape]) -> bool:
    """Tells whether shapes are those of a key, which has what is added as matrices, and the weight as it is multiplied."""
    if len(shapes) < 2 or not shapes[0][0] or len(shapes[1][0]) != 2:
        return False
    (terms, features), inputs = shapes[1][0], shapes[0][0][-1]
    return any(len(shape) > 1 for shape, _ in shapes[2:]) or (terms == inputs != features)


def _linear(name: str, shapes: Sequence[Shape], keywords: dict[str, Any], make: Make) -> tuple[list[Any], dict[str, Any]]:
    """A linear layer from its key: a bias is a matrix of equal rows, before the residual. One row alone reads as a bias."""
    x, weight, *added = shapes
    if len(added) > 2:
        raise BadValue(f"{name} has four shapes at most, not {len(shapes)}", remedy=example(name))
    rows = math.prod(x[0][:-1])
    if len(added) == 2 or (added and (added[0][1] == "X" or rows == 1)):
        keywords["bias"] = make((weight[0][1],), "C")
        added = added[1:]
    if added:
        keywords["residual"] = make(*added[0])
    return [make(*x), make(*weight).T], keywords


def _numbers(value: Any) -> Any:
    """2x2 as a tuple of ints; anything else as it is."""
    return tuple(map(int, value.split("x"))) if isinstance(value, str) and SIZES.fullmatch(value) else value


class _Layer:
    """A convolution, a pooling, or a gradient of one."""

    def __init__(self, name: str, shapes: list[Shape], keywords: dict[str, Any], make: Make) -> None:
        self.name, self.shapes, self.keywords, self.make = name, shapes, keywords, make
        self.last = bool(keywords.pop("last", False))

    def array(self, shape: Shape) -> Array:
        """An array, with its channels last if the text says so and it may have them there."""
        sizes, layout = shape
        if not self.last or len(sizes) < 3:
            return self.make(sizes, layout)
        return np.moveaxis(self.make((sizes[0], *sizes[2:], sizes[1]), "C"), -1, 1)

    def size(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)

    def most(self, count: int) -> None:
        if len(self.shapes) > count:
            raise BadValue(f"{self.name} has {count} shapes at most, not {len(self.shapes)}", remedy=example(self.name))

    def convolution(self) -> tuple[list[Any], dict[str, Any]]:
        keywords, shapes = self.keywords, self.shapes
        padding = keywords.get("padding")
        if isinstance(padding, str) and "+" in padding:
            raise BadValue(f"padding={padding} differs before and behind", remedy="padding=same, if that is where it is from")
        gradient = self.name.startswith("nn.grad.")
        sized = 1 if self.name.endswith("_weight") else 0
        if gradient:
            if "result" in keywords:
                shapes = [*shapes[:sized], (tuple(keywords.pop("result")), "C"), *shapes[sized:]]
            self.shapes = shapes
            self.most(3)
            return [self.size(s[0]) if i == sized else self._operand(i, s) for i, s in enumerate(shapes)], keywords
        self.most(4)
        args = [self._operand(i, s) for i, s in enumerate(shapes[:2])]
        for shape in shapes[2:]:
            keywords["bias" if len(shape[0]) == 1 else "residual"] = self.array(shape)
        return args, keywords

    def _operand(self, i: int, shape: Shape) -> Array:
        """Weights, second of all but the gradient by them, are never last."""
        return self.make(*shape) if i == 1 and not self.name.endswith("_weight") else self.array(shape)

    def pooling(self) -> tuple[list[Any], dict[str, Any]]:
        keywords = self.keywords
        for old, new in (("kernel", "kernel_size"), ("output", "output_size"), ("divisor", "divisor_override"),
                         ("indices", "return_indices")):  # fmt: skip
            if old in keywords:
                keywords[new] = keywords.pop(old)
        keywords.pop("overhang", None)
        padding = keywords.get("padding")
        if isinstance(padding, tuple) and any(isinstance(pair, tuple) for pair in padding):
            # As keys have it: before and behind. What is more behind is there for ceil_mode.
            keywords["padding"] = tuple(before for before, _ in padding)
            if any(before != behind for before, behind in padding):
                keywords["ceil_mode"] = True
            if self.name.startswith(("nn.functional.avg", "nn.grad.avg")):
                keywords.setdefault("count_include_pad", False)
        if not {"kernel_size", "output_size"} & set(keywords):
            raise BadValue(f"the text says no size of the windows of {self.name}", remedy=example(self.name))
        gradient = self.name.startswith("nn.grad.")
        self.most(2 if gradient else 1)
        if gradient and len(self.shapes) < 2:
            raise BadValue(f"{self.name} has two sizes: of the input, and of the gradient", remedy=example(self.name))
        sized = gradient and ".max_pool" not in self.name
        return [self.size(s[0]) if sized and i == 0 else self.array(s) for i, s in enumerate(self.shapes)], keywords


def _recurrent(
    name: str, mode: str, shapes: list[Shape], keywords: dict[str, Any], make: Make
) -> tuple[list[Any], dict[str, Any]]:
    """A recurrent network from the shape of its input and ``hidden``, or from the shapes of all arrays of a call."""

    def take(*names: str, default: Any) -> Any:
        found = [keywords.pop(key) for key in names if key in keywords]
        return found[0] if found else default

    layers, both = take("layers", "num_layers", default=1), bool(take("bidirectional", default=False))
    first, hidden = bool(take("batch_first", default=False)), take("hidden", "hidden_size", default=None)
    biases, dropout = take("biases", "has_biases", default=None), take("dropout", default=0.0)
    train, seed = take("train", default=bool(dropout)), take("seed", default=None)
    lengths: Any = take("lengths", default=False)
    if keywords:
        raise BadValue(f"{next(iter(keywords))!r} is not a parameter of {name}", remedy=example(name))
    if len(shapes[0][0]) != 3 or type(layers) is not int or layers < 1:
        raise BadValue(f"{name} has an input of three sizes and one layer or more", remedy=example(name))
    directions, states = (2 if both else 1), (2 if mode == "lstm" else 1)
    cells, gradient = layers * directions, name.startswith("nn.grad.")
    if len(shapes) == 1:
        if type(hidden) is not int or hidden < 0:
            raise BadValue(f"{name} needs the size of its state: {hidden!r}", remedy=example(name))
        biases = True if biases is None else bool(biases)
        shapes += _all_shapes(mode, shapes[0][0], hidden, layers, directions, biases, first, gradient)
    elif hidden is not None:
        raise BadValue(
            f"{name} has either the shape of its input and hidden={hidden}, or the shapes of all its arrays", remedy=example(name)
        )
    rest = shapes[1 + states :]
    if biases is None:
        biases = len(rest) >= 4 * cells and len(rest[2][0]) == 1
    count = cells * (4 if biases else 2)
    params, rest = rest[:count], rest[count:]
    if rest and len(rest[-1][0]) == 1:
        lengths = True
        rest = rest[:-1]
    if len(params) < count or len(rest) > (1 + states if gradient else 0):
        given = len(params) + len(rest)
        raise BadValue(f"{name} has {count} arrays of parameters here, the text has shapes of {given}", remedy=example(name))
    hx = tuple(make(*shape) for shape in shapes[1 : 1 + states])
    args = [make(*shapes[0]), hx if mode == "lstm" else hx[0], tuple(make(*shape) for shape in params)]
    if gradient:
        # A key does not say which are given: the output's is known by its shape, the others come after it.
        output = (*shapes[0][0][:2], shapes[1][0][-1] * directions)
        grads = [make(*shape) for shape in rest]
        if not grads or grads[0].shape != output:
            grads.insert(0, None)
        args += [*grads, *[None] * (1 + states - len(grads))]
    args += [biases, layers, float(dropout), bool(train), both, first]
    further: dict[str, Any] = {} if seed is None else {"seed": seed}
    if lengths:
        batch = shapes[0][0][0 if first else 1]
        further["lengths"] = make((batch,), "C", np.dtype(np.int64))
    return args, further


def _all_shapes(
    mode: str, x: tuple[int, ...], hidden: int, layers: int, directions: int, biases: bool, first: bool, gradient: bool
) -> list[Shape]:
    """The shapes of all arrays but the input."""
    batch, rows = x[0 if first else 1], GATES[mode] * hidden
    states = [(layers * directions, batch, hidden)] * (2 if mode == "lstm" else 1)
    found: list[tuple[int, ...]] = list(states)
    for cell in range(layers * directions):
        columns = x[2] if cell < directions else directions * hidden
        found += [(rows, columns), (rows, hidden), *([(rows,)] * 2 if biases else [])]
    if gradient:
        found += [(*x[:2], directions * hidden), *states]
    return [(shape, "C") for shape in found]
