"""The rewards of completions as verl asks for them: the verdicts, and their worth, are those of `planward.training`.

verl calls `compute_score` in many processes, by threads, with what a row of the exported parquet says. What it needs
to judge lies in the exported folder: params.yaml and the problems. Neither torch nor verl nor Ray is imported here.
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

from planward.params import Grpo, Params, load_params
from planward.records import Outcome, Record, Verdict, VerifierError
from planward.tasks import load_task
from planward.tasks.base import Task, worth

PARAMS, PROBLEMS = "params.yaml", "problems"  # in an exported folder
SOURCE = "planward/"  # before a task's name, in the column data_source
TRAINING = "train"  # the split whose verdicts are audited


class NotOurs(ValueError):
    """A row is not one of the exported folder's; the message says what is wrong with it."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: Mapping[str, Any] | None = None,
    *,
    folder: Path | str = ".",
    **_: Any,
) -> dict[str, Any]:
    """Judge one completion; return its `score`, what the trainer gets for it (see `worth`), and what verl logs.

    That is `acc`, 1.0 for a success and 0.0 for all else, which verl makes its chief curve on validation problems;
    `verdict`, the verdict's own reward in [-1, 1]; and the verdict's `label`.

    Args:
        data_source: `planward/planning` or `planward/economy`.
        solution_str: the completion, without special tokens; in the names of the prompt.
        ground_truth: the problem's record as JSON.
        extra_info: `alias` as JSON (see `Task.alias`), and where the completion belongs: `split`, `step`, `slot`.
        folder: the exported folder; the current one is that on Ray, where it is the job's working directory.

    Raises:
        NotOurs: the row is of another task, or its record or alias cannot be read.
        VerifierError: no verdict could be reached, or an audited one is not the judge's.
        ParamsError: `folder` is no exported folder.
    """
    judge = _judge(Path(folder).resolve())
    if data_source != SOURCE + judge.task.name:
        raise NotOurs(f"data_source {data_source!r}: {judge.folder} was exported for {SOURCE}{judge.task.name}")
    row = extra_info or {}
    verdict = judge.verdict(_record(ground_truth), solution_str, _alias(row.get("alias")), row)
    return {
        "score": worth(verdict.reward, verdict.success, judge.params.grpo.reward),
        "acc": float(verdict.success),
        "verdict": verdict.reward,
        "label": verdict.label,
    }


class Judge:
    """The task of an exported folder. One completion at a time: verl's threads share what the task remembers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.params: Params = load_params(folder / PARAMS)
        self.task: Task = load_task(self.params, folder / PROBLEMS)
        self._turn = Lock()

    def verdict(self, record: Record, completion: str, alias: Mapping[str, str], row: Mapping[str, Any]) -> Verdict:
        with self._turn:
            own = self.task.original(completion, alias)
            verdict = self.task.verify(record, own)
            if row.get("split") == TRAINING and _audited(self.params.seed, self.params.grpo, row, own):
                (second,) = self.task.judge([(record, own)])
                if _told(verdict) != _told(second):
                    raise VerifierError(
                        f"problem {record.id}: verify says {verdict.label}, judge says {second.label}, of {own!r}"
                    )
        return verdict


def _audited(seed: int, grpo: Grpo, row: Mapping[str, Any], completion: str) -> bool:
    """Whether the judge looks at a verdict as well: a share `grpo.audit_share` of them.

    verl does not say which completion of a prompt it asks about, so equal completions are audited together.
    """
    return Random(f"{seed}:audit:{row.get('step')}:{row.get('slot')}:{completion}").random() < grpo.audit_share


def _told(verdict: Verdict) -> tuple[str, int | None]:
    outcome: Outcome | None = verdict.outcome
    return verdict.label, outcome.failing_step if outcome is not None else None


@cache
def _judge(folder: Path) -> Judge:
    return Judge(folder)


@lru_cache(maxsize=4096)
def _record(ground_truth: str) -> Record:
    try:
        record = Record.model_validate_json(ground_truth)
    except ValidationError as error:
        fault = error.errors()[0]
        raise NotOurs(f"ground_truth is no record: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    if not record.id:
        raise NotOurs("ground_truth is no record of a split: it has no id")
    return record


@lru_cache(maxsize=4096)
def _alias(text: Any) -> dict[str, str]:
    if text is None:
        raise NotOurs("extra_info has no alias, so it is unknown by which names the completion calls the objects")
    try:
        alias = json.loads(text)
    except (TypeError, ValueError):
        alias = None
    if not isinstance(alias, dict) or not all(isinstance(name, str) for name in alias.values()):
        raise NotOurs(f"extra_info.alias is no JSON object of names: {text!r}")
    return alias
