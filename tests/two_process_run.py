"""One GRPO run under `accelerate launch`: python two_process_run.py BASE STEPS; writes out/ and training/."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import letters
from planward.training import grpo

if __name__ == "__main__":
    torch.set_num_threads(1)
    base, steps = sys.argv[1], int(sys.argv[2])
    records = letters.problems(16)
    params = letters.params(grpo={"steps": steps, "micro_batch_size": 8, "audit_share": 0.5})
    grpo.train(
        letters.Letters(),
        records,
        letters.schedule(records, steps, params.grpo.batch_size),
        params,
        base=base,
        model=Path("out"),
        training=Path("training"),
    )
