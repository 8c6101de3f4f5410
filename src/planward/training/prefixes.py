"""A prompt is computed once for all its completions, not once for each.

TRL repeats a prompt `num_generations` times and forwards every copy, when it generates and again when it trains. The
copies' keys and values are equal, so one forward pass over the distinct prompts serves them all; the results, and
the gradients, are the same but for the order of float additions.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from trl import GRPOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

Logps = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # log-probs [B, C], entropies [B, C], MoE loss


class SharedPrefixes(GRPOTrainer):
    """GRPO for text models whose attention caches keys and values."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares = not self.args.gradient_checkpointing  # recomputed layers keep no cache

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if not self.shares or self.use_vllm:
            return super()._generate_single_turn(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        stock = model.generate

        def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor, **more: Any) -> Any:
            cache = _prefix_cache(model, input_ids, attention_mask)
            return stock(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, **more)

        model.generate = generate
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            del model.generate

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **multimodal: Any,
    ) -> Logps:
        if not self.shares or compute_aux_loss or self._entropy_bonus_enabled or _given(multimodal):
            stock: Logps = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size=batch_size,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **multimodal,
            )
            return stock
        size = batch_size or len(input_ids)
        logps, entropies = list[torch.Tensor](), list[torch.Tensor]()
        for ids, mask in zip(torch.split(input_ids, size), torch.split(attention_mask, size), strict=True):
            logits = _completion_logits(model, ids, mask, logits_to_keep) / self.temperature
            logps.append(selective_log_softmax(logits, ids[:, -logits_to_keep:]))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(entropy_from_logits(logits))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def _given(arguments: dict[str, Any]) -> bool:
    return any(value is not None for value in arguments.values())


def _distinct(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distinct rows of left-padded prompts [B, P] and their masks [U, P], and the row of each prompt among them [B]."""
    rows, places = torch.unique(torch.cat([ids, mask], dim=1), dim=0, return_inverse=True)
    return rows[:, : ids.shape[1]], rows[:, ids.shape[1] :], places


def _prefix_cache(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> DynamicCache:
    """Keys and values of all but the last token of left-padded prompts [B, P], which generation goes on from."""
    distinct, its_mask, places = _distinct(ids[:, :-1], mask[:, :-1])
    positions = (its_mask.cumsum(-1) - 1).clamp(min=0)
    cache: DynamicCache = model(
        input_ids=distinct, attention_mask=its_mask, position_ids=positions, use_cache=True, logits_to_keep=1
    ).past_key_values
    cache.batch_select_indices(places)
    return cache


def _completion_logits(model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int) -> torch.Tensor:
    """Logits [B, length, V] of the completions, which are the last `length` tokens of `ids` [B, P + length]."""
    prompts = ids.shape[1] - length
    distinct, its_mask, places = _distinct(ids[:, :prompts], mask[:, :prompts])
    before = model(input_ids=distinct, attention_mask=its_mask, use_cache=True, logits_to_keep=1)
    cache = before.past_key_values
    cache.batch_select_indices(places)
    after = model(input_ids=ids[:, prompts:], attention_mask=mask, past_key_values=cache, use_cache=True)
    return torch.cat([before.logits[places], after.logits[:, :-1]], dim=1)
