"""What is lost by merging a LoRA adapter on 4-bit weights and quantising the sum again.

    python benchmarks/merging.py MODEL results/score/test.jsonl

needs the extra `4bit`. The adapter is random (r 16, alpha 32, B's standard deviation 0.02). Prints how far next-token
logits are from those of the adapter on 4-bit weights, in the mean, and the share of other most likely tokens.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from peft import get_peft_model

from planward.core.prompts import encode_prompt
from planward.core.records import read_records
from planward.core.registry import load_params
from planward.inference import models
from planward.params import ModelConfig

LORA = {"r": 16, "alpha": 32, "dropout": 0.0, "target_modules": "all-linear", "merge": False}


@torch.no_grad()
def compute_logits(model: ModelConfig, path: Path, prompts: list[list[int]]) -> torch.Tensor:
    """Return the logits of all positions [tokens, vocabulary], computed in float32."""
    network = models.load_model(model, str(path), 0, 0)[0].eval()
    return torch.cat([network(input_ids=torch.tensor([prompt])).logits[0].half() for prompt in prompts])


def main() -> None:
    changes = {"path": sys.argv[1], "backend": "transformers", "load_in_4bit": True, "lora": LORA}
    config_4bit = ModelConfig.model_validate(load_params().model.model_dump() | changes)
    plain_config = config_4bit.model_copy(update={"load_in_4bit": False})
    torch.manual_seed(0)
    network, tokenizer = models.load_model(plain_config, sys.argv[1], 0, 0)
    records = islice(read_records(Path(sys.argv[2])), 4)
    prompts = [encode_prompt(tokenizer, [{"role": "user", "content": record.prompt}], {}) for record in records]
    network = get_peft_model(network, models.build_lora_config(config_4bit, network))
    for name, parameter in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    with TemporaryDirectory() as name:
        adapter_folder, merged_folder = Path(name, "adapter"), Path(name, "merged")
        models.save_model(network, tokenizer, adapter_folder, adapter=True)
        models.save_model(network.to(torch.bfloat16), tokenizer, merged_folder)
        logits = compute_logits(config_4bit, adapter_folder, prompts)
        for label, config, path in (
            ("merged", config_4bit, merged_folder),
            ("weights not quantised", plain_config, adapter_folder),
        ):
            other = compute_logits(config, path, prompts)
            difference, flips = (logits - other).abs().mean(dtype=torch.float), logits.argmax(1) != other.argmax(1)
            print(f"{label}: {difference:.2f}, {flips.float().mean():.1%} of {len(logits)} tokens")


if __name__ == "__main__":
    main()
