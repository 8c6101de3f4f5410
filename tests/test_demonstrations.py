"""The demonstrations track on a few problems: the shipped model, real beams, small selectors, VAL's verdicts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from statistics import fmean
from typing import Any
from zlib import crc32

import pytest
import torch
from torch.nn.functional import cosine_similarity

from conftest import ROOT, rows
from planward.curriculum.sets import balanced, training_set
from planward.demonstrations.beams import read_beams
from planward.demonstrations.embeddings import read_embeddings
from planward.demonstrations.pointer import Pointer, load_pointer
from planward.demonstrations.pools import candidate_pool
from planward.demonstrations.validation import Validation
from planward.params import Params, ParamsError
from planward.records import POINTERS, RULES, Record, Run, VerifierError, read_records
from planward.stages import beams, demonstrate, dialects, embed, problems, score, selector, split
from planward.tasks import load_task
from planward.training.models import load

OUT = Path("results/demonstrations")
SIZE, SEED = 8, 5
NAMES = [f"{rule}-0" for rule in RULES] + [f"{pointer}-{SIZE}-{SEED}" for pointer in POINTERS]


def select(params: Params, method: str, size: int = SIZE) -> None:
    selector.run(params, Run(method, size, SEED))


def track(params: Params) -> None:
    """Every stage of the track behind its embeddings."""
    for side in ("train", "test"):
        beams.run(params, side)  # type: ignore[arg-type]
    for method in POINTERS:
        select(params, method)
    demonstrate.run(params, 0, 0)
    demonstrate.run(params, SIZE, SEED)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, small: Callable[..., Params]) -> tuple[Path, Params]:
    """A project in which the whole track has run; to be read only."""
    folder = tmp_path_factory.mktemp("demonstrations")
    params = small(
        dataset_sizes=[4, SIZE],
        problems={
            "generated": {
                "blocksworld": {"count": 24, "blocks": [3, 4]},
                "ferry": {"count": 24, "locations": [3, 4], "cars": [1, 2]},
            }
        },
        split={"validation": 0.2, "test": 0.2},
        evaluate={"batch_size": 16},
        demonstrations={
            "model": str(ROOT / "models/base"),
            "dialects": 2,
            "shot_num": 2,
            "pool": 8,
            "beams": 3,
            "shortlist": 2,
            "validation": 6,
            "test": 6,
            "batch_size": 4,
            "pointer": {"hidden": 16, "layers": 1, "heads": 2, "dropout": 0.0},
            "sft": {"epochs": 2},
            "rce": {"epochs": 2},
            "grpo": {"epochs": 2},
        },
    )
    torch.set_num_threads(1)
    with chdir(folder):
        for stage in (problems, split, score, dialects, embed):
            stage.run(params)
        track(params)
    return folder, params


@pytest.fixture
def inside(done: tuple[Path, Params], monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(done[0])
    return done[1]


@pytest.fixture
def copied(done: tuple[Path, Params], tmp_path: Path) -> Iterator[Params]:
    """Inside a copy of the project, which may be changed."""
    shutil.copytree(done[0], tmp_path / "copy")
    with chdir(tmp_path / "copy"):
        yield done[1]


class Problems:
    """The problems of the project, and what a model makes of them."""

    def __init__(self, params: Params) -> None:
        self.params, self.task = params, load_task(params, dialects.PROBLEMS)
        self.train, self.validation, self.test = (
            list(read_records(dialects.OUT / f"{side}.jsonl")) for side in ("train", "validation", "test")
        )
        self.by_id = {record.id: record for record in [*self.train, *self.validation, *self.test]}
        limit = params.prompt.max_tokens + params.prompt.max_completion_tokens
        self.model, self.tokenizer = load(params.model, str(params.demonstrations.model), limit, params.seed)

    def pool(self, query: Record) -> list[str]:
        found = candidate_pool(
            query, self.train, self.task.core, self.params.demonstrations.pool, str(self.params.seed)
        )
        return [shot.id for shot in found]

    def prompt(self, query: str, shots: list[str]) -> str:
        return str(self.task.prompt(self.by_id[query], [self.by_id[shot] for shot in shots]))

    def succeeds(self, query: str, shots: list[str]) -> bool:
        """The verdict on the answer to one prompt, as Transformers' own generation writes it."""
        ids = torch.tensor([self.tokenizer(self.prompt(query, shots))["input_ids"]])
        tokens = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.params.prompt.max_completion_tokens,
            do_sample=False,
        )[0, ids.shape[1] :]
        return self.task.verify(self.by_id[query], self.tokenizer.decode(tokens, skip_special_tokens=True)).success


class Answers:
    """In the model's place: right under about half of the prompts that are expected; notes what it is asked."""

    def __init__(self, known: Problems, expected: Iterable[tuple[str, list[str]]]) -> None:
        self.known, self.asked = known, list[str]()
        self.query = {known.prompt(query, shots): query for query, shots in expected}
        self.prompt = {tuple(known.tokenizer(prompt)["input_ids"]): prompt for prompt in self.query}

    def right(self, prompt: str) -> bool:
        return crc32(prompt.encode()) % 2 == 0

    def __call__(self, _model: Any, _tokenizer: Any, prompts: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[str]:
        new = [self.prompt[tuple(prompt)] for prompt in prompts]
        self.asked += new
        known = self.known
        return [known.task.answer(known.by_id[self.query[own]]) if self.right(own) else "" for own in new]


def stored(name: str) -> dict[str, Any]:
    """Predictions of a selector by problem and number of shots."""
    return {(row["id"], row["shot_num"]): row for row in rows(OUT / f"predictions/{name}.jsonl")}


def greedy_choice(pointer: Pointer, query: str, pool: list[str], count: int) -> list[str]:
    """The pointer's choice for one query, from its pool in the order of ids."""
    embeddings = read_embeddings(embed.EMBEDDINGS)
    vectors = torch.stack([embeddings[shot] for shot in sorted(pool)])[None]
    mask = torch.ones(1, len(pool), dtype=torch.bool)
    return [sorted(pool)[place] for place in pointer.greedy(embeddings[query][None], vectors, mask, count)[0]]


def foreign(path: Path, drop: tuple[str, ...] = ("success_list", "pool_list", "pool_score_list")) -> None:
    """Leave out of a file of beams what those of other systems have not."""
    data = json.loads(path.read_text())
    path.write_text(json.dumps({q: {k: v for k, v in row.items() if k not in drop} for q, row in data.items()}))


def test_beams_hold_candidates_of_the_training_split_and_never_the_query(inside: Params) -> None:
    known = Problems(inside)
    asked = {"train": training_set(known.train, SIZE), "test": balanced(known.test, inside.demonstrations.test)}
    training = {record.id for record in known.train}
    for side, queries in asked.items():
        found = read_beams(OUT / f"beams/{side}.json", known.by_id)
        assert [own.query for own in found] == [query.id for query in queries]
        for own, query in zip(found, queries, strict=True):
            assert list(own.pool) == known.pool(query)
            assert set(own.pool) <= training - {query.id}
            assert known.task.core(query) not in {known.task.core(known.by_id[shot]) for shot in own.pool}
            assert 1 < len(own.beams) <= inside.demonstrations.beams
            assert all(len(set(beam.shots)) == inside.demonstrations.shot_num for beam in own.beams)
            assert {shot for beam in own.beams for shot in beam.shots} <= set(own.pool)
    assert {known.by_id[shot].domain for own in found for shot in own.pool} == {"blocksworld", "ferry"}


def test_a_beams_verdict_is_that_on_the_models_own_answer_behind_its_shots(inside: Params) -> None:
    known = Problems(inside)
    found = read_beams(OUT / "beams/train.json", known.by_id)
    verdicts = {(own.query, beam.shots): beam.success for own in found for beam in own.beams}
    assert verdicts == {(query, shots): known.succeeds(query, list(shots)) for query, shots in verdicts}
    assert set(verdicts.values()) == {True, False}
    assert {beam.success for own in read_beams(OUT / "beams/test.json", known.by_id) for beam in own.beams} == {None}


def test_a_beam_is_asked_for_with_its_shots_in_their_order(inside: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Problems(inside)
    found = read_beams(OUT / "beams/train.json", known.by_id)
    prompts = [(own.query, list(beam.shots)) for own in found for beam in own.beams]
    model = Answers(known, prompts)
    monkeypatch.setattr("planward.evaluation.scoring.greedy_completions", model)
    judged = beams.with_verdicts(found, known.by_id, known.task, known.model, known.tokenizer, inside)
    verdicts = [beam.success for own in judged for beam in own.beams]
    assert verdicts == [model.right(known.prompt(*one)) for one in prompts]
    assert set(verdicts) == {True, False}


def test_the_same_run_twice_gives_the_same_bytes(copied: Params) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(OUT.rglob("*")) if path.is_file()}

    first = content()
    for folder in ("beams", "selectors", "training", "predictions"):
        shutil.rmtree(OUT / folder)
    track(copied)
    assert content() == first
    assert len([path for path in first if path.endswith("model.safetensors")]) == len(POINTERS)
    assert not list(selector.CHECKPOINTS.glob("*"))


def test_a_smaller_set_learns_from_its_own_queries_alone(copied: Params) -> None:
    select(copied, "pointer-sft", 4)
    weights = selector.SELECTORS / f"pointer-sft-4-{SEED}/model.safetensors"
    before, path = weights.read_bytes(), OUT / "beams/train.json"
    data = json.loads(path.read_text())
    own = {query.id for query in training_set(Problems(copied).train, 4)}
    path.write_text(json.dumps({query: row for query, row in data.items() if query in own}))
    select(copied, "pointer-sft", 4)
    assert weights.read_bytes() == before
    assert (selector.SELECTORS / f"pointer-sft-{SIZE}-{SEED}/model.safetensors").read_bytes() != before


@pytest.mark.parametrize(("method", "needed"), [("pointer-rce", "pointer-sft"), ("pointer-grpo", "pointer-rce")])
def test_a_phase_before_the_one_it_starts_from_is_refused(copied: Params, method: str, needed: str) -> None:
    shutil.rmtree(selector.SELECTORS / f"{needed}-{SIZE}-{SEED}")
    with pytest.raises((ValueError, OSError), match=f"{selector.SELECTORS}/{needed}-{SIZE}-{SEED}"):
        select(copied, method)


@pytest.mark.usefixtures("inside")
def test_an_unknown_phase_is_refused(done: tuple[Path, Params]) -> None:
    with pytest.raises(ParamsError, match="no phase pointer-dpo; there are: pointer-sft, pointer-rce, pointer-grpo"):
        select(done[1], "pointer-dpo")


def test_beams_of_another_system_train_all_but_grpo_which_needs_verdicts(copied: Params) -> None:
    path = OUT / "beams/train.json"
    foreign(path)
    for method in ("pointer-sft", "pointer-rce"):
        weights = selector.SELECTORS / f"{method}-{SIZE}-{SEED}/model.safetensors"
        before = weights.read_bytes()
        select(copied, method)
        assert weights.read_bytes() != before  # what candidates score by themselves is unknown now
    with pytest.raises(ValueError, match="GRPO needs each beam's success, and some is unknown"):
        select(copied, "pointer-grpo")


def test_a_fault_in_beams_is_named_with_file_and_query(copied: Params) -> None:
    path = OUT / "beams/train.json"
    data = json.loads(path.read_text())
    query = next(iter(data))
    data[query]["score_list"].pop()
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=rf"beams/train\.json: query '{query}' has lists of different length"):
        select(copied, "pointer-sft")


def test_a_prompt_holds_the_chosen_examples_the_first_choice_next_to_the_query(inside: Params) -> None:
    known, most = Problems(inside), inside.demonstrations.shot_num
    embeddings = read_embeddings(embed.EMBEDDINGS)
    oracle = {own.query: own.beams[0].shots for own in read_beams(OUT / "beams/test.json", known.by_id)}
    asked = {(query.id, k) for query in balanced(known.test, inside.demonstrations.test) for k in range(1, most + 1)}
    for name in NAMES:
        found = stored(name)
        assert set(found) == asked
        run = Run.parsed(name)
        pointer = load_pointer(selector.SELECTORS / name) if run.method in POINTERS else None
        for (query, shot_num), row in found.items():
            shots, pool = row["shot_ids"], known.pool(known.by_id[query])
            assert len(set(shots)) == shot_num
            assert set(shots) <= set(pool)
            assert shots == found[query, most]["shot_ids"][most - shot_num :]
            ids = known.tokenizer(known.prompt(query, shots))["input_ids"]
            assert row["prompt"] == known.tokenizer.decode(ids)
            if pointer:
                assert shots == greedy_choice(pointer, query, pool, most)[:shot_num][::-1]
            elif run.method == "oracle":
                assert shots == list(oracle[query][most - shot_num :])
            elif run.method == "similarity":
                near = sorted(pool, key=lambda i: -cosine_similarity(embeddings[i], embeddings[query], dim=0))
                assert shots == near[:shot_num][::-1]


def test_every_verdict_on_a_selectors_answers_is_vals(inside: Params) -> None:
    known = Problems(inside)
    for name in NAMES:
        found, run = list(stored(name).values()), Run.parsed(name)
        verdicts = known.task.judge([(known.by_id[row["id"]], row["completion"]) for row in found])
        for row, verdict in zip(found, verdicts, strict=True):
            assert (row["label"], row["success"], row["plan"]) == (verdict.label, verdict.success, verdict.plan)
            seed = SEED if run.method in POINTERS else inside.seed
            assert (row["method"], row["dataset_size"], row["seed"]) == (run.method, run.size, seed)
        metrics = json.loads((OUT / f"predictions/{name}.json").read_text())
        hits = {k: [row["success"] for row in found if row["shot_num"] == k] for k in (1, 2)}
        assert metrics["success_rate"] == {str(k): pytest.approx(fmean(own)) for k, own in hits.items()}
    labels = {row["label"] for name in NAMES for row in stored(name).values()}
    assert len(labels) > 1


def test_a_broken_val_stops_the_stage_and_no_prediction_is_written(
    copied: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(demonstrate.OUT)
    monkeypatch.setenv("VAL_BINARY", "nowhere/Validate")
    with pytest.raises(VerifierError):
        demonstrate.run(copied, 0, 0)
    assert not demonstrate.OUT.exists()


def validated(known: Problems) -> Validation:
    """`Validation` on the validation problems, which has asked nothing yet."""
    pools = {query.id: [known.by_id[shot] for shot in known.pool(query)] for query in known.validation}
    embeddings = read_embeddings(embed.EMBEDDINGS)
    return Validation(known.task, known.model, known.tokenizer, known.validation, pools, embeddings, known.params)


def validation_prompts(known: Problems, pointer: Pointer) -> list[tuple[str, list[str]]]:
    """Queries with the examples that are to stand in their prompts, for one example and for two."""
    choices = {query.id: greedy_choice(pointer, query.id, known.pool(query), 2) for query in known.validation}
    return [(query, chosen[:k][::-1]) for query, chosen in choices.items() for k in (1, 2)]


def test_validation_is_the_models_success_under_the_pointers_choices(inside: Params) -> None:
    known, pointer = Problems(inside), load_pointer(selector.SELECTORS / f"pointer-sft-{SIZE}-{SEED}")
    found = [known.succeeds(query, shots) for query, shots in validation_prompts(known, pointer)]
    assert validated(known)(pointer) == pytest.approx(fmean(found))


def test_validation_asks_nothing_twice(inside: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Problems(inside)
    trained, turned = (load_pointer(selector.SELECTORS / f"pointer-sft-{SIZE}-{SEED}") for _ in range(2))
    turned.greedy = lambda *asked: trained.greedy(*asked).flip(1)  # type: ignore[method-assign]
    torch.manual_seed(3)
    other = Pointer(trained.embedding_size, inside.demonstrations.pointer).eval()
    prompts = {pointer: validation_prompts(known, pointer) for pointer in (trained, turned, other)}
    model = Answers(known, [one for own in prompts.values() for one in own])
    monkeypatch.setattr("planward.evaluation.scoring.greedy_completions", model)
    validation = validated(known)
    for pointer in (trained, trained, turned, other, trained):
        found = [model.right(known.prompt(*one)) for one in prompts[pointer]]
        assert validation(pointer) == pytest.approx(fmean(found))
    assert len(set(model.asked)) == len(model.asked)
    assert set(model.asked) == set(model.query)
