"""Switches that the launcher sets for the programs it starts: the table of profiles, and single ones by name.

They are set as environment variables, so that every process which a program starts has them, too. Files and the environment
that the launcher was started in count less.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from .. import switches
from ..errors import BadValue
from ..switches.precision_tree import PARENT
from ..switches.process_values import expand
from ..switches.switch import nearest
from .counts import Note

__all__ = ["PROFILES", "Profile", "Settings", "listed", "resolve", "text_of"]


class Profile(NamedTuple):
    """A named set of switches.

    Attributes
    ----------
    about : str
        One sentence: what it is for.
    switches : mapping
        Switch to value, as text.
    """

    about: str
    switches: Mapping[str, str]


#: What ``--profile`` sets.
PROFILES: Final[Mapping[str, Profile]] = {
    "deterministic": Profile(
        "The same bits in every run, for any number of threads.",
        {
            "deterministic": "on", "determinism_level": "threads", "warn_only": "off", "benchmark": "off",
            "cudnn.benchmark": "off", "cudnn.deterministic": "on", "mkldnn.deterministic": "on",
        },
    ),
    "fast": Profile(
        "Algorithms chosen by timing real calls; float32 products may be computed in tf32.",
        {"benchmark": "online", "cudnn.benchmark": "on", "float32_matmul_precision": "high"},
    ),
    "exact": Profile(
        "Every type of number at its full precision: nothing is reduced, no sum is kept in a shorter type.",
        {
            **dict.fromkeys(PARENT, "ieee"),
            "emulate": "off",
            "cuda.matmul.allow_fp16_reduced_precision_reduction": "off",
            "cuda.matmul.allow_bf16_reduced_precision_reduction": "off",
            "cuda.matmul.allow_fp16_accumulation": "off",
            "cuda.fp16_bf16_reduction_math_sdp": "off",
        },
    ),
}  # fmt: skip


class Settings(NamedTuple):
    """The switches that a program is started with.

    Attributes
    ----------
    values : dict
        Switch to value.
    variables : dict
        Environment variables that set them; one that is empty takes back what the launcher's own environment sets.
    notes : list of Note
        What they replace.
    """

    values: dict[str, switches.Value]
    variables: dict[str, str]
    notes: list[Note]


def resolve(profile: str, assignments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Returns what ``--profile`` and ``--set`` ask for.

    Parameters
    ----------
    profile : str
        One of `PROFILES`; "" for none.
    assignments : sequence of str
        ``NAME=VALUE`` each, the value written as in an environment variable; they count more than the profile, and a later one
        more than an earlier one.
    environ : mapping
        The launcher's own environment variables.

    Raises
    ------
    UnknownName
        There is no such switch.
    BadValue
        No such profile, no value, an illegal one, or two that contradict each other.

    Examples
    --------
    >>> resolve("", ["cudnn.benchmark=true", "prefer=mkl,openblas"], {}).variables
    {'BACKLINE_CUDNN_BENCHMARK': 'true', 'BACKLINE_PREFER': 'mkl,openblas'}
    """
    if profile and profile not in PROFILES:
        raise BadValue(f"there is no profile {profile!r}", remedy=f"the profiles: {', '.join(nearest(profile, PROFILES))}")
    chosen = PROFILES[profile].switches if profile else {}
    # Derived switches are written as those that they set, the profile's first: in the environment the variable of a derived
    # switch counts more than those of its nodes, and so would count more than what was assigned to one by name.
    texts: dict[str, str] = {}
    values: dict[str, switches.Value] = {}
    for given in (chosen, _assigned(assignments)):
        _expand(given, texts, values)
    variables = {switches.lookup(name).env: text for name, text in texts.items()}
    notes = [
        Note("warning", f"{name} is set: {name}={environ[name]} is replaced by {name}={text}")
        for name, text in variables.items() if environ.get(name, text).strip() not in ("", text)
    ]  # fmt: skip
    for switch in switches.derived_switches().values():
        if environ.get(switch.env, "").strip() and not texts.keys().isdisjoint(switch.nodes):
            variables[switch.env] = ""
            notes.append(Note("warning", f"{switch.env} is set: it is left out, it would replace {', '.join(switch.nodes)}"))
    return Settings(values, variables, notes)


def _assigned(assignments: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in assignments:
        name, equals, text = (part.strip() for part in each.partition("="))
        if not equals:
            raise BadValue(f"--set {each!r} has no value", remedy="NAME=VALUE, such as --set cudnn.benchmark=true")
        found.pop(name, None)
        found[name] = text
    return found


def _expand(given: Mapping[str, str], texts: dict[str, str], values: dict[str, switches.Value]) -> None:
    """Adds switches with values as text to `texts`, and as values to `values`; derived ones as those that they set."""
    checked = {}
    for name, text in given.items():
        switch = switches.lookup(name)
        if not text and switch.kind is not tuple:
            raise switch.bad_value(text)
        checked[name] = switch.parse(text)
    derived = not checked.keys().isdisjoint(switches.derived_switches())
    written = expand(checked, {**switches.current(), **values}) if derived else checked
    for name, value in written.items():
        texts.pop(name, None)  # in the order in which they are given
        texts[name] = given.get(name) or text_of(value)
        values[name] = value


def text_of(value: switches.Value) -> str:
    """Returns a switch's value as its environment variable has it.

    >>> text_of(("mkl", "openblas")), text_of(True)
    ('mkl,openblas', 'True')
    """
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def listed(width: int = 100) -> str:
    """Returns the profiles as the help shows them.

    Examples
    --------
    >>> print(listed().splitlines()[0])
      deterministic  The same bits in every run, for any number of threads.
    """
    widest = max(map(len, PROFILES))
    margin = " " * (widest + 4)
    lines = []
    for name, profile in PROFILES.items():
        lines.append(f"  {name:{widest}}  {profile.about}")
        shown = " ".join(f"{switch}={value}" for switch, value in profile.switches.items())
        lines += textwrap.wrap(
            shown, width, initial_indent=margin, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)
