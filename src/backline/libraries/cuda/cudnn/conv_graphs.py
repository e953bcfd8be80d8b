"""Choice of the cuDNN graph for a convolution: the graph, the plans that are dropped, and how one plan is chosen.

Nothing here needs a device. `cudnn_graphs` builds what a recipe says and decides nothing but what only a run can tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ....problems import Operand, Problem
from ....problems.conv_problem import ConvProblem, channels_last
from ....problems.memory_layout import contiguous_strides
from ...base import Algorithm, Refusal
from ..common.device_facts import lacks

__all__ = [
    "ALIGNMENT", "ConvRecipe", "Dropout", "Feed", "Graph", "Search", "Tensor", "conv_algorithms", "conv_recipe", "conv_refusal",
    "modes", "search",
]  # fmt: skip

ALIGNMENT = 16  # bytes: what a graph promises of every address
TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}  # dtype -> cuDNN's word
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array as a graph knows it; strides count elements."""

    name: str
    uid: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    # Where each item of the batch begins, in elements, as an array of one number more than there are items; the first stride is
    # not used then. None where items are as far apart as that says.
    offsets: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Dropout:
    """Dropout probability, and the tensors from which the graph reads the seed and offset of its random numbers."""

    probability: float
    seed: Tensor
    offset: Tensor


@dataclass(frozen=True, slots=True)
class Graph:
    """One operation of cuDNN, and which of its plans may be used. Equal ones share their plans."""

    node: str  # "conv_fprop", "conv_dgrad", "conv_wgrad", "sdpa" or "sdpa_backward"
    inputs: tuple[tuple[str, Tensor], ...]  # the operation's arguments that are arrays, by name
    options: tuple[tuple[str, Any], ...]  # its other arguments
    outputs: tuple[Tensor, ...]  # what it gives. Dims and strides are set, never inferred.
    # io, intermediate, compute: data types, in cuDNN's words.
    io: str
    intermediate: str
    compute: str
    without: tuple[str, ...]  # numeric notes of the plans that are dropped
    modes: tuple[str, ...]  # heuristics that list the plans, in order
    dropout: Dropout | None = None  # of attention
    engines_out: tuple[int, ...] = ()  # engines whose plans are dropped: those of the errata


@dataclass(frozen=True, slots=True)
class Feed:
    """An operand as it is given to a graph."""

    role: str  # of the operand
    uid: int  # of the graph's tensor
    # Whether it is copied first, always: cuDNN does not take it as it lies. Where its address is no multiple of `ALIGNMENT`,
    # which only a call tells, it is copied too: the frontend has no word for less, so graphs are not told apart by it.
    copied: bool
    zeros: Pairs = ()  # zeros around it, which make it a copy; empty for none


@dataclass(frozen=True, slots=True)
class Search:
    """Choice between timing plans at the first call and not timing them, and the most plans to time (0: all).

    Plans that need more workspace than there is memory are left out. Where memory runs out all the same, that bound is halved.
    `tuned`: whether the plan that was the fastest when they were timed before, by this process or another, is taken at once.
    """

    on: bool
    limit: int
    tuned: bool = False


@dataclass(frozen=True, slots=True)
class ConvRecipe:
    """Complete description of the Plan of a convolution."""

    graph: Graph | None  # none where there is nothing to sum: the result is zeros
    feeds: tuple[Feed, ...]  # what the graph is given
    target: int  # the graph's tensor of the result
    shape: tuple[int, ...]  # of what the graph computes, in the dimensions of the call
    crop: Pairs  # elements before and after that do not belong to the result, for each dimension of the images; empty for none
    last: bool  # whether channels are last, in everything that the graph is given and gives
    direct: bool  # whether the graph writes to the caller's output itself, where that is aligned
    # What is done to the result afterwards, in order: "bias", "residual", "relu". It is no part of the graph: cuDNN has no plan
    # for some of it (channels first with a residual), fewer that are exact, and does not say what its relu makes of NaN; and so a
    # convolution has the same plan, and bits, with a bias and without.
    after: tuple[str, ...]
    search: Search  # how a plan is chosen


# --- what there is ---------------------------------------------------------------------------------------------------


def conv_refusal(problem: ConvProblem) -> str:
    """Returns why cuDNN cannot run a convolution on any device; empty if it can."""
    if problem.dtype.name not in TYPES:
        return f"it convolves float16, bfloat16, float32 and float64, not {problem.dtype.name}"
    if not problem.dtype.isnative:
        return "it takes native byte order only"
    extra = zip(problem.output_padding, problem.stride, strict=True)
    if problem.transposed and any(more >= step for more, step in extra):
        return f"its output padding must be smaller than the stride: {problem.output_padding} and {problem.stride}"
    return ""


def conv_algorithms(problem: ConvProblem, having: tuple[int, int]) -> Iterator[Algorithm | Refusal]:
    """Lists cuDNN's Algorithms and Refusals for a convolution on a device with a compute capability.

    Those in tf32 first, then those whose plans may all be used.
    """
    reason = conv_refusal(problem)
    if not reason and problem.dtype.name == "bfloat16":
        reason = lacks("bfloat16", (8, 0), having)
    if reason:
        yield Refusal("cudnn", "", reason)
        return
    traits = ("depthwise by cudnn",) if depthwise_half(problem) else ()
    for steady in (False, True):
        for precision, suffix in (("tf32", "_tf32"), ("", "")):
            if precision and problem.dtype.name != "float32":
                continue
            name = f"conv{suffix}{'_steady' if steady else ''}"
            why = lacks(precision, (8, 0), having) if precision else ""
            if steady and not why and any(d != 1 for d in problem.dilation) and not _last(problem):
                why = "it does not promise the same bits for a dilated convolution whose channels are first"
            if why:
                yield Refusal("cudnn", name, why)
                continue
            spelled = precision or ("f32 accumulation" if problem.dtype.itemsize == 2 else "")
            level, basis = ("threads", "promise") if steady else ("off", "promise")
            yield Algorithm(library="cudnn", name=name, precision=spelled, level=level, basis=basis, traits=traits)


def depthwise_half(problem: ConvProblem) -> bool:
    """Tells whether ``cudnn.depthwise_kernel`` applies: depthwise, not transposed, float16, 2-D images, 32 channels or more."""
    plain = not problem.transposed and problem.depthwise
    return plain and problem.dtype.name == "float16" and len(problem.kernel) == 2 and problem.channels >= 32


# --- the recipe ------------------------------------------------------------------------------------------------------


def modes() -> tuple[str, ...]:
    """Heuristics that list plans: mode A, or B where the environment asks for it as PyTorch has it, then what nearly always runs.

    >>> modes()[-1]
    'FALLBACK'
    """
    asked = os.environ.get("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "").strip() == "1"
    return ("B" if asked else "A", "FALLBACK")


def search(snapshot: Any) -> Search:
    """Returns how a plan is chosen under a Snapshot.

    Plans are not timed when determinism is requested: timing may choose a different plan in another run.
    """
    if snapshot["deterministic"]:
        return Search(False, 0)
    if snapshot["benchmark"] is True:
        return Search(True, int(snapshot["benchmark_limit"]), True)
    on = bool(snapshot["cudnn.benchmark"])
    return Search(on, int(snapshot["cudnn.benchmark_limit"]) if on else 0, True)


def conv_recipe(problem: ConvProblem, name: str, snapshot: Any) -> ConvRecipe:
    """The recipe of one of the `conv_algorithms` for a convolution, or a gradient, that `conv_refusal` allows."""
    last = _last(problem)
    grad = problem.op.startswith("conv_grad")
    after = () if grad else tuple(role for role in ("bias", "residual") if problem.get(role) is not None)
    if problem.parameter("activation") == "relu":
        after += ("relu",)
    out = problem.get("out")
    if problem.empty:
        return ConvRecipe(None, (), 0, problem.result, (), last, False, after, Search(False, 0))
    common = tuple((min(pair), min(pair)) for pair in problem.padding)
    zeros: Pairs = tuple((a - c, b - c) for (a, b), (c, _) in zip(problem.padding, common, strict=True))
    zeros = zeros if any(map(any, zeros)) else ()
    node, names = _NODES[problem.op]
    fed = {argument: problem.get(role) for argument, role in names}
    feeds, inputs = [], []
    kind = TYPES[problem.dtype.name]
    for uid, (argument, role) in enumerate(names, start=1):
        o = fed[argument]
        assert o is not None
        around = zeros if argument == "image" else ()
        feeds.append(Feed(role, uid, bool(around) or not _lies(o, last), around))
        inputs.append((argument, _tensor(argument, uid, _wider(o.shape, around), last, kind)))
    crop = zeros if node == "conv_dgrad" else ()
    shape = _wider(problem.result, crop)
    target = _tensor("result", 3, shape, last, kind)
    one = len(problem.kernel) == 1  # as images of height 1
    options = (
        ("padding", ((0,) if one else ()) + tuple(before for before, _ in common)),
        ("stride", ((1,) if one else ()) + problem.stride),
        ("dilation", ((1,) if one else ()) + problem.dilation),
    )
    wide = "DOUBLE" if kind == "DOUBLE" else "FLOAT"
    graph = Graph(node, tuple(inputs), options, (target,), kind, wide, wide, without(problem, name), modes())
    direct = out is not None and _lies(out, last) and not crop and problem.get("residual") is None
    return ConvRecipe(graph, tuple(feeds), 3, shape, crop, last, direct, after, search(snapshot))


def without(problem: Problem, name: str) -> tuple[str, ...]:
    """Numeric notes of the plans that are dropped: inputs are never made narrower than they are.

    >>> import numpy as np
    >>> from backline.problems import operand
    >>> without(ConvProblem("conv", (operand("input", np.zeros((1, 1, 1), np.float32)),)), "conv_steady")
    ('DOWN_CONVERT_INPUTS', 'TENSOR_CORE', 'NONDETERMINISTIC')
    """
    dropped = ["DOWN_CONVERT_INPUTS"]
    if problem.dtype.name == "float32" and "_tf32" not in name:
        dropped.append("TENSOR_CORE")
    if name.endswith("_steady"):
        dropped.append("NONDETERMINISTIC")
    return tuple(dropped)


# Operation -> node, and the roles of its arguments. A transposed convolution is the gradient of a plain one by its images.
_NODES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "conv": ("conv_fprop", (("image", "input"), ("weight", "weight"))),
    "conv_transpose": ("conv_dgrad", (("loss", "input"), ("filter", "weight"))),
    "conv_grad_input": ("conv_dgrad", (("loss", "grad"), ("filter", "weight"))),
    "conv_grad_weight": ("conv_wgrad", (("image", "input"), ("loss", "grad"))),
}


def _last(problem: ConvProblem) -> bool:
    """Tells whether channels are last, as in the result."""
    return problem.last


def _wider(shape: tuple[int, ...], zeros: Pairs) -> tuple[int, ...]:
    if not zeros:
        return shape
    return (*shape[:2], *(n + before + after for n, (before, after) in zip(shape[2:], zeros, strict=True)))


def _tensor(name: str, uid: int, shape: tuple[int, ...], last: bool, kind: str) -> Tensor:
    """A dense tensor of two or three dimensions of images; strides of axes of size 1 are those of a dense one too."""
    dims = (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape
    return Tensor(name, uid, dims, _steps(dims, last), kind)


def _steps(dims: tuple[int, ...], last: bool) -> tuple[int, ...]:
    return contiguous_strides(dims, 1, (0, *range(2, len(dims)), 1) if last else None)


def _lies(o: Operand, last: bool) -> bool:
    """Tells whether an operand is dense in the graph's layout, channels last or first; dense in both layouts counts too."""
    if not o.aligned:
        return False
    if bool(channels_last(o)) is last and channels_last(o) is not None:
        return True
    dense = zip(o.shape, o.strides, _steps(o.shape, last), strict=True)
    return last and all(n == 1 or step == own * o.dtype.itemsize for n, step, own in dense)
