"""Questions to cuDNN as a function of the Problem, the switches and the device: no library, no device, no frontend."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline import libraries, switches
from backline.engine import effective_precision, policy
from backline.engine.choose import choose
from backline.errors import NoKernel
from backline.libraries import attention_constraints
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.cuda.cudnn import conv_graphs, sdpa_graphs
from backline.libraries.cuda.cudnn.conv_graphs import ConvRecipe, conv_algorithms, conv_recipe
from backline.ops.convolution_checks import conv_problem, grad_problem, transpose_problem
from backline.problems import Problem, operand
from backline.problems.attention_problem import AttentionProblem, attention_problem
from backline.problems.conv_problem import ConvProblem
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

H100, T4 = (9, 0), (7, 5)


def images(*shape: int, dtype: Any = np.float32, last: bool = False) -> np.ndarray[Any, Any]:
    if last:
        return np.moveaxis(np.zeros((shape[0], *shape[2:], shape[1]), dtype), -1, 1)
    return np.zeros(shape, dtype)


def conv(
    x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, **more: Any
) -> ConvProblem:
    given = {"input": x, "weight": w, "bias": more.get("bias"), "residual": more.get("residual"), "out": more.get("out")}
    made = conv_problem("conv", x.ndim - 2, given, stride, padding, dilation, groups, more.get("activation"))
    return replace(made, device="cuda:0")


def plain(dtype: Any = np.float32, last: bool = False, **more: Any) -> ConvProblem:
    return conv(images(2, 4, 6, 5, dtype=dtype, last=last), images(8, 4, 3, 3, dtype=dtype), **more)


def recipe(problem: ConvProblem, name: str = "conv", **values: Any) -> ConvRecipe:
    with switches.scope(values):
        return conv_recipe(problem, name, switches.current())


def listed(problem: ConvProblem, having: tuple[int, int] = H100) -> dict[str, Algorithm]:
    return {a.name: a for a in conv_algorithms(problem, having) if isinstance(a, Algorithm)}


def refused(problem: ConvProblem, having: tuple[int, int] = H100) -> dict[str, str]:
    return {a.name: a.reason for a in conv_algorithms(problem, having) if isinstance(a, Refusal)}


def left(problem: ConvProblem, **values: Any) -> list[str]:
    """Names of the algorithms that switches leave, the first choice first."""
    with switches.scope(values):
        snapshot = switches.current()
        able = effective_precision.permitted(list(listed(problem).values()), problem, snapshot, [])
        level = snapshot["determinism_level"] if snapshot["deterministic"] else "off"
        return [
            a.name for a in able
            if not policy.forbids(a, snapshot)[0] and a.reaches(policy.determinism(a, problem, level, snapshot)[0])
        ]  # fmt: skip


def test_the_library_is_off_when_its_switch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.get("cudnn"), "reason", lambda: "")
    monkeypatch.setattr("backline.libraries.cuda.cudnn.library.capability", lambda index: H100)
    assert choose(plain()).library == "cudnn"
    with switches.scope({"cudnn.enabled": False}), pytest.raises(NoKernel, match=r"cudnn\.enabled"):
        choose(plain())
    monkeypatch.setattr(libraries.get("cublas"), "reason", lambda: "")
    monkeypatch.setattr("backline.libraries.cuda.cublas.library.capability", lambda index: H100)
    with switches.scope({"cudnn.enabled": False}):
        choice = choose(plain())
    assert (choice.library, choice.algorithm) == ("cublas", "im2col_tf32")
    assert choose(plain()).library == "cudnn", "which comes first"


def test_deterministic_drops_plans_that_are_not() -> None:
    assert left(plain()) == ["conv_tf32", "conv", "conv_tf32_steady", "conv_steady"]
    for values in ({"cudnn.deterministic": True}, {"deterministic": True}, {"deterministic": True, "determinism_level": "threads"}):
        assert left(plain(), **values) == ["conv_tf32_steady", "conv_steady"]
    assert "NONDETERMINISTIC" in conv_graphs.without(plain(), "conv_steady")
    assert "NONDETERMINISTIC" not in conv_graphs.without(plain(), "conv")


def test_dilated_convolutions_with_channels_first_are_not_promised_the_same_bits() -> None:
    first, last = plain(dilation=2), plain(dilation=2, last=True)
    assert "dilated" in refused(first)["conv_steady"] and "dilated" in refused(first)["conv_tf32_steady"]
    assert not refused(last) and {"conv", "conv_tf32"} == {*listed(first)}


@pytest.mark.parametrize("steady", ["", "_steady"])
def test_tensor_cores_for_float32_only_while_tf32_is_permitted(steady: str) -> None:
    off = {"cudnn.conv.fp32_precision": "ieee"}
    assert left(plain(), **off) == ["conv", "conv_steady"]
    assert left(plain(), **{"cudnn.allow_tf32": False}) == ["conv", "conv_steady"]
    assert "TENSOR_CORE" in conv_graphs.without(plain(), f"conv{steady}")
    assert "TENSOR_CORE" not in conv_graphs.without(plain(), f"conv_tf32{steady}")
    assert listed(plain())["conv_tf32"].precision == "tf32"
    for dtype in (np.float16, np.float64):
        assert "TENSOR_CORE" not in conv_graphs.without(plain(dtype), f"conv{steady}")
        assert {*listed(plain(dtype))} == {"conv", "conv_steady"}


def test_tf32_takes_a_device_and_an_environment_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "8.0" in refused(plain(), T4)["conv_tf32"] and "conv" in listed(plain(), T4)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert "NVIDIA_TF32_OVERRIDE" in refused(plain())["conv_tf32"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", ["conv", "conv_tf32", "conv_steady", "conv_tf32_steady"])
def test_inputs_are_never_made_narrower(dtype: Any, name: str) -> None:
    assert conv_graphs.without(plain(dtype), name)[0] == "DOWN_CONVERT_INPUTS"


@pytest.mark.parametrize(("dtype", "io", "compute"), [
    ("float16", "HALF", "FLOAT"), ("bfloat16", "BFLOAT16", "FLOAT"), ("float32", "FLOAT", "FLOAT"), ("float64", "DOUBLE", "DOUBLE"),
])  # fmt: skip
def test_halves_are_summed_in_float(dtype: str, io: str, compute: str) -> None:
    import ml_dtypes

    graph = recipe(plain(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)).graph
    assert graph is not None
    assert (graph.io, graph.intermediate, graph.compute) == (io, compute, compute)
    assert {tensor.dtype for _, tensor in graph.inputs} == {io}


@pytest.mark.parametrize("dtype", [np.int32, np.complex64])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    assert "float16, bfloat16, float32 and float64" in refused(plain(dtype))[""]


def test_bfloat16_takes_a_device_that_has_it() -> None:
    import ml_dtypes

    problem = plain(ml_dtypes.bfloat16)
    assert not listed(problem, T4) and "8.0" in refused(problem, T4)[""]
    assert {*listed(problem, (8, 0))} == {"conv", "conv_steady"}


@pytest.mark.parametrize(("word", "mode"), [("", "A"), ("0", "A"), ("1", "B")])
def test_heuristics_are_mode_a_or_b_and_then_the_fallbacks(monkeypatch: pytest.MonkeyPatch, word: str, mode: str) -> None:
    monkeypatch.setenv("TORCH_CUDNN_USE_HEURISTIC_MODE_B", word)
    graph = recipe(plain()).graph
    assert graph is not None and graph.modes == (mode, "FALLBACK")


@pytest.mark.parametrize(("values", "on", "limit"), [
    ({}, False, 0), ({"cudnn.benchmark": True}, True, 10), ({"cudnn.benchmark": True, "cudnn.benchmark_limit": 3}, True, 3),
    ({"cudnn.benchmark": True, "cudnn.benchmark_limit": 0}, True, 0), ({"benchmark": True, "benchmark_limit": 4}, True, 4),
    ({"cudnn.benchmark": True, "deterministic": True}, False, 0), ({"cudnn.benchmark": True, "cudnn.deterministic": True}, True, 10),
])  # fmt: skip
def test_when_plans_are_timed_and_how_many(values: dict[str, Any], on: bool, limit: int) -> None:
    tuned = "deterministic" not in values  # what was timed before has a say, unless the same plan is wanted in every run
    assert recipe(plain(), **values).search == conv_graphs.Search(on, limit, tuned)


def test_what_graphs_are_kept_by() -> None:
    """Everything that makes another plan makes another key; what happens after the graph, and when, does not."""
    base = recipe(plain()).graph
    bias = np.zeros(8, np.float32)
    assert recipe(plain(bias=bias, activation="relu"), **{"cudnn.benchmark": True}).graph == base
    others = [
        recipe(plain(np.float16)), recipe(plain(last=True)), recipe(plain(padding=1)), recipe(plain(stride=2)), recipe(plain(dilation=2)),
        recipe(plain(), "conv_tf32"), recipe(plain(), "conv_steady"), recipe(conv(images(2, 8, 6, 5), images(8, 4, 3, 3), groups=2)),
        recipe(conv(images(3, 4, 6, 5), images(8, 4, 3, 3))), recipe(conv(images(2, 4, 6, 5), images(8, 4, 3, 2))),
    ]  # fmt: skip
    graphs = {base, *(each.graph for each in others)}
    assert len(graphs) == 1 + len(others)


def test_the_switch_of_depthwise_kernels_has_a_say_for_float16_only() -> None:
    def depthwise(channels: int = 32, dtype: Any = np.float16, rank: int = 2) -> ConvProblem:
        shape = (6,) * rank
        return conv(images(2, channels, *shape, dtype=dtype), images(channels, 1, *(3,) * rank, dtype=dtype), groups=channels)

    trait = ("depthwise by cudnn",)
    assert {a.traits for a in listed(depthwise()).values()} == {trait}
    for other in (depthwise(31), depthwise(dtype=np.float32), depthwise(rank=1), plain(np.float16)):
        assert {a.traits for a in listed(other).values()} == {()}
    assert left(depthwise(), **{"cudnn.depthwise_kernel": "native"}) == []
    assert left(depthwise(), **{"cudnn.depthwise_kernel": "cudnn"}) == left(depthwise()) == ["conv", "conv_steady"]
    assert left(plain(np.float16), **{"cudnn.depthwise_kernel": "native"}) == ["conv", "conv_steady"]


# --- graphs ----------------------------------------------------------------------------------------------------------


def test_dims_and_strides_in_elements() -> None:
    graph = recipe(plain(last=True, stride=(2, 1), padding=(1, 0), dilation=(1, 2))).graph
    assert graph is not None and graph.node == "conv_fprop"
    (name, image), (_, weight) = graph.inputs
    assert (name, image.dims, image.strides) == ("image", (2, 4, 6, 5), (120, 1, 20, 4))
    assert (weight.dims, weight.strides) == ((8, 4, 3, 3), (36, 1, 12, 4))
    assert graph.options == (("padding", (1, 0)), ("stride", (2, 1)), ("dilation", (1, 2)))
    assert [(t.dims, t.strides) for t in graph.outputs] == [((2, 8, 3, 1), (24, 1, 8, 8))]


def test_one_dimension_is_two_of_which_one_is_1() -> None:
    graph = recipe(conv(images(2, 4, 7), images(8, 4, 3), 2, 1)).graph
    assert graph is not None
    assert [t.dims for _, t in graph.inputs] == [(2, 4, 1, 7), (8, 4, 1, 3)] and graph.outputs[0].dims == (2, 8, 1, 4)
    assert graph.options == (("padding", (0, 1)), ("stride", (1, 2)), ("dilation", (1, 1)))


def test_operands_that_lie_otherwise_are_copied_and_no_others() -> None:
    def copied(x: Any, w: Any) -> list[bool]:
        return [feed.copied for feed in recipe(conv(x, w)).feeds]

    assert copied(images(2, 4, 6, 5), images(8, 4, 3, 3)) == [False, False]
    assert copied(images(2, 4, 6, 5, last=True), images(8, 4, 3, 3)) == [False, True]
    assert copied(images(2, 4, 6, 5), images(8, 4, 3, 3, last=True)) == [False, True]
    assert copied(images(2, 4, 6, 5)[:, :, ::-1], images(8, 4, 3, 3)) == [True, False]
    assert copied(images(2, 4, 6, 5, last=True), images(8, 4, 1, 1)) == [False, False], "one point lies both ways"


def test_an_odd_zero_is_put_round_the_images() -> None:
    made = recipe(conv(images(2, 4, 6, 5), images(8, 4, 2, 3), padding="same"))
    assert made.graph is not None
    assert made.feeds[0].zeros == ((0, 1), (0, 0)) and made.feeds[1].zeros == ()
    assert made.graph.inputs[0][1].dims == (2, 4, 7, 5) and made.graph.options[0] == ("padding", (0, 1))
    dy, arrays = images(2, 8, 6, 5), {"weight": images(8, 4, 2, 3)}
    back = recipe(grad_problem("g", 2, "conv_grad_input", {**arrays, "grad": dy}, (2, 4, 6, 5), 1, "same", 1, 1))
    assert back.crop == ((0, 1), (0, 0)) and back.shape == (2, 4, 7, 5)


def test_nodes_of_gradients_and_transposed_convolutions() -> None:
    x, w, dy = images(2, 4, 6, 5), images(8, 4, 3, 3), images(2, 8, 4, 3)
    by_input = recipe(grad_problem("g", 2, "conv_grad_input", {"weight": w, "grad": dy}, x.shape, 1, 0, 1, 1)).graph
    by_weight = recipe(grad_problem("g", 2, "conv_grad_weight", {"input": x, "grad": dy}, w.shape, 1, 0, 1, 1)).graph
    arrays = {"input": dy, "weight": w, "bias": None, "residual": None, "out": None}
    back = recipe(transpose_problem("t", 2, arrays, 1, 0, 0, 1, 1, None)).graph
    assert by_input is not None and by_weight is not None and back is not None
    assert by_input == back and by_input.node == "conv_dgrad" and by_input.outputs[0].dims == x.shape
    assert by_weight.node == "conv_wgrad" and by_weight.outputs[0].dims == w.shape


def test_an_output_padding_that_no_convolution_leaves_is_refused() -> None:
    arrays = {"input": images(2, 8, 4, 4), "weight": images(8, 4, 3, 3), "bias": None, "residual": None, "out": None}
    problem = transpose_problem("t", 2, arrays, 1, 0, 1, 1, 2, None)
    assert "output padding" in refused(problem)[""]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_graph_describes_memory_that_is_there(data: st.DataObject) -> None:
    n, groups, rank = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    size = data.draw(st.tuples(*[st.integers(3, 6)] * rank))
    kernel = data.draw(st.tuples(*[st.integers(1, 3)] * rank))
    last, padding = data.draw(st.booleans()), data.draw(st.one_of(st.just("same"), st.integers(0, 2)))
    problem = conv(images(n, 2 * groups, *size, last=last), images(3 * groups, 2, *kernel), padding=padding, groups=groups)
    made = recipe(problem)
    assert made.graph is not None
    for tensor in (*(t for _, t in made.graph.inputs), *made.graph.outputs):
        extent = 1 + sum((d - 1) * s for d, s in zip(tensor.dims, tensor.strides, strict=True))
        assert extent == prod(tensor.dims) and min(tensor.strides) >= 1, "dense"
        assert len(tensor.dims) == max(4, rank + 2)
    assert prod(made.shape) == prod(problem.result)


# --- attention -------------------------------------------------------------------------------------------------------

NEW = attention_constraints.Facts((9, 0), 92800, (1, 28))


def attend(
    q: tuple[int, ...] = (2, 8, 16, 64), k: tuple[int, ...] | None = None, v: tuple[int, ...] | None = None, dtype: Any = np.float16,
    **given: Any,
) -> AttentionProblem:  # fmt: skip
    arrays = (np.zeros(shape, dtype) for shape in (q, k or q, v or k or q))
    return replace(attention_problem(*arrays, **given), device="cuda:0")


def dims(qk: int, v: int) -> dict[str, Any]:
    return {"q": (2, 8, 16, qk), "k": (2, 8, 16, qk), "v": (2, 8, 16, v)}


ROWS: list[tuple[AttentionProblem, dict[str, Any], str]] = [
    (attend(), {}, ""),
    (attend(), {"strict": True}, "same bits"),
    (attend(dtype=np.float32), {}, "float16 or bfloat16"),
    (attend(), {"capability": (7, 5)}, "capability must be"),
    (attend(), {"capability": (12, 2)}, "capability must be"),
    (attend(attn_mask=np.zeros((16, 16), bool)), {}, ""),
    (attend(attn_mask=np.zeros((2, 1, 1, 16), np.float16)), {}, ""),
    (attend(attn_mask=np.zeros((8, 16, 16), bool)), {}, "mask must be"),
    (replace(attend(attn_mask=np.zeros((16, 16), np.float16)), mask_needs_grad=True), {}, "no gradient"),
    (attend(dropout_p=0.25), {}, ""),
    (attend(dropout_p=0.1), {}, "1/16"),
    (attend(dropout_p=0.25), {"cudnn": 91200}, "9.11 to 9.13"),
    (attend(dropout_p=0.25), {"cudnn": 91400}, ""),
    (attend((2, 8, 1, 64), (2, 8, 16, 64), dropout_p=0.25), {}, "more than one query"),
    (attend((2, 8, 1, 64), (2, 8, 16, 64)), {}, ""),
    (attend((65536, 1, 2, 8)), {}, "65535"),
    (attend((1, 65535, 2, 8)), {}, ""),
    (attend((2, 8, 16, 60)), {}, "multiples of 8"),
    (attend((2, 8, 16, 128)), {"capability": (8, 0)}, ""),
    (attend(**dims(192, 128)), {"cudnn": 91100}, ""),
    (attend(**dims(192, 128)), {"cudnn": 91000}, "multiples of 8"),
    (attend(**dims(192, 128)), {"cudnn": 91100, "capability": (8, 0)}, "multiples of 8"),
    (attend(**dims(256, 256)), {"cudnn": 92201}, ""),
    (attend(**dims(256, 256)), {"cudnn": 92200}, "multiples of 8"),
    (attend(**dims(256, 256)), {"frontend": (1, 23)}, "multiples of 8"),
    (attend(**dims(256, 256)), {"capability": (8, 0)}, "multiples of 8"),
    (attend(**dims(512, 512)), {}, "multiples of 8"),
    (attend(**dims(128, 128), needs_grad=True), {}, ""),
    (attend(**dims(192, 128), needs_grad=True), {}, ""),
    (attend(**dims(256, 256), needs_grad=True), {}, ""),
    (attend(**dims(160, 160), needs_grad=True), {}, "backward"),
    (attend(**dims(256, 128), needs_grad=True), {}, "backward"),
    (attend(**dims(256, 256), needs_grad=True, dropout_p=0.25), {}, ""),
    (attend(**dims(256, 256), needs_grad=True, dropout_p=0.25), {"capability": (10, 0)}, "backward"),
    (attend(**dims(256, 256), needs_grad=True), {"capability": (10, 3)}, ""),
    (attend(**dims(160, 160)), {}, ""),
    (attend((2, 8, 16, 64), (2, 8, 1, 64)), {}, "more than one key"),
    (attend((2, 8, 16, 64), (2, 2, 16, 64)), {}, "as many heads"),
    (attend((2, 8, 16, 64), (2, 2, 16, 64), enable_gqa=True), {}, ""),
    (attend((8, 16, 64)), {}, "4-D"),
    (attend(dropout_p=1.0), {}, "keeps nothing"),
]


@pytest.mark.parametrize(("problem", "facts", "why"), ROWS)
def test_what_attention_takes(problem: AttentionProblem, facts: dict[str, Any], why: str) -> None:
    found = sdpa_graphs.attention_refusal(problem, replace(NEW, **facts))
    assert (why in found) if why else found == "", found
    names = [a.name for a in sdpa_graphs.attention_algorithms(problem, replace(NEW, **facts))]
    assert names == (["cudnn_attention"] if why else ["sdpa"])


def test_the_first_rule_that_fails_is_told() -> None:
    problem = attend((2, 8, 16, 60), dtype=np.float32, dropout_p=0.1)
    facts = replace(NEW, strict=True, capability=(7, 0))
    order = ["same bits", "float16", "capability", "1/16", "multiples of 8"]
    mended = [
        (problem, replace(facts, strict=False)), (attend((2, 8, 16, 60), dropout_p=0.1), replace(facts, strict=False)),
        (attend((2, 8, 16, 60), dropout_p=0.1), NEW), (attend((2, 8, 16, 60)), NEW),
    ]  # fmt: skip
    for word, (each, known) in zip(order, [(problem, facts), *mended], strict=True):
        assert word in sdpa_graphs.attention_refusal(each, known)


def test_the_kernel_is_off_when_its_switch_is() -> None:
    (found,) = sdpa_graphs.attention_algorithms(attend(), NEW)
    assert isinstance(found, Algorithm) and found.traits[0] == "cudnn_attention" and found.level == "threads"
    with switches.scope({"cuda.cudnn_sdp": False}):
        assert policy.forbids(found, switches.current())[1] == "cuda.cudnn_sdp"


def test_statistics_only_where_gradients_are_wanted() -> None:
    made = sdpa_graphs.attention_recipe(attend(is_causal=True), "sdpa")
    assert made.backward is None and [t.name for t in made.forward.outputs] == ["o"]
    assert dict(made.forward.options) == {"attn_scale": 0.125, "use_causal_mask": True, "generate_stats": False}
    problem = attend((2, 8, 16, 64), (2, 2, 24, 64), (2, 2, 24, 32), enable_gqa=True, needs_grad=True)
    problem = replace(problem, operands=(*problem.operands, operand("grad", np.zeros((2, 8, 16, 32), np.float16))))
    made = sdpa_graphs.attention_recipe(problem, "sdpa_backward_steady")
    assert made.backward is not None and dict(made.backward.options)["use_deterministic_algorithm"] is True
    assert [t.dims for t in made.backward.outputs] == [(2, 8, 16, 64), (2, 2, 24, 64), (2, 2, 24, 32)]
    stats = made.forward.outputs[1]
    assert (stats.dims, stats.dtype, stats.uid) == ((2, 8, 16, 1), "FLOAT", dict(made.backward.inputs)["stats"].uid)


def test_gradients_with_dropout_have_no_promise_on_one_generation() -> None:
    problem = attend(needs_grad=True, dropout_p=0.25)
    problem = replace(problem, operands=(*problem.operands, operand("grad", np.zeros((2, 8, 16, 64), np.float16))))
    for capability, kind in (((9, 0), Algorithm), ((10, 0), Refusal), ((12, 0), Algorithm)):
        found = list(sdpa_graphs.attention_algorithms(problem, replace(NEW, capability=capability)))
        assert [(type(a), a.name) for a in found] == [(Algorithm, "sdpa_backward"), (kind, "sdpa_backward_steady")]


def test_masks_become_what_is_added() -> None:
    for mask, shape, dtype in (
        (np.zeros((1, 16), bool), (1, 1, 16, 16), "HALF"), (np.zeros((2, 1, 1, 16), np.float32), (2, 1, 16, 16), "FLOAT"),
        (np.zeros((1, 8, 16, 1), np.float16), (1, 8, 16, 16), "HALF"),
    ):  # fmt: skip
        bias = dict(sdpa_graphs.attention_recipe(attend(attn_mask=mask), "sdpa").forward.inputs)["bias"]
        assert (bias.dims, bias.dtype) == (shape, dtype)


def test_other_operations_are_refused() -> None:
    other = Problem("nn.multi_head", (), (), "attention", device="cuda:0")
    assert [type(found) for found in libraries.get("cudnn").algorithms(other, 1)] == [Refusal]
