"""rollouts.parquet: every completion of GRPO, up to a size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

import letters
from planward.core.records import Record
from planward.core.tasks import Renaming
from planward.core.verdicts import Label, Outcome, Verdict
from planward.curriculum.draws import Slot
from planward.curriculum.samplers import FixedSampler
from planward.training.checkpoints import Journal
from planward.training.rollout_record import RolloutRecord
from planward.training.rollouts import Rollouts
from training_runs import (
    RECORDS,
    TASK,
    KillAfter,
    Killed,
    read_curve,
    read_files,
    read_metrics,
    read_rows,
    run_grpo,
)

pytestmark = pytest.mark.usefixtures("project_root")


class PlanTask(letters.LettersTask):
    """A plan is the completion without its first letter; a single letter has none."""

    def verify(self, problem: Record, completion: str, renaming: Renaming | None = None) -> Verdict:
        verdict = super().verify(problem, completion, renaming)
        _, *plan = completion.split() or [""]
        outcome = Outcome(Label.PRECONDITION, len(plan), failing_step=len(plan)) if plan else None
        return Verdict(verdict.label, verdict.reward, verdict.success, plan=" ".join(plan), outcome=outcome)


@pytest.mark.parametrize("task", [TASK, PlanTask()])
def test_every_completion_is_kept_with_its_verdict(task: letters.LettersTask) -> None:
    groups = run_grpo("model", letters.build_params(grpo={"steps": 3, "audit_share": 0.0}), task)
    rows, problems = read_rows("model", "rollouts"), {record.id: record for record in RECORDS}
    columns = ("step", "slot", "id", "domain", "bucket")
    assert [tuple(row[name] for name in (*columns, "completion_index", "reward", "label")) for row in rows] == [
        (*(group[name] for name in columns), index, reward, label)
        for group in groups
        for index, (reward, label) in enumerate(zip(group["rewards"], group["labels"], strict=True))
    ]
    for row in rows:
        completion = row["plan"] if row["completion"] is None else row["completion"]
        verdict = task.verify(problems[row["id"]], completion)
        assert (verdict.label, verdict.reward, verdict.plan) == (row["label"], row["reward"], row["plan"])
        assert row["failing_step"] == (verdict.outcome.failing_step if verdict.outcome else None)
    assert {row["completion"] is None for row in rows} == ({True} if task is TASK else {True, False})
    lengths = dict(read_curve("model", "completion_length"))
    for step in range(3):
        assert lengths[step] == sum(row["num_tokens"] for row in rows if row["step"] == step) / 32
    assert read_metrics("model")["completions_kept"] == len(rows) == 96


def test_size_is_limited_and_the_first_steps_are_kept() -> None:
    run_grpo("whole", letters.build_params(grpo={"steps": 6}))
    params = letters.build_params(grpo={"steps": 6, "rollouts_mb": 0.02, "save_steps": 2})
    run_grpo("limited", params)
    whole_rows, limited_rows = read_rows("whole", "rollouts"), read_rows("limited", "rollouts")
    num_steps = len(limited_rows) // 32
    assert 1 < num_steps < 5
    assert limited_rows == whole_rows[: 32 * num_steps]
    assert Path("training/limited/rollouts.parquet").stat().st_size <= 20_000
    metrics = read_metrics("limited")
    assert (metrics["completions_kept"], metrics["completions"]) == (len(limited_rows), 6 * 32)

    with pytest.raises(Killed):
        run_grpo("resumed", params, callbacks=[KillAfter(5)])
    run_grpo("resumed", params)
    assert read_files("training/resumed") == read_files("training/limited")

    run_grpo("none", letters.build_params(grpo={"steps": 2, "rollouts_mb": 0}))
    assert read_rows("none", "rollouts") == []
    assert read_metrics("none")["completions_kept"] == 0


@given(st.lists(st.integers(0, 6000), max_size=5), st.integers(0, 30_000))
def test_no_step_is_kept_after_one_that_does_not_fit(lengths: list[int], limit: int) -> None:
    def append(steps: Sequence[int], limit_mb: float) -> tuple[list[int], list[int]]:
        folder, journal = Path(mkdtemp(dir=".")), Journal()
        for step in steps:
            plan = Random(step).randbytes(lengths[step]).hex()
            row = {"plan": plan, "completion": f"\n{plan} ", "label": "right", "failing_step": None, "reward": 1.0}
            row |= {"num_tokens": 3, "truncated": False, "replayed": False}
            slot = Slot(step=step, slot=0, id="p", domain="copy", bucket="easy", wanted_bucket="easy")
            RolloutRecord(folder, journal, limit_mb).append(step, [slot], [[row]])
        num_rows = RolloutRecord(folder, journal, limit_mb).write(folder / "rollouts.parquet")
        rows = pq.read_table(folder / "rollouts.parquet").to_pylist()
        assert len(rows) == num_rows
        assert all(row["completion"] is None for row in rows)  # white space around the plan is no difference
        return [row["step"] for row in rows], [(folder / name).stat().st_size for name in journal.files]

    steps = range(len(lengths))
    row_steps, sizes = append(steps, 1000.0)
    assert row_steps == list(steps)
    assert append(steps, limit / 10**6)[0] == [step for step in steps if sum(sizes[: step + 1]) <= limit]


def test_completion_is_truncated_if_it_reaches_the_limit_before_its_end() -> None:
    params = letters.build_params(prompt={"max_completion_tokens": 3}, grpo={"audit_share": 0.0, "renaming": False})
    schedule, tokenizer = letters.build_schedule(RECORDS, 1, 8), AutoTokenizer.from_pretrained("base")
    sampler, end = FixedSampler([Slot(**row) for row in schedule], 8), tokenizer.eos_token_id
    rollouts = Rollouts(TASK, tokenizer, RECORDS, sampler, params, [], Path("disagreement.json"))
    rows = rollouts.build_prompts([row for row in schedule for _ in range(4)])
    completions = [[5, 6, 7], [5, 6, end], [5, end], [end]] * 8
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    rollouts(
        completions=tokenizer.batch_decode(completions, skip_special_tokens=True),
        completion_ids=completions,
        trainer_state=type("State", (), {"global_step": 0}),
        **columns,
    )
    assert rollouts.pop_metrics(0)["truncated"] == 0.25
