"""Rollouts: what GRPO was asked, what it generated, what that was worth, and proof that what was due was trained on.

TRL hands a reward function the very batch that an optimizer step trains on, so this is where consumption is
read: a sampler's own account of it would miss the mistake of feeding prompts where completions are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object

from planward.curriculum.decks import Slot
from planward.curriculum.sampling import Result, Sampler
from planward.params import BUCKETS, Params
from planward.records import Record, Verdict, VerifierError, write_json
from planward.tasks.base import Messages, Task, worth
from planward.tasks.visits import visit
from planward.training.replay import Replay

Row = dict[str, Any]
TRLS_OWN = ("reward", "entropy")  # TRL logs what the trainer got, over what it trained on, by these names


class ScheduleViolated(RuntimeError):
    """An optimizer step consumed other prompts than those that were due."""


class Disagreement(VerifierError):
    """`verify` and `judge` differ over a completion; the case was written down."""


class Rollouts:
    """The prompts and the reward function of one run.

    Args:
        sampler: says which prompts are due; fresh, it is told the log first.
        consumed: the run's log of prompts; appended to, one row a prompt, with the rewards and labels of its
            completions.
        failure: where a disagreement is written.

    Raises:
        ScheduleViolated: the log is that of another run.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        records: Sequence[Record],
        sampler: Sampler,
        params: Params,
        consumed: list[Row],
        failure: Path,
    ) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.records = {record.id: record for record in records}
        self.domains = sorted({record.domain for record in records})
        self.sampler = sampler
        self.params = params
        self.consumed = consumed
        self.failure = failure
        self.replay = Replay(task, tokenizer, params.prompt.max_completion_tokens, self._succeeds)
        self._stood_in: set[int] = set()  # completions of this process's batch that are replayed
        self._entropies: list[tuple[float, int]] | None = None  # and of each as generated, its entropy and length
        self._verdicts: dict[tuple[str, str], Verdict] = {}  # of this batch
        self._measured: dict[int, dict[str, float]] = {}
        size = params.grpo.batch_size
        for start in range(0, len(consumed), size):
            log = consumed[start : start + size]
            self._prove(start // size, log, 1)
            self._learn(log)

    def asked(self, batch: Sequence[Row]) -> list[Row]:
        """Return the rows to train on in place of this process's: what is due in each row's step and slot.

        A row holds the slot's columns, `prompt`, its length `prompt_tokens`, `shots_dropped`, and `alias`, the names
        that the problem bears in the prompt.

        Raises:
            ScheduleViolated: a row is of another step than is due.
            PromptTooLong: a problem does not fit.
        """
        due = {(slot.step, slot.slot): slot for slot in self.sampler.due()}
        places = [(row["step"], row["slot"]) for row in batch]
        if strangers := set(places) - due.keys():
            raise ScheduleViolated(f"(step, slot) {min(strangers)} came, due were {min(due)} to {max(due)}")
        rows = {place: self._row(due[place]) for place in dict.fromkeys(places)}
        return [rows[place] for place in places]

    def written(
        self, rows: Sequence[Row], completions: list[list[int]], entropies: Sequence[float] | None = None
    ) -> list[list[int]]:
        """Return this process's completions, as tokens, with stored successes put in (see `replay`).

        Args:
            entropies: of all tokens of a completion, summed, where they are known; they become a curve.
        """
        self._entropies = None if entropies is None else list(zip(entropies, map(len, completions), strict=True))
        self._stood_in = set()
        if not self.params.grpo.replay:
            return completions
        generations, put_in = self.params.grpo.num_generations, list(completions)
        for start in range(0, len(rows), generations):
            group, last = completions[start : start + generations], start + generations - 1
            tokens = self.replay.stand_in(self.records[rows[start]["id"]], rows[start]["alias"], group)
            if tokens is not None:
                put_in[last] = tokens
                self._stood_in.add(last)
        return put_in

    def __call__(self, completions: Sequence[str | Messages], **batch: Any) -> list[float]:
        """Return a reward for each completion of this process, as TRL asks for it.

        Raises:
            VerifierError: no verdict; there is no reward for that.
            Disagreement: an audited verdict is not the judge's.
            ScheduleViolated: the step's prompts are not those that were due.
        """
        step = batch["trainer_state"].global_step
        texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
        own = [self.task.original(text, alias) for text, alias in zip(texts, batch["alias"], strict=True)]
        pairs = [(self.records[name], text) for name, text in zip(batch["id"], own, strict=True)]
        verdicts = [self._verdict(*pair) for pair in pairs]
        self._verdicts.clear()
        audited = self._audit(step, batch["slot"], pairs, verdicts)
        self._keep(step, gather_object(self._rows(batch, own, verdicts, audited)))
        if self.params.grpo.report_to:
            for name, value in self._measured[step].items():
                if name not in TRLS_OWN:
                    batch["log_metric"](name, value)
        return [self._worth(verdict.reward, verdict.label) for verdict in verdicts]

    def measured(self, step: int) -> Mapping[str, float]:
        """Return the quantities of a step that has been rolled out (shares in [0, 1], lengths in tokens)."""
        return self._measured.pop(step)

    def _row(self, slot: Slot) -> Row:
        grpo = self.params.grpo
        asked = visit(
            self.task,
            self.tokenizer,
            self.records[slot.id],
            list(self.records.values()),
            f"{self.params.seed}:{slot.step}:{slot.slot}",
            shots=(grpo.shots, grpo.shots),
            renaming=grpo.renaming,
            limit=self.params.prompt.max_tokens,
        )
        return vars(slot) | {
            "prompt": asked.prompt,
            "prompt_tokens": len(asked.ids),
            "shots_dropped": asked.dropped,
            "alias": asked.alias,
        }

    def _worth(self, reward: float, label: str) -> float:
        """What the trainer gets for a verdict."""
        return worth(reward, label == self.task.labels[0], self.params.grpo.reward)

    def _verdict(self, record: Record, completion: str) -> Verdict:
        """Judge a completion; equal completions of a problem, common at low temperature, once."""
        key = record.id, completion
        if key not in self._verdicts:
            self._verdicts[key] = self.task.verify(record, completion)
        return self._verdicts[key]

    def _succeeds(self, record: Record, completion: str) -> bool:
        return self._verdict(record, completion).success

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

    def _rows(
        self, batch: Mapping[str, Any], own: Sequence[str], verdicts: Sequence[Verdict], audited: Sequence[bool]
    ) -> list[Row]:
        columns = ("step", "slot", "id", "prompt_tokens", "shots_dropped")
        return [
            {name: batch[name][index] for name in columns}
            | {
                "tokens": len(batch["completion_ids"][index]),
                "reward": verdict.reward,
                "label": verdict.label,
                "success": verdict.success,
                "audited": judged,
                "replayed": index in self._stood_in,
                "entropy": None if self._entropies is None else self._entropies[index],
                "completion": own[index] if self.params.grpo.replay and verdict.success else None,
            }
            for index, (verdict, judged) in enumerate(zip(verdicts, audited, strict=True))
        ]

    def _prove(self, step: int, rows: Sequence[Row], generations: int) -> list[Slot]:
        """Return the slots that are due, known to be those of the rows: so many a slot, in order."""
        wanted = self.sampler.due()
        awaited = f"step {wanted[0].step}" if wanted else "none"
        if awaited != f"step {step}":
            raise ScheduleViolated(f"step {step} came where {awaited} was due")
        due = [(slot.step, slot.slot, slot.id) for slot in wanted for _ in range(generations)]
        got = [(row["step"], row["slot"], row["id"]) for row in rows]
        if got != due:
            raise ScheduleViolated(
                f"step {step} consumed {len(got)} completions of {len(set(got))} prompts, due were {len(due)} of "
                f"{len(set(due))}; got {list(dict.fromkeys(got))}, due were {list(dict.fromkeys(due))}"
            )
        return wanted

    def _keep(self, step: int, rows: Sequence[Row]) -> None:
        """Check a step's rows, one a completion over all processes, against what was due; log and measure them."""
        generations = self.params.grpo.num_generations
        wanted = self._prove(step, rows, generations)
        groups = [rows[start : start + generations] for start in range(0, len(rows), generations)]
        log = [
            {"index": index}
            | vars(slot)
            | {
                "rewards": [completion["reward"] for completion in group],
                "labels": [completion["label"] for completion in group],
                "audited": sum(completion["audited"] for completion in group),
                "replayed": sum(completion["replayed"] for completion in group),
                "completion": next((c["completion"] for c in group if c["completion"] and not c["replayed"]), None),
                "shots_dropped": group[0]["shots_dropped"],
            }
            for index, (slot, group) in enumerate(zip(wanted, groups, strict=True))
        ]
        self._measured[step] = {
            "success": fmean(completion["success"] for completion in rows),
            "completion_length": fmean(completion["tokens"] for completion in rows),
            "prompt_length": fmean(completion["prompt_tokens"] for completion in rows),
        } | measure(log, [self._spread(row) for row in log], self.domains, self.task.labels)
        known = [completion["entropy"] for completion in rows if completion["entropy"] is not None]
        if known:
            self._measured[step]["entropy"] = sum(entropy for entropy, _ in known) / sum(tokens for _, tokens in known)
        if self.params.grpo.replay:
            self._measured[step]["replayed"] = sum(row["replayed"] for row in log)
        self._measured[step] |= self.sampler.measured()
        self.consumed += log
        self._learn(log)

    def _learn(self, log: Iterable[Row]) -> None:
        """Let the sampler and the replay go by a step's rows; this ends the step."""
        results = []
        for row in log:
            successes, replayed = row["labels"].count(self.task.labels[0]), row["replayed"]
            completions = len(row["rewards"]) - replayed
            results.append(Result(row["id"], row["domain"], successes - replayed, completions, self._spread(row)))
            if row["completion"] is not None:
                self.replay.keep(row["id"], row["completion"])
        self.sampler.observe(results)

    def _spread(self, row: Row) -> bool:
        """Whether the trainer got different rewards for the prompt's completions."""
        return len({self._worth(*given) for given in zip(row["rewards"], row["labels"], strict=True)}) > 1


def measure(
    prompts: Sequence[Row], spread: Sequence[bool], domains: Sequence[str], labels: Sequence[str]
) -> dict[str, float]:
    """Return rewards and shares of one step's prompts; rewards are the verdicts', whatever the trainer got.

    The first of `labels` is success. A group has no spread where the trainer got one reward for all its completions:
    it teaches nothing. `all_pass` counts the groups that have nothing left to learn, `all_fail` the rest. A domain or
    bucket that the step lacks has no reward.
    """
    passed = [row["labels"][0] == labels[0] for row in prompts]
    values: dict[str, float] = {
        "reward": fmean(reward for row in prompts for reward in row["rewards"]),
        "zero_spread/all_pass": fmean(first and not differ for differ, first in zip(spread, passed, strict=True)),
        "zero_spread/all_fail": fmean(not first and not differ for differ, first in zip(spread, passed, strict=True)),
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
