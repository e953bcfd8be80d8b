"""explain: what would run, what ran, and how it reads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import backline
from backline import libraries, linalg
from backline.engine import ranking_files
from backline.engine.choice import Candidate, Choice
from backline.errors import BadType, BadValue, NoKernel
from support import clean, need

pytestmark = pytest.mark.usefixtures("clean")
assert clean
A = np.ones((4, 4), np.float32)


def test_the_table_names_everything() -> None:
    need("openblas")
    with backline.use("openblas"):
        choice = backline.explain(backline.matmul, A, A)
    text = str(choice)
    assert choice.library == "openblas" and choice.problem.key == "matmul f32 4x4 4x4"
    for part in (
        "matmul f32 4x4 4x4",
        "runs on",
        "because",
        "same bits",
        "chosen",
        "prefer = ('openblas',), scope (",
        "test_explanation.py",
    ):
        assert part in text, text
    assert text.count("\n") > 6 and all(line == line.rstrip() for line in text.splitlines())
    assert choice.candidates[0].verdict == "chosen" and {c.verdict for c in choice.candidates} <= {"chosen", "next", "refused"}
    assert all(c.reason for c in choice.candidates if c.verdict == "refused")


def test_html_is_escaped() -> None:
    choice = backline.explain(backline.matmul, A, A)
    choice.candidates.append(Candidate("<script>", "a&b", "refused", "<b>1 < 2</b>", "x.y"))
    choice.basis = "<i>"
    html = choice._repr_html_()
    assert "<script>" not in html and "<b>" not in html and "<i>" not in html
    assert "&lt;script&gt;" in html and "a&amp;b" in html and html.count("<table>") == 2


def test_nothing_is_run_or_loaded_by_explaining() -> None:
    from backline import _core

    before = _core.memo_info()["size"]
    out = np.full((4, 4), 7, np.float32)
    backline.explain(backline.matmul, A, A, out=out)
    assert (out == 7).all() and _core.memo_info()["size"] == before


@pytest.mark.parametrize("name", ["matmul", "backline.matmul", "linalg.inv", "backline.linalg.inv", "cholesky_solve"])
def test_operations_by_name(name: str) -> None:
    args = (A, A) if "inv" not in name else (A,)
    assert isinstance(backline.explain(name, *args), Choice)


def test_least_squares_is_explained() -> None:
    choice = backline.explain(linalg.lstsq, A, A)
    assert choice.problem.op == "linalg.lstsq"
    assert backline.explain(linalg.lstsq, A, A, driver="gelsd").problem.parameter("driver") == "gelsd"


@pytest.mark.parametrize(("op", "part"), [(backline.addbmm, "addmm"), ("addbmm", "addmm"), (backline.tensordot, "matmul"),
                                          ("tensordot", "matmul"), (linalg.multi_dot, "matmul")])  # fmt: skip
def test_composites_say_what_they_are_made_of(op: object, part: str) -> None:
    with pytest.raises(BadValue, match=rf"made of other operations: .*{part}"):
        backline.explain(op, A)


@pytest.mark.parametrize(("op", "algorithms"), [
    (linalg.det, {"getrf"}), ("linalg.slogdet", {"getrf"}), (linalg.lu, {"getrf"}), (linalg.pinv, {"gesdd", "gesvd"}),
    (linalg.norm, {"compiled"}), (linalg.vector_norm, {"compiled"}), (linalg.matrix_norm, {"compiled"}),
    (linalg.cond, {"gesdd", "gesvd"}), (linalg.matrix_exp, {"gemm"}), (linalg.matrix_rank, {"gesdd", "gesvd"}),
])  # fmt: skip
def test_what_one_library_computes_whole(op: object, algorithms: set[str]) -> None:
    need("openblas")
    with backline.backends.flags(only=("openblas", "kernels")):
        assert backline.explain(op, A).algorithm in algorithms


def test_what_no_library_computes_whole_is_composed() -> None:
    for call in (lambda: backline.explain(linalg.pinv, A, hermitian=True), lambda: backline.explain("linalg.matrix_rank", A, hermitian=True)):
        with pytest.raises(BadValue, match=r"made of other operations: .*svd"):
            call()
    with backline.backends.flags(only=("numpy",)):
        with pytest.raises(NoKernel, match="made of other operations"):
            backline.explain(linalg.det, A)
        with backline.trace() as events:
            assert linalg.det(np.eye(3)) == 1
    assert [(e.op, e.library) for e in events] == [("lu_factor_ex", "numpy")]


@pytest.mark.parametrize(("op", "kind"), [("matmull", BadValue), (len, BadValue), (3, BadType), (np.matmul, BadValue)])
def test_what_is_no_operation(op: object, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        backline.explain(op, A)


def test_the_last_operation_is_that_of_this_thread() -> None:
    backline.mm(A, A)
    found: list[object] = []

    def work() -> None:
        try:
            backline.explain()
        except BadValue as error:
            found.append(error)
        linalg.inv(np.eye(2))
        found.append(backline.explain().problem.op)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(found[0], BadValue) and found[1] == "linalg.inv"
    assert backline.explain().problem.key == "matmul f32 4x4 4x4"


def test_wrong_arguments_are_the_operations_own_errors() -> None:
    with pytest.raises(BadValue, match="do not fit"):
        backline.explain(backline.mm, A, np.ones((3, 3), np.float32))
    with pytest.raises(TypeError):
        backline.explain(backline.mm, A)


# How it shows in a session ----------------------------------------------------------------------------------------------


def test_a_repr_is_one_short_line() -> None:
    for op, *args in ((backline.matmul, A, A), (linalg.svd, A), (backline.einsum, "ij,jk,kl->il", A, A, A)):
        choice = backline.explain(op, *args)
        text = repr(choice)
        assert "\n" not in text and len(text) < 160 and choice.problem.key in text and str(choice.library) in text
        assert "\n" in str(choice)
    assert "detail" not in repr(choice.candidates[0])


def test_a_refusal_is_listed_once() -> None:
    big = np.ones((256, 256), np.float32)
    with backline.num_threads(2):
        for op, *args in ((backline.matmul, big, big), (backline.matmul, A, A), (linalg.svd, big), (linalg.eigh, A)):
            rows = [row for row in backline.explain(op, *args).rows() if row[0] == "refused"]
            assert len({(library, reason) for _, library, _, _, reason in rows}) == len(rows), rows


def test_libraries_that_do_not_have_the_operation_share_the_last_line() -> None:
    need("blis")
    choice = backline.explain(linalg.cholesky, A)
    lacking = [c.library for c in choice.candidates if c.lacks]
    assert "blis" in lacking and all(
        c.verdict == "refused" and "has no linalg.cholesky" in c.reason for c in choice.candidates if c.lacks
    )
    last = choice.rows()[-1]
    assert last[0] == "refused" and last[4] == f"no linalg.cholesky: {', '.join(lacking)}"
    assert not {row[1] for row in choice.rows()} & set(lacking)
    choice.candidates = [Candidate("x", "gemm", "chosen"), Candidate("y", "", "refused", "Y has no z", lacks=True)]
    assert [row[1] for row in choice.rows()] == ["x", "1 other"]


def test_the_release_that_runs_is_told_and_another_one_that_was_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    need("openblas")
    monkeypatch.setattr(ranking_files, "shipped", lambda: ranking_files.Ranking(ranking_files.here(), {"libraries": {"openblas": "0.1"}}, []))
    big = np.ones((97, 97), np.float32)
    with backline.use("openblas"):
        choice = backline.explain(backline.matmul, big, big)
    here = libraries.get("openblas").version()
    assert choice.version == here and ("version", here) in choice.lines()
    assert choice.basis.endswith(f"; made with openblas 0.1, and {here} is here")


def test_algorithms_that_one_reason_refuses_share_a_row() -> None:
    choice = backline.explain(backline.matmul, A, A)
    choice.candidates = [Candidate("x", name, "refused", "too old") for name in ("gemm", "gemm_split")]
    choice.candidates += [Candidate("y", "gemm", "refused", "too old"), Candidate("y", "jit", "refused", "too new")]
    assert [row[1:3] for row in choice.rows()] == [("x", "gemm, gemm_split"), ("y", "gemm"), ("y", "jit")]
