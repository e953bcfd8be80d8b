"""`backends.python_native`: languages, operations and dispatch keys, and what they make of an override."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline import backends, switches
from backline.backends import python_native as native
from backline.errors import BadType, Frozen, ReadOnly, UnknownName
from backline.libraries import overrides, python_packages
from backline.switches import store

LANGUAGES = ["cutedsl", "triton"]
SIGNATURES = {
    "get_dsl_operations": "(dsl_name)", "disable_operations": "(*op_symbols)", "enable_operations": "(*op_symbols)",
    "disable_dispatch_keys": "(*dispatch_keys)", "enable_dispatch_keys": "(*dispatch_keys)", "operations_disabled": "(*op_symbols)",
    "is_operation_disabled": "(op_symbol)", "is_dsl_disabled": "(dsl_name)", "DSLController": "(dsl_name)",
    "flags": "(cutedsl=None, triton=None, disabled_operations=None, disabled_dispatch_keys=None)",
    "set_flags": "(_cutedsl=None, _triton=None, _disabled_operations=None, _disabled_dispatch_keys=None)",
}  # fmt: skip


@pytest.fixture
def kernel() -> Iterator[overrides.Override]:
    made = overrides.register("triton", "example.op", "CUDA", lambda x: x)
    yield made
    overrides.unregister(made)


def everything() -> dict[str, object]:
    return dict(switches.current().items())


def run(program: str) -> None:
    path = str(Path(backends.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {path!r})\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "wanted"), SIGNATURES.items())
def test_a_name_is_there_with_its_signature(name, wanted):
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(getattr(native, name)).parameters.values()]
    assert str(inspect.Signature(parameters)) == wanted and getattr(native, name).__doc__


def test_dir_lists_every_name_and_language():
    assert {*SIGNATURES, *LANGUAGES, "all_dsls", "available_dsls"} == {n for n in dir(native) if not n.startswith("__")} == {*native.__all__}


def test_the_lists_of_languages(monkeypatch):
    assert native.all_dsls == LANGUAGES and isinstance(native.all_dsls, list)
    for there in ([], ["triton"], ["cutlass"], ["cutlass", "triton"]):
        monkeypatch.setattr(python_packages, "find", lambda name, part="", there=there: (None, (), "" if name in there else "absent"))
        assert native.available_dsls == [d for d in LANGUAGES if {"cutedsl": "cutlass"}.get(d, d) in there]


def test_asking_whether_a_language_is_there_imports_nothing():
    run("""
        from backline.backends import python_native
        python_native.available_dsls, python_native.triton.version, repr(python_native.cutedsl)
        assert not {"triton", "cutlass", "torch"} & {*sys.modules}
    """)


@pytest.mark.parametrize("name", ["all_dsls", "available_dsls", *LANGUAGES, "flags", "DSLController"])
def test_names_that_are_no_switches_are_read_only(name):
    with pytest.raises(ReadOnly, match=rf"python_native\.{name} is read-only"):
        setattr(native, name, [])


@pytest.mark.parametrize("slip", ["tritn", "disable_operation"])
def test_unknown_names_are_refused(slip):
    for attempt in (lambda: getattr(native, slip), lambda: setattr(native, slip, 1)):
        with pytest.raises(UnknownName, match="nearest"):
            attempt()


def test_pickling_and_reloading():
    for thing in (native, native.triton, native.cutedsl):
        assert pickle.loads(pickle.dumps(thing)) is thing
    with native.triton.disabled():
        assert importlib.reload(native) is native and native.triton.enabled is False
    assert native.triton.enabled


# --- languages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_controller_is_made_once_and_says_what_it_is(name, monkeypatch):
    controller = getattr(native, name)
    assert isinstance(controller, native.DSLController) and controller is getattr(native, name) and controller.name == name
    monkeypatch.setattr(python_packages, "find", lambda package, part="": (None, (), "absent"))
    assert (controller.available, controller.version) == (False, None)
    assert repr(controller) == f"DSLController({name}, unavailable, enabled)"
    monkeypatch.setattr(python_packages, "find", lambda package, part="": ("/site", (), ""))
    monkeypatch.setattr(python_packages, "version", lambda package: "3.6.1+git12")
    assert controller.available and (controller.version, controller.version.major, controller.version.minor) == ("3.6.1+git12", 3, 6)
    monkeypatch.setattr(python_packages, "version", lambda package: None)
    assert controller.version is None
    with controller.disabled():
        assert repr(controller) == f"DSLController({name}, available, disabled)"


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_language_is_switched_by_assignment_and_by_calls(name):
    controller, other = getattr(native, name), getattr(native, next(d for d in LANGUAGES if d != name))
    steps = [
        (lambda: setattr(controller, "enabled", False), False), (lambda: setattr(controller, "enabled", True), True),
        (controller.disable, False), (controller.enable, True), (lambda: native.set_flags(**{f"_{name}": False}), False),
    ]  # fmt: skip
    for step, wanted in steps:
        step()
        assert (controller.enabled, native.is_dsl_disabled(name), other.enabled) == (wanted, not wanted, True)


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("value", [1, None, "off"])
def test_enabled_takes_bools_only(name, value):
    before = everything()
    with pytest.raises(BadType, match=rf"python_native\.{name}\.enabled(?s:.*)True, False"):
        getattr(native, name).enabled = value
    if value is not None:
        with pytest.raises(BadType):
            native.flags(**{name: value})
    assert everything() == before


def test_a_controllers_other_names_are_fixed():
    for name in ("name", "available", "version", "disable"):
        with pytest.raises(ReadOnly, match=r"triton\.enabled"):
            setattr(native.triton, name, 1)
    for attempt in (lambda: native.triton.enabeld, lambda: setattr(native.triton, "enabeld", True)):
        with pytest.raises(UnknownName, match="enabled"):
            attempt()
    assert [n for n in dir(native.triton) if not n.startswith("_")] == ["available", "disable", "disabled", "enable", "enabled", "name", "version"]


@pytest.mark.parametrize("name", ["fortran", "Triton", "", 3, None])
def test_an_unknown_language_is_refused_or_has_nothing(name):
    with pytest.raises(UnknownName, match="triton"):
        native.DSLController(name)
    assert native.get_dsl_operations(name) == [] and native.is_dsl_disabled(name) is False


def test_flags_change_only_what_is_named_and_nest():
    before = everything()
    with native.flags(triton=False):
        assert everything() == {**before, "python_native.triton.enabled": False}
        with native.flags(cutedsl=False), native.flags():
            assert (native.triton.enabled, native.cutedsl.enabled) == (False, False)
            native.triton.enable()
            assert native.triton.enabled
        assert (native.triton.enabled, native.cutedsl.enabled) == (False, True)
    assert everything() == before
    assert native.set_flags() == (True, True) == native.set_flags(False, None)
    assert native.set_flags(_cutedsl=True) == (False, True)


def test_one_bad_argument_changes_nothing():
    before = everything()
    for call in (lambda: native.flags(False, 1), lambda: native.set_flags(False, 1)):
        with pytest.raises(BadType):
            call()
    assert everything() == before


# --- operations and keys ------------------------------------------------------------------------------------------


def test_operations_are_disabled_and_enabled():
    native.disable_operations("b", "a", "b")
    assert [native.is_operation_disabled(op) for op in "abc"] == [True, True, False]
    assert switches.get("python_native.disabled_operations") == ("b", "a")
    native.enable_operations("b", "never seen")
    assert switches.get("python_native.disabled_operations") == ("a",)
    before = switches.current()
    native.disable_operations()
    native.enable_operations()
    assert switches.current() is before


def test_dispatch_keys_are_disabled_and_enabled():
    native.disable_dispatch_keys("CUDA", "an extension's")
    assert switches.get("python_native.disabled_dispatch_keys") == ("CUDA", "an extension's")
    native.enable_dispatch_keys("an extension's")
    assert switches.get("python_native.disabled_dispatch_keys") == ("CUDA",)


@pytest.mark.parametrize("name", ["disable_operations", "enable_operations", "disable_dispatch_keys", "enable_dispatch_keys", "operations_disabled"])
@pytest.mark.parametrize("value", [3, None, ["a"], b"a", print])
def test_only_texts_are_names(name, value):
    before = everything()
    with pytest.raises(BadType, match=rf"python_native\.{name} takes str, not {type(value).__name__}"):
        getattr(native, name)("fine", value)
    assert everything() == before


def test_inside_a_scope_they_end_with_it():
    with backends.flags():
        native.disable_operations("a")
        native.disable_dispatch_keys("CPU")
        native.triton.disable()
        assert native.is_operation_disabled("a") and native.is_dsl_disabled("triton")
    assert not native.is_operation_disabled("a") and not native.is_dsl_disabled("triton")
    assert switches.get("python_native.disabled_dispatch_keys") == ()


def test_a_scope_adds_to_what_is_disabled_where_it_is_entered():
    scope = native.operations_disabled("a", "b")

    @native.operations_disabled("decorated")
    def inside() -> Any:
        return switches.get("python_native.disabled_operations")

    native.disable_operations("z")
    with scope:
        assert switches.get("python_native.disabled_operations") == ("z", "a", "b")
        with native.operations_disabled("c", "a"):
            assert switches.get("python_native.disabled_operations") == ("z", "a", "b", "c")
            assert inside() == ("z", "a", "b", "c", "decorated")
            native.enable_operations("z")
            assert not native.is_operation_disabled("z")
        assert switches.get("python_native.disabled_operations") == ("z", "a", "b")
    assert inside() == ("z", "decorated") and switches.get("python_native.disabled_operations") == ("z",)


def test_other_threads_and_tasks_do_not_see_a_scope():
    seen: list[bool] = []
    with native.operations_disabled("a"):
        thread = threading.Thread(target=lambda: seen.append(native.is_operation_disabled("a")))
        thread.start()
        thread.join()
    assert seen == [False]

    async def main() -> list[bool]:
        async def task(op: str) -> bool:
            with native.operations_disabled(op):
                await asyncio.sleep(0)
                return switches.get("python_native.disabled_operations") == (op,)

        return await asyncio.gather(*(task(str(i)) for i in range(50)))

    assert all(asyncio.run(main()))


def test_threads_that_disable_at_once_lose_nothing():
    threads = [threading.Thread(target=lambda i=i: [native.disable_operations(f"{i}.{j}") for j in range(20)]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(switches.get("python_native.disabled_operations")) == 160


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["disable", "enable"]), st.lists(st.sampled_from("abcd"), max_size=3)), max_size=12))
def test_it_is_a_set_of_names(steps):
    store._restart()
    model: set[str] = set()
    for action, names in steps:
        if action == "disable":
            native.disable_operations(*names)
            model |= {*names}
        else:
            native.enable_operations(*names)
            model -= {*names}
        assert {op for op in "abcd" if native.is_operation_disabled(op)} == model


def test_the_environment_disables(monkeypatch):
    monkeypatch.setenv("BACKLINE_PYTHON_NATIVE_TRITON_ENABLED", "0")
    monkeypatch.setenv("BACKLINE_PYTHON_NATIVE_DISABLED_OPERATIONS", "a, b")
    monkeypatch.setenv("BACKLINE_PYTHON_NATIVE_DISABLED_DISPATCH_KEYS", "MPS")
    store._restart()
    assert not native.triton.enabled and native.is_operation_disabled("b")
    assert switches.get("python_native.disabled_dispatch_keys") == ("MPS",)


def test_a_frozen_base_refuses_and_says_what_works():
    run("""
        from backline import backends
        from backline.backends import python_native as native
        from backline.errors import Frozen
        native.disable_operations("old")
        backends.disable_global_flags()
        calls = {
            "disable_operations('x')": lambda: native.disable_operations("x"),
            "enable_operations('old')": lambda: native.enable_operations("old"),
            "disable_dispatch_keys('CPU')": lambda: native.disable_dispatch_keys("CPU"),
            "enable_dispatch_keys('CPU')": lambda: native.enable_dispatch_keys("CPU"),
            "python_native.triton.enabled": native.triton.disable,
            "python_native.cutedsl.enabled": lambda: setattr(native.cutedsl, "enabled", False),
            "triton": lambda: native.set_flags(_triton=False),
        }
        for text, call in calls.items():
            try:
                call()
            except Frozen as error:
                assert text in str(error) and "with backline" in str(error), error
            else:
                raise SystemExit(text)
        with backends.flags():
            for call in calls.values():
                call()
            assert native.is_operation_disabled("x") and not native.is_operation_disabled("old")
        with native.operations_disabled("y"):
            assert native.is_operation_disabled("y") and native.is_operation_disabled("old")
        assert native.is_operation_disabled("old") and native.triton.enabled
    """)


def test_the_frozen_errors_remedy_is_a_line_that_runs(monkeypatch):
    monkeypatch.setattr(store, "_is_frozen", True)
    with pytest.raises(Frozen) as caught:
        native.disable_dispatch_keys("CPU", "MPS")
    line = caught.value.remedy.partition(": ")[2]
    exec(line, {"backline": importlib.import_module("backline")})
    assert line == "with backline.backends.flags(): backline.backends.python_native.disable_dispatch_keys('CPU', 'MPS')"


# --- what they decide ---------------------------------------------------------------------------------------------


def test_each_switch_decides_whether_an_override_is_used(kernel):
    def active() -> object:
        return overrides.active("example.op", "CUDA")

    assert active() is kernel and "example.op" in native.get_dsl_operations("triton")
    with native.flags(triton=False):
        assert active() is None
    with native.flags(cutedsl=False):
        assert active() is kernel
    with native.operations_disabled("example.op"):
        assert active() is None
    with native.operations_disabled("another.op"):
        assert active() is kernel
    with backends.flags():
        native.disable_dispatch_keys("CPU")
        assert active() is kernel
        native.disable_dispatch_keys("CUDA")
        assert active() is None
    assert active() is kernel
