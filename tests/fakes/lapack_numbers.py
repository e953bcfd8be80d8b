"""The routines of cuSOLVER and cuBLAS, done by SciPy's LAPACK on the addresses they are given.

The memory is NumPy's. Leading dimensions, strides and tables of addresses are used as the true routines use them, workspaces are
written over, and what only has to be there is looked at: so a result that is right proves how the routines were called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

LETTERS = {"s": np.dtype("f4"), "d": np.dtype("f8"), "c": np.dtype("c8"), "z": np.dtype("c16")}
TYPES = {0: np.dtype("f4"), 1: np.dtype("f8"), 4: np.dtype("c8"), 5: np.dtype("c16")}
DEVICE, HOST, ELEMENTS = 96, 40, 8  # workspaces that are asked for


def flat(ptr: int, count: int, dtype: Any) -> Any:
    """Memory at an address."""
    assert ptr, "a null pointer"
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(ptr), dtype)


def matrix(ptr: int, rows: int, cols: int, ld: int, dtype: Any) -> Any:
    """A column-major matrix at an address."""
    assert ld >= max(rows, 1), f"leading dimension {ld} for {rows} rows"
    dtype = np.dtype(dtype)
    memory = flat(ptr, ld * (cols - 1) + rows, dtype)
    return np.lib.stride_tricks.as_strided(memory, (rows, cols), (dtype.itemsize, ld * dtype.itemsize))


def table(ptr: int, count: int) -> list[int]:
    return [int(v) for v in flat(ptr, count, np.int64)]


def lap(name: str, dtype: Any) -> Any:
    letter = next(k for k, v in LETTERS.items() if v == dtype)
    return getattr(lapack, letter + name)


def _spend(g: dict[str, Any]) -> None:
    """Write all over the workspaces."""
    if "buffer_on_device" in g:
        assert g["workspace_in_bytes_on_device"] == DEVICE and g["workspace_in_bytes_on_host"] == HOST
        flat(g["buffer_on_device"], DEVICE, np.uint8)[...] = 0xA5
        flat(g["buffer_on_host"], HOST, np.uint8)[...] = 0xA5


def _info(ptr: int, value: int) -> None:
    flat(ptr, 1, np.int32)[...] = value


def _spread(getrf: Any, a: Any) -> tuple[Any, Any, int]:
    lu, pivots, info = getrf(a)
    return lu, pivots + 1, info


class Numbers:
    """Answers for `Recording` fakes of both bindings.

    Attributes
    ----------
    unconverged
        Item -> info, of the Jacobi methods: what they say did not converge, leaving rubbish.
    """

    def __init__(self) -> None:
        self.unconverged: dict[int, int] = {}
        self.sweeps: dict[int, int] = {}  # parameters of gesvdj -> sweeps it may make
        self.handles = iter(range(1000, 9999))
        self.solver: dict[str, Callable[..., Any]] = {
            name: (lambda **g: next(self.handles)) for name in ("create", "create_params", "create_syevj_info", "create_gesvdj_info")
        }  # fmt: skip
        self.blas: dict[str, Callable[..., Any]] = {"create": lambda **g: next(self.handles)}
        for name in ("xgetrf", "xpotrf", "xgeqrf", "xsyevd", "xsyev_batched", "xgeev", "xgesvd"):
            self.solver[name] = getattr(self, name)
            self.solver[f"{name}_buffer_size"] = lambda **g: (DEVICE, HOST)
        self.solver |= {"xgetrs": self.xgetrs, "xpotrs": self.xpotrs}
        self.solver["xgesvdj_set_max_sweeps"] = lambda info, max_sweeps: self.sweeps.update({info: max_sweeps})
        for letter, dtype in LETTERS.items():
            self._of_type(letter, dtype)

    def _of_type(self, t: str, dtype: Any) -> None:
        complex_ = dtype.kind == "c"
        qr, apply, ev = ("ungqr", "unmqr", "heevj") if complex_ else ("orgqr", "ormqr", "syevj")
        sized = {qr: self.orgqr, apply: self.ormqr, ev: self.syevj, f"{ev}_batched": self.syevj, "gesvdj": self.gesvdj,
                 "gesvdj_batched": self.gesvdj, "gesvda_strided_batched": self.gesvda}  # fmt: skip
        for name, function in sized.items():
            self.solver[t + name] = partial(function, dtype)
            self.solver[f"{t}{name}_buffer_size"] = lambda **g: ELEMENTS
        self.solver[f"{t}potrf_batched"] = partial(self.potrf_batched, dtype)
        for name in ("getrf_batched", "getrs_batched", "trsm", "trsm_batched", "geqrf_batched", "gels_batched"):
            self.blas[t + name] = partial(getattr(self, name), dtype)

    # --- cuSOLVER, any type

    def xgetrf(self, **g: Any) -> None:
        _spend(g)
        dtype = TYPES[g["data_type_a"]]
        assert g["compute_type"] == g["data_type_a"]
        a = matrix(g["a"], g["m"], g["n"], g["lda"], dtype)
        lu, pivots, info = _spread(lap("getrf", dtype), a)
        a[...] = lu
        flat(g["ipiv"], len(pivots), np.int64)[...] = pivots
        _info(g["info"], info)

    def xgetrs(self, **g: Any) -> None:
        dtype = TYPES[g["data_type_a"]]
        a, b = matrix(g["a"], g["n"], g["n"], g["lda"], dtype), matrix(g["b"], g["n"], g["nrhs"], g["ldb"], dtype)
        pivots = flat(g["ipiv"], g["n"], np.int64)
        b[...] = lap("getrs", dtype)(a, pivots - 1, b, trans=g["trans"])[0]
        _info(g["info"], 0)

    def xpotrf(self, **g: Any) -> None:
        _spend(g)
        dtype = TYPES[g["data_type_a"]]
        a = matrix(g["a"], g["n"], g["n"], g["lda"], dtype)
        _info(g["info"], self._potrf(a, g["uplo"], dtype))

    @staticmethod
    def _potrf(a: Any, uplo: int, dtype: Any) -> int:
        factor, info = lap("potrf", dtype)(a, lower=1 - uplo, clean=0)
        a[...] = factor
        a[np.triu_indices(len(a), 1) if uplo == 0 else np.tril_indices(len(a), -1)] = np.nan  # the batched routine computes there
        return int(info)

    def xpotrs(self, **g: Any) -> None:
        dtype = TYPES[g["data_type_a"]]
        a, b = matrix(g["a"], g["n"], g["n"], g["lda"], dtype), matrix(g["b"], g["n"], g["nrhs"], g["ldb"], dtype)
        b[...] = lap("potrs", dtype)(a, b, lower=1 - g["uplo"])[0]
        _info(g["info"], 0)

    def xgeqrf(self, **g: Any) -> None:
        _spend(g)
        dtype = TYPES[g["data_type_a"]]
        a = matrix(g["a"], g["m"], g["n"], g["lda"], dtype)
        factored, tau, _, info = lap("geqrf", dtype)(a)
        a[...] = factored
        flat(g["tau"], len(tau), dtype)[...] = tau
        _info(g["info"], info)

    def xsyevd(self, **g: Any) -> None:
        _spend(g)
        dtype, real = TYPES[g["data_type_a"]], TYPES[g["data_type_w"]]
        a = matrix(g["a"], g["n"], g["n"], g["lda"], dtype)
        self._symmetric(a, flat(g["w"], g["n"], real), g["jobz"], g["uplo"])
        _info(g["info"], 0)

    def xsyev_batched(self, **g: Any) -> None:
        size = TYPES[g["data_type_a"]].itemsize, TYPES[g["data_type_w"]].itemsize
        count = g.pop("batch_size")
        for i in range(count):
            at = {"a": g["a"] + i * g["n"] * g["lda"] * size[0], "w": g["w"] + i * g["n"] * size[1], "info": g["info"] + 4 * i}
            self.xsyevd(**{**g, **at})

    @staticmethod
    def _symmetric(a: Any, w: Any, vectors: int, uplo: int) -> None:
        values, found = np.linalg.eigh(a, "UL"[1 - uplo])
        w[...] = values
        a[...] = found if vectors else np.nan

    def xgeev(self, **g: Any) -> None:
        _spend(g)
        dtype, n = TYPES[g["data_type_a"]], g["n"]
        assert g["jobvl"] == 0 and TYPES[g["data_type_w"]].kind == "c" and g["data_type_vr"] == g["data_type_a"]
        a = matrix(g["a"], n, n, g["lda"], dtype)
        found = lap("geev", dtype)(a, compute_vl=0, compute_vr=g["jobvr"])
        values = found[0] if dtype.kind == "c" else found[0] + 1j * found[1]
        flat(g["w"], n, TYPES[g["data_type_w"]])[...] = values
        if g["jobvr"]:
            matrix(g["vr"], n, n, g["ldvr"], dtype)[...] = found[-2]
        _info(g["info"], found[-1])

    def xgesvd(self, **g: Any) -> None:
        _spend(g)
        dtype, m, n = TYPES[g["data_type_a"]], g["m"], g["n"]
        assert m >= n, "gesvd takes no matrix with fewer rows than columns"
        a = matrix(g["a"], m, n, g["lda"], dtype)
        u, s, vt = np.linalg.svd(a, full_matrices=chr(g["jobu"]) == "A")
        flat(g["s"], n, TYPES[g["data_type_s"]])[...] = s
        a[...] = np.nan
        assert g["jobu"] == g["jobvt"]
        if chr(g["jobu"]) != "N":
            matrix(g["u"], *u.shape, g["ldu"], dtype)[...] = u
            matrix(g["vt"], *vt.shape, g["ldvt"], dtype)[...] = vt
        _info(g["info"], 0)

    # --- cuSOLVER, of a type

    def potrf_batched(self, dtype: Any, **g: Any) -> None:
        for i, at in enumerate(table(g["aarray"], g["batch_size"])):
            info = self._potrf(matrix(at, g["n"], g["n"], g["lda"], dtype), g["uplo"], dtype)
            _info(g["info_array"] + 4 * i, info)

    def orgqr(self, dtype: Any, **g: Any) -> None:
        flat(g["work"], g["lwork"], dtype)[...] = np.nan
        a, tau = matrix(g["a"], g["m"], g["n"], g["lda"], dtype), flat(g["tau"], g["k"], dtype)
        given = a.copy(order="F")
        given[:, g["k"] :] = 0  # not read
        a[...] = lap("ungqr" if dtype.kind == "c" else "orgqr", dtype)(given, tau)[0]
        _info(g["info"], 0)

    def ormqr(self, dtype: Any, **g: Any) -> None:
        flat(g["work"], g["lwork"], dtype)[...] = np.nan
        a, c = matrix(g["a"], g["m"], g["k"], g["lda"], dtype), matrix(g["c"], g["m"], g["n"], g["ldc"], dtype)
        tau = flat(g["tau"], g["k"], dtype)
        assert g["side"] == 0 and (g["trans"] != 1 or dtype.kind == "f")
        name, letter = ("unmqr", "NTC"[g["trans"]]) if dtype.kind == "c" else ("ormqr", "NTT"[g["trans"]])
        c[...] = lap(name, dtype)("L", letter, a, tau, c, 64 * max(1, g["n"]))[0]
        _info(g["dev_info"], 0)

    def syevj(self, dtype: Any, **g: Any) -> None:
        real, n = np.dtype(dtype.char.lower()), g["n"]
        assert g["params"] >= 1000
        flat(g["work"], g["lwork"], dtype)[...] = np.nan
        for i in range(g.get("batch_size", 1)):
            a = matrix(g["a"] + i * n * g["lda"] * dtype.itemsize, n, n, g["lda"], dtype)
            self._symmetric(a, flat(g["w"] + i * n * real.itemsize, n, real), g["jobz"], g["uplo"])
            _info(g["info"] + 4 * i, self.unconverged.get(i, 0))

    def gesvdj(self, dtype: Any, **g: Any) -> None:
        m, n = g["m"], g["n"]
        k, real = min(m, n), np.dtype(dtype.char.lower())
        assert g["params"] >= 1000
        flat(g["work"], g["lwork"], dtype)[...] = np.nan
        full = not g["econ"] if "econ" in g else True
        columns, rows = (m, n) if full else (k, k)
        for i in range(g.get("batch_size", 1)):
            a = matrix(g["a"] + i * n * m * dtype.itemsize, m, n, g["lda"], dtype)
            u, s, vt = np.linalg.svd(a, full_matrices=full)
            stuck = self.sweeps.get(g["params"], 100) < 2 and np.count_nonzero(a) > k  # one sweep does for a diagonal matrix
            a[...] = np.nan
            left = matrix(g["u"] + i * columns * m * dtype.itemsize, m, columns, g["ldu"], dtype)
            right = matrix(g["v"] + i * rows * n * dtype.itemsize, n, rows, g["ldv"], dtype)
            values = flat(g["s"] + i * k * real.itemsize, k, real)
            item = i if "batch_size" in g else self.seen
            values[...], left[...], right[...] = s, u if g["jobz"] else np.nan, vt.conj().T if g["jobz"] else np.nan
            if item in self.unconverged or stuck:
                values[...], left[...], right[...] = -1, 0, 0
            _info(g["info"] + 4 * i, k + 1 if stuck else self.unconverged.get(item, 0))
            self.seen += 1

    seen = 0

    def gesvda(self, dtype: Any, **g: Any) -> None:
        m, n, rank = g["m"], g["n"], g["rank"]
        assert m >= n and g["h_r_nrm_f"] == 0
        flat(g["d_work"], g["lwork"], dtype)[...] = np.nan
        size, real = dtype.itemsize, np.dtype(dtype.char.lower())
        for i in range(g["batch_size"]):
            u, s, vt = np.linalg.svd(matrix(g["d_a"] + i * g["stride_a"] * size, m, n, g["lda"], dtype), full_matrices=False)
            flat(g["d_s"] + i * g["stride_s"] * real.itemsize, rank, real)[...] = s[:rank]
            if g["jobz"]:
                matrix(g["d_u"] + i * g["stride_u"] * size, m, rank, g["ldu"], dtype)[...] = u[:, :rank]
                matrix(g["d_v"] + i * g["stride_v"] * size, n, rank, g["ldv"], dtype)[...] = vt.conj().T[:, :rank]
            _info(g["d_info"] + 4 * i, 0)

    # --- cuBLAS

    def getrf_batched(self, dtype: Any, **g: Any) -> None:
        n = g["n"]
        for i, at in enumerate(table(g["a"], g["batch_size"])):
            a = matrix(at, n, n, g["lda"], dtype)
            lu, pivots, info = _spread(lap("getrf", dtype), a)
            a[...] = lu
            flat(g["p"] + 4 * i * n, n, np.int32)[...] = pivots
            _info(g["info"] + 4 * i, info)

    def getrs_batched(self, dtype: Any, **g: Any) -> None:
        n, count = g["n"], g["batch_size"]
        for i, (left, right) in enumerate(zip(table(g["aarray"], count), table(g["barray"], count), strict=True)):
            a, b = matrix(left, n, n, g["lda"], dtype), matrix(right, n, g["nrhs"], g["ldb"], dtype)
            b[...] = lap("getrs", dtype)(a, flat(g["dev_ipiv"] + 4 * i * n, n, np.int32) - 1, b, trans=g["trans"])[0]
        _info(g["info"], 0)

    def trsm(self, dtype: Any, **g: Any) -> None:
        m, n = g["m"], g["n"]
        assert flat(g["alpha"], 1, dtype)[0] == 1
        size = m if g["side"] == 0 else n
        a, b = matrix(g["a"], size, size, g["lda"], dtype), matrix(g["b"], m, n, g["ldb"], dtype)
        letter = next(k for k, v in LETTERS.items() if v == dtype)
        b[...] = getattr(blas, letter + "trsm")(
            1, np.asfortranarray(a), np.asfortranarray(b), side=g["side"], lower=1 - g["uplo"], trans_a=g["trans"], diag=g["diag"]
        )  # fmt: skip

    def trsm_batched(self, dtype: Any, **g: Any) -> None:
        count = g.pop("batch_count")
        for left, right in zip(table(g["a"], count), table(g["b"], count), strict=True):
            self.trsm(dtype, **{**g, "a": left, "b": right})

    def geqrf_batched(self, dtype: Any, **g: Any) -> None:
        m, n, count = g["m"], g["n"], g["batch_size"]
        for at, scale in zip(table(g["aarray"], count), table(g["tau_array"], count), strict=True):
            a = matrix(at, m, n, g["lda"], dtype)
            factored, tau, _, _ = lap("geqrf", dtype)(a)
            a[...] = factored
            flat(scale, len(tau), dtype)[...] = tau
        _info(g["info"], 0)

    def gels_batched(self, dtype: Any, **g: Any) -> None:
        m, n, k, count = g["m"], g["n"], g["nrhs"], g["batch_size"]
        assert g["trans"] == 0 and m >= n
        for i, (left, right) in enumerate(zip(table(g["aarray"], count), table(g["carray"], count), strict=True)):
            a, c = matrix(left, m, n, g["lda"], dtype), matrix(right, m, k, g["ldc"], dtype)
            _, x, info = lap("gels", dtype)(a, c)
            c[...] = x
            a[...] = np.nan
            _info(g["dev_info_array"] + 4 * i, info)
        _info(g["info"], 0)
