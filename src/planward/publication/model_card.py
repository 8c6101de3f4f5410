"""The model card of a run, in the hub's format: every number in it comes from the run's results."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open

from planward.analysis.names import ALL, describe_intervals, format_rate, format_shot_num
from planward.core import paths
from planward.core.model_folders import find_adapter_base
from planward.core.registry import task_spec
from planward.core.runs import Run
from planward.params import METHODS, Params
from planward.publication import cards
from planward.publication.examples import Example
from planward.publication.folders import read_origin
from planward.publication.provenance import Provenance, PublicationError

if TYPE_CHECKING:
    from planward.publication.models import Check, ModelOptions

VLLM_LORA_RANKS = (16, 32, 64, 128, 256, 320, 512)  # that --max-lora-rank accepts, the default first
MAX_DOMAINS = 40  # that the card lists
KINDS = {
    "renamed": "test problems with a new name for every symbol",
    "larger": "problems beyond the sizes of training",
    "unseen": "a domain that is not in training",
}


def render_model_card(
    params: Params,
    run: Run,
    folder: Path,
    name: str,
    provenance: Provenance,
    example: Example,
    check: Check,
    options: ModelOptions,
    *,
    has_gguf: bool,
) -> ModelCard:
    """Render the card of a published folder.

    Args:
        folder: with everything but the card.
        name: that the folder will have.
        check: of the folder's completions against the stored ones.

    Raises:
        PublicationError: a table is missing, or has no rows of this run.
    """
    tables = Tables(params, run)
    method = params.variant(run.method) if run.method != "sft" else params
    base_folder = find_base_folder(method, run)
    hub_base, licence = read_origin(Path(base_folder))
    hub_base, licence = options.base or hub_base, options.licence or licence
    base = compared_base = hub_base or base_folder
    if base_folder != params.model.path:
        compared_base = read_origin(Path(params.model.path))[0] or params.model.path
    spec = task_spec(params.task)
    data = ModelCardData(
        model_name=name,
        base_model=hub_base,
        base_model_relation=None if hub_base is None else ("adapter" if options.adapter else "finetune"),
        library_name="peft" if options.adapter else "transformers",
        pipeline_tag="text-generation",
        license=licence,
        tags=["planward", params.task, run.method, *(["lora"] if options.adapter else [])],
        eval_results=tables.list_results(spec.success_title),
    )
    body = cards.render_card(
        "model.md.j2",
        name=name,
        run=run,
        task=params.task,
        title=spec.title,
        success=spec.success_title,
        method=describe_method(method, run),
        size=count_parameters(folder),
        params=method,
        base=base,
        base_folder=base_folder,
        compared_base=compared_base,
        adapter_base=find_adapter_base(folder) if options.adapter else None,
        max_lora_rank=_find_max_lora_rank(folder) if options.adapter else None,
        licence=licence,
        provenance=provenance,
        example=example,
        check=check,
        tables=tables,
        chat=not isinstance(example.prompt, str),
        prompt_literal=_format_prompt(example),
        template_options="".join(f", {key}={value!r}" for key, value in params.prompt.chat_template_options.items()),
        settings=cards.render_table(("parameter", "value"), list_settings(method, run)),
        has_gguf=has_gguf,
    )
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}")


class Tables:
    """The rows of a run in the tables of its task, as Markdown."""

    def __init__(self, params: Params, run: Run) -> None:
        self.params, self.run, self.results = params, run, paths.results(params.task)
        self.is_variant = run.method not in METHODS
        stage = "compare" if params.task == "planning" else f"workflow/{params.task}/dvc.yaml:compare"
        self._fix = f"`dvc repro {stage}`"
        self.rates = self._select_run(self._read("ablations" if self.is_variant else "shots"))
        if self.is_variant:
            self.rates = self.rates[self.rates["shot_num"].astype(str) != ALL]
            self.rates = self.rates.assign(shot_num=self.rates["shot_num"].astype(int))
        if self.rates.empty:
            raise PublicationError(
                f"{self.results.tables}: has no rows of {run.name}; fix: name its N and seed in params.yaml, and "
                f"{self._fix}"
            )
        self.fewest = int(self.rates["shot_num"].min())
        self.seeds = int(self.rates["seeds"].max())
        self.num_problems = int(self.rates["n"].iloc[0])
        self.intervals = describe_intervals(self.rates)
        self.split = json.loads((self.results.split / "metrics.json").read_text(encoding="utf-8"))
        self.compared = "grpo" if self.is_variant else "base"  # with which the run is compared

    @property
    def domains(self) -> list[str]:
        """Those of the training split."""
        return sorted(self.split["kept_by_domain"]["train"])

    @property
    def first_shots(self) -> str:
        """`without worked examples`, or how many the tables with one number of them have."""
        return f"with {self.fewest} worked examples" if self.fewest else "without worked examples"

    @property
    def first(self) -> Any:
        """The row with the fewest worked examples."""
        return next(self.rates[self.rates["shot_num"] == self.fewest].itertuples())

    @property
    def first_rate(self) -> str:
        return cards.format_row_rate(self.first)

    @property
    def first_compared_rate(self) -> str:
        """Base's on the same problems."""
        return cards.format_row_rate(self._find_base(self._read("shots"), self.fewest))

    def list_results(self, metric: str) -> list[EvalResult]:
        """List the success rates for the card's metadata, one for each number of worked examples."""
        return [
            EvalResult(
                task_type="text-generation",
                task_name=self.params.task,
                dataset_type=f"planward-{self.params.task}",
                dataset_name=f"{self.params.task} problems, test split",
                dataset_split="test",
                dataset_args={"num_few_shot": int(row.shot_num)},
                metric_type="success_rate",
                metric_name=f"{metric} ({format_shot_num(row.shot_num)})",
                metric_value=round(float(row.success_rate), 4),
                metric_args={"n": int(row.n), "ci_low": round(row.ci_low, 4), "ci_high": round(row.ci_high, 4)},
            )
            for row in self.rates.itertuples()
        ]

    def render_rates(self) -> str:
        """Success by number of worked examples beside base's (of a variant: beside GRPO's), with the paired test."""
        head = ("worked examples", self.compared, "this model", "difference, points", "p (Holm)")
        return cards.render_table(head, [self._build_rate_row(row) for row in self.rates.itertuples()])

    def render_domains(self) -> str:
        """Success by domain with the fewest worked examples; '' for a variant, which has no such table."""
        if self.is_variant:
            return ""
        table = self._read("success")
        table = table[(table["shot_num"] == self.fewest) & (table["domain"] != ALL)]
        base = {row.domain: row for row in table[table["method"] == "base"].itertuples()}
        rows = [
            (row.domain, row.n, cards.format_row_rate(base[row.domain]), cards.format_row_rate(row))
            for row in self._select_run(table).itertuples()
        ]
        return cards.render_table(("domain", "n", "base", "this model"), rows[:MAX_DOMAINS])

    def render_constraints(self) -> str:
        """Success with and without safety constraints; '' where no test problem has any."""
        table = self._select_run(cards.read_optional_table(self.results.tables / "constraints.csv"))
        if table.empty or table["constrained"].nunique() < 2:
            return ""
        rows = [
            (
                "with" if row.constrained else "without",
                row.n,
                cards.format_row_rate(row),
                f"{100 * row.safety_share:.1f}",
            )
            for row in table[table["shot_num"] == self.fewest].itertuples()
        ]
        return cards.render_table(("safety constraints", "n", "success", "plans that violate one, %"), rows)

    def render_failures(self) -> str:
        """The shares of all verdicts with the fewest worked examples."""
        table = self._select_run(cards.read_optional_table(self.results.tables / "labels.csv"))
        if table.empty:
            return ""
        table = table[(table["shot_num"] == self.fewest) & (table["count"] > 0)].sort_values("count", ascending=False)
        rows = [(f"`{row.label}`", row.count_, f"{100 * row.share:.1f}") for row in _rename_count(table).itertuples()]
        return cards.render_table(("verdict", "answers", "%"), rows)

    def render_transfer(self) -> str:
        """Success where something is unlike the training problems; '' where that was not measured for this run."""
        table = cards.read_optional_table(self.results.tables / "transfer.csv")
        if self._select_run(table).empty:
            return ""
        table = table[table["domain"] == ALL]
        base = {(row.kind, row.shot_num): row for row in table[table["method"] == "base"].itertuples()}
        rows = [
            (
                f"{row.kind}: {self._describe_kind(row.kind)}",
                row.shot_num,
                row.n,
                cards.format_row_rate(base[row.kind, row.shot_num]) if (row.kind, row.shot_num) in base else "",
                cards.format_row_rate(row),
            )
            for row in self._select_run(table).itertuples()
        ]
        return cards.render_table(("problems", "worked examples", "n", "base", "this model"), rows)

    def render_seed(self) -> str:
        """Success of this seed alone; '' where the other tables have no other seed."""
        table = self._select_run(cards.read_optional_table(self.results.tables / "seeds.csv"))
        if self.seeds == 1 or table.empty:
            return ""
        rows = [
            (row.shot_num, row.n, cards.format_row_rate(row))
            for row in table[table["seed"] == self.run.seed].itertuples()
        ]
        return cards.render_table(("worked examples", "n", "success"), rows)

    def render_data(self) -> str:
        """Problems by domain and split."""
        kept_counts = self.split["kept_by_domain"]
        splits = [split for split in (*paths.SPLITS, paths.HELD_OUT) if kept_counts.get(split)]
        domains = sorted({domain for split in splits for domain in kept_counts[split]})
        rows = [(domain, *(kept_counts[split].get(domain, 0) for split in splits)) for domain in domains[:MAX_DOMAINS]]
        total = ("all", *(sum(kept_counts[split].values()) for split in splits))
        constrained_row = ("of these with constraints", *(self.split["constrained"].get(split, 0) for split in splits))
        extra = [constrained_row] if any(constrained_row[1:]) else []
        return cards.render_table(("domain", *(split.replace("_", "-") for split in splits)), [*rows, total, *extra])

    def _build_rate_row(self, row: Any) -> tuple[Any, ...]:
        if self.is_variant:
            default_rate = format_rate(row.default_success_rate, row.default_ci_low, row.default_ci_high)
            difference = f"{row.difference:+.1f} [{row.difference_low:+.1f}, {row.difference_high:+.1f}]"
            return row.shot_num, default_rate, cards.format_row_rate(row), difference, cards.format_p(row.p_holm)
        base = cards.format_row_rate(self._find_base(self._read("shots"), row.shot_num))
        pairs = self._read("paired")
        pairs = pairs[(pairs["dataset_size"] == self.run.size) & (pairs["shot_num"] == row.shot_num)]
        pair = next(pairs[(pairs["method_a"] == "base") & (pairs["method_b"] == self.run.method)].itertuples(), None)
        test_cells = ("", "") if pair is None else (cards.format_difference(pair), cards.format_p(pair.p_holm))
        return row.shot_num, base, cards.format_row_rate(row), *test_cells

    def _describe_kind(self, kind: str) -> str:
        domains = ", ".join(self.params.split.held_out_domains)
        return f"{KINDS[kind]} ({domains})" if kind == "unseen" else KINDS[kind]

    def _find_base(self, table: pd.DataFrame, shot_num: int) -> Any:
        rows = table[(table["method"] == "base") & (table["shot_num"] == shot_num)]
        return next(rows.itertuples())

    def _select_run(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the run's method and N, over all its seeds."""
        if table.empty:
            return table
        column = "variant" if "variant" in table else "method"
        return table[(table[column] == self.run.method) & (table["dataset_size"] == self.run.size)]

    def _read(self, name: str) -> pd.DataFrame:
        return cards.read_table(self.results.tables / f"{name}.csv", self._fix)


def find_base_folder(params: Params, run: Run) -> str:
    """Return the folder of the weights that a run is trained from, before the SFT that GRPO may begin with."""
    if run.method == "sft" or params.grpo.start in ("sft", "base"):
        return params.model.path
    return params.grpo.start


def describe_method(params: Params, run: Run) -> str:
    """`SFT and GRPO`; of a variant its name as well."""
    if run.method == "sft":
        return "SFT"
    method = "SFT and GRPO" if params.grpo.start == "sft" else "GRPO"
    return method if run.method in METHODS else f"{method} (variant `{run.method}`)"


def list_settings(params: Params, run: Run) -> list[tuple[str, Any]]:
    """List the parameters that matter most, by their keys."""
    model, grpo, sft = params.model, params.grpo, params.sft
    sections: list[tuple[str, Any, Sequence[str]]] = [("model", model, ("path", "precision"))]
    lora_keys = ("r", "alpha", "dropout", "target_modules")
    if model.lora is not None:
        sections.append(("model.lora", model.lora, lora_keys))
    if run.method == "sft" or grpo.start == "sft":
        sections.append(("sft", sft, ("epochs", "batch_size", "learning_rate", "shots", "renaming")))
    if run.method != "sft":
        keys = ("steps", "batch_size", "num_generations", "learning_rate", "temperature", "beta", "loss_type", "reward")
        sections.append(("grpo", grpo, ("from", *keys)))
        if model.lora is None and grpo.lora is not None:
            sections.append(("grpo.lora", grpo.lora, lora_keys))
    sections.append(("validation", params.validation, ("keep",)))
    sections.append(("prompt", params.prompt, ("style", "names", "max_tokens", "max_completion_tokens")))
    settings: list[tuple[str, Any]] = [("size of the training set", run.size), ("seed", run.seed)]
    for name, section, section_keys in sections:
        values = section.model_dump(mode="json")  # keys as in params.yaml
        settings += [(f"`{name}.{key}`", f"`{_format_value(values[key])}`") for key in section_keys]
    return settings


def count_parameters(folder: Path) -> int:
    """Count the numbers in a folder's safetensors."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rename_count(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns={"count": "count_"})  # a tuple has a method `count`


def _find_max_lora_rank(folder: Path) -> int | None:
    """The limit that vLLM needs for the adapter's rank; None: its default is enough."""
    rank = int(json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    limit = next((limit for limit in VLLM_LORA_RANKS if limit >= rank), rank)
    return None if limit == VLLM_LORA_RANKS[0] else limit


def _format_prompt(example: Example) -> str:
    """Return the example's prompt as Python source."""
    if isinstance(example.prompt, str):
        return repr(example.prompt)
    return json.dumps(example.prompt, indent=4, ensure_ascii=False)
