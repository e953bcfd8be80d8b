"""oneDNN's objects as Python objects that free themselves: what plans are made of, built once and then only executed.

Every call here is for setting up. A primitive takes the number of threads it is made for from the OpenMP runtime: it is to be
made inside `Engine.threads`, and run with the same count.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

from ... import libraries, switches
from ...native.shared_library import NativeLibrary
from ...problems import Problem
from .. import errata
from . import abi

__all__ = ["Desc", "DnnlError", "Engine", "Handle", "PrimitiveDesc", "defective", "why"]

Made = TypeVar("Made")


class DnnlError(RuntimeError):
    """A call of oneDNN failed."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"oneDNN: {function} failed ({abi.status_text(status)})")
        self.status = status

    @property
    def unimplemented(self) -> bool:
        """Tells whether oneDNN only lacks an implementation of the request, which is not a failure."""
        return self.status in (abi.UNIMPLEMENTED, abi.NO_FURTHER)


def why(error: RuntimeError, what: str) -> str:
    """The reason for a refusal, from what was raised while a primitive was described.

    >>> why(DnnlError("dnnl_matmul_primitive_desc_create", 3), "this product")
    'oneDNN has no implementation for this product'
    """
    return f"oneDNN has no implementation for {what}" if isinstance(error, DnnlError) and error.unimplemented else str(error)


def defective(problem: Problem, algorithm: str) -> tuple[str, ...]:
    """Shell patterns of the names of kernels that, as errata say, must not run a Problem by an algorithm."""
    return errata.kernels(libraries.get("onednn"), problem, algorithm)


class Handle:
    """An object of oneDNN, freed with the last reference to it."""

    __slots__ = ("_argument", "_destroy", "address", "engine")

    def __init__(self, engine: Engine, address: int, kind: str) -> None:
        self.engine, self.address = engine, address
        self._argument = ctypes.c_void_p(address)  # made now: when the interpreter ends, the names of modules are gone
        self._destroy = engine.destroyer(kind)

    def __del__(self) -> None:
        # A descriptor that belongs to another object has no destroyer; neither has one whose making failed.
        destroy = getattr(self, "_destroy", None)
        if destroy is not None:
            destroy(self._argument)


class Desc(Handle):
    """A memory descriptor: sizes, dtype, and how the elements lie."""

    __slots__ = ()

    def __init__(self, engine: Engine, address: int) -> None:
        super().__init__(engine, address, "memory_desc")

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it describes, padding included."""
        function = self.engine.function("dnnl_memory_desc_get_size", ctypes.c_size_t)
        return int(function(ctypes.c_void_p(self.address)))

    @property
    def data_type(self) -> int:
        """oneDNN's number of the dtype."""
        return self._number(abi.LayoutQuery.DATA_TYPE)

    @property
    def has_layout(self) -> bool:
        """Tells whether `layout` is known: oneDNN hides how it packs some weights."""
        return self._number(abi.LayoutQuery.FORMAT_KIND) == abi.BLOCKED

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Strides of blocks, sizes with padding, and the inner blocks with the axes that they are of."""
        of, inner, axes = abi.LayoutQuery, self._number(abi.LayoutQuery.INNER_COUNT), self._number(abi.LayoutQuery.NDIM)
        found: list[tuple[int, ...]] = []
        for what, count in ((of.STRIDES, axes), (of.PADDED_SIZES, axes), (of.INNER_SIZES, inner), (of.INNER_AXES, inner)):
            numbers = ctypes.POINTER(ctypes.c_int64)()
            self._query(what, numbers)
            found.append(tuple(numbers[:count]))
        return tuple(found)

    def _number(self, what: abi.LayoutQuery) -> int:
        result = ctypes.c_int()
        self._query(what, result)
        return result.value

    def _query(self, what: abi.LayoutQuery, result: Any) -> None:
        self.engine.call("dnnl_memory_desc_query", ctypes.c_void_p(self.address), ctypes.c_int(what), ctypes.byref(result))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Desc):
            return NotImplemented
        function = self.engine.function("dnnl_memory_desc_equal", ctypes.c_int)
        return bool(function(ctypes.c_void_p(self.address), ctypes.c_void_p(other.address)))

    __hash__ = None  # type: ignore[assignment]  # how Python says that equal ones have no hash


class PrimitiveDesc(Handle):
    """An operation with everything decided but the addresses."""

    __slots__ = ()

    def __init__(self, engine: Engine, address: int) -> None:
        super().__init__(engine, address, "primitive_desc")

    @property
    def implementation(self) -> str:
        """Name of the kernel that oneDNN took."""
        text = ctypes.c_char_p()
        self.engine.call(
            "dnnl_primitive_desc_query", ctypes.c_void_p(self.address), ctypes.c_int(abi.Query.IMPLEMENTATION),
            ctypes.c_int(0), ctypes.byref(text),
        )  # fmt: skip
        return (text.value or b"").decode("ascii", "replace")

    def desc(self, what: abi.Query, which: int = 0) -> Desc | None:
        """The memory descriptor of an argument, of that one where there are several of its kind; None where it has none."""
        function = self.engine.function("dnnl_primitive_desc_query_md", ctypes.c_void_p)
        found = function(ctypes.c_void_p(self.address), ctypes.c_int(what), ctypes.c_int(which))
        return self.engine.clone(found) if found else None


class Engine:
    """The CPU engine of one loaded oneDNN.

    Parameters
    ----------
    native
        The library.
    thread_guard
        Sets the thread count of the runtime it is bound to, for the calling thread; None for a build without threads.
    pool
        Name of the thread pool behind that runtime.

    Attributes
    ----------
    bf16
        Whether the processor multiplies bfloat16, and oneDNN may use that.
    f16
        The same of float16.
    amx
        Whether it multiplies tiles of bfloat16 and of int8.
    """

    def __init__(self, native: NativeLibrary, thread_guard: Any, pool: str = "") -> None:
        self.native, self.thread_guard, self.pool = native, thread_guard, pool
        self._functions: dict[tuple[str, Any], Any] = {}
        self._described: tuple[Any, Any, dict[Any, Any]] = None, None, {}  # of which Snapshot and Problem, and what
        self.address = self.make("dnnl_engine_create", ctypes.c_int(abi.CPU), ctypes.c_size_t(0))
        self.bf16 = bool(self.isa & abi.Isa.AVX512_BF16)
        self.f16 = bool(self.isa & abi.Isa.AVX512_FP16)
        self.amx = bool(self.isa & abi.Isa.AMX_BF16)

    # calls

    def function(self, name: str, restype: Any = ctypes.c_int) -> Any:
        """A function of the library; its arguments are to be ctypes values."""
        made = self._functions.get((name, restype))
        if made is None:
            address = self.native.address(name)
            if not address:
                raise RuntimeError(f"this oneDNN exports no {name}")
            made = self._functions.setdefault((name, restype), ctypes.CFUNCTYPE(restype)(address))
        return made

    def destroyer(self, kind: str) -> Any:
        return self.function(f"dnnl_{kind}_destroy")

    def call(self, name: str, *args: Any) -> None:
        """Call a function that returns a status.

        Raises
        ------
        DnnlError
            It is not success.
        """
        function, rwlock = self.function(name), self.native.rwlock
        rwlock.acquire_read()
        try:
            status = function(*args)
        finally:
            rwlock.release_read()
        if status:
            raise DnnlError(name, status)

    def make(self, name: str, *args: Any) -> int:
        """Call a function that writes the object it makes to its first argument."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *args)
        return int(made.value or 0)

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        """Inside, primitives are made for that many threads, and run on them."""
        if self.thread_guard is None:
            yield
            return
        former = self.thread_guard.enter(count)
        try:
            yield
        finally:
            self.thread_guard.leave(former)

    def describe(self, make: Callable[..., Made], problem: Problem, threads: int, *name: str) -> Made:
        """Makes layouts and primitive descriptors of a Problem, and keeps them for the plan that may be asked for next."""
        with self.threads(threads):
            made = make(self, problem, threads, *name)
        snapshot, last = switches.current(), self._described
        if last[0] is not snapshot or last[1] is not problem:  # descriptors depend on switches
            last = self._described = snapshot, problem, {}
        last[2][make, threads, *name] = made
        return made

    def described(self, make: Callable[..., Made], problem: Problem, threads: int, *name: str) -> Made:
        """Returns what was described last, if it was this, for a plan, which uses it up; else makes it."""
        snapshot, of, known = self._described
        found: Made | None = None
        if snapshot is switches.current() and of is problem:
            found = known.pop((make, threads, *name), None)  # at once: it must not be written into two plans
        return make(self, problem, threads, *name) if found is None else found

    @property
    def isa(self) -> int:
        """Bits of the instruction sets that it uses; 0 where it does not tell."""
        address = self.native.address("dnnl_get_effective_cpu_isa")
        return int(self.native.call(address, restype=ctypes.c_int)) if address else 0

    # objects

    def desc(self, shape: Sequence[int], dtype: np.dtype[Any], strides: Sequence[int] | None = None) -> Desc:
        """A memory descriptor; strides are in elements, None leaves the layout to the primitive."""
        if len(shape) > abi.MAX_NDIMS:
            raise RuntimeError(f"oneDNN has up to {abi.MAX_NDIMS} dimensions, not {len(shape)}")
        head = (ctypes.c_int(len(shape)), abi.dims(shape), ctypes.c_int(abi.data_type(dtype)))
        if strides is None:
            return Desc(self, self.make("dnnl_memory_desc_create_with_tag", *head, ctypes.c_int(abi.TAG_ANY)))
        return Desc(self, self.make("dnnl_memory_desc_create_with_strides", *head, abi.dims(strides)))

    def clone(self, address: int) -> Desc:
        """A copy of a descriptor that belongs to another object."""
        return Desc(self, self.make("dnnl_memory_desc_clone", ctypes.c_void_p(address)))

    def memory(self, desc: Desc) -> Handle:
        """A memory object without data."""
        made = self.make(
            "dnnl_memory_create", ctypes.c_void_p(desc.address), ctypes.c_void_p(self.address),
            ctypes.c_void_p(abi.ALLOCATED_BY_NOBODY),
        )  # fmt: skip
        return Handle(self, made, "memory")

    def stream(self) -> Handle:
        made = self.make("dnnl_stream_create", ctypes.c_void_p(self.address), ctypes.c_uint(abi.IN_ORDER))
        return Handle(self, made, "stream")

    def attributes(self, post: Sequence[tuple[Any, ...]] = ()) -> Handle:
        """Attributes of a primitive: scratchpad given by the caller, and what is done to each result.

        `post` lists ("sum", scale): that many times what was in the destination is added; ("prelu",): what is negative is
        multiplied by a number given at execution; (alg, alpha, beta): a function.
        """
        attr = Handle(self, self.make("dnnl_primitive_attr_create"), "primitive_attr")
        pointer = ctypes.c_void_p(attr.address)
        # With a scratchpad of its own a primitive gives wrong results to two threads at once.
        self.call("dnnl_primitive_attr_set_scratchpad_mode", pointer, ctypes.c_int(abi.USER_SCRATCHPAD))
        # Whatever the environment's default is: what is reduced here is reduced by reorders, and said to be.
        self.call("dnnl_primitive_attr_set_fpmath_mode", pointer, ctypes.c_int(abi.FPMATH_STRICT))
        if switches.get("mkldnn.deterministic") or switches.get("deterministic"):
            self._deterministic(pointer)
        if post:
            chain = Handle(self, self.make("dnnl_post_ops_create"), "post_ops")
            for kind, *numbers in post:
                to, floats = ctypes.c_void_p(chain.address), [ctypes.c_float(x) for x in numbers]
                if kind == "sum":
                    self.call("dnnl_post_ops_append_sum", to, *floats, ctypes.c_int32(0), ctypes.c_int(0))
                elif kind == "prelu":
                    self.call("dnnl_post_ops_append_prelu", to, ctypes.c_int(0))
                else:
                    self.call("dnnl_post_ops_append_eltwise", to, ctypes.c_int(kind), *floats)
            self.call("dnnl_primitive_attr_set_post_ops", pointer, ctypes.c_void_p(chain.address))
        return attr

    def _deterministic(self, attr: ctypes.c_void_p) -> None:
        """Ask for the same bits in every run; releases before 3.4 have no such attribute, and are not asked."""
        if self.native.address("dnnl_primitive_attr_set_deterministic"):
            self.call("dnnl_primitive_attr_set_deterministic", attr, ctypes.c_int(1))

    def primitive_desc(self, operation: str, *args: Any, attr: Handle | None, avoided: Sequence[str] = ()) -> PrimitiveDesc:
        """A primitive descriptor; `args` are those of its function between engine and attributes.

        Objects are handed on by address, tuples as sizes, floats as float; an int is an enumeration, None is NULL. The kernel is
        oneDNN's first whose name none of the shell patterns in `avoided` has.
        """
        given = [ctypes.c_void_p(self.address), *map(_argument, args), _argument(attr)]
        made = PrimitiveDesc(self, self.make(f"dnnl_{operation}_primitive_desc_create", *given))
        while avoided and any(fnmatchcase(made.implementation, pattern) for pattern in avoided):
            self.call("dnnl_primitive_desc_next_impl", ctypes.c_void_p(made.address))
        return made

    def reorder_desc(self, source: Desc, target: Desc) -> PrimitiveDesc:
        """A primitive descriptor that copies from one layout to another."""
        attr = self.attributes()
        engine = ctypes.c_void_p(self.address)
        return PrimitiveDesc(
            self,
            self.make(
                "dnnl_reorder_primitive_desc_create", _argument(source), engine, _argument(target), engine, _argument(attr)
            ),
        )

    def primitive(self, desc: PrimitiveDesc) -> Handle:
        return Handle(self, self.make("dnnl_primitive_create", ctypes.c_void_p(desc.address)), "primitive")


def _argument(value: Any) -> Any:
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, Handle):
        return ctypes.c_void_p(value.address)
    if isinstance(value, tuple):
        return abi.dims(value)
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int(value)
