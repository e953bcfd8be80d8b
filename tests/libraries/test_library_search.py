"""The search for a library: the order of the steps, what is never looked at, and what is reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backline.errors import BackendUnavailable
from backline.native import library_folders, library_search
from backline.native.library_search import LibrarySpec, search
from backline.native.process_map import MappedFile

Build = Callable[..., Path]

SPEC = LibrarySpec(
    "tiny",
    env="BACKLINE_TINY_LIBRARY",
    wheels=(("tiny_wheel", "lib/libtiny*.so*"),),
    prefix_globs=("libtiny.so*",),
    system_names=("libtiny.so.1",),
    folders=("tiny-openmp",),
    needs=("backline_test_answer",),
)

BLIS = LibrarySpec("blis", env="BACKLINE_BLIS_LIBRARY", system_names=("libblis.so.4",))


class Places:
    """Folders that stand for site-packages, the prefix and the system."""

    def __init__(self, root: Path, tiny: Path) -> None:
        self.tiny = tiny
        self.site, self.prefix, self.system = root / "site-packages", root / "prefix", root / "system"
        for folder in (self.site, self.prefix, self.system):
            folder.mkdir()

    def put(self, *parts: str | Path) -> Path:
        """A copy of the sound library at this place."""
        path = Path(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.tiny, path)
        return path


@pytest.fixture
def places(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    here = Places(tmp_path, tiny)
    monkeypatch.setattr(library_folders, "site_folders", lambda: [str(here.site)])
    monkeypatch.setattr(sys, "prefix", str(here.prefix))
    monkeypatch.setattr(library_folders, "loader_configuration", lambda: [str(here.system)])
    for name in ("LD_LIBRARY_PATH", SPEC.env, BLIS.env):
        monkeypatch.delenv(name, raising=False)
    return here


def names(finding: library_search.Finding) -> list[str]:
    return [step.name for step in finding.steps]


# --- the order


def test_nothing_anywhere_reports_every_step(places: Places) -> None:
    finding = search(SPEC)
    assert not finding
    assert finding.path is None
    assert finding.step == ""
    assert names(finding) == [library_search.VARIABLE, library_search.MAPPED, library_search.WHEEL, library_search.SYSTEM]
    assert [step.outcome for step in finding.steps] == ["not set", "nothing", "nothing", "nothing"]
    looked = " ".join(path for step in finding.steps for path in step.looked_at)
    for place in (SPEC.env, f"{places.site}/tiny_wheel/lib/", f"{places.prefix}/lib/", str(places.system)):
        assert place in looked
    assert finding.reason == "no file of this name was found"
    assert SPEC.env in finding.remedy


def test_each_place_is_found_and_earlier_ones_win(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = places.put(places.system, "libtiny.so.1")
    assert (search(SPEC).path, search(SPEC).step) == (str(plain), library_search.SYSTEM)
    sub = places.put(places.system, "tiny-openmp", "libtiny.so.1")
    assert search(SPEC).path == str(sub)
    prefix = places.put(places.prefix, "lib", "libtiny.so.1")
    assert (search(SPEC).path, search(SPEC).step) == (str(prefix), library_search.WHEEL)
    wheel = places.put(places.site, "tiny_wheel", "lib", "libtiny-abc.so")
    assert (search(SPEC).path, search(SPEC).step) == (str(wheel), library_search.WHEEL)
    other = places.put(places.site.parent, "elsewhere", "mine.so")
    monkeypatch.setenv(SPEC.env, str(other))
    assert (search(SPEC).path, search(SPEC).step) == (str(other), library_search.VARIABLE)
    finding = search(SPEC, path=str(plain))
    assert (finding.path, finding.step, names(finding)) == (str(plain), library_search.EXPLICIT, [library_search.EXPLICIT])


def test_mapped_copy_is_preferred_where_wanted(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = places.put(places.site, "tiny_wheel", "lib", "libtiny.so")
    there = places.put(places.site.parent, "opt", "libtiny.so.1.0.0")
    files = (MappedFile(str(there), "fe:00", 7, 0, 1), MappedFile("/usr/lib/libother.so", "fe:00", 8, 2, 3))
    monkeypatch.setattr(library_search, "mapped_files", lambda: files)
    assert (search(SPEC).path, search(SPEC).step) == (str(there), library_search.MAPPED)
    assert search(replace(SPEC, reuse_mapped=False)).path == str(wheel)
    monkeypatch.setattr(library_search, "mapped_files", lambda: (replace(files[0], deleted=True),))
    assert search(SPEC).path == str(wheel)


def test_really_mapped_library_is_seen(build: Build) -> None:
    import ctypes

    path = build("libbacklinemapped.so.3", "int backline_mapped(void) { return 1; }")
    spec = LibrarySpec("mapped", system_names=("libbacklinemapped.so.3",))
    assert not search(spec)
    library = ctypes.CDLL(str(path))
    assert library.backline_mapped() == 1
    finding = search(spec)
    assert finding.path is not None
    assert os.path.samefile(finding.path, path)


def test_newest_version_first(places: Places) -> None:
    for version in ("libtiny.so", "libtiny.so.2", "libtiny.so.10", "libtiny.so.9"):
        places.put(places.prefix, "lib", version)
    assert search(SPEC).path == str(places.prefix / "lib" / "libtiny.so.10")


def test_special_characters_in_folders(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = places.site.parent / "a [b]* {c}"
    monkeypatch.setattr(library_folders, "site_folders", lambda: [str(odd)])
    path = places.put(odd, "tiny_wheel", "lib", "libtiny.so")
    assert search(SPEC).path == str(path)


# --- files that do not work


def test_bad_file_met_by_the_search_is_passed_over_and_reported(places: Places, build: Build) -> None:
    bad = places.site / "tiny_wheel" / "lib" / "libtiny.so.2"
    bad.parent.mkdir(parents=True)
    bad.write_text("INPUT(libtiny.so.1)")
    good = places.put(places.site, "tiny_wheel", "lib", "libtiny.so.1")
    finding = search(SPEC)
    assert finding.path == str(good)
    assert (
        finding.steps[-1].outcome
        == f"found; passed over {bad}: a text file (a linker script?), not a library"
    )


def test_only_bad_files_give_their_reason(places: Places, build: Build) -> None:
    lacking = build("libtiny.so.1", "int something_else(void) { return 1; }")
    shutil.copy(lacking, places.system / "libtiny.so.1")
    finding = search(SPEC)
    assert finding.path is None
    assert finding.reason == f"refused {places.system}/libtiny.so.1: lacks symbol backline_test_answer"


@pytest.mark.parametrize("how", ["path", "variable"])
def test_named_file_that_fails_is_not_replaced(
    how: str, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.put(places.site, "tiny_wheel", "lib", "libtiny.so")  # would be found otherwise
    cut = tmp_path / "cut.so"
    cut.write_bytes(places.tiny.read_bytes()[:5000])
    for bad, why in [
        (tmp_path / "none.so", "no such file"),
        (tmp_path, "a folder, not a library"),
        (cut, "truncated: "),
        (Path("/etc/passwd"), "a text file"),
    ]:
        if how == "path":
            finding = search(SPEC, path=str(bad))
        else:
            monkeypatch.setenv(SPEC.env, str(bad))
            finding = search(SPEC)
        assert finding.path is None
        assert finding.step == (library_search.EXPLICIT if how == "path" else library_search.VARIABLE)
        assert names(finding) == [finding.step]
        assert str(bad) in finding.reason
        assert why in finding.reason
        assert (SPEC.env in finding.reason) == (how == "variable")
        assert finding.remedy


@pytest.mark.parametrize(
    "path", ["libtiny.so.1", "./libtiny.so.1", "../x/libtiny.so.1", "~/libtiny.so.1", ""]
)
def test_relative_path_is_refused(path: str, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    places.put(places.prefix, "libtiny.so.1")
    monkeypatch.chdir(places.prefix)
    finding = search(SPEC, path=path)
    assert finding.path is None
    assert finding.reason == f"{path!r} is a relative path"
    assert finding.remedy == "give an absolute path"
    if path:
        monkeypatch.setenv(SPEC.env, path)
        assert search(SPEC).reason == f"{SPEC.env}={path!r} is a relative path"


def test_empty_variable_is_ignored_and_said_so(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    path = places.put(places.system, "libtiny.so.1")
    monkeypatch.setenv(SPEC.env, "")
    finding = search(SPEC)
    assert finding.path == str(path)
    assert finding.steps[0].outcome == "set to nothing: ignored"


# --- the working directory


@pytest.mark.parametrize("value", [None, "", ":", ".", "::./", "lib:", "$ORIGIN"])
def test_working_directory_is_never_looked_in(
    value: str | None, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoy = places.prefix.parent / "cwd"
    for parts in (["libtiny.so.1"], ["lib", "libtiny.so.1"], ["tiny_wheel", "lib", "libtiny.so"],
                  ["tiny-openmp", "libtiny.so.1"], ["$ORIGIN", "libtiny.so.1"]):  # fmt: skip
        places.put(decoy, *parts)
    monkeypatch.chdir(decoy)
    if value is not None:
        monkeypatch.setenv("LD_LIBRARY_PATH", value)
    assert search(SPEC).path is None


def test_decoy_of_a_real_library_in_a_fresh_process(tiny: Path, tmp_path: Path) -> None:
    """With the working directory on the module path and in the loader's path, as `python -c` has it."""
    shutil.copy(tiny, tmp_path / "libblis.so.4")
    program = (
        "from backline.native.library_search import LibrarySpec, search\n"
        "print(search(LibrarySpec('blis', system_names=('libblis.so.4',))).path)"
    )
    source = str(Path(library_search.__file__).parents[2])
    environment = {**os.environ, "LD_LIBRARY_PATH": ":", "PYTHONPATH": f"{source}{os.pathsep}"}
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path) not in run.stdout
    assert run.stdout.strip() == "None" or os.path.isabs(run.stdout.strip())


def test_entries_of_the_loader_path(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    first = places.put(places.prefix.parent, "first", "libtiny.so.1")
    places.put(places.system, "libtiny.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":relative:{first.parent}:/no/such/folder:")
    assert search(SPEC).path == str(first)
    first.unlink()
    (places.system / "libtiny.so.1").unlink()
    outcome = search(SPEC).steps[-1].outcome
    assert "an empty entry of LD_LIBRARY_PATH ignored" in outcome
    assert "relative entry 'relative' of LD_LIBRARY_PATH ignored" in outcome


# --- the folders themselves


def test_system_folders_are_absolute_and_each_once() -> None:
    folders = library_folders.system_folders()
    assert all(os.path.isabs(folder) for folder in folders)
    real = [os.path.realpath(folder) for folder in folders]
    assert len(real) == len(set(real))


def test_site_folders_are_this_interpreters() -> None:
    import numpy

    assert str(Path(numpy.__file__).parents[1]) in library_folders.site_folders()
    assert "" not in library_folders.site_folders()


def test_loader_configuration(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "ld.so.conf").write_text("include d/*.conf\n# a comment\n/opt/one # why\nrelative/two\n")
    (tmp_path / "d" / "b.conf").write_text("/opt/b\n")
    (tmp_path / "d" / "a.conf").write_text("/opt/a\ninclude ../ld.so.conf\n")  # a loop ends
    folders = library_folders.loader_configuration(str(tmp_path / "ld.so.conf"))
    assert folders[0] == "/opt/a"
    assert set(folders) == {"/opt/a", "/opt/b", "/opt/one"}
    assert library_folders.loader_configuration(str(tmp_path / "none")) == []


# --- what a finding gives


def test_require_gives_the_path_or_names_every_place(places: Places) -> None:
    with pytest.raises(BackendUnavailable) as error:
        search(SPEC).require()
    text = str(error.value)
    for word in ("tiny", SPEC.env, str(places.site), str(places.prefix), str(places.system), "remedy"):
        assert word in text
    path = places.put(places.system, "libtiny.so.1")
    assert search(SPEC).require() == str(path)


def test_finding_prints_its_steps(places: Places) -> None:
    text = str(search(SPEC))
    assert text.startswith("tiny: not found")
    assert text.count("\n") == 5


def test_nothing_is_imported_or_loaded(openblas: Path) -> None:
    program = (
        "import sys\n"
        "from backline.native.library_search import LibrarySpec, search\n"
        "spec = LibrarySpec('openblas', wheels=(('scipy_openblas32', 'lib/libscipy_openblas*.so'),),\n"
        "                   needs=('scipy_cblas_sgemm',))\n"
        "path = search(spec).require()\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(path); print(path in maps, 'scipy_openblas32' in sys.modules, 'torch' in sys.modules)"
    )
    source = str(Path(library_search.__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    path, loaded = run.stdout.splitlines()
    assert os.path.samefile(path, openblas)
    assert loaded == "False False False"


def test_by_name_only_where_files_are_not_elf(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_search.elf, "supported", lambda: False)
    text = places.prefix / "lib" / "libtiny.so"
    text.parent.mkdir()
    text.write_text("anything")
    finding = search(SPEC)
    assert (finding.path, finding.info) == (str(text), None)
    assert search(SPEC, path="/no/such/file.so").reason == "'/no/such/file.so' was refused: no such file"
