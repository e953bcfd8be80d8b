"""A report with something in every part, and scripts to report on."""

from __future__ import annotations

from typing import Any

from backline.launch.saved_report import KIND, SCHEMA

SCRIPT = """\
import subprocess, sys
import numpy as np
import backline

a = np.ones((96, 96), np.float32)
for _ in range(3):
    backline.matmul(a, a)
with backline.backends.flags(deterministic=True):
    backline.linalg.svd(a[:24, :24].astype(np.float64))
np.linalg.solve(np.eye(40) + 1, np.ones(40))
subprocess.run([sys.executable, "-c", "0"], check=True)
print("arguments:", *sys.argv[1:])
"""


def operation(op: str, library: str, count: int, seconds: float, **more: Any) -> dict[str, Any]:
    found = {
        "op": op, "problem": f"{op} f32 96x96 96x96", "family": "matmul", "device": "cpu", "library": library, "algorithm": "gemm",
        "problems": 1, "threads": 2, "count": count, "seconds": seconds, "least": seconds / count / 2, "planned": 1, "bytes": 110592,
        "flops": 1769472.0, "gflops": 1769472.0 * count / seconds * 1e-9, "requested": "f32", "precision": "f32", "unit": "f32",
        "level": "run", "basis": "measured", "asked": "off", "trial": False, "fallbacks": [],
        "switches": {"benchmark": {"value": "True", "origin": "scope (job.py:8, backends.flags)"}},
    }  # fmt: skip
    return found | more


def sample() -> dict[str, Any]:
    """A report such as `report_of` returns."""
    record = {
        "problem": "matmul f32 96x96 96x96", "threads": 2, "medians": {"mkl.gemm@n": 2e-5, "openblas.gemm@1": 4e-5},
        "minima": {"mkl.gemm@n": 1.8e-5, "openblas.gemm@1": 3e-5}, "runs": {"mkl.gemm@n": 40, "openblas.gemm@1": 30},
        "errors": {"mkl.gemm@n": 1e-7, "openblas.gemm@1": None}, "rejected": {}, "created": "2026-11-23T03:00:00.000000Z", "disturbed": "",
        "chosen": "mkl.gemm@n", "versions": {"mkl": "2026.2"},
    }  # fmt: skip
    return {
        "kind": KIND, "schema": SCHEMA, "created": "2026-11-23T03:00:00Z", "command": ["job.py", "--size", "3"], "folder": "/home/me",
        "status": 3, "ending": "with status 3", "backline": "0.1", "python": "3.12.1", "executable": "/usr/bin/python3", "numpy": "2.4.0",
        "fingerprint": "a-machine-2c-00000000", "variables": {"OMP_NUM_THREADS": "2"}, "ranking": {"shipped for": "intel-amx-2c"},
        "machine": {
            "processor": "A processor", "capability": "AVX512", "cores": 2, "usable": 2, "quota": 1.5, "l2": 2 << 20, "l3": 1 << 25,
            "memory": 8 << 30, "system": "Linux", "libc": "glibc 2.36", "architecture": "x86_64",
        },
        "peak": {
            "gflops": {"f32": 200.0, "f64": 100.0}, "gigabytes": 20.0, "by": {"f32": "mkl.gemm@n", "f64": "mkl.gemm@n", "copy": "numpy.copy@n"},
            "threads": 2, "created": "2026-11-23T03:00:00.000000Z", "disturbed": "",
        },
        "determinism": {"rows": [["same bits", "from run to run"]], "difference": [["cause", "a sum in another order"]], "failed": ""},
        "seconds": 1.5, "complete": True, "error": "ValueError: no", "disturbed": "", "processes": 1,
        "notes": ["The program ended with status 3: ValueError: no."],
        "exchanged": [{"package": "numpy", "routine": "dgesv", "sizes": "n=40 nrhs=1", "library": "numpy", "count": 1, "seconds": 1e-4, "least": 1e-4, "rounded": False}],
        "mapped": [{
            "family": "mkl", "kind": "blas", "path": "/opt/a folder/that/is/rather/long/lib/libmkl_core.so.2", "owner": "mkl", "version": "2026.2",
            "integers": "LP64", "threading": "openmp", "threads": 2, "evidence": "name", "serves_openmp": False, "deleted": False,
            "release": "2026.2", "scope": "", "sha256": "0123456789abcdef" * 4, "bytes": 1000,
        }],
        "conflicts": [{"kind": "two OpenMP runtimes", "severity": "slow", "meaning": "both wait", "remedy": "one of them", "files": ["/lib/libgomp.so.1"]}],
        "switches": [{"name": "fallback", "text": "warn", "kind": "environment", "where": "BACKLINE_FALLBACK"}],
        "libraries": [{"name": "mkl", "title": "MKL", "version": "1.0", "path": "/opt/lib/libmkl_rt.so.2"}],
        "operations": [
            operation("matmul", "mkl", 300, 0.9, fallbacks=["prefer: blis is not there"]),
            operation("linalg.svd", "openblas", 2, 0.1, flops=0.0, gflops=None, precision="f64", level="off"),
        ],
        "records": [record], "plans": {"hits": 300, "misses": 2}, "threads": 2,
        "refusals": [{"library": "blis", "algorithm": "", "reason": "no file of this name was found", "switch": "", "problems": ["matmul f32 96x96 96x96"]}],
    }  # fmt: skip
