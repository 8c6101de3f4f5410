"""The problems of the selectors track: dialects, core digests and embeddings."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from planward.core import paths
from planward.core.prompts import PromptTooLong
from planward.core.records import Record, read_records
from planward.core.registry import load_task
from planward.params import ParamsError
from planward.pddl.renaming import rename_problem_text
from planward.selectors.config import SelectorsConfig
from planward.selectors.dialects import get_dialect, load_track_task
from planward.selectors.embeddings import EmbeddingsError, read_embeddings
from planward.stages import problems, score, split
from planward.stages.selectors import dialects, embed
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.dialects import build_dialect
from support import ROOT, read_rows, write_lines

Small = Callable[..., PlanningParams]
BuildConfig = Callable[..., SelectorsConfig]
PLAIN, RESULTS = paths.results(), paths.SELECTORS


@pytest.fixture(scope="session")
def build_config(shipped_selectors: SelectorsConfig) -> BuildConfig:
    """The shipped configuration with three dialects; keyword arguments are laid over it."""

    def build_config(**changes: Any) -> SelectorsConfig:
        return shipped_selectors.model_copy(update={"dialects": 3} | changes)

    return build_config


@pytest.fixture(scope="module")
def scored_project(tmp_path_factory: pytest.TempPathFactory, small: Small) -> Path:
    """A project whose problems are split and scored."""
    folder = tmp_path_factory.mktemp("scored")
    params = small()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        problems.run(params)
        split.run(params)
        score.run(params)
    return folder


@pytest.fixture
def inside(scored_project: Path, project: Path) -> Path:
    shutil.copytree(scored_project, project, dirs_exist_ok=True)
    return project


def read_splits(folder: Path) -> dict[str, list[Record]]:
    return {name: list(read_records(folder / f"{name}.jsonl")) for name in paths.SPLITS}


def read_files() -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in RESULTS.dialects.rglob("*") if file.is_file()}


@pytest.mark.usefixtures("inside")
def test_every_problem_is_translated_faithfully(small: Small, build_config: BuildConfig) -> None:
    params = small()
    dialects.run(params, build_config())
    before, after = read_splits(PLAIN.score), read_splits(RESULTS.dialects)
    task, plain_task = load_task(params, RESULTS.problems), load_task(params)
    fields = ("id", "score", "bucket", "constrained", "domain")
    pairs = [pair for name in paths.SPLITS for pair in zip(before[name], after[name], strict=True)]
    for old, new in pairs:
        assert [getattr(old, name) for name in fields] == [getattr(new, name) for name in fields]
        assert new.meta.problem_file == old.meta.problem_file
        dialect = build_dialect(new.domain, get_dialect(new), params.seed)
        problem = plain_task.load_problem(old.meta.domain_file, old.meta.problem_file)
        dialect_problem = task.load_problem(new.meta.domain_file, new.meta.problem_file)
        assert dialect_problem == dialect.translate_problem(problem)
        assert new.response == "\n".join(dialect.translate_plan(old.response.splitlines()))
        assert (RESULTS.problems / new.meta.problem_file).read_text() in new.prompt
        assert (RESULTS.problems / new.meta.domain_file).read_text() in new.prompt
    records = [new for _, new in pairs]
    assert any(record.constrained and get_dialect(record) for record in records)
    assert all(verdict.success for verdict in task.judge([(record, record.response) for record in records]))
    plain_plans = [task.verify(new, old.response).success for old, new in pairs if get_dialect(new)]
    assert not all(plain_plans)


@pytest.mark.usefixtures("inside")
def test_dialects_are_balanced_within_split_and_domain(small: Small, build_config: BuildConfig) -> None:
    dialects.run(small(), build_config())
    metrics = json.loads((RESULTS.dialects / "metrics.json").read_text())
    for name, records in read_splits(RESULTS.dialects).items():
        assert metrics["problems"][name] == len(records)
        for domain in ("blocksworld", "ferry"):
            counts = Counter(str(get_dialect(record)) for record in records if record.domain == domain)
            assert metrics["dialects"][name][domain] == counts
            assert counts.keys() <= {"0", "1", "2"}
            assert max(counts.values()) - min(counts[number] for number in ("0", "1", "2")) <= 1


@pytest.mark.usefixtures("inside")
def test_dialects_depend_on_the_seed_and_the_ids_only(small: Small, build_config: BuildConfig) -> None:
    params, config = small(), build_config()
    dialects.run(params, config)
    first, before = read_files(), read_splits(RESULTS.dialects)
    dialects.run(params, config)
    assert read_files() == first
    write_lines(PLAIN.score / "train.jsonl", read_rows(PLAIN.score / "train.jsonl")[::-1])
    dialects.run(params, config)
    assert read_splits(RESULTS.dialects)["train"] == before["train"][::-1]
    dialects.run(params.model_copy(update={"seed": params.seed + 1}), config)
    assert read_splits(RESULTS.dialects)["train"] != before["train"][::-1]


@pytest.mark.parametrize(("count", "source"), [(1, "generated"), (3, "jsonl")])
@pytest.mark.usefixtures("inside")
def test_other_problems_are_copied_unchanged(small: Small, build_config: BuildConfig, count: int, source: str) -> None:
    dialects.run(small(), build_config())
    dialects.run(small(problems={"source": source}), build_config(dialects=count))
    plain = read_splits(PLAIN.score)
    assert read_splits(RESULTS.dialects) == plain
    for record in (record for records in plain.values() for record in records):
        for file in (record.meta.domain_file, record.meta.problem_file):
            assert (RESULTS.problems / file).read_bytes() == (PLAIN.problems / file).read_bytes()
    files = {file.name for file in RESULTS.problems.rglob("*.pddl")}
    assert not any(name.startswith("dialect") for name in files)  # left from the first run
    counts = json.loads((RESULTS.dialects / "metrics.json").read_text())["dialects"]["train"]
    assert counts["ferry"].keys() == {"0"}


@pytest.mark.parametrize(("count", "source"), [(3, "generated"), (1, "generated"), (3, "jsonl")])
@pytest.mark.usefixtures("inside")
def test_prompts_have_the_names_of_dialects_and_the_models_words_for_other_problems(
    small: Small, build_config: BuildConfig, count: int, source: str
) -> None:
    record = next(record for record in read_splits(PLAIN.score)["train"] if record.domain == "blocksworld")
    file = PLAIN.problems / record.meta.problem_file
    file.write_text(rename_problem_text(file.read_text(), {"b1": "red", "b2": "green"}))
    prompts = {}
    for names in ("literal", "structure"):
        params = small(problems={"source": source}, prompt={"names": names})
        prompts[names] = load_track_task(params, build_config(dialects=count))
    RESULTS.problems.mkdir(parents=True)
    shutil.copytree(PLAIN.problems, RESULTS.problems, dirs_exist_ok=True)
    words = {names: set(str(task.prompt(record, [])).split()) for names, task in prompts.items()}
    is_translated = (count, source) == (3, "generated")
    assert {"red", "green"} <= words["literal"]
    assert {"red", "green"} & words["structure"] == ({"red", "green"} if is_translated else set())


@pytest.mark.usefixtures("project")
def test_problems_that_have_a_dialect_keep_it(small: Small, build_config: BuildConfig) -> None:
    params = small(problems={"dialects": 2}, prompt={"names": "literal"})
    problems.run(params)
    split.run(params)
    score.run(params)
    dialects.run(params, build_config())
    records = read_splits(RESULTS.dialects)
    assert records == read_splits(PLAIN.score)
    assert {get_dialect(record) for record in records["train"]} == {0, 1}


@pytest.mark.usefixtures("inside")
def test_a_problem_without_a_plan_is_copied_unchanged(small: Small, build_config: BuildConfig) -> None:
    lines = read_rows(PLAIN.score / "test.jsonl")
    del lines[0]["response"]
    write_lines(PLAIN.score / "test.jsonl", lines)
    dialects.run(small(), build_config())
    assert read_splits(RESULTS.dialects)["test"][0] == read_splits(PLAIN.score)["test"][0]


@pytest.mark.usefixtures("inside")
def test_an_invalid_plan_raises(small: Small, build_config: BuildConfig) -> None:
    lines = read_rows(PLAIN.score / "test.jsonl")
    lines[1]["response"] = lines[1]["response"].partition("\n")[2]
    write_lines(PLAIN.score / "test.jsonl", lines)
    with pytest.raises(ValueError, match=f"problem {lines[1]['id']} .* the plan is not valid in dialect"):
        dialects.run(small(), build_config())


@pytest.mark.usefixtures("inside")
def test_too_many_dialects_raise(small: Small, build_config: BuildConfig) -> None:
    with pytest.raises(ParamsError, match=r"selectors/params.yaml: dialects: \w+ has \d+ dialects.*; fix: lower it"):
        dialects.run(small(), build_config(dialects=500))


@pytest.mark.usefixtures("inside")
def test_core_digests_ignore_names_and_constraints(small: Small) -> None:
    task = load_task(small())
    records = [record for split_records in read_splits(PLAIN.score).values() for record in split_records]
    assert len({task.core_digest(record) for record in records}) == len(records)
    assert any(record.constrained for record in records)
    assert sum(bool(task.draw_renaming(record, "other")) for record in records) > len(records) / 2
    for record in records:
        source = PLAIN.problems / record.meta.problem_file
        twin = source.with_name(f"twin-{source.name}")
        text = source.read_text().partition("(:constraints")[0].rstrip()
        text = f"{text})" if record.constrained else text
        twin.write_text(rename_problem_text(text, task.draw_renaming(record, "other")))
        meta = record.meta.model_copy(update={"problem_file": f"{record.domain}/{twin.name}"})
        assert task.core_digest(record.model_copy(update={"meta": meta, "id": "twin"})) == task.core_digest(record)


@pytest.mark.usefixtures("project")
def test_problems_that_only_val_parses_have_a_core_digest_of_their_text(small: Small) -> None:
    domain = "(define (domain d) (:requirements :derived-predicates) (:predicates (p) (q)) (:derived (q) (p)))"
    one, same, other = "(define (problem x) (:goal (q)))", "(define  (PROBLEM x)\n(:goal (q)))", "(define (problem x))"
    PLAIN.problems.mkdir(parents=True)
    for name, text in {"domain": domain, "one": one, "same": same, "other": other}.items():
        (PLAIN.problems / f"{name}.pddl").write_text(text)
    task = load_task(small())
    names_by_digest = defaultdict(set)
    for name in ("one", "same", "other"):
        meta = {"scenario": "d", "domain_file": "domain.pddl", "problem_file": f"{name}.pddl"}
        names_by_digest[task.core_digest(Record.model_validate({"prompt": "", "meta": meta}))].add(name)
    assert list(names_by_digest.values()) == [{"one", "same"}, {"other"}]


@pytest.mark.parametrize("source", ["model", "tfidf", "file"])
@pytest.mark.usefixtures("inside")
def test_embeddings_are_centred_on_the_training_problems(small: Small, build_config: BuildConfig, source: str) -> None:
    torch.set_num_threads(1)
    params = small()
    config = build_config(
        dialects=2, embeddings=source, embeddings_file=Path("vectors.safetensors"), model=ROOT / "models/base"
    )
    dialects.run(params, config)
    ids = {name: [record.id for record in records] for name, records in read_splits(RESULTS.dialects).items()}
    torch.manual_seed(1)
    vectors = {problem: torch.rand(3) for name in paths.SPLITS for problem in ids[name]}
    save_file(vectors, "vectors.safetensors")
    embed.run(params, config)
    embeddings = read_embeddings(RESULTS.embeddings)
    assert embeddings.keys() == vectors.keys()
    training = torch.stack([embeddings[problem] for problem in ids["train"]])
    assert training.mean(0).abs().max() < 1e-5
    metrics = json.loads(RESULTS.embeddings.with_suffix(".json").read_text())
    assert (metrics["source"], metrics["problems"]) == (source, len(vectors))
    assert metrics["dimension"] == training.shape[1]
    if source == "file":
        assert metrics["dimension"] == 3
    else:
        assert {shares["domain"] for shares in metrics["nearest"].values()} == {1.0}
    if source == "tfidf":
        assert {shares["dialect"] for shares in metrics["nearest"].values()} == {1.0}
    before = RESULTS.embeddings.read_bytes()
    embed.run(params, config)
    assert RESULTS.embeddings.read_bytes() == before


@pytest.mark.usefixtures("inside")
def test_problems_that_cannot_be_embedded_raise(small: Small, build_config: BuildConfig) -> None:
    params = small(prompt={"max_tokens": 5})
    from_file = build_config(embeddings="file", embeddings_file=Path("vectors.safetensors"))
    dialects.run(params, from_file)
    first = read_splits(RESULTS.dialects)["train"][0].id
    save_file({"other": torch.ones(3)}, "vectors.safetensors")
    with pytest.raises(EmbeddingsError, match=f"no vector for 24 of 24 problems, the first {first}"):
        embed.run(params, from_file)
    with pytest.raises(PromptTooLong, match=f"problem {first}"):
        embed.run(params, build_config(embeddings="model", model=ROOT / "models/base"))
