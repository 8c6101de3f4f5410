"""A LoRA adapter that teaches the shipped base model another task's words, and to follow its worked examples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments, set_seed

from planward.core.fingerprints import compute_fingerprint
from planward.inference import models
from planward.pretraining.config import AdapterTrainingConfig
from planward.training.checkpoints import CheckpointCallback, restore_checkpoint, run_trainer

IGNORED_LABEL = -100  # of a token that is left out of the loss
Pair = tuple[str, str]  # a prompt and its completion
PACKAGES = ("inference", "pretraining", "training")  # that the trained weights depend on


class AdapterBatches(IterableDataset):  # type: ignore[type-arg]
    """Endless batches of sequences, each of pairs from one source, with loss on the completions only.

    Yields input_ids, labels and attention_mask of shape [batch_size, length of the longest sequence].
    """

    def __init__(
        self, sources: Sequence[Sequence[Pair]], tokenizer: PreTrainedTokenizerFast, config: AdapterTrainingConfig
    ) -> None:
        self.config, self.pad = config, tokenizer.pad_token_id
        self.sources = [[encode_pair(tokenizer, *pair) for pair in source] for source in sources]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        rng = Random(self.config.seed)
        while True:
            rows = [self._build_row(rng) for _ in range(self.config.batch_size)]
            longest = max(len(ids) for ids, _ in rows)
            ids = torch.tensor([ids + [self.pad] * (longest - len(ids)) for ids, _ in rows])
            labels = torch.tensor([labels + [IGNORED_LABEL] * (longest - len(labels)) for _, labels in rows])
            yield {"input_ids": ids, "labels": labels, "attention_mask": (ids != self.pad).long()}

    def _build_row(self, rng: Random) -> tuple[list[int], list[int]]:
        source = rng.choice(self.sources)
        pairs = rng.sample(source, min(self.config.examples, len(source)))
        ids = [token for prompt, completion in pairs for token in (*prompt, *completion)]
        labels = [token for prompt, completion in pairs for token in (*[IGNORED_LABEL] * len(prompt), *completion)]
        return ids, labels


def encode_pair(tokenizer: Any, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """Return the tokens of a prompt, and of its completion closed by the end-of-sequence token.

    Raises:
        ValueError: the vocabulary lacks a word.
    """
    ids = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (prompt, completion)]
    if tokenizer.unk_token_id in [*ids[0], *ids[1]]:
        raise ValueError(f"the vocabulary lacks a word of {prompt!r} or {completion!r}")
    return ids[0], [*ids[1], tokenizer.eos_token_id]


class AdapterTrainer(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Return the cross-entropy of the completions' tokens; no logits are computed for the others."""
        network = model.get_base_model()
        labels = inputs["labels"][:, 1:]
        mask = labels != IGNORED_LABEL
        output = network.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits = network.lm_head(output.last_hidden_state[:, :-1][mask])
        return cross_entropy(logits, labels[mask])


def train_adapter(
    sources: Sequence[Sequence[Pair]],
    words: Sequence[str],
    config: AdapterTrainingConfig,
    checkpoints: Path,
    callbacks: Sequence[TrainerCallback] = (),
) -> tuple[Any, PreTrainedTokenizerFast]:
    """Train an adapter on `config.base`; return the network with the adapter, and the tokenizer with the words.

    The embeddings of words that the base lacks are trained too and belong to the adapter. An interrupted run resumes
    from its last checkpoint, below `checkpoints`.

    Args:
        sources: pairs of prompt and completion; a sequence holds pairs of one source.
    """
    set_seed(config.seed)
    base = models.load_weights(config.base, torch.float32)
    tokenizer = extend_tokenizer(PreTrainedTokenizerFast.from_pretrained(config.base), words)
    num_known = base.get_input_embeddings().num_embeddings
    base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    lora = LoraConfig(
        r=config.lora.r,
        lora_alpha=config.lora.alpha,
        lora_dropout=config.lora.dropout,
        target_modules=config.lora.target_modules,
        trainable_token_indices={"embed_tokens": list(range(num_known, len(tokenizer)))},
        task_type="CAUSAL_LM",
    )
    network = get_peft_model(base, lora)
    settings = config.model_dump(exclude={"save_steps", "validation"})  # these change no weights
    folder = checkpoints / compute_fingerprint(settings, (), (sources, words), config.base, 1, PACKAGES)
    checkpoint, journal = restore_checkpoint(folder)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=config.steps,
        per_device_train_batch_size=1,  # the dataset yields whole batches
        learning_rate=config.learning_rate,
        lr_scheduler_type="cosine",
        warmup_ratio=config.warmup_ratio,
        max_grad_norm=1.0,
        save_steps=config.save_steps,
        logging_steps=20,
        dataloader_pin_memory=False,
        report_to=[],
        seed=config.seed,
        use_cpu=not torch.cuda.is_available(),
    )
    batches = AdapterBatches(sources, tokenizer, config)
    callbacks = [CheckpointCallback(folder, journal), *callbacks]
    trainer = AdapterTrainer(
        network, arguments, train_dataset=batches, data_collator=_unwrap_batch, callbacks=callbacks
    )
    run_trainer(trainer, folder, checkpoint)
    return network, tokenizer


def extend_tokenizer(tokenizer: PreTrainedTokenizerFast, words: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer with those of `words` that it lacks appended, in their order."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    vocab = content["model"]["vocab"]
    for word in words:
        vocab.setdefault(word, len(vocab))
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        pad_token=tokenizer.pad_token,
        unk_token=tokenizer.unk_token,
        eos_token=tokenizer.eos_token,
        padding_side=tokenizer.padding_side,
        model_max_length=tokenizer.model_max_length,
        clean_up_tokenization_spaces=False,
    )


def _unwrap_batch(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return batches[0]
