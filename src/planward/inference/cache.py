"""Key/value caches for prompts shared by several rows: row selection and preallocated layers."""

from __future__ import annotations

from copy import copy
from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class PreallocatedLayer(DynamicLayer):
    """Keys and values of some rows of a batch, in a buffer with space for further positions.

    A `DynamicLayer` copies all keys and values for every new token.

    Args:
        keys, values: of the batch [B, H, T, D].
        rows: indices into the batch [R].
        length: the number of positions to take, the first ones.
        room: the number of further positions to allocate.
    """

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, length: int, room: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.length = length
        self.buffers = [_allocate(states, rows, length, room) for states in (keys, values)]
        self._update_views()

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[-2]
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start : self.length] = states
        self._update_views()
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        self.buffers = [buffer[indices] for buffer in self.buffers]
        self._update_views()

    def _update_views(self) -> None:
        self.keys, self.values = (buffer[:, :, : self.length] for buffer in self.buffers)


def preallocate_rows(cache: DynamicCache, rows: Tensor, room: int) -> DynamicCache:
    """Reduce a cache to `rows` in place, with `room` preallocated positions in layers that keep all of them."""
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            cache.layers[index] = PreallocatedLayer(layer.keys, layer.values, rows, layer.keys.shape[-2], room)
        else:
            layer.batch_select_indices(rows)
    return cache


def copy_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache of `rows` of another one, which is not changed; gradients flow through."""
    new_cache = copy(cache)
    new_cache.layers = [copy(layer) for layer in cache.layers]
    new_cache.batch_select_indices(rows)
    return new_cache


def has_only_full_layers(config: Any) -> bool:
    """Return whether a model keeps keys and values of all positions, and nothing else, in every layer."""
    return {type(layer) for layer in DynamicCache(config=config).layers} == {DynamicLayer}


def has_only_attention_layers(config: Any) -> bool:
    """Return whether a model keeps keys and values, and nothing else, in every layer; sliding windows count."""
    return {type(layer) for layer in DynamicCache(config=config).layers} <= {DynamicLayer, DynamicSlidingWindowLayer}


def _allocate(states: Tensor, rows: Tensor, length: int, room: int) -> Tensor:
    buffer = states.new_empty(len(rows), states.shape[1], length + room, states.shape[-1])
    buffer[:, :, :length] = states[rows, :, :length]
    return buffer
