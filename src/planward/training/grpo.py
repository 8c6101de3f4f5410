"""GRPO on TRL, over a materialised schedule or problems chosen by an adaptive sampler.

Method: Shao et al., "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", 2024
(arXiv:2402.03300); `loss_type` and `scale_rewards` choose the later variants that TRL implements.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from planward.core import paths
from planward.core.files import replace_atomic
from planward.core.fingerprints import compute_fingerprint
from planward.core.prompt_templates import identify_prompts
from planward.core.prompts import encode_prompt, fit_prompt
from planward.core.records import Record
from planward.core.runs import Run
from planward.core.tasks import Messages, Task
from planward.curriculum.draws import Slot
from planward.curriculum.samplers import build_sampler
from planward.inference import models
from planward.loggers import check_installed, open_loggers
from planward.params import Params
from planward.training.batching import Batching, init_processes
from planward.training.checkpoints import (
    CheckpointCallback,
    Journal,
    restore_checkpoint,
    run_trainer,
)
from planward.training.curves import CurveLogger, replace_progress_bar
from planward.training.generation import build_generation_arguments, check_generation
from planward.training.lengths import list_long_references, measure_lengths, print_lengths
from planward.training.references import check_references
from planward.training.rollout_record import RolloutRecord
from planward.training.rollouts import Rollouts, Row
from planward.training.shared_prefixes import SharedPrefixTrainer
from planward.training.validation import ValidationCallback

SCHEDULE_COLUMNS = ("step", "slot", "id", "domain", "bucket", "wanted_bucket")
CONSUMED_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("slot", pa.int64()),
        ("index", pa.int64()),
        ("id", pa.string()),
        ("domain", pa.string()),
        ("bucket", pa.string()),
        ("wanted_bucket", pa.string()),
        ("rewards", pa.list_(pa.float64())),
        ("labels", pa.list_(pa.string())),
        ("audited", pa.int64()),
        ("replayed", pa.int64()),
    ]
)
TRAINER_CURVES = {name: name for name in ("loss", "kl", "learning_rate", "grad_norm", "entropy")}
SCHEDULERS = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}
PROGRESS_LABELS = {"reward": "reward"}


class RolloutTrainer(GRPOTrainer):
    """Takes its prompts from `rollouts` at the time of generation; anything else is TRL's, or what replaces it.

    The dataset's rows hold only step and slot: TRL fetches one batch ahead, before the sampler has chosen its problems.
    """

    entropies: torch.Tensor | None = None  # of the last generated completions [B], where they are known

    def __init__(self, *args: Any, rollouts: Rollouts, **kwargs: Any) -> None:
        super().__init__(*args, reward_funcs=rollouts, **kwargs)
        self.rollouts = rollouts
        self.prompt_rows: list[Row] = []

    def _generate_and_score_completions(self, inputs: list[Row]) -> dict[str, Any]:
        self.prompt_rows = self.rollouts.build_prompts(inputs)
        return cast(dict[str, Any], super()._generate_and_score_completions(self.prompt_rows))

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        completions, logps = super()._generate_single_turn(*args, **kwargs)
        entropies = None if self.entropies is None else self.entropies.tolist()
        return self.rollouts.insert_replays(self.prompt_rows, completions, entropies), logps

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card: checkpoints are temporary."""


class SharedPrefixRolloutTrainer(RolloutTrainer, SharedPrefixTrainer):
    """The trainer where the loop is Planward's: with shared prefixes and temperatures by bucket."""


def train(
    task: Task,
    records: Sequence[Record],
    schedule: Sequence[Row],
    params: Params,
    *,
    base: str,
    model: Path,
    training: Path,
    run: Run,
    validation: Sequence[Record] = (),
    callbacks: Sequence[TrainerCallback] = (),
) -> None:
    """Train the weights at `base` on the schedule, or as `grpo.adaptive` says; write `model`/ and `training`/.

    An interrupted run resumes from its last checkpoint; with `grpo.extendable`, so does a finished run that gets more
    steps. With several processes (`accelerate launch`) the main one writes. `model`/ gets the weights of the best
    validation, or the last ones (`validation.keep`). `training`/ gets metrics.json, curves/**.tsv, consumed.parquet:
    the prompts that the trainer consumed, with the rewards and labels of their completions, and rollouts.parquet: these
    completions, up to `grpo.rollouts_mb`. Rewards are the verdicts', even if `grpo.reward` gives the trainer others.

    Args:
        schedule: rows in order of consumption, `grpo.batch_size` for each of `grpo.steps` steps.
        run: names the checkpoints; its identity goes to metrics.json.
        validation: problems, of which `validation.problems` are completed every `validation.steps` steps.

    Raises:
        ValueError: the schedule was made for other parameters or problems, or the batch cannot be divided evenly.
        BackendError: see `check_generation`.
        InvalidReferences: a reference completion is rejected.
        VerifierError, VerifierDisagreement, ScheduleError: see `rollouts`.
        ParamsError: a logger's package is missing.
    """
    check_generation(params, base)
    state = init_processes()
    check_installed(params.logging)
    rows = _validate_schedule(schedule, records, params)
    domains = len({row["domain"] for row in rows}) if params.grpo.balanced else 1
    batching = Batching.compute(
        "grpo.batch_size",
        params.grpo.batch_size,
        params.grpo.num_generations,
        params.grpo.micro_batch_size,
        state.num_processes,
        domains,
    )
    check_references(task, records)

    set_seed(params.seed)
    limits = params.prompt
    network, tokenizer = models.load_model(
        params.model, base, limits.max_tokens + limits.max_completion_tokens, params.seed
    )
    lengths = measure_lengths(task, tokenizer, records, records, params, params.grpo.shots)
    if state.is_main_process:
        print_lengths(lengths, limits, params.grpo.shots)
        _warn_of_other_ends(tokenizer, base)

    def count_tokens(prompt: str | Messages) -> int:
        return len(encode_prompt(tokenizer, prompt, limits.chat_template_options))

    for problem in records:  # fail now if one does not fit, not when its step comes
        fit_prompt(task, problem, [], count_tokens, limits.max_tokens)
    problems = [*records, *validation]
    folder = paths.CHECKPOINTS / f"{run.name}-{_compute_fingerprint(problems, rows, params, base, state.num_processes)}"
    checkpoint, journal = restore_checkpoint(folder, params.grpo.steps)
    sampler = build_sampler([Slot(**row) for row in rows], records, params)
    record, case_file = RolloutRecord(folder, journal, params.grpo.rollouts_mb), training / "disagreement.json"
    rollouts = Rollouts(task, tokenizer, records, sampler, params, journal.consumed, case_file, record)
    loggers = open_loggers(params.logging, run.as_dict(task.name), folder.name, params) if state.is_main_process else []
    curves = CurveLogger(training, journal, TRAINER_CURVES, rollouts.pop_metrics, loggers)
    validation_callback = ValidationCallback(
        task,
        tokenizer,
        validation,
        params,
        curves,
        folder,
        interval=params.validation.steps,
    )
    rows = rows[: _count_steps(params, validation_callback) * params.grpo.batch_size]
    trainer_class: Any = RolloutTrainer  # Unsloth replaces what Planward would override
    if models.choose_backend(params.model) == "transformers":
        trainer_class = partial(SharedPrefixRolloutTrainer, generation=params.model.generation)
    trainer = trainer_class(
        model=network,
        rollouts=rollouts,
        args=_build_arguments(params, batching, len(rows) // params.grpo.batch_size, folder),
        train_dataset=Dataset.from_list([{"step": row["step"], "slot": row["slot"], "prompt": ""} for row in rows]),
        processing_class=tokenizer,
        peft_config=models.build_lora_config(params.model, network),
        callbacks=[curves, validation_callback, CheckpointCallback(folder, journal), *callbacks],
    )
    models.cast_adapter(trainer.model)
    replace_progress_bar(trainer, PROGRESS_LABELS)
    run_trainer(trainer, folder, checkpoint)

    num_prompts = _count_steps(params, validation_callback) * params.grpo.batch_size
    if len(journal.consumed) != num_prompts:
        raise RuntimeError(f"{len(journal.consumed)} of the schedule's {num_prompts} prompts were consumed")
    if state.is_main_process:
        network = trainer.accelerator.unwrap_model(trainer.model)
        validation_callback.restore_best(network)
        models.save_model(network, tokenizer, model, adapter=params.model.keeps_adapter)
        _write_consumed(training / "consumed.parquet", journal)
        curves.close(
            {
                "run": run.as_dict(task.name),
                "prompts": num_prompts,
                "completions": num_prompts * params.grpo.num_generations,
                "completions_kept": record.write(training / "rollouts.parquet"),
                "audited": sum(row["audited"] for row in journal.consumed),
                "shots_dropped": sum(row["shots_dropped"] for row in journal.consumed),
                "references_too_long": len(list_long_references(lengths, limits)),
                **validation_callback.summarize(),
            }
        )
        if not params.grpo.extendable:
            shutil.rmtree(folder)
    state.wait_for_everyone()


def _warn_of_other_ends(tokenizer: Any, base: str) -> None:
    if ends := models.find_other_ends(tokenizer, base):
        print(
            f"warning: {base} may also end a turn with {', '.join(ends)}, but completions of GRPO end with "
            f"{tokenizer.eos_token} alone; fix: grpo.from: sft, or a tokenizer whose end token is that of the turn",
            flush=True,
        )


def _validate_schedule(schedule: Sequence[Row], records: Sequence[Record], params: Params) -> list[Row]:
    """Return the schedule's rows; raises ValueError if they do not fit the parameters and the problems."""
    rows = [{column: row[column] for column in SCHEDULE_COLUMNS} for row in schedule]
    steps = [step for step in range(params.grpo.steps) for _ in range(params.grpo.batch_size)]
    if [row["step"] for row in rows] != steps:
        raise ValueError(
            f"the schedule holds {len(rows)} rows, which are not {params.grpo.steps} steps of "
            f"{params.grpo.batch_size} prompts: it was made for other parameters; fix: rebuild it"
        )
    unknown = sorted({row["id"] for row in rows} - {record.id for record in records})
    if unknown:
        raise ValueError(f"the schedule has {len(unknown)} problem(s) outside the training set, such as {unknown[0]}")
    return rows


def _count_steps(params: Params, validation: ValidationCallback) -> int:
    """Return the number of optimizer steps: as scheduled, or fewer if validation stopped training."""
    return params.grpo.steps if validation.stop_step is None else validation.stop_step


def _build_arguments(params: Params, batching: Batching, steps: int, folder: Path) -> GRPOConfig:
    grpo = params.grpo
    cuda = torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(folder),
        seed=params.seed,
        max_steps=steps,
        shuffle_dataset=False,
        # One generation is one optimizer step: steps_per_generation is gradient_accumulation_steps, TRL's default.
        per_device_train_batch_size=batching.micro_batch,
        gradient_accumulation_steps=batching.accumulation,
        steps_per_generation=batching.accumulation,
        num_generations=grpo.num_generations,
        num_iterations=1,
        max_completion_length=params.prompt.max_completion_tokens,
        chat_template_kwargs=params.prompt.chat_template_options,
        temperature=grpo.temperature if grpo.temperatures is None else 1.0,  # otherwise per row
        top_p=grpo.top_p,
        top_k=grpo.top_k,
        learning_rate=grpo.learning_rate,
        lr_scheduler_type=SCHEDULERS[grpo.lr_scheduler_type],
        warmup_steps=math.ceil(grpo.warmup_ratio * grpo.steps),
        beta=grpo.beta,
        entropy_coef=grpo.entropy_coef,
        loss_type=grpo.loss_type,
        scale_rewards=grpo.scale_rewards,
        max_grad_norm=grpo.max_grad_norm,
        # TRL's defaults: Unsloth has others.
        optim="adamw_torch_fused",
        weight_decay=0.0,
        mask_truncated_completions=False,
        epsilon_high=0.2,
        gradient_checkpointing=params.model.gradient_checkpointing,
        bf16=models.uses_bfloat16(params.model),
        use_cpu=not cuda,
        ddp_backend=None if cuda or batching.processes == 1 else "gloo",
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=cuda,
        logging_steps=1,
        save_steps=grpo.save_steps,
        report_to="none",
        disable_tqdm=False,
        **build_generation_arguments(params),
    )


def _compute_fingerprint(
    records: Sequence[Record], rows: Sequence[Row], params: Params, base: str, processes: int
) -> str:
    extendable = {"steps"} if params.grpo.extendable else set[str]()  # another number of steps is the same run
    settings = {
        "seed": params.seed,
        "prompt": identify_prompts(params.prompt),
        "model": params.model.model_dump(exclude={"vllm"}),
        "grpo": params.grpo.model_dump(exclude={"save_steps", *extendable}),  # these change no result
        "validation": params.validation.model_dump(),
        "phases": [params.model_dump()[key] for key in ("curriculum", "curriculum_by_domain")],
    }
    return compute_fingerprint(settings, records, [] if extendable else rows, base, processes)


def _write_consumed(path: Path, journal: Journal) -> None:
    with replace_atomic(path) as partial:
        pq.write_table(pa.Table.from_pylist(journal.consumed, CONSUMED_SCHEMA), partial)
