"""Arrays of PyTorch and JAX in the memory of the host: NumPy's views of them, and results as arrays of the kind that went in.

Their packages are not imported here: whoever made such an array has done it. A call with one runs as it would with NumPy arrays,
on views of the same memory, and so under the same switches and plans. CuPy and MLX have kernels of their own (`array_kinds`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from ..errors import BacklineError, BadType, BadValue
from ..records import Record
from .array_kinds import kind_of

__all__ = [
    "HostKind", "as_numpy", "call", "host_kind_of", "jax_array", "register", "taking_host_arrays", "torch_dtype", "torch_memory",
    "torch_tensor", "unregister", "view_of",
]  # fmt: skip

Array = np.ndarray[Any, Any]
F = TypeVar("F", bound=Callable[..., Any])
DEPTH = 2  # of the tuples and lists that arrays are looked for in
# What no argument with an array in it is: told apart before anything else is asked of it.
_PLAIN = frozenset((np.ndarray, int, float, bool, str, complex, type(None)))


def _by_dlpack(array: Any, where: str) -> Array:
    """NumPy's view of an array that has the DLPack protocol, without a copy."""
    device, number = array.__dlpack_device__()
    if int(device) != 1:
        raise _elsewhere(where, f"DLPack device {int(device)}:{int(number)}")
    try:
        return np.from_dlpack(array, copy=False)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise _not_viewed(where, error) from None


class HostKind(Record):
    """One kind of array whose data lie in the memory of the host, or may.

    Attributes
    ----------
    title
        Name of its library, for messages.
    packages
        First parts of the module of its type.
    type_names
        Names of the type, or of one that it is derived from.
    view
        Returns NumPy's view of an array; the second argument says where it stands, for errors.
    back
        Returns an array of this kind with the memory of a NumPy array that nobody else has.
    dtype
        Returns NumPy's dtype for one of the library's own; None for any other value.
    written
        Tells the library that Backline wrote to an array; None where nothing may write to them.
    from_cuda, stream
        Functions of `cuda_views`: what returns an array of this kind with the memory of one of CuPy's, where `view` may return
        such; the context in which work on an array is done, where that is not CuPy's current stream.
    """

    title: str
    packages: tuple[str, ...]
    type_names: tuple[str, ...]
    view: Callable[[Any, str], Array] = _by_dlpack
    back: Callable[[Array], Any] = lambda array: array
    dtype: Callable[[Any], np.dtype[Any] | None] = lambda value: None
    written: Callable[[Any], None] | None = lambda array: None
    from_cuda: str = ""
    stream: str = ""


def _of_ml_dtypes(name: str) -> np.dtype[Any]:
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def _cuda(where: str, device: str) -> Any:
    """The module that has CuPy's views of arrays on CUDA devices; a `BadValue` where there is no CuPy."""
    from . import cuda_views  # which few programs need

    reason = cuda_views.reason()
    if reason:
        raise BadValue(
            f"{where} is on {device}", cause=f"on CUDA devices Backline computes with CuPy: {reason}",
            remedy="a copy on the CPU, or pip install 'backline[cuda13]'",
        )  # fmt: skip
    return cuda_views


def _elsewhere(where: str, device: str) -> BadValue:
    return BadValue(
        f"{where} is on {device}", cause="arrays of this kind are computed with in the memory of the host",
        remedy="a copy on the CPU; or cupy.from_dlpack(x) for Backline's operations on a CUDA device",
    )  # fmt: skip


def _not_viewed(where: str, error: Exception) -> BadType:
    return BadType(f"{where} has no NumPy view: {error}", remedy="an array of its own with plain strides on the CPU")


# PyTorch ----------------------------------------------------------------------------------------------------------------


OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # dtypes that NumPy has from there


def _torch_view(tensor: Any, where: str) -> Array:
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        raise BadType(
            f"{where} is a {type(tensor).__name__}, a class derived from torch.Tensor that may have rules of its own",
            remedy="a plain tensor: x.as_subclass(torch.Tensor)",
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise BadType(
            f"{where} is a tensor that requires grad", cause="this call would record no gradient",
            remedy="torch.ops.backline, from import backline.interop.torch, records one; or torch.no_grad(), or x.detach()",
        )  # fmt: skip
    return torch_memory(tensor, where)


def torch_memory(tensor: Any, where: str) -> Array:
    """Returns NumPy's view of a tensor, whether a gradient is recorded of it or not."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise BadType(f"{where} is a tensor of layout {tensor.layout}", cause="it is not dense", remedy="x.to_dense()")
    if tensor.is_quantized:
        raise BadType(f"{where} is a quantized tensor", remedy="x.dequantize(), or backline.quantized.quantize")
    if tensor.device.type == "meta":
        raise BadType(f"{where} is a tensor without data, on the device meta", remedy="a tensor on the CPU")
    if tensor.device.type == "cuda" and torch.version.cuda:
        there: Array = _cuda(where, str(tensor.device)).torch_view(tensor, torch_dtype(tensor.dtype))
        return there
    if tensor.device.type != "cpu":
        raise _elsewhere(where, str(tensor.device))
    plain = tensor.detach()
    copied = plain.is_conj() or plain.is_neg()  # a view that is conjugated when it is read
    if copied:
        plain = plain.resolve_conj().resolve_neg()
    try:
        if str(plain.dtype).removeprefix("torch.") in OF_ML_DTYPES:
            own, same = torch_dtype(plain.dtype), (torch.uint8, torch.int16)[plain.element_size() - 1]
            view: Array = plain.view(same).numpy().view(own)
        else:
            view = plain.numpy()
    except (RuntimeError, TypeError) as error:
        raise _not_viewed(where, error) from None
    if copied:
        view.flags.writeable = False  # as `out` it would be written to in vain
    return view


def torch_tensor(array: Array) -> Any:
    """Returns a tensor with the memory of an array; with a copy of it where tensors have no such layout."""
    torch = sys.modules["torch"]
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def torch_dtype(value: Any) -> np.dtype[Any] | None:
    """Returns NumPy's dtype for one of PyTorch's; None for any other value.

    >>> torch_dtype("float32") is None
    True
    """
    if type(value).__module__ != "torch" or type(value).__name__ != "dtype":
        return None
    name = str(value).removeprefix("torch.")
    try:
        return _of_ml_dtypes(name) if name in OF_ML_DTYPES else np.dtype(name)
    except TypeError:
        raise BadType(f"{value} is a dtype that NumPy has not", remedy="torch.float32, or another one of NumPy's") from None


def _torch_written(tensor: Any) -> None:
    if not tensor.is_inference():  # those have no version
        sys.modules["torch"].autograd.graph.increment_version(tensor)


# JAX --------------------------------------------------------------------------------------------------------------------


def _jax_view(array: Any, where: str) -> Array:
    jax = sys.modules["jax"]
    if isinstance(array, jax.core.Tracer):
        raise BadType(
            f"{where} is a value that JAX traces, without data", cause="Backline computes with data in memory",
            remedy="the operation of this name in backline.interop.jax, which JAX can trace",
        )  # fmt: skip
    try:
        devices = array.devices()
        if len(devices) > 1:
            raise BadValue(f"{where} is spread over {len(devices)} devices", remedy="jax.device_put(x, jax.devices('cpu')[0])")
        device = next(iter(devices))
        if device.platform in ("gpu", "cuda"):
            there: Array = _cuda(where, str(device)).by_dlpack(array, where)
            return there
        if device.platform != "cpu":
            raise _elsewhere(where, str(device))
        view = np.asarray(array)
    except BacklineError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        raise _not_viewed(where, error) from None
    if view.flags.writeable:
        view = view.view()
        view.flags.writeable = False
    return view


def jax_array(array: Array) -> Any:
    """Returns a JAX array of a result, without a copy where its memory is aligned as XLA wants it."""
    jax = sys.modules["jax"]
    if not jax.config.jax_enable_x64 and array.dtype.itemsize >= 8 and array.dtype != np.complex64:
        if array.dtype.kind in "fc":
            raise BadType(
                f"the result is {array.dtype}", cause="JAX has numbers of 32 bits unless it is told otherwise",
                remedy='jax.config.update("jax_enable_x64", True), or operands of float32',
            )  # fmt: skip
        array = array.astype(np.uint32 if array.dtype.kind == "u" else np.int32)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array).reshape(array.shape)
    return jax.device_put(array, jax.local_devices(backend="cpu")[0], may_alias=True)


# Numba ------------------------------------------------------------------------------------------------------------------


def _numba_view(array: Any, where: str) -> Any:
    return _cuda(where, "a CUDA device").by_cuda_array_interface(array, where)


def _views() -> Any:
    from . import cuda_views

    return cuda_views


# The table --------------------------------------------------------------------------------------------------------------

_KINDS: dict[str, HostKind] = {}
_known: WeakKeyDictionary[type, HostKind | None] = WeakKeyDictionary()  # types that were looked at


def register(kind: HostKind) -> None:
    """Adds a kind of array, or replaces one of its packages."""
    _KINDS.update(dict.fromkeys(kind.packages, kind))
    _known.clear()


def unregister(kind: HostKind) -> None:
    """Removes a kind that was registered."""
    for package in kind.packages:
        del _KINDS[package]
    _known.clear()


_CUDA = {"from_cuda": "torch_result", "stream": "torch_stream"}
register(HostKind("PyTorch", ("torch",), ("Tensor",), _torch_view, torch_tensor, torch_dtype, _torch_written, **_CUDA))
_JAX = ("ArrayImpl", "Array", "Tracer", "PRNGKeyArray")
register(HostKind("JAX", ("jax", "jaxlib"), _JAX, _jax_view, jax_array, written=None, from_cuda="jax_result"))
register(HostKind("Numba", ("numba",), ("DeviceNDArray", "DeviceNDArrayBase"), _numba_view, from_cuda="numba_result"))


def host_kind_of(value: object) -> HostKind | None:
    """Returns the kind of an array of PyTorch, JAX or another kind that was registered; None for everything else.

    >>> import numpy as np
    >>> host_kind_of(np.zeros(3)) is None, host_kind_of("text") is None
    (True, True)
    """
    made_of = type(value)
    if made_of not in _known:
        _known[made_of] = next((kind for made in made_of.__mro__ if (kind := _named(made)) is not None), None)
    return _known[made_of]


def _named(made: type) -> HostKind | None:
    kind = _KINDS.get(made.__module__.partition(".")[0])
    return kind if kind is not None and made.__name__ in kind.type_names else None


def _kind_among(values: Any, depth: int = DEPTH) -> HostKind | None:
    """The kind of the first such array among values, and those of tuples and lists in them."""
    for value in values:
        if type(value) in _PLAIN:
            continue
        within = isinstance(value, (tuple, list)) and depth
        kind = _kind_among(value, depth - 1) if within else host_kind_of(value)
        if kind is not None:
            return kind
    return None


def view_of(value: Any, where: str) -> Any:
    """Returns NumPy's view of such an array, and any other value as it is."""
    kind = host_kind_of(value)
    return value if kind is None else kind.view(value, where)


class _Views:
    """NumPy's views of the arrays of one call. What is one array in several places stays one."""

    def __init__(self, where: str, kind: HostKind) -> None:
        self.where, self.kind = where, kind
        self.seen: dict[int, tuple[Any, Array]] = {}  # array and view, by the identity of the array
        self.origins: dict[int, Any] = {}  # arrays by the identity of the view, which `seen` keeps
        self.on_cuda: Any = None  # an array that CuPy has a view of
        self.on_host: Any = None  # one that NumPy has a view of

    def of(self, value: Any, name: str, depth: int = DEPTH) -> Any:
        if type(value) in _PLAIN and type(value) is not np.ndarray:
            return value
        if isinstance(value, (tuple, list)) and depth:
            parts = [self.of(part, f"{name}[{i}]", depth - 1) for i, part in enumerate(value)]
            return parts if type(value) is list else tuple(parts)
        kind = host_kind_of(value)
        if kind is self.kind:
            if name.partition("[")[0] == "out" and kind.written is None:
                raise BadType(f"{self.where}: out", cause=f"nothing writes to arrays of {kind.title}", remedy="take the result")
            if id(value) not in self.seen:
                view = kind.view(value, f"{self.where}: {name}")
                if isinstance(view, np.ndarray):
                    self.on_host = value
                else:
                    self.on_cuda = value
                self.seen[id(value)] = value, view
                self.origins[id(view)] = value
            return self.seen[id(value)][1]
        other = kind or kind_of(value)
        if other is not None or isinstance(value, np.ndarray):
            title = "NumPy" if other is None else other.title
            raise BadType(
                f"{self.where}: {name} is an array of {title}, another argument is one of {self.kind.title}",
                cause="one call takes arrays of one kind", remedy="convert them first: Backline does not choose for you",
            )  # fmt: skip
        own = self.kind.dtype(value)
        return value if own is None else own

    def place(self) -> AbstractContextManager[Any]:
        """The context in which the call runs; refuses arrays in the memory of the host beside those of a device."""
        if self.on_cuda is None:
            return nullcontext()
        if self.on_host is not None:
            what = f"{self.where}: operands are on the host and on a CUDA device"
            raise BadValue(what, remedy="copy them to one device first")
        return getattr(_views(), self.kind.stream)(self.on_cuda) if self.kind.stream else nullcontext()

    def back(self, result: Any) -> Any:
        on_cuda = self.on_cuda is not None and _views().on_cuda(result)
        if on_cuda or isinstance(result, np.ndarray):
            given = self.origins.get(id(result))
            if given is None:
                return getattr(_views(), self.kind.from_cuda)(result) if on_cuda else self.kind.back(result)
            if self.kind.written is not None and (on_cuda or result.flags.writeable):  # it was `out`
                self.kind.written(given)
            return given
        if isinstance(result, np.generic):
            return self.kind.back(np.array(result))
        return _parted(result, self.back)


def _parted(result: Any, one: Callable[[Any], Any]) -> Any:
    """Returns tuples, named ones too, and lists with every part converted by `one`; anything else as it is."""
    if isinstance(result, tuple):
        parts = [one(part) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return [one(part) for part in result] if type(result) is list else result


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...] = ()) -> Any:
    """Calls a function of NumPy arrays with views of arrays of another kind; `NotImplemented` where there are none.

    Parameters
    ----------
    function
        What is called; its name is that of errors.
    args, kwargs
        Arguments of the call. All arrays among them have to be of one kind.
    names
        Names of its first parameters where its signature has not all of them.
    """
    kind = _kind_among((*args, *kwargs.values()))
    if kind is None:
        return NotImplemented
    made = _Views(function.__name__, kind)
    known = names or getattr(function, "parameters", None) or _parameters(function)
    named = (*known, *(f"operand {i}" for i in range(len(known), len(args))))
    plain = [made.of(value, name) for name, value in zip(named, args, strict=False)]
    named_plain = {name: made.of(value, name) for name, value in kwargs.items()}
    with made.place():
        return made.back(function(*plain, **named_plain))


@lru_cache(maxsize=512)
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    found = inspect.signature(function).parameters.items()
    return tuple(name for name, p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def as_numpy(where: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of a call with views in the place of such arrays."""
    kind = _kind_among((*args, *kwargs.values()))
    if kind is None:
        return args, kwargs
    made = _Views(where, kind)
    plain = tuple(made.of(value, f"argument {i}") for i, value in enumerate(args))
    return plain, {name: made.of(value, name) for name, value in kwargs.items()}


def taking_host_arrays(function: F) -> F:
    """Decorator of a function of NumPy arrays, for functions that do not look at kinds of arrays otherwise."""

    @wraps(function)
    def either(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is np.ndarray:
            return function(*args, **kwargs)
        result = call(function, args, kwargs)
        return function(*args, **kwargs) if result is NotImplemented else result

    return either  # type: ignore[return-value]  # it has the signature of `function`, which `wraps` does not say
