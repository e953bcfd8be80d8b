"""The Problem of attention within each of several sequences that lie one after the other; where they begin is an operand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .attention_problem import SoftmaxAttention

__all__ = ["PackedAttentionProblem", "length_class", "size_class"]


def size_class(n: int, least: int, parts: int) -> int:
    """Returns the largest size of the class of `n`: a multiple of `least`, and of what divides the octave of `n` into `parts`.

    Examples
    --------
    >>> [size_class(n, 1, 4) for n in (1, 7, 8, 9, 17, 100)]
    [1, 7, 8, 10, 20, 112]
    """
    step = max(least, 1 << max(n.bit_length() - parts.bit_length(), 0))
    return max(-(-n // step), 1) * step


def length_class(n: int) -> int:
    """Returns the longest length of the class of `n`: a multiple of 128, and at most an eighth longer from 1024 on.

    Examples
    --------
    >>> [length_class(n) for n in (1, 128, 129, 1000, 4097, 5000)]
    [128, 128, 256, 1024, 4608, 5120]
    """
    return size_class(n, 128, 8)


@dataclass(frozen=True)
class PackedAttentionProblem(SoftmaxAttention):
    """Attention of each sequence by itself; with a causal mask, the last query attends to all keys of its sequence.

    Operations: ``nn.functional.packed_attention`` and ``nn.grad.packed_attention_backward``.
    Roles: ``query`` (rows, heads, E), ``key`` and ``value``; ``cu_seq_q``, and ``cu_seq_k`` where the sequences of keys have
    lengths of their own: 0, then the end of each sequence, int32 or int64, beside the arrays. ``grad`` where gradients are asked
    for, and with that ``output`` and ``lse`` where the call has what attention gave. A Plan serves all positions, which are not
    known before it runs.
    Parameters: ``max_q`` and ``max_k``, lengths that no sequence exceeds; ``is_causal``, ``scale`` and ``enable_gqa`` as in
    `AttentionProblem`; ``return_lse``. ``gaps``: whether there may be rows of no sequence, queries without keys, or keys without
    queries. Results are zero there, and the log-sum-exp minus infinity; without ``gaps`` nothing is written there.
    """

    @cached_property
    def sequences(self) -> int:
        """Number of sequences."""
        positions = self.get("cu_seq_q")
        assert positions is not None
        return positions.shape[0] - 1

    @cached_property
    def alike(self) -> bool:
        """True if every sequence has as many queries as keys."""
        return self.get("cu_seq_k") is None

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of query, key and value: of all sequences together."""
        return tuple(o.shape[0] for o in self.qkv)

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Heads of query, key and value."""
        return tuple(o.shape[1] for o in self.qkv)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Lengths that no sequence of the query, the key and the value exceeds."""
        queries, keys = int(self.parameter("max_q")), int(self.parameter("max_k"))
        return queries, keys, keys

    @property
    def gaps(self) -> bool:
        return bool(self.parameter("gaps", True))

    @property
    def needs_grad(self) -> bool:
        return self.get("grad") is not None

    @cached_property
    def result(self) -> tuple[int, int, int]:
        """Shape of what attention gives."""
        return self.rows[0], self.heads[0], self.dims[2]

    @cached_property
    def flops(self) -> float:
        # Two products, as if every query had as many keys as the longest sequence; a causal mask leaves half of each.
        (dim, _, out), keys = self.dims, min(self.lengths[1], self.rows[1])
        return 2.0 * self.heads[0] * self.rows[0] * keys * (dim + out) * (0.5 if self.is_causal else 1.0)
