"""Loss of the base model after some steps, by optimizer and by whether embeddings are composed of shared parts.

    python benchmarks/base_loss.py [--steps 700]

Trains models/base's network for so many steps of its last phase in each of four ways, and prints the loss on other
problems' plans by the generator's rule. On two cores 700 steps take about three minutes each.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path

import torch
from torch.optim import AdamW, Optimizer

from planward.pretraining.base_model import PackedBatches, build_network
from planward.pretraining.config import BaseModelConfig, load_base_config
from planward.pretraining.network import BaseModelNetwork
from planward.pretraining.optimizer import MuonWithAdamW
from planward.pretraining.vocabulary import build_tokenizer, build_vocabulary

BATCHES = 12  # of held-out problems


def build_optimizer(network: BaseModelNetwork, params: BaseModelConfig, rate: float, *, muon: bool) -> Optimizer:
    matrices, others = network.list_matrices(), network.list_other_weights()
    if muon:
        return MuonWithAdamW(matrices, others, rate, params.adam_beta2, params.weight_decay)
    return AdamW([*matrices, *others], rate, betas=(0.9, params.adam_beta2), weight_decay=params.weight_decay)


def train(
    network: BaseModelNetwork, optimizer: Optimizer, batches: Sequence[dict[str, torch.Tensor]], warmup_ratio: float
) -> None:
    """Take a step on each batch; the learning rate rises, then falls as a cosine."""
    peaks = [group["lr"] for group in optimizer.param_groups]
    for step, batch in enumerate(batches, 1):
        share = step / len(batches)
        factor = min(1.0, share / warmup_ratio) * 0.5 * (1 + math.cos(math.pi * share))
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        network(**batch).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--steps", type=int, default=700)
    steps = parser.parse_args().steps
    params, tokens = load_base_config(Path("models/params.yaml")), build_vocabulary()
    tokenizer, phase = build_tokenizer(tokens, 2 * params.long_sequence), params.phases[-1]
    held_out = params.model_copy(
        update={
            "seed": params.seed + 1,
            "neutral_share": 0.0,
            "dialect_share": 0.0,
            "phases": [phase.model_copy(update={"variant_share": 0.0})],
        }
    )
    batches = list(islice(iter(PackedBatches(params, len(params.phases) - 1, tokenizer)), steps))
    validation = list(islice(iter(PackedBatches(held_out, 0, tokenizer)), BATCHES))
    print(f"{'optimizer':10} {'embeddings':10} loss after {steps} steps")
    for muon, is_composed in product((False, True), (False, True)):
        torch.manual_seed(params.seed)
        network = build_network(params, tokens)
        network.embedding.parts.requires_grad_(is_composed)  # else rows start as sums, and are trained on their own
        train(network, build_optimizer(network, params, phase.learning_rate, muon=muon), batches, params.warmup_ratio)
        with torch.no_grad():
            loss = sum(network(**batch).item() for batch in validation) / len(validation)
        print(f"{'Muon' if muon else 'AdamW':10} {'composed' if is_composed else 'rows':10} {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
