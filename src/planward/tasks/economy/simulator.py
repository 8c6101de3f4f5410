r"""A seeded economy of households that follow noisy rules of thumb, month by month.

In kind after EconAgent (Li et al., ACL 2024, doi:10.18653/v1/2024.acl-long.829): households choose how much to work and
to consume, prices and wages follow the market, a central bank sets the rate of interest and taxes are redistributed.
The equations are our own. With P the price level, W the pay for a month's full time at skill 1, all clips as in
`economy.simulator` of params.yaml, and d log x the change to the next month:

- Household i works w_i, takes home and consumes as `budgets` says, and keeps the rest as wealth. Its wage is
  skill_i W; the unemployed work in an offered job that pays less, anew every month. Skill and habits differ between
  households; log skill also moves from month to month (AR(1)). At `last_age` its heir of `first_age` follows, with the
  wealth and other skill and habits.
- Rules of thumb, as log odds: of working, more for higher real pay and less for more months of pay in wealth; of
  consuming, less for more wealth, and drawn towards last month's consumption. Both have a household's own trait and
  a month's noise. Decisions are in whole hundredths.
- Supply Y = (1 + markup) `pay` sum_i skill_i w_i; demand D = sum_i C_i / P; x = log(D / Y).
  d log P = clip(`price_response` x, +-`price_step`).
- d log W = d log P + `wage_catch_up` log(`pay` P / W) + `wage_response` (natural - unemployment), clipped at
  +-2 `price_step`: pay follows prices, and slack lowers it.
- Jobs are lost and found with the chances of `jobs`, scaled by exp(-+`job_response` x); firms hire or dismiss at
  random where the unemployment rate would leave `unemployment`.
- The rate of interest moves by a share `rate_smoothing` a month to the rule of Taylor (1993): `neutral_rate` +
  inflation + 0.5 (inflation - `inflation_target`) + 0.5 x, clipped to `interest`.
- The transfer, the same for all, pays out what last month's taxes and firms' profits left after benefits and interest,
  and new money: wealth and the transfer together grow by `inflation_target` a year, so that the quantity of money ties
  prices down. It is never less than a fiftieth of `pay`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from planward.params import Economy
from planward.tasks.economy.budgets import bracket, gross_income, income_tax, net_income
from planward.tasks.economy.jobs import job_next_month
from planward.tasks.economy.states import States, rounded

if TYPE_CHECKING:
    from planward.tasks.economy.states import Numbers

MACRO = (
    "price", "inflation", "wage", "unemployment", "interest", "output", "demand", "work", "consumption", "wealth",
    "transfer", "gini",
)  # fmt: skip


class UnsoundEconomy(ValueError):
    """A simulated economy left its bounds; the message names the series, the month and the mend."""


@dataclass(frozen=True)
class Panel:
    """Households over time.

    Attributes:
        states: what each was told; arrays of shape [months, households].
        work, consumption: what each decided, in [0, 1]; the same shape.
        macro: the series of `MACRO`, each of shape [months]. `wage` and `transfer` are in coins of the day; `output`,
            `demand` and `wealth` are means per household at a price of 1; `work` and `consumption` mean decisions;
            `gini` that of wealth; rates are shares.
    """

    states: States
    work: Numbers
    consumption: Numbers
    macro: dict[str, Numbers]


def simulated(economy: Economy, seed: int, progress: bool = False) -> Panel:
    """The `months` after `burn_in` of an economy; the same for the same parameters and seed."""
    settings, rng = economy.simulator, np.random.default_rng([seed, 2])
    town, rows = _Town(economy, rng), []
    for month in tqdm(range(settings.burn_in + settings.months), "months", disable=not progress, leave=False):
        row = town.month()
        if month >= settings.burn_in:
            rows.append(row)
    states = States(*(np.stack(column) for column in zip(*(vars(row[0]).values() for row in rows), strict=True)))
    work, consumption = np.stack([row[1] for row in rows]), np.stack([row[2] for row in rows])
    macro = {name: np.array([row[3][name] for row in rows]) for name in MACRO}
    return Panel(states, work, consumption, macro)


def check_sound(panel: Panel, economy: Economy) -> None:
    """Raise UnsoundEconomy where a macro series leaves the bounds that its equations should keep it in."""
    settings, macro = economy.simulator, panel.macro
    year = np.exp(12 * settings.price_step)
    one = 1 / panel.work.shape[1]  # rates move by whole households
    bounds = {
        "inflation": (1 / year - 1 - 1e-3, year - 1 + 1e-3),
        "unemployment": (settings.unemployment[0] - one, settings.unemployment[1] + one),
        "interest": settings.interest,
        "output": (0.05 * settings.pay, 5 * settings.pay),
        "wealth": (0.2 * settings.pay, 100 * settings.pay),
    }
    for name, series in macro.items():
        least, most = bounds.get(name, (0.0, np.inf))
        wrong = ~((series >= least) & (series <= most) & np.isfinite(series))
        if wrong.any():
            month = int(np.argmax(wrong))
            raise UnsoundEconomy(
                f"economy.simulator: {name} is {series[month]:g} in month {month}, outside [{least:g}, {most:g}]; "
                "take parameters nearer to the shipped ones"
            )


class _Town:
    """The economy between two months."""

    def __init__(self, economy: Economy, rng: np.random.Generator) -> None:
        self.economy, self.rng = economy, rng
        settings, labour = economy.simulator, economy.labour
        self.count = n = settings.households
        taste = economy.preferences
        self.age = rng.uniform(settings.first_age, taste.last_age, n)
        self.talent, self.drift, self.diligence, self.thrift = np.zeros((4, n))
        self._born(np.ones(n, dtype=bool))
        self.employed = (rng.random(n) >= labour.natural).astype(np.float64)
        self.wealth = settings.pay * settings.wealth_months * np.exp(rng.normal(-0.5, 1.0, n))
        self.income = self.disposable = 0.5 * settings.pay * np.exp(self.talent)
        self.spent = 0.5 * settings.pay * np.exp(self.talent)
        self.transfer = 0.2 * settings.pay
        self.price, self.pay, self.interest = 1.0, settings.pay, settings.neutral_rate + settings.inflation_target
        self.prices = [(1 + settings.inflation_target) ** (month / 12) for month in range(-12, 0)]

    def month(self) -> tuple[States, Numbers, Numbers, dict[str, float]]:
        """What households are told and decide this month, and its macro series."""
        states = self._told()
        work, consumption = self._decided(states)
        economy = self.economy
        settings, price = economy.simulator, float(states.price[0])
        gross, net = gross_income(states, work), net_income(states, work, economy.tax)
        have = (states.wealth / price + net) * price
        spent = consumption * have
        supply = (1 + settings.markup) * settings.pay * float(np.sum(self._skill() * work))
        demand = float(spent.sum()) / price
        excess = float(np.log(demand / max(supply, 1e-9)))
        macro = {
            "price": price,
            "inflation": float(states.inflation[0]),
            "wage": self.pay,
            "unemployment": float(states.unemployment[0]),
            "interest": float(states.interest[0]),
            "output": supply / self.count,
            "demand": demand / self.count,
            "work": float(work.mean()),
            "consumption": float(consumption.mean()),
            "wealth": float(states.wealth.mean()) / price,
            "transfer": float(states.transfer[0]),
            "gini": _gini(states.wealth),
        }
        taxes = float(income_tax(gross, economy.tax).sum()) * price
        self.disposable, self.income, self.spent = net * price, gross * price, spent
        self.wealth = have - spent
        self._redistribute(states, work, taxes)
        self._rehired(states, work, excess)
        self._repriced(states, excess)
        self._aged()
        return states, work, consumption, macro

    def _told(self) -> States:
        settings, labour, every = self.economy.simulator, self.economy.labour, np.ones(self.count)
        offer = labour.offer * np.exp(self.rng.normal(0.0, labour.offer_spread, self.count))
        rate = 1 - self.employed.mean()
        states = States(
            employed=self.employed.copy(),
            age=self.age.copy(),
            wage=self.pay * self._skill() * np.where(self.employed > 0, 1.0, offer),
            income=self.income,
            wealth=self.wealth,
            disposable=self.disposable,
            bracket=bracket(self.income / self.price, self.economy.tax),
            price=self.price * every,
            inflation=(self.price / self.prices[-12] - 1) * every,
            interest=np.clip(self.interest, *settings.interest) * every,
            unemployment=rate * every,
            transfer=self.transfer * every,
            consumption=self.spent,
        )
        return rounded(states)

    def _decided(self, states: States) -> tuple[Numbers, Numbers]:
        rule, settings, noise = self.economy.behaviour, self.economy.simulator, self.rng.normal(size=(2, self.count))
        months = np.log(states.wealth / states.wage + 0.5)  # of pay, in wealth
        odds = rule.work + self.diligence + rule.work_noise * noise[0]
        odds = odds - rule.work_by_wealth * months
        odds = odds + rule.work_by_pay * np.log(states.wage / states.price / settings.pay)
        work = np.round(1 / (1 + np.exp(-odds)), 2)
        have = states.wealth + states.price * net_income(states, work, self.economy.tax)
        last = np.clip(states.consumption / np.maximum(have, 1e-9), 0.01, 0.99)
        odds = rule.consumption - self.thrift - rule.consumption_by_wealth * months
        odds = (1 - rule.habit) * odds + rule.habit * np.log(last / (1 - last))
        consumption = np.round(1 / (1 + np.exp(-odds - rule.consumption_noise * noise[1])), 2)
        return work, consumption

    def _redistribute(self, states: States, work: Numbers, taxes: float) -> None:
        economy = self.economy
        benefits = float(np.sum((1 - states.employed) * economy.tax.benefit * states.wage * (1 - work)))
        interest = float(np.sum(states.wealth * states.interest)) / 12
        profits = float(self.spent.sum()) - float(np.sum(work * states.wage))
        money = float(states.wealth.sum() + states.transfer.sum())
        fresh = economy.simulator.inflation_target / 12 * money
        least = 0.02 * economy.simulator.pay * self.price
        self.transfer = max((taxes + profits + fresh - benefits - interest) / self.count, least)

    def _rehired(self, states: States, work: Numbers, excess: float) -> None:
        settings, labour = self.economy.simulator, self.economy.labour
        chance = job_next_month(states.employed, work, states.unemployment, labour)
        boom = np.exp(np.clip(settings.job_response * excess, -1, 1))
        chance = np.where(states.employed > 0, 1 - np.minimum((1 - chance) / boom, 1), np.minimum(chance * boom, 1))
        luck = self.rng.random(self.count)
        bounds = (
            np.ceil((1 - settings.unemployment[1]) * self.count),
            np.floor((1 - settings.unemployment[0]) * self.count),
        )
        held = int(np.clip(np.sum(luck < chance), *bounds))
        self.employed = np.zeros(self.count)
        self.employed[np.argsort(luck - chance)[:held]] = 1  # those with luck below their chance come first

    def _repriced(self, states: States, excess: float) -> None:
        settings = self.economy.simulator
        self.prices = [*self.prices[1:], self.price]
        dearer = float(np.clip(settings.price_response * excess, -settings.price_step, settings.price_step))
        behind = float(np.log(settings.pay * self.price / self.pay))
        slack = self.economy.labour.natural - float(states.unemployment[0])
        raised = dearer + settings.wage_catch_up * behind + settings.wage_response * slack
        self.price *= float(np.exp(dearer))
        self.pay *= float(np.exp(np.clip(raised, -2 * settings.price_step, 2 * settings.price_step)))
        inflation, target = self.price / self.prices[-12] - 1, settings.inflation_target
        rule = settings.neutral_rate + inflation + 0.5 * (inflation - target) + 0.5 * float(np.clip(excess, -0.1, 0.1))
        step = settings.rate_smoothing * (float(np.clip(rule, *settings.interest)) - self.interest)
        self.interest += step

    def _aged(self) -> None:
        settings = self.economy.simulator
        self.age = self.age + 1 / 12
        self.drift = settings.skill_memory * self.drift + self.rng.normal(0.0, settings.skill_shock, self.count)
        self._born(self.age >= self.economy.preferences.last_age)

    def _born(self, heirs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        """Give these households a skill and habits of their own; heirs begin at the first age."""
        settings, rule = self.economy.simulator, self.economy.behaviour
        drawn = self.rng.normal(size=(3, self.count))
        self.age = np.where(self.age >= self.economy.preferences.last_age, settings.first_age, self.age)
        self.talent = np.where(heirs, settings.skill_spread * drawn[0], self.talent)
        self.drift = np.where(heirs, 0.0, self.drift)
        self.diligence = np.where(heirs, rule.work_spread * drawn[1], self.diligence)
        self.thrift = np.where(heirs, rule.consumption_spread * drawn[2], self.thrift)

    def _skill(self) -> Numbers:
        return np.exp(self.talent + self.drift)


def _gini(amounts: Numbers) -> float:
    ordered = np.sort(amounts)
    ranks = np.arange(1, len(ordered) + 1)
    return float(2 * np.sum(ranks * ordered) / (len(ordered) * ordered.sum()) - (len(ordered) + 1) / len(ordered))
