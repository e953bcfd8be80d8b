"""The error function against the C library's."""

from __future__ import annotations

import math

import numpy as np

from backline.libraries.reference.error_function import FAR, NEAR, erfc


def test_against_the_c_library() -> None:
    edges = [v for e in (0.0, NEAR, FAR, 26.5) for v in (e, np.nextafter(e, 0), np.nextafter(e, 99))]
    x = np.concatenate([np.linspace(-30, 30, 200_001), edges, np.negative(edges), [5e-324, 1e-300, -1e-300, 1e300, -1e300]])
    wanted = np.array([math.erfc(v) for v in x])
    normal = wanted > 2.3e-308
    assert (np.abs(erfc(x) - wanted)[normal] <= 2e-15 * wanted[normal]).all()
    assert (np.abs(erfc(x) - wanted)[~normal] <= 1e-308).all()


def test_what_is_not_finite() -> None:
    np.testing.assert_array_equal(erfc(np.array([np.inf, -np.inf, np.nan])), [0, 2, np.nan])
    assert erfc(np.zeros((2, 0))).shape == (2, 0)
    assert erfc(np.array(0.0)) == 1
