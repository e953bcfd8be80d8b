"""Switches whose legal values, or what they read as, depend on the libraries that are there.

A value is checked when the program writes it. Files and the environment may prefer what is absent: importing never fails.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import switches
from ..errors import BadValue
from ..switches import Value, starting_values
from . import _module_factory

__all__: list[str] = []


def _present(backend: str, what: str) -> Callable[[Value], None]:
    def accept(value: Value) -> None:
        if value and not _module_factory.available(backend):
            raise _module_factory.unavailable(backend, f"{what} = {value!r}")

    return accept


def _only_if_present(backend: str) -> Callable[[Value], Value]:
    return lambda value: bool(value) and _module_factory.available(backend)


for _name in ("xnnpack", "opt_einsum"):
    switches.attach(f"{_name}.enabled", _present(_name, f"{_name}.enabled"), _only_if_present(_name))


def _preferred(switch: str) -> Callable[[Value], None]:
    def accept(value: Value) -> None:
        # What a query returns can be set back everywhere. CUDA's usual library for products is what "default" stands for, too.
        if value not in ("default", switches.get(switch)) and not (switch in _BLAS and value in ("cublas", _usual_blas())):
            library = {"ck": "composable_kernel"}.get(str(value), str(value))
            if not _there(library):
                raise _module_factory.unavailable(library, f"{switch} = {value!r}")

    return accept


_BLAS = ("cuda.preferred_blas_library",)


def _usual_blas() -> str:
    from ..libraries import devices

    return devices.usual_blas(devices.current())


def _there(name: str) -> bool:
    from .. import libraries
    from ..libraries.presence import presence

    # A preference may be stated where there is no device yet; what the library lacks for a call is said then.
    return bool(presence(name).available()) or (name in libraries.names() and bool(libraries.get(name).available()))


for _name in ("linalg", "blas", "rocm_fa"):
    _switch = f"cuda.preferred_{_name}_library"
    switches.attach(_switch, _preferred(_switch))


def _on_cuda(switch: str) -> Callable[[Value], None]:
    def accept(value: Value) -> None:
        if not _there("cuda"):
            raise _module_factory.unavailable("cuda", f"{switch} = {value!r}")

    return accept


def _cublas_size(value: Value) -> Value:
    if value != starting_values.RECOMMENDED:
        return value
    from ..libraries import devices

    return starting_values.recommended(devices.capability(devices.current()))


def _cublaslt_size(value: Value) -> Value:
    whole = switches.get("cuda.cublas_workspace_size")
    if value == starting_values.RECOMMENDED:
        return whole
    assert isinstance(value, int) and isinstance(whole, int)
    return min(value, whole) if starting_values.shared() else value


switches.attach("cuda.cublas_workspace_size", _on_cuda("cuda.cublas_workspace_size"), _cublas_size)
switches.attach("cuda.cublaslt_workspace_size", _on_cuda("cuda.cublaslt_workspace_size"), _cublaslt_size)
switches.attach("cuda.cufft_plan_cache.max_size", _on_cuda("cuda.cufft_plan_cache.max_size"))


def _engine(value: Value) -> None:
    from ..libraries import quantized_engines

    there = quantized_engines.supported()
    if value not in there:
        raise BadValue(
            f"quantized.engine = {value!r} is not available here.",
            cause=quantized_engines.reason(str(value)),
            remedy=f"engines that are, the best first: {', '.join(map(repr, there))}",
        )


def _best_engine(value: Value) -> Value:
    from ..libraries import quantized_engines

    return quantized_engines.default() if value == "auto" else value


switches.attach("quantized.engine", _engine, _best_engine)
