"""Cosine and sine transforms of types 1 to 4; names, parameters and definitions are those of scipy.fft."""

from __future__ import annotations

from ..problems.fft_problem import FftProblem
from .doc_fragments import filled
from .families import kinds, operation_family
from .fft_checks import MODULE, Array, Sizes, cosine

__all__ = ["dct", "dctn", "dst", "dstn", "idct", "idctn", "idst", "idstn"]

TEXT = """{title}

Parameters
----------
input
    Real or complex, of one dimension or more.
type
    1, 2, 3 or 4.{ends}
{size}
    Points {points}; the input is cut, or zero-padded at the end. None{minus}: as many as it has.
dim
    {axes}
norm
    "backward" or None: {backward}; "ortho": 1 / sqrt(N); "forward": {forward}. N is {total};
    for type 1 twice the points {one}.
orthogonalize
    Whether to scale the ends so that the matrix is orthogonal, up to the factor. None: with norm="ortho" only.
{overwrite_input}
{out_apart}

{returns_array}
    In the input's precision, real for a real input.

{raises}
    No array of numbers; no such axis, `type` or `norm`; a size below 1, or more than memory holds; an `out` that does not fit.
{notes}
{examples}
>>> backline.fft.{name}{example}
"""

NOTES = """
Notes
-----
Without a factor, for n elements: {definition}
``2 * sum(x[j] * {function}(pi * (2j + 1) * (2k + 1) / (4n)))``. Of complex numbers both parts are transformed.
"""
DEFINITIONS = {
    "dct": """type 1 ``y[k] = x[0] + (-1)**k * x[n-1] + 2 * sum(x[j] * cos(pi * j * k / (n - 1)))`` over
0 < j < n - 1; type 2 ``2 * sum(x[j] * cos(pi * k * (2j + 1) / (2n)))``; type 3
``x[0] + 2 * sum(x[j] * cos(pi * j * (2k + 1) / (2n)))`` over j > 0; type 4""",
    "dst": """type 1 ``y[k] = 2 * sum(x[j] * sin(pi * (j + 1) * (k + 1) / (n + 1)))``; type 2
``2 * sum(x[j] * sin(pi * (k + 1) * (2j + 1) / (2n)))``; type 3
``(-1)**k * x[n-1] + 2 * sum(x[j] * sin(pi * (j + 1) * (2k + 1) / (2n)))`` over j < n - 1; type 4""",
}
EXAMPLES = {
    "dct": "(np.ones(2))\narray([4., 0.])",
    "idct": "(np.array([4.0, 0.0]))\narray([1., 1.])",
    "dst": "(np.ones(1))\narray([2.])",
    "idst": "(np.array([2.0]))\narray([1.])",
    "dctn": "(np.ones((2, 2)))\narray([[16.,  0.],\n       [ 0.,  0.]])",
    "idctn": "(np.array([[16.0, 0.0], [0.0, 0.0]]))\narray([[1., 1.],\n       [1., 1.]])",
    "dstn": "(np.ones((1, 1)))\narray([[4.]])",
    "idstn": "(np.array([[4.0]]))\narray([[1.]])",
}


def _text(name: str) -> str | None:
    """The documentation of a transform."""
    forward, several = name.removeprefix("i"), name.endswith("n")
    kind, is_cosine = forward[:3], forward.startswith("dct")
    title = f"Discrete {'cosine' if is_cosine else 'sine'} transform{' along several axes' if several else ''}."
    factors = ["no factor", "1 / N"][:: 1 if name == forward else -1]
    return filled(
        TEXT, name=name, title=title if name == forward else f"Inverse of `{forward}`.",
        ends=" Type 1 needs 2 elements." * is_cosine, size="s" if several else "n",
        points="along each axis" if several else "of the transform",
        minus=" or -1" * several, axes="The axes. None: the last ``len(s)``, or all." if several else "The axis.",
        backward=factors[0], forward=factors[1], one="less 1" if is_cosine else "and 1 more",
        total="the product of twice the points along each axis" if several else "twice the points",
        notes=NOTES.format(definition=DEFINITIONS[kind], function="cos" if is_cosine else "sin")
        if name == kind else "", example=EXAMPLES[name],
    )  # fmt: skip


def _one(
    name: str, input: Array, type: int = 2, n: int | None = None, dim: int = -1, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    return cosine(name, input, type, n, dim, norm, orthogonalize, out, overwrite_input, one=True)


def _several(
    name: str, input: Array, type: int = 2, s: Sizes = None, dim: Sizes = None, norm: str | None = None,
    orthogonalize: bool | None = None, *, overwrite_input: bool = False, out: Array | None = None,
) -> FftProblem:  # fmt: skip
    return cosine(name, input, type, s, dim, norm, orthogonalize, out, overwrite_input)


ONE = ("dct", "idct", "dst", "idst")
dct, idct, dst, idst = operation_family(_one, kinds(*ONE), _text, module=MODULE, family="fft")
dctn, idctn, dstn, idstn = operation_family(_several, kinds(*(f"{name}n" for name in ONE)), _text, module=MODULE, family="fft")
