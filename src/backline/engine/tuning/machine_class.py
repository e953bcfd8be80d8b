"""The class of this processor, by which rankings and tuning records of other machines are judged."""

from __future__ import annotations

from ...native.processor_class import ProcessorClass, this_class

__all__ = ["here"]


def here() -> ProcessorClass:
    """Returns the class of this processor, under the cap on its instructions that holds here.

    Examples
    --------
    >>> here() == ProcessorClass.parse(str(here()))
    True
    """
    from ...libraries import capability  # much to import, and not needed before something is chosen

    return this_class(capability.effective().lower())
