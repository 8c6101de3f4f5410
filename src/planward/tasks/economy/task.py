"""The economy task: a household's month in, a decision out, judged by its expected utility."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from planward.params import Economy, Params, ParamsError
from planward.records import Meta, Record, Verdict, VerifierError, write_jsonl, written
from planward.tasks.base import AS_IS, Alias, BadLine, Messages, claimed_record
from planward.tasks.economy.decisions import Decision, NotADecision, canonical, strict
from planward.tasks.economy.neighbours import Examples, Standard, TooFewMonths, standards
from planward.tasks.economy.prompt import compact_prompt, full_prompt, full_state
from planward.tasks.economy.simulator import MACRO, Panel, UnsoundEconomy, check_sound, simulated
from planward.tasks.economy.states import SCENARIOS, State, parsed_state, stacked
from planward.tasks.economy.utility import decision_grid, rewards, scaled, utility, utility_range

GOOD, POOR, FORMAT = "good_decision", "poor_decision", "format_error"
FILE, MACRO_FILE = "economy.jsonl", "macro.csv"


class EconomyTask:
    """Implements `planward.tasks.base.Task`; needs no files of a problem but its record."""

    name = "economy"
    labels: tuple[str, ...] = (GOOD, POOR, FORMAT)
    domains: tuple[str, ...] = SCENARIOS

    def __init__(self, params: Params, root: Path) -> None:
        self.params, self.root = params, root
        self.examples = Examples(lambda r: r.id or digest(state_of(r)), state_of, household_of)
        self.range = lru_cache(maxsize=8192)(self._range)

    def bring(self, folder: Path) -> None:
        """Simulate an economy; write problems as economy.jsonl, and macro.csv with its series by month.

        Raises:
            ParamsError: the economy leaves its bounds, or holds too few months for the problems asked for.
        """
        economy, seed = self.params.economy, self.params.seed
        panel = simulated(economy, seed, progress=True)
        try:
            check_sound(panel, economy)
            problems = list(drawn_problems(panel, economy, seed))
        except (UnsoundEconomy, TooFewMonths) as error:
            raise ParamsError(str(error)) from None
        write_jsonl(folder / FILE, problems)
        write_macro(folder / MACRO_FILE, panel)

    def admitted(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        """The line as a record whose state can be read and whose reference is good, and its household's digest."""
        record = claimed_record(line, domain)
        if domain not in SCENARIOS:
            raise BadLine(f"unknown domain: {domain!r} is none of {', '.join(SCENARIOS)}")
        meta = record.meta.model_extra or {}
        try:
            state = parsed_state(meta.get("state"))
        except ValueError as error:
            raise BadLine(f"bad state: {error}") from None
        if state.scenario != domain:
            raise BadLine(f"bad state: it is {state.scenario}, its scenario {domain}")
        for key in ("household", "month"):
            if type(meta.get(key)) is not int or meta[key] < 0:
                raise BadLine(f"bad record: meta.{key} is no number of one")
        if type(meta.get("threshold")) not in (int, float) or not -1 <= meta["threshold"] <= 1:
            raise BadLine("bad record: meta.threshold is not a number in [-1, 1]")
        verdict = self.verify(record, record.response or "")
        if not verdict.success:
            raise BadLine(f"bad reference decision: {verdict.label}: {verdict.detail}")
        return record.model_copy(update={"id": digest(state)}), self.core(record)

    def difficulty(self, problem: Record) -> float | None:
        """Percent of all decisions (on the grid that scales rewards) that are not good."""
        work, consumption = decision_grid()
        valued = rewards(stacked([state_of(problem)]), work, consumption, self.params.economy)
        return round(100 * float(np.mean(valued < threshold_of(problem))), 2)

    def shots(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:  # noqa: ARG002
        """The `count` problems nearest to this one, of its scenario and of other households; the nearest last."""
        return self.examples.nearest(problem, pool, count)

    def alias(self, problem: Record, seed: str) -> Alias:  # noqa: ARG002
        return AS_IS

    def core(self, problem: Record) -> str:
        """The household's digest: all its months go to one side of the split."""
        return hashlib.sha256(f"household {household_of(problem)}".encode()).hexdigest()[:16]

    def prompt(self, problem: Record, shots: Sequence[Record], alias: Alias = AS_IS) -> str | Messages:  # noqa: ARG002
        examples = [(state_of(shot), self.answer(shot)) for shot in shots]
        if self.params.prompt.style == "compact":
            return compact_prompt(state_of(problem), examples)
        return full_prompt(state_of(problem), examples, self.params.economy.tax)

    def answer(self, problem: Record, alias: Alias = AS_IS) -> str:  # noqa: ARG002
        """The reference decision; raises ValueError where the record has none."""
        try:
            return canonical(strict(problem.response or ""))
        except NotADecision as error:
            name = problem.id or problem.meta.problem_file
            raise ValueError(f"{name}: the record holds no reference decision: {error}") from None

    def original(self, completion: str, alias: Alias) -> str:  # noqa: ARG002
        return completion

    def verify(self, problem: Record, completion: str, alias: Alias = AS_IS) -> Verdict:  # noqa: ARG002
        """A decision's reward is its utility scaled to [WORST, 1]; what is none gets -1.

        Raises:
            VerifierError: the record holds no readable state or threshold, or the utility is not finite.
        """
        try:
            decision = strict(completion)
        except NotADecision as error:
            return Verdict(FORMAT, -1.0, False, str(error))
        try:
            state, threshold = state_of(problem), threshold_of(problem)
        except ValueError as error:
            raise VerifierError(f"problem {problem.id} ({problem.meta.problem_file}): {error}") from None
        reward = self.reward(state, decision)
        if not math.isfinite(reward):
            raise VerifierError(f"problem {problem.id} ({problem.meta.problem_file}): its utility is not finite")
        good = reward >= threshold
        detail = f"reward {reward:.4f}, good from {threshold:.4f}"
        return Verdict(GOOD if good else POOR, reward, good, detail, canonical(decision))

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        return [self.verify(record, completion) for record, completion in pairs]

    def reward(self, state: State, decision: Decision) -> float:
        """The decision's utility in the state, scaled to [WORST, 1]."""
        work, consumption = np.array([decision.work]), np.array([decision.consumption])
        value = utility(stacked([state]), work, consumption, self.params.economy)
        return float(scaled(value, *self.range(state))[0])

    def _range(self, state: State) -> tuple[Any, Any]:
        return utility_range(stacked([state]), self.params.economy)


def behaviours(economy: Economy, seed: int, progress: bool = False) -> list[list[tuple[State, Decision]]]:
    """What each household of an economy was told and decided, month after month; decisions are good or poor.

    An economy of a seed that no problems come from is what a model learns the form of answers on.
    """
    panel = simulated(economy, seed, progress)
    households = []
    for place in range(panel.work.shape[1]):
        shares = zip(panel.work[:, place].tolist(), panel.consumption[:, place].tolist(), strict=True)
        households.append(list(zip(panel.states[:, place].listed(), [Decision(*pair) for pair in shares], strict=True)))
    return households


def drawn_problems(panel: Panel, economy: Economy, seed: int) -> Iterator[Record]:
    """Problems out of a panel, as many of each scenario: months of households that no standard comes from.

    Raises:
        TooFewMonths: the panel holds too few of a scenario; the message names the mend.
    """
    rng, households = np.random.default_rng([seed, 1]), panel.work.shape[1]
    kept = round(economy.reference_share * households)
    reference = Panel(panel.states[:, :kept], panel.work[:, :kept], panel.consumption[:, :kept], {})
    chosen = []
    for employed, scenario in zip((1, 0), SCENARIOS, strict=True):
        there = np.argwhere(panel.states.employed[:, kept:] == employed) + np.array([0, kept])
        count = (economy.problems + employed) // 2
        if len(there) < count:
            raise TooFewMonths(
                f"economy.problems: {count} {scenario} states are wanted, {len(there)} there are; "
                "take fewer problems, or more households or months in economy.simulator"
            )
        chosen.append(there[np.sort(rng.choice(len(there), count, replace=False))])
    months, places = np.concatenate(chosen).T
    states = panel.states[months, places]
    found = standards(states, reference, economy, seed, progress=True)
    for month, household, state, standard in zip(months.tolist(), places.tolist(), states.listed(), found, strict=True):
        yield problem(household, month, state, standard)


def problem(household: int, month: int, state: State, standard: Standard) -> Record:
    """A state as a line of a problem file."""
    extra: dict[str, Any] = {"household": household, "month": month, "threshold": standard.threshold}
    extra["state"] = asdict(state)
    name = f"h{household:04d}-m{month:03d}"
    meta = Meta(scenario=state.scenario, domain_file="economy", problem_file=name, **extra)
    return Record(prompt=full_state(state), response=canonical(standard.reference), class_label=GOOD, meta=meta)


def write_macro(path: Path, panel: Panel) -> None:
    """Write `month` and the macro series, a row a month."""
    with written(path) as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["month", *MACRO])
        for month in range(len(panel.work)):
            rows.writerow([month, *(f"{panel.macro[name][month]:.6g}" for name in MACRO)])


def state_of(record: Record) -> State:
    """Raises ValueError where the record's state cannot be read; the message names the key."""
    return parsed_state((record.meta.model_extra or {}).get("state"))


def household_of(record: Record) -> int:
    return int((record.meta.model_extra or {})["household"])


def threshold_of(record: Record) -> float:
    """Raises ValueError where the record has none."""
    threshold = (record.meta.model_extra or {}).get("threshold")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise ValueError("meta.threshold is not a number")
    return float(threshold)


def digest(state: State) -> str:
    """16 hexadecimal digits: the same for the same state."""
    return hashlib.sha256(json.dumps(asdict(state), sort_keys=True).encode()).hexdigest()[:16]
