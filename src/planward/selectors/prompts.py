"""Token ids of prompts with many combinations of examples: most are concatenated from parts that are encoded once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planward.core.prompts import encode_prompt
from planward.core.records import Record
from planward.core.tasks import Task
from planward.selectors.prefix_groups import Tokens

PromptParts = tuple[Record, Sequence[Record]]  # a query and its examples, in the prompt's order


class PromptEncoder:
    """Encodes prompts of one task with one tokenizer.

    In a style that writes examples one after another and the query last, a prompt's tokens are those of its parts.
    This is checked on one of all prompts that differ in the last example alone. Where the tokens differ (a chat
    template that begins with the query's domain, say), all of them are encoded as a whole.

    Args:
        options: of the chat template.
    """

    def __init__(self, task: Task, tokenizer: Any, options: Mapping[str, Any]) -> None:
        self.task, self.tokenizer, self.options = task, tokenizer, options
        self._queries: dict[str, Tokens] = {}
        self._examples: dict[str, Tokens | None] = {}

    def encode(self, prompts: Sequence[PromptParts]) -> list[Tokens]:
        """Return the token ids of every prompt, in order."""
        alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for i, (query, examples) in enumerate(prompts):
            alike[(query.id, *(example.id for example in examples[:-1]))].append(i)
        token_ids: dict[int, Tokens] = {}
        for indices in alike.values():
            whole = self._encode_whole(*prompts[indices[0]])
            concatenated_ids = [self._concatenate(*prompts[i]) for i in indices]
            if concatenated_ids[0] is None or not np.array_equal(concatenated_ids[0], whole):
                concatenated_ids = [whole, *(self._encode_whole(*prompts[i]) for i in indices[1:])]
            for i, ids in zip(indices, concatenated_ids, strict=True):
                token_ids[i] = self._encode_whole(*prompts[i]) if ids is None else ids
        return [token_ids[i] for i in range(len(prompts))]

    def encode_query(self, query: Record) -> Tokens:
        """Return the token ids of the prompt without examples."""
        if query.id not in self._queries:
            self._queries[query.id] = self._encode_whole(query, [])
        return self._queries[query.id]

    def _encode_whole(self, query: Record, examples: Sequence[Record]) -> Tokens:
        ids = encode_prompt(self.tokenizer, self.task.prompt(query, examples), self.options)
        return np.array(ids, dtype=np.int32)

    def _concatenate(self, query: Record, examples: Sequence[Record]) -> Tokens | None:
        parts = [self._encode_example(example, query) for example in examples]
        known_parts = [part for part in parts if part is not None]
        return np.concatenate([*known_parts, self.encode_query(query)]) if len(known_parts) == len(parts) else None

    def _encode_example(self, example: Record, query: Record) -> Tokens | None:
        """Return the tokens that an example prepends to a prompt; None where it changes more than that."""
        if example.id not in self._examples:
            whole, bare = self._encode_whole(query, [example]), self.encode_query(query)
            num_added = len(whole) - len(bare)
            is_prefix = num_added > 0 and np.array_equal(whole[num_added:], bare)
            self._examples[example.id] = whole[:num_added] if is_prefix else None
        return self._examples[example.id]
