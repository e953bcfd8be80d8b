"""Cepstral coefficients of a recording, in float32: frames, spectra, bands of the mel scale, logarithm, cosines.

The usual preparation of speech for recognition (Davis and Mermelstein, 1980): frames of 32 ms, one every 10 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import Program

RATE, FRAME, HOP, BANDS, KEPT = 16000, 512, 160, 80, 20


def mel_filters() -> Any:
    """Returns triangles over the frequencies, one column a band."""
    highest = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, highest, BANDS + 2) / 2595) - 1)
    frequencies = np.arange(FRAME // 2 + 1)[:, None] * RATE / FRAME
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def inputs(small: bool) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    times = np.arange(RATE // 4 if small else 90 * RATE) / RATE
    pitch = 120 + 40 * np.sin(2 * np.pi * 0.7 * times)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = sum(np.sin(k * phase) / k for k in range(1, 12)) * (1 + np.sin(2 * np.pi * 3 * times))
    sound = voice + 0.05 * rng.standard_normal(len(times))
    return {"sound": sound.astype(np.float32), "window": np.hanning(FRAME).astype(np.float32), "filters": mel_filters()}


def build(ops: Any, data: dict[str, Any]) -> Any:
    sound, window, filters = (ops.array(data[name]) for name in ("sound", "window", "filters"))
    cosines = ops.cosines(BANDS)

    def run() -> Mapping[str, Any]:
        power = ops.power_spectra(sound, window, HOP)
        levels = ops.matmul(power, filters)
        levels += 1e-6
        levels = ops.log_(levels)
        cepstra = cosines(levels)[:, :KEPT]
        cepstra = cepstra - cepstra.mean(axis=0)
        return {"levels": levels, "cepstra": cepstra}

    return run


PROGRAMS = [Program("spectrogram", inputs, build, bound=1e-3)]
