"""Reports as `backline run --from` reads them: what they say comes back, and what is no report is refused."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries, switches
from backline.errors import BadValue
from backline.launch import profiles, saved_report
from backline.native.machine import fingerprint
from backline.report.page import page
from report_samples import sample


def test_a_report_is_read_from_json_and_from_its_page(tmp_path: Path) -> None:
    content = sample()
    from_json = saved_report.parse(json.dumps(content))
    assert from_json.switches == {"fallback": "warn"} and from_json.libraries == {"mkl": "1.0"}
    assert (from_json.machine, from_json.variables) == ("a-machine-2c-00000000", {"OMP_NUM_THREADS": "2"})
    file = tmp_path / "report.html"
    file.write_text(page(content), encoding="utf-8")
    assert saved_report.read(str(file)) == from_json


@pytest.mark.parametrize("name", sorted(switches.declared()))
def test_every_default_that_is_a_value_comes_back_from_its_text(name: str) -> None:
    switch = switches.lookup(name)
    value = switches.current()[name]
    if switch.unset is not None and value == switch.unset:
        return  # a state before anybody sets a value, which no report lists
    assert switch.parse(profiles.text_of(value)) == value


def test_what_is_set_for_the_process_is_set_again() -> None:
    content = sample()
    content["switches"] = [
        {"name": "prefer", "text": "openblas,numpy", "kind": "assignment", "where": "job.py:3"},
        {"name": "mkl.enabled", "text": "False", "kind": "user file", "where": "config.toml"},
        {"name": "nothing.of_this_name", "text": "1", "kind": "environment", "where": "X"},
    ]
    assigned, notes = saved_report.assignments(saved_report.parse(json.dumps(content)))
    settings = profiles.resolve("", assigned, {})
    assert settings.values["prefer"] == ("openblas", "numpy") and settings.values["mkl.enabled"] is False
    assert len(notes) == 1 and "nothing.of_this_name" in notes[0].text


def test_differences_name_versions_machine_libraries_and_variables() -> None:
    content = sample()
    saved = saved_report.parse(json.dumps(content))
    texts = [note.text for note in saved_report.differences(saved, {})]
    for word in ("backline is", "Python is", "NumPy is", "machine is", "mkl ", "OMP_NUM_THREADS is not set, it was 2"):
        assert any(word in text for text in texts), (word, texts)
    name = next(each.name for each in libraries.all_libraries() if each.available())
    version = libraries.get(name).version() or ""
    same: dict[str, Any] = {
        "backline": backline.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "fingerprint": fingerprint(),
    }
    same |= {"libraries": [{"name": name, "version": version}], "variables": {}}
    assert saved_report.differences(saved_report.parse(json.dumps(content | same)), {}) == []
    other = content | same | {"libraries": [{"name": name, "version": "0.0.0"}, {"name": "unheard_of", "version": "1"}]}
    texts = [note.text for note in saved_report.differences(saved_report.parse(json.dumps(other)), {})]
    assert len(texts) == 2 and "it was 0.0.0" in texts[0] and "no such library" in texts[1]


HOSTILE = [
    ("", "not JSON"), ("{", "not JSON"), ("[" * 100_000, "not JSON"), ("null", "not an object"), ("[]", "not an object"),
    ("<!doctype html><p>", "contains no report"), ("<!DOCTYPE html>" + saved_report.MARK + "{</script>", "not JSON"),
    ({"kind": "another"}, "kind is"), ({"schema": 2}, "schema is"), ({"schema": True}, "schema is"), ({"schema": "1"}, "schema is"),
    ({"python": 3}, "python is"), ({"numpy": "2\x1b[2J"}, "numpy is"), ({"backline": "x" * 2000}, "backline is"),
    ({"switches": {}}, "switches is"), ({"switches": [1]}, "switches has"), ({"switches": [{"name": "fallback"}]}, "switches has"),
    ({"switches": [{"name": "a b", "text": ""}]}, "switches has"), ({"switches": [{"name": "fallback", "text": ["warn"]}]}, "switches has"),
    ({"switches": [{"name": "fallback", "text": "warn"}] * 2}, "fallback twice"), ({"switches": [{"name": "x", "text": "1\n2"}]}, "switches has"),
    ({"libraries": [{"name": "../../x", "version": ""}]}, "libraries has"), ({"libraries": None}, "libraries is"),
    ({"variables": []}, "variables is"), ({"variables": {"OMP_NUM_THREADS": 2}}, "variables is"), ({"fingerprint": None}, "fingerprint is"),
    ({"threads": -4}, "threads is"), ({"threads": "x"}, "threads is"), ({"threads": True}, "threads is"), ({"machine": 3}, "machine is"),
    ({"machine": {"cores": []}}, "machine is"), ({"command": "job.py"}, "command is"), ({"status": None}, "status is"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), HOSTILE, ids=range(len(HOSTILE)))
def test_what_is_no_report_is_refused(change: Any, said: str, tmp_path: Path) -> None:
    text = change if isinstance(change, str) else json.dumps(sample() | change)
    file = tmp_path / "report.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadValue, match="--from") as refused:
        saved_report.read(str(file))
    assert said in refused.value.cause and refused.value.remedy


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for unreadable in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(BadValue, match=r"--from .* cannot be read"):
            saved_report.read(str(unreadable))
    file = tmp_path / "bytes.json"
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadValue) as refused:
        saved_report.read(str(file))
    assert "UTF-8" in refused.value.cause
    monkeypatch.setattr(saved_report, "MAX_FILE", 1)
    with pytest.raises(BadValue) as refused:
        saved_report.read(str(file))
    assert "MiB" in refused.value.cause


def test_a_legal_report_with_an_illegal_value_is_refused_when_it_is_set() -> None:
    content = sample() | {"switches": [{"name": "fallback", "text": "explode", "kind": "scope", "where": ""}]}
    assigned, _ = saved_report.assignments(saved_report.parse(json.dumps(content)))
    with pytest.raises(BadValue, match="fallback"):
        profiles.resolve("", assigned, {})
