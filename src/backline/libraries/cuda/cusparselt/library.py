"""2:4 sparse matrices by cuSPARSELt: pruning, compression, products and the search for the fastest way of one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ....errors import BadValue
from ....problems import Operand
from ....problems.sparse_problem import GROUP, SparseProblem
from ... import presence
from ...base import Algorithm, Handler, Refusal
from ..common import bindings
from ..common.binding_library import BindingLibrary
from ..common.descriptors import Descriptors
from ..common.device_facts import capability, index_of
from ..common.device_plan import DevicePlan, at, prepared, refuse_overlaps_of_out
from ..common.streams import current_stream

__all__ = ["CuSPARSELt", "Recipe", "Value", "recipe", "refusal"]

CAPABILITY = (8, 0)  # the first with sparse tensor cores
VERSION = 502  # from here on computation types are numbered as they are now
ALIGNMENT = 16  # bytes, of every address
ROWS, COLUMNS = 2, 1  # CUDA's orders: row by row, column by column
PLAIN, TRANSPOSED = 0, 1
FIRST = 1  # the sparse matrix is the first operand


@dataclass(frozen=True, slots=True)
class Value:
    """A dtype as cuSPARSELt has it."""

    # number, result: CUDA's number of it, and of the product's dtype.
    number: int
    result: int
    # sparse, dense: rows and columns of a sparse matrix are multiples of the first, those of others of the second.
    sparse: int
    dense: int
    compute: str  # name of the computation type
    columns: bool = False  # whether the dense operand must lie column by column
    # most, most_result: elements that a matrix of the dtype may have, and one of the result.
    most: int = 2**31 - 1
    most_result: int = 2**31 - 1


VALUES = {
    "float16": Value(2, 2, 16, 8, "COMPUTE_32F"),
    "bfloat16": Value(14, 14, 16, 8, "COMPUTE_32F"),
    "int8": Value(3, 10, 32, 16, "COMPUTE_32I", columns=True, most=2**32 - 1, most_result=2**30 - 1),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Description of the computation for one Problem."""

    value: Value  # the dtype
    # m, k, n: sizes; `n` is filled up to a multiple of what the library takes.
    m: int
    k: int
    n: int = 0
    order: str = "C"  # how the dense operand lies: "C" or "F"
    # Roles of the operands that are copied first, or after: how they lie is not among what the library takes.
    copies: tuple[str, ...] = ()
    leading: tuple[int, int] = (0, 0)  # elements from row to row (or column to column) of the dense operand and of the result
    # Of the algorithm, by their names in the library; what is not here is left to it.
    attributes: tuple[tuple[str, int], ...] = ()
    workspace: bool = False  # whether the library is asked for the size of a workspace: only the plan made tells it


def refusal(p: SparseProblem, device: tuple[int, int], version: int | None) -> str:
    """Returns why cuSPARSELt does not support a Problem on a device with a capability, or an empty string.

    `version` is the library's, as it numbers it: 800 for 0.8.0; None if it is not known.
    """
    if device < CAPABILITY:
        return f"sparse tensor cores take compute capability 8.0, and the device has {device[0]}.{device[1]}"
    if version is not None and version < VERSION:
        return f"it is version {version}, and {VERSION} is needed"
    value = VALUES.get(p.dtype.name)
    if value is None:
        one = "of float32 it wants every second element to be zero" if p.dtype.name == "float32" else f"not {p.dtype.name}"
        return f"it takes {', '.join(VALUES)}; {one}"
    for name, size in (("rows", p.m), ("columns", p.k)):
        if size % value.sparse:
            return f"{name} of a sparse matrix of {p.dtype.name} are a multiple of {value.sparse}, not {size}"
    n = -(-p.n // value.dense) * value.dense
    for name, count, most in (
        ("the sparse matrix", p.m * p.k, value.most), ("the dense matrix", p.k * n, value.most),
        ("the result", p.m * n, value.most_result),
    ):  # fmt: skip
        if count > most:
            return f"matrices of {p.dtype.name} have at most {most} elements, and {name} has {count}"
    return ""


def recipe(p: SparseProblem) -> Recipe:
    """The recipe for a Problem that `refusal` lets pass."""
    value = VALUES[p.dtype.name]
    if p.op in ("sparse.prune_2_4", "sparse.compress"):
        o = p.operands[0]
        return Recipe(value, p.m, p.k, copies=() if _lies(o, 1) == "C" and _leading(o, "C") == p.k else ("input",))
    b, out = p.get("b"), p.get("out")
    assert b is not None
    n = -(-p.n // value.dense) * value.dense
    lies = _lies(b, value.dense) if n == p.n else ""
    order = "F" if value.columns else lies or "C"
    copies = [] if lies == order else ["b"]
    first = _leading(b, order) if lies == order else (p.k if order == "F" else n)
    second = n
    if out is not None and (n != p.n or _lies(out, value.dense) != "C"):
        copies.append("out")
    elif out is not None:
        second = _leading(out, "C")
    elif n != p.n:
        copies.append("out")
    return Recipe(value, p.m, p.k, n, order, tuple(copies), (first, second), _attributes(p), True)


def _attributes(p: SparseProblem) -> tuple[tuple[str, int], ...]:
    made = []
    if p.parameter("alg_id"):
        made.append(("CONFIG_ID", int(p.parameter("alg_id"))))
    parts = int(p.parameter("split_k", 1))
    if parts > 1:
        made += [("SPLIT_K", parts), ("SPLIT_K_MODE", int(p.parameter("split_k_mode")))]
    return tuple(made)


def _lies(o: Operand, multiple: int) -> str:
    """Returns "C" (row-major) or "F" (column-major) for a matrix in a layout that the library accepts; else an empty string."""
    item = o.dtype.itemsize
    for name, inner, outer in (("C", 1, 0), ("F", 0, 1)):
        step = o.strides[outer]
        if o.strides[inner] == item and step >= o.shape[inner] * item and step % (multiple * item) == 0:
            return name
    return ""


def _leading(o: Operand, order: str) -> int:
    return o.strides[0 if order == "C" else 1] // o.dtype.itemsize


def _algorithms(context: Any, problem: SparseProblem, threads: int) -> Iterator[Algorithm | Refusal]:
    if problem.empty:
        yield Algorithm(library="cusparselt", name="empty", level="threads", basis="construction", note="nothing to compute")
        return
    version = presence.presence("cusparselt").version()
    reason = refusal(problem, capability(index_of(problem)), None if version is None else int(version))
    asked = int(problem.parameter("alg_id") or 0)
    if not reason and asked and asked >= (count := _count_of_algorithms(problem)):
        reason = f"the call asks for algorithm {asked}; for this product it has {count}, from 0 on"
    if reason:
        yield Refusal("cusparselt", "sparse", reason)
        return
    traits: tuple[str, ...] = ()
    if problem.parameter("split_k", 1) != 1 and problem.dtype.name != "int8":
        traits = ("fp16 split-k",) if problem.dtype.name == "float16" else ("bf16 split-k",)
    yield Algorithm(library="cusparselt", name="sparse", level="threads", basis="promise", traits=traits)


def _count_of_algorithms(problem: SparseProblem) -> int:
    """Returns how many algorithms there are for a product: it depends on dtype and layouts, 47, 28 or 8 on one device."""
    asked = ("alg_id", "split_k", "split_k_mode")
    plain = replace(problem, parameters=tuple((name, value) for name, value in problem.parameters if name not in asked))
    device = index_of(problem)
    with bindings.cupy().cuda.Device(device):
        return _Matmul(plain, recipe(plain), device).attribute("CONFIG_MAX_ID")


def _prepare(context: Any, problem: SparseProblem, algorithm: Algorithm) -> DevicePlan:
    device = index_of(problem)
    if algorithm.name == "empty":
        return DevicePlan(_empty(problem), device, problem.key, ())
    lt = bindings.cusparseLt()
    made: dict[str, Callable[..., Callable[..., Any]]] = {
        "sparse.prune_2_4": _Prune, "sparse.compress": _Compress, "sparse.matmul": _Matmul, "sparse.search": _Search,
    }  # fmt: skip
    run = partial(made[problem.op], problem, recipe(problem), device)
    try:
        return prepared(problem, run, f"cuSPARSELt, {problem.key}", (lt.cuSPARSELtError,))
    except lt.cuSPARSELtError as error:
        raise RuntimeError(f"cuSPARSELt: {error}") from error


class CuSPARSELt(BindingLibrary):
    """libcusparseLt, products with 2:4 sparse matrices on sparse tensor cores."""

    modules = ("cusparseLt",)
    handlers: ClassVar = {SparseProblem: Handler(_algorithms, _prepare)}


def _empty(p: SparseProblem) -> Callable[..., Any]:
    out = p.index("out")

    def run(*arrays: Any) -> Any:
        cupy = bindings.cupy()
        if p.op == "sparse.search":
            return 0, 1, 2
        if p.op == "sparse.compress":
            return cupy.zeros((0,), np.uint8)
        target = arrays[out] if out is not None else cupy.empty((p.m, p.k if p.op == "sparse.prune_2_4" else p.n), p.result_dtype)
        target[...] = 0  # sums of nothing
        return target

    return run


# --- what runs ----------------------------------------------------------------------------------------------------

@dataclass(slots=True)
class _Handle:
    """The library on one device. Plans belong to it, and threads share those: they take turns in giving work to the device."""

    address: int
    lock: threading.Lock


_handles: dict[tuple[Any, int], _Handle] = {}
_making = threading.Lock()


def _handle(lt: Any, device: int) -> _Handle:
    """That of a device, which is current."""
    with _making:
        found = _handles.get((lt, device))
        if found is None:
            found = _handles[lt, device] = _Handle(int(lt.init()), threading.Lock())
    return found


def _forget() -> None:
    # CUDA does not live on in a forked child, and another thread of the parent may have held a lock.
    global _making
    _handles.clear()
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class _Step:
    """Base of what runs: a matrix's descriptor and the operand it is about."""

    def __init__(self, p: SparseProblem, made: Recipe, device: int) -> None:
        self.p, self.recipe, self.device = p, made, device
        self.lt = bindings.cusparseLt()
        library = _handle(self.lt, device)
        self.handle, self.lock = library.address, library.lock
        self.held = Descriptors()
        address = self.lt.structured_descriptor_init(
            self.handle, made.m, made.k, made.k, ALIGNMENT, made.value.number, ROWS, self.lt.Sparsity.SPARSITY_50_PERCENT
        )
        self.matrix = self.held.add(address, self.lt.mat_descriptor_destroy)

    def dense(self, rows: int, columns: int, leading: int, number: int) -> int:
        """The descriptor of a dense matrix."""
        address = self.lt.dense_descriptor_init(self.handle, rows, columns, leading, ALIGNMENT, number, ROWS)
        return self.held.add(address, self.lt.mat_descriptor_destroy)

    def input(self, array: Any) -> Any:
        """The operand as the descriptor has it: rows without gaps, at an address that the library takes."""
        return array.copy() if "input" in self.recipe.copies or _misaligned(array) else array


class _Prune(_Step):
    def __call__(self, x: Any) -> Any:
        cupy, lt = bindings.cupy(), self.lt
        x = self.input(x)
        result = cupy.empty((self.p.m, self.p.k), self.p.dtype)
        with self.lock:
            lt.sp_mma_prune2(
                self.handle, self.matrix, FIRST, PLAIN, x.data.ptr, result.data.ptr, lt.PruneAlg.SPMMA_STRIP, current_stream()
            )
        return result


class _Compress(_Step):
    def __call__(self, x: Any) -> Any:
        cupy, lt, p = bindings.cupy(), self.lt, self.p
        x, stream = self.input(x), current_stream()
        if p.parameter("check"):
            wrong = cupy.zeros((1,), np.int32)  # 0.8 writes a 1 where it finds something, and nothing where it does not
            with self.lock:
                lt.sp_mma_prune_check2(self.handle, self.matrix, FIRST, PLAIN, x.data.ptr, wrong.data.ptr, stream)
            if int(wrong.get()[0]):  # waits, as the function says
                raise BadValue(
                    f"compress: input is not 2:4 sparse: more than two of {GROUP} elements side by side are not zero",
                    remedy="prune_2_4(input) first",
                )
        with self.lock:
            size, scratch = (int(n) for n in lt.sp_mma_compressed_size2(self.handle, self.matrix))
            result = cupy.empty((size,), np.uint8)
            area = cupy.cuda.alloc(scratch) if scratch else None
            lt.sp_mma_compress2(
                self.handle, self.matrix, FIRST, PLAIN, x.data.ptr, result.data.ptr, area.ptr if area else 0, stream
            )
        return result


class _Matmul(_Step):
    """A product, its plan made once."""

    def __init__(self, p: SparseProblem, made: Recipe, device: int) -> None:
        super().__init__(p, made, device)
        lt, value, handle, held = self.lt, made.value, self.handle, self.held
        first, second = made.leading
        rows, columns, turned = (made.k, made.n, PLAIN) if made.order == "C" else (made.n, made.k, TRANSPOSED)
        b = self.dense(rows, columns, first, value.number)
        d = self.dense(made.m, made.n, second, value.result)
        compute = getattr(lt.ComputeType, value.compute)
        self.product = held.add(
            lt.matmul_descriptor_init(handle, PLAIN, turned, self.matrix, b, d, d, compute), lt.matmul_descriptor_destroy
        )
        self.choice = held.add(
            lt.matmul_alg_selection_init(handle, self.product, lt.MatmulAlg.DEFAULT), lt.matmul_alg_selection_destroy
        )
        for name, number in made.attributes:
            attribute = lt.MatmulAlgAttribute[name]
            cell = np.full(1, number, lt.get_matmul_alg_attribute_dtype(attribute))
            lt.matmul_alg_set_attribute(handle, self.choice, attribute, cell.ctypes.data, cell.nbytes)
        self.plan = held.add(lt.matmul_plan_init(handle, self.product, self.choice), lt.matmul_plan_destroy)
        self.nbytes = int(lt.matmul_get_workspace(handle, self.plan))
        self.scalars = np.array([1, 0], np.float32)  # alpha and beta, of float32 whatever is multiplied
        self.part, self.b, self.out = p.index("part"), p.index("b"), p.index("out")

    def attribute(self, name: str) -> int:
        """Returns an attribute of the algorithm."""
        attribute = self.lt.MatmulAlgAttribute[name]
        cell = np.zeros(1, self.lt.get_matmul_alg_attribute_dtype(attribute))
        with self.lock:
            self.lt.matmul_alg_get_attribute(self.handle, self.choice, attribute, cell.ctypes.data, cell.nbytes)
        return int(cell[0])

    def __call__(self, *arrays: Any) -> Any:
        p = self.p
        refuse_overlaps_of_out(p, arrays)
        result = self.run(arrays, self.lt.matmul)
        if self.out is None:
            return result[:, : p.n].copy() if self.recipe.n != p.n else result
        if result is not arrays[self.out]:
            arrays[self.out][...] = result[:, : p.n]
        return arrays[self.out]

    def run(self, arrays: tuple[Any, ...], function: Any) -> Any:
        """Give a product, or the search, to CuPy's current stream; the memory that was written to."""
        cupy, made = bindings.cupy(), self.recipe
        assert self.part is not None and self.b is not None
        part, b = arrays[self.part], arrays[self.b]
        part = part.copy() if _misaligned(part) else part
        if "b" in made.copies or _misaligned(b):
            b = self.copied(b)
        target = arrays[self.out] if self.out is not None and "out" not in made.copies else None
        if target is None or _misaligned(target):
            target = cupy.empty((made.m, made.leading[1]), self.p.result_dtype)
        area = cupy.cuda.alloc(self.nbytes) if self.nbytes else None
        streams = np.array([current_stream()], np.uint64)
        alpha, beta = self.scalars.ctypes.data, self.scalars.ctypes.data + 4
        with self.lock:
            function(
                self.handle, self.plan, alpha, part.data.ptr, b.data.ptr, beta, target.data.ptr, target.data.ptr,
                area.ptr if area else 0, streams.ctypes.data, 1,
            )  # fmt: skip
        return target if target.shape[1] == made.n else target[:, : made.n]

    def copied(self, b: Any) -> Any:
        """The dense operand as the plan takes it: filled up with zeros, from row to row or column to column as it says."""
        cupy, made = bindings.cupy(), self.recipe
        leading = made.leading[0]
        shape = (made.k, leading) if made.order == "C" else (made.n, leading)
        copy = cupy.zeros(shape, self.p.dtype)
        here = copy if made.order == "C" else copy.T
        here[: self.p.k, : self.p.n] = b
        return copy


class _Search(_Matmul):
    """The fastest way: the library times those it has, on what lies in the arrays, and writes the result nowhere."""

    def __call__(self, *arrays: Any) -> Any:
        self.run(arrays, self.lt.matmul_search)
        alg_id, parts, mode = map(self.attribute, ("CONFIG_ID", "SPLIT_K", "SPLIT_K_MODE"))
        return (alg_id, parts, mode) if parts > 1 else (alg_id, 1, 2)  # without parts their mode says nothing


def _misaligned(array: Any) -> bool:
    return bool(at(array) % ALIGNMENT)
