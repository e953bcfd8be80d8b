"""Scopes, writes and exits in any order and in any context, against a model written without the store."""

from __future__ import annotations

import contextvars
import warnings
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from backline import switches
from backline.errors import Frozen
from backline.switches import store

VALUES: dict[str, tuple[Any, ...]] = {
    "fallback": ("allow", "warn", "error"),
    "benchmark_limit": (0, 3, 10),
    "mkl.enabled": (True, False),
    "prefer": ((), ("mkl",), ("blis", "mkl")),
}
START = {"fallback": "allow", "benchmark_limit": 10, "mkl.enabled": True, "prefer": ()}
SETTINGS = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(legal) for name, legal in VALUES.items()}
)
NUMBER = st.integers(0, 11)


@dataclass
class View:
    """Everything that one context should see: its open scopes, innermost last, each with its own values."""

    context: contextvars.Context
    layers: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def value(self, name: str, base: dict[str, Any]) -> Any:
        return next((values[name] for _, values in reversed(self.layers) if name in values), base[name])


class Scopes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        store._restart()
        self.base = dict(START)
        self.snapshots: dict[tuple[tuple[str, Any], ...], switches.Snapshot] = {}
        self.frozen = False
        self.scopes: list[tuple[switches.Scope, dict[str, Any]]] = []
        self.views = [View(contextvars.Context())]

    def teardown(self) -> None:
        for view in self.views:
            self.check(view)
        store._restart()

    @precondition(lambda self: len(self.scopes) < 3)
    @rule(values=SETTINGS)
    def make_a_scope(self, values: dict[str, Any]) -> None:
        self.scopes.append((switches.scope(values), values))

    @precondition(lambda self: self.scopes)
    @rule(scope=NUMBER, view=NUMBER)
    def enter(self, scope: int, view: int) -> None:
        number = scope % len(self.scopes)
        real, values = self.scopes[number]
        seen = self.views[view % len(self.views)]
        assert seen.context.run(real.__enter__) is real
        seen.layers.append((number, dict(values)))

    @precondition(lambda self: self.scopes)
    @rule(scope=NUMBER, view=NUMBER)
    def leave(self, scope: int, view: int) -> None:
        number = scope % len(self.scopes)
        real, _ = self.scopes[number]
        seen = self.views[view % len(self.views)]
        mine = [index for index, (owner, _) in enumerate(seen.layers) if owner == number]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen.context.run(real.__exit__, None, None, None)
        assert [w.category for w in caught] == ([] if mine else [RuntimeWarning])
        if mine:
            del seen.layers[mine[-1]]

    @rule(name=st.sampled_from([*VALUES]), which=NUMBER, view=NUMBER)
    def write(self, name: str, which: int, view: int) -> None:
        value = VALUES[name][which % len(VALUES[name])]
        seen = self.views[view % len(self.views)]
        if seen.layers:
            seen.context.run(switches.assign, name, value)
            owner, values = seen.layers[-1]
            seen.layers[-1] = (owner, {**values, name: value})
        elif self.frozen:
            with pytest.raises(Frozen, match=name):
                seen.context.run(switches.assign, name, value)
        else:
            seen.context.run(switches.assign, name, value)
            self.base[name] = value

    @precondition(lambda self: len(self.views) < 5)
    @rule(view=NUMBER)
    def copy_a_context(self, view: int) -> None:
        seen = self.views[view % len(self.views)]
        self.views.append(View(seen.context.copy(), list(seen.layers)))

    @precondition(lambda self: len(self.views) < 5)
    @rule()
    def start_a_fresh_context(self) -> None:
        self.views.append(View(contextvars.Context()))

    @precondition(lambda self: not self.frozen)
    @rule(really=st.integers(0, 9))
    def freeze(self, really: int) -> None:
        if really == 0:
            switches.freeze()
            self.frozen = True

    @rule(view=NUMBER)
    def look(self, view: int) -> None:
        # Not after every step: reading brings a context's merged values up to date, and the other steps must
        # also work on values that are out of date.
        self.check(self.views[view % len(self.views)])

    def check(self, view: View) -> None:
        expected = {name: view.value(name, self.base) for name in VALUES}
        snapshot = view.context.run(switches.current)
        assert {name: snapshot[name] for name in VALUES} == expected
        assert {name: view.context.run(switches.get, name) for name in VALUES} == expected
        same = self.snapshots.setdefault(tuple(expected.items()), snapshot)
        assert same is snapshot, "equal values must be the same object"
        for name in VALUES:
            kind = view.context.run(switches.origin, name).kind
            inside = any(name in values for _, values in view.layers)
            assert kind in (("scope", "assignment") if inside else ("default", "assignment"))


Scopes.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestScopes = Scopes.TestCase
