"""Tokens per second of a training step of models/base, by sequence length, precision, logits and attention.

    python benchmarks/base_step.py [STEPS]

Uses one thread (set OMP_NUM_THREADS for more); run nothing else. Every variant runs once in each of five rounds;
reported is the median over the rounds, and its ratio to the first variant's.
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

from planward.pretraining.base_model import PackedBatches
from planward.pretraining.config import load_base_config
from planward.pretraining.network import DENSE_ATTENTION, IGNORED_LABEL
from planward.pretraining.vocabulary import build_tokenizer, build_vocabulary

BASE, ROUNDS = Path("models/base"), 5
LENGTH_KEYS = ("short_sequence", "long_sequence")
FUSED = "sdpa"  # torch's
VARIANTS = {  # sequence length, bfloat16, logits of all tokens, attention
    "512 tokens, float32, all logits": (512, False, True, FUSED),
    "512 tokens, float32": (512, False, False, FUSED),
    "256 tokens, float32": (256, False, False, FUSED),
    "512 tokens, bfloat16": (512, True, False, FUSED),
    "256 tokens, bfloat16": (256, True, False, FUSED),
    "256 tokens, bfloat16, dense": (256, True, False, DENSE_ATTENTION),
}


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    params = load_base_config(BASE.parent / "params.yaml")
    tokenizer = build_tokenizer(build_vocabulary(), 2 * params.long_sequence)
    torch.manual_seed(params.seed)
    model = LlamaForCausalLM(AutoConfig.from_pretrained(BASE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = {
        length: list(
            islice(PackedBatches(params.model_copy(update=dict.fromkeys(LENGTH_KEYS, length)), 0, tokenizer), steps)
        )
        for length in {length for length, *_ in VARIANTS.values()}
    }
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(ROUNDS):
        for name, (length, bfloat16, all_logits, attention) in VARIANTS.items():
            model.set_attn_implementation(attention)
            start = time.perf_counter()
            for batch in batches[length]:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
                    states = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1]
                    labels = batch["labels"][:, 1:]
                    has_label = torch.ones_like(labels, dtype=torch.bool) if all_logits else labels != IGNORED_LABEL
                    loss = cross_entropy(
                        model.lm_head(states[has_label]).float(), labels[has_label], ignore_index=IGNORED_LABEL
                    )
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
