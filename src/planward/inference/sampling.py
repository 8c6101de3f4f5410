"""Sampled completions, with one random number per row and token instead of one per vocabulary entry."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from planward.inference.decoding import decode


class RowTemperatures(LogitsProcessor):
    """Divides the logits [B, V] of each row by its temperature [B]."""

    def __init__(self, temperatures: torch.Tensor) -> None:
        self.temperatures = temperatures

    def __call__(self, _ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return logits / self.temperatures[:, None]


@torch.no_grad()
def sample_completions(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, config: GenerationConfig, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts and completions [B, P + C], and the entropy of each completion [B], in nats.

    The entropy is summed over the completion's tokens, each that of the distribution at the row's temperature before
    `top_k` and `top_p`, as in TRL's loss. Every token draws random numbers for all rows, finished or not.

    Args:
        ids, mask: as for `decode`.
        config: `top_k` and `top_p` are read, and what `decode` reads.
        temperatures: of each row [B].
    """
    warpers = LogitsProcessorList()
    if config.top_k:
        warpers.append(TopKLogitsWarper(config.top_k))
    if config.top_p is not None and config.top_p < 1:
        warpers.append(TopPLogitsWarper(config.top_p))
    entropies = torch.zeros(len(ids), device=ids.device)

    def choose(logits: torch.Tensor, rows: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        logits = logits.float() / temperatures[rows, None]
        logits -= logits.max(1, keepdim=True).values
        weights = logits.exp()
        total = weights.sum(1)
        entropies[rows] += torch.where(live, total.log() - (weights * logits).sum(1) / total, 0)
        weights = warpers(None, logits).exp() if warpers else weights
        return sample_indices(weights, torch.rand(len(ids), device=ids.device)[rows])

    return decode(model, ids, mask, config, choose), entropies


def sample_indices(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return an index [B] for each row of `weights` [B, V] by inverse transform sampling, from numbers [B] in [0, 1).

    Uniform random numbers give each index with probability proportional to its weight; weight 0 is never sampled.
    """
    sums = weights.cumsum(-1)
    total = sums[:, -1:]
    heights = torch.minimum(numbers[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, heights, right=True)[:, 0]
