"""The precision tree and its scopes, in any order and in any context, against a model that knows the rules and not the code."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import queue
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import backline
from backline import backends, switches
from backline.errors import BadType, BadValue, Frozen
from backline.switches import store

# --- the model ---------------------------------------------------------------------------------------------------

PARENT = {
    "generic": None, "mkldnn": "generic", "mkldnn.matmul": "mkldnn", "mkldnn.conv": "mkldnn", "mkldnn.rnn": "mkldnn",
    "cudnn": "generic", "cuda.matmul": "cudnn", "cudnn.conv": "cudnn", "cudnn.rnn": "cudnn",
}  # fmt: skip
FACTORY = object()
START: dict[str, Any] = {node: FACTORY if node in ("cudnn.conv", "cudnn.rnn") else "none" for node in PARENT}
CPU_OPS = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
VIEWS = {"cudnn.allow": ("cudnn.conv", "cudnn.rnn"), "cuda.matmul.allow": ("cuda.matmul",), "mkldnn.allow": CPU_OPS}
WORDS = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}
Raw = dict[str, Any]


def on_cuda(node: str) -> bool:
    return node.startswith("cud")


def resolve(raw: Raw, node: str) -> str:
    """Returns what a node reads as: its own word, else that of the nodes above it, else tf32 for a node nobody wrote."""
    above = PARENT[node]
    reading = raw[node] if raw[node] not in ("none", FACTORY) else "none"
    while reading == "none" and above is not None:
        reading, above = raw[above], PARENT[above]
    if reading == "none" and raw[node] is FACTORY:
        return "tf32"
    return "none" if on_cuda(node) and reading == "bf16" else reading


def view_reads(raw: Raw, view: str) -> Any:
    if view == "word":
        if resolve(raw, "mkldnn.matmul") == "bf16":
            return "medium"
        return "high" if "tf32" in (resolve(raw, "mkldnn.matmul"), resolve(raw, "cuda.matmul")) else "highest"
    return all(resolve(raw, node) == "tf32" for node in VIEWS[view])


def view_writes(raw: Raw, view: str, value: Any) -> Raw:
    """The nodes that writing a view writes, and what."""
    if view == "word":
        return dict(zip(("cuda.matmul", "mkldnn.matmul"), WORDS[value.lower()], strict=True))
    nodes = VIEWS[view]
    if value:
        return dict.fromkeys(nodes, "tf32")
    if view == "cuda.matmul.allow":
        return {"cuda.matmul": "ieee"}
    touched = [node for node in nodes if view == "cudnn.allow" or resolve(raw, node) == "tf32"]
    cleared = {**raw, **dict.fromkeys(touched, "none")}
    return {node: "ieee" if resolve(cleared, node) == "tf32" else "none" for node in touched}


def is_view(name: str) -> bool:
    return name in VIEWS or name == "word"


def writes(raw: Raw, values: dict[str, Any]) -> Raw | None:
    """Returns what one call that names several things stores: parents first; None if it says two things of one node."""
    found = {name: value for name, value in values.items() if not is_view(name)}
    under = {**raw, **found}
    for name, value in values.items():
        if is_view(name):
            for node, new in view_writes(under, name, value).items():
                if found.setdefault(node, new) != new:
                    return None
    return found


def is_legal(name: str, value: Any) -> bool:
    if name == "word":
        return isinstance(value, str) and value.lower() in WORDS
    if name in VIEWS:
        return value is True or value is False
    return value in ("none", "ieee", "tf32") or (value == "bf16" and not on_cuda(name))


# --- the real thing ----------------------------------------------------------------------------------------------


@functools.cache
def owner(name: str) -> tuple[Any, str]:
    """Module or handle, and attribute."""
    path, _, last = name.rpartition(".")
    if last == "allow":
        name, attribute = path, "allow_tf32"
    else:
        attribute = "fp32_precision"
    found: Any = backends
    for part in name.split(".") if name != "generic" else ():
        found = getattr(found, part)
    return found, attribute


SWITCH = {"word": "float32_matmul_precision", "generic": "fp32_precision", **{view: f"{view}_tf32" for view in VIEWS}}
NAMES = [*PARENT, *VIEWS, "word"]


def read(name: str) -> Any:
    return backline.get_float32_matmul_precision() if name == "word" else getattr(*owner(name))


def write(name: str, value: Any) -> None:
    if name == "word":
        backline.set_float32_matmul_precision(value)
    else:
        setattr(*owner(name), value)


def readings() -> dict[str, Any]:
    return {name: read(name) for name in NAMES}


def switch_of(name: str) -> str:
    return SWITCH.get(name, f"{name}.fp32_precision")


GROUPS = {  # modules whose flags() takes several of the names
    "generic": ("generic",), "cudnn": ("cudnn.allow", "cudnn"), "mkldnn": ("mkldnn.allow", "mkldnn"),
    "cuda.matmul": ("cuda.matmul.allow", "cuda.matmul"), "cudnn.conv": ("cudnn.conv",), "cudnn.rnn": ("cudnn.rnn",),
    "mkldnn.matmul": ("mkldnn.matmul",), "mkldnn.conv": ("mkldnn.conv",), "mkldnn.rnn": ("mkldnn.rnn",),
}  # fmt: skip


def keywords(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    return {prefix + owner(name)[1]: value for name, value in values.items()}


# --- contexts: of their own, of threads, of tasks ----------------------------------------------------------------


class InContext:
    """A context that the test's thread enters for each step."""

    def __init__(self, context: contextvars.Context) -> None:
        self.context = context

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        return self.context.run(step, *args)

    def close(self) -> None:
        pass


class InThread:
    """A thread that does each step; it is waited for."""

    def __init__(self, context: contextvars.Context | None) -> None:
        self.steps: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        target = self.serve if context is None else lambda: context.run(self.serve)
        self.thread = threading.Thread(target=target, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while (step := self.steps.get()) is not None:
            self.answers.put(outcome(step))

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        self.steps.put(lambda: step(*args))
        return unpack(self.answers.get(timeout=60))

    def close(self) -> None:
        self.steps.put(None)
        self.thread.join(60)


class InTask:
    """A task of a loop that runs for as long as a step takes."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, context: contextvars.Context) -> None:
        self.steps: asyncio.Queue[Any] = asyncio.Queue()
        self.task = self.loop.create_task(self.serve(), context=context)

    async def serve(self) -> None:
        while (item := await self.steps.get()) is not None:
            step, answer = item
            answer.set_result(outcome(step))

    def run(self, step: Callable[..., Any], *args: Any) -> Any:
        answer = self.loop.create_future()
        self.steps.put_nowait((lambda: step(*args), answer))
        return unpack(self.loop.run_until_complete(answer))

    def close(self) -> None:
        self.steps.put_nowait(None)
        self.loop.run_until_complete(self.task)


def outcome(step: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return step(), None
    except Exception as error:
        return None, error


def unpack(answer: tuple[Any, BaseException | None]) -> Any:
    result, error = answer
    if error is not None:
        raise error
    return result


@dataclass
class Place:
    """Everything that one context should see: its open scopes, the innermost last, each with the raw values of its nodes."""

    where: Any
    layers: list[tuple[int, Raw]] = field(default_factory=list)

    def raw(self, base: Raw) -> Raw:
        merged = dict(base)
        for _, values in self.layers:
            merged.update(values)
        return merged


# --- sequences ---------------------------------------------------------------------------------------------------

NUMBER = st.integers(0, 11)
WORD = st.sampled_from(["none", "ieee", "tf32", "bf16"])
FP = st.one_of(WORD, WORD, WORD, st.sampled_from(["", "TF32", "fp16", "factory", 1, True]))
BOOL = st.one_of(st.booleans(), st.booleans(), st.booleans(), st.sampled_from([1, 0, "tf32"]))
LEVEL = st.one_of(st.sampled_from(["highest", "high", "medium", "HIGH", "Medium"]), st.sampled_from(["foo", "", 3]))
VALUE = {name: LEVEL if name == "word" else BOOL if name in VIEWS else FP for name in NAMES}
ONE = st.sampled_from(NAMES).flatmap(lambda name: VALUE[name].map(lambda value: {name: value}))
GROUP = st.sampled_from([*GROUPS]).flatmap(
    lambda group: st.fixed_dictionaries({}, optional={name: VALUE[name] for name in GROUPS[group]}).map(lambda values: (group, values))
)
SEVERAL = st.fixed_dictionaries({}, optional={name: VALUE[name] for name in NAMES})


class Tree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        store._restart()
        self.base = dict(START)
        self.frozen = False
        self.scopes: list[tuple[Any, dict[str, Any]]] = []
        self.places = [Place(InContext(contextvars.Context()))]

    def teardown(self) -> None:
        for place in self.places:
            self.check(place)
            place.where.close()
        store._restart()

    def place(self, number: int) -> Place:
        return self.places[number % len(self.places)]

    def do(self, place: Place, values: dict[str, Any], call: Callable[[], Any]) -> Any:
        """A write of several things at once, which the model does as well."""
        given = {name: value for name, value in values.items() if value is not None}
        wrong = [value for name, value in given.items() if not is_legal(name, value)]
        stored = None if wrong else writes(place.raw(self.base), given)
        if stored is None:
            closed = self.frozen and not place.layers and not wrong  # two reasons to refuse it, and either may be given
            with pytest.raises((BadValue, BadType, Frozen) if closed else (BadValue, BadType)):
                place.where.run(call)
        elif place.layers:
            answer = place.where.run(call)
            number, layer = place.layers[-1]
            place.layers[-1] = (number, {**layer, **stored})
            return answer
        elif self.frozen and given:
            with pytest.raises(Frozen):
                place.where.run(call)
        else:
            answer = place.where.run(call)
            self.base.update(stored)
            return answer
        return None

    @rule(values=ONE, place=NUMBER)
    def assign(self, values: dict[str, Any], place: int) -> None:
        ((name, value),) = values.items()
        self.do(self.place(place), values, lambda: write(name, value))

    @rule(values=GROUP, place=NUMBER)
    def set_flags(self, values: tuple[str, dict[str, Any]], place: int) -> None:
        group, named = values
        module, _ = owner(group)
        if hasattr(module, "set_flags"):
            seen = self.place(place)
            before = seen.raw(self.base)
            answer = self.do(seen, named, lambda: module.set_flags(**keywords(named, "_")))
            if answer is not None and group in ("cudnn", "mkldnn"):
                allow, raw = answer[4:6] if group == "cudnn" else answer[2:4]
                assert (allow, raw) == (view_reads(before, f"{group}.allow"), before[group])

    @rule(values=SEVERAL, place=NUMBER)
    def assign_several(self, values: dict[str, Any], place: int) -> None:
        named = {switch_of(name): value for name, value in values.items()}
        self.do(self.place(place), values, lambda: switches.assign_many(named))

    @precondition(lambda self: len(self.scopes) < 4)
    @rule(values=st.one_of(GROUP, GROUP, SEVERAL.map(lambda values: ("", values))), place=NUMBER)
    def make_a_scope(self, values: tuple[str, dict[str, Any]], place: int) -> None:
        group, named = values
        seen = self.place(place)

        def make() -> Any:
            if group:
                return owner(group)[0].flags(**keywords(named))
            return switches.scope({switch_of(name): value for name, value in named.items()})

        if all(is_legal(name, value) for name, value in named.items()) and writes(seen.raw(self.base), named) is not None:
            self.scopes.append((seen.where.run(make), named))
        else:
            with pytest.raises((BadValue, BadType)):
                seen.where.run(make)

    @precondition(lambda self: self.scopes)
    @rule(scope=NUMBER, place=NUMBER)
    def enter(self, scope: int, place: int) -> None:
        number = scope % len(self.scopes)
        real, named = self.scopes[number]
        seen = self.place(place)
        stored = writes(seen.raw(self.base), named)
        if stored is None:  # what a view writes has come to contradict the rest
            with pytest.raises(BadValue):
                seen.where.run(real.__enter__)
        else:
            assert seen.where.run(real.__enter__) is real
            seen.layers.append((number, stored))

    @precondition(lambda self: self.scopes)
    @rule(scope=NUMBER, place=NUMBER)
    def leave(self, scope: int, place: int) -> None:
        number = scope % len(self.scopes)
        seen = self.place(place)
        mine = [index for index, (opened, _) in enumerate(seen.layers) if opened == number]

        def leave() -> list[type[Warning]]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.scopes[number][0].__exit__(None, None, None)
            return [each.category for each in caught]

        assert seen.where.run(leave) == ([] if mine else [RuntimeWarning])
        if mine:
            del seen.layers[mine[-1]]

    @precondition(lambda self: len(self.places) < 6)
    @rule(kind=st.sampled_from([InContext, InTask, InThread]), copied=st.booleans(), place=NUMBER)
    def start_a_context(self, kind: Any, copied: bool, place: int) -> None:
        seen = self.place(place)
        if copied:
            context, layers = seen.where.run(contextvars.copy_context), list(seen.layers)
        else:
            context, layers = None if kind is InThread else contextvars.Context(), []
        self.places.append(Place(kind(context), layers))

    @precondition(lambda self: not self.frozen)
    @rule(really=st.integers(0, 15))
    def freeze(self, really: int) -> None:
        if really == 0:
            backends.disable_global_flags()
            self.frozen = True

    @rule(place=NUMBER)
    def look(self, place: int) -> None:
        self.check(self.place(place))

    def check(self, place: Place) -> None:
        raw = place.raw(self.base)
        expected = {name: resolve(raw, name) if name in PARENT else view_reads(raw, name) for name in NAMES}
        assert place.where.run(readings) == expected
        assert {name: place.where.run(switches.get, switch_of(name)) for name in NAMES} == expected


Tree.TestCase.settings = settings(
    max_examples=1850, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture(autouse=True)
def a_loop() -> Any:
    InTask.loop = asyncio.new_event_loop()
    yield
    InTask.loop.close()


@pytest.mark.slow
class TestTree(Tree.TestCase):
    pass


def test_two_thousand_sequences_are_run_in_all() -> None:
    """With those of the scopes of any switch, which have a machine of their own."""
    from pathlib import Path

    text = (Path(__file__).parents[1] / "switches/test_scopes_model.py").read_text()
    others = int(text.partition("max_examples=")[2].partition(",")[0])
    assert Tree.TestCase.settings.max_examples + others >= 2000


def test_the_model_is_not_blind() -> None:
    """It tells apart states that differ in one node."""
    seen = {}
    for node, word in itertools.product(PARENT, ("ieee", "tf32")):
        raw = {**START, node: word}
        seen[node, word] = tuple(resolve(raw, each) for each in PARENT)
    assert len(set(seen.values())) == len(seen) - 1, "only conv and rnn read tf32 before anybody writes it"
