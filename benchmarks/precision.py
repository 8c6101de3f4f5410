"""Tokens a second of a model by `model.precision` and `model.attention`, in training, prefill and decoding.

    python benchmarks/precision.py [MODEL [PROMPT COMPLETION BATCH]]

Full training of MODEL (a folder, models/smollm2 by default) on BATCH random sequences of PROMPT + COMPLETION tokens,
prefill of as many prompts, then greedy completions of all of them at once; as Planward does each: training under
autocast, evaluation with weights in that precision. One thread unless OMP_NUM_THREADS says otherwise. The first call of
each is not timed. Relative to the first row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import product
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig

from planward.core.registry import load_params
from planward.inference.decoding import decode
from planward.inference.models import load_model
from planward.params import ModelConfig

REPEATS = 2


def measure(num_tokens: int, run: Callable[[], object]) -> float:
    """Return tokens a second."""
    run()
    start = perf_counter()
    for _ in range(REPEATS):
        run()
    return num_tokens * REPEATS / (perf_counter() - start)


def measure_training(model: ModelConfig, ids: torch.Tensor, length: int) -> float:
    network, _ = load_model(model, model.path, length, 0)
    network.train()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=model.precision == "bfloat16"):
            loss = network(input_ids=ids, labels=ids).loss
        loss.backward()
        network.zero_grad()

    return measure(ids.numel(), step)


def measure_inference(model: ModelConfig, prompts: torch.Tensor, completion: int, length: int) -> tuple[float, float]:
    network, tokenizer = load_model(model, model.path, length, 0, training=False)
    network.eval()
    config = GenerationConfig(max_new_tokens=completion, eos_token_id=None, pad_token_id=tokenizer.pad_token_id)
    mask = torch.ones_like(prompts)

    def complete() -> Any:
        return decode(network, prompts, mask, config, lambda logits, *_: logits.argmax(-1))

    with torch.no_grad():
        prefill = measure(prompts.numel(), lambda: network(input_ids=prompts, logits_to_keep=1))
        both = measure(len(prompts) * completion, complete)
    seconds = len(prompts) * completion / both - prompts.numel() / prefill
    return prefill, len(prompts) * completion / seconds


def main(path: str = "models/smollm2", prompt: int = 190, completion: int = 70, batch: int = 16) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    base = load_params().model.model_copy(update={"path": path, "backend": "transformers", "lora": None})
    generator, length = torch.Generator().manual_seed(0), prompt + completion
    rows = {}
    for precision, attention in product(("float32", "bfloat16"), ("sdpa", "eager")):
        model = base.model_copy(update={"precision": precision, "attention": attention})
        ids = torch.randint(0, 1000, (batch, length), generator=generator)
        training = measure_training(model, ids, length)
        rows[precision, attention] = (training, *measure_inference(model, ids[:, :prompt], completion, length))
    first = next(iter(rows.values()))
    print(f"{path}, {batch} x {prompt} + {completion} tokens, {torch.get_num_threads()} thread(s): tokens/s (ratio)")
    print(f"{'precision':10}{'attention':10}{'training':>16}{'prefill':>16}{'decoding':>16}")
    for (precision, attention), row in rows.items():
        cells = (f"{value:.0f} ({value / one:.1f})" for value, one in zip(row, first, strict=True))
        print(f"{precision:10}{attention:10}" + "".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
