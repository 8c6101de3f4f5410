"""Logits of token sequences that follow shared prefixes, from cached keys and values.

Prefixes and suffixes are padded on the right, where causal attention does not see the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from planward.inference.cache import PreallocatedLayer, has_only_full_layers
from planward.inference.precision import Precision


def scale_logits(logits: Tensor, config: Any) -> Tensor:
    """Scale the output of the head [N, V] as Granite, Cohere and Gemma 2 do in their own forward pass."""
    if (factor := getattr(config, "logit_scale", None)) is not None:
        logits = logits * factor
    if (divisor := getattr(config, "logits_scaling", None)) is not None:
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits


@dataclass(frozen=True)
class PrefixStates:
    """Keys and values of G prefixes: for each layer both [G, H, P, D]; no layers if all prefixes are empty."""

    layers: Sequence[tuple[Tensor, Tensor]]
    lengths: Tensor  # tokens of each prefix [G]


class PrefixDecoder:
    """A frozen Transformers decoder. If a layer keeps more than keys and values, no prefix is shared (`shares`).

    Args:
        precision: of matrix products; bfloat16 leaves weights, sums and logits in the weights' type (torch.autocast).
    """

    def __init__(self, model: Any, precision: Precision) -> None:
        self.model, self.precision, self.device = model.eval(), precision, model.device
        # FlashAttention takes no mask by token and row, which a shared prefix needs.
        is_flash = str(getattr(model.config, "_attn_implementation", "")).startswith("flash")
        self.shares = has_only_full_layers(model.config) and not is_flash

    def compute_states(self, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values, both [B, H, P, D], of prefix tokens [B, P]."""
        with self._autocast():
            cache = self.model.get_decoder()(input_ids=ids, use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def compute_logits(self, ids: Tensor, states: PrefixStates, prefixes: Tensor, positions: Tensor) -> Tensor:
        """Return logits [N, V] at the true `positions` [B, T] of tokens [B, T], each row after its prefix [B]."""
        inputs = self._build_inputs(states, prefixes, ids.shape[1]) if states.layers else {"use_cache": False}
        with self._autocast():
            hidden = self.model.get_decoder()(input_ids=ids, **inputs).last_hidden_state
        logits: Tensor = self.model.get_output_embeddings()(hidden[positions].to(self.model.dtype))
        return scale_logits(logits.float(), self.model.config)

    def _build_inputs(self, states: PrefixStates, prefixes: Tensor, length: int) -> dict[str, Any]:
        """Return the cache, position ids and 4D attention mask for rows of `length` tokens after their prefixes."""
        prefix_lengths = states.lengths[prefixes, None]
        longest, cache = int(prefix_lengths.max()), DynamicCache(config=self.model.config)
        cache.layers = [PreallocatedLayer(*layer, prefixes, longest, length) for layer in states.layers]
        steps = torch.arange(length, device=self.device)
        sees_prefix = (torch.arange(longest, device=self.device) < prefix_lengths)[:, None].expand(-1, length, -1)
        sees_suffix = (steps <= steps[:, None]).expand(len(prefixes), -1, -1)
        visible = torch.cat([sees_prefix, sees_suffix], dim=-1)[:, None]
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=self.device)
        mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)
        return {
            "past_key_values": cache,
            "use_cache": True,
            "position_ids": prefix_lengths + steps,
            "attention_mask": mask,
        }

    def _autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()
