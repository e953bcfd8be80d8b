"""The class of a switch: its name, its kind, its legal values, and the check of a value or of text.

A `Switch` holds no value (`store` does) and knows no other switches (`switch_registry` does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias

from numpy import bool_, floating, integer

from ..errors import BadType, BadValue
from ..records import Record

__all__ = [
    "FAMILIES", "Addition", "DerivedSwitch", "EnumSwitch", "FlagOrWord", "Legal", "Reduction", "Switch", "Value", "nearest",
    "show",
]  # fmt: skip

FAMILIES: Final = ("matmul", "conv", "rnn", "attention", "neural", "linalg", "fft", "einsum", "quantized", "sparse")
"""Families of operations that a switch may govern."""

Value: TypeAlias = bool | int | float | str | tuple[str, ...]

_WORDS: Final = {
    "1": True, "true": True, "on": True, "yes": True,
    "0": False, "false": False, "off": False, "no": False,
}  # fmt: skip
_WANTED: Final = {
    bool: ("a bool", "True or False; numbers and None do not count"),
    int: ("an int", "a whole number; bools and floats do not count"),
    float: ("a float", "a real number; bools do not count"),
    str: ("a str", "the exact word, upper and lower case told apart"),
    tuple: ("a tuple of str", "a tuple or list of names; a single name needs its own tuple: ('mkl',)"),
}


def show(value: object, limit: int = 80) -> str:
    """Returns ``repr(value)``, cut to `limit` characters; a broken ``repr`` is described instead."""
    try:
        text = repr(value)
    except Exception as error:  # the __repr__ of another package must not replace our own message
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _is_name(name: str) -> bool:
    """Tells whether a text is lower-case identifiers joined by dots, the last of them perhaps in capitals."""
    *first, last = name.split(".")
    identifiers = name.isascii() and all(part.isidentifier() and part[0] != "_" for part in (*first, last))
    return identifiers and all(map(str.islower, first)) and (last.islower() or (bool(first) and last.isupper()))


def _in_torch(name: str, value: object) -> str:
    """Returns the words of torch's error for an illegal value, where programs look for them."""
    last = name.rpartition(".")[2]
    if last.endswith("_reduced_precision_reduction") and value == (True, False):
        return "allow_splitk=False is not supported when reduced precision reductions are enabled; "
    if "cufft_plan_cache" in name:
        return "max_size must be non-negative; "
    if last.startswith("preferred_"):
        return "Unknown input value; "
    if last == "fp32_precision":
        return f"Unknown precision: {value}; "
    return _TORCH.get(name, "")


_TORCH = {
    "num_threads": "set_num_threads expects a positive integer; ",
    "num_interop_threads": "set_num_interop_threads expects a positive integer; ",
    "quantized.engine": "it is not a valid value for quantized engine; ",
}


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Returns `names` sorted by similarity to `word`, the nearest first.

    Examples
    --------
    >>> nearest("warm", ["allow", "warn", "error"])
    ['warn', 'allow', 'error']
    """
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(b=word[:200].casefold())  # its time grows with the square of the length

    def distance(name: str) -> float:
        matcher.set_seq1(name.casefold())
        return -matcher.ratio()

    return sorted(names, key=distance)


def _float(value: Any) -> float:
    try:
        return float(value) + 0.0  # -0.0 becomes 0.0: two equal values must also print alike
    except OverflowError:  # an int beyond the floats
        return math.inf if value > 0 else -math.inf


class Legal(Protocol):
    """Test for legal values, with a text about them."""

    def __call__(self, value: Value) -> bool: ...

    def text(self, value: object, kind: type) -> str:
        """Returns the legal values as text, the nearest to `value` first."""


class Switch(Record):
    """One declared setting.

    Parameters
    ----------
    name
        Dotted name, "mkl.enabled"; switches of the root have no dot.
    kind
        bool, int, float, str or tuple (of str).
    default
        The value when nothing sets it, or a function without arguments that works it out at first need and
        returns it together with a word on where it came from.
    legal
        A tuple of the legal values, an object that tells (`AtLeast`, `EachOf`), or None for all of the kind.
    doc
        One line: what the switch does.
    governs
        The op families it has a say in.
    when
        "call": every call reads it anew. "load": read once, when its library is loaded.
    library
        Name of the library that it allows; unless given, an ``enabled`` switch allows the one called as its module is.
    as_attribute
        It is an attribute of its module; otherwise functions of the module read and write it.
    in_flags
        ``flags()`` of its module takes it.
    variables
        Other environment variables that set it, weaker than its own: what each word of the variable means, or None where
        the variable holds a value of the switch.
    unset
        Value before anybody sets it, where that is a state of its own which cannot be assigned.

    Examples
    --------
    >>> from backline.switches import AtLeast
    >>> limit = Switch("fft.limit", int, 10, AtLeast(0), doc="Most plans timed per shape.", governs=("fft",))
    >>> limit.env
    'BACKLINE_FFT_LIMIT'
    >>> limit.check(3)
    3
    """

    name: str
    kind: type
    default: Value | Callable[[], tuple[Value, str]]
    legal: tuple[Value, ...] | Legal | None = None
    doc: str = ""
    governs: tuple[str, ...] = ()
    when: str = "call"
    library: str | None = None
    as_attribute: bool = True
    in_flags: bool = True
    variables: Mapping[str, Mapping[str, Value] | None] = {}
    unset: Value | None = None

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise BadValue(
                f"{show(self.name)} is not a name for a switch.",
                cause="names are lower-case identifiers joined by dots, the last of them perhaps in capitals",
                remedy='write it like "mkl.enabled"',
            )
        if self.kind not in _WANTED:
            raise BadType(
                f"switch {self.name}: {show(self.kind)} is not a kind of switch.",
                remedy="use one of bool, int, float, str, tuple",
            )
        if self.when not in ("call", "load"):
            raise BadValue(f"switch {self.name}: when = {show(self.when)} is neither 'call' nor 'load'.")
        if not self.doc:
            raise BadValue(f"switch {self.name} has no doc.", remedy="say in one line what it does")
        if not callable(self.default):
            self.restore(self.default)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def env(self) -> str:
        """Name of the environment variable that sets it."""
        return "BACKLINE_" + self.name.upper().replace(".", "_")

    @property
    def backend(self) -> str:
        """Part of the name before the last dot; empty for the root."""
        return self.name.rpartition(".")[0]

    @property
    def allows(self) -> str:
        """Name of the library that it allows, or empty."""
        if self.library is None:
            return self.backend if self.attribute == "enabled" else ""
        return self.library

    @property
    def attribute(self) -> str:
        """Part of the name after the last dot: the attribute and the keyword of ``flags()``."""
        return self.name.rpartition(".")[2]

    def starting(self) -> tuple[Value, str]:
        """Returns the default and where it came from, working it out if need be."""
        if callable(self.default):
            value, where = self.default()
            return self.restore(value), where
        return self.restore(self.default), "declaration"

    def resolve(self, values: Mapping[str, Value]) -> Value:
        """Returns the value it reads as, where `values` are the stored ones of all switches."""
        return values[self.name]

    def restore(self, value: object) -> Value:
        """Checks a value that was stored before, which may be `unset`."""
        if self.unset is not None and type(value) is type(self.unset) and value == self.unset:
            return self.unset
        return self.check(value)

    def legal_text(self, value: object = "") -> str:
        """Returns every legal value as text, the nearest to `value` first.

        Examples
        --------
        >>> Switch("speed", str, "slow", ("slow", "fast"), doc="An example.").legal_text("fats")
        "'fast', 'slow'"
        """
        if self.kind is bool:
            return "True, False"
        if isinstance(self.legal, tuple):
            if self.kind is int and isinstance(value, int):
                # Ignored: values of such a switch are ints.
                return ", ".join(map(repr, sorted(self.legal, key=lambda item: abs(int(item) - value))))  # type: ignore[arg-type]
            by_text = {str(item): item for item in self.legal}
            return ", ".join(repr(by_text[text]) for text in nearest(str(value), by_text))
        if self.legal is not None:
            return self.legal.text(value, self.kind)
        return f"any {self.kind.__name__}"

    def check(self, value: object) -> Value:
        """Returns `value` in the switch's own type, or raises `BadType` or `BadValue`.

        NumPy's bools and numbers count as Python's; a bool never counts as a number, nor a number as a bool.
        """
        kind = self.kind
        if kind is bool:
            if value is True or value is False:
                return value
            if isinstance(value, bool_):
                return bool(value)
            raise self.bad_type(value)
        plain: Value
        if kind is str and isinstance(value, str):
            plain = str(value)
        elif kind is int and isinstance(value, (int, integer)) and not isinstance(value, bool):
            plain = int(value)
        elif kind is float and isinstance(value, (int, float, integer, floating)) and not isinstance(value, bool):
            plain = _float(value)
        elif kind is tuple and isinstance(value, (tuple, list)):
            if not all(isinstance(item, str) for item in value):
                raise self.bad_type(value)
            plain = tuple(dict.fromkeys(map(str, value)))  # a name given twice counts once
        else:
            raise self.bad_type(value)
        legal = self.legal
        if legal is None or (plain in legal if isinstance(legal, tuple) else legal(plain)):
            return plain
        raise self.bad_value(value)

    def parse(self, text: str) -> Value:
        """Reads a value from the text of an environment variable.

        bool: 1, true, on, yes, 0, false, off, no, in any case. tuple: names with commas between.

        Examples
        --------
        >>> Switch("prefer", tuple, (), doc="An example.").parse("mkl, openblas")
        ('mkl', 'openblas')
        """
        word = text.strip()
        try:
            if self.kind is bool:
                return _WORDS[word.lower()]
            if self.kind is int:
                return self.check(int(word))
            if self.kind is float:
                return self.check(float(word))
        except (KeyError, ValueError) as error:
            if isinstance(error, BadValue):
                raise
            raise self.bad_value(text) from None
        if self.kind is tuple:
            return self.check([item.strip() for item in word.split(",") if item.strip()])
        return self.check(word)

    def bad_type(self, value: object) -> BadType:
        """Returns the error for a value of another type."""
        wanted, meaning = _WANTED[self.kind]
        return BadType(
            f"{self.name} takes {wanted}, not {type(value).__name__}: {show(value)}",
            cause=f"it expects {wanted}, but got {type(value).__name__}; {wanted} is {meaning}",
            remedy=f"legal values, the nearest first: {self.legal_text(value)}",
        )

    def bad_value(self, value: object) -> BadValue:
        """Returns the error for an illegal value."""
        return BadValue(
            f"{self.name} = {show(value)} is not a legal value.",
            cause=f"{_in_torch(self.name, value)}it says: {self.doc}",
            remedy=f"legal values, the nearest first: {self.legal_text(value)}",
        )


class FlagOrWord(Switch):
    """A switch that is on or off, or set to one of some further `words`.

    >>> sort = FlagOrWord("sort", bool, False, doc="An example.", words=("stable",))
    >>> sort.check("stable"), sort.parse("on"), sort.legal_text()
    ('stable', True, "True, False, 'stable'")
    """

    words: tuple[str, ...] = ()

    def check(self, value: object) -> Value:
        return str(value) if isinstance(value, str) and value in self.words else Switch.check(self, value)

    def parse(self, text: str) -> Value:
        return word if (word := text.strip().lower()) in self.words else Switch.parse(self, text)

    def legal_text(self, value: object = "") -> str:
        return ", ".join(["True", "False", *map(repr, self.words)])


class EnumSwitch(Switch):
    """A switch for words that are also the members of an enumeration, in lower case.

    Attributes
    ----------
    enum
        Name of the enumeration in `enumerations`; its members are taken, not their numbers.
    synonyms
        Further words: what each stands for.
    """

    enum: str = ""
    synonyms: Mapping[str, str] = {}

    @property
    def members(self) -> type[Enum]:
        """The enumeration."""
        from . import enumerations  # making them takes long, and few programs need them

        found: type[Enum] = getattr(enumerations, self.enum)
        return found

    def check(self, value: object) -> Value:
        if isinstance(value, str):
            value = self.synonyms.get(value, value)
        elif isinstance(value, Enum) and isinstance(value, self.members):
            value = value.name.lower()
        return Switch.check(self, value)

    def member(self, value: Value) -> Enum:
        """Returns the member for a stored word."""
        return next(m for m in self.members if m.name.lower() == value)


_REDUCTIONS: Final = {
    "yes": (True, True), "no": (False, True), "no, nor split-k": (False, False),
}  # fmt: skip


class Reduction(Switch):
    """Switch for sums in a short type: a bool, or two, ``(reduced, split_k)``. It reads as the first."""

    def restore(self, value: object) -> Value:
        return value if isinstance(value, str) and value in _REDUCTIONS else self.check(value)

    def check(self, value: object) -> Value:
        items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not all(isinstance(item, (bool, bool_)) for item in items):
            raise self.bad_type(value)
        pair = tuple(bool(item) for item in items)
        pair = (*pair, True) if len(pair) == 1 else pair
        for word, meaning in _REDUCTIONS.items():
            if meaning == pair:
                return word
        raise self.bad_value(value)

    def resolve(self, values: Mapping[str, Value]) -> Value:
        return self.pair(values)[0]

    def pair(self, values: Mapping[str, Value]) -> tuple[bool, bool]:
        """``(reduced, split_k)``."""
        return _REDUCTIONS[str(values[self.name])]

    def legal_text(self, value: object = "") -> str:
        return "True, False, (True,), (False,), (True, True), (False, True), (False, False)"

    def parse(self, text: str) -> Value:
        words = [word.strip().lower() for word in text.split(",")]
        if not all(word in _WORDS for word in words):
            raise self.bad_value(text)
        return self.check([_WORDS[word] for word in words])


class DerivedSwitch(Switch):
    """A switch without a value of its own: it is computed from others, and writing it writes those.

    Attributes
    ----------
    nodes
        The switches it is computed from.
    """

    nodes: tuple[str, ...] = ()

    def write(self, value: Value, values: Mapping[str, Value]) -> dict[str, Value]:
        """Returns what a write of `value` stores, where `values` are the stored ones of all switches."""
        raise NotImplementedError


class Addition(DerivedSwitch):
    """Names that come to those of its node. They are read when it is written, or when its scope is entered.

    Examples
    --------
    >>> more = Addition("kernels.also_off", tuple, (), doc="Further kernels to leave out.", nodes=("kernels.off",))
    >>> more.write(("b", "a"), {"kernels.off": ("a",)})
    {'kernels.off': ('a', 'b')}
    """

    def resolve(self, values: Mapping[str, Value]) -> Value:
        return values[self.nodes[0]]

    def write(self, value: Value, values: Mapping[str, Value]) -> dict[str, Value]:
        held = values[self.nodes[0]]
        assert isinstance(held, tuple) and isinstance(value, tuple)
        return {self.nodes[0]: tuple(dict.fromkeys((*held, *value)))}
