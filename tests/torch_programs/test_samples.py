"""PyTorch's operator samples, by torch and by Backline: none is wrong, and what is refused is listed with its reason."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from refused_samples import ACCEPTED, KINDS, MOST, kind_of
from samples import Outcome, accepted_errors, operations, outcomes, table

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def found() -> list[Outcome]:
    pytest.importorskip("torch")
    return [outcome for info, ours in operations() for outcome in outcomes(info, ours)]


def test_no_result_is_wrong(found: list[Outcome]) -> None:
    assert len(found) > 8000 and len({each.operation for each in found}) > 90
    assert not [each for each in found if each.kind == "wrong"]


def test_what_is_refused_is_listed(found: list[Outcome]) -> None:
    refused = [each for each in found if each.kind in ("refused", "other dtype") and not kind_of(each)]
    others = Counter((each.operation, each.dtype, each.detail[:200]) for each in refused)
    assert not others, "\n".join(f"{number} {text}" for text, number in others.most_common())


def test_every_kind_occurs(found: list[Outcome]) -> None:
    names = {each.operation for each in found}
    there = [kind for kind in KINDS if any(re.fullmatch(kind.operations, name) for name in names)]
    assert not [kind.what for kind in there if not any(kind.covers(each) for each in found)]


def test_what_torch_refuses_is_refused() -> None:
    pytest.importorskip("torch")
    accepted = [bad for info, ours in operations() for bad in accepted_errors(info, ours)]
    assert not [bad for bad in accepted if not any(re.search(pattern, bad) for pattern in ACCEPTED)], accepted


def test_few_are_refused(found: list[Outcome], capsys: Any) -> None:
    with capsys.disabled():
        print("\n" + table(found))
    assert sum(each.kind in ("refused", "other dtype") for each in found) <= MOST
