"""Predictions in the result format of PlanBench, and its recorded answers as lines for `planward judge`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from planward.core.files import write_json
from planward.core.paths import SPLITS, Results
from planward.core.records import Prediction, Record, read_predictions, read_records
from planward.params import ParamsError
from planward.tasks.planning.planbench import INSTANCE_ID, load_configs

PLAN_GENERATION = "task_1_plan_generation"
CHECKOUT_DEPTH = 3  # of the folder of a result file, results/DOMAIN/ENGINE, below the checkout
PROMPT_TYPES = {0: "zeroshot", 1: "oneshot"}


def export_results(results: Results, run: str, shot_num: int, out: Path, engine: str) -> list[Path]:
    """Write the predictions of a run as OUT/DOMAIN/ENGINE/TASK.json and return the files.

    The task is the one whose answers are PDDL: task_1_plan_generation_zero_shot_pddl, or with worked examples
    task_1_plan_generation_pddl.

    Raises:
        ValueError: there are no such predictions, or their problems are not from a checkout.
    """
    file = results.predictions / f"{run}.jsonl"
    records = {record.id: record for split in SPLITS for record in read_records(results.score / f"{split}.jsonl")}
    instances: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for prediction in read_predictions(file):
        if prediction.shot_num == shot_num:
            instances[prediction.domain].append(build_instance(prediction, records))
    if not instances:
        raise ValueError(f"{file}: no predictions with {shot_num} worked examples; fix: choose one of evaluate.shots")
    task, files = f"{PLAN_GENERATION}{'' if shot_num else '_zero_shot'}_pddl", []
    for domain, rows in sorted(instances.items()):
        document = {
            "task": task,
            "engine": engine,
            "prompt_type": PROMPT_TYPES.get(shot_num, f"{shot_num}-shot"),
            "domain": domain,
            "instances": sorted(rows, key=lambda row: row["instance_id"]),
        }
        files.append(out / domain / engine / f"{task}.json")
        write_json(files[-1], document)
    return files


def build_instance(prediction: Prediction, records: dict[str, Record]) -> dict[str, Any]:
    """Build the entry of a prediction.

    PlanBench's evaluation reads `llm_raw_response` line by line, in the problem's own names, and takes an empty one for
    an answer that is yet to come; so it is the plan, or else the completion, and ends in a line break.
    """
    problem = records[prediction.id]
    return {
        "instance_id": _get_number(problem),
        "example_instance_ids": [_get_number(records[shot]) for shot in prediction.shot_ids],
        "query": prediction.prompt,
        "ground_truth_plan": f"{problem.response}\n",
        "llm_raw_response": f"{prediction.plan or prediction.completion}\n",
        "extracted_llm_plan": prediction.plan,
        "llm_correct": prediction.success,
        "completion": prediction.completion,
    }


def _get_number(problem: Record) -> int:
    number = (problem.meta.model_extra or {}).get(INSTANCE_ID)
    if not isinstance(number, int):
        raise ValueError(
            f"{problem.meta.problem_file} is not numbered as an instance of PlanBench; "
            "fix: export a run on problems read with problems.source: planbench"
        )
    return number


class _Instance(BaseModel):
    instance_id: int
    llm_raw_response: str | None = None
    extracted_llm_plan: str | None = None
    example_instance_ids: list[Any] | None = None


class _Document(BaseModel):
    task: str
    domain: str
    instances: list[_Instance]


def _read_document(file: Path) -> _Document:
    try:
        return _Document.model_validate_json(file.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "the whole"
        raise ValueError(
            f"{file}: no result file of PlanBench: {where}: {fault['msg']}; fix: name files that its evaluation reads"
        ) from None


def _find_checkout(file: Path) -> Path:
    parents = file.resolve().parents
    if len(parents) <= CHECKOUT_DEPTH or not (parents[CHECKOUT_DEPTH] / "configs").is_dir():
        raise ParamsError(
            f"{file}: is not results/DOMAIN/ENGINE/TASK.json of a checkout; "
            "fix: --root, the folder that holds configs/ and instances/"
        )
    return parents[CHECKOUT_DEPTH]


def iter_answers(file: Path, root: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yield the answers of a result file CHECKOUT/results/DOMAIN/ENGINE/TASK.json as lines for `planward judge`.

    Answers in PDDL are yielded as they were given (`completion`), those in words as the plan that the benchmark
    extracted from them (`plan`). Instances without an answer are left out.

    Args:
        root: the folder of the checkout that holds configs/ and instances/; by default, CHECKOUT.

    Raises:
        ValueError: the file is no result of a plan generation task or lies in no checkout, an answer in words was not
            yet evaluated, or the domain has no config; the message names it.
    """
    document = _read_document(file)
    if not document.task.startswith(PLAN_GENERATION):
        raise ValueError(
            f"{file}: task {document.task!r} is not {PLAN_GENERATION} or a variant of it: nothing to judge"
        )
    root = _find_checkout(file) if root is None else root
    configs = {config.domain_name: config for config in load_configs(root)}
    if (domain := document.domain) not in configs:
        raise ParamsError(f"{root}/configs: no config has domain_name {domain}; fix: --root")
    config, instances = configs[domain], root.resolve() / "instances"
    for instance in document.instances:
        if not instance.llm_raw_response:
            continue
        number = instance.instance_id
        if document.task.endswith("_pddl"):
            answer = {"completion": instance.llm_raw_response}
        elif "extracted_llm_plan" in instance.model_fields_set:
            answer = {"plan": instance.extracted_llm_plan or ""}
        else:
            raise ValueError(
                f"{file}: instance {number} has an answer in words and no extracted_llm_plan; "
                "fix: evaluate the file with the benchmark first"
            )
        examples = instance.example_instance_ids
        if examples is None:
            examples = [] if "zero_shot" in document.task else [None]
        yield {
            "id": f"{domain}/{number}",
            "domain_file": str(instances / config.domain_file),
            "problem_file": str(instances / config.format_problem_path(number)),
            "model": file.resolve().parent.name,
            "shot_num": len(examples),
            **answer,
        }
