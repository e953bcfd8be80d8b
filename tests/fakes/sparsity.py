"""A cuSPARSELt without a device: it checks each call as the library does, and computes with what lies at the addresses."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import ml_dtypes
import numpy as np

from backline.libraries.reference import reference_sparse
from backline.problems import Operand
from backline.problems.sparse_problem import SparseProblem
from fakes.recording import Recording, error

TYPES = {2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16), 3: np.dtype(np.int8), 10: np.dtype(np.int32)}
SPARSE = {2: 16, 14: 16, 3: 32}
DENSE = {2: 8, 14: 8, 3: 16, 10: 4}
FREED = ("mat_descriptor_destroy", "matmul_descriptor_destroy", "matmul_alg_selection_destroy", "matmul_plan_destroy")


class Sparsity(Recording):
    """``nvmath.bindings.cusparseLt``, computing.

    Attributes
    ----------
    things
        Address -> what stands there: descriptors, algorithms, plans.
    largest
        How many algorithms there are.
    fastest
        What a search finds: algorithm, parts, mode.
    fails
        Name of a function -> what it fails with.
    """

    def __init__(self, module: Any, log: list[tuple[str, dict[str, Any]]] | None = None) -> None:
        super().__init__(module, log=log)
        self.things: dict[int, dict[str, Any]] = {}
        self.largest = 37
        self.fastest = (7, 3, 2)
        self.workspace = 1000
        self.fails: dict[str, str] = {}
        self._next = itertools.count(0x1000, 16)
        names = (
            "init", "structured_descriptor_init", "dense_descriptor_init", "matmul_descriptor_init", "matmul_alg_selection_init",
            "matmul_alg_set_attribute", "matmul_alg_get_attribute", "matmul_plan_init", "matmul_get_workspace", "matmul",
            "matmul_search", "sp_mma_prune2", "sp_mma_prune_check2", "sp_mma_compressed_size2", "sp_mma_compress2",
        )  # fmt: skip
        for name in names:
            self.answers[name] = self._guarded(name, getattr(self, f"_{name}"))
        for name in FREED:
            self.answers[name] = lambda **given: self.things.pop(next(iter(given.values())))
        for name in ("get_matmul_alg_attribute_dtype",):
            self.answers[name] = getattr(module, name)

    def _guarded(self, name: str, function: Any) -> Any:
        def answer(**given: Any) -> Any:
            if name in self.fails:
                raise error(self.module.cuSPARSELtError, self.fails[name])
            if "handle" in given:
                assert self.things[given.pop("handle")]["kind"] == "handle"
            return function(**given)

        return answer

    def _new(self, kind: str, **facts: Any) -> int:
        address = next(self._next)
        self.things[address] = {"kind": kind, **facts}
        return address

    def left(self) -> list[str]:
        """Returns what was not freed, handles apart."""
        return [thing["kind"] for thing in self.things.values() if thing["kind"] != "handle"]

    def _init(self) -> int:
        return self._new("handle")

    def _structured_descriptor_init(self, sparsity: int, **given: int) -> int:
        assert sparsity == 0 and not any(given[side] % SPARSE[given["value_type"]] for side in ("rows", "cols", "ld"))
        assert given["alignment"] == 16 and given["order"] == 2
        return self._new("sparse", **given)

    def _dense_descriptor_init(self, **given: int) -> int:
        assert not any(given[side] % DENSE[given["value_type"]] for side in ("rows", "cols", "ld")) and given["ld"] >= given["cols"]
        assert given["alignment"] == 16 and given["order"] == 2
        return self._new("dense", **given)

    def _matmul_descriptor_init(self, op_a: int, op_b: int, mat_a: int, mat_b: int, mat_c: int, mat_d: int, compute_type: int) -> int:
        a, b, d = (self.things[address] for address in (mat_a, mat_b, mat_d))
        assert mat_c == mat_d and op_a == 0 and a["kind"] == "sparse" and b["kind"] == d["kind"] == "dense"
        k, n = (b["rows"], b["cols"]) if op_b == 0 else (b["cols"], b["rows"])
        assert (a["rows"], a["cols"], n) == (d["rows"], k, d["cols"]) and a["value_type"] == b["value_type"]
        whole = a["value_type"] == 3
        assert d["value_type"] == (10 if whole else a["value_type"])
        assert compute_type == (self.module.ComputeType.COMPUTE_32I if whole else self.module.ComputeType.COMPUTE_32F)
        assert op_b == 1 or not whole, "int8 takes the second operand column by column"
        return self._new("product", a=a, b=b, d=d, turned=op_b == 1)

    def _matmul_alg_selection_init(self, matmul_descr: int, alg: int) -> int:
        assert alg == 0
        return self._new("choice", product=self.things[matmul_descr], attributes={})

    def _matmul_alg_set_attribute(self, alg_selection: int, attribute: int, data: int, data_size: int) -> None:
        assert data_size == 4
        self.things[alg_selection]["attributes"][self.module.MatmulAlgAttribute(attribute).name] = ctypes.c_int32.from_address(data).value

    def _matmul_alg_get_attribute(self, alg_selection: int, attribute: int, data: int, data_size: int) -> None:
        assert data_size == 4
        name = self.module.MatmulAlgAttribute(attribute).name
        attributes = {"CONFIG_MAX_ID": self.largest} | self.things[alg_selection]["attributes"]
        ctypes.c_int32.from_address(data).value = attributes[name]

    def _matmul_plan_init(self, matmul_descr: int, alg_selection: int) -> int:
        return self._new("plan", product=self.things[matmul_descr], choice=self.things[alg_selection])

    def _matmul_get_workspace(self, plan: int) -> int:
        assert self.things[plan]["kind"] == "plan"
        return self.workspace

    def _matmul_search(self, plan: int, **given: int) -> None:
        self._matmul(plan, **given)
        names = ("CONFIG_ID", "SPLIT_K", "SPLIT_K_MODE")
        self.things[plan]["choice"]["attributes"] |= dict(zip(names, self.fastest, strict=True))

    def _matmul(
        self, plan: int, alpha: int, d_a: int, d_b: int, beta: int, d_c: int, d_d: int, workspace: int, streams: int, num_streams: int
    ) -> None:
        product = self.things[plan]["product"]
        a, b, d = product["a"], product["b"], product["d"]
        assert (ctypes.c_float.from_address(alpha).value, ctypes.c_float.from_address(beta).value) == (1, 0)
        assert d_c == d_d and num_streams == 1 and workspace and not any(address % 16 for address in (d_a, d_b, d_d))
        self.stream = ctypes.c_uint64.from_address(streams).value
        p = _problem("matmul", a)
        item = TYPES[a["value_type"]].itemsize
        values = _at(d_a, TYPES[a["value_type"]], a["rows"], a["cols"] // 2, a["cols"] // 2)
        metadata = _at(d_a + values.size * item, np.dtype(np.uint8), a["rows"], a["cols"] // 8, a["cols"] // 8)
        dense = np.zeros((a["rows"], a["cols"]), np.float64)
        np.put_along_axis(dense, reference_sparse.places(metadata, p.k), values.astype(np.float64), -1)
        second = _at(d_b, TYPES[b["value_type"]], b["rows"], b["cols"], b["ld"]).astype(np.float64)
        result = dense @ (second.T if product["turned"] else second)
        _at(d_d, TYPES[d["value_type"]], d["rows"], d["cols"], d["ld"])[...] = result

    def _sp_mma_prune2(
        self, sparse_mat_descr: int, is_sparse_a: int, op: int, d_in: int, d_out: int, prune_alg: int, stream: int
    ) -> None:
        a = self.things[sparse_mat_descr]
        assert is_sparse_a == 1 and op == 0 and prune_alg == self.module.PruneAlg.SPMMA_STRIP and not (d_in % 16 or d_out % 16)
        self.stream = stream
        source, target = (_at(address, TYPES[a["value_type"]], a["rows"], a["cols"], a["ld"]) for address in (d_in, d_out))
        target[...] = reference_sparse.plan(_problem("prune_2_4", a))(source)

    def _sp_mma_prune_check2(self, sparse_mat_descr: int, is_sparse_a: int, op: int, d_in: int, d_valid: int, stream: int) -> None:
        a = self.things[sparse_mat_descr]
        assert is_sparse_a == 1 and op == 0
        groups = _at(d_in, TYPES[a["value_type"]], a["rows"], a["cols"], a["ld"]).reshape(a["rows"], -1, 4)
        if (np.count_nonzero(groups != 0, axis=-1) > 2).any():  # the library writes no 0
            ctypes.c_int32.from_address(d_valid).value = 1

    def _sp_mma_compressed_size2(self, sparse_mat_descr: int) -> tuple[int, int]:
        a = self.things[sparse_mat_descr]
        size = a["rows"] * a["cols"]
        return size // 2 * TYPES[a["value_type"]].itemsize + size // 8, 512

    def _sp_mma_compress2(
        self, sparse_mat_descr: int, is_sparse_a: int, op: int, d_dense: int, d_compressed: int, d_compressed_buffer: int, stream: int
    ) -> None:
        a = self.things[sparse_mat_descr]
        assert is_sparse_a == 1 and op == 0 and d_compressed_buffer and not (d_dense % 16 or d_compressed % 16)
        dtype = TYPES[a["value_type"]]
        values, metadata = reference_sparse.plan(_problem("compress", a))(_at(d_dense, dtype, a["rows"], a["cols"], a["ld"]))
        _at(d_compressed, dtype, *values.shape, values.shape[1])[...] = values
        _at(d_compressed + values.nbytes, np.dtype(np.uint8), *metadata.shape, metadata.shape[1])[...] = metadata


def _problem(op: str, a: dict[str, Any]) -> SparseProblem:
    dtype = TYPES[a["value_type"]]
    operand = Operand("input", dtype, (a["rows"], a["cols"]), (a["cols"] * dtype.itemsize, dtype.itemsize))
    return SparseProblem(f"sparse.{op}", (operand,), (), m=a["rows"], k=a["cols"])


def _at(address: int, dtype: np.dtype[Any], rows: int, columns: int, leading: int) -> Any:
    memory = (ctypes.c_char * (((rows - 1) * leading + columns) * dtype.itemsize)).from_address(address)
    return np.ndarray((rows, columns), dtype, memory, 0, (leading * dtype.itemsize, dtype.itemsize))
