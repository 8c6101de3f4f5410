"""Parameters of the planning task: problems, difficulty, VAL; params.yaml explains each key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, cast

from pydantic import Field, field_validator, model_validator

from planward.params import EvaluateConfig, Params, Range, Section

Domains = dict[str, dict[str, int | Range]]  # by domain the `count` of problems, and the range of each size


def check_sizes(domains: Domains) -> Domains:
    """Return the domains without those of count 0; raises ValueError where a count is missing or a size is no range."""
    for domain, sizes in domains.items():
        if not isinstance(sizes.get("count"), int):
            raise ValueError(f"{domain}.count must be a whole number")
        for name, size in sizes.items():
            if name != "count" and (isinstance(size, int) or not 0 < size[0] <= size[1]):
                raise ValueError(f"{domain}.{name} must be [smallest, largest], both positive")
    return {domain: sizes for domain, sizes in domains.items() if sizes["count"]}


class ProblemsConfig(Section):
    source: Literal["generated", "jsonl", "pddl", "planbench"]
    path: Path
    planner: Literal["search", "fast-downward"]
    max_states: int = Field(gt=0)
    planner_timeout: float = Field(gt=0)
    base_share: float = Field(ge=0, lt=1)
    constraints: Literal["none", "safety"]
    constrained_share: float = Field(ge=0, le=1)
    dialects: int = Field(ge=1)
    generated: Domains

    @field_validator("generated")
    @classmethod
    def check_generated(cls, domains: Domains) -> Domains:
        return check_sizes(domains)

    def count(self, domain: str) -> int:
        """Number of problems of a domain to generate."""
        return cast(int, self.generated[domain]["count"])  # see `check_sizes`


REFERENCE_LENGTH = "reference_length"  # a weight's name: the number of actions of the reference plan


class DifficultyConfig(Section):
    pattern: str = ".*"
    weights: dict[str, float] = Field(default={REFERENCE_LENGTH: 1})

    @model_validator(mode="after")
    def check_weights(self) -> DifficultyConfig:
        try:
            fields = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ValueError(f"pattern is not a regular expression: {error}") from None
        for name in self.weights:
            if name not in fields and name != REFERENCE_LENGTH:
                raise ValueError(f"weights.{name}: the pattern has no group (?P<{name}>...)")
        return self


class ValConfig(Section):
    timeout: float = Field(gt=0)
    workers: int = Field(gt=0)


class TransferShotsConfig(Section):
    """Numbers of worked examples in a prompt, by kind of transfer."""

    renamed: list[int] = Field(default=[0], min_length=1)
    larger: list[int] = Field(default=[0], min_length=1)
    unseen: list[int] = Field(default=[0], min_length=1)

    @field_validator("renamed", "larger", "unseen")
    @classmethod
    def check_shots(cls, shots: list[int]) -> list[int]:
        return EvaluateConfig.check_shots(shots)


class TransferConfig(Section):
    """Problems unlike those of training; by default none."""

    methods: list[Literal["sft", "grpo"]] = Field(default=[])
    dataset_size: int = 0
    renamed: int = Field(default=0, ge=0)
    unseen: int = Field(default=0, ge=0)
    shots: TransferShotsConfig = TransferShotsConfig()
    larger: Domains = Field(default={})

    @field_validator("larger")
    @classmethod
    def check_larger(cls, domains: Domains) -> Domains:
        return check_sizes(domains)


class PlanningParams(Params):
    """params.yaml: the sections of all tasks, and those of the planning task."""

    problems: ProblemsConfig
    difficulty: dict[str, DifficultyConfig]
    val: ValConfig
    transfer: TransferConfig = TransferConfig()

    @model_validator(mode="after")
    def check_names_of_dialects(self) -> PlanningParams:
        if self.problems.dialects > 1 and self.prompt.names == "structure" and self.prompt.style == "compact":
            raise ValueError("problems.dialects: dialects show in names only; fix: prompt.names: literal")
        return self

    @model_validator(mode="after")
    def check_difficulty_of_generated(self) -> PlanningParams:
        domains = self.problems.generated if self.problems.source == "generated" else {}
        if missing := [domain for domain in domains if domain not in self.difficulty]:
            raise ValueError(f"problems.generated: no entry under `difficulty` for {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def check_held_out_domains(self) -> PlanningParams:
        is_generated = self.problems.source == "generated"
        domains = list(self.problems.generated) if is_generated else list(self.difficulty)
        if unknown := [domain for domain in self.split.held_out_domains if domain not in domains]:
            raise ValueError(
                f"split.held_out_domains: {', '.join(unknown)} is no domain of the problems ({', '.join(domains)}); "
                "fix: take it out"
            )
        if is_generated and not set(domains) - set(self.split.held_out_domains):
            raise ValueError("split.held_out_domains: leaves no domain to train on; fix: take one out")
        return self

    @model_validator(mode="after")
    def check_samples(self) -> PlanningParams:
        samples = self.evaluate.samples
        if samples.methods and samples.dataset_size not in self.dataset_sizes:
            raise ValueError(
                f"evaluate.samples.dataset_size: {samples.dataset_size} is none of dataset_sizes; take one of "
                f"{', '.join(map(str, self.dataset_sizes))}, or leave evaluate.samples.methods empty"
            )
        return self

    @model_validator(mode="after")
    def check_transfer(self) -> PlanningParams:
        transfer = self.transfer
        if unknown := [domain for domain in transfer.larger if domain not in self.difficulty]:
            raise ValueError(f"transfer.larger: no entry under `difficulty` for {', '.join(unknown)}")
        if transfer.methods and transfer.dataset_size not in self.dataset_sizes:
            raise ValueError(
                f"transfer.dataset_size: {transfer.dataset_size} is none of dataset_sizes; take one of "
                f"{', '.join(map(str, self.dataset_sizes))}, or leave transfer.methods empty"
            )
        if transfer.renamed and (missing := sorted(set(transfer.shots.renamed) - set(self.evaluate.shots))):
            raise ValueError(
                f"transfer.shots.renamed: {', '.join(map(str, missing))} not in evaluate.shots, by which problems with "
                "their own names are evaluated; fix: take numbers from there, or set transfer.renamed to 0"
            )
        return self
