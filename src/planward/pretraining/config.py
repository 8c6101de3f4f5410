"""Parameters of the shipped models: models/params.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from planward.params import AdapterConfig, Range, Section, read_yaml, validate_section


class PhaseConfig(Section):
    """A phase of the base model's training: sizes of its problems by domain, and the optimizer's settings."""

    steps: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    variant_share: float = Field(ge=0, le=1)
    problems: dict[str, dict[str, Range]]


class BaseModelConfig(Section):
    """Section `base` of models/params.yaml."""

    seed: int = Field(ge=0)
    base_share: float = Field(gt=0, le=1)
    batch_tokens: int = Field(gt=0)
    short_sequence: int = Field(gt=0)
    long_sequence: int = Field(gt=0)
    reuse: float = Field(ge=1)
    domain_reuse: float = Field(ge=1)
    dialect_share: float = Field(ge=0, le=1)
    neutral_share: float = Field(ge=0, le=1)
    known_share: float = Field(ge=0, le=1)
    warmup_ratio: float = Field(ge=0, le=1)
    adam_beta2: float = Field(gt=0, lt=1)
    weight_decay: float = Field(ge=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    initializer_range: float = Field(gt=0)
    precision: Literal["float32", "bfloat16"]
    compile: bool
    save_steps: int = Field(gt=0)
    validation: int = Field(ge=5)  # a query and up to four worked examples
    phases: list[PhaseConfig] = Field(min_length=1)


class AdapterTrainingConfig(Section):
    """Section TASK of models/params.yaml, without the keys of the task itself."""

    base: str
    seed: int = Field(ge=0)
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    examples: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    lora: AdapterConfig
    save_steps: int = Field(gt=0)
    validation: int = Field(gt=0)


def load_base_config(path: Path) -> BaseModelConfig:
    """Read section `base` of models/params.yaml; raises ParamsError as `validate_section` does."""
    return validate_section(BaseModelConfig, (read_yaml(path) or {}).get("base"), f"{path}, section base")


def load_adapter_config(path: Path, task: str) -> tuple[AdapterTrainingConfig, dict[str, Any]]:
    """Read the task's section of models/params.yaml; returns the remaining keys as well, which the task validates.

    Raises:
        ParamsError: as `validate_section`.
    """
    raw = (read_yaml(path) or {}).get(task) or {}
    shared_values = {key: value for key, value in raw.items() if key in AdapterTrainingConfig.model_fields}
    config = validate_section(AdapterTrainingConfig, shared_values, f"{path}, section {task}")
    return config, {key: value for key, value in raw.items() if key not in shared_values}
