"""Chat prompts of the planning task: the built-in template, the shipped one of facts, and an experimenter's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planward.core.prompt_templates import PromptTemplateError
from planward.core.records import Meta, Record, read_records
from planward.core.registry import load_params, load_task
from planward.core.tasks import Messages
from planward.params import Params
from planward.pddl.renaming import rename_problem, rename_problem_text
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.prompt import INSTRUCTION, render_compact_problem
from support import ROOT, merge_values

FACTS = ROOT / "workflow/prompts/facts.jinja"
SHIPPED = load_params(root=ROOT)
NUMERIC = """(define (domain fuel) (:predicates (full)) (:functions (level))
  (:action fill :parameters () :precondition (> (level) 0) :effect (full)))"""


def build_params(**prompt: Any) -> Params:
    few = {
        "prompt": {"style": "full", "template": None} | prompt,
        "problems": {"generated": {"ferry": {"count": 6, "locations": [3, 4], "cars": [1, 2]}}},
        "split": {"held_out_domains": []},
        "transfer": {"larger": {}, "unseen": 0},
    }
    few["problems"]["generated"]["spanner"] = {"count": 6, "spanners": [2, 3], "nuts": [1, 2], "locations": [1, 3]}
    return PlanningParams.model_validate(merge_values(SHIPPED.model_dump(mode="json"), few))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problem files, half of them with constraints."""
    folder = tmp_path_factory.mktemp("problems")
    task = load_task(build_params(), folder)
    task.prepare_problems(folder)
    return folder


@pytest.fixture(scope="module")
def records(root: Path) -> list[Record]:
    records = read_records(root / "problems.jsonl")
    return [record.model_copy(update={"id": str(number)}) for number, record in enumerate(records)]


def render(root: Path, problem: Record, examples: Sequence[Record], renaming: Any = None, **prompt: Any) -> Messages:
    messages = load_task(build_params(**prompt), root).prompt(problem, examples, renaming or {})
    assert isinstance(messages, list)
    return messages


@settings(max_examples=30)
@given(st.integers(0, 11), st.lists(st.integers(0, 11), max_size=3), st.booleans(), st.booleans())
def test_built_in_prompts_are_word_for_word_those_before_templates(
    root: Path, records: list[Record], number: int, others: list[int], rename: bool, is_named: bool
) -> None:
    problem, examples = records[number], [records[other] for other in others]
    task = load_task(build_params(), root)
    renaming = task.draw_renaming(problem, "seed") if rename else {}
    domain, text, *texts = (
        (root / file).read_text()
        for file in (problem.meta.domain_file, *(record.meta.problem_file for record in (problem, *examples)))
    )
    expected = [{"role": "system", "content": f"{INSTRUCTION}\n\nDomain:\n{domain.strip()}"}]
    for example, example_text in zip(examples, texts, strict=True):
        expected.append({"role": "user", "content": f"Problem:\n{example_text.strip()}\n\nPlan:"})
        expected.append({"role": "assistant", "content": task.reference_completion(example)})
    renamed_text = rename_problem_text(text, renaming).strip()
    expected.append({"role": "user", "content": f"Problem:\n{renamed_text}\n\nPlan:"})
    template = SHIPPED.prompt.template
    assert template is not None
    assert render(root, problem, examples, renaming, template=ROOT / template if is_named else None) == expected


def test_facts_are_those_of_compact_prompts_in_the_prompts_names(root: Path, records: list[Record]) -> None:
    task: Any = load_task(build_params(), root)
    problem = next(record for record in records if record.domain == "ferry" and task.draw_renaming(record, "seed"))
    renaming = task.draw_renaming(problem, "seed")
    example = next(record for record in records if record.domain == "ferry" and record != problem)
    system, user, assistant, last = render(root, problem, [example], renaming, template=FACTS)
    domain = task._load(problem).domain
    assert all(f"\n({name} ?" in system["content"] for name in domain.actions)
    assert user["content"] == render_compact_problem(task._load(example)).strip()
    assert assistant["content"] == task.reference_completion(example)
    assert last["content"] == render_compact_problem(rename_problem(task._load(problem), renaming)).strip()


def write_template(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "own.jinja"
    file.write_text(text)
    return file


def test_a_template_has_the_records_own_prompt_and_constraints(
    root: Path, records: list[Record], tmp_path: Path
) -> None:
    constraints = "{% if constraints %} ({{ constraints }}){% endif %}"
    turn = f"{{% block user %}}{{{{ domain_name }}}}: {{{{ prompt }}}}{constraints}{{% endblock %}}"
    template = write_template(tmp_path, turn)
    texts = {record.id: (root / record.meta.problem_file).read_text() for record in records}
    free_record = next(record for record in records if "(:constraints" not in texts[record.id])
    constrained_record = next(record for record in records if "(:constraints" in texts[record.id])
    worded_record = free_record.model_copy(update={"prompt": "Ship all cars."})
    assert render(root, worded_record, [], template=template)[0]["content"] == f"{free_record.domain}: Ship all cars."
    lines = render_compact_problem(load_task(build_params(), root)._load(constrained_record)).splitlines()
    expected = f"{constrained_record.prompt} ({lines[-2].removeprefix('constraints ')})"
    assert render(root, constrained_record, [], template=template)[0]["content"].endswith(expected)


def test_a_prompt_with_renamed_objects_is_refused(root: Path, records: list[Record], tmp_path: Path) -> None:
    template = write_template(tmp_path, "{% block user %}{{ prompt }}{% endblock %}")
    task = load_task(build_params(), root)
    problem, renaming = next((r, names) for r in records if (names := task.draw_renaming(r, "seed")))
    worded_record = problem.model_copy(update={"prompt": f"Move {next(iter(renaming)).upper()}."})
    assert render(root, worded_record, [], template=template)
    with pytest.raises(PromptTemplateError, match=r"which is renamed; fix: set sft\.renaming"):
        render(root, worded_record, [], renaming, template=template)


def test_pddl_that_only_val_reads_has_no_facts(tmp_path: Path) -> None:
    (tmp_path / "domain.pddl").write_text(NUMERIC)
    (tmp_path / "p.pddl").write_text("(define (problem p) (:domain fuel) (:init (= (level) 1)) (:goal (full)))")
    meta = Meta(scenario="ferry", domain_file="domain.pddl", problem_file="p.pddl")
    problem = Record(prompt="Fill it.", response="(fill)", meta=meta, id="p")
    assert "(:functions (level))" in render(tmp_path, problem, [])[0]["content"]
    with pytest.raises(PromptTemplateError, match=r"only VAL reads this problem; fix: .*`problem`"):
        render(tmp_path, problem, [], template=FACTS)
