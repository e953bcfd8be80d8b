"""Texts of convolutions, poolings and recurrent networks: the calls that they are, their keys, and what is said of wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from backline.errors import BadType, BadValue
from backline.problems import Problem
from backline.problems.op_registry import import_operations, operations

Array = np.ndarray
import_operations()

GOOD = [
    "lstm f32 32x16x256 hidden=512 layers=2 bidirectional",
    "gru f32 16x32x256 hidden=512 batch_first biases=False",
    "nn.rnn_tanh f64 3x2x4 hidden=5 dropout=0.5 seed=3 layers=2 lengths=True",
    "rnn_relu bf16 3x2x4 1x2x5 5x4 5x5",
    "lstm_backward f32 3x2x4 hidden=5 layers=2 bidirectional",
    "gru_backward f32 3x2x4 hidden=5 biases=False",
    "conv2d f32 8x6x16x16 4x6x3x3 4 stride=2 padding=1x2 last",
    "conv f32 8x6x16x16 4x6x3x3 4 8x4x14x14 activation=relu",
    "conv2d f32 8x6x16x16 4x6x3x3 padding=same dilation=(2, 2)",
    "conv1d f32 8x6x16 6x1x3 groups=6",
    "conv_transpose3d f32 1x4x8x8x8 4x2x4x4x4 stride=2 padding=1 output_padding=1",
    "conv2d_input f32 8x6x16x16 4x6x3x3 8x4x14x14",
    "conv2d_weight f32 8x6x16x16 4x6x3x3 8x4x14x14 last",
    "conv_grad_weight f32 8x6x16x16 8x4x14x14 result=4x6x3x3",
    "max_pool2d f32 8x6x16x16 kernel_size=2x2 last",
    "max_pool1d f32 6x16 kernel_size=3 stride=2 padding=1 ceil_mode=True",
    "max_pool f32 8x6x15x15 dilation=(1, 1) kernel=(2, 2) padding=((0, 1), (0, 1)) stride=(2, 2)",
    "avg_pool2d f32 8x6x16x16 kernel_size=2 padding=1 count_include_pad=False",
    "avg_pool_divided f32 8x6x16x16 divisor=7 kernel=(2, 3) overhang=(0, 0) padding=((0, 0), (0, 0)) stride=(2, 3)",
    "adaptive_avg_pool2d f32 8x6x16x16 output_size=5x3",
    "max_pool2d_input f32 8x6x16x16 8x6x8x8 kernel_size=2",
    "layer_norm f32 12x24 normalized_shape=(24,)",
    "softmax f32 12x24 dim=-1",
    "layer_norm f32 3x12x24 12x24 12x24 axes=2 eps=1e-05",
    "rms_norm f32 12x24 24 normalized_shape=(24,)",
    "batch_norm_train f32 2x4x8 eps=1e-05",
    "batch_norm_train f32 2x4x8 4 4 eps=1e-05",
    "linear f32 4x8 8x5:F 4x5:X activation=gelu",
    "linear f32 3x4x8 8x5:F 3x4x5:X 3x4x5 activation=relu",
    "linear f64 4x8 8x5 4x5",
    "linear f32 4x8 8x5:F activation=silu",
    "relu_grad f32 16x64 16x64:F",
    "gelu_grad f32 16x64 16x64 approximate=tanh",
    "softmax_grad f32 16x64 16x64 axis=1",
    "batch_norm_train_grad f32 2x4x8 2x4x8 4 eps=1e-05",
    "layer_norm_grad f32 4x8 4x8 8 axes=1 eps=1e-05",
    "layer_norm_grad f32 4x8 4x8 axes=1 eps=1e-05",
    "linalg.solve_triangular f64 4x4 4x2 left=True",
]


@pytest.mark.parametrize("text", GOOD)
def test_the_key_of_a_problem_reads_as_that_problem(text: str) -> None:
    key = Problem.parse(text).key
    assert Problem.parse(key).key == key


def test_it_is_the_problem_of_the_call() -> None:
    def of(name: str, *args: object, **kwargs: object) -> object:
        return operations[name].build(*args, **kwargs)

    x, w = np.ones((2, 6, 8, 8), np.float32), np.ones((4, 6, 3, 3), np.float32)
    grad = np.ones((2, 4, 4, 4), np.float32)
    last = np.ones((2, 8, 8, 6), np.float32).transpose(0, 3, 1, 2)
    bias = np.ones(4, np.float32)
    assert Problem.parse("conv2d f32 2x6x8x8 4x6x3x3 4 stride=2x2 padding=1 last") == of("nn.functional.conv2d", last, w, bias, 2, 1)
    assert Problem.parse("conv2d_input f32 2x6x8x8 4x6x3x3 2x4x4x4 stride=2 padding=1") == of(
        "nn.grad.conv2d_input", x.shape, w, grad, 2, 1
    )
    rows, weight, added = np.ones((3, 6), np.float32), np.ones((4, 6), np.float32), np.ones((3, 4), np.float32)
    linear = of("nn.functional.linear", rows, weight, bias, activation="gelu", residual=added)
    assert Problem.parse("linear f32 3x6 6x4:F 3x4:X 3x4 activation=gelu") == linear
    assert Problem.parse("linear f32 1x6 6x4:F 1x4 activation=relu") == of(
        "nn.functional.linear", rows[:1], weight, bias, activation="relu"
    )
    assert Problem.parse("linear f32 3x6 4x6 4") == of("nn.functional.linear", rows, weight, bias)
    scale = np.ones(6, np.float32)
    assert Problem.parse("layer_norm f32 3x6 6 6 axes=1 eps=1e-05") == of("nn.functional.layer_norm", rows, (6,), scale, scale)
    trained = of("nn.functional.batch_norm", x, None, None, scale, scale, training=True)
    assert Problem.parse("batch_norm_train f32 2x6x8x8 6 6 eps=1e-05") == trained
    assert Problem.parse("max_pool2d f32 2x6x8x8 kernel_size=3x2 stride=2") == of("nn.functional.max_pool2d", x, (3, 2), 2)
    assert Problem.parse("avg_pool2d_input f32 2x6x8x8 2x6x4x4 kernel_size=2") == of(
        "nn.grad.avg_pool2d_input", x.shape, np.ones((2, 6, 4, 4), np.float32), 2
    )
    seq, h = np.ones((3, 2, 4)), np.ones((2, 2, 5))
    params = tuple(np.ones(shape) for shape in ((15, 4), (15, 5), (15,), (15,))) * 2
    lengths = np.ones(2, np.int64)
    assert Problem.parse("gru f64 3x2x4 hidden=5 bidirectional lengths=True") == of(
        "nn.gru", seq, h, params, True, 1, 0.0, False, True, False, lengths=lengths
    )
    params = tuple(np.ones(shape) for shape in ((20, 4), (20, 5)))
    assert Problem.parse("lstm_grad f64 3x2x4 1x2x5 1x2x5 20x4 20x5 1x2x5") == of(
        "nn.grad.lstm_backward", seq, (h[:1], h[:1]), params, None, h[:1], None, False, 1, 0.0, False, False, False
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lstm f32 3x2x4", ["size of its state", "hidden=512"]),
        ("lstm f32", ["no shape", "hidden=512"]),
        ("lstm f32 3x2 hidden=5", ["three sizes", "hidden=512"]),
        ("lstm f32 3x2x4 hidden=big", ["'big'", "hidden=512"]),
        ("lstm f32 3x2x4 hidden=5 speed=3", ["'speed'", "hidden=512"]),
        ("lstm f32 3x2x4 1x2x5 1x2x5 20x4", ["2 arrays of parameters here, the text has shapes of 1", "hidden=512"]),
        ("gru f32 3x2x4 1x2x5 15x4 15x5 hidden=5", ["or the shapes of all its arrays", "gru f32"]),
        ("lstm f32 3x2x4 hidden=5 dropout=0.5 layers=2", ["dropout without a seed"]),
        ("conv2d f32 8x6x16x16", ["weight", "write it like"]),
        ("conv2d f32 8x6x16x16 4x6x3x3 4 8x4x14x14 3", ["4 shapes at most, not 5"]),
        ("conv2d f32 8x6x16x16 4x6x3x3 stride=2x2x2", ["stride"]),
        ("conv2d f32 8x6x16x16 4x6x3x3 padding=1+2x1+2", ["differs before and behind", "same"]),
        ("conv2d f32 8x6x16x16 4x6x3x3 dilation=(2, 2", ["parentheses", "2x2"]),
        ("conv f32 8", ["'conv'"]),
        ("conv2 f32 8x6", ["'conv2'", "conv2d"]),
        ("max_pool2d f32 8x6x16x16", ["size of the windows", "kernel_size=2x2"]),
        ("max_pool2d f32 8x6x16x16 8x6x8x8 kernel_size=2", ["1 shapes at most"]),
        ("avg_pool2d_input f32 8x6x8x8 kernel_size=2", ["two sizes", "avg_pool2d_input"]),
        ("matmul f32 3x3 3x3 bidirectional", ["bidirectional"]),
        ("layer_norm f32 4x8 8 8 8 axes=1", ["three shapes at most"]),
        ("linear f32 4x8 8x5:F 4x5:X 4x5 4x5 activation=relu", ["four shapes at most"]),
    ],
)
def test_a_bad_text_is_refused_with_an_example(text: str, words: list[str]) -> None:
    with pytest.raises((BadValue, BadType)) as caught:
        Problem.parse(text)
    for word in words:
        assert word in str(caught.value)


def test_huge_networks_take_no_memory() -> None:
    assert Problem.parse("lstm f64 100000x1000x100000 hidden=1000000").bytes > 1 << 40
