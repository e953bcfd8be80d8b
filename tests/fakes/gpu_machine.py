"""All fakes at once: a machine on which every operation on CUDA arrays finds its library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cudnn as real_cudnn
import pytest
from nvmath.bindings import cublas, cublasLt, cufft, cusolver, cusolverDn, cusparseLt

from backline.libraries import devices, presence
from fakes import cudnn_rnn
from fakes.computing import Blas, Lt
from fakes.cupy_standin import H100
from fakes.graphs import USUAL, Cudnn
from fakes.lapack_numbers import Numbers
from fakes.recording import Recording
from fakes.solver_machine import KernelCuPy
from fakes.sparsity import Sparsity
from fakes.transforms import Transforms
from fakes.triton_kernels import played

VERSIONS = {"cublas": "13.1.0", "cublaslt": "13.1.0", "cusolver": "12.0.1", "cufft": "12.0.0", "cudnn": 91900, "cusparselt": 800}


LARGEST = 37  # algorithms of cuSPARSELt


def _property(name: str, type: int = 0, property_type: int = 0) -> int:
    """A part of a library's version."""
    version, part = VERSIONS[name], type or property_type
    return int(version.split(".")[part]) if isinstance(version, str) else (version // 1000, version % 1000 // 100, version % 100)[part]


class Described:
    """An H100 as cuDNN describes it; only what is looked at."""

    def serialize(self) -> str:
        name, number = H100["name"].decode(), 100 * H100["major"] + 10 * H100["minor"]
        told = {"deviceName": name, "deviceVer": number, "multiProcessorCount": H100["multiProcessorCount"]}
        return json.dumps(told | {"l2CacheSize": H100["l2CacheSize"], "totalGlobalMem": H100["totalGlobalMem"]})


class _Pool:
    """The pool of memory: it keeps nothing."""

    def free_bytes(self) -> int:
        return 0

    used_bytes = total_bytes = free_bytes

    def free_all_blocks(self) -> None:
        pass


class GpuMachine:
    """Fakes that share one log.

    Attributes
    ----------
    numbers
        What computes linear algebra.
    log
        Calls, as pairs of name and arguments.
    """

    def __init__(self, folder: Path) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.numbers = Numbers()
        self.cupy = KernelCuPy(folder, self.log)
        self.pool = _Pool()
        self.cupy.get_default_memory_pool = lambda: self.pool
        self.blas = Blas(cublas, log=self.log)
        self.blas.answers |= {name: answer for name, answer in self.numbers.blas.items() if name != "create"}
        self.lt = Lt(cublasLt, log=self.log)
        self.solver = Recording(cusolverDn, self.numbers.solver, self.log)
        self.cudnn = Cudnn(real_cudnn, self.log)
        self.cudnn.plans = list(USUAL)
        self.fft = Transforms(cufft, self.log)
        self.sparse = Sparsity(cusparseLt, self.log)
        self.cusolver = Recording(cusolver, log=self.log)
        told = {"cublas": self.blas, "cublaslt": self.lt, "cusolver": self.cusolver, "cufft": self.fft, "cusparselt": self.sparse}
        for name, fake in told.items():
            fake.answers["get_property"] = partial(_property, name)
        # They have no signature to look at.
        self.cudnn.backend_version = lambda: VERSIONS["cudnn"]  # type: ignore[attr-defined]  # of the module that it stands for
        self.cudnn.create_device_properties = lambda of: Described()  # type: ignore[attr-defined]  # likewise
        self.sparse.largest = LARGEST

    def modules(self) -> dict[str, Any]:
        return {
            "cupy": self.cupy, "cublas": self.blas, "cublasLt": self.lt, "cusolverDn": self.solver, "cusolver": self.cusolver,
            "cufft": self.fft, "cudnn": self.cudnn, "cudnn_file": cudnn_rnn.library(), "cusparseLt": self.sparse,
        }  # fmt: skip

    @contextmanager
    def without_libraries(self) -> Iterator[None]:
        """Answers what is asked of files that are not there: versions."""
        with pytest.MonkeyPatch.context() as patch:
            for name, version in VERSIONS.items():
                patch.setattr(presence.presence(name), "_found", presence.Found("", (), f"/stand-in/{name}.so", {"version": version}))
            driver = presence.Found("", (), "/stand-in/libcuda.so.1", {"version": 13000, "devices": 2})
            patch.setattr(presence.presence("cuda"), "_found", driver)
            patch.setattr(devices, "_capabilities", lambda path: ((9, 0), (9, 0)))
            patch.setattr(presence, "max_alg_id", lambda: LARGEST)
            with played(self.cupy, self.cupy._folder):
                yield
