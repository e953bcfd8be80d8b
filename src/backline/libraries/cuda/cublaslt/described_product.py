"""Descriptions of products for cuBLASLt, and the algorithms that its heuristics name for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import LibraryFailed
from ....problems import Problem
from ..common import bindings
from ..common.descriptors import Descriptors
from ..common.device_plan import DevicePlan, prepared
from ..common.streams import Handles, current_stream

__all__ = ["ASKED", "DescribedProduct", "Found", "Preference", "described_plan"]

ASKED = 8  # algorithms asked of the heuristics


@dataclass(frozen=True, slots=True)
class Found:
    """An algorithm of the heuristics: the address of its description, and its workspace. Both keep `results` alive."""

    results: np.ndarray[Any, Any]
    address: int
    workspace: int


@dataclass(frozen=True, slots=True)
class Preference:
    """Properties of the algorithms that the heuristics are asked for."""

    alignment: int  # bytes that the addresses of all matrices are multiples of
    workspace: int  # most bytes that one may take
    mask: int  # how the parts of a sum that is split along k may be added up
    proposal: int = 0  # number of the algorithm among those that work, the first is what the library recommends


_handles = Handles(lambda module: module.create())


class DescribedProduct:
    """The library's descriptions of one product and its matrices, on one device; they are freed with this.

    Attributes
    ----------
    matrices
        Addresses of the layouts of the first and second factor and of the result.
    """

    def __init__(self, module: Any, device: int, compute: int, scale: int) -> None:
        self.module, self.device = module, device
        self._held = Descriptors()
        self.product = self._held.add(int(module.matmul_desc_create(compute, scale)), module.matmul_desc_destroy)
        self.matrices: tuple[int, ...] = ()

    def set(self, name: str, kind: type[np.generic], value: int) -> None:
        """Sets an attribute of the product: "EPILOGUE"."""
        lt = self.module
        _set(lt.matmul_desc_set_attribute, self.product, lt.MatmulDescAttribute[name], kind, value)

    def layout(self, dtype: int, rows: int, cols: int, ld: int, batch: int = 1, step: int = 0) -> None:
        """Adds the layout of the next matrix; `step` is the number of elements from one item of a batch to the next."""
        lt = self.module
        made = self._held.add(int(lt.matrix_layout_create(dtype, rows, cols, ld)), lt.matrix_layout_destroy)
        if batch > 1:
            attribute = lt.MatrixLayoutAttribute
            _set(lt.matrix_layout_set_attribute, made, attribute.BATCH_COUNT, np.int32, batch)
            _set(lt.matrix_layout_set_attribute, made, attribute.STRIDED_BATCH_OFFSET, np.int64, step)
        self.matrices = (*self.matrices, made)

    def find(self, wanted: Preference, key: str) -> Found:
        """Returns an algorithm that works; `key` names the Problem for the error where there is none."""
        lt = self.module
        preference = int(lt.matmul_preference_create())
        try:
            return self._ask(preference, wanted, key)
        finally:
            lt.matmul_preference_destroy(preference)

    def _ask(self, preference: int, wanted: Preference, key: str) -> Found:
        lt = self.module
        attribute, prefer = lt.MatmulPreferenceAttribute, lt.matmul_preference_set_attribute
        _set(prefer, preference, attribute.MAX_WORKSPACE_BYTES, np.uint64, wanted.workspace)
        _set(prefer, preference, attribute.REDUCTION_SCHEME_MASK, np.uint32, wanted.mask)
        for matrix in "ABCD":
            _set(prefer, preference, getattr(attribute, f"MIN_ALIGNMENT_{matrix}_BYTES"), np.uint32, wanted.alignment)
        results, count = np.zeros(ASKED, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        first, second, target = self.matrices
        handle = _handles.get(lt, self.device)
        said = ""
        try:
            lt.matmul_algo_get_heuristic(
                handle, self.product, first, second, target, target, preference, ASKED, results.ctypes.data, count.ctypes.data
            )
        except lt.cuBLASLtError as error:  # that there is none is an error, to the library
            count[0], said = 0, f" ({error})"
        working = [i for i in range(int(count[0])) if results[i]["state"] == 0]
        if wanted.proposal < len(working):
            i = working[wanted.proposal]
            return Found(results, results.ctypes.data + i * results.itemsize, int(results[i]["workspace_size"]))
        what = (
            "none of which works" if not working else f"{len(working)} of which work; number {wanted.proposal + 1} was asked for"
        )
        raise _no_algorithm(key, wanted, f"its heuristics name {int(count[0])}, {what}{said}")

    def run(self, found: Found, memory: int, scalars: tuple[int, int], a: int, b: int, d: int) -> None:
        """Enqueues the product on CuPy's current stream: of the addresses of alpha and beta, and of the matrices."""
        one, two, three = self.matrices
        alpha, beta = scalars
        handle = _handles.get(self.module, self.device)
        self.module.matmul(
            handle, self.product, alpha, a, one, b, two, beta, d, three, d, three, found.address, memory, found.workspace,
            current_stream(),
        )  # fmt: skip


def _no_algorithm(key: str, wanted: Preference, why: str) -> LibraryFailed:
    """The error for a product that cuBLASLt has no algorithm for."""
    return LibraryFailed(
        f"cuBLASLt has no algorithm for {key}",
        cause=f"{why}, for addresses that are multiples of {wanted.alignment} bytes and at most {wanted.workspace} of workspace",
    )


def _set(function: Callable[..., Any], of: int, attribute: int, kind: type[np.generic], value: int) -> None:
    """Set an attribute, which a function takes as the address and the size of a value."""
    buffer = np.array([value], kind)
    function(of, attribute, buffer.ctypes.data, buffer.nbytes)


def described_plan(problem: Problem, make: Callable[[Any], Callable[..., Any]]) -> DevicePlan:
    """Returns the Plan of the function that `make` returns for the binding, while the Problem's device is the current one."""
    module = bindings.cublasLt()
    try:
        return prepared(problem, lambda: make(module), "cuBLASLt matmul", (module.cuBLASLtError,))
    except module.cuBLASLtError as error:
        raise LibraryFailed(f"cuBLASLt cannot describe {problem.key}", cause=f"{type(error).__name__}: {error}") from error
