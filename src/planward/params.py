"""Typed parameters: what params.yaml may say, checked before anything runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from planward.records import BASE, METHODS, POINTERS, RULES, Run, written

PARAMS_FILE = Path("params.yaml")
RESULTS = Path("results")
Range = tuple[int, int]
Bucket = Literal["easy", "medium", "hard"]
BUCKETS: tuple[Bucket, ...] = ("easy", "medium", "hard")
TaskName = Literal["planning", "economy"]
OTHER_TASKS: tuple[TaskName, ...] = ("economy",)  # than planning
VARIED = ("curriculum", "curriculum_by_domain", "grpo")  # what an ablation may change


class ParamsError(ValueError):
    """params.yaml does not say what it may say; the message names file and key."""


class Strict(BaseModel):
    """A section of params.yaml: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Section = TypeVar("Section", bound=Strict)


class Problems(Strict):
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
    def counts_and_ranges(cls, domains: dict[str, dict[str, int | Range]]) -> Any:
        for domain, sizes in domains.items():
            if not isinstance(sizes.get("count"), int):
                raise ValueError(f"{domain}.count must be a whole number")
            for name, size in sizes.items():
                if name != "count" and (isinstance(size, int) or not 0 < size[0] <= size[1]):
                    raise ValueError(f"{domain}.{name} must be [smallest, largest], both positive")
        return domains

    def count(self, domain: str) -> int:
        """How many problems of a domain to generate."""
        return cast(int, self.generated[domain]["count"])  # `counts_and_ranges` has seen to it


class Split(Strict):
    validation: float = Field(ge=0, lt=1)
    test: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def leaves_training(self) -> Split:
        if self.validation + self.test >= 1:
            raise ValueError("validation + test leave nothing to train on")
        return self


class Difficulty(Strict):
    pattern: str
    weights: dict[str, float]

    @model_validator(mode="after")
    def names_its_fields(self) -> Difficulty:
        try:
            fields = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ValueError(f"pattern is not a regular expression: {error}") from None
        for name in self.weights:
            if name not in fields:
                raise ValueError(f"weights.{name}: the pattern has no (?P<{name}>...)")
        return self


class Percentiles(Strict):
    easy: float = Field(ge=0, le=100)
    medium: float = Field(ge=0, le=100)


class Phase(Strict):
    until: float = Field(gt=0, le=1)
    easy: float = Field(ge=0, le=1)
    medium: float = Field(ge=0, le=1)
    hard: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def sums_to_one(self) -> Phase:
        if abs(self.easy + self.medium + self.hard - 1) > 1e-9:
            raise ValueError(f"the shares of the phase until {self.until} do not sum to 1")
        return self

    @property
    def shares(self) -> dict[Bucket, float]:
        return {"easy": self.easy, "medium": self.medium, "hard": self.hard}


class Prompt(Strict):
    style: Literal["compact", "full"]
    max_tokens: int = Field(gt=0)
    max_completion_tokens: int = Field(gt=0)


class Lora(Strict):
    r: int = Field(gt=0)
    alpha: int = Field(gt=0)
    dropout: float = Field(ge=0, lt=1)
    target_modules: str | list[str]
    merge: bool


class Model(Strict):
    path: str
    backend: Literal["auto", "transformers", "unsloth"]
    load_in_4bit: bool
    lora: Lora | None
    gradient_checkpointing: bool

    @property
    def keeps_adapter(self) -> bool:
        """Whether what LoRA learnt is kept apart from the weights it was learnt on."""
        return self.lora is not None and not self.lora.merge


class Sft(Strict):
    epochs: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    micro_batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    max_grad_norm: float = Field(gt=0)
    shots: Range
    renaming: bool
    save_steps: int = Field(gt=0)

    @field_validator("shots")
    @classmethod
    def fewest_first(cls, shots: Range) -> Range:
        if not 0 <= shots[0] <= shots[1]:
            raise ValueError("must be [fewest, most], none negative")
        return shots


class Temperatures(Strict):
    easy: float = Field(gt=0)
    medium: float = Field(gt=0)
    hard: float = Field(gt=0)


class Adaptive(Strict):
    """How the choice of problems follows success; `curriculum.sampling` has the rules."""

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


class Grpo(Strict):
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    num_generations: int = Field(ge=2)
    micro_batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    lr_scheduler_type: Literal["linear", "cosine", "constant"]
    beta: float = Field(ge=0)
    entropy_coef: float = Field(ge=0)
    temperature: float = Field(gt=0)
    temperatures: Temperatures | None
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    max_grad_norm: float = Field(gt=0)
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"]
    scale_rewards: Literal["none", "group", "batch"]
    shots: int = Field(ge=0)
    renaming: bool
    reward: Literal["dense", "sparse"]
    balanced: bool
    adaptive: Adaptive
    replay: bool
    audit_share: float = Field(ge=0, le=1)
    save_steps: int = Field(gt=0)
    extendable: bool
    report_to: list[Literal["wandb", "tensorboard", "trackio"]]

    @model_validator(mode="after")
    def weighs_what_it_balances(self) -> Grpo:
        if self.adaptive.domain_weights and not self.balanced:
            raise ValueError("adaptive.domain_weights shares out a step's prompts by domain, so balanced must be true")
        return self


class Validation(Strict):
    steps: int = Field(ge=0)
    problems: int = Field(gt=0)


class Val(Strict):
    timeout: float = Field(gt=0)
    workers: int = Field(gt=0)


class Evaluate(Strict):
    shots: list[int] = Field(min_length=1)
    batch_size: int = Field(gt=0)

    @field_validator("shots")
    @classmethod
    def told_apart(cls, shots: list[int]) -> list[int]:
        if min(shots) < 0 or len(set(shots)) < len(shots):
            raise ValueError("must be different numbers, none negative")
        return shots


class Pointer(Strict):
    hidden: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    dropout: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def divides_among_heads(self) -> Pointer:
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        return self


class SelectorPhase(Strict):
    epochs: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    patience: int = Field(gt=0)


class SelectorSft(SelectorPhase):
    label_smoothing: float = Field(ge=0, lt=1)
    pool_weight: float = Field(ge=0, lt=1)
    pool_temperature: float = Field(gt=0)

    @model_validator(mode="after")
    def leaves_the_beams_a_share(self) -> SelectorSft:
        if self.label_smoothing + self.pool_weight >= 1:
            raise ValueError("label_smoothing + pool_weight leave nothing of the label to the beams")
        return self


class SelectorRce(SelectorPhase):
    temperature: tuple[float, float]

    @field_validator("temperature")
    @classmethod
    def falling(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if not 0 < ends[1] <= ends[0]:
            raise ValueError("must be [first, last], both positive, the last no higher")
        return ends


class SelectorGrpo(SelectorPhase):
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
    def rising(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= ends[0] < ends[1]:
            raise ValueError("must be [lower, upper], none negative")
        return ends


class Demonstrations(Strict):
    """The selector of worked examples; `planward.demonstrations` has the methods."""

    model: Path
    dialects: int = Field(ge=1)
    embeddings: Literal["model", "tfidf", "file"]
    layers: list[int] = Field(min_length=1)
    embeddings_file: Path | None
    shot_num: int = Field(gt=0)
    pool: int = Field(gt=0)
    beams: int = Field(ge=2)
    shortlist: int | None = Field(gt=0)
    precision: Literal["float32", "bfloat16"]
    batch_tokens: int = Field(gt=0)
    validation: int = Field(gt=0)
    test: int = Field(gt=0)
    pointer: Pointer
    batch_size: int = Field(gt=0)
    max_grad_norm: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    sft: SelectorSft
    rce: SelectorRce
    grpo: SelectorGrpo

    @model_validator(mode="after")
    def can_be_chosen_from(self) -> Demonstrations:
        if self.pool < self.shot_num:
            raise ValueError(f"pool ({self.pool}) holds fewer examples than shot_num ({self.shot_num})")
        if self.embeddings == "file" and self.embeddings_file is None:
            raise ValueError("embeddings_file: name the file, or take another kind of embeddings")
        return self


class Simulator(Strict):
    """The economy that households live in; `planward.tasks.economy.simulator` has the equations."""

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
    def rising(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= ends[0] < ends[1] < 1:
            raise ValueError("must be [least, most], both shares, the second higher")
        return ends


class Tax(Strict):
    """What the state takes and gives; thresholds are in coins a month at a price level of 1."""

    thresholds: list[float]
    rates: list[float]
    benefit: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def is_progressive(self) -> Tax:
        if len(self.rates) != len(self.thresholds) + 1 or len(self.rates) > 32:
            raise ValueError("rates must be one more than thresholds, and 32 at most")
        if self.thresholds != sorted(set(self.thresholds)) or min(self.thresholds, default=1) <= 0:
            raise ValueError("thresholds must be positive and rising")
        if self.rates != sorted(self.rates) or not 0 <= self.rates[0] <= self.rates[-1] < 1:
            raise ValueError("rates must be shares below 1, and rising")
        return self


class Labour(Strict):
    """Jobs; chances are a month's."""

    natural: float = Field(gt=0, lt=1)
    separation: float = Field(gt=0, lt=1)
    finding: float = Field(gt=0, lt=1)
    kept_offer: float = Field(ge=0, le=1)
    offer: float = Field(gt=0)
    offer_spread: float = Field(ge=0)


class Preferences(Strict):
    """What decisions are valued by; `planward.tasks.economy.utility` has the equations."""

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


class Behaviour(Strict):
    """The rules of thumb of simulated households, as log odds."""

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


class Economy(Strict):
    """The second task; `own` is laid over the rest of params.yaml where a stage serves it."""

    problems: int = Field(ge=2)
    reference_share: float = Field(gt=0, lt=1)
    neighbours: int = Field(gt=0)
    good_quantile: float = Field(gt=0, lt=1)
    collapse_sd: float = Field(gt=0)
    simulator: Simulator
    labour: Labour
    tax: Tax
    preferences: Preferences
    behaviour: Behaviour
    own: dict[str, Any]

    @model_validator(mode="after")
    def lives_for_a_while(self) -> Economy:
        if self.simulator.first_age >= self.preferences.last_age:
            raise ValueError("simulator.first_age must be below preferences.last_age")
        return self


class Compare(Strict):
    confidence: float = Field(gt=0, lt=1)
    resamples: int = Field(ge=100)


class Ablations(Strict):
    """Variants of the GRPO run: each lays its keys over the sections that `VARIED` names."""

    dataset_size: int
    run: list[str]
    variants: dict[str, dict[str, Any]]

    @model_validator(mode="after")
    def names_its_variants(self) -> Ablations:
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


class Base(Strict):
    """models/base/params.yaml, section `base`."""

    seed: int = Field(ge=0)
    base_share: float = Field(gt=0, le=1)
    steps: int = Field(gt=0)
    batch_tokens: int = Field(gt=0)
    short_sequence: int = Field(gt=0)
    long_sequence: int = Field(gt=0)
    reuse: float = Field(ge=1)
    constrained_share: float = Field(ge=0, le=1)
    careless_share: float = Field(ge=0, le=1)
    dialect_share: float = Field(ge=0, le=1)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    adam_beta2: float = Field(gt=0, lt=1)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    initializer_range: float = Field(gt=0)
    save_steps: int = Field(gt=0)
    validation: int = Field(gt=0)
    vocabulary: dict[str, dict[str, int]]
    problems: dict[str, dict[str, Range]]


class Cluster(Strict):
    """The machines that verl trains on; `planward.clusters` has what becomes of each key."""

    nodes: int = Field(gt=0)
    gpus_per_node: int = Field(gt=0)
    rollout: Literal["vllm", "sglang"]
    tensor_parallel: int = Field(gt=0)
    gpu_memory_utilization: float = Field(gt=0, lt=1)
    attention: Literal["flash_attention_2", "sdpa"]
    offload: bool
    reward_workers: int = Field(gt=0)
    model: str | None
    checkpoints: Path
    keep_checkpoints: int = Field(gt=0)

    @field_validator("checkpoints")
    @classmethod
    def found_again(cls, folder: Path) -> Path:
        if not folder.is_absolute():
            raise ValueError("must be an absolute path: a job's own folder is another one each time")
        return folder

    @model_validator(mode="after")
    def divides_its_gpus(self) -> Cluster:
        if self.nodes * self.gpus_per_node % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel ({self.tensor_parallel}) must divide nodes x gpus_per_node "
                f"({self.nodes * self.gpus_per_node})"
            )
        return self


class Adapter(Strict):
    """models/economy/params.yaml, section `adapter`."""

    base: str
    seed: int = Field(ge=0)
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    examples: int = Field(gt=0)
    households: int = Field(gt=0)
    months: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, le=1)
    lora: Lora
    save_steps: int = Field(gt=0)
    validation: int = Field(gt=0)


class Params(Strict):
    task: TaskName = "planning"  # set by `of`; params.yaml, which serves all tasks, leaves it out
    seed: int = Field(ge=0)
    seeds: list[int] = Field(min_length=1)
    dataset_sizes: list[int] = Field(min_length=1)
    problems: Problems
    split: Split
    difficulty: dict[str, Difficulty]
    buckets: Percentiles
    curriculum: list[Phase] = Field(min_length=1)
    curriculum_by_domain: dict[str, list[Phase]]
    prompt: Prompt
    model: Model
    sft: Sft
    grpo: Grpo
    validation: Validation
    val: Val
    evaluate: Evaluate
    demonstrations: Demonstrations
    economy: Economy
    compare: Compare
    ablations: Ablations
    cluster: Cluster

    def of(self, task: TaskName) -> Params:
        """The parameters of a task: as they stand for planning, with the task's `own` laid over them for another.

        Another task has no variants but its own.

        Raises:
            ParamsError: `own` has an unknown key or a wrong value; the message names it. Or these are already those of
                another task.
        """
        if task == self.task:
            return self
        if self.task != "planning":
            raise ParamsError(f"task: these are the parameters of {self.task} alone; leave the key out")
        raw = self.model_dump(mode="json") | {"task": task}
        raw["ablations"] |= {"run": [], "variants": {}}
        section: Economy = getattr(self, task)
        _lay_over(raw, section.own)
        try:
            return Params.model_validate(raw)
        except ValidationError as error:
            raise ParamsError("; ".join(f"{task}.own.{fault}" for fault in _faults(error))) from None

    def placed(self, results: Path) -> Path:
        """Where the task keeps what planning keeps at `results`, a path below results/."""
        return results if self.task == "planning" else RESULTS / self.task / results.relative_to(RESULTS)

    def concerns(self, name: str) -> bool:
        """Whether a result's name (`grpo-200-3407`, `sft@400-3407`, `split`) is of a size, seed and variant asked for.

        Results that params.yaml no longer names stay on disk until `make clean`.
        """
        if not re.search(r"(?:^|[-@])\d+$", name):
            return True
        run = Run.parsed(name.partition("@")[2] or name)
        if run is None or run.size == 0:
            return run is not None and run.method in (BASE.method, *RULES)
        sizes = [self.ablations.dataset_size] if run.method in self.ablations.run else []
        sizes = self.dataset_sizes if run.method in ("", *METHODS, *POINTERS) else sizes
        return run.size in sizes and run.seed in self.seeds

    def variant(self, name: str) -> Params:
        """The parameters of a GRPO run: of `grpo` as they stand, of a variant with its keys laid over them.

        Raises:
            ParamsError: there is no such variant, or it has an unknown key or a wrong value; the message names it.
        """
        if name == "grpo":
            return self
        if name not in self.ablations.variants:
            known = ", ".join(self.ablations.variants) or "none"
            raise ParamsError(f"ablations.variants: no entry {name}; there are: {known}")
        plain = self.ablations.model_copy(update={"run": [], "variants": {}})  # a variant has none of its own
        raw = self.model_copy(update={"ablations": plain}).model_dump(mode="json")
        _lay_over(raw, self.ablations.variants[name])
        try:
            laid_over = Params.model_validate(raw)
        except ValidationError as error:
            faults = (f"ablations.variants.{name}.{fault}" for fault in _faults(error))
            raise ParamsError("; ".join(faults)) from None
        return laid_over.model_copy(update={"ablations": self.ablations})

    @model_validator(mode="after")
    def variants_can_be_run(self) -> Params:
        if self.ablations.run and self.ablations.dataset_size not in self.dataset_sizes:
            sizes = ", ".join(map(str, self.dataset_sizes))
            raise ValueError(
                f"ablations.dataset_size: {self.ablations.dataset_size} is none of dataset_sizes; take one of {sizes}, "
                "or leave ablations.run empty"
            )
        for name in self.ablations.variants:
            self.variant(name)
        return self

    @model_validator(mode="after")
    def can_be_extended(self) -> Params:
        phases = [self.curriculum, *self.curriculum_by_domain.values()]
        goes_by_progress = self.grpo.adaptive.on or any(len(own) > 1 for own in phases)
        if self.grpo.extendable and (self.grpo.lr_scheduler_type != "constant" or goes_by_progress):
            raise ValueError(
                "grpo.extendable: the first steps of a longer run must be the same, so grpo.lr_scheduler_type must be "
                "constant, grpo.adaptive off, and the curriculum one phase"
            )
        return self

    @model_validator(mode="after")
    def scores_what_it_generates(self) -> Params:
        generated = self.problems.generated if self.problems.source == "generated" else {}
        if missing := [domain for domain in generated if domain not in self.difficulty]:
            raise ValueError(f"problems.generated: no entry under `difficulty` for {', '.join(missing)}")
        return self

    @field_validator("seeds")
    @classmethod
    def told_apart(cls, seeds: list[int]) -> list[int]:
        if min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ValueError("must be different numbers, none negative")
        return seeds

    @field_validator("dataset_sizes")
    @classmethod
    def rising(cls, sizes: list[int]) -> list[int]:
        if sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError("must be positive and rising: each set holds the smaller ones")
        return sizes

    @field_validator("curriculum")
    @classmethod
    def covers_all_progress(cls, phases: list[Phase]) -> list[Phase]:
        ends = [phase.until for phase in phases]
        if not ends or ends != sorted(set(ends)) or ends[-1] != 1:
            raise ValueError("`until` must rise from phase to phase and end at 1.0")
        return phases

    @field_validator("curriculum_by_domain")
    @classmethod
    def covers_it_in_every_domain(cls, domains: dict[str, list[Phase]]) -> dict[str, list[Phase]]:
        for domain, phases in domains.items():
            try:
                cls.covers_all_progress(phases)
            except ValueError as error:
                raise ValueError(f"{domain}: {error}") from None
        return domains

    @model_validator(mode="after")
    def tells_domains_apart(self) -> Params:
        if self.curriculum_by_domain and not self.grpo.balanced:
            raise ValueError(
                "curriculum_by_domain needs grpo.balanced: true; otherwise prompts are drawn over all domains"
            )
        return self


def load_params(path: Path = PARAMS_FILE) -> Params:
    """Read and check a parameter file.

    Raises:
        ParamsError: the file is missing, is not YAML, or has an unknown key or a wrong value;
            the message names the file and each key at fault.
    """
    return checked_params(read_yaml(path), str(path))


def merged_params(path: Path, overlay: Path) -> None:
    """Write the overlay's values into `path`, keeping its comments; checks the result before writing.

    Raises:
        ParamsError: the overlay is unreadable, or names a key that may not be there.
    """
    changes, editor = read_yaml(overlay), YAML()
    editor.preserve_quotes, editor.width = True, 200
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    checked_params(read_yaml(path), str(path))
    document = editor.load(path.read_text(encoding="utf-8"))
    if not isinstance(changes, dict):
        raise ParamsError(f"{overlay}: expected keys and values")
    _lay_over(document, changes)
    checked_params(document, f"{path} with {overlay}")
    with written(path) as out:
        editor.dump(document, out)


def _lay_over(document: Any, changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            _lay_over(document[key], value)
        elif isinstance(value, list) and isinstance(document.get(key), list):
            if not document[key] and hasattr(document[key], "fa"):
                document[key].fa.set_flow_style()  # an empty list has forgotten that it stands on one line
            document[key][:] = value  # keeps the style and the comment
        else:
            document[key] = value


def checked_params(raw: Any, source: str) -> Params:
    """Typed parameters of a parsed params.yaml, known to be good for every task; `source` names it in errors."""
    params = checked(Params, raw, source)
    for task in OTHER_TASKS:
        try:
            params.of(task)
        except ParamsError as error:
            raise ParamsError(f"{source}: {error}") from None
    return params


def load_base_params(path: Path) -> Base:
    """Read models/base/params.yaml; raises as `load_params` does."""
    return checked(Base, (read_yaml(path) or {}).get("base"), f"{path}, section base")


def load_adapter_params(path: Path) -> Adapter:
    """Read models/economy/params.yaml; raises as `load_params` does."""
    return checked(Adapter, (read_yaml(path) or {}).get("adapter"), f"{path}, section adapter")


def read_yaml(path: Path) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParamsError(f"{path}: no such file; run from the project's root") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: not UTF-8 (byte {error.start})") from None
    except YAMLError as error:
        raise ParamsError(f"{path}: not YAML: {error}") from None


def checked(model: type[Section], raw: Any, source: str) -> Section:
    """Turn a parsed YAML document into typed parameters; `source` names it in errors."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        faults = _faults(error)
        raise ParamsError("\n".join([f"{source}: {len(faults)} mistake(s)", *(f"  {f}" for f in faults)])) from None


def _faults(error: ValidationError) -> list[str]:
    return [f"{_key(fault['loc'])}: {_complaint(fault)}" for fault in error.errors()]


def _key(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "(top level)"


def _complaint(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown key"
    if fault["type"] == "missing":
        return "missing"
    if isinstance(fault["input"], dict):  # a whole section
        return str(fault["msg"])
    return f"{fault['msg']} (got {fault['input']!r})"
