"""The tree of ``fp32_precision``: what every node and every older call reads after what, by every way of writing it."""

from __future__ import annotations

import itertools
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import backends, switches
from backline.errors import BadType, BadValue
from backline.switches import store

# How the tables here call the nodes -> the switches.
NODES = {
    "generic": "fp32_precision",
    **{name: f"{name}.fp32_precision" for name in ("mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")},
    **{name: f"{name}.fp32_precision" for name in ("cudnn", "cuda.matmul", "cudnn.conv", "cudnn.rnn")},
}
ON_CUDA = [name for name in NODES if name.startswith("cud")]
VIEWS = ("cudnn.allow_tf32", "cuda.matmul.allow_tf32", "mkldnn.allow_tf32")
WORD = "float32_matmul_precision"
FACTORY = "nobody wrote it"

# Columns: generic | mkldnn | mkldnn.matmul | mkldnn.conv and rnn | cudnn | cuda.matmul | cudnn.conv | cudnn.rnn |
# cudnn.allow_tf32 | cuda.matmul.allow_tf32 | word. Each row starts from the factory state.
TABLE = """
nothing                                       : none none none none none none tf32 tf32 True  False highest
generic=ieee                                  : ieee ieee ieee ieee ieee ieee ieee ieee False False highest
generic=tf32                                  : tf32 tf32 tf32 tf32 tf32 tf32 tf32 tf32 True  True  high
generic=bf16                                  : bf16 bf16 bf16 bf16 none none none none False False medium
cudnn=ieee                                    : none none none none ieee ieee ieee ieee False False highest
cudnn=tf32                                    : none none none none tf32 tf32 tf32 tf32 True  True  high
cudnn.conv=none                               : none none none none none none none tf32 False False highest
generic=ieee, cuda.matmul=tf32                : ieee ieee ieee ieee ieee tf32 ieee ieee False True  high
cudnn.allow_tf32=False                        : none none none none none none none none False False highest
generic=tf32, cudnn.allow_tf32=False          : tf32 tf32 tf32 tf32 tf32 tf32 ieee ieee False True  high
cuda.matmul.allow_tf32=True                   : none none none none none tf32 tf32 tf32 True  True  high
cuda.matmul.allow_tf32=False                  : none none none none none ieee tf32 tf32 True  False highest
word=high                                     : none none tf32 none none tf32 tf32 tf32 True  True  high
word=medium                                   : none none bf16 none none tf32 tf32 tf32 True  True  medium
word=medium, cuda.matmul.allow_tf32=False     : none none bf16 none none ieee tf32 tf32 True  False medium
generic=tf32, word=highest                    : tf32 tf32 ieee tf32 tf32 ieee tf32 tf32 True  False highest
generic=bf16, mkldnn=ieee, mkldnn.matmul=ieee : bf16 ieee ieee ieee none none none none False False highest
mkldnn.allow_tf32=True                        : none none tf32 tf32 none none tf32 tf32 True  False high
mkldnn=tf32, mkldnn.allow_tf32=False          : none tf32 ieee ieee none none tf32 tf32 True  False highest
"""
COLUMNS = (("generic",), ("mkldnn",), ("mkldnn.matmul",), ("mkldnn.conv", "mkldnn.rnn"), ("cudnn",), ("cuda.matmul",),
           ("cudnn.conv",), ("cudnn.rnn",), ("cudnn.allow_tf32",), ("cuda.matmul.allow_tf32",), ("word",))  # fmt: skip
Steps = list[tuple[str, Any]]


def rows() -> list[Any]:
    words: dict[str, Any] = {"True": True, "False": False}
    found = []
    for line in TABLE.strip().splitlines():
        head, _, tail = line.partition(":")
        pairs = [step.strip().split("=") for step in head.split(",") if "=" in step]
        steps = [(name, words.get(value, value)) for name, value in pairs]
        reads = {name: words.get(word, word) for names, word in zip(COLUMNS, tail.split(), strict=True) for name in names}
        found.append(pytest.param(steps, reads, id=head.strip()))
    return found


ROWS = rows()


def switch_of(name: str) -> str:
    return WORD if name == "word" else NODES.get(name, name)


def handle(switch: str) -> tuple[Any, str]:
    """The module or sub-object that has a switch, and the attribute."""
    *path, attribute = switch.split(".")
    found: Any = backends
    for part in path:
        found = getattr(found, part)
    return found, attribute


def write(name: str, value: Any) -> None:
    if name == "word":
        backline.set_float32_matmul_precision(value)
    else:
        setattr(*handle(switch_of(name)), value)


def read(name: str) -> Any:
    return backline.get_float32_matmul_precision() if name == "word" else getattr(*handle(switch_of(name)))


def everything() -> dict[str, Any]:
    return {name: read(name) for name in (*NODES, *VIEWS, "word")}


def seen(reads: dict[str, Any]) -> dict[str, Any]:
    return {name: read(name) for name in reads}


# --- the table, by every way of writing ----------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "reads"), ROWS)
def test_a_row_by_assignment(steps: Steps, reads: dict[str, Any]) -> None:
    for step in steps:
        write(*step)
    assert seen(reads) == reads
    assert {name: switches.get(switch_of(name)) for name in reads} == reads


@pytest.mark.parametrize(("steps", "reads"), ROWS)
def test_a_row_by_set_flags(steps: Steps, reads: dict[str, Any]) -> None:
    for name, value in steps:
        module, attribute = handle(switch_of(name))
        if hasattr(module, "set_flags") and name != "word":
            module.set_flags(**{f"_{attribute}": value})
        else:
            write(name, value)
    assert seen(reads) == reads


@pytest.mark.parametrize(("steps", "reads"), ROWS)
def test_a_row_by_assignment_in_a_scope_whose_exit_restores_the_factory_state(steps: Steps, reads: dict[str, Any]) -> None:
    factory, start = everything(), switches.current()
    with backends.flags():
        for step in steps:
            write(*step)
        assert seen(reads) == reads
    assert switches.current() is start and everything() == factory


@pytest.mark.parametrize(("steps", "reads"), ROWS)
def test_a_row_by_nested_scopes_whose_exits_restore_the_factory_state(steps: Steps, reads: dict[str, Any]) -> None:
    factory, start = everything(), switches.current()
    with ExitStack() as stack:
        for name, value in steps:
            module, attribute = handle(switch_of(name))
            values = {attribute: value}
            stack.enter_context(switches.scope(values) if name == "word" else module.flags(**values))
        assert seen(reads) == reads
    assert switches.current() is start and everything() == factory


CONTRADICTS = "word=medium, cuda.matmul.allow_tf32=False"  # two values for one node: only a sequence can say both


@pytest.mark.parametrize(("steps", "reads"), [row for row in ROWS if row.id != CONTRADICTS])
@pytest.mark.parametrize("source", ["environment", "file"])
def test_a_row_by_environment_and_file(
    steps: Steps, reads: dict[str, Any], source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = []
    for name, value in steps:
        if source == "environment":
            monkeypatch.setenv(switches.lookup(switch_of(name)).env, str(value))
        else:
            lines.insert(0, f"{switch_of(name)} = {str(value).lower() if isinstance(value, bool) else repr(value)}")  # any order
    (tmp_path / "backline.toml").write_text("\n".join(lines))
    store._restart()
    assert seen(reads) == reads


@pytest.mark.parametrize(("steps", "reads"), ROWS)
def test_a_row_is_kept_by_calls_that_name_nothing(steps: Steps, reads: dict[str, Any]) -> None:
    with backends.flags():
        for step in steps:
            write(*step)
        with backends.cudnn.flags(), backends.mkldnn.flags(), backends.flags(), backends.cuda.matmul.flags():
            assert seen(reads) == reads
        assert (backends.set_flags(), len(backends.cudnn.set_flags()), len(backends.mkldnn.set_flags())) == ((read("generic"),), 7, 4)
        assert seen(reads) == reads


# --- the older calls, in every state -------------------------------------------------------------------------

PARENT = {"generic": "", "mkldnn": "generic", "cudnn": "generic", "mkldnn.matmul": "mkldnn", "mkldnn.conv": "mkldnn",
          "mkldnn.rnn": "mkldnn", "cuda.matmul": "cudnn", "cudnn.conv": "cudnn", "cudnn.rnn": "cudnn"}  # fmt: skip


def resolved(raw: dict[str, str], node: str) -> str:
    """The rules, once more and by themselves."""
    reading, at = "none", node
    while at and reading == "none":
        reading = "none" if raw[at] == FACTORY else raw[at]
        at = PARENT[at]
    if reading == "none" and raw[node] == FACTORY:
        reading = "tf32"
    return "none" if reading == "bf16" and node in ON_CUDA else reading


def states(*nodes: str) -> list[dict[str, str]]:
    legal = {name: ["none", "ieee", "tf32", *([] if name in ON_CUDA else ["bf16"])] for name in nodes}
    legal |= {name: [FACTORY, *legal[name]] for name in ("cudnn.conv", "cudnn.rnn") if name in nodes}
    rest = {name: FACTORY if name in ("cudnn.conv", "cudnn.rnn") else "none" for name in NODES}
    return [{**rest, **dict(zip(legal, values, strict=True))} for values in itertools.product(*legal.values())]


def put(state: dict[str, str]) -> None:
    for name, value in state.items():
        if value not in ("none", FACTORY) or (value == "none" and name in ("cudnn.conv", "cudnn.rnn")):
            write(name, value)


def check_all(state: dict[str, str]) -> None:
    for name in NODES:
        assert read(name) == resolved(state, name), (state, name)
    tf32 = {name: resolved(state, name) == "tf32" for name in NODES}
    assert read("cuda.matmul.allow_tf32") is tf32["cuda.matmul"]
    assert read("cudnn.allow_tf32") is (tf32["cudnn.conv"] and tf32["cudnn.rnn"])
    assert read("mkldnn.allow_tf32") is all(tf32[f"mkldnn.{op}"] for op in ("matmul", "conv", "rnn"))
    high = "high" if tf32["mkldnn.matmul"] or tf32["cuda.matmul"] else "highest"
    assert read("word") == ("medium" if resolved(state, "mkldnn.matmul") == "bf16" else high)


@pytest.mark.parametrize("value", [True, False])
def test_cudnn_allow_tf32_in_every_state(value: bool) -> None:
    for state in states("generic", "cudnn", "cudnn.conv", "cudnn.rnn"):
        with backends.flags():
            put(state)
            check_all(state)
            backends.cudnn.allow_tf32 = value
            after = {**state, **dict.fromkeys(("cudnn.conv", "cudnn.rnn"), "tf32" if value else "none")}
            for name in ("cudnn.conv", "cudnn.rnn"):
                if not value and resolved(after, name) == "tf32":
                    after[name] = "ieee"
            check_all(after)
            assert backends.cudnn.allow_tf32 is value


@pytest.mark.parametrize("value", [True, False])
def test_mkldnn_allow_tf32_in_every_state(value: bool) -> None:
    ops = ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
    for state in states("generic", "mkldnn", *ops):
        with backends.flags():
            put(state)
            backends.mkldnn.allow_tf32 = value
            after = {**state, **(dict.fromkeys(ops, "tf32") if value else {})}
            for name in ops:
                if not value and resolved(state, name) == "tf32":
                    after[name] = "none"
                    after[name] = "ieee" if resolved(after, name) == "tf32" else "none"
            check_all(after)
            assert backends.mkldnn.allow_tf32 is value


@pytest.mark.parametrize("value", [True, False])
def test_cuda_matmul_allow_tf32_in_every_state(value: bool) -> None:
    for state in states("generic", "cudnn", "cuda.matmul"):
        with backends.flags():
            put(state)
            backends.cuda.matmul.allow_tf32 = value
            check_all({**state, "cuda.matmul": "tf32" if value else "ieee"})


@pytest.mark.parametrize("word", ["highest", "high", "medium"])
def test_the_word_in_every_state(word: str) -> None:
    wanted = {"highest": ("ieee", "ieee"), "high": ("tf32", "tf32"), "medium": ("tf32", "bf16")}[word]
    for state in states("generic", "mkldnn", "cudnn", "cuda.matmul", "mkldnn.matmul"):
        with backends.flags():
            put(state)
            backline.set_float32_matmul_precision(word)
            check_all({**state, **dict(zip(("cuda.matmul", "mkldnn.matmul"), wanted, strict=True))})
            assert backline.get_float32_matmul_precision() == word


# --- bad values, contradictions ------------------------------------------------------------------------------

STRANGE = ("IEEE", "Tf32", "", "default", "fp16", "bfx9", "factory", FACTORY, " none", "none ", "highest")


@pytest.mark.parametrize("node", NODES)
def test_a_node_refuses_everything_else_by_every_way(node: str) -> None:
    module, attribute = handle(NODES[node])
    before = everything()
    legal = [*(["bf16"] if node not in ON_CUDA else []), "none", "ieee", "tf32"]
    ways = [lambda value: setattr(module, attribute, value), lambda value: module.flags(**{attribute: value})]
    if hasattr(module, "set_flags"):
        ways.append(lambda value: module.set_flags(**{f"_{attribute}": value}))
    for number, way in enumerate(ways):
        for value in (*STRANGE, *(["bf16"] if node in ON_CUDA else [])):
            with pytest.raises(BadValue) as caught:
                way(value)
            text = str(caught.value)
            assert NODES[node] in text and repr(value) in text and all(repr(word) in text for word in legal)
            assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, ValueError)
            assert "%" not in text and "{" not in text
            if value == "bf16":
                assert "CUDA has no bf16" in text
        for strange in (1, True, 1.5, b"tf32", ["tf32"], np.float32, *([None] if number == 0 else [])):
            with pytest.raises(BadType, match=NODES[node]):
                way(strange)
    assert everything() == before


def test_bf16_reaches_cuda_nodes_by_no_other_way() -> None:
    backends.fp32_precision = "bf16"
    assert {read(name) for name in ON_CUDA} == {"none"}
    assert backends.cudnn.set_flags()[5] == "none" and backends.set_flags() == ("bf16",)


def test_texts_of_numpy_count_and_are_read_as_plain_ones() -> None:
    with backends.flags(np.str_("tf32")):
        assert type(backends.fp32_precision) is type(backends.cudnn.conv.fp32_precision) is str
    backends.set_flags(np.str_("bf16"))
    assert (backends.fp32_precision, type(backends.fp32_precision)) == ("bf16", str)


def test_two_values_for_one_node_are_refused_and_parents_are_applied_before_children() -> None:
    start = switches.current()
    contradictions = [
        lambda: backends.cuda.matmul.flags(allow_tf32=True, fp32_precision="ieee"),
        lambda: backends.cuda.matmul.flags(allow_tf32=False, fp32_precision="tf32"),
        lambda: backends.cuda.matmul.set_flags(_allow_tf32=True, _fp32_precision="none"),
        lambda: switches.scope({"cudnn.allow_tf32": True, "cudnn.rnn.fp32_precision": "ieee"}),
        lambda: switches.scope({WORD: "high", "cuda.matmul.allow_tf32": False}),
        lambda: switches.scope({WORD: "medium", "mkldnn.matmul.fp32_precision": "tf32"}),
        lambda: switches.assign_many({"mkldnn.allow_tf32": True, WORD: "medium"}),
    ]
    for call in contradictions:
        with pytest.raises(BadValue, match="contradict each other"):
            call()
    assert switches.current() is start
    with backends.cuda.matmul.flags(allow_tf32=True, fp32_precision="tf32"), switches.scope({WORD: "high", "mkldnn.allow_tf32": True}):
        assert read("cuda.matmul") == "tf32"
    with backends.cudnn.flags(allow_tf32=False, fp32_precision="tf32"):
        assert (read("cudnn"), read("cudnn.conv"), read("cudnn.rnn"), read("cuda.matmul")) == ("tf32", "ieee", "ieee", "tf32")
    with backends.mkldnn.flags(fp32_precision="tf32", allow_tf32=False):
        assert (read("mkldnn"), read("mkldnn.matmul"), read("mkldnn.conv")) == ("tf32", "ieee", "ieee")
    assert switches.current() is start


def test_a_view_in_a_scope_is_worked_out_where_the_scope_is_entered() -> None:
    scope = backends.cudnn.flags(allow_tf32=False)
    with scope:
        assert read("cudnn.conv") == "none"
    with backends.flags(fp32_precision="tf32"):
        with scope:
            assert (read("cudnn.conv"), read("cudnn.allow_tf32"), read("cuda.matmul")) == ("ieee", False, "tf32")
        assert read("cudnn.conv") == "tf32"
    assert read("cudnn.conv") == "tf32" and read("generic") == "none"


# --- the environment -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "node", "expected"),
    [
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, "cuda.matmul", "tf32"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0"}, "cuda.matmul", "none"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": ""}, "cuda.matmul", "none"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "BACKLINE_CUDA_MATMUL_FP32_PRECISION": "ieee"}, "cuda.matmul", "ieee"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "BACKLINE_CUDA_MATMUL_ALLOW_TF32": "0"}, "cuda.matmul", "ieee"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0", "BACKLINE_CUDA_MATMUL_ALLOW_TF32": "1"}, "cuda.matmul", "tf32"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1", "BACKLINE_FLOAT32_MATMUL_PRECISION": "highest"}, "cuda.matmul", "ieee"),
        ({"BACKLINE_FLOAT32_MATMUL_PRECISION": "Medium"}, "mkldnn.matmul", "bf16"),
        ({"BACKLINE_CUDNN_ALLOW_TF32": "0", "BACKLINE_CUDNN_FP32_PRECISION": "tf32"}, "cudnn.rnn", "ieee"),
        ({"BACKLINE_MKLDNN_ALLOW_TF32": "0", "BACKLINE_FP32_PRECISION": "tf32"}, "mkldnn.conv", "ieee"),
    ],
)  # fmt: skip
def test_variables(variables: dict[str, str], node: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    store._restart()
    assert read(node) == expected
    write(node, "ieee")
    assert read(node) == "ieee", "a variable is where the base starts, and no more"


@pytest.mark.parametrize(
    ("variable", "text", "legal"),
    [
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "yes", "1, 0"),
        ("BACKLINE_FP32_PRECISION", "fp16", "'bf16'"),
        ("BACKLINE_CUDNN_FP32_PRECISION", "bf16", "'tf32'"),
        ("BACKLINE_CUDNN_CONV_FP32_PRECISION", "factory", "'none'"),
        ("BACKLINE_FLOAT32_MATMUL_PRECISION", "foo", "'medium'"),
        ("BACKLINE_MKLDNN_ALLOW_TF32", "maybe", "True, False"),
    ],
)
def test_a_bad_variable_warns_once_and_leaves_the_factory_state(
    variable: str, text: str, legal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = everything()
    monkeypatch.setenv(variable, text)
    store._restart()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert everything() == everything() == factory
    (message,) = [str(each.message) for each in caught]
    assert variable in message and repr(text) in message and legal in message and "ignored" in message


def test_a_variable_that_contradicts_another_warns_and_import_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two views of one node: the later one in the list of switches holds, and reading does not fail."""
    monkeypatch.setenv("BACKLINE_FLOAT32_MATMUL_PRECISION", "high")
    monkeypatch.setenv("BACKLINE_CUDA_MATMUL_ALLOW_TF32", "0")
    store._restart()
    assert read("cuda.matmul") == "ieee" and read("mkldnn.matmul") == "tf32"
