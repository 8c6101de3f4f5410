"""The economy task: a household's state in, a decision out, judged by its expected utility."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from planward.core.files import open_atomic, write_jsonl
from planward.core.prompt_templates import PromptTemplate
from planward.core.records import Meta, Record
from planward.core.tasks import NO_RENAMING, InvalidLine, Messages, Renaming, parse_record
from planward.core.verdicts import Verdict, VerifierError
from planward.params import ParamsError
from planward.tasks.economy.environment.config import EconomyConfig, EconomyParams
from planward.tasks.economy.environment.decisions import Decision, InvalidDecision, format_decision, parse_decision
from planward.tasks.economy.environment.neighbours import ExampleSelector, Standard, TooFewMonths, compute_standards
from planward.tasks.economy.environment.prompt import (
    SolvedStateVariables,
    StateVariables,
    render_compact_prompt,
    render_full_state,
)
from planward.tasks.economy.environment.simulator import (
    MACRO,
    Panel,
    UnstableEconomy,
    check_stability,
    simulate_economy,
)
from planward.tasks.economy.environment.states import SCENARIOS, State, parse_state, stack_states
from planward.tasks.economy.environment.utility import (
    build_decision_grid,
    compute_rewards,
    compute_utility,
    compute_utility_range,
    scale_utilities,
)

GOOD, POOR, FORMAT = "good_decision", "poor_decision", "format_error"
TEMPLATE = Path(__file__).parent / "environment/templates/full.jinja"  # of style `full`, where the file names none
PROBLEMS_FILE, MACRO_FILE = "economy.jsonl", "macro.csv"


class EconomyTask:
    """Implements `planward.core.tasks.Task`. A problem is a state of a household; its record holds all of it."""

    name = "economy"
    labels: tuple[str, ...] = (GOOD, POOR, FORMAT)
    domains: tuple[str, ...] = SCENARIOS

    def __init__(self, params: EconomyParams, root: Path) -> None:
        self.params, self.root = params, root
        self.examples = ExampleSelector(lambda r: r.id or compute_digest(read_state(r)), read_state, read_household)
        self.compute_range = lru_cache(maxsize=8192)(self._compute_range)

    def prepare_problems(self, folder: Path) -> None:
        """Simulate an economy; write problems to economy.jsonl, and its monthly series to macro.csv.

        Raises:
            ParamsError: the economy leaves its bounds, or has too few months for the number of problems.
        """
        economy, seed = self.params.economy, self.params.seed
        panel = simulate_economy(economy, seed, progress=True)
        try:
            check_stability(panel, economy)
            problems = list(sample_problems(panel, economy, seed))
        except (UnstableEconomy, TooFewMonths) as error:
            raise ParamsError(str(error)) from None
        write_jsonl(folder / PROBLEMS_FILE, problems)
        write_macro_series(folder / MACRO_FILE, panel)

    def validate_line(self, line: dict[str, Any], domain: str) -> tuple[Record, str]:
        """Check state, threshold and reference decision; the digest is that of the household."""
        record = parse_record(line, domain)
        if domain not in SCENARIOS:
            raise InvalidLine(f"unknown domain: {domain!r} is not one of {', '.join(SCENARIOS)}")
        meta = record.meta.model_extra or {}
        try:
            state = parse_state(meta.get("state"))
        except ValueError as error:
            raise InvalidLine(f"bad state: {error}") from None
        if state.scenario != domain:
            raise InvalidLine(f"bad state: it is {state.scenario}, but its scenario {domain}")
        for key in ("household", "month"):
            if type(meta.get(key)) is not int or meta[key] < 0:
                raise InvalidLine(f"bad record: meta.{key} is not an integer from 0")
        if type(meta.get("threshold")) not in (int, float) or not -1 <= meta["threshold"] <= 1:
            raise InvalidLine("bad record: meta.threshold is not a number in [-1, 1]")
        verdict = self.verify(record, record.response or "")
        if not verdict.success:
            raise InvalidLine(f"bad reference decision: {verdict.label}: {verdict.detail}")
        return record.model_copy(update={"id": compute_digest(state)}), self.core_digest(record)

    def score_difficulty(self, problem: Record) -> float | None:
        """Percentage of all decisions on the grid that are not good."""
        work, consumption = build_decision_grid()
        rewards = compute_rewards(stack_states([read_state(problem)]), work, consumption, self.params.economy)
        return round(100 * float(np.mean(rewards < read_threshold(problem))), 2)

    def select_examples(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:  # noqa: ARG002
        """Select the `count` nearest problems of the same scenario and other households, the nearest last."""
        return self.examples.select(problem, pool, count)

    def draw_renaming(self, problem: Record, seed: str) -> Renaming:  # noqa: ARG002
        return NO_RENAMING

    def core_digest(self, problem: Record) -> str:
        """Digest of the household: all its months go to one side of the split."""
        return hashlib.sha256(f"household {read_household(problem)}".encode()).hexdigest()[:16]

    def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> str | Messages:  # noqa: ARG002
        config, tax = self.params.prompt, self.params.economy.tax
        solved_states = [(read_state(example), self.reference_completion(example)) for example in examples]
        if config.style == "compact":
            return render_compact_prompt(read_state(problem), solved_states)
        example_variables = [
            SolvedStateVariables(state, tax, example.prompt, decision)
            for example, (state, decision) in zip(examples, solved_states, strict=True)
        ]
        problem_variables = StateVariables(read_state(problem), tax, problem.prompt)
        return self._template.render(problem_variables, example_variables, system_turn=config.system_turn)

    def reference_completion(self, problem: Record, renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        """Format the reference decision; raises ValueError where the record has none."""
        try:
            return format_decision(parse_decision(problem.response or ""))
        except InvalidDecision as error:
            name = problem.id or problem.meta.problem_file
            raise ValueError(f"{name}: the record holds no reference decision: {error}") from None

    def undo_renaming(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        return completion

    def rename_completion(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        return completion

    def verify(self, problem: Record, completion: str, renaming: Renaming | None = None) -> Verdict:  # noqa: ARG002
        """Reward a decision with its utility, scaled to [MIN_REWARD, 1]; anything else gets -1.

        Raises:
            VerifierError: the record's state or threshold is unreadable, or the utility is not finite.
        """
        try:
            decision = parse_decision(completion)
        except InvalidDecision as error:
            return Verdict(FORMAT, -1.0, False, str(error))
        try:
            state, threshold = read_state(problem), read_threshold(problem)
        except ValueError as error:
            raise VerifierError(f"problem {problem.id} ({problem.meta.problem_file}): {error}") from None
        reward = self.compute_reward(state, decision)
        if not math.isfinite(reward):
            raise VerifierError(f"problem {problem.id} ({problem.meta.problem_file}): its utility is not finite")
        good = reward >= threshold
        detail = f"reward {reward:.4f}, good from {threshold:.4f}"
        return Verdict(GOOD if good else POOR, reward, good, detail, format_decision(decision))

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        return [self.verify(record, completion) for record, completion in pairs]

    def compute_reward(self, state: State, decision: Decision) -> float:
        """Compute a decision's utility in a state, scaled to [MIN_REWARD, 1]."""
        work, consumption = np.array([decision.work]), np.array([decision.consumption])
        utility = compute_utility(stack_states([state]), work, consumption, self.params.economy)
        return float(scale_utilities(utility, *self.compute_range(state))[0])

    @cached_property
    def _template(self) -> PromptTemplate:
        return PromptTemplate(self.params.prompt.template or TEMPLATE)

    def _compute_range(self, state: State) -> tuple[Any, Any]:
        return compute_utility_range(stack_states([state]), self.params.economy)


def sample_problems(panel: Panel, economy: EconomyConfig, seed: int) -> Iterator[Record]:
    """Sample problems from a panel, equally many of each scenario.

    The first `reference_share` of the households set the standards; the problems are months of the others.

    Raises:
        TooFewMonths: the panel has too few months of a scenario; the message names the fix.
    """
    rng, num_households = np.random.default_rng([seed, 1]), panel.work.shape[1]
    num_references = round(economy.reference_share * num_households)
    reference = Panel(
        panel.states[:, :num_references], panel.work[:, :num_references], panel.consumption[:, :num_references], {}
    )
    samples = []
    for is_employed, scenario in zip((1, 0), SCENARIOS, strict=True):
        months_and_households = np.argwhere(panel.states.employed[:, num_references:] == is_employed)
        candidates = months_and_households + np.array([0, num_references])
        count = (economy.problems + is_employed) // 2
        if len(candidates) < count:
            raise TooFewMonths(
                f"economy.problems: needs {count} {scenario} states, but there are {len(candidates)}; "
                "fix: lower it, or raise households or months in economy.simulator"
            )
        samples.append(candidates[np.sort(rng.choice(len(candidates), count, replace=False))])
    months, households = np.concatenate(samples).T
    states = panel.states[months, households]
    standards = compute_standards(states, reference, economy, seed, progress=True)
    rows = zip(months.tolist(), households.tolist(), states.to_list(), standards, strict=True)
    for month, household, state, standard in rows:
        yield build_problem(household, month, state, standard)


def build_problem(household: int, month: int, state: State, standard: Standard) -> Record:
    """Build a line of a problem file from a state."""
    extra: dict[str, Any] = {"household": household, "month": month, "threshold": standard.threshold}
    extra["state"] = asdict(state)
    name = f"h{household:04d}-m{month:03d}"
    meta = Meta(scenario=state.scenario, domain_file="economy", problem_file=name, **extra)
    response = format_decision(standard.reference)
    return Record(prompt=render_full_state(state), response=response, class_label=GOOD, meta=meta)


def write_macro_series(path: Path, panel: Panel) -> None:
    """Write `month` and the macro series, one row per month."""
    with open_atomic(path) as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["month", *MACRO])
        for month in range(len(panel.work)):
            rows.writerow([month, *(f"{panel.macro[name][month]:.6g}" for name in MACRO)])


def read_state(record: Record) -> State:
    """Read the state from a record; raises ValueError where it is unreadable, and names the key."""
    return parse_state((record.meta.model_extra or {}).get("state"))


def read_household(record: Record) -> int:
    return int((record.meta.model_extra or {})["household"])


def read_threshold(record: Record) -> float:
    """Read the threshold of a good decision from a record; raises ValueError where it has none."""
    threshold = (record.meta.model_extra or {}).get("threshold")
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise ValueError("meta.threshold is not a number")
    return float(threshold)


def compute_digest(state: State) -> str:
    """16 hexadecimal digits, the same for equal states."""
    return hashlib.sha256(json.dumps(asdict(state), sort_keys=True).encode()).hexdigest()[:16]
