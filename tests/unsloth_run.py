"""SFT, GRPO and evaluation under Unsloth on a CPU, in the working directory: unsloth_run.py PARAMS.

Unsloth asks for the GPU's name and memory even with UNSLOTH_ALLOW_CPU, and then leaves TRL's trainers as they are. Here
it gets an answer and replaces them, as on a GPU.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import torch

os.environ |= {"UNSLOTH_ALLOW_CPU": "1", "UNSLOTH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
torch.set_num_threads(1)
torch.cuda.get_device_properties = lambda *_: SimpleNamespace(name="CPU", total_memory=2**33, major=8, minor=0)
torch.cuda.current_device = lambda: "cpu"

import unsloth  # noqa: E402, F401  patches TRL, which the stages import
from unsloth.models.rl import PatchFastRL  # noqa: E402

os.environ["UNSLOTH_ALLOW_CPU"] = "0"
PatchFastRL()
os.environ["UNSLOTH_ALLOW_CPU"] = "1"

import chat_runs  # noqa: E402
from planward.tasks.planning.config import PlanningParams  # noqa: E402

if __name__ == "__main__":
    params = PlanningParams.model_validate_json(sys.argv[1])
    chat_runs.prepare(params)
    chat_runs.train_and_evaluate(params)
