"""The cost of fresh memory for large results, and the saving of keeping freed blocks: ``python benchmarks/outputs.py``.

The product has k = 1 or 16, so that writing the result is most of the work.
"""

from __future__ import annotations

import numpy as np

import backline
from backline import _core
from side_by_side import compare, show

rng = np.random.default_rng(1)

if __name__ == "__main__":
    limit = _core.pool_info()["limit_bytes"]
    print(f"{'result':<26}{'pool':>10}{'no pool':>10}{'out=':>10}{'numpy':>10}")
    for n, k in ((512, 16), (1024, 16), (2048, 16), (4096, 16)):
        a, b = rng.standard_normal((n, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
        out = np.empty((n, n), np.float32)

        def without(a=a, b=b):
            _core.pool_limit(0)
            try:
                return backline.matmul(a, b)
            finally:
                _core.pool_limit(limit)

        times = compare(
            {
                "pool": lambda a=a, b=b: backline.matmul(a, b),
                "no pool": without,
                "out=": lambda a=a, b=b, out=out: backline.matmul(a, b, out=out),
                "numpy": lambda a=a, b=b: np.matmul(a, b),
            }
        )
        print(f"{n} x {n} f32, {out.nbytes / 2**20:.0f} MiB".ljust(26) + "".join(f"{show(t):>10}" for t in times.values()))
