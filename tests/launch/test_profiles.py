"""Profiles and switches that the launcher sets: what they stand for, what they replace, and that programs see them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backline import switches
from backline.errors import BacklineError, BadValue, UnknownName
from backline.launch import launcher
from backline.launch.profiles import PROFILES, listed, resolve
from processes import started

BARE = ("--disable-numactl", "--disable-taskset", "--disable-iomp", "--use-default-allocator")
REPORT = """
import json, os, sys
import backline
from backline import switches
if sys.argv[1:] == ["child"]:
    import subprocess
    sys.exit(subprocess.run([sys.executable, __file__]).returncode)
held = switches.current()
names = ("benchmark", "deterministic", "determinism_level", "cudnn.benchmark", "prefer", "num_threads", "mkldnn.matmul.fp32_precision")
print(json.dumps({name: held.resolved(name) for name in names} | {"origin": str(switches.origin("benchmark"))}))
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "job.py").write_text(REPORT)
    monkeypatch.chdir(tmp_path)
    return "job.py"


def start(*words: str, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "backline", "run", *BARE, *words]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert status == 1 or "Traceback" not in done.stderr
    return done


# The table ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_sets_switches_that_there_are_to_what_it_says(name: str) -> None:
    found = resolve(name, [], {})
    assert found.notes == [] and all(variable.startswith("BACKLINE_") for variable in found.variables)
    with switches.make_scope("test", found.values, depth=1, restore=True):
        for switch, text in PROFILES[name].switches.items():
            assert switches.get(switch) == {"on": True, "off": False}.get(text, text)


def test_the_profiles_mean_what_their_names_say() -> None:
    deterministic, fast, exact = (resolve(name, [], {}).values for name in ("deterministic", "fast", "exact"))
    assert (deterministic["deterministic"], deterministic["determinism_level"], deterministic["benchmark"]) == (
        True,
        "threads",
        False,
    )
    assert fast["benchmark"] == "online" and "deterministic" not in fast
    nodes = {name for name in switches.declared() if name.endswith("fp32_precision")}
    assert {name for name, value in exact.items() if value == "ieee"} == nodes
    with switches.make_scope("test", exact, depth=1, restore=True):
        assert switches.get("float32_matmul_precision") == "highest" and not switches.get("cudnn.allow_tf32")
        assert not switches.get("cuda.matmul.allow_fp16_reduced_precision_reduction")


def test_help_and_page_have_the_table(job: str) -> None:
    shown = start("--help").stdout
    page = (Path(__file__).parents[2] / "docs/launcher.md").read_text(encoding="utf-8")
    assert listed() in shown and "--set NAME=VALUE" in shown
    for name, profile in PROFILES.items():
        words = ", ".join(f"`{switch}={value}`" for switch, value in profile.switches.items())
        assert f"| `{name}` | {profile.about} | {words} |" in page
    assert start("--no-python", "echo", "--profile", "nosuch").stdout == "--profile nosuch\n"


# Values and variables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignments", "variables"),
    [
        (["cudnn.benchmark=true"], {"BACKLINE_CUDNN_BENCHMARK": "true"}),
        (["benchmark = Online "], {"BACKLINE_BENCHMARK": "Online"}),
        (["num_threads=1", "num_threads=2"], {"BACKLINE_NUM_THREADS": "2"}),
        (["prefer=mkl, openblas"], {"BACKLINE_PREFER": "mkl, openblas"}),
        (["prefer="], {"BACKLINE_PREFER": ""}),
        (["float32_matmul_precision=medium"], {"BACKLINE_CUDA_MATMUL_FP32_PRECISION": "tf32", "BACKLINE_MKLDNN_MATMUL_FP32_PRECISION": "bf16"}),
        (["cuda.matmul.allow_bf16_reduced_precision_reduction=off,on"], {"BACKLINE_CUDA_MATMUL_ALLOW_BF16_REDUCED_PRECISION_REDUCTION": "off,on"}),
    ],
)  # fmt: skip
def test_what_is_set(assignments: list[str], variables: dict[str, str]) -> None:
    found = resolve("", assignments, {})
    assert found.variables == variables and not found.notes


@pytest.mark.parametrize(
    ("assignments", "kind", "said"),
    [
        (["cudnn.benchmrk=1"], UnknownName, r"no switch 'cudnn.benchmrk'[\s\S]*nearest names: cudnn.benchmark,"),
        (["=1"], UnknownName, r"no switch ''"),
        (["cudnn.benchmark"], BadValue, r"--set 'cudnn.benchmark' has no value[\s\S]*NAME=VALUE"),
        (["cudnn.benchmark="], BadValue, r"cudnn.benchmark = '' is not a legal value[\s\S]*True, False"),
        (["cudnn.benchmark=maybe"], BadValue, r"cudnn.benchmark = 'maybe' is not a legal value[\s\S]*True, False"),
        (["num_threads=0"], BadValue, r"num_threads = 0 is not a legal value"),
        (["prefer=mkl,opnblas"], BadValue, r"nearest first: a tuple of library names: 'openblas'"),
        (["mkldnn.matmul.fp32_precision=ieee", "float32_matmul_precision=medium"], BadValue, "contradict each other"),
    ],
)
def test_what_is_refused(assignments: list[str], kind: type[BacklineError], said: str) -> None:
    with pytest.raises(kind) as caught:
        resolve("", assignments, {})
    assert re.search(said, str(caught.value)), caught.value


def test_an_unknown_profile_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadValue, match=r"no profile 'exat'[\s\S]*the profiles: exact, "):
        resolve("exat", [], {})


def test_single_switches_count_more_than_the_profile() -> None:
    """Also where the profile sets a switch that is derived from the one that is set by name, and the other way round."""
    node = "mkldnn.matmul.fp32_precision"
    assert resolve("fast", [f"{node}=ieee"], {}).values[node] == "ieee"
    assert resolve("exact", ["float32_matmul_precision=medium"], {}).values[node] == "bf16"
    assert resolve("deterministic", ["benchmark=online"], {}).variables["BACKLINE_BENCHMARK"] == "online"


def test_the_launchers_own_environment_counts_less_and_is_named() -> None:
    environ = {"BACKLINE_BENCHMARK": "0", "BACKLINE_FLOAT32_MATMUL_PRECISION": "medium", "BACKLINE_CUDNN_BENCHMARK": "true"}
    found = resolve("exact", ["benchmark=1", "cudnn.benchmark=true"], environ)
    assert found.variables["BACKLINE_BENCHMARK"] == "1" and found.variables["BACKLINE_FLOAT32_MATMUL_PRECISION"] == ""
    assert [note.level for note in found.notes] == ["warning", "warning"]
    assert "BACKLINE_BENCHMARK=0 is replaced by BACKLINE_BENCHMARK=1" in found.notes[0].text
    assert found.notes[1].text.startswith("BACKLINE_FLOAT32_MATMUL_PRECISION is set: it is left out")


# Programs -----------------------------------------------------------------------------------------------------------------


def test_programs_and_what_they_start_run_under_the_switches(job: str) -> None:
    words = ("--profile", "fast", "--set", "cudnn.benchmark=off", "--set", "prefer=openblas", "--set", "num_threads=1")
    for more in ([], ["child"]):
        done = start(*words, job, *more, BACKLINE_BENCHMARK="off", BACKLINE_FLOAT32_MATMUL_PRECISION="medium")
        assert json.loads(done.stdout) == {
            "benchmark": "online", "deterministic": False, "determinism_level": "run", "cudnn.benchmark": False, "prefer": ["openblas"],
            "num_threads": 1, "mkldnn.matmul.fp32_precision": "tf32", "origin": "environment (BACKLINE_BENCHMARK)",
        }  # fmt: skip
        assert "warning: BACKLINE_BENCHMARK is set" in done.stderr and "BACKLINE_CUDNN_BENCHMARK=off" in done.stderr


def test_switches_show_in_info(job: str) -> None:
    done = start("--profile", "deterministic", "-m", "backline", "info", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)["switches"]}
    assert rows["determinism_level"] == {
        "name": "determinism_level", "value": "threads", "kind": "environment", "where": "BACKLINE_DETERMINISM_LEVEL",
    }  # fmt: skip
    assert rows["deterministic"]["value"] is True and "fp32_precision" not in rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "nosuch=1"], "there is no switch 'nosuch'"),
        (["--set", "benchmark=never"], "benchmark = 'never'"),
        (["--profile", "quick"], "there is no profile 'quick'"),
        (["--profile", "deterministic", "--blas", "openblas"], "--blas openblas and deterministic exclude each other"),
    ],
)
def test_usage_errors_start_nothing(job: str, words: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launcher.command([*BARE, *words, job]) == 2
    shown = capfd.readouterr()
    assert said in shown.err and shown.out == ""


def test_a_library_and_switches_together_on_chosen_cores(job: str, tmp_path: Path) -> None:
    from backline.interop.exchange import layouts
    from backline.libraries import get

    if layouts.unsupported() or not get("openblas").available():
        pytest.skip("NumPy is no wheel for Linux with glibc here")
    (tmp_path / "both.py").write_text(
        "import os, numpy\nfrom backline import switches\nfrom backline.interop import numpy as exchange\n"
        "print(exchange.status().choice, switches.get('fallback'), os.environ['OMP_NUM_THREADS'], len(os.sched_getaffinity(0)))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    cpu = min(os.sched_getaffinity(0))
    command = ("--disable-iomp", "--use-default-allocator", "--core-list", f"{cpu}", "--ncores-per-instance", "1")
    words = [sys.executable, "-m", "backline", "run", *command, "--blas", "openblas", "--set", "fallback=warn", "both.py"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout.split() == ["openblas", "warn", "1", "1"], done.stderr
    assert done.returncode == 137 and "instance 0 ended by signal SIGKILL" in done.stderr


def test_a_killed_program_leaves_the_launching_process_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dies.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    signals = sorted(signal.valid_signals())
    variables, handlers = dict(os.environ), list(map(signal.getsignal, signals))
    held = switches.current()
    assert launcher.command([*BARE, "--profile", "fast", str(tmp_path / "dies.py")]) == 137
    assert "ended by signal SIGKILL" in capfd.readouterr().err
    assert dict(os.environ) == variables and list(map(signal.getsignal, signals)) == handlers
    assert switches.current() is held


def test_ctrl_c_reaches_a_program_with_an_exchanged_library(tmp_path: Path) -> None:
    from backline.interop.exchange import layouts
    from backline.libraries import get

    if layouts.unsupported() or not get("openblas").available():
        pytest.skip("NumPy is no wheel for Linux with glibc here")
    (tmp_path / "waits.py").write_text(
        # Short sleeps: a signal right before a sleep does not end it.
        "import sys, time\ntry:\n    print('up')\n    for _ in range(1000):\n        time.sleep(0.1)\nexcept KeyboardInterrupt:\n    sys.exit(4)\n"
    )
    words = [sys.executable, "-m", "backline", "run", *BARE, "--blas", "openblas", str(tmp_path / "waits.py")]
    with started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 4, errors


def test_the_public_parser_has_the_options() -> None:
    from backline.backends.xeon import run_cpu

    args: Any = run_cpu.create_args().parse_args(["--set", "a=1", "--set", "b=2", "--profile", "fast", "job.py", "--set", "c"])
    assert args.set == ["a=1", "b=2"] and args.profile == "fast" and args.program_args == ["--set", "c"]
    assert run_cpu.create_args().parse_args(["job.py"]).set == []


def test_the_deterministic_profile_gives_the_same_bits_on_any_number_of_threads(tmp_path: Path) -> None:
    (tmp_path / "bits.py").write_text(
        "import hashlib, numpy as np, backline\n"
        "rng = np.random.default_rng(3)\n"
        "a, x = rng.standard_normal((700, 700)).astype(np.float32), rng.standard_normal((4, 8, 40, 40)).astype(np.float32)\n"
        "found = [backline.matmul(a, a), backline.linalg.solve(a, a[:, :3]), backline.nn.functional.conv2d(x, x[:, :, :3, :3])]\n"
        "print(backline.get_num_threads(), hashlib.sha256(b''.join(np.ascontiguousarray(f).tobytes() for f in found)).hexdigest())\n"
    )
    said = [start("--profile", "deterministic", "--set", f"num_threads={n}", str(tmp_path / "bits.py")).stdout.split() for n in (1, 2)]
    assert [threads for threads, _ in said] == ["1", "2"] and said[0][1] == said[1][1]
