"""Pooling in the true cuDNN's frontend: the reason why kernels of Backline's own run it."""

from __future__ import annotations

import pytest

from .conftest import Deviceless

pytestmark = pytest.mark.cudnn


def test_graphs_have_no_node_of_it(deviceless: Deviceless) -> None:
    nodes = {name for name in dir(deviceless.module.pygraph) if not name.startswith("_")}
    assert {"conv_fprop", "batchnorm", "reduction"} <= nodes
    assert not [name for name in nodes if "pool" in name or "resample" in name]
