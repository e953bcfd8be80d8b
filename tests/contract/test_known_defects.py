"""Problems on which vendor kernels are known to fail: whatever runs them, the numbers are right and the program goes on.

They run in a program of its own, since it may crash, where new memory holds numbers that would be seen in a result.
"""

from __future__ import annotations

import pytest

from support import POISON, python

HEAD = """
import ml_dtypes
import numpy as np
import backline
from backline.nn import functional as F, grad
rng = np.random.default_rng(0)
def draw(*shape, dtype=ml_dtypes.bfloat16):
    return rng.standard_normal(shape).astype(dtype)
def wide(function, *args, **more):
    wider = [x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in args]
    with backline.use("numpy", only=True):
        return function(*wider, **more)
def check(function, *args, allowed=2e-2, **more):
    exact = wide(function, *args, **more)
    for _ in range(3):
        error = np.abs(np.asarray(function(*args, **more), np.float64) - exact).max()
        assert error <= allowed * max(np.abs(exact).max(), 1), (error, backline.explain())
"""
CASES = {
    "weights never read": "check(grad.conv2d_weight, draw(2, 4, 6, 2), (12, 1, 2, 2), draw(2, 12, 4, 1), stride=(2, 3), padding=1, groups=4)",
    "weights in float32": "check(grad.conv2d_weight, draw(2, 4, 6, 2, dtype='f4'), (12, 1, 2, 2), draw(2, 12, 4, 1, dtype='f4'), allowed=1e-5, "
    "stride=(2, 3), padding=1, groups=4)",
    "weights, one row": "check(grad.conv1d_weight, draw(2, 64, 1), (64, 32, 2), draw(2, 64, 1), stride=2, padding=1, groups=2)",
    "weights, dilated": "check(grad.conv2d_weight, draw(5, 10, 7, 40), (5, 2, 2, 5), draw(5, 5, 7, 32), dilation=(2, 3), padding=(1, 2), groups=5)",
    "weights, long kernel": "check(grad.conv3d_weight, draw(5, 3, 2, 3, 6), (2, 3, 4, 4, 3), draw(5, 2, 5, 2, 8), dilation=(1, 1, 2), padding=(3, 1, 3))",
    "points never read": "check(grad.conv3d_input, (2, 2, 5, 4, 35), draw(3, 2, 2, 3, 1), draw(2, 3, 2, 2, 12), stride=(2, 1, 3))",
    "a kernel in padding": "check(F.conv2d, draw(1, 2, 1, 6), draw(4, 1, 2, 2), groups=2, dilation=3, padding=2)",
    "a small transposed one": "check(F.conv_transpose2d, draw(1, 1, 3, 1, dtype='f4'), draw(1, 1, 3, 3, dtype='f4'), allowed=1e-5, stride=3, padding=2, "
    "output_padding=2)",
    "one preferred": "backline.use('xnnpack').__enter__()\ncheck(F.conv_transpose2d, draw(1, 1, 3, 1, dtype='f4'), draw(1, 1, 3, 3, dtype='f4'), "
    "allowed=1e-5, stride=3, padding=2, output_padding=2)",
    "pooling": "check(F.max_pool2d, draw(1, 2, 4, 1, dtype='f4'), 2, 1, 1, allowed=0)\ncheck(F.avg_pool2d, draw(1, 2, 4, 1, dtype='f4'), 2, 1, 1, "
    "allowed=1e-6)",
}


@pytest.mark.parametrize("case", CASES)
def test_the_default_path_is_right(case: str) -> None:
    python(HEAD + CASES[case], env=POISON)
