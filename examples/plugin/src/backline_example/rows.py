"""The rows of the libraries: all that Backline knows of them before it needs their code.

Keep such a module light. Backline imports it when it first chooses a library; the classes are imported when they are candidates.
"""

from __future__ import annotations

from backline.libraries import LibraryInfo
from backline.switches import AtLeast, Switch

__all__ = ["KAHAN", "STRASSEN"]

STRASSEN = LibraryInfo(
    "strassen", "Strassen's algorithm", "backline_example.strassen:Strassen", families=("matmul",), caches=("plan_cache",),
    install="pip install backline-example-plugin",
    about="Strassen's algorithm: products with 7/8 of the multiplications for each halving of the matrices.",
    switches=(
        Switch(
            "strassen.cutoff", int, 256, AtLeast(16),
            doc="Matrices are halved while all of their sizes are above this.", governs=("matmul",),
        ),
    ),
)  # fmt: skip

KAHAN = LibraryInfo(
    "kahan", "Compensated sums", "backline_example.kahan:Kahan", families=("matmul",), caches=("plan_cache",),
    install="pip install backline-example-plugin",
    about="Compensated sums: products whose sums carry their rounding errors along.",
    switches=(
        Switch(
            "kahan.largest", int, 10**7, AtLeast(0),
            doc="Largest number of multiplications that compensated products take on.", governs=("matmul",),
        ),
    ),
)  # fmt: skip
