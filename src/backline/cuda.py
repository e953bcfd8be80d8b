"""The few functions of torch.cuda that programs call before they set a switch: is there a device, how many, their seeds.

What concerns devices otherwise is CuPy's, whose arrays the operations take; the switches are in `backends.cuda`.
"""

from __future__ import annotations

import numpy as np

from .backends import cuda as _backend
from .libraries import devices
from .ops.seeds import manual_seed as _manual_seed

__all__ = ["device_count", "is_available", "manual_seed", "manual_seed_all"]


def is_available() -> bool:
    """Tells whether the driver reports a device, as ``backends.cuda.is_available()``.

    Examples
    --------
    >>> import backline
    >>> backline.cuda.is_available() == (backline.cuda.device_count() > 0)
    True
    """
    return bool(_backend.is_available())


def device_count() -> int:
    """Returns the number of devices that the driver reports, 0 without a driver.

    Examples
    --------
    >>> import backline
    >>> backline.cuda.device_count() >= 0
    True
    """
    return devices.count()


def manual_seed(seed: int) -> np.random.Generator:
    """Seeds the generator of `backline.manual_seed`, which is one for the CPU and all devices.

    Examples
    --------
    >>> import backline
    >>> generator = backline.cuda.manual_seed(0)
    """
    return _manual_seed(seed)


manual_seed_all = manual_seed
