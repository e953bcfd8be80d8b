"""Cases of attention: their arrays, what float64 gives, and the kernels they take, compiled by several processes at a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import backline
from backline import switches
from backline.errors import BacklineError, NoKernel
from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention.launch_sequence import Step, recipe
from backline.libraries.cuda.common import bindings
from backline.libraries.cuda.cudnn import graphs
from backline.libraries.cuda.cudnn.sdpa_graphs import attention_recipe
from backline.nn.attention import SDPBackend, sdpa_kernel
from backline.problems import operand
from backline.problems.attention_problem import AttentionProblem, attention_problem
from gpu.arrays import dtype_of
from gpu.rows import AMPERE

__all__ = ["ALLOWED", "TF32_SHOWS", "Case", "attend", "by_erratum", "compiled", "deviation", "only", "parameters", "plans_of", "slopes"]

TF32_SHOWS = 3e-6  # of numbers like these; float32 is ten times as exact
ALLOWED = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12, "tf32": 5e-3}
PROCESSES = 12
MATH = SDPBackend.MATH


def attend(*args: Any, **kwargs: Any) -> Any:
    return backline.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def slopes(*args: Any, **kwargs: Any) -> Any:
    return backline.nn.grad.scaled_dot_product_attention_backward(*args, **kwargs)


@contextmanager
def only(kernel: SDPBackend, tf32: bool = False) -> Any:
    """Only one kernel may run; products of float32 in TF32, or not."""
    with ExitStack() as open_:
        open_.enter_context(switches.scope({"cuda.matmul.fp32_precision": "tf32" if tf32 else "ieee"}))
        open_.enter_context(sdpa_kernel(kernel))
        yield


def deviation(found: Any, wanted: Any) -> float:
    """The largest difference of an element."""
    host = found.get() if hasattr(found, "get") else np.asarray(found)
    assert host.shape == wanted.shape, (host.shape, wanted.shape)
    difference = np.abs(host.astype(np.float64) - wanted)
    assert not np.isnan(difference).any(), "something is not a number"
    return float(difference.max(initial=0.0))


@dataclass(frozen=True)
class Case:
    """One attention of normal numbers, values half as large.

    Attributes
    ----------
    lengths
        Of queries and keys, on a device and in a rehearsal.
    vdim
        Head dim of the value; 0: that of the others.
    shared
        Query heads that share one of key and value.
    mask
        "bool", "added", or none. One row of it lets no key take part.
    tf32
        Whether the products may be reduced so far.
    grad
        Whether gradients are looked at too.
    """

    dtype: str = "float16"
    dim: int = 64
    causal: bool = False
    grad: bool = False
    lengths: tuple[tuple[int, int], tuple[int, int]] = ((256, 256), (40, 40))
    vdim: int = 0
    heads: int = 4
    shared: int = 1
    mask: str = ""
    tf32: bool = False
    dropout: float = 0.0
    rehearsed: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        parts = [self.dtype, f"d{self.dim}" + (f"-{self.vdim}" if self.vdim else "")]
        parts += ["causal"] * self.causal + ["grad"] * self.grad + ["tf32"] * self.tf32 + [self.mask] * bool(self.mask)
        parts += [f"{self.lengths[0][0]}x{self.lengths[0][1]}"] * (self.lengths[0] != (256, 256))
        return "-".join(parts + [f"gqa{self.shared}"] * (self.shared > 1) + [f"dropout{self.dropout}"] * bool(self.dropout))

    @cached_property
    def hosts(self) -> dict[str, Any]:
        """Arrays by their names in a call, on the host."""
        queries, keys = self.lengths[self.rehearsed]
        rng = np.random.default_rng(20)
        kind, vdim = dtype_of(self.dtype), self.vdim or self.dim
        shapes = {"query": (2, self.heads, queries, self.dim), "key": (2, self.heads // self.shared, keys, self.dim)}
        shapes |= {"value": (2, self.heads // self.shared, keys, vdim), "grad_output": (2, self.heads, queries, vdim)}
        # Values of 4 and more would be rounded by more than what is allowed.
        large = {"value": 0.5}
        made: dict[str, Any] = {name: (large.get(name, 1.0) * rng.standard_normal(shape)).astype(kind) for name, shape in shapes.items()}
        if self.mask:
            taken = rng.random((2, 1, queries, keys)) < 0.7
            taken[:, :, 5] = False
            added = np.where(taken, rng.standard_normal(taken.shape), -np.inf).astype(np.float32)
            made["attn_mask"] = taken if self.mask == "bool" else added
        return made

    @property
    def options(self) -> dict[str, Any]:
        given: dict[str, Any] = {"is_causal": self.causal, "enable_gqa": self.shared > 1}
        return given | ({"dropout_p": self.dropout, "seed": 77} if self.dropout else {})

    @property
    def allowed(self) -> float:
        """Largest error of an element of the result. Gradients may have four times as much."""
        return ALLOWED["tf32" if self.tf32 else self.dtype] / (1 - self.dropout)

    def arrays(self, xp: Any, *, grad: bool = False, dtype: str = "") -> dict[str, Any]:
        """On the device."""
        names = [name for name in self.hosts if name != "grad_output" or grad]
        wide = {name: self.hosts[name].astype(dtype) if dtype and self.hosts[name].dtype != bool else self.hosts[name] for name in names}
        return {name: xp.asarray(array) for name, array in wide.items()}

    @cached_property
    def wanted(self) -> tuple[Any, Any]:
        """Result and gradients, by MATH in float64: on the host, by NumPy."""
        assert not self.dropout, "the host draws other numbers"
        given = {name: array if array.dtype == bool else array.astype(np.float64) for name, array in self.hosts.items()}
        grad = {"grad_output": given.pop("grad_output")}
        with sdpa_kernel(MATH), backline.use("numpy", only=True):
            return attend(**given, **self.options), slopes(**given, **grad, **self.options) if self.grad else None

    def run(self, xp: Any, kernel: SDPBackend) -> tuple[float, float, Any]:
        """Errors of the result and of the gradients by one kernel, relative to 1 or to the largest; and the Choice."""
        with only(kernel, self.tf32):
            found = attend(**self.arrays(xp), **self.options)
            choice = backline.explain()
            result, gradients = self.wanted
            first = deviation(found, result)
            assert str(found.dtype) == self.dtype
            if not self.grad:
                return first, 0.0, choice
            given = self.arrays(xp, grad=True)
            mask = given.get("attn_mask")
            backs = slopes(given["query"], given["key"], given["value"], given["grad_output"], mask, **self.options)
            worst = max(
                deviation(one, expected) / max(1.0, float(np.abs(expected).max()))
                for one, expected in zip(backs[:3], gradients[:3], strict=True)
            )
        return first, worst, choice

    def problems(self) -> Iterable[AttentionProblem]:
        """Yields what the kernels are compiled for."""
        given = {name: array for name, array in self.hosts.items() if name != "grad_output"}
        options = {name: value for name, value in self.options.items() if name != "seed"}
        forward = replace(attention_problem(**given, **options), device="cuda:0")
        yield forward
        if self.grad:
            back = operand("grad", self.hosts["grad_output"])
            yield replace(forward, operands=(*forward.operands[:3], back, *forward.operands[3:]))

    def steps(self, capability: tuple[int, int]) -> list[Step]:
        return [step for problem in self.problems() for step in recipe(problem, capability, self.tf32).steps]


def parameters(cases: Iterable[Case]) -> list[Any]:
    """Cases as parameters of a test, with what TF32 and bfloat16 need of the device."""
    marks = {True: [pytest.mark.gpu(needs=(AMPERE,))], False: []}
    return [pytest.param(case, id=str(case), marks=marks[case.tf32 or case.dtype == "bfloat16"]) for case in cases]


def by_erratum(refused: NoKernel) -> bool:
    """Tells whether the one kernel that may run is kept from it by an erratum, which depends on versions and the device."""
    return "erratum " in str(refused)


def _begin() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to forbid an import


def _compile(step: Step) -> str:
    tile, made = compiler.chosen(step)
    return f"{step.variant.kernel}: {tile}, {made.shared} bytes shared"


def compiled(steps: list[Step], rehearsed: bool) -> tuple[int, float, list[str]]:
    """Compile kernels into the folder where the library looks for them: how many, in how many seconds, and what failed."""
    different = list({(step.variant, step.tiles): step for step in steps}.values())
    begun, failed = time.monotonic(), []
    if rehearsed:  # who plays the compiler is in this process
        for step in different:
            _compile(step)
        return len(different), time.monotonic() - begun, []
    # The largest first, so that none is begun last.
    different.sort(key=lambda step: -dict(step.variant.constants).get("PDV", 0))
    workers = min(PROCESSES, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin) as pool:
        for step, future in [(step, pool.submit(_compile, step)) for step in different]:
            try:
                future.result(timeout=120)
            except Exception as error:  # the row that needs it says what it was
                failed.append(f"{step.variant.kernel}: {type(error).__name__}: {error}")
    return len(different), time.monotonic() - begun, failed


def plans_of(problem: Any, device: Any) -> tuple[list[str], str]:
    """Names of cuDNN's plans for a Problem, whatever our rule says, and what it says if there are none."""
    module = bindings.cudnn()
    try:
        made = graphs.build(
            module, attention_recipe(problem, "sdpa").forward, device.capability, handle=graphs.handle_for(module, 0)
        )  # fmt: skip
        return [made.get_plan_name_at_index(index) for index in graphs.own_plans(made)], ""
    except (module.cudnnGraphNotSupportedError, BacklineError, RuntimeError, ValueError) as error:
        return [], " ".join(str(error).split())[:200]
