"""Facts that the keys of algorithms tell, as rankings and tuning records hold them."""

from __future__ import annotations

__all__ = ["divided", "on_one_thread"]

DIVIDED = ("_items", "_split", "_slabs")  # how names of algorithms end that Backline divides among threads


def on_one_thread(key: str) -> str:
    """Returns the key of what one thread would run of an algorithm that runs on all.

    Examples
    --------
    >>> on_one_thread("mkl.gemm_items@n"), on_one_thread("mkl.gemm@n")
    ('mkl.gemm@1', 'mkl.gemm@1')
    """
    name = key.partition("@")[0]
    for end in DIVIDED:
        name = name.removesuffix(end)
    return f"{name}@1"


def divided(key: str) -> bool:
    """Tells whether Backline divides the work of an algorithm among threads, and not its library.

    Examples
    --------
    >>> [divided(key) for key in ("mkl.gemm@n", "mkl.gemm_split@n", "kernels.few_rows@n")]
    [False, True, True]
    """
    return key.startswith("kernels.") or key.partition("@")[0].endswith(DIVIDED)
