"""Factorizations and triangular systems in blocks of a fixed size: LAPACK's own blocked algorithms, written out as steps.

A panel is factored by one thread; then threads share blocks of the columns that are left, each of which is swapped, solved and
updated by calls of one thread. The blocks follow from the sizes of the matrix, so the bits do not depend on how many threads
share them; where the same bits are not asked for, LU has one block a thread. LU factors the next panel ahead: a thread does so as
soon as it has updated it, while the others update theirs. A `Writer` whose algorithm is not in parts makes one call of LAPACK
instead.

References: LAPACK Users' Guide, third edition, section 3.4 (block algorithms); G. H. Golub, C. F. Van Loan: Matrix Computations,
sections 3.4, 4.2 and 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ... import _kernels
from ...native import thread_team
from ...native.plan_builder import Pointer, shift
from .. import fixed_order
from ..kernels.conv_steps import cut, same
from ..kernels.vector_level import vector_level
from .blas_traits import COLUMN, LETTER, PLAIN, TRANSPOSED
from .lapack_steps import Writer

__all__ = ["IN_PARTS", "Parts"]

#: Operation -> algorithms in parts, each with the LAPACK functions that it calls beside those of the whole one.
IN_PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "linalg.cholesky": {"potrf": ()},
    "linalg.qr": {"geqrf": ("{t}larft", "{t}larfb")},
    "linalg.inv": {"getri": ("{t}getrs", "{t}laswp")},
    "linalg.solve": {"getrs": ("{t}laswp",)},
    "linalg.lu_solve": {"getrs": ()},
    "cholesky_solve": {"potrs": ()},
    "linalg.solve_triangular": {"trsm": ()},
    **{f"linalg.{name}": {"getrf": ("{t}laswp",)} for name in ("lu_factor", "lu", "det", "slogdet")},
}
LEFT, RIGHT, UPPER, LOWER, NON_UNIT, UNIT, ADJOINT = 141, 142, 121, 122, 131, 132, 113
BLOCKS, LEAST = 16, 32  # into which columns are divided at least, where each then has so many
ROUND = 8  # columns of which a thread's share is a multiple
PANEL_COLUMNS = 1.75  # of a panel's width, whose update takes as long as factoring the panel
LEAST_IN_LINES = 256  # rows of a matrix of which lines are copied by all threads
SOLVED = 64  # rows of a system that are solved at a time where there are few right-hand sides


def panel_of(k: int) -> int:
    """Returns how many columns a panel has, of k that are factored: wide panels take one thread long, narrow ones slow products.

    Examples
    --------
    >>> panel_of(100), panel_of(1000), panel_of(4000)
    (32, 64, 128)
    """
    return 32 if k < 400 else 64 if k < 1500 else 128


def blocks_of(first: int, last: int) -> list[tuple[int, int]]:
    """Returns blocks of columns as (first, count)."""
    width = max(LEAST, -(-(last - first) // (BLOCKS * LEAST)) * LEAST)
    return [(c, min(width, last - c)) for c in range(first, last, width)]


def ahead(threads: int, first: int, last: int, panel: int) -> list[tuple[int, int]]:
    """Returns a block of columns for each thread as (first, count): the one that factors the next panel has fewer of them.

    Examples
    --------
    >>> ahead(2, 64, 400, 64), ahead(2, 300, 400, 64), ahead(4, 0, 400, 0)
    ([(64, 112), (176, 224)], [(300, 64), (364, 36)], [(0, 104), (104, 104), (208, 104), (312, 88)])
    """
    share = (last - first + PANEL_COLUMNS * panel) / threads
    own = min(max(panel, _rounded(share - PANEL_COLUMNS * panel)), last - first)
    width = max(_rounded((last - first - own) / (threads - 1)), ROUND)
    blocks = [(first, own)] if own else []
    return blocks + [(c, min(width, last - c)) for c in range(first + own, last, width)]


def ahead_in_blocks(first: int, last: int, panel: int) -> list[tuple[int, int]]:
    """Returns blocks of columns for any number of threads: the next panel, empty ones while it is factored, then the others.

    Examples
    --------
    >>> ahead_in_blocks(32, 160, 32), ahead_in_blocks(128, 160, 32)
    ([(32, 32), (32, 0), (32, 0), (64, 32), (96, 32), (128, 32)], [(128, 32)])
    """
    blocks = blocks_of(first + panel, last)
    if not panel or not blocks:
        return [(first, panel)] * bool(panel) + blocks
    idle = round((1 + PANEL_COLUMNS) * panel / blocks[0][1]) - 1
    return [(first, panel), *[(first, 0)] * max(idle, 0), *blocks]


def _rounded(columns: float) -> int:
    return -(-int(columns) // ROUND) * ROUND


def evenly(blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns blocks whose work grows or shrinks along the matrix, so that each thread's share of the list has some of both."""
    return [block for pair in zip(blocks, reversed(blocks), strict=True) for block in pair][: len(blocks)]


class Parts(Writer):
    """Factorizations and systems of matrices that lie in columns without gaps, whole or in parts."""

    # pieces of steps --------------------------------------------------------------------------------------------------

    def integers(self, values: Sequence[int]) -> Pointer:
        """Returns integers by reference, one for each item of a group."""
        pointer = self.b.packed(f"<{len(values)}{'q' if self.native.int_size == 8 else 'i'}", *values)
        return pointer[0], pointer[1], self.native.int_size

    def cblas(self, name: str, *arguments: Any) -> None:
        self.b.call(self.native.cblas(LETTER[self.dtype.name] + name), list(arguments))

    def factor(self, value: float) -> Any:
        return self.b.number(value, self.dtype) if self.complex else self.dtype.type(value)

    def share(self, count: int) -> None:
        """Ends a group of so many items, which the threads share."""
        self.b.each(count, self.threads)

    def clear_info(self) -> None:
        """Has the info begin with 0 where steps of several panels may set it."""
        if self.in_parts:
            zeros = self.b.constant(bytes(8))
            self.b.copy((1, 1), zeros, (0, 0), self.info(), (8, 8), self.native.int_size)

    def panel_infos(self, count: int) -> Pointer:
        """Returns an info of 0 for each panel."""
        step = self.native.int_size
        infos = self.b.work(step * count)
        self.b.copy((1, count), self.b.constant(bytes(8)), (0, 0), infos, (0, step), step)
        return infos

    def gather(self, k: int, width: int, infos: Pointer, pivots: Pointer | int) -> None:
        """Sets the info by those of the panels, unless it is set, and counts pivots from the first row of the matrix."""
        fields = self.b.packed("<3q", self.native.int_size, k, width)
        self.b.call(_kernels.addresses["panel_results"], [fields, infos, pivots, self.info()])

    # factorizations ---------------------------------------------------------------------------------------------------

    def factor_lu(self, m: int, n: int, a: Pointer, pivots: Pointer) -> None:
        """A = P L U in the place of A."""
        if not self.in_parts:
            self.lapack("{t}getrf", m, n, a, m, pivots, self.info())
            return
        k, step, size = min(m, n), self.native.int_size, self.size
        width = panel_of(k)
        divide = partial(ahead, self.threads) if self.by_threads else ahead_in_blocks
        stages = [(j, end, divide(end, n, min(width, k - end))) for j in range(0, k, width) for end in (min(j + width, k),)]
        a, pivots = fixed_order.alone(a), fixed_order.alone(pivots)
        self.clear_info()
        # Behind those of the panels is what the other blocks write, which factor no panel.
        infos = self.panel_infos(len(stages) + max(len(blocks) for _, _, blocks in stages))
        self.lapack("{t}getrf", m, min(width, k), a, m, pivots, infos)
        self.b.each()
        for n_panel, (j, end, blocks) in enumerate(stages, 1):
            if not blocks:
                continue
            w, panel, sizes = end - j, min(width, k - end), [count for _, count in blocks]
            corner, counts, one = shift(a, (j + j * m) * size), same(sizes), self.factor(1)
            columns = fixed_order.places(shift(a, j * size), 1, [c * m * size for c, _ in blocks])
            below = shift(columns, w * size)
            self.lapack("{t}laswp", self.integers(sizes), columns, m, 1, w, shift(pivots, j * step), 1)
            self.cblas("trsm", COLUMN, LEFT, LOWER, PLAIN, UNIT, w, counts, one, corner, m, columns, m)
            if m > end:
                left = shift(corner, w * size)
                self.cblas("gemm", COLUMN, PLAIN, PLAIN, m - end, counts, w, self.factor(-1), left, m, columns, m, one, below, m)
            if panel:  # by the thread of the first block, while the others go on with theirs
                places = [n_panel * step, *((len(stages) + i) * step for i in range(1, len(blocks)))]
                info = fixed_order.places(fixed_order.alone(infos), 1, places)
                few = self.integers([panel, *(0 for _ in blocks[1:])])
                self.lapack("{t}getrf", m - end, few, below, m, shift(pivots, end * step), info)
            self.share(len(blocks))
        self.gather(k, width, infos, pivots)
        self.b.each()
        # The rows of a panel are swapped as those after it were, now that all are known.
        done = evenly([(j, width) for j, end, _ in stages if end < k])
        if done:
            columns = fixed_order.places(a, 1, [j * m * size for j, _ in done])
            self.lapack("{t}laswp", width, columns, m, self.integers([j + width + 1 for j, _ in done]), k, pivots, 1)
            self.share(len(done))

    def has_lines(self, n: int, order: str) -> bool:
        """Tells if a matrix is large, alone, and without gaps between the elements of a line."""
        o = self.p.get("a")
        assert o is not None
        return self.p.items == 1 and n >= LEAST_IN_LINES and o.aligned and o.strides[-1 if order == "C" else -2] == self.size

    def load_triangle(self, n: int, order: str, upper: bool, factor: Pointer) -> None:
        """Copies one triangle of a matrix in lines, and zeros for the other, by all threads.

        The info is 1 where the triangle holds NaN or infinity.
        """
        a, strides, _ = self.source("a")
        apart = strides[0 if order == "C" else 1]
        fields = self.b.packed(
            "<6q", self.real.itemsize, 2 if self.complex else 1, vector_level(), n, apart, int(upper == (order == "C"))
        )
        blocks = evenly(blocks_of(0, n))
        flags = self.b.work(4 * len(blocks), shared=True)
        self.b.each()
        lines = [first for first, _ in blocks], [count for _, count in blocks]
        flag = flags[0], flags[1], tuple(4 * i for i in range(len(blocks)))
        a, to = fixed_order.alone(a), fixed_order.alone(factor)
        self.b.call(_kernels.addresses["copy_triangle"], [fields, a, to, *lines, flag])
        self.b.each(len(blocks), thread_team.items_threads(self.threads))
        self.b.call(_kernels.addresses["any_flag"], [len(blocks), flags], returns=3, to=self.info())

    def factor_cholesky(self, uplo: str, n: int, a: Pointer) -> None:
        """A = L L^H or U^H U in the place of the triangle of A that is read; `clear_info` comes before."""
        if not self.in_parts:
            self.lapack("{t}potrf", uplo, n, a, n, self.info())
            return
        size, lower, width, a = self.size, uplo == "L", panel_of(n), fixed_order.alone(a)
        turned, rank_update = (ADJOINT, "herk") if self.complex else (TRANSPOSED, "syrk")
        minus, one = self.factor(-1), self.factor(1)
        reals = [self.real.type(-1), self.real.type(1)]
        infos = self.panel_infos(-(-n // width))

        def at(places: Sequence[tuple[int, int]]) -> Pointer:
            """Elements by row and column, or of the transpose for the upper triangle."""
            return fixed_order.places(a, 1, [((i + j * n) if lower else (j + i * n)) * size for i, j in places])

        for j in range(0, n, width):
            w = min(width, n - j)
            corner, end = shift(a, (j + j * n) * size), j + w
            self.lapack("{t}potrf", uplo, w, corner, n, shift(infos, j // width * self.native.int_size))
            self.b.each()
            if end == n:
                break
            blocks = evenly(blocks_of(end, n))
            sizes = same([s for _, s in blocks])
            panel = at([(c, j) for c, _ in blocks])
            sides = [RIGHT, LOWER, turned, NON_UNIT, sizes, w] if lower else [LEFT, UPPER, turned, NON_UNIT, w, sizes]
            self.cblas("trsm", COLUMN, *sides, one, corner, n, panel, n)
            self.share(len(blocks))
            diagonal = at([(c, c) for c, _ in blocks])
            trans = PLAIN if lower else turned
            self.cblas(rank_update, COLUMN, LOWER if lower else UPPER, trans, sizes, w, reals[0], panel, n, reals[1], diagonal, n)
            rest = same([n - c - s for c, s in blocks])
            others = at([(c + s, j) for c, s in blocks]), at([(c + s, c) for c, s in blocks])
            if lower:
                self.cblas("gemm", COLUMN, PLAIN, turned, rest, sizes, w, minus, others[0], n, panel, n, one, others[1], n)
            else:
                self.cblas("gemm", COLUMN, turned, PLAIN, sizes, rest, w, minus, panel, n, others[0], n, one, others[1], n)
            self.share(len(blocks))
        self.gather(n, width, infos, 0)

    def factor_qr(self, m: int, n: int, a: Pointer, tau: Pointer, work: Pointer, lwork: int) -> Pointer:
        """R and the reflectors of Q in the place of A; returns their triangular factors, for `form_q`."""
        k = min(m, n)
        width, size = panel_of(k), self.size
        factors = self.b.work(-(-k // width) * width * width * size)
        for j in range(0, k, width):
            w = min(width, k - j)
            corner, own, t = shift(a, (j + j * m) * size), shift(tau, j * size), shift(factors, j * width * size)
            self.lapack("{t}geqrf", m - j, w, corner, m, own, work, lwork, self.info())
            self.lapack("{t}larft", "F", "C", m - j, w, corner, m, own, t, width)
            self.b.each()
            blocks = blocks_of(j + w, n)
            if blocks:
                columns = fixed_order.places(shift(a, j * size), 1, [c * m * size for c, _ in blocks])
                self.reflect("C" if self.complex else "T", m - j, [s for _, s in blocks], w, corner, m, t, columns)
                self.share(len(blocks))
        return factors

    def reflect(self, trans: str, m: int, sizes: list[int], w: int, v: Pointer, ld: int, t: Pointer, c: Pointer) -> None:
        """Applies the reflectors of a panel, or their adjoint, to blocks of columns that are as long as those of the matrix."""
        width = panel_of(min(self.p.m, self.p.n))
        if self.spare is None:
            most = blocks_of(0, max(self.p.m, self.p.n))[0][1]
            self.spare = self.b.work(most * width * self.size, shared=False), most
        spare, most = self.spare
        self.lapack("{t}larfb", "L", trans, "F", "C", m, self.integers(sizes), w, v, ld, t, width, c, ld, spare, most)

    def form_q(self, m: int, columns: int, k: int, a: Pointer, factors: Pointer, q: Pointer) -> None:
        """The first columns of Q, from k reflectors below the diagonal of A."""
        width, size = panel_of(k), self.size
        column = (size, m * size)
        self.b.copy((m, columns), self.b.constant(bytes(16)), (0, 0), q, column, size)
        self.b.triangle("unit_diagonal", (m, columns), column, self.dtype, q)
        self.b.each()
        blocks = evenly(blocks_of(0, columns))
        for j in reversed(range(0, k, width)):
            # Columns of the identity that end above a panel are zero where it works.
            sizes = [s if c + s > j else 0 for c, s in blocks]
            at = fixed_order.places(shift(q, j * size), 1, [c * m * size for c, _ in blocks])
            corner, t = shift(a, (j + j * m) * size), shift(factors, j * width * size)
            self.reflect("N", m - j, sizes, min(width, k - j), corner, m, t, at)
        self.share(len(blocks))

    # systems ----------------------------------------------------------------------------------------------------------

    def right_blocks(self, k: int) -> list[tuple[int, int]]:
        """Returns blocks of right-hand sides; all in one where the algorithm is not in parts."""
        return blocks_of(0, k) if self.in_parts else [(0, k)]

    def solve_blocks(
        self, pattern: str, head: Sequence[Any], k: int, tail: Sequence[Any], x: Pointer, ld: int, info: Pointer
    ) -> None:
        """Solves by a routine that takes the number of right-hand sides after `head`, and the matrix in `tail`."""
        blocks = self.right_blocks(k)
        if len(blocks) == 1:
            self.lapack(pattern, *head, k, *tail, x, ld, info)
            return
        self.b.each()
        columns = fixed_order.places(x, 1, [c * ld * self.size for c, _ in blocks])
        self.checked_again()
        tail = [fixed_order.alone(each) if isinstance(each, tuple) else each for each in tail]
        spare = self.b.work(8, shared=False)
        self.lapack(pattern, *head, self.integers([s for _, s in blocks]), *tail, columns, ld, spare)
        self.share(len(blocks))

    def checked_again(self) -> None:
        """Repeats the checks that keep a routine from running: they hold for the steps of one group."""
        for check in self.checks:
            check()

    def solve_in_panels(self, upper: bool, n: int, k: int, a: Pointer, ld: int, x: Pointer) -> None:
        """Solves U^H U X = B or L L^H X = B in the place of B, of few columns.

        One thread solves the rows of a panel. What they take from the rows solved before, or what the others take from them, is a
        product that threads share: it reads nearly all of the factor, and so takes nearly all of the time.
        """
        adjoint = ADJOINT if self.complex else TRANSPOSED
        size, one, minus, few = self.size, self.factor(1), self.factor(-1), list(range(0, n, SOLVED))
        a, x = fixed_order.alone(a), fixed_order.alone(x)
        self.b.each()

        def taken(j: int, w: int, turned: bool) -> None:
            """The product of a panel: with the adjoint of its part of the factor for its own rows, else for the others."""
            first, count = (0, j) if upper else (j + w, n - j - w)
            if not count:
                return
            others = shift(x, first * size)
            parts = cut(w if turned else count, max(-(-(w if turned else count) // self.threads), ROUND))
            sizes, own = same([s for _, s in parts]), shift(x, j * size)
            if turned:
                columns = fixed_order.places(a, 1, [(first + (j + c) * ld) * size for c, _ in parts])
                to = fixed_order.places(own, 1, [c * size for c, _ in parts])
                self.cblas("gemm", COLUMN, adjoint, PLAIN, sizes, k, count, minus, columns, ld, others, n, one, to, n)
            else:
                rows = fixed_order.places(a, 1, [(first + r + j * ld) * size for r, _ in parts])
                to = fixed_order.places(others, 1, [r * size for r, _ in parts])
                self.cblas("gemm", COLUMN, PLAIN, PLAIN, sizes, k, w, minus, rows, ld, own, n, one, to, n)
            self.share(len(parts))

        for turned in (True, False) if upper else (False, True):
            for j in few if turned == upper else reversed(few):
                w, corner = min(SOLVED, n - j), shift(a, (j + j * ld) * size)
                if turned:
                    taken(j, w, turned)
                sides = LEFT, UPPER if upper else LOWER, adjoint if turned else PLAIN, NON_UNIT
                self.cblas("trsm", COLUMN, *sides, w, k, one, corner, ld, shift(x, j * size), n)
                self.b.each()
                if not turned:
                    taken(j, w, turned)
