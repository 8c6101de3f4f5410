"""Prompts for a household's decision, in two styles.

`compact`, for the tiny base: one word per feature, `(wealth 17)`, whose number is a level from 0 to 31 on a fixed scale
(`SCALES`) that does not depend on the dataset. Amounts are real, at a price level of 1, so that a model need not divide
by the price. `full`, for instruction-tuned models: chat messages with numbers and units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planward.core.prompts import END
from planward.tasks.economy.environment.config import TaxConfig
from planward.tasks.economy.environment.decisions import Decision, format_decision
from planward.tasks.economy.environment.states import AMOUNTS, SCENARIOS, State

LEVELS = 32
TITLE, CLOSING = "economy", "decide"


@dataclass(frozen=True)
class Scale:
    """Levels of a feature, in even steps of its value or log; values outside [lowest, highest] get the end levels."""

    lowest: float
    highest: float
    log: bool = False

    def compute_level(self, value: float) -> int:
        low, high, value = self.lowest, self.highest, min(max(value, self.lowest), self.highest)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round((value - low) / (high - low) * (LEVELS - 1))


SCALES = {  # in the order of the prompt; amounts in coins at a price level of 1, rates as shares
    "age": Scale(20, 70),
    "wage": Scale(300, 30_000, log=True),
    "income": Scale(50, 50_000, log=True),
    "wealth": Scale(50, 500_000, log=True),
    "disposable": Scale(50, 50_000, log=True),
    "bracket": Scale(0, LEVELS - 1),
    "price": Scale(0.25, 16, log=True),
    "inflation": Scale(-0.11, 0.2),
    "interest": Scale(0, 0.155),
    "unemployment": Scale(0, 0.31),
    "transfer": Scale(50, 50_000, log=True),
    "consumption": Scale(50, 50_000, log=True),
}


def render_compact_state(state: State) -> str:
    """Render a state as atoms in a fixed order, up to where the completion begins."""
    atoms = (f"({feature} {scale.compute_level(_read_real(state, feature))})" for feature, scale in SCALES.items())
    return f"{TITLE}\n{' '.join([state.scenario, *atoms])}\n{CLOSING}\n"


def render_compact_prompt(state: State, examples: Sequence[tuple[State, str]]) -> str:
    """Render worked examples with their completions, then the state."""
    blocks = [f"{render_compact_state(example)}{completion}\n{END}\n" for example, completion in examples]
    return "".join([*blocks, render_compact_state(state)])


def list_vocabulary() -> list[str]:
    """List every word of compact prompts and their completions, sorted, without END."""
    atoms = [f"({feature} {level})" for feature in SCALES for level in range(LEVELS)]
    shares = [percent / 100 for percent in range(101)]
    completions = [format_decision(Decision(share, share)) for share in shares]
    words = [word for completion in completions for word in completion.split()]
    return sorted({TITLE, CLOSING, *SCENARIOS, *atoms, *words})


def render_full_state(state: State) -> str:
    """Render a state in plain words, with numbers and units."""
    if state.employed:
        job = f"employed; full time pays {_format_coins(state.wage)} a month before tax"
    else:
        offer = f"the offer of a job that pays {_format_coins(state.wage)} a month for full time before tax"
        job = f"unemployed, with {offer}"
    lines = [
        "This month:",
        f"- age: {state.age:.0f} years",
        f"- work: {job}",
        f"- wealth: {_format_coins(state.wealth)}",
        f"- last month's income before tax: {_format_coins(state.income)} (tax bracket {state.bracket})",
        f"- last month's disposable income: {_format_coins(state.disposable)}",
        f"- last month's consumption: {_format_coins(state.consumption)}",
        f"- transfer from the state: {_format_coins(state.transfer)}",
        f"- price level: {state.price:.2f} (1.00 at the start), {state.inflation:+.1%} in a year",
        f"- interest rate: {state.interest:.1%} a year",
        f"- unemployment rate: {state.unemployment:.1%}",
        "",
        "Your decision:",
    ]
    return "\n".join(lines)


def render_tax_rates(tax: TaxConfig) -> str:
    """Render the rate of each bracket and where it begins, in coins at a price level of 1."""
    floors = ["0", *(f"{threshold:,.0f}" for threshold in tax.thresholds)]
    return ", ".join(f"{rate:.0%} from {floor}" for floor, rate in zip(floors, tax.rates, strict=True))


class StateVariables:
    """The variables of prompt templates for a state: every public property is one."""

    def __init__(self, state: State, tax: TaxConfig, prompt: str) -> None:
        self._state, self._tax, self._prompt = state, tax, prompt

    @property
    def prompt(self) -> str:
        """The record's own prompt."""
        return self._prompt

    @property
    def state(self) -> dict[str, float]:
        """The numbers: `state.age`, `state.wealth` and so on."""
        return asdict(self._state)

    @property
    def facts(self) -> str:
        """The state in plain words."""
        return render_full_state(self._state)

    @property
    def tax_rates(self) -> str:
        return render_tax_rates(self._tax)

    @property
    def benefit(self) -> str:
        """The benefit as a percentage of the offered pay."""
        return f"{self._tax.benefit:.0%}"


class SolvedStateVariables(StateVariables):
    """The variables of a worked example."""

    def __init__(self, state: State, tax: TaxConfig, prompt: str, decision: str) -> None:
        super().__init__(state, tax, prompt)
        self._decision = decision

    @property
    def decision(self) -> str:
        """The reference decision, one JSON object."""
        return self._decision


def _read_real(state: State, feature: str) -> float:
    """Read a feature; amounts are converted to a price level of 1."""
    value = float(getattr(state, feature))
    return value / state.price if feature in AMOUNTS else value


def _format_coins(amount: float) -> str:
    return f"{amount:,.0f} coins"
