"""Tokens a second of a training step of models/base: sequence length, number format, logits of plans alone or of all.

    python benchmarks/base_step.py [STEPS]

One thread (set OMP_NUM_THREADS for more), nothing else running. Every way takes its turn in each of five rounds; the
median of a way's rounds is told, and its ratio to the first way's.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, LlamaForCausalLM

from planward.params import load_base_params
from planward.training.lexicon import build_tokenizer, vocabulary
from planward.training.pretraining import IGNORED, PackedBatches

BASE, ROUNDS = Path("models/base"), 5
LENGTHS = ("short_sequence", "long_sequence")  # the keys that hold them
WAYS = {
    "512 tokens, float32, all logits": (512, False, True),
    "512 tokens, float32": (512, False, False),
    "256 tokens, float32": (256, False, False),
    "512 tokens, bfloat16": (512, True, False),
    "256 tokens, bfloat16": (256, True, False),
}


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    params = load_base_params(BASE / "params.yaml")
    tokenizer = build_tokenizer(vocabulary(params.vocabulary), 2 * params.long_sequence)
    torch.manual_seed(params.seed)
    model = LlamaForCausalLM(AutoConfig.from_pretrained(BASE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = {
        length: list(islice(PackedBatches(params.model_copy(update=dict.fromkeys(LENGTHS, length)), tokenizer), steps))
        for length in {length for length, _, _ in WAYS.values()}
    }
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, (length, half, all_logits) in WAYS.items():
            start = time.perf_counter()
            for batch in batches[length]:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                    hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
                    labels = batch["labels"][:, 1:]
                    learnt = torch.ones_like(labels, dtype=torch.bool) if all_logits else labels != IGNORED
                    loss = cross_entropy(model.lm_head(hidden[learnt]).float(), labels[learnt], ignore_index=IGNORED)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            tokens = sum(batch["input_ids"].numel() for batch in batches[length])
            rates[name].append(tokens / (time.perf_counter() - start))
    first = median(next(iter(rates.values())))
    for name, rounds in rates.items():
        print(f"{name:36} {median(rounds):8.0f} tokens/s  {median(rounds) / first:5.2f} x")


if __name__ == "__main__":
    main()
