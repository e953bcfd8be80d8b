"""The processors and installations that the tests are run for, as environments of one machine.

A vendor's library takes its kernels by the processor, so tests that pass on one may fail on another. The libraries can be told
to behave as on a lesser processor, and Backline not to find a library. `CONFIGURATIONS` names such environments; with
``BACKLINE_TEST_CONFIGURATION=avx2`` tests run in one of them, and

    python tests/configurations.py [--share N] [NAME ...] [-- PYTEST'S ARGUMENTS]

runs them in each, those left out for which this processor lacks an instruction set.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from processes import started

VARIABLE, SHARE = "BACKLINE_TEST_CONFIGURATION", "BACKLINE_TEST_SHARE"
FOLDERS = ("tests/contract", "tests/libraries", "tests/engine")
NOWHERE = "/nowhere/{}.so"


@dataclass(frozen=True)
class Configuration:
    """An environment to run tests in.

    Attributes
    ----------
    environment
        Variables that the libraries read.
    numpy
        Instruction sets above this one are kept from NumPy: "sse4" or "avx2"; "" for none.
    needs
        Flags of Linux that a processor must have: a library that is told to use more than there is ends the process.
    absent
        Libraries that are not to be had here: the only reason for which a test may be skipped that others run.
    """

    environment: dict[str, str]
    numpy: str = ""
    needs: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def _caps(mkl: str, openblas: str, blis: str, onednn: str) -> dict[str, str]:
    return {
        "MKL_ENABLE_INSTRUCTIONS": mkl, "OPENBLAS_CORETYPE": openblas, "BLIS_ARCH_TYPE": blis, "ONEDNN_MAX_CPU_ISA": onednn,
    }  # fmt: skip


def _without(*names: str) -> Configuration:
    return Configuration({f"BACKLINE_{name.upper()}_LIBRARY": NOWHERE.format(name) for name in names}, absent=names)


# Numbers of BLIS 0.9, which takes no names: it reads one as 0, its AVX-512 kernels.
BLIS_SKX, BLIS_HASWELL, BLIS_ZEN, BLIS_GENERIC = "0", "3", "8", "25"
AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
CONFIGURATIONS = {
    "native": Configuration({}),
    "sse4": Configuration(_caps("SSE4_2", "Nehalem", BLIS_GENERIC, "SSE41"), "sse4"),
    "prescott": Configuration(_caps("SSE4_2", "Prescott", BLIS_GENERIC, "SSE41"), "sse4"),
    "avx2": Configuration(_caps("AVX2", "Haswell", BLIS_HASWELL, "AVX2"), "avx2", ("avx2", "fma")),
    "zen": Configuration(_caps("AVX2", "Zen", BLIS_ZEN, "AVX2_VNNI"), "avx2", ("avx2", "fma")),
    "avx512": Configuration(_caps("AVX512", "SkylakeX", BLIS_SKX, "AVX512_CORE"), "", AVX512),
    "avx512_bf16": Configuration(_caps("AVX512", "Cooperlake", BLIS_SKX, "AVX512_CORE_BF16"), "", (*AVX512, "avx512_bf16")),
    "no-mkl": _without("mkl"),
    "no-system-libraries": _without("blis", "xnnpack", "fftw"),
}


def environment(name: str) -> dict[str, str]:
    """All variables of a configuration."""
    found = CONFIGURATIONS[name]
    hidden = _numpy_features(found.numpy)
    return {**found.environment, VARIABLE: name, **({"NPY_DISABLE_CPU_FEATURES": " ".join(hidden)} if hidden else {})}


def _numpy_features(most: str) -> list[str]:
    """Returns what NumPy dispatches to here beyond an instruction set; its names for that differ between its versions."""
    if not most:
        return []
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__  # type: ignore[attr-defined]  # NumPy's own, without stubs

    beyond = r"AVX512|X86_V4" if most == "avx2" else r"AVX|FMA|X86_V[34]"
    return [name for name in __cpu_dispatch__ if __cpu_features__.get(name) and re.match(beyond, name)]


def lacking(name: str) -> list[str]:
    """Flags that a configuration needs and this processor does not have."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return list(CONFIGURATIONS[name].needs)
    flags = set(re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)[0].split()) if "flags" in text else set()
    return [flag for flag in CONFIGURATIONS[name].needs if flag not in flags]


def may_skip(name: str, reason: str) -> bool:
    """Tells whether a test may be skipped for this reason in a configuration, though CI runs it in others."""
    return any(re.search(rf"\b{absent}\b.* is not (available|installed)", reason, re.IGNORECASE) for absent in CONFIGURATIONS[name].absent)


def main() -> int:
    """Run the tests in each configuration; the status is that of the first that fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--share", type=int, default=1, help="run one test of so many, other ones in each configuration")
    parser.add_argument("--workers", default="2", help="processes that share the tests; 0 for none")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(CONFIGURATIONS)}")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    given, rest = parser.parse_args(words[:at]), words[at + 1 :]
    if unknown := set(given.names) - set(CONFIGURATIONS):
        parser.error(f"no configuration {', '.join(sorted(unknown))}")
    status, told = 0, []
    for name in given.names or CONFIGURATIONS:
        if missing := lacking(name):
            told.append(f"{name}: left out, this processor has no {', '.join(missing)}")
            continue
        print(f"--- {name}: {' '.join(f'{k}={v}' for k, v in environment(name).items())}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-r", "fE", "-n", given.workers, "--dist", "worksteal", *(rest or FOLDERS)]
        begin = time.monotonic()
        variables = os.environ | {VARIABLE: name, SHARE: str(given.share)}
        with started(command, env=variables, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            last = ""
            for line in child.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
            child.wait()
        told.append(f"{name}: {last.strip('= ')} ({time.monotonic() - begin:.0f} s)")
        status = status or child.returncode
    print("\n".join(["", "=== configurations ===", *told]))
    return status


if __name__ == "__main__":
    sys.exit(main())
