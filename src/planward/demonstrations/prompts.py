"""Prompts of many sequences of shots, as tokens: most are put together from parts that were encoded once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from planward.demonstrations.prefixes import Tokens
from planward.records import Record
from planward.tasks.base import Task
from planward.tasks.fitting import encode

Asked = tuple[Record, Sequence[Record]]  # a query and its shots, in the prompt's order


class Prompts:
    """Encodes prompts of one task by one tokenizer.

    In a style that writes shots one behind the other and the query last, a prompt's tokens are those of its parts. So
    that is tried: on one of all prompts that differ in the last shot alone. Where the tokens are others (a chat
    template that begins with the query's domain, say) all of them are encoded whole.
    """

    def __init__(self, task: Task, tokenizer: Any) -> None:
        self.task, self.tokenizer = task, tokenizer
        self._bare: dict[str, Tokens] = {}
        self._parts: dict[str, Tokens | None] = {}

    def encoded(self, asked: Sequence[Asked]) -> list[Tokens]:
        """The token ids of every prompt, in the order given."""
        alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, (query, shots) in enumerate(asked):
            alike[(query.id, *(shot.id for shot in shots[:-1]))].append(place)
        found: dict[int, Tokens] = {}
        for places in alike.values():
            whole = self._whole(*asked[places[0]])
            parts = [self._put_together(*asked[place]) for place in places]
            if parts[0] is None or not np.array_equal(parts[0], whole):
                parts = [whole, *(self._whole(*asked[place]) for place in places[1:])]
            for place, part in zip(places, parts, strict=True):
                found[place] = self._whole(*asked[place]) if part is None else part
        return [found[place] for place in range(len(asked))]

    def bare(self, query: Record) -> Tokens:
        """The prompt without shots."""
        if query.id not in self._bare:
            self._bare[query.id] = self._whole(query, [])
        return self._bare[query.id]

    def _whole(self, query: Record, shots: Sequence[Record]) -> Tokens:
        return np.array(encode(self.tokenizer, self.task.prompt(query, shots)), dtype=np.int32)

    def _put_together(self, query: Record, shots: Sequence[Record]) -> Tokens | None:
        parts = [self._part(shot, query) for shot in shots]
        known = [part for part in parts if part is not None]
        return np.concatenate([*known, self.bare(query)]) if len(known) == len(parts) else None

    def _part(self, shot: Record, query: Record) -> Tokens | None:
        """What a shot puts before a prompt; None where it changes more."""
        if shot.id not in self._parts:
            whole, bare = self._whole(query, [shot]), self.bare(query)
            added = len(whole) - len(bare)
            stands = added > 0 and np.array_equal(whole[added:], bare)
            self._parts[shot.id] = whole[:added] if stands else None
        return self._parts[shot.id]
