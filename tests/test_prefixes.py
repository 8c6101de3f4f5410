"""Sharing a prompt between its completions changes the time that it takes, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import letters
from planward.training.prefixes import SharedPrefixes

PROMPTS, GENERATIONS, LENGTH, COMPLETION = 5, 4, 12, 6


@pytest.fixture
def trainers(tmp_path: Path) -> list[GRPOTrainer]:
    """TRL's own trainer and ours, over the same weights."""
    torch.set_num_threads(1)
    letters.write_base(tmp_path / "base")
    arguments = GRPOConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        report_to="none",
        temperature=0.7,
        num_generations=2,
        gradient_checkpointing=False,  # which is TRL's default, and excludes sharing
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base", padding_side="left")
    return [
        kind(
            AutoModelForCausalLM.from_pretrained(tmp_path / "base"),
            reward_funcs=lambda completions, **_: [0.0 for _ in completions],
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "a"}]),
            processing_class=tokenizer,
        )
        for kind in (GRPOTrainer, SharedPrefixes)
    ]


def batch(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded prompts of different lengths, each with several completions, shuffled; tokens and mask."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, vocabulary, (PROMPTS, LENGTH), generator=generator)
    mask = torch.ones_like(prompts)
    for number in range(PROMPTS):
        mask[number, :number] = 0
    completions = torch.randint(3, vocabulary, (PROMPTS * GENERATIONS, COMPLETION), generator=generator)
    order = torch.randperm(PROMPTS * GENERATIONS, generator=generator)
    ids = torch.cat([prompts.repeat_interleave(GENERATIONS, 0), completions], dim=1)
    return ids[order], torch.cat([mask.repeat_interleave(GENERATIONS, 0), torch.ones_like(completions)], dim=1)[order]


def gradient(trainer: Any, ids: torch.Tensor, mask: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, mask, COMPLETION, batch_size=size, compute_entropy=True
    )
    logps.square().sum().backward()
    return logps.detach(), entropies, torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])


@pytest.mark.parametrize("size", [20, 7])
def test_log_probabilities_entropies_and_gradients_are_trls(trainers: list[GRPOTrainer], size: int) -> None:
    ids, mask = batch(trainers[0].model.config.vocab_size)
    stock, ours = (gradient(trainer, ids, mask, size) for trainer in trainers)
    for expected, found in zip(stock, ours, strict=True):
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_same_is_generated(trainers: list[GRPOTrainer]) -> None:
    ids, mask = batch(trainers[0].model.config.vocab_size)
    prompts = [row[kept.bool()].tolist() for row, kept in zip(ids[:, :LENGTH], mask[:, :LENGTH], strict=True)]
    written = []
    for trainer in trainers:
        torch.manual_seed(1)
        written.append(trainer._generate_single_turn(prompts, None, {})[0])
    assert written[0] == written[1]
    assert len({tuple(text) for text in written[0]}) > PROMPTS  # sampled, not one a prompt


def test_a_prompt_is_forwarded_once(trainers: list[GRPOTrainer]) -> None:
    ids, mask = batch(trainers[0].model.config.vocab_size)
    counts = []
    for trainer in trainers:
        seen: list[int] = []
        embeddings = trainer.model.get_input_embeddings()
        embeddings.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0].numel()))
        gradient(trainer, ids, mask, len(ids))
        counts.append(sum(seen))
    completions = PROMPTS * GENERATIONS * COMPLETION
    assert counts == [PROMPTS * GENERATIONS * LENGTH + completions, PROMPTS * LENGTH + completions]
