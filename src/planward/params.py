"""Parameters of an experiment: what params.yaml may say, checked before anything runs.

Sections that every task needs are here; a task, the selectors and the cluster define their own next to their code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

PARAMS_FILE = Path("params.yaml")
MAX_YAML_CHARS, MAX_YAML_VALUES = 1_000_000, 100_000  # of a parameter file
METHODS = ("base", "sft", "grpo")  # in the order of every table; any other method is a variant of grpo
Range = tuple[int, int]
Bucket = Literal["easy", "medium", "hard"]
Generation = Literal["own", "transformers", "vllm"]
Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]
BUCKETS: tuple[Bucket, ...] = ("easy", "medium", "hard")
RESERVED_CHAT_OPTIONS = {
    "conversation",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
}
VARIED = ("curriculum", "curriculum_by_domain", "grpo")  # sections that an ablation may change


class ParamsError(ValueError):
    """A parameter file is missing, unreadable or wrong; the message names file and key."""


class Section(BaseModel):
    """A section of a parameter file: unknown keys and wrong types are errors. Written with the file's keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)


AnySection = TypeVar("AnySection", bound=Section)


class SplitConfig(Section):
    validation: float = Field(ge=0, lt=1)
    test: float = Field(gt=0, lt=1)
    held_out_domains: list[str] = []

    @model_validator(mode="after")
    def check_shares(self) -> SplitConfig:
        if self.validation + self.test >= 1:
            raise ValueError("validation + test leave nothing to train on")
        return self

    @field_validator("held_out_domains")
    @classmethod
    def check_held_out_domains(cls, domains: list[str]) -> list[str]:
        if len(set(domains)) < len(domains):
            raise ValueError("names a domain twice")
        return domains


class BucketsConfig(Section):
    easy: float = Field(ge=0, le=100)
    medium: float = Field(ge=0, le=100)

    @model_validator(mode="after")
    def check_order(self) -> BucketsConfig:
        if self.easy > self.medium:
            raise ValueError(
                f"easy: {self.easy:g} is above medium: {self.medium:g}; both are percentiles of the same scores"
            )
        return self


class PhaseConfig(Section):
    until: float = Field(gt=0, le=1)
    easy: float = Field(ge=0, le=1)
    medium: float = Field(ge=0, le=1)
    hard: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def check_sum(self) -> PhaseConfig:
        if abs(self.easy + self.medium + self.hard - 1) > 1e-9:
            raise ValueError(f"the shares of the phase until {self.until} do not sum to 1")
        return self

    @property
    def shares(self) -> dict[Bucket, float]:
        return {"easy": self.easy, "medium": self.medium, "hard": self.hard}


class PromptConfig(Section):
    style: Literal["compact", "full"]
    names: Literal["structure", "literal"] = "structure"
    template: Path | None = None  # None: the task's own
    system_turn: bool = True
    chat_template_options: dict[str, Any] = {}
    max_tokens: int = Field(gt=0)
    max_completion_tokens: int = Field(gt=0)

    @field_validator("chat_template_options")
    @classmethod
    def check_chat_template_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        if keys := sorted(options.keys() & RESERVED_CHAT_OPTIONS):
            raise ValueError(f"{', '.join(keys)}: an argument of apply_chat_template that the pipeline sets itself")
        return options


class AdapterConfig(Section):
    r: int = Field(gt=0)
    alpha: int = Field(gt=0)
    dropout: float = Field(ge=0, lt=1)
    target_modules: str | list[str]
    merge: bool


class VllmConfig(Section):
    mode: Literal["colocate", "server"] = "colocate"
    url: str = Field(default="http://127.0.0.1:8000", pattern="^https?://")
    gpu_memory_utilization: float = Field(default=0.3, gt=0, le=1)
    tensor_parallel_size: int = Field(default=1, gt=0)


class ModelConfig(Section):
    path: str
    backend: Literal["auto", "transformers", "unsloth"]
    generation: Generation = "own"
    vllm: VllmConfig = VllmConfig()
    load_in_4bit: bool
    lora: AdapterConfig | None
    gradient_checkpointing: bool
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    attention: Attention | None = None

    @property
    def keeps_adapter(self) -> bool:
        """Whether what LoRA learnt is kept apart from the weights it was learnt on."""
        return self.lora is not None and not self.lora.merge


class SftConfig(Section):
    epochs: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    micro_batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    max_grad_norm: float = Field(gt=0)
    shots: Range
    renaming: bool
    save_steps: int = Field(gt=0)
    validation_steps: int = Field(ge=0)

    @field_validator("shots")
    @classmethod
    def check_shots(cls, shots: Range) -> Range:
        if not 0 <= shots[0] <= shots[1]:
            raise ValueError("must be [fewest, most], none negative")
        return shots


class TemperaturesConfig(Section):
    easy: float = Field(gt=0)
    medium: float = Field(gt=0)
    hard: float = Field(gt=0)


class AdaptiveConfig(Section):
    """How the choice of problems follows success; see `curriculum.samplers` for the rules."""

    curriculum: bool
    domain_weights: bool
    dynamic_sampling: bool
    window: int = Field(gt=0)
    target: float = Field(ge=0, le=1)
    floor: float = Field(ge=0, le=1)
    missed_turns: int = Field(gt=0)

    @property
    def on(self) -> bool:
        return self.curriculum or self.domain_weights or self.dynamic_sampling


class GrpoConfig(Section):
    start: str = Field(default="sft", alias="from", min_length=1)
    lora: AdapterConfig | None = None
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    num_generations: int = Field(ge=2)
    micro_batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    lr_scheduler_type: Literal["linear", "cosine", "constant"]
    warmup_ratio: float = Field(ge=0, le=1)
    beta: float = Field(ge=0)
    entropy_coef: float = Field(ge=0)
    temperature: float = Field(gt=0)
    temperatures: TemperaturesConfig | None
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    max_grad_norm: float = Field(gt=0)
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"]
    scale_rewards: Literal["none", "group", "batch"]
    shots: int = Field(ge=0)
    renaming: bool
    reward: Literal["dense", "sparse"]
    balanced: bool
    adaptive: AdaptiveConfig
    replay: bool
    audit_share: float = Field(ge=0, le=1)
    save_steps: int = Field(gt=0)
    extendable: bool
    rollouts_mb: float = Field(ge=0)

    @field_validator("start")
    @classmethod
    def check_start(cls, start: str) -> str:
        if start.startswith("/"):
            raise ValueError("must be sft, base or a folder relative to the project's root")
        return start

    @field_validator("lora")
    @classmethod
    def check_lora(cls, lora: AdapterConfig | None) -> AdapterConfig | None:
        if lora is not None and not lora.merge:
            raise ValueError("merge must be true: weights that SFT trained in full have no adapter to continue")
        return lora

    @model_validator(mode="after")
    def check_domain_weights(self) -> GrpoConfig:
        if self.adaptive.domain_weights and not self.balanced:
            raise ValueError("adaptive.domain_weights shares out a step's prompts by domain, so balanced must be true")
        return self


class ValidationConfig(Section):
    steps: int = Field(ge=0)
    problems: int = Field(gt=0)
    batch_size: int = Field(default=64, gt=0)
    keep: Literal["best", "last"]
    patience: int | None = Field(gt=0)


class LoggingConfig(Section):
    """Experiment loggers."""

    report_to: list[Literal["wandb", "tensorboard", "trackio", "mlflow"]] = []
    project: str = Field(default="planward", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")

    @field_validator("report_to")
    @classmethod
    def check_report_to(cls, loggers: list[str]) -> list[str]:
        if len(set(loggers)) < len(loggers):
            raise ValueError("names a logger twice")
        return loggers


class SamplesConfig(Section):
    """Sampled completions of each test problem; by default none."""

    count: int = Field(default=0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    shot_num: int = Field(default=0, ge=0)
    methods: list[Literal["sft", "grpo"]] = []
    dataset_size: int = 0

    @property
    def ks(self) -> list[int]:
        """The k of pass@k: powers of two up to `count`, and `count`."""
        return sorted({2**exponent for exponent in range(self.count.bit_length())} | {self.count} - {0})


class EvaluateConfig(Section):
    shots: list[int] = Field(min_length=1)
    batch_size: int = Field(gt=0)
    samples: SamplesConfig = SamplesConfig()

    @field_validator("shots")
    @classmethod
    def check_shots(cls, shots: list[int]) -> list[int]:
        if min(shots) < 0 or len(set(shots)) < len(shots):
            raise ValueError("must be different numbers, none negative")
        return shots


class CompareConfig(Section):
    confidence: float = Field(gt=0, lt=1)
    resamples: int = Field(ge=100)
    margin: float = Field(default=2.0, gt=0)


class AblationsConfig(Section):
    """Variants of the GRPO run: each lays its keys over the sections that `VARIED` names."""

    dataset_size: int
    run: list[str]
    variants: dict[str, dict[str, Any]]

    @model_validator(mode="after")
    def check_variants(self) -> AblationsConfig:
        for name, sections in self.variants.items():
            if name in METHODS or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise ValueError(f"variants.{name}: a name is small letters, digits and _, and none of {METHODS}")
            if not sections or any(section not in VARIED for section in sections):
                raise ValueError(
                    f"variants.{name}: may change {', '.join(VARIED)} (got {', '.join(sections) or 'nothing'})"
                )
        if unknown := [name for name in self.run if name not in self.variants]:
            raise ValueError(f"run: no entry under `variants` for {', '.join(unknown)}")
        if len(set(self.run)) < len(self.run):
            raise ValueError("run: names a variant twice")
        return self


LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")  # of a request to an endpoint: the length of its completion


class EndpointConfig(Section):
    """A model behind an OpenAI-compatible API: what decides its completions."""

    url: str
    model: str = Field(min_length=1)
    api: Literal["chat", "completions"] = "chat"
    max_completion_tokens: int | None = Field(default=None, gt=0)  # None: prompt.max_completion_tokens
    options: dict[str, Any] = {}

    @model_validator(mode="after")  # of the section, so that the message does not show a key in the URL
    def check_url(self) -> EndpointConfig:
        if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", self.url):
            raise ValueError("url must be http(s)://HOST[:PORT][/PATH] without user, password and query; keys: key_env")
        return self

    @field_validator("options")
    @classmethod
    def check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        if keys := sorted(options.keys() & {"model", "messages", "prompt", "n", "best_of", "stream"}):
            raise ValueError(f"{', '.join(keys)}: a field of the request that the pipeline sets itself")
        for key in LIMIT_FIELDS:
            if not (options.get(key) is None or (type(options[key]) is int and options[key] > 0)):
                raise ValueError(f"{key}: must be a whole number above 0, or null")
        return options

    @property
    def has_limit(self) -> bool:
        """Whether requests limit the tokens of a completion."""
        return any(({"max_tokens": 1} | self.options).get(key) is not None for key in LIMIT_FIELDS)


class AccessConfig(Section):
    """How an endpoint is asked; changes no completion."""

    key_env: str | None = None
    concurrency: int = Field(default=8, gt=0)
    requests_per_minute: float | None = Field(default=None, gt=0)
    timeout_s: float = Field(default=600, gt=0)
    max_retries: int = Field(default=5, ge=0)
    token_budget: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")  # of the section, so that the message does not show a key
    def check_key_env(self) -> AccessConfig:
        if self.key_env is not None and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.key_env):
            raise ValueError("key_env must be a variable's name (capitals, digits and _), not the key")
        return self


class EndpointsConfig(Section):
    """Hosted and served models that are evaluated beside the run's own; `access` has entries of the same names."""

    run: list[str] = []
    models: dict[str, EndpointConfig] = {}
    access: dict[str, AccessConfig] = {}

    @model_validator(mode="after")
    def check_names(self) -> EndpointsConfig:
        for name in self.models:
            if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
                raise ValueError(f"models.{name}: a name is small letters, digits, - and _, and begins with a letter")
        for key, names in (("run", self.run), ("access", list(self.access))):
            if unknown := [name for name in names if name not in self.models]:
                raise ValueError(f"{key}: no entry under `models` for {', '.join(unknown)}")
        if len(set(self.run)) < len(self.run):
            raise ValueError("run: names an endpoint twice")
        for name, access in self.access.items():
            if access.token_budget is not None and not self.models[name].has_limit:
                raise ValueError(
                    f"access.{name}.token_budget: needs a limit for each completion; fix: "
                    f"models.{name}.options.max_completion_tokens"
                )
        return self


class Params(Section):
    """What all tasks share. A task's own parameters are a subclass, `tasks.NAME.*.config`."""

    task: str = "planning"
    seed: int = Field(ge=0)
    seeds: list[int] = Field(min_length=1)
    dataset_sizes: list[int] = Field(min_length=1)
    tracks: list[str] = []
    split: SplitConfig
    buckets: BucketsConfig
    curriculum: list[PhaseConfig] = Field(min_length=1)
    curriculum_by_domain: dict[str, list[PhaseConfig]] = {}
    prompt: PromptConfig
    model: ModelConfig
    sft: SftConfig
    grpo: GrpoConfig
    validation: ValidationConfig
    logging: LoggingConfig = LoggingConfig()
    evaluate: EvaluateConfig
    compare: CompareConfig
    ablations: AblationsConfig = AblationsConfig(dataset_size=0, run=[], variants={})
    endpoints: EndpointsConfig = EndpointsConfig()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the main tables: endpoints stand beside `METHODS`."""
        return (*METHODS, *self.endpoints.run)

    def move_grpo_lora(self) -> Self:
        """Parameters of a GRPO run whose `grpo.lora`, if given, is where all stages look for it: `model.lora`."""
        if self.grpo.lora is None:
            return self
        model = self.model.model_copy(update={"lora": self.grpo.lora})
        return self.model_copy(update={"model": model, "grpo": self.grpo.model_copy(update={"lora": None})})

    def variant(self, name: str) -> Self:
        """Parameters of a GRPO run: those of `grpo` unchanged, those of a variant with its keys laid over them.

        Raises:
            ParamsError: there is no such variant, or it has an unknown key or a wrong value; the message names it.
        """
        if name == "grpo":
            return self
        if name not in self.ablations.variants:
            names = ", ".join(self.ablations.variants) or "none"
            raise ParamsError(f"ablations.variants: no entry {name}; there are: {names}")
        plain = self.ablations.model_copy(update={"run": [], "variants": {}})  # a variant has no variants
        raw = self.model_copy(update={"ablations": plain}).model_dump(mode="json")
        lay_over(raw, self.ablations.variants[name])
        try:
            variant_params = type(self).model_validate(raw)
        except ValidationError as error:
            faults = (f"ablations.variants.{name}.{fault}" for fault in _list_faults(error))
            raise ParamsError("; ".join(faults)) from None
        return variant_params.model_copy(update={"ablations": self.ablations})

    @model_validator(mode="after")
    def check_variants(self) -> Self:
        if self.ablations.run and self.ablations.dataset_size not in self.dataset_sizes:
            sizes = ", ".join(map(str, self.dataset_sizes))
            raise ValueError(
                f"ablations.dataset_size: {self.ablations.dataset_size} is none of dataset_sizes; take one of {sizes}, "
                "or leave ablations.run empty"
            )
        for name in self.ablations.variants:
            start = self.variant(name).grpo.start
            if start not in ("base", self.grpo.start):
                raise ValueError(
                    f"ablations.variants.{name}.grpo.from: a variant starts from base or as grpo does, from "
                    f"{self.grpo.start} (got {start}): the pipeline tracks no other weights"
                )
        return self

    @model_validator(mode="after")
    def check_grpo_lora(self) -> Self:
        if self.grpo.lora is not None and self.model.lora is not None:
            raise ValueError(
                "grpo.lora: is for GRPO after SFT of all weights; fix: model.lora: null, or grpo.lora: null"
            )
        return self

    @model_validator(mode="after")
    def check_endpoints(self) -> Self:
        for name in self.endpoints.models:
            if name.partition("-")[0] in (*METHODS, *self.ablations.variants):  # its files might be those of a run
                raise ValueError(f"endpoints.models.{name}: begins like another method; choose another name")
        for name in self.endpoints.run:
            api, style = self.endpoints.models[name].api, self.prompt.style
            if api == "chat" and style == "compact":
                raise ValueError(
                    f"endpoints.models.{name}.api: chat, but prompt.style is compact, whose text only models/base "
                    "understands; fix: prompt.style: full, or api: completions for a server of such a model"
                )
            if api == "completions" and style == "full":
                raise ValueError(
                    f"endpoints.models.{name}.api: completions takes plain text, but prompt.style is full, a chat; "
                    "fix: api: chat"
                )
        return self

    @model_validator(mode="after")
    def check_extendable(self) -> Self:
        phases = [self.curriculum, *self.curriculum_by_domain.values()]
        depends_on_progress = self.grpo.adaptive.on or any(len(domain_phases) > 1 for domain_phases in phases)
        is_constant = self.grpo.lr_scheduler_type == "constant" and not self.grpo.warmup_ratio
        if self.grpo.extendable and (depends_on_progress or not is_constant):
            raise ValueError(
                "grpo.extendable: the first steps of a longer run must be the same, so grpo.lr_scheduler_type must be "
                "constant, grpo.warmup_ratio 0, grpo.adaptive off, and the curriculum one phase"
            )
        steps, interval = self.grpo.steps, self.validation.steps
        if self.grpo.extendable and interval and steps % interval:
            multiples = [steps // interval * interval, (steps // interval + 1) * interval]
            raise ValueError(
                f"grpo.steps: {steps} is no multiple of validation.steps: {interval}, so a longer run is not validated "
                f"after step {steps}, and grpo.extendable needs the same curves; fix: grpo.steps: "
                f"{' or '.join(str(multiple) for multiple in multiples if multiple)}; or validation.steps: 0; or "
                "grpo.extendable: false"
            )
        return self

    @field_validator("seeds")
    @classmethod
    def check_seeds(cls, seeds: list[int]) -> list[int]:
        if min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError("must be different numbers, none negative")
        return seeds

    @field_validator("dataset_sizes")
    @classmethod
    def check_dataset_sizes(cls, sizes: list[int]) -> list[int]:
        if sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError("must be positive and rising: each set holds the smaller ones")
        return sizes

    @field_validator("tracks")
    @classmethod
    def check_tracks(cls, tracks: list[str]) -> list[str]:
        if len(set(tracks)) < len(tracks) or not all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in tracks):
            raise ValueError("must be different names of folders in workflow/")
        return tracks

    @field_validator("curriculum")
    @classmethod
    def check_curriculum(cls, phases: list[PhaseConfig]) -> list[PhaseConfig]:
        ends = [phase.until for phase in phases]
        if not ends or ends != sorted(set(ends)) or ends[-1] != 1:
            raise ValueError("`until` must rise from phase to phase and end at 1.0")
        return phases

    @field_validator("curriculum_by_domain")
    @classmethod
    def check_curriculum_by_domain(cls, domains: dict[str, list[PhaseConfig]]) -> dict[str, list[PhaseConfig]]:
        for domain, phases in domains.items():
            try:
                cls.check_curriculum(phases)
            except ValueError as error:
                raise ValueError(f"{domain}: {error}") from None
        return domains

    @model_validator(mode="after")
    def check_balanced(self) -> Self:
        if self.curriculum_by_domain and not self.grpo.balanced:
            raise ValueError(
                "curriculum_by_domain needs grpo.balanced: true; otherwise prompts are drawn over all domains"
            )
        return self


# Sections that other tasks take from params.yaml.
SHARED = ("seed", "seeds", "split", "buckets", "logging", "evaluate", "compare")

# What stands in no other task's file: their stages do not read it there.
MAIN_ONLY = (*SHARED, "tracks", "ablations", "endpoints")


_records: list[list[tuple[Path, bytes]]] = []  # of `record_reads`, while their blocks run


def read_yaml(path: Path) -> Any:
    """Parse a YAML file.

    Raises:
        ParamsError: it is missing, not UTF-8, not YAML, or too large once its aliases are written out.
    """
    try:
        content = path.read_bytes()
        for record in _records:
            record.append((path, content))
        text = content.decode("utf-8")
        check_yaml_size(text, str(path))
        return YAML(typ="safe", pure=True).load(text)
    except FileNotFoundError:
        fix = "run from the root of a checkout of Planward (git clone)"
        raise ParamsError(f"{path}: no such file; fix: {fix}") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: not UTF-8 (byte {error.start})") from None
    except YAMLError as error:
        raise ParamsError(f"{path}: not YAML: {error}") from None
    except RecursionError:
        raise ParamsError(f"{path}: not YAML: nested too deeply") from None


@contextmanager
def record_reads() -> Iterator[list[tuple[Path, bytes]]]:
    """Yield a list of what `read_yaml` reads in the block: each file with its content then."""
    reads: list[tuple[Path, bytes]] = []
    _records.append(reads)
    try:
        yield reads
    finally:
        _records[:] = [record for record in _records if record is not reads]


def check_yaml_size(text: str, source: str) -> None:
    """Check the size of a document before it is built: aliases of aliases grow exponentially.

    Raises:
        ParamsError: more than MAX_YAML_CHARS, or more than MAX_YAML_VALUES once aliases are written out; `source`
            names the file.
        YAMLError: not YAML.
    """
    if len(text) > MAX_YAML_CHARS:
        raise ParamsError(f"{source}: {len(text):,} characters; at most {MAX_YAML_CHARS:,} are read")
    if "*" not in text:
        return
    sizes: dict[int, float] = {}  # of nodes by identity; infinite while a node is being counted, so in a circle

    def count_values(node: Any) -> float:
        if id(node) not in sizes:
            sizes[id(node)] = inf
            value = node.value if isinstance(node.value, list) else []
            parts = (part for item in value for part in (item if isinstance(item, tuple) else (item,)))
            sizes[id(node)] = 1 + sum(map(count_values, parts))
        return sizes[id(node)]

    root = YAML(typ="safe", pure=True).compose(text)
    if root is not None and count_values(root) > MAX_YAML_VALUES:
        raise ParamsError(
            f"{source}: more than {MAX_YAML_VALUES:,} values once aliases (*name) are written out; fix: use fewer"
        )


def validate_section(model: type[AnySection], raw: Any, source: str) -> AnySection:
    """Turn a parsed YAML document into typed parameters; `source` names it in errors.

    Raises:
        ParamsError: an unknown key, a missing one or a wrong value; the message names each.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        faults = _list_faults(error)
        raise ParamsError("\n".join([f"{source}: {len(faults)} mistake(s)", *(f"  {f}" for f in faults)])) from None


def lay_over(document: Any, changes: dict[str, Any]) -> None:
    """Write the values of `changes` into `document`, section by section; comments are kept.

    Lists are replaced, and so is a section by an empty one.
    """
    for key, value in changes.items():
        if value and isinstance(value, dict) and isinstance(document.get(key), dict):
            lay_over(document[key], value)
        elif isinstance(value, list) and isinstance(document.get(key), list):
            if not document[key] and hasattr(document[key], "fa"):
                document[key].fa.set_flow_style()  # ruamel forgets the style of an empty list
            document[key][:] = value  # keeps the style and the comment
        else:
            document[key] = value


def _list_faults(error: ValidationError) -> list[str]:
    return [f"{_format_key(fault['loc'])}: {_format_fault(fault)}" for fault in error.errors()]


def _format_key(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "(top level)"


def _format_fault(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown key"
    if fault["type"] == "missing":
        return "missing"
    if isinstance(fault["input"], dict):  # a whole section
        return str(fault["msg"])
    return f"{fault['msg']} (got {fault['input']!r})"
