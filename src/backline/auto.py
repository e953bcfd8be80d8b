"""Exchanges the BLAS under NumPy and SciPy as the variable ``BACKLINE_EXCHANGE`` says: for services, one import at their start.

``BACKLINE_EXCHANGE`` is what `backline.interop.numpy.use` takes: ``mkl``, ``openblas``, ``blis``, ``tuned``, or libraries by
routine such as ``?gesdd=mkl,*=openblas``. Where it is empty or not set, nothing happens. What cannot be exchanged is an error
at the import.

Examples
--------
>>> import backline.auto
>>> backline.auto.exchange is None or backline.auto.exchange
True
"""

from __future__ import annotations

import os

from .errors import BadValue
from .interop import numpy

__all__ = ["VARIABLE", "exchange"]

VARIABLE = "BACKLINE_EXCHANGE"


def _exchanged(text: str) -> numpy.Exchange | None:
    if not text.strip():
        return None
    try:
        return numpy.use(text.strip())
    except BadValue as error:
        raise BadValue(f"{VARIABLE}={text!r}: {error.message}", cause=error.cause, remedy=error.remedy) from None


exchange = _exchanged(os.environ.get(VARIABLE, ""))
"""The exchange that was made, None where none was asked for."""
