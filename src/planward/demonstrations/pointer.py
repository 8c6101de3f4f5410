"""The pointer selector: picks worked examples for a query out of a pool, one after another.

Query and candidates pass through one projection; a recurrent state remembers what was chosen, in which order; layers of
cross-attention let that state look over the pool; a pointer (Vinyals et al., 2015, arXiv:1506.03134) then gives every
candidate that is left its probability. Nothing knows where in the pool a candidate stands, so pools may have any size
and order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import normalize

from planward import params
from planward.records import replaced, write_json

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SCALES = (1.0, 0.5)  # of the two cosines at the start: sharp enough to rank, soft enough for the loss to correct
PACE = 10.0  # times the learning rate for the scales' logarithms: one number must get as far as a matrix of them
GAIN = 0.1  # size of the projection at the start: normalised afterwards, so small weights are ones that turn quickly
NOISE = 1e-4  # share of the largest variance that is added to each before whitening
FLAT = 1e-12  # variance of a pool's cosines under which they count as equal


class Pointer(nn.Module):
    """Autoregressive distribution over sequences of candidates without repeats.

    A few hundred queries are too few to learn from nothing what makes an example fit, so nearness is built in. A
    candidate's logit is the sum of two cosines, each in standard deviations over the pool and times a learned scale:
    of the embeddings of query and candidate as they come; and of an aim and the candidate in the projection, where
    the aim is the projected query plus what the decoder makes of query, pool and earlier choices. The decoder's part
    starts at zero and the projection keeps angles at first: untrained, the pointer chooses nearly what the cosine
    does, and training moves what it takes for near.

    Args:
        embedding_size: D, the numbers in an embedding.
        settings: of the network.
    """

    mean: torch.Tensor
    whitening: torch.Tensor

    def __init__(self, embedding_size: int, settings: params.Pointer) -> None:
        super().__init__()
        self.embedding_size, self.settings = embedding_size, settings
        hidden, width = settings.hidden, min(embedding_size, settings.hidden)
        self.register_buffer("mean", torch.zeros(embedding_size))
        self.register_buffer("whitening", nn.init.orthogonal_(torch.empty(embedding_size, width)))
        self.projection = nn.Linear(width, hidden)
        self.projection_norm = nn.LayerNorm(hidden)
        self.memory = nn.GRUCell(hidden, hidden)
        self.layers = nn.ModuleList(_Layer(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(hidden)
        self.aim = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(settings.dropout)
        self.log_scales = nn.Parameter(torch.tensor(SCALES).log())
        nn.init.orthogonal_(self.projection.weight, GAIN)
        for start_at_zero in (self.projection.bias, self.aim.weight, self.aim.bias):
            nn.init.zeros_(start_at_zero)

    @torch.no_grad()
    def whiten(self, mean: torch.Tensor, covariance: torch.Tensor) -> None:
        """Let the projection see embeddings with this mean [D] and covariance [D, D] as uncorrelated, of variance 1.

        What tells two dialects apart is a small part of an embedding beside what tells two domains apart, and would be
        learnt as slowly. Principal components beyond `hidden` are dropped; those with next to no variance, which is
        noise, stay small.
        """
        variances, axes = torch.linalg.eigh(covariance.double())
        width = self.whitening.shape[1]
        variances, axes = variances[-width:].clamp(min=0), axes[:, -width:]
        signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # an axis has no direction of its own
        floor = NOISE * variances[-1]  # 0 where all embeddings are the same, and nothing is to be seen
        self.mean.copy_(mean)
        self.whitening.copy_(axes * signs * torch.where(floor > 0, (variances + floor).rsqrt(), 0.0))

    def paces(self) -> list[dict[str, Any]]:
        """Groups of parameters for an optimizer; the learning rate of each is to be multiplied by its `pace`."""
        others = [weights for name, weights in self.named_parameters() if name != "log_scales"]
        return [{"params": others, "pace": 1.0}, {"params": [self.log_scales], "pace": PACE}]

    def sequence_log_probs(
        self, query: torch.Tensor, pool: torch.Tensor, mask: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """Return the log-probabilities [Q, B, K, P] of every candidate at every step of given sequences.

        Padding and what a sequence chose before have -inf: their probability is exactly zero.

        Args:
            query: embeddings [Q, D].
            pool: embeddings of the candidates [Q, P, D].
            mask: true for a candidate, false for padding [Q, P].
            chosen: places in the pool [Q, B, K], B sequences of K steps for each query.
        """
        count = chosen.shape[-1]
        origin, candidates = self._projected(query), self._projected(pool)
        taken = torch.zeros(*chosen.shape, pool.shape[1], dtype=torch.bool, device=pool.device)
        memory = origin.new_zeros(chosen.shape[0] * chosen.shape[1], origin.shape[-1])
        memories = [memory]
        for step in range(count - 1):
            memory = self.memory(_picked(candidates, chosen[..., step]).flatten(0, 1), memory)
            memories.append(memory)
            taken[:, :, step + 1] = taken[:, :, step].scatter(-1, chosen[..., step, None], True)
        remembered = torch.stack(memories, dim=1).view(*chosen.shape, -1)
        logits = self._logits(query, pool, mask, origin, candidates, remembered.flatten(1, 2))
        return _log_probs(logits.view(taken.shape), taken | ~mask[:, None, None])

    @torch.no_grad()
    def greedy(self, query: torch.Tensor, pool: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
        """Return places in the pool [Q, count]: at each step the likeliest candidate, dropout off.

        Shapes as for `sequence_log_probs`.

        Raises:
            ValueError: a pool has fewer than `count` candidates.
        """
        if int(mask.sum(1).min()) < count:
            raise ValueError(f"{count} examples are to be chosen from a pool of {int(mask.sum(1).min())}: enlarge it")
        training = self.training
        self.eval()
        origin, candidates = self._projected(query), self._projected(pool)
        memory, taken, chosen = torch.zeros_like(origin), ~mask, list[torch.Tensor]()
        for _ in range(count):
            logits = self._logits(query, pool, mask, origin, candidates, memory[:, None])[:, 0]
            chosen.append(_log_probs(logits, taken).argmax(-1))
            taken = taken.scatter(-1, chosen[-1][:, None], True)
            memory = self.memory(_picked(candidates, chosen[-1][:, None])[:, 0], memory)
        self.train(training)
        return torch.stack(chosen, dim=1)

    def _projected(self, embeddings: torch.Tensor) -> torch.Tensor:
        seen = self.dropout((embeddings - self.mean) @ self.whitening)
        return cast(torch.Tensor, self.projection_norm(self.projection(seen)))

    def _logits(
        self,
        query: torch.Tensor,
        pool: torch.Tensor,
        mask: torch.Tensor,
        origin: torch.Tensor,
        candidates: torch.Tensor,
        memories: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [Q, S, P] in S states of the memory [Q, S, H]; those of padding mean nothing."""
        states = self.dropout(origin[:, None] + memories)
        for layer in self.layers:
            states = layer(states, candidates, mask)
        aims = origin[:, None] + self.aim(self.norm(states))
        given, learned = self.log_scales.exp()
        nearness = given * _nearness(query[:, None], pool, mask) + learned * _nearness(aims, candidates, mask)
        return cast(torch.Tensor, nearness)


class _Layer(nn.Module):
    """States look over the pool: cross-attention, then a feed-forward network, each behind a normalisation."""

    def __init__(self, settings: params.Pointer) -> None:
        super().__init__()
        hidden = settings.hidden
        self.attention_norm, self.network_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, settings.heads, settings.dropout, batch_first=True)
        self.network = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, states: torch.Tensor, candidates: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States [Q, S, H] after looking at candidates [Q, P, H] where mask [Q, P] is true."""
        asked = self.attention_norm(states)
        seen, _ = self.attention(asked, candidates, candidates, key_padding_mask=~mask, need_weights=False)
        looked: torch.Tensor = states + self.dropout(seen)
        return looked + cast(torch.Tensor, self.dropout(self.network(self.network_norm(looked))))


def padded_pools(pools: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pools [P_i, D] as one tensor [Q, P, D], zeros behind the shorter ones, and what of it is theirs [Q, P]."""
    pool = torch.nn.utils.rnn.pad_sequence(list(pools), batch_first=True)
    lengths = torch.tensor([len(own) for own in pools])
    return pool, torch.arange(pool.shape[1]) < lengths[:, None]


def save_pointer(pointer: Pointer, folder: Path) -> None:
    """Write model.safetensors and config.json into `folder`."""
    with replaced(folder / WEIGHTS) as partial:
        save_file({name: tensor.contiguous() for name, tensor in pointer.state_dict().items()}, partial)
    write_json(folder / CONFIG, {"embedding_size": pointer.embedding_size, **pointer.settings.model_dump()})


def load_pointer(folder: Path) -> Pointer:
    """Read what `save_pointer` wrote; the pointer is in evaluation mode.

    Raises:
        ValueError: there is no pointer, its two files do not belong together, or config.json is no pointer's.
    """
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: holds no {CONFIG}; train this selector first")
    try:
        config = dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        pointer = Pointer(config.pop("embedding_size"), params.Pointer.model_validate(config))
        pointer.load_state_dict(load_file(folder / WEIGHTS))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{folder}: {CONFIG} and {WEIGHTS} are not a pointer's; train the selector anew") from error
    return pointer.eval()


def _picked(candidates: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Candidates [Q, P, H] at places [Q, B]: [Q, B, H]."""
    return candidates.gather(1, places[..., None].expand(-1, -1, candidates.shape[-1]))


def _nearness(aims: torch.Tensor, candidates: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Cosine of aim [Q, S, H] and candidate [Q, P, H], in deviations over the pool [Q, S, P]; 0 if all equal."""
    cosine = normalize(aims, dim=-1) @ normalize(candidates, dim=-1).transpose(1, 2)
    present, number = mask[:, None], mask.sum(1)[:, None, None]
    centred = (cosine - (cosine * present).sum(-1, keepdim=True) / number) * present
    variance = centred.square().sum(-1, keepdim=True) / number
    return centred / variance.clamp(min=FLAT).sqrt()


def _log_probs(logits: torch.Tensor, excluded: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(excluded, -torch.inf).log_softmax(-1)
