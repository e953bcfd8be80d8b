"""Files and environment: which are read, in which order they win, and what bad ones do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from backline import backends, switches
from backline.errors import BadValue
from backline.switches import config, store


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


@pytest.fixture
def user_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "elsewhere" / "user.toml"
    path.parent.mkdir()
    path.write_text("")
    monkeypatch.setenv("BACKLINE_CONFIG", str(path))
    return path


@pytest.fixture
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def one_warning(read=switches.current) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read()
        read()
    assert len(caught) == 1, [str(w.message) for w in caught]
    assert caught[0].category is RuntimeWarning
    return str(caught[0].message)


def one_error(read=switches.current) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadValue) as caught:
            read()
        read()  # said once; what was not wrong holds
    return str(caught.value)


# --- which value wins


def test_each_layer_wins_over_the_one_below_and_tells_its_origin(
    no_warning, user_file, tmp_path, monkeypatch
):
    name = "benchmark_limit"
    assert (switches.get(name), switches.origin(name).kind) == (10, "default")

    write(user_file, f"{name} = 1")
    store._restart()
    assert (switches.get(name), str(switches.origin(name))) == (1, f"user file ({user_file}:{name})")

    project = write(tmp_path / "backline.toml", f"{name} = 2")
    store._restart()
    assert (switches.get(name), str(switches.origin(name))) == (2, f"project file ({project}:{name})")

    monkeypatch.setenv("BACKLINE_BENCHMARK_LIMIT", "3")
    store._restart()
    assert (switches.get(name), str(switches.origin(name))) == (3, "environment (BACKLINE_BENCHMARK_LIMIT)")

    backends.benchmark_limit = 4
    line = sys._getframe().f_lineno - 1
    assert (switches.get(name), str(switches.origin(name))) == (4, f"assignment ({__file__}:{line})")

    with backends.flags(benchmark_limit=5):
        line = sys._getframe().f_lineno - 1
        assert switches.get(name) == 5
        assert str(switches.origin(name)) == f"scope ({__file__}:{line}, backends.flags)"
        backends.benchmark_limit = 6
        found = switches.origin(name)
        assert (switches.get(name), found.kind) == (6, "assignment")
        assert found.where == f"{__file__}:{line + 4}, inside the scope of {__file__}:{line}, backends.flags"
    assert switches.get(name) == 4


def test_origin_of_the_thread_count_names_the_variable(no_warning, monkeypatch):
    assert switches.origin("num_threads") == switches.Origin("default", "usable physical cores")
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    store._restart()
    assert backends.num_threads == 7
    assert switches.origin("num_threads") == switches.Origin("default", "MKL_NUM_THREADS")


def test_a_file_takes_tables_and_dotted_keys_and_every_kind(no_warning, user_file):
    write(
        user_file,
        """
        fallback = "warn"
        benchmark = true
        prefer = ["mkl", "blis"]
        max_error = 1          # a whole number will do
        mkl.enabled = false
        [blis]
        enabled = false
        """,
    )
    assert (backends.fallback, backends.benchmark, backends.max_error) == ("warn", True, 1.0)
    assert backends.prefer == ("mkl", "blis")
    assert (backends.mkl.enabled, backends.blis.enabled, backends.openblas.enabled) == (False, False, True)


def test_pyproject_is_searched_upward_until_the_repository_ends(no_warning, tmp_path, monkeypatch):
    write(tmp_path / "pyproject.toml", '[tool.backline]\nfallback = "warn"')
    write(tmp_path / "inner" / "pyproject.toml", "[project]\nname = 'another'")
    deep = tmp_path / "inner" / "deep"
    deep.mkdir()
    monkeypatch.chdir(deep)
    assert backends.fallback == "warn"
    (tmp_path / "inner" / ".git").mkdir()
    store._restart()
    assert backends.fallback == "allow"


def test_backline_toml_wins_over_pyproject_and_the_nearer_folder_over_the_farther(
    no_warning, tmp_path, monkeypatch
):
    write(tmp_path / "pyproject.toml", '[tool.backline]\nfallback = "warn"')
    write(tmp_path / "backline.toml", 'fallback = "error"')
    assert backends.fallback == "error"
    inner = tmp_path / "inner"
    write(inner / "pyproject.toml", '[tool.backline]\nfallback = "warn"')
    monkeypatch.chdir(inner)
    store._restart()
    assert backends.fallback == "warn"


@pytest.mark.skipif(sys.platform != "linux", reason="the folder is told by XDG_CONFIG_HOME on Linux only")
def test_the_usual_user_file_is_read_and_an_empty_variable_switches_it_off(no_warning, tmp_path, monkeypatch):
    write(tmp_path / "home" / "backline" / "config.toml", 'fallback = "warn"')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BACKLINE_CONFIG")
    assert backends.fallback == "warn"
    monkeypatch.setenv("BACKLINE_CONFIG", "")
    store._restart()
    assert backends.fallback == "allow"


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("BACKLINE_MKL_ENABLED", "0", "mkl.enabled", False),
        ("BACKLINE_MKL_ENABLED", "OFF", "mkl.enabled", False),
        ("BACKLINE_BENCHMARK", " yes ", "benchmark", True),
        ("BACKLINE_BENCHMARK", "1", "benchmark", True),
        ("BACKLINE_NUM_THREADS", "3", "num_threads", 3),
        ("BACKLINE_MAX_ERROR", "1e-6", "max_error", 1e-6),
        ("BACKLINE_MAX_ERROR", "inf", "max_error", float("inf")),
        ("BACKLINE_FALLBACK", "error", "fallback", "error"),
        ("BACKLINE_FALLBACK", "", "fallback", "allow"),
        ("BACKLINE_PREFER", "mkl, blis,", "prefer", ("mkl", "blis")),
        ("BACKLINE_PREFER", "", "prefer", ()),
    ],
)
def test_the_environment_is_read(no_warning, monkeypatch, variable, text, name, value):
    monkeypatch.setenv(variable, text)
    assert switches.get(name) == value
    assert type(switches.get(name)) is type(value)


# --- what bad ones do


@pytest.mark.parametrize(
    ("variable", "text", "legal"),
    [
        ("BACKLINE_FALLBACK", "warm", "'warn', 'allow', 'error'"),
        ("BACKLINE_FALLBACK", "WARN", "'warn'"),
        ("BACKLINE_MKL_ENABLED", "maybe", "True, False"),
        ("BACKLINE_NUM_THREADS", "0", "1 (the nearest)"),
        ("BACKLINE_NUM_THREADS", "many", "an integer"),
        ("BACKLINE_NUM_THREADS", "9" * 5000, "an integer"),
        ("BACKLINE_MAX_ERROR", "nan", "a number"),
        ("BACKLINE_PREFER", "mkl,blas", "'blis'"),
    ],
)
def test_a_bad_variable_warns_once_and_is_ignored(monkeypatch, variable, text, legal):
    plain = switches.current()
    monkeypatch.setenv(variable, text)
    monkeypatch.setenv("BACKLINE_BENCHMARK", "1")
    store._restart()
    message = one_warning()
    assert variable in message and text[:20] in message and legal in message
    assert backends.benchmark is True
    backends.benchmark = False
    assert switches.current() is plain


def test_all_bad_variables_share_one_warning(monkeypatch):
    monkeypatch.setenv("BACKLINE_FALLBACK", "x")
    monkeypatch.setenv("BACKLINE_BENCHMARK", "x")
    message = one_warning()
    assert "BACKLINE_FALLBACK" in message and "BACKLINE_BENCHMARK" in message


def test_a_misspelt_variable_is_reported_and_a_foreign_one_is_not(monkeypatch):
    monkeypatch.setenv("BACKLINE_MKL_LIBRARY", "/opt/libmkl_rt.so")
    monkeypatch.setenv("BACKLINE_MKL_ENABELD", "0")
    message = one_warning()
    assert "BACKLINE_MKL_ENABELD" in message and "BACKLINE_MKL_ENABLED" in message
    assert "LIBRARY" not in message


def test_a_bad_value_is_left_out_and_the_rest_of_the_file_counts(user_file):
    write(
        user_file,
        """\
        benchmark_limit = -4
        fallback = "error"
        [mkl]
        enabled = 1
        enabeld = true
        """,
    )
    message = one_warning()
    assert f"user file {user_file}" in message
    assert "line 1: benchmark_limit = -4" in message and "an integer" in message
    assert "line 4: mkl.enabled = 1" in message and "True, False" in message
    assert "line 5: 'mkl.enabeld' = True" in message and "mkl.enabled" in message
    assert (backends.benchmark_limit, backends.fallback, backends.mkl.enabled) == (10, "error", True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'fallback = "error"\nbenchmark = \n', "line 2"),
        (b'fallback = "error"\nfallback = "warn"\n', "not TOML"),
        (b'fallback = "error"\n\xff\xfe', "UTF-8"),
        (b'fallback = "error"\n#' + b" " * (1 << 20), "larger than"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"\x00\x01\x02", "not TOML"),
    ],
)
def test_a_file_that_does_not_parse_is_ignored_as_a_whole(user_file, data, reason):
    plain = switches.current()
    user_file.write_bytes(data)
    store._restart()
    message = one_warning()
    assert str(user_file) in message and reason in message and "ignored" in message
    assert switches.current() is plain


@pytest.mark.parametrize(
    "text", ["fallback = {}", "fallback = {a = 1}", "mkl = 3", "fallback = 1979-05-27", "prefer = [1]"]
)
def test_values_of_a_strange_shape_are_left_out(user_file, text):
    plain = switches.current()
    write(user_file, text)
    store._restart()
    assert str(user_file) in one_warning()
    assert switches.current() is plain


def test_the_named_user_file_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("BACKLINE_CONFIG", str(tmp_path / "gone.toml"))
    message = one_warning()
    assert "gone.toml" in message and "no such file" in message


def test_a_broken_pyproject_is_ours_only_if_it_has_our_table(tmp_path):
    write(tmp_path / "pyproject.toml", "[project\nname = 'x'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.fallback == "allow"
    write(tmp_path / "pyproject.toml", "[tool.backline]\nfallback = warn")
    store._restart()
    assert "pyproject.toml" in one_error()


def test_a_table_that_is_none_is_reported(tmp_path):
    write(tmp_path / "pyproject.toml", "[tool]\nbackline = 3")
    assert "tool.backline is ignored" in one_error()


def test_what_is_wrong_in_the_projects_file_is_one_error_and_the_rest_holds(tmp_path):
    write(tmp_path / "backline.toml", "fallback = 'warm'\nbenchmark_limit = 3\nbenchmrk = true\n")
    message = one_error()
    for part in (str(tmp_path / "backline.toml"), "line 1: fallback = 'warm'", "'warn', 'allow', 'error'", "line 3: 'benchmrk' = True", "benchmark"):
        assert part in message
    assert (backends.fallback, backends.benchmark_limit) == ("allow", 3)


def test_an_unreadable_file_is_reported(user_file, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(
        config, "open", refuse, raising=False
    )  # root may read everything, so chmod will not do
    message = one_warning()
    assert str(user_file) in message and "Permission denied" in message
    assert backends.fallback == "allow"


def test_warnings_as_errors_leave_the_switches_usable(monkeypatch):
    monkeypatch.setenv("BACKLINE_FALLBACK", "warm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="BACKLINE_FALLBACK"):
            switches.current()
        assert switches.current()["fallback"] == "allow"


def test_the_warning_points_at_the_users_line(monkeypatch):
    monkeypatch.setenv("BACKLINE_FALLBACK", "warm")
    with pytest.warns(RuntimeWarning) as caught:
        assert backends.fallback == "allow"
    assert caught[0].filename == __file__


def test_nothing_is_read_at_import_and_a_removed_working_directory_is_no_obstacle(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    program = """
        import os, warnings
        warnings.simplefilter("error")
        import backline.backends as backends
        os.environ["BACKLINE_FALLBACK"] = "warn"      # after the import, before the first read
        os.rmdir(os.getcwd())
        print(backends.fallback)
    """
    source = str(Path(backends.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": source},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("warn", 0), done.stderr
