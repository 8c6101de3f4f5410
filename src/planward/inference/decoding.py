"""Batched decoding with a shared prompt prefill; finished rows leave the batch.

Transformers' `generate` forwards every copy of a prompt, decodes every row until the last one ends, and copies all keys
and values for every token. Here the distinct prompts are forwarded once, finished rows are dropped, and keys and values
have a preallocated buffer. The completions are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tqdm import tqdm
from transformers import GenerationConfig, GenerationMixin

from planward.inference.attention import group_queries
from planward.inference.cache import has_only_full_layers, preallocate_rows
from planward.inference.vllm import VllmEngine, VllmServer
from planward.params import Generation

MIN_FINISHED_SHARE = 0.2  # of the rows in a batch, before the finished ones are dropped
HARMLESS_SETTINGS = {  # keys of a model's generation settings that do not change greedy completions
    *("_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "max_length", "max_new_tokens", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
}
TokenChooser = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@torch.no_grad()
def generate_greedy(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    batch_size: int,
    *,
    generation: Generation = "own",
    progress: bool = True,
) -> list[str]:
    """Return the greedy completions of prompts (token ids, see `core.prompts.encode_prompt`), in their order.

    Prompts are batched by length and padded on the left, so that short ones do not wait for long ones. Models that
    `decode` does not support use their own `generate`.

    Args:
        model: a network or vLLM.
        generation: `transformers`: a network always uses its own `generate`.
    """
    if isinstance(model, VllmEngine | VllmServer):
        return model.complete(prompts, max_new_tokens, batch_size, progress=progress)
    model.eval()
    use_decode = generation != "transformers" and supports_decode(model)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    completions = [""] * len(prompts)
    for batch, ids, mask in iter_batches(tokenizer, prompts, batch_size, model.device, progress=progress):
        if use_decode:
            tokens = decode(model, ids, mask, config, lambda logits, *_: logits.argmax(-1))
        else:
            tokens = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False)
        texts = tokenizer.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)
        for i, text in zip(batch, texts, strict=True):
            completions[i] = text
    return completions


def iter_batches(
    tokenizer: Any, prompts: Sequence[Sequence[int]], batch_size: int, device: torch.device, *, progress: bool
) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
    """Yield batches of prompts by length: their indices, and left-padded ids and mask [B, P] for `decode`."""
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    for start in tqdm(range(0, len(order), batch_size), desc="generating", unit="batch", disable=not progress):
        batch = order[start : start + batch_size]
        encoding = tokenizer.pad(
            {"input_ids": [list(prompts[i]) for i in batch]}, return_tensors="pt", padding_side="left"
        )
        yield batch, encoding["input_ids"].to(device), encoding["attention_mask"].to(device)


@torch.no_grad()
def decode(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, config: GenerationConfig, choose: TokenChooser
) -> torch.Tensor:
    """Return prompts and completions [B, P + C], for decoders that cache keys and values.

    C is the length of the longest completion; shorter ones are padded.

    Args:
        ids: left-padded prompts [B, P], each repeated for every completion of it.
        mask: 1 for a prompt's tokens, 0 for padding [B, P].
        config: `max_new_tokens`, `eos_token_id` (one token or several) and `pad_token_id` are read.
        choose: returns the next tokens [L], given logits [L, V], the indices of their rows [L], and whether each of
            these rows is unfinished [L].
    """
    size, limit = len(ids), config.max_new_tokens
    completions = ids.new_full((size, limit), config.pad_token_id)
    ends = torch.tensor([] if config.eos_token_id is None else config.eos_token_id, device=ids.device)
    prompts, prompt_mask, prompt_index = find_distinct(ids, mask)
    positions = (prompt_mask.cumsum(-1) - 1).clamp(min=0)
    prefill = model(
        input_ids=prompts, attention_mask=prompt_mask, position_ids=positions, use_cache=True, logits_to_keep=1
    )
    logits = prefill.logits[prompt_index, -1]
    cache = preallocate_rows(prefill.past_key_values, prompt_index, limit - 1)
    rows, positions = torch.arange(size, device=ids.device), mask.sum(1, keepdim=True) - 1
    live = torch.ones_like(rows, dtype=torch.bool)
    with group_queries(model):
        for step in range(limit):
            tokens = choose(logits, rows, live)
            completions[rows[live], step] = tokens[live]
            live = live & ~torch.isin(tokens, ends)
            num_live = int(live.sum())
            if not num_live or step == limit - 1:
                break
            positions, mask = positions + 1, torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            if num_live <= (1 - MIN_FINISHED_SHARE) * len(rows):
                rows, tokens, mask, positions = rows[live], tokens[live], mask[live], positions[live]
                cache.batch_select_indices(live.nonzero()[:, 0])
                live = live[live]
            logits = model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
    return torch.cat([ids, completions[:, : step + 1]], dim=1)


def find_distinct(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the distinct rows of left-padded prompts [B, P], their masks [U, P], and each prompt's row there [B]."""
    rows, index = torch.unique(torch.cat([ids, mask], dim=1), dim=0, return_inverse=True)
    return rows[:, : ids.shape[1]], rows[:, ids.shape[1] :], index


def supports_decode(model: Any) -> bool:
    """Return whether `decode` gives the completions of the model's own `generate`.

    It does not for encoder-decoders, layers that keep anything but keys and values of all tokens (a sliding window, a
    state), penalties and the like in the model's generation settings, and a replaced `generate` (Unsloth). An adapter
    does not matter.
    """
    if hasattr(model, "get_base_model"):  # PEFT
        model = model.get_base_model()
    if (
        getattr(model.config, "is_encoder_decoder", False)
        or getattr(model.generate, "__func__", None) is not GenerationMixin.generate
    ):
        return False
    if not {"position_ids", "logits_to_keep"} <= inspect.signature(type(model).forward).parameters.keys():
        return False
    settings = model.generation_config.to_diff_dict().keys()
    return has_only_full_layers(model.config) and settings <= HARMLESS_SETTINGS
