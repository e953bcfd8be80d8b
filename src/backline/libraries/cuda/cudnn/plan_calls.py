"""Calls of a plan that is built, with as little Python as the frontend allows.

`execute_plan_at_index` of the frontends looks at every filter of every plan again, at each call, though a plan that is built has
passed them, and copies the addresses from one dict into the next. What it calls in the end is a function of its compiled half,
which takes the addresses as one array, in the order of the tensors' uids: that is all that a call needs. Frontends that have no
such function are called by the one that they document.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

__all__ = ["Call", "call_of", "compiled_call"]

# Of the addresses by uid, the address of the workspace (0 for none), and the handle.
Call = Callable[[Mapping[int, int], int, Any], None]


def call_of(graph: Any, index: int) -> Call:
    """Returns the function that runs a plan of a graph that is built; one thread at a time may call it."""
    return compiled_call(graph, index) or _documented_call(graph, index)


def _documented_call(graph: Any, index: int) -> Call:
    def run(pointers: Mapping[int, int], workspace: int, handle: Any) -> None:
        graph.execute_plan_at_index(dict(pointers), workspace, index=index, handle=handle)

    return run


def compiled_call(graph: Any, index: int) -> Call | None:
    """Returns the function that calls the frontend's compiled half; None where that, or this plan of it, is not to be had."""
    try:
        compiled = graph._lowered_graph
        execute, place = compiled._execute_with_raw_ptrs, graph.plans[index].cpp_index
        # Nothing but a call of the plan, or this, has the order of the tensors found.
        compiled._prepare_variant_pack_template()
        uids = tuple(compiled._get_variant_pack_uids_sorted())
    except (AttributeError, IndexError, RuntimeError):
        return None
    if type(place) is not int or len(uids) < 2:
        return None
    count = len(uids)
    addresses = (ctypes.c_void_p * count)()
    begin, pack, find = ctypes.addressof(addresses), struct.Struct(f"{count}P").pack_into, itemgetter(*uids)

    def run(pointers: Mapping[int, int], workspace: int, handle: Any) -> None:
        pack(addresses, 0, *find(pointers))
        execute(begin, count, workspace, handle.backend_handle, place)

    return run
