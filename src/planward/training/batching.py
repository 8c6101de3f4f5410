"""How an optimizer step is cut up over processes and forward passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from accelerate import PartialState


def training_state() -> PartialState:
    """The processes that train together.

    Raises:
        ValueError: one process sees several GPUs; the trainer would spread each batch over them, and a
            batch would then not be what params.yaml says.
    """
    state = PartialState(cpu=not torch.cuda.is_available())
    if state.num_processes == 1 and torch.cuda.device_count() > 1:
        raise ValueError(
            f"{torch.cuda.device_count()} GPUs are visible to one process: start one process a GPU with "
            "`accelerate launch`, or set CUDA_VISIBLE_DEVICES=0"
        )
    return state


@dataclass(frozen=True)
class Batching:
    """An optimizer step holds processes x accumulation x micro_batch sequences."""

    processes: int
    micro_batch: int  # sequences a forward pass, a process: the trainers' per_device_train_batch_size
    accumulation: int  # forward passes an optimizer step

    @classmethod
    def of(cls, key: str, prompts: int, generations: int, limit: int, processes: int, domains: int = 1) -> Batching:
        """Cut `prompts` x `generations` sequences so that all those of a prompt stay in one process.

        Args:
            key: the parameter that holds `prompts`, for the error.
            limit: sequences that a process may forward at once; the largest divisor up to it is taken.

        Raises:
            ValueError: `prompts` is no multiple of the processes and the domains; the message names the
                valid neighbours.
        """
        unit = math.lcm(processes, domains)
        if prompts % unit:
            below, above = prompts // unit * unit, (prompts // unit + 1) * unit
            raise ValueError(
                f"{key} is {prompts}, which {processes} process(es) and {domains} domain(s) cannot share evenly; "
                f"take {f'{below} or {above}' if below else above}"
            )
        sequences = prompts // processes * generations
        micro = next(size for size in range(min(limit, sequences), 0, -1) if sequences % size == 0)
        return cls(processes, micro, sequences // micro)
