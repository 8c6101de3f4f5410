"""Reward function for verl: the verdicts and training rewards of `planward.training`, from an exported folder.

verl calls `compute_score` from threads of many processes with the columns of an exported row. The folder holds
everything else: params.yaml and the problems. This module imports neither torch nor verl nor Ray.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any

from pydantic import ValidationError

from planward.core.records import Record
from planward.core.registry import load_task, parse_params
from planward.core.tasks import Task, compute_training_reward
from planward.core.verdicts import Outcome, Verdict, VerifierError
from planward.params import GrpoConfig, Params, read_yaml

PARAMS_FILE, PROBLEMS_DIR = "params.yaml", "problems"  # in an exported folder
SOURCE_PREFIX = "planward/"  # of the task's name, in the column data_source
TRAINING_SPLIT = "train"  # whose verdicts are audited


class InvalidRow(ValueError):
    """A row does not belong to the exported folder; the message gives the reason."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    folder: Path | str = ".",
    **_: Any,
) -> dict[str, Any]:
    """Judge one completion; return its training reward as `score`, and values that verl logs.

    These are `acc`, 1.0 for a success and 0.0 otherwise, which verl plots as its main validation metric; `verdict`,
    the verdict's reward in [-1, 1]; and `label`, the verdict's label.

    Args:
        data_source: `planward/TASK`.
        solution_str: the completion without special tokens, in the renamed symbols of the prompt.
        ground_truth: the problem's record as JSON.
        extra_info: `alias`, the renaming as JSON (see `Task.draw_renaming`), and `split`, `step` and `slot`.
        folder: the exported folder; on Ray it is the current one, the job's working directory.

    Raises:
        InvalidRow: the row is of another task, or its record or renaming cannot be read.
        VerifierError: no verdict could be reached, or `verify` and `judge` disagree on an audited completion.
        ParamsError: `folder` is not an exported run.
    """
    judge = _load_judge(Path(folder).resolve())
    if data_source != SOURCE_PREFIX + judge.task.name:
        raise InvalidRow(
            f"data_source {data_source!r}: {judge.folder} was exported for {SOURCE_PREFIX}{judge.task.name}"
        )
    row = extra_info or {}
    verdict = judge.verify(_parse_record(ground_truth), solution_str, _parse_renaming(row.get("alias")), row)
    return {
        "score": compute_training_reward(verdict.reward, verdict.success, judge.params.grpo.reward),
        "acc": float(verdict.success),
        "verdict": verdict.reward,
        "label": verdict.label,
    }


class Judge:
    """The task of an exported folder. A lock serialises calls, since verl's threads share the task's caches."""

    def __init__(self, folder: Path) -> None:
        self.folder, file = folder, folder / PARAMS_FILE
        self.params: Params = parse_params(read_yaml(file), str(file))
        self.task: Task = load_task(self.params, folder / PROBLEMS_DIR)
        self._lock = Lock()

    def verify(self, record: Record, completion: str, renaming: Mapping[str, str], row: Mapping[str, Any]) -> Verdict:
        """Verdict of `task.verify`; in training, a share of them is checked against `task.judge`."""
        with self._lock:
            completion = self.task.undo_renaming(record, completion, renaming)
            verdict = self.task.verify(record, completion)
            if row.get("split") == TRAINING_SPLIT and _is_audited(self.params.seed, self.params.grpo, row, completion):
                (second,) = self.task.judge([(record, completion)])
                if _get_label_and_step(verdict) != _get_label_and_step(second):
                    raise VerifierError(
                        f"problem {record.id}: verify returns {verdict.label}, judge {second.label}, for {completion!r}"
                    )
        return verdict


def _is_audited(seed: int, grpo: GrpoConfig, row: Mapping[str, Any], completion: str) -> bool:
    """Whether a verdict belongs to the share `grpo.audit_share` that is audited.

    verl does not pass the index of a completion in its group, so equal completions are audited together.
    """
    return Random(f"{seed}:audit:{row.get('step')}:{row.get('slot')}:{completion}").random() < grpo.audit_share


def _get_label_and_step(verdict: Verdict) -> tuple[str, int | None]:
    outcome: Outcome | None = verdict.outcome
    return verdict.label, outcome.failing_step if outcome is not None else None


@cache
def _load_judge(folder: Path) -> Judge:
    return Judge(folder)


@lru_cache(maxsize=4096)
def _parse_record(ground_truth: str) -> Record:
    try:
        record = Record.model_validate_json(ground_truth)
    except ValidationError as error:
        fault = error.errors()[0]
        raise InvalidRow(f"ground_truth is no record: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    if not record.id:
        raise InvalidRow("ground_truth is no record of a split: it has no id")
    return record


@lru_cache(maxsize=4096)
def _parse_renaming(text: Any) -> dict[str, str]:
    if text is None:
        raise InvalidRow("extra_info has no alias, so the completion's renaming is unknown")
    try:
        renaming = json.loads(text)
    except (TypeError, ValueError):
        renaming = None
    if not isinstance(renaming, dict) or not all(isinstance(name, str) for name in renaming.values()):
        raise InvalidRow(f"extra_info.alias is no JSON object of names: {text!r}")
    return renaming
