"""Batches of sequences of similar length, so that little is padding."""

from __future__ import annotations

from collections.abc import Sequence


def batch_by_length(lengths: Sequence[int], batch_tokens: int, ties: Sequence[int] | None = None) -> list[list[int]]:
    """Split sequences, the shortest first, into batches of at most `batch_tokens` tokens when padded.

    Returns indices into `lengths`. A longer sequence has a batch to itself.

    Args:
        ties: decide the order of equal lengths, before the index.
    """
    batches = list[list[int]]()
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], ties[i] if ties else 0, i)):
        if batches and (len(batches[-1]) + 1) * lengths[i] <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
