"""Libraries that crash, exit, hang or print when they are opened end no program: they are refused, with the reason."""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.libraries.probing import probe_cache, probe_process
from backline.native.machine import cpu_info
from broken_libraries import CONSTRUCTORS, FILES, compiled, variable
from support import need, python

# A hang is told after a time; this long, it is no slow start of a process on a busy machine either.
ASK = """
import sys
import numpy as np
import backline
from backline import libraries
from backline.libraries.probing import probe_process
probe_process.SECONDS = SECONDS_
print(libraries.get(sys.argv[1] if len(sys.argv) > 1 else NAME_).reason())
assert (backline.mm(np.ones((40, 40)), np.ones((40, 40))) == 40).all()
"""


def reason(library: str, path: Path, cache: Path, *, seconds: float = 60.0, **variables: str) -> str:
    """Returns what a program says of a file; it computes something afterwards, so that it is known to live."""
    done = python(
        ASK.replace("SECONDS_", repr(seconds)).replace("NAME_", repr(library)), timeout=300,
        env={variable(library): str(path), "XDG_CACHE_HOME": str(cache), **variables},
    )  # fmt: skip
    assert "FATAL" not in done.stderr and "hello" not in done.stdout + done.stderr
    return str(done.stdout).strip()


@pytest.mark.parametrize("library", FILES)
@pytest.mark.parametrize("kind", ["crash", "exit", "_exit", "last words", "forged"])
def test_a_constructor_that_ends_the_process(library: str, kind: str, tmp_path: Path) -> None:
    constructor, words = CONSTRUCTORS[kind]
    path = compiled(tmp_path, library, constructor)
    assert f"{path} {words}" in reason(library, path, tmp_path / "cache")


@pytest.mark.parametrize("library", ["openblas", "onednn"])
def test_a_constructor_that_hangs(library: str, tmp_path: Path) -> None:
    constructor, words = CONSTRUCTORS["hang"]
    path = compiled(tmp_path, library, constructor)
    assert f"{path} {words} (no answer in 2 seconds)" in reason(library, path, tmp_path / "cache", seconds=2.0)


@pytest.mark.parametrize("library", FILES)
def test_a_library_that_prints_and_does_nothing(library: str, tmp_path: Path) -> None:
    """It is refused because it computes nothing; what it prints reaches neither the program's output nor the answer."""
    path = compiled(tmp_path, library, 'puts("hello"); fputs("hello", stderr); fflush(stdout);')
    said = reason(library, path, tmp_path / "cache")
    assert said and "hello" not in said


def test_a_child_that_leaves_processes_behind_leaves_none(tmp_path: Path) -> None:
    """A process that the constructor starts holds the pipes of the answer open; it is neither waited for nor left."""
    mark = tmp_path / "pid"
    start = 'if (fork() == 0) { FILE *f = fopen("MARK", "w"); fprintf(f, "%d", getpid()); fclose(f); for (;;) pause(); } _exit(0);'
    path = compiled(tmp_path, "openblas", start.replace("MARK", str(mark)))
    assert "ends the process that tests it (status 0)" in reason("openblas", path, tmp_path / "cache")
    number = int(mark.read_text() or 0) if mark.exists() else 0
    end = time.monotonic() + 30
    while number and os.path.exists(f"/proc/{number}") and time.monotonic() < end:
        if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return  # killed; nobody has reaped it where this is process 1's business
        time.sleep(0.05)
    assert not number or not os.path.exists(f"/proc/{number}")


MKL_LAYERS = [{"MKL_THREADING_LAYER": "TBB"}, {"MKL_INTERFACE_LAYER": "GNU,ILP64"}, {"MKL_INTERFACE_LAYER": "NONSENSE"}]


@pytest.mark.parametrize("variables", MKL_LAYERS, ids=str)
def test_layers_of_mkl_that_may_not_load(variables: dict[str, str], tmp_path: Path) -> None:
    """MKL ends the process where a layer that the environment names cannot be loaded; with it or without, the program goes on."""
    path = need("mkl").report()["path"]
    said = reason("mkl", path, tmp_path, **variables)
    assert said == "" or "ends the process that tests it" in said


# The cache -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in the process and in its file; returns the file. Not beside the libraries: their folder is to stay the same."""
    folder = tmp_path_factory.mktemp("caches") / "cache"
    monkeypatch.setattr(probe_cache, "_known", {})
    monkeypatch.setattr(probe_cache, "_file", lambda: str(folder / "library-probes.json"))
    return folder / "library-probes.json"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns what children are started for."""
    asks: list[str] = []
    real = probe_process.ask

    def ask(question: str, subject: str, **more: Any) -> Any:
        asks.append(question)
        return real(question, subject, **more)

    monkeypatch.setattr(probe_process, "ask", ask)
    return asks


def prove(path: Path) -> probe_cache.Proof:
    """As a new process does."""
    probe_cache._known.clear()
    return probe_cache.prove("nnpack", str(path), "nnpack", {})


def sound(folder: Path, status: int = 0) -> Path:
    return compiled(folder, "nnpack", more=f"int nnp_initialize(void) {{ return {status}; }}\n")


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects of this question are paths."""
    real = probe_process.ask
    monkeypatch.setattr(probe_process, "ask", lambda q, s, **more: real(q, json.loads(s)["path"] if s[0] == "{" else s, **more))


def test_what_a_child_said_is_kept_for_the_same_file(cache: Path, direct: None, asked: list[str], tmp_path: Path) -> None:
    path = sound(tmp_path)
    assert prove(path).reason == "" and prove(path).reason == "" and len(asked) == 1
    time.sleep(0.02)
    assert "status 51" in prove(sound(tmp_path, 51)).reason  # another file of the same name
    assert len(asked) == 2
    assert "status 51" in prove(path).reason and len(asked) == 2


def test_what_an_earlier_version_kept_is_used(cache: Path, direct: None, asked: list[str], tmp_path: Path) -> None:
    """The file of the cache has kept its layout: a key of name, path, which file it is, its folder's time and all settings."""
    path = sound(tmp_path)
    which = path.stat()
    identity = (which.st_size, which.st_mtime_ns, which.st_ino, which.st_dev, zlib.crc32(path.read_bytes()[:4096]))
    settings = zlib.crc32("\0".join(settings_of(json.dumps({"path": str(path)}))).encode("utf-8", "surrogateescape"))
    key = f"nnpack {path} {' '.join(map(str, identity))} {tmp_path.stat().st_mtime_ns} {settings:08x}"
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({key: {"reason": "has been seen by an earlier version"}}, indent=0))
    assert prove(path).reason == f"{path} has been seen by an earlier version" and not asked


def settings_of(subject: str) -> tuple[str, ...]:
    """The facts that a kept answer depends on, beside the file."""
    environment = probe_process.environment()
    variables = [f"{k}={v}" for k, v in sorted(environment.items()) if k.startswith(probe_cache.PREFIXES)]
    return backline.__version__, sys.version, sys.executable, os.uname().release, cpu_info().model, subject, *variables


@pytest.mark.parametrize("kind", ["crash", "_exit"])
def test_what_a_child_did_not_finish_is_not_kept(
    kind: str, cache: Path, direct: None, asked: list[str], tmp_path: Path
) -> None:  # fmt: skip
    path = compiled(tmp_path, "nnpack", CONSTRUCTORS[kind][0])
    assert CONSTRUCTORS[kind][1] in prove(path).reason
    assert not cache.exists()
    assert CONSTRUCTORS[kind][1] in prove(path).reason and len(asked) == 2


TROUBLES = {
    "MemoryError()": ("finds too little memory when it is tested", 2),
    "MemoryError('buffer')": ("finds too little memory when it is tested: buffer", 2),
    "RuntimeError('3 threads cannot be started')": ("RuntimeError: 3 threads cannot be started", 2),
    "ValueError('no such function')": ("ValueError: no such function", 1),
}


@pytest.mark.parametrize("error", TROUBLES)
def test_a_passing_shortage_is_not_kept(error: str, cache: Path, asked: list[str], tmp_path: Path) -> None:
    """The answer of a test that found no memory or no threads holds for this process; the next one tests anew."""
    (tmp_path / "backline" / "libraries").mkdir(parents=True)
    (tmp_path / "file").mkdir()
    for file in ("backline/__init__.py", "core.py", "file/library.so"):
        (tmp_path / file).touch()
    (tmp_path / "backline" / "libraries" / "__init__.py").write_text(
        f"class Toy:\n    def test(self, path): raise {error}\n\n\ndef get(name): return Toy()\n"
    )
    path = str(tmp_path / "file" / "library.so")
    options = {"name": "toy", "folders": [str(tmp_path)], "compiled": {"backline._core": str(tmp_path / "core.py")}}
    said, count = TROUBLES[error]
    for _ in range(2):
        probe_cache._known.clear()
        proof = probe_cache.prove("toy", path, "library", options)
        assert proof.reason == f"{path} {said}" and proof.facts == {"reason": said}
    assert len(asked) == count and cache.exists() == (count == 1)


def test_settings_are_part_of_the_key(
    cache: Path, direct: None, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    path = sound(tmp_path)
    prove(path)
    for name, value in (("OMP_NUM_THREADS", "3"), ("MKL_THREADING_LAYER", "TBB"), ("LD_LIBRARY_PATH", "/opt/nowhere")):
        monkeypatch.setenv(name, value)
        prove(path)
    assert len(asked) == 4
    monkeypatch.setenv("HOME_OF_SOMETHING_ELSE", "1")
    prove(path)
    assert len(asked) == 4


GARBAGE = {
    "nested": b"[" * 200_000,
    "large": b'{"a": "' + b"x" * (2 << 20) + b'"}',
    "no object": b"[1, 2]",
    "values of other types": b'{"a": 1, "b": [], "c": {"reason": 5}, "d": {"reason": "", "more": [[]]}, "e": {}}',
    "no text": b"\xff\xfe\x00",
    "huge number": b'{"a": ' + b"9" * 100_000 + b"}",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_file_is_ignored(content: bytes, cache: Path, direct: None, asked: list[str], tmp_path: Path) -> None:
    cache.parent.mkdir()
    cache.write_bytes(content)
    path = sound(tmp_path)
    assert prove(path).reason == "" and prove(path).reason == "" and len(asked) == 1


def test_a_pipe_in_the_place_of_the_file_hangs_nobody(cache: Path, direct: None, tmp_path: Path) -> None:
    cache.parent.mkdir()
    os.mkfifo(cache)
    assert prove(sound(tmp_path)).reason == ""


def test_a_folder_that_cannot_be_written(
    cache: Path, direct: None, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(probe_cache, "_file", lambda: str(tmp_path / "file" / "library-probes.json"))
    path = sound(tmp_path)
    assert prove(path).reason == "" and prove(path).reason == "" and len(asked) == 2
    assert probe_cache.prove("nnpack", str(path), "nnpack", {}).reason == "" and len(asked) == 2  # once in a process


def test_a_file_that_is_replaced_after_it_was_tested(cache: Path, direct: None, tmp_path: Path) -> None:
    proof = prove(sound(tmp_path))
    assert proof.replaced() == ""
    sound(tmp_path, 51)
    assert "was replaced while it was being loaded" in proof.replaced()


@pytest.mark.parametrize("executable", ["", "/usr/bin/editor", "/no/such/python"])
def test_a_program_that_embeds_python_tests_in_itself(executable: str, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """A library is opened without the test in a child where there is no interpreter to start; it is checked all the same."""
    need("openblas")
    cache.unlink(missing_ok=True)
    probe_cache._known.clear()
    monkeypatch.setattr(sys, "executable", executable)
    fresh = type(libraries.get("openblas"))()
    assert fresh.available() and not cache.exists()
    ones = np.ones((30, 30))
    assert (ones @ ones == 30).all()
