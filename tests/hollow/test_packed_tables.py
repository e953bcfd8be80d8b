"""Kernels around attention over packed sequences: compiled by NVRTC for an H100; the numbers are of the same source on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backline.libraries.cuda.common import elementwise_kernels
from backline.libraries.cuda.cudnn import packed_plans

pytestmark = pytest.mark.cupy


@pytest.mark.parametrize("kinds", [("int32", "int32"), ("int64", "int32")])
@pytest.mark.parametrize("causal", [0, 1])
def test_the_table(here: Any, kinds: tuple[str, str], causal: int) -> None:
    cupy = here.xp
    queries, keys, width = [0, 3, 3, 10, 12], [0, 5, 9, 11, 11], packed_plans.table_width(6)
    kernel = elementwise_kernels.made("packed_3", packed_plans.table_source(3), packed_plans.INSIDE)
    found = cupy.empty((5, width), "int32")
    both = cupy.asarray(np.array(queries, kinds[0])), cupy.asarray(np.array(keys, kinds[1]))
    kernel(*both, 4, width, 12, 11, 128, 128, causal, 0b010, 64, 32, 4, found)
    shift = 5 if causal else 0  # of a sequence with 7 queries and 2 keys
    begins, others = [0, 3, 3 + shift, 12 if causal else 10, 12, 12, 12, 12], [0, 5, 9, 11, 11, 11, 11, 11]
    assert found[0].get().tolist() == [3, 0, 2 if causal else 7, 0, 0, 0, 0, 0]
    assert found[1].get().tolist() == [5, 0, 2, 0, 0, 0, 0, 0]
    assert found[2].get().tolist() == [64 * n for n in begins]
    assert found[3].get().tolist() == [32 * n for n in others]
    assert found[4].get().tolist() == [4 * n for n in begins]


def test_the_log_sum_exp_by_sequences(here: Any) -> None:
    cupy = here.xp
    lse = np.arange(12, dtype=np.float32).reshape(6, 2)
    begins, lengths = cupy.asarray(np.array([0, 4, 12], np.int32)), cupy.asarray(np.array([2, 4, 0], np.int32))
    found = cupy.empty((3, 2, 5), "float32")
    elementwise_kernels.made("packed_lse", packed_plans.padded_source(), "")(cupy.asarray(lse), begins, lengths, 2, 5, found)
    wanted = np.zeros((3, 2, 5), np.float32)
    wanted[0, :, :2], wanted[1, :, :4] = lse[:2].T, lse[2:].T
    np.testing.assert_array_equal(found.get(), wanted)
