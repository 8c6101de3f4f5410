"""Parameters of the planning task: problems, difficulty, VAL; params.yaml explains each key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field, field_validator, model_validator

from planward.params import Params, Range, Section


class ProblemsConfig(Section):
    source: Literal["generated", "jsonl", "pddl"]
    path: Path
    planner: Literal["search", "fast-downward"]
    max_states: int = Field(gt=0)
    planner_timeout: float = Field(gt=0)
    base_share: float = Field(ge=0, lt=1)
    constraints: Literal["none", "safety"]
    constrained_share: float = Field(ge=0, le=1)
    dialects: int = Field(ge=1)
    generated: dict[str, dict[str, int | Range]]

    @field_validator("generated")
    @classmethod
    def check_generated(cls, domains: dict[str, dict[str, int | Range]]) -> Any:
        for domain, sizes in domains.items():
            if not isinstance(sizes.get("count"), int):
                raise ValueError(f"{domain}.count must be a whole number")
            for name, size in sizes.items():
                if name != "count" and (isinstance(size, int) or not 0 < size[0] <= size[1]):
                    raise ValueError(f"{domain}.{name} must be [smallest, largest], both positive")
        return domains

    def count(self, domain: str) -> int:
        """Number of problems of a domain to generate."""
        return cast(int, self.generated[domain]["count"])  # see `check_generated`


class DifficultyConfig(Section):
    pattern: str
    weights: dict[str, float]

    @model_validator(mode="after")
    def check_weights(self) -> DifficultyConfig:
        try:
            fields = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ValueError(f"pattern is not a regular expression: {error}") from None
        for name in self.weights:
            if name not in fields:
                raise ValueError(f"weights.{name}: the pattern has no group (?P<{name}>...)")
        return self


class ValConfig(Section):
    timeout: float = Field(gt=0)
    workers: int = Field(gt=0)


class PlanningParams(Params):
    """params.yaml: the sections of all tasks, and those of the planning task."""

    problems: ProblemsConfig
    difficulty: dict[str, DifficultyConfig]
    val: ValConfig

    @model_validator(mode="after")
    def check_difficulty_of_generated(self) -> PlanningParams:
        generated = self.problems.generated if self.problems.source == "generated" else {}
        if missing := [domain for domain in generated if domain not in self.difficulty]:
            raise ValueError(f"problems.generated: no entry under `difficulty` for {', '.join(missing)}")
        return self
