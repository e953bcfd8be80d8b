"""Fourier transforms along one, two and several axes: names and parameters of torch.fft, definitions of numpy.fft.

The result of float32 and complex64 is single precision; 16-bit floats are computed in float32, and so is their result. Integers
are computed in float64. Arrays of longdouble stay what they are, on the libraries that have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..problems.fft_problem import FftProblem
from .doc_fragments import filled
from .families import operation_family
from .fft_checks import MODULE, Array, Sizes, fourier

__all__ = [
    "fft", "fft2", "fftn", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2",
    "irfftn", "rfft", "rfft2", "rfftn",
]  # fmt: skip

TEXT = """{title}

Parameters
----------
input
    {input}
{size}
    {points}
dim
    {axes}
norm
    "backward" or None: {backward}; "ortho": ``1 / sqrt({total})``; "forward": {forward}{in_all}.
{overwrite_input}
{out_apart}

{returns_array}
    {result}

{raises}
    No array of numbers; no such axis or `norm`; a size below 1, or more than memory holds; an `out` that does not fit{errors}.
{notes}
{examples}
>>> backline.fft.{name}{example}
"""

CUT = "the input is cut, or zero-padded at the end"
HALF = "The half of a spectrum, real or complex. Imaginary parts that a real result cannot have are ignored."
ODD = "\nNotes\n-----\nA result of an odd number of elements must be asked for by `{size}`.\n"
DEFINITION = """
Notes
-----
``y[k] = sum(x[j] * exp(-2j * pi * j * k / n))``.

16-bit floats and float32 give complex64, integers complex128.
"""
# Results without zeros, whose signs differ among libraries.
RESULT_2X2 = "array([[7.+7.j, 3.+3.j],\n       [5.+5.j, 1.+1.j]])"


@dataclass(frozen=True)
class Kind:
    """A transform of any rank: number types, sign of the exponent, first line, an example along one axis, one along several."""

    op: str
    sign: int
    title: str
    one: str
    several: str


KINDS = {
    "fft": Kind("c2c", -1, "Discrete Fourier transform{along}.",
                "(np.array([2.0 + 2.0j, 0.0, 0.0, 1.0]))\narray([3.+2.j, 2.+3.j, 1.+2.j, 2.+1.j])",
                f"((1.0 + 1.0j) * np.array([[4, 2], [1, 0]]))\n{RESULT_2X2}"),
    "ifft": Kind("c2c", 1, "Inverse of `fft{rank}`.",
                 "(np.array([8.0 + 8.0j, 0.0, 0.0, 4.0]))\narray([3.+2.j, 2.+1.j, 1.+2.j, 2.+3.j])",
                 f"((4.0 + 4.0j) * np.array([[4, 2], [1, 0]]))\n{RESULT_2X2}"),
    "rfft": Kind("r2c", -1, "Fourier transform of real numbers{along}: the half that determines the other.",
                 "(np.array([1.0, 0.0, 0.0, 1.0]))\narray([2.+0.j, 1.+1.j, 0.+0.j])", "(np.ones((2, 4))).shape\n(2, 3)"),
    "irfft": Kind("c2r", 1, "Inverse of `rfft{rank}`.",
                  "(np.array([2.0, 1.0 + 1.0j, 0.0]))\narray([1., 0., 0., 1.])", "(np.ones((2, 3))).shape\n(2, 4)"),
    "hfft": Kind("c2r", -1, "Fourier transform{along} of numbers with Hermitian symmetry, of which half is given; it is real.",
                 "(np.array([1.0, 0.5, 0.0]))\narray([2., 1., 0., 1.])", "(np.ones((2, 3))).shape\n(2, 4)"),
    "ihfft": Kind("r2c", 1, "Inverse of `hfft{rank}`.",
                  "(np.array([2.0, 1.0, 0.0, 1.0])).real\narray([1. , 0.5, 0. ])", "(np.ones((2, 4))).shape\n(2, 3)"),
}  # fmt: skip
RANKS = {"": "", "2": " along two axes", "n": " along several axes"}


def _text(transform: tuple[str, str]) -> str | None:
    """The documentation of a transform, given by its kind and the suffix of its rank."""
    kind, rank = KINDS[transform[0]], transform[1]
    one = rank == ""
    size, total = ("n", "n") if one else ("s", "N")
    last = "the axis" if one else "the last of `dim`"
    halved = "; the last is the one that is halved" if kind.op != "c2c" else ""
    if kind.op == "c2r":
        points = "Points of the result" + (
            "; ``n // 2 + 1`` elements are taken, missing ones are 0. None: ``2 * (m - 1)`` for m elements." if one else
            " along each axis. None or -1: as many as there are; along the last, ``2 * (m - 1)`` for m elements."
        )  # fmt: skip
    elif one:
        points = f"Points of the transform; {CUT}. None: as many as it has."
    else:
        points = f"Points along each axis; -1: as many as there are. T{CUT[1:]}."
    factors = ["no factor", f"``1 / {total}``"][:: -kind.sign]
    errors = ["a complex input"] * (kind.op == "r2c")
    errors += [] if one else ["an axis named twice", "`s` and `dim` of different lengths"]
    return filled(
        TEXT, name="".join(transform), title=kind.title.format(along=RANKS[rank], rank=rank), size=size, points=points,
        total=total,
        input=HALF if kind.op == "c2r" else f"Real{' or complex' if kind.op == 'c2c' else ''}, of one dimension or more.",
        axes="The axis." if one else f"The axes{halved}.{' None: the last ``len(s)``, or all.' if rank == 'n' else ''}",
        backward=factors[0], forward=factors[1], in_all="" if one else "; N is the number of points in all",
        errors=";\n    " * bool(errors) + "; ".join(errors),
        result={"c2c": f"Complex{', `n` along the axis' if one else ''}, in the input's precision.",
                "r2c": f"Complex, ``n // 2 + 1`` along {last}.", "c2r": "Real, `n` along the axis." if one else "Real."}[kind.op],
        notes=ODD.format(size=size) if kind.op == "c2r" else DEFINITION if "".join(transform) == "fft" else "",
        example=kind.one if one else kind.several,
    )  # fmt: skip


def _variants(rank: str) -> dict[str, tuple[str, str]]:
    return {kind + rank: (kind, rank) for kind in KINDS}


def _one(
    transform: tuple[str, str], input: Array, n: int | None = None, dim: int = -1, norm: str | None = None, *,
    overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    kind = KINDS[transform[0]]
    return fourier(transform[0], kind.op, kind.sign, input, n, dim, norm, out, overwrite_input, one=True)


def _two(
    transform: tuple[str, str], input: Array, s: Sizes = None, dim: Sizes = (-2, -1), norm: str | None = None, *,
    overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    return _several(transform, input, s, dim, norm, overwrite_input=overwrite_input, out=out)


def _several(
    transform: tuple[str, str], input: Array, s: Sizes = None, dim: Sizes = None, norm: str | None = None, *,
    overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    kind = KINDS[transform[0]]
    return fourier("".join(transform), kind.op, kind.sign, input, s, dim, norm, out, overwrite_input)


fft, ifft, rfft, irfft, hfft, ihfft = operation_family(_one, _variants(""), _text, module=MODULE, family="fft")
fft2, ifft2, rfft2, irfft2, hfft2, ihfft2 = operation_family(_two, _variants("2"), _text, module=MODULE, family="fft")
fftn, ifftn, rfftn, irfftn, hfftn, ihfftn = operation_family(_several, _variants("n"), _text, module=MODULE, family="fft")
