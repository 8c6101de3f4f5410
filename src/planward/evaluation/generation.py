"""Completions: a prompt is computed once for all its copies, and a completion that has ended no more.

Transformers' `generate` forwards every copy of a prompt, goes on with every row until the last one ends, and copies all
keys and values for every token. Here one forward pass over the distinct prompts serves their copies, rows are dropped
as they end, and room for keys and values is made beforehand. What is written is the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tqdm import tqdm
from transformers import DynamicCache, GenerationConfig, GenerationMixin
from transformers.cache_utils import DynamicLayer

ENDED = 0.2  # share of the rows that must have ended before the others move together
WITHOUT_EFFECT = {  # what a model's own generation settings may say without greedy completions changing
    *("_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "max_length", "max_new_tokens", "use_cache"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
}
Choose = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@torch.no_grad()
def greedy_completions(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    batch_size: int,
    *,
    progress: bool = True,
) -> list[str]:
    """Complete every prompt (token ids, as `tasks.fitting.encode` gives them) greedily, in the prompts' order.

    Prompts are batched by length and padded on the left, so that short ones do not wait for long ones. A model that
    `completed` is not for writes by its own `generate`.
    """
    model.eval()
    ends, own = model.generation_config.eos_token_id, not _is_plain(model)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    completions = [""] * len(prompts)
    for start in tqdm(range(0, len(order), batch_size), desc="generating", unit="batch", disable=not progress):
        chosen = order[start : start + batch_size]
        padded = tokenizer.pad(
            {"input_ids": [list(prompts[i]) for i in chosen]}, return_tensors="pt", padding_side="left"
        )
        ids, mask = (padded[name].to(model.device) for name in ("input_ids", "attention_mask"))
        if own:
            tokens = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False)
        else:
            tokens = completed(model, ids, mask, config, lambda logits, *_: logits.argmax(-1))
        written = tokenizer.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)
        for i, text in zip(chosen, written, strict=True):
            completions[i] = text
    return completions


@torch.no_grad()
def completed(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, config: GenerationConfig, choose: Choose
) -> torch.Tensor:
    """Return prompts and completions [B, P + C].

    C is the length of the longest completion; shorter ones are padded. For decoders that keep keys and values.

    Args:
        ids: left-padded prompts [B, P], each as often as completions are wanted.
        mask: 1 for a prompt's tokens, 0 for padding [B, P].
        config: `max_new_tokens`, `eos_token_id` (one token or several) and `pad_token_id` are read.
        choose: returns the next tokens [L], given logits [L, V], the rows [L] that these are of, and whether each of
            the rows is still being written [L].
    """
    size, room = len(ids), config.max_new_tokens
    written = ids.new_full((size, room), config.pad_token_id)
    ends = torch.tensor([] if config.eos_token_id is None else config.eos_token_id, device=ids.device)
    once, its_mask, places = distinct(ids, mask)
    positions = (its_mask.cumsum(-1) - 1).clamp(min=0)
    before = model(input_ids=once, attention_mask=its_mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    logits, cache = before.logits[places, -1], _with_room(before.past_key_values, places, room - 1)
    rows, positions = torch.arange(size, device=ids.device), mask.sum(1, keepdim=True) - 1
    live = torch.ones_like(rows, dtype=torch.bool)
    for place in range(room):
        tokens = choose(logits, rows, live)
        written[rows[live], place] = tokens[live]
        live = live & ~torch.isin(tokens, ends)
        left = int(live.sum())
        if not left or place == room - 1:
            break
        positions, mask = positions + 1, torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        if left <= (1 - ENDED) * len(rows):
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
    return torch.cat([ids, written[:, : place + 1]], dim=1)


def distinct(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distinct rows of left-padded prompts [B, P] and their masks [U, P], and the row of each prompt among them [B]."""
    rows, places = torch.unique(torch.cat([ids, mask], dim=1), dim=0, return_inverse=True)
    return rows[:, : ids.shape[1]], rows[:, ids.shape[1] :], places


def _is_plain(model: Any) -> bool:
    """Whether the model's own `generate` would do nothing else than `completed`.

    It would for encoder-decoders, layers that keep anything but keys and values of all tokens (a sliding window, a
    state), penalties and the like in the model's own settings, and where another `generate` was put in (Unsloth, PEFT).
    """
    if (
        getattr(model.config, "is_encoder_decoder", False)
        or getattr(model.generate, "__func__", None) is not GenerationMixin.generate
    ):
        return False
    if not {"position_ids", "logits_to_keep"} <= inspect.signature(type(model).forward).parameters.keys():
        return False
    layers = {type(layer) for layer in DynamicCache(config=model.config).layers}
    return layers == {DynamicLayer} and model.generation_config.to_diff_dict().keys() <= WITHOUT_EFFECT


def _with_room(cache: DynamicCache, rows: torch.Tensor, room: int) -> DynamicCache:
    """The cache of these rows of another one, with room for so many more tokens where a layer takes all of them."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[number] = _Roomy(layer, rows, room)
        else:
            layer.batch_select_indices(rows)
    return cache


class _Roomy(DynamicLayer):
    """Keys and values of the rows of another layer, with room for more tokens."""

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, room: int) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self.length = layer.keys.shape[-2]
        self.stores = [_roomy(layer.keys, rows, room), _roomy(layer.values, rows, room)]
        self._show()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        before, self.length = self.length, self.length + key_states.shape[-2]
        for store, states in zip(self.stores, (key_states, value_states), strict=True):
            store[:, :, before : self.length] = states
        self._show()
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.stores = [store[indices] for store in self.stores]
        self._show()

    def _show(self) -> None:
        self.keys, self.values = (store[:, :, : self.length] for store in self.stores)


def _roomy(states: torch.Tensor, rows: torch.Tensor, room: int) -> torch.Tensor:
    heads, length, size = states.shape[1:]
    store = states.new_empty(len(rows), heads, length + room, size)
    store[:, :, :length] = states[rows]
    return store
