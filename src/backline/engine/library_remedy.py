"""The remedy that keeps a library from running: the switch that allows it, as a program and as the launcher write it."""

from __future__ import annotations

from ..libraries import registry

__all__ = ["SEVERAL", "enabling_name", "launcher_option", "without"]


SEVERAL = "several"  # the library of a contraction whose steps run on more than one


def enabling_name(library: str) -> str:
    """Returns the name of the switch that allows a library; empty for one that has none.

    Examples
    --------
    >>> enabling_name("openblas"), enabling_name("several")
    ('openblas.enabled', '')
    """
    row = registry.find(library)
    if row is not None:
        return row.switch
    # A plug-in that another process ran: its switch has the name of the library.
    return f"{library}.enabled" if library.isidentifier() and library != SEVERAL else ""


def without(library: str) -> str:
    """Returns how a program keeps a library from running, in words.

    Examples
    --------
    >>> without("mkl")
    'backline.backends.mkl.enabled = False: another library than mkl runs it then'
    """
    name = enabling_name(library)
    if not name:
        return f"another library than {library}: backline.use(...)"
    return f"backline.backends.{name} = False: another library than {library} runs it then"


def launcher_option(library: str) -> str:
    """Returns the option of ``backline run`` that keeps a library from running; empty where there is none.

    Examples
    --------
    >>> launcher_option("mkl")
    '--set mkl.enabled=False'
    """
    name = enabling_name(library)
    return f"--set {name}=False" if name else ""
