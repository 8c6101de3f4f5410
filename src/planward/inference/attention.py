"""Attention of single tokens under grouped-query attention, without a copy of keys and values for each query head.

Transformers repeats keys and values until every query head has its own, which for one token costs more than its
attention. Here the query heads that share keys go through the model's own attention function as positions of one head.

Method: Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", 2023
(arXiv:2305.13245).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PREFIX = "grouped_"  # of the names under which Transformers finds these functions
IMPLEMENTATIONS = ("eager", "sdpa")


@contextmanager
def group_queries(model: Any) -> Iterator[None]:
    """Within the context, the model attends to its cache by groups of query heads, if it has any.

    Models that choose their attention without Transformers' interface, and other implementations than "eager" and
    "sdpa", stay as they are.
    """
    config, shape = model.config, model.config.get_text_config()
    original = config._attn_implementation
    has_groups = getattr(shape, "num_key_value_heads", None) not in (None, shape.num_attention_heads)
    if has_groups and original in IMPLEMENTATIONS and getattr(model, "_supports_attention_backend", False):
        config._attn_implementation = PREFIX + original
    try:
        yield
    finally:
        config._attn_implementation = original


def _attend(
    implementation: str,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention's output [B, L, H, D], from queries [B, H, L, D], keys and values [B, K, T, D]."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager)
    batch, heads, length, size = query.shape
    num_groups = key.shape[1]
    has_head_masks = attention_mask is not None and attention_mask.shape[1] > 1
    if length > 1 or heads == num_groups or has_head_masks or hasattr(module, "sinks"):  # a logit of each query head
        result: tuple[Tensor, Tensor | None] = attend(module, query, key, value, attention_mask, **options)
        return result
    single = copy(module)
    single.num_key_value_groups = 1
    groups = query.view(batch, num_groups, heads // num_groups, size)
    output, _ = attend(single, groups, key, value, attention_mask, **{**options, "is_causal": False})
    return output.transpose(1, 2).reshape(batch, 1, heads, -1), None


for _name in IMPLEMENTATIONS:
    AttentionInterface.register(PREFIX + _name, partial(_attend, _name))
    AttentionMaskInterface.register(PREFIX + _name, AttentionMaskInterface()[_name])
