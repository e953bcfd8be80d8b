"""Things done wrong, for the rows to see: numbers that libraries get wrong, and choices that Backline makes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backline.engine.cufft_plan_caches import DevicePlans
from backline.libraries.cuda.common import device_plan
from backline.libraries.cuda.common import faults as device_faults
from backline.libraries.cuda.cublas import library as cublas
from backline.libraries.cuda.cudnn import conv_graphs
from backline.libraries.cuda.cusolver import library as cusolver
from backline.libraries.cuda.cusolver import routine_table
from fakes import computing, elementwise, graphs, lapack_numbers, sparsity, transforms

__all__ = ["put_in"]

WRONG = 1.02  # by this factor


def put_in(fault: str) -> None:
    """Have it done wrong from now on, in this process."""
    {"numbers": _numbers, "choices": _choices, "lost": _lost}[fault]()


def _numbers() -> None:
    """Every library's results are a little off."""
    _patch(computing, "product", lambda real: lambda *given: WRONG * real(*given))
    _patch(elementwise.ElementwiseKernel, "__call__", lambda real: lambda self, *given: _values(self, real(self, *given)))
    _patch(graphs, "_convolve", lambda real: lambda node, given, out, *rest, **more: _scaled(out, real, node, given, out, *rest, **more))
    _patch(graphs, "_attend", lambda real: lambda given, results, *rest: _scaled(results[0], real, given, results, *rest))
    _patch(transforms.np.fft, "fftn", lambda real: lambda *given, **more: WRONG * real(*given, **more))
    _patch(lapack_numbers, "lap", lambda real: lambda name, dtype: _off(real(name, dtype)))
    _patch(sparsity.reference_sparse, "places", lambda real: lambda *given: real(*given)[..., ::-1])


def _lost() -> None:
    """Results are off, and after an error the device answers everything with one."""
    _numbers()
    _patch(device_faults, "lost", lambda real: lambda device: "cudaErrorMisalignedAddress: misaligned address")


def _values(kernel: Any, result: Any) -> Any:
    """A kernel's result, wrong unless it holds addresses: wrong ones would end the process."""
    return result if "addresses" in kernel.name else _wrong(result)


def _choices() -> None:
    """Backline chooses what its rules forbid."""
    _patch(conv_graphs, "without", lambda real: lambda problem, name: ())
    _patch(cusolver, "choose", lambda real: _last_way)
    _patch(cublas, "recipe", lambda real: lambda *given: _plain(real(*given)))
    _patch(DevicePlans, "_trim", lambda real: lambda self: [])
    _patch(device_plan, "LEGACY", lambda real: 1 << 62)  # no stream counts as one that records a graph


def _plain(made: Any) -> Any:
    """A product's recipe in the mode that no switch asks for."""
    return replace(made, way=replace(made.way, math_mode=0))


def _last_way(p: Any, name: str, version: Any = None, preference: str = "default") -> Any:
    """The way that comes last, whatever was chosen."""
    return [*routine_table.recipes(p, version, preference)][-1]


def _patch(where: Any, name: str, changed: Callable[[Any], Any]) -> None:
    setattr(where, name, changed(getattr(where, name)))


def _scaled(out: Any, function: Callable[..., Any], *given: Any, **more: Any) -> None:
    function(*given, **more)
    out[...] = (WRONG * out.astype(float)).astype(out.dtype)


def _wrong(made: Any) -> Any:
    """An array of the device, changed where it lies."""
    made.host[...] = (WRONG * made.host.astype(float)).astype(made.host.dtype)
    return made


def _off(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **more: Any) -> Any:
        found = function(*given, **more)
        first = found[0] * WRONG if isinstance(found, tuple) else found * WRONG
        return (first, *found[1:]) if isinstance(found, tuple) else first

    return call
