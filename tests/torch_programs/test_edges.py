"""Arguments at the edge: values, shapes and errors that torch has for them, held against torch itself where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import errors

sys.path.append(str(Path(__file__).parents[1]))

from support import clean

assert clean  # fixture: imported to be found by pytest
INF, NAN = np.inf, np.nan

# A call, its result as nested lists, and the shape.
RESULTS: list[tuple[str, Any, tuple[int, ...]]] = [
    *((f"torch.linalg.norm(zeros({m}, {n}), {ord})", 0.0, ()) for m, n in ((0, 0), (0, 3), (3, 0)) for ord in (2, 1, "inf", "'nuc'", "'fro'")),
    ("torch.linalg.norm(zeros(3, 0), 2, keepdim=True)", [[0.0]], (1, 1)),
    ("torch.linalg.matrix_norm(zeros(2, 0, 3), 2)", [0.0, 0.0], (2,)),
    ("torch.linalg.matrix_norm(zeros(2, 3, 0), 1)", [0.0, 0.0], (2,)),
    ("torch.linalg.norm(zeros(0, 3), -1)", 0.0, ()),
    *((f"torch.linalg.{name}(array(-3.0), 2, {dim})", 3.0, ()) for name in ("norm", "vector_norm") for dim in (0, -1, "(0,)")),
    ("torch.linalg.vector_norm(array(-3.0), 2, 0, True)", 3.0, ()),
    ("torch.linalg.vector_norm(array([[3.0, 0.0], [0.0, 4.0]]), dim=())", 5.0, ()),
    ("torch.linalg.vector_norm(array([[3.0, 0.0], [0.0, 4.0]]), dim=(), keepdim=True)", [[5.0]], (1, 1)),
    ("torch.tensordot(ones(2, 1), ones(3, 2), dims=1)", [[3.0, 3.0], [3.0, 3.0]], (2, 2)),
    ("torch.tensordot(ones(2, 3), ones(1, 1), dims=1)", [[3.0], [3.0]], (2, 1)),
    ("torch.tensordot(ones(1, 1, 3), ones(4, 3, 2), dims=2)", [[12.0, 12.0]], (1, 2)),
    ("torch.linalg.eigh(eye(2), UPLO='l')[0]", [1.0, 1.0], (2,)),
    ("torch.linalg.eigvalsh(eye(2), UPLO='u')", [1.0, 1.0], (2,)),
    *((f"torch.linalg.cond(zeros(2, 2), {p})", NAN, ()) for p in ("None", 2, -2, "'nuc'")),
    *((f"torch.linalg.cond(zeros(2, 2), {p})", INF, ()) for p in (1, "inf", "'fro'")),
    *((f"torch.linalg.cond(eye(2) * 1e-42, {p})", INF, ()) for p in (1, -1, "inf", "'fro'", "'nuc'")),
    *((f"torch.linalg.cond(eye(2) * 1e-42, {p})", 1.0, ()) for p in ("None", 2, -2)),
    *((f"torch.linalg.lstsq(eye(4)[:, :3], ones(4), driver='{driver}')[1]", [1.0], (1,)) for driver in ("gels", "gelsd", "gelss")),
    ("torch.linalg.lstsq(ones(3, 0), ones(3), driver='gelsd')[1]", [3.0], (1,)),
    ("torch.linalg.lstsq(ones(2, 3, 0), ones(2, 3), driver='gelss')[1]", [[3.0], [3.0]], (2, 1)),
    ("torch.linalg.lstsq(zeros(0, 3, 2), zeros(0, 3), driver='gelsd')[1]", [], (0, 1)),
    ("torch.linalg.lstsq(ones(3, 0), ones(3, 2), driver='gels')[2]", [], (0,)),
]  # fmt: skip

# A call, and the built-in class of the error, or None where torch has a result that we refuse.
REFUSED: list[tuple[str, type[Exception] | None]] = [
    ("torch.nn.functional.conv2d(ones(1, 1, 0, 4), ones(1, 1, 3, 3))", RuntimeError),
    ("torch.nn.functional.conv2d(ones(1, 1, 0, 4), ones(1, 1, 1, 1))", RuntimeError),
    ("torch.nn.functional.conv_transpose2d(ones(1, 1, 0, 4), ones(1, 1, 3, 3))", RuntimeError),
    ("torch.linalg.norm(zeros(0, 0), -2)", IndexError),
    ("torch.linalg.norm(zeros(3, 0), -1)", IndexError),
    ("torch.linalg.norm(ones(2, 2, 2), dim=(0, 1, 2))", RuntimeError),
    ("torch.linalg.norm(ones(2, 2), dim=())", RuntimeError),
    ("torch.linalg.norm(array(1.0), 2)", RuntimeError),
    ("torch.linalg.norm(ones(2, 2), nan)", RuntimeError),
    ("torch.linalg.norm(ones(2, 2), dim=True)", TypeError),
    ("torch.linalg.norm(ones(2, 2), dim=1.5)", TypeError),
    ("torch.linalg.vector_norm(ones(2, 2), dim=(None,))", TypeError),
    ("torch.linalg.norm(ones(2, 2), keepdim='no')", TypeError),
    ("torch.linalg.vector_norm(ones(2, 2), keepdim=array([1.0]))", TypeError),
    ("torch.linalg.norm(ones(2, 2), True)", None),
    ("torch.linalg.vector_norm(ones(2, 2), True)", None),
    ("torch.linalg.vector_norm(ones(2, 2), nan)", None),
    ("torch.linalg.eigh(eye(2), UPLO='lower')", RuntimeError),
    ("torch.linalg.multi_dot(0.5)", TypeError),
    ("torch.linalg.matrix_rank(ones(2, 2), hermitian=array([1.0]))", TypeError),
    ("torch.linalg.pinv(ones(2, 2), rtol=ones(3))", None),
    ("torch.nn.functional.linear(ones(2, 2), None)", TypeError),
    ("torch.nn.functional.bilinear(None, ones(2), ones(1, 2, 2))", TypeError),
    ("torch.linalg.svd(ones(2, 2), driver=array([1.0]))", TypeError),
    ("torch.linalg.cond(ones(2, 2), p=array([1.0, 2.0]))", RuntimeError),
    ("torch.fft.rfftfreq(2**63)", ValueError),
]


def space(torch: Any) -> dict[str, Any]:
    if torch is backline:
        makers = {
            "ones": lambda *s: np.ones(s, np.float32),
            "zeros": lambda *s: np.zeros(s, np.float32),
            "array": lambda v: np.array(v, np.float32),
        }
        return {**makers, "eye": lambda n: np.eye(n, dtype=np.float32), "torch": torch, "inf": INF, "nan": NAN}
    return {
        "ones": torch.ones,
        "zeros": torch.zeros,
        "array": torch.tensor,
        "eye": torch.eye,
        "torch": torch,
        "inf": INF,
        "nan": NAN,
    }


def holds(torch: Any, call: str, value: Any, shape: tuple[int, ...]) -> None:
    with np.errstate(all="ignore"):
        got = np.asarray(eval(call, space(torch)))
    assert got.shape == shape
    np.testing.assert_allclose(got, np.reshape(value, shape), rtol=1e-5)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("call", "value", "shape"), RESULTS)
def test_an_edge_has_torchs_result(call: str, value: Any, shape: tuple[int, ...]) -> None:
    holds(backline, call, value, shape)


@pytest.mark.torch
@pytest.mark.parametrize(("call", "value", "shape"), RESULTS)
def test_torch_has_that_result(call: str, value: Any, shape: tuple[int, ...]) -> None:
    holds(pytest.importorskip("torch"), call, value, shape)


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(("call", "kind"), REFUSED)
def test_an_edge_is_refused_as_in_torch(call: str, kind: type[Exception] | None) -> None:
    with pytest.raises(errors.BacklineError) as caught:
        eval(call, space(backline))
    assert isinstance(caught.value, (errors.BadValue, errors.BadType))
    assert kind is None or kind is TypeError or isinstance(caught.value, kind)


@pytest.mark.torch
@pytest.mark.parametrize(("call", "kind"), [row for row in REFUSED if row[1]])
def test_torch_refuses_that(call: str, kind: type[Exception]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises((kind, RuntimeError, TypeError)):
        eval(call, space(torch))
