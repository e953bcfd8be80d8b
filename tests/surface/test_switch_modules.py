"""The switch modules as a user meets them; some are defects of the model that must not come back."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from backline import backends, switches
from backline.errors import BadType, BadValue, Frozen, ReadOnly, UnknownName

LIBRARIES = ["numpy", "openblas", "mkl", "blis"]
OTHER = {  # each switch of the root, with a legal value that is not its default
    "fallback": "warn",
    "benchmark": True,
    "benchmark_limit": 3,
    "benchmark_overhead": 0.5,
    "deterministic": True,
    "warn_only": True,
    "determinism_level": "threads",
    "num_threads": 77,
    "prefer": ("mkl",),
    "only": ("numpy",),
    "promote": "numpy",
    "max_error": 0.5,
    "share_processors": False,
}
ROOT = [*OTHER]


@pytest.fixture(params=LIBRARIES)
def library(request) -> types.ModuleType:
    return getattr(backends, request.param)


def everything() -> dict[str, object]:
    return dict(switches.current().items())


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own: freezing cannot be taken back."""
    path = str(Path(backends.__file__).parents[2])
    code = f"import sys; sys.path.insert(0, {path!r})\n" + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


# --- scopes and values


def test_another_thread_reads_the_base_while_one_is_inside_flags(library):
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with library.flags(enabled=False):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    assert library.enabled is True
    done.set()
    thread.join()


def test_a_task_outside_the_block_reads_the_base():
    import asyncio

    async def inside(entered: asyncio.Event, leave: asyncio.Event) -> object:
        with backends.mkl.flags(enabled=False):
            entered.set()
            await leave.wait()
            return backends.mkl.enabled

    async def main() -> tuple[object, object]:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inside(entered, leave))
        await entered.wait()
        seen = backends.mkl.enabled
        leave.set()
        return seen, await task

    assert asyncio.run(main()) == (True, False)


def test_scopes_left_in_the_order_they_were_entered_end_in_the_start_state():
    start = switches.current()
    a, b = backends.flags(fallback="warn", benchmark=True), backends.flags(fallback="error")
    a.__enter__()
    b.__enter__()
    assert (backends.fallback, backends.benchmark) == ("error", True)
    a.__exit__(None, None, None)
    assert (backends.fallback, backends.benchmark) == ("error", False)
    b.__exit__(None, None, None)
    assert switches.current() is start


@pytest.mark.parametrize("name", ROOT)
def test_flags_changes_only_what_is_named(name):
    backends.set_flags(_warn_only=True, _fallback="error", _prefer=("blis",))  # not the defaults, to be kept
    before = everything()
    with backends.flags(**{name: OTHER[name]}):
        assert everything() == {**before, name: OTHER[name]}
    assert everything() == before


def test_a_librarys_flags_changes_only_what_is_named(library):
    before = everything()
    with library.flags(enabled=False):
        changed = {name for name, value in everything().items() if value != before[name]}
    assert changed == {library.__name__.rpartition(".")[2] + ".enabled"}


def test_without_arguments_nothing_changes(library):
    library.enabled = False
    before = switches.current()
    with backends.flags(), library.flags():
        assert switches.current() is before
    assert library.set_flags() == (False,)
    assert library.set_flags(None) == (False,)
    assert backends.set_flags() == ("none",)
    assert switches.current() is before


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: backends.flags(benchmark=True, deterministic=True, fallback="foo"), BadValue),
        (lambda: backends.flags(benchmark=True, num_threads=0), BadValue),
        (lambda: backends.flags(benchmark=True, num_threads="2"), BadType),
        (lambda: backends.set_flags(_benchmark=True, _fallback="foo"), BadValue),
        (lambda: backends.set_flags(_fallback="warn", _benchmark=1), BadType),
        (lambda: backends.mkl.flags(enabled=0), BadType),
        (lambda: backends.mkl.set_flags("no"), BadType),
        (lambda: backends.mkl.flags(enabeld=True), TypeError),
    ],
)
def test_one_bad_argument_raises_and_changes_nothing(call, error):
    before = switches.current()
    with pytest.raises(error):
        call()
    assert switches.current() is before
    with backends.flags(warn_only=True):
        before = switches.current()
        with pytest.raises(error):
            call()
        assert switches.current() is before


@pytest.mark.parametrize(
    ("module", "wrong", "near"),
    [
        ("", "benchmrk", "benchmark"),
        ("", "num_thread", "num_threads"),
        ("", "mlk", "mkl"),
        *[(name, "enabeld", "enabled") for name in LIBRARIES],
        *[(name, "plancache", "plan_cache") for name in LIBRARIES],
    ],
)
def test_an_unknown_name_raises_and_suggests_the_right_one(module, wrong, near):
    target = getattr(backends, module) if module else backends
    before = dict(vars(target))
    with pytest.raises(UnknownName) as read:
        getattr(target, wrong)
    with pytest.raises(UnknownName) as written:
        setattr(target, wrong, True)
    for caught in (read, written):
        text = str(caught.value)
        assert wrong in text and target.__name__ in text and f"nearest names: {near}" in text
    assert not hasattr(target, wrong)
    assert dict(vars(target)) == before


# --- assignment


@pytest.mark.parametrize("name", ROOT)
def test_a_root_switch_is_written_and_read_as_an_attribute(name):
    setattr(backends, name, OTHER[name])
    assert getattr(backends, name) == OTHER[name] == switches.get(name)
    assert switches.origin(name).where.startswith(__file__)


def test_a_library_is_switched_by_assignment(library):
    library.enabled = np.False_
    assert library.enabled is False
    assert "enabled" not in vars(library)
    with library.flags(True):
        assert library.enabled is True
        library.enabled = False
        assert library.enabled is False
    assert library.set_flags(True) == (False,)
    assert library.enabled is True


@pytest.mark.parametrize("value", [1, 0, None, "True", 1.0, [True]])
def test_an_illegal_assignment_names_its_own_switch(library, value):
    with pytest.raises(BadType, match=library.__name__.rpartition(".")[2] + r"\.enabled takes a bool"):
        library.enabled = value
    assert library.enabled is True


@pytest.mark.parametrize(
    "name", ["flags", "is_available", "version", "is_enabled", "set_flags", "plan_cache"]
)
def test_what_is_no_switch_is_read_only_and_the_text_says_what_to_set(library, name):
    with pytest.raises(ReadOnly, match=name) as caught:
        setattr(library, name, None)
    assert "max_size" in str(caught.value) or "enabled instead" in str(caught.value)


@pytest.mark.parametrize("name", ["flags", "mkl", "cuda", "ContextProp", "flags_frozen"])
def test_the_roots_functions_and_modules_do_not_become_values(name):
    before = getattr(backends, name)
    for value in (None, False, 1, "off", ()):
        with pytest.raises(ReadOnly, match=name):
            setattr(backends, name, value)
    assert getattr(backends, name) is before


@pytest.mark.parametrize("name", ["enabled", "flags", "nothing"])
def test_nothing_can_be_deleted(library, name):
    with pytest.raises(UnknownName, match=f"{name} cannot be deleted"):
        delattr(library, name)
    assert library.enabled is True and callable(library.flags)


def test_set_flags_is_undone_by_its_own_answer():
    before = switches.current()
    old = backends.set_flags("bf16", _fallback="warn", _num_threads=3, _prefer=["mkl"])
    assert (backends.fp32_precision, backends.fallback, backends.num_threads, backends.prefer) == ("bf16", "warn", 3, ("mkl",))
    assert old == ("none",)
    backends.set_flags(*old, _fallback="allow", _num_threads=before["num_threads"], _prefer=[])
    assert switches.current() is before


# --- freeze


FROZEN = """
    import backline.backends as backends
    from backline import switches
    from backline.errors import Frozen
    assert backends.flags_frozen() is False
    assert backends.disable_global_flags() is None
    assert backends.flags_frozen() is True
    before = switches.current()
    attempts = [
        lambda: setattr(backends, "fallback", "warn"),
        lambda: setattr(backends, "benchmark_limit", 3),
        lambda: setattr(backends, "num_threads", 3),
        lambda: setattr(backends, "deterministic", True),
        lambda: setattr(backends.mkl, "enabled", False),
        lambda: setattr(backends.numpy, "enabled", True),
        lambda: backends.set_flags(_benchmark=True),
        lambda: backends.blis.set_flags(False),
        lambda: switches.assign("only", ("mkl",)),
    ]
    for attempt in attempts:
        try:
            attempt()
        except Frozen as error:
            print(error.remedy)
        else:
            raise SystemExit("a base write passed")
    assert switches.current() is before
    backends.set_flags()                                   # names nothing, so it writes nothing
    with backends.mkl.flags():
        backends.mkl.enabled = False                       # inside a scope it passes
        backends.set_flags(_fallback="error")
        assert (backends.mkl.enabled, backends.fallback) == (False, "error")
    assert switches.current() is before
    backends.disable_global_flags()
    for remedy in ("with backline.backends.mkl.flags(enabled=False): ...",):
        exec(remedy, {"backline": __import__("backline")})
"""


def test_after_the_freeze_base_writes_raise_and_scopes_work():
    done = run(FROZEN)
    assert done.returncode == 0, done.stderr
    remedies = done.stdout.splitlines()
    assert len(remedies) == 9
    assert remedies[0] == "use a scope: with backline.backends.flags(fallback='warn'): ..."
    assert remedies[4] == "use a scope: with backline.backends.mkl.flags(enabled=False): ..."


def test_another_thread_is_frozen_too_and_a_bad_value_is_still_a_bad_value():
    switches.freeze()
    caught: list[BaseException] = []

    def work() -> None:
        try:
            backends.fallback = "warn"
        except Frozen as error:
            caught.append(error)

    with backends.flags(benchmark=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [type(error) for error in caught] == [Frozen]
    with pytest.raises(BadValue):
        backends.fallback = "foo"


# --- tools see the modules


def test_dir_lists_every_public_name_and_nothing_private(library):
    names = [name for name in dir(library) if not name.startswith("__")]
    uniform = ["enabled", "flags", "is_available", "is_enabled", "plan_cache", "set_flags", "version"]
    own = ["VERBOSE_OFF", "VERBOSE_ON", "verbose"] if library is backends.mkl else []
    own += ["fft_plan_cache"] if library in (backends.mkl, backends.numpy) else []
    assert names == sorted(uniform + own) == sorted(library.__all__)


def test_dir_of_the_root():
    names = [name for name in dir(backends) if not name.startswith("__")]
    assert names == sorted(backends.__all__)
    assert {*ROOT, *LIBRARIES, "flags", "set_flags", "disable_global_flags", "flags_frozen"} <= set(names)


@pytest.mark.parametrize("name", ["", *LIBRARIES])
def test_pickle_and_reload(name):
    module = getattr(backends, name) if name else backends
    assert pickle.loads(pickle.dumps(module)) is module
    with backends.flags(fallback="warn"), backends.mkl.flags(enabled=False):
        before = switches.current()
        assert importlib.reload(module) is module
        assert switches.current() is before
    with pytest.raises(UnknownName):
        module.nonsense = 1
    assert sys.modules[module.__name__] is module
    assert importlib.reload(backends).mkl is backends.mkl


@pytest.mark.parametrize("name", ["", *LIBRARIES])
def test_switches_are_annotated_documented_and_keywords_of_flags(name):
    module = getattr(backends, name) if name else backends
    declared = {s.attribute: s for s in switches.all_switches().values() if s.backend == name and s.as_attribute}
    keywords = [*declared] if name else [*declared, "float32_matmul_precision"]
    assert set(declared) <= set(inspect.get_annotations(module))
    assert [*inspect.signature(module.flags).parameters] == keywords
    assert [*inspect.signature(module.set_flags).parameters] == [f"_{attribute}" for attribute in keywords]
    assert all(p.default is None for p in inspect.signature(module.flags).parameters.values())
    for attribute, switch in declared.items():
        assert getattr(type(module), attribute).__doc__ == switch.doc
        assert attribute in module.__all__
    assert inspect.ismodule(module) and module.__file__.endswith(".py")


def test_a_star_import_reads_the_values():
    space: dict[str, object] = {}
    with backends.flags(fallback="warn"):
        exec("from backline.backends import *", space)
    assert set(backends.__all__) <= set(space)
    assert (space["fallback"], space["mkl"]) == ("warn", backends.mkl)


# --- classes for extensions


def make_extension(name: str) -> tuple[types.ModuleType, list[str]]:
    box = ["slow"]
    inner = types.ModuleType(name)
    inner.helper = lambda: "helped"

    class Extension(backends.PropModule):
        speed = backends.ContextProp(lambda: box[0], lambda value: box.__setitem__(0, value))

    return Extension(inner, name), box


def test_an_extension_module_reads_and_writes_through_its_props():
    module, box = make_extension("an_extension")
    assert (module.speed, module.helper(), module.__name__) == ("slow", "helped", "an_extension")
    module.speed = "fast"
    assert (box, module.speed) == (["fast"], "fast")
    assert {"speed", "helper"} <= set(dir(module))
    with pytest.raises(UnknownName, match=r"sped.*\n.*speed"):
        module.sped = "fast"
    with pytest.raises(UnknownName, match=r"sped.*\n.*speed"):
        module.sped  # noqa: B018  # reading it raises
    with pytest.raises(UnknownName, match="speed cannot be deleted"):
        del module.speed


def test_writing_a_prop_does_not_call_its_getter():
    def getter() -> object:
        raise AssertionError("read")

    class Extension(backends.PropModule):
        speed = backends.ContextProp(getter, lambda value: None)

    Extension(types.ModuleType("x"), "x").speed = 1
    assert "speed" in dir(Extension(types.ModuleType("x"), "x"))


def test_a_prop_is_frozen_with_the_base_and_writable_inside_a_scope():
    module, box = make_extension("an_extension")
    switches.freeze()
    with pytest.raises(Frozen, match="speed"):
        module.speed = "fast"
    with backends.flags():
        module.speed = "fast"
    assert box == ["fast"]


# --- the uniform set


class Stand:
    """Stands for a library, present or not."""

    def __init__(self, there: bool) -> None:
        self.there = there

    def available(self) -> bool:
        return self.there

    def version(self) -> str | None:
        return "1.2.3" if self.there else None


@pytest.mark.parametrize("there", [True, False])
def test_is_available_version_and_is_enabled_ask_the_library_of_that_name(library, there, monkeypatch):
    libraries = pytest.importorskip("backline.libraries")
    asked = []
    monkeypatch.setattr(libraries, "get", lambda name: asked.append(name) or Stand(there), raising=False)
    assert library.is_available() is there
    assert library.version() == ("1.2.3" if there else None)
    assert library.is_enabled() is there
    with library.flags(enabled=False):
        assert library.is_enabled() is False
        assert library.is_available() is there
    assert set(asked) == {library.__name__.rpartition(".")[2]}


def test_the_plan_cache_is_that_of_the_library(library, monkeypatch):
    plans = pytest.importorskip("backline.engine.plan_caches")
    monkeypatch.setattr(plans, "cache", lambda name: f"plans of {name}")
    assert library.plan_cache == "plans of " + library.__name__.rpartition(".")[2]
