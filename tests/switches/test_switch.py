"""Declarations: what values pass, how text is read, what the errors say; switches of plug-ins."""

from __future__ import annotations

import math
import pickle
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backline import backends, errors, switches
from backline.errors import BadType, BadValue, Frozen, UnknownName
from backline.switches import AtLeast, Switch, declared, store
from backline.switches.switch import FAMILIES, Reduction


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("benchmark", np.True_, True),
        ("benchmark_limit", np.int8(3), 3),
        ("benchmark_limit", 10**30, 10**30),
        ("max_error", 1, 1.0),
        ("max_error", np.float32(0.5), 0.5),
        ("max_error", 10**400, math.inf),
        ("max_error", -0.0, 0.0),
        ("fallback", np.str_("warn"), "warn"),
        ("prefer", ["mkl", "mkl", "blis"], ("mkl", "blis")),
        ("prefer", [], ()),
    ],
)
def test_values_are_taken_in_the_switches_own_type(name, given, taken):
    value = declared()[name].check(given)
    assert value == taken and type(value) is type(taken)
    assert math.copysign(1, value) == 1 if name == "max_error" else True


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("benchmark", 1, "a bool, not int"),
        ("benchmark", None, "a bool, not NoneType"),
        ("benchmark", "yes", "a bool, not str"),
        ("benchmark", np.array(True), "a bool, not ndarray"),
        ("benchmark_limit", True, "an int, not bool"),
        ("benchmark_limit", np.True_, "an int, not bool"),
        ("benchmark_limit", 3.0, "an int, not float"),
        ("benchmark_limit", "x", "an int, not str"),
        ("max_error", True, "a float, not bool"),
        ("max_error", 1j, "a float, not complex"),
        ("fallback", 3, "a str, not int"),
        ("fallback", b"warn", "a str, not bytes"),
        ("prefer", "mkl", "a tuple of str, not str"),
        ("prefer", ("mkl", 3), "a tuple of str"),
        ("prefer", {"mkl"}, "a tuple of str, not set"),
    ],
)
def test_wrong_types_are_refused_with_the_switch_and_both_types(name, given, wanted):
    with pytest.raises(BadType, match=f"{name} takes {wanted}") as caught:
        declared()[name].check(given)
    assert isinstance(caught.value, (RuntimeError, TypeError)) and "legal values" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "legal"),
    [
        ("fallback", "warm", "'warn', 'allow', 'error'"),
        ("fallback", "Allow", "'allow'"),
        ("fallback", "", "'allow'"),
        ("determinism_level", "thread", "'threads', 'run'"),
        ("benchmark_limit", -1, "0 (the nearest), or an integer above it"),
        ("num_threads", 0, "1 (the nearest)"),
        ("max_error", math.nan, "a number above it"),
        ("max_error", -1e-9, "0 (the nearest)"),
        ("max_error", -(10**400), "0 (the nearest)"),
        ("prefer", ("mkl", "blas"), "'blis', 'openblas'"),
    ],
)
def test_illegal_values_are_refused_with_the_switch_and_the_nearest_legal_first(name, given, legal):
    with pytest.raises(BadValue) as caught:
        declared()[name].check(given)
    text = str(caught.value)
    assert name in text and legal in text and repr(given)[:20] in text
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, ValueError)


class Rude:
    def __repr__(self) -> str:
        raise ZeroDivisionError


def test_a_value_whose_repr_raises_or_is_endless_is_described():
    with pytest.raises(BadType, match="Rude"):
        declared()["benchmark"].check(Rude())
    with pytest.raises(BadValue) as caught:
        declared()["fallback"].check("x" * 100_000)
    assert len(str(caught.value)) < 500


@given(st.sampled_from([*declared()]), st.text())
def test_any_text_is_either_read_or_refused_with_a_bad_value(name, text):
    switch = declared()[name]
    try:
        value = switch.parse(text)
    except BadValue as error:
        assert name in str(error)
    else:
        assert switch.check(value) == value


_THINGS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.lists(st.one_of(st.text(), st.sampled_from(["mkl", "blis"]), st.integers())),
)  # fmt: skip


@given(st.sampled_from([*declared()]), _THINGS)
def test_any_value_is_either_taken_or_refused_with_one_of_two_errors(name, value):
    switch = declared()[name]
    try:
        taken = switch.check(value)
    except (BadType, BadValue) as error:
        assert name in str(error)
    else:
        assert type(taken) is (str if isinstance(switch, Reduction) else switch.kind)
        assert switch.restore(taken) == taken


def test_every_switch_is_declared_in_full():
    for name, switch in switches.all_switches().items():
        assert switch.name == name
        assert switch.doc.endswith(".") and "\n" not in switch.doc
        assert switch.governs and set(switch.governs) <= {*FAMILIES, "memory"}
        assert switch.env == "BACKLINE_" + name.upper().replace(".", "_")
        assert switch.when in ("call", "load")
        assert hash(switch) == hash(pickle.loads(pickle.dumps(switch)))
    assert len({switch.env for switch in switches.all_switches().values()}) == len(switches.all_switches())
    assert {*declared(), *switches.derived_switches()} == set(switches.all_switches())


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": "Mkl.enabled"},
        {"name": "mkl..enabled"},
        {"name": ""},
        {"name": "a b"},
        {"kind": complex},
        {"when": "later"},
        {"doc": ""},
        {"default": 3},
        {"kind": int, "default": -1, "legal": AtLeast(0)},
        {"kind": str, "default": "c", "legal": ("a", "b")},
    ],
)
def test_a_wrong_declaration_is_refused(arguments):
    with pytest.raises((BadValue, BadType)):
        Switch(**{"name": "a.b", "kind": bool, "default": True, "doc": "An example.", **arguments})


# --- plug-ins


@pytest.fixture
def forget_plugins():
    known = set(switches.all_switches())
    yield
    for name in {*switches.all_switches()} - known:
        sys.modules["backline.switches.switch_registry"].remove(name)  # the package's name for it is the function
    store._restart()


def test_a_declared_switch_works_at_once_and_everywhere(forget_plugins, monkeypatch):
    monkeypatch.setenv("BACKLINE_MKL_FASTER", "7")
    with backends.flags(fallback="warn"):
        old = switches.current()
        switches.declare(Switch("mkl.faster", int, 1, AtLeast(0), doc="An example.", governs=("matmul",)))
        assert switches.current() is not old
        assert (backends.mkl.faster, backends.fallback) == (7, "warn")
        with pytest.raises(KeyError, match="after this snapshot"):
            old["mkl.faster"]
    assert switches.origin("mkl.faster").kind == "environment"
    with switches.scope({"mkl.faster": 3}):
        assert backends.mkl.faster == 3
        backends.mkl.faster = 4
        assert backends.mkl.faster == 4
    assert "faster" in dir(backends.mkl)
    with pytest.raises(BadValue, match=r"mkl\.faster"):
        backends.mkl.faster = -1


def test_a_library_declared_by_a_plugin_may_be_preferred(forget_plugins):
    with pytest.raises(BadValue):
        backends.flags(prefer=["flexiblas"])
    switches.declare(Switch("flexiblas.enabled", bool, True, doc="An example."))
    with backends.flags(prefer=["flexiblas"]):
        assert backends.prefer == ("flexiblas",)


def test_declaring_the_same_again_is_nothing_and_a_clash_is_refused(forget_plugins):
    switch = Switch("a.b_c", bool, True, doc="An example.")
    switches.declare(switch)
    before = switches.current()
    switches.declare(Switch("a.b_c", bool, True, doc="An example."))
    assert switches.current() is before
    with pytest.raises(BadValue, match="declared already"):
        switches.declare(Switch("a.b_c", int, 1, doc="An example."))
    with pytest.raises(BadValue, match="BACKLINE_A_B_C"):
        switches.declare(Switch("a_b.c", bool, True, doc="An example."))
    with pytest.raises(BadType):
        switches.declare("a.d")
    assert "a_b.c" not in declared()


def test_a_bad_value_waiting_for_a_plugin_warns_when_it_is_declared(forget_plugins, monkeypatch):
    monkeypatch.setenv("BACKLINE_PLUG_SPEED", "warp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        switches.current()
    with pytest.warns(RuntimeWarning, match="BACKLINE_PLUG_SPEED.*'slow'"):
        switches.declare(Switch("plug.speed", str, "slow", ("slow", "fast"), doc="An example."))
    assert switches.get("plug.speed") == "slow"


def test_the_table_is_read_only():
    with pytest.raises(TypeError):
        declared()["x"] = None


# --- errors


def test_errors_say_value_cause_remedy_and_pickle():
    for name in errors.__all__:
        cls = getattr(errors, name)
        if name == "LinAlgError":
            assert issubclass(cls, np.linalg.LinAlgError) and issubclass(cls, RuntimeError)
            continue
        error = cls("What.", cause="Why.", remedy="How.")
        assert str(error) == "What.\n  cause : Why.\n  remedy: How."
        assert str(cls("What.")) == "What."
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is cls and str(again) == str(error)
        assert (again.message, again.cause, again.remedy) == ("What.", "Why.", "How.")
        assert isinstance(error, errors.BacklineError)


@pytest.mark.parametrize(
    ("cls", "bases"),
    [
        (BadValue, (RuntimeError, ValueError)),
        (BadType, (RuntimeError, TypeError)),
        (Frozen, (RuntimeError,)),
        (UnknownName, (AttributeError,)),
        (errors.ReadOnly, (RuntimeError, AttributeError)),
        (errors.BackendUnavailable, (RuntimeError,)),
        (errors.FallbackRefused, (RuntimeError,)),
        (errors.NoKernel, (RuntimeError,)),
        (errors.NotDeterministic, (RuntimeError,)),
    ],
)
def test_errors_are_caught_by_their_builtin_names(cls, bases):
    assert all(issubclass(cls, base) for base in bases)
