"""A folder that is ready for SFT, with a tiny chat model: what tests of the backends train and evaluate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

from planward.core.records import read_records
from planward.core.registry import load_params, load_task
from planward.core.runs import Run
from planward.stages import problems, schedule, score, split
from planward.tasks.planning.config import PlanningParams
from support import ROOT, merge_values

SIZE, SEED = 4, 3407
TEMPLATE = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}\n{{ turn['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL: dict[str, Any] = {
    "dataset_sizes": [SIZE],
    "tracks": [],
    "problems": {
        "generated": {
            "blocksworld": {"count": 8, "blocks": [3, 4]},
            "ferry": {"count": 8, "locations": [3, 4], "cars": [1, 2]},
        },
        "constraints": "none",
    },
    "split": {"validation": 0.1, "test": 0.3, "held_out_domains": []},
    "prompt": {"style": "full", "max_tokens": 1024, "max_completion_tokens": 16},
    "model": {"path": "model"},
    "sft": {"epochs": 2, "batch_size": SIZE, "micro_batch_size": 2, "learning_rate": 1e-2, "shots": [0, 0]},
    "grpo": {
        "steps": 2,
        "batch_size": 2,
        "num_generations": 8,
        "micro_batch_size": 8,
        "learning_rate": 1e-2,
        "reward": "dense",
        "audit_share": 0.0,
    },
    "validation": {"steps": 2, "problems": 2, "keep": "last"},
    "evaluate": {"shots": [0], "batch_size": 4},
    "transfer": {"methods": [], "renamed": 0, "unseen": 0, "larger": {}},
    "ablations": {"run": []},
}  # two optimizer steps of SFT, two of GRPO


class ChatProject:
    """Runs stages as commands in a folder with problems and a model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            params = self.write_params()
            for stage in (problems, split, score):
                stage.run(params)
            schedule.run(params, Run("grpo", SIZE, SEED))
            task = load_task(params)
            records = list(read_records(Path("results/score/train.jsonl")))
            prompts = [turn["content"] for record in records for turn in task.prompt(record, [])]
            plans = [record.response for record in records if record.response is not None]
            write_chat_model(Path("model"), prompts, plans)

    def write_params(self, **sections: Any) -> PlanningParams:
        """Write the shipped parameters, reduced, with `sections` laid over them; return them."""
        raw = load_params(root=ROOT).model_dump(mode="json")
        params = PlanningParams.model_validate(merge_values(merge_values(raw, SMALL), sections))
        with (self.folder / "params.yaml").open("w") as file:
            YAML().dump(params.model_dump(mode="json", exclude={"task"}), file)
        return params

    def run(self, *arguments: str, prelude: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `planward ARGUMENTS` in a process of its own, after the Python statements of `prelude`."""
        program = f"{prelude}\nfrom planward.cli import main\nmain()"
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def write_chat_model(folder: Path, prompts: list[str], plans: list[str]) -> None:
    """Write a two-layer OLMo 2, and a byte-level BPE tokenizer with a chat template.

    Each line of the plans is a token, and the model has seen the plans, so that completions differ in reward.
    """
    special = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(prompts, trainer)
    lines = sorted({line for plan in plans for line in (plan + "\n").splitlines(keepends=True)})
    core.add_tokens([AddedToken(text, normalized=False) for line in lines for text in (line, line.strip())])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=special[0], eos_token=special[2])
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = Olmo2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    network = Olmo2ForCausalLM(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    batch = tokenizer(
        [f"{special[1]}assistant\n{plan}{special[2]}" for plan in plans], padding=True, return_tensors="pt"
    )
    for _ in range(30):
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        network(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
