"""GRPO trainer that forwards each prompt once for all its completions.

TRL repeats a prompt `num_generations` times and forwards every copy, in generation and again in training. The copies
have equal keys and values, so one forward pass over the distinct prompts serves all of them; results and gradients are
the same up to the order of float additions. `inference.decoding` does this for generation, this module for training.

Two more computations of TRL are skipped without changing the result: most of the padding and, in one process,
completions with advantage 0, where the loss is a plain sum over tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessorList, PretrainedConfig
from trl import GRPOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from planward.inference.cache import copy_rows, has_only_attention_layers
from planward.inference.decoding import find_distinct
from planward.inference.sampling import RowTemperatures, sample_completions
from planward.params import Generation

NUM_LENGTH_BUCKETS = 4  # a forward pass is split by completion length to save padding
TEMPERATURE = "temperature"  # column of the prompts and of a TRL batch: each row's temperature
Logps = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]  # log-probs [B, C], entropies [B, C], MoE loss


class SharedPrefixTrainer(GRPOTrainer):
    """GRPO for text models. TRL samples and scores where a layer caches anything but attention's keys and values.

    Prompts may have the column `TEMPERATURE`; `temperature` must be 1 then. `temperatures` [B] are those of the current
    batch, None without that column.

    `entropies` [B] are those of the last generated completions (see `sample_completions`); the loss computes them only
    for some completions. None if TRL generates; its loss then keeps all completions.

    Args:
        generation: who samples completions: this module (`own`) or TRL.
    """

    temperature: Any

    def __init__(self, *args: Any, generation: Generation = "own", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shares = (
            not self.args.gradient_checkpointing  # recomputed layers keep no cache
            and set(self.model_kwarg_keys) >= {"past_key_values", "position_ids", "logits_to_keep"}
            and has_only_attention_layers(self.model.config)
        )
        for network in (self.model, self.ref_model):
            if network is not None and "position_ids" in self.model_kwarg_keys and _counts_padding(network.config):
                network.register_forward_pre_hook(_add_positions, with_kwargs=True)
        self.generation = generation
        self.temperatures: torch.Tensor | None = None
        self.entropies: torch.Tensor | None = None

    @property
    def samples(self) -> bool:
        """Whether completions are sampled here, not by TRL."""
        return self.shares and self.generation == "own"

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if TEMPERATURE not in inputs[0]:
            return cast(dict[str, Any], super()._generate_and_score_completions(inputs))
        self.temperatures = torch.tensor([row[TEMPERATURE] for row in inputs], device=self.accelerator.device)
        output = cast(dict[str, Any], super()._generate_and_score_completions(inputs))
        return output | {TEMPERATURE: self.temperatures}

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if self.use_vllm or not (self.samples or self.temperatures is not None):
            return super()._generate_single_turn(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        original = model.generate

        def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor, generation_config: GenerationConfig) -> Any:
            temperatures = self.temperatures
            if self.samples:
                if temperatures is None:
                    temperatures = input_ids.new_full((len(input_ids),), self.temperature, dtype=torch.float)
                tokens, self.entropies = sample_completions(
                    model, input_ids, attention_mask, generation_config, temperatures
                )
                return tokens
            return original(
                input_ids=input_ids,
                attention_mask=attention_mask,
                generation_config=generation_config,
                logits_processor=LogitsProcessorList([RowTemperatures(cast(torch.Tensor, temperatures))]),
            )

        model.generate = generate
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            del model.generate

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        has_other_terms = self.beta != 0 or self._entropy_bonus_enabled or self.aux_loss_enabled
        is_sum = self.loss_type == "dapo" and not has_other_terms
        if self.samples and is_sum and self.accelerator.num_processes == 1:  # TRL gathers a value for each completion
            inputs = _drop_zero_advantages(inputs)
        self.temperatures = inputs.get(TEMPERATURE)
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
        has_images = any(value is not None for value in multimodal.values())
        use_trl = not self.shares or compute_aux_loss or self._entropy_bonus_enabled or has_images
        if use_trl and self.temperatures is None:
            result: Logps = super()._get_per_token_logps_and_entropies(
                model,
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size=batch_size,
                compute_entropy=compute_entropy,
                compute_aux_loss=compute_aux_loss,
                **multimodal,
            )
            return result
        logps, entropies, losses = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
        for rows in torch.split(torch.arange(len(input_ids)), batch_size or len(input_ids)):
            ids, mask = input_ids[rows], attention_mask[rows]
            with self._row_temperatures(rows):
                if use_trl:
                    logp, entropy, loss = super()._get_per_token_logps_and_entropies(
                        model,
                        ids,
                        mask,
                        logits_to_keep,
                        compute_entropy=compute_entropy,
                        compute_aux_loss=compute_aux_loss,
                    )
                    losses += [loss] if compute_aux_loss else []
                else:
                    logp, entropy = self._compute_shared_logps(model, ids, mask, logits_to_keep)
            logps.append(logp)
            entropies += [entropy] if compute_entropy else []
        router_loss = torch.stack(losses).mean() if compute_aux_loss else None
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, router_loss

    def _compute_shared_logps(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies [B, length] of the completions, the last `length` tokens of `ids`.

        Completions of similar length share a forward pass, cut to the longest of them; positions cut off are 0.
        """
        prompt_length, completions = ids.shape[1] - length, ids[:, -length:]
        padding = int((~mask[:, :prompt_length].any(0)).sum())  # common to all prompts, on the left
        prompts, prompt_mask, prompt_index = find_distinct(
            ids[:, padding:prompt_length], mask[:, padding:prompt_length]
        )
        prefill = model(input_ids=prompts, attention_mask=prompt_mask, use_cache=True, logits_to_keep=1)
        lengths, parts = mask[:, prompt_length:].sum(1), list[tuple[torch.Tensor, torch.Tensor]]()
        order = lengths.argsort(stable=True)
        for rows in order.tensor_split(min(NUM_LENGTH_BUCKETS, len(ids))):
            longest = max(int(lengths[rows[-1]]), 1)
            tokens, cache = completions[rows, :longest], copy_rows(prefill.past_key_values, prompt_index[rows])
            visible = mask[rows, padding : prompt_length + longest]
            output = model(input_ids=tokens, attention_mask=visible, past_key_values=cache, use_cache=True)
            logits = torch.cat([prefill.logits[prompt_index[rows]], output.logits[:, :-1]], dim=1)
            logits = logits / (self.temperature if self.temperatures is None else self.temperature[rows])
            with torch.no_grad():
                entropies = entropy_from_logits(logits)
            right = (0, length - longest)
            parts.append((pad(selective_log_softmax(logits, tokens), right), pad(entropies, right)))
        restore = order.argsort()
        logps, entropies = (torch.cat(tensors)[restore] for tensors in zip(*parts, strict=True))
        return logps, entropies

    @contextmanager
    def _row_temperatures(self, rows: torch.Tensor) -> Iterator[None]:
        """Set `temperature` to the rows' own temperatures, if any, as a divisor of logits [B, C, V]."""
        common = self.temperature
        if self.temperatures is not None:
            self.temperature = self.temperatures[rows, None, None]
        try:
            yield
        finally:
            self.temperature = common


def _counts_padding(config: PretrainedConfig) -> bool:
    """Return whether padding on the left changes a model's results: rotary positions count distances alone."""
    return not hasattr(config, "rope_parameters")


def _add_positions(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Number the tokens of each row without its padding, for a forward pass in which nobody does: TRL's and ours."""
    mask = named.get("attention_mask")
    if named.get("position_ids") is None and isinstance(mask, torch.Tensor) and mask.ndim == 2:
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        named = named | {"position_ids": positions[:, -named["input_ids"].shape[1] :]}
    return arguments, named


def _drop_zero_advantages(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of a batch whose advantage is not 0; if there is none, one row, since a loss needs a term."""
    rows = inputs["advantages"] != 0
    rows[0] |= ~rows.any()
    return {
        name: value[rows] if isinstance(value, torch.Tensor) and value.ndim else value for name, value in inputs.items()
    }
