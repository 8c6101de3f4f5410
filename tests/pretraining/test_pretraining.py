"""Training data, vocabulary and initial embeddings of the shipped base model."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import torch

from planward.core.hashing import hash_fraction
from planward.core.verdicts import Label
from planward.pddl.canonical import hash_without_constraints
from planward.pddl.simulation import verify_plan
from planward.pretraining.base_model import IGNORED_LABEL, PackedBatches, ProblemSampler
from planward.pretraining.config import BaseModelConfig, load_base_config
from planward.pretraining.vocabulary import SPECIAL, build_tokenizer, build_vocabulary, compose_embeddings
from planward.tasks.planning.dialects import build_dialect, sample_dialect
from planward.tasks.planning.domains import GENERATED_DOMAINS
from planward.tasks.planning.prompt import render_compact_problem
from support import ROOT


@pytest.fixture(scope="module")
def params() -> BaseModelConfig:
    return load_base_config(ROOT / "models/base/params.yaml")


@pytest.fixture(scope="module")
def tokens(params: BaseModelConfig) -> list[str]:
    return build_vocabulary(params.vocabulary)


@pytest.mark.parametrize("domain", sorted(GENERATED_DOMAINS))
def test_sampled_problems_are_solved_and_in_the_base_share(params: BaseModelConfig, domain: str) -> None:
    sampler = ProblemSampler(params.model_copy(update={"reuse": 2}), domain, Random(1))
    plain = build_dialect(domain, 0, 1)
    num_violations = 0
    for _ in range(40):
        solved = sampler.sample()
        assert hash_fraction(hash_without_constraints(solved.problem), "base") < params.base_share
        assert verify_plan(solved.problem, solved.plan).label == Label.SUCCESS
        num_violations += verify_plan(solved.problem, solved.unconstrained_plan).label == Label.SAFETY
        dialect = sample_dialect(domain, Random(2))
        assert dialect.rewrites != plain.rewrites
        problem, plan = dialect.translate_problem(solved.problem), dialect.translate_plan(solved.plan)
        assert verify_plan(problem, plan).label == Label.SUCCESS
    assert num_violations
    assert len(sampler.solved) < 40  # reused with other names


@pytest.mark.parametrize("domain", sorted(GENERATED_DOMAINS))
def test_vocabulary_covers_sampled_problems_in_all_dialects(
    params: BaseModelConfig, tokens: list[str], domain: str
) -> None:
    tokenizer, sampler = build_tokenizer(tokens, 1024), ProblemSampler(params, domain, Random(3))
    for number in range(8):
        solved, dialect = sampler.sample(), build_dialect(domain, number, 5)
        problem, plan = dialect.translate_problem(solved.problem), dialect.translate_plan(solved.plan)
        text = render_compact_problem(problem) + "\n".join(plan)
        assert tokenizer.unk_token_id not in tokenizer(text).input_ids


def test_batches_have_loss_on_plans_only_and_are_reproducible(params: BaseModelConfig, tokens: list[str]) -> None:
    small = params.model_copy(update={"batch_tokens": 1024})
    tokenizer = build_tokenizer(tokens, 1024)

    def iter_batches() -> Iterator[dict[str, torch.Tensor]]:
        return iter(PackedBatches(small, tokenizer))

    shapes = []
    for (batch, repeated), _ in zip(zip(iter_batches(), iter_batches(), strict=True), range(4), strict=False):
        assert torch.equal(batch["input_ids"], repeated["input_ids"])
        labelled = batch["labels"] != IGNORED_LABEL
        assert torch.equal(batch["labels"][labelled], batch["input_ids"][labelled])
        words = tokenizer.convert_ids_to_tokens(batch["input_ids"][labelled].tolist())
        assert all(word == tokenizer.eos_token or word.startswith("(") for word in words)
        shapes.append(tuple(batch["input_ids"].shape))
    assert shapes == [(4, 256)] * 3 + [(2, 512)]


def test_initial_embeddings_are_similar_for_atoms_that_share_objects(tokens: list[str]) -> None:
    rows = torch.nn.functional.normalize(compose_embeddings(tokens, 128, 0.08, 1), dim=1)
    embeddings = dict(zip(tokens, rows, strict=True))

    def compute_similarity(a: str, b: str) -> float:
        return float(embeddings[a] @ embeddings[b])

    assert compute_similarity("(on b1 b2)", "(on b1 b3)") > compute_similarity("(on b1 b2)", "(on b4 b3)") > 0.1
    assert compute_similarity("(clear b1)", "b1") > 0.2 > abs(compute_similarity("(clear b1)", "b2"))
    assert len(SPECIAL) + len(tokens) == len({*SPECIAL, *tokens})
