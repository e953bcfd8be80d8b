"""Overrides: which kernel in a Python kernel language runs a call, and why another does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backline import switches
from backline.errors import BadType, BadValue
from backline.libraries import overrides
from backline.libraries.overrides import Override, active, considered, operations, register, unregister

OP = "example.op"
ATTENTION = ("nn.functional.scaled_dot_product_attention", "nn.grad.scaled_dot_product_attention_backward")


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    yield
    for those in [*overrides._overrides.values()]:
        for each in those:
            unregister(each)


def add(language: str = "triton", key: str = "CPU", condition: object = None) -> Override:
    return register(language, OP, key, lambda: language, condition)  # type: ignore[arg-type]  # also what is refused


def test_without_an_override_there_is_none():
    assert active(OP, "CPU") is None and considered(OP, "CPU") == [] and operations("cutedsl") == []
    assert tuple(operations("triton")) == ATTENTION, "kernels of our own"


def test_an_override_is_for_its_operation_and_key():
    made = add()
    assert active(OP, "CPU") is made
    assert active(OP, "CUDA") is None and active("other.op", "CPU") is None


def test_the_first_that_can_run_the_call_is_used():
    first, second = add("cutedsl", condition=lambda x: x > 0), add("triton")
    assert active(OP, "CPU", 1) is first and active(OP, "CPU", -1) is second
    with switches.scope({"python_native.cutedsl.enabled": False}):
        assert active(OP, "CPU", 1) is second


def test_conditions_get_the_arguments_of_the_call():
    seen = []
    add(condition=lambda *args, **kwargs: seen.append((args, kwargs)) or True)
    active(OP, "CPU", 1, "two", three=3)
    assert seen == [((1, "two"), {"three": 3})]


def test_the_condition_of_a_disabled_override_is_not_asked():
    def never() -> bool:
        raise AssertionError

    add(condition=never)
    with switches.scope({"python_native.triton.enabled": False}):
        assert active(OP, "CPU") is None


def test_each_refusal_has_its_reason_and_switch():
    made = add(condition=lambda: False)
    cases = {
        "python_native.triton.enabled": False,
        "python_native.disabled_operations": (OP,),
        "python_native.disabled_dispatch_keys": ("CPU",),
    }
    for name, value in cases.items():
        with switches.scope({name: value}):
            (verdict,) = considered(OP, "CPU")
            assert verdict.override is made and verdict.switch == name and f"disabled by {name}" in verdict.reason
    (verdict,) = considered(OP, "CPU")
    assert (verdict.reason, verdict.switch) == ("its condition does not hold for this call", "")


def test_operations_are_sorted_and_named_once():
    for op in ("b", "a", "b"):
        register("triton", op, "CPU", print)
    register("triton", "b", "CUDA", print)
    register("cutedsl", "c", "MPS", print)
    assert operations("triton") == ["a", "b", *ATTENTION] and operations("cutedsl") == ["c"] and operations("fortran") == []


def test_taking_out_what_is_not_there_is_no_error():
    made = add()
    unregister(made)
    unregister(made)
    assert active(OP, "CPU") is None


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("fortran", OP, "CPU", print), BadValue, "'triton'"),
        (("triton", OP, "cpu", print), BadValue, "'CPU'"),
        (("triton", OP, "TPU", print), BadValue, "dispatch key"),
        (("triton", 3, "CPU", print), BadType, "not int: 3"),
        (("triton", OP, "CPU", "print"), BadType, "'print'"),
        (("triton", OP, "CPU", print, True), BadType, "True"),
    ],
)
def test_what_cannot_be_registered_is_refused(args, error, text):
    with pytest.raises(error, match=text):
        register(*args)
    assert tuple(operations("triton")) == ATTENTION


@settings(max_examples=200, deadline=None)
@given(
    kinds=st.lists(st.tuples(st.sampled_from(["triton", "cutedsl"]), st.sampled_from(["CPU", "CUDA"]), st.booleans()), max_size=5),
    triton=st.booleans(), cutedsl=st.booleans(), ops=st.sampled_from([(), (OP,), ("other",)]), keys=st.sampled_from([(), ("CPU",), ("MPS", "CUDA")]),
    key=st.sampled_from(["CPU", "CUDA"]),
)  # fmt: skip
def test_an_override_is_used_iff_nothing_disables_it_and_its_condition_holds(kinds, triton, cutedsl, ops, keys, key):
    made = [add(language, at, lambda holds=holds: holds) for language, at, holds in kinds]
    values = {"python_native.triton.enabled": triton, "python_native.cutedsl.enabled": cutedsl,
              "python_native.disabled_operations": ops, "python_native.disabled_dispatch_keys": keys}  # fmt: skip
    wanted = [
        each for each, (language, at, holds) in zip(made, kinds, strict=True)
        if at == key and holds and {"triton": triton, "cutedsl": cutedsl}[language] and OP not in ops and key not in keys
    ]  # fmt: skip
    with switches.scope(values):
        assert active(OP, key) is (wanted[0] if wanted else None)
        assert [v.override for v in considered(OP, key) if not v.reason] == wanted
    for each in made:
        unregister(each)


def test_every_kind_of_device_has_a_key():
    assert overrides.KEYS == {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS"}
