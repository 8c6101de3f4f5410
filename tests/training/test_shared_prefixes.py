"""Sharing a prompt between its completions changes no result: log-probabilities, gradients, samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer

import letters
from planward.inference.sampling import sample_indices
from planward.training.shared_prefixes import TEMPERATURE, SharedPrefixTrainer

PROMPTS, GENERATIONS, LENGTH, COMPLETION = 5, 4, 12, 6
SHORT_RUN = {"per_device_train_batch_size": 4, "max_completion_length": 4, "max_steps": 1, "logging_steps": 1}


def build_arguments(folder: Path, **options: Any) -> GRPOConfig:
    return GRPOConfig(
        str(folder),
        use_cpu=True,
        bf16=False,
        report_to="none",
        num_generations=2,
        gradient_checkpointing=False,  # TRL's default is True, which excludes sharing
        **options,
    )


def build_trainer(
    trainer_class: type[GRPOTrainer], model: Any, folder: Path, rows: list[dict[str, Any]], **options: Any
) -> Any:
    """Build a trainer with the tokenizer of `folder`/base, whose reward is a completion's place in its batch."""
    return trainer_class(
        model,
        reward_funcs=lambda completions, **_: [float(index) for index in range(len(completions))],
        args=build_arguments(folder, **options),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "base", padding_side="left"),
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A tiny Llama with its tokenizer."""
    torch.set_num_threads(1)
    letters.write_base(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def trainers(tmp_path: Path, base: Path) -> list[GRPOTrainer]:
    """TRL's trainer and ours, with the same weights."""
    return [
        build_trainer(
            trainer_class, AutoModelForCausalLM.from_pretrained(base), tmp_path, [{"prompt": "a"}], temperature=0.7
        )
        for trainer_class in (GRPOTrainer, SharedPrefixTrainer)
    ]


def build_batch(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and mask of left-padded prompts of different lengths, each with several completions, shuffled."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, vocabulary, (PROMPTS, LENGTH), generator=generator)
    mask = torch.ones_like(prompts)
    for number in range(PROMPTS):
        mask[number, :number] = 0
    completions = torch.randint(3, vocabulary, (PROMPTS * GENERATIONS, COMPLETION), generator=generator)
    order = torch.randperm(PROMPTS * GENERATIONS, generator=generator)
    ids = torch.cat([prompts.repeat_interleave(GENERATIONS, 0), completions], dim=1)
    return ids[order], torch.cat([mask.repeat_interleave(GENERATIONS, 0), torch.ones_like(completions)], dim=1)[order]


def compute_gradient(trainer: Any, ids: torch.Tensor, mask: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, mask, COMPLETION, batch_size=size, compute_entropy=True
    )
    completion_mask = mask[:, -COMPLETION:]
    (logps * completion_mask).square().sum().backward()
    return (
        (logps * completion_mask).detach(),
        entropies * completion_mask,
        torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()]),
    )


@pytest.mark.parametrize("size", [20, 7])
@pytest.mark.parametrize("has_ends", [False, True])
def test_log_probabilities_entropies_and_gradients_equal_trl(
    trainers: list[GRPOTrainer], size: int, has_ends: bool
) -> None:
    ids, mask = build_batch(trainers[0].model.config.vocab_size)
    if has_ends:
        for row in range(len(ids)):
            mask[row, LENGTH + 1 + row % COMPLETION :] = 0
    trl, ours = (compute_gradient(trainer, ids, mask, size) for trainer in trainers)
    for expected, result in zip(trl, ours, strict=True):
        assert expected.abs().max() > 0.01
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [20, 7])
@pytest.mark.parametrize("shares", [True, False])
def test_padding_does_not_move_learned_positions(tmp_path: Path, base: Path, size: int, shares: bool) -> None:
    vocabulary = len(AutoTokenizer.from_pretrained(base))
    config = GPT2Config(vocab_size=vocabulary, n_positions=32, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    torch.nn.init.normal_(model.transformer.wpe.weight)
    model.save_pretrained(tmp_path / "model")
    trained_model = GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    trainer = build_trainer(SharedPrefixTrainer, trained_model, tmp_path, [{"prompt": "a"}], beta=0.1)
    assert trainer.shares
    trainer.shares = shares
    ids, mask = build_batch(vocabulary)
    for network in (trainer.model, trainer.ref_model):
        logps, *_ = trainer._get_per_token_logps_and_entropies(network.eval(), ids, mask, COMPLETION, batch_size=size)
        for row, row_mask, result in zip(ids, mask.bool(), logps, strict=True):
            tokens = row[row_mask][None]
            expected = model.eval()(tokens).logits[0, -COMPLETION - 1 : -1].log_softmax(-1)
            torch.testing.assert_close(result, expected.gather(1, tokens[0, -COMPLETION:, None])[:, 0])


@pytest.mark.parametrize("advantages", [[0, 0, 1, -1], [0, 0, 0, 0]])
def test_completions_without_advantage_change_no_gradient(trainers: list[GRPOTrainer], advantages: list[int]) -> None:
    ids, mask = build_batch(trainers[0].model.config.vocab_size)
    inputs = {
        "prompt_ids": ids[:, :LENGTH],
        "prompt_mask": mask[:, :LENGTH],
        "completion_ids": ids[:, LENGTH:],
        "completion_mask": mask[:, LENGTH:],
        "advantages": torch.tensor(advantages).repeat(PROMPTS).float(),
        "num_items_in_batch": mask[:, LENGTH:].sum(),
    }
    gradients, token_counts = [], []
    for trainer in trainers:
        trainer.current_gradient_accumulation_steps = 1
        lengths: list[int] = []
        embeddings = trainer.model.get_input_embeddings()
        embeddings.register_forward_hook(lambda _, inputs, __, lengths=lengths: lengths.append(inputs[0].numel()))
        trainer._compute_loss(trainer.model, inputs).backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()]))
        token_counts.append(sum(lengths))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
    assert bool(gradients[0].abs().max() > 0.001) is any(advantages)
    assert token_counts[1] < token_counts[0] / 2


def test_entropies_equal_those_of_the_loss(trainers: list[GRPOTrainer]) -> None:
    trainer = trainers[1]
    ids, mask = build_batch(trainer.model.config.vocab_size)
    prompts = [row[row_mask.bool()].tolist() for row, row_mask in zip(ids[:, :LENGTH], mask[:, :LENGTH], strict=True)]
    trainer.generation_config.max_new_tokens = 24
    completions = trainer._generate_single_turn(prompts, None, {})[0]
    for prompt, completion, entropy in zip(prompts, completions, trainer.entropies, strict=True):
        tokens = torch.tensor([prompt + completion])
        _, expected, _ = trainers[0]._get_per_token_logps_and_entropies(
            trainers[0].model, tokens, torch.ones_like(tokens), len(completion), compute_entropy=True
        )
        torch.testing.assert_close(entropy, expected.sum(), rtol=1e-4, atol=1e-4)


def sample_like_ours(chances: torch.Tensor, num_samples: int) -> torch.Tensor:
    """Replace torch.multinomial by our sampling, so that both draw the same random numbers."""
    assert num_samples == 1
    return sample_indices(chances, torch.rand(len(chances)))[:, None]


@pytest.mark.parametrize("limits", [{}, {"top_k": 4}, {"top_p": 0.8}])
def test_sampled_completions_equal_trl(
    trainers: list[GRPOTrainer], limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, mask = build_batch(trainers[0].model.config.vocab_size)
    prompts = [row[row_mask.bool()].tolist() for row, row_mask in zip(ids[:, :LENGTH], mask[:, :LENGTH], strict=True)]
    monkeypatch.setattr(torch, "multinomial", sample_like_ours)
    completions = []
    for trainer in trainers:
        trainer.generation_config.max_new_tokens = 24
        trainer.generation_config.update(**limits)
        torch.manual_seed(1)
        completions.append(trainer._generate_single_turn(prompts, None, {})[0])
    assert completions[0] == completions[1]
    assert len({tuple(ids) for ids in completions[0]}) > PROMPTS  # sampled, not one per prompt
    assert len({len(ids) for ids in completions[0]}) > 2  # finished rows were dropped


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any))
def test_indices_are_sampled_in_proportion_to_their_weights(weights: list[int]) -> None:
    shares, count = torch.tensor(weights) / sum(weights), 240
    numbers = (torch.arange(count) + 0.5) / count
    counts = torch.bincount(sample_indices(shares.expand(count, -1), numbers), minlength=len(weights))
    assert all(
        abs(number - count * share) <= 1.01 for number, share in zip(counts.tolist(), shares.tolist(), strict=True)
    )
    last = sample_indices(shares[None], torch.tensor([1 - 2**-24]))
    assert last == max(index for index, weight in enumerate(weights) if weight)


@pytest.mark.parametrize("shares", [True, False])
def test_rows_have_their_own_temperatures(trainers: list[GRPOTrainer], shares: bool) -> None:
    """Each row is generated and scored as by a trainer with its temperature."""
    trainer = trainers[1]
    trainer.shares = shares
    ids, mask = build_batch(trainer.model.config.vocab_size)
    prompts = [row[row_mask.bool()].tolist() for row, row_mask in zip(ids[:, :LENGTH], mask[:, :LENGTH], strict=True)]

    def run(
        temperature: float, temperatures: torch.Tensor | None
    ) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
        trainer.temperature, trainer.temperatures = temperature, temperatures
        trainer.generation_config.temperature = temperature
        torch.manual_seed(1)
        completions = trainer._generate_single_turn(prompts, None, {})[0]
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, COMPLETION, batch_size=7, compute_entropy=True
        )
        return completions, logps.detach(), entropies

    cold, warm = run(0.1, None), run(2.0, None)
    temperatures = torch.where(torch.arange(len(ids)) % 2 == 0, 0.1, 2.0)
    mixed_run = run(1.0, temperatures)
    for row in range(len(ids)):
        single_run = cold if row % 2 == 0 else warm
        torch.testing.assert_close(mixed_run[1][row], single_run[1][row])
        torch.testing.assert_close(mixed_run[2][row], single_run[2][row])
    # Every step draws numbers for all rows, so a row's numbers do not depend on the other rows.
    cold_rows = range(0, len(ids), 2)
    assert [mixed_run[0][row] for row in cold_rows] == [cold[0][row] for row in cold_rows]
    assert mixed_run[0] != cold[0]


def test_each_prompt_is_forwarded_once(trainers: list[GRPOTrainer]) -> None:
    ids, mask = build_batch(trainers[0].model.config.vocab_size)
    counts = []
    for trainer in trainers:
        lengths: list[int] = []
        embeddings = trainer.model.get_input_embeddings()
        embeddings.register_forward_hook(lambda _, inputs, __, lengths=lengths: lengths.append(inputs[0].numel()))
        compute_gradient(trainer, ids, mask, len(ids))
        counts.append(sum(lengths))
    completions = PROMPTS * GENERATIONS * COMPLETION
    assert counts == [PROMPTS * GENERATIONS * LENGTH + completions, PROMPTS * LENGTH + completions]


def test_layers_that_keep_a_state_are_left_to_trl(tmp_path: Path, base: Path) -> None:
    """Its convolutions have no keys to share; sampling and log-probabilities are TRL's."""
    config = Lfm2Config(
        vocab_size=len(AutoTokenizer.from_pretrained(base)),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
        eos_token_id=1,
        pad_token_id=0,
    )
    rows = [{"prompt": "copy a b"}, {"prompt": "a"}]
    trainer = build_trainer(SharedPrefixTrainer, Lfm2ForCausalLM(config), tmp_path, rows, **SHORT_RUN)
    assert not trainer.shares
    trainer.train()
    assert trainer.state.global_step == 1


def test_experts_train_with_temperatures_of_their_own(tmp_path: Path, base: Path) -> None:
    """A mixture's router loss goes through the batches that rows' temperatures need."""
    config = Qwen3MoeConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(base)),
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        eos_token_id=1,
        pad_token_id=0,
    )
    rows = [{"prompt": "copy a b", TEMPERATURE: 0.5}, {"prompt": "a", TEMPERATURE: 1.5}]
    options = SHORT_RUN | {"temperature": 1.0, "router_aux_loss_coef": 0.01}
    trainer = build_trainer(SharedPrefixTrainer, Qwen3MoeForCausalLM(config), tmp_path, rows, **options)
    assert trainer.aux_loss_enabled
    trainer.train()
    assert trainer.state.log_history[0]["aux_loss"] > 0


def test_a_router_loss_keeps_completions_without_advantage(
    trainers: list[GRPOTrainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, sizes = trainers[1], []
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda _, __, inputs: sizes.append(len(inputs["advantages"])))
    for trainer.aux_loss_enabled in (False, True):
        trainer._compute_loss(trainer.model, {"advantages": torch.tensor([0.0, 0.0, 1.0, -1.0])})
    assert sizes == [2, 4]
