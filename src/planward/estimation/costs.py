"""Seconds and bytes of a run's stages, from what was measured and what the parameters ask for."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from planward.estimation.measurement import Measurement
from planward.estimation.workload import Workload
from planward.params import Params


@dataclass(frozen=True)
class StageTime:
    """Of one run of a stage, in seconds."""

    stage: str
    runs: int  # how often the pipeline runs it
    expected: float  # completions as long as the reference completions
    longest: float  # completions of prompt.max_completion_tokens


@dataclass(frozen=True)
class StageMemory:
    """Of one process, in bytes."""

    stage: str
    weights: int
    gradients: int
    optimizer: int
    activations: int
    cache: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + max(self.activations, self.cache)  # not at once


@dataclass(frozen=True)
class Estimate:
    model: str
    workload: Workload
    measurement: Measurement  # of SFT and evaluation
    grpo: Measurement  # the same one, unless GRPO alone trains an adapter
    times: list[StageTime]
    memory: list[StageMemory]

    @property
    def expected_total(self) -> float:
        return sum(time.runs * time.expected for time in self.times)

    @property
    def longest_total(self) -> float:
        return sum(time.runs * time.longest for time in self.times)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: without the token ids."""
        workload = {key: value for key, value in asdict(self.workload).items() if key != "sequences"}
        return {
            "model": self.model,
            "workload": workload | {"sft_sequence": self.workload.sft_sequence},
            "measurement": asdict(self.measurement),
            "grpo": asdict(self.grpo),
            "times": [asdict(time) for time in self.times],
            "memory": [asdict(memory) | {"total": memory.total} for memory in self.memory],
            "total": {"expected": self.expected_total, "longest": self.longest_total},
        }


def estimate_costs(
    model: str, workload: Workload, measurement: Measurement, grpo: Measurement, params: Params
) -> Estimate:
    """Estimate SFT and GRPO for each dataset size, and the evaluation and the samples of one model.

    Args:
        grpo: the measurement with what GRPO trains.
    """
    seeds, sizes = len(params.seeds), params.dataset_sizes
    costs = _Costs(workload, measurement, params)
    lengths = (workload.completion, float(workload.max_completion))
    times = [StageTime(f"sft, N = {size}", seeds, *(costs.sft(size, length) for length in lengths)) for size in sizes]
    grpo_costs = _Costs(workload, grpo, params)
    times.append(StageTime("grpo, each N", seeds * len(sizes), *map(grpo_costs.grpo, lengths)))
    count = 1 + 2 * seeds * len(sizes)  # base, and sft and grpo of each size and seed
    times.append(StageTime(f"evaluate, {workload.test_problems} problems", count, *map(costs.evaluation, lengths)))
    if (samples := params.evaluate.samples).count:
        count = 1 + len(samples.methods) * seeds  # base, and each seed of one size
        times.append(StageTime(f"sample, {samples.count} per problem", count, *map(costs.sampling, lengths)))
    return Estimate(model, workload, measurement, grpo, times, estimate_memory(workload, measurement, grpo, params))


@dataclass(frozen=True)
class _Costs:
    """Seconds of one run, given the mean length of the model's completions."""

    workload: Workload
    measurement: Measurement
    params: Params

    def sft(self, size: int, completion: float) -> float:
        sft, problems = self.params.sft, size * self.params.sft.epochs
        steps = math.ceil(problems / sft.batch_size)
        training = problems * self.workload.sft_sequence / self.measurement.training
        return training + self._validations(steps, sft.validation_steps, completion)

    def grpo(self, completion: float) -> float:
        """A prompt is read once for the completions of a forward pass, except with gradient checkpointing."""
        grpo, measurement = self.params.grpo, self.measurement
        completions = grpo.batch_size * grpo.num_generations
        passes = grpo.batch_size * max(1, grpo.num_generations / grpo.micro_batch_size)
        prompts = completions if self.params.model.gradient_checkpointing else passes
        tokens = prompts * self.workload.grpo_prompt + completions * completion
        generation = (
            passes * self.workload.grpo_prompt / measurement.prefill + completions * completion / measurement.decoding
        )
        reference = tokens / measurement.prefill if grpo.beta else 0.0
        step = generation + tokens / measurement.training + reference
        return grpo.steps * step + self._validations(grpo.steps, self.params.validation.steps, completion)

    def evaluation(self, completion: float) -> float:
        prompts = self.workload.evaluation_prompts.values()
        return sum(self._complete(self.workload.test_problems, prompt, completion) for prompt in prompts)

    def sampling(self, completion: float) -> float:
        """A prompt is read once for its completions."""
        completions = self.params.evaluate.samples.count * completion
        return self._complete(self.workload.test_problems, self.workload.sample_prompt, completions)

    def _validations(self, steps: int, interval: int, completion: float) -> float:
        """Before the first step, after every `interval`, and after the last."""
        count = 1 + math.ceil(steps / interval) if interval else 0
        workload = self.workload
        return count * self._complete(workload.validation_problems, workload.validation_prompt, completion)

    def _complete(self, problems: int, prompt: float, completion: float) -> float:
        return problems * (prompt / self.measurement.prefill + completion / self.measurement.decoding)


def estimate_memory(
    workload: Workload, measured: Measurement, measured_grpo: Measurement, params: Params
) -> list[StageMemory]:
    """Estimate from the longest prompts; activations are those that the forward pass keeps for the backward pass."""
    sft, grpo = params.sft, params.grpo
    sizes = (measured.weights, measured.gradients, measured.optimizer)
    has_copy = bool(grpo.beta) and params.move_grpo_lora().model.lora is None  # for the KL term
    longest = workload.longest_prompt + workload.max_completion
    completions = min(grpo.micro_batch_size, grpo.batch_size * grpo.num_generations)
    prompts = completions if params.model.gradient_checkpointing else math.ceil(completions / grpo.num_generations)
    grpo_tokens = prompts * workload.grpo_prompt + completions * workload.max_completion
    sequences = min(sft.micro_batch_size, sft.batch_size)
    return [
        StageMemory("sft", *sizes, _scale(sequences * workload.longest_sequence, measured.activations_per_token), 0),
        StageMemory(
            "grpo",
            measured_grpo.weights * (1 + has_copy),
            measured_grpo.gradients,
            measured_grpo.optimizer,
            _scale(grpo_tokens, measured_grpo.activations_per_token),
            _scale(completions * longest, measured_grpo.cache_per_token),
        ),
        StageMemory(
            "evaluate",
            measured.generator_weights,
            0,
            0,
            0,
            _scale(params.evaluate.batch_size * longest, measured.cache_per_token),
        ),
    ]


def _scale(tokens: float, bytes_per_token: float) -> int:
    return round(tokens * bytes_per_token)
