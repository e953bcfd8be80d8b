"""Rankings: the shipped one is in order, and files of earlier versions are read under the names of now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backline
from backline import libraries
from backline.engine import plan_caches, ranking
from backline.engine.tuning.record import RENAMED, current_key
from backline.nn import grad as G
from support import clean

pytestmark = pytest.mark.usefixtures("clean")
assert clean


def entry(op: str, **times: float) -> dict[str, Any]:
    order = [key.replace("__", ".").replace("_at_", "@") for key in times]
    return {"op": op, "dtype": "f32", "class": "", "size": 13, "example": op, "order": order, "microseconds": [*times.values()]}


OLD = {
    "provenance": {"cpu": "another", "date": "2026-11-22"},
    "entries": [
        entry("relu_grad", numpy__loops_at_1=0.3, numpy__compiled_at_n=0.5, numpy__compiled_at_1=7.2),
        entry("conv", mkl__depthwise_at_n=1.0, onednn__nhwc_at_n=2.0, blis__depthwise_at_n=3.0, openblas__depthwise_at_1=4.0, mkl__depthwise_at_1=5.0),
        entry("tanh", onednn__primitive_at_1=1.0, numpy__loops_at_1=2.0),
    ],
}


@pytest.fixture
def old(tmp_path: Path) -> str:
    file = tmp_path / "ranking.json"
    file.write_text(json.dumps(OLD))
    return str(file)


def test_the_shipped_ranking_is_in_order() -> None:
    content = ranking.data()
    assert len(content["entries"]) >= 800
    for e in content["entries"]:
        assert len(e["order"]) == len(set(e["order"])) == len(e["microseconds"]) and e["microseconds"] == sorted(e["microseconds"]), e
        assert {key.partition(".")[0] for key in e["order"]} <= {*libraries.names()}, e


def test_the_shipped_ranking_has_no_name_of_an_earlier_version() -> None:
    keys = {key for e in json.loads(Path(ranking.FILE).read_text())["entries"] for key in e["order"]}
    assert {current_key(key) for key in keys} == keys
    assert {"kernels.compiled@1", "kernels.compiled@n", "kernels.depthwise@1", "kernels.depthwise@n"} <= keys
    assert not {name for name in RENAMED if RENAMED.get(RENAMED[name])}, "a new name is no old one"


def test_a_file_of_an_earlier_version_is_read_under_the_names_of_now(old: str) -> None:
    relu, conv, tanh = ranking.read(old)["entries"]
    assert relu["order"] == ["numpy.loops@1", "kernels.compiled@n", "kernels.compiled@1"] and relu["microseconds"] == [0.3, 0.5, 7.2]
    assert conv["order"] == ["kernels.depthwise@n", "onednn.nhwc@n", "kernels.depthwise@1"] and conv["microseconds"] == [1.0, 2.0, 4.0]
    assert tanh == OLD["entries"][2] and ranking.read(old)["provenance"] == OLD["provenance"]


def test_a_file_of_an_earlier_version_decides(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones((16, 64), np.float32)
    assert backline.explain(G.relu_input, x, x).library == "kernels"
    monkeypatch.setattr(ranking, "FILE", old)
    for cached in (ranking.data, ranking._entry):
        cached.cache_clear()
    try:
        plan_caches.clear()
        choice = backline.explain(G.relu_input, x, x)
        assert [(c.library, c.algorithm) for c in choice.candidates[:2]] == [("numpy", "loops"), ("kernels", "compiled")]
        assert "measured on another" in choice.basis
    finally:
        monkeypatch.undo()
        for cached in (ranking.data, ranking._entry):
            cached.cache_clear()
