"""The options: both spellings, what belongs to the program, and what is wrong on any machine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from backline.errors import BadValue
from backline.launch.arguments import check, create_args

DEFAULTS = {
    "multi_instance": False, "module": False, "no_python": False, "enable_tcmalloc": False, "enable_jemalloc": False,
    "use_default_allocator": False, "disable_iomp": False, "disable_numactl": False, "disable_taskset": False,
    "ncores_per_instance": -1, "ninstances": -1, "skip_cross_node_cores": False, "rank": -1, "latency_mode": False,
    "throughput_mode": False, "node_id": -1, "use_logical_core": False, "core_list": None, "log_path": "",
    "log_file_prefix": "run", "blas": "", "tuned": False, "profile": "", "set": [], "from_report": "",
}  # fmt: skip


def parsed(*words: str) -> argparse.Namespace:
    return create_args().parse_args(words)


def test_defaults() -> None:
    assert vars(parsed("job.py")) == DEFAULTS | {"program": "job.py", "program_args": []}


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_option_in_both_spellings(name: str) -> None:
    value = [] if DEFAULTS[name] is False else ["7"]
    expected = {"core_list": "7", "log_path": "7", "log_file_prefix": "7", "blas": "7", "profile": "7", "set": ["7"], "from_report": "7"}.get(name, 7 if value else True)
    for option in (f"--{name}", f"--{name.replace('_', '-')}"):
        args = parsed(option, *value, "job.py")
        assert vars(args) == DEFAULTS | {name: expected, "program": "job.py", "program_args": []}
    assert parsed("-m", "pkg.mod").module


def test_what_follows_the_program_is_the_programs() -> None:
    args = parsed("--rank", "0", "job.py", "--rank", "3", "-m", "--help", "--", "--ninstances", "x")
    assert args.rank == 0 and args.program == "job.py" and not args.module
    assert args.program_args == ["--rank", "3", "-m", "--help", "--", "--ninstances", "x"]
    args = parsed("--no-python", "--", "-odd", "--", "x")
    assert args.program == "-odd" and args.program_args == ["--", "x"]


@pytest.mark.parametrize("words", [[], ["--"], ["--nosuch", "job.py"], ["--ninst", "2", "job.py"], ["--ninstances", "two", "job.py"], ["--rank"]])
def test_what_the_parser_refuses(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed(*words)
    assert stopped.value.code == 2 and "error: " in capsys.readouterr().err


def test_options_are_added_to_a_given_parser() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mine")
    assert create_args(parser) is parser
    args = parser.parse_args(["--mine", "x", "--ninstances", "2", "job.py", "--mine", "y"])
    assert (args.mine, args.ninstances, args.program_args) == ("x", 2, ["--mine", "y"])


def test_help_names_every_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed("--help")
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    for name in DEFAULTS:
        assert f"--{name.replace('_', '-')}" in text
        assert "_" not in name or f"--{name}" not in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--ninstances 0", "--ninstances 0 is not a count"),
        ("--ninstances -2", "--ninstances -2 is not a count"),
        ("--ncores-per-instance 0", "--ncores-per-instance 0 is not a count"),
        ("--ncores_per_instance -7", "--ncores-per-instance -7 is not a count"),
        ("--core-list 0", "--core-list needs --ncores-per-instance"),
        ("--skip-cross-node-cores", "--skip-cross-node-cores needs --ncores-per-instance"),
        ("--skip-cross-node-cores --ninstances 2", "--skip-cross-node-cores needs --ncores-per-instance"),
        ("--latency-mode --throughput-mode", "--latency-mode and --throughput-mode"),
        ("--enable-tcmalloc --enable-jemalloc", "--enable-tcmalloc and --enable-jemalloc"),
        ("-m --no-python", "--module and --no-python"),
        ("--blas mkl --no-python", "--blas and --no-python"),
        ("--latency-mode --core-list 0 --ncores-per-instance 1", "--latency-mode and --core-list"),
        ("--log-file-prefix a/b", "--log-file-prefix 'a/b'"),
        ("--log-file-prefix=", "--log-file-prefix ''"),
        ("--log-file-prefix ..", "--log-file-prefix '..'"),
    ],
)
def test_options_that_are_wrong(options: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    with pytest.raises(BadValue) as caught:
        check(parsed(*options.split(), str(tmp_path / "job.py")))
    assert str(caught.value).startswith(said)


def test_programs(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    check(parsed(str(tmp_path / "job.py")))
    check(parsed("-m", "no.such.module"))
    check(parsed("--no-python", "sh"))
    with pytest.raises(BadValue, match=r"'sh' does not end in .py[\s\S]*--module[\s\S]*--no-python"):
        check(parsed("sh"))
    with pytest.raises(BadValue, match=r"no script 'nowhere.py'"):
        check(parsed("nowhere.py"))
    with pytest.raises(BadValue, match=r"no program 'no-such-program'"):
        check(parsed("--no-python", "no-such-program"))
