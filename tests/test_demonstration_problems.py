"""The problems of the demonstrations track: dealt to dialects, known apart, and embedded."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from conftest import ROOT, rows, write_lines
from planward.demonstrations.embeddings import EmbeddingsError, read_embeddings
from planward.params import Params, ParamsError
from planward.pddl.dialects import dialect
from planward.pddl.renaming import renamed_problem_text
from planward.records import Record, read_records
from planward.stages import dialects, embed, problems, score, split
from planward.tasks import load_task
from planward.tasks.fitting import PromptTooLong

Small = Callable[..., Params]
SIDES = split.SIDES


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, small: Small) -> Path:
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
def inside(scored: Path, project: Path) -> Path:
    shutil.copytree(scored, project, dirs_exist_ok=True)
    return project


def written() -> dict[str, list[Record]]:
    return {side: list(read_records(dialects.OUT / f"{side}.jsonl")) for side in SIDES}


def plain() -> dict[str, list[Record]]:
    return {side: list(read_records(score.OUT / f"{side}.jsonl")) for side in SIDES}


def content() -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in dialects.OUT.rglob("*") if file.is_file()}


@pytest.mark.usefixtures("inside")
def test_every_problem_says_the_same_in_its_dialect(small: Small) -> None:
    params = small(demonstrations={"dialects": 3})
    dialects.run(params)
    before, after, task, plain_task = plain(), written(), load_task(params, dialects.PROBLEMS), load_task(params)
    kept = ("id", "score", "bucket", "constrained", "domain")
    for side in SIDES:
        assert len(before[side]) == len(after[side])
        for old, new in zip(before[side], after[side], strict=True):
            assert [getattr(old, name) for name in kept] == [getattr(new, name) for name in kept]
            assert new.meta.problem_file == old.meta.problem_file
            spoken = dialect(new.domain, int(dialects.dialect_name(new)), params.seed)
            there = task.problem(new.meta.domain_file, new.meta.problem_file)
            assert there == spoken.problem(plain_task.problem(old.meta.domain_file, old.meta.problem_file))
            assert new.response == "\n".join(spoken.translated(old.response.splitlines()))
            assert (dialects.PROBLEMS / new.meta.problem_file).read_text() in new.prompt
            assert (dialects.PROBLEMS / new.meta.domain_file).read_text() in new.prompt
    everything = [record for side in SIDES for record in after[side]]
    assert any(record.constrained and dialects.dialect_name(record) != "0" for record in everything)
    assert all(verdict.success for verdict in task.judge([(record, record.response) for record in everything]))
    strangers = [task.verify(new, old.response).success
                 for side in SIDES for old, new in zip(before[side], after[side], strict=True)
                 if dialects.dialect_name(new) != "0"]  # fmt: skip
    assert not all(strangers)


@pytest.mark.usefixtures("inside")
def test_dialects_are_dealt_evenly_within_split_and_domain(small: Small) -> None:
    dialects.run(small(demonstrations={"dialects": 3}))
    metrics = json.loads((dialects.OUT / "metrics.json").read_text())
    for side, records in written().items():
        assert metrics["problems"][side] == len(records)
        for domain in ("blocksworld", "ferry"):
            numbers = Counter(dialects.dialect_name(record) for record in records if record.domain == domain)
            assert metrics["dialects"][side][domain] == numbers
            assert numbers.keys() <= {"0", "1", "2"}
            assert max(numbers.values()) - min(numbers[name] for name in ("0", "1", "2")) <= 1


@pytest.mark.usefixtures("inside")
def test_dealing_depends_on_the_seed_and_the_ids_alone(small: Small) -> None:
    params = small(demonstrations={"dialects": 3})
    dialects.run(params)
    first, before = content(), written()
    dialects.run(params)
    assert content() == first
    write_lines(score.OUT / "train.jsonl", rows(score.OUT / "train.jsonl")[::-1])
    dialects.run(params)
    assert written()["train"] == before["train"][::-1]
    dialects.run(params.model_copy(update={"seed": params.seed + 1}))
    assert written()["train"] != before["train"][::-1]


@pytest.mark.parametrize("sections", [{"demonstrations": {"dialects": 1}}, {"problems": {"source": "jsonl"}}])
@pytest.mark.usefixtures("inside")
def test_other_problems_are_copied_as_they_are(small: Small, sections: dict[str, dict[str, object]]) -> None:
    params = small(**sections)
    dialects.run(small(demonstrations={"dialects": 3}))
    dialects.run(params)
    assert written() == plain()
    for record in (record for own in plain().values() for record in own):
        for file in (record.meta.domain_file, record.meta.problem_file):
            assert (dialects.PROBLEMS / file).read_bytes() == (Path("results/problems") / file).read_bytes()
    files = {file.name for file in dialects.PROBLEMS.rglob("*.pddl")}
    assert not any(name.startswith("dialect") for name in files)  # of the run before
    numbers = json.loads((dialects.OUT / "metrics.json").read_text())["dialects"]["train"]
    assert numbers["ferry"].keys() == {"0"}


@pytest.mark.usefixtures("project")
def test_problems_that_have_a_dialect_keep_it(small: Small) -> None:
    params = small(problems={"dialects": 2}, demonstrations={"dialects": 3})
    problems.run(params)
    split.run(params)
    score.run(params)
    dialects.run(params)
    assert written() == plain()
    assert {dialects.dialect_name(record) for record in written()["train"]} == {"0", "1"}


@pytest.mark.usefixtures("inside")
def test_a_problem_without_a_plan_stays_as_it_is(small: Small) -> None:
    lines = rows(score.OUT / "test.jsonl")
    del lines[0]["response"]
    write_lines(score.OUT / "test.jsonl", lines)
    dialects.run(small(demonstrations={"dialects": 3}))
    assert written()["test"][0] == plain()["test"][0]


@pytest.mark.usefixtures("inside")
def test_a_plan_that_does_not_work_stops_the_run(small: Small) -> None:
    lines = rows(score.OUT / "test.jsonl")
    lines[1]["response"] = lines[1]["response"].partition("\n")[2]
    write_lines(score.OUT / "test.jsonl", lines)
    with pytest.raises(ValueError, match=f"problem {lines[1]['id']} .* does not work in dialect"):
        dialects.run(small(demonstrations={"dialects": 3}))


@pytest.mark.usefixtures("inside")
def test_a_domain_with_too_few_dialects_is_named(small: Small) -> None:
    with pytest.raises(ParamsError, match=r"demonstrations\.dialects: \w+ has \d+ dialects.*; ask for fewer"):
        dialects.run(small(demonstrations={"dialects": 500}))


@pytest.mark.usefixtures("inside")
def test_renamings_and_constrained_twins_share_a_core_and_others_do_not(small: Small) -> None:
    task, records = load_task(small()), [record for own in plain().values() for record in own]
    assert len({task.core(record) for record in records}) == len(records)
    assert any(record.constrained for record in records)
    assert sum(bool(task.alias(record, "other")) for record in records) > len(records) / 2
    for record in records:
        source = Path("results/problems") / record.meta.problem_file
        twin = source.with_name(f"twin-{source.name}")
        text = source.read_text().partition("(:constraints")[0].rstrip()
        text = f"{text})" if record.constrained else text
        twin.write_text(renamed_problem_text(text, task.alias(record, "other")))
        meta = record.meta.model_copy(update={"problem_file": f"{record.domain}/{twin.name}"})
        assert task.core(record.model_copy(update={"meta": meta, "id": "twin"})) == task.core(record)


@pytest.mark.usefixtures("project")
def test_what_only_val_reads_has_a_core_of_its_words(small: Small) -> None:
    domain = "(define (domain d) (:requirements :derived-predicates) (:predicates (p) (q)) (:derived (q) (p)))"
    one, same, other = "(define (problem x) (:goal (q)))", "(define  (PROBLEM x)\n(:goal (q)))", "(define (problem x))"
    Path("results/problems").mkdir(parents=True)
    for name, text in {"domain": domain, "one": one, "same": same, "other": other}.items():
        Path(f"results/problems/{name}.pddl").write_text(text)
    task = load_task(small())
    cores = defaultdict(set)
    for name in ("one", "same", "other"):
        meta = {"scenario": "d", "domain_file": "domain.pddl", "problem_file": f"{name}.pddl"}
        cores[task.core(Record.model_validate({"prompt": "", "meta": meta}))].add(name)
    assert list(cores.values()) == [{"one", "same"}, {"other"}]


@pytest.mark.parametrize("source", ["model", "tfidf", "file"])
@pytest.mark.usefixtures("inside")
def test_every_problem_is_embedded_about_the_mean_of_training_problems(small: Small, source: str) -> None:
    torch.set_num_threads(1)
    settings = {"dialects": 2, "embeddings": source, "embeddings_file": "own.safetensors"}
    params = small(demonstrations=settings | {"model": str(ROOT / "models/base")})
    dialects.run(params)
    ids = {side: [record.id for record in records] for side, records in written().items()}
    torch.manual_seed(1)
    own = {name: torch.rand(3) for side in SIDES for name in ids[side]}
    save_file(own, "own.safetensors")
    embed.run(params)
    vectors = read_embeddings(embed.EMBEDDINGS)
    assert vectors.keys() == own.keys()
    of_training = torch.stack([vectors[name] for name in ids["train"]])
    assert of_training.mean(0).abs().max() < 1e-5
    metrics = json.loads(embed.METRICS.read_text())
    assert (metrics["source"], metrics["problems"]) == (source, len(own))
    assert metrics["dimension"] == of_training.shape[1]
    if source == "file":
        assert metrics["dimension"] == 3
    else:
        assert {shares["domain"] for shares in metrics["nearest"].values()} == {1.0}
    if source == "tfidf":
        assert {shares["dialect"] for shares in metrics["nearest"].values()} == {1.0}
    before = embed.EMBEDDINGS.read_bytes()
    embed.run(params)
    assert embed.EMBEDDINGS.read_bytes() == before


@pytest.mark.usefixtures("inside")
def test_problems_that_cannot_be_embedded_are_named(small: Small) -> None:
    params = small(
        demonstrations={"embeddings": "file", "embeddings_file": "own.safetensors"}, prompt={"max_tokens": 5}
    )
    dialects.run(params)
    first = written()["train"][0].id
    save_file({"other": torch.ones(3)}, "own.safetensors")
    with pytest.raises(EmbeddingsError, match=f"no vector for 24 of 24 problems, the first {first}"):
        embed.run(params)
    settings = params.demonstrations.model_copy(update={"embeddings": "model", "model": ROOT / "models/base"})
    with pytest.raises(PromptTooLong, match=f"problem {first}"):
        embed.run(params.model_copy(update={"demonstrations": settings}))
