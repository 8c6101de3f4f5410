"""Info scores: how much more likely a query's reference answer becomes behind a sequence of worked examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import torch

from planward.demonstrations.decoder import Decoder, Precision, States
from planward.demonstrations.prefixes import Group, Tokens, groups
from planward.demonstrations.prompts import Asked, Prompts
from planward.records import Record
from planward.tasks.base import Task
from planward.tasks.fitting import PromptTooLong, answer_ids


class InfoScores:
    """Scores sequences of shots by a frozen language model.

    The info score is log p(answer | shots, query) - log p(answer | query), in nats, summed over the tokens of the
    query's reference answer and the end-of-sequence token. Sequences that begin alike share the computation of their
    beginning, and logits are computed for the answers alone.

    Args:
        max_tokens: of a prompt; sequences with longer ones score -inf.
        batch_tokens: tokens a forward pass, and tokens of beginnings that are kept at a time. A processor is fastest
            where a pass fits into its caches.
        precision: of the model's matrix products.
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
    ) -> None:
        self.task, self.tokenizer, self.max_tokens, self.batch_tokens = task, tokenizer, max_tokens, batch_tokens
        self.prompts, self.decoder = Prompts(task, tokenizer), Decoder(model, precision)
        self._answers: dict[str, Tokens] = {}
        self._without: dict[str, float] = {}

    def __call__(self, asked: Sequence[Asked], done: Callable[[int], object] = lambda _: None) -> list[float]:
        """Return the info scores of queries with their shots; -inf where the prompt is too long.

        Args:
            done: is told how many of the sequences were scored since it was told last.

        Raises:
            PromptTooLong: a query does not fit even without shots.
            ValueError: an answer holds a word outside the model's vocabulary.
        """
        new = {query.id: query for query, _ in asked if query.id not in self._without}
        for query in new.values():
            if (tokens := len(self.prompts.bare(query))) > self.max_tokens:
                raise PromptTooLong(
                    f"problem {query.id} ({query.meta.problem_file}) takes {tokens} tokens without a worked example; "
                    f"prompt.max_tokens is {self.max_tokens}"
                )
        without = self.log_likelihoods([(query, []) for query in new.values()])
        self._without |= dict(zip(new, without, strict=True))
        behind = self.log_likelihoods(asked, done)
        return [value - self._without[query.id] for (query, _), value in zip(asked, behind, strict=True)]

    def log_likelihoods(self, asked: Sequence[Asked], done: Callable[[int], object] = lambda _: None) -> list[float]:
        """Return log p(answer | shots, query) of queries with their shots; -inf where the prompt is too long."""
        prompts = self.prompts.encoded(asked)
        fitting = [place for place, prompt in enumerate(prompts) if len(prompt) <= self.max_tokens]
        done(len(asked) - len(fitting))
        rows = [_Row(prompts[place], self._answer(asked[place][0])) for place in fitting]
        values = [-inf] * len(asked)
        for places, likelihoods in _likelihoods(self.decoder, rows, self.batch_tokens):
            for place, value in zip(places, likelihoods, strict=True):
                values[fitting[place]] = value
            done(len(places))
        return values

    def _answer(self, query: Record) -> Tokens:
        if query.id not in self._answers:
            ids = answer_ids(self.tokenizer, query.id, self.task.answer(query))
            self._answers[query.id] = np.array(ids, dtype=np.int32)
        return self._answers[query.id]


@dataclass(frozen=True)
class _Row:
    prompt: Tokens
    answer: Tokens

    def behind(self, beginning: int) -> Tokens:
        """What is forwarded behind so many of the prompt's tokens; the end of the answer predicts nothing."""
        return np.concatenate([self.prompt[beginning:], self.answer[:-1]])


def _likelihoods(decoder: Decoder, rows: Sequence[_Row], batch_tokens: int) -> Iterator[tuple[list[int], list[float]]]:
    """Yield places of rows with the log-probabilities of their answers, batch by batch."""
    prompts = [row.prompt for row in rows]
    divided = groups(prompts) if decoder.shares else [Group([place], 0) for place in range(len(rows))]
    for lot in _lots(divided, batch_tokens):
        states = _states(decoder, [prompts[group.members[0]][: group.length] for group in lot], batch_tokens)
        members = [(place, number) for number, group in enumerate(lot) for place in group.members]
        owns = [rows[place].behind(lot[number].length) for place, number in members]
        ties = [lot[number].length for _, number in members]
        for batch in _batches([len(own) for own in owns], ties, batch_tokens):
            beginnings = torch.tensor([members[one][1] for one in batch], device=decoder.device)
            places = [members[one][0] for one in batch]
            answers = [rows[place].answer for place in places]
            yield places, _answer_logps(decoder, [owns[one] for one in batch], answers, states, beginnings)


def _lots(divided: Sequence[Group], batch_tokens: int) -> Iterator[list[Group]]:
    """Divide groups, in their order, so that the beginnings of a lot hold up to `batch_tokens` tokens."""
    lot, tokens = list[Group](), 0
    for group in divided:
        if lot and tokens + group.length > batch_tokens:
            yield lot
            lot, tokens = [], 0
        lot.append(group)
        tokens += group.length
    if lot:
        yield lot


def _batches(lengths: Sequence[int], ties: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield places, the shortest first, so many that they hold up to `batch_tokens` tokens padded; one at least."""
    batch = list[int]()
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], ties[place], place)):
        if batch and (len(batch) + 1) * lengths[place] > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


@torch.inference_mode()
def _states(decoder: Decoder, beginnings: Sequence[Tokens], batch_tokens: int) -> States:
    lengths = [len(beginning) for beginning in beginnings]
    layers = list[tuple[torch.Tensor, torch.Tensor]]()
    some = [place for place, length in enumerate(lengths) if length]
    for batch in _batches([lengths[place] for place in some], some, batch_tokens):
        places = [some[one] for one in batch]
        ids = _padded([beginnings[place] for place in places], decoder.device)
        new = decoder.begun(ids)
        if not layers:
            room = (len(beginnings), new[0][0].shape[1], max(lengths))
            layers = [(k.new_zeros(*room, k.shape[-1]), v.new_zeros(*room, v.shape[-1])) for k, v in new]
        for stores, states in zip(layers, new, strict=True):
            for store, state in zip(stores, states, strict=True):
                store[places, :, : ids.shape[1]] = state
    return States(layers, torch.tensor(lengths, device=decoder.device))


@torch.inference_mode()
def _answer_logps(
    decoder: Decoder, owns: Sequence[Tokens], answers: Sequence[Tokens], states: States, rows: torch.Tensor
) -> list[float]:
    """Log-probabilities of the answers: what the ends of `owns` predict, each behind the beginning `rows` [B]."""
    ids = _padded(owns, decoder.device)
    ends, counts = (
        torch.tensor([len(one) for one in some], device=decoder.device)[:, None] for some in (owns, answers)
    )
    place = torch.arange(ids.shape[1], device=decoder.device)
    wanted = (ends - counts <= place) & (place < ends)
    tokens = torch.from_numpy(np.concatenate(answers)).long().to(decoder.device)
    logps = decoder.logits(ids, states, rows, wanted).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return list(torch.zeros_like(wanted, dtype=torch.float64).masked_scatter_(wanted, logps.double()).sum(-1).tolist())


def _padded(sequences: Sequence[Tokens], device: torch.device) -> torch.Tensor:
    """Token ids [B, T], padded on the right by tokens that none before them sees."""
    ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    return torch.from_numpy(ids).to(device)
