"""MLX as a library: where it runs a Problem, what it reports, laziness, and that nobody imports it unasked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mlx_arrays import back, mx, there

import backline
from backline import libraries
from backline.backends import mps
from backline.errors import BacklineError, BadType, NoKernel
from backline.libraries.base import Algorithm, Refusal
from backline.libraries.mlx.library import MLX
from backline.libraries.mlx.placement import Device, device_of, has_matrix_units, not_on_metal, reduces
from backline.nn import functional
from backline.problems import Operand, Problem
from support import clean, problem_of, python

pytestmark = pytest.mark.usefixtures("clean")
assert clean

METAL, NEWEST = Device(metal=True), Device(metal=True, tf32=True)


def problem(family: str, name: str = "float32") -> Problem:
    return Problem(f"{family}.x", (Operand("a", np.dtype(name), (4, 4), (16, 4)),), family=family, device="mps")


# Placement -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["matmul", "conv", "neural", "attention", "fft", "rnn"])
def test_what_runs_on_metal(family: str) -> None:
    assert not_on_metal(problem(family), METAL) == ""
    assert not_on_metal(problem(family), Device()) == "MLX has no Metal device here"
    assert not_on_metal(problem(family, "float64"), METAL) == "Metal has no float64"


def test_linear_algebra_does_not() -> None:
    assert not_on_metal(problem("linalg"), METAL) == "MLX has linear algebra on its CPU stream only"


@pytest.mark.parametrize(
    ("family", "name", "wanted"),
    [("matmul", "float32", True), ("conv", "float32", True), ("attention", "float32", True), ("matmul", "complex64", True),
     ("matmul", "float16", False), ("fft", "float32", False), ("neural", "float32", False), ("linalg", "float32", False)],
)  # fmt: skip
def test_what_the_newest_chips_reduce(family: str, name: str, wanted: bool) -> None:
    assert reduces(problem(family, name), NEWEST) is wanted
    assert reduces(problem(family, name), METAL) is False


class Told:
    """The facts that MLX tells of a device."""

    gpu = "gpu"

    def __init__(self, architecture: str | None) -> None:
        self.metal = self
        self.architecture = architecture

    def is_available(self) -> bool:
        return self.architecture is not None

    def device_info(self, device: str) -> dict[str, Any]:
        return {"architecture": self.architecture}


@pytest.mark.parametrize(
    ("architecture", "asked", "wanted"),
    [(None, None, Device()), ("applegpu_g13g", None, METAL), ("applegpu_g17s", None, NEWEST), ("applegpu_g17s", "1", NEWEST),
     ("applegpu_g17s", "0", METAL), ("applegpu_g18p", None, NEWEST), ("applegpu_g17p", None, METAL), ("unheard of", None, METAL)],
)  # fmt: skip
def test_devices(architecture: str | None, asked: str | None, wanted: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    if asked is not None:
        monkeypatch.setenv("MLX_ENABLE_TF32", asked)
    assert device_of(Told(architecture)) == wanted
    assert not has_matrix_units("")


def listed(device: Device, op: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    library = MLX()
    library._device = device
    return {a.name: a for a in library.algorithms(problem_of(op, *args, **kwargs), 1)}


A = there(np.ones((4, 4), np.float32))


def test_algorithms_by_device() -> None:
    here = listed(Device(), "matmul", A, A)
    assert isinstance(here["matmul"], Refusal) and here["matmul_cpu"].traits == ()
    there_ = listed(METAL, "matmul", A, A)
    assert list(there_) == ["matmul", "matmul_cpu"] and there_["matmul"].traits == ("metal",)
    assert (there_["matmul"].level, there_["matmul_cpu"].level) == ("off", "run")
    newest = listed(NEWEST, "matmul", A, A)
    assert newest["matmul"].precision == "tf32 (MLX_ENABLE_TF32)" and newest["matmul_cpu"].precision == ""
    wide = listed(METAL, "matmul", A.astype(mx.float64), A.astype(mx.float64))
    assert wide["matmul"].reason == "Metal has no float64" and isinstance(wide["matmul_cpu"], Algorithm)
    assert listed(METAL, "linalg.qr", A)["linalg"].reason == "MLX has linear algebra on its CPU stream only"


def test_the_switch_moves_work_to_the_cpu_stream() -> None:
    library = MLX()
    library._device = NEWEST
    libraries.register(library)
    try:
        choice = backline.explain(backline.matmul, A, A)
        assert choice.algorithm == "matmul" and choice.effective == "tf32 (MLX_ENABLE_TF32)" and choice.requested == "none"
        with mps.flags(enabled=False):
            assert backline.explain(backline.matmul, A, A).algorithm == "matmul_cpu"
            assert backline.matmul(A, A).shape == (4, 4)
        with backline.backends.flags(benchmark=True):  # nothing is measured
            assert backline.explain(backline.matmul, A, A).algorithm == "matmul"
        with backline.backends.flags(deterministic=True):
            assert backline.explain(backline.matmul, A, A).algorithm == "matmul_cpu"
    finally:
        libraries.unregister("mlx")


# Reports -------------------------------------------------------------------------------------------------------------


def test_reports() -> None:
    library = libraries.get("mlx")
    assert library.available() and library.version() == mx.__version__ and library.reason() == ""
    report = library.report()
    assert report["available"] and report["version"] == mx.__version__ and "CPU stream" in report["config"]
    assert mps.is_built() and mps.version() == mx.__version__
    assert mps.is_available() == mx.metal.is_available() == mps.is_enabled()
    assert backline.backends.cuda.is_flash_attention_available("mps") == mx.metal.is_available()


def test_trace_and_explain() -> None:
    with backline.trace() as trace:
        backline.matmul(A, A)
        functional.relu(A)
    assert [event.library for event in trace] == ["mlx", "mlx"]
    choice = backline.explain()
    assert choice.problem.device == "mps" and "lazy" in str(choice) and choice.threads >= 1


def test_results_are_lazy_and_belong_to_the_caller() -> None:
    x = A * 2
    y = backline.matmul(x, x)
    assert isinstance(y, mx.array)
    mx.eval(y)
    assert back(y)[0, 0] == 16


def test_only_another_library() -> None:
    with backline.use("numpy", only=True), pytest.raises(NoKernel, match="only"):
        backline.matmul(A, A)


def test_numpy_s_arrays_are_not_its_business() -> None:
    x = np.ones((3, 3), np.float32)
    assert all(c.library != "mlx" for c in backline.explain(backline.matmul, x, x).candidates)
    (refusal,) = MLX().algorithms(problem_of("matmul", x, x), 1)
    assert isinstance(refusal, Refusal) and "for arrays of MLX" in refusal.reason


def test_nobody_imports_it_unasked() -> None:
    python("""
        import sys
        import numpy as np
        import backline
        from backline.nn import functional, grad
        x = np.ones((8, 8), np.float32)
        backline.matmul(x, x); backline.linalg.inv(np.eye(3)); functional.softmax(x, 1); backline.fft.fft(x)
        functional.conv2d(x[None, None], x[None, None, :3, :3])
        functional.scaled_dot_product_attention(x, x, x)
        backline.explain(backline.matmul, x, x)
        backline.backends.mps.is_available(), backline.backends.mps.is_built(), backline.backends.mps.version()
        with backline.backends.mps.flags(enabled=False):
            backline.matmul(x, x)
        assert not [name for name in sys.modules if name.partition(".")[0] == "mlx"]
        import mlx.core as mx
        assert backline.matmul(mx.ones((2, 2)), mx.ones((2, 2))).shape == (2, 2)
    """)


def test_without_mlx() -> None:
    python("""
        import sys
        sys.modules["mlx"] = None
        from backline import backends, libraries
        library = libraries.get("mlx")
        assert not library.available() and "mlx" in library.reason() and library.version() is None
        assert not library.report()["available"] and not backends.mps.is_available() and not backends.mps.is_built()
    """)


def test_many_threads_share_a_plan() -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = np.arange(16.0, dtype=np.float32).reshape(4, 4)

    def one(n: int) -> Any:
        y = mx.array(x + n)
        return back(backline.matmul(y, y))  # evaluated in the thread that made it

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(24)))
    for n, result in enumerate(results):
        assert np.array_equal(result, (x + n) @ (x + n))


# Every public operation runs, or refuses by name ---------------------------------------------------------------------

CALLS: dict[str, Any] = {
    "tensordot": (A, A), "chain_matmul": (A, A), "einsum": ("ij,jk", A, A), "linalg.multi_dot": ([A, A],),
    "linalg.matrix_power": (A, 3), "linalg.norm": (A,), "linalg.vector_norm": (A,), "linalg.matrix_norm": (A,), "linalg.cond": (A,),
    "linalg.det": (A,), "linalg.slogdet": (A,), "linalg.pinv": (A,), "linalg.matrix_rank": (A,), "linalg.lu": (A,),
    "nn.functional.dropout": (A, 0.5, False), "nn.functional.bilinear": (A, A, there(np.ones((2, 4, 4), np.float32))),
    "nn.functional.batch_norm": (A, None, None, None, None, True), "fft.fftshift": (A,), "fft.ifftshift": (A,),
    "nn.functional.multi_head_attention": (A, A, A, 2, there(np.ones((12, 4), np.float32)), None, A, None),
    "nn.functional.prepack_linear": (A,), "prepack": (A,), "nn.grad.max_pool1d_input": (A, A[:, ::2], 2), "nn.grad.layer_norm_backward": (A, A, 4),
    "nn.grad.linear_input": (A, A), "nn.grad.linear_weight": (A, A), "nn.grad.linear_bias": (A,), "fft.dct": (A,),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_operations_that_are_made_of_others(name: str) -> None:
    """They give arrays of MLX, or say in an error of their own that they take NumPy's: nothing is converted unasked."""
    function: Any = backline
    for part in name.split("."):
        function = getattr(function, part)
    try:
        result = function(*CALLS[name])
    except (BadType, NoKernel) as error:
        assert isinstance(error, BacklineError) and ("MLX" in str(error) or "mlx" in str(error)), error
        return
    for part in result if isinstance(result, tuple) else (result,):
        assert part is None or isinstance(part, mx.array), type(part)
