"""Short-time Fourier transforms: against sums in extended precision, by torch's definition and rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backline
from backline.errors import BacklineError, BadType, BadValue
from backline.ops import short_time
from support import LAYOUTS, assert_close, clean, random_array, rng, roundoff, seed, wide

Array = Any
MODES = {"reflect": "reflect", "constant": "constant", "replicate": "edge", "circular": "wrap"}
pytestmark = pytest.mark.usefixtures("clean")
assert clean and rng and seed


def exact(
    x: Array, n: int, hop: int, window: Array, center: bool = False, mode: str = "reflect", normalized: bool = False, half: bool = True
) -> Array:  # fmt: skip
    """The definition, frame by frame, in extended precision; frames last."""
    taps = len(window)
    factors = np.pad(wide(window), ((n - taps) // 2, n - taps - (n - taps) // 2))
    signal = wide(x)
    if center:
        signal = np.pad(signal, [(0, 0)] * (x.ndim - 1) + [(n // 2, n // 2)], MODES[mode])
    turns = np.outer(np.arange(n // 2 + 1 if half else n), np.arange(n)) % n
    angles = turns * (-2 * np.arccos(np.longdouble(-1)) / n)
    waves = np.cos(angles) + 1j * np.sin(angles)
    starts = range(0, signal.shape[-1] - n + 1, hop)
    found = np.stack([(signal[..., None, at : at + n] * factors * waves).sum(-1) for at in starts], -1)
    return found / np.sqrt(np.longdouble(n)) if normalized else found


def bound(x: Array, n: int) -> float:
    """A few roundings of the largest sum that a frame may have, each growing with the logarithm of the terms."""
    return float(40 * roundoff(x.dtype) * (1 + math.log2(n)) * n * max(np.abs(x).max(), 1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [1, 2, 5, 16, 31])
def test_spectra_of_frames(n: int, dtype: str, rng: np.random.Generator) -> None:
    real = np.dtype(dtype.replace("complex64", "float32").replace("complex128", "float64"))
    for shape, hop, taps, center, mode, normalized in (
        ((70,), 3, n, False, "reflect", False), ((2, 41), n, n, True, "reflect", True), ((3, 40), 7, max(n // 2, 1), True, "constant", False),
        ((1, 33), 1, n, True, "replicate", True), ((2, 35), 50, max(n - 1, 1), True, "circular", False),
    ):  # fmt: skip
        x, window = random_array(rng, shape, np.dtype(dtype)), random_array(rng, (taps,), real)
        for half in (True, False) if x.dtype.kind == "f" else (False,):
            wanted = exact(x, n, hop, window, center, mode, normalized, half)
            for layout in LAYOUTS.values():
                got = backline.stft(layout(x), n, hop, taps, layout(window), center, mode, normalized, half)
                assert got.dtype == np.dtype(real.char.upper()) and got.shape == wanted.shape and got.dtype.isnative
                assert_close(got, wanted, bound(x, n), f"{shape} {hop} {half}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_defaults_and_powers(dtype: str, rng: np.random.Generator) -> None:
    x = random_array(rng, (2, 100), np.dtype(dtype))
    wanted = exact(x, 16, 4, np.ones(16), True)
    got = backline.stft(x, 16)
    assert_close(got, wanted, bound(x, 16), "defaults")
    size = np.abs(wanted)
    for power in (1, 2):
        found = backline.stft(x, 16, power=power)
        assert found.dtype == x.dtype and found.shape == got.shape and (found >= 0).all()
        assert_close(found, size**power, bound(x, 16) * (2 * size.max() + 1) ** (power - 1), str(power))
    assert_close(backline.stft(x[0], 16), got[0], bound(x, 16), "one signal")
    assert backline.stft(x, 16).swapaxes(-1, -2).flags.c_contiguous
    spectra = backline.stft(x.astype(complex), 16)
    assert spectra.shape == (2, 16, 26)  # of complex signals, all frequencies
    assert_close(spectra[:, :9], exact(x, 16, 4, np.ones(16), True), bound(x, 16), "complex")


@pytest.mark.parametrize("power", [None, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_blocks_of_frames_do_not_show(
    dtype: str, power: int | None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are the same however many are transformed at a time, but for roundings; none is missing between the blocks."""
    x, window = random_array(rng, (3, 150), np.dtype(dtype)), np.hanning(12).astype(np.zeros(0, dtype).real.dtype)
    wanted = backline.stft(x, 12, 5, window=window, power=power)
    size = np.abs(wanted).max()
    for many in (1, 12 * x.itemsize, 7 * 12 * x.itemsize, 1000):
        for name in ("BLOCK_ALONE", "BLOCK_SHARED"):
            monkeypatch.setattr(short_time, name, many)
        for threads in (1, 2):
            with backline.num_threads(threads):
                found = backline.stft(x, 12, 5, window=window, power=power)
            assert_close(found, wanted, 500 * roundoff(x.dtype) * size, str(many))


def test_what_is_not_finite_stays_in_its_frames(rng: np.random.Generator) -> None:
    x = random_array(rng, (64,), np.dtype(float))
    x[20], x[50] = np.nan, np.inf
    with np.errstate(all="raise"):
        got = backline.stft(x, 8, 8, center=False, power=2)
    assert np.isnan(got[:, 2]).all() and not np.isfinite(got[:, 6]).any()
    assert np.isfinite(np.delete(got, (2, 6), 1)).all()


def test_no_signals_and_one_frame() -> None:
    assert backline.stft(np.ones((0, 20)), 8, 4).shape == (0, 5, 6)
    assert backline.stft(np.ones(8), 8, 100, center=False, power=2).tolist() == [[64], [0], [0], [0], [0]]
    assert backline.stft(np.ones(1), 1, 1, center=False).tolist() == [[1]]


def test_transforms_are_chosen_as_any_other() -> None:
    with backline.trace() as events:
        backline.stft(np.ones(100), 16)
    assert {event.op for event in events} == {"rfft"}
    with pytest.raises(BacklineError, match=r"stft is made of other operations: fft.rfft and fft.fft"):
        backline.explain(backline.stft, np.ones(100), 16)


ONES = np.ones(20)
BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: backline.stft(None, 4), BadType, "input must be a NumPy array"),
    (lambda: backline.stft(ONES.astype(int), 4), BadType, "input has dtype int64"),
    (lambda: backline.stft(ONES.astype(np.float16), 4), BadType, "input has dtype float16"),
    (lambda: backline.stft(np.ones((1, 2, 3)), 4), BadValue, "expected a 1D or 2D tensor, but got 3D"),
    (lambda: backline.stft(np.ones(()), 4), BadValue, "expected a 1D or 2D tensor, but got 0D"),
    (lambda: backline.stft(ONES, 4.0), BadType, "n_fft is an int"),
    (lambda: backline.stft(ONES, 0), BadValue, "expected 0 < n_fft"),
    (lambda: backline.stft(ONES, 10**30, pad_mode="constant"), BadValue, r"n_fft=|gives a result"),
    (lambda: backline.stft(ONES, 21, center=False), BadValue, "expected 0 < n_fft <= 20"),
    (lambda: backline.stft(ONES, 4, 0), BadValue, "expected hop_length > 0"),
    (lambda: backline.stft(ONES, 3), BadValue, "expected hop_length > 0"),
    (lambda: backline.stft(ONES, 4, True), BadType, "hop_length is an int"),
    (lambda: backline.stft(ONES, 4, 1, 5), BadValue, "expected 0 < win_length <= n_fft"),
    (lambda: backline.stft(ONES, 4, window=ONES), BadValue, "size equal to win_length=4"),
    (lambda: backline.stft(ONES, 4, window=ONES[:4].astype("f")), BadType, "window has dtype float32"),
    (lambda: backline.stft(ONES, 4, window=ONES[:4] + 0j), BadType, "window has dtype complex128"),
    (lambda: backline.stft(ONES, 4, window=[1.0] * 4), BadType, "window must be a NumPy array"),
    (lambda: backline.stft(ONES, 4, center=1), BadType, "center is True or False"),
    (lambda: backline.stft(ONES, 4, pad_mode="edge"), BadValue, "pad_mode='edge'"),
    (lambda: backline.stft(ONES, 40), BadValue, "Padding size should be less"),
    (lambda: backline.stft(ONES[:0], 4, pad_mode="replicate"), BadValue, "a signal of 0 elements"),
    (lambda: backline.stft(ONES, 42, pad_mode="circular"), BadValue, "Padding size should be less"),
    (lambda: backline.stft(ONES, 4, normalized=None), BadType, "normalized is True or False"),
    (lambda: backline.stft(ONES + 0j, 4, onesided=True), BadValue, "onesided=True"),
    (lambda: backline.stft(ONES, 4, onesided=1), BadType, "onesided is True or False"),
    (lambda: backline.stft(ONES, 4, return_complex=False), BadValue, "return_complex=False"),
    (lambda: backline.stft(ONES, 4, power=3), BadValue, "power=3"),
    (lambda: backline.stft(ONES, 4, power=2.0), BadType, "power is an int"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_is_refused(number: int) -> None:
    call, kind, text = BAD[number]
    with pytest.raises(kind, match=text):
        call()
