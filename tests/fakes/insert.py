"""Put fakes in the place of the modules that libraries for CUDA arrays use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backline.engine import plan_caches
from backline.libraries.cuda.common import bindings


@contextmanager
def inserted(**modules: Any) -> Iterator[None]:
    """While it is open, ``inserted(cupy=CuPy(), cublas=Recording(...))`` is what the libraries find; plans are made anew.

    A module that is in place counts as there: no package, no library's file and no device is asked for.
    """
    before = dict(bindings.inserted)
    bindings.inserted.update(modules)
    plan_caches.clear()
    try:
        yield
    finally:
        bindings.inserted.clear()
        bindings.inserted.update(before)
        plan_caches.clear()
