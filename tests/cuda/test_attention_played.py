"""FLASH and EFFICIENT from a call to their launches, which are played with NumPy: against float64; with Triton's kernels and packaged ones."""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import backline
from backline import _core
from backline.backends import python_native
from backline.errors import NoKernel
from backline.libraries.cuda.attention import kernel_compiler as compiler
from backline.libraries.cuda.attention import packaged_kernels as packaged
from backline.libraries.cuda.attention.launch_sequence import KERNELS
from backline.nn.attention import SDPBackend, sdpa_kernel
from fakes import philox
from fakes.cupy_standin import H100, CuPy, ndarray
from fakes.insert import inserted
from fakes.triton_kernels import played
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean

BRAIN = np.dtype(ml_dtypes.bfloat16)
ALLOWED = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5}
ABSENT = "there is no package triton in this environment"


@pytest.fixture
def cupy(tmp_path: Path) -> Iterator[CuPy]:
    made = CuPy(H100)
    with inserted(cupy=made), played(made, tmp_path):
        yield made


@pytest.fixture
def alone(cupy: CuPy, monkeypatch: pytest.MonkeyPatch) -> CuPy:
    """Without Triton."""
    monkeypatch.setattr(compiler, "reason", lambda: ABSENT)
    monkeypatch.setattr(compiler, "build", None)
    return cupy


def attend(*args: Any, **kwargs: Any) -> Any:
    return backline.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def slopes(*args: Any, **kwargs: Any) -> Any:
    return backline.nn.grad.scaled_dot_product_attention_backward(*args, **kwargs)


def given(dtype: Any, queries: int = 70, keys: int = 70, dim: int = 64, vdim: int = 0, heads: int = 4, shared: int = 1) -> list[Any]:
    rng = np.random.default_rng(8)
    shapes = ((2, heads, queries, dim), (2, heads // shared, keys, dim), (2, heads // shared, keys, vdim or dim))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def check(arrays: list[Any], mask: Any = None, **options: Any) -> None:
    """Both directions, against float64."""
    wide = [x.astype(np.float64) for x in arrays]
    allowed = ALLOWED[arrays[0].dtype.name]
    with sdpa_kernel(SDPBackend.MATH):
        wanted = attend(*wide, mask, **options)
    there = [ndarray(x) if isinstance(x, np.ndarray) else x for x in (*arrays, mask)]
    found = attend(*there, **options)
    assert np.abs(found.get().astype(np.float64) - wanted).max() <= allowed
    g = np.random.default_rng(9).standard_normal(wanted.shape).astype(arrays[0].dtype)
    with sdpa_kernel(SDPBackend.MATH):
        wanted = slopes(*wide, g.astype(np.float64), mask, **options)
    found = slopes(*there[:3], ndarray(g), there[3], **options)
    attended = attend(*there, **options, return_lse=True)
    assert type(attended.lse) is ndarray and attended.lse.shape == attended.output.shape[:-1] and attended.lse.dtype == np.float32
    with sdpa_kernel(SDPBackend.MATH):
        expected = attend(*wide, mask, **options, return_lse=True).lse
    some = np.isfinite(expected)
    assert (np.isneginf(attended.lse.get()) == ~some).all()
    np.testing.assert_allclose(attended.lse.get()[some], expected[some], atol=1e-5)
    known = slopes(*there[:3], ndarray(g), there[3], **options, output=attended.output, lse=attended.lse)
    for one, other, expected in zip(found[:3], known[:3], wanted[:3], strict=True):
        assert np.abs(one.get().astype(np.float64) - expected).max() <= 4 * allowed * max(1.0, np.abs(expected).max())
        assert np.abs(other.get().astype(np.float64) - one.get().astype(np.float64)).max() <= allowed * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize(("kernel", "dtype", "sizes", "options"), [
    ("FLASH", np.float16, {}, {}),
    ("FLASH", BRAIN, {"dim": 128}, {"is_causal": True}),
    ("FLASH", np.float16, {"shared": 2, "keys": 33}, {"enable_gqa": True}),
    ("EFFICIENT", np.float32, {"vdim": 32, "keys": 33}, {"is_causal": True}),
    ("EFFICIENT", np.float16, {}, {"scale": -0.3}),
])  # fmt: skip
def test_numbers(cupy: CuPy, kernel: str, dtype: Any, sizes: dict[str, Any], options: dict[str, Any]) -> None:
    with sdpa_kernel(SDPBackend[f"{kernel}_ATTENTION"]):
        check(given(dtype, **sizes), **options)
    assert {call["kind"] for name, call in cupy.written if name in KERNELS} == {"cubin"}


def test_masks(cupy: CuPy) -> None:
    mask = np.random.default_rng(1).random((2, 1, 70, 70)) < 0.5
    mask[:, :, 3] = False
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        check(given(np.float32), mask)
        there = [ndarray(x) for x in given(np.float32)]
        found = attend(*there, ndarray(np.where(mask, np.float32(0), np.float32(-np.inf))))
        assert (found.get()[:, :, 3] == 0).all()
        with pytest.raises(NoKernel, match="no gradient of a mask"):
            slopes(*there, there[0], ndarray(np.zeros((70, 70), np.float32)))


def test_dropout_leaves_out_what_products_leave_out(cupy: CuPy) -> None:
    """The same Philox numbers, by the same counters."""
    q, k, v = given(np.float16, queries=9, keys=9)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = attend(*map(ndarray, (q, k, v)), dropout_p=0.5, seed=12).get()
    scores = np.exp(q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / 8)
    weights = scores / scores.sum(-1, keepdims=True) * philox.kept(scores.shape, 12, 0.5)
    assert np.abs(found - weights @ v.astype(np.float64)).max() <= 2e-3


def test_seeds_are_told_with_the_call(cupy: CuPy) -> None:
    """A hundred steps run what the first one planned, and each leaves out other weights."""
    x = [ndarray(a) for a in given(np.float16, queries=8, keys=8)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attend(*x, dropout_p=0.5, seed=1000)
        before, plan = _core.memo_info(), _core.last_plan()
        found = {attend(*x, dropout_p=0.5, seed=seed).get().tobytes() for seed in range(100)}
        after = _core.memo_info()
        assert len(found) == 100 and _core.last_plan() is plan
        assert (after["misses"], after["size"]) == (before["misses"], before["size"])
        assert attend(*x, dropout_p=0.5, seed=2**64 + 3).get().tobytes() == attend(*x, dropout_p=0.5, seed=3).get().tobytes()


def test_gradients_from_the_log_sum_exp_run_no_forward_pass(cupy: CuPy) -> None:
    x = [ndarray(a) for a in given(np.float16)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attended = attend(*x, return_lse=True)
        cupy.written.clear()
        first = slopes(*x, x[0], output=attended.output, lse=attended.lse)
        assert [name for name, _ in cupy.written if name in KERNELS] == [
            "attention_backward_delta", "attention_backward_keys", "attention_backward_queries"
        ]  # fmt: skip
        # As they lie: transposed, and where no kernel reads from.
        turned = ndarray(np.asfortranarray(attended.output.get()))
        apart = np.zeros(attended.lse.size + 1, np.float32)
        apart[1:] = attended.lse.get().ravel()
        again = slopes(*x, x[0], output=turned, lse=ndarray(apart[1:].reshape(attended.lse.shape)))
    assert all((a.get() == b.get()).all() for a, b in zip(first[:3], again[:3], strict=True))


def test_the_stream_is_the_current_one(cupy: CuPy) -> None:
    x = ndarray(given(np.float16)[0])
    with cupy.cuda.stream(cupy.cuda.Stream(non_blocking=True)):
        attend(x, x, x)
        here = cupy.cuda.get_current_stream().ptr
    assert here and [call["stream"] for name, call in cupy.written if name in KERNELS] == [here]


@pytest.mark.parametrize("disabled", ["language", "operation", "key"])
def test_the_language_its_operation_or_the_key_can_be_disabled(cupy: CuPy, disabled: str) -> None:
    x = ndarray(given(np.float16)[0])
    scopes = {
        "language": (python_native.triton.disabled, "python_native.triton.enabled"),
        "operation": (lambda: python_native.operations_disabled(*python_native.get_dsl_operations("triton")), "disabled_operations"),
        "key": (backline.backends.flags, "disabled_dispatch_keys"),
    }
    scope, words = scopes[disabled]
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]), scope():
        if disabled == "key":
            python_native.disable_dispatch_keys("CUDA")
        for call in (lambda: attend(x, x, x), lambda: slopes(x, x, x, x)):
            with pytest.raises(NoKernel, match=f"disabled by .*{words}"):
                call()
    attend(x, x, x)


# --- without Triton ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, BRAIN], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_packaged_kernels(alone: CuPy, dtype: Any, dim: int, causal: bool) -> None:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        check(given(dtype, dim=dim), is_causal=causal)
    launched = [(name, call["kind"]) for name, call in alone.written if name in KERNELS]
    assert [name for name, _ in launched] == ["attention_forward", *KERNELS, "attention_forward", *list(KERNELS)[1:]] and {kind for _, kind in launched} == {"ptx"}


def test_what_is_not_packaged_is_refused_with_the_reason(alone: CuPy) -> None:
    for arrays, options, words in (
        (given(np.float16, dim=32), {}, "attention_forward float16"),
        (given(np.float32), {}, "attention_forward float32"),
        (given(np.float16), {"dropout_p": 0.5, "seed": 1}, "attention_forward float16"),
    ):
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]), pytest.raises(NoKernel, match=f"{ABSENT}; .*{words}"):
            attend(*map(ndarray, arrays), **options)
    told = backline.explain(backline.nn.functional.scaled_dot_product_attention, *map(ndarray, given(np.float16)))
    assert told.algorithm == "flash" and "packaged kernel" in told.candidates[0].reason
    library = backline.libraries.get("triton")
    assert library.available() and library.version() == packaged.version() and ABSENT in library.report()["config"]


def test_the_file_is_of_these_kernels() -> None:
    """`benchmarks/make_attention_ptx.py` makes it anew."""
    found = packaged.read()
    assert found.source == compiler.source_digest(), "the kernels' text changed"
    assert Path(packaged.FILE).stat().st_size < 300_000 and len(found.kernels) == 36
    for name, (tile, made) in found.kernels.items():
        kernel, dtype = name.split()[:2]
        assert made.entry == kernel and dtype in packaged.DTYPES and made.warps == tile.warps
        assert made.shared <= packaged.SHARED and made.cubin == b""
        assert re.search(rb"^\.version 8\.7\n\.target sm_80\n", made.ptx, re.MULTILINE)
        assert b"/" not in re.sub(rb"//[^\n]*", b"", made.ptx), "paths of who made it"
        entry = made.ptx[made.ptx.index(b".entry " + kernel.encode()) :]
        pointers, scalars, _ = KERNELS[kernel]
        assert entry[: entry.index(b"{")].count(b".param") == len(pointers) + len(scalars) + 2


def test_a_file_that_is_not_there_or_another_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for content in (None, b"", b"damaged", lzma.compress(b'{"format": 2}'), lzma.compress(b"{")):
        path = tmp_path / "file"
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setattr(packaged, "FILE", str(path))
        packaged.read.cache_clear()
        assert packaged.read() == ("", "", {})
    packaged.read.cache_clear()
