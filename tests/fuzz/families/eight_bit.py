"""Products of float8 and int8, and products of groups."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..arrays import FORMATS, Array, Draw, dtype_of, wide
from ..call import Call, generates
from ..check import near, sums


def _float8(draw: Draw, shape: tuple[int, ...], kind: Any) -> Array:
    return draw.lay_out(np.clip(draw.fill(shape, "float32", draw.choice(("normal", "whole"))) * 8, -400, 400).astype(kind))


def _scale(draw: Draw, recipe: str, size: int, shape: tuple[int, int]) -> Array:
    wanted = draw.choice(((), (1,), (1, 1))) if recipe == "TensorWise" else draw.choice((shape, (size,)))
    return draw.lay_out(np.asarray(np.abs(draw.fill(wanted, "float32", "normal")) + 0.01, np.float32))


@generates("quantized", "nn.functional.scaled_mm", weight=2)
def scaled_mm(draw: Draw, op: str) -> Call:
    m, k, n = (draw.size(40) for _ in range(3))
    a, b = (_float8(draw, s, draw.choice((ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))) for s in ((m, k), (k, n)))
    recipes = draw.choice(("TensorWise", "RowWise")), draw.choice(("TensorWise", "RowWise"))
    scale_a, scale_b = _scale(draw, recipes[0], m, (m, 1)), _scale(draw, recipes[1], n, (1, n))
    output = draw.choice(("bfloat16", "float16", "float32"))
    dtype = dtype_of(output)
    bias = draw.array((n,), output, "normal") if draw.chance(0.4) else None
    factor = scale_a.astype(np.float64).reshape(-1, 1) * scale_b.astype(np.float64).reshape(1, -1)
    x, y = a.astype(np.float64), b.astype(np.float64)
    added = np.zeros(n) if bias is None else wide(bias).astype(np.float64)
    reference, size = x @ y * factor + added, np.abs(x) @ np.abs(y) * factor + np.abs(added)
    f = FORMATS[output]
    bound = (k + 4) * 2.0**-22 * size + f.eps * np.abs(reference) + 4 * f.tiny
    kwargs = {"bias": bias, "output_dtype": output, "use_fast_accum": draw.chance(0.2)}
    return Call(
        op, (a, b, scale_a, recipes[0], scale_b, recipes[1]), kwargs, lambda result: near(result, reference, bound, dtype)
    )


@generates("quantized", "quantized.int_mm")
def int_mm(draw: Draw, op: str) -> Call:
    m, k, n = draw.size(40), draw.choice((draw.size(65), 1500)), draw.size(40)
    a, b = (draw.lay_out(np.clip(draw.fill(s, "float32", "normal") * 60, -128, 127).astype(np.int8)) for s in ((m, k), (k, n)))
    reference = a.astype(np.int64) @ b.astype(np.int64)
    return Call(op, (a, b), {}, lambda result: near(result, reference, 0, np.dtype(np.int32)))


@generates("matmul", "nn.functional.grouped_mm", weight=2)
def grouped_mm(draw: Draw, op: str) -> Call:
    dtype = draw.choice(("float32", "float32", "float64", "float16", "bfloat16"))
    groups, m, k, n = (draw.size(most) for most in (5, 30, 30, 30))
    form = draw.choice(("rows", "columns", "terms", "each"))
    lead = (groups,)
    shapes = {"rows": ((m, k), (*lead, k, n)), "columns": ((*lead, m, k), (k, n)), "terms": ((m, k), (k, n))}
    left, right = shapes.get(form, ((*lead, m, k), (*lead, k, n)))
    a, b = draw.array(left, dtype), draw.array(right, dtype)
    length = {"rows": m, "columns": n, "terms": k}.get(form, 0)
    ends = sorted(draw.whole(0, length) for _ in range(groups))
    result = (groups, m, n) if form in ("terms", "each") else (m, n)
    x, y = wide(a), wide(b)
    reference, size = np.zeros(result, x.dtype), np.zeros(result, x.dtype)
    with np.errstate(all="ignore"):
        for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            part: Any = slice(start, end)
            into: Any
            if form == "rows":
                into, one, two = (part,), x[part], y[i]
            elif form == "columns":
                into, one, two = (..., part), x[i], y[:, part]
            else:
                into, one, two = (i,), *((x[:, part], y[part]) if form == "terms" else (x[i], y[i]))
            reference[into], size[into] = one @ two, np.abs(one) @ np.abs(two)
    bound = sums(reference, size, k, a.dtype)
    kwargs = {} if form == "each" else {"offs": np.array(ends, draw.choice(("int32", "int64")))}
    call = Call(op, (a, b), kwargs, lambda found: near(found, reference, bound + call.extra, a.dtype))
    if dtype == "float32":
        with np.errstate(all="ignore"):
            call.reduced = 2.0**-6 * size + k * 2.0**-130
    return call
