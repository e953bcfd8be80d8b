"""The compiled half of cuDNN's frontend, where graphs are made and plans run.

The frontend's graphs are in Python, over compiled ones. To list the plans of a graph they ask each for its knobs and write these
out as text, which takes several times as long as cuDNN's heuristics, and list kernels of the frontend's own, which are not used;
and `execute_plan_at_index` looks at every filter of every plan again, at each call, though a plan that is built has passed them.
Convolutions and attention need nothing that is only there in Python, and a call needs no more than the addresses as one array,
in the order of the tensors' uids. Frontends whose compiled half does not have these functions are called by what they document.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

__all__ = ["Call", "call_of", "compiled_call", "compiled_graph", "documented_call"]

RUN = "_execute_with_raw_ptrs"

# Of the addresses by uid, the address of the workspace (0 for none), and the handle.
Call = Callable[[Mapping[int, int], int, Any], None]


def compiled_graph(module: Any, node: str) -> Callable[..., Any] | None:
    """Returns the compiled class of graphs, for a node of which it has all that is needed; else None."""
    made: Callable[..., Any] | None = getattr(getattr(module, "_pybind_module", None), "backend_graph", None)
    return made if hasattr(made, RUN) and hasattr(made, node) else None


def call_of(graph: Any, index: int) -> Call:
    """Returns the function that runs a plan of a graph that is built; one thread at a time may call it."""
    return compiled_call(graph, index) or documented_call(graph, index)


def documented_call(graph: Any, index: int) -> Call:
    """Returns the function that runs a plan of a graph in Python as the frontend documents it."""

    def run(pointers: Mapping[int, int], workspace: int, handle: Any) -> None:
        graph.execute_plan_at_index(dict(pointers), workspace, index=index, handle=handle)

    return run


def compiled_call(graph: Any, index: int) -> Call | None:
    """Returns the function that calls the frontend's compiled half; None where that, or this plan of it, is not to be had."""
    try:
        compiled, place = graph, index
        if not hasattr(graph, RUN):  # one in Python, which may list plans of the frontend's own among cuDNN's
            compiled, place = graph._lowered_graph, graph.plans[index].cpp_index
        execute = getattr(compiled, RUN)
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
