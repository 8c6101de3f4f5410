"""Sharing a prompt between its completions changes the time that it takes, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import letters
from planward.training.generation import drawn
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
    written = mask[:, -COMPLETION:]
    (logps * written).square().sum().backward()
    return (
        (logps * written).detach(),
        entropies * written,
        torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()]),
    )


@pytest.mark.parametrize("size", [20, 7])
@pytest.mark.parametrize("ended", [False, True])
def test_log_probabilities_entropies_and_gradients_are_trls(
    trainers: list[GRPOTrainer], size: int, ended: bool
) -> None:
    ids, mask = batch(trainers[0].model.config.vocab_size)
    if ended:
        for row in range(len(ids)):
            mask[row, LENGTH + 1 + row % COMPLETION :] = 0
    stock, ours = (gradient(trainer, ids, mask, size) for trainer in trainers)
    for expected, found in zip(stock, ours, strict=True):
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("advantages", [[0, 0, 1, -1], [0, 0, 0, 0]])
def test_completions_without_advantage_change_no_gradient(trainers: list[GRPOTrainer], advantages: list[int]) -> None:
    ids, mask = batch(trainers[0].model.config.vocab_size)
    inputs = {
        "prompt_ids": ids[:, :LENGTH],
        "prompt_mask": mask[:, :LENGTH],
        "completion_ids": ids[:, LENGTH:],
        "completion_mask": mask[:, LENGTH:],
        "advantages": torch.tensor(advantages).repeat(PROMPTS).float(),
        "num_items_in_batch": mask[:, LENGTH:].sum(),
    }
    gradients, forwarded = [], []
    for trainer in trainers:
        trainer.current_gradient_accumulation_steps = 1
        seen: list[int] = []
        embeddings = trainer.model.get_input_embeddings()
        embeddings.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0].numel()))
        trainer._compute_loss(trainer.model, inputs).backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()]))
        forwarded.append(sum(seen))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
    assert bool(gradients[0].abs().max() > 0.001) is any(advantages)
    assert forwarded[1] < forwarded[0] / 2


def test_entropies_are_those_of_the_loss(trainers: list[GRPOTrainer]) -> None:
    trainer = trainers[1]
    ids, mask = batch(trainer.model.config.vocab_size)
    prompts = [row[kept.bool()].tolist() for row, kept in zip(ids[:, :LENGTH], mask[:, :LENGTH], strict=True)]
    trainer.generation_config.max_new_tokens = 24
    written = trainer._generate_single_turn(prompts, None, {})[0]
    for prompt, completion, entropy in zip(prompts, written, trainer.entropies, strict=True):
        whole = torch.tensor([prompt + completion])
        _, expected, _ = trainers[0]._get_per_token_logps_and_entropies(
            trainers[0].model, whole, torch.ones_like(whole), len(completion), compute_entropy=True
        )
        torch.testing.assert_close(entropy, expected.sum(), rtol=1e-4, atol=1e-4)


def single(chances: torch.Tensor, num_samples: int) -> torch.Tensor:
    """torch.multinomial by the numbers that our own generation draws."""
    assert num_samples == 1
    return drawn(chances, torch.rand(len(chances)))[:, None]


@pytest.mark.parametrize("limits", [{}, {"top_k": 4}, {"top_p": 0.8}])
def test_the_same_is_generated(
    trainers: list[GRPOTrainer], limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, mask = batch(trainers[0].model.config.vocab_size)
    prompts = [row[kept.bool()].tolist() for row, kept in zip(ids[:, :LENGTH], mask[:, :LENGTH], strict=True)]
    monkeypatch.setattr(torch, "multinomial", single)
    written = []
    for trainer in trainers:
        trainer.generation_config.max_new_tokens = 24
        trainer.generation_config.update(**limits)
        torch.manual_seed(1)
        written.append(trainer._generate_single_turn(prompts, None, {})[0])
    assert written[0] == written[1]
    assert len({tuple(text) for text in written[0]}) > PROMPTS  # sampled, not one a prompt
    assert len({len(text) for text in written[0]}) > 2  # rows were dropped as they ended


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any))
def test_words_are_drawn_as_often_as_their_chances_say(weights: list[int]) -> None:
    chances, count = torch.tensor(weights) / sum(weights), 240
    numbers = (torch.arange(count) + 0.5) / count
    found = torch.bincount(drawn(chances.expand(count, -1), numbers), minlength=len(weights))
    assert all(
        abs(seen - count * chance) <= 1.01 for seen, chance in zip(found.tolist(), chances.tolist(), strict=True)
    )
    last = drawn(chances[None], torch.tensor([1 - 2**-24]))
    assert last == max(place for place, weight in enumerate(weights) if weight)


@pytest.mark.parametrize("shares", [True, False])
def test_rows_may_have_their_own_temperatures(trainers: list[GRPOTrainer], shares: bool) -> None:
    """Each row is generated and scored as by a trainer of its temperature."""
    trainer = trainers[1]
    trainer.shares = shares
    ids, mask = batch(trainer.model.config.vocab_size)
    prompts = [row[kept.bool()].tolist() for row, kept in zip(ids[:, :LENGTH], mask[:, :LENGTH], strict=True)]

    def results(common: float, own: torch.Tensor | None) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
        trainer.temperature, trainer.temperatures = common, own
        trainer.generation_config.temperature = common
        torch.manual_seed(1)
        written = trainer._generate_single_turn(prompts, None, {})[0]
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, COMPLETION, batch_size=7, compute_entropy=True
        )
        return written, logps.detach(), entropies

    cold, warm = results(0.1, None), results(2.0, None)
    own = torch.where(torch.arange(len(ids)) % 2 == 0, 0.1, 2.0)
    mixed = results(1.0, own)
    for row in range(len(ids)):
        alone = cold if row % 2 == 0 else warm
        torch.testing.assert_close(mixed[1][row], alone[1][row])
        torch.testing.assert_close(mixed[2][row], alone[2][row])
    # Numbers are drawn for all rows in each step, so that a row's are the same whatever becomes of the others.
    pairs = range(0, len(ids), 2)
    assert [mixed[0][row] for row in pairs] == [cold[0][row] for row in pairs]
    assert mixed[0] != cold[0]


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
