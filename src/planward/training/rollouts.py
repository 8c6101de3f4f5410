"""Rollouts: what GRPO generated, what it was worth, and proof that the schedule was followed.

TRL hands a reward function the very batch that an optimizer step trains on, so this is where consumption is
read: a sampler's own account of it would miss the mistake of feeding prompts where completions are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object

from planward.params import BUCKETS, Params
from planward.records import Record, Verdict, VerifierError, write_json
from planward.tasks.base import Messages, Task

Row = dict[str, Any]


class ScheduleViolated(RuntimeError):
    """An optimizer step consumed other prompts than the schedule's."""


class Disagreement(VerifierError):
    """`verify` and `judge` differ over a completion; the case was written down."""


class Rollouts:
    """The reward function of one run.

    Args:
        schedule: rows in order of consumption: step, slot, id, domain, bucket, wanted_bucket.
        prompt_tokens: length of each row's prompt, in tokens.
        consumed: the run's log of prompts; appended to, one row a prompt, with the rewards and labels of its
            completions.
        failure: where a disagreement is written.
    """

    def __init__(
        self,
        task: Task,
        records: Sequence[Record],
        schedule: Sequence[Row],
        prompt_tokens: Sequence[int],
        params: Params,
        consumed: list[Row],
        failure: Path,
    ) -> None:
        self.task = task
        self.records = {record.id: record for record in records}
        self.schedule = list(schedule)
        self.prompt_tokens = list(prompt_tokens)
        self.domains = sorted({row["domain"] for row in schedule})
        self.params = params
        self.consumed = consumed
        self.failure = failure
        self._measured: dict[int, dict[str, float]] = {}

    def __call__(self, completions: Sequence[str | Messages], **batch: Any) -> list[float]:
        """Return a reward for each completion of this process, as TRL asks for it.

        Raises:
            VerifierError: no verdict; there is no reward for that.
            Disagreement: an audited verdict is not the judge's.
            ScheduleViolated: the step's prompts are not the schedule's.
        """
        step = batch["trainer_state"].global_step
        texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
        pairs = [(self.records[name], text) for name, text in zip(batch["id"], texts, strict=True)]
        verdicts = self._verify(pairs)
        audited = self._audit(step, batch["slot"], pairs, verdicts)
        self._keep(step, gather_object(self._rows(batch, verdicts, audited)))
        if self.params.grpo.report_to:
            for name, value in self._measured[step].items():
                batch["log_metric"](name, value)
        return [verdict.reward for verdict in verdicts]

    def measured(self, step: int) -> Mapping[str, float]:
        """Return the quantities of a step that has been rolled out (shares in [0, 1], lengths in tokens)."""
        return self._measured.pop(step)

    def _verify(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        """Judge each completion; equal completions of a problem, common at low temperature, once."""
        known: dict[tuple[str, str], Verdict] = {}
        for record, text in pairs:
            if (record.id, text) not in known:
                known[record.id, text] = self.task.verify(record, text)
        return [known[record.id, text] for record, text in pairs]

    def _audit(
        self, step: int, slots: Sequence[int], pairs: Sequence[tuple[Record, str]], verdicts: Sequence[Verdict]
    ) -> list[bool]:
        """Let the judge look at a share of the verdicts; return which."""
        seen: Counter[int] = Counter()
        chosen = []
        for slot in slots:
            draw = Random(f"{self.params.seed}:audit:{step}:{slot}:{seen[slot]}").random()
            chosen.append(draw < self.params.grpo.audit_share)
            seen[slot] += 1
        suspects = [index for index, audited in enumerate(chosen) if audited]
        judged = self.task.judge([pairs[index] for index in suspects]) if suspects else []
        for index, second in zip(suspects, judged, strict=True):
            first = verdicts[index]
            if (first.label, _failing_step(first)) != (second.label, _failing_step(second)):
                record, text = pairs[index]
                case = {"step": step, "slot": slots[index], "problem": record.model_dump(), "completion": text}
                case |= {"verify": _told(first), "judge": _told(second)}
                write_json(self.failure, case)
                raise Disagreement(
                    f"problem {record.id}: verify says {first.label}, judge says {second.label}; case in {self.failure}"
                )
        return chosen

    def _rows(self, batch: Mapping[str, Any], verdicts: Sequence[Verdict], audited: Sequence[bool]) -> list[Row]:
        columns = zip(
            batch["step"], batch["slot"], batch["id"], batch["completion_ids"], verdicts, audited, strict=True
        )
        return [
            {
                "step": step,
                "slot": slot,
                "id": name,
                "tokens": len(ids),
                "reward": verdict.reward,
                "label": verdict.label,
                "success": verdict.success,
                "audited": judged,
            }
            for step, slot, name, ids, verdict, judged in columns
        ]

    def _keep(self, step: int, rows: Sequence[Row]) -> None:
        """Check a step's rows, one a completion over all processes, against the schedule; log and measure them."""
        size, generations = self.params.grpo.batch_size, self.params.grpo.num_generations
        if step != len(self.consumed) // size:
            raise ScheduleViolated(f"step {step} came where step {len(self.consumed) // size} was due")
        wanted = self.schedule[step * size : (step + 1) * size]
        due = [(row["step"], row["slot"], row["id"]) for row in wanted for _ in range(generations)]
        got = [(row["step"], row["slot"], row["id"]) for row in rows]
        if got != due:
            raise ScheduleViolated(
                f"step {step} consumed {len(got)} completions of {len(set(got))} prompts, due were {len(due)} of "
                f"{len(set(due))}; got {list(dict.fromkeys(got))}, due were {list(dict.fromkeys(due))}"
            )
        groups = [rows[start : start + generations] for start in range(0, len(rows), generations)]
        for index, (row, group) in enumerate(zip(wanted, groups, strict=True)):
            self.consumed.append(
                {
                    "step": step,
                    "slot": row["slot"],
                    "index": index,
                    "id": row["id"],
                    "domain": row["domain"],
                    "bucket": row["bucket"],
                    "wanted_bucket": row["wanted_bucket"],
                    "rewards": [completion["reward"] for completion in group],
                    "labels": [completion["label"] for completion in group],
                    "audited": sum(completion["audited"] for completion in group),
                }
            )
        tokens = self.prompt_tokens[step * size : (step + 1) * size]
        self._measured[step] = {
            "success": fmean(completion["success"] for completion in rows),
            "completion_length": fmean(completion["tokens"] for completion in rows),
            "prompt_length": fmean(tokens),
        } | measure(self.consumed[-size:], self.domains, self.task.labels)


def measure(prompts: Sequence[Row], domains: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Return rewards and shares of one step's prompts.

    A group has no spread where all its rewards are equal: it teaches nothing. `all_pass` counts the groups
    that have nothing left to learn, `all_fail` the rest. A domain or bucket that the step lacks has no reward.
    """
    equal = [min(row["rewards"]) == max(row["rewards"]) for row in prompts]
    passed = [row["rewards"][0] == 1.0 for row in prompts]
    values: dict[str, float] = {
        "zero_spread/all_pass": fmean(same and first for same, first in zip(equal, passed, strict=True)),
        "zero_spread/all_fail": fmean(same and not first for same, first in zip(equal, passed, strict=True)),
    }
    for column, names in (("domain", domains), ("bucket", BUCKETS)):
        for name in names:
            rewards = [reward for row in prompts if row[column] == name for reward in row["rewards"]]
            values[f"share_{column}/{name}"] = fmean(row[column] == name for row in prompts)
            if rewards:
                values[f"reward_by_{column}/{name}"] = fmean(rewards)
    for bucket in BUCKETS:
        values[f"curriculum/{bucket}"] = fmean(row["wanted_bucket"] == bucket for row in prompts)
    given = Counter(label for row in prompts for label in row["labels"])
    for label in labels:
        values[f"label/{label}"] = given[label] / given.total()
    return values


def _failing_step(verdict: Verdict) -> int | None:
    return verdict.outcome.failing_step if verdict.outcome is not None else None


def _told(verdict: Verdict) -> Row:
    return {
        "label": verdict.label,
        "reward": verdict.reward,
        "failing_step": _failing_step(verdict),
        "plan": verdict.plan,
        "detail": verdict.detail,
    }
