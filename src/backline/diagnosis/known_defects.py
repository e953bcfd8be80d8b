"""Known defects of releases of vendor libraries, as data: each with the public page that tells of it.

These are for every program in the process, and for whole releases. Backline's own choice does not depend on them: the errata that
it keeps to, with their exact conditions, are in `libraries.errata_table`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TABLE", "KnownDefect"]

_OPENBLAS = "https://github.com/OpenMathLib/OpenBLAS/issues"
_ONEDNN = "https://github.com/uxlfoundation/oneDNN"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDefect:
    """A defect of some releases of a library.

    Attributes
    ----------
    id : str
        Its name, unique in the table.
    family : str
        The library, as `libraries.in_process` names it.
    since, before : str
        The first release with the defect, and the first without it; empty where that is not told.
    flag : str
        Feature of the processor without which its kernels do not run; empty for any processor.
    text : str
        What goes wrong, and when.
    reference : str
        The page.
    remedy : str
        What to do, if it is more than another release.

    Examples
    --------
    >>> row = KnownDefect(id="toy-1", family="toy", since="1.2", before="1.4", text="...", reference="...")
    >>> row.concerns("1.3.1", frozenset()), row.concerns("1.4", frozenset()), row.concerns("", frozenset())
    (True, False, False)
    """

    id: str
    family: str
    text: str
    reference: str
    since: str = ""
    before: str = ""
    flag: str = ""
    remedy: str = ""

    def concerns(self, version: str, flags: frozenset[str]) -> bool:
        """Tells whether a release has the defect on a processor with these features; one that is not known has not."""
        number = _numbers(version)
        return (
            bool(number)
            and (not self.since or number >= _numbers(self.since))
            and (not self.before or number < _numbers(self.before))
            and (not self.flag or self.flag in flags)
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


TABLE: tuple[KnownDefect, ...] = (
    KnownDefect(
        id="openblas-avx512-dgemm", family="openblas", since="0.3.4", before="0.3.7", flag="avx512f",
        text="products of float64 by its kernels for AVX-512 are wrong for some sizes, and singular values and least squares "
        "with them",
        reference=f"{_OPENBLAS}/2182", remedy="OPENBLAS_CORETYPE=Haswell avoids those kernels",
    ),
    KnownDefect(
        id="openblas-sgemm-direct", family="openblas", since="0.3.11", before="0.3.12", flag="avx512f",
        text="small products of float32 return what was in memory before", reference=f"{_OPENBLAS}/2914",
        remedy="OPENBLAS_CORETYPE=Haswell avoids those kernels",
    ),
    KnownDefect(
        id="openblas-dynamic-arch-avx512", family="openblas", since="0.3.7", before="0.3.19", flag="avx512f",
        text="builds for several processors (DYNAMIC_ARCH) that were compiled on one without AVX-512 compute wrong products of "
        "float64: positive definite matrices are refused",
        reference=f"{_OPENBLAS}/2986", remedy="OPENBLAS_CORETYPE=Haswell avoids those kernels",
    ),
    KnownDefect(
        id="mkl-2020-gesvd", family="mkl", since="2020", before="2021.3",
        text="singular values by GESVD are wrong for some matrices",
        reference="https://github.com/trilinos/Trilinos/issues/9496",
    ),
    KnownDefect(
        id="onednn-2.7-vnni-matmul", family="onednn", since="2.7", before="3.2", flag="avx512_vnni",
        text="some products are wrong on processors with AVX-512 VNNI",
        reference="https://github.com/tensorflow/tensorflow/issues/61510",
    ),
    KnownDefect(
        id="onednn-amx-strided-source", family="onednn", since="3.3", before="3.7.3", flag="amx_tile",
        text="products whose first operand does not lie in one piece are wrong on AMX", reference=f"{_ONEDNN}/pull/3122",
        remedy="ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 avoids AMX",
    ),
    KnownDefect(
        id="onednn-3.13-strided-source", family="onednn", since="3.13", before="3.13.1",
        text="products whose first operand does not lie in one piece are wrong", reference=f"{_ONEDNN}/pull/5851",
    ),
    KnownDefect(
        id="onednn-amx-inner-tail", family="onednn", since="3.14", before="3.14.1", flag="amx_bf16",
        text="products of bfloat16 whose inner dimension is above 32 and no multiple of it take NaN from one row of the first "
        "operand into others",
        reference=f"{_ONEDNN}/issues/5717", remedy="ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 avoids AMX",
    ),
    KnownDefect(
        id="cudnn-mxfp8-attention", family="cudnn", since="9.23.0", before="9.23.2",
        text="attention in MXFP8 returns infinities and NaN",
        reference="https://github.com/NVIDIA/TransformerEngine/pull/3173",
    ),
)  # fmt: skip
