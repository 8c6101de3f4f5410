"""Greedy completions of many prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm


@torch.inference_mode()
def greedy_completions(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch_size: int
) -> list[str]:
    """Complete every prompt (token ids, as `tasks.fitting.encode` gives them) greedily, in the prompts' order.

    Prompts are batched by length and padded on the left, so that short ones do not wait for long ones.
    """
    model.eval()
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    completions = [""] * len(prompts)
    for start in tqdm(range(0, len(order), batch_size), desc="generating", unit="batch"):
        chosen = order[start : start + batch_size]
        ids = {"input_ids": [list(prompts[i]) for i in chosen]}
        batch = tokenizer.pad(ids, return_tensors="pt", padding_side="left")
        inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
        tokens = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        written = tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for i, text in zip(chosen, written, strict=True):
            completions[i] = text
    return completions
