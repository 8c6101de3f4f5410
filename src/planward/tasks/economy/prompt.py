"""Prompts for a household's decision, in two styles.

`compact`, for the tiny base: one word a feature, `(wealth 17)`, whose number is a level from 0 to 31 on a fixed scale
(`SCALES`), the same for every data set. Amounts are levels of their worth at a price level of 1, so that a model need
not divide by the price. `full`, for instruction-tuned models: chat messages with numbers and units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planward.params import Tax
from planward.tasks.base import Messages
from planward.tasks.economy.decisions import Decision, canonical
from planward.tasks.economy.states import AMOUNTS, SCENARIOS, State
from planward.tasks.planning.prompt import END

LEVELS = 32
TITLE, CLOSING = "economy", "decide"


@dataclass(frozen=True)
class Scale:
    """Levels of a feature: `least` and below is level 0, `most` and above the last; even steps of it or of its log."""

    least: float
    most: float
    log: bool = False

    def level(self, value: float) -> int:
        low, high, value = self.least, self.most, min(max(value, self.least), self.most)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round((value - low) / (high - low) * (LEVELS - 1))


SCALES = {  # in the order of a prompt; amounts in coins at a price level of 1, rates as shares
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


def compact_state(state: State) -> str:
    """The state as atoms, in a fixed order; ends where the answer begins."""
    atoms = (f"({feature} {scale.level(_worth(state, feature))})" for feature, scale in SCALES.items())
    return f"{TITLE}\n{' '.join([state.scenario, *atoms])}\n{CLOSING}\n"


def compact_prompt(state: State, shots: Sequence[tuple[State, str]]) -> str:
    """Worked examples with their answers, then the state."""
    examples = [f"{compact_state(example)}{answer}\n{END}\n" for example, answer in shots]
    return "".join([*examples, compact_state(state)])


def vocabulary() -> list[str]:
    """Every word of compact prompts and of their answers, sorted; END is not among them."""
    atoms = [f"({feature} {level})" for feature in SCALES for level in range(LEVELS)]
    percents = [percent / 100 for percent in range(101)]
    answers = [canonical(Decision(share, share)) for share in percents]
    return sorted({TITLE, CLOSING, *SCENARIOS, *atoms, *(word for answer in answers for word in answer.split())})


def full_state(state: State) -> str:
    """The state in plain words, with numbers and units."""
    if state.employed:
        job = f"employed; full time pays {_coins(state.wage)} a month before tax"
    else:
        job = f"unemployed, with the offer of a job that pays {_coins(state.wage)} a month for full time before tax"
    lines = [
        "This month:",
        f"- age: {state.age:.0f} years",
        f"- work: {job}",
        f"- wealth: {_coins(state.wealth)}",
        f"- last month's income before tax: {_coins(state.income)} (tax bracket {state.bracket})",
        f"- last month's disposable income: {_coins(state.disposable)}",
        f"- last month's consumption: {_coins(state.consumption)}",
        f"- transfer from the state: {_coins(state.transfer)}",
        f"- price level: {state.price:.2f} (1.00 at the start), {state.inflation:+.1%} in a year",
        f"- interest rate: {state.interest:.1%} a year",
        f"- unemployment rate: {state.unemployment:.1%}",
        "",
        "Your decision:",
    ]
    return "\n".join(lines)


def instruction(tax: Tax) -> str:
    """What is asked for, and what the state takes and gives."""
    floors = ["0", *(f"{threshold:,.0f}" for threshold in tax.thresholds)]
    rates = ", ".join(f"{rate:.0%} from {floor}" for floor, rate in zip(floors, tax.rates, strict=True))
    return (
        f"{INSTRUCTION} Each part of a month's pay and interest is taxed at its bracket's rate: {rates} coins "
        "(at price level 1.00; brackets rise with prices). Without a job you get a benefit of "
        f"{tax.benefit:.0%} of the offered pay for the share of full time that you do not work, and the more you "
        "work in the offered job the likelier you keep it."
    )


def full_prompt(state: State, shots: Sequence[tuple[State, str]], tax: Tax) -> Messages:
    """Chat messages: the instruction, worked examples as earlier turns, then the state."""
    messages = [{"role": "system", "content": instruction(tax)}]
    for example, answer in shots:
        messages += [{"role": "user", "content": full_state(example)}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": full_state(state)}]


def _worth(state: State, feature: str) -> float:
    """The feature's value; amounts at a price level of 1."""
    value = float(getattr(state, feature))
    return value / state.price if feature in AMOUNTS else value


def _coins(amount: float) -> str:
    return f"{amount:,.0f} coins"
