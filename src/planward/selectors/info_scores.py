"""Info scores: how much more likely a query's reference plan becomes with a sequence of worked examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch

from planward.core.prompts import PromptTooLong, encode_completion
from planward.core.records import Record
from planward.core.tasks import Task
from planward.inference.continuation import PrefixDecoder, PrefixStates
from planward.inference.precision import Precision
from planward.selectors.batching import batch_by_length
from planward.selectors.prefix_groups import PrefixGroup, Tokens, group_by_prefix
from planward.selectors.prompts import PromptEncoder, PromptParts


class InfoScorer:
    """Scores sequences of examples with a frozen language model.

    The info score is log p(completion | examples, query) - log p(completion | query), in nats, summed over the tokens
    of the query's reference completion and the end-of-sequence token. Common prefixes are computed once, and logits
    for the completions only.

    Args:
        max_tokens: of a prompt; sequences with longer prompts score -inf.
        batch_tokens: maximum tokens of a forward pass, and of the prefixes cached at a time. A processor is fastest
            where a pass fits into its caches.
        precision: of the model's matrix products.
        options: of the chat template.
    """

    def __init__(
        self,
        task: Task,
        model: Any,
        tokenizer: Any,
        *,
        max_tokens: int,
        batch_tokens: int,
        precision: Precision = "float32",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.task, self.tokenizer, self.max_tokens, self.batch_tokens = task, tokenizer, max_tokens, batch_tokens
        self.encoder, self.decoder = PromptEncoder(task, tokenizer, options or {}), PrefixDecoder(model, precision)
        self._completions: dict[str, Tokens] = {}
        self._without_examples: dict[str, float] = {}

    def __call__(
        self, prompts: Sequence[PromptParts], on_progress: Callable[[int], object] = lambda _: None
    ) -> list[float]:
        """Compute the info scores of queries with their examples; -inf where the prompt is too long.

        Args:
            on_progress: called with the number of sequences scored since its last call.

        Raises:
            PromptTooLong: a query does not fit even without examples.
            ValueError: a completion holds a word outside the model's vocabulary.
        """
        new = {query.id: query for query, _ in prompts if query.id not in self._without_examples}
        for query in new.values():
            if (tokens := len(self.encoder.encode_query(query))) > self.max_tokens:
                raise PromptTooLong(
                    f"problem {query.id} ({query.meta.problem_file}) takes {tokens} tokens without a worked example; "
                    f"prompt.max_tokens is {self.max_tokens}"
                )
        without_examples = self.compute_log_likelihoods([(query, []) for query in new.values()])
        self._without_examples |= dict(zip(new, without_examples, strict=True))
        with_examples = self.compute_log_likelihoods(prompts, on_progress)
        return [
            value - self._without_examples[query.id] for (query, _), value in zip(prompts, with_examples, strict=True)
        ]

    def compute_log_likelihoods(
        self, prompts: Sequence[PromptParts], on_progress: Callable[[int], object] = lambda _: None
    ) -> list[float]:
        """Compute log p(completion | examples, query); -inf where the prompt is too long."""
        token_ids = self.encoder.encode(prompts)
        fitting_indices = [i for i, ids in enumerate(token_ids) if len(ids) <= self.max_tokens]
        on_progress(len(prompts) - len(fitting_indices))
        rows = [_Row(token_ids[i], self._encode_completion(prompts[i][0])) for i in fitting_indices]
        values = [-inf] * len(prompts)
        for indices, log_likelihoods in _iter_log_likelihoods(self.decoder, rows, self.batch_tokens):
            for i, value in zip(indices, log_likelihoods, strict=True):
                values[fitting_indices[i]] = value
            on_progress(len(indices))
        return values

    def _encode_completion(self, query: Record) -> Tokens:
        if query.id not in self._completions:
            ids = encode_completion(self.tokenizer, query.id, self.task.reference_completion(query))
            self._completions[query.id] = np.array(ids, dtype=np.int32)
        return self._completions[query.id]


@dataclass(frozen=True)
class _Row:
    prompt: Tokens
    completion: Tokens

    def suffix(self, prefix_length: int) -> Tokens:
        """The input after so many tokens of the prompt; the completion's last token predicts nothing."""
        return np.concatenate([self.prompt[prefix_length:], self.completion[:-1]])


def _iter_log_likelihoods(
    decoder: PrefixDecoder, rows: Sequence[_Row], batch_tokens: int
) -> Iterator[tuple[list[int], list[float]]]:
    """Yield indices of rows with the log-probabilities of their completions, batch by batch."""
    prompts = [row.prompt for row in rows]
    all_groups = group_by_prefix(prompts) if decoder.shares else [PrefixGroup([i], 0) for i in range(len(rows))]
    for groups in _split_groups(all_groups, batch_tokens):
        states = _compute_prefix_states(
            decoder, [prompts[group.members[0]][: group.length] for group in groups], batch_tokens
        )
        members = [(row, prefix) for prefix, group in enumerate(groups) for row in group.members]
        suffixes = [rows[row].suffix(groups[prefix].length) for row, prefix in members]
        prefix_lengths = [groups[prefix].length for _, prefix in members]
        for batch in batch_by_length([len(suffix) for suffix in suffixes], batch_tokens, prefix_lengths):
            prefixes = torch.tensor([members[i][1] for i in batch], device=decoder.device)
            indices = [members[i][0] for i in batch]
            completions = [rows[row].completion for row in indices]
            inputs = [suffixes[i] for i in batch]
            yield indices, _compute_completion_log_probs(decoder, inputs, completions, states, prefixes)


def _split_groups(groups: Sequence[PrefixGroup], batch_tokens: int) -> Iterator[list[PrefixGroup]]:
    """Split groups, in order, so that the prefixes of each part hold up to `batch_tokens` tokens."""
    part, tokens = list[PrefixGroup](), 0
    for group in groups:
        if part and tokens + group.length > batch_tokens:
            yield part
            part, tokens = [], 0
        part.append(group)
        tokens += group.length
    if part:
        yield part


@torch.inference_mode()
def _compute_prefix_states(decoder: PrefixDecoder, prefixes: Sequence[Tokens], batch_tokens: int) -> PrefixStates:
    lengths = [len(prefix) for prefix in prefixes]
    layers = list[tuple[torch.Tensor, torch.Tensor]]()
    non_empty = [i for i, length in enumerate(lengths) if length]
    for batch in batch_by_length([lengths[i] for i in non_empty], batch_tokens, non_empty):
        indices = [non_empty[i] for i in batch]
        ids = _pad([prefixes[i] for i in indices], decoder.device)
        new_layers = decoder.compute_states(ids)
        if not layers:
            size = (len(prefixes), new_layers[0][0].shape[1], max(lengths))
            layers = [(k.new_zeros(*size, k.shape[-1]), v.new_zeros(*size, v.shape[-1])) for k, v in new_layers]
        for layer, new_layer in zip(layers, new_layers, strict=True):
            for all_states, batch_states in zip(layer, new_layer, strict=True):
                all_states[indices, :, : ids.shape[1]] = batch_states
    return PrefixStates(layers, torch.tensor(lengths, device=decoder.device))


@torch.inference_mode()
def _compute_completion_log_probs(
    decoder: PrefixDecoder,
    suffixes: Sequence[Tokens],
    completions: Sequence[Tokens],
    states: PrefixStates,
    prefixes: torch.Tensor,
) -> list[float]:
    """Log-probabilities of the completions, predicted at the ends of `suffixes`; `prefixes` [B] come before these."""
    ids = _pad(suffixes, decoder.device)
    ends, counts = (
        torch.tensor([len(tokens) for tokens in sequences], device=decoder.device)[:, None]
        for sequences in (suffixes, completions)
    )
    position = torch.arange(ids.shape[1], device=decoder.device)
    predicts = (ends - counts <= position) & (position < ends)
    targets = torch.from_numpy(np.concatenate(completions)).long().to(decoder.device)
    log_probs = (
        decoder.compute_logits(ids, states, prefixes, predicts).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    )
    by_position = torch.zeros_like(predicts, dtype=torch.float64).masked_scatter_(predicts, log_probs.double())
    return list(by_position.sum(-1).tolist())


def _pad(sequences: Sequence[Tokens], device: torch.device) -> torch.Tensor:
    """Token ids [B, T], padded on the right, where causal attention does not see it."""
    ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    return torch.from_numpy(ids).to(device)
