"""Cost of the first call of a new shape, of every kind of operation: ``python benchmarks/first_sights.py [--shapes 60] [names]``.

Libraries are loaded, and what holds for all shapes of an operation is known. Then every shape is called once: the least time says
what a call costs that nothing disturbs. Rows over 500 us are marked. Arrays are small, so that it is the call that is timed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import backline
from backline import linalg, nn, quantized, sparse
from backline.nn import functional as f
from backline.nn import grad
from side_by_side import RESULTS, show, threads_asked

Array = Any
BF16 = ml_dtypes.bfloat16
rng = np.random.default_rng(1)
WARM = 20  # shapes that are not counted: those from which on shapes are taken to keep changing
MOST = 500e-6


def real(*shape: int, dtype: Any = np.float32) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def definite(n: int) -> Array:
    return real(n, n, dtype=float) + 4 * n * np.eye(n)


def images(n: int, channels: int = 6, dtype: Any = np.float32) -> Array:
    return real(1, channels, 8 + n, 16, dtype=dtype)


def last(n: int) -> Array:
    return np.ascontiguousarray(images(n).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def integers(x: Array) -> Any:
    return quantized.quantize(x, 0.05, 100, dtype=np.uint8)


W1, W2, W3 = real(8, 6, 3), real(8, 6, 3, 3), real(8, 6, 3, 3, 3)
T2 = real(6, 8, 3, 3)
LAYER = real(24, 16)
PACKED = {
    "conv1d": f.prepack_conv1d(W1), "conv2d": f.prepack_conv2d(W2),
    "conv2d relu": f.prepack_conv2d(W2, real(8), activation="relu"),
    "conv3d": f.prepack_conv3d(W3), "conv_transpose2d": f.prepack_conv_transpose2d(T2), "linear": f.prepack_linear(LAYER),
    "linear large": f.prepack_linear(real(128, 128)),
}  # fmt: skip
INT8 = {
    "conv2d": quantized.conv2d_prepack(quantized.quantize_weights(W2), real(8), padding=1),
    "linear": quantized.linear_prepack(quantized.quantize_weights(LAYER), real(24)),
    "depthwise": quantized.conv2d_prepack(quantized.quantize_weights(real(32, 1, 3, 3)), real(32), padding=1, groups=32),
}
RNN = real(4 * 8, 6), real(4 * 8, 8), real(32), real(32)
GRU = real(3 * 8, 6), real(3 * 8, 8), real(24), real(24)
TANH = real(8, 6), real(8, 8), real(8), real(8)
STATE = np.zeros((1, 2, 8), np.float32)


def heads(n: int) -> tuple[Array, Array, Array]:
    return real(1, 4, 8 + n, 16), real(1, 4, 8 + n, 16), real(1, 4, 8 + n, 16)


def sequences(n: int) -> tuple[Any, ...]:
    x = real(20 + n, 4, 16)
    return x, x, x, [0, 7, 20 + n]


def recurrent(name: str, weights: tuple[Array, ...]) -> Callable[[int], Callable[[], object]]:
    def make(n: int) -> Callable[[], object]:
        x, state = real(4 + n, 2, 6), (STATE, STATE) if name == "lstm" else STATE
        return lambda: getattr(nn, name)(x, state, weights, True, 1, 0.0, False, False, False)

    return make


def eight_bit(n: int) -> Callable[[], object]:
    a, b = (x.astype(ml_dtypes.float8_e4m3fn) for x in (real(8 + n, 32), real(32, 16)))
    one = np.ones(1, np.float32)
    return lambda: f.scaled_mm(a, b, one, "TensorWise", one, "TensorWise", output_dtype=np.float32)


def of(call: Callable[..., object], make: Callable[[int], Any]) -> Callable[[int], Callable[[], object]]:
    """Returns what makes the first call of the n-th shape: `make` gives the arguments, or the one array that there is."""

    def made(n: int) -> Callable[[], object]:
        given = make(n)
        arguments = given if isinstance(given, tuple) else (given,)
        return lambda: call(*arguments)

    return made


def grads(n: int, channels: int = 8) -> Array:
    return real(1, channels, 6 + n, 14)


OPERATIONS: dict[str, Callable[[int], Callable[[], object]]] = {
    "matmul float32": of(backline.matmul, lambda n: (real(8 + n, 24), real(24, 16))),
    "matmul bfloat16": of(backline.matmul, lambda n: (real(8 + n, 24, dtype=BF16), real(24, 16, dtype=BF16))),
    "matmul batch": of(backline.matmul, lambda n: (real(3, 8 + n, 24), real(3, 24, 16))),
    "matmul complex": of(backline.matmul, lambda n: (real(8 + n, 24, dtype=np.complex64), real(24, 16, dtype=np.complex64))),
    "vector dot": of(backline.vdot, lambda n: (real(100 + n), real(100 + n))),
    "einsum": of(lambda a, b: backline.einsum("ij,jk->ki", a, b), lambda n: (real(8 + n, 24), real(24, 16))),
    "einsum of three": of(
        lambda a, b, c: backline.einsum("ij,jk,kl->il", a, b, c), lambda n: (real(8 + n, 24), real(24, 16), real(16, 5))
    ),
    "chain": of(lambda a, b, c: linalg.multi_dot([a, b, c]), lambda n: (real(8 + n, 24), real(24, 16), real(16, 5))),
    "solve": of(linalg.solve, lambda n: (definite(4 + n), real(4 + n, 3, dtype=float))),
    "inv": of(linalg.inv, lambda n: definite(4 + n)),
    "cholesky": of(linalg.cholesky, lambda n: definite(4 + n)),
    "qr": of(linalg.qr, lambda n: real(8 + n, 6, dtype=float)),
    "svd": of(linalg.svd, lambda n: real(8 + n, 6, dtype=float)),
    "eigh": of(linalg.eigh, lambda n: definite(4 + n)),
    "eig": of(linalg.eig, lambda n: definite(4 + n)),
    "lstsq": of(linalg.lstsq, lambda n: (real(8 + n, 6, dtype=float), real(8 + n, 2, dtype=float))),
    "det": of(linalg.det, lambda n: definite(4 + n)),
    "pinv": of(linalg.pinv, lambda n: real(8 + n, 6, dtype=float)),
    "norm": of(linalg.norm, lambda n: real(8 + n, 6)),
    "fft": of(backline.fft.fft, lambda n: real(64 + n, dtype=np.complex64)),
    "rfft2": of(backline.fft.rfft2, lambda n: real(16, 16 + 2 * n)),
    "fftn": of(backline.fft.fftn, lambda n: real(4, 8, 8 + n, dtype=complex)),
    "relu": of(f.relu, lambda n: real(8 + n, 24)),
    "gelu": of(f.gelu, lambda n: real(8 + n, 24)),
    "softmax": of(lambda x: f.softmax(x, -1), lambda n: real(8 + n, 24)),
    "layer_norm": of(lambda x: f.layer_norm(x, (24,), real(24), real(24)), lambda n: real(8 + n, 24)),
    "rms_norm": of(lambda x: f.rms_norm(x, (24,)), lambda n: real(8 + n, 24)),
    "batch_norm": of(lambda x: f.batch_norm(x, np.zeros(6, np.float32), np.ones(6, np.float32)), images),
    "batch_norm training": of(lambda x: f.batch_norm(x, None, None, training=True), images),
    "linear": of(f.linear, lambda n: (real(8 + n, 16), LAYER)),
    "linear bias relu": of(lambda x: f.linear(x, LAYER, real(24), activation="relu"), lambda n: real(8 + n, 16)),
    "conv1d": of(f.conv1d, lambda n: (real(1, 6, 16 + n), W1)),
    "conv2d": of(f.conv2d, lambda n: (images(n), W2)),
    "conv2d channels last": of(f.conv2d, lambda n: (last(n), W2)),
    "conv2d bfloat16": of(f.conv2d, lambda n: (images(n, dtype=BF16), W2.astype(BF16))),
    "conv2d without a batch": of(f.conv2d, lambda n: (real(6, 8 + n, 19), W2)),
    "conv3d": of(f.conv3d, lambda n: (real(1, 6, 6, 6 + n, 8), W3)),
    "conv_transpose1d": of(f.conv_transpose1d, lambda n: (real(1, 6, 16 + n), real(6, 8, 3))),
    "conv_transpose2d": of(f.conv_transpose2d, lambda n: (images(n), T2)),
    "conv_transpose3d": of(f.conv_transpose3d, lambda n: (real(1, 6, 4, 4 + n, 6), real(6, 8, 3, 3, 3))),
    "max_pool2d": of(lambda x: f.max_pool2d(x, 2), images),
    "avg_pool2d": of(lambda x: f.avg_pool2d(x, 2), images),
    "adaptive_avg_pool2d": of(lambda x: f.adaptive_avg_pool2d(x, 3), images),
    "max_pool2d int8": of(lambda x: f.max_pool2d(x, 2), lambda n: last(n).astype(np.int8)),
    "attention": of(f.scaled_dot_product_attention, heads),
    "attention causal": of(lambda *p: f.scaled_dot_product_attention(*p, is_causal=True), heads),
    "varlen_attn": of(f.varlen_attn, sequences),
    "lstm": recurrent("lstm", RNN),
    "gru": recurrent("gru", GRU),
    "rnn_tanh": recurrent("rnn_tanh", TANH),
    "grouped_mm": of(
        lambda x, w: f.grouped_mm(x, w, offs=np.array([5, len(x)], np.int32)), lambda n: (real(8 + n, 16), real(2, 16, 12))
    ),
    "scaled_mm": eight_bit,
    "int_mm": of(quantized.int_mm, lambda n: (rng.integers(-9, 9, (8 + n, 32), np.int8), rng.integers(-9, 9, (32, 16), np.int8))),
    "quantize": of(integers, lambda n: real(8 + n, 24)),
    "linear int8": of(lambda x: quantized.linear(x, INT8["linear"], 0.1, 100), lambda n: integers(real(8 + n, 16))),
    "linear int8, dynamic": of(lambda x: quantized.linear_dynamic(x, INT8["linear"]), lambda n: real(8 + n, 16)),
    "conv2d int8": of(lambda x: quantized.conv2d(x, INT8["conv2d"], 0.1, 100), lambda n: integers(images(n))),
    "conv2d int8 channels last": of(lambda x: quantized.conv2d(x, INT8["conv2d"], 0.1, 100), lambda n: integers(last(n))),
    "conv2d int8 depthwise": of(lambda x: quantized.conv2d(x, INT8["depthwise"], 0.1, 100), lambda n: integers(images(n, 32))),
    "2:4 sparse": of(lambda a, b: sparse.compress(sparse.prune_2_4(a)) @ b, lambda n: (real(16, 32), real(32, 8 + n))),
    "packed linear": of(PACKED["linear"], lambda n: real(8 + n, 16)),
    "packed linear, large": of(PACKED["linear large"], lambda n: real(8 + n, 128)),
    "packed conv1d": of(PACKED["conv1d"], lambda n: real(1, 6, 16 + n)),
    "packed conv2d": of(PACKED["conv2d"], images),
    "packed conv2d relu": of(PACKED["conv2d relu"], images),
    "packed conv3d": of(PACKED["conv3d"], lambda n: real(1, 6, 6, 6 + n, 8)),
    "packed conv_transpose2d": of(PACKED["conv_transpose2d"], images),
    "gradient: conv2d by input": of(lambda g: grad.conv2d_input((1, 6, g.shape[2] + 2, 16), W2, g), grads),
    "gradient: conv2d by weight": of(lambda x, g: grad.conv2d_weight(x, W2.shape, g), lambda n: (images(n), grads(n))),
    "gradient: conv_transpose2d by input": of(
        lambda g: grad.conv_transpose2d_input((1, 6, g.shape[2] - 2, g.shape[3] - 2), T2, g), lambda n: grads(n)
    ),
    "gradient: linear": of(lambda w, g: grad.linear_input(w, g), lambda n: (LAYER, real(8 + n, 24))),
    "gradient: gelu": of(grad.gelu_input, lambda n: (real(8 + n, 24), real(8 + n, 24))),
    "gradient: softmax": of(lambda x, g: grad.softmax_input(x, g, -1), lambda n: (real(8 + n, 24), real(8 + n, 24))),
    "gradient: layer_norm": of(lambda x, g: grad.layer_norm_backward(x, g, (24,)), lambda n: (real(8 + n, 24), real(8 + n, 24))),
    "gradient: batch_norm": of(grad.batch_norm_backward, lambda n: (images(n), images(n))),
    "gradient: max_pool2d": of(lambda x, g: grad.max_pool2d_input(x, g, 2), lambda n: (images(2 * n), real(1, 6, 4 + n, 8))),
    "gradient: avg_pool2d": of(
        lambda x, g: grad.avg_pool2d_input(x.shape, g, 2), lambda n: (images(2 * n), real(1, 6, 4 + n, 8))
    ),
    "gradient: attention": of(
        lambda q, k, v: grad.scaled_dot_product_attention_backward(q, k, v, q), heads
    ),
}  # fmt: skip


def measured(make: Callable[[int], Callable[[], object]], shapes: int) -> tuple[list[float], str]:
    """The time of the first call of each shape, and what ran the last one."""
    times, warm = [], time.perf_counter() + 20
    for n in range(shapes + WARM):
        call = make(n)
        begin = time.perf_counter()
        call()
        if n >= WARM:
            times.append(time.perf_counter() - begin)
        if time.perf_counter() > warm and times:
            break
    choice = backline.explain()
    return times, f"{choice.library} {choice.algorithm}"


if __name__ == "__main__":
    threads = threads_asked()
    words = sys.argv[1:]
    shapes = 60
    if "--shapes" in words:
        at = words.index("--shapes")
        shapes = int(words[at + 1])
        words = words[:at] + words[at + 2 :]
    rows = []
    print(f"{'':<38}{'least':>10}{'median':>10}{'last ten':>10}  ran on")
    for name, make in OPERATIONS.items():
        if words and not any(word in name for word in words if not word.startswith("--") and not word.isdigit()):
            continue
        try:
            times, on = measured(make, shapes)
        except backline.errors.BacklineError as error:
            print(f"{name:<38}  {str(error).splitlines()[0]}")
            continue
        least, median = min(times), statistics.median(times)
        rows.append({"row": name, "least": least, "median": median, "ran_on": on})
        late = statistics.median(times[-10:])
        print(f"{name:<38}{show(least):>10}{show(median):>10}{show(late):>10}  {on}{'  *' if median > MOST else ''}", flush=True)
    if not words:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "first_sights.json").write_text(
            json.dumps({"threads": threads, "shapes": shapes, "rows": rows}, indent=1) + "\n"
        )
