"""Arrays of other packages in host memory, by stand-ins with the DLPack protocol: views in, the same kind out, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backline
from backline import linalg, nn
from backline.errors import BadType, BadValue
from backline.libraries import host_arrays
from backline.libraries.host_arrays import HostKind
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean


class Box:
    """An array of another package: data, and the protocol."""

    __module__ = "boxes.arrays"

    def __init__(self, data: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.data, self.device, self.exports, self.writes = np.asarray(data), device, 0, 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **how: Any) -> Any:
        self.exports += 1
        return self.data.__dlpack__(**how)


class Value(Box):
    """One that nothing may be written to."""

    __module__ = "values"


class Precision:
    """A dtype of that package."""

    __module__ = "boxes"


def written(box: Box) -> None:
    box.writes += 1


BOXES = HostKind(
    "Boxes", ("boxes",), ("Box",), back=Box, dtype=lambda v: np.dtype(np.float64) if isinstance(v, Precision) else None,
    written=written,
)  # fmt: skip
VALUES = HostKind("Values", ("values",), ("Value",), back=Value, written=None)


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    host_arrays.register(BOXES)
    host_arrays.register(VALUES)
    yield
    host_arrays.unregister(BOXES)
    host_arrays.unregister(VALUES)


rng = np.random.default_rng(5)
A = rng.standard_normal((6, 6))
SPD = A @ A.T + 6 * np.eye(6)
IMAGES = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
KERNEL = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
HEADS = rng.standard_normal((2, 2, 5, 4)).astype(np.float32)
# One call of every sort of public function: compiled, planned, composed, of arrays in tuples and lists, of plain Python.
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "matmul": (backline.matmul, (A, A), {}),
    "keywords": (backline.matmul, (), {"other": A, "input": A.T}),
    "scalar": (backline.dot, (A[0], A[1]), {}),
    "addmm": (backline.addmm, (A, A, A), {"alpha": 2.0}),
    "addbmm": (backline.addbmm, (A, A[None], A[None]), {}),
    "inner": (backline.inner, (A, A), {}),
    "kron": (backline.kron, (A, A), {}),
    "cdist": (backline.cdist, (A, A), {}),
    "stft": (backline.stft, (A, 4), {"window": A[0, :4], "power": 2}),
    "tensordot": (backline.tensordot, (A, A), {"dims": 1}),
    "chain": (backline.chain_matmul, (A, A, A), {}),
    "multi_dot": (linalg.multi_dot, ([A, A, A],), {}),
    "einsum": (backline.einsum, ("ij,jk->ik", A, A), {}),
    "einsum lists": (backline.einsum, (A, [0, 1], A, [1, 2]), {}),
    "svd": (linalg.svd, (A,), {}),
    "eigh": (linalg.eigh, (SPD,), {}),
    "cholesky": (linalg.cholesky, (SPD,), {}),
    "solve": (linalg.solve, (SPD, A), {}),
    "lu": (linalg.lu, (A,), {}),
    "det": (linalg.det, (A,), {}),
    "pinv": (linalg.pinv, (A,), {}),
    "norm": (linalg.norm, (A,), {}),
    "matrix_exp": (linalg.matrix_exp, (A,), {}),
    "diagonal": (linalg.diagonal, (A,), {}),
    "fft": (backline.fft.fft, (A,), {}),
    "fftshift": (backline.fft.fftshift, (A,), {}),
    "dct": (backline.fft.dct, (A,), {}),
    "softmax": (nn.functional.softmax, (A,), {"dim": 1}),
    "relu": (nn.functional.relu, (A,), {}),
    "linear": (nn.functional.linear, (A, A, A[0]), {"activation": "relu"}),
    "bilinear": (nn.functional.bilinear, (A, A, np.stack([A, A])), {}),
    "conv2d": (nn.functional.conv2d, (IMAGES, KERNEL), {"padding": 1}),
    "conv2d of one": (nn.functional.conv2d, (IMAGES[0], KERNEL), {}),
    "max_pool2d": (nn.functional.max_pool2d, (IMAGES, 2), {"return_indices": True}),
    "batch_norm": (nn.functional.batch_norm, (IMAGES, None, None), {"training": True}),
    "attention": (nn.functional.scaled_dot_product_attention, (HEADS, HEADS, HEADS), {"is_causal": True}),
    "heads": (nn.functional.multi_head_attention, (A[None], A[None], A[None], 2, np.concatenate([A, A, A]), None, A, None), {}),
    "ctc": (nn.functional.ctc_loss, (np.log(np.full((4, 1, 3), 1 / 3)), np.array([[1, 2]]), [4], [2]), {}),
    "gru": (nn.gru, (A[:, None], A[None, :1], (np.tile(A, (3, 1)), np.tile(A, (3, 1))), False, 1, 0.0, False, False, False), {}),
    "layer_norm_backward": (nn.grad.layer_norm_backward, (A, A, 6), {}),
    "prune": (backline.sparse.prune_2_4, (A[:, :4],), {}),
}  # fmt: skip


def near(one: Any, other: Any) -> None:
    """The same but for the last bits, which kernels of vendors may choose by the alignment of memory."""
    if other is None:
        assert one is None
        return
    one, other = np.asarray(one), np.asarray(other)
    assert one.dtype == other.dtype and one.shape == other.shape
    epsilon = 1e4 * float(np.finfo(other.dtype).eps) if other.dtype.kind in "fc" else 0.0
    np.testing.assert_allclose(one, other, rtol=epsilon, atol=epsilon)


def boxed(value: Any, kind: type[Box] = Box) -> Any:
    if isinstance(value, np.ndarray):
        return kind(value)
    return type(value)(boxed(part, kind) for part in value) if type(value) in (tuple, list) and not isinstance(value, str) else value


def unboxed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(unboxed(part) for part in value)
    assert value is None or isinstance(value, Box), value
    return value if value is None else value.data


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [Box, Value])
def test_the_same_results_of_the_same_kind(name: str, kind: type[Box]) -> None:
    function, args, kwargs = CALLS[name]
    want = function(*args, **kwargs)
    got = function(*(boxed(a, kind) for a in args), **{key: boxed(a, kind) for key, a in kwargs.items()})
    assert type(got) is (type(want) if isinstance(want, tuple) else kind)
    pairs = zip(unboxed(got), want, strict=True) if isinstance(want, tuple) else [(unboxed(got), want)]
    for one, other in pairs:
        near(one, other)


def test_nothing_is_copied() -> None:
    box = Box(A.copy())
    assert np.shares_memory(linalg.diagonal(box).data, box.data)
    out = Box(np.zeros((6, 6)))
    assert backline.matmul(box, box, out=out) is out and out.writes == 1
    near(out.data, backline.matmul(A, A))
    pair = Box(np.zeros((6, 6))), Box(np.zeros((6, 6)))
    found = linalg.qr(box, out=pair)
    assert found[0] is pair[0] and found[1] is pair[1]


def test_what_is_one_array_stays_one() -> None:
    box = Box(A)
    backline.matmul(box, box)
    assert box.exports == 1


@pytest.mark.parametrize(
    "array",
    [A[::2, ::-1], A.T, A[:, ::3], np.zeros((0, 6)), np.ones((1, 6)), np.full((2, 6), np.nan), np.broadcast_to(A[0], (3, 6))],
    ids=["negative strides", "transposed", "every third", "empty", "one row", "NaN", "repeated"],
)
def test_any_layout(array: np.ndarray[Any, Any]) -> None:
    square = np.ascontiguousarray(A[: array.shape[1]])
    got = backline.matmul(Box(array.copy() if not array.flags.writeable else array), Box(square[:, :3]))
    np.testing.assert_allclose(got.data, array.astype(np.longdouble) @ square[:, :3].astype(np.longdouble), rtol=1e-12, atol=1e-12)


def test_mixed_kinds_are_refused_by_name() -> None:
    for mixed in ((Box(A), A), (Box(A), Value(A)), (Value(A), Box(A))):
        with pytest.raises(BadType, match=r"other is an array of (NumPy|Values|Boxes), another argument is one of (Boxes|Values)"):
            backline.matmul(*mixed)
    with pytest.raises(BadType, match=r"matmul: .*other is an array of Boxes|NumPy"):
        backline.matmul(A, Box(A))
    with pytest.raises(BadType, match="one of Boxes"):
        backline.cdist(A, Box(A))
    with pytest.raises(BadType, match=r"out is an array of NumPy"):
        backline.matmul(Box(A), Box(A), out=np.zeros((6, 6)))


def test_another_device_is_refused() -> None:
    with pytest.raises(BadValue, match=r"matmul: other is on DLPack device 2:1") as caught:
        backline.matmul(Box(A), Box(A, (2, 1)))
    assert "copy on the CPU" in caught.value.remedy


def test_an_array_that_does_not_export_is_refused() -> None:
    class Broken(Box):
        __module__ = "boxes"

        def __dlpack__(self, **how: Any) -> Any:
            raise BufferError("a lock is held")

    with pytest.raises(BadType, match=r"input has no NumPy view: a lock is held"):
        backline.matmul(Broken(A), Box(A))


def test_nothing_is_written_to_values() -> None:
    with pytest.raises(BadType, match="matmul: out") as caught:
        backline.matmul(Value(A), Value(A), out=Value(np.zeros((6, 6))))
    assert "nothing writes to arrays of Values" in caught.value.cause
    frozen = A.copy()
    frozen.flags.writeable = False
    before = frozen.copy()
    for name in ("svd", "solve", "eigh", "cholesky"):
        function, args, kwargs = CALLS[name]
        function(*(Value(a) for a in args), **kwargs)
    backline.fft.fft(Value(frozen), overwrite_input=True)
    np.testing.assert_array_equal(frozen, before)


def test_dtypes_of_the_package_are_read() -> None:
    got = nn.functional.softmax(Box(A.astype(np.float32)), dim=0, dtype=Precision())
    assert got.data.dtype == np.float64


def test_layers_that_own_their_weights() -> None:
    packed = backline.prepack(Box(A))
    near(packed.product(Box(A)).data, packed.product(A))
    layer = nn.functional.prepack_linear(Box(A), Box(A[0]))
    near(layer(Box(A)).data, layer(A))
    single = A.astype(np.float32)
    q = backline.quantized.quantize_weights(Box(single))
    packed_q = backline.quantized.linear_prepack(q)
    near(backline.quantized.linear_dynamic(Box(single), packed_q).data, backline.quantized.linear_dynamic(single, packed_q))


def test_explain_takes_them() -> None:
    assert backline.explain(backline.matmul, Box(A), Box(A)).problem == backline.explain(backline.matmul, A, A).problem


def test_errors_of_an_operation_are_its_own() -> None:
    with pytest.raises(BadValue, match="matmul"):
        backline.matmul(Box(A), Box(A[:3]))
    with pytest.raises(BadType, match=r"not a number|dtype"):
        backline.matmul(Box(np.array(["a"])).data, A)


def test_the_way_of_numpys_arrays_is_not_longer() -> None:
    """Neither a first call with NumPy's arrays nor a later one looks for other kinds in host memory."""
    called: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("host_arrays.py"):
            called.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        for shape in ((3, 3), (3, 3), (17, 17)):
            array = np.ones(shape)
            for function in (linalg.inv, linalg.det, linalg.matrix_norm, nn.functional.relu):
                function(array + np.eye(len(array)))
            for product in (backline.matmul, backline.cdist, backline.inner, linalg.solve):
                product(array + np.eye(len(array)), array)
            nn.functional.multi_head_attention(*(np.ones((1, 3, 4)),) * 3, 2, np.ones((12, 4)), None, np.ones((4, 4)), None)
    finally:
        sys.setprofile(None)
    assert called == []


def test_types_are_forgotten_in_time() -> None:
    for i in range(1100):
        assert host_arrays.host_kind_of(type(f"T{i}", (), {})()) is None
    assert len(host_arrays._known) <= 1001
