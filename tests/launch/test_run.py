"""The launcher as a shell runs it: real instances, really bound, and everything that ends it."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from backline.errors import BackendUnavailable, BadValue, UnknownName
from backline.launch import counts, launcher
from backline.launch.topology import CPUInfo
from backline.processors import cpu_quota
from processes import started

REPORT = """
import json, os, sys
names = ("OMP_NUM_THREADS", "LD_PRELOAD", "KMP_AFFINITY", "KMP_BLOCKTIME", "MALLOC_CONF")
said = {"cpus": sorted(os.sched_getaffinity(0)), "args": sys.argv[1:], "name": __name__, "unbuffered": sys.stdout.write_through}
print(json.dumps(said | {n: os.environ[n] for n in names if n in os.environ}))
"""
PROGRAM = (sys.executable, "-m", "backline.backends.xeon.run_cpu")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "job.py").write_text(REPORT)
    monkeypatch.chdir(tmp_path)
    return "job.py"


def start(*words: str, status: int = 0, before: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*before, *PROGRAM, *words], env=os.environ | variables, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and "RuntimeWarning" not in done.stderr and "\x1b" not in done.stderr
    return done


def reports(*words: str, **how: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in start(*words, **how).stdout.splitlines()]
    return sorted(lines, key=lambda report: report["cpus"])


def cores() -> list[int]:
    """The cores that the launcher may deal out here."""
    info = CPUInfo()
    limited, _ = counts.limit([info.node_physical_cores[n] for n in info.nodes], cpu_quota())
    return [cpu for group in limited for cpu in group]


def fake(folder: Path, name: str, script: str) -> str:
    """A folder with a program of ours; put before others on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


# Binding ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--disable-numactl"]])
def test_one_instance_has_all_cores(job: str, options: list[str]) -> None:
    (report,) = reports(*options, job, "a", "--rank", "x y")
    assert report["cpus"] == sorted(cores()) and report["OMP_NUM_THREADS"] == str(len(cores()))
    assert report["args"] == ["a", "--rank", "x y"] and report["name"] == "__main__" and report["unbuffered"]


@pytest.mark.parametrize("options", [[], ["--disable-numactl"], ["--log-path", "logs"]])
def test_instances_have_a_core_each(job: str, options: list[str]) -> None:
    found = reports("--ninstances", str(len(cores())), *options, job)
    assert [report["cpus"] for report in found] == [[cpu] for cpu in sorted(cores())]
    assert {report["OMP_NUM_THREADS"] for report in found} == {"1"}


def test_one_of_them(job: str) -> None:
    last = len(cores()) - 1
    done = start("--ncores-per-instance", "1", "--rank", str(last), job)
    assert json.loads(done.stdout)["cpus"] == [cores()[last]]
    assert [line.split()[0] for line in done.stderr.splitlines() if job in line] == [str(last)]


def test_a_list_of_cpus(job: str) -> None:
    cpu = max(os.sched_getaffinity(0))
    (report,) = reports("--core-list", f"{cpu}-{cpu}", "--ncores_per_instance", "1", job)
    assert report["cpus"] == [cpu]


def test_nothing_is_bound_where_both_are_disabled(job: str) -> None:
    done = start("--disable-numactl", "--disable-taskset", job)
    assert json.loads(done.stdout)["cpus"] == sorted(os.sched_getaffinity(0))
    assert f"{sys.executable} -u {job}" in done.stderr and "taskset" not in done.stderr


NUMACTL = """\
echo "$*" >> calls
while [ "$1" = -C ] || [ "$1" = -m ]; do shift 2; done
exec "$@"
"""


def test_a_mask_without_the_first_cpu_still_uses_numactl(job: str, tmp_path: Path) -> None:
    path = fake(tmp_path / "bin", "numactl", NUMACTL)
    cpu = max(os.sched_getaffinity(0))
    start(job, before=("taskset", "-c", str(cpu)), PATH=path)
    trial, real = (tmp_path / "calls").read_text().splitlines()
    assert re.fullmatch(rf"-C {cpu}-{cpu}( -m \d+)? true", trial)
    assert re.fullmatch(rf"-C {cpu}-{cpu}( -m \d+)? {re.escape(sys.executable)} -u job.py", real)
    (report,) = reports(job, before=("taskset", "-c", str(cpu)))  # whatever binds here
    assert report["cpus"] == [cpu] and report["OMP_NUM_THREADS"] == "1"


def test_taskset_where_numactl_fails(job: str, tmp_path: Path) -> None:
    path = fake(tmp_path / "bin", "numactl", "echo 'numactl: no NUMA support' >&2; exit 1")
    done = start(job, PATH=path)
    assert "warning: numactl cannot bind here" in done.stderr and "no NUMA support" in done.stderr and "taskset -c" in done.stderr
    assert json.loads(done.stdout)["cpus"] == sorted(cores())
    refused = start("--disable-taskset", job, PATH=path, status=1)
    assert "--disable-taskset" in refused.stderr and refused.stdout == ""


# Programs -----------------------------------------------------------------------------------------------------------------


def test_a_module_by_any_name(job: str, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("")
    shutil.copy(job, tmp_path / "pkg/mod.py")
    for option in ("-m", "--module"):
        (report,) = reports(option, "pkg.mod", "-m", "x")
        assert report["args"] == ["-m", "x"] and report["name"] == "__main__"


def test_a_program_that_is_no_python(job: str) -> None:
    done = start("--no_python", "sh", "-c", 'echo "$0 $OMP_NUM_THREADS"', "--", "x")
    assert done.stdout.split() == ["--", str(len(cores()))]


# Environment --------------------------------------------------------------------------------------------------------------


def test_local_ranks(job: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Eight cores for two processes, on whatever machine this is: nothing is bound."""
    rows = "".join(f"{cpu},{cpu},0,0\n" for cpu in range(8))
    monkeypatch.setattr(launcher, "CPUInfo", lambda: CPUInfo(rows))
    monkeypatch.setattr(launcher, "cpu_quota", lambda: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for rank, cpus in (("0", "0-3"), ("1", "4-7")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert launcher.command(["--disable-numactl", "--disable-taskset", job]) == 0
        said = capfd.readouterr()
        assert json.loads(said.out)["OMP_NUM_THREADS"] == "4" and f" {cpus} " in said.err
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "9")
    assert launcher.command(["--disable-numactl", "--disable-taskset", job]) == 2


def test_a_quota_lowers_the_cores(job: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"{cpu},{cpu},0,0\n" for cpu in range(8))
    monkeypatch.setattr(launcher, "CPUInfo", lambda: CPUInfo(rows))
    monkeypatch.setattr(launcher, "cpu_quota", lambda: 3.9)
    assert launcher.command(["--disable-numactl", "--disable-taskset", job]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["OMP_NUM_THREADS"] == "3" and "warning: the CPU quota of this container grants 3.9" in said.err


def test_what_is_set_is_kept_with_a_warning_of_both_values(job: str) -> None:
    done = start(job, OMP_NUM_THREADS="77")
    assert json.loads(done.stdout)["OMP_NUM_THREADS"] == "77"
    wanted = f"keeping OMP_NUM_THREADS=77, the launcher would have set OMP_NUM_THREADS={len(cores())}"
    assert done.stderr.count(wanted) == 1
    assert "OMP_NUM_THREADS" not in start(job, OMP_NUM_THREADS=str(len(cores()))).stderr


def sound_library() -> str:
    from backline.native.process_map import mapped_files

    return next(f.path for f in mapped_files() if f.name.startswith(("libm.so", "libm-")))


def test_libraries_are_preloaded(job: str, tmp_path: Path) -> None:
    lib = tmp_path / "env/lib"
    lib.mkdir(parents=True)
    for name in ("libiomp5.so", "libtcmalloc.so.4", "libjemalloc.so.2", "libold.so"):
        shutil.copy(sound_library(), lib / name)
    env = {"VIRTUAL_ENV": str(tmp_path / "env"), "LD_PRELOAD": f"{lib}/libold.so"}
    (report,) = reports(job, **env)
    assert report["LD_PRELOAD"] == f"{lib}/libiomp5.so:{lib}/libtcmalloc.so.4:{lib}/libold.so"
    assert report["KMP_AFFINITY"] == "granularity=fine,compact,1,0" and report["KMP_BLOCKTIME"] == "1"
    (report,) = reports("--enable-jemalloc", "--disable-iomp", job, **env)
    assert report["LD_PRELOAD"] == f"{lib}/libjemalloc.so.2:{lib}/libold.so" and "background_thread" in report["MALLOC_CONF"]
    assert "KMP_BLOCKTIME" not in report
    (report,) = reports("--use-logical-core", "--use-default-allocator", job, **env)
    assert report["LD_PRELOAD"] == f"{lib}/libiomp5.so:{lib}/libold.so" and "KMP_AFFINITY" not in report
    node = CPUInfo().nodes[0]
    assert "KMP_AFFINITY" in reports("--use-logical-core", "--node-id", str(node), job, **env)[0]


def test_a_list_that_loses_all_its_entries_is_unset(job: str) -> None:
    # Through the launcher's own environment only: the loader would complain about it in every process before.
    code = f"""
import os, sys
from backline.launch import launcher
os.environ["LD_PRELOAD"] = "/nowhere/libx.so"
sys.exit(launcher.command(["--disable-numactl", "--disable-iomp", "--use-default-allocator", {job!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "LD_PRELOAD" not in json.loads(done.stdout) and "warning: LD_PRELOAD: /nowhere/libx.so does not exist" in done.stderr


# Logs and what is said ----------------------------------------------------------------------------------------------------


def test_logs(job: str, tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text("import sys; print('out'); print('err', file=sys.stderr)\n")
    done = start("--ninstances", "1", "--log_path", "deep/logs", "--log-file-prefix", "trial", "both.py")
    (folder,) = (tmp_path / "deep/logs").iterdir()
    assert re.fullmatch(r"trial_\d{8}-\d{6}_\d+", folder.name) and f"logs: deep/logs/{folder.name}" in done.stderr
    assert (folder / "0/stdout.log").read_text() == "out\n" and (folder / "0/stderr.log").read_text() == "err\n"
    assert done.stdout == "out\n" and done.stderr.endswith("err\n")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_hold_logs(job: str) -> None:
    assert "--log-path 'job.py' cannot hold logs" in start("--log-path", job, job, status=2).stderr


def test_what_is_said_is_a_table_on_stderr(job: str) -> None:
    done = start("--ninstances", str(len(cores())), "--disable-numactl", job)
    lines = done.stderr.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("instance"))
    assert lines[head].split() == ["instance", "node", "cores", "threads", "command"]
    rows = lines[head + 1 : head + 1 + len(cores())]
    assert [row.split()[0] for row in rows] == [str(i) for i in range(len(cores()))]
    assert {row.index("taskset -c") for row in rows} == {lines[head].index("command")}
    assert not any(line != line.rstrip() for line in lines)
    assert len(done.stdout.splitlines()) == len(cores())  # nothing but the instances' own


def test_help_needs_no_machine(tmp_path: Path, job: str) -> None:
    path = fake(tmp_path / "bin", "lscpu", "echo called >> asked; exit 1")
    fake(tmp_path / "bin", "numactl", "echo called >> asked; exit 1")
    assert "--throughput-mode" in start("--help", PATH=path).stdout
    assert "--core-list" in start("-h", PATH=path).stdout and not (tmp_path / "asked").exists()


# Ends ---------------------------------------------------------------------------------------------------------------------


def test_the_status_of_an_instance_is_ours(tmp_path: Path, job: str) -> None:
    (tmp_path / "fails.py").write_text("import os, sys\nif sys.argv[1] == 'kill': os.kill(os.getpid(), 9)\nsys.exit(int(sys.argv[1]))\n")
    assert "instance 0 ended with status 3" in start("fails.py", "3", status=3).stderr
    assert "instance 0 ended by signal SIGKILL" in start("fails.py", "kill", status=137).stderr
    start("fails.py", "0")
    start("-m", "no_such_module", status=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "required: program"),
        (["--nosuch", "job.py"], "--nosuch"),
        (["--ninstances", "0", "job.py"], "--ninstances 0 is not a count"),
        (["--ncores-per-instance", "-2", "job.py"], "--ncores-per-instance -2 is not a count"),
        (["--ninstances", "99999", "job.py"], "--ninstances 99999"),
        (["--rank", "1", "job.py"], "0 to 0"),
        (["--node-id", "4096", "job.py"], "NUMA node 4096"),
        (["--core-list", "99999", "--ncores-per-instance", "1", "job.py"], "CPU 99999 does not exist"),
        (["--latency-mode", "--throughput-mode", "job.py"], "exclude each other"),
        (["--enable-tcmalloc", "--enable-jemalloc", "job.py"], "exclude each other"),
        (["sh"], "--no-python"),
        (["sh"], "--module"),
        (["nowhere.py"], "no script 'nowhere.py'"),
    ],
)
def test_usage_errors_end_with_2_and_start_nothing(job: str, words: list[str], said: str) -> None:
    done = start(*words, status=2)
    assert said in done.stderr and "error: " in done.stderr and done.stdout == ""


def test_a_signal_is_passed_on_through_the_command_that_binds(tmp_path: Path, job: str) -> None:
    (tmp_path / "waits.py").write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *a: sys.exit(5))\nprint('up')\nfor _ in range(1000): time.sleep(0.1)\n"
    )
    for number, status in ((signal.SIGTERM, 5), (signal.SIGINT, 130)):
        code = "import sys; from backline.launch import launcher; sys.exit(launcher.command())"
        command = [sys.executable, "-c", code, "waits.py"]
        with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdout.readline() == "up\n"
            process.send_signal(number)
            _, errors = process.communicate(timeout=200)
            assert process.returncode == status, errors


# From Python --------------------------------------------------------------------------------------------------------------


def test_the_public_module(job: str, capfd: pytest.CaptureFixture[str]) -> None:
    from backline.backends import xeon
    from backline.backends.xeon import run_cpu

    assert xeon.run_cpu is run_cpu and "run_cpu" in dir(xeon) and pickle.loads(pickle.dumps(xeon)) is xeon
    assert run_cpu.__all__ == ["CPUInfo", "create_args", "main"] and run_cpu.CPUInfo is CPUInfo
    with pytest.raises(UnknownName, match="run_cpu"):
        xeon.runcpu  # noqa: B018  # reading it raises
    with pytest.raises((UnknownName, AttributeError)):
        xeon.run_gpu = 1
    parser = run_cpu.create_args()
    assert run_cpu.main(parser.parse_args([job])) == 0
    assert json.loads(capfd.readouterr().out)["cpus"] == sorted(cores())
    with pytest.raises(BadValue):
        run_cpu.main(parser.parse_args(["--ninstances", "0", job]))


def test_importing_the_switchboard_does_not_import_the_launcher() -> None:
    code = "import sys; from backline.backends import xeon; print([m for m in sys.modules if 'launch' in m or m in ('argparse', 'subprocess')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    names = eval(done.stdout)
    assert not [name for name in names if name.startswith("backline.")]


def test_other_systems_are_refused_by_name(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    args = launcher.arguments.create_args().parse_args([job])
    with pytest.raises(BackendUnavailable, match="this is Darwin") as caught:
        launcher.main(args)
    assert isinstance(caught.value, RuntimeError)
    assert launcher.command([job]) == 1


def test_the_command_of_backline_passes_everything_on(job: str, capfd: pytest.CaptureFixture[str]) -> None:
    import typer
    from typer.testing import CliRunner

    from backline.cli import run

    app = typer.Typer()
    app.command("run", context_settings=run.SETTINGS)(run.run)
    app.command("other")(lambda: None)
    runner = CliRunner()

    def invoke(*words: str) -> int:
        return runner.invoke(app, ["run", *words]).exit_code

    assert invoke("--ninstances", "1", "--disable_numactl", job, "--rank", "3", "--", "--help") == 0
    assert json.loads(capfd.readouterr().out)["args"] == ["--rank", "3", "--", "--help"]
    assert invoke("--rank=0", "-m", "json.tool", "--help") == 0 and "json.tool" in capfd.readouterr().out
    assert invoke("--ninstances", "0", job) == 2 and invoke("--nosuch", job) == 2
    done = runner.invoke(app, ["run", "--help"])
    assert done.exit_code == 0 and "usage: backline run [options] program [args...]" in done.output
