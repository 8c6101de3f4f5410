"""The selectors track on a few problems: the shipped model, real beams, small pointers, VAL's verdicts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Literal
from zlib import crc32

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cosine_similarity
from typer.testing import CliRunner

from planward.analysis.outcomes import PredictionsError
from planward.cli import app
from planward.core import paths
from planward.core.records import Record, read_records
from planward.core.runs import POINTERS, RULES, Run
from planward.core.verdicts import VerifierError
from planward.curriculum.training_sets import select_balanced, select_training_set
from planward.inference.models import load_model
from planward.params import ParamsError
from planward.planner.problems import build_record, read_examples
from planward.publication.problem_files import read_problem_file
from planward.publication.provenance import PublicationError
from planward.publication.selected_examples import load_selected_examples
from planward.publication.selectors import load_selector, publish_selector
from planward.selectors.beams import read_beams
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import load_track_task
from planward.selectors.embeddings import read_embeddings
from planward.selectors.pointer import Pointer, load_pointer
from planward.selectors.pools import sample_pool
from planward.selectors.validation import SelectorValidation
from planward.stages import problems, score, split
from planward.stages.selectors import beams, compare, dialects, embed, evaluate, train
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values, read_rows, write_lines

RESULTS = paths.SELECTORS
SIZE, SEED = 8, 5
RUNS = [Run(rule, 0, 0) for rule in RULES] + [Run(pointer, SIZE, SEED) for pointer in POINTERS]
SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")


@dataclass(frozen=True)
class Project:
    """A project's parameters; its files are in the current folder."""

    params: PlanningParams
    config: SelectorsConfig

    def train(self, method: str, size: int = SIZE) -> None:
        train.run(self.params, self.config, Run(method, size, SEED))

    def run_from_beams(self) -> None:
        """Run every stage of the track after `embed`, without `compare`."""
        for name in SPLITS:
            beams.run(self.params, self.config, name)
        for method in POINTERS:
            self.train(method)
        evaluate.run(self.params, self.config, 0, 0)
        evaluate.run(self.params, self.config, SIZE, SEED)


@pytest.fixture(scope="module")
def finished_project(
    tmp_path_factory: pytest.TempPathFactory,
    small: Callable[..., PlanningParams],
    shipped_selectors: SelectorsConfig,
) -> tuple[Path, Project]:
    """The folder of a project in which the whole track has run; read-only."""
    folder = tmp_path_factory.mktemp("selectors")
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
    )
    changes = {
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
    }
    config = SelectorsConfig.model_validate(merge_values(shipped_selectors.model_dump(), changes))
    project = Project(params, config)
    torch.set_num_threads(1)
    with chdir(folder):
        for stage in (problems, split, score):
            stage.run(params)
        dialects.run(params, config)
        embed.run(params, config)
        project.run_from_beams()
    return folder, project


@pytest.fixture
def inside(finished_project: tuple[Path, Project], monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(finished_project[0])
    return finished_project[1]


@pytest.fixture
def copy(finished_project: tuple[Path, Project], tmp_path: Path) -> Iterator[Project]:
    """Inside a copy of the project, which may be changed."""
    shutil.copytree(finished_project[0], tmp_path / "copy")
    with chdir(tmp_path / "copy"):
        yield finished_project[1]


class Problems:
    """The problems of the project, and the model that solves them."""

    def __init__(self, project: Project) -> None:
        self.params, self.config = project.params, project.config
        self.task = load_track_task(self.params, self.config)
        self.train, self.validation, self.test = (
            list(read_records(RESULTS.dialects / f"{name}.jsonl")) for name in paths.SPLITS
        )
        self.by_id = {record.id: record for record in [*self.train, *self.validation, *self.test]}
        limit = self.params.prompt.max_tokens + self.params.prompt.max_completion_tokens
        self.model, self.tokenizer = load_model(self.params.model, str(self.config.model), limit, self.params.seed)

    def find_pool(self, query: Record) -> list[str]:
        pool = sample_pool(query, self.train, self.task.core_digest, self.config.pool, str(self.params.seed))
        return [record.id for record in pool]

    def render_prompt(self, query: str, examples: list[str]) -> str:
        return str(self.task.prompt(self.by_id[query], [self.by_id[example] for example in examples]))

    def is_solved(self, query: str, examples: list[str]) -> bool:
        """The verdict on the completion of one prompt, generated by Transformers itself."""
        ids = torch.tensor([self.tokenizer(self.render_prompt(query, examples))["input_ids"]])
        tokens = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.params.prompt.max_completion_tokens,
            do_sample=False,
        )[0, ids.shape[1] :]
        return self.task.verify(self.by_id[query], self.tokenizer.decode(tokens, skip_special_tokens=True)).success


class FakeModel:
    """Replaces the model: correct for about half of the expected prompts; records the prompts."""

    def __init__(self, all_problems: Problems, expected: Iterable[tuple[str, list[str]]]) -> None:
        self.all_problems, self.prompts = all_problems, list[str]()
        self.query = {all_problems.render_prompt(query, examples): query for query, examples in expected}
        self.by_ids = {tuple(all_problems.tokenizer(prompt)["input_ids"]): prompt for prompt in self.query}

    def is_correct(self, prompt: str) -> bool:
        return crc32(prompt.encode()) % 2 == 0

    def __call__(self, _model: Any, _tokenizer: Any, prompts: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[str]:
        new = [self.by_ids[tuple(prompt)] for prompt in prompts]
        self.prompts += new
        return [
            self.all_problems.task.reference_completion(self.all_problems.by_id[self.query[prompt]])
            if self.is_correct(prompt)
            else ""
            for prompt in new
        ]


def read_predictions(run: Run) -> dict[tuple[str, int], dict[str, Any]]:
    """Predictions of a selector by problem and shot_num."""
    return {(row["id"], row["shot_num"]): row for row in read_rows(RESULTS.answers(run))}


def choose_greedily(pointer: Pointer, query: str, pool: list[str], count: int) -> list[str]:
    """The pointer's choice for one query, from its pool in the order of ids."""
    embeddings = read_embeddings(RESULTS.embeddings)
    vectors = torch.stack([embeddings[candidate] for candidate in sorted(pool)])[None]
    mask = torch.ones(1, len(pool), dtype=torch.bool)
    return [sorted(pool)[i] for i in pointer.choose_greedily(embeddings[query][None], vectors, mask, count)[0]]


def remove_optional_keys(path: Path) -> None:
    """Remove from a file of beams the keys that other systems do not write."""
    optional, data = ("success_list", "pool_list", "pool_score_list"), json.loads(path.read_text())
    path.write_text(json.dumps({q: {k: v for k, v in row.items() if k not in optional} for q, row in data.items()}))


def test_beams_hold_candidates_of_the_training_split_and_never_the_query(inside: Project) -> None:
    all_problems, config = Problems(inside), inside.config
    training = {record.id for record in all_problems.train}
    queries = {
        "train": select_training_set(all_problems.train, SIZE),
        "test": select_balanced(all_problems.test, config.test),
    }
    for name in SPLITS:
        rows = read_beams(RESULTS.beams / f"{name}.json", all_problems.by_id)
        assert [row.query for row in rows] == [query.id for query in queries[name]]
        for row, query in zip(rows, queries[name], strict=True):
            assert list(row.pool) == all_problems.find_pool(query)
            assert set(row.pool) <= training - {query.id}
            digests = {all_problems.task.core_digest(all_problems.by_id[candidate]) for candidate in row.pool}
            assert all_problems.task.core_digest(query) not in digests
            assert 1 < len(row.beams) <= config.beams
            assert all(len(set(beam.examples)) == config.shot_num for beam in row.beams)
            assert {example for beam in row.beams for example in beam.examples} <= set(row.pool)
    assert {all_problems.by_id[candidate].domain for row in rows for candidate in row.pool} == {"blocksworld", "ferry"}


def test_a_beams_verdict_is_that_on_the_models_completion_with_its_examples(inside: Project) -> None:
    all_problems = Problems(inside)
    rows = read_beams(RESULTS.beams / "train.json", all_problems.by_id)
    verdicts = {(row.query, beam.examples): beam.success for row in rows for beam in row.beams}
    assert verdicts == {
        (query, examples): all_problems.is_solved(query, list(examples)) for query, examples in verdicts
    }
    assert set(verdicts.values()) == {True, False}
    test_rows = read_beams(RESULTS.beams / "test.json", all_problems.by_id)
    assert {beam.success for row in test_rows for beam in row.beams} == {None}


def test_verdicts_are_added_to_the_right_beams(inside: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    all_problems = Problems(inside)
    rows = read_beams(RESULTS.beams / "train.json", all_problems.by_id)
    prompts = [(row.query, list(beam.examples)) for row in rows for beam in row.beams]
    model = FakeModel(all_problems, prompts)
    monkeypatch.setattr("planward.evaluation.scoring.generate_greedy", model)
    judged_rows = beams.add_verdicts(
        rows, all_problems.by_id, all_problems.task, all_problems.model, all_problems.tokenizer, inside.params
    )
    verdicts = [beam.success for row in judged_rows for beam in row.beams]
    assert verdicts == [model.is_correct(all_problems.render_prompt(*prompt)) for prompt in prompts]
    assert set(verdicts) == {True, False}


def test_a_second_run_gives_the_same_bytes(copy: Project) -> None:
    def read_files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(RESULTS.root.rglob("*")) if path.is_file()}

    first = read_files()
    for folder in (RESULTS.beams, RESULTS.models, RESULTS.training, RESULTS.predictions):
        shutil.rmtree(folder)
    copy.run_from_beams()
    assert read_files() == first
    assert len([path for path in first if path.endswith("model.safetensors")]) == len(POINTERS)
    assert not list(paths.CHECKPOINTS.glob("*"))


def test_results_name_their_run(inside: Project) -> None:
    for run in RUNS:
        identity = {"task": "selectors", "method": run.method, "size": run.size, "seed": run.seed}
        assert json.loads(RESULTS.answers(run).with_suffix(".json").read_text())["run"] == identity
        if run.method in POINTERS:
            assert json.loads((RESULTS.curves(run) / "metrics.json").read_text())["run"] == identity
    assert inside.params.seed != SEED


def test_a_smaller_dataset_size_uses_its_own_queries_only(copy: Project) -> None:
    copy.train("pointer-sft", 4)
    weights = RESULTS.model(Run("pointer-sft", 4, SEED)) / "model.safetensors"
    before, path = weights.read_bytes(), RESULTS.beams / "train.json"
    data = json.loads(path.read_text())
    query_ids = {query.id for query in select_training_set(Problems(copy).train, 4)}
    path.write_text(json.dumps({query: row for query, row in data.items() if query in query_ids}))
    copy.train("pointer-sft", 4)
    assert weights.read_bytes() == before
    assert (RESULTS.model(Run("pointer-sft", SIZE, SEED)) / "model.safetensors").read_bytes() != before


@pytest.mark.parametrize(
    ("method", "initial_method"), [("pointer-rce", "pointer-sft"), ("pointer-grpo", "pointer-rce")]
)
def test_missing_initial_weights_raise(copy: Project, method: str, initial_method: str) -> None:
    folder = RESULTS.model(Run(initial_method, SIZE, SEED))
    shutil.rmtree(folder)
    with pytest.raises((ValueError, OSError), match=str(folder)):
        copy.train(method)


def test_an_unknown_method_raises(inside: Project) -> None:
    with pytest.raises(ParamsError, match="pointer-dpo; fix: choose one of pointer-sft, pointer-rce, pointer-grpo"):
        inside.train("pointer-dpo")


def test_beams_of_another_system_train_all_methods_but_grpo(copy: Project) -> None:
    remove_optional_keys(RESULTS.beams / "train.json")
    for method in ("pointer-sft", "pointer-rce"):
        weights = RESULTS.model(Run(method, SIZE, SEED)) / "model.safetensors"
        before = weights.read_bytes()
        copy.train(method)
        assert weights.read_bytes() != before  # the candidates' own scores are unknown now
    with pytest.raises(ValueError, match="GRPO needs the success of each beam, but some is unknown"):
        copy.train("pointer-grpo")


def test_an_error_in_beams_names_file_and_query(copy: Project) -> None:
    path = RESULTS.beams / "train.json"
    data = json.loads(path.read_text())
    query = next(iter(data))
    data[query]["score_list"].pop()
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=rf"beams/train\.json: query '{query}': lists of different length"):
        copy.train("pointer-sft")


def test_the_oracle_says_what_beams_need_that_are_too_short(copy: Project) -> None:
    path = RESULTS.beams / "test.json"
    data = json.loads(path.read_text())
    query = next(iter(data))
    data[query]["id_list"] = [beam[1:] for beam in data[query]["id_list"]]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=f"such as {query}; fix: raise prompt.max_tokens or lower shot_num"):
        evaluate.run(copy.params, copy.config, 0, 0)


def test_prompts_hold_the_chosen_examples_the_first_choice_next_to_the_query(inside: Project) -> None:
    all_problems, shot_num = Problems(inside), inside.config.shot_num
    embeddings = read_embeddings(RESULTS.embeddings)
    oracle = {row.query: row.beams[0].examples for row in read_beams(RESULTS.beams / "test.json", all_problems.by_id)}
    queries = select_balanced(all_problems.test, inside.config.test)
    cells = {(query.id, k) for query in queries for k in range(1, shot_num + 1)}
    for run in RUNS:
        predictions = read_predictions(run)
        assert set(predictions) == cells
        pointer = load_pointer(RESULTS.model(run)) if run.method in POINTERS else None
        for (query, k), row in predictions.items():
            examples, pool = row["shot_ids"], all_problems.find_pool(all_problems.by_id[query])
            assert len(set(examples)) == k
            assert set(examples) <= set(pool)
            assert examples == predictions[query, shot_num]["shot_ids"][shot_num - k :]
            ids = all_problems.tokenizer(all_problems.render_prompt(query, examples))["input_ids"]
            assert row["prompt"] == all_problems.tokenizer.decode(ids)
            if pointer:
                assert examples == choose_greedily(pointer, query, pool, shot_num)[:k][::-1]
            elif run.method == "oracle":
                assert examples == list(oracle[query][shot_num - k :])
            elif run.method == "similarity":
                near = sorted(pool, key=lambda i: -cosine_similarity(embeddings[i], embeddings[query], dim=0))
                assert examples == near[:k][::-1]


def test_every_published_verdict_is_vals(inside: Project) -> None:
    all_problems = Problems(inside)
    for run in RUNS:
        rows = list(read_predictions(run).values())
        verdicts = all_problems.task.judge([(all_problems.by_id[row["id"]], row["completion"]) for row in rows])
        for row, verdict in zip(rows, verdicts, strict=True):
            assert (row["label"], row["success"], row["plan"]) == (verdict.label, verdict.success, verdict.plan)
            seed = SEED if run.method in POINTERS else inside.params.seed
            assert (row["method"], row["dataset_size"], row["seed"]) == (run.method, run.size, seed)
        metrics = json.loads(RESULTS.answers(run).with_suffix(".json").read_text())
        success = {k: [row["success"] for row in rows if row["shot_num"] == k] for k in (1, 2)}
        assert metrics["success_rate"] == {str(k): pytest.approx(fmean(values)) for k, values in success.items()}
    labels = {row["label"] for run in RUNS for row in read_predictions(run).values()}
    assert len(labels) > 1


def test_if_val_fails_no_prediction_is_written(copy: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(RESULTS.predictions)
    monkeypatch.setenv("VAL_BINARY", "nowhere/Validate")
    with pytest.raises(VerifierError):
        evaluate.run(copy.params, copy.config, 0, 0)
    assert not RESULTS.predictions.exists()


def test_tables_are_computed_from_the_stored_predictions(copy: Project) -> None:
    params = copy.params.model_copy(update={"seeds": [SEED], "dataset_sizes": [SIZE]})
    compare.run(params)
    tables = {file.stem for file in RESULTS.tables.glob("*.csv")}
    assert tables == {"success", "groups", "cells", "paired", "shots"}
    metrics = json.loads((RESULTS.tables / "metrics.json").read_text())
    for run in RUNS:
        success = [row["success"] for row in read_predictions(run).values()]
        assert metrics[run.method] == pytest.approx(fmean(success), abs=1e-6)
    rows = read_rows(RESULTS.dialects / "train.jsonl")
    example = read_predictions(RUNS[0]).popitem()[1]["shot_ids"][0]
    write_lines(RESULTS.dialects / "train.jsonl", [row for row in rows if row["id"] != example])
    with pytest.raises(PredictionsError, match=rf"problem '{example}' is not in .*train\.jsonl"):
        compare.run(params)


def build_validation(all_problems: Problems) -> SelectorValidation:
    """The validation on the project's validation problems, with an empty cache."""
    pools = {
        query.id: [all_problems.by_id[candidate] for candidate in all_problems.find_pool(query)]
        for query in all_problems.validation
    }
    embeddings = read_embeddings(RESULTS.embeddings)
    shot_num, model = all_problems.config.shot_num, (all_problems.model, all_problems.tokenizer)
    return SelectorValidation(
        all_problems.task, *model, all_problems.validation, pools, embeddings, all_problems.params, shot_num
    )


def list_validation_prompts(all_problems: Problems, pointer: Pointer) -> list[tuple[str, list[str]]]:
    """Queries with the examples that their prompts must have, for one example and for two."""
    choices = {
        query.id: choose_greedily(pointer, query.id, all_problems.find_pool(query), 2)
        for query in all_problems.validation
    }
    return [(query, examples[:k][::-1]) for query, examples in choices.items() for k in (1, 2)]


def test_validation_is_the_models_success_with_the_pointers_choices(inside: Project) -> None:
    all_problems, pointer = Problems(inside), load_pointer(RESULTS.model(Run("pointer-sft", SIZE, SEED)))
    success = [
        all_problems.is_solved(query, examples) for query, examples in list_validation_prompts(all_problems, pointer)
    ]
    assert build_validation(all_problems)(pointer) == pytest.approx(fmean(success))


def test_validation_completes_no_prompt_twice(inside: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    all_problems = Problems(inside)
    trained_pointer, flipped_pointer = (load_pointer(RESULTS.model(Run("pointer-sft", SIZE, SEED))) for _ in range(2))
    flipped_pointer.choose_greedily = lambda *args: trained_pointer.choose_greedily(*args).flip(1)  # type: ignore[method-assign]
    torch.manual_seed(3)
    untrained_pointer = Pointer(trained_pointer.embedding_size, inside.config.pointer).eval()
    prompts = {
        pointer: list_validation_prompts(all_problems, pointer)
        for pointer in (trained_pointer, flipped_pointer, untrained_pointer)
    }
    model = FakeModel(all_problems, [prompt for pointer_prompts in prompts.values() for prompt in pointer_prompts])
    monkeypatch.setattr("planward.evaluation.scoring.generate_greedy", model)
    validation = build_validation(all_problems)
    for pointer in (trained_pointer, trained_pointer, flipped_pointer, untrained_pointer, trained_pointer):
        success = [model.is_correct(all_problems.render_prompt(*prompt)) for prompt in prompts[pointer]]
        assert validation(pointer) == pytest.approx(fmean(success))
    assert len(set(model.prompts)) == len(model.prompts)
    assert set(model.prompts) == set(model.query)


def test_published_selector_chooses_as_evaluation_did(copy: Project, tmp_path: Path) -> None:
    run, target, out, bad = (
        Run(POINTERS[-1], SIZE, SEED),
        tmp_path / "selector",
        tmp_path / "out.jsonl",
        tmp_path / "bad",
    )
    compare.run(copy.params.model_copy(update={"seeds": [SEED], "dataset_sizes": [SIZE]}))
    publish_selector(copy.params, copy.config, run, target)
    assert "| 2 | 6 |" in (target / "README.md").read_text()
    pool, queries = (RESULTS.dialects / f"{name}.jsonl" for name in ("train", "test"))
    first = read_rows(queries)[0]
    bad_rows = [b"{", {**first, "id": "", "meta": {**first["meta"], "problem_file": "none.pddl"}}, first]
    write_lines(queries, [*read_rows(queries), *bad_rows])
    (RESULTS.dialects / "problems").rename(tmp_path / "pddl")
    options = ["--selector", str(target), "--problems", str(tmp_path / "pddl"), "--quarantine", str(bad)]
    result = CliRunner().invoke(app, ["choose", str(pool), str(queries), *options, "--out", str(out)])
    assert result.exit_code == 0, result.output
    examples_by_id = {row["id"]: row["examples"] for row in read_rows(out)}
    for row in read_rows(RESULTS.answers(run)):
        assert examples_by_id[row["id"]][-row["shot_num"] :] == row["shot_ids"]
    assert [row["reason"].partition(":")[0] for row in read_rows(bad)] == ["bad JSON", "missing file", "duplicate"]

    selector = load_selector(target)
    problems = read_problem_file(queries, selector.task, tmp_path / "pddl").problems
    solved_problems = read_problem_file(pool, selector.task, tmp_path / "pddl", solved=True).problems
    for id, examples in selector.choose(problems, [*problems, *solved_problems], 2, None):
        assert id not in examples
    namesake = solved_problems[0].model_copy(update={"id": problems[0].id})
    with pytest.raises(ValueError, match=f"^{problems[0].id}: the id of a query and of another problem"):
        list(selector.choose(problems, [*solved_problems, namesake], 2, None))
    with pytest.raises(ValueError, match=r"needs 9 worked examples, but the pool has [78] for it"):
        list(selector.choose(problems, solved_problems[:8], 9, None))

    write_lines(out, [b"", b"{"])
    (tmp_path / "empty.jsonl").touch()
    for files, fault in (
        ((out, queries), f"{out}: no line can be used; line 2: bad JSON"),
        ((pool, tmp_path / "empty.jsonl"), "empty.jsonl: no line can be used; empty"),
    ):
        result = CliRunner().invoke(app, ["choose", *map(str, files), *options])
        assert result.exit_code == 2
        assert fault in result.stderr


def test_planner_gets_the_examples_of_a_published_selector(
    copy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, target, folder = Run(POINTERS[-1], SIZE, SEED), tmp_path / "selector", RESULTS.dialects / "problems"
    compare.run(copy.params.model_copy(update={"seeds": [SEED], "dataset_sizes": [SIZE]}))
    publish_selector(copy.params, copy.config, run, target)
    queries = {record.id: record.meta for record in read_records(RESULTS.dialects / "test.jsonl")}
    pool = RESULTS.dialects / "train.jsonl"
    select = load_selected_examples(target, read_examples(pool), None)

    def list_choices(*files: Path) -> list[str]:
        return [example.id for example in select(build_record(*files))]

    for row in read_rows(RESULTS.answers(run)):
        meta = queries[row["id"]]
        files = (folder / meta.domain_file, folder / meta.problem_file)
        with monkeypatch.context() as patch:  # evaluation samples candidates by the id before renaming to a dialect
            identity = SimpleNamespace(id=row["id"])
            patch.setattr("planward.publication.selected_examples.identify_problem", lambda *_, one=identity: one)
            assert list_choices(*files)[-row["shot_num"] :] == row["shot_ids"]
        copies = [Path(shutil.copy(file, tmp_path / f"{number}.pddl")) for number, file in enumerate(files)]
        assert list_choices(*copies) == list_choices(*files)
    options = ["--model", str(ROOT / "models/base"), "--examples", str(pool), "--selector", str(target), "--json"]
    result = CliRunner().invoke(app, ["plan", *map(str, files), *options])
    assert json.loads(result.stdout)["examples"] == copy.config.shot_num


@pytest.mark.parametrize("source", ["tfidf", "file"])
def test_published_selector_embeds_as_training_did(copy: Project, tmp_path: Path, source: str) -> None:
    file = tmp_path / "vectors.safetensors"
    ids = read_embeddings(RESULTS.embeddings)
    save_file({id: torch.randn(5, generator=torch.Generator().manual_seed(crc32(id.encode()))) for id in ids}, file)
    config = copy.config.model_copy(update={"embeddings": source, "embeddings_file": file})
    embed.run(copy.params, config)
    embeddings = read_embeddings(RESULTS.embeddings)
    project = Project(copy.params, config)
    project.train("pointer-sft")
    compare.run(copy.params.model_copy(update={"seeds": [SEED], "dataset_sizes": [SIZE]}))
    publish_selector(copy.params, config, Run("pointer-sft", SIZE, SEED), tmp_path / "selector")
    selector = load_selector(tmp_path / "selector", embeddings=file)
    test = list(read_records(RESULTS.dialects / "test.jsonl"))
    torch.testing.assert_close(
        selector.scale.apply(selector.embedder.embed(test)), torch.stack([embeddings[record.id] for record in test])
    )
    if source == "file":
        with pytest.raises(PublicationError, match="--embeddings"):
            load_selector(tmp_path / "selector")


def test_selector_of_other_embeddings_is_not_published(copy: Project, tmp_path: Path) -> None:
    config = copy.config.model_copy(update={"layers": [-1, 0]})
    with pytest.raises(PublicationError, match="embeddings differ"):
        publish_selector(copy.params, config, Run(POINTERS[-1], SIZE, SEED), tmp_path / "selector")
