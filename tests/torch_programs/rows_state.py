"""Differences of switches, scopes and the freeze."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
from differences import difference, in_torch

import backline
from backline import backends, switches
from backline.backends import cuda, cudnn, mkl, mkldnn, opt_einsum
from support import python


def in_thread(read: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(read()))
    thread.start()
    thread.join()
    return found[0]


@difference(
    "State", "a scope belongs to a thread or task",
    torch="`with cudnn.flags(...)` changes the process: every other thread and task sees it.",
    backline="Only this thread or asyncio task sees it, and contexts copied from it.",
    why="Another thread's computation would run with flags that its program never set.",
    remedy="An assignment outside of scopes, for the whole process.",
)  # fmt: skip
def scope() -> None:
    with cudnn.flags(deterministic=True):
        assert cudnn.deterministic and not in_thread(lambda: cudnn.deterministic)


@in_torch(scope)
def _(torch: Any) -> None:
    with torch.backends.cudnn.flags(deterministic=True):
        assert in_thread(lambda: torch.backends.cudnn.deterministic)


@difference(
    "State", "an assignment inside a scope ends with it",
    torch="What is assigned inside a `with` stays afterwards, unless that scope's own flags cover it.",
    backline="It is written to the innermost scope and ends with it; outside of scopes it is the process's.",
    why="What a library assigns inside a caller's scope must not outlive it.",
    remedy="Assign outside of the `with`.",
)  # fmt: skip
def assignment() -> None:
    with cudnn.flags(enabled=True):
        mkldnn.deterministic = True
        assert mkldnn.deterministic
    assert not mkldnn.deterministic


@in_torch(assignment)
def _(torch: Any) -> None:
    with torch.backends.cudnn.flags(enabled=True):
        torch.backends.mkldnn.deterministic = True
    assert torch.backends.mkldnn.deterministic


@difference(
    "State", "`flags()` changes what it names",
    torch="Arguments that are left out take defaults: `cudnn.flags(benchmark=True)` also sets `enabled=False` and `allow_tf32=True`.",
    backline="What is not named keeps its value, and the exact state comes back at the exit.",
    why="Timing convolutions must not switch cuDNN off.",
    remedy="Name what is to change: `cudnn.flags(enabled=False, benchmark=True)`.",
)  # fmt: skip
def named() -> None:
    cudnn.allow_tf32 = False
    with cudnn.flags(benchmark=True):
        assert cudnn.enabled and cudnn.benchmark and not cudnn.allow_tf32


@in_torch(named)
def _(torch: Any) -> None:
    torch.backends.cudnn.allow_tf32 = False
    with torch.backends.cudnn.flags(benchmark=True):
        assert not torch.backends.cudnn.enabled and torch.backends.cudnn.allow_tf32


@difference(
    "State", "`set_flags` keeps what is not given",
    torch="None is refused or stands for off in some modules (`nnpack.set_flags(None)` raises).",
    backline="None and what is left out keep their values, in every module; the old values are returned.",
    why="One rule for all modules, and the returned tuple can be passed back.",
    remedy="Nothing: calls with values do the same.",
)  # fmt: skip
def set_flags() -> None:
    assert backends.nnpack.set_flags(None) == (True,) and backends.nnpack.enabled


@in_torch(set_flags)
def _(torch: Any) -> None:
    with pytest.raises(RuntimeError):
        torch.backends.nnpack.set_flags(None)


@difference(
    "State", "the freeze covers every switch",
    torch="`disable_global_flags()` freezes some switches; `cuda.matmul.*`, the attention switches and others stay open, and assignments "
    "inside scopes are refused too.",
    backline="It freezes the process's value of every switch; scopes, and assignments inside them, work.",
    why="A frozen program is one whose defaults nobody changes; what a scope changes ends with it.",
    remedy="`with ...flags(...)`.",
)  # fmt: skip
def freeze() -> None:
    done = python("""
        from backline import backends, errors
        backends.disable_global_flags()
        for write in (
            lambda: setattr(backends.cuda.matmul, "allow_tf32", True), lambda: backends.cuda.enable_flash_sdp(False),
            lambda: backends.mha.set_fastpath_enabled(False),
        ):
            try:
                write()
            except errors.Frozen as error:
                assert "flags(" in str(error)
            else:
                raise AssertionError("written")
        with backends.cudnn.flags():
            backends.cudnn.enabled = False
            assert not backends.cudnn.enabled
        assert backends.cudnn.enabled
    """)
    assert done.returncode == 0, done.stderr


@in_torch(freeze)
def _(torch: Any) -> None:
    torch.backends.disable_global_flags()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.enable_flash_sdp(False)
    with torch.backends.cudnn.flags(enabled=True), pytest.raises(RuntimeError):
        torch.backends.cudnn.enabled = False


@difference(
    "State", "scopes that overlap",
    torch="Enter A, enter B, leave A, leave B ends with the values of A.",
    backline="A scope takes away what it added, wherever it stands: the end is the state before both.",
    why="Generators and exit stacks leave scopes in any order.",
    remedy="Nothing.",
)  # fmt: skip
def overlap() -> None:
    a, b = cudnn.flags(deterministic=True), cudnn.flags(benchmark=True)
    a.__enter__(), b.__enter__()
    a.__exit__(None, None, None)
    assert cudnn.benchmark and not cudnn.deterministic
    b.__exit__(None, None, None)
    assert not cudnn.benchmark and not cudnn.deterministic


@in_torch(overlap)
def _(torch: Any) -> None:
    a, b = torch.backends.cudnn.flags(deterministic=True), torch.backends.cudnn.flags(benchmark=True)
    a.__enter__(), b.__enter__()
    a.__exit__(None, None, None)
    b.__exit__(None, None, None)
    assert torch.backends.cudnn.deterministic


@difference(
    "State", "reading a precision never raises",
    torch="`cudnn.allow_tf32` raises once `cudnn.conv.fp32_precision` and `cudnn.rnn.fp32_precision` differ; "
    "`get_float32_matmul_precision()` after mixed settings too.",
    backline="`allow_tf32` is True where every operation it stands for may use TF32, else False.",
    why="A report of the settings must not end the program.",
    remedy="Read the `fp32_precision` of the operation.",
)  # fmt: skip
def reading() -> None:
    cudnn.conv.fp32_precision = "ieee"
    assert cudnn.allow_tf32 is False and cudnn.rnn.fp32_precision == "tf32"


@in_torch(reading)
def _(torch: Any) -> None:
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    with pytest.raises(RuntimeError):
        _ = torch.backends.cudnn.allow_tf32


@difference(
    "State", "oneDNN's precision is its own",
    torch="`mkldnn.fp32_precision = \"bf16\"` writes the precision of every backend, `torch.backends.fp32_precision`.",
    backline="It writes the node of oneDNN, which its products, convolutions and recurrent networks inherit from.",
    why="A setting for the CPU must not change what CUDA computes.",
    remedy="`backends.fp32_precision = \"bf16\"` for all.",
)  # fmt: skip
def precision() -> None:
    mkldnn.fp32_precision = "bf16"
    assert mkldnn.matmul.fp32_precision == "bf16" and backends.fp32_precision == "none"


@in_torch(precision)
def _(torch: Any) -> None:
    torch.backends.mkldnn.fp32_precision = "bf16"
    assert torch.backends.fp32_precision == "bf16"


@difference(
    "State", "verbose scopes nest",
    torch="Leaving an inner `mkl.verbose` or `mkldnn.verbose` turns all output off.",
    backline="The outer scope's level comes back, or the environment's. Entering returns a list of the calls as events.",
    why="An inner scope must not end what an outer one shows.",
    remedy="Nothing.",
)  # fmt: skip
def verbose() -> None:
    level = int(mkldnn.is_available())
    with mkldnn.verbose(level) as events:
        with mkldnn.verbose(0):
            assert switches.get("mkldnn.verbose_level") == 0
        assert switches.get("mkldnn.verbose_level") == level
    assert list(events) == [] and switches.get("mkldnn.verbose_level") == 0


@difference(
    "State", "NumPy bools are bools",
    torch="`cudnn.benchmark = numpy.bool_(True)` raises; 1 and None are refused too.",
    backline="NumPy's bools count as bools, its integers as ints; 1 and None are refused.",
    why="Conditions computed with NumPy are of that type.",
    remedy="Nothing.",
)  # fmt: skip
def bools() -> None:
    import numpy as np

    cudnn.benchmark = np.bool_(True)
    assert cudnn.benchmark is True
    with pytest.raises(RuntimeError, match="bool"):
        cudnn.benchmark = 1


@in_torch(bools)
def _(torch: Any) -> None:
    import numpy as np

    with pytest.raises(RuntimeError):
        torch.backends.cudnn.benchmark = np.bool_(True)


@difference(
    "State", "the word of precision",
    torch="`set_float32_matmul_precision(\"HIGH\")`, and any other word that is none, warns and changes nothing.",
    backline="Upper and lower case do not matter; another word is refused.",
    why="A program that believes to have set a precision computes with another one.",
    remedy="\"highest\", \"high\" or \"medium\".",
)  # fmt: skip
def word() -> None:
    backline.set_float32_matmul_precision("HIGH")
    assert backline.get_float32_matmul_precision() == "high"
    with pytest.raises(ValueError, match="medium"):
        backline.set_float32_matmul_precision("foo")


@in_torch(word)
def _(torch: Any) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.set_float32_matmul_precision("HIGH")
    assert found and torch.get_float32_matmul_precision() == "highest"


@difference(
    "State", "switches of opt_einsum are checked",
    torch="`opt_einsum.strategy = \"nonsense\"` and `opt_einsum.enabled = \"x\"` are stored; `einsum` fails later.",
    backline="They are refused at once.",
    why="The error belongs where the mistake is.",
    remedy="A strategy of the installed opt_einsum; a bool.",
)  # fmt: skip
def einsum() -> None:
    with pytest.raises(ValueError, match="auto"):
        opt_einsum.strategy = "nonsense"
    with pytest.raises(TypeError, match="bool"):
        opt_einsum.enabled = "x"  # type: ignore[assignment]  # wrong on purpose


@in_torch(einsum)
def _(torch: Any) -> None:
    import torch.backends.opt_einsum as opt

    if opt.is_available():
        opt.strategy = "nonsense"
        assert opt.strategy == "nonsense"


@difference(
    "State", "switches of our own",
    torch="Without counterpart.",
    backline="`backends.fallback`, `benchmark`, `determinism_level`, `emulate`, `num_threads`, `prefer`, `only`, `max_error`, and `enabled` and "
    "`flags()` of every library.",
    why="What a program may want to say of a library, it can say in one place and in a scope.",
    remedy="`hasattr` where a program is to run on both.",
)  # fmt: skip
def own() -> None:
    with backends.flags(fallback="error", benchmark=True, determinism_level="threads", emulate=True, num_threads=1, max_error=1e-3):
        assert backends.fallback == "error" and backline.get_num_threads() == 1
    assert mkl.enabled in (True, False) and backends.openmp.is_enabled() in (True, False)
    with cuda.flags(flash_sdp=False), mkl.flags(enabled=False):
        assert not cuda.flash_sdp_enabled() and not mkl.enabled


@in_torch(own)
def _(torch: Any) -> None:
    assert not hasattr(torch.backends, "fallback") and not hasattr(torch.backends.cuda, "flags")
