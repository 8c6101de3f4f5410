"""Prompt source and reward function for GRPO; checks that each optimizer step consumed the prompts scheduled for it.

TRL passes a reward function the batch that an optimizer step trains on, so consumption is recorded here. A sampler's
own record would not show whether prompts were fed where completions are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object

from planward.core.files import write_json
from planward.core.records import Record
from planward.core.tasks import Messages, Task, compute_training_reward
from planward.core.training_prompts import sample_training_prompt
from planward.core.verdicts import Verdict, VerifierDisagreement
from planward.curriculum.draws import Slot
from planward.curriculum.samplers import GroupResult, Sampler
from planward.params import BUCKETS, Params
from planward.training.replay import ReplayBuffer
from planward.training.rollout_record import RolloutRecord

Row = dict[str, Any]


class ScheduleError(RuntimeError):
    """An optimizer step consumed other prompts than those scheduled for it."""


class Rollouts:
    """The prompts and the reward function of one run.

    Args:
        sampler: chooses each step's prompts; new, the log is replayed to it first.
        consumed: the run's log, one row per prompt with the rewards and labels of its completions; appended to.
        case_file: where a disagreement of the verifiers is written.
        record: gets every completion of each step.

    Raises:
        ScheduleError: the log is that of another run.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        records: Sequence[Record],
        sampler: Sampler,
        params: Params,
        consumed: list[Row],
        case_file: Path,
        record: RolloutRecord | None = None,
    ) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.records = {record.id: record for record in records}
        self.domains = sorted({record.domain for record in records})
        self.sampler = sampler
        self.params = params
        self.consumed = consumed
        self.case_file = case_file
        self.record = record
        self.replay = ReplayBuffer(task, tokenizer, params.prompt.max_completion_tokens, self._is_success)
        self._replay_indices: set[int] = set()  # indices of replayed completions in this process's batch
        self._entropies: list[tuple[float, int]] | None = None  # of each generated completion: entropy and length
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # of this batch
        self._metrics: dict[int, dict[str, float]] = {}
        batch_size = params.grpo.batch_size
        for start in range(0, len(consumed), batch_size):
            log = consumed[start : start + batch_size]
            self._check_schedule(start // batch_size, log, 1)
            self._update_sampler(log)

    def build_prompts(self, batch: Sequence[Row]) -> list[Row]:
        """Return the rows to train on in place of this process's `batch`: those scheduled for the same step and slot.

        A row has the slot's columns, `prompt`, its length `prompt_tokens`, `shots_dropped`, `renaming`, the problem's
        object names in the prompt, and with `grpo.temperatures` its `temperature`.

        Raises:
            ScheduleError: a row is of another step than the sampler's.
            PromptTooLong: a problem does not fit.
        """
        slots = {(slot.step, slot.slot): slot for slot in self.sampler.slots}
        keys = [(row["step"], row["slot"]) for row in batch]
        if unexpected := set(keys) - slots.keys():
            raise ScheduleError(
                f"the trainer asked for (step, slot) {min(unexpected)}; scheduled are {min(slots)} to {max(slots)}"
            )
        rows = {key: self._build_row(slots[key]) for key in dict.fromkeys(keys)}
        return [rows[key] for key in keys]

    def insert_replays(
        self, rows: Sequence[Row], completions: list[list[int]], entropies: Sequence[float] | None = None
    ) -> list[list[int]]:
        """Return this process's completions, as tokens, with stored successes inserted (see `replay`).

        Args:
            entropies: of each completion, summed over its tokens, if known; logged as a curve.
        """
        self._entropies = None if entropies is None else list(zip(entropies, map(len, completions), strict=True))
        self._replay_indices = set()
        if not self.params.grpo.replay:
            return completions
        generations, merged_completions = self.params.grpo.num_generations, list(completions)
        for start in range(0, len(rows), generations):
            group, last = completions[start : start + generations], start + generations - 1
            record = self.records[rows[start]["id"]]
            tokens = self.replay.find_replacement(record, rows[start]["renaming"], group)
            if tokens is not None:
                merged_completions[last] = tokens
                self._replay_indices.add(last)
        return merged_completions

    def __call__(self, completions: Sequence[str | Messages], **batch: Any) -> list[float]:
        """Return the reward of each completion of this process; the interface is TRL's.

        Raises:
            VerifierError: no verdict could be reached.
            VerifierDisagreement: `judge` contradicts an audited verdict.
            ScheduleError: the step's prompts are not those scheduled.
        """
        step = batch["trainer_state"].global_step
        texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
        rows = zip(batch["id"], texts, batch["renaming"], strict=True)
        pairs = [(self.records[id], self.task.undo_renaming(self.records[id], text, names)) for id, text, names in rows]
        original = [text for _, text in pairs]
        verdicts = [self._verify(*pair) for pair in pairs]
        self._verdicts.clear()
        audit_flags = self._audit(step, batch["slot"], pairs, verdicts)
        self._log_step(step, gather_object(self._build_log_rows(batch, original, verdicts, audit_flags)))
        return [self._compute_reward(verdict.reward, verdict.label) for verdict in verdicts]

    def pop_metrics(self, step: int) -> Mapping[str, float]:
        """Return and forget the metrics of a finished step (shares in [0, 1], lengths in tokens)."""
        return self._metrics.pop(step)

    def _build_row(self, slot: Slot) -> Row:
        grpo = self.params.grpo
        prompt = sample_training_prompt(
            self.task,
            self.tokenizer,
            self.records[slot.id],
            list(self.records.values()),
            f"{self.params.seed}:{slot.step}:{slot.slot}",
            shot_range=(grpo.shots, grpo.shots),
            rename=grpo.renaming,
            config=self.params.prompt,
        )
        row = vars(slot) | {
            "prompt": prompt.prompt,
            "prompt_tokens": len(prompt.ids),
            "shots_dropped": prompt.num_dropped,
            "renaming": prompt.renaming,
        }
        if grpo.temperatures is not None:
            row["temperature"] = getattr(grpo.temperatures, slot.bucket)
        return row

    def _compute_reward(self, reward: float, label: str) -> float:
        """Return the trainer's reward for a verdict."""
        return compute_training_reward(reward, label == self.task.labels[0], self.params.grpo.reward)

    def _verify(self, record: Record, completion: str) -> Verdict:
        """Verify a completion; equal completions of a problem, common at low temperature, only once."""
        key = record.id, completion
        if key not in self._verdicts:
            self._verdicts[key] = self.task.verify(record, completion)
        return self._verdicts[key]

    def _is_success(self, record: Record, completion: str) -> bool:
        return self._verify(record, completion).success

    def _audit(
        self, step: int, slots: Sequence[int], pairs: Sequence[tuple[Record, str]], verdicts: Sequence[Verdict]
    ) -> list[bool]:
        """Judge a random share of the completions again with `judge`; return which."""
        slot_counts: Counter[int] = Counter()
        audit_flags = []
        for slot in slots:
            draw = Random(f"{self.params.seed}:audit:{step}:{slot}:{slot_counts[slot]}").random()
            audit_flags.append(draw < self.params.grpo.audit_share)
            slot_counts[slot] += 1
        indices = [index for index, is_audited in enumerate(audit_flags) if is_audited]
        second_verdicts = self.task.judge([pairs[index] for index in indices]) if indices else []
        for index, second in zip(indices, second_verdicts, strict=True):
            first = verdicts[index]
            if (first.label, _failing_step(first)) != (second.label, _failing_step(second)):
                record, text = pairs[index]
                case = {"step": step, "slot": slots[index], "problem": record.model_dump(), "completion": text}
                case |= {"verify": _to_row(first), "judge": _to_row(second)}
                write_json(self.case_file, case)
                raise VerifierDisagreement(
                    f"problem {record.id}: verify says {first.label}, judge says {second.label}; "
                    f"the case is in {self.case_file}"
                )
        return audit_flags

    def _build_log_rows(
        self,
        batch: Mapping[str, Any],
        completions: Sequence[str],
        verdicts: Sequence[Verdict],
        audit_flags: Sequence[bool],
    ) -> list[Row]:
        columns = ("step", "slot", "id", "prompt_tokens", "shots_dropped")
        return [
            {name: batch[name][index] for name in columns}
            | {
                "num_tokens": len(batch["completion_ids"][index]),
                "truncated": self._is_truncated(batch["completion_ids"][index]),
                "reward": verdict.reward,
                "label": verdict.label,
                "success": verdict.success,
                "failing_step": _failing_step(verdict),
                "plan": verdict.plan,
                "audited": was_audited,
                "replayed": index in self._replay_indices,
                "entropy": None if self._entropies is None else self._entropies[index],
                "completion": completions[index],
            }
            for index, (verdict, was_audited) in enumerate(zip(verdicts, audit_flags, strict=True))
        ]

    def _is_truncated(self, tokens: Sequence[int]) -> bool:
        """Return whether a completion reached the length limit before its end."""
        return len(tokens) == self.params.prompt.max_completion_tokens and tokens[-1] != self.tokenizer.eos_token_id

    def _check_schedule(self, step: int, rows: Sequence[Row], completions_per_slot: int) -> list[Slot]:
        """Check that the rows are the scheduled ones, `completions_per_slot` of each slot, in order; return the slots.

        Raises:
            ScheduleError: they are not.
        """
        slots = self.sampler.slots
        expected_step = f"step {slots[0].step}" if slots else "none"
        if expected_step != f"step {step}":
            raise ScheduleError(f"the trainer is at step {step}, scheduled is {expected_step}")
        expected = [(slot.step, slot.slot, slot.id) for slot in slots for _ in range(completions_per_slot)]
        consumed_keys = [(row["step"], row["slot"], row["id"]) for row in rows]
        if consumed_keys != expected:
            raise ScheduleError(
                f"step {step} consumed {len(consumed_keys)} completions of {len(set(consumed_keys))} prompts, "
                f"scheduled were {len(expected)} of {len(set(expected))}; "
                f"consumed {list(dict.fromkeys(consumed_keys))}, scheduled {list(dict.fromkeys(expected))}"
            )
        return slots

    def _log_step(self, step: int, rows: Sequence[Row]) -> None:
        """Check a step's rows, one per completion of all processes, against the schedule; log and measure them."""
        generations = self.params.grpo.num_generations
        slots = self._check_schedule(step, rows, generations)
        groups = [rows[start : start + generations] for start in range(0, len(rows), generations)]
        log = [
            {"index": index}
            | vars(slot)
            | {
                "rewards": [row["reward"] for row in group],
                "labels": [row["label"] for row in group],
                "audited": sum(row["audited"] for row in group),
                "replayed": sum(row["replayed"] for row in group),
                "completion": self._select_success(group),
                "shots_dropped": group[0]["shots_dropped"],
            }
            for index, (slot, group) in enumerate(zip(slots, groups, strict=True))
        ]
        sampled_rows = [row for row in rows if not row["replayed"]]  # curves show the model, not what replay inserted
        metrics = {
            "success": fmean(row["success"] for row in sampled_rows),
            "completion_length": fmean(row["num_tokens"] for row in sampled_rows),
            "truncated": fmean(row["truncated"] for row in sampled_rows),
            "prompt_length": fmean(row["prompt_tokens"] for row in rows),
        } | compute_step_metrics(
            [_drop_replayed(row, group) for row, group in zip(log, groups, strict=True)],
            [self._has_spread(row) for row in log],
            self.domains,
            self.task.labels,
        )
        entropies = [row["entropy"] for row in rows if row["entropy"] is not None]
        if entropies:
            metrics["entropy"] = sum(entropy for entropy, _ in entropies) / sum(tokens for _, tokens in entropies)
        if self.params.grpo.replay:
            metrics["replayed"] = sum(row["replayed"] for row in log)
        self._metrics[step] = {**metrics, **self.sampler.compute_metrics()}
        if self.record is not None:
            self.record.append(step, slots, groups)
        self.consumed += log
        self._update_sampler(log)

    def _select_success(self, group: Iterable[Row]) -> str | None:
        """Return the group's first success for the replay buffer; None without one, or without replay."""
        successes = (row["completion"] for row in group if row["success"] and not row["replayed"])
        return next(filter(None, successes), None) if self.params.grpo.replay else None

    def _update_sampler(self, log: Iterable[Row]) -> None:
        """Pass a step's rows to the sampler and the replay buffer; this ends the step."""
        results = []
        for row in log:
            successes, num_replayed = row["labels"].count(self.task.labels[0]), row["replayed"]
            completions = len(row["rewards"]) - num_replayed
            results.append(
                GroupResult(row["id"], row["domain"], successes - num_replayed, completions, self._has_spread(row))
            )
            if row["completion"] is not None:
                self.replay.store(row["id"], row["completion"])
        self.sampler.update(results)

    def _has_spread(self, row: Row) -> bool:
        """Return whether the trainer's rewards differ within the prompt's group."""
        pairs = zip(row["rewards"], row["labels"], strict=True)
        return len({self._compute_reward(reward, label) for reward, label in pairs}) > 1


def compute_step_metrics(
    rows: Sequence[Row], spread: Sequence[bool], domains: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Return rewards and shares over one step's prompts; rewards are the verdicts', not the trainer's.

    A group without spread (equal rewards for the trainer) has no gradient: `all_pass` are those that succeed,
    `all_fail` the others. A domain or bucket without prompts in the step has no reward.

    Args:
        spread: whether the trainer's rewards differ, for each row.
        labels: of the task, success first.
    """
    passes = [row["labels"][0] == labels[0] for row in rows]
    metrics: dict[str, float] = {
        "reward": fmean(reward for row in rows for reward in row["rewards"]),
        "zero_spread/all_pass": fmean(first and not differ for differ, first in zip(spread, passes, strict=True)),
        "zero_spread/all_fail": fmean(not first and not differ for differ, first in zip(spread, passes, strict=True)),
    }
    for column, names in (("domain", domains), ("bucket", BUCKETS)):
        for name in names:
            rewards = [reward for row in rows if row[column] == name for reward in row["rewards"]]
            metrics[f"share_{column}/{name}"] = fmean(row[column] == name for row in rows)
            if rewards:
                metrics[f"reward_by_{column}/{name}"] = fmean(rewards)
    for bucket in BUCKETS:
        metrics[f"curriculum/{bucket}"] = fmean(row["wanted_bucket"] == bucket for row in rows)
    counts = Counter(label for row in rows for label in row["labels"])
    for label in labels:
        metrics[f"label/{label}"] = counts[label] / counts.total()
    return metrics


def _drop_replayed(row: Row, group: Iterable[Row]) -> Row:
    """Return a prompt's row of the log with the rewards and labels of the completions that the model sampled."""
    completions = [completion for completion in group if not completion["replayed"]]
    return row | {f"{key}s": [completion[key] for completion in completions] for key in ("reward", "label")}


def _failing_step(verdict: Verdict) -> int | None:
    return verdict.outcome.failing_step if verdict.outcome is not None else None


def _to_row(verdict: Verdict) -> Row:
    return {
        "label": verdict.label,
        "reward": verdict.reward,
        "failing_step": _failing_step(verdict),
        "plan": verdict.plan,
        "detail": verdict.detail,
    }
