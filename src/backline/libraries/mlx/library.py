"""MLX, for its own arrays: on Apple's GPU, or on MLX's CPU stream, which runs on Linux too.

MLX is lazy. A Plan returns arrays that are not computed yet: they are when the program evaluates them, in the thread that made
them, and what a trace times before that is the making. MLX reports an error of a computation once, and afterwards shows numbers
that mean nothing; so nothing is handed to it here that it would fail on. Linear algebra that has to raise waits for what it needs
to know, its variants that return an info do not.

Arrays of MLX are values: there is no `out`, and strides mean nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar

from ...problems import Problem
from ...problems.attention_problem import AttentionProblem
from ...problems.conv_problem import ConvProblem
from ...problems.einsum_problem import EinsumProblem
from ...problems.fft_problem import FftProblem
from ...problems.linalg_problem import LinalgProblem
from ...problems.linear_problem import LinearProblem
from ...problems.matmul_problem import MatmulProblem
from ...problems.neural_problem import NeuralProblem
from ...problems.quantized_problem import QuantizedProblem
from ...problems.rnn_problem import RnnProblem
from ..attention_constraints import refused_kernels
from ..base import NULL_PLANNER, Algorithm, Handler, Library, Planner, Refusal
from . import mlx_attention, mlx_conv, mlx_fft, mlx_layers, mlx_linalg, mlx_products, mlx_quantized, mlx_rnn
from .placement import CPU, METAL, Device, device_of, not_on_metal, reduces

__all__ = ["MLX", "MlxPlan"]

IMMUTABLE = "arrays of MLX are values that nothing is written to: there is no out"
LAZY = "lazy: computed when it is evaluated"


class MlxPlan:
    """A Plan that is a function of MLX's arrays, made on one device of MLX. The function keeps nothing of a call."""

    __slots__ = ("choice", "function", "scalars", "stream")

    def __init__(self, function: Callable[..., Any], stream: Callable[[], Any], scalars: tuple[str, ...] = ()) -> None:
        self.function, self.stream, self.scalars = function, stream, scalars
        self.choice: Any = None

    def __call__(self, *arrays: Any, **scalars: Any) -> Any:
        with self.stream():
            return self.function(*arrays, **scalars)


def _written(problem: Problem) -> bool:
    return any(o.role.rstrip("0123456789") == "out" for o in problem.operands)


def _placed(
    problem: Problem, device: Device, name: str, reason: str, note: str, traits: tuple[str, ...] = ()
) -> Iterator[Algorithm | Refusal]:
    """Yields an algorithm on Metal, and the same on the CPU stream."""
    if reason:
        yield Refusal("mlx", name, reason)
        return
    halves = "f32 accumulation" if problem.dtype.name in ("float16", "bfloat16") else ""
    refused = not_on_metal(problem, device)
    if refused:
        yield Refusal("mlx", name, refused)
    else:
        # A permission cannot be withdrawn call by call, so what MLX does is told as it is, and refuses nothing.
        precision = "tf32 (MLX_ENABLE_TF32)" if reduces(problem, device) else halves
        words = "; ".join(filter(None, (LAZY, note)))
        yield Algorithm(library="mlx", name=name, precision=precision, level="off", note=words, traits=(METAL, *traits))
    words = "; ".join(filter(None, ("on the CPU stream", LAZY, note)))
    yield Algorithm(library="mlx", name=f"{name}_{CPU}", precision=halves, note=words, traits=traits)


def _handler(
    name: str,
    refusal: Callable[[Any], str],
    function: Callable[[Any, Any, bool], Callable[..., Any]],
    note: Callable[[Any], str] = lambda problem: "",
) -> Handler:
    """Returns the Handler of one type of Problem, by the name of the algorithm on Metal.

    `refusal` and `note` are functions of the Problem: the reason for which there is none, and what a user should know.
    `function`, of the Problem, MLX, and whether it runs on Metal, returns the function of the arrays.
    """

    def algorithms(mlx: MLX, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        reason = IMMUTABLE if _written(problem) else refusal(problem)
        return _placed(problem, mlx.device(), name, reason, "" if reason else note(problem))

    def prepare(mlx: MLX, problem: Problem, algorithm: Algorithm) -> MlxPlan:
        metal = METAL in algorithm.traits
        return _plan(problem, function(problem, mlx.core(), metal), mlx.core(), metal)

    return Handler(algorithms, prepare)


def _plan(problem: Problem, function: Callable[..., Any], mx: Any, metal: bool) -> MlxPlan:
    where = mx.gpu if metal else mx.cpu
    return MlxPlan(function, lambda: mx.stream(where), problem.scalars)


def _attention_algorithms(mlx: MLX, problem: AttentionProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    device = mlx.device()
    yield from refused_kernels("mlx", problem)
    flash = IMMUTABLE if _written(problem) else mlx_attention.flash_refusal(problem)
    flash = flash or not_on_metal(problem, device) or _unfused(mlx.core(), problem)
    if flash:
        yield Refusal("mlx", "flash_attention", flash)
    else:
        precision = "tf32 (MLX_ENABLE_TF32)" if reduces(problem, device) else "f32 accumulation"
        note = "; ".join(filter(None, (LAZY, mlx_attention.flash_note(problem))))
        traits = (METAL, "flash_attention")
        yield Algorithm(library="mlx", name="flash_attention", precision=precision, level="off", note=note, traits=traits)
    reason = IMMUTABLE if _written(problem) else mlx_attention.math_refusal(problem)
    yield from _placed(problem, device, "math", reason, "all scores of all heads at once", ("math",))


def _unfused(mx: Any, problem: AttentionProblem) -> str:
    with mx.stream(mx.gpu):
        return mlx_attention.unfused(problem, mx)


def _prepare_attention(mlx: MLX, problem: AttentionProblem, algorithm: Algorithm) -> MlxPlan:
    make = mlx_attention.flash if "flash_attention" in algorithm.traits else mlx_attention.math
    return _plan(problem, make(problem, mlx.core()), mlx.core(), METAL in algorithm.traits)


class MLX(Library):
    """mlx, the package. ``mps.enabled`` is about Metal, not about all of it: off, work goes to the CPU stream."""

    handlers: ClassVar = {
        MatmulProblem: _handler("matmul", mlx_products.refusal, mlx_products.matmul),
        LinearProblem: _handler("linear", mlx_products.refusal, mlx_products.linear, mlx_products.note),
        ConvProblem: _handler("conv", mlx_conv.refusal, mlx_conv.function, mlx_conv.note),
        NeuralProblem: _handler("layer", mlx_layers.refusal, mlx_layers.function, mlx_layers.note),
        LinalgProblem: _handler("linalg", mlx_linalg.refusal, mlx_linalg.function, mlx_linalg.note),
        FftProblem: _handler("fft", mlx_fft.refusal, mlx_fft.function),
        EinsumProblem: _handler("elements", mlx_products.elements_refusal, mlx_products.elements),
        QuantizedProblem: _handler("quantized_matmul", mlx_quantized.refusal, mlx_quantized.linear_dynamic, mlx_quantized.note),
        RnnProblem: _handler("steps", mlx_rnn.refusal, mlx_rnn.function),
        AttentionProblem: Handler(_attention_algorithms, _prepare_attention),
    }
    _reason: str | None = None
    _device: Device | None = None

    @property
    def kernels(self) -> tuple[str, ...]:  # type: ignore[override]  # asked, where the class has a constant
        """Attention kernels: the fused one takes Metal. Whether that is there is asked in a child process."""
        from ..presence import presence

        return ("flash_attention", "math") if presence("mps").available() else ("math",)

    def core(self) -> Any:
        """The module ``mlx.core``: a program that has arrays of it has imported it."""
        return sys.modules.get("mlx.core") or import_module("mlx.core")

    def reason(self) -> str:
        if self._reason is None:
            from .. import python_packages

            reason = python_packages.find("mlx", "core")[2]
            if not reason:
                try:
                    self.core()
                except Exception as error:  # a module of somebody else's may raise anything
                    reason = f"mlx.core cannot be imported: {type(error).__name__}: {error}"
            self._reason = reason
        return self._reason

    def version(self) -> str | None:
        from .. import python_packages

        said = getattr(sys.modules.get("mlx.core"), "__version__", None)
        if isinstance(said, str):
            return said
        return None if python_packages.find("mlx", "core")[2] else python_packages.version("mlx")

    def algorithms(self, problem: Problem, threads: int, planner: Planner = NULL_PLANNER) -> Iterator[Algorithm | Refusal]:
        if problem.device != "mps":
            yield Refusal(self.name, "", f"it is for arrays of MLX, not for those on {problem.device}")
        else:
            yield from super().algorithms(problem, threads, planner)

    def device(self) -> Device:
        """Returns what placement depends on, found out once."""
        if self._device is None:
            self._device = device_of(self.core())
        return self._device

    def details(self) -> dict[str, Any]:
        if not self.available():
            return {"version": self.version()}
        device = self.device()
        where = "Metal, and the CPU stream" if device.metal else "the CPU stream"
        reduced = "; float32 products on Metal are reduced to TF32 (MLX_ENABLE_TF32)" if device.tf32 else ""
        return {"path": getattr(self.core(), "__file__", ""), "found by": "imported", "config": where + reduced}
