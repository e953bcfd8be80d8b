"""Attention over packed sequences by one graph of cuDNN, computed by a fake that reads nothing behind the end of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import _core, switches
from backline.errors import BadType, BadValue, NoKernel
from backline.libraries import attention_constraints, errata
from backline.libraries.attention_constraints import Facts
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.common import elementwise_kernels
from backline.libraries.cuda.cudnn import graph_cache, packed_graphs, packed_plans
from backline.nn import functional, grad
from backline.ops import varlen_attention
from backline.problems import Operand
from backline.problems.op_registry import operations
from backline.problems.packed_attention_problem import PackedAttentionProblem
from fakes.cupy_standin import ndarray
from fakes.insert import inserted
from support import clean, rng, seed

pytest.importorskip("cudnn")
from fakes.cudnn_machine import Machine, aligned

pytestmark = pytest.mark.usefixtures("clean", "newest")
assert clean and rng and seed
Array = Any
ONLY = {"cuda.flash_sdp": False, "cuda.mem_efficient_sdp": False, "cuda.math_sdp": False}
NEWEST = Facts((9, 0), 92800, (1, 28))
LENGTHS: dict[str, tuple[list[int], list[int]]] = {
    "several": ([3, 3, 7, 1, 5], [3, 3, 7, 1, 5]), "other keys": ([4, 1, 3], [2, 6, 3]), "empty ones": ([0, 2, 0, 0, 3, 0], [1, 0, 0, 4, 2, 0]),
    "more keys": ([2, 1, 5], [3, 4, 5]), "many": ([1, 2] * 7, [1, 2] * 7), "long": ([130, 1], [130, 1]),
}  # fmt: skip


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the tests independent of the cuDNN that is installed here."""
    monkeypatch.setattr(attention_constraints, "facts_of", lambda device: NEWEST)
    monkeypatch.setattr(errata, "refusal", lambda library, problem, algorithm: "")


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    with inserted(cupy=made.cupy, cudnn=made.cudnn):
        yield made


def packed(rng: np.random.Generator, lengths: tuple[list[int], list[int]], heads: tuple[int, int] = (4, 2), width: int = 8) -> list[ndarray]:
    (q, k), (many, few) = map(sum, lengths), heads
    shapes = (q, many, 16), (k, few, 16), (k, few, width)
    return [aligned(rng.standard_normal(shape).astype(np.float16)) for shape in shapes]


def starts(lengths: list[int]) -> Array:
    return np.cumsum([0, *lengths])


def wide(*arrays: Any) -> list[Array]:
    return [x.host.astype(np.float64) for x in arrays]


def near(found: Any, wanted: Array, tolerance: float = 4e-3) -> None:
    assert type(found) is ndarray and found.shape == wanted.shape
    np.testing.assert_allclose(
        found.host.astype(np.float64),
        wanted,
        atol=tolerance * max(1.0, np.abs(wanted[np.isfinite(wanted)]).max(initial=0)),
        rtol=0,
    )


def compared(q: Any, k: Any, v: Any, g: Any, positions: tuple[Any, ...], host: tuple[Any, ...], **given: Any) -> None:
    """Attention, its log-sum-exp, and gradients with and without these agree with the same on the CPU."""
    with switches.scope(ONLY):
        plain = functional.varlen_attn(q, k, v, *positions, **given)
        output, lse = functional.varlen_attn(q, k, v, *positions, return_lse=True, **given)
        slopes = grad.varlen_attn_backward(q, k, v, g, *positions, **given)
        known = grad.varlen_attn_backward(q, k, v, g, *positions, **given, output=output, lse=lse)
    wanted = functional.varlen_attn(*wide(q, k, v), *host, return_lse=True, **given)
    near(output, wanted.output)
    assert output.dtype == np.float16 and lse.dtype == np.float32 and plain.host.tobytes() == output.host.tobytes()
    near(lse, wanted.lse)
    expected = grad.varlen_attn_backward(*wide(q, k, v, g), *host, **given)
    for found in (slopes, known):
        assert found.attn_mask is None
        for one, want in zip(found[:3], expected[:3], strict=True):
            near(one, want, 2e-2)


@pytest.mark.parametrize("device", [False, True], ids=["positions on the host", "on the device"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
def test_one_graph_computes_all_sequences(
    machine: Machine, name: str, causal: bool, device: bool, rng: np.random.Generator
) -> None:
    lengths = LENGTHS[name]
    q, k, v = packed(rng, lengths)
    g = aligned(rng.standard_normal((len(q), 4, 8)).astype(np.float16))
    host = starts(lengths[0]), starts(lengths[1])
    if lengths[0] == lengths[1]:
        host = host[0], None
    positions: tuple[Any, ...] = host
    if device:
        positions = (
            *(None if x is None else ndarray(x.astype(kind)) for x, kind in zip(host, ("int32", "int64"), strict=True)),
            max(lengths[0]),
            max(lengths[1]),
        )
    before = machine.cudnn.runs
    compared(q, k, v, g, positions, host, is_causal=causal, enable_gqa=True, scale=0.3)
    assert machine.cudnn.runs - before == 1 + 1 + 2 + 1
    nodes = [graph.node for graph in machine.cudnn.graphs]
    assert nodes == ["sdpa", "sdpa", "sdpa_backward"], "those with statistics are kept"
    last = machine.cudnn.graphs[-1].inputs
    right = causal and lengths[0] != lengths[1]
    assert bool(last.get("use_causal_mask_bottom_right")) is right and bool(last.get("use_causal_mask")) is (causal and not right)
    assert last["use_deterministic_algorithm"] is False and last["use_padding_mask"] is True


def test_what_the_graph_is_told(machine: Machine, rng: np.random.Generator) -> None:
    lengths = [300, 20, 80]
    q, k, v = packed(rng, (lengths, lengths), (4, 4))
    with switches.scope(ONLY):
        functional.varlen_attn(q, k, v, starts(lengths), return_lse=True)
    graph = machine.cudnn.graphs[0]
    assert graph.inputs["q"].dim == [3, 4, 384, 16] and graph.inputs["q"].stride == [384 * 64, 16, 64, 1]
    assert graph.inputs["v"].dim == [3, 4, 384, 8] and graph.inputs["v"].stride == [384 * 32, 8, 32, 1]
    out, stats = graph.outputs
    assert out.dim == [3, 4, 384, 8] and out.stride == [384 * 32, 8, 32, 1]
    assert stats.dim == [3, 4, 384, 1] and stats.stride == [384 * 4, 1, 4, 1], "a row's numbers lie together"
    assert graph.inputs["seq_len_q"].dim == [3, 1, 1, 1] and out.offsets.dim == [4, 1, 1, 1]
    uids = {
        name: of.offsets.uid
        for name, of in (("q", graph.inputs["q"]), ("k", graph.inputs["k"]), ("v", graph.inputs["v"]), ("o", out))
    }
    assert len({*uids.values()}) == 4, "queries and keys have tables of their own"
    pack = next(given["pack"] for name, given in machine.log if name == "execute")
    tables = {
        name: graph_table(graph, pack, of)
        for name, of in (("q", graph.inputs["q"]), ("v", graph.inputs["v"]), ("o", out), ("stats", stats))
    }
    ends = starts(lengths)
    assert (
        tables["q"] == (64 * ends).tolist()
        and tables["v"] == tables["o"] == (32 * ends).tolist()
        and tables["stats"] == (4 * ends).tolist()
    )
    assert graph.inputs["seq_len_q"].at(pack[packed_graphs.LENGTHS_QUERY]).ravel().tolist() == lengths


def graph_table(graph: Any, pack: dict[int, int], of: Any) -> list[int]:
    found: list[int] = of.offsets.at(pack[of.offsets.uid]).ravel().tolist()
    return found


def test_a_plan_serves_other_lengths(machine: Machine, rng: np.random.Generator) -> None:
    with switches.scope(ONLY):
        for lengths in ([100, 28, 60], [90, 8, 90], [128, 32, 28], [1, 120, 67]):
            q, k, v = packed(rng, (lengths, lengths), (2, 2))
            functional.varlen_attn(q, k, v, starts(lengths))
        assert len(machine.cudnn.graphs) == 1, "as many rows in all, or not"
        before = _core.memo_info()["misses"]
        functional.varlen_attn(q, k, v, starts([60, 30, 98]))
        functional.varlen_attn(q, k, v, starts([60, 31, 97]))
        assert _core.memo_info()["misses"] == before, "and as many sequences and rows are one Plan"
        long = [129, 30, 29]
        functional.varlen_attn(q, k, v, starts(long))
        assert len(machine.cudnn.graphs) == 2, "a longer one is another class"
        functional.varlen_attn(q, k, v, starts(long), None, 256, 256)
        functional.varlen_attn(q, k, v, starts([60, 30, 98]), None, 256, 256)
        assert len(machine.cudnn.graphs) == 2, "classes of the lengths that are named"


def test_sequences_behind_the_last_one_are_empty(machine: Machine, rng: np.random.Generator) -> None:
    lengths = [2, 3] * 5 + [1]
    q, k, v = packed(rng, (lengths, lengths), (2, 2))
    g = aligned(rng.standard_normal((len(q), 2, 8)).astype(np.float16))
    compared(q, k, v, g, (starts(lengths),), (starts(lengths),))
    assert machine.cudnn.graphs[0].inputs["q"].dim[0] == 12
    counts = len(machine.cudnn.graphs)
    with switches.scope(ONLY):
        functional.varlen_attn(q, k, v, starts([2, 3] * 5 + [1, 0]))
    assert len(machine.cudnn.graphs) == counts


def test_one_run_is_attention_of_a_batch(machine: Machine, rng: np.random.Generator) -> None:
    q, k, v = packed(rng, ([3, 3, 3], [3, 3, 3]), (2, 2))
    with switches.scope(ONLY):
        functional.varlen_attn(q, k, v, [0, 3, 6, 9])
    assert "use_padding_mask" not in machine.cudnn.graphs[0].inputs
    g = aligned(rng.standard_normal((4, 2, 8)).astype(np.float16))
    q, k, v = packed(rng, ([2, 2], [3, 3]), (2, 2))
    compared(q, k, v, g, ([0, 2, 4], [0, 3, 6]), ([0, 2, 4], [0, 3, 6]), is_causal=True)
    assert all("use_padding_mask" in graph.inputs for graph in machine.cudnn.graphs[1:]), "no mask is made"


def test_arrays_that_lie_otherwise(machine: Machine, rng: np.random.Generator) -> None:
    """Parts of one projection are read as they lie; what is not aligned, and what lies backwards, is copied."""
    lengths, host = [3, 1, 4], (starts([3, 1, 4]),)
    whole = aligned(rng.standard_normal((8, 3, 2, 8)).astype(np.float16))
    q, k, v = (whole[:, i] for i in range(3))
    g = aligned(rng.standard_normal((8, 2, 8)).astype(np.float16))
    compared(q, k, v, g, host, host)
    pack = next(given["pack"] for name, given in machine.log if name == "execute")
    assert q.data.ptr in pack.values() and v.data.ptr in pack.values()
    odd = aligned(rng.standard_normal((8 * 3 * 2 * 8 + 4,)).astype(np.float16))[4:].reshape(8, 3, 2, 8)
    compared(*(odd[:, i] for i in range(3)), g, host, host)
    turned = [x[::-1] for x in (q, k, v)]
    compared(*turned, g[::-1], host, host)
    wider = aligned(rng.standard_normal((8, 2, 9)).astype(np.float16))[..., :8]
    compared(wider, k, v, wider, host, host)
    assert lengths == [3, 1, 4]


@pytest.mark.parametrize("capability", [(8, 0), (12, 0)])
def test_the_log_sum_exp_by_sequences(
    machine: Machine, capability: tuple[int, int], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_constraints, "facts_of", lambda device: Facts(capability, 92800, (1, 28)))
    monkeypatch.setattr("backline.libraries.cuda.cudnn.library.capability", lambda index: capability)
    for lengths in (([3, 1, 4], [3, 1, 4]), ([2, 0, 4, 3], [1, 3, 5, 0])):
        q, k, v = packed(rng, lengths, width=16)
        g = aligned(rng.standard_normal((len(q), 4, 16)).astype(np.float16))
        host = starts(lengths[0]), starts(lengths[1])
        compared(q, k, v, g, host, host, is_causal=True, enable_gqa=True)
        stats = machine.cudnn.graphs[-1].inputs["stats"]
        assert stats.offsets is None and stats.stride == [4 * 128, 128, 1, 1]


def table(
    lengths: tuple[Array, Array],
    rows: tuple[int, int],
    most: tuple[int, int],
    causal: bool,
    steps: tuple[tuple[bool, int], ...],
    room: int,
) -> Array:
    """The table by NumPy, sequence by sequence."""
    q, k = (np.clip(each.astype(np.int64), 0, n) for each, n in zip(lengths, rows, strict=True))
    found = np.zeros((2 + len(steps), room), np.int64)
    for at in range(room):
        b = min(at, len(q) - 1)
        begin, other, queries, keys = q[b], k[b], 0, 0
        if at < len(q) - 1:
            queries, keys = (int(np.clip(x[b + 1] - x[b], 0, n)) for x, n in zip((q, k), most, strict=True))
            if causal and queries > keys:
                begin, queries = begin + queries - keys, keys
            if not queries or not keys:
                queries = keys = 0
        found[:2, at] = queries, keys
        found[2:, at] = [(other if keyed else begin) * step for keyed, step in steps]
    return found


def test_the_table_stays_inside_whatever_the_positions_are(machine: Machine, rng: np.random.Generator) -> None:
    steps = ((False, 64), (True, 32), (False, 4), (True, 48))
    kernel = elementwise_kernels.made("packed_4", packed_plans.table_source(4), packed_plans.INSIDE)
    for trial in range(40):
        count, rows, most = int(rng.integers(0, 9)), (50, 70), (int(rng.integers(1, 60)), int(rng.integers(1, 60)))
        q, k = (rng.integers(-20, 120, count + 1) for _ in range(2))
        if trial % 2:
            q, k = (np.sort(rng.integers(0, n + 1, count + 1)) for n in rows)
        room = packed_plans.table_width(count + int(rng.integers(0, 4)))
        made = ndarray(np.empty((6, room), np.int32))
        causal = int(rng.integers(0, 2))
        kernel(ndarray(q), ndarray(k.astype(np.int32)), count, room, *rows, *most, causal, 0b1010, 64, 32, 4, 48, made)
        wanted = table((q, k), rows, most, bool(causal), steps, room)
        np.testing.assert_array_equal(made.host, wanted)
        queries, keys = made.host[:2, :count].astype(np.int64)
        assert ((queries > 0) == (keys > 0)).all() and (made.host >= 0).all()
        assert (made.host[2, :count] // 64 + queries <= 50).all() and (made.host[3, :count] // 32 + keys <= 70).all()


def test_wrong_positions_on_the_device_leave_rows_out(machine: Machine, rng: np.random.Generator) -> None:
    q, k, v = packed(rng, ([8], [8]), (2, 2))
    with switches.scope(ONLY):
        output, lse = functional.varlen_attn(q, k, v, ndarray(np.array([0, 3, 2, 5])), None, 3, return_lse=True)
    wanted = functional.varlen_attn(*wide(q, k, v), [0, 3, 3, 6, 8])
    assert (output.host[5:] == 0).all() and np.isneginf(lse.host[5:]).all()
    near(output[:2], wanted[:2])
    with switches.scope(ONLY):
        q, k, v = packed(rng, ([140], [140]), (2, 2))
        short = functional.varlen_attn(q, k, v, ndarray(np.array([0, 135, 140])), None, 100)
    assert (short.host[128:135] == 0).all() and short.host[135:].any(), "the class of 100 ends with 128"
    near(short[:128], functional.varlen_attn(*wide(q[:128], k[:128], v[:128]), [0, 128]))


def test_positions_on_the_device_are_not_read_here(
    machine: Machine, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = packed(rng, ([3, 5], [3, 5]), (2, 2))
    positions = ndarray(np.array([0, 3, 8]))
    with pytest.raises(BadValue, match=r"max_q is None(.|\n)*never copies between devices implicitly"):
        functional.varlen_attn(q, k, v, positions)
    with pytest.raises(BadValue, match="max_k is None"):
        functional.varlen_attn(q, k, v, positions, positions, 5)
    with pytest.raises(BadType, match="cu_seq_k is ndarray, cu_seq_q is on a device"):
        functional.varlen_attn(q, k, v, positions, np.array([0, 3, 8]), 5, 5)
    with pytest.raises(BadType, match="int32 or int64"):
        functional.varlen_attn(q, k, v, ndarray(np.array([0, 3, 8], np.uint8)), None, 5)
    with pytest.raises(BadType, match="not a NumPy array of integers"):
        functional.varlen_attn(q.host, k.host, v.host, positions, None, 5)
    monkeypatch.setattr(ndarray, "get", lambda self: pytest.fail("read on the host"))
    with switches.scope(ONLY):
        functional.varlen_attn(q, k, v, positions, None, 5)
        with (
            switches.scope({"cuda.cudnn_sdp": False}),
            pytest.raises(NoKernel, match=r"positions are on a device(.|\n)*cu_seq_q.get"),
        ):
            functional.varlen_attn(q, k, v, positions, None, 5)
    empty = [ndarray(np.empty((0, 2, 8), np.float16)) for _ in range(3)]
    assert functional.varlen_attn(*empty, positions, None, 5).shape == (0, 2, 8)


def test_without_cudnn_sequences_are_computed_one_after_the_other(
    machine: Machine, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, seen = [3, 1, 4], []

    def attended(q: Any, k: Any, v: Any, *settings: Any) -> Any:
        seen.append(q.shape)
        return ndarray(functional.scaled_dot_product_attention(*wide(q, k, v), *settings).astype(np.float16))

    q, k, v = packed(rng, (lengths, lengths), (2, 2))
    monkeypatch.setattr(varlen_attention, "scaled_dot_product_attention", attended)
    with switches.scope({"cuda.cudnn_sdp": False}):
        found = functional.varlen_attn(q, k, v, starts(lengths))
    assert not machine.cudnn.graphs and seen == [(1, 2, n, 16) for n in lengths]
    monkeypatch.undo()
    near(found, functional.varlen_attn(*wide(q, k, v), starts(lengths)))


def problem(
    sequences: int = 3,
    most: tuple[int, int] = (128, 128),
    dtype: str = "float16",
    dims: tuple[int, int] = (64, 64),
    heads: tuple[int, int] = (8, 8),
    **given: Any,
) -> PackedAttentionProblem:
    rows = 300
    arrays = [ndarray(np.empty((rows, n, d), dtype)) for n, d in ((heads[0], dims[0]), (heads[1], dims[0]), (heads[1], dims[1]))]
    positions = ndarray(np.zeros(sequences + 1, np.int32))
    backward = given.pop("backward", False)
    if backward:
        arrays.append(ndarray(np.empty((rows, heads[0], dims[1]), dtype)))
    row = operations["nn.grad.packed_attention_backward" if backward else "nn.functional.packed_attention"]
    made = row.build(*arrays, positions, None, *most, enable_gqa=True, **given)
    assert isinstance(made, PackedAttentionProblem)
    return made


@pytest.mark.parametrize(("given", "facts", "text"), [
    ({}, NEWEST, ""), ({"backward": True}, NEWEST, ""), ({"dims": (256, 256), "backward": True}, NEWEST, ""),
    ({}, Facts((8, 0), 92500, (1, 25)), ""), ({"backward": True}, Facts((12, 0), 92800, (1, 28)), ""), ({}, Facts((8, 9), 92800, (1, 28)), ""),
    ({}, Facts((9, 0), 92400, (1, 28)), "before cuDNN 9.25"), ({}, Facts((7, 5), 92800, (1, 28)), "compute capability"),
    ({"dims": (60, 60)}, NEWEST, "multiples of 8"), ({"dims": (256, 256), "backward": True}, Facts((8, 0), 92800, (1, 28)), "256"),
    ({}, Facts((9, 0), 92800, (1, 28), True), "same bits"), ({"dtype": "float32"}, NEWEST, "float16 or bfloat16"),
    ({"dims": (64, 32), "backward": True}, Facts((8, 6), 92800, (1, 28)), "one head dim"), ({"dims": (64, 32), "backward": True}, NEWEST, ""),
    ({"heads": (8, 3)}, NEWEST, "divide"), ({}, Facts((9, 0), 0, ()), "before cuDNN 9.25"),
])  # fmt: skip
def test_what_is_refused(machine: Machine, given: dict[str, Any], facts: Facts, text: str) -> None:
    try:
        reason = packed_graphs.packed_refusal(problem(**given), facts)
    except BadValue as error:
        reason = str(error)
    assert text in reason and bool(text) == bool(reason)


def test_sizes_beyond_32_bits_are_refused(machine: Machine) -> None:
    many = Operand.contiguous("query", np.dtype(np.float16), (1 << 21, 8, 128))
    rest = tuple(Operand.contiguous(role, np.dtype(np.float16), (300, 8, 128)) for role in ("key", "value"))
    positions = Operand.contiguous("cu_seq_q", np.dtype(np.int32), (4,))
    parameters = (("max_k", 128), ("max_q", 128))
    made = PackedAttentionProblem(
        "nn.functional.packed_attention", (many, *rest, positions), parameters, "attention", device="cuda:0"
    )
    assert "32 bits" in packed_graphs.packed_refusal(made, NEWEST)
    none = Operand.contiguous("query", np.dtype(np.float16), (0, 8, 128))
    made = PackedAttentionProblem(
        "nn.functional.packed_attention", (none, *rest, positions), parameters, "attention", device="cuda:0"
    )
    assert "no rows" in packed_graphs.packed_refusal(made, NEWEST)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
def test_algorithms(machine: Machine, capability: tuple[int, int]) -> None:
    facts = Facts(capability, 92800, (1, 28))
    assert [a.name for a in packed_graphs.packed_algorithms(problem(), facts) if isinstance(a, Algorithm)] == ["packed"]
    listed = list(packed_graphs.packed_algorithms(problem(backward=True), facts))
    assert [a.level for a in listed if isinstance(a, Algorithm)] == (["off"] if capability[0] in (8, 12) else ["off", "threads"])
    refused = [each.reason for each in listed if isinstance(each, Refusal)]
    assert len(refused) == (capability[0] in (8, 12)) and all("same bits" in reason for reason in refused)
    made = packed_graphs.packed_recipe(problem(backward=True), "packed_backward_steady", capability)
    assert made.backward is not None and dict(made.backward.options)["use_deterministic_algorithm"] is True
    assert dict(made.backward.options)["max_total_seq_len_q"] == 1024, "which bounds the workspace"


def test_a_trace_names_the_call(machine: Machine, rng: np.random.Generator) -> None:
    lengths = [3, 1, 4]
    q, k, v = packed(rng, (lengths, lengths), (2, 2))
    with switches.scope(ONLY), backline.trace() as events:
        functional.varlen_attn(q, k, v, starts(lengths))
    (event,) = events
    assert (event.op, event.library) == ("packed_attention", "cudnn")
    assert "NaN and infinity in a sequence may reach rows of the next" in str(backline.explain())
    assert not graph_cache._failed
