"""What the tiny base model is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from planward.params import Base, load_base_params
from planward.pddl.canonical import core_hash, fraction
from planward.pddl.dialects import dialect, random_dialect
from planward.pddl.generators import GENERATORS
from planward.pddl.simulation import check_plan
from planward.records import Label
from planward.tasks.planning.prompt import compact_problem
from planward.training.lexicon import SPECIAL, build_tokenizer, composed_embeddings, vocabulary
from planward.training.pretraining import IGNORED, Examples, PackedBatches

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def params() -> Base:
    return load_base_params(ROOT / "models/base/params.yaml")


@pytest.fixture(scope="module")
def tokens(params: Base) -> list[str]:
    return vocabulary(params.vocabulary)


@pytest.mark.parametrize("domain", sorted(GENERATORS))
def test_examples_are_solved_and_the_bases_own_under_every_name(params: Base, domain: str) -> None:
    fresh = params.model_copy(update={"reuse": 2})
    examples, plain = Examples(fresh, domain, Random(1)), dialect(domain, 0, 1)
    careless = 0
    for _ in range(40):
        solved = examples.draw()
        assert fraction(core_hash(solved.problem), "base") < params.base_share
        assert check_plan(solved.problem, solved.plan).label == Label.SUCCESS
        careless += check_plan(solved.problem, solved.careless).label == Label.SAFETY
        spoken = random_dialect(domain, Random(2))
        assert spoken.language != plain.language
        assert check_plan(spoken.problem(solved.problem), spoken.translated(solved.plan)).label == Label.SUCCESS
    assert careless
    assert len(examples.solved) < 40  # they come again, under other names


@pytest.mark.parametrize("domain", sorted(GENERATORS))
def test_the_vocabulary_holds_every_dialect_of_every_drawn_problem(
    params: Base, tokens: list[str], domain: str
) -> None:
    tokenizer, examples = build_tokenizer(tokens, 1024), Examples(params, domain, Random(3))
    for number in range(8):
        solved, spoken = examples.draw(), dialect(domain, number, 5)
        text = compact_problem(spoken.problem(solved.problem)) + "\n".join(spoken.translated(solved.plan))
        assert tokenizer.unk_token_id not in tokenizer(text).input_ids


def test_batches_learn_plans_alone_and_are_the_same_every_time(params: Base, tokens: list[str]) -> None:
    small = params.model_copy(update={"batch_tokens": 1024})
    tokenizer = build_tokenizer(tokens, 1024)

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        return iter(PackedBatches(small, tokenizer))

    shapes = []
    for (batch, again), _ in zip(zip(batches(), batches(), strict=True), range(4), strict=False):
        assert torch.equal(batch["input_ids"], again["input_ids"])
        learnt = batch["labels"] != IGNORED
        assert torch.equal(batch["labels"][learnt], batch["input_ids"][learnt])
        words = tokenizer.convert_ids_to_tokens(batch["input_ids"][learnt].tolist())
        assert all(word == tokenizer.eos_token or word.startswith("(") for word in words)
        shapes.append(tuple(batch["input_ids"].shape))
    assert shapes == [(4, 256)] * 3 + [(2, 512)]


def test_embeddings_start_close_where_atoms_share_objects(tokens: list[str]) -> None:
    rows = torch.nn.functional.normalize(composed_embeddings(tokens, 128, 0.08, 1), dim=1)
    near = dict(zip(tokens, rows, strict=True))

    def likeness(a: str, b: str) -> float:
        return float(near[a] @ near[b])

    assert likeness("(on b1 b2)", "(on b1 b3)") > likeness("(on b1 b2)", "(on b4 b3)") > 0.1
    assert likeness("(clear b1)", "b1") > 0.2 > abs(likeness("(clear b1)", "b2"))
    assert len(SPECIAL) + len(tokens) == len({*SPECIAL, *tokens})
