"""Prompts for a household's decision, in two styles.

`compact`, for the tiny base: one word per feature, `(wealth 17)`, whose number is a level from 0 to 31 on a fixed scale
(`SCALES`) that does not depend on the dataset. Amounts are real, at a price level of 1, so that a model need not divide
by the price. `full`, for instruction-tuned models: chat messages with numbers and units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planward.core.prompts import END
from planward.core.tasks import Messages
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

INSTRUCTION = """\
You are a household that decides, once a month, how much to work and how much to spend. Answer with exactly one JSON \
object of this form and nothing else: {"work": 0.35, "consumption": 0.62}

"work" is the share of full time that you work this month, from 0 to 1; without a job, the share of the offered one \
that you take up. "consumption" is the share of your means (wealth, and what you take home this month) that you spend, \
from 0 to 1; the rest stays as wealth.

Aim at the highest utility. You like to consume, each coin less than the one before, and dislike to change your \
standard of living. Work is a burden that grows with its hours and with age. What you keep serves the years ahead; \
the younger you are, the more of them there are. Interest adds to wealth and inflation eats it."""


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


def render_instruction(tax: TaxConfig) -> str:
    """Render the system message: the required form, the aim, taxes and benefits."""
    floors = ["0", *(f"{threshold:,.0f}" for threshold in tax.thresholds)]
    rates = ", ".join(f"{rate:.0%} from {floor}" for floor, rate in zip(floors, tax.rates, strict=True))
    return (
        f"{INSTRUCTION} Each part of a month's pay and interest is taxed at its bracket's rate: {rates} coins "
        "(at price level 1.00; brackets rise with prices). Without a job you get a benefit of "
        f"{tax.benefit:.0%} of the offered pay for the share of full time that you do not work, and the more you "
        "work in the offered job the likelier you keep it."
    )


def render_full_prompt(state: State, examples: Sequence[tuple[State, str]], tax: TaxConfig) -> Messages:
    """Build chat messages: the instruction, worked examples as earlier turns, then the state."""
    messages = [{"role": "system", "content": render_instruction(tax)}]
    for example, completion in examples:
        messages.append({"role": "user", "content": render_full_state(example)})
        messages.append({"role": "assistant", "content": completion})
    return [*messages, {"role": "user", "content": render_full_state(state)}]


def _read_real(state: State, feature: str) -> float:
    """Read a feature; amounts are converted to a price level of 1."""
    value = float(getattr(state, feature))
    return value / state.price if feature in AMOUNTS else value


def _format_coins(amount: float) -> str:
    return f"{amount:,.0f} coins"
