"""The network that the base model is while it is trained: a Llama whose embeddings are composed of shared parts.

The result is an ordinary Llama with a row of its own for every token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, embedding, linear
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

from planward.inference.precision import Precision
from planward.pretraining.vocabulary import list_parts

IGNORED_LABEL = -100  # of a token that is left out of the loss
DENSE_ATTENTION = "planward-dense"


def attend(
    _: nn.Module, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *__: Any, scaling: float, **___: Any
) -> tuple[torch.Tensor, None]:
    """Attend causally by plain matrix products, in the type of autocast; for sequences without padding on the left.

    Shapes are [batch, heads, length, width], with as many heads of keys as of queries; the result's is [batch, length,
    heads, width]. Faster for short sequences on a CPU than torch's fused attention (`benchmarks/base_step.py`).
    """
    batch, heads, length, width = queries.shape
    device = queries.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else queries.dtype
    flat = [tensor.reshape(batch * heads, length, width).to(dtype) for tensor in (queries, keys, values)]
    mask = torch.full((length, length), -torch.inf, dtype=dtype, device=device).triu(1)
    scores = torch.baddbmm(mask.expand(batch * heads, length, length), flat[0], flat[1].transpose(1, 2), alpha=scaling)
    outputs = torch.bmm(torch.softmax(scores, -1), flat[2])
    return outputs.view(batch, heads, length, width).transpose(1, 2).contiguous(), None


AttentionInterface.register(DENSE_ATTENTION, attend)
AttentionMaskInterface.register(DENSE_ATTENTION, lambda *_, **__: None)


class ComposedEmbedding(nn.Module):
    """Embeddings [tokens, width] of which every row is the normalised sum of its token's parts and a rest of its own.

    So what is learnt about `b1` in `(on b1 b2)` holds in `(clear b1)` as well, and atoms that hardly occur are known by
    their parts. Parts start as random vectors with standard deviation `spread`, rests at zero.
    """

    rows: torch.Tensor
    scales: torch.Tensor

    def __init__(self, tokens: Sequence[str], width: int, spread: float) -> None:
        super().__init__()
        parts_by_token = [list_parts(token) for token in tokens]
        numbers = {part: i for i, part in enumerate(dict.fromkeys(part for parts in parts_by_token for part in parts))}
        most, none = max(map(len, parts_by_token)), len(numbers)
        rows = [[numbers[part] for part in parts] + [none] * (most - len(parts)) for parts in parts_by_token]
        scales = [1 / math.sqrt(len(parts)) for parts in parts_by_token]
        self.register_buffer("rows", torch.tensor(rows), persistent=False)
        self.register_buffer("scales", torch.tensor(scales)[:, None], persistent=False)
        self.parts = nn.Parameter(torch.randn(len(numbers), width) * spread)
        self.rests = nn.Parameter(torch.zeros(len(tokens), width))

    def forward(self) -> torch.Tensor:
        parts = torch.cat([self.parts, self.parts.new_zeros(1, self.parts.shape[1])])
        vectors: torch.Tensor = embedding(self.rows, parts).sum(1) * self.scales + self.rests
        return vectors


class BaseModelNetwork(nn.Module):
    """A Llama with composed, tied embeddings, and its loss on the labelled tokens.

    Args:
        precision: of matrix products in training; bfloat16 leaves weights and loss in float32 (torch.autocast).
        compiled: by torch.compile, which needs a C++ compiler.
    """

    def __init__(
        self, config: LlamaConfig, tokens: Sequence[str], precision: Precision, *, compiled: bool = False
    ) -> None:
        super().__init__()
        self.precision = precision
        self.config = deepcopy(config)  # which Trainer changes
        self._saved_config = config
        self.layers = LlamaForCausalLM(deepcopy(config)).model
        self.layers.set_attn_implementation(DENSE_ATTENTION)
        self.layers.embed_tokens = None
        self.embedding = ComposedEmbedding(tokens, config.hidden_size, config.initializer_range)
        self._compute = torch.compile(self._compute_states, dynamic=False) if compiled else self._compute_states

    def _compute_states(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last hidden states [batch, length, width] and the embeddings [tokens, width]."""
        rows = self.embedding()
        states: torch.Tensor = self.layers(inputs_embeds=embedding(input_ids, rows), use_cache=False).last_hidden_state
        return states, rows

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of the labelled tokens; no logits are computed for the others, four in five."""
        targets = labels[:, 1:]
        mask = targets != IGNORED_LABEL
        with torch.autocast(input_ids.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            states, rows = self._compute(input_ids)
            logits = linear(states[:, :-1][mask], rows)
        return cross_entropy(logits.float(), targets[mask])

    def list_matrices(self) -> list[nn.Parameter]:
        """Return the weights of linear layers, for which Muon is made."""
        return [weight for weight in self.layers.parameters() if weight.ndim == 2]

    def list_other_weights(self) -> list[nn.Parameter]:
        """Return all other weights: of norms and embeddings."""
        return [*self.embedding.parameters(), *(weight for weight in self.layers.parameters() if weight.ndim == 1)]

    def build_model(self) -> LlamaForCausalLM:
        """Return the model as an ordinary Llama."""
        model = LlamaForCausalLM(self._saved_config)
        with torch.no_grad():
            state = {f"model.{name}": weight for name, weight in self.layers.state_dict().items()}
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = self.embedding()
        model.load_state_dict(state)
        return model
