"""Backline's operations as operators of PyTorch: what torch checks of operators, compiled graphs, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backline
from backline.errors import BadValue
from backline.interop.operator_gradients import GRADIENTS
from backline.interop.operators import operators
from backline.problems.neural_problem import ELEMENTARY
from support import clean

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("clean")]
assert clean


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    from backline.interop.torch import register

    assert set(register()) == set(operators())
    return found


def arguments(torch: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call of every operator, in float64, small."""
    generator = torch.Generator().manual_seed(3)

    def r(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def distinct(*shape: int) -> Any:
        count = int(np.prod(shape))
        return torch.randperm(count, generator=generator).reshape(shape).double() / count

    def spd(n: int = 4) -> Any:
        a = r(n, n)
        return a @ a.T + n * torch.eye(n, dtype=torch.float64)

    square = r(4, 4) + 4 * torch.eye(4, dtype=torch.float64)
    rnn = (r(3, 2, 4), r(1, 2, 5), [r(20, 4), r(20, 5), r(20), r(20)], True, 1, 0.0, False, False, False)

    def gates(count: int) -> list[Any]:
        return [r(count * 5, 4), r(count * 5, 5), r(count * 5), r(count * 5)]

    states = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
    base = name.removesuffix("_backward")
    if base in states:
        hx: Any = [r(1, 2, 5), r(1, 2, 5)] if base == "lstm" else r(1, 2, 5)
        grads = [r(3, 2, 5), r(1, 2, 5), *([r(1, 2, 5)] if base == "lstm" else [])] if name != base else []
        return (rnn[0], hx, gates(states[base]), *grads, *rnn[3:]), {}
    for rank in (1, 2, 3):
        image, kernel, d = (5,) * rank, (2,) * rank, f"{rank}d"
        made = {
            f"conv{d}": ((r(2, 3, *image), r(4, 3, *kernel), r(4), 1, 1), {}),
            f"conv_transpose{d}": ((r(2, 3, *image), r(3, 4, *kernel), r(4), 2), {}),
            f"conv{d}_input": (([2, 3, *image], r(4, 3, *kernel), r(2, 4, *(4,) * rank)), {}),
            f"conv{d}_weight": ((r(2, 3, *image), [4, 3, *kernel], r(2, 4, *(4,) * rank)), {}),
            f"conv_transpose{d}_input": (([2, 3, *image], r(3, 4, *kernel), r(2, 4, *(6,) * rank)), {}),
            f"conv_transpose{d}_weight": ((r(2, 3, *image), [3, 4, *kernel], r(2, 4, *(6,) * rank)), {}),
            f"max_pool{d}": ((distinct(2, 3, *image), [2]), {}),
            f"avg_pool{d}": ((r(2, 3, *image), [2]), {}),
            f"adaptive_avg_pool{d}": ((r(2, 3, *image), [3]), {}),
            f"max_pool{d}_input": ((distinct(2, 3, *image), r(2, 3, *(2,) * rank), [2]), {}),
            f"avg_pool{d}_input": (([2, 3, *image], r(2, 3, *(2,) * rank), [2]), {}),
            f"adaptive_avg_pool{d}_input": (([2, 3, *image], r(2, 3, *(3,) * rank), [3]), {}),
        }
        if name in made:
            return made[name]
    q = (r(2, 2, 3, 4), r(2, 2, 5, 4), r(2, 2, 5, 4))
    lu = tuple(torch.linalg.lu_factor(square))
    table: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "matmul": ((r(2, 3, 4), r(4, 5)), {}), "mm": ((r(3, 4), r(4, 5)), {}), "bmm": ((r(2, 3, 4), r(2, 4, 5)), {}),
        "mv": ((r(3, 4), r(4)), {}), "dot": ((r(4), r(4)), {}), "vdot": ((r(4), r(4)), {}), "outer": ((r(3), r(4)), {}),
        "addmm": ((r(5), r(3, 4), r(4, 5)), {"alpha": 2.0, "beta": 0.5}), "baddbmm": ((r(2, 3, 5), r(2, 3, 4), r(2, 4, 5)), {}),
        "linear": ((r(2, 3, 4), r(5, 4), r(5)), {"activation": "gelu"}),
        "einsum": (("ij,jk->ki", [r(3, 4), r(4, 5)]), {}),
        "softmax": ((r(3, 4), 1), {}), "log_softmax": ((r(3, 4), 1), {}),
        "softmax_input": ((r(3, 4).softmax(1), r(3, 4), 1), {}), "log_softmax_input": ((r(3, 4).log_softmax(1), r(3, 4), 1), {}),
        "gelu": ((r(3, 4), "tanh"), {}), "gelu_input": ((r(3, 4), r(3, 4), "tanh"), {}),
        "layer_norm": ((r(3, 4), [4], r(4), r(4)), {}), "layer_norm_backward": ((r(3, 4), r(3, 4), [4], r(4)), {}),
        "rms_norm": ((r(3, 4), [4], r(4)), {}),
        "batch_norm_backward": ((r(6, 4, 2), r(6, 4, 2), r(4)), {}),
        "scaled_dot_product_attention": ((*q, r(3, 5)), {}),
        "scaled_dot_product_attention_backward": ((*q, r(2, 2, 3, 4), r(3, 5)), {}),
        "kron": ((r(2, 3), r(3, 2)), {}), "cross": ((r(4, 3), r(4, 3), 1), {}), "vander": ((r(4), 3), {}), "trace": ((r(4, 4),), {}),
        "linalg_cross": ((r(4, 3), r(4, 3)), {}), "linalg_vander": ((r(4),), {"N": 3}), "linalg_vecdot": ((r(3, 4), r(3, 4)), {}),
        "linalg_solve": ((square, r(4, 2)), {}), "linalg_solve_ex": ((square, r(4, 2)), {}),
        "linalg_lu_solve": ((*lu, r(4, 2)), {}), "linalg_solve_triangular": ((torch.triu(square), r(4, 2), True), {}),
        "linalg_ldl_solve": ((*torch.linalg.ldl_factor(spd()), r(4, 2)), {}),
        "linalg_householder_product": (tuple(torch.geqrf(r(5, 3))), {}),
        "cholesky_solve": ((r(4, 2), torch.linalg.cholesky(spd())), {}), "cholesky_inverse": ((torch.linalg.cholesky(spd()),), {}),
        "linalg_matrix_power": ((square, 3), {}), "linalg_matrix_norm": ((r(3, 4), 1.0), {}),
    }  # fmt: skip
    if name in table:
        return table[name]
    if name.startswith(("relu", "silu", "tanh", "sigmoid")):
        return ((r(3, 4), r(3, 4)) if name.endswith("_input") else (r(3, 4),)), {}
    if name in ELEMENTARY:
        return (r(3, 4).abs() if name.startswith("log") else r(3, 4),), {}
    if name.startswith("fft_"):
        return (r(4, 5) if "rfft" in name or "dct" in name or "dst" in name or "ihfft" in name else r(4, 5) + 0j,), {}
    return (spd() if "chol" in name or "eigh" in name or "eigvalsh" in name or "ldl" in name else square,), {}


NAMES = sorted(operators())


@pytest.mark.parametrize("name", NAMES)
def test_what_torch_checks_of_an_operator(torch: Any, name: str) -> None:
    args, kwargs = arguments(torch, name)
    operator = getattr(torch.ops.backline, name)
    torch.library.opcheck(
        operator.default, args, kwargs,
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_the_operation(torch: Any, name: str) -> None:
    args, kwargs = arguments(torch, name)
    got = getattr(torch.ops.backline, name)(*args, **kwargs)
    operator = operators()[name]

    def plain(value: Any) -> Any:
        return value.numpy() if isinstance(value, torch.Tensor) else tuple(map(plain, value)) if isinstance(value, list) else value

    want = operator.call(operator.bind(tuple(map(plain, args)), kwargs))
    for one, other in zip(got if isinstance(got, (tuple, list)) else (got,), want, strict=True):
        assert one.numpy().dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-10, atol=1e-10)  # last bits may go with the alignment of memory


@pytest.mark.parametrize("name", sorted(GRADIENTS))
def test_gradients_are_those_of_finite_differences(torch: Any, name: str) -> None:
    args, kwargs = arguments(torch, name)
    operator = getattr(torch.ops.backline, name)
    flat: list[Any] = []

    def place(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            flat.append(value.clone().requires_grad_())
            i = len(flat) - 1
            return lambda given: given[i]
        return [place(part) for part in value] if isinstance(value, list) and isinstance(value[0], torch.Tensor) else value

    places = [place(value) for value in args]

    def call(*given: Any) -> Any:
        def one(value: Any) -> Any:
            return value(given) if callable(value) else [one(part) for part in value] if isinstance(value, list) else value

        return operator(*map(one, places), **kwargs)

    assert torch.autograd.gradcheck(call, tuple(flat), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["matmul", "mv", "dot", "addmm", "vdot", "outer", "linear", "einsum", "conv2d", "conv_transpose2d", "linalg_inv", "linalg_solve"])
def test_gradients_of_complex_numbers(torch: Any, name: str) -> None:
    args, kwargs = arguments(torch, name)
    kwargs = {} if name == "linear" else kwargs  # activations are for real numbers
    args = ("ij,jk->ki", *args[1]) if name == "einsum" else args
    given = [(a * (1 + 0.5j)).requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]

    def call(*g: Any) -> Any:
        operator = getattr(torch.ops.backline, name)
        return operator(g[0], list(g[1:])) if name == "einsum" else operator(*g, **kwargs)

    assert torch.autograd.gradcheck(call, tuple(given), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)), ((5, 1, 3, 4), (2, 4, 3)), ((3, 4), (4, 3))])
def test_gradients_of_products_of_any_rank(torch: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(torch.ops.backline.matmul, given)


def test_an_operation_without_a_gradient_says_so(torch: Any) -> None:
    x = torch.eye(3, requires_grad=True)
    values = torch.ops.backline.linalg_eigvalsh(x)
    with pytest.raises(BadValue, match="linalg_eigvalsh: Backline has no gradient"):
        values.sum().backward()
    assert torch.equal(torch.ops.backline.linalg_eigvalsh(x.detach()), torch.ones(3))


class Net:
    """A small network: convolution, attention, products, softmax."""

    def __init__(self, torch: Any) -> None:
        torch.manual_seed(0)
        self.kernel = torch.randn(4, 3, 3, 3, requires_grad=True)
        self.weight, self.bias = torch.randn(8, 64, requires_grad=True), torch.randn(8, requires_grad=True)
        self.parameters = [self.kernel, self.weight, self.bias]
        self.ops = torch.ops.backline

    def __call__(self, x: Any) -> Any:
        y = self.ops.conv2d(x, self.kernel, None, 1, "same", activation="relu")
        y = self.ops.max_pool2d(y, [2])
        y = self.ops.linear(y.flatten(1), self.weight, self.bias, activation="silu")
        y = self.ops.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])
        return self.ops.log_softmax(y[:, 0], 1).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_graphs_are_whole(torch: Any, backend: str) -> None:
    net = Net(torch)
    x = torch.randn(2, 3, 8, 8)
    want = net(x)
    want.backward()
    grads = [p.grad.clone() for p in net.parameters]
    for p in net.parameters:
        p.grad = None
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    got = compiled(x)
    got.backward()
    assert torch.allclose(got, want, rtol=1e-5)
    for p, grad in zip(net.parameters, grads, strict=True):
        assert torch.allclose(p.grad, grad, rtol=1e-4, atol=1e-5)


def test_graphs_of_other_sizes(torch: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: torch.ops.backline.matmul(a, b) * 2, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (3, 5, 8):
        a, b = torch.randn(n, n + 1), torch.randn(n + 1, 2)
        assert torch.allclose(compiled(a, b), a @ b * 2, atol=1e-5)


def test_errors_come_when_the_graph_is_made(torch: Any) -> None:
    with pytest.raises(Exception, match="matmul"), torch.device("meta"):
        torch.ops.backline.matmul(torch.empty(2, 3), torch.empty(2, 3))
    with pytest.raises(BadValue, match="dropout without a seed"):
        q = torch.randn(1, 2, 4)
        torch.ops.backline.scaled_dot_product_attention(q, q, q, None, 0.5)


def test_results_are_new_and_settings_hold(torch: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    got = torch.ops.backline.einsum("ij->ij", [x])
    assert got.data_ptr() != x.data_ptr() and torch.equal(got, x)
    transposed = torch.ops.backline.einsum("ij->ji", [x])
    assert transposed.is_contiguous() and torch.equal(transposed, x.T)
    images = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)
    last = torch.ops.backline.conv2d(images, torch.randn(4, 3, 3, 3))
    assert last.is_contiguous(memory_format=torch.channels_last)
    with backline.use("numpy"):
        torch.ops.backline.matmul(x, x.T)
    assert backline.explain().library == "numpy"


def test_bfloat16_and_what_is_not_dense(torch: Any) -> None:
    x = torch.randn(4, 4).bfloat16()
    assert torch.allclose(torch.ops.backline.matmul(x, x).float(), x.float() @ x.float(), atol=0.1)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ops.backline.matmul(torch.eye(3).to_sparse(), torch.eye(3))
