"""Taking assignments back: the stored state of a switch, which no getter returns in full, as it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from . import store
from .provenance import Place
from .scope import Scope
from .snapshot import Overlay, overlay
from .switch import Value, View
from .switch_registry import lookup

__all__ = ["remember"]


def remember(name: str) -> Callable[[], None]:
    """Return a function that puts a switch back into its present state: in the innermost open scope, or in the base.

    It passes a frozen base, which gets nothing new by it.
    """
    switch = lookup(name)
    nodes = switch.nodes if isinstance(switch, View) else (name,)
    frame = store.frames.get(None)
    if frame is not None and frame.layers:
        scope, values, written = frame.layers[-1]
        return lambda: _in_layer(scope, nodes, values, written or {})
    with store._lock:
        assigned = {node: store._assigned.get(node) for node in nodes}
    return lambda: _in_base(assigned)


def _in_base(assigned: Mapping[str, tuple[Value, Place] | None]) -> None:
    with store._lock:
        for node, entry in assigned.items():
            if entry is None:
                store._assigned.pop(node, None)
            else:
                store._assigned[node] = entry
        if store.the_base is not None:
            store._make_base()


def _in_layer(scope: Scope, nodes: Iterable[str], values: Overlay, written: Mapping[str, Place]) -> None:
    frame = store.frames.get(None)
    layers = frame.layers if frame is not None else ()
    at = max((index for index, layer in enumerate(layers) if layer[0] is scope), default=None)
    if frame is None or at is None:
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
    frames = (*layers[:at], layer, *layers[at + 1 :])
    store.frames.set(store.frame_over(frames, store.start(), frame.tracer))
