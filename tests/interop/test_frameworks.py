"""Backline's switches in other frameworks and back: what is set, what is left, what is put back, what the table says."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import threadpoolctl

import backline
from backline import backends, switches
from backline.errors import BackendUnavailable, UnknownName
from backline.interop import frameworks
from backline.interop.framework_settings import FRAMEWORKS
from backline.libraries import quantized_engines
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of JAX as the table asks for."""
    config = SimpleNamespace(jax_default_matmul_precision=None)
    config.update = lambda name, value: setattr(config, name, value)
    module: Any = ModuleType("jax")
    module.config = config
    monkeypatch.setitem(sys.modules, "jax", module)
    return module


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As much of CuPy as the table asks for; its cache takes no negative sizes, as CuPy's."""
    size = [16]

    def set_size(value: int) -> None:
        if value > 1000:
            raise ValueError("too large")
        size[0] = value

    cache = SimpleNamespace(get_size=lambda: size[0], set_size=set_size)
    module: Any = ModuleType("cupy")
    module.fft = SimpleNamespace(config=SimpleNamespace(get_plan_cache=lambda: cache))
    monkeypatch.setitem(sys.modules, "cupy", module)
    # The switch of the plan cache exists on machines with CUDA only; another stands in its place.
    known = FRAMEWORKS["cupy"]
    monkeypatch.setitem(FRAMEWORKS, "cupy", known.replaced(settings=(known.settings[0].replaced(switch="benchmark_limit"),)))
    return module


def row(table: frameworks.Applied, switch: str) -> frameworks.AppliedSetting:
    return next(each for each in table if each.switch == switch)


def test_what_was_set_is_carried_over_and_put_back(jax: Any) -> None:
    with backends.flags(fp32_precision="tf32"), backline.apply_to("jax") as table:
        assert jax.config.jax_default_matmul_precision == "tensorfloat32"
        found = row(table, "fp32_precision")
        assert found.applied and (found.requested, found.before, found.effective) == ("tf32", None, "tensorfloat32")
    assert jax.config.jax_default_matmul_precision is None


def test_what_nobody_set_is_left(jax: Any) -> None:
    jax.config.jax_default_matmul_precision = "bfloat16"
    table = backline.apply_to("jax")
    assert "fp32_precision" not in [each.switch for each in table] and jax.config.jax_default_matmul_precision == "bfloat16"
    assert str(frameworks.Applied()) == "nothing to carry over: no switch was set"
    with backline.apply_to("jax", everything=True):
        assert jax.config.jax_default_matmul_precision is None
    assert jax.config.jax_default_matmul_precision == "bfloat16"


def test_what_cannot_be_set_there_has_its_reason(jax: Any) -> None:
    with backline.use("numpy"), backline.num_threads(1):
        table = backline.apply_to("jax")
    assert "XLA makes its pool" in row(table, "num_threads").reason and not row(table, "num_threads").applied
    assert "no choice of libraries" in str(table)


def test_what_a_framework_refuses_is_said_and_the_rest_goes_on(jax: Any, cupy: Any) -> None:
    with switches.scope(benchmark_limit=5000, fp32_precision="bf16"):
        table = backline.apply_to("cupy", "jax")
    refused = row(table, "benchmark_limit")
    assert refused.reason == "cupy refused it: too large" and refused.effective == 16
    assert jax.config.jax_default_matmul_precision == "bfloat16"
    table.undo()
    assert jax.config.jax_default_matmul_precision is None


def test_a_value_that_does_not_hold_is_told(jax: Any) -> None:
    jax.config.update = lambda name, value: None
    with backends.flags(fp32_precision="tf32"):
        assert row(backline.apply_to("jax"), "fp32_precision").reason == "jax reads None after it was set"


def test_nothing_is_changed_where_one_framework_is_missing(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with backends.flags(fp32_precision="tf32"):
        with pytest.raises(BackendUnavailable, match="install cupy"):
            backline.apply_to("jax", "cupy")
        with pytest.raises(UnknownName, match="one of: torch, jax, cupy, numpy, threadpoolctl"):
            backline.apply_to("jax", "tensorflow")
    assert jax.config.jax_default_matmul_precision is None


def test_read_from(jax: Any) -> None:
    jax.config.jax_default_matmul_precision = "tensorfloat32"
    with backline.read_from("jax") as table:
        assert switches.get("fp32_precision") == "tf32" and row(table, "fp32_precision").before == "none"
    assert switches.get("fp32_precision") == "none"
    jax.config.jax_default_matmul_precision = "BF16_BF16_F32_X9"  # Backline has no such value
    table = backline.read_from("jax")
    assert not row(table, "fp32_precision").applied and switches.get("fp32_precision") == "none"


@pytest.mark.parametrize("name", ["threadpoolctl", "numpy"])
def test_threads(name: str) -> None:
    def numpys() -> set[int]:
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if "numpy.libs" in (pool.get("filepath") or "")}

    before = numpys()
    if not before:
        pytest.skip("NumPy has no OpenBLAS of its own here")
    with backline.num_threads(1), backline.apply_to(name) as table:
        assert row(table, "num_threads").applied and numpys() == {1}
    assert numpys() == before


def test_what_no_program_may_write_is_put_back(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine reads "auto" until one is set, and "auto" cannot be set."""
    other = next(name for name in quantized_engines.supported() if name != switches.get("quantized.engine"))
    engine = FRAMEWORKS["jax"].settings[0].replaced(switch="quantized.engine", read=lambda module: other, words=None)
    monkeypatch.setitem(FRAMEWORKS, "jax", FRAMEWORKS["jax"].replaced(settings=(engine,)))
    before = switches.current()
    with backline.read_from("jax"):
        assert switches.current()["quantized.engine"] == other
    assert switches.current() is before and before["quantized.engine"] == "auto"


def test_a_fault_puts_everything_back(jax: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    broken = FRAMEWORKS["cupy"].replaced(settings=(FRAMEWORKS["cupy"].settings[0].replaced(read=interrupt),))
    monkeypatch.setitem(FRAMEWORKS, "cupy", broken)
    with switches.scope(benchmark_limit=50, fp32_precision="bf16"), pytest.raises(KeyboardInterrupt):
        backline.apply_to("jax", "cupy")
    assert jax.config.jax_default_matmul_precision is None


def test_every_row_is_a_switch() -> None:
    for framework in FRAMEWORKS.values():
        for name in (*(setting.switch for setting in framework.settings), *framework.without):
            assert name in switches.all_switches() or switches.lookup(name)


@pytest.mark.torch
def test_pytorch_has_every_setting_and_takes_it() -> None:
    torch = pytest.importorskip("torch")
    before = {setting.switch: setting.read(torch) for setting in FRAMEWORKS["torch"].settings}
    values: dict[str, Any] = {
        "num_threads": 1, "deterministic": True, "warn_only": True, "fp32_precision": "tf32", "mkldnn.fp32_precision": "bf16",
        "cudnn.benchmark": True, "cudnn.deterministic": True, "mkldnn.deterministic": True, "opt_einsum.strategy": "greedy",
        "mha.fastpath": False, "cuda.flash_sdp": False, "cuda.math_sdp": False, "nnpack.enabled": False,
        "cuda.fp16_bf16_reduction_math_sdp": True, "cuda.matmul.fp32_precision": "ieee", "cudnn.conv.fp32_precision": "ieee",
    }  # fmt: skip
    with switches.scope(values), backline.apply_to("torch") as table:
        for switch in values:
            assert row(table, switch).applied, row(table, switch)
        assert torch.get_num_threads() == 1 and torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
        with backline.read_from("torch"):
            assert switches.get("cuda.flash_sdp") is False and switches.get("num_threads") == 1
    assert {setting.switch: setting.read(torch) for setting in FRAMEWORKS["torch"].settings} == before


@pytest.mark.torch
def test_precision_has_its_effect_in_pytorch() -> None:
    """Products of float32 lose bits where oneDNN has bf16 kernels; elsewhere the setting holds without effect."""
    torch = pytest.importorskip("torch")
    a = torch.rand(512, 512)
    exact = a.double() @ a.double()

    def error() -> float:
        return float(((a @ a).double() - exact).abs().max() / exact.abs().max())

    full = error()
    with backends.flags(fp32_precision="bf16"), backline.apply_to("torch"):
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        reduced = error()
    assert full < 1e-5 and error() == full
    assert (reduced > 1e-5) == bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


# For every setting of PyTorch a value that it does not have by default; None for what a build without CUDA cannot hold.
OTHER_VALUES: dict[str, Any] = {
    "num_threads": 1, "deterministic": True, "warn_only": True, "utils.deterministic.fill_uninitialized_memory": False,
    "fp32_precision": "tf32", "mkldnn.fp32_precision": "bf16", "cudnn.fp32_precision": "tf32", "cuda.matmul.fp32_precision": "ieee",
    "cudnn.conv.fp32_precision": "ieee", "cudnn.rnn.fp32_precision": "ieee", "mkldnn.matmul.fp32_precision": "tf32",
    "mkldnn.conv.fp32_precision": "bf16", "mkldnn.rnn.fp32_precision": "bf16", "cuda.matmul.allow_fp16_accumulation": True,
    "cudnn.enabled": False, "cudnn.benchmark": True, "cudnn.benchmark_limit": None, "cudnn.deterministic": True,
    "mkldnn.enabled": False, "mkldnn.deterministic": True, "nnpack.enabled": False, "opt_einsum.enabled": False,
    "opt_einsum.strategy": "optimal", "quantized.engine": "qnnpack", "mha.fastpath": False, "cuda.flash_sdp": False,
    "cuda.mem_efficient_sdp": False, "cuda.math_sdp": False, "cuda.cudnn_sdp": False, "cuda.fp16_bf16_reduction_math_sdp": True,
    "cuda.preferred_linalg_library": None, "cuda.preferred_blas_library": None,
}  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("setting", FRAMEWORKS["torch"].settings, ids=lambda setting: setting.switch)
def test_each_setting_of_pytorch_is_read_back_and_put_back(setting: Any) -> None:
    torch = pytest.importorskip("torch")
    value, before = OTHER_VALUES[setting.switch], setting.read(torch)
    if value is None:
        return
    with switches.scope({setting.switch: value}), backline.apply_to("torch") as table:
        found = row(table, setting.switch)
        if found.applied:
            assert setting.read(torch) == value and found.effective == value
        else:  # such as an engine that this build has not: the reason says so, and nothing changed
            assert found.reason and setting.read(torch) == found.effective
            assert setting.switch in ("quantized.engine", "cudnn.enabled")
    assert setting.read(torch) == before


def kernels(torch: Any, function: Any) -> set[str]:
    """Names of PyTorch's operators that a call runs."""
    with torch.profiler.profile() as seen:
        function()
    return {event.key for event in seen.key_averages()}


@pytest.mark.torch
def test_settings_have_their_effect_in_pytorch() -> None:
    """Effects that the CPU shows: which kernels run, what is refused, how memory is filled."""
    torch = pytest.importorskip("torch")
    image, weight = torch.randn(2, 32, 32, 32), torch.randn(64, 32, 3, 3)
    x = torch.randn(1, 4, 16, 8)
    one = x[0]
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()

    def convolution() -> set[str]:
        return kernels(torch, lambda: torch.conv2d(image, weight))

    def fast() -> bool:
        with torch.no_grad():
            return any("_native_multi_head_attention" in name for name in kernels(torch, lambda: layer(one, one, one)))

    assert "aten::mkldnn_convolution" in convolution() and fast() and torch._fused_sdp_choice(x, x, x) == 1
    with switches.scope({"mkldnn.enabled": False, "mha.fastpath": False, "cuda.flash_sdp": False}), backline.apply_to("torch"):
        assert "aten::mkldnn_convolution" not in convolution() and not fast()
        assert torch._fused_sdp_choice(x, x, x) == 0
    assert "aten::mkldnn_convolution" in convolution() and fast()
    with switches.scope(deterministic=True), backline.apply_to("torch"):
        assert bool(torch.empty(64).isnan().all())
        with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
            torch.zeros(4).put_(torch.tensor([0]), torch.tensor([1.0]))
    with (
        switches.scope({"deterministic": True, "warn_only": True}), backline.apply_to("torch"),
        pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"),
    ):  # fmt: skip
        torch.zeros(4).put_(torch.tensor([0]), torch.tensor([1.0]))
    with backline.num_threads(1), backline.apply_to("torch"):
        assert "at::get_num_threads() : 1" in torch.__config__.parallel_info()
