"""Parameters of the economy task: workflow/economy/params.yaml, which explains each key."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from planward.params import Params, Section


class SimulatorConfig(Section):
    """The simulated economy; equations in `planward.tasks.economy.environment.simulator`."""

    households: int = Field(ge=20)
    months: int = Field(gt=0)
    burn_in: int = Field(ge=0)
    first_age: float = Field(ge=16)
    pay: float = Field(gt=0)
    markup: float = Field(ge=0)
    skill_spread: float = Field(ge=0)
    skill_memory: float = Field(ge=0, lt=1)
    skill_shock: float = Field(ge=0)
    wealth_months: float = Field(gt=0)
    price_response: float = Field(gt=0)
    price_step: float = Field(gt=0, le=0.05)
    wage_catch_up: float = Field(gt=0, le=1)
    wage_response: float = Field(ge=0)
    job_response: float = Field(ge=0)
    unemployment: tuple[float, float]
    inflation_target: float = Field(ge=-0.1, le=0.1)
    neutral_rate: float = Field(ge=0, le=0.1)
    rate_smoothing: float = Field(gt=0, le=1)
    interest: tuple[float, float]

    @field_validator("unemployment", "interest")
    @classmethod
    def check_bounds(cls, bounds: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= bounds[0] < bounds[1] < 1:
            raise ValueError("must be [lowest, highest], both in [0, 1), the second one higher")
        return bounds


class TaxConfig(Section):
    """Taxes and benefits; thresholds are in coins of monthly income at a price level of 1."""

    thresholds: list[float]
    rates: list[float]
    benefit: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def check_brackets(self) -> TaxConfig:
        if len(self.rates) != len(self.thresholds) + 1 or len(self.rates) > 32:
            raise ValueError("needs one more rate than thresholds, and at most 32 rates")
        if self.thresholds != sorted(set(self.thresholds)) or min(self.thresholds, default=1) <= 0:
            raise ValueError("thresholds must be positive and increasing")
        if self.rates != sorted(self.rates) or not 0 <= self.rates[0] <= self.rates[-1] < 1:
            raise ValueError("rates must be in [0, 1) and not decreasing")
        return self


class LabourConfig(Section):
    """The labour market; probabilities are per month."""

    natural: float = Field(gt=0, lt=1)
    separation: float = Field(gt=0, lt=1)
    finding: float = Field(gt=0, lt=1)
    kept_offer: float = Field(ge=0, le=1)
    offer: float = Field(gt=0)
    offer_spread: float = Field(ge=0)


class PreferencesConfig(Section):
    """Preferences of households; equations in `planward.tasks.economy.environment.utility`."""

    unit: float = Field(gt=0)
    curvature: float = Field(gt=0)
    subsistence: float = Field(gt=0)
    effort: float = Field(gt=0)
    frisch: float = Field(gt=0)
    ageing: float
    steadiness: float = Field(ge=0)
    patience: float = Field(gt=0, le=1)
    foresight: float = Field(gt=0)
    last_age: float = Field(gt=16)
    counted: float = Field(ge=0)
    usual_work: float = Field(ge=0, le=1)


class BehaviourConfig(Section):
    """Rules of thumb of simulated households, as log odds."""

    work: float
    work_by_pay: float
    work_by_wealth: float
    work_spread: float = Field(ge=0)
    work_noise: float = Field(ge=0)
    consumption: float
    consumption_by_wealth: float
    consumption_spread: float = Field(ge=0)
    consumption_noise: float = Field(ge=0)
    habit: float = Field(ge=0, lt=1)


class EconomyConfig(Section):
    """Section `economy`: the problems, and the economy that they come from."""

    problems: int = Field(ge=2)
    reference_share: float = Field(gt=0, lt=1)
    neighbours: int = Field(gt=0)
    good_quantile: float = Field(gt=0, lt=1)
    collapse_sd: float = Field(gt=0)
    simulator: SimulatorConfig
    labour: LabourConfig
    tax: TaxConfig
    preferences: PreferencesConfig
    behaviour: BehaviourConfig

    @model_validator(mode="after")
    def check_ages(self) -> EconomyConfig:
        if self.simulator.first_age >= self.preferences.last_age:
            raise ValueError("simulator.first_age must be below preferences.last_age")
        return self


class EconomyParams(Params):
    """Parameters of the economy task: what all tasks have, and the section `economy`."""

    economy: EconomyConfig
