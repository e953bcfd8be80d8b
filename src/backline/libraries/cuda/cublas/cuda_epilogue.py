"""A linear layer by a library that has products only: its product, then bias, residual and activation in one kernel of CuPy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ....problems.linear_problem import LinearProblem
from ....problems.matmul_problem import MatmulProblem
from ...base import Algorithm, Refusal
from ..common import bindings, elementwise_kernels
from ..common.device_plan import DevicePlan, refuse_overlaps_of_out

__all__ = ["SUFFIX", "algorithms", "plan", "product_of"]

SUFFIX = "_pointwise"
"""Suffix of the names of these algorithms, after the name of the product's algorithm."""

DTYPES = ("float16", "bfloat16", "float32", "float64")
NOTE = "then the rest in one kernel of CuPy's"


def product_of(p: LinearProblem) -> MatmulProblem:
    """The product inside, with nothing added and nowhere to write to."""
    kept: Any = tuple((k, v) for k, v in p.parameters if k == "precision")
    operands = tuple(o for o in p.operands if o.role in ("a", "b"))
    return MatmulProblem(
        "matmul", operands, kept, "matmul", m=p.m, n=p.n, k=p.k, batch=p.batch, result=p.result, device=p.device
    )


def algorithms(
    name: str, p: LinearProblem, listed: Callable[[MatmulProblem], Iterator[Algorithm | Refusal]]
) -> Iterator[Algorithm | Refusal]:
    """A library's ways for the product inside, each followed by the kernel; `listed` gives those ways."""
    if p.dtype.name not in DTYPES:
        yield Refusal(name, "linear", f"residual and activation are for {', '.join(DTYPES)}, not {p.dtype.name}")
        return
    for found in listed(product_of(p)):
        if isinstance(found, Algorithm):
            twice = "f16" in found.precision  # sums of float32 are rounded once, at the end
            note = "; ".join(filter(None, [found.note, NOTE, "rounded after the product too" if twice else ""]))
            found = replace(found, name=found.name + SUFFIX, note=note)
        yield found


def plan(p: LinearProblem, product: DevicePlan) -> DevicePlan:
    """The plan: that of the product, then the kernel; the product may leave its result in the dtype of its sums."""
    roles = tuple(o.role for o in p.operands)
    places = {role: roles.index(role) for role in roles}
    order = [places[o.role] for o in product_of(p).operands]
    added = tuple(role for role in ("bias", "residual") if role in places)
    kernel = elementwise_kernels.epilogue(p.parameter("activation"), added)
    out, multiply = places.get("out"), product.function

    def run(*arrays: Any) -> Any:
        refuse_overlaps_of_out(p, arrays)
        made = multiply(*(arrays[i] for i in order))
        target = arrays[out] if out is not None else made if made.dtype == p.dtype else bindings.cupy().empty(p.result, p.dtype)
        if target.size:
            kernel(made, *(arrays[places[role]] for role in added), target)
        return target

    return DevicePlan(run, product.device, f"{product.what}, {NOTE}", product.errors)
