"""The routines that run an operation: each rule on both sides of each threshold, and what holds for any shape."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cusolver import routine_table as table
from backline.libraries.cuda.cusolver import thresholds as rules
from backline.libraries.cuda.cusolver.library import listed
from backline.libraries.cuda.cusolver.solver_operations import OPERATIONS
from backline.problems import operand
from backline.problems.linalg_problem import LinalgProblem
from backline.problems.op_registry import import_operations, operations
from fakes.solver_machine import real_types

real_types()

NEW, BEFORE = (11, 7, 1), (11, 7, 0)
FLOATS = ("float32", "float64", "complex64", "complex128")


def problem(op: str, m: int, n: int, b: int = 1, k: int = 0, dtype: str = "float64", **parameters: Any) -> LinalgProblem:
    """A Problem of these sizes; its arrays take no memory."""
    batch = (b,) if b != 1 else ()
    one = np.empty((), dtype)
    operands = [operand("a", np.broadcast_to(one, (*batch, m, n)))]
    if k:
        operands.append(operand("b", np.broadcast_to(one, (*batch, m, k))))
    return LinalgProblem(op, tuple(operands), tuple(sorted(parameters.items())), "linalg", m=m, n=n, k=k, batch=batch, device="cuda:0")


def first(op: str, m: int, n: int, b: int = 1, k: int = 0, dtype: str = "float64", version: Any = None,
          preference: str = "default", **parameters: Any) -> table.Recipe:  # fmt: skip
    return next(table.recipes(problem(op, m, n, b, k, dtype, **parameters), version, preference))


def routines(recipe: table.Recipe) -> list[str]:
    return [step.routine for step in recipe.steps]


# (operation, sizes and the rest, ways)
RULES: list[tuple[str, dict[str, Any], str]] = [
    # Cholesky: by number.
    ("linalg.cholesky", {"m": 9, "n": 9, "b": 1}, "potrf"),
    ("linalg.cholesky", {"m": 9, "n": 9, "b": 2}, "potrf_batched"),
    *((op, {"m": 64, "n": 64, "b": 1, "k": k}, "potrs") for op, k in (("cholesky_solve", 3), ("cholesky_inverse", 0))),
    *((op, {"m": 64, "n": 64, "b": 2, "k": k}, "trsm+trsm") for op, k in (("cholesky_solve", 3), ("cholesky_inverse", 0))),
    ("cholesky_solve", {"m": 63, "n": 63, "b": 2, "k": 3}, "trsm_batched+trsm_batched"),
    # LU of one, of rectangles, of two, of more.
    ("linalg.lu_factor", {"m": 9, "n": 9, "b": 1}, "getrf"),
    ("linalg.lu_factor", {"m": 9, "n": 8, "b": 1000}, "getrf"),
    *(("linalg.lu_factor", {"m": n, "n": n, "b": 2, "dtype": t}, "getrf" if n * n > 2 * limit else "getrf_batched")
      for t, limit in (("float32", 8400), ("complex64", 8400), ("float64", 2200), ("complex128", 2200))
      for n in (isqrt(2 * limit), isqrt(2 * limit) + 1)),
    ("linalg.lu_factor", {"m": 129, "n": 129, "b": 2, "dtype": "float32"}, "getrf_batched"),
    ("linalg.lu_factor", {"m": 130, "n": 130, "b": 2, "dtype": "float32"}, "getrf"),
    ("linalg.lu_factor", {"m": 66, "n": 66, "b": 2, "dtype": "float64"}, "getrf_batched"),
    ("linalg.lu_factor", {"m": 67, "n": 67, "b": 2, "dtype": "complex128"}, "getrf"),
    *(("linalg.lu_factor", {"m": n, "n": n, "b": b, "dtype": t}, way)
      for t, b, n, way in (
          ("float32", 3, 236, "getrf_batched"), ("float32", 3, 237, "getrf"), ("complex64", 100, 1363, "getrf_batched"),
          ("complex64", 100, 1364, "getrf"), ("float64", 3, 223, "getrf_batched"), ("float64", 3, 224, "getrf"),
          ("float64", 4, 364, "getrf_batched"), ("float64", 4, 365, "getrf"), ("complex128", 9, 374, "getrf_batched"),
          ("complex128", 9, 375, "getrf"),
      )),
    # Solving with factors where cuSOLVER is preferred.
    *(("linalg.lu_solve", {"m": n, "n": n, "b": b, "k": 5, "preference": "cusolver"}, way)
      for n, b, way in ((64, 1, "getrs"), (64, 2, "getrs"), (64, 3, "getrs_batched"), (63, 2, "getrs_batched"))),
    # By the sizes, as many right-hand sides as rows.
    ("linalg.lu_solve", {"m": 16, "n": 16, "b": 1, "k": 16}, "getrs_batched"),
    ("linalg.lu_solve", {"m": 17, "n": 17, "b": 1, "k": 17}, "trsm_batched+trsm_batched"),
    ("linalg.lu_solve", {"m": 64, "n": 64, "b": 8, "k": 64}, "trsm+trsm"),
    # Other numbers of them: tiny,
    ("linalg.lu_solve", {"m": 8, "n": 8, "b": 1, "k": 1000}, "getrs_batched"),
    ("linalg.lu_solve", {"m": 9, "n": 9, "b": 1, "k": 1000}, "getrs"),
    # small,
    ("linalg.lu_solve", {"m": 64, "n": 64, "b": 2, "k": 63}, "getrs"),
    ("linalg.lu_solve", {"m": 33, "n": 33, "b": 2, "k": 64}, "getrs"),
    ("linalg.lu_solve", {"m": 33, "n": 33, "b": 2, "k": 65}, "trsm_batched+trsm_batched"),
    ("linalg.lu_solve", {"m": 33, "n": 33, "b": 2, "k": 65, "adjoint": True}, "getrs"),
    ("linalg.lu_solve", {"m": 32, "n": 32, "b": 2, "k": 65}, "getrs"),
    ("linalg.lu_solve", {"m": 32, "n": 32, "b": 3, "k": 8}, "getrs_batched"),
    ("linalg.lu_solve", {"m": 32, "n": 32, "b": 3, "k": 9}, "trsm_batched+trsm_batched"),
    # middle,
    ("linalg.lu_solve", {"m": 65, "n": 65, "b": 2, "k": 2}, "getrs"),
    ("linalg.lu_solve", {"m": 128, "n": 128, "b": 2, "k": 3}, "trsm+trsm"),
    ("linalg.lu_solve", {"m": 128, "n": 128, "b": 3, "k": 2}, "getrs_batched"),
    ("linalg.lu_solve", {"m": 128, "n": 128, "b": 9, "k": 3}, "trsm_batched+trsm_batched"),
    # large.
    ("linalg.lu_solve", {"m": 129, "n": 129, "b": 1, "k": 1}, "trsm+trsm"),
    # What factors first goes by both rules.
    ("linalg.solve", {"m": 64, "n": 64, "b": 1, "k": 1}, "getrf+getrs"),
    ("linalg.solve", {"m": 9, "n": 9, "b": 50, "k": 1}, "getrf_batched+getrs_batched"),
    ("linalg.solve", {"m": 200, "n": 200, "b": 2, "k": 3}, "getrf+trsm+trsm"),
    ("linalg.inv", {"m": 16, "n": 16, "b": 1}, "getrf+getrs_batched"),
    ("linalg.inv", {"m": 17, "n": 17, "b": 1}, "getrf+trsm_batched+trsm_batched"),
    ("linalg.inv", {"m": 17, "n": 17, "b": 2}, "getrf_batched+trsm_batched+trsm_batched"),
    ("linalg.inv", {"m": 100, "n": 100, "b": 1}, "getrf+trsm+trsm"),
    ("linalg.inv", {"m": 100, "n": 100, "b": 1, "preference": "cusolver"}, "getrf+getrs"),
    # Triangles.
    *(("linalg.solve_triangular", {"m": n, "n": n, "b": b, "k": 1}, way)
      for n, b, way in ((64, 8, "trsm"), (64, 9, "trsm_batched"), (63, 8, "trsm_batched"), (63, 1, "trsm_batched"))),
    # QR.
    *(("linalg.qr", {"m": m, "n": 3, "b": b}, way)
      for m, b, way in (
          (256, 16, "geqrf_batched+orgqr"), (256, 15, "geqrf+orgqr"), (257, 1000, "geqrf+orgqr"), (16, 2, "geqrf_batched+orgqr"),
          (16, 1, "geqrf+orgqr"), (47, 2, "geqrf_batched+orgqr"), (48, 2, "geqrf+orgqr"), (48, 3, "geqrf_batched+orgqr"),
      )),
    ("linalg.qr", {"m": 16, "n": 3, "b": 2, "mode": "r"}, "geqrf_batched"),
    # Eigenvalues.
    *((op, {"m": n, "n": n, "b": b, "dtype": t, "version": v}, way)
      for op in ("linalg.eigh", "linalg.eigvalsh")
      for n, b, t, v, way in (
          (32, 2, "float64", BEFORE, "syevj_batched"), (32, 2, "float64", NEW, "syev_batched"), (32, 2, "float64", (12, 0), "syev_batched"),
          (32, 2, "float64", None, "syevj_batched"), (33, 2, "float64", NEW, "syevd"), (32, 1, "float64", NEW, "syevd"),
          (32, 2, "float32", BEFORE, "syevj_batched"), (32, 1, "float32", None, "syevj"), (31, 1, "float32", None, "syevd"),
          (512, 1, "float32", None, "syevj"), (513, 1, "float32", None, "syevd"), (33, 2, "float32", None, "syevj"),
          (512, 1, "complex64", None, "syevd"), (512, 1, "float64", None, "syevd"),
      )),
    *((op, {"m": 9, "n": 9, "version": v}, "geev") for op in ("linalg.eig", "linalg.eigvals") for v in (None, (11, 7, 2), (12, 0, 4))),
    # Singular values.
    *((op, {"m": m, "n": n, "b": b, "driver": d}, way)
      for op in ("linalg.svd", "linalg.svdvals")
      for m, n, b, d, way in (
          (32, 32, 2, None, "gesvdj_batched"), (32, 32, 2, "gesvdj", "gesvdj_batched"), (33, 32, 2, None, "gesvdj"),
          (32, 33, 2, None, "gesvdj"), (32, 32, 1, None, "gesvdj"), (32, 32, 2, "gesvd", "gesvd"), (32, 32, 2, "gesvda", "gesvda"),
      )),
    # Least squares.
    *(("linalg.lstsq", {"m": m, "n": n, "b": b, "k": 1, "driver": d}, way)
      for m, n, b, d, way in (
          (256, 100, 16, None, "gels_batched"), (256, 100, 15, None, "geqrf+ormqr+trsm_batched"), (256, 100, 8, "gels", "geqrf+ormqr+trsm"),
          (257, 10, 1000, None, "geqrf+ormqr+trsm_batched"), (16, 16, 2, None, "gels_batched"), (16, 17, 2, None, "geqrf+trsm_batched+ormqr"),
          (100, 10, 1, None, "geqrf+ormqr+trsm_batched"), (100, 100, 1, None, "geqrf+ormqr+trsm"),
      )),
]  # fmt: skip


@pytest.mark.parametrize(("op", "given_", "way"), RULES, ids=[f"{op} {sizes}" for op, sizes, _ in RULES])
def test_the_rule(op: str, given_: dict[str, Any], way: str) -> None:
    assert first(op, **given_).name == way


def test_the_thresholds_are_in_one_table() -> None:
    """A changed threshold changes what runs, and nothing else has it."""
    for name, changed, case, way in (
        ("trsm_batch", 9, {"op": "linalg.solve_triangular", "m": 64, "n": 64, "b": 9, "k": 1}, "trsm"),
        ("qr_rows", 257, {"op": "linalg.qr", "m": 257, "n": 3, "b": 16}, "geqrf_batched+orgqr"),
        ("jacobi_batched", 40, {"op": "linalg.svd", "m": 40, "n": 40, "b": 2}, "gesvdj_batched"),
        ("solve_square", 20, {"op": "linalg.lu_solve", "m": 20, "n": 20, "b": 1, "k": 20}, "getrs_batched"),
    ):
        assert first(**case).name != way
        before = getattr(rules.LIMITS, name)
        object.__setattr__(rules.LIMITS, name, changed)
        try:
            assert first(**case).name == way
        finally:
            object.__setattr__(rules.LIMITS, name, before)


@pytest.mark.parametrize("dtype", FLOATS)
def test_routines_have_the_names_of_the_bindings(dtype: str) -> None:
    from nvmath.bindings import cublas, cusolverDn

    modules = {"cublas": cublas, "cusolverDn": cusolverDn}
    t = table.LETTER[dtype]
    seen = set()
    for op, sizes, _ in RULES:
        given_ = {k: v for k, v in sizes.items() if k not in ("version", "preference")} | {"dtype": dtype}
        for version in (None, NEW):
            for recipe in table.recipes(problem(op, **given_), version):
                for step in (*recipe.steps, *(s for a in recipe.alternatives for s in a.steps)):
                    assert hasattr(modules[step.module], step.routine), step
                    assert not step.workspace or hasattr(modules[step.module], step.workspace), step
                    assert step.routine[0] in ("x", t)
                    seen.add(step.routine.removeprefix(t))
    assert {"getrf_batched", "trsm", "trsm_batched", "gels_batched", "geqrf_batched", "gesvdj", "gesvdj_batched"} <= seen
    assert ({"ungqr", "unmqr", "heevj_batched"} if dtype.startswith("c") else {"orgqr", "ormqr", "syevj_batched"}) <= seen
    assert ("syevj" in seen) == (dtype == "float32")


def test_a_recipe_says_everything() -> None:
    recipe = first("linalg.svd", 40, 30, driver=None, full_matrices=False)
    assert routines(recipe) == ["dgesvdj"] and recipe.steps[0].workspace == "dgesvdj_buffer_size" and recipe.steps[0].each
    (alternative,) = recipe.alternatives
    assert alternative.when == "gesvdj did not converge for some of the matrices"
    assert alternative.steps == (table.Step("cusolverDn", "xgesvd", True, "xgesvd_buffer_size"),)
    assert alternative.what == "those matrices alone, from the start"
    assert recipe.waits == table.CONVERGES
    assert not first("linalg.svd", 40, 30, driver="gesvd", full_matrices=False).alternatives
    recipe = first("linalg.solve", 9, 9, 5, 2, "float32", check=True)
    assert [(s.module, s.routine, s.each) for s in recipe.steps] == [("cublas", "sgetrf_batched", False), ("cublas", "sgetrs_batched", False)]


def test_a_call_waits_only_where_it_may_raise() -> None:
    assert first("linalg.inv", 9, 9, check=True).waits and not first("linalg.inv", 9, 9, check=False).waits
    assert first("linalg.cholesky", 9, 9, check=True).waits and not first("linalg.cholesky", 9, 9, check=False).waits
    for op in ("linalg.solve_triangular", "cholesky_solve"):
        assert not first(op, 9, 9, k=2).waits
    assert not first("linalg.qr", 9, 9).waits
    for op in ("linalg.eigh", "linalg.eig", "linalg.svdvals", "linalg.lu_solve", "linalg.lstsq", "cholesky_inverse"):
        assert first(op, 9, 9, k=2).waits


def test_the_older_rule_is_there_to_be_compared_with() -> None:
    recipes = list(table.recipes(problem("linalg.lu_factor", 512, 512, 1000)))
    assert [(r.name, r.note) for r in recipes] == [("getrf_batched", ""), ("getrf", "what an older rule takes")]
    recipes = list(table.recipes(problem("linalg.lu_factor", 511, 511, 1000)))
    assert [(r.name, r.note) for r in recipes] == [("getrf_batched", ""), ("getrf", "")]
    assert rules.older_lu_way(5, 4, 9) == rules.older_lu_way(5, 5, 1) == "getrf"


def test_any_order_is_listed_after_and_reaches_no_level() -> None:
    found = list(listed(problem("linalg.qr", 300, 300, mode="r"), NEW, "default"))
    assert [(a.name, a.level) for a in found if isinstance(a, Algorithm)] == [("geqrf", "threads"), ("geqrf_any_order", "off")]
    assert "sums in any order" in getattr(found[1], "note", "")


@pytest.mark.parametrize(("given_", "text"), [
    ({"op": "linalg.svd", "m": 5, "n": 4, "driver": "gesdd"}, "the call asks for driver='gesdd'; it has gesvdj, gesvd and gesvda"),
    ({"op": "linalg.svd", "m": 5, "n": 4, "driver": "gesvda", "full_matrices": True}, "it gives min(m, n) vectors, and full_matrices asks for more"),
    ({"op": "linalg.lstsq", "m": 5, "n": 4, "k": 1, "driver": "gelsy"}, "the call asks for driver='gelsy'; it has gels"),
    ({"op": "linalg.eig", "m": 4, "n": 4, "version": (11, 7, 1)}, "it takes cuSOLVER 11.7.2, this is 11.7.1"),
    ({"op": "linalg.qr", "m": 2**31, "n": 1}, "sizes past 2147483647 are more than its routines count to"),
    ({"op": "linalg.inv", "m": 3, "n": 3, "dtype": "float16"}, "it has no linear algebra of float16"),
])  # fmt: skip
def test_refusals(given_: dict[str, Any], text: str) -> None:
    version = given_.pop("version", None)
    made = problem(**given_)
    given_["version"] = version
    assert not list(table.recipes(made, version))
    (found,) = listed(made, version, "default")
    assert isinstance(found, Refusal) and found.reason == text


def test_what_is_no_linear_algebra() -> None:
    from backline.problems import Problem

    (found,) = listed(Problem("matmul", (operand("a", np.eye(2)),), device="cuda:0"), None, "default")
    assert isinstance(found, Refusal) and found.reason == "it has no matmul"


import_operations()
OPS = sorted(set(operations) & set(OPERATIONS))


def test_nothing_to_compute_calls_nothing() -> None:
    for op in OPS:
        (recipe,) = table.recipes(problem(op, 0, 0))
        assert recipe.ways == ("empty",) and not recipe.steps


SIZES = st.integers(1, 700)


@settings(max_examples=150, deadline=None)
@given(op=st.sampled_from(OPS), m=SIZES, n=SIZES, b=st.integers(1, 3000), k=SIZES, dtype=st.sampled_from(FLOATS),
       version=st.sampled_from([None, BEFORE, NEW, (11, 7, 2), (12, 1, 0)]), preference=st.sampled_from(["default", "cusolver", "magma"]),
       driver=st.sampled_from([None, "gesvd", "gesvdj", "gesvda"]), flag=st.booleans())  # fmt: skip
def test_any_shape_has_a_recipe(
    op: str, m: int, n: int, b: int, k: int, dtype: str, version: Any, preference: str, driver: str | None, flag: bool
) -> None:
    if op not in ("linalg.qr", "linalg.lu_factor", "linalg.svd", "linalg.svdvals", "linalg.lstsq"):
        m = n
    parameters: dict[str, Any] = {}
    if "svd" in op:
        parameters = {"driver": driver, "full_matrices": flag}
    made = problem(op, m, n, b, k, dtype, adjoint=flag, check=flag, **parameters)
    recipes, refused = list(table.recipes(made, version, preference)), list(table.refusals(made, version))
    assert bool(recipes) != bool(refused)
    names = [recipe.name for recipe in recipes]
    assert len(names) == len(set(names))
    for recipe in recipes:
        assert recipe.steps and hash(recipe) is not None
        assert table.choose(made, recipe.name, version, preference) == recipe
        # A routine for a whole batch is not called for each matrix, and the other way round.
        assert all(step.each != ("batched" in step.routine) for step in recipe.steps)
        if b == 1:
            assert not {"potrf_batched", "getrf_batched", "geqrf_batched", "gesvdj_batched", "syevj_batched"} & set(recipe.ways[:1])
    if recipes:
        assert not recipes[0].any_order


@settings(max_examples=100, deadline=None)
@given(b=st.integers(3, 5000), dtype=st.sampled_from(FLOATS))
def test_larger_matrices_never_go_back_to_one_call(b: int, dtype: str) -> None:
    ways = [rules.lu_way(n, n, b, dtype) for n in range(1, 3000, 37)]
    assert ways == sorted(ways, reverse=True)  # getrf_batched before getrf
