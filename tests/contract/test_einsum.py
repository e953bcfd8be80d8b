"""einsum: random equations against NumPy in the widest types, every form of a call, every refusal, and what the switches decide."""

from __future__ import annotations

import string
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import backline
from backline import _core, backends, einsum, libraries, switches
from backline.errors import BadType, BadValue, NoKernel
from backline.ops.einsum import steps as einsum_steps
from backline.ops.einsum.contraction_choice import EinsumChoice
from backline.problems import contraction_planner
from backline.problems.einsum_problem import parse
from backline.problems.op_registry import operations
from support import (
    BFLOAT16,
    FLOATS,
    LAYOUTS,
    assert_close,
    clean,
    dtype_of,
    misaligned,
    numpy_on_one_thread,
    random_array,
    rng,
    roundoff,
    seed,
    smallest,
    spread,
    wide,
)

Array = Any
pytestmark = pytest.mark.usefixtures("clean", "numpy_on_one_thread")
assert clean and numpy_on_one_thread and rng and seed  # fixtures: imported to be found by pytest

DTYPES = (*FLOATS, "float16", "bfloat16")
OTHERS = ("int8", "int64", "uint16", "bool", "longdouble", "clongdouble")


def exact(equation: str, *operands: Array) -> Array:
    """By NumPy's loops, in 64-bit mantissas or the integers' own type."""
    widest = [wide(x) if x.dtype.kind in "fcV" else x for x in operands]
    with np.errstate(all="ignore"):
        return np.asarray(np.einsum(equation, *widest))


def bound(equation: str, *operands: Array) -> Array:
    """Rounding of every product and sum: of each term in proportion to the sum of the terms' sizes."""
    sizes = {label: n for term, x in zip(equation.partition("->")[0].split(","), operands, strict=True) for label, n in zip(term, x.shape, strict=False)}
    terms = float(np.prod([float(n) for n in sizes.values() if n] or [1.0]))
    unit = roundoff(operands[0].dtype)
    single = roundoff(np.dtype(np.float32)) if operands[0].dtype.name in ("float16", "bfloat16") else unit
    factor = unit + single * 3 * (min(terms, 3000.0) + len(operands)) * (2 if operands[0].dtype.kind == "c" else 1)
    # Absolute values are finite even where operands are NaN: those are compared apart.
    return np.asarray(exact(equation, *(np.abs(wide(x)) for x in operands))) * factor + smallest(operands[0].dtype) * 2


def agree(equation: str, *operands: Array, out: Array | None = None, plain: str = "") -> Array:
    """Call it twice, of which the second one is from the Memo, and compare; `plain` is the equation without an ellipsis."""
    reference = exact(equation, *operands)
    for _ in range(2):
        result = einsum(equation, *operands) if out is None else einsum(equation, *operands, out=out)
        assert out is None or result is out
        assert np.asarray(result).dtype == operands[0].dtype
        if operands[0].dtype.kind in "biu":
            np.testing.assert_array_equal(result, reference, err_msg=equation)
        else:
            assert_close(result, reference, bound(plain or equation, *operands), equation)
    return result


# Random equations ------------------------------------------------------------------------------------------------------


@st.composite
def contractions(draw: Any) -> tuple[str, list[tuple[int, ...]], list[str]]:
    """An equation, shapes and layouts: labels repeated in and between operands, sizes of 0 and 1, axes of size 1 that repeat."""
    labels = "abcdeXY"
    sizes = {label: draw(st.sampled_from((2, 3, 1, 5, 4, 2, 0) if label == "e" else (2, 3, 1, 5, 4))) for label in labels}
    count = draw(st.integers(1, 4))
    terms = [draw(st.text(labels, max_size=4)) for _ in range(count)]
    used = sorted(set("".join(terms)))
    output = draw(st.permutations(used))[: draw(st.integers(0, 4))]
    shapes = []
    for term in terms:
        single = {label: draw(st.integers(0, 9)) == 0 for label in term}
        shapes.append(tuple(1 if single[label] else sizes[label] for label in term))
    layouts = [draw(st.sampled_from(tuple(LAYOUTS))) for _ in terms]
    return f"{','.join(terms)}->{''.join(output)}", shapes, layouts


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(contractions(), st.sampled_from(DTYPES), st.sampled_from(("", *LAYOUTS)), st.integers(0, 1 << 30))
def test_random_equations(case: Any, dtype: str, out: str, number: int) -> None:
    equation, shapes, layouts = case
    source = np.random.default_rng(number)
    operands = [LAYOUTS[layout](random_array(source, shape, dtype_of(dtype))) for shape, layout in zip(shapes, layouts, strict=True)]
    agree(equation, *operands)
    shape = exact(equation, *operands).shape
    if out:
        agree(equation, *operands, out=LAYOUTS[out](np.zeros(shape, dtype_of(dtype))))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(contractions(), st.sampled_from(OTHERS), st.integers(0, 1 << 30))
def test_random_equations_of_what_blas_has_not(case: Any, dtype: str, number: int) -> None:
    equation, shapes, layouts = case
    source = np.random.default_rng(number)
    operands = [LAYOUTS[layout](random_array(source, shape, np.dtype(dtype))) for shape, layout in zip(shapes, layouts, strict=True)]
    if np.dtype(dtype).kind in "biu":
        with np.errstate(all="ignore"):
            wanted = np.einsum(equation, *operands)
        result = einsum(equation, *operands)
        assert np.asarray(result).dtype == operands[0].dtype
        np.testing.assert_array_equal(result, wanted)
    else:
        np.testing.assert_allclose(np.asarray(einsum(equation, *operands)), exact(equation, *operands), rtol=1e-13, atol=1e-13)


EQUATIONS = [
    ("ij,jk->ik", (7, 5), (5, 9)), ("ij,jk->ki", (7, 5), (5, 9)), ("ij,kj->ik", (7, 5), (9, 5)), ("ji,jk->ki", (5, 7), (5, 9)),
    ("bhqd,bhkd->bhqk", (2, 3, 8, 5), (2, 3, 9, 5)), ("bqhd,bkhd->bhqk", (2, 8, 3, 5), (2, 9, 3, 5)),
    ("bhqk,bkhd->bqhd", (2, 3, 8, 9), (2, 9, 3, 5)), ("bi,bj->bij", (4, 30), (4, 40)), ("i,j->ij", (30,), (40,)),
    ("i,i->", (9,), (9,)), ("ij,ij->", (9, 8), (9, 8)), ("ij,ji->", (9, 8), (8, 9)), ("ij,j->i", (9, 8), (8,)), ("bij,bj->bi", (4, 9, 8), (4, 8)),
    ("abk,kcd->acbd", (3, 4, 40), (40, 5, 6)), ("abk,kcd->dbca", (3, 4, 40), (40, 5, 6)), ("akb,ckd->abcd", (3, 40, 4), (5, 40, 6)),
    ("abcd,badc->", (3, 4, 5, 6), (4, 3, 6, 5)), ("abcd,cbae->de", (3, 4, 5, 6), (5, 4, 3, 7)), ("ij,->ij", (4, 5), ()), (",->", (), ()),
    ("ii", (5, 5)), ("iij->j", (4, 4, 3)), ("ijk->k", (4, 5, 3)), ("ijk->", (4, 5, 3)), ("ij,ij->ij", (4, 5), (4, 5)), ("ij,i->ij", (4, 5), (4,)),
    ("iij,jk->ik", (6, 6, 20), (20, 30)), ("ab,bc,cd,de->ae", (6, 5), (5, 7), (7, 3), (3, 8)), ("ab,bc,cd,da->", (6, 5), (5, 7), (7, 3), (3, 6)),
    ("ijk,il,jm,kn->lmn", (4, 5, 6), (4, 3), (5, 2), (6, 7)), ("a,a,a,a->a", (6,), (6,), (6,), (6,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [*DTYPES, *OTHERS])
def test_usual_equations(dtype: str, rng: np.random.Generator) -> None:
    for equation, *shapes in EQUATIONS:
        operands = [random_array(rng, shape, dtype_of(dtype)) for shape in shapes]
        if dtype == "float16":
            operands = [x / np.float16(4) for x in operands]  # no product of four is beyond its range
        if dtype in OTHERS and np.dtype(dtype).kind in "fc":
            np.testing.assert_allclose(np.asarray(einsum(equation, *operands)), exact(equation, *operands), rtol=1e-15, atol=1e-15)
        else:
            agree(equation, *operands)


@pytest.mark.parametrize("library", ["mkl", "openblas", "blis", "onednn", "numpy"])
def test_every_library_alone(library: str, rng: np.random.Generator) -> None:
    """`only` holds for every step, sums included: they become products with ones where NumPy may not run."""
    if not libraries.get(library).available():
        pytest.skip(f"{library} is not available: {libraries.get(library).reason()}")
    with backends.flags(only=(library,)):
        for equation, *shapes in EQUATIONS:
            operands = [random_array(rng, shape, np.dtype(np.float32)) for shape in shapes]
            try:
                agree(equation, *operands)
            except NoKernel as refused:
                assert library == "onednn" and "reference code" in str(refused)  # it has no kernel for every layout
                continue
            choice = backline.explain()
            steps = getattr(choice, "steps", ())
            ran = {s.choice.library for s in steps if s.choice} or ({choice.library} if not steps else set())
            assert ran <= {library}, f"{equation}: {choice}"


def test_axes_of_one_size_in_every_order_by_every_library(rng: np.random.Generator) -> None:
    """Sizes do not tell axes apart here: what takes an intermediate result's memory order for another one is wrong."""
    axes = "nXmdb"
    equations = ["nX,mdXb,db->bnm", "ba,b->a", "a,ba,->", "abc,bd,ca->dcb"]
    for _ in range(12):
        terms = ["".join(rng.permutation(list(axes))[: rng.integers(1, 5)]) for _ in range(3)]
        output = "".join(rng.permutation(sorted(set("".join(terms))))[: rng.integers(0, 4)])
        equations.append(f"{','.join(terms)}->{output}")
    for library in ("numpy", "openblas", "mkl", "blis", "onednn", "xnnpack"):
        if not libraries.get(library).available():
            continue
        with backends.flags(only=(library,)):
            for equation in equations:
                terms = equation.partition("->")[0].split(",")
                operands = [random_array(rng, (2,) * len(term), np.dtype(np.float32)) for term in terms]
                turned = [x.swapaxes(0, -1).copy().swapaxes(0, -1) if x.ndim else x for x in operands]
                reference = exact(equation, *operands)
                for arrays in (operands, turned):
                    try:
                        agree(equation, *arrays)
                        agree(equation, *arrays, out=np.zeros(reference.shape, np.float32, "F"))
                    except NoKernel:
                        assert library in ("onednn", "xnnpack")  # these have no kernel for every layout


# Meaning ----------------------------------------------------------------------------------------------------------------


def test_ellipsis(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 1, 3, 4)), rng.standard_normal((5, 4, 6))
    for equation in ("...ij,...jk->...ik", "...ij,...jk", "i...j,...jk->k...i", "...j,j...->..."):
        for a, b in ((x, y), (x[0, 0], y), (x, y[0])):
            try:
                wanted = np.einsum(equation, a, b)
            except ValueError:
                with pytest.raises(BadValue):
                    einsum(equation, a, b)
                continue
            np.testing.assert_allclose(einsum(equation, a, b), wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(einsum("...ij->ij", x), x.sum((0, 1)), rtol=1e-12, atol=1e-12)  # missing from the output: summed
    np.testing.assert_array_equal(einsum("i...->i", x[:, 0, 0, 0]), x[:, 0, 0, 0])  # one that covers nothing
    assert einsum("ij->...ij", x[0, 0]).shape == (3, 4)
    assert einsum("...", x).shape == x.shape


def test_the_implicit_output_has_capitals_first_and_labels_that_occur_once(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 4))
    assert einsum("bAa", x).shape == (3, 4, 2)
    assert einsum("ba", x[0]).shape == (4, 3)
    np.testing.assert_array_equal(einsum("ba", x[0]), x[0].T)
    assert einsum("i...j,j", x, x[0, 0]).shape == (3, 2)
    assert einsum("ij,jk", x[0], x[0].T).shape == (3, 3)
    assert np.ndim(einsum("ij,ij", x[0], x[0])) == 0
    assert parse(" i j , j k -> i k ") == parse("ij,jk->ik")


@pytest.mark.torch
def test_as_torch(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    x, y = rng.standard_normal((2, 3, 3)), rng.standard_normal((3, 1, 4))
    for equation in ("bAa,aBc", "b...a,a...B", "...ab,bcd->a...cd", "abb,bcd->cd", "aBb", "aab", "b...a", "bAA,AcC->...b", "xYz,zqr->Yr"):
        shapes = [x.transpose(1, 2, 0) if equation.startswith("aab") else x, y][: equation.count(",") + 1]
        theirs = torch.einsum(equation, *(torch.from_numpy(a) for a in shapes)).numpy()
        np.testing.assert_allclose(einsum(equation, *shapes), theirs, rtol=1e-12, atol=1e-12, err_msg=equation)
    theirs = torch.einsum(torch.from_numpy(x), [0, 26, 1], torch.from_numpy(y), [1, 2, 3]).numpy()
    np.testing.assert_allclose(einsum(x, [0, 26, 1], y, [1, 2, 3]), theirs, rtol=1e-12, atol=1e-12)


def test_forms_of_a_call_are_one(rng: np.random.Generator) -> None:
    x, y, z = rng.standard_normal((3, 4)), rng.standard_normal((4, 5)), rng.standard_normal((5, 2))
    for operands, equation, labels in (((x, y), "ab,bc->ca", ([26, 27], [27, 28], [28, 26])), ((x, y, z), "AB,BC,CD->AD", ([0, 1], (1, 2), [2, 3], [0, 3]))):
        wanted = np.einsum(equation, *operands)
        flat: list[Any] = []
        for x_, label in zip(operands, labels, strict=False):
            flat += [x_, label]
        out = np.zeros(wanted.shape)
        for _ in range(2):
            for call in ((equation, *operands), (equation, list(operands)), (equation, tuple(operands)), (*flat, labels[-1]), (*(tuple(v) if isinstance(v, list) else v for v in flat), tuple(labels[-1]))):
                np.testing.assert_allclose(einsum(*call), wanted, rtol=1e-12, atol=1e-12)
                assert einsum(*call, out=out) is out
                np.testing.assert_allclose(out, wanted, rtol=1e-12, atol=1e-12)
                out[...] = 0
    np.testing.assert_allclose(einsum(x, [Ellipsis, 1], y, [1, np.int64(2)], [Ellipsis, 2]), x @ y, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(einsum(x, [1, 0]), x.T)
    assert float(einsum(",", np.float64(2), np.float64(3))) == 6  # scalars of NumPy are arrays without axes


def test_long_equations_and_many_operands_are_kept_too(rng: np.random.Generator) -> None:
    operands = [rng.standard_normal((2, 2)) for _ in range(24)]
    letters = string.ascii_letters[:25]
    equation = ",".join(f"{letters[i]}{letters[i + 1]}" for i in range(24)) + f"->{letters[0]}{letters[24]}"
    wanted = np.linalg.multi_dot(operands)
    np.testing.assert_allclose(einsum(equation, *operands), wanted, rtol=1e-10)
    before = _core.memo_info()["misses"]
    np.testing.assert_allclose(einsum(equation, *operands), wanted, rtol=1e-10)
    assert _core.memo_info()["misses"] == before
    many = [rng.standard_normal(2) for _ in range(80)]  # more than the Memo takes
    np.testing.assert_allclose(einsum(",".join("a" * 80) + "->a", *many), np.prod(many, axis=0), rtol=1e-10)


def test_more_axes_than_letters(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 1, 3, *(1,) * 20)), rng.standard_normal((*(1,) * 22, 2))
    equation = "abcdefghijklmnopqrst...,ABCDEFGHIJKLMNOPQRSTUVW->abc...W"
    assert einsum(equation, x, y).shape == (2, 1, 3, 1, 1, 1, 2)


def test_views_where_nothing_is_added_up(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 4, 3))
    for equation in ("ijk->kji", "iij->ji", "ijk", "i...->...i", "ijk->ijk"):
        view = einsum(equation, x)
        assert np.shares_memory(view, x) and view.flags.writeable
        np.testing.assert_array_equal(view, np.einsum(equation, x))
        half = x.astype(BFLOAT16)
        assert np.shares_memory(einsum(equation, half), half)
    einsum("iij->ij", x)[...] = 7
    assert (x[range(4), range(4)] == 7).all()


def test_nan_and_infinity_show_and_warn_of_nothing(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((5, 6)), rng.standard_normal((6, 7))
    x[1, 2], y[3, 4] = np.nan, np.inf
    for equation, operands in (("ij,jk->ik", (x, y)), ("ij->i", (x,)), ("ij,kj->ijk", (x, y[:, :6]))):
        agree(equation, *operands)
    y[3, 4] = 1
    agree("ij,jk,kl->il", x, y, rng.standard_normal((7, 3)))
    huge = np.full((3, 3), 1e38, np.float32)
    assert np.isinf(einsum("ij,jk->ik", huge, huge)).all() and np.isinf(einsum("ij,ij->ij", huge, huge)).all()
    assert einsum("ij->", np.full((300, 300), 60000.0, np.float16)) == np.inf


def test_halves_round_once() -> None:
    """2048 + 1 is no float16: adding one at a time in halves would stay at 2048."""
    x = np.ones(4000, np.float16)
    assert einsum("i->", x) == einsum("i,i->", x, x) == einsum("i,i,i->", x, x, x) == 4000
    big = np.full((4, 4), 300, np.float16)  # the product of two is no float16
    assert einsum("ij,jk,kl->il", big, big, np.full((4, 4), 1e-4, np.float16)).max() < 200


def test_empty_sums_and_results() -> None:
    for shapes, equation, wanted in ((((3, 0), (0, 4)), "ij,jk->ik", (3, 4)), (((0, 3), (3, 4)), "ij,jk->ik", (0, 4)), (((2, 0),), "ij->i", (2,)),
                                     (((0,), (0,)), "i,i->", ()), (((0, 2), (1, 2), (2, 3)), "ij,ij,jk->ik", (0, 3))):  # fmt: skip
        operands = [np.ones(shape) for shape in shapes]
        result = np.asarray(einsum(equation, *operands))
        assert result.shape == wanted and not result.any()
        out = np.ones(wanted)
        assert einsum(equation, *operands, out=out) is out and not out.any()


def test_layouts_of_operands_and_out(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((4, 5, 6)), rng.standard_normal((6, 5, 7))
    for equation in ("abc,cbd->ad", "abc,cbd->dba", "abc,cbd->abd", "abc,cbd->acd"):
        wanted = exact(equation, x, y)
        for form in LAYOUTS.values():
            agree(equation, form(x), form(y), out=form(np.zeros(wanted.shape)))
        agree(equation, spread(x, 1), spread(y, 0))
    agree("ij,jk->ik", misaligned(x[0]), misaligned(y[:, 0]), out=misaligned(np.zeros((5, 7)))) if x[0].shape[1] == y.shape[0] else None


def test_an_axis_of_size_1_repeats(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((1, 5)), rng.standard_normal((4, 5))
    np.testing.assert_allclose(einsum("ij,ij->i", x, y), (x * y).sum(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(einsum("ij,jk->ik", y, rng.standard_normal((1, 3)) * 0 + 2), np.repeat(2 * y.sum(1)[:, None], 3, 1), rtol=1e-12, atol=1e-12)
    assert einsum("ij,ij->ij", x, x).shape == (1, 5)


# Steps --------------------------------------------------------------------------------------------------------------------


def prepared(equation: str, *shapes: tuple[int, ...]) -> Any:
    einsum(equation, *(np.ones(shape, np.float32) for shape in shapes))
    return _core.last_plan()


def test_one_product_is_the_products_own_plan() -> None:
    """Nothing of Python runs in the second call: transposes and neighbouring axes are in the call of the library."""
    with backends.flags(only=("openblas",)):
        for equation, *shapes in (("ij,jk->ik", (4, 4), (4, 4)), ("ji,kj->ik", (5, 4), (6, 5)), ("bhqd,bhkd->bhqk", (2, 3, 8, 5), (2, 3, 9, 5)),
                                  ("abij,jkc->abikc", (2, 3, 4, 5), (5, 2, 2)), ("i,i->", (9,), (9,)), ("iij,jk->ik", (6, 6, 20), (20, 30)), ("bqhd,bkhd->bhqk", (2, 8, 3, 5), (2, 9, 3, 5))):  # fmt: skip
            plan = prepared(equation, *shapes)
            assert isinstance(plan, _core.PreparedCall), equation
            assert plan.choice.problem.op == "matmul"


def test_the_fewest_copies(rng: np.random.Generator) -> None:
    def copies(equation: str, *shapes: tuple[int, ...]) -> int:
        found = backline.explain(einsum, equation, *(np.ones(shape, np.float32) for shape in shapes))
        assert isinstance(found, EinsumChoice)
        return sum(step.kind == "copy" for step in found.steps)

    assert copies("ij,jk->ki", (70, 80), (80, 90)) == 0
    assert copies("bhqk,bkhd->bqhd", (2, 3, 80, 90), (2, 90, 3, 50)) == 0
    assert copies("abcd,cbae->de", (30, 40, 50, 60), (50, 40, 30, 70)) == 1  # one of them must have its sum in the other's order
    assert copies("abk,kcd->acbd", (30, 40, 50), (50, 60, 70)) == 0  # many large products instead


def test_a_repeated_call_looks_for_no_path(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    searched = []

    def counting(*args: Any) -> Any:
        searched.append(args)
        return contraction_planner.contraction_path(*args)

    monkeypatch.setattr(einsum_steps, "contraction_path", counting)
    operands = [rng.standard_normal((3, 3)) for _ in range(4)]
    for _ in range(5):
        einsum("ab,bc,cd,de->ae", *operands)
    assert len(searched) == 1
    with backends.opt_einsum.flags(strategy="greedy"):
        einsum("ab,bc,cd,de->ae", *operands)
    assert len(searched) == 2


def test_plans_keep_no_arrays(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((3, 4)), rng.standard_normal((4, 5))
    first = einsum("ab,bc,cd->ad", x, y, y.T)
    x *= 2
    np.testing.assert_allclose(einsum("ab,bc,cd->ad", x, y, y.T), 2 * first, rtol=1e-12, atol=1e-12)
    import sys

    big = np.ones((50, 50))
    before = sys.getrefcount(big)
    einsum("ab,bc,cd->ad", big, big, big)
    assert sys.getrefcount(big) == before


def test_the_memory_limit_bounds_what_is_on_the_way(rng: np.random.Generator) -> None:
    shapes = [(50, 3), (3, 50), (50, 4), (4, 50), (50, 6)]
    operands = [rng.standard_normal(shape) for shape in shapes]
    wanted = np.linalg.multi_dot(operands)
    for enabled in (True, False):
        with backends.opt_einsum.flags(enabled=enabled):
            for limit in (None, 2500, 350, 100, "max_input"):
                found = backline.explain(einsum, "ab,bc,cd,de,ef->af", *operands, memory_limit=limit)
                assert isinstance(found, EinsumChoice)
                most = {"max_input": 300, None: 1 << 30}.get(limit, limit)  # type: ignore[call-overload]  # the mapping has keys of two types
                assert found.largest <= most, found
                np.testing.assert_allclose(einsum("ab,bc,cd,de,ef->af", *operands, memory_limit=limit), wanted, rtol=1e-9)
    few = backline.explain(einsum, "ab,bc,cd->ad", *operands[:3], memory_limit=1)
    assert isinstance(few, EinsumChoice) and few.path == ((0, 1, 2),)
    assert "within 1 elements" in str(few)


def test_explain_shows_the_path_and_the_library_of_each_step() -> None:
    shapes = ((10, 1000), (1000, 10), (10, 2000))
    operands = [np.ones(shape, np.float32) for shape in shapes]
    found = backline.explain("einsum", "ij,jk,kl->il", *operands)
    assert isinstance(found, EinsumChoice)
    assert found.path == ((0, 1), (0, 1)) and [s.equation for s in found.steps] == ["ij,jk->ik", "kl,ik->il"]
    assert found.flops == 2 * 10 * 1000 * 10 + 2 * 10 * 10 * 2000
    assert found.flops_naive == 3 * 10 * 1000 * 10 * 2000
    assert found.largest == 100
    assert all(s.choice is not None and s.choice.candidates for s in found.steps)
    text = str(found)
    for words in ("(0,1) (0,1)", "opt_einsum", "operations", "100 elements, 400 bytes", "ij,jk->ik", "matmul f32 10x1000 1000x10", "step 2"):
        assert words in text
    einsum("ij,jk,kl->il", *operands)
    ran = backline.explain()
    assert isinstance(ran, EinsumChoice) and ran.path == found.path
    with backline.trace() as events:
        einsum("ij,jk,kl->il", *operands)
    assert [e.op for e in events] == ["einsum"] and events[0].choice.problem.key.startswith("einsum f32 10x1000")


# Switches -------------------------------------------------------------------------------------------------------------------


def test_opt_einsum_decides_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # Here each strategy finds another path.
    shapes = ((10, 10), (10, 2, 5), (5, 2, 10), (2, 10))
    operands = [np.ones(shape) for shape in shapes]

    def path(**flags: Any) -> Any:
        with backends.opt_einsum.flags(**flags):
            einsum("ea,adf,fdb,da->af", *operands)
            return backline.explain().path  # type: ignore[attr-defined]  # a choice of einsum has it

    assert path(enabled=False) == ((0, 1), (2, 0), (1, 0))
    assert path(enabled=False, strategy="greedy") == path(enabled=False)
    assert path(strategy="greedy") != path(strategy="optimal")
    assert path(strategy="auto") == path(strategy="optimal")
    with backends.opt_einsum.flags(enabled=False):
        pair = backline.explain(einsum, "ij,jk->ik", operands[0], operands[0])
    assert pair.path == ((0, 1),)  # type: ignore[attr-defined]  # a choice of einsum has it


def test_without_the_package_the_order_is_from_left_to_right(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    from backline.libraries import presence

    monkeypatch.setattr(presence.presence("opt_einsum"), "available", lambda: False, raising=False)
    operands = [rng.standard_normal((3, 3)) for _ in range(3)]
    with backends.opt_einsum.flags(enabled=False):
        np.testing.assert_allclose(einsum("ab,bc,cd->ad", *operands), np.linalg.multi_dot(operands), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("level", ["run", "threads"])
def test_deterministic(level: str, rng: np.random.Generator) -> None:
    operands = [rng.standard_normal(shape).astype(np.float32) for shape in ((200, 300), (300, 250), (250, 200))]
    with backends.flags(deterministic=True, determinism_level=level):
        results = []
        for threads in (2, 2, 1) if level == "threads" else (2, 2):
            with switches.scope(num_threads=threads):
                results.append(einsum("ij,jk,kl->il", *operands).tobytes())
                choice = backline.explain()
                assert choice.chosen is not None and choice.chosen.reaches(level)
    assert len(set(results)) == 1


def test_threads_of_a_scope_hold_for_each_step(rng: np.random.Generator) -> None:
    operands = [rng.standard_normal((300, 300)) for _ in range(3)]
    for threads in (1, 2):
        with switches.scope(num_threads=threads):
            einsum("ij,jk,kl->il", *operands)
            found = backline.explain()
            assert all(s.choice.chosen.threads <= threads for s in found.steps)  # type: ignore[attr-defined]  # a choice of einsum has it


def test_precision_is_that_of_products(rng: np.random.Generator) -> None:
    x, y = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    plain = einsum("ij,jk,kl->il", x, y, x)
    with backends.flags(emulate=True), backends.mkldnn.matmul.flags(fp32_precision="bf16") if hasattr(backends.mkldnn.matmul, "flags") else switches.scope(**{"mkldnn.matmul.fp32_precision": "bf16"}):
        coarse = einsum("ij,jk,kl->il", x, y, x)
        assert "bf16" in str(backline.explain().steps[0].choice)  # type: ignore[attr-defined]  # a choice of einsum has it
    error = np.abs(coarse - plain).max() / np.abs(plain).max()
    assert 1e-4 < error < 0.1


def test_no_library_left() -> None:
    x = np.ones((4, 4), np.int64)
    with backends.flags(only=("openblas",)), pytest.raises(NoKernel, match="numpy: not among only"):
        einsum("ij,jk->ik", x, x)


# Refusals ---------------------------------------------------------------------------------------------------------------------

GOOD = np.ones((2, 3))
OTHER = np.ones((3, 4))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: einsum(), BadValue, "no equation and no operand"),
        (lambda: einsum("ij"), BadValue, "'ij' has no operand"),
        (lambda: einsum("ij", []), BadValue, "'ij' has no operand"),
        (lambda: einsum("ij,jk", GOOD), BadValue, "2 terms, and 1 operands"),
        (lambda: einsum("ij", GOOD, OTHER), BadValue, "1 terms, and 2 operands"),
        (lambda: einsum("", GOOD, OTHER), BadValue, "1 terms, and 2 operands"),
        (lambda: einsum("i1,jk", GOOD, OTHER), BadValue, "character '1' at index 1"),
        (lambda: einsum("ij,é", GOOD, OTHER), BadValue, "character 'é' at index 3"),
        (lambda: einsum("ij,jk-ik", GOOD, OTHER), BadValue, "character '-' at index 5"),
        (lambda: einsum("ij,jk>ik", GOOD, OTHER), BadValue, "character '>' at index 5"),
        (lambda: einsum("ij,jk->i,k", GOOD, OTHER), BadValue, "character ',' at index 8"),
        (lambda: einsum("ij->i->j", GOOD), BadValue, "second arrow '->' at index 5"),
        (lambda: einsum("i.j,jk", GOOD, OTHER), BadValue, "dot at index 1 that belongs to no ellipsis, in operand 0"),
        (lambda: einsum("ij,j..k", GOOD, OTHER), BadValue, "dot at index 4 .*in operand 1"),
        (lambda: einsum("ij,jk->..k", GOOD, OTHER), BadValue, "dot at index 7 .*in the output"),
        (lambda: einsum("ij,...j...", GOOD, OTHER), BadValue, "second ellipsis at index 7, in operand 1"),
        (lambda: einsum("ij->...i...", GOOD), BadValue, "second ellipsis at index 8, in the output"),
        (lambda: einsum("ijk,jk", GOOD, OTHER), BadValue, r"operand 0, of shape \(2, 3\), has 2 axes, and its term 3 labels"),
        (lambda: einsum("ij,j", GOOD, OTHER), BadValue, r"operand 1, of shape \(3, 4\), has 2 axes, and its term 1 labels"),
        (lambda: einsum("ij,jkl...", GOOD, OTHER), BadValue, "operand 1, .* has 2 axes, and its term 3 labels"),
        (lambda: einsum("ii", GOOD), BadValue, "label 'i' of operand 0 has the sizes 2 and 3"),
        (lambda: einsum("ii", np.ones((1, 3))), BadValue, "label 'i' of operand 0 has the sizes 1 and 3"),
        (lambda: einsum("ij,ik", GOOD, OTHER), BadValue, "label 'i' of operand 1 has size 3, and size 2 in operand 0"),
        (lambda: einsum("i,i,i", np.ones(1), np.ones(2), np.ones(3)), BadValue, "label 'i' of operand 2 has size 3, and size 2 in operand 1"),
        (lambda: einsum("...,...", np.ones(2), np.ones(3)), BadValue, r"axis 0 \(of the ellipsis\) of operand 1 has size 3, and size 2 in operand 0"),
        (lambda: einsum("i,i", np.ones(0), np.ones(3)), BadValue, "label 'i' of operand 1 has size 3, and size 0 in operand 0"),
        (lambda: einsum("ij->ii", GOOD), BadValue, "label 'i' more than once in the output"),
        (lambda: einsum("ij->ik", GOOD), BadValue, "label 'k' in the output, which no operand has"),
        (lambda: einsum(GOOD, [0, 52]), BadValue, "operand 0 has the label 52"),
        (lambda: einsum(GOOD, [0, -1]), BadValue, "operand 0 has the label -1"),
        (lambda: einsum(GOOD, [0, 1], [99]), BadValue, "the output has the label 99"),
        (lambda: einsum(GOOD, [0, 1.0]), BadType, "operand 0 has the label 1.0, a float"),
        (lambda: einsum(GOOD, [0, True]), BadType, "operand 0 has the label True, a bool"),
        (lambda: einsum(GOOD, "ij"), BadType, "operand 0 has str for its labels"),
        (lambda: einsum(GOOD), BadValue, "operand 0 has no list of labels"),
        (lambda: einsum(GOOD, [0, 1], OTHER), BadValue, "operand 1 has no list of labels"),
        (lambda: einsum(3, GOOD), BadType, "equation is a str, not int"),
        (lambda: einsum("ij", [[1.0, 2.0]]), BadType, "operand 0 must be a NumPy array, not list"),
        (lambda: einsum("ij,jk", GOOD, None), BadType, "operand 1 must be a NumPy array, not NoneType"),
        (lambda: einsum("ij,jk", GOOD, [[1.0] * 4] * 3), BadType, "operand 1 must be a NumPy array, not list"),
        (lambda: einsum("i,i", np.ones(2), np.ma.ones(2)), BadType, "operand 1 is a MaskedArray"),
        (lambda: einsum("i", np.array(["a"])), BadType, "operand 0 has dtype"),
        (lambda: einsum("ij,jk", GOOD, OTHER.astype(np.float32)), BadType, "operand 1 has dtype float32, operand 0 has float64"),
        (lambda: einsum("ij,jk->ik", GOOD, OTHER, out=np.zeros((2, 5))), BadValue, r"out has shape \(2, 5\), the result has shape \(2, 4\)"),
        (lambda: einsum("ij,jk->ik", GOOD, OTHER, out=np.zeros((2, 4), np.float32)), BadType, "out has dtype float32"),
        (lambda: einsum("ij->ji", GOOD, out=GOOD[:, :2]), BadValue, "out has shape"),
        (lambda: einsum("ij,jk->ik", GOOD, OTHER, memory_limit=0), BadValue, "memory_limit=0"),
        (lambda: einsum("ij,jk->ik", GOOD, OTHER, memory_limit="min"), BadValue, "memory_limit='min'"),
        (lambda: einsum("ij,jk->ik", GOOD, OTHER, memory_limit=2.5), BadType, "memory_limit is a number of elements"),
        (lambda: einsum("ij,jk->ik", GOOD, OTHER, memory_limit=True), BadType, "memory_limit is a number of elements"),
        (lambda: einsum("ij,jk->ik", GOOD, OTHER, optimize=True), TypeError, "unexpected keyword argument 'optimize'"),
    ],
)  # fmt: skip
def test_refusals(call: Any, error: type[Exception], words: str) -> None:
    for _ in range(2):
        with pytest.raises(error, match=words):
            call()


def test_out_must_not_overlap_any_operand(rng: np.random.Generator) -> None:
    x, y, z = (rng.standard_normal((4, 4)) for _ in range(3))
    for equation, operands in (("ij,jk->ik", (x, y)), ("ij,jk,kl->il", (x, y, z)), ("ij,ij->ij", (x, y)), ("ij->ji", (x,)), ("ij->i", (x,))):
        for operand in operands:
            before = operand.copy()
            out = operand if equation[-2] != ">" else operand[0]
            with pytest.raises(BadValue, match="overlaps"):
                einsum(equation, *operands, out=out)
            np.testing.assert_array_equal(operand, before)


def test_a_keyword_for_the_equation_in_keys() -> None:
    """The key of a Problem reads as the call."""
    made = operations["einsum"].build(GOOD, OTHER, equation="ij,jk->ik")
    assert made.key == "einsum f64 2x3 3x4 equation=ij,jk->ik"


# Other ways in -----------------------------------------------------------------------------------------------------------------


def test_opt_einsum_runs_on_backline(rng: np.random.Generator) -> None:
    opt_einsum = pytest.importorskip("opt_einsum")
    sizes = dict(zip("abcdef", (3, 4, 5, 6, 2, 3), strict=True))
    with backline.trace() as events:
        for equation in ("ab,bc,cd->da", "ab,bc,cd,ad->", "ab,ab,bc->c", "a,a,b->b", "aab,bc->c", "abc,cd,dbe,ef->af", "ab->ba", "ab,cd->acbd"):
            operands = [rng.standard_normal([sizes[label] for label in term]) for term in equation.partition("->")[0].split(",")]
            wanted = np.einsum(equation, *operands)
            np.testing.assert_allclose(opt_einsum.contract(equation, *operands, backend="backline"), wanted, rtol=1e-10, atol=1e-10)
            if wanted.ndim:
                out = np.zeros(wanted.shape)
                opt_einsum.contract(equation, *operands, backend="backline", out=out)
                np.testing.assert_allclose(out, wanted, rtol=1e-10, atol=1e-10)
    assert {e.op for e in events} >= {"einsum", "mm"}
    expression = opt_einsum.contract_expression("ab,bc,cd->ad", (3, 4), (4, 5), (5, 6))
    operands = [rng.standard_normal(shape) for shape in ((3, 4), (4, 5), (5, 6))]
    np.testing.assert_allclose(expression(*operands, backend="backline"), np.linalg.multi_dot(operands), rtol=1e-10)


def test_axes_is_numpys_name_of_dims(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 3, 5))
    for axes in (1, ((2, 1), (0, 1)), ([-1], [0])):
        np.testing.assert_allclose(backline.tensordot(x, y, axes=axes), np.tensordot(x, y, axes), rtol=1e-12, atol=1e-12)
    with pytest.raises(BadValue, match="two names of one thing"):
        backline.tensordot(x, y, 1, axes=1)
