"""Estimates the costs of a run with a model, and renders them for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from transformers import AutoTokenizer

from planward.estimation.costs import Estimate, StageMemory, estimate_costs
from planward.estimation.measurement import STEPS, count_parameters, measure
from planward.estimation.workload import build_workload
from planward.params import Params, ParamsError

GIB, MIB = 2**30, 2**20
BUSY = 0.8  # share of the processor time below which a CPU's speed is not that of a quiet machine


def estimate_model(path: str, params: Params) -> Estimate:
    """Measure a few steps of the model with the present parameters and problems.

    Raises:
        ParamsError: no folder, no safetensors, or no chat template where `prompt.style` needs one.
        PromptTooLong: a problem does not fit into `prompt.max_tokens`.
    """
    parameters = count_parameters(Path(path))
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    if params.prompt.style == "full" and not tokenizer.chat_template:
        raise ParamsError(
            f"{path}: the tokenizer has no chat template, which prompt.style: full needs; fix: set prompt.style to "
            "compact, or take the instruction-tuned version of the model"
        )
    workload = build_workload(tokenizer, params)
    measurement, grpo_params = measure(path, workload, params, parameters), params.move_grpo_lora()
    grpo = measurement if grpo_params is params else measure(path, workload, grpo_params, parameters)
    return estimate_costs(path, workload, measurement, grpo, params)


def render_estimate(estimate: Estimate, params: Params) -> Iterator[Table | str]:
    """Tables with their headings."""
    measurement, workload = estimate.measurement, estimate.workload
    share = measurement.trainable / measurement.parameters
    grpo = f", {estimate.grpo.trainable:,} in GRPO (LoRA)" if estimate.grpo is not measurement else ""
    yield (
        f"{estimate.model}: {measurement.parameters:,} parameters, {measurement.trainable:,} trained ({share:.1%}; "
        f"{'LoRA' if params.model.lora else 'all'}){grpo}. Lengths: {workload.source}."
    )
    yield f"\nTokens per second on {measurement.device}, median of {STEPS} steps with Transformers"
    yield _build_speed_table(estimate)
    if measurement.device.startswith("CPU") and measurement.processor_share < BUSY:
        yield (
            f"Other programs were running: this one had {measurement.processor_share:.0%} of its processor time. Alone "
            "it is faster."
        )
    yield "\nMemory of a process, estimated"
    yield _build_memory_table(estimate.memory)
    yield (
        f"Measured peaks, with smaller batches on a CPU: {_format_size(measurement.peak_generation)} in generation, "
        f"{_format_size(measurement.peak_training)} in training ({measurement.training_sequences} sequences a pass)."
    )
    yield "\nTime of a run, estimated: completions as long as the reference plans, and of prompt.max_completion_tokens"
    yield _build_time_table(estimate)
    yield "Without verdicts, ablations, transfer and other tracks. GRPO takes less: it skips equal rewards."


def _build_speed_table(estimate: Estimate) -> Table:
    measurement, workload = estimate.measurement, estimate.workload
    table = _build_table("phase", "tokens/s", "measured on")
    prompt = f"prompts of up to {workload.longest_prompt} tokens"
    table.add_row("prefill", f"{measurement.prefill:,.0f}", prompt)
    table.add_row("decoding", f"{measurement.decoding:,.0f}", f"{measurement.decoding_rows} completions at once")
    sequences = f"{measurement.training_sequences} sequences, {workload.sft_sequence:.0f} tokens on average"
    table.add_row("training", f"{measurement.training:,.0f}", sequences)
    return table


def _build_memory_table(memory: list[StageMemory]) -> Table:
    table = _build_table("stage", "weights", "gradients", "optimizer", "activations", "cache", "at once")
    for row in memory:
        sizes = (row.weights, row.gradients, row.optimizer, row.activations, row.cache, row.total)
        table.add_row(row.stage, *(_format_size(size) if size else "-" for size in sizes))
    return table


def _build_time_table(estimate: Estimate) -> Table:
    table = _build_table("stage", "runs", "each", "at most", "all runs")
    for time in estimate.times:
        each, longest = _format_duration(time.expected), _format_duration(time.longest)
        table.add_row(time.stage, str(time.runs), each, longest, _format_duration(time.runs * time.expected))
    table.add_section()
    table.add_row(
        "together", "", "", _format_duration(estimate.longest_total), _format_duration(estimate.expected_total)
    )
    return table


def _build_table(first: str, *headings: str) -> Table:
    table = Table()
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _format_size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def _format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
