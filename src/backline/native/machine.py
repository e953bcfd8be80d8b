"""Facts about this machine: processor, cores that may be used, caches, memory, system.

Every fact comes from a text the kernel or the system keeps; reading is separate from understanding, so that
texts of other machines can be tested. Where a text is missing the fact is None or empty, never a guess.

Away from Linux only what `platform` and `os` tell is known; that part has not been tested on such systems.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from ..processors import SYSTEM_CPUS, count_cores, cpu_quota, memory, parse_cpu_list, physical_cores, read_text, usable_cpus
from ..switches import cpu_capability as words

__all__ = ["CpuInfo", "Machine", "capability", "fingerprint", "libc", "machine"]

#: Designers of Arm cores, by the number the core reports.
_ARM = {
    0x41: "Arm", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA",
    0x51: "Qualcomm", 0x61: "Apple", 0x6D: "Microsoft", 0xC0: "Ampere",
}  # fmt: skip

#: Flags that change how numbers are computed. Others come and go with kernels and microcode.
_ARITHMETIC = re.compile(
    r"(avx|sse|ssse|fma|f16c|amx|bmi|adx|gfni|vaes|popcnt|asimd|neon|sve|sme|bf16|i8mm|fphp|vx|altivec|vsx)"
)


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """The first processor as `/proc/cpuinfo` describes it.

    Attributes
    ----------
    model, vendor : str
        Names; "" if not told.
    family : str
        Family, model and stepping numbers, or what the architecture has in their place.
    flags : frozenset of str
        Features, as the kernel spells them.
    """

    model: str = ""
    vendor: str = ""
    family: str = ""
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, as far as this process may use it.

    Attributes
    ----------
    architecture : str
        "x86_64", "aarch64".
    cpu : CpuInfo
        The processor.
    capability : str
        "AVX512", "AVX2", "SVE256", "VSX", "Z VECTOR" or "DEFAULT".
    usable_cpus : tuple of int
        Processors the process may run on.
    physical_cores : int
        Cores among them: two hardware threads of one core count once.
    quota : float or None
        Processors' worth of time the container grants; None without a limit.
    l2, l3 : int or None
        Size in bytes of one cache of that level.
    memory : int or None
        Bytes of memory: the machine's, or the container's limit if that is less.
    system, libc : str
        "Debian GNU/Linux 12 (bookworm)", "glibc 2.36".
    """

    architecture: str
    cpu: CpuInfo
    capability: str
    usable_cpus: tuple[int, ...]
    physical_cores: int
    quota: float | None
    l2: int | None
    l3: int | None
    memory: int | None
    system: str
    libc: str


# --- texts understood ---------------------------------------------------------------------------------------


def parse_cpuinfo(text: str) -> CpuInfo:
    """Parses the text of `/proc/cpuinfo`, of any architecture.

    Examples
    --------
    >>> parse_cpuinfo("CPU implementer\\t: 0x41\\nCPU part\\t: 0xd40\\nFeatures\\t: fp asimd sve\\n").model
    'Arm core 0xd40'
    """
    facts: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            facts.setdefault(key.strip().lower(), value.strip())
    flags = facts.get("flags") or facts.get("features") or facts.get("isa", "").replace("_", " ")
    implementer = facts.get("cpu implementer", "")
    if implementer:
        try:
            vendor = _ARM.get(int(implementer, 0), implementer)
        except ValueError:
            vendor = implementer
        part = facts.get("cpu part", "")
        model = facts.get("model name") or f"{vendor} core {part}"
        family = " ".join(filter(None, (part, facts.get("cpu variant"), facts.get("cpu revision"))))
        return CpuInfo(model, vendor, family, frozenset(flags.split()))
    # x86; failing that POWER ("cpu"), S/390 ("processor 0", "vendor_id") and RISC-V ("uarch").
    model = facts.get("model name") or facts.get("cpu") or facts.get("uarch") or facts.get("processor 0", "")
    family = " ".join(facts[key] for key in ("cpu family", "model", "stepping") if facts.get(key))
    return CpuInfo(model, facts.get("vendor_id", ""), family, frozenset(flags.split()))


def capability_of(flags: Iterable[str], architecture: str, sve_bytes: int | None = None) -> str:
    """Returns the capability word: which class of vector instructions there is.

    Parameters
    ----------
    flags : iterable of str
        As in `CpuInfo`.
    architecture : str
        As `os.uname().machine` spells it.
    sve_bytes : int, optional
        Length of an SVE vector, where there is one.

    Examples
    --------
    >>> capability_of(["avx", "avx2", "fma"], "x86_64")
    'AVX2'
    """
    return words.NAMES[words.word_of(flags, architecture, sve_bytes)]


def parse_size(text: str) -> int | None:
    """Returns the bytes in a size as the kernel writes it: "1024K", "32M", "2097152"; None for anything else.

    Examples
    --------
    >>> parse_size("1024K")
    1048576
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2].upper()] if match else None


def cache_size(level: int, cpu: int, read: Callable[[str], str | None]) -> int | None:
    """Returns the bytes of one data or unified cache of this level, as seen from a processor."""
    for index in range(8):
        folder = f"{SYSTEM_CPUS}/cpu{cpu}/cache/index{index}"
        here, kind, size = ((read(f"{folder}/{name}") or "").strip() for name in ("level", "type", "size"))
        if here == str(level) and kind != "Instruction":
            return parse_size(size)
    return None


def fingerprint_of(cpu: CpuInfo, architecture: str, cores: int) -> str:
    """Returns a short name for machines whose measurements are comparable.

    Examples
    --------
    >>> fingerprint_of(CpuInfo("AMD EPYC", "AuthenticAMD", "26 2 1", frozenset({"avx2", "fma"})), "x86_64", 2)
    'amd-epyc-2c-8571d104'
    """
    import hashlib

    flags = sorted(flag for flag in cpu.flags if _ARITHMETIC.match(flag))
    text = "|".join([architecture, cpu.vendor, cpu.model, cpu.family, *flags])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = re.sub(r"\((r|tm)\)|\bcpu\b|@.*", "", cpu.model.lower())
    name = re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:40].strip("-") or architecture.lower()
    return f"{name}-{cores}c-{digest}"


# --- this machine -------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def cpu_info() -> CpuInfo:
    """Returns the processor; read once."""
    text = read_text("/proc/cpuinfo")
    if text:
        return parse_cpuinfo(text)
    import platform

    name = platform.processor() or platform.machine()
    return CpuInfo(name)


def _architecture() -> str:
    import platform

    return platform.machine()


@lru_cache(maxsize=1)
def capability() -> str:
    """Returns the capability word of this processor."""
    return words.NAMES[words.detected()]


def _all_cpus() -> tuple[int, ...]:
    return parse_cpu_list(read_text(f"{SYSTEM_CPUS}/online")) or tuple(range(os.cpu_count() or 1))


@lru_cache(maxsize=1)
def fingerprint() -> str:
    """Returns a short, stable name of this machine for tuning records.

    It is made of the processor's model, its arithmetic instructions and the number of physical cores of the
    machine. Affinity and quotas are left out: thread counts are part of a record's own key.

    Examples
    --------
    >>> fingerprint() == fingerprint()
    True
    """
    return fingerprint_of(cpu_info(), _architecture(), count_cores(_all_cpus(), read_text))


def _system() -> str:
    for line in read_text("/etc/os-release").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME" and value:
            return value.strip().strip("\"'")
    import platform

    return platform.platform()


def libc() -> str:
    """Returns the C library and its version, such as "glibc 2.36"; empty where none says."""
    try:
        # Only glibc has this name; musl raises, other systems have no confstr.
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        import platform

        return " ".join(platform.libc_ver()).strip()


def machine() -> Machine:
    """Returns the facts about this machine, read now.

    Returns
    -------
    Machine

    Examples
    --------
    >>> here = machine()
    >>> 1 <= here.physical_cores <= len(here.usable_cpus)
    True
    """
    cpus = usable_cpus()
    return Machine(
        architecture=_architecture(),
        cpu=cpu_info(),
        capability=capability(),
        usable_cpus=cpus,
        physical_cores=physical_cores(),
        quota=cpu_quota(),
        l2=cache_size(2, cpus[0], read_text),
        l3=cache_size(3, cpus[0], read_text),
        memory=memory(),
        system=_system(),
        libc=libc(),
    )
