"""A prompt is computed once for all its completions, not once for each.

TRL repeats a prompt `num_generations` times and forwards every copy, when it generates and again when it trains. The
copies' keys and values are equal, so one forward pass over the distinct prompts serves them all; the results, and
the gradients, are the same but for the order of float additions. `evaluation.generation` has the former, this module
the latter.

Two more things that TRL computes change nothing either, and are left out: completions whose advantage is 0, where the
loss is a sum over tokens alone, and most of the padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, cast

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList
from trl import GRPOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from planward.evaluation.generation import distinct
from planward.training.generation import Temperatures, sampled

LOTS = 4  # into which the completions of a forward pass are divided, by length
TEMPERATURES = "temperatures"  # of each row of a batch, as a column of TRL's
Logps = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # log-probs [B, C], entropies [B, C], MoE loss


class SharedPrefixes(GRPOTrainer):
    """GRPO for text models whose attention caches keys and values.

    Rows may have temperatures of their own: `temperatures` [B] holds those of the batch at hand, which is generated,
    or comes to the loss in the column `TEMPERATURES`. `temperature` is 1 then.

    `entropies` [B] are those of the completions that were generated last (see `sampled`); the loss's own are not over
    all of them. None where TRL generates, and leaves no completion out.
    """

    temperature: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares = not self.args.gradient_checkpointing  # recomputed layers keep no cache
        self.temperatures: torch.Tensor | None = None
        self.entropies: torch.Tensor | None = None

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if self.use_vllm or not (self.shares or self.temperatures is not None):
            return super()._generate_single_turn(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        stock = model.generate

        def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor, generation_config: GenerationConfig) -> Any:
            own = self.temperatures
            if self.shares:
                own = input_ids.new_full((len(input_ids),), self.temperature, dtype=torch.float) if own is None else own
                tokens, self.entropies = sampled(model, input_ids, attention_mask, generation_config, own)
                return tokens
            return stock(
                input_ids=input_ids,
                attention_mask=attention_mask,
                generation_config=generation_config,
                logits_processor=LogitsProcessorList([Temperatures(cast(torch.Tensor, own))]),
            )

        model.generate = generate
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            del model.generate

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if self.shares and self.loss_type == "dapo" and self.beta == 0 and not self._entropy_bonus_enabled:
            inputs = _telling(inputs)
        self.temperatures = inputs.get(TEMPERATURES)
        return cast(torch.Tensor, super()._compute_loss(model, inputs))

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
        plain = not self.shares or compute_aux_loss or self._entropy_bonus_enabled or _given(multimodal)
        if plain and self.temperatures is None:
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
        logps, entropies = list[torch.Tensor](), list[torch.Tensor]()
        for rows in torch.split(torch.arange(len(input_ids)), batch_size or len(input_ids)):
            ids, mask = input_ids[rows], attention_mask[rows]
            with self._temperature_of(rows):
                if plain:
                    logp, entropy, _ = super()._get_per_token_logps_and_entropies(
                        model, ids, mask, logits_to_keep, compute_entropy=compute_entropy
                    )
                else:
                    logp, entropy = self._shared(model, ids, mask, logits_to_keep)
            logps.append(logp)
            entropies += [entropy] if compute_entropy else []
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None

    def _shared(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities and entropies [B, length] of the completions, the last `length` tokens of `ids`.

        Completions of about one length go together, as long as their longest; what is masked in all of them is 0.
        """
        prompts, wanted = ids.shape[1] - length, ids[:, -length:]
        empty = int((~mask[:, :prompts].any(0)).sum())
        once, its_mask, places = distinct(ids[:, empty:prompts], mask[:, empty:prompts])
        before = model(input_ids=once, attention_mask=its_mask, use_cache=True, logits_to_keep=1)
        lengths, lots = mask[:, prompts:].sum(1), list[tuple[torch.Tensor, torch.Tensor]]()
        order = lengths.argsort(stable=True)
        for rows in order.tensor_split(min(LOTS, len(ids))):
            longest = max(int(lengths[rows[-1]]), 1)
            tokens, cache = wanted[rows, :longest], _rows_of(before.past_key_values, places[rows])
            seen = mask[rows, empty : prompts + longest]
            after = model(input_ids=tokens, attention_mask=seen, past_key_values=cache, use_cache=True)
            logits = torch.cat([before.logits[places[rows]], after.logits[:, :-1]], dim=1)
            logits = logits / (self.temperature if self.temperatures is None else self.temperature[rows])
            with torch.no_grad():
                entropies = entropy_from_logits(logits)
            room = (0, length - longest)
            lots.append((pad(selective_log_softmax(logits, tokens), room), pad(entropies, room)))
        back = order.argsort()
        return torch.cat([logps for logps, _ in lots])[back], torch.cat([entropies for _, entropies in lots])[back]

    @contextmanager
    def _temperature_of(self, rows: torch.Tensor) -> Iterator[None]:
        """Within, `temperature` is the rows' own, if they have any, as a divisor of logits [B, C, V]."""
        common = self.temperature
        if self.temperatures is not None:
            self.temperature = self.temperatures[rows, None, None]
        try:
            yield
        finally:
            self.temperature = common


def _given(arguments: dict[str, Any]) -> bool:
    return any(value is not None for value in arguments.values())


def _telling(inputs: dict[str, Any]) -> dict[str, Any]:
    """The rows of a batch whose advantage is not 0, or one row where there is none: a loss needs something to sum."""
    kept = inputs["advantages"] != 0
    kept[0] |= ~kept.any()
    return {
        name: value[kept] if isinstance(value, torch.Tensor) and value.ndim else value for name, value in inputs.items()
    }


def _rows_of(cache: DynamicCache, rows: torch.Tensor) -> DynamicCache:
    """A cache of the rows of another one, which stays as it is."""
    chosen = copy(cache)
    chosen.layers = [copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(rows)
    return chosen
