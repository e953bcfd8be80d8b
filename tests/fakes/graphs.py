"""A cuDNN without a device: graphs are checked against the true frontend's signatures, and computed by NumPy at the addresses given.

Where the frontend takes any keyword, those are checked that its compiled half names.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import re
import types
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fakes.computing import memory, tf32
from fakes.recording import Recording

DTYPES = {
    "HALF": np.float16,
    "BFLOAT16": ml_dtypes.bfloat16,
    "FLOAT": np.float32,
    "DOUBLE": np.float64,
    "INT64": np.int64,
    "INT32": np.int32,
}
OPERATIONS = ("conv_fprop", "conv_dgrad", "conv_wgrad", "sdpa", "sdpa_backward")


@dataclass
class Plan:
    """One plan that the heuristics list: what it is noted for, what it needs, and how it does."""

    name: str
    notes: tuple[str, ...] = ()
    workspace: int = 0
    wrong: str = ""  # why it cannot be built
    fails: bool = False
    python: bool = False  # the frontend's own
    ms: float = 1.0
    cpp_index: int | None = None


# What a device has, in small: plans on tensor cores first, some that add up in any order, one too large, one that cannot be built.
USUAL = (
    Plan("eng67_k2=5", ("TENSOR_CORE",)), Plan("eng61_k2=4", ("TENSOR_CORE", "NONDETERMINISTIC"), workspace=4096),
    Plan("eng12", ("DOWN_CONVERT_INPUTS", "TENSOR_CORE")), Plan("eng4_k2=1", ("NONDETERMINISTIC",), workspace=1 << 21),
    Plan("eng9", workspace=1 << 60), Plan("eng33", wrong="No valid engine configs"), Plan("eng0", workspace=2 << 20), Plan("eng1_k2=2"),
    Plan("eng48", ("TENSOR_CORE",), workspace=256),
)  # fmt: skip


class Cudnn(Recording):
    """The module ``cudnn``. `plans` is what every graph gets; `graphs` are those that were made.

    Plans noted TENSOR_CORE read float32 as tf32, those noted NONDETERMINISTIC never give the same bits twice.
    """

    def __init__(self, module: Any, log: list[tuple[str, dict[str, Any]]]) -> None:
        super().__init__(module, log=log)
        self.plans = [Plan("eng1"), Plan("eng2")]
        self.graphs: list[Graph] = []
        self.version = 91900
        self.runs = 0
        self.compiled = True  # whether graphs have the compiled half that runs their plans
        self.handles: list[Handle] = []
        self.answers = {"create_handle": self._create}

    def _create(self) -> Handle:
        self.handles.append(Handle(0x7000 + len(self.handles)))
        return self.handles[-1]

    def backend_version(self) -> int:
        return self.version

    @property
    def _pybind_module(self) -> Any:
        return types.SimpleNamespace(backend_graph=_Maker(self) if self.compiled else None)

    def pygraph(self, **given: Any) -> Graph:
        inspect.signature(self.module.pygraph).bind(**given)
        self.log.append(("pygraph", given))
        self.graphs.append(Graph(self, given))
        return self.graphs[-1]

    def used(self) -> list[str]:
        """Names of the plans that ran, in order."""
        return [given["name"] for name, given in self.log if name == "execute"]


@dataclass(eq=False)
class Handle:
    """A handle as `create_handle` gives it: no number, as newer frontends have it."""

    backend_handle: int


class _Maker:
    """The compiled class of graphs."""

    def __init__(self, module: Cudnn) -> None:
        self.module = module

    def __call__(self, **given: Any) -> Graph:
        assert set(given) <= keywords(self.module.module, "__init__")[0] and type(given.get("handle", 0)) is int
        self.module.log.append(("backend_graph", given))
        self.module.graphs.append(CompiledGraph(self.module, given))
        return self.module.graphs[-1]

    _execute_with_raw_ptrs = None


for _name in OPERATIONS:
    setattr(_Maker, _name, None)  # it has them, as the class of the frontend


class Tensor:
    """An array as a graph gives it."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("set_"):
            raise AttributeError(name)

        def put(value: Any) -> Tensor:
            setattr(self, {"data_type": "data_type"}.get(name[4:], name[4:]), value)
            return self

        return put

    @property
    def offsets(self) -> Tensor | None:
        """The tensor that says where each item of the batch begins."""
        return vars(self).get("ragged_offset")

    def uids(self) -> list[int]:
        return [self.uid, *([] if self.offsets is None else [self.offsets.uid])]

    def item(self, pack: dict[int, int], b: int, rows: int) -> np.ndarray[Any, Any]:
        """So many rows of one item of the batch, at the addresses of a call."""
        dtype = np.dtype(DTYPES[self.data_type.name])
        first = b * self.stride[0] if self.offsets is None else int(self.offsets.at(pack[self.offsets.uid])[b].item())
        address, dims = pack[self.uid], (1, self.dim[1], rows, self.dim[3])
        assert address and address % 16 == 0 and rows <= self.dim[2]
        extent = (sum((n - 1) * s for n, s in zip(dims[1:], self.stride[1:], strict=True)) + 1) * dtype.itemsize
        steps = tuple(s * dtype.itemsize for s in (0, *self.stride[1:]))
        return np.ndarray(dims, dtype, memory(address + first * dtype.itemsize, extent), strides=steps)

    def at(self, address: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(DTYPES[self.data_type.name])
        assert address and address % 16 == 0, "aligned"
        extent = (sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True)) + 1) * dtype.itemsize
        steps = tuple(s * dtype.itemsize for s in self.stride)
        return np.ndarray(tuple(self.dim), dtype, memory(address, extent), strides=steps)


def keywords(module: Any, name: str) -> list[set[str]]:
    """Names of the arguments of each overload of an operation, as the compiled half of the frontend has them."""
    text = getattr(module._pybind_module.backend_graph, name).__doc__
    signatures = re.findall(rf"^(?:\d+\. )?{name}\((self.*)\) ->", text, re.M)
    return [set(re.findall(r"(?:^|, )(\w+):", signature)) for signature in signatures]


class Graph:
    """A graph as `pygraph` makes it; the order of calls is looked after."""

    def __init__(self, module: Cudnn, given: dict[str, Any]) -> None:
        self.module, self.given, self.state = module, given, "new"
        self.all = [Plan(**vars(plan)) for plan in module.plans]
        for index, plan in enumerate(each for each in self.all if not each.python):
            plan.cpp_index = index
        self.barred: set[int] = set()
        self.bound: int | None = None
        self.built: list[int] = []
        self.inputs: dict[str, Any] = {}
        self.outputs: list[Tensor] = []
        self.node = ""

    def _log(self, call: str, **given: Any) -> None:
        self.module.log.append((call, given))

    def tensor(self, **given: Any) -> Tensor:
        inspect.signature(self.module.module.pygraph.tensor).bind(self, **given)
        return Tensor(**given)

    def __getattr__(self, name: str) -> Any:
        if name == "_lowered_graph" and self.module.compiled:
            return Compiled(self)
        if name not in OPERATIONS:
            raise AttributeError(name)

        def operation(**given: Any) -> Any:
            assert any(set(given) <= overload for overload in keywords(self.module.module, name)), given
            self._log(name, **given)
            self.node, self.inputs = name, given
            count = {"sdpa": 2, "sdpa_backward": 3}.get(name, 1)
            self.outputs = [Tensor() for _ in range(count)]
            return self.outputs if count > 1 else self.outputs[0]

        return operation

    def _step(self, name: str, after: str) -> None:
        assert self.state == after
        self.state = name
        self._log(name)

    def validate(self) -> None:
        self._step("validate", "new")

    def build_operation_graph(self) -> None:
        self._step("build_operation_graph", "validate")

    def create_execution_plans(self, heuristics: list[Any]) -> None:
        self._step("create_execution_plans", "build_operation_graph")
        self.heuristics = [mode.name for mode in heuristics]

    def deselect_numeric_notes(self, notes: list[Any]) -> None:
        assert self.state == "create_execution_plans", "a filter before has no effect"
        names = [note.name for note in notes]
        self._log("deselect_numeric_notes", notes=names)
        self.barred |= {i for i, plan in enumerate(self.all) if not {*plan.notes}.isdisjoint(names)}

    def deselect_workspace_greater_than(self, workspace_limit: int) -> None:
        self._log("deselect_workspace_greater_than", bytes=workspace_limit)
        self.bound = workspace_limit

    @property
    def plans(self) -> list[Plan]:
        return self.all

    def backend_plan_entries(self) -> list[Plan]:
        return [plan for plan in self.all if not plan.python]

    def get_execution_plan_count(self) -> int:
        return len(self.all)

    def get_plan_name_at_index(self, index: int) -> str:
        return self.all[index].name

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return self.all[index].workspace

    def build_plan_at_index(self, index: int) -> None:
        plan = self.all[index]
        self._log("build", name=plan.name)
        refused = self.module.cudnnGraphNotSupportedError
        if index in self.barred:
            raise refused("Deselecting execution plan")
        if self.bound is not None and plan.workspace > self.bound:
            raise refused("[cudnn_frontend] Error: workspace violation")
        if plan.wrong:
            raise refused(plan.wrong)
        self.built.append(index)

    def execute_plan_at_index(self, tensor_dict: dict[int, int], workspace: int, index: int, handle: Any) -> None:
        self.run(tensor_dict, workspace, index, handle)

    def run(self, tensor_dict: dict[int, int], workspace: int, index: int, handle: Any) -> None:
        plan = self.all[index]
        assert index in self.built and type(workspace) is int and all(type(v) is int for v in tensor_dict.values())
        assert bool(workspace) == bool(plan.workspace)
        self._log("execute", name=plan.name, handle=handle, workspace=workspace, pack=tensor_dict)
        if plan.fails:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        if "seq_len_q" in self.inputs:
            self.module.runs += 1
            return self._packed(tensor_dict)
        arrays = {}
        for name, value in self.inputs.items():
            if isinstance(value, Tensor):
                arrays[name] = value.at(tensor_dict[value.uid])
        drop = self.inputs.get("dropout")
        if drop is not None:
            self.dropped = drop[0], *(each.at(tensor_dict[each.uid]).item() for each in drop[1:])
        results = [each.at(tensor_dict[each.uid]) for each in self.outputs if hasattr(each, "uid")]
        with np.errstate(all="ignore"):
            if self.node.startswith("conv"):
                if "TENSOR_CORE" in plan.notes:
                    arrays = {name: tf32(each) if each.dtype == np.float32 else each for name, each in arrays.items()}
                _convolve(self.node, arrays, results[0], **{k: self.inputs[k] for k in ("padding", "stride", "dilation")})
            else:
                _attend(
                    arrays, results, self.inputs["attn_scale"], self.inputs["use_causal_mask"], self.dropped if drop else None
                )
        self.module.runs += 1
        if "NONDETERMINISTIC" in plan.notes and results[0].size:
            first = (0,) * results[0].ndim
            results[0][first] += np.spacing(np.abs(results[0][first])) * (self.module.runs % 3 - 1)

    def _packed(self, pack: dict[int, int]) -> None:
        """Attention of sequences of several lengths: nothing is read or written behind the end of one."""
        assert self.inputs["use_padding_mask"]
        lengths = [self.inputs[name].at(pack[self.inputs[name].uid]).ravel().tolist() for name in ("seq_len_q", "seq_len_kv")]
        outputs = [each for each in self.outputs if hasattr(each, "uid")]
        assert {*pack} == {uid for each in (*self._tensors(), *outputs) for uid in each.uids()}, "nothing else is handed over"
        for b, (queries, keys) in enumerate(zip(*lengths, strict=True)):
            assert bool(queries) == bool(keys)
            if not queries:
                continue
            arrays = {
                name: of.item(pack, b, keys if name in "kv" else queries)
                for name, of in self.inputs.items()
                if isinstance(of, Tensor) and not name.startswith("seq_len")
            }
            rows = (queries, keys, keys) if self.node == "sdpa_backward" else (queries, queries)
            results = [each.item(pack, b, n) for each, n in zip(outputs, rows, strict=False)]
            right = bool(self.inputs.get("use_causal_mask_bottom_right"))
            assert not right or queries <= keys
            with np.errstate(all="ignore"):
                _attend(
                    arrays, results, self.inputs["attn_scale"], right or bool(self.inputs.get("use_causal_mask")), None,
                    keys - queries if right else 0,
                )  # fmt: skip

    def _tensors(self) -> list[Tensor]:
        return [value for value in self.inputs.values() if isinstance(value, Tensor)]


class Compiled:
    """The half of a graph in Python that is compiled: it takes addresses as an array, in the order of the tensors' uids."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.prepared = graph, False

    def _prepare_variant_pack_template(self) -> None:
        self.prepared = True

    def _get_variant_pack_uids_sorted(self) -> list[int]:
        dropout = self.graph.inputs.get("dropout", (0.0,))[1:]
        tensors = [*self.graph._tensors(), *dropout, *(each for each in self.graph.outputs if hasattr(each, "uid"))]
        return sorted({uid for each in tensors for uid in each.uids()}) if self.prepared else []

    def _execute_with_raw_ptrs(self, pointers: int, count: int, workspace: int, handle: int, plan: int) -> None:
        uids = self._get_variant_pack_uids_sorted()
        assert count == len(uids)
        addresses = (ctypes.c_uint64 * count).from_address(pointers)
        index = next(i for i, each in enumerate(self.graph.all) if each.cpp_index == plan)
        of = next(each for each in self.graph.module.handles if each.backend_handle == handle)
        self.graph.run(dict(zip(uids, addresses, strict=True)), workspace, index, of)


class CompiledGraph(Graph):
    """A graph of the compiled half: it lists cuDNN's own plans alone."""

    def __init__(self, module: Cudnn, given: dict[str, Any]) -> None:
        super().__init__(module, given)
        self.all = [plan for plan in self.all if not plan.python]
        half = Compiled(self)
        self._prepare_variant_pack_template = half._prepare_variant_pack_template
        self._get_variant_pack_uids_sorted = half._get_variant_pack_uids_sorted
        self._execute_with_raw_ptrs = half._execute_with_raw_ptrs

    @property
    def plans(self) -> Any:
        raise AttributeError("a compiled graph has no such list")

    backend_plan_entries = execute_plan_at_index = plans  # type: ignore[assignment]  # methods that a compiled graph lacks


def _convolve(node: str, given: dict[str, Any], out: Any, padding: list[int], stride: list[int], dilation: list[int]) -> None:
    image = out.shape if node == "conv_dgrad" else given["image"].shape
    weight = out.shape if node == "conv_wgrad" else given.get("weight", given.get("filter")).shape
    loss = out.shape if node == "conv_fprop" else given["loss"].shape
    parts = image[1] // weight[1]
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, p, s, d in zip(image[2:], weight[2:], padding, stride, dilation, strict=True)
    ]
    assert [*loss[2:]] == sizes and loss[:2] == (image[0], weight[0]) and len(padding) >= 2
    room = [(0, 0), (0, 0), *((p, p) for p in padding)]
    x = np.pad(given["image"].astype(float), room) if "image" in given else np.pad(np.zeros(image), room)
    w = (given.get("weight", given.get("filter")) if node != "conv_wgrad" else np.zeros(weight)).astype(float)
    y = given["loss"].astype(float) if "loss" in given else np.zeros(loss)
    for part in range(parts):
        cs = slice(part * weight[1], (part + 1) * weight[1])
        fs = slice(part * weight[0] // parts, (part + 1) * weight[0] // parts)
        for place in itertools.product(*map(range, weight[2:])):
            at = tuple(
                slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, n, s in zip(place, dilation, sizes, stride, strict=True)
            )
            seen, tap = (slice(None), cs, *at), (fs, slice(None), *place)
            if node == "conv_fprop":
                y[:, fs] += np.einsum("nc...,fc->nf...", x[seen], w[tap])
            elif node == "conv_dgrad":
                x[seen] += np.einsum("nf...,fc->nc...", y[:, fs], w[tap])
            else:
                w[tap] = np.tensordot(y[:, fs], x[seen], ([0, *range(2, y.ndim)],) * 2)
    inner = (slice(None), slice(None), *(slice(p, p + n) for p, n in zip(padding, image[2:], strict=True)))
    out[...] = {"conv_fprop": y, "conv_wgrad": w}.get(node, x[inner])


def _attend(
    given: dict[str, Any], results: list[Any], scale: float, causal: bool, drop: tuple[float, int, int] | None, shift: int = 0
) -> None:
    q, k, v = (given[each].astype(float) for each in "qkv")
    k, v = (np.repeat(each, q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2)
    if "bias" in given:
        scores = scores + given["bias"].astype(float)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool), shift), scores, -np.inf)
    keep: Any = 1.0  # what each weight is multiplied by
    if drop is not None:
        probability, *seed = drop
        keep = (np.random.default_rng(seed).random(scores.shape) >= probability) / (1 - probability)
    top = scores.max(-1, keepdims=True)
    stats = top + np.log(np.exp(scores - top).sum(-1, keepdims=True))  # NaN where nothing may be looked at
    if "dO" not in given:
        results[0][...] = (np.exp(scores - stats) * keep) @ v
        for each in results[1:]:
            each[...] = stats
        return
    weights, grad = np.exp(scores - given["stats"]), given["dO"].astype(float)
    slope = weights * (grad @ v.swapaxes(-1, -2) * keep - (grad * given["o"].astype(float)).sum(-1, keepdims=True))
    found = scale * slope @ k, scale * slope.swapaxes(-1, -2) @ q, (weights * keep).swapaxes(-1, -2) @ grad
    for out, each in zip(results, found, strict=True):
        out[...] = each.reshape(*out.shape[:2], -1, *out.shape[2:]).sum(2)
