"""Analyses 66 years of sea temperature: a spectrogram, and the El Niño years that a band filter finds.

The record is the temperature of the eastern equatorial Pacific, one value for every three months from 1950 to 2015 (NOAA, in the
public domain), in units of its own standard deviation. PyWavelets ships it. Three kinds of transforms are run:

- the spectrum of the whole record (``rfft``): the strongest periods;
- the spectra of all its pieces of 16 years, in one call (``rfft`` of a batch): how the periods come and go;
- a band filter by cosines (``dct``, ``idct``), which continue a record by its mirror image where Fourier's would repeat it: what
  varies within 2 to 7 years, and the warmest seasons of that.

    python examples/spectrogram.py
    python examples/spectrogram.py --out spectrogram.png
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pywt.data
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageDraw

import backline
from backline import fft

Array = np.ndarray[Any, Any]

STEP = 0.25  # years
PIECE = 64  # values: 16 years
POINTS = 512  # of a piece's spectrum; zeros behind make its curve smooth
BAND = 2.0, 7.0  # years
SEASONS = "Jan-Mar", "Apr-Jun", "Jul-Sep", "Oct-Dec"
WIDTH, HEIGHT = 4, 240  # of a column of the picture, and of its halves, in pixels


def strongest_periods(values: Array, count: int = 4) -> list[tuple[float, float]]:
    """Periods in years at which the spectrum is highest, and their part of all variation."""
    power = np.abs(fft.rfft(values * np.hanning(len(values)).astype(values.dtype))) ** 2
    frequencies = fft.rfftfreq(len(values), STEP)
    inner = power[1:-1]
    peaks = 1 + np.flatnonzero((inner > power[:-2]) & (inner > power[2:]))
    peaks = peaks[np.argsort(-power[peaks])][:count]
    return [(1 / frequencies[i], power[i - 1 : i + 2].sum() / power[1:].sum()) for i in peaks]


def spectrogram(values: Array) -> tuple[Array, Array]:
    """Power by frequency and the middle of each piece; every piece is one row of a single call."""
    pieces = sliding_window_view(values, PIECE) * np.hanning(PIECE).astype(values.dtype)
    power = np.abs(fft.rfft(pieces, POINTS)) ** 2
    return fft.rfftfreq(POINTS, STEP), power.T


def band(values: Array, shortest: float, longest: float) -> Array:
    """Returns the part of a record that varies within these periods, in years."""
    waves = fft.dct(values, norm="ortho")
    frequencies = np.arange(len(values)) / (2 * len(values) * STEP)
    waves[(frequencies < 1 / longest) | (frequencies > 1 / shortest)] = 0
    return fft.idct(waves, norm="ortho")


def warmest(times: Array, values: Array, count: int = 6, apart: float = 2.5) -> list[tuple[float, float]]:
    """The highest values, no two of them closer than some years."""
    found: list[tuple[float, float]] = []
    for i in np.argsort(-values):
        if all(abs(times[i] - year) >= apart for year, _ in found):
            found.append((float(times[i]), float(values[i])))
        if len(found) == count:
            break
    return found


def picture(times: Array, values: Array, filtered: Array, frequencies: Array, power: Array) -> Image.Image:
    """The spectrogram above, slow periods at its foot; the record (grey) and its band (red) below."""
    shown = (frequencies > 0) & (frequencies <= 1.3)
    level = np.log10(power[shown] + 1e-3)
    level = (level - level.min()) / (level.max() - level.min())
    colours = np.stack([level**0.7, level**1.5, 0.35 + 0.3 * level], -1)[::-1]
    heat = Image.fromarray((colours * 255).astype(np.uint8)).resize((WIDTH * power.shape[1], HEIGHT))
    image = Image.new("RGB", (WIDTH * len(times), 2 * HEIGHT), "white")
    image.paste(heat, (WIDTH * PIECE // 2, 0))  # a piece stands at its middle
    draw = ImageDraw.Draw(image)

    def curve(series: Array, colour: tuple[int, int, int], width: int) -> None:
        heights = 1.5 * HEIGHT - series * HEIGHT / 7
        draw.line([(WIDTH * i, float(y)) for i, y in enumerate(heights)], colour, width)

    curve(values, (190, 190, 190), 1)
    curve(filtered, (200, 30, 30), 2)
    for year in range(1950, 2016, 5):
        x = int((year - times[0]) / STEP * WIDTH)
        draw.line([(x, HEIGHT), (x, 2 * HEIGHT)], (225, 225, 225))
        draw.text((x + 3, 2 * HEIGHT - 14), str(year), (90, 90, 90))
    for period in (1, 2, 4, 8):
        y = HEIGHT - int(HEIGHT / period / 1.3)
        draw.text((6, y - 6), f"{period} year{'s' if period > 1 else ''}", (60, 60, 60))
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", help="where to save the picture (PNG)")
    out = parser.parse_args().out

    times, record = pywt.data.nino()
    values = (record - record.mean()).astype(np.float32)
    with backline.trace() as events:
        periods = strongest_periods(values)
        frequencies, power = spectrogram(values)
        filtered = band(values, *BAND)

    print(f"{len(values)} seasons, {times[0]:.0f} to {times[-1]:.0f}")
    print("\nstrongest periods   of the variation")
    for period, part in periods:
        print(f"{period:11.2f} years   {part:16.0%}")
    strength = power[(frequencies > 1 / BAND[1]) & (frequencies < 1 / BAND[0])].sum(0) / power[1:].sum(0)
    most, least = (times[i] + STEP * PIECE / 2 for i in (strength.argmax(), strength.argmin()))
    print(f"\nperiods of {BAND[0]:.0f} to {BAND[1]:.0f} years: {filtered.var() / values.var():.0%} of the variation;")
    print(f"{strength.min():.0%} of it in the 16 years around {least:.0f}, {strength.max():.0%} in those around {most:.0f}")
    print("\nwarmest seasons of this band   standard deviations")
    for year, value in warmest(times, filtered):
        print(f"{SEASONS[round(year % 1 / STEP)]:>18} {int(year)} {value:26.2f}")

    wide = values.astype(np.float64)
    wanted = np.fft.rfft(sliding_window_view(wide, PIECE) * np.hanning(PIECE), POINTS)
    error = np.abs(np.sqrt(power.T) - np.abs(wanted)).max() / np.abs(wanted).max()
    print(f"\nlargest difference of the spectra from NumPy's in float64: {error:.0e} of the largest value")
    assert error < 1e-5
    print("\ntransform   of                        ran on")
    for event in events:
        choice = event.choice
        operand = choice.problem.operands[0]
        of = f"{'x'.join(map(str, operand.shape))} {operand.dtype.name}"
        print(f"{event.op:<10}  {of:<24}  {choice.library} {choice.algorithm}, x{choice.chosen.threads}")
    if out:
        picture(times, values, filtered, frequencies, power).save(out)
        print(f"\n{out}")


if __name__ == "__main__":
    main()
