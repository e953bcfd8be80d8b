"""``backline switches``: the list, one switch in full, the pages made from the declarations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backline import libraries, switches
from backline.cli import docs, governed
from backline.problems.op_registry import composites, operations
from backline.switches.switch import FAMILIES

ROOT = Path(__file__).parents[2]
OWN = {"BACKLINE_PLUGINS": "0"}


def run(*arguments: str, status: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "backline", "switches", *arguments],
        env=os.environ | OWN | more, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and "\x1b" not in done.stdout
    return done


def of_json(*arguments: str, **more: str) -> Any:
    return json.loads(run(*arguments, "--json", **more).stdout)


def row_of(out: str, label: str) -> str:
    """Returns what stands after a label in the upper part of a switch in full."""
    return next(line.strip()[len(label) :].strip() for line in out.splitlines() if line.strip().startswith(f"{label} "))


# the list -----------------------------------------------------------------------------------------------------------------


def test_the_list_has_every_switch_once_and_in_columns() -> None:
    heads, *rows = run().stdout.splitlines()
    assert heads.split() == ["name", "value", "from", "governs"]
    program = "from backline import switches; print(*switches.all_switches())"  # other tests declare switches in this process
    declared = subprocess.run([sys.executable, "-c", program], env=os.environ | OWN, capture_output=True, text=True, check=True)
    assert [row.split()[0] for row in rows] == declared.stdout.split()
    columns = [heads.index(word) for word in ("value", "from", "governs")]
    for row in rows:
        for at in columns:
            assert row[at - 2 : at] == "  " and row[at] != " ", row


def test_a_list_of_one_backend() -> None:
    heads, *rows = run("mkldnn").stdout.splitlines()
    names = [row.split()[0] for row in rows]
    assert names == [n for n in switches.all_switches() if n.startswith("mkldnn.")] and heads.startswith("name")
    assert [r["name"] for r in of_json("cuda.matmul")] == [n for n in switches.all_switches() if n.startswith("cuda.matmul.")]


def test_the_list_says_where_values_come_from_and_which_are_views() -> None:
    lines = run(BACKLINE_FALLBACK="warn", BACKLINE_FP32_PRECISION="tf32", OMP_NUM_THREADS="3", MKL_NUM_THREADS="").stdout.splitlines()
    of = {line.split()[0]: re.split(r"  +", line)[1:] for line in lines}
    assert of["fallback"][:2] == ["'warn'", "environment (BACKLINE_FALLBACK)"]
    assert of["mkldnn.rnn.fp32_precision"][:2] == ["'tf32'", "fp32_precision: environment (BACKLINE_FP32_PRECISION)"]
    assert of["mkldnn.allow_tf32"][:2] == ["True", "view, fp32_precision: environment (BACKLINE_FP32_PRECISION)"]
    assert of["num_threads"][:2] == ["3", "default (OMP_NUM_THREADS)"]
    assert of["cudnn.benchmark"] == ["False", "default", "conv"]
    assert of["benchmark"][-1] == "everything"


def test_what_is_changed_is_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from backline.cli import output
    from backline.cli import switches as command

    styled: list[tuple[str, str]] = []
    monkeypatch.setattr(output, "line", lambda text="", style="": styled.append((text, style)))
    with switches.scope(fallback="error"):
        command.switches(None, docs=False, status=False, json=False)
    style = {text.split()[0]: style for text, style in styled}
    assert style["fallback"] == "cyan" and style["benchmark"] == "" and style["name"] == "bold"


def test_the_list_as_json() -> None:
    rows = of_json(BACKLINE_MAX_ERROR="1e-5")
    row = next(r for r in rows if r["name"] == "max_error")
    assert row["value"] == 1e-5 and row["kind"] == "environment" and row["environment"] == ["BACKLINE_MAX_ERROR"]
    assert row["governs"] == list(FAMILIES)
    view = next(r for r in rows if r["name"] == "cuda.matmul.allow_tf32")
    assert view["view of"] == ["cuda.matmul.fp32_precision"]
    assert "factory" not in json.dumps(rows)


# one in full --------------------------------------------------------------------------------------------------------------


def test_one_switch_has_all_there_is_to_know() -> None:
    out = run("benchmark_limit", BACKLINE_BENCHMARK_LIMIT="3").stdout
    assert out.startswith("benchmark_limit\n  Most candidates timed per signature")
    assert row_of(out, "reads") == "3, environment (BACKLINE_BENCHMARK_LIMIT)"
    assert row_of(out, "legal") == "int, 0 or more" and row_of(out, "default") == "10"
    assert row_of(out, "environment") == "BACKLINE_BENCHMARK_LIMIT" and row_of(out, "read") == "at every call"
    assert re.search(r"the strongest first\n  3 +environment \(BACKLINE_BENCHMARK_LIMIT\) +holds\n  10 +default +covered\n", out)


def test_the_variables_of_other_programs_are_named() -> None:
    out = run("cuda.matmul.fp32_precision", TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1").stdout
    assert row_of(out, "reads") == "tf32, environment (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1)"
    assert row_of(out, "environment").endswith("else TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
    assert "OMP_NUM_THREADS, MKL_NUM_THREADS" in row_of(run("num_threads").stdout, "environment")


def test_the_chain_of_a_precision_shows_the_nodes_above() -> None:
    out = run("cudnn.conv.fp32_precision", BACKLINE_CUDNN_FP32_PRECISION="ieee", BACKLINE_FP32_PRECISION="tf32").stdout
    assert row_of(out, "reads") == "ieee, from cudnn.fp32_precision: environment (BACKLINE_CUDNN_FP32_PRECISION)"
    chain = out.partition("the strongest first\n")[2].splitlines()
    assert [line.split()[0] for line in chain[:5]] == [
        "cudnn.conv.fp32_precision", "cudnn.fp32_precision", "cudnn.fp32_precision", "fp32_precision", "fp32_precision",
    ]  # fmt: skip
    assert [line for line in chain if line.endswith("holds")] == [chain[1]]
    assert "tf32 unless something above says otherwise" in chain[0]


def test_the_word_for_an_untouched_node_is_never_shown() -> None:
    for name in ("cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "cudnn.allow_tf32", "cudnn"):
        for arguments in ((name,), (name, "--json")):
            out = run(*arguments).stdout
            assert "factory" not in out.lower()
    out = run("cudnn.conv.fp32_precision").stdout
    assert row_of(out, "reads") == "tf32, default" and row_of(out, "default") == "tf32 unless something above says otherwise"


def test_a_value_that_cuda_does_not_have_is_explained() -> None:
    out = run("cuda.matmul.fp32_precision", BACKLINE_FP32_PRECISION="bf16").stdout
    assert row_of(out, "reads").startswith("none (bf16 does not exist for float32 inputs on CUDA), from fp32_precision: ")


def test_a_view_shows_the_chains_of_its_nodes() -> None:
    content = of_json("float32_matmul_precision", BACKLINE_MKLDNN_FP32_PRECISION="bf16")
    assert content["value"] == "medium" and content["decides"] == "mkldnn.fp32_precision"
    assert content["view of"] == ["cuda.matmul.fp32_precision", "mkldnn.matmul.fp32_precision"]
    (place,) = [s for s in content["said"] if s["decides"]]
    assert (place["switch"], place["value"], place["where"]) == (
        "mkldnn.fp32_precision", "'bf16'", "BACKLINE_MKLDNN_FP32_PRECISION",
    )  # fmt: skip
    assert content["said"][-1]["switch"] == "fp32_precision"  # above both, named once and last


def test_layers_of_files_and_scopes_are_all_in_the_chain(tmp_path: Path) -> None:
    (tmp_path / "user.toml").write_text('fallback = "warn"\n')
    (tmp_path / "backline.toml").write_text('fallback = "error"\n')
    program = (
        "import json\nfrom backline import switches\nfrom backline.cli.switches import _in_full\n"
        "with switches.scope(fallback='allow'):\n    switches.assign('fallback', 'warn')\n"
        "    print(json.dumps([(s['kind'], s['value'], s['holds']) for s in _in_full(switches.lookup('fallback'))['said']]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path,
        env=os.environ | OWN | {"BACKLINE_CONFIG": str(tmp_path / "user.toml"), "BACKLINE_FALLBACK": "allow",
                                "PYTHONPATH": str(Path(switches.__file__).parents[2])},
    )  # fmt: skip
    assert json.loads(done.stdout) == [
        ["assignment", "'warn'", True], ["environment", "'allow'", False], ["project file", "'error'", False],
        ["user file", "'warn'", False], ["default", "'allow'", False],
    ]  # fmt: skip


def test_the_operations_and_the_libraries_that_have_them() -> None:
    content = of_json("mkldnn.matmul.fp32_precision")
    by_operation = {op: g["libraries"] for g in content["operations"] for op in g["operations"]}
    assert "numpy" in by_operation["matmul"] and "linalg.svd" not in by_operation
    assert "chain_matmul" in content["made of these"]["matmul"]
    only = of_json("numpy.enabled")["operations"]
    assert {tuple(g["libraries"]) for g in only} == {("numpy",)}
    assert {"matmul", "linalg", "conv", "neural"} <= {g["family"] for g in only} and "einsum" not in {g["family"] for g in only}


def test_what_has_no_effect_yet_says_so() -> None:
    for each in docs.pending():
        if each.kind == "switch":
            assert governed.waiting(switches.lookup(each.name)) == each.why != ""
    # Those of single devices are declared by whoever asks for the device, not in the command's own process.
    waiting = [each.name for each in docs.pending() if each.kind == "switch" and ".device" not in each.name]
    if waiting:
        out = run(waiting[-1]).stdout
        assert row_of(out, "without effect") and "\noperations\n" not in out


@pytest.mark.parametrize(
    ("name", "near"), [("mkl.enbled", "mkl.enabled"), ("mkdnn", "mkldnn"), ("cudnn.bench", "cudnn.benchmark"), ("", "")]
)
def test_an_unknown_name_ends_with_2_and_the_nearest_names(name: str, near: str) -> None:
    done = run(name, status=2)
    assert near in done.stderr and "nearest names" in done.stderr and done.stdout == ""
    run(name, "--json", status=2)


def test_a_backend_with_one_switch_is_shown_in_full() -> None:
    assert "the strongest first" in run("kleidiai").stdout
    assert [row["name"] for row in of_json("kleidiai")] == ["kleidiai.enabled"]


# families -----------------------------------------------------------------------------------------------------------------


def test_every_operation_has_a_family() -> None:
    known = governed.families()
    assert sorted(op for ops in known.values() for op in ops) == sorted(operations)
    assert set(composites) == {op for family in known for op in governed.made_of(family)}


# the pages ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "file"), [("--docs", "switches.md"), ("--status", "status.md")])
def test_the_pages_in_docs_are_up_to_date(option: str, file: str, tmp_path: Path) -> None:
    run(option, str(tmp_path / file), OMP_NUM_THREADS="7", BACKLINE_FALLBACK="error", BACKLINE_FP32_PRECISION="tf32")
    made = (tmp_path / file).read_text(encoding="utf-8")
    assert made == run(option).stdout
    kept = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert kept == made, f"docs/{file} is out of date: run `backline switches {option} docs/{file}`"


def test_the_reference_has_every_switch_once() -> None:
    page = docs.page()
    for switch in docs.own():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{switch.name}` |")]
        assert switch.env in row and switch.doc.replace("|", "\\|") in row
        assert len(re.findall(r"(?<!\\)\|", row)) == 7
    assert "factory" not in page.lower() and str(Path.home()) not in page


def test_the_same_page_on_every_machine() -> None:
    for switch in docs.own():
        if callable(switch.default):
            assert docs.default_text(switch) != "worked out when it is first needed", f"say in cli/docs.py what {switch.name} starts with"


def test_status_has_what_is_pending_and_nothing_else() -> None:
    page, found = docs.status(), docs.pending()
    last = page.partition("## Libraries that were run in part")[0].rpartition("|---|---|\n")[2]
    for switch in docs.own():
        assert (f"`{switch.name}`" in last) == (switch.name in [each.name for each in found if each.kind == "switch"])
    for family in FAMILIES:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {family} |")]
        for each in found:
            assert (f"`{each.name}`" in row) == (family in each.families)
    assert "backline switches --status" in page


def test_pending_libraries_are_those_that_a_switch_names_and_nothing_drives() -> None:
    pending = {each.name for each in docs.pending() if each.kind == "library"}
    assert pending == {name for name in switches.library_names() if name not in libraries.names()}
    for each in of_json("--status"):
        assert set(each) == {"kind", "name", "families", "why"} and each["why"]
        assert each["kind"] in ("switch", "library") and each["name"] not in libraries.names()


def test_a_library_that_comes_takes_its_switch_off_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = switches.lookup("kleidiai.enabled")
    if "kleidiai" in libraries.names():
        assert governed.waiting(switch) == ""
        return
    assert governed.waiting(switch) == "kleidiai is not supported yet"

    class Stand(libraries.Library):
        name = "kleidiai"

    libraries.register(Stand())
    try:
        assert governed.waiting(switch) == "" and "kleidiai" not in [each.name for each in docs.pending()]
    finally:
        libraries.unregister("kleidiai")


def test_bad_use_of_the_pages() -> None:
    assert "one at a time" in run("--docs", "--status", status=2).stderr
    assert "nowhere" in run("--docs", "/nowhere/switches.md", status=1).stderr
