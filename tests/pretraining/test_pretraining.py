"""Training data, vocabulary and initial embeddings of the shipped base model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig

from planward.core.hashing import hash_fraction
from planward.core.verdicts import Label
from planward.inference.precision import Precision
from planward.pddl.canonical import hash_without_constraints
from planward.pddl.simulation import verify_plan
from planward.pretraining.base_model import PackedBatches, ProblemSampler, pretrain, shuffle_declarations
from planward.pretraining.config import BaseModelConfig, load_base_config
from planward.pretraining.network import IGNORED_LABEL, BaseModelNetwork, ComposedEmbedding
from planward.pretraining.optimizer import MuonWithAdamW
from planward.pretraining.random_domains import sample_domain, sample_problems
from planward.pretraining.vocabulary import SPECIAL, build_tokenizer, build_vocabulary
from planward.tasks.planning.completion import extract_plan
from planward.tasks.planning.dialects import build_dialect, sample_dialect
from planward.tasks.planning.domains import KNOWN_DOMAINS, build_problem, find_plan, load_generated_domain
from planward.tasks.planning.lexicon import build_lexicon
from planward.tasks.planning.prompt import render_compact_problem
from support import ROOT
from training_runs import KillAfter, Killed, StepRecorder, are_equal


@pytest.fixture(scope="module")
def params() -> BaseModelConfig:
    return load_base_config(ROOT / "models/params.yaml")


@pytest.fixture(scope="module")
def tokens() -> list[str]:
    return build_vocabulary()


@pytest.mark.parametrize("domain", sorted(KNOWN_DOMAINS))
def test_sampled_problems_are_solved_unconstrained_and_in_the_base_share(params: BaseModelConfig, domain: str) -> None:
    sampler = ProblemSampler(params.model_copy(update={"reuse": 2}), params.phases[-1], domain, Random(1))
    plain = build_dialect(domain, 0, 1)
    for _ in range(40):
        problem, plan = sampler.sample()
        assert hash_fraction(hash_without_constraints(problem), "base") < params.base_share
        assert not problem.constraints
        assert verify_plan(problem, plan).label == Label.SUCCESS
        dialect = sample_dialect(domain, Random(2))
        assert dialect.rewrites != plain.rewrites
        assert verify_plan(dialect.translate_problem(problem), dialect.translate_plan(plan)).label == Label.SUCCESS
    assert len(sampler.solved) < 40  # reused with other names


@pytest.mark.parametrize("domain", sorted(KNOWN_DOMAINS))
def test_vocabulary_covers_the_largest_problems_in_all_dialects(tokens: list[str], domain: str) -> None:
    tokenizer, known_domain = build_tokenizer(tokens, 1024), KNOWN_DOMAINS[domain]
    for number in range(8):
        instance, dialect = (
            known_domain.generate(Random(number), known_domain.LARGEST),
            build_dialect(domain, number, 5),
        )
        problem = dialect.translate_problem(build_problem(domain, instance))
        plan = dialect.translate_plan(find_plan(domain, instance) or [])
        assert plan
        text = render_compact_problem(problem) + "\n".join(plan)
        assert tokenizer.unk_token_id not in tokenizer(text).input_ids


def test_plans_of_random_domains_are_shortest_and_read_back_from_neutral_tokens(tokens: list[str]) -> None:
    rng, tokenizer, lengths = Random(5), build_tokenizer(tokens, 1024), Counter[int]()
    for _ in range(40):
        domain, draft = sample_domain(rng)
        for problem, plan in sample_problems(rng, domain, draft, 3):
            assert verify_plan(problem, plan).label == Label.SUCCESS
            lengths[len(plan)] += 1
            lexicon = build_lexicon(problem, neutral=True)
            prompt, completion = lexicon.header + lexicon.text, lexicon.encode_plan("\n".join(plan))
            ids = tokenizer(completion).input_ids
            assert tokenizer.unk_token_id not in [*tokenizer(prompt).input_ids, *ids]
            assert extract_plan(lexicon.decode_plan(tokenizer.decode(ids))) == plan
    assert min(lengths) == 1
    assert max(lengths) > 3
    assert lengths.total() > 80


def test_shuffled_declarations_describe_the_same_domain() -> None:
    domain = load_generated_domain("grippers")
    shuffled_domains = [shuffle_declarations(domain, Random(seed)) for seed in range(8)]
    assert len({tuple(other.actions) for other in shuffled_domains}) > 1
    assert len({tuple(other.signature.predicates) for other in shuffled_domains}) > 1
    instance = KNOWN_DOMAINS["grippers"].generate(Random(1), {"robots": 2, "rooms": 3, "objects": 3})
    problem, plan = build_problem("grippers", instance), find_plan("grippers", instance)
    assert plan
    assert all(verify_plan(replace(problem, domain=other), plan).label == Label.SUCCESS for other in shuffled_domains)


def test_batches_have_loss_on_plans_only_and_are_reproducible(params: BaseModelConfig, tokens: list[str]) -> None:
    small = params.model_copy(update={"batch_tokens": 1024})
    tokenizer = build_tokenizer(tokens, 1024)

    def iter_batches() -> Iterator[dict[str, torch.Tensor]]:
        return iter(PackedBatches(small, 1, tokenizer))

    shapes = []
    for (batch, repeated_batch), _ in zip(zip(iter_batches(), iter_batches(), strict=True), range(4), strict=False):
        assert torch.equal(batch["input_ids"], repeated_batch["input_ids"])
        has_label = batch["labels"] != IGNORED_LABEL
        assert torch.equal(batch["labels"][has_label], batch["input_ids"][has_label])
        words = tokenizer.convert_ids_to_tokens(batch["input_ids"][has_label].tolist())
        assert all(word == tokenizer.eos_token or word.startswith(("(", "o")) for word in words)
        shapes.append(tuple(batch["input_ids"].shape))
    assert shapes == [(4, 256)] * 3 + [(2, 512)]


def test_initial_embeddings_are_similar_for_atoms_that_share_objects(tokens: list[str]) -> None:
    torch.manual_seed(1)
    rows = torch.nn.functional.normalize(ComposedEmbedding(tokens, 128, 0.08)().detach(), dim=1)
    embeddings = dict(zip(tokens, rows, strict=True))

    def compute_similarity(a: str, b: str) -> float:
        return float(embeddings[a] @ embeddings[b])

    assert compute_similarity("(on b1 b2)", "(on b1 b3)") > compute_similarity("(on b1 b2)", "(on b4 b3)") > 0.1
    assert compute_similarity("(clear b1)", "b1") > 0.2 > abs(compute_similarity("(clear b1)", "b2"))
    assert len(SPECIAL) + len(tokens) == len({*SPECIAL, *tokens})


@pytest.fixture(scope="module")
def network(tokens: list[str]) -> BaseModelNetwork:
    """Untrained, with one layer; 0 is the token for padding."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(tokens),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
    )
    return BaseModelNetwork(config, [*SPECIAL, *tokens], "bfloat16")


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.01), ("float32", 1e-6)])
def test_trained_network_is_the_llama_that_is_saved(
    network: BaseModelNetwork, tokens: list[str], precision: Precision, tolerance: float
) -> None:
    network = deepcopy(network)
    network.precision = precision
    batch = torch.randint(3, len(tokens), (4, 24), generator=torch.Generator().manual_seed(2))
    labels = torch.where(torch.arange(24) < 6, IGNORED_LABEL, batch)
    model = network.build_model()
    with torch.no_grad():
        expected = model(input_ids=batch, labels=labels).loss
        assert float(network(batch, labels)) == pytest.approx(float(expected), rel=tolerance)
    assert model.config._attn_implementation == "sdpa"
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_optimizer_continues_from_its_state(network: BaseModelNetwork, tokens: list[str]) -> None:
    batch = torch.randint(3, len(tokens), (2, 16), generator=torch.Generator().manual_seed(3))

    def build_optimizer(module: BaseModelNetwork) -> MuonWithAdamW:
        return MuonWithAdamW(module.list_matrices(), module.list_other_weights(), 0.01, 0.98, 0.0)

    def train(module: BaseModelNetwork, optimizer: MuonWithAdamW, steps: int) -> list[float]:
        scheduler, losses = LambdaLR(optimizer, lambda step: 1 - step / 10), list[float]()
        for _ in range(steps):
            loss = module(batch, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        return losses

    first = build_optimizer(network)
    assert len({id(weight) for group in first.param_groups for weight in group["params"]}) == len(
        list(network.parameters())
    )
    losses = train(network, first, 4)
    assert losses[-1] < losses[0]
    assert {group["lr"] for optimizer in first.optimizers for group in optimizer.param_groups} == {0.006}
    network_copy = deepcopy(network)
    second = build_optimizer(network_copy)
    second.load_state_dict(deepcopy(first.state_dict()))
    assert train(network, first, 2) == train(network_copy, second, 2)


@pytest.fixture
def tiny(params: BaseModelConfig) -> BaseModelConfig:
    """Two phases of four steps; the network is small and not compiled."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "layers": 1, "heads": 2, "batch_tokens": 512}
    phases = [phase.model_copy(update={"steps": 4}) for phase in params.phases]
    return params.model_copy(update={**sizes, "compile": False, "save_steps": 2, "phases": phases})


def test_the_base_model_resumes_to_the_same_weights(
    tiny: BaseModelConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    straight, _ = pretrain(tiny, tmp_path / "straight")
    for step in (3, 1, 3):  # phase 0; phase 1 before its first checkpoint, then after it
        with pytest.raises(Killed):
            pretrain(tiny, tmp_path / "resumed", [KillAfter(step)])
    assert sorted(path.parts[-2][:7] + path.name for path in tmp_path.glob("resumed/*/checkpoint-*")) == [
        "phase-0checkpoint-4",
        "phase-1checkpoint-2",
    ]
    for weights in tmp_path.glob("resumed/phase-1-*/checkpoint-2/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1])
    resumed_network, _ = pretrain(tiny, tmp_path / "resumed")
    assert "model.safetensors has" in capsys.readouterr().out
    assert are_equal(straight.state_dict(), resumed_network.state_dict())


def test_the_base_model_of_other_settings_starts_anew(tiny: BaseModelConfig, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    one_phase = tiny.model_copy(update={"phases": tiny.phases[:1]})
    with pytest.raises(Killed):
        pretrain(one_phase, tmp_path, [KillAfter(3)])
    recorder = StepRecorder()
    pretrain(one_phase.model_copy(update={"adam_beta2": 0.9}), tmp_path, [recorder])
    assert recorder.steps == [1, 2, 3, 4]
    resumed_recorder = StepRecorder()
    pretrain(one_phase.model_copy(update={"save_steps": 1}), tmp_path, [resumed_recorder])
    assert resumed_recorder.steps == [3, 4]
