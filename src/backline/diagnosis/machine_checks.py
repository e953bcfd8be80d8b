"""Checks of a machine: processors, memory pages, subnormal numbers, AMX, and how well Backline knows it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..processors import SYSTEM_CPUS
from .facts import Facts
from .finding import Check

__all__ = ["CHECKS"]

Case = Mapping[str, Any]
STOLEN = 0.05  # part of the processors' time
CAPPED = 0.9  # part of the highest frequency
SUBNORMAL = 5.0  # times as long
TOUCHES = 3.0  # times as long
# Drivers whose governor "powersave" goes up with the load.
_SCALE_BY_THEMSELVES = ("intel_pstate", "amd-pstate-epp", "amd-pstate")
HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"


def _flushed(facts: Facts) -> Iterator[Case]:
    if facts.flushes:
        files = "; ".join(facts.flushing_files) or "no file in the process is known to do it when it is loaded"
        yield {"figures": f"2.2e-308 x 0.5 is 0 in this thread; code that sets the mode is in: {files}"}


def _subnormals(facts: Facts) -> Iterator[Case]:
    if not facts.flushes and facts.subnormal_cost >= SUBNORMAL:
        yield {"times": f"{facts.subnormal_cost:.3g}", "cost": facts.subnormal_cost}


def _huge_pages(facts: Facts) -> Iterator[Case]:
    mode = re.search(r"\[(\w+)\]", facts.read(HUGE))
    if mode and mode[1] == "never" and facts.first_touch >= TOUCHES:
        yield {"times": f"{facts.first_touch:.3g}", "cost": facts.first_touch}


def _amx(facts: Facts) -> Iterator[Case]:
    if facts.amx:
        yield {"reason": facts.amx}


def _frequency(facts: Facts) -> Iterator[Case]:
    folder = f"{SYSTEM_CPUS}/cpu0/cpufreq"
    words = {
        name: facts.read(f"{folder}/{name}").strip()
        for name in ("scaling_governor", "scaling_driver", "scaling_max_freq", "cpuinfo_max_freq")
    }
    limit, most = (int(words[name]) if words[name].isdecimal() else 0 for name in ("scaling_max_freq", "cpuinfo_max_freq"))
    if 0 < limit < CAPPED * most:
        figures = f"{limit / 1e6:.2f} GHz of {most / 1e6:.2f} GHz"
        yield {"what": "The frequency is limited", "figures": figures, "cost": most / limit}
    elif words["scaling_governor"] == "powersave" and words["scaling_driver"] not in _SCALE_BY_THEMSELVES:
        least = facts.read(f"{folder}/cpuinfo_min_freq").strip()
        figures = f"governor powersave of {words['scaling_driver'] or 'an unknown driver'}"
        slower = most / int(least) if least.isdecimal() and int(least) and most else None
        yield {"what": "The governor keeps the lowest frequency", "figures": figures, "cost": slower}


def _steal(facts: Facts) -> Iterator[Case]:
    part, over = facts.stolen
    if part > STOLEN:
        yield {"part": f"{100 * part:.0f} %", "over": over, "cost": 1.0 / max(1.0 - part, 0.01)}


def _affinity(facts: Facts) -> Iterator[Case]:
    if facts.cpus < facts.online:
        bound = [name for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES") if name in facts.environ]
        by = f"; {', '.join(f'{name}={facts.environ[name]}' for name in bound)} may have bound it" if bound else ""
        yield {"cpus": facts.cpus, "online": facts.online, "by": by, "level": "slow" if bound and facts.cpus == 1 else "note",
               "cost": facts.online / facts.cpus}  # fmt: skip


def _untuned(facts: Facts) -> Iterator[Case]:
    known = facts.tuning
    if known["problem"]:
        yield {
            "what": "The tuning file is not used", "figures": str(known["problem"]),
            "command": "backline tune --reset, which moves it aside",
        }  # fmt: skip
    elif not known["measured here"]:
        same = known["class"] == known["shipped for"]
        whose = "another machine of its class" if same else f"the class {known['shipped for']}; this is {known['class']}"
        first = "" if known["path"] else "unset BACKLINE_TUNING (it is empty: nothing is kept), then "
        yield {
            "what": f"Nothing was measured on this machine: choices rest on times of {whose}",
            "figures": f"0 problems measured here; the ranking was measured on {known['measured on']}",
            "command": f"{first}backline calibrate, and backline tune SCRIPT for a program",
        }  # fmt: skip
    if known["dropped"]:
        name, why = next(iter(known["dropped"].items()))
        yield {
            "what": "Tuning records do not hold any more", "figures": f"{len(known['dropped'])}, the first for {name}: {why}",
            "command": "backline tune --prune, then backline tune SCRIPT",
        }  # fmt: skip


CHECKS = (
    Check(
        id="subnormals-flushed", level="wrong", looks_at="the rounding mode of the calling thread",
        text="Subnormal numbers are taken for zero, in this thread and in those that it starts: some library was built with "
        "-ffast-math, or asked for it. Results of everything else change with it.",
        proof="{figures}", remedy="backline.set_flush_denormal(False) after the imports, or leave that library out",
        find=_flushed,
    ),
    Check(
        id="frequency", level="slow", looks_at="governor, driver and limits of the first processor's frequency",
        text="{what}.", proof="{figures}", remedy="cpupower frequency-set -g performance (as root), or the provider's setting",
        find=_frequency,
    ),
    Check(
        id="steal", level="slow", looks_at="/proc/stat", measured="the hypervisor's part of the processors' time",
        text="The hypervisor gives processor time of this machine to others.", proof="{part} {over}",
        remedy="a machine with processors of its own; fewer threads leave more time to each", find=_steal,
    ),
    Check(
        id="amx-permission", level="slow", looks_at="the processor's flags, and a request for AMX in a process of its own",
        text="The processor has AMX, and the kernel does not grant it: products of bfloat16 and int8 run on AVX-512.",
        proof="arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA): {reason}",
        remedy="Linux 5.16 or newer, and a container whose seccomp profile allows arch_prctl", find=_amx,
    ),
    Check(
        id="huge-pages", level="slow", looks_at=HUGE, measured="writing 32 MiB for the first time and a second time",
        text="Transparent huge pages are off: new arrays are made of pages of 4 KiB, and the first writing of each is slow.",
        proof="the first writing of 32 MiB takes {times} times as long as the second",
        remedy="echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root); out= saves new arrays where that cannot be",
        find=_huge_pages,
    ),
    Check(
        id="affinity", level="note", looks_at="the processors that the process may run on, and those of the machine",
        text="The process may run on a part of the processors only{by}.", proof="{cpus} of {online} processors",
        remedy="taskset -p shows and sets it; unset the variables that bind threads", find=_affinity,
    ),
    Check(
        id="subnormals-slow", level="note", looks_at="arithmetic on subnormal numbers",
        measured="16,384 multiplications of subnormal and of usual numbers",
        text="Arithmetic on subnormal numbers is slow here. That matters only for values below 2e-308, or 1e-38 in float32.",
        proof="{times} times as long", remedy="backline.set_flush_denormal(True), where results may lose numbers below 2e-308",
        find=_subnormals,
    ),
    Check(
        id="untuned", level="note", looks_at="the tuning file and the shipped ranking",
        text="{what}.", proof="{figures}", remedy="{command}", find=_untuned,
    ),
)  # fmt: skip
