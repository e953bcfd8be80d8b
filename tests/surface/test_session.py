"""The package as an interactive session sees it: the names that dir() lists."""

from __future__ import annotations

import types

import backline
from backline import interop, nn


def test_dir_lists_public_names_only() -> None:
    names = dir(backline)
    assert set(names) == {*backline.__all__, "__version__", "__config__", "numpy"}
    assert not any(name.startswith("_") for name in names if not name.endswith("__"))
    for name in names:
        assert getattr(backline, name) is not None


def test_dir_of_lazy_packages_lists_what_they_export() -> None:
    for package in (nn, interop):
        assert dir(package) == sorted(package.__all__)
    assert isinstance(interop.threadpoolctl, types.ModuleType) and interop.threadpoolctl.__name__ == "backline.interop.threadpoolctl"
