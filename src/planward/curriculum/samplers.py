"""Which problems a step trains on: those of the schedule, or others chosen by the run's success so far.

The schedule fixes the number of steps and the prompts per step. Three rules of `grpo.adaptive`, each with its own
switch, may choose the problems instead. The *recent* results of a domain are those of its last `window` steps that held
a prompt of it; success is the share of completions that succeeded, replayed ones excluded.

`curriculum`: every domain has its own phase and starts in the first one. After a step it moves to the next phase, never
back, if it has been in its phase for at least `window` steps that held a prompt of it and its recent success is at
least `target`. Phases have no fixed length (`until` is not read): a domain that does not succeed stays in its phase.

`domain_weights`: the weight of a domain is p(1 - p), where p = (successes + 1) / (completions + 2) over its recent
results. Its share of a step's prompts is floor / domains + (1 - floor) * weight / (sum of weights), allocated by
largest remainder, which is carried from step to step. The variance of success is the learnability of Foster et al.,
"Learning to Reason at the Frontier of Learnability", 2025 (arXiv:2502.12272), who weigh questions, not domains.

`dynamic_sampling`: a problem is skipped if all completions of its last group had the same reward, so that they gave no
gradient, but at most `missed_turns` times between two draws. A problem that the step already holds is skipped as well.
Where a bucket has no other problem, one is drawn all the same. This replaces the oversampling of dynamic sampling in
DAPO (Yu et al., 2025, arXiv:2503.14476), which generates further groups, by history; it costs no generation.

Everything follows from the seed and the results, so a resumed run replays its log to a new sampler and continues
exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from planward.core.records import Record
from planward.curriculum.draws import ALL_DOMAINS, Slot, allocate_next, assign_phases, build_pools, draw_step
from planward.curriculum.schedule import compute_prompts_per_domain, find_phase
from planward.params import Params, PhaseConfig


@dataclass(frozen=True)
class GroupResult:
    """The results of one prompt's group of completions."""

    id: str
    domain: str
    successes: int  # of its own completions, replayed ones excluded
    completions: int
    has_spread: bool  # whether the trainer's rewards differ within the group


class Sampler(Protocol):
    """Chooses the problems of a run, step by step."""

    @property
    def slots(self) -> list[Slot]:
        """The current step's prompts, in order; empty after the last step."""
        ...

    def update(self, results: Sequence[GroupResult], /) -> None:
        """Record the results of the current step's prompts, in their order, and go on to the next step."""
        ...

    def compute_metrics(self) -> Mapping[str, float]:
        """Return the current step's values for the curves."""
        ...


def build_sampler(schedule: Sequence[Slot], records: Sequence[Record], params: Params) -> Sampler:
    """Return the sampler that `grpo.adaptive` asks for.

    Raises:
        ValueError: as `build_schedule` does.
    """
    if params.grpo.adaptive.on:
        return AdaptiveSampler(records, params)
    return FixedSampler(schedule, params.grpo.batch_size)


class FixedSampler:
    """Follows the schedule."""

    def __init__(self, schedule: Sequence[Slot], batch_size: int) -> None:
        self.schedule, self.batch_size, self.step = list(schedule), batch_size, 0

    @property
    def slots(self) -> list[Slot]:
        return self.schedule[self.step * self.batch_size : (self.step + 1) * self.batch_size]

    def update(self, _results: Sequence[GroupResult], /) -> None:
        self.step += 1

    def compute_metrics(self) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True)
class _StepCounts:
    """The results of one pool in one step."""

    phase: int
    successes: int
    completions: int


class AdaptiveSampler:
    """Follows success, by the rules above; with none of them it draws the schedule itself."""

    def __init__(self, records: Sequence[Record], params: Params) -> None:
        grpo = params.grpo
        self.rules, self.steps, self.batch_size = grpo.adaptive, grpo.steps, grpo.batch_size
        self.pools = build_pools(records, params.seed, balanced=grpo.balanced)
        self.phases = assign_phases(self.pools, params.curriculum, params.curriculum_by_domain)
        self.order = Random(f"{params.seed}:order")
        self.equal_share = compute_prompts_per_domain(self.batch_size, len(self.pools))
        self.phase_index = dict.fromkeys(self.pools, 0)  # of each pool; used by the rule `curriculum`
        self.remainders = dict.fromkeys(self.pools, 0.0)  # carried when prompts are allocated by weight
        self.history: dict[str, list[_StepCounts]] = {name: [] for name in self.pools}
        self.skips: dict[str, int] = {}  # by problem without spread: how often skipped since its last draw
        self.num_skipped = 0  # problems skipped in this step for want of spread
        self.step = 0
        self.slots = list[Slot]()
        self._draw_slots()

    def update(self, results: Sequence[GroupResult], /) -> None:
        for result in results:
            if result.has_spread:
                self.skips.pop(result.id, None)
            else:
                self.skips[result.id] = 0
        for name in self.pools:
            group = [result for result in results if name in (result.domain, ALL_DOMAINS)]
            if group:
                successes = sum(result.successes for result in group)
                self._record_step(name, successes, sum(result.completions for result in group))
        self.step += 1
        self._draw_slots()

    def compute_metrics(self) -> Mapping[str, float]:
        metrics: dict[str, float] = {}
        if self.rules.curriculum:
            metrics |= {f"phase/{name}": index for name, index in self.phase_index.items()}
        if self.rules.domain_weights:
            metrics |= {f"weight/{name}": share for name, share in self._compute_shares().items()}
        if self.rules.dynamic_sampling:
            metrics["lost_turns"] = self.num_skipped
        return metrics

    def _record_step(self, name: str, successes: int, completions: int) -> None:
        phase = self.phase_index[name]
        self.history[name].append(_StepCounts(phase, successes, completions))
        recent = self.history[name][-self.rules.window :]
        is_settled = len(recent) == self.rules.window and all(counts.phase == phase for counts in recent)
        required_successes = self.rules.target * sum(counts.completions for counts in recent)
        if is_settled and sum(counts.successes for counts in recent) >= required_successes:
            self.phase_index[name] = min(phase + 1, len(self.phases[name]) - 1)

    def _draw_slots(self) -> None:
        self.slots, self.num_skipped = [], 0
        if self.step == self.steps:
            return
        counts: Mapping[str, int] = dict.fromkeys(self.pools, self.equal_share)
        if self.rules.domain_weights:
            shares = self._compute_shares()
            counts = Counter(allocate_next(self.remainders, shares) for _ in range(self.batch_size))
        phases = {name: self._find_phase(name) for name in self.pools}
        rules = [self._should_skip, self._is_in_step] if self.rules.dynamic_sampling else []
        for slot in draw_step(self.step, self.pools, phases, counts, self.order, rules):
            self.slots.append(slot)  # one at a time: `_is_in_step` looks at those before

    def _find_phase(self, name: str) -> PhaseConfig:
        phases = self.phases[name]
        return phases[self.phase_index[name]] if self.rules.curriculum else find_phase(phases, self.step / self.steps)

    def _compute_shares(self) -> dict[str, float]:
        weights = {}
        for name, history in self.history.items():
            recent = history[-self.rules.window :]
            successes = sum(counts.successes for counts in recent)
            completions = sum(counts.completions for counts in recent)
            rate = (successes + 1) / (completions + 2)
            weights[name] = rate * (1 - rate)
        equal, total = self.rules.floor / len(weights), sum(weights.values())
        return {name: equal + (1 - self.rules.floor) * weight / total for name, weight in weights.items()}

    def _should_skip(self, record: Record) -> bool:
        """Decide whether dynamic sampling skips a problem, and count it."""
        if self._is_in_step(record):
            return True
        if self.skips.get(record.id, self.rules.missed_turns) >= self.rules.missed_turns:
            return False
        self.skips[record.id] += 1
        self.num_skipped += 1
        return True

    def _is_in_step(self, record: Record) -> bool:
        return any(slot.id == record.id for slot in self.slots)
