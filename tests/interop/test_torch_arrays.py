"""Tensors of PyTorch in Backline's operations: the same kind out, no copies, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg, nn
from backline.errors import BadType, BadValue
from support import clean

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("clean")]
assert clean


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128", "float16", "bfloat16"])
def test_products_of_every_dtype(torch: Any, name: str) -> None:
    a = torch.randn(5, 7, dtype=torch.float64).to(getattr(torch, name))
    b = torch.randn(7, 3, dtype=torch.float64).to(getattr(torch, name))
    got = backline.matmul(a, b)
    assert type(got) is torch.Tensor and got.dtype is a.dtype
    want = a.to(torch.complex128) @ b.to(torch.complex128)
    assert float((got.to(torch.complex128) - want).abs().max()) <= 64 * torch.finfo(a.dtype).eps * float(want.abs().max())


def test_memory_is_shared(torch: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.arange(16.0, dtype=dtype).reshape(4, 4)
        assert linalg.diagonal(x).data_ptr() == x.data_ptr()
        out = torch.zeros(4, 4, dtype=dtype)
        version = out._version
        assert backline.matmul(x, x, out=out) is out and out._version > version
        assert torch.equal(out.float(), x.float() @ x.float())


def test_layouts(torch: Any) -> None:
    x = torch.randn(8, 6, dtype=torch.float64)
    for view in (x.T, x[::2], x[:, ::2].T, x[:0], x[:1], x[0].expand(5, 6).T, x.conj(), (x + 0j).conj(), x.mT):
        right = torch.randn(view.shape[-1], 3, dtype=view.dtype)
        want = view @ right
        got = backline.matmul(view, right)
        assert got.shape == want.shape and float((got - want).abs().max() if want.numel() else 0.0) < 1e-12
    batch = x.expand(3, 8, 6)
    assert torch.allclose(backline.matmul(batch, x.T), batch @ x.T)


def test_results_with_names_scalars_and_integers(torch: Any) -> None:
    x = torch.randn(4, 4, dtype=torch.float64)
    found = linalg.svd(x)
    assert type(found).__name__ == "SVD" and all(type(part) is torch.Tensor for part in found)
    assert torch.allclose(found.U @ torch.diag(found.S) @ found.Vh, x)
    rank, dot = linalg.matrix_rank(x), backline.dot(x[0], x[1])
    assert rank.dtype is torch.int64 and rank.shape == () and dot.shape == () and torch.allclose(dot, x[0] @ x[1])
    values, indices = nn.functional.max_pool2d(x[None], 2, return_indices=True)
    want = torch.nn.functional.max_pool2d(x[None], 2, return_indices=True)
    assert torch.equal(values, want[0]) and torch.equal(indices, want[1])
    assert nn.functional.softmax(x, 0, dtype=torch.float32).dtype is torch.float32


def test_batch_norm_updates_its_statistics(torch: Any) -> None:
    x = torch.randn(8, 3, 5)
    mean, var = torch.zeros(3), torch.ones(3)
    same_mean, same_var = mean.clone(), var.clone()
    got = nn.functional.batch_norm(x, mean, var, training=True)
    want = torch.nn.functional.batch_norm(x, same_mean, same_var, training=True)
    assert torch.allclose(got, want, atol=1e-5) and torch.allclose(mean, same_mean, atol=1e-6) and torch.allclose(var, same_var, atol=1e-5)


def test_a_gradient_is_not_lost_in_silence(torch: Any) -> None:
    x = torch.ones(3, 3, requires_grad=True)
    with pytest.raises(BadType, match="input is a tensor that requires grad") as caught:
        backline.matmul(x, x)
    assert "torch.ops.backline" in caught.value.remedy and "no_grad" in caught.value.remedy
    with pytest.raises(BadType, match="requires grad"):
        backline.matmul(torch.nn.Parameter(torch.ones(3, 3)), torch.ones(3, 3))
    with torch.no_grad():
        got = backline.matmul(x, torch.nn.Parameter(torch.ones(3, 3)))
    assert not got.requires_grad and torch.equal(got, torch.full((3, 3), 3.0))
    with torch.inference_mode():
        out = torch.zeros(3, 3)
        assert backline.matmul(x, x, out=out) is out and torch.equal(out, torch.full((3, 3), 3.0))


def test_what_is_no_dense_tensor_of_the_host_is_refused(torch: Any) -> None:
    dense = torch.eye(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that the one is in beta and the other will go
        csr = dense.to_sparse_csr()
        quantized = torch.quantize_per_tensor(dense, 0.1, 0, torch.quint8)
    refused: list[tuple[Any, str, type[Exception]]] = [
        (torch.empty(3, 3, device="meta"), "without data, on the device meta", BadType),
        (dense.to_sparse(), "layout torch.sparse_coo", BadType),
        (csr, "layout torch.sparse_csr", BadType),
        (quantized, "quantized", BadType),
        (torch.ones(3, 3, dtype=torch.float8_e4m3fn), "no NumPy view|dtype", BadType),
    ]
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        refused.append((mode.from_tensor(dense), "FakeTensor", BadType))
    for tensor, words, error in refused:
        with pytest.raises(error, match=words) as caught:
            backline.matmul(tensor, dense)
        assert caught.value.remedy
    with pytest.raises(BadType, match="input is an array of NumPy, another argument is one of PyTorch"):
        backline.matmul(np.eye(3), dense.double())
    with pytest.raises(BadType, match="no NumPy view"):
        torch.vmap(lambda row: backline.matmul(row, dense))(dense[None])


def test_conjugated_views_are_copied_and_never_written_to(torch: Any) -> None:
    x = torch.randn(3, 3, dtype=torch.complex128)
    assert torch.allclose(backline.matmul(x.conj(), x.imag.neg() + 0j), x.conj() @ (x.imag.neg() + 0j))
    with pytest.raises(BadValue, match="read-only"):
        backline.matmul(x, x, out=torch.zeros(3, 3, dtype=torch.complex128).conj())


def test_scopes_hold(torch: Any) -> None:
    x = torch.ones(3, 3)
    with backline.use("numpy"):
        backline.matmul(x, x)
    assert backline.explain().library == "numpy"
    assert backline.explain(backline.matmul, x, x).problem.key == "matmul f32 3x3 3x3"


def test_threads_and_the_end_of_the_tensor(torch: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(i: int) -> float:
        x = torch.full((64, 64), float(i))
        diagonal = linalg.diagonal(backline.matmul(x, x))
        del x
        return float(diagonal.sum())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(32))) == [64.0 * 64 * i * i for i in range(32)]
