"""Memory layout of a product as NVIDIA's column-major routines expect it, and what a call does before and after the routine.

A matrix whose rows are contiguous is its own transpose, column by column. So a result with contiguous rows is computed as
``C.T = B.T @ A.T``, and the operands' strides say which of them the routine is to transpose: nothing is copied unless a matrix
has gaps or repeats along both axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ....problems import Operand, Problem
from ....problems.linear_problem import LinearProblem
from ....problems.matmul_problem import MatmulProblem, View
from . import bindings
from .device_plan import refuse_overlaps, strided

__all__ = ["DTYPES", "Gemm", "Product", "Side", "Target", "gemm_of", "refusal"]

N, T, C = 0, 1, 2  # as both libraries number the operations
LARGEST = 2**31 - 1  # of a size that fits in the routines' usual integers

# Name of a dtype -> cudaDataType.
DTYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1, "complex64": 4, "complex128": 5}


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two matrices that are multiplied."""

    argument: int  # its place among the arrays of the call
    operand: Operand  # its shape and strides, as matrices
    # The operand to copy it to first, or None. Where it repeats along the batch, so does the copy, by strides of 0.
    dense: Operand | None
    op: int  # operation the routine applies: 0 none, 1 transpose, 2 conjugate transpose
    # rows, cols: of the matrix as the routine sees it, before the operation.
    rows: int
    cols: int
    ld: int  # leading dimension, in elements
    items: int | tuple[int, ...]  # bytes from one item of the batch to the next, or each one's offset where they are not regular


@dataclass(frozen=True, slots=True)
class Target:
    """Matrix that the routine writes to: the result, or a dense array that is copied to it. Fields as in `Side`."""

    operand: Operand
    dense: Operand | None
    rows: int
    cols: int
    ld: int
    items: int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gemm:
    """The geometry of one call: ``target = op(first) @ op(second)``, column by column, `batch` times."""

    # m, n, k: sizes as the routine counts them.
    m: int
    n: int
    k: int
    batch: int  # number of products
    # first, second, target: the matrices, in its order.
    first: Side
    second: Side
    target: Target

    @property
    def uniform(self) -> bool:
        """Tells whether the matrices of each batch are at a constant stride."""
        return all(isinstance(s.items, int) for s in (self.first, self.second, self.target))

    @property
    def large(self) -> bool:
        """Tells whether a size, or the elements of one matrix from first to last, need the routines' 64-bit integers."""
        spans = (side.ld * side.cols for side in (self.first, self.second, self.target))
        return max(self.m, self.n, self.k, self.batch, *spans) > LARGEST


def refusal(problem: Problem) -> str:
    """Returns why neither library runs a Problem, or an empty string."""
    if not isinstance(problem, MatmulProblem | LinearProblem):
        return f"it has matrix products, not {problem.op}"
    if problem.dtype.name not in DTYPES:
        return f"products are for {', '.join(DTYPES)}, not {problem.dtype.name}"
    if problem.packed:
        return "it keeps no packed weights"
    if problem.parameter("conj") and problem.m * problem.n > 1:
        return "it conjugates vectors only"
    return ""


def product_of(problem: Problem) -> MatmulProblem:
    """The product in a Problem, with the residual of a layer as C; bias and activation are not in it."""
    if isinstance(problem, MatmulProblem):
        return problem
    assert isinstance(problem, LinearProblem)
    roles = {"a": "a", "b": "b", "residual": "c", "out": "out"}
    operands = tuple(replace(o, role=roles[o.role]) for o in problem.operands if o.role in roles)
    parameters = (("alpha", 1), ("beta", 1)) if problem.get("residual") is not None else ()
    return MatmulProblem(
        "matmul", operands, parameters, "matmul", m=problem.m, n=problem.n, k=problem.k, batch=problem.batch,
        result=problem.result, device=problem.device,
    )  # fmt: skip


def gemm_of(problem: Problem, rows_first: bool = False) -> Gemm:
    """The geometry of a product or a linear layer that `refusal` has nothing against and that is not empty.

    `rows_first`: whether the result must be written with contiguous rows, as an epilogue's bias wants it.
    """
    p = product_of(problem)
    conj = bool(p.parameter("conj"))
    out, out_dense = _target(p, rows_first)
    a, a_dense = _side(p, "a")
    b, b_dense = _side(p, "b")
    # One number is as good either way; a conjugated vector is transposed too, which decides.
    direct = a.layout == "C" if conj else out.layout == "F"
    m, batch = p.m, p.items
    size = p.dtype.itemsize
    rows = (m * view.ld * size for view in (a, out))
    if batch > 1 and not direct and b.items == 0 and a.layout == "C" and (a.items, out.items) == tuple(rows):
        m, batch = m * batch, 1  # one product of all the rows: B is the same for each item

    def side(role: str, view: View, dense: Operand | None, transposed: bool, rows: int, cols: int) -> Side:
        index = problem.index(role)
        assert index is not None
        op = N if not transposed else C if conj and role == "a" else T
        stored = (cols, rows) if view.layout == "C" else (rows, cols)
        items = view.items if batch > 1 else 0
        return Side(index, problem.operands[index], dense, op, *stored, view.ld, items)

    left = side("a", a, a_dense, (a.layout == "C") == direct, m, p.k)
    right = side("b", b, b_dense, (b.layout == "C") == direct, p.k, p.n)
    whole = p.get("out") or Operand.contiguous("out", p.dtype, (*p.batch, p.m, p.n))
    stored = (m, p.n) if direct else (p.n, m)
    target = Target(whole, out_dense, *stored, out.ld, out.items if batch > 1 else 0)
    if direct:
        return Gemm(m, p.n, p.k, batch, left, right, target)
    return Gemm(p.n, m, p.k, batch, right, left, target)


def _side(p: MatmulProblem, role: str) -> tuple[View, Operand | None]:
    """An operand as the routine can read it, and the copy that takes, if one is needed."""
    view = p.view(role)
    assert view is not None
    if view.layout != "X":
        return view, None
    o = p.get(role)
    assert o is not None
    # A matrix that repeats along the batch is copied once.
    shape = tuple(1 if s == 0 else n for n, s in zip(o.shape[:-2], o.strides[:-2], strict=True)) + o.shape[-2:]
    dense = Operand.contiguous(role, p.dtype, shape)
    view = replace(p, operands=tuple(dense if each.role == role else each for each in p.operands)).view(role)
    assert view is not None
    return view, dense


def _target(p: MatmulProblem, rows_first: bool) -> tuple[View, Operand | None]:
    shape = (*p.batch, p.m, p.n)
    whole = Operand.contiguous("out", p.dtype, shape)
    given = p.get("out")
    with_out = p if given is not None else replace(p, operands=(*p.operands, whole))
    view = with_out.view("out")
    assert view is not None
    if view.layout == "X" or (rows_first and view.layout != "C"):
        view = replace(with_out, operands=tuple(whole if o.role == "out" else o for o in with_out.operands)).view("out")
        assert view is not None
        return view, whole
    return view, None


class Product:
    """Does what surrounds the routine: the result's memory, copies, C, empty products. A library's Plan says how it is called.

    Of a product or a linear layer, and its geometry, which is None if it is empty.
    """

    def __init__(self, problem: Any, gemm: Gemm | None) -> None:
        self.problem, self.gemm = problem, gemm
        self.kind = problem.dtype  # of a result that is made here
        product = product_of(problem)
        self.out = problem.index("out")
        self.whole = problem.get("out") or Operand.contiguous("out", product.dtype, (*problem.batch, problem.m, problem.n))
        role = "residual" if isinstance(problem, LinearProblem) else "c"
        added = problem.index(role)
        self.added = added if product.beta != 0 else None
        self.beta, self.alpha = (product.beta if self.added is not None else 0), product.alpha
        # Nothing is copied or added to: what is left is to call the routine.
        self.plain = gemm is not None and self.added is None
        self.plain &= gemm is not None and not (gemm.first.dense or gemm.second.dense or gemm.target.dense)
        self.new = bindings.cupy().empty
        self.read = tuple(i for i, o in enumerate(problem.operands) if i != self.out and (i != added or self.added is not None))
        self.extents = tuple((i, *problem.operands[i].extent()) for i in self.read)
        self.extent = self.whole.extent()

    def launch(self, first: Any, second: Any, target: Any, arrays: tuple[Any, ...]) -> None:
        """Call the routine; the arrays lie as the geometry says, and the target holds C where there is one."""
        raise NotImplementedError

    def __call__(self, *arrays: Any) -> Any:
        p, gemm = self.problem, self.gemm
        if self.out is None:
            result = self.new(p.result, self.kind)
        else:
            result = arrays[self.out]
            if self._near(result, arrays):
                others = [(arrays[i], p.operands[i]) for i in self.read if not self._is_c(i, arrays, result)]
                refuse_overlaps(result, self.whole, others)
        if self.plain:
            assert gemm is not None
            self.launch(arrays[gemm.first.argument], arrays[gemm.second.argument], result, arrays)
            return result
        if gemm is None:
            self._empty(result, arrays)
            return result
        temporary = gemm.target.dense
        target = result if temporary is None else self.new(temporary.shape, p.dtype)
        seen = self.whole if temporary is None else temporary
        if self.added is not None and (temporary is not None or not self._is_c(self.added, arrays, result)):
            self._copy_c(strided(target, seen.shape, seen.strides), arrays)
        self.launch(self._given(gemm.first, arrays), self._given(gemm.second, arrays), target, arrays)
        if temporary is not None:
            strided(result, self.whole.shape, self.whole.strides)[...] = target
        return result

    def _near(self, result: Any, arrays: tuple[Any, ...]) -> bool:
        """Tells whether the output's byte range overlaps that of an operand; only then may they have elements in common."""
        at = result.data.ptr
        low, high = at + self.extent[0], at + self.extent[1]
        for i, begin, end in self.extents:
            at = arrays[i].data.ptr
            if low < at + end and at + begin < high:
                return True
        return False

    def _is_c(self, index: int, arrays: tuple[Any, ...], result: Any) -> bool:
        """Tells whether an operand is C and has the result's address and strides: each element is read where it is written."""
        if index != self.added:
            return False
        o = self.problem.operands[index]
        return bool(arrays[index].data.ptr == result.data.ptr and _steps(o) == _steps(self.whole))

    def _copy_c(self, target: Any, arrays: tuple[Any, ...]) -> None:
        assert self.added is not None
        o = self.problem.operands[self.added]
        target[...] = strided(arrays[self.added], o.shape, o.strides)

    def _given(self, side: Side, arrays: tuple[Any, ...]) -> Any:
        array = arrays[side.argument]
        if side.dense is None:
            return array
        return bindings.cupy().ascontiguousarray(strided(array, side.dense.shape, side.operand.strides))

    def _empty(self, result: Any, arrays: tuple[Any, ...]) -> None:
        """A product without terms is 0, and what C gives."""
        if 0 in self.whole.shape:
            return
        if self.added is None:
            result.fill(0)
            return
        o = self.problem.operands[self.added]
        view = strided(result, self.whole.shape, self.whole.strides)
        view[...] = strided(arrays[self.added], o.shape, o.strides) * self.beta


def _steps(o: Operand) -> tuple[tuple[int, int], ...]:
    """Returns the size and stride of each axis of an operand, without axes of size 1, whose strides do not matter."""
    return tuple((n, s) for n, s in zip(o.shape, o.strides, strict=True) if n != 1)
