"""The short-time Fourier transform, as torch has it: spectra of overlapping frames of signals, times a window.

On the host some frames at a time are multiplied, transformed and squared, so that they stay in the processor's cache on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _core, _kernels
from ..errors import BadType, BadValue
from ..libraries.kernels.array_loops import level_and_threads
from ..switches.switch import show
from .array_arguments import cast, dtype_of, functions, given, native, one_kind
from .composite import composed_of, on_its_device
from .fourier import fft, rfft
from .linalg_checks import FLOATS, enough_memory, flag, whole, word

__all__ = ["stft"]

Array = np.ndarray[Any, Any]
# Places of the elements that a signal is extended by, before and behind, in each way; zeros have none.
PLACES: dict[str, Callable[[int, int], tuple[Array, Array]]] = {
    "reflect": lambda length, more: (np.arange(more, 0, -1), np.arange(length - 2, length - 2 - more, -1)),
    "replicate": lambda length, more: (np.zeros(more, np.intp), np.full(more, length - 1)),
    "circular": lambda length, more: (np.arange(length - more, length), np.arange(more)),
}
PADDINGS = ("reflect", "constant", "replicate", "circular")
# Bytes of frames that are transformed at a time: on one thread, and for each of several threads. These wait for each other after
# every step, which takes longer than what a smaller block saves, above all beside other programs.
BLOCK_ALONE, BLOCK_SHARED = 1 << 18, 1 << 19


@composed_of("fft.rfft", "fft.fft", module="backline")
@on_its_device
def stft(
    input: Array,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Array | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool = True,
    *,
    power: int | None = None,
) -> Array:
    """Short-time Fourier transform: the spectrum of each of the overlapping frames of a signal.

    Parameters
    ----------
    input
        A signal of shape (length,), or several of shape (count, length): float32, float64, complex64 or complex128.
    n_fft
        Elements of a frame.
    hop_length
        Elements from the start of a frame to that of the next. None: ``n_fft // 4``.
    win_length
        Elements of the window, `n_fft` at most; zeros on both sides make up the rest. None: `n_fft`.
    window
        Real array of shape (win_length,), in the input's precision, by which frames are multiplied. None: ones.
    center
        Whether the signal is extended by ``n_fft // 2`` elements on both sides, so that frame t has its middle at element
        ``t * hop_length`` of the signal.
    pad_mode
        How it is extended: "reflect", "constant" (zeros), "replicate" or "circular".
    normalized
        Whether spectra are divided by ``sqrt(n_fft)``.
    onesided
        Whether to return the ``n_fft // 2 + 1`` frequencies that determine the others. None: yes, of a real signal.
    return_complex
        True: the pairs of real numbers that torch has for False are ``x.view(x.real.dtype)`` of a contiguous result.
    power
        None: spectra; 1: their magnitudes; 2: the squares of these, ``real**2 + imag**2``.

    {returns_array}
        Shape (frequencies, frames), or (count, frequencies, frames); a view of an array with frequencies last. Complex, or real
        with `power`, in the input's precision.

    {raises}
        No such array; frames longer than the signal, an extension as long as the signal; numbers and words that are not legal.

    {examples}
    >>> backline.stft(np.tile([1.0, 0.0, -1.0, 0.0], 2), 4, 4, center=False, power=2)
    array([[0., 0.],
           [4., 4.],
           [0., 0.]])
    """
    x = native(given(input, "stft: input"))
    dtype = dtype_of(x)
    if dtype.name not in FLOATS:
        raise BadType(f"stft: input has dtype {dtype}", cause=f"it takes {', '.join(FLOATS)}", remedy="x.astype(np.float32)")
    if x.ndim not in (1, 2):
        raise BadValue(f"stft: expected a 1D or 2D tensor, but got {x.ndim}D", cause=f"input has shape {tuple(x.shape)}")
    points = whole("stft", "n_fft", n_fft)
    hop = points // 4 if hop_length is None else whole("stft", "hop_length", hop_length)
    taps = points if win_length is None else whole("stft", "win_length", win_length)
    half = _onesided(dtype, onesided)
    if not flag("stft", "return_complex", return_complex):
        raise BadValue("stft: return_complex=False", remedy="the complex result's real numbers: x.view(x.real.dtype)")
    if power is not None and whole("stft", "power", power) not in (1, 2):
        raise BadValue(f"stft: power={show(power)}", remedy="1, 2 or None")
    norm = "ortho" if flag("stft", "normalized", normalized) else None
    signals = x if x.ndim == 2 else x[None]
    mode = word("stft", "pad_mode", pad_mode, PADDINGS)
    if flag("stft", "center", center) and points > 0:
        signals = _extended(signals, points // 2, mode)
    length = signals.shape[1]
    if not 0 < points <= length:
        raise BadValue(f"stft: n_fft={show(points)}: expected 0 < n_fft <= {length}", cause="that is the length of the signal")
    if hop < 1:
        raise BadValue(f"stft: hop_length={show(hop)}: expected hop_length > 0")
    factors = _window(x, window, points, taps)
    hop = min(hop, length)  # beyond it, too, there is one frame
    frames, bins = 1 + (length - points) // hop, points // 2 + 1 if half else points
    enough_memory("stft", (signals.shape[0], frames, bins), np.dtype(dtype.char.upper()), f"hop_length={hop}")
    compute = _on_host if functions(x) is np else _on_device
    result = compute(signals, factors, (frames, hop, bins), norm, half, power)
    found: Array = result if x.ndim == 2 else result[0]
    return found.swapaxes(-1, -2)


def _onesided(dtype: np.dtype[Any], onesided: Any) -> bool:
    half = dtype.kind != "c" if onesided is None else flag("stft", "onesided", onesided)
    if half and dtype.kind == "c":
        raise BadValue("stft: onesided=True", cause="a complex signal has spectra without symmetry", remedy="onesided=False")
    return half


def _window(x: Array, window: Any, points: int, taps: int) -> Array:
    """Returns factors for all elements of a frame."""
    if not 0 < taps <= points:
        raise BadValue(f"stft: win_length={show(taps)}: expected 0 < win_length <= n_fft", cause=f"n_fft is {points}")
    xp, real = functions(x), np.dtype(dtype_of(x).char.lower())
    if window is None:
        factors = cast(xp.ones(taps), real)
    else:
        factors = native(given(window, "stft: window"))
        one_kind("stft", input=x, window=factors)
        if dtype_of(factors) != real:
            raise BadType(
                f"stft: window has dtype {dtype_of(factors)}, for an input of {dtype_of(x)}",
                cause="a window is real, in the precision of the input", remedy=f"window.astype(np.{real.name})",
            )  # fmt: skip
        if tuple(factors.shape) != (taps,):
            raise BadValue(
                f"stft: window has shape {tuple(factors.shape)}: expected a 1D window tensor of size equal to win_length={taps}"
            )
    before = (points - taps) // 2
    return factors if taps == points else xp.pad(factors, (before, points - taps - before))


def _extended(signals: Array, more: int, mode: str) -> Array:
    """Signals with so many elements more on both sides."""
    length = signals.shape[1]
    if (mode == "reflect" and more >= length) or (mode == "circular" and more > length) or not length:
        raise BadValue(
            f"stft: a signal of {length} elements extended by n_fft // 2 = {show(more)} on both sides",
            cause="Padding size should be less than the corresponding input dimension",
            remedy="a smaller n_fft, pad_mode='constant', or center=False",
        )
    xp = functions(signals)
    if mode == "constant":
        enough_memory("stft", (signals.shape[0], length + 2 * more), dtype_of(signals), f"n_fft={2 * more}")
        padded: Array = xp.pad(signals, ((0, 0), (more, more)))
        return padded
    before, after = (_taken(xp, signals, places) for places in PLACES[mode](length, more))
    joined: Array = xp.concatenate([before, signals, after], axis=1)
    return joined


def _taken(xp: Any, signals: Array, places: Array) -> Array:
    taken: Array = xp.take(signals, xp.asarray(places), axis=1)
    return taken


def _on_host(
    signals: Array, window: Array, sizes: tuple[int, int, int], norm: str | None, half: bool, power: int | None
) -> Array:  # fmt: skip
    (frames, hop, bins), points, count = sizes, len(window), len(signals)
    spectra_dtype = np.dtype(signals.dtype.char.upper())
    result = _core.empty((count, frames, bins), spectra_dtype if power is None else signals.real.dtype)
    if not count:
        return result
    threads = level_and_threads(count * frames * points)[1]
    most = BLOCK_ALONE if threads == 1 else BLOCK_SHARED * threads
    # All blocks have as many frames, so that one plan transforms them: the last begins where it has them.
    rows = -(-count * frames // -(-count * frames * points * signals.dtype.itemsize // most))
    block = np.empty((rows, points), signals.dtype)
    spectra = None if power is None else np.empty((rows, bins), spectra_dtype)
    parts = 2 if signals.dtype.kind == "c" else 1  # real numbers of an element
    numbers, factors, target = _real(signals), np.repeat(window, parts), _real(block)
    transform, flat = rfft if half else fft, result.reshape(-1, bins)
    for start in range(0, count * frames, rows):
        first = min(start, count * frames - rows)
        _kernels.windowed_frames(numbers, factors, target, frames, hop * parts, first, *level_and_threads(target.size))
        part = flat[first : first + rows]
        if spectra is None:
            transform(block, norm=norm, out=part)
            continue
        transform(block, norm=norm, out=spectra)
        if power == 2:
            _kernels.squared_magnitudes(spectra, part, *level_and_threads(part.size))
        else:
            np.abs(spectra, out=part)
    return result


def _real(array: Array) -> Array:
    """The real numbers that rows consist of, without gaps."""
    return np.require(array, requirements=("C", "A")).view(array.real.dtype)


def _on_device(
    signals: Array, window: Array, sizes: tuple[int, int, int], norm: str | None, half: bool, power: int | None
) -> Array:  # fmt: skip
    (frames, hop, _), points, xp = sizes, len(window), functions(signals)
    places = np.arange(0, frames * hop, hop)[:, None] + np.arange(points)
    cut = _taken(xp, signals, places.reshape(-1)).reshape(signals.shape[0], frames, points) * window
    found: Array = (rfft if half else fft)(cut, norm=norm)
    if power == 1:
        return xp.abs(found)  # type: ignore[no-any-return]  # an array, of whichever namespace
    return found if power is None else xp.real(found) ** 2 + xp.imag(found) ** 2
