r"""A seeded economy of households that follow noisy rules of thumb, simulated month by month.

After the idea of EconAgent (Li et al., ACL 2024, doi:10.18653/v1/2024.acl-long.829): households choose how much to work
and consume, prices and wages follow the market, a central bank sets the interest rate and taxes are redistributed. The
equations are our own. P is the price level, W the monthly pay for full time at skill 1, d log x the change to the next
month; parameters are those of `economy.simulator`:

- Household i works w_i, earns and consumes as in `budgets`, and keeps the rest as wealth. Its wage is skill_i W; the
  unemployed work in an offered job, sampled anew each month, that pays less. Skill and habits differ between
  households; log skill also moves from month to month (AR(1)). At `last_age` an heir of `first_age` succeeds, with the
  wealth but another skill and other habits.
- Rules of thumb, as log odds: work rises with real pay and falls with wealth in months of pay; the share consumed falls
  with wealth and depends on last month's. Both have a household effect and monthly noise. Decisions are rounded to
  hundredths.
- Supply Y = (1 + markup) `pay` sum_i skill_i w_i; demand D = sum_i C_i / P; x = log(D / Y).
  d log P = clip(`price_response` x, +-`price_step`).
- d log W = d log P + `wage_catch_up` log(`pay` P / W) + `wage_response` (natural - unemployment), clipped at
  +-2 `price_step`: pay follows prices, and unemployment lowers it.
- Jobs are lost and found with the probabilities of `jobs`, scaled by exp(-+`job_response` x); firms hire or dismiss at
  random where the unemployment rate would leave the bounds `unemployment`.
- The interest rate moves each month by a share `rate_smoothing` to the Taylor rule (1993): `neutral_rate` +
  inflation + 0.5 (inflation - `inflation_target`) + 0.5 x, clipped to `interest`.
- The transfer, equal for all, pays out last month's taxes and firms' profits less benefits and interest, plus new
  money: wealth and the transfer together grow by `inflation_target` per year, so that the quantity of money anchors
  prices. It is at least a fiftieth of `pay`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from planward.tasks.economy.environment.budgets import (
    compute_gross_income,
    compute_income_tax,
    compute_net_income,
    find_bracket,
)
from planward.tasks.economy.environment.config import EconomyConfig
from planward.tasks.economy.environment.jobs import compute_job_probability
from planward.tasks.economy.environment.states import States, round_states

if TYPE_CHECKING:
    from planward.tasks.economy.environment.states import FloatArray

MACRO = (
    "price", "inflation", "wage", "unemployment", "interest", "output", "demand", "work", "consumption", "wealth",
    "transfer", "gini",
)  # fmt: skip


class UnstableEconomy(ValueError):
    """A simulated economy left its bounds; the message names the series, the month and the fix."""


@dataclass(frozen=True)
class Panel:
    """Households over time.

    Attributes:
        states: arrays of shape [months, households].
        work, consumption: decisions, in [0, 1]; the same shape.
        macro: the series named in `MACRO`, each of shape [months]. `wage` and `transfer` are in coins at current
            prices; `output`, `demand` and `wealth` are means per household at a price level of 1; `work` and
            `consumption` are mean decisions; `gini` is that of wealth; rates are shares.
    """

    states: States
    work: FloatArray
    consumption: FloatArray
    macro: dict[str, FloatArray]


def simulate_economy(economy: EconomyConfig, seed: int, progress: bool = False) -> Panel:
    """Simulate an economy and return the `months` after `burn_in`; deterministic in parameters and seed."""
    config, rng = economy.simulator, np.random.default_rng([seed, 2])
    simulation, rows = _Simulation(economy, rng), []
    for month in tqdm(range(config.burn_in + config.months), "months", disable=not progress, leave=False):
        row = simulation.simulate_month()
        if month >= config.burn_in:
            rows.append(row)
    states = States(*(np.stack(column) for column in zip(*(vars(row[0]).values() for row in rows), strict=True)))
    work, consumption = np.stack([row[1] for row in rows]), np.stack([row[2] for row in rows])
    macro = {name: np.array([row[3][name] for row in rows]) for name in MACRO}
    return Panel(states, work, consumption, macro)


def check_stability(panel: Panel, economy: EconomyConfig) -> None:
    """Raise UnstableEconomy where a macro series leaves the bounds that the equations should keep it in."""
    config, macro = economy.simulator, panel.macro
    year = np.exp(12 * config.price_step)
    one_household = 1 / panel.work.shape[1]  # smallest change of a rate
    bounds = {
        "inflation": (1 / year - 1 - 1e-3, year - 1 + 1e-3),
        "unemployment": (config.unemployment[0] - one_household, config.unemployment[1] + one_household),
        "interest": config.interest,
        "output": (0.05 * config.pay, 5 * config.pay),
        "wealth": (0.2 * config.pay, 100 * config.pay),
    }
    for name, series in macro.items():
        lowest, highest = bounds.get(name, (0.0, np.inf))
        outside = ~((series >= lowest) & (series <= highest) & np.isfinite(series))
        if outside.any():
            month = int(np.argmax(outside))
            raise UnstableEconomy(
                f"economy.simulator: {name} is {series[month]:g} in month {month}, outside [{lowest:g}, {highest:g}]; "
                "fix: use parameters closer to the shipped ones"
            )


class _Simulation:
    """The state of the economy between two months."""

    def __init__(self, economy: EconomyConfig, rng: np.random.Generator) -> None:
        self.economy, self.rng = economy, rng
        config, labour = economy.simulator, economy.labour
        self.count = n = config.households
        preferences = economy.preferences
        self.age = rng.uniform(config.first_age, preferences.last_age, n)
        self.talent, self.drift, self.diligence, self.thrift = np.zeros((4, n))
        self._sample_traits(np.ones(n, dtype=bool))
        self.employed = (rng.random(n) >= labour.natural).astype(np.float64)
        self.wealth = config.pay * config.wealth_months * np.exp(rng.normal(-0.5, 1.0, n))
        self.income = self.disposable = 0.5 * config.pay * np.exp(self.talent)
        self.spending = 0.5 * config.pay * np.exp(self.talent)
        self.transfer = 0.2 * config.pay
        self.price, self.pay, self.interest = 1.0, config.pay, config.neutral_rate + config.inflation_target
        self.prices = [(1 + config.inflation_target) ** (month / 12) for month in range(-12, 0)]

    def simulate_month(self) -> tuple[States, FloatArray, FloatArray, dict[str, float]]:
        """Simulate a month; returns states, work, consumption and the values of the macro series."""
        states = self._observe_states()
        work, consumption = self._decide(states)
        economy = self.economy
        config, price = economy.simulator, float(states.price[0])
        gross, net = compute_gross_income(states, work), compute_net_income(states, work, economy.tax)
        means = (states.wealth / price + net) * price
        spending = consumption * means
        supply = (1 + config.markup) * config.pay * float(np.sum(self._compute_skill() * work))
        demand = float(spending.sum()) / price
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
            "gini": _compute_gini(states.wealth),
        }
        taxes = float(compute_income_tax(gross, economy.tax).sum()) * price
        self.disposable, self.income, self.spending = net * price, gross * price, spending
        self.wealth = means - spending
        self._update_transfer(states, work, taxes)
        self._update_jobs(states, work, excess)
        self._update_prices(states, excess)
        self._update_ages()
        return states, work, consumption, macro

    def _observe_states(self) -> States:
        config, labour, ones = self.economy.simulator, self.economy.labour, np.ones(self.count)
        offer = labour.offer * np.exp(self.rng.normal(0.0, labour.offer_spread, self.count))
        unemployment = 1 - self.employed.mean()
        states = States(
            employed=self.employed.copy(),
            age=self.age.copy(),
            wage=self.pay * self._compute_skill() * np.where(self.employed > 0, 1.0, offer),
            income=self.income,
            wealth=self.wealth,
            disposable=self.disposable,
            bracket=find_bracket(self.income / self.price, self.economy.tax),
            price=self.price * ones,
            inflation=(self.price / self.prices[-12] - 1) * ones,
            interest=np.clip(self.interest, *config.interest) * ones,
            unemployment=unemployment * ones,
            transfer=self.transfer * ones,
            consumption=self.spending,
        )
        return round_states(states)

    def _decide(self, states: States) -> tuple[FloatArray, FloatArray]:
        rule, config, noise = self.economy.behaviour, self.economy.simulator, self.rng.normal(size=(2, self.count))
        log_months = np.log(states.wealth / states.wage + 0.5)  # wealth in months of pay
        odds = rule.work + self.diligence + rule.work_noise * noise[0]
        odds = odds - rule.work_by_wealth * log_months
        odds = odds + rule.work_by_pay * np.log(states.wage / states.price / config.pay)
        work = np.round(1 / (1 + np.exp(-odds)), 2)
        means = states.wealth + states.price * compute_net_income(states, work, self.economy.tax)
        last_share = np.clip(states.consumption / np.maximum(means, 1e-9), 0.01, 0.99)
        odds = rule.consumption - self.thrift - rule.consumption_by_wealth * log_months
        odds = (1 - rule.habit) * odds + rule.habit * np.log(last_share / (1 - last_share))
        consumption = np.round(1 / (1 + np.exp(-odds - rule.consumption_noise * noise[1])), 2)
        return work, consumption

    def _update_transfer(self, states: States, work: FloatArray, taxes: float) -> None:
        economy = self.economy
        benefits = float(np.sum((1 - states.employed) * economy.tax.benefit * states.wage * (1 - work)))
        interest = float(np.sum(states.wealth * states.interest)) / 12
        profits = float(self.spending.sum()) - float(np.sum(work * states.wage))
        money = float(states.wealth.sum() + states.transfer.sum())
        new_money = economy.simulator.inflation_target / 12 * money
        lowest = 0.02 * economy.simulator.pay * self.price
        self.transfer = max((taxes + profits + new_money - benefits - interest) / self.count, lowest)

    def _update_jobs(self, states: States, work: FloatArray, excess: float) -> None:
        config, labour = self.economy.simulator, self.economy.labour
        probability = compute_job_probability(states.employed, work, states.unemployment, labour)
        boom = np.exp(np.clip(config.job_response * excess, -1, 1))
        keeping, finding = 1 - np.minimum((1 - probability) / boom, 1), np.minimum(probability * boom, 1)
        probability = np.where(states.employed > 0, keeping, finding)
        uniform = self.rng.random(self.count)
        bounds = (
            np.ceil((1 - config.unemployment[1]) * self.count),
            np.floor((1 - config.unemployment[0]) * self.count),
        )
        jobs = int(np.clip(np.sum(uniform < probability), *bounds))
        self.employed = np.zeros(self.count)
        self.employed[np.argsort(uniform - probability)[:jobs]] = 1  # draws below their probability come first

    def _update_prices(self, states: States, excess: float) -> None:
        config = self.economy.simulator
        self.prices = [*self.prices[1:], self.price]
        price_change = float(np.clip(config.price_response * excess, -config.price_step, config.price_step))
        pay_gap = float(np.log(config.pay * self.price / self.pay))
        slack = self.economy.labour.natural - float(states.unemployment[0])
        pay_change = price_change + config.wage_catch_up * pay_gap + config.wage_response * slack
        self.price *= float(np.exp(price_change))
        self.pay *= float(np.exp(np.clip(pay_change, -2 * config.price_step, 2 * config.price_step)))
        inflation, target = self.price / self.prices[-12] - 1, config.inflation_target
        rule = config.neutral_rate + inflation + 0.5 * (inflation - target) + 0.5 * float(np.clip(excess, -0.1, 0.1))
        step = config.rate_smoothing * (float(np.clip(rule, *config.interest)) - self.interest)
        self.interest += step

    def _update_ages(self) -> None:
        config = self.economy.simulator
        self.age = self.age + 1 / 12
        self.drift = config.skill_memory * self.drift + self.rng.normal(0.0, config.skill_shock, self.count)
        self._sample_traits(self.age >= self.economy.preferences.last_age)

    def _sample_traits(self, heirs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
        """Sample skill and habits of these households anew; heirs start at the first age."""
        config, rule = self.economy.simulator, self.economy.behaviour
        noise = self.rng.normal(size=(3, self.count))
        self.age = np.where(self.age >= self.economy.preferences.last_age, config.first_age, self.age)
        self.talent = np.where(heirs, config.skill_spread * noise[0], self.talent)
        self.drift = np.where(heirs, 0.0, self.drift)
        self.diligence = np.where(heirs, rule.work_spread * noise[1], self.diligence)
        self.thrift = np.where(heirs, rule.consumption_spread * noise[2], self.thrift)

    def _compute_skill(self) -> FloatArray:
        return np.exp(self.talent + self.drift)


def _compute_gini(amounts: FloatArray) -> float:
    values = np.sort(amounts)
    ranks = np.arange(1, len(values) + 1)
    return float(2 * np.sum(ranks * values) / (len(values) * values.sum()) - (len(values) + 1) / len(values))
