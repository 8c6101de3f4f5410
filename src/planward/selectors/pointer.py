"""The pointer selector: a pointer network that chooses worked examples for a query from a pool, one after another.

Query and candidates pass through one projection; a recurrent state encodes the earlier choices and their order; layers
of cross-attention let that state attend to the pool; a pointer (Vinyals et al., 2015, arXiv:1506.03134) then gives a
probability to every candidate not chosen yet. There is no positional encoding of the pool, so pools may have any size
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

from planward.core.files import replace_atomic, write_json
from planward.selectors.config import PointerConfig

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"
INITIAL_SCALES = (1.0, 0.5)  # of the two cosines: sharp enough to rank, soft enough for the loss to correct
SCALE_LR_FACTOR = 10.0  # of the scales' logarithms: two numbers must move as far as whole matrices
PROJECTION_GAIN = 0.1  # initial size of the projection: its output is normalised, so small weights learn faster
NOISE_SHARE = 1e-4  # of the largest variance; added to each before whitening
MIN_VARIANCE = 1e-12  # of a pool's cosines, below which they count as equal


class Pointer(nn.Module):
    """Autoregressive distribution over sequences of candidates without repetition.

    A few hundred queries are too few to learn from scratch what makes an example fit, so similarity is built in. A
    candidate's logit is the sum of two cosines, each in standard deviations over the pool and times a learned scale:
    of the raw embeddings of query and candidate; and of an aim and the candidate in the projection, where the aim is
    the projected query plus what the decoder computes from query, pool and earlier choices. The decoder's term starts
    at zero and the projection preserves angles at first: the untrained pointer chooses nearly what the cosine does,
    and training changes what counts as similar.

    Args:
        embedding_size: D, the numbers in an embedding.
        config: of the network.
    """

    mean: torch.Tensor
    whitening: torch.Tensor

    def __init__(self, embedding_size: int, config: PointerConfig) -> None:
        super().__init__()
        self.embedding_size, self.config = embedding_size, config
        hidden, width = config.hidden, min(embedding_size, config.hidden)
        self.register_buffer("mean", torch.zeros(embedding_size))
        self.register_buffer("whitening", nn.init.orthogonal_(torch.empty(embedding_size, width)))
        self.projection = nn.Linear(width, hidden)
        self.projection_norm = nn.LayerNorm(hidden)
        self.memory = nn.GRUCell(hidden, hidden)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(hidden)
        self.aim = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.log_scales = nn.Parameter(torch.tensor(INITIAL_SCALES).log())
        nn.init.orthogonal_(self.projection.weight, PROJECTION_GAIN)
        for parameter in (self.projection.bias, self.aim.weight, self.aim.bias):
            nn.init.zeros_(parameter)

    @torch.no_grad()
    def set_whitening(self, mean: torch.Tensor, covariance: torch.Tensor) -> None:
        """Whiten the projection's input: embeddings with this mean [D] and covariance [D, D] get variance 1.

        What distinguishes two dialects is a small part of an embedding compared with what distinguishes two domains,
        and would be learned as slowly. Principal components beyond `hidden` are dropped; those with almost no
        variance, which is noise, stay small.
        """
        variances, axes = torch.linalg.eigh(covariance.double())
        width = self.whitening.shape[1]
        variances, axes = variances[-width:].clamp(min=0), axes[:, -width:]
        signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # an eigenvector's sign is arbitrary
        floor = NOISE_SHARE * variances[-1]  # 0 where all embeddings are the same: the input is zeroed
        self.mean.copy_(mean)
        self.whitening.copy_(axes * signs * torch.where(floor > 0, (variances + floor).rsqrt(), 0.0))

    def build_parameter_groups(self) -> list[dict[str, Any]]:
        """Build the optimizer's parameter groups; each one's learning rate is to be multiplied by its `lr_factor`."""
        others = [parameter for name, parameter in self.named_parameters() if name != "log_scales"]
        return [{"params": others, "lr_factor": 1.0}, {"params": [self.log_scales], "lr_factor": SCALE_LR_FACTOR}]

    def compute_log_probs(
        self, query: torch.Tensor, pool: torch.Tensor, mask: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        """Compute the log-probabilities [Q, B, K, P] of every candidate at every step of fixed sequences.

        Padding and earlier choices of a sequence have -inf: their probability is exactly zero.

        Args:
            query: embeddings [Q, D].
            pool: embeddings of the candidates [Q, P, D].
            mask: true for a candidate, false for padding [Q, P].
            chosen: indices into the pool [Q, B, K], B sequences of K steps for each query.
        """
        count = chosen.shape[-1]
        origin, candidates = self._project(query), self._project(pool)
        exclusion_mask = torch.zeros(*chosen.shape, pool.shape[1], dtype=torch.bool, device=pool.device)
        memory = origin.new_zeros(chosen.shape[0] * chosen.shape[1], origin.shape[-1])
        memories = [memory]
        for step in range(count - 1):
            memory = self.memory(_select_candidates(candidates, chosen[..., step]).flatten(0, 1), memory)
            memories.append(memory)
            exclusion_mask[:, :, step + 1] = exclusion_mask[:, :, step].scatter(-1, chosen[..., step, None], True)
        states = torch.stack(memories, dim=1).view(*chosen.shape, -1)
        logits = self._compute_logits(query, pool, mask, origin, candidates, states.flatten(1, 2))
        return _log_softmax(logits.view(exclusion_mask.shape), exclusion_mask | ~mask[:, None, None])

    @torch.no_grad()
    def choose_greedily(self, query: torch.Tensor, pool: torch.Tensor, mask: torch.Tensor, count: int) -> torch.Tensor:
        """Choose the most likely candidate at each step, without dropout: indices into the pool [Q, count].

        Shapes as for `compute_log_probs`.

        Raises:
            ValueError: a pool has fewer than `count` candidates.
        """
        if int(mask.sum(1).min()) < count:
            raise ValueError(f"cannot choose {count} examples from a pool of {int(mask.sum(1).min())}; fix: enlarge it")
        training = self.training
        self.eval()
        origin, candidates = self._project(query), self._project(pool)
        memory, exclusion_mask, choices = torch.zeros_like(origin), ~mask, list[torch.Tensor]()
        for _ in range(count):
            logits = self._compute_logits(query, pool, mask, origin, candidates, memory[:, None])[:, 0]
            choices.append(_log_softmax(logits, exclusion_mask).argmax(-1))
            exclusion_mask = exclusion_mask.scatter(-1, choices[-1][:, None], True)
            memory = self.memory(_select_candidates(candidates, choices[-1][:, None])[:, 0], memory)
        self.train(training)
        return torch.stack(choices, dim=1)

    def _project(self, embeddings: torch.Tensor) -> torch.Tensor:
        inputs = self.dropout((embeddings - self.mean) @ self.whitening)
        return cast(torch.Tensor, self.projection_norm(self.projection(inputs)))

    def _compute_logits(
        self,
        query: torch.Tensor,
        pool: torch.Tensor,
        mask: torch.Tensor,
        origin: torch.Tensor,
        candidates: torch.Tensor,
        memories: torch.Tensor,
    ) -> torch.Tensor:
        """Logits [Q, S, P] for S recurrent states [Q, S, H]; those of padding are undefined."""
        states = self.dropout(origin[:, None] + memories)
        for layer in self.layers:
            states = layer(states, candidates, mask)
        aims = origin[:, None] + self.aim(self.norm(states))
        raw_scale, learned_scale = self.log_scales.exp()
        raw_similarity = _compute_similarity(query[:, None], pool, mask)
        learned_similarity = _compute_similarity(aims, candidates, mask)
        return cast(torch.Tensor, raw_scale * raw_similarity + learned_scale * learned_similarity)


class _Layer(nn.Module):
    """Cross-attention of states to the pool, then a feed-forward network, each with pre-normalisation."""

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.attention_norm, self.network_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = nn.MultiheadAttention(hidden, config.heads, config.dropout, batch_first=True)
        self.network = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, states: torch.Tensor, candidates: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Update states [Q, S, H] from candidates [Q, P, H] where mask [Q, P] is true."""
        queries = self.attention_norm(states)
        context, _ = self.attention(queries, candidates, candidates, key_padding_mask=~mask, need_weights=False)
        new_states: torch.Tensor = states + self.dropout(context)
        return new_states + cast(torch.Tensor, self.dropout(self.network(self.network_norm(new_states))))


def pad_pools(pools: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad pools [P_i, D] with zeros to one tensor [Q, P, D]; returns it and its mask [Q, P]."""
    padded_pools = torch.nn.utils.rnn.pad_sequence(list(pools), batch_first=True)
    lengths = torch.tensor([len(pool) for pool in pools])
    return padded_pools, torch.arange(padded_pools.shape[1]) < lengths[:, None]


def save_pointer(pointer: Pointer, folder: Path) -> None:
    """Write model.safetensors and config.json into `folder`."""
    with replace_atomic(folder / WEIGHTS_FILE) as partial:
        save_file({name: tensor.contiguous() for name, tensor in pointer.state_dict().items()}, partial)
    write_json(folder / CONFIG_FILE, {"embedding_size": pointer.embedding_size, **pointer.config.model_dump()})


def load_pointer(folder: Path) -> Pointer:
    """Load what `save_pointer` wrote; the pointer is in evaluation mode.

    Raises:
        ValueError: a file is missing or is not a pointer's, or the two do not belong together.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder}: no {CONFIG_FILE}; fix: train this selector first")
    try:
        config = dict(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))
        pointer = Pointer(config.pop("embedding_size"), PointerConfig.model_validate(config))
        pointer.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{folder}: {CONFIG_FILE} and {WEIGHTS_FILE} are not a pointer's; fix: train the selector again"
        ) from error
    return pointer.eval()


def _select_candidates(candidates: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Select candidates [Q, P, H] by indices [Q, B]: [Q, B, H]."""
    return candidates.gather(1, indices[..., None].expand(-1, -1, candidates.shape[-1]))


def _compute_similarity(aims: torch.Tensor, candidates: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Cosine of aim [Q, S, H] and candidate [Q, P, H], as z-scores over the pool [Q, S, P]; 0 if all equal."""
    cosine = normalize(aims, dim=-1) @ normalize(candidates, dim=-1).transpose(1, 2)
    present, count = mask[:, None], mask.sum(1)[:, None, None]
    centred_cosine = (cosine - (cosine * present).sum(-1, keepdim=True) / count) * present
    variance = centred_cosine.square().sum(-1, keepdim=True) / count
    return centred_cosine / variance.clamp(min=MIN_VARIANCE).sqrt()


def _log_softmax(logits: torch.Tensor, exclusion_mask: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(exclusion_mask, -torch.inf).log_softmax(-1)
