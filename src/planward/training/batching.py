"""How an optimizer step is divided over processes and forward passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from accelerate import PartialState


def init_processes() -> PartialState:
    """Return the state of the processes that train together.

    Raises:
        ValueError: one process sees several GPUs; the trainer would spread each batch over them, and its size would
            not be that of params.yaml.
    """
    state = PartialState(cpu=not torch.cuda.is_available())
    if state.num_processes == 1 and torch.cuda.device_count() > 1:
        raise ValueError(
            f"one process sees {torch.cuda.device_count()} GPUs; fix: start one process per GPU with "
            "`accelerate launch`, or set CUDA_VISIBLE_DEVICES=0"
        )
    return state


@dataclass(frozen=True)
class Batching:
    """An optimizer step has processes x accumulation x micro_batch sequences."""

    processes: int
    micro_batch: int  # sequences per forward pass and process: the trainers' per_device_train_batch_size
    accumulation: int  # forward passes per optimizer step

    @classmethod
    def compute(
        cls, key: str, prompts: int, generations: int, limit: int, processes: int, domains: int = 1
    ) -> Batching:
        """Divide `prompts` x `generations` sequences so that all those of a prompt stay in one process.

        Args:
            key: the parameter that holds `prompts`, for the error message.
            limit: maximum sequences per forward pass and process; the largest divisor up to it is taken.

        Raises:
            ValueError: `prompts` is not a multiple of the processes and the domains; the message names the nearest
                valid numbers.
        """
        unit = math.lcm(processes, domains)
        if prompts % unit:
            below, above = prompts // unit * unit, (prompts // unit + 1) * unit
            raise ValueError(
                f"{key} is {prompts}, which {processes} process(es) and {domains} domain(s) cannot share evenly; "
                f"fix: use {f'{below} or {above}' if below else above}"
            )
        sequences = prompts // processes * generations
        micro_batch = next(size for size in range(min(limit, sequences), 0, -1) if sequences % size == 0)
        return cls(processes, micro_batch, sequences // micro_batch)
