"""Which problems a step trains on: those of the schedule, or others in their place, by how training goes.

The schedule says how many steps there are and how many prompts each holds. Three rules, each with its own switch in
`grpo.adaptive`, may say which problems these are. What is *recent* is a domain's last `window` steps that held a
prompt of it; success is the share of completions that succeeded, without replayed ones.

`curriculum`: every domain has a phase of its own, its first one at the start. After a step it enters the next phase,
and never goes back, if it has been in its phase for at least `window` steps that held a prompt of it, and its recent
success is at least `target`. The steps that a phase lasts are not fixed (`until` is not read): a domain that does not
succeed stays where it is.

`domain_weights`: a domain's weight is p(1 - p), where p = (successes + 1) / (completions + 2) is its recent success.
A step's prompts are shared out in the proportion floor / domains + (1 - floor) * weight / (sum of weights), by
largest remainder, which is carried from step to step. Variance of success is the learnability of Foster et al.,
"Learning to Reason at the Frontier of Learnability", 2025 (arXiv:2502.12272), who weigh questions, not domains.

`dynamic_sampling`: a problem loses its turn if all completions of its last visit had the same reward, so that they
taught nothing, but at most `missed_turns` times between two visits: none is left out for ever. A problem that the
step holds already loses its turn as well. Where a bucket has no other problem, one keeps its turn all the same. This
goes by history what dynamic sampling in DAPO (Yu et al., 2025, arXiv:2503.14476) does by generating further groups,
and costs no generation.

All of it follows from the seed and from what was observed, so a run that is taken up again tells its log to a new
sampler and goes on exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from planward.curriculum.decks import ALL, Slot, dealt, dealt_step, decks, phases_by_deck
from planward.curriculum.schedule import phase_at, prompts_per_domain
from planward.params import Params, Phase
from planward.records import Record


@dataclass(frozen=True)
class Result:
    """What came of one prompt."""

    id: str
    domain: str
    successes: int  # of its own completions, replayed ones left out
    completions: int
    spread: bool  # the rewards that the trainer got were not all the same


class Sampler(Protocol):
    """Tells step by step what is due. `observe` ends a step."""

    def due(self) -> list[Slot]:
        """The present step's prompts, in order; none after the last step."""
        ...

    def observe(self, results: Sequence[Result], /) -> None:
        """Hear what came of the prompts that were due, in their order."""
        ...

    def measured(self) -> Mapping[str, float]:
        """Quantities of the present step, for the curves."""
        ...


def sampler_of(schedule: Sequence[Slot], records: Sequence[Record], params: Params) -> Sampler:
    """The sampler that `grpo.adaptive` asks for.

    Raises:
        ValueError: as `build_schedule` does.
    """
    return Adaptive(records, params) if params.grpo.adaptive.on else Fixed(schedule, params.grpo.batch_size)


class Fixed:
    """Follows the schedule."""

    def __init__(self, schedule: Sequence[Slot], batch_size: int) -> None:
        self.schedule, self.batch_size, self.step = list(schedule), batch_size, 0

    def due(self) -> list[Slot]:
        return self.schedule[self.step * self.batch_size : (self.step + 1) * self.batch_size]

    def observe(self, _results: Sequence[Result], /) -> None:
        self.step += 1

    def measured(self) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True)
class _Tally:
    """One step of one deck."""

    phase: int
    successes: int
    completions: int


class Adaptive:
    """Follows success, by the rules above; with none of them it would draw the schedule itself."""

    def __init__(self, records: Sequence[Record], params: Params) -> None:
        grpo = params.grpo
        self.rules, self.steps, self.batch_size = grpo.adaptive, grpo.steps, grpo.batch_size
        self.decks = decks(records, params.seed, balanced=grpo.balanced)
        self.phases = phases_by_deck(self.decks, params.curriculum, params.curriculum_by_domain)
        self.order = Random(f"{params.seed}:order")
        self.equal = prompts_per_domain(self.batch_size, len(self.decks))
        self.reached = dict.fromkeys(self.decks, 0)  # the number of each deck's phase; counts for `curriculum`
        self.credit = dict.fromkeys(self.decks, 0.0)  # what is carried when prompts are shared out by weight
        self.tallies: dict[str, list[_Tally]] = {name: [] for name in self.decks}
        self.missed: dict[str, int] = {}  # by problem without spread, the turns that it has lost since its last visit
        self.lost = 0  # turns lost in this step, for want of spread
        self.step = 0
        self.slots = list[Slot]()
        self._deal()

    def due(self) -> list[Slot]:
        return self.slots

    def observe(self, results: Sequence[Result], /) -> None:
        for result in results:
            if result.spread:
                self.missed.pop(result.id, None)
            else:
                self.missed[result.id] = 0
        for name in self.decks:
            own = [result for result in results if name in (result.domain, ALL)]
            if own:
                self._tally(name, sum(result.successes for result in own), sum(result.completions for result in own))
        self.step += 1
        self._deal()

    def measured(self) -> Mapping[str, float]:
        values: dict[str, float] = {}
        if self.rules.curriculum:
            values |= {f"phase/{name}": number for name, number in self.reached.items()}
        if self.rules.domain_weights:
            values |= {f"weight/{name}": share for name, share in self._shares().items()}
        if self.rules.dynamic_sampling:
            values["lost_turns"] = self.lost
        return values

    def _tally(self, name: str, successes: int, completions: int) -> None:
        self.tallies[name].append(_Tally(self.reached[name], successes, completions))
        recent = self.tallies[name][-self.rules.window :]
        stayed = len(recent) == self.rules.window and all(tally.phase == self.reached[name] for tally in recent)
        wanted = self.rules.target * sum(tally.completions for tally in recent)
        if stayed and sum(tally.successes for tally in recent) >= wanted:
            self.reached[name] = min(self.reached[name] + 1, len(self.phases[name]) - 1)

    def _deal(self) -> None:
        self.slots, self.lost = [], 0
        if self.step == self.steps:
            return
        hands: Mapping[str, int] = dict.fromkeys(self.decks, self.equal)
        if self.rules.domain_weights:
            shares = self._shares()
            hands = Counter(dealt(self.credit, shares) for _ in range(self.batch_size))
        now = {name: self._phase(name) for name in self.decks}
        rules = [self._loses_its_turn, self._is_there] if self.rules.dynamic_sampling else []
        for slot in dealt_step(self.step, self.decks, now, hands, self.order, rules):
            self.slots.append(slot)

    def _phase(self, name: str) -> Phase:
        phases = self.phases[name]
        return phases[self.reached[name]] if self.rules.curriculum else phase_at(phases, self.step / self.steps)

    def _shares(self) -> dict[str, float]:
        weights = {}
        for name, tallies in self.tallies.items():
            recent = tallies[-self.rules.window :]
            successes, completions = sum(t.successes for t in recent), sum(t.completions for t in recent)
            rate = (successes + 1) / (completions + 2)
            weights[name] = rate * (1 - rate)
        equal, total = self.rules.floor / len(weights), sum(weights.values())
        return {name: equal + (1 - self.rules.floor) * weight / total for name, weight in weights.items()}

    def _loses_its_turn(self, record: Record) -> bool:
        if self._is_there(record):
            return True
        if self.missed.get(record.id, self.rules.missed_turns) >= self.rules.missed_turns:
            return False
        self.missed[record.id] += 1
        self.lost += 1
        return True

    def _is_there(self, record: Record) -> bool:
        return any(slot.id == record.id for slot in self.slots)
