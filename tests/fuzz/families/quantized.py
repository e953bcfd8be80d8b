"""Quantized arrays, against fractions of whole numbers; and matrices with two of four elements."""

from __future__ import annotations

from typing import Any

import integers
import numpy as np

from ..arrays import Array, Draw
from ..call import Call, generates
from ..check import Wrong, like, near

Q = Any


def _q() -> Any:
    from backline import quantized

    return quantized


def _whole(draw: Draw, shape: tuple[int, ...], dtype: str) -> Array:
    low, high = integers.LIMITS[dtype]
    return draw.lay_out(np.clip(np.round(draw.fill(shape, "float64", "normal") * 60) + (low + high) // 2, low, high).astype(dtype))


def _step(draw: Draw) -> float:
    return float(np.float32(0.001 + 0.1 * draw.random.random()))


def _array(draw: Draw, shape: tuple[int, ...], dtype: str) -> Any:
    return _q().QArray(_whole(draw, shape, dtype), _step(draw), draw.whole(*integers.LIMITS[dtype]))


def _engine(draw: Draw) -> str:
    from backline.libraries import quantized_engines

    return draw.choice(quantized_engines.supported())


def _weight(draw: Draw, shape: tuple[int, ...], engine: str) -> Any:
    """As the engine's scheme has them."""
    from backline.quantized.schemes import SCHEMES

    s = SCHEMES[engine]
    kind = draw.choice(s.weights)
    axis = 0 if draw.chance(0.5) else None
    size = () if axis is None else shape[:1]
    zeros = np.zeros(size, kind) if draw.chance(0.4) else _whole(draw, size, kind)
    scales = np.array(_step(draw)) * (1 + np.abs(draw.fill(size, "float64", "normal")))
    return _q().QArray(_whole(draw, shape, kind), scales, zeros, axis)


def _limits(draw: Draw, engine: str, x: Any) -> Any:
    """Activations within the range that the engine's sums have room for."""
    from backline.quantized.schemes import SCHEMES

    low, high = SCHEMES[engine].activations(x.dtype)
    return _q().QArray(np.clip(x.int_repr, low, high), x.scale, min(max(int(x.zero_point), low), high))


def _bias(draw: Draw, n: int) -> Array | None:
    return draw.array((n,), "float32", "normal") * np.float32(draw.choice((1, 1, 0.01, 100))) if draw.chance(0.6) else None


def _exactly(result: Any, wanted: Array) -> None:
    got = like(result.int_repr if hasattr(result, "int_repr") else result, wanted.shape, wanted.dtype)
    if not np.array_equal(got, wanted):
        at = tuple(int(i[0]) for i in np.nonzero(got != wanted))
        raise Wrong("value", f"result{list(at)} is {got[at]}, not {wanted[at]}; {int((got != wanted).sum())} of {got.size} elements are wrong")


def _by_engine(engine: str, result: Any, wanted: Array, x: Any, w: Any, scale: float) -> None:
    """Every bit, but for the engines that round in float32: those may be off by the rounding of a bias, and by one."""
    from backline.libraries.reference.reference_requantize import FLOAT32

    if engine not in FLOAT32:
        return _exactly(result, wanted)
    got = like(result.int_repr, wanted.shape, wanted.dtype)
    near(got.astype(np.float64), wanted.astype(np.float64), 1 + np.ceil(x.scale * float(np.max(w.scales, initial=0)) / scale), "float64")
    return None


def _dynamic(engine: str, result: Any, x: Array, w: Any, bias: Array | None) -> None:
    from backline.libraries.reference.reference_requantize import FLOAT32, input_integers, input_parameters

    q = _q()
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    if engine not in FLOAT32:
        observer = q.MinMaxObserver(engine=engine)
        observer(x)
        return _exactly(result, integers.linear_real(q.quantize(x, *observer.calculate_qparams()), w, bias))
    step, start = input_parameters(low, high, *q.MinMaxObserver(engine=engine).range)
    seen = q.QArray(input_integers(x, step, start), float(step[0]), int(start[0]))
    wanted = integers.linear_real(seen, w, bias).astype(np.float64)
    products = integers.linear_real(seen, w, None).astype(np.float64)
    near(result, wanted, 2.0**-21 * (np.abs(products) + (0 if bias is None else np.abs(bias))), "float32")
    return None


@generates("quantized", "quantized.linear", "quantized.linear_dynamic", weight=2)
def linear(draw: Draw, op: str) -> Call:
    from backline.backends import quantized as backend

    q, engine = _q(), _engine(draw)
    dynamic = op.endswith("dynamic")
    outs, terms = draw.size(9, 0), draw.size(33, 0)
    lead = draw.choice(((3,), (1,), (), (2, 2), (0,), (5,)))
    w, bias = _weight(draw, (outs, terms), engine), _bias(draw, outs)
    scale, zero = float(np.float32(0.3 * terms**0.5 * _step(draw) * 10)), draw.whole(0, 100)
    if dynamic:
        x: Any = draw.array((*lead, terms), "float32", "normal")
    else:
        x = _limits(draw, engine, _array(draw, (*lead, terms), draw.choice(("uint8", "uint8", "int8"))))

    def run(x: Any, w: Any, bias: Array | None) -> Any:
        with backend.flags(engine=engine):
            packed = q.linear_prepack(w, bias)
        return q.linear_dynamic(x, packed) if dynamic else q.linear(x, packed, scale, zero)

    def check(result: Any) -> None:
        if not dynamic:
            _by_engine(engine, result, integers.linear(x, w, bias, scale, zero), x, w, scale)
        elif x.size:
            _dynamic(engine, result, x, w, bias)

    call = Call(op, (x, w, bias), {}, check, function=run)
    return call


@generates("quantized", "quantized.conv2d", weight=2)
def conv2d(draw: Draw, op: str) -> Call:
    from backline.backends import quantized as backend

    q, engine = _q(), _engine(draw)
    groups = draw.choice((1, 1, 2, 3))
    channels, outs = draw.choice((1, 2, 3)), draw.choice((1, 2, 4)) * groups
    kernel = (draw.choice((1, 2, 3)), draw.choice((1, 2, 3)))
    stride, padding, dilation = (tuple(draw.choice(o) for _ in "hw") for o in ((1, 1, 2), (0, 0, 1, 2), (1, 1, 2)))
    image = tuple(max(draw.whole(1, 6), d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True))
    w, bias = _weight(draw, (outs, channels, *kernel), engine), _bias(draw, outs)
    x = _limits(draw, engine, _array(draw, (draw.choice((1, 2)), channels * groups, *image), draw.choice(("uint8", "uint8", "int8"))))
    scale, zero = float(np.float32(_step(draw) * 10)), draw.whole(0, 100)

    def run(x: Any, w: Any, bias: Array | None) -> Any:
        with backend.flags(engine=engine):
            packed = q.conv2d_prepack(w, bias, stride, padding, dilation, groups)
        return q.conv2d(x, packed, scale, zero)

    def check(result: Any) -> None:
        _by_engine(engine, result, integers.conv2d(x, w, bias, stride, padding, dilation, groups, scale, zero), x, w, scale)

    return Call(op, (x, w, bias), {}, check, function=run)


@generates("quantized", "quantized.quantize", "quantized.dequantize", "quantized.requantize", "quantized.quantize_weights")
def conversions(draw: Draw, op: str) -> Call:
    name = op.rpartition(".")[2]
    shape = draw.shape(draw.whole(1, 3), 9, 60, 0.02)
    kind = draw.choice(("uint8", "int8"))
    scale, zero = _step(draw), draw.whole(0, 100)
    if name == "quantize":
        dtype = draw.choice(("float32", "float64", "float16", "bfloat16"))
        if draw.values == "special":
            draw.values = "huge"
        x = draw.array(shape, dtype)

        def check(result: Any) -> None:
            flat = [integers.quantized(float(v), float(np.float32(scale)), zero, kind) for v in x.ravel().tolist()]
            _exactly(result, np.array(flat, kind).reshape(shape))

        return Call(op, (x, scale, zero, kind), {}, check)
    if name == "quantize_weights":
        draw.values = "normal"
        x = draw.array((max(shape[0], 1), max(shape[-1], 1)), "float32")

        def check_weights(result: Any) -> None:
            with np.errstate(all="ignore"):
                back = result.dequantize().astype(np.float64)
            steps = np.asarray(result.scales, np.float64).reshape(-1, 1)
            near(back.astype(np.float64), x.astype(np.longdouble), steps * 0.51 + 1e-30, np.dtype(np.float64))

        return Call(op, (x,), {}, check_weights)
    x = _array(draw, shape, kind)
    numbers = (x.int_repr.astype(np.float64) - int(x.zero_point)) * float(np.float32(x.scale))
    if name == "dequantize":
        return Call(op, (x,), {}, lambda result: near(result, numbers, 2.0**-24 * np.abs(numbers) * 1.01, np.dtype(np.float32)))

    def check_again(result: Any) -> None:
        got = like(result.int_repr, shape, np.dtype(kind)).astype(np.int64)
        low, high = integers.LIMITS[kind]
        exact = numbers / float(np.float32(scale)) + zero
        if (np.abs(got - np.clip(exact, low, high)) > 0.5 + 1e-6).any():
            raise Wrong("value", "not the nearest integers")

    return Call(op, (x, scale, zero), {}, check_again)


@generates("sparse", "sparse.prune_2_4")
def prune(draw: Draw, op: str) -> Call:
    dtype = draw.choice(("float32", "float64", "float16", "bfloat16", "int8"))
    x = draw.array((draw.size(17), 4 * draw.size(9)), dtype)

    def check(result: Any) -> None:
        got = like(result, x.shape, x.dtype)
        groups = x.reshape(-1, 4)
        with np.errstate(all="ignore"):
            size = np.abs(groups.astype(np.float64))
        size = np.where(np.isnan(size), np.inf, size)
        if np.isnan(groups.astype(np.float64)).any():
            return
        order = np.argsort(-size, axis=1, kind="stable")[:, :2]
        wanted = np.zeros_like(groups)
        np.put_along_axis(wanted, order, np.take_along_axis(groups, order, 1), 1)
        if not np.array_equal(got.reshape(-1, 4), wanted):
            raise Wrong("value", "other elements stay")

    return Call(op, (x,), {}, check)
