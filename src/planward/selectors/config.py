"""Parameters of the selectors track: workflow/selectors/params.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from planward.core.paths import params_file
from planward.params import Section, read_yaml, validate_section


class PointerConfig(Section):
    hidden: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    dropout: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def check_heads(self) -> PointerConfig:
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self


class SelectorTrainingConfig(Section):
    """What every training method of the pointer has."""

    epochs: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    patience: int = Field(gt=0)


class SelectorSftConfig(SelectorTrainingConfig):
    label_smoothing: float = Field(ge=0, lt=1)
    pool_weight: float = Field(ge=0, lt=1)
    pool_temperature: float = Field(gt=0)

    @model_validator(mode="after")
    def check_label_shares(self) -> SelectorSftConfig:
        if self.label_smoothing + self.pool_weight >= 1:
            raise ValueError("label_smoothing + pool_weight must be below 1; the rest of a label is the beam's choice")
        return self


class SelectorRceConfig(SelectorTrainingConfig):
    temperature: tuple[float, float]

    @field_validator("temperature")
    @classmethod
    def check_temperature(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if not 0 < ends[1] <= ends[0]:
            raise ValueError("must be [first, last], both positive, the last no higher")
        return ends


class SelectorGrpoConfig(SelectorTrainingConfig):
    reward: Literal["combined", "correctness"]
    quality_weight: float = Field(ge=0)
    correctness_weight: float = Field(ge=0)
    diversity_weight: float = Field(ge=0)
    low_score: float = Field(ge=0, le=1)
    clip: float = Field(gt=0, lt=1)
    advantage_limit: float = Field(gt=0)
    early_beams: int = Field(ge=2)
    early_until: float = Field(ge=0, le=1)
    beta: float = Field(ge=0)
    beta_bounds: tuple[float, float]
    beta_factor: float = Field(ge=1)
    kl_target: tuple[float, float]

    @field_validator("beta_bounds", "kl_target")
    @classmethod
    def check_range(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= ends[0] < ends[1]:
            raise ValueError("must be [lower, upper], neither negative")
        return ends

    @model_validator(mode="after")
    def check_beta(self) -> SelectorGrpoConfig:
        lower, upper = self.beta_bounds
        if self.beta and not lower <= self.beta <= upper:
            raise ValueError(f"beta ({self.beta}) must be 0 or within beta_bounds ([{lower}, {upper}])")
        return self


class SelectorsConfig(Section):
    """workflow/selectors/params.yaml; its comments say what each key means."""

    model: Path
    dialects: int = Field(ge=1)
    embeddings: Literal["model", "tfidf", "file"]
    layers: list[int] = Field(min_length=1)
    embeddings_file: Path | None
    shot_num: int = Field(gt=0)
    pool: int = Field(gt=0)
    beams: int = Field(ge=2)
    shortlist: int | None = Field(gt=0)
    precision: Literal["auto", "float32", "bfloat16"]
    batch_tokens: int = Field(gt=0)
    validation: int = Field(gt=0)
    test: int = Field(gt=0)
    pointer: PointerConfig
    batch_size: int = Field(gt=0)
    max_grad_norm: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    sft: SelectorSftConfig
    rce: SelectorRceConfig
    grpo: SelectorGrpoConfig

    @model_validator(mode="after")
    def check_consistency(self) -> SelectorsConfig:
        if self.pool < self.shot_num:
            raise ValueError(f"pool ({self.pool}) holds fewer examples than shot_num ({self.shot_num})")
        if self.embeddings == "file" and self.embeddings_file is None:
            raise ValueError("embeddings_file: name the file, or choose other embeddings")
        return self


def load_selectors_config(root: Path = Path()) -> SelectorsConfig:
    """Read and check workflow/selectors/params.yaml below the project's `root`.

    Raises:
        ParamsError: the file is missing, is not YAML, or has an unknown key or a wrong value; the message names each.
    """
    path = root / params_file("selectors")
    return validate_section(SelectorsConfig, read_yaml(path), str(path))
