"""The variables an instance gets, and the search for what is preloaded."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from backline.launch import environment
from backline.launch.environment import common, find_library, keep, preload, search_folders
from backline.native.process_map import mapped_files


def library(path: Path) -> str:
    """A sound library under a name of choice: a copy of the C library's mathematics, or of any other that is loaded."""
    files = [f.path for f in mapped_files() if ".so" in f.name and not f.deleted]
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(next((f for f in files if os.path.basename(f).startswith("libm")), files[0]), path)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that is searched."""
    monkeypatch.setattr(environment, "search_folders", lambda environ: [str(tmp_path / "lib")])
    (tmp_path / "lib").mkdir()
    return tmp_path / "lib"


# The search ---------------------------------------------------------------------------------------------------------------


def test_folders_and_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "site/torch/lib").mkdir(parents=True)
    (tmp_path / "site/file").write_text("")
    found = search_folders({"CONDA_PREFIX": "/conda", "VIRTUAL_ENV": "/venv"}, [str(tmp_path / "site")])
    triplet = getattr(sys.implementation, "_multiarch", f"{os.uname().machine}-linux-gnu")
    assert found == [
        "/conda/lib", "/venv/lib", f"{sys.prefix}/lib", f"{tmp_path}/site/torch/lib", f"{tmp_path}/site/torch",
        f"{tmp_path}/home/.local/lib", "/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64", f"/usr/lib/{triplet}",
    ]  # fmt: skip
    assert search_folders({"VIRTUAL_ENV": sys.prefix, "CONDA_PREFIX": ""}, [])[0] == f"{sys.prefix}/lib"
    assert all(map(os.path.isabs, search_folders({"VIRTUAL_ENV": "venv"})))


def test_names_with_versions(tmp_path: Path) -> None:
    where = [str(tmp_path)]
    assert find_library("tcmalloc", where) is None
    for name in ("libtcmalloc.so.debug", "libtcmalloc.a", "libtcmalloc_other.so", "xlibtcmalloc.so"):
        library(tmp_path / name)
    assert find_library("tcmalloc", where) is None
    small = library(tmp_path / "libtcmalloc_minimal.so.4")
    assert find_library("tcmalloc", where) == small
    nine, ten = (library(tmp_path / f"libtcmalloc.so.{n}.5") for n in (9, 10))
    assert find_library("tcmalloc", where) == ten != nine
    plain = library(tmp_path / "libtcmalloc.so")
    assert find_library("tcmalloc", where) == plain


def test_files_that_cannot_be_preloaded_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/libjemalloc.so").write_text("INPUT ( -ljemalloc )")
    (tmp_path / "a/libjemalloc.so.2").symlink_to("nowhere")
    spaced = tmp_path / "with space"
    library(spaced / "libjemalloc.so")
    sound = library(tmp_path / "b/libjemalloc.so.1")
    assert find_library("jemalloc", [str(tmp_path / "a"), str(spaced), str(tmp_path / "b")]) == sound


def test_folders_come_before_lesser_names(tmp_path: Path) -> None:
    library(tmp_path / "a/libtcmalloc_minimal.so")
    whole = library(tmp_path / "b/libtcmalloc.so.4")
    assert find_library("tcmalloc", [str(tmp_path / "a"), str(tmp_path / "b")]) == whole


# LD_PRELOAD ---------------------------------------------------------------------------------------------------------------


def test_old_entries_follow_if_they_exist(tmp_path: Path) -> None:
    there = library(tmp_path / "libx.so")
    text, notes = preload(f"{there}: /nowhere/liby.so  $LIB/libz.so:", ["/a.so", "/b.so"])
    assert text == f"/a.so:/b.so:{there}:$LIB/libz.so"
    assert [(n.level, n.text) for n in notes] == [("warning", "LD_PRELOAD: /nowhere/liby.so does not exist and was dropped")]
    assert preload("", []) == ("", []) and preload(" : ", []) == ("", [])
    assert preload(f"/a.so:{there}", [there])[0] == there and len(preload("/a.so", [])[1]) == 1


def test_an_old_entry_without_a_folder_is_looked_for_as_the_loader_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path / "libown.so.1")
    monkeypatch.chdir(tmp_path)
    assert preload("libown.so.1", [])[0] == ""  # the loader does not look in the working directory
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert preload("libown.so.1", []) == ("libown.so.1", [])


# The variables ------------------------------------------------------------------------------------------------------------


def test_nothing_found(folder: Path) -> None:
    changes, notes = common({})
    assert changes == {} and [n.level for n in notes] == ["info", "warning"]
    assert "libiomp5" in notes[0].text and "tcmalloc and jemalloc are not installed" in notes[1].text
    assert common({}, iomp=False, allocator="") == ({}, [])


def test_everything_found(folder: Path) -> None:
    iomp, tc, je = (library(folder / name) for name in ("libiomp5.so", "libtcmalloc.so.4", "libjemalloc.so.2"))
    kmp = {"KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}
    assert common({}) == ({**kmp, "LD_PRELOAD": f"{iomp}:{tc}"}, [])
    assert common({}, affinity=False)[0] == {"KMP_BLOCKTIME": "1", "LD_PRELOAD": f"{iomp}:{tc}"}
    assert common({}, iomp=False)[0] == {"LD_PRELOAD": tc}
    assert common({}, allocator="tcmalloc", iomp=False)[0] == {"LD_PRELOAD": tc}
    assert common({}, allocator="", iomp=False)[0] == {}
    conf = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
    assert common({}, allocator="jemalloc", iomp=False)[0] == {"LD_PRELOAD": je, "MALLOC_CONF": conf}
    other = library(folder / "libother.so")
    assert common({"LD_PRELOAD": other})[0]["LD_PRELOAD"] == f"{iomp}:{tc}:{other}"
    os.unlink(tc)
    assert common({}, iomp=False) == ({"LD_PRELOAD": je}, [])  # found without being asked for: its configuration is left alone
    changes, notes = common({}, allocator="tcmalloc", iomp=False)
    assert changes == {} and "tcmalloc is not installed" in notes[0].text and notes[0].level == "warning"


def test_what_is_preloaded_already_is_not_doubled(folder: Path, tmp_path: Path) -> None:
    library(folder / "libiomp5.so")
    library(folder / "libtcmalloc.so")
    mine = [library(tmp_path / "mine" / name) for name in ("libjemalloc.so.2", "libiomp5.so")]
    changes, notes = common({"LD_PRELOAD": ":".join(mine)})
    assert changes["LD_PRELOAD"] == f"{mine[1]}:{mine[0]}" and not notes  # the allocator of choice, and the runtime before it
    assert common({"LD_PRELOAD": mine[0]}, iomp=False)[0] == {}


def test_what_is_set_is_kept_and_both_values_are_told(folder: Path) -> None:
    library(folder / "libiomp5.so")
    library(folder / "libjemalloc.so")
    environ = {"KMP_BLOCKTIME": "200", "KMP_AFFINITY": "none", "MALLOC_CONF": ""}
    changes, notes = common(environ, allocator="jemalloc")
    assert set(changes) == {"LD_PRELOAD"}
    assert [n.text for n in notes] == [
        "KMP_BLOCKTIME is set: keeping KMP_BLOCKTIME=200, the launcher would have set KMP_BLOCKTIME=1",
        "KMP_AFFINITY is set: keeping KMP_AFFINITY=none, the launcher would have set KMP_AFFINITY=granularity=fine,compact,1,0",
        "MALLOC_CONF is set: keeping MALLOC_CONF=, the launcher would have set "
        "MALLOC_CONF=oversize_threshold:1,background_thread:true,metadata_thp:auto",
    ]
    assert all(n.level == "warning" for n in notes)
    assert keep({"X": "1"}, "X", "1") == ({}, [])


def test_dropping_all_of_ld_preload_empties_it(folder: Path) -> None:
    changes, notes = common({"LD_PRELOAD": "/nowhere.so"}, allocator="", iomp=False)
    assert changes == {"LD_PRELOAD": ""} and len(notes) == 1
