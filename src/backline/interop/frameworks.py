"""Backline's switches in PyTorch, JAX, CuPy, NumPy and threadpoolctl, and theirs in Backline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Any

from .. import switches
from ..errors import BackendUnavailable, BacklineError, UnknownName
from ..records import Record
from .framework_settings import FRAMEWORKS, Framework, Setting

__all__ = ["Applied", "AppliedSetting", "apply_to", "read_from"]


class AppliedSetting(Record):
    """One line of the table that `apply_to` and `read_from` return.

    Attributes
    ----------
    framework, switch, theirs
        Which setting, by Backline's name and the framework's.
    requested, before, effective
        What was asked for, what held before, and what was read back after.
    reason
        Why it was not set, or is not what was asked for; empty where it is.
    """

    framework: str
    switch: str
    theirs: str
    requested: Any
    before: Any
    effective: Any
    reason: str

    @property
    def applied(self) -> bool:
        """The value that was asked for holds."""
        return not self.reason


class Applied:
    """Settings that were carried over, as a table; as a context manager it puts back at its end what held before.

    Examples
    --------
    >>> import backline
    >>> with backline.num_threads(1), backline.apply_to("threadpoolctl") as table:
    ...     [(row.switch, row.effective) for row in table if row.applied]
    [('num_threads', 1)]
    """

    def __init__(self) -> None:
        self.rows: list[AppliedSetting] = []
        self._back: list[Callable[[], None]] = []  # in the order of writing: a node of a tree before those that inherit from it

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def undo(self) -> None:
        """Puts back what held before; a second call changes nothing."""
        while self._back:
            self._back.pop(0)()

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()

    def __str__(self) -> str:
        if not self.rows:
            return "nothing to carry over: no switch was set"
        head = ("framework", "switch", "requested", "effective", "")
        lines = [head] + [
            (r.framework, r.switch, repr(r.requested), "-" if not r.theirs else repr(r.effective), r.reason or f"as {r.theirs}")
            for r in self.rows
        ]
        widths = [max(len(line[i]) for line in lines) for i in range(4)]
        return "\n".join(
            "  ".join([*(text.ljust(w) for text, w in zip(line, widths, strict=False)), line[4]]).rstrip() for line in lines
        )

    __repr__ = __str__


def _find(name: str) -> tuple[Framework, Any]:
    framework = FRAMEWORKS.get(name)
    if framework is None:
        raise UnknownName(
            f"no settings are known of {name!r}", cause="it is not in the table", remedy=f"one of: {', '.join(FRAMEWORKS)}"
        )
    try:
        return framework, import_module(name)
    except ImportError as error:
        raise BackendUnavailable(
            f"{name} cannot be imported: {error}", cause="it is not installed here", remedy=f"install {name}"
        ) from None


def _was_set(switch: str) -> bool:
    return switches.origin(switch).kind != "default"


def apply_to(*frameworks: str, everything: bool = False) -> Applied:
    """Gives other frameworks the values that Backline's switches have here.

    Parameters
    ----------
    *frameworks
        "torch", "jax", "cupy", "numpy", "threadpoolctl".
    everything
        Also switches that nobody set. Otherwise a setting of the framework stays unless its switch was set here: by assignment,
        scope, environment or file.

    Returns
    -------
    Applied
        A table: requested, effective, and what could not be carried over and why. As a context manager it puts back at its end
        what held before; else the settings stay.

    Raises
    ------
    UnknownName
        A framework that is not in the table.
    BackendUnavailable
        A framework that is not installed. Nothing was changed in the others.

    Notes
    -----
    Settings of frameworks are of the process, those of PyTorch in part of the thread: other threads see them while they hold.

    Examples
    --------
    >>> import backline
    >>> with backline.num_threads(1):
    ...     table = backline.apply_to("threadpoolctl")
    >>> print(table)
    framework      switch       requested  effective
    threadpoolctl  num_threads  1          1          as threads of every pool in the process
    >>> table.undo()
    """
    done = Applied()
    found = [_find(name) for name in dict.fromkeys(frameworks)]
    values = switches.current()
    try:
        for framework, module in found:
            wanted = [setting for setting in framework.settings if everything or _was_set(setting.switch)]
            held = [setting.read(module) for setting in wanted]  # all of them first: a write shows in settings that inherit
            for setting, before in zip(wanted, held, strict=True):
                # Precision as it was written: the framework has the same tree.
                value = values[setting.switch] if _is_node(setting) else values.resolved(setting.switch)
                done.rows.append(_apply(done, framework.name, setting, module, value, before))
            for switch, reason in framework.without.items():
                if everything or _was_set(switch):
                    done.rows.append(AppliedSetting(framework.name, switch, "", values[switch], None, None, reason))
    except BaseException:
        done.undo()
        raise
    return done


def _is_node(setting: Setting) -> bool:
    return setting.switch.endswith("fp32_precision") and setting.words is None


def _apply(done: Applied, name: str, setting: Setting, module: Any, value: Any, before: Any) -> AppliedSetting:
    wanted = value
    if setting.words is not None:
        if value not in setting.words:
            return AppliedSetting(name, setting.switch, setting.theirs, value, before, before, f"{name} has no such value")
        wanted = setting.words[value]
    put_back = functools.partial(_write_back, setting, module, before) if setting.save is None else setting.save(module)
    try:
        setting.write(module, wanted)
    except Exception as error:  # whatever a framework raises about a value that it does not take
        reason = f"{name} refused it: {error}"
        return AppliedSetting(name, setting.switch, setting.theirs, value, before, setting.read(module), reason)
    done._back.append(put_back)
    effective = setting.read(module)
    reason = "" if effective == wanted else f"{name} reads {effective!r} after it was set"
    return AppliedSetting(name, setting.switch, setting.theirs, value, before, effective, reason)


def _write_back(setting: Setting, module: Any, before: Any) -> None:
    if _is_node(setting):  # what it read may have been that of a node above it
        setting.write(module, "none")
    if setting.read(module) != before:
        setting.write(module, before)


def read_from(framework: str) -> Applied:
    """Gives Backline's switches the values that the settings of another framework have.

    Parameters
    ----------
    framework
        "torch", "jax", "cupy", "numpy" or "threadpoolctl".

    Returns
    -------
    Applied
        A table, which as a context manager puts back at its end what held before. The values are assigned: in the innermost open
        scope, or else for the process.

    Raises
    ------
    UnknownName, BackendUnavailable
        As for `apply_to`.

    Examples
    --------
    >>> import backline, threadpoolctl
    >>> with threadpoolctl.threadpool_limits(1), backline.read_from("threadpoolctl"):
    ...     backline.get_num_threads()
    1
    """
    done = Applied()
    known, module = _find(framework)
    for setting in known.settings:
        theirs = setting.read(module)
        known_there = {**setting.also, **{other: ours for ours, other in (setting.words or {}).items()}}
        back = known_there.get(theirs, theirs)
        before = switches.get(setting.switch)
        if back is None or back == before:
            continue
        stored = switches.current()[setting.switch]
        try:
            switches.assign(setting.switch, back, depth=2)
        except BacklineError as error:
            done.rows.append(AppliedSetting(framework, setting.switch, setting.theirs, back, before, before, str(error.message)))
            continue
        # What is stored need not be what a program may write: "auto" of `quantized.engine` is what holds until an engine is set.
        done._back.append(functools.partial(switches.assign_many, {setting.switch: stored}, depth=2, restore=True))
        effective = switches.get(setting.switch)
        done.rows.append(AppliedSetting(framework, setting.switch, setting.theirs, back, before, effective, ""))
    return done
