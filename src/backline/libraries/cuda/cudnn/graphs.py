"""cuDNN's graphs: built as a recipe says, and run by the first of their plans that can.

Which plans are left after filters, which of them fit into memory and which is the fastest is told by trying only.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Mapping
from statistics import median
from typing import Any

from ....errors import LibraryFailed, NoKernel
from ..common import bindings
from ..common.streams import Handles, current_stream
from .conv_graphs import Graph, Tensor
from .plan_calls import Call, call_of, compiled_graph

__all__ = ["Plans", "build", "handle_for", "own_plans", "why"]

ROUNDS, LEAST, SPENT = 10, 3, 30.0  # runs of a plan at most; at least; milliseconds after which it is left alone
SLOWER = 2.0  # a plan so many times slower than the fastest is dropped after LEAST rounds
BETTER = 0.97  # the first plan stays unless another takes no more than this part of its time
SEED = 20261121  # of the order in which plans take turns


def build(
    module: Any, graph: Graph, capability: tuple[int, int], *, handle: Any = None, device_property: Any = None,
    compiled: bool = True,
) -> Any:  # fmt: skip
    """The graph of a recipe, with its plans listed and filtered, none of them built.

    It takes a handle of the device, or a description (`device_property`) of one that is not there. `compiled` graphs are made
    where the frontend has them.
    """
    make = compiled_graph(module, graph.node) if compiled else None
    if make is not None and handle is not None:
        handle = handle.backend_handle
    kinds = module.data_type.__members__
    # Without the version, attention asks the CUDA runtime for it.
    given = {"handle": handle, "device_property": device_property, "sm_version": 10 * capability[0] + capability[1]}
    made = (make or module.pygraph)(
        io_data_type=kinds[graph.io], intermediate_data_type=kinds[graph.intermediate], compute_data_type=kinds[graph.compute],
        **{name: value for name, value in given.items() if value is not None},
    )  # fmt: skip

    tensors: dict[int, Any] = {}  # by uid: arrays may share their offsets

    def tensor(of: Tensor) -> Any:
        if of.uid not in tensors:
            ragged = {} if of.offsets is None else {"ragged_offset": tensor(of.offsets)}
            tensors[of.uid] = made.tensor(
                name=of.name, dim=list(of.dims), stride=list(of.strides), data_type=kinds[of.dtype], uid=of.uid, **ragged
            )
        return tensors[of.uid]

    arguments = {name: tensor(of) for name, of in graph.inputs}
    for name, value in graph.options:
        arguments[name] = list(value) if isinstance(value, tuple) else value
    if graph.dropout is not None:
        arguments["dropout"] = (graph.dropout.probability, tensor(graph.dropout.seed), tensor(graph.dropout.offset))
    results = getattr(made, graph.node)(**arguments)
    for result, of in zip(results if isinstance(results, list | tuple) else [results], graph.outputs, strict=False):
        result.set_output(True).set_dim(list(of.dims)).set_stride(list(of.strides)).set_data_type(kinds[of.dtype]).set_uid(of.uid)
        if of.offsets is not None:
            result.set_ragged_offset(tensor(of.offsets))
    made.validate()
    made.build_operation_graph()
    made.create_execution_plans([module.heur_mode.__members__[mode] for mode in graph.modes])
    if graph.without:
        # A filter marks plans that there are: before they are listed it marks none.
        made.deselect_numeric_notes([module.numerical_note.__members__[note] for note in graph.without])
    return made


def own_plans(graph: Any) -> list[int]:
    """Indices of cuDNN's own plans: some frontends rank engines of theirs, in Python, among them."""
    every = range(graph.get_execution_plan_count())
    entries, listed = getattr(graph, "backend_plan_entries", None), getattr(graph, "plans", None)
    if entries is None or listed is None:
        return list(every)
    own = {getattr(entry, "cpp_index", None) for entry in entries()} - {None}
    return [index for index in every if getattr(listed[index], "cpp_index", None) in own]


def why(error: Exception) -> str:
    """Returns why a plan was not built, from the error's text: cuDNN has one exception type for all errors.

    >>> why(RuntimeError("Deselecting execution plan"))
    'dropped by a filter'
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if "Deselecting" in text:
        return "dropped by a filter"
    if "workspace violation" in text:
        return "needs more workspace than there may be"
    return text if len(text) <= 200 else text[:200] + "..."


class Plans:
    """The plans of one graph, in the order in which they are tried. Its lock is held by who uses it."""

    def __init__(
        self, module: Any, spec: Graph, capability: tuple[int, int], handle: Any = None, device_property: Any = None
    ) -> None:
        self.lock = threading.RLock()
        self.spec = spec
        self.errors = (module.cudnnGraphNotSupportedError, RuntimeError)
        self.ready: list[int] = []  # indices of plans that are built, the first choice first
        self.workspaces: dict[int, int] = {}  # index of a built plan -> bytes of its workspace
        self.calls: dict[int, Call] = {}  # and the function that runs it
        self.refused: dict[str, str] = {}  # name of a plan -> why it is not used
        self.times: dict[str, float] = {}  # name of a plan -> median milliseconds, where plans were timed
        self.built = 0  # how many plans have been built so far, from the first try on
        self._distinct = False  # whether no plan is listed twice any more
        self.failed = False  # whether no plan could run: another object is made for the next call
        self.searched: int | None = None  # how many plans at most were timed: 0 for all there are, None where none were
        self.tuned = ""  # name of the plan that comes first since it was the fastest when they were timed before; empty without
        try:
            self.graph = build(module, spec, capability, handle=handle, device_property=device_property)
            self.listed = own_plans(self.graph)
            self.waiting = [index for index in self.listed if not self._of_listed_engine(index)]
        except self.errors as error:
            raise NoKernel(f"cuDNN has no plan for {spec.node}", cause=f"{type(error).__name__}: {why(error)}") from error

    def _of_listed_engine(self, index: int) -> bool:
        """True for a plan of an engine that errata name; it is among those that are refused then."""
        if not self.spec.engines_out:
            return False  # names take the frontend longer than all else here
        number = re.match(r"eng(\d+)", self.name(index))
        listed = number is not None and int(number[1]) in self.spec.engines_out
        if listed:
            self._refuse(index, "an erratum names its engine (`backline check errata`)")
        return listed

    def name(self, index: int) -> str:
        return str(self.graph.get_plan_name_at_index(index))

    def covers(self, limit: int) -> bool:
        """True if as many plans were timed as `limit` allows (0: all)."""
        return self.searched == 0 or (self.searched is not None and 0 < limit <= self.searched)

    def take(self, name: str, searched: int = 0) -> bool:
        """Have the plan with a name come first; False if none has it, or it cannot be built.

        It was the fastest of as many as were `searched` (0: all); nothing is timed that this covers. Its name says a plan's
        engine and all its knobs. (Frontends list plans by engine and knobs, but refuse some of these knobs when a plan is to be
        made of them.)
        """
        self.distinct()
        index = next((index for index in self.waiting if self.name(index) == name), None)
        if index is None or not self._build(index):
            return False
        self.waiting.remove(index)
        self.ready.insert(0, index)
        self.tuned, self.searched = name, searched
        return True

    def _refuse(self, index: int, reason: str) -> None:
        self.refused[f"{self.name(index)} ({index})"] = reason

    def distinct(self) -> None:
        """Leave out plans that are listed for a second time, by another heuristic: once somebody wants more than the first one.

        Names alone tell, and those of all plans take as long as a fifth of the heuristics.
        """
        if not self._distinct:
            self._distinct = True
            first: dict[str, int] = {}
            for index in self.listed:
                first.setdefault(self.name(index), index)
            self.waiting = [index for index in self.waiting if first[self.name(index)] == index]

    def _build_next(self) -> bool:
        """Build the next plan that can be; False if there is none."""
        if self.built:
            self.distinct()
        while self.waiting:
            index = self.waiting.pop(0)
            if self._build(index):
                self.ready.append(index)
                return True
        return False

    def _build(self, index: int) -> bool:
        self.built += 1
        try:
            self.graph.build_plan_at_index(index)
            self.workspaces[index] = int(self.graph.get_workspace_size_plan_at_index(index))
            self.calls[index] = call_of(self.graph, index)
        except self.errors as error:
            self._refuse(index, why(error))
            return False
        return True

    def first(self) -> int:
        """Index of the plan that is tried first, built; raises `NoKernel` with every plan and its reason where none can be."""
        if not self.ready and not self._build_next():
            self.failed = True
            raise NoKernel(f"none of cuDNN's plans for {self.spec.node} can be built", cause=self._listed())
        return self.ready[0]

    def _listed(self) -> str:
        return "".join(f"\n    {name}: {reason}" for name, reason in self.refused.items()) or "it lists none"

    def _execute(self, index: int, pointers: Mapping[int, int], handle: Any) -> None:
        size = self.workspaces[index]
        # The pool gives it back to later work of this stream only.
        memory = bindings.cupy().cuda.alloc(size) if size > 0 else None
        workspace = 0 if memory is None else int(memory.ptr)
        self.calls[index](pointers, workspace, handle)

    def run(self, pointers: Mapping[int, int], handle: Any) -> None:
        """Run the first plan that can: the next one, where there is no memory for a workspace or a plan fails.

        Raises `MemoryError` where there is no memory for the workspace of any, and `LibraryFailed` where all others failed.
        """
        at, short = 0, None
        while at < len(self.ready) or self._build_next():
            index = self.ready[at]
            try:
                self._execute(index, pointers, handle)
            except MemoryError as error:  # it stays: there may be memory at the next call
                short, at = error, at + 1
            except self.errors as error:
                del self.ready[at]
                self._refuse(index, f"failed: {why(error)}")
            else:
                return
        if short is not None:
            raise short
        self.failed = True
        raise LibraryFailed(f"all of cuDNN's plans for {self.spec.node} failed", cause=self._listed())

    def search(self, pointers: Mapping[int, int], handle: Any, limit: int, l2_bytes: int) -> None:
        """Time at most `limit` plans (0: all) on the arrays of a call, and put the fastest first.

        The device's cache, of so many bytes, is written over before every run.
        """
        self.searched, self.tuned = limit, ""
        cupy = bindings.cupy()
        bound = int(cupy.cuda.runtime.memGetInfo()[0]) + int(cupy.get_default_memory_pool().free_bytes())
        self.graph.deselect_workspace_greater_than(bound)
        self.distinct()
        self.waiting, self.ready = sorted({*self.waiting, *self.ready}), []
        runs: list[int] = []
        while (not limit or len(runs) < limit) and self._build_next():
            index = self.ready.pop()
            if int(self.graph.get_workspace_size_plan_at_index(index)) > bound:
                self._refuse(index, f"needs more than {bound} bytes of workspace, and memory ran out before")
                continue
            try:
                self._execute(index, pointers, handle)  # not counted
            except MemoryError:
                bound //= 2
                self._refuse(index, "there was no memory for its workspace")
                continue
            except self.errors as error:
                self._refuse(index, f"failed: {why(error)}")
                continue
            runs.append(index)
        self.searched = limit if limit and self.waiting else 0
        self.ready = self._timed(cupy, runs, pointers, handle, l2_bytes) if len(runs) > 1 else runs

    def _timed(self, cupy: Any, indices: list[int], pointers: Mapping[int, int], handle: Any, l2_bytes: int) -> list[int]:
        """The indices, the fastest first; the first one stays unless another is clearly faster."""
        try:
            flush = cupy.empty(max(2 * l2_bytes, 1), "uint8")
        except MemoryError:
            flush = None  # what is left in the cache favours none of them: they take turns in any order
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        times: dict[int, list[float]] = {index: [] for index in indices}
        turns, active = random.Random(SEED), list(indices)
        for round in range(ROUNDS):
            turns.shuffle(active)
            for index in list(active):
                if flush is not None:
                    flush.fill(0)
                begin.record()
                try:
                    self._execute(index, pointers, handle)
                    end.record()
                    end.synchronize()
                except (MemoryError, *self.errors) as error:  # it ran before, and is as good as none
                    active.remove(index)
                    del times[index]
                    self._refuse(index, f"failed while it was timed: {why(error)}")
                    continue
                times[index].append(float(cupy.cuda.get_elapsed_time(begin, end)))
            if active and round + 1 >= LEAST:
                best = min(median(times[index]) for index in active)
                active = [index for index in active if sum(times[index]) < SPENT and median(times[index]) <= SLOWER * best]
        indices = [index for index in indices if index in times]
        if not indices:
            return []
        medians = {index: median(taken) for index, taken in times.items()}
        self.times = {self.name(index): medians[index] for index in indices}
        order = sorted(indices, key=lambda index: medians[index])
        if medians[order[0]] > BETTER * medians[indices[0]]:
            order.remove(indices[0])
            order.insert(0, indices[0])
        return order


# --- handles --------------------------------------------------------------------------------------------------------


_handles: list[Any] = []  # by number: some frontends' handles are objects


def _create(module: Any) -> int:
    _handles.append(module.create_handle())
    return len(_handles) - 1


_numbers = Handles(_create)


def handle_for(module: Any, device: int) -> Any:
    """This thread's handle of a device, which is current, set to CuPy's current stream."""
    handle = _handles[_numbers.get(module, device)]
    module.set_stream(handle=handle, stream=current_stream())
    return handle


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_handles.clear)  # they are worth nothing there
