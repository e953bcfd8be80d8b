"""Restores the stored state of a switch, which no getter returns in full, after an assignment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from . import process_values
from .lookup import lookup
from .provenance import Place
from .scope_state import lock, set_base, state_over, states
from .snapshot import Overlay, Scope, overlay, start
from .switch import DerivedSwitch, Value

__all__ = ["remember"]


def remember(name: str) -> Callable[[], None]:
    """Returns a function that puts a switch back into its present state: in the innermost open scope, or in the base.

    It passes a frozen base, which gets nothing new by it.
    """
    switch = lookup(name)
    nodes = switch.nodes if isinstance(switch, DerivedSwitch) else (name,)
    state = states.get(None)
    if state is not None and state.layers:
        scope, values, written = state.layers[-1]
        return lambda: _in_layer(scope, nodes, values, written or {})
    with lock.now:
        before = {node: process_values.assigned.get(node) for node in nodes}
    return lambda: _in_base(before)


def _in_base(before: Mapping[str, tuple[Value, Place] | None]) -> None:
    with lock.now:
        for node, entry in before.items():
            if entry is None:
                process_values.assigned.pop(node, None)
            else:
                process_values.assigned[node] = entry
        set_base(None)


def _in_layer(scope: Scope, nodes: Iterable[str], values: Overlay, written: Mapping[str, Place]) -> None:
    state = states.get(None)
    layers = state.layers if state is not None else ()
    at = max((index for index, layer in enumerate(layers) if layer[0] is scope), default=None)
    if state is None or at is None:
        return  # the scope has been left, and the assignment with it
    items, places = dict(layers[at][1].items), dict(layers[at][2] or {})
    for node in nodes:
        items.pop(node, None)
        places.pop(node, None)
        if node in values.items:
            items[node] = values.items[node]
        if node in written:
            places[node] = written[node]
    layer = (scope, overlay(tuple(items.items())), places)
    states.set(state_over((*layers[:at], layer, *layers[at + 1 :]), start(), state.tracer))
