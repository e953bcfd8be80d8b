"""The table of errata: which rows hold, what a choice does with them, and the rows that a machine adds for itself."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

import backline
from backline import libraries
from backline.errors import BadValue, NoKernel
from backline.libraries import edges, errata, errata_local, errata_table
from backline.libraries.base import Algorithm, Library, PythonPlan, Refusal
from backline.libraries.edges import EDGES
from backline.libraries.erratum import Erratum
from backline.nn import functional, grad
from backline.problems import Problem, operand
from backline.problems.op_registry import operations
from backline.problems.quantized_problem import QuantizedProblem
from recurrent import make
from support import SHIPPED_ERRATA, clean, problem_of

pytestmark = pytest.mark.usefixtures("clean")
assert clean
A = np.ones((3, 5))


class Toy(Library):
    """A library whose version and instruction sets a test sets."""

    name, title, families = "blis", "Toy", ("matmul",)  # in the place of one, so that `use` knows the name
    told: str | None = "2.5"
    sets: tuple[str, ...] | None = ("avx2", "avx512")

    def reason(self) -> str:
        return ""

    def version(self) -> str | None:
        return self.told

    def instruction_sets(self) -> tuple[str, ...] | None:
        return self.sets

    def algorithms(self, problem: Problem, threads: int) -> Iterator[Algorithm | Refusal]:
        yield Algorithm(library="blis", name="fast")
        yield Algorithm(library="blis", name="slow")

    def prepare(self, problem: Problem, algorithm: Algorithm) -> Any:
        return PythonPlan(np.matmul)

    def report(self) -> dict[str, Any]:
        return {"name": "blis", "available": True, "reason": "", "version": self.told, "path": __file__}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Toy]:
    monkeypatch.setenv("BACKLINE_ERRATA", str(tmp_path / "errata.json"))
    library = Toy()
    libraries.register(library)
    errata.clear()
    yield library
    libraries.unregister("blis")
    monkeypatch.undo()
    errata.clear()


def ship(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    row = {"id": "toy-1", "library": "blis", "operations": ("matmul",), "condition": "a toy product", "evidence": "wrong by 1"}
    monkeypatch.setattr(errata_table, "TABLE", (Erratum(**(row | fields)),))
    errata.clear()


def runnable(a: Any = A, b: Any = A.T) -> list[str]:
    with backline.use("blis"):
        choice = backline.explain(backline.matmul, a, b)
    return [c.algorithm for c in choice.candidates if c.library == "blis" and c.verdict != "refused"]


def test_a_row_is_a_refusal_with_its_reason(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runnable() == ["fast", "slow"]
    ship(monkeypatch, algorithm="f*", remedy="a later toy")
    with backline.use("blis"):
        choice = backline.explain(backline.matmul, A, A.T)
        assert (choice.library, choice.algorithm) == ("blis", "slow")
        refused = [c.reason for c in choice.candidates if c.library == "blis" and c.verdict == "refused"]
        assert refused == ["erratum toy-1: a toy product; a later toy"]
        assert np.array_equal(backline.matmul(A, A.T), A @ A.T)
    ship(monkeypatch)
    with backline.use("blis", only=True), pytest.raises(NoKernel, match="erratum toy-1: a toy product"):
        backline.matmul(A, A.T)


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"since": "2.5"}, True), ({"since": "2.5.1"}, False), ({"before": "2.5"}, False), ({"before": "2.10"}, True),
        ({"isa": "avx512"}, True), ({"isa": "amx_bf16"}, False), ({"dtypes": ("f64",)}, True), ({"dtypes": ("f32",)}, False),
        ({"operations": ("conv",)}, False), ({"operations": ()}, True), ({"library": "mkl"}, False),
        ({"algorithm": "none"}, False), ({"problem": "matmul f64 3x5 5x3:F"}, True), ({"problem": "matmul f64 3x5 5x4"}, False),
    ],
)  # fmt: skip
def test_every_part_of_a_condition_counts(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], holds: bool
) -> None:
    ship(monkeypatch, **fields)
    assert runnable() == ([] if holds else ["fast", "slow"])


def test_what_a_library_does_not_tell_is_assumed(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.told = toy.sets = None
    ship(monkeypatch, before="1.0", isa="amx_bf16")
    assert runnable() == []


def test_an_edge_decides_by_the_problem(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EDGES, "toy-odd", lambda p: p.k % 2 == 1)
    ship(monkeypatch, edge="toy-odd")
    assert runnable() == [] and runnable(np.ones((3, 4)), np.ones((4, 3))) == ["fast", "slow"]


def test_shipped_rows_are_well_formed() -> None:
    ids = [row.id for row in SHIPPED_ERRATA]
    assert len(set(ids)) == len(ids)
    for row in SHIPPED_ERRATA:
        assert row.library in libraries.names() and row.condition and row.evidence and not row.problem, row.id
        assert (not row.edge or row.edge in EDGES) and row.operations and row.id.startswith(row.library), row.id


def _matching(
    library: str, text: str, algorithm: str, sets: tuple[str, ...] | None, version: str = "3.2.0"
) -> list[Erratum]:
    """The shipped rows that an algorithm falls under, of a library that is made up."""
    made = Toy()
    made.name, made.sets, made.told = library, sets, version
    errata_table.TABLE = SHIPPED_ERRATA
    errata.clear()
    found = [*errata.matching(made, Problem.parse(text), algorithm)]
    errata.clear()
    return found


def _of(text: str, sets: tuple[str, ...] | None, library: str = "onednn", version: str = "3.2.0") -> set[str]:
    return {row.id for row in _matching(library, text, "nhwc", sets, version)}


CRASH = "conv bf16 1x2x1x6 4x1x2x2 dilation=3x3 padding=2x2 groups=2"
WEIGHT = "conv_grad_weight bf16 2x4x6x2 2x12x4x1 stride=2x3 padding=1x1 groups=4 result=12x1x2x2"
INPUT = "conv_grad_input bf16 3x2x2x3x1 2x3x2x2x12 stride=2x1x3 result=2x2x5x4x35"
JOINED = "conv bf16 2x48x8x32 64x48x2x2 stride=2x2 last"
PASSED = "conv bf16 2x64x14x128 64x64x2x8 stride=3x8 last"
DECONVOLUTION = "conv_transpose f32 1x1x3x1 1x1x3x3 stride=3x3 output_padding=2x2 padding=2x2"
ZEN4 = ("avx2", "avx512", "avx512_vnni", "avx512_bf16")
XEON = (*ZEN4, "avx512_fp16", "amx_bf16")
USUAL = "conv_grad_weight bf16 2x8x14x14 2x16x7x7 stride=2x2 padding=1x1 result=16x8x3x3"


def test_a_row_with_gaps_is_one_whose_elements_lie_apart() -> None:
    a, b = np.ones((16, 4), np.float32), np.ones((16, 33), np.float32)
    gaps = EDGES["row-with-gaps"]
    assert gaps(problem_of("mm", a[:, :1].T, b)) and not gaps(problem_of("mm", a[:, :2].T, b))
    assert not gaps(problem_of("mm", a.reshape(64)[None, :16], b)) and not gaps(problem_of("mm", a[:1, :1], b[:1]))
    (row,) = (row for row in SHIPPED_ERRATA if row.id == "onednn-row-with-gaps")
    assert row.concerns_version("3.6.2") and not row.concerns_version("3.2.0") and row.covers("linear", "bf16", "matmul")


def test_rows_hold_where_their_defects_were_seen() -> None:
    assert "onednn-amx-conv-crash" in _of(CRASH, XEON) and _of(CRASH, None) and not _of(CRASH, ZEN4)
    assert "onednn-bf16-weight-gradient" in _of(WEIGHT, ZEN4) and "onednn-amx-gradient-unwritten" in _of(WEIGHT, XEON)
    window = CRASH.replace("bf16", "f32")
    assert not _of(window, ZEN4) and _of(window, ZEN4, version="3.14.0") == {"onednn-conv-empty-window"}
    transposed = [row.id for row in _matching("onednn", "conv_transpose f32 2x4x5 4x4x3 4 stride=2", "nhwc_bf16", XEON, "3.6.2")]
    assert "onednn-amx-transpose-reduced" in transposed
    point = "conv_grad_weight f32 32x4x32x32 32x8x16x16 stride=2x2 result=8x4x1x1 last"
    assert not _of(point, ZEN4) and _of(point, ZEN4, version="3.9.1") == {"onednn-weight-gradient-1x1"}
    assert _of(INPUT, XEON) == {"onednn-amx-gradient-unwritten"} and not _of(INPUT, ZEN4)
    assert not _of(USUAL, XEON) and not _of("conv_grad_input bf16 16x8x3x3 2x16x7x7 stride=2x2 padding=1x1 result=2x8x14x14", XEON) & {"onednn-amx-conv-crash"}
    assert _of(DECONVOLUTION, None, "xnnpack", "") == {"xnnpack-deconvolution-small"}
    few, many = "matmul c64 15x2:F 2x31:F", "matmul f32 16x8 8x16"
    made = [(text, {row.id for row in _matching("mkl", text, "jit", ("avx2", "avx512"))}) for text in (few, many)]
    assert made == [(few, {"mkl-jit-reads-past-end"}), (many, set())] and not _matching("mkl", few, "gemm", None)
    assert {row.id for row in _matching("blis", many, "gemm", None, "0.9.0")} == {"blis-sgemm-reads-past-end"}
    assert not _matching("blis", many, "gemm", None, "1.1") and not _matching("blis", many.replace("f32", "f64"), "gemm", None, "0.9.0")
    assert not _of("conv_transpose f32 1x8x7x7 8x4x4x4 stride=2x2 padding=1x1", None, "xnnpack", "")


def test_convolutions_by_tiles_name_the_kernels_that_are_wrong() -> None:
    """A row with kernels refuses no algorithm: the library takes its next kernel."""
    made = Toy()
    made.name, made.sets, made.told = "onednn", XEON, "3.2.0"
    errata_table.TABLE = SHIPPED_ERRATA
    errata.clear()
    way = Algorithm(library="onednn", name="nhwc")
    for text, row in ((JOINED, "onednn-amx-conv-joined-channels"), (PASSED, "onednn-amx-conv-rows-passed-over")):
        problem = Problem.parse(text)
        assert _of(text, XEON) == {row} and not _of(text, ZEN4)
        errata_table.TABLE = SHIPPED_ERRATA
        errata.clear()
        assert errata.kernels(made, problem, "nhwc") == ("brgconv:avx512_core_amx*",) and not errata.refusal(made, problem, way)
    errata.clear()
    for usual in (
        JOINED.replace("48", "64"), JOINED.replace("stride=2x2", "stride=2x1"), JOINED.replace("stride", "padding=0x1 stride"),
        JOINED.replace("stride", "dilation=1x2 stride"), JOINED.replace("64x48x", "64x24x").replace("last", "groups=2 last"),
        PASSED.replace("stride=3x8", "stride=2x8"), PASSED.replace("64x64x2x8", "64x64x1x1"),
    ):  # fmt: skip
        assert not _of(usual, XEON), usual
    reduced = [row.id for row in _matching("onednn", JOINED.replace("bf16", "f32"), "nhwc_bf16", XEON)]
    assert reduced == ["onednn-amx-conv-joined-channels-reduced"]
    assert EDGES["rows-passed-over"](Problem.parse("conv bf16 1x40x5x5x20 16x40x1x3x4 stride=4x1x1"))  # type: ignore[arg-type]


def quantized_conv(image: tuple[int, ...], weight: tuple[int, ...], **sizes: Any) -> QuantizedProblem:
    operands = operand("input", np.zeros(image, np.uint8)), operand("weight", np.zeros(weight, np.int8))
    steps = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1} | sizes
    numbers = zip(image[2:], weight[2:], *(steps[name] for name in ("stride", "padding", "dilation")), strict=True)
    points = [(x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d in numbers]
    return QuantizedProblem("quantized.conv2d", operands, tuple(sorted(steps.items())), "quantized", result=(image[0], weight[0], *points))


def test_edges_of_convolutions_of_int8() -> None:
    joined, passed, padded = (EDGES[name] for name in ("channels-joined-to-tiles", "rows-passed-over", "padded-above-only"))
    assert joined(quantized_conv((1, 96, 4, 32), (16, 96, 2, 2), stride=(2, 2)))
    assert not joined(quantized_conv((1, 128, 4, 32), (16, 128, 2, 2), stride=(2, 2)))
    assert passed(quantized_conv((1, 64, 9, 32), (16, 64, 2, 2), stride=(3, 2)))
    assert not passed(quantized_conv((1, 64, 9, 33), (16, 64, 2, 2), stride=(2, 3)))
    image, weight = (1, 16, 3, 95), (96, 16, 3, 2)
    assert padded(quantized_conv(image, weight, stride=(1, 2), padding=(2, 0)))
    for other in ({"padding": (2, 1)}, {"padding": (0, 0)}, {"padding": (2, 0), "from_zero": True}, {"padding": (2, 0), "stride": (1, 3)}):
        assert not padded(quantized_conv(image, weight, **{"stride": (1, 2), **other})), other


def test_edges_are_those_of_loops_over_every_position() -> None:
    numbers = random.Random(5)
    met = set()
    for _ in range(4000):
        image, kernel, stride, dilation = (numbers.randint(1, n) for n in (12, 5, 6, 5))
        image = numbers.randint(40, 200) if numbers.random() < 0.2 else image
        before, after = numbers.randint(0, 6), numbers.randint(0, 6)
        points = (image + before + after - dilation * (kernel - 1) - 1) // stride + 1
        if points < 1:
            continue
        reads = [[position * stride - before + tap * dilation for position in range(points)] for tap in range(kernel)]
        inside = np.array([[0 <= at < image for at in row] for row in reads])
        read = {at for row in reads for at in row} & set(range(image))
        axis = edges.Axis(image, kernel, points, stride, dilation, before)
        found = edges._idle_tap(axis), edges._empty_window(axis), edges._unread_point(axis)
        assert found == (not inside.any(1).all(), not inside.any(0).all(), len(read) < image), axis
        met.add(found)
    assert len(met) > 4


# Rows of this machine -------------------------------------------------------------------------------------------------


def local(toy: Toy, **fields: str) -> errata_local.LocalErratum:
    values: dict[str, Any] = {
        "id": "local-toy-1", "library": "blis", "operations": ("matmul",), "problem": "matmul f64 3x5 5x3:F", "algorithm": "fast",
        "condition": "seen here", "evidence": "wrong by 1", "build": errata_local.identity(toy),
        "processor": errata_local.processor(),
    }  # fmt: skip
    return errata_local.LocalErratum(**(values | fields))


def test_rows_are_kept_and_forgotten(toy: Toy, tmp_path: Path) -> None:
    assert errata.keep([local(toy)]) == 1 and errata.keep([local(toy)]) == 0
    assert runnable() == ["slow"] and runnable(A.T, A) == ["fast", "slow"]
    assert [row.id for row in errata.applying(toy)] == ["local-toy-1"]
    assert [file.name for file in tmp_path.iterdir()] == ["errata.json"]
    assert errata.forget() == 1 and runnable() == ["fast", "slow"] and not list(tmp_path.iterdir())


def test_a_relative_data_folder_names_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The choice does not depend on the folder that a program is started in."""
    monkeypatch.delenv("BACKLINE_ERRATA", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "backline").mkdir(parents=True)
    (tmp_path / "data" / "backline" / "errata.json").write_text("no table: reading it is a warning")
    # As platformdirs does with a relative XDG_DATA_HOME; newer versions pass it over.
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda name, **how: os.path.join("data", name))
    assert errata_local.path() == "" and errata_local.local_rows() == ()
    monkeypatch.undo()
    monkeypatch.delenv("BACKLINE_ERRATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert errata_local.path() == str(tmp_path / "data" / "backline" / "errata.json")


@pytest.mark.parametrize("fields", [{"build": "another"}, {"processor": "another"}])
def test_a_row_of_another_build_or_processor_is_not_used(toy: Toy, fields: dict[str, str]) -> None:
    errata.keep([local(toy, **fields)])
    assert runnable() == ["fast", "slow"]


def _changed(content: Any, **fields: Any) -> Any:
    return {**content, "rows": [{**content["rows"][0], **fields}]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: b"{", lambda c: b"\xff\xfe", lambda c: b"[" * 100_000, lambda c: b" " * (errata_local.MOST_BYTES + 1),
        lambda c: [], lambda c: {**c, "version": 2}, lambda c: {**c, "rows": {}}, lambda c: {**c, "rows": [1]},
        lambda c: {**c, "rows": c["rows"] * (errata_local.MOST_ROWS + 1)}, lambda c: _changed(c, more=""),
        lambda c: _changed(c, problem=""), lambda c: _changed(c, algorithm=1), lambda c: _changed(c, operations="matmul"),
        lambda c: _changed(c, evidence="x" * 5000),
    ],
)  # fmt: skip
def test_a_damaged_file_is_left_alone_with_one_warning(toy: Toy, tmp_path: Path, damage: Any) -> None:
    errata.keep([local(toy)])
    file = tmp_path / "errata.json"
    made = damage(json.loads(file.read_text()))
    file.write_bytes(made if isinstance(made, bytes) else json.dumps(made).encode())
    errata.clear()
    with pytest.warns(RuntimeWarning, match=r"errata\.json is not used.*--forget") as caught:
        assert runnable() == ["fast", "slow"] and runnable(A.T, A) == ["fast", "slow"]
    assert len(caught) == 1


def test_rows_are_not_added_to_a_damaged_file(toy: Toy, tmp_path: Path) -> None:
    file = tmp_path / "errata.json"
    file.write_text("{")
    with pytest.raises(OSError, match=r"errata\.json is damaged; `backline check kernels --forget` removes it"):
        errata.keep([local(toy)])
    assert file.read_text() == "{"
    errata.forget()
    assert errata.keep([local(toy)]) == 1


def test_what_is_kept_is_read_again(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"condition": "seen here " * 20, "evidence": "wrong by 1" * 30}
    many = [local(toy, problem=f"matmul f64 3x{k} {k}x3", **long) for k in range(6000)]
    assert errata.keep(many) == 6000 and (tmp_path / "errata.json").stat().st_size > 4 << 20
    assert len(errata_local.local_rows()) == 6000
    before = (tmp_path / "errata.json").read_bytes()
    with pytest.raises(OSError, match="is not written: a field of a row"):
        errata.keep([local(toy, condition="x" * 5000)])
    monkeypatch.setattr(errata_local, "MOST_BYTES", len(before))
    with pytest.raises(OSError, match="is not written: it is larger than"):
        errata.keep([local(toy)])
    assert (tmp_path / "errata.json").read_bytes() == before and [f.name for f in tmp_path.iterdir()] == ["errata.json"]


def test_nothing_is_kept_without_a_file(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKLINE_ERRATA", "")
    with pytest.raises(BadValue, match="BACKLINE_ERRATA is empty"):
        errata.keep([local(toy)])


# --- GPUs -------------------------------------------------------------------------------------------------------------------


def _attention(queries: int, keys: int, heads: tuple[int, int] = (8, 8), mask: bool = False, backward: bool = False) -> Any:
    q, k = (np.empty((1, h, n, 64), np.float16) for h, n in zip(heads, (queries, keys), strict=True))
    added = (np.zeros((queries, keys), np.float16),) if mask else ()
    grouped = {"enable_gqa": heads[0] != heads[1]}
    if backward:
        return backline.explain(grad.scaled_dot_product_attention_backward, q, k, k, q, *added, **grouped).problem
    return backline.explain(functional.scaled_dot_product_attention, q, k, k, *added, **grouped).problem


def _packed(heads: tuple[int, int] = (8, 8), backward: bool = False) -> Any:
    q, k = (np.empty((9, h, 64), np.float16) for h in heads)
    name, more = ("nn.grad.packed_attention_backward", (q,)) if backward else ("nn.functional.packed_attention", ())
    return operations[name].build(q, k, k, *more, np.zeros(4, np.int32), None, 128, 128, enable_gqa=True)


def _convolution(dtype: Any, axes: int) -> Any:
    shape = (2, 3) + (5,) * axes
    return backline.explain(getattr(functional, f"conv{axes}d"), np.empty(shape, dtype), np.empty(shape, dtype)).problem


def _recurrent(mode: str, dtype: Any = np.float16, directions: int = 2) -> Any:
    call = make(np.random.default_rng(1), mode, 3, 8, 16, 16, bidirectional=directions == 2, dtype=dtype)
    x, hx, *others = call.values()
    y, last = np.empty((3, 8, 16 * directions), dtype), (hx if mode == "lstm" else (hx,))
    return backline.explain(getattr(grad, f"{mode}_backward"), x, hx, others[0], y, *last, *others[1:]).problem


GPU_ROWS = [
    # row, problem, algorithm, versions and capabilities with the defect, and without
    ("cudnn-attention-partial-tile", lambda: _attention(128, 261), "sdpa", [(91500, 9, 0), (90800, 8, 0)], [(91501, 9, 0)]),
    ("cudnn-attention-partial-tile", lambda: _attention(128, 256), "sdpa", [], [(91500, 9, 0)]),
    (
        "cudnn-attention-masked-half-tile", lambda: _attention(704, 704, mask=True, backward=True), "sdpa_backward",
        [(91900, 9, 0), (92000, 9, 0)], [(91900, 8, 0), (91900, 10, 0), (92600, 9, 0), (91800, 9, 0)],
    ),
    ("cudnn-attention-masked-half-tile", lambda: _attention(704, 704, backward=True), "sdpa_backward", [], [(91900, 9, 0)]),
    ("cudnn-attention-masked-half-tile", lambda: _attention(640, 768, mask=True, backward=True), "sdpa_backward", [], [(91900, 9, 0)]),
    ("cudnn-attention-masked-half-tile", lambda: _attention(704, 704, mask=True), "sdpa", [], [(91900, 9, 0)]),
    ("cudnn-attention-one-query", lambda: _attention(1, 128, backward=True), "sdpa_backward", [(92501, 9, 0)], [(92000, 9, 0)]),
    ("cudnn-attention-one-query", lambda: _attention(2, 128, backward=True), "sdpa_backward", [], [(92600, 9, 0)]),
    ("cudnn-attention-few-key-heads", lambda: _attention(128, 128, (8, 4)), "sdpa", [(91900, 10, 0), (92000, 10, 3)], [(92000, 9, 0)]),
    ("cudnn-attention-few-key-heads", lambda: _attention(128, 128, (16, 8)), "sdpa", [], [(92000, 10, 0)]),
    ("cudnn-attention-few-key-heads", lambda: _attention(128, 128, (4, 4)), "sdpa", [], [(92000, 10, 0)]),
    ("cudnn-attention-few-key-heads", lambda: _packed((8, 2)), "packed", [(92800, 10, 0)], [(92800, 9, 0)]),
    ("cudnn-attention-few-key-heads", lambda: _packed((8, 2), backward=True), "packed_backward", [(92800, 10, 3)], [(92800, 12, 0)]),
    ("cudnn-attention-packed-half-tile", lambda: _packed(backward=True), "packed_backward", [(92500, 9, 0)], [(92600, 9, 0), (92500, 10, 0)]),
    ("cudnn-attention-packed-half-tile", lambda: _packed(), "packed", [], [(92500, 9, 0)]),
    ("cudnn-conv3d-half", lambda: _convolution(np.float16, 3), "conv", [(90800, 8, 0), (91400, 9, 0)], [(91500, 9, 0)]),
    ("cudnn-conv3d-half", lambda: _convolution(np.float16, 2), "conv", [], [(91000, 9, 0)]),
    ("cudnn-conv3d-tf32", lambda: _convolution(np.float32, 3), "conv_tf32", [(91002, 8, 0), (91500, 9, 0)], [(91600, 9, 0)]),
    ("cudnn-conv3d-tf32", lambda: _convolution(np.float32, 3), "conv", [], [(91002, 9, 0)]),
    ("cudnn-rnn-small-half", lambda: _recurrent("rnn_tanh"), "rnn_small", [(91900, 9, 0), (90800, 8, 0)], []),
    ("cudnn-rnn-small-half", lambda: _recurrent("rnn_relu"), "rnn_small", [(91900, 9, 0)], []),
    ("cudnn-rnn-small-half", lambda: _recurrent("rnn_tanh"), "rnn", [], [(91900, 9, 0)]),
    ("cudnn-rnn-small-half", lambda: _recurrent("rnn_tanh", directions=1), "rnn_small", [], [(91900, 9, 0)]),
    ("cudnn-rnn-small-half", lambda: _recurrent("rnn_tanh", np.float32), "rnn_small", [], [(91900, 9, 0)]),
    ("cudnn-rnn-small-half", lambda: _recurrent("lstm"), "rnn_small", [], [(91900, 9, 0)]),
    ("cudnn-engine-5", lambda: _convolution(np.float32, 2), "conv", [(92000, 8, 6), (90800, 8, 6)], [(92000, 9, 0)]),
    ("cudnn-engines-58-63", lambda: _convolution(np.float32, 2), "conv", [(92000, 12, 0)], [(92000, 9, 0), (92000, 10, 0)]),
]  # fmt: skip


@pytest.mark.parametrize(("row", "problem", "algorithm", "having", "without"), GPU_ROWS)
def test_rows_of_gpus(
    monkeypatch: pytest.MonkeyPatch, row: str, problem: Any, algorithm: str, having: list[Any], without: list[Any]
) -> None:
    monkeypatch.setattr(errata_table, "TABLE", SHIPPED_ERRATA)
    library, asked = libraries.get("cudnn"), problem()
    for told in (having, without):
        for version, *capability in told:
            monkeypatch.setattr(type(library), "version", lambda self, version=version: str(version))
            monkeypatch.setattr(type(library), "capability", lambda self, problem, capability=capability: tuple(capability))
            errata.clear()
            named = [found.id for found in errata.matching(library, asked, algorithm)]
            assert (row in named) is (told is having), (version, capability)
            if row == "cudnn-engine-5" and told is having:
                assert list(errata.engines(library, asked, algorithm)) == [5]
                assert not errata.refusal(library, asked, Algorithm(library="cudnn", name=algorithm))
    errata.clear()


def test_a_gpu_that_does_not_tell_is_assumed_to_have_the_defect() -> None:
    row = Erratum(id="toy-2", library="toy", condition="c", evidence="e", capabilities=("9.0", "10"))
    told = {(0, 0): True, (9, 0): True, (9, 1): False, (10, 3): True, (8, 0): False}
    assert {capability: row.concerns_capability(capability) for capability in told} == told
