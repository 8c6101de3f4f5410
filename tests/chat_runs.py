"""SFT, GRPO and evaluation of a tiny chat model through the stages, in the working directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Olmo2Config, Olmo2ForCausalLM, PreTrainedTokenizerFast

from planward.core.paths import results
from planward.core.records import read_records
from planward.core.registry import load_task
from planward.core.runs import Run
from planward.stages import evaluate, grpo, problems, schedule, score, sft, split
from planward.tasks.planning.config import PlanningParams

BASE = "model"
SFT, GRPO = Run("sft", 4, 3407), Run("grpo", 4, 3407)
PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    f"{{% for turn in messages %}}{START}{{{{ turn['role'] }}}}\n{{{{ turn['content'] }}}}{END}\n{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{START}assistant\n{{% endif %}}"
)
SECTIONS: dict[str, dict[str, Any]] = {
    "problems": {
        "generated": {
            "blocksworld": {"count": 8, "blocks": [3, 4]},
            "ferry": {"count": 8, "locations": [3, 4], "cars": [1, 2]},
        },
        "constraints": "none",
    },
    "prompt": {"style": "full", "max_tokens": 1024, "max_completion_tokens": 16},
    "sft": {"epochs": 2, "batch_size": 4, "micro_batch_size": 2, "learning_rate": 1e-3, "shots": [0, 0]},
    "grpo": {
        "steps": 2,
        "batch_size": 2,
        "num_generations": 8,
        "micro_batch_size": 8,
        "learning_rate": 1e-3,
        "reward": "dense",
        "audit_share": 0.0,
    },
    "validation": {"steps": 2, "problems": 2, "keep": "last"},
    "evaluate": {"shots": [0], "batch_size": 4},
}  # two optimizer steps of SFT, two of GRPO


def prepare(params: PlanningParams, base: Path = Path(BASE)) -> None:
    """Write problems, GRPO's schedule and a base model in the folder `base`."""
    for stage in (problems, split, score):
        stage.run(params)
    schedule.run(params, GRPO)
    task = load_task(params)
    records = list(read_records(results().score / "train.jsonl"))
    prompts = [turn["content"] for record in records for turn in task.prompt(record, [])]
    write_chat_model(base, prompts, [task.reference_completion(record) for record in records])


def train_and_evaluate(params: PlanningParams) -> None:
    sft.run(params, SFT)
    grpo.run(params, GRPO)
    evaluate.run(params, GRPO)


def load_weights() -> list[dict[str, torch.Tensor]]:
    """Return the weights of the base model, SFT and GRPO."""
    return [load_file(Path(folder, "model.safetensors")) for folder in (BASE, *map(results().model, (SFT, GRPO)))]


def check_outputs() -> None:
    """GRPO trained on its schedule with rewards that differ within groups; its model was evaluated."""
    rows = pq.read_table(results().curves(GRPO) / "consumed.parquet").to_pylist()
    assert [(row["step"], row["slot"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert any(len(set(row["rewards"])) > 1 for row in rows)
    assert json.loads(results().answers(GRPO).with_suffix(".json").read_text())["run"] == GRPO.as_dict("planning")


def write_chat_model(folder: Path, prompts: list[str], plans: list[str]) -> None:
    """Write a two-layer OLMo 2, and a byte-level BPE tokenizer with a chat template.

    Each line of the plans is a token, and the model has seen the plans: some completions are valid for a few actions,
    so rewards differ.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[PAD, START, END], initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(prompts, trainer)
    lines = sorted({line for plan in plans for line in (plan + "\n").splitlines(keepends=True)})
    core.add_tokens([AddedToken(text, normalized=False) for line in lines for text in (line, line.strip())])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PAD, eos_token=END)
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = Olmo2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    network = Olmo2ForCausalLM(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    texts = [f"{START}assistant\n{plan}{END}" for plan in plans]
    batch = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for _ in range(30):
        network(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
