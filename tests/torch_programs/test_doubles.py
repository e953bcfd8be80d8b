"""Test doubles that the suites of other programs put on ``torch.backends``: they work, and everything is as before afterwards."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pytest

import backline as torch
from backline import backends, switches
from backline.errors import BadType, Frozen, ReadOnly, UnknownName
from backline.switches import process_values, store


def everything() -> tuple[object, ...]:
    """The state that a double must leave as it was: values, names, and who answers for a name."""
    homes = (backends, backends.cudnn, backends.mps, backends.cuda, backends.mkldnn, backends.cudnn.conv, backends.cuda.matmul)
    names = {home: {name: vars(home)[name] for name in vars(home) if not name.startswith("__")} for home in homes}
    classes = [{name: x for name, x in vars(type(home)).items() if "__" not in name} for home in homes]
    return switches.current(), [names[home] for home in homes], classes, [dir(home) for home in homes], dict(process_values.assigned)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    for name in ("xeon.run_cpu", "cudnn.rnn", "quantized", "opt_einsum", "mkldnn", "mps", "mkl", "cuda"):
        importlib.import_module(f"backline.backends.{name}")  # what is imported later would be no trace of a double
    before = everything()
    yield
    assert everything() == before


# --- functions ---------------------------------------------------------------------------------------------------------


def test_monkeypatch_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr("backline.backends.cuda.is_built", lambda: "built")
    assert torch.backends.mps.is_available() is True and torch.backends.cuda.is_built() == "built"
    from backline.backends.mps import is_available

    assert is_available() is True
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "again")
    assert torch.backends.mps.is_available() == "again"
    monkeypatch.undo()
    assert torch.backends.mps.is_available() is False


PATCHES: dict[str, Callable[[], object]] = {
    "by name": lambda: mock.patch("backline.backends.mps.is_available", return_value=True),
    "of an object": lambda: mock.patch.object(backends.mps, "is_available", return_value=True),
    "a function": lambda: mock.patch.object(backends.mps, "is_available", lambda: True),
    "autospec": lambda: mock.patch("backline.backends.mps.is_available", autospec=True, return_value=True),
    "new_callable": lambda: mock.patch("backline.backends.mps.is_available", new_callable=lambda: lambda: True),
    "several": lambda: mock.patch.multiple("backline.backends.mps", is_available=lambda: True, is_built=lambda: True),
}


@pytest.mark.parametrize("form", PATCHES)
def test_mock_of_a_function(form: str) -> None:
    with PATCHES[form]():  # type: ignore[attr-defined]  # each is a function
        assert torch.backends.mps.is_available() is True
        with mock.patch("backline.backends.mps.is_available", return_value="inner"):
            assert torch.backends.mps.is_available() == "inner"
        assert torch.backends.mps.is_available() is True
    assert torch.backends.mps.is_available() is False


@mock.patch("backline.backends.cuda.is_available", return_value=True)
@mock.patch.object(backends.cudnn, "version", return_value=91500)
def test_mock_as_a_decorator(version: mock.Mock, is_available: mock.Mock) -> None:
    assert (torch.backends.cuda.is_available(), torch.backends.cudnn.version()) == (True, 91500)
    version.assert_called_once_with()
    is_available.assert_called_once_with()


def test_a_patch_ends_with_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), mock.patch("backline.backends.mps.is_available", return_value=True):
        raise ZeroDivisionError


def test_patches_by_start_and_stop_end_in_any_order() -> None:
    first, second = mock.patch.object(backends.mps, "is_built"), mock.patch.object(backends.cudnn, "is_available")
    first.start()
    second.start()
    first.stop()
    assert isinstance(backends.cudnn.is_available, mock.Mock) and not isinstance(backends.mps.is_built, mock.Mock)
    second.stop()


def test_a_double_is_for_readers_alone() -> None:
    # What CUDA has and is asked elsewhere goes on as it is: a double is no device.
    with mock.patch("backline.backends.cudnn.is_available", return_value=True), mock.patch.object(backends.cuda, "preferred_blas_library"):
        assert backends.cudnn.is_enabled() is False
        assert backends.cuda.blas_workspace_size() > 0
        assert torch.matmul(np.full((1, 1), 2.0), np.full((1, 1), 3.0)).tolist() == [[6.0]]


def test_a_function_is_replaced_by_assignment_until_it_is_assigned_again() -> None:
    original = torch.backends.mps.is_available
    torch.backends.mps.is_available = lambda: True
    assert torch.backends.mps.is_available() is True
    with mock.patch("backline.backends.mps.is_available", return_value="mock"):
        assert torch.backends.mps.is_available() == "mock"
    assert torch.backends.mps.is_available() is True
    torch.backends.mps.is_available = lambda: "second"  # type: ignore[assignment,return-value]  # a double
    assert torch.backends.mps.is_available() == "second"
    torch.backends.mps.is_available = original
    assert torch.backends.mps.is_available is original


def test_functions_of_sub_objects() -> None:
    with mock.patch.object(backends.cudnn.conv, "flags", return_value="scope"):
        assert backends.cudnn.conv.flags() == "scope"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends.cuda.matmul, "set_flags", lambda: "set")
        assert backends.cuda.matmul.set_flags() == "set"
    assert backends.cuda.matmul.set_flags() == (False, True, True, False, "none")


# --- submodules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cudnn", "mps", "cuda", "xeon"])
def test_mock_of_a_submodule(name: str) -> None:
    original = getattr(torch.backends, name)
    with mock.patch(f"backline.backends.{name}") as double:
        double.is_available.return_value = "double"
        assert getattr(torch.backends, name) is double and getattr(torch.backends, name).is_available() == "double"
        assert importlib.import_module(f"backline.backends.{name}") is original
    assert getattr(torch.backends, name) is original


def test_a_namespace_in_the_place_of_a_submodule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends, "mps", types.SimpleNamespace(is_available=lambda: True))
    assert torch.backends.mps.is_available() is True
    monkeypatch.setattr(torch.backends, "mps", None)
    assert torch.backends.mps is None
    with mock.patch.object(torch.backends, "mkldnn", autospec=True) as double:
        double.is_available.return_value = False
        assert torch.backends.mkldnn.is_available() is False
    with mock.patch("backline.backends.cuda.matmul") as double:
        torch.backends.cuda.matmul.allow_tf32 = "anything"
        assert double.allow_tf32 == "anything"


def test_names_are_deleted_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.backends, "mps")
    monkeypatch.delattr("backline.backends.cudnn.is_available")
    monkeypatch.delattr(torch.backends.cudnn, "no_such_name", raising=False)
    assert not hasattr(torch.backends, "mps") and getattr(torch.backends, "mps", None) is None and "mps" not in dir(torch.backends)
    assert not hasattr(torch.backends.cudnn, "is_available")
    monkeypatch.undo()
    assert torch.backends.mps.is_available() is False and torch.backends.cudnn.is_available() is False


# --- switches ----------------------------------------------------------------------------------------------------------

SWITCHES = {
    "cudnn.benchmark": True, "cudnn.enabled": False, "cudnn.allow_tf32": False, "cudnn.conv.fp32_precision": "tf32",
    "mkldnn.deterministic": True, "cuda.matmul.allow_tf32": True, "cuda.matmul.allow_fp16_reduced_precision_reduction": False,
    "quantized.engine": "reference", "opt_einsum.strategy": "greedy", "fp32_precision": "ieee", "fallback": "warn", "num_threads": 3,
}  # fmt: skip


def home_of(name: str) -> tuple[object, str]:
    *path, attribute = name.split(".")
    home: object = backends
    for part in path:
        home = getattr(home, part)
    return home, attribute


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("by", ["mock", "mock twice", "monkeypatch", "monkeypatch twice"])
@pytest.mark.parametrize("where", ["base", "assigned", "scope"])
def test_a_switch_is_patched_and_comes_back_as_it_was_stored(name: str, by: str, where: str) -> None:
    home, attribute = home_of(name)
    former = getattr(home, attribute)
    if where == "assigned":
        setattr(home, attribute, former)
    with backends.flags(warn_only=True) if where == "scope" else switches.scope():
        before = switches.current()
        if by.startswith("mock"):
            with mock.patch.object(home, attribute, SWITCHES[name]):
                assert getattr(home, attribute) == SWITCHES[name]
                if by.endswith("twice"):
                    with mock.patch.object(home, attribute, former):
                        assert getattr(home, attribute) == former
                    assert getattr(home, attribute) == SWITCHES[name]
                setattr(home, attribute, former)  # the code under test may write it, too
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(home, attribute, SWITCHES[name])
                if by.endswith("twice"):
                    patch.setattr(home, attribute, former)
                    assert getattr(home, attribute) == former
                    patch.setattr(home, attribute, SWITCHES[name])
                assert getattr(home, attribute) == SWITCHES[name]
        assert switches.current() is before
    store._restart()


def test_a_patch_of_several_switches_and_a_function() -> None:
    with mock.patch.multiple(backends.cudnn, enabled=False, benchmark=True, is_available=lambda: True):
        assert (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.is_available()) == (False, True, True)


def test_what_another_switch_got_meanwhile_stays() -> None:
    with mock.patch.object(backends.cudnn, "benchmark", True):
        backends.cudnn.deterministic = True
    assert (backends.cudnn.benchmark, backends.cudnn.deterministic) == (False, True)
    store._restart()


def test_a_scope_that_is_left_takes_the_patch_with_it() -> None:
    with switches.scope():
        patch = mock.patch.object(backends.cudnn, "benchmark", True)
        patch.start()
        assert backends.cudnn.benchmark is True
    assert backends.cudnn.benchmark is False
    patch.stop()
    assert backends.cudnn.benchmark is False


def test_the_freeze_holds_for_patches_and_not_for_their_end() -> None:
    with mock.patch.object(backends.cudnn, "benchmark", True):
        backends.disable_global_flags()
        with pytest.raises(Frozen), mock.patch.object(backends.cudnn, "enabled", False):
            pass
    assert backends.cudnn.benchmark is False
    with switches.scope(), mock.patch.object(backends.cudnn, "enabled", False):
        assert backends.cudnn.enabled is False
    store._restart()


def test_a_property_of_the_class_is_patched() -> None:
    with mock.patch.object(type(backends.cudnn), "enabled", new_callable=mock.PropertyMock, return_value="mock"):
        assert backends.cudnn.enabled == "mock"
    assert backends.cudnn.enabled is True


# --- slips of the pen --------------------------------------------------------------------------------------------------


def test_names_that_do_not_exist() -> None:
    with pytest.raises(UnknownName, match="benchmark"):
        torch.backends.cudnn.benchmak = True
    with pytest.raises(AttributeError), mock.patch.object(torch.backends.cudnn, "benchmak", True):
        pass
    with pytest.MonkeyPatch.context() as patch:
        with pytest.raises(AttributeError):
            patch.setattr(torch.backends.cudnn, "benchmak", True)
        patch.setattr(torch.backends.cudnn, "benchmak", True, raising=False)
        assert torch.backends.cudnn.benchmak is True
    with mock.patch.object(torch.backends.cudnn, "benchmak", "made", create=True):
        assert torch.backends.cudnn.benchmak == "made"
    assert not hasattr(torch.backends.cudnn, "benchmak")


def test_values_in_the_place_of_functions_and_modules() -> None:
    for home, name, value in (
        (backends.mps, "is_available", True), (backends.mps, "is_available", None), (backends, "mkl", False), (backends, "cudnn", None),
        (backends.cuda, "matmul", "tf32"), (backends.mkl, "VERBOSE_ON", 2), (backends.quantized, "supported_engines", ["x86"]),
    ):  # fmt: skip
        with pytest.raises(ReadOnly, match=name):
            setattr(home, name, value)
    for home, name in ((backends.mps, "is_available"), (backends, "mkl"), (backends.cudnn, "benchmark"), (backends.cuda, "matmul")):
        with pytest.raises(UnknownName, match=f"{name} cannot be deleted"):
            delattr(home, name)
    with pytest.raises(BadType, match=r"cudnn\.benchmark"), mock.patch.object(backends.cudnn, "benchmark"):
        pass
    with pytest.raises(ReadOnly, match="supported_engines"), mock.patch.object(backends.quantized, "supported_engines", ["x86"]):
        pass
    with pytest.raises(UnknownName, match="benchmark cannot be deleted"), pytest.MonkeyPatch.context() as patch:
        patch.delattr(backends.cudnn, "benchmark")
