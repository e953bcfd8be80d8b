"""Bindings that compute: they do with NumPy what the true library would do with the very arguments of a call.

Addresses, leading dimensions, operations, steps and scalars are taken as they come, so a wrong one gives a wrong result, or the
error that the library would return.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import ml_dtypes
import numpy as np

from fakes.recording import Recording, error

TYPES = {2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16), 0: np.dtype(np.float32), 1: np.dtype(np.float64),
         4: np.dtype(np.complex64), 5: np.dtype(np.complex128), 3: np.dtype(np.int8), 10: np.dtype(np.int32),
         28: np.dtype(ml_dtypes.float8_e4m3fn), 29: np.dtype(ml_dtypes.float8_e5m2)}  # fmt: skip
ALLOWED = {64: {2}, 68: {2, 14, 0, 4}, 77: {0, 4}, 78: {0}, 70: {1, 5}}  # compute type -> types of matrices
EIGHT_BITS = {3: 72, 28: 68, 29: 68}  # type of matrices -> compute type


def memory(address: int, nbytes: int) -> Any:
    return (ctypes.c_char * nbytes).from_address(address)


def matrix(address: int, rows: int, cols: int, ld: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Memory as a matrix whose columns are contiguous."""
    size = dtype.itemsize
    return np.ndarray((rows, cols), dtype, memory(address, ((cols - 1) * ld + rows) * size), strides=(size, ld * size))


def scalar(address: int, compute: int, kind: int) -> Any:
    """alpha or beta: its type follows the compute type, and whether the matrices are complex."""
    dtype = np.dtype(np.float16) if compute == 64 else TYPES[kind] if kind in (1, 4, 5) else np.dtype(np.float32)
    return np.frombuffer(memory(address, dtype.itemsize), dtype)[0]


def wide(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def applied(op: int, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return wide(x) if op == 0 else wide(x).T if op == 1 else wide(x).conj().T


def tf32(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32, or its pairs, rounded to the 10 bits of mantissa that tensor cores read."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(x.dtype)


def sums_in_half(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], block: int = 16) -> np.ndarray[Any, Any]:
    """A product whose sums are rounded to float16 after every `block` terms."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    for k in range(0, a.shape[1], block):
        total = (total + a[:, k : k + block] @ b[k : k + block]).astype(np.float16)
    return total.astype(np.float64)


def product(op_a: int, a: Any, op_b: int, b: Any, alpha: Any, beta: Any, c: Any, precision: str = "") -> np.ndarray[Any, Any]:
    if precision == "tf32":
        a, b = tf32(a), tf32(b)
    left, right = applied(op_a, a), applied(op_b, b)
    total = alpha * (sums_in_half(left, right) if precision == "f16" else left @ right)
    return total + beta * wide(c) if beta != 0 else total  # what C holds does not count then, be it NaN


class Blas(Recording):
    """``nvmath.bindings.cublas``: the gemm routines compute; handles, streams, workspaces and modes are looked after."""

    def __init__(self, module: Any, **more: Any) -> None:
        super().__init__(module, **more)
        self.state: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(0x100)
        for bits in ("", "_64"):
            self.answers[f"gemm_ex{bits}"] = self.gemm
            self.answers[f"gemm_strided_batched_ex{bits}"] = self.strided
            self.answers[f"gemm_batched_ex{bits}"] = self.pointers
            self.answers[f"gemm_grouped_batched_ex{bits}"] = self.grouped
        self.answers |= {
            "create": self.made, "set_stream": self.stream, "set_workspace": self.workspace,
            "set_math_mode": lambda handle, mode: self.state[handle].update(mode=mode),
            "get_math_mode": lambda handle: self.state[handle]["mode"], "destroy": lambda handle: self.state.pop(handle, None),
            "set_emulation_strategy": lambda handle, emulation_strategy: self.state[handle].update(strategy=emulation_strategy),
            "set_atomics_mode": lambda handle, mode: self.state[handle].update(atomics=mode),
            "get_atomics_mode": lambda handle: self.state[handle].get("atomics", 0),
        }  # fmt: skip

    def made(self) -> int:
        handle = next(self._numbers)
        self.state[handle] = {"mode": 0, "strategy": 0}
        return handle

    def stream(self, handle: int, stream_id: int) -> None:
        self.state[handle].update(stream=stream_id, workspace=None)

    def workspace(self, handle: int, workspace: int, workspace_size_in_bytes: int) -> None:
        if workspace % 256:
            raise error(self.module.cuBLASError, "INVALID_VALUE (7)")
        self.state[handle]["workspace"] = workspace, workspace_size_in_bytes

    def gemm(self, **given: Any) -> None:
        self.one(given, given["a"], given["b"], given["c"])

    def strided(self, **given: Any) -> None:
        sizes = {each: TYPES[given[f"{each}type"]].itemsize for each in "abc"}
        for i in range(given["batch_count"]):
            self.one(given, *(given[each] + i * given[f"stride_{each}"] * sizes[each] for each in "abc"))

    def pointers(self, **given: Any) -> None:
        tables = [np.frombuffer(memory(given[f"{each}array"], 8 * given["batch_count"]), np.int64) for each in "abc"]
        for addresses in zip(*tables, strict=True):
            self.one(given, *map(int, addresses))

    def grouped(self, **g: Any) -> None:
        """Groups of products of one size each; sizes on the host, addresses on the device."""
        count = g["group_count"]
        tables = [np.frombuffer(memory(g[f"{each}array"], 8 * sum(g["group_size"])), np.int64) for each in "abc"]
        sizes = ("transa", "transb", "m", "n", "k", "lda", "ldb", "ldc")
        assert all(len(g[f"{name}_array"]) == count for name in sizes) and len(g["group_size"]) == count
        scalar_bytes = 8 if g["compute_type"] == 70 else 4
        first = 0
        for i in range(count):
            given = {name: g[f"{name}_array"][i] for name in sizes}
            given |= {name: g[name] for name in ("handle", "atype", "btype", "ctype", "compute_type")}
            given |= {name: g[f"{name}_array"] + i * scalar_bytes for name in ("alpha", "beta")}
            for j in range(first, first + g["group_size"][i]):
                assert all(table[j] % 16 == 0 for table in tables)
                self.one(given, *(int(table[j]) for table in tables))
            first += g["group_size"][i]

    def one(self, g: dict[str, Any], a: int, b: int, c: int) -> None:
        state = self.state[g["handle"]]
        assert state["workspace"] is not None, "setting the stream took the workspace away"
        if state["workspace"][1]:
            memory(*state["workspace"])[: min(state["workspace"][1], 64)] = b"\xa5" * min(state["workspace"][1], 64)
        m, n, k = g["m"], g["n"], g["k"]
        shape_a, shape_b = ((m, k) if g["transa"] == 0 else (k, m)), ((k, n) if g["transb"] == 0 else (n, k))
        if min(m, n, k) < 0 or g["lda"] < shape_a[0] or g["ldb"] < shape_b[0] or g["ldc"] < m:
            raise error(self.module.cuBLASError, "INVALID_VALUE (7)")
        compute, kind = g["compute_type"], g["ctype"]
        given = {g["atype"], g["btype"]}
        # Products of halves may be left in float32.
        legal = given <= ALLOWED[compute] and len(given) == 1 and (given == {kind} or (compute == 68 and kind == 0 and given <= {2, 14}))
        if not legal:
            raise error(self.module.cuBLASError, "NOT_SUPPORTED (15)")
        dtype = TYPES[g["atype"]]
        out = matrix(c, m, n, g["ldc"], TYPES[kind])
        left, right = matrix(a, *shape_a, g["lda"], dtype), matrix(b, *shape_b, g["ldb"], dtype)
        alpha, beta = (scalar(g[each], compute, kind) for each in ("alpha", "beta"))
        precision = "tf32" if (state["mode"] == 3 or compute == 77) and kind in (0, 4) else "f16" if compute == 64 else ""
        out[...] = product(g["transa"], left, g["transb"], right, alpha, beta, out, precision).astype(out.dtype)


class Lt(Recording):
    """``nvmath.bindings.cublasLt``: descriptions keep what is set, the heuristics name one algorithm, and `matmul` computes.

    Attributes
    ----------
    refuses
        State of the first algorithms that the heuristics name; the last one works. With None it names none.
    works
        How many of the last ones work.
    """

    def __init__(self, module: Any, **more: Any) -> None:
        super().__init__(module, **more)
        self.refuses: list[int] | None = []
        self.works = 1
        self.workspace = 4096
        self.things: dict[int, dict[int, Any]] = {}
        self.asked: list[dict[str, int]] = []
        made = ("matmul_desc_create", "matrix_layout_create", "matmul_preference_create")
        self.answers |= dict.fromkeys(made, self.thing)
        self.answers |= {"create": lambda: 0x77, "matmul": self.multiply, "matmul_algo_get_heuristic": self.heuristic,
                         "matmul_algo_config_get_attribute": self.configured}  # fmt: skip
        self.answers["matmul_desc_set_attribute"] = lambda **g: self.keep(g["matmul_desc"], self.module.get_matmul_desc_attribute_dtype, **g)
        self.answers["matrix_layout_set_attribute"] = lambda **g: self.keep(g["mat_layout"], self.module.get_matrix_layout_attribute_dtype, **g)
        self.answers["matmul_preference_set_attribute"] = lambda **g: self.keep(
            g["pref"], self.module.get_matmul_preference_attribute_dtype, **g
        )
        for name in ("matmul_desc_destroy", "matrix_layout_destroy", "matmul_preference_destroy"):
            self.answers[name] = lambda **g: self.things.pop(*g.values())

    def thing(self, **given: Any) -> int:
        number = 0x200 + len(self.log)
        self.things[number] = {"made": given}
        return number

    def keep(self, of: int, kind: Any, attr: int, buf: int, size_in_bytes: int, **_: Any) -> None:
        dtype = np.dtype(kind(attr))
        assert size_in_bytes == dtype.itemsize, "the size that the attribute has"
        self.things[of][int(attr)] = np.frombuffer(memory(buf, size_in_bytes), dtype)[0].item()

    def heuristic(self, preference: int, heuristic_results_array: int, return_algo_count: int, requested_algo_count: int, **_: Any) -> None:
        states = [] if self.refuses is None else [*self.refuses, *(0,) * self.works]
        assert len(states) <= requested_algo_count
        dtype = self.module.matmul_heuristic_result_dtype
        mask = self.things[preference].get(int(self.module.MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK), 7)
        results = np.frombuffer(memory(heuristic_results_array, len(states) * dtype.itemsize), dtype) if states else []
        for i, state in enumerate(states):
            results[i]["algo"]["data_"] = i + 1, 2 if mask else 1, mask & 2, 0, 0, 0, 0, 0
            results[i]["workspace_size"], results[i]["state"] = self.workspace, state
        np.frombuffer(memory(return_algo_count, 4), np.int32)[0] = len(states)
        names = {int(value): name for name, value in self.module.MatmulPreferenceAttribute.__members__.items()}
        self.asked.append({names[at]: value for at, value in self.things[preference].items() if isinstance(at, int)})

    def configured(self, algo: int, attr: int, buf: int, size_in_bytes: int, size_written: int) -> None:
        """Tells how often an algorithm splits k, and how it adds up the parts: as far as the preference let it."""
        kind = self.module.MatmulAlgoConfigAttribute
        data = np.frombuffer(memory(algo, 64), np.uint64)
        at, dtype = {kind.SPLITK_NUM: (1, np.int32), kind.REDUCTION_SCHEME: (2, np.uint32)}[kind(attr)]
        np.frombuffer(memory(buf, size_in_bytes), dtype)[0] = data[at]
        np.frombuffer(memory(size_written, 8), np.uint64)[0] = size_in_bytes

    def multiply(self, **g: Any) -> None:
        attribute, layout = self.module.MatmulDescAttribute, self.module.MatrixLayoutAttribute
        description = self.things[g["compute_desc"]]
        compute = description["made"]["compute_type"]
        parts = {each: self.things[g[f"{each}desc"]] for each in "abd"}
        kind = parts["d"]["made"]["type"]
        state = np.frombuffer(memory(g["algo"], 80), np.uint8)
        assert state[72:76].view(np.int32)[0] == 0 and state[:8].view(np.uint64)[0] > 0, "an algorithm that works"
        if parts["a"]["made"]["type"] in EIGHT_BITS:
            self.multiply_eight_bits(g, description, parts)
            return
        dtype = TYPES[kind]
        scale = TYPES[description["made"]["scale_type"]]
        alpha, beta = (np.frombuffer(memory(g[each], scale.itemsize), scale)[0] for each in ("alpha", "beta"))
        assert kind in ALLOWED[compute] and scale == (np.float16 if compute == 64 else dtype if kind in (1, 4, 5) else np.float32)
        for i in range(parts["d"].get(int(layout.BATCH_COUNT), 1)):
            matrices = {}
            for each, part in parts.items():
                made, step = part["made"], part.get(int(layout.STRIDED_BATCH_OFFSET), 0)
                assert made["ld"] >= made["rows"]
                matrices[each] = matrix(g[each] + i * step * dtype.itemsize, made["rows"], made["cols"], made["ld"], dtype)
            op_a, op_b = (description.get(int(getattr(attribute, f"TRANS{each}")), 0) for each in "AB")
            precision = {77: "tf32", 64: "f16"}.get(compute, "")
            total = product(op_a, matrices["a"], op_b, matrices["b"], alpha, beta, matrices["d"], precision)
            epilogue = description.get(int(attribute.EPILOGUE), 1)
            if epilogue & 4:
                address = description[int(attribute.BIAS_POINTER)]
                total = total + wide(np.frombuffer(memory(address, total.shape[0] * dtype.itemsize), dtype))[:, None]
            if epilogue & 2:
                total = np.maximum(total, 0)
            if epilogue & 32:  # by the tanh formula
                total = total * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)))
            matrices["d"][...] = total.astype(dtype)

    def multiply_eight_bits(self, g: dict[str, Any], description: dict[int, Any], parts: dict[str, Any]) -> None:
        """A product of float8 or int8: the layout, sizes and addresses that tensor cores take, scales, and a bias."""
        attribute = self.module.MatmulDescAttribute
        made = {each: part["made"] for each, part in parts.items()}
        compute, whole = description["made"]["compute_type"], made["a"]["type"] == 3
        assert EIGHT_BITS[made["a"]["type"]] == EIGHT_BITS[made["b"]["type"]] == compute
        assert (made["a"]["type"], made["b"]["type"]) != (29, 29), "no product of two e5m2"
        assert description["made"]["scale_type"] == (10 if whole else 0) and made["d"]["type"] in ({10} if whole else {0, 2, 14})
        number = np.dtype(np.int32 if whole else np.float32)
        alpha, beta = (np.frombuffer(memory(g[each], 4), number)[0] for each in ("alpha", "beta"))
        assert (alpha, beta) == (1, 0)
        assert description.get(int(attribute.TRANSA), 0) == 1 and description.get(int(attribute.TRANSB), 0) == 0, "TN alone"
        multiple = 4 if whole else 16
        assert all(made[each][size] % multiple == 0 for each in "ab" for size in ("rows", "ld")) and made["d"]["rows"] % multiple == 0
        assert all(g[each] % 16 == 0 for each in "abd")
        a, b, d = (matrix(g[each], m["rows"], m["cols"], m["ld"], TYPES[m["type"]]) for each, m in made.items())
        if whole:
            d[...] = (a.T.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
            return
        with np.errstate(all="ignore"):
            total = a.T.astype(np.float64) @ b.astype(np.float64)
            modes = [description.get(int(getattr(attribute, f"{each}_SCALE_MODE")), 0) for each in "AB"]
            assert modes in ([0, 0], [3, 3])
            for each, shape in (("A", (-1, 1)), ("B", (1, -1))):
                address = description[int(getattr(attribute, f"{each}_SCALE_POINTER"))]
                assert address % 16 == 0
                count = 1 if modes[0] == 0 else total.shape["AB".index(each)]
                total = total * np.frombuffer(memory(address, 4 * count), np.float32).astype(np.float64).reshape(shape)
            if description.get(int(attribute.EPILOGUE), 1) & 4:
                of = description[int(attribute.BIAS_DATA_TYPE)]
                assert of == made["d"]["type"] != 0
                dtype = TYPES[of]
                bias = np.frombuffer(memory(description[int(attribute.BIAS_POINTER)], total.shape[0] * dtype.itemsize), dtype)
                total = total + wide(bias)[:, None]
            d[...] = total.astype(d.dtype)
