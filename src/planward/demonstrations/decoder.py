"""A frozen decoder that goes on behind beginnings whose keys and values were kept.

Rows of beginnings and of what follows are padded on the right, which causal attention never looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class States:
    """Keys and values of beginnings: of each layer, both [G, H, P, D]; no layers where none has tokens."""

    layers: Sequence[tuple[Tensor, Tensor]]
    lengths: Tensor  # tokens of each beginning [G]


class Decoder:
    """Any decoder of Transformers. Where it keeps more than keys and values, nothing is shared.

    Args:
        precision: of matrix products; bfloat16 leaves weights, sums and logits in the weights' type (torch.autocast).
    """

    def __init__(self, model: Any, precision: Precision) -> None:
        self.model, self.precision, self.device = model.eval(), precision, model.device
        self.shares = {type(layer) for layer in DynamicCache(config=model.config).layers} == {DynamicLayer}

    def begun(self, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, both [B, H, P, D], of tokens [B, P] that stand at the beginning."""
        with self._products():
            cache = self.model.get_decoder()(input_ids=ids, use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def logits(self, ids: Tensor, states: States, rows: Tensor, wanted: Tensor) -> Tensor:
        """Logits [N, V] where `wanted` [B, T] is true, of tokens [B, T], each row behind the beginning `rows` [B]."""
        given = self._behind(states, rows, ids.shape[1]) if states.layers else {"use_cache": False}
        with self._products():
            hidden = self.model.get_decoder()(input_ids=ids, **given).last_hidden_state
        logits: Tensor = self.model.get_output_embeddings()(hidden[wanted].to(self.model.dtype))
        return logits.float()

    def _behind(self, states: States, rows: Tensor, size: int) -> dict[str, Any]:
        lengths = states.lengths[rows, None]
        longest, cache = int(lengths.max()), DynamicCache(config=self.model.config)
        cache.layers = [_Roomy(*layer, rows, longest, size) for layer in states.layers]
        own = torch.arange(size, device=self.device)
        past = (torch.arange(longest, device=self.device) < lengths)[:, None].expand(-1, size, -1)
        seen = torch.cat([past, (own <= own[:, None]).expand(len(rows), -1, -1)], dim=-1)[:, None]
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=self.device)
        mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
        return {"past_key_values": cache, "use_cache": True, "position_ids": lengths + own, "attention_mask": mask}

    def _products(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()


class _Roomy(DynamicLayer):
    """The first `length` keys and values of some rows of others, with room for the tokens of one forward pass."""

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, length: int, room: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.length = length
        self.keys, self.values = (_with_room(states, rows, length, room) for states in (keys, values))

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys[:, :, self.length :] = key_states
        self.values[:, :, self.length :] = value_states
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.length


def _with_room(states: Tensor, rows: Tensor, length: int, room: int) -> Tensor:
    store = states.new_empty(len(rows), states.shape[1], length + room, states.shape[-1])
    store[:, :, :length] = states[rows, :, :length]
    return store
