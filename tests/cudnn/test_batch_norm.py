"""Batch normalisation in training by the true cuDNN: the reason why kernels of Backline's own run it."""

from __future__ import annotations

import pytest

from backline.problems.memory_layout import contiguous_strides

from .conftest import Deviceless

pytestmark = pytest.mark.cudnn
WORDS = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}


def plans(deviceless: Deviceless, dtype: str, channels: int, last: bool) -> set[str]:
    """Engines of the plans that are listed for a described H100."""
    module, kinds = deviceless.module, deviceless.module.data_type
    _, described = deviceless.cards["H100"]
    shape, io = (16, channels, 56, 56), getattr(kinds, WORDS[dtype])
    steps = contiguous_strides(shape, 1, (0, 2, 3, 1) if last else None)
    graph = module.pygraph(
        io_data_type=io, intermediate_data_type=kinds.FLOAT, compute_data_type=kinds.FLOAT, device_property=described, sm_version=90
    )

    def vector(name: str, size: int, **more: bool) -> object:
        return graph.tensor(name=name, dim=[1, size, 1, 1], stride=[size, 1, size, size], data_type=kinds.FLOAT, **more)

    results = graph.batchnorm(
        name="norm", input=graph.tensor(name="x", dim=list(shape), stride=list(steps), data_type=io), scale=vector("scale", channels),
        bias=vector("bias", channels), in_running_mean=vector("mean", channels), in_running_var=vector("variance", channels),
        epsilon=vector("eps", 1, is_pass_by_value=True), momentum=vector("momentum", 1, is_pass_by_value=True),
    )  # fmt: skip
    results[0].set_output(True).set_data_type(io).set_dim(list(shape)).set_stride(list(steps))
    for statistic in results[1:]:
        statistic.set_output(True).set_data_type(kinds.FLOAT)
    graph.validate()
    try:
        graph.build_operation_graph()
        graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
    except (module.cudnnGraphNotSupportedError, RuntimeError):
        return set()
    names = (str(graph.get_plan_name_at_index(index)) for index in range(graph.get_execution_plan_count()))
    return {name.partition("_")[0] for name in names}


@pytest.mark.parametrize("last", [False, True])
def test_one_engine_has_some_numbers_of_channels_and_no_float64(deviceless: Deviceless, last: bool) -> None:
    for dtype in ("float16", "bfloat16", "float32"):
        assert len(plans(deviceless, dtype, 64, last)) == 1
        assert not plans(deviceless, dtype, 6, last)
    assert not plans(deviceless, "float64", 64, last)
