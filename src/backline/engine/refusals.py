"""Errors and warnings of a choice: nothing is left that can run, or not what was asked for."""

from __future__ import annotations

import warnings
from typing import Any

from ..errors import FallbackRefused, NoKernel, NotDeterministic
from ..problems import Problem
from ..switches.provenance import steps_out
from .choice import Candidate, Choice

__all__ = ["failed", "no_kernel", "not_deterministic", "once", "preference_not_kept", "warn_once", "warn_unfused", "warned"]

warned: set[tuple[str, ...]] = set()


def once(refused: list[Candidate]) -> list[Candidate]:
    """The refusals without repetition: one that holds for all thread counts came with each of them."""
    return list({(c.library, c.algorithm, c.reason, c.switch): c for c in reversed(refused)}.values())[::-1]


def _listed(candidates: list[Candidate]) -> str:
    return "".join(f"\n    {c.library}{' ' + c.algorithm if c.algorithm else ''}: {c.reason}" for c in once(candidates))


def no_kernel(problem: Problem, refused: list[Candidate]) -> NoKernel:
    by_switch = sorted({c.switch for c in refused if c.switch})
    remedy = f"change {', '.join(by_switch)}" if by_switch else "install a library that can (`backline info` lists them)"
    if problem.device != "cpu" and refused and not by_switch:
        from ..libraries.presence import driving

        # What all of them lack: CuPy, a driver, a device.
        common = {driving(c.library)[1] for c in refused}
        remedy = common.pop() if len(common) == 1 and "" not in common else remedy
    what = f"nothing can run {problem.key}"
    if "scaled_dot_product_attention" in problem.key:  # torch's words, on devices and on CPU, which programs look for
        what += ". No available kernel. No viable backend for scaled_dot_product_attention was found"
    return NoKernel(what, cause=_listed(refused), remedy=remedy)


def not_deterministic(problem: Problem, level: str, snapshot: Any, refused: list[Candidate]) -> None:
    text = f"nothing runs {problem.key} with determinism level {level!r}"
    if not snapshot["warn_only"]:
        raise NotDeterministic(text, cause=_listed(refused), remedy="a lower determinism_level, or warn_only")
    warn_once(("determinism", problem.op, level), text)


def preference_not_kept(choice: Choice, prefer: tuple[str, ...], prefers: str, snapshot: Any) -> None:
    for name in prefer:
        reasons = [c.reason for c in choice.candidates if c.library == name and c.verdict == "refused"]
        why = "; ".join(dict.fromkeys(reasons)) or "it has no algorithm for this"
        choice.fallbacks.append(f"{name} was preferred: {why}")
    fallback = snapshot["fallback"]
    if fallback == "error":
        raise FallbackRefused(
            f"{choice.problem.op} cannot run on {' or '.join(prefer)}, which {prefers} puts first",
            cause="; ".join(choice.fallbacks),
            remedy="another preference, or fallback = 'allow'",
        )
    if fallback == "warn":
        for name, text in zip(prefer, choice.fallbacks, strict=True):
            warn_once((choice.problem.op, name, text), f"{choice.problem.op} runs on {choice.library}: {text}")


def failed(choice: Choice, error: Exception, snapshot: Any) -> None:
    """Applies `fallback` to a library that could not prepare an algorithm that it listed."""
    text = f"{choice.library} {choice.algorithm} failed: {error}"
    if snapshot["fallback"] == "error":
        raise FallbackRefused(
            f"{choice.problem.op} cannot run as chosen", cause=text, remedy="fallback = 'allow', or turn the library off"
        ) from error
    if snapshot["fallback"] == "warn":
        warn_once((choice.problem.op, str(choice.library), text), f"{choice.problem.op}: {text}; the next library runs it")


def warn_unfused(choice: Choice) -> None:
    fused = [c for c in choice.candidates if c.verdict == "refused" and not c.algorithm.startswith("math")]
    text = f"{choice.problem.op} runs on {choice.library} {choice.algorithm}, which is no fused kernel; others were refused:"
    warnings.warn(text + _listed(fused), UserWarning, stacklevel=steps_out())


def warn_once(key: tuple[str, ...], text: str) -> None:
    if key not in warned:
        warned.add(key)
        warnings.warn(text, RuntimeWarning, stacklevel=steps_out())
