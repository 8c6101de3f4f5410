"""One GRPO run under `accelerate launch`: python two_process_run.py BASE GRPO; writes out/ and training/."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import letters
from planward.training import grpo

if __name__ == "__main__":
    torch.set_num_threads(1)
    base, settings = sys.argv[1], json.loads(sys.argv[2])
    records = letters.problems(16)
    params = letters.params(grpo=settings)
    grpo.train(
        letters.Letters(),
        records,
        letters.schedule(records, params.grpo.steps, params.grpo.batch_size),
        params,
        base=base,
        model=Path("out"),
        training=Path("training"),
        validation=letters.problems(8),
    )
