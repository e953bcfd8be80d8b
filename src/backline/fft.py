"""Fourier transforms, with the names and parameters of torch.fft, and cosine and sine transforms with those of scipy.fft."""

from __future__ import annotations

from .ops.fft_order import fftfreq, fftshift, ifftshift, rfftfreq
from .ops.fourier import (
    fft,
    fft2,
    fftn,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)
from .ops.trigonometric import dct, dctn, dst, dstn, idct, idctn, idst, idstn

__all__ = [
    "dct", "dctn", "dst", "dstn", "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "idct", "idctn", "idst",
    "idstn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2",
    "rfftfreq", "rfftn",
]  # fmt: skip
