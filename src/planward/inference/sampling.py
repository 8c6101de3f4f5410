"""Sampled completions, with one random number per row and token instead of one per vocabulary entry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from planward.inference.decoding import decode, iter_batches, supports_decode
from planward.inference.vllm import VllmEngine, VllmServer
from planward.params import Generation


@dataclass(frozen=True)
class Sample:
    """A sampled completion, and the number of its tokens with the one that ends it."""

    text: str
    num_tokens: int


@torch.no_grad()
def generate_samples(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    num_samples: int,
    temperature: float,
    max_new_tokens: int,
    batch_size: int,
    seed: int,
    *,
    generation: Generation = "own",
    progress: bool = True,
) -> list[list[Sample]]:
    """Return `num_samples` completions of each prompt (token ids), sampled from the whole distribution.

    The random numbers of a sample depend on `seed`, its prompt and its position only: the first samples are the same
    for a larger `num_samples`, other prompts and batches. Models that `decode` does not support use their own
    `generate`, vLLM its own sampling: the numbers are then those of the batch or of vLLM.

    Args:
        model: a network or vLLM.
        batch_size: completions, not prompts.
        generation: `transformers`: a network always uses its own `generate`.
    """
    if isinstance(model, VllmEngine | VllmServer):
        texts = model.sample(prompts, max_new_tokens, num_samples, temperature, seed, progress=progress)
        return [[Sample(text, len(tokenizer(text).input_ids) + 1) for text in row] for row in texts]
    model.eval()
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    use_decode = generation != "transformers" and supports_decode(model)
    rows = [prompt for prompt in prompts for _ in range(num_samples)]
    numbers = [draw_numbers(seed, prompt, num_samples, max_new_tokens) for prompt in prompts]
    samples: list[Sample] = [Sample("", 0)] * len(rows)
    for batch, ids, mask in iter_batches(tokenizer, rows, batch_size, model.device, progress=progress):
        if use_decode:
            draws = np.stack([numbers[i // num_samples][i % num_samples] for i in batch])
            tokens = _decode_samples(model, ids, mask, config, temperature, torch.from_numpy(draws).to(model.device))
        else:
            with _replace_settings(model, config), torch.random.fork_rng():
                torch.manual_seed(int.from_bytes(hashlib.sha256(f"{seed}:{batch[0]}".encode()).digest()[:7]))
                tokens = model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    max_new_tokens=max_new_tokens,
                    do_sample=True,
                    temperature=temperature,
                    top_k=0,
                    top_p=1.0,
                )
        completions = tokens[:, ids.shape[1] :]
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        for i, text, length in zip(batch, texts, _count_tokens(completions, config.eos_token_id), strict=True):
            samples[i] = Sample(text, length)
    return [samples[start : start + num_samples] for start in range(0, len(samples), num_samples)]


@contextmanager
def _replace_settings(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Set a model's generation settings: its `generate` takes from them what a call leaves open, such as penalties."""
    networks = [model, model.get_base_model()] if hasattr(model, "get_base_model") else [model]  # PEFT sets the base's
    originals = [network.generation_config for network in networks]
    model.generation_config = config
    try:
        yield
    finally:
        for network, original in zip(networks, originals, strict=True):
            network.generation_config = original


def draw_numbers(seed: int, prompt: Sequence[int], num_samples: int, length: int) -> NDArray[np.float32]:
    """Draw the random numbers of a prompt's samples, in [0, 1) [num_samples, length]."""
    digest = hashlib.sha256(np.asarray(prompt, dtype=np.int64).tobytes()).digest()
    generator = np.random.default_rng([seed, *np.frombuffer(digest, dtype=np.uint32).tolist()])
    return generator.random((num_samples, length), dtype=np.float32)


def _decode_samples(
    model: Any,
    ids: torch.Tensor,
    mask: torch.Tensor,
    config: GenerationConfig,
    temperature: float,
    numbers: torch.Tensor,
) -> torch.Tensor:
    """Return prompts and completions [B, P + C] from `numbers` [B, max_new_tokens]."""
    steps = count()

    def choose(logits: torch.Tensor, rows: torch.Tensor, _live: torch.Tensor) -> torch.Tensor:
        return sample_indices(torch.softmax(logits.float() / temperature, 1), numbers[rows, next(steps)])

    return decode(model, ids, mask, config, choose)


def _count_tokens(completions: torch.Tensor, ends: int | list[int] | None) -> list[int]:
    """Return the length of each completion [B, C] up to the token that ends it."""
    is_end = torch.isin(completions, torch.tensor([] if ends is None else ends, device=completions.device))
    before = (is_end.cumsum(1) - is_end.long() == 0).sum(1)
    return [int(length) for length in before]


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
