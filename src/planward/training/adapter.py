"""A LoRA adapter that teaches the tiny base another task's words, and to go on as the examples before do."""

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
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed

from planward.params import Adapter
from planward.training import models

IGNORED = -100  # a label that counts for no loss
Pair = tuple[str, str]  # a prompt and its answer


class Batches(IterableDataset):  # type: ignore[type-arg]
    """Endless batches of sequences, each of examples from one source, with loss on the answers alone.

    Yields input_ids, labels and attention_mask of shape [batch_size, length of the longest sequence].
    """

    def __init__(
        self, sources: Sequence[Sequence[Pair]], tokenizer: PreTrainedTokenizerFast, settings: Adapter
    ) -> None:
        self.settings, self.pad = settings, tokenizer.pad_token_id
        self.encoded = [[encoded(tokenizer, *pair) for pair in source] for source in sources]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        rng = Random(self.settings.seed)
        while True:
            rows = [self._row(rng) for _ in range(self.settings.batch_size)]
            longest = max(len(ids) for ids, _ in rows)
            ids = torch.tensor([ids + [self.pad] * (longest - len(ids)) for ids, _ in rows])
            labels = torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in rows])
            yield {"input_ids": ids, "labels": labels, "attention_mask": (ids != self.pad).long()}

    def _row(self, rng: Random) -> tuple[list[int], list[int]]:
        source = rng.choice(self.encoded)
        drawn = rng.sample(source, min(self.settings.examples, len(source)))
        ids = [token for prompt, answer in drawn for token in (*prompt, *answer)]
        labels = [token for prompt, answer in drawn for token in (*[IGNORED] * len(prompt), *answer)]
        return ids, labels


def encoded(tokenizer: Any, prompt: str, answer: str) -> tuple[list[int], list[int]]:
    """The tokens of a prompt, and of its answer closed by the end-of-sequence token.

    Raises:
        ValueError: the vocabulary lacks a word.
    """
    ids = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (prompt, answer)]
    if tokenizer.unk_token_id in [*ids[0], *ids[1]]:
        raise ValueError(f"the vocabulary lacks a word of {prompt!r} or {answer!r}")
    return ids[0], [*ids[1], tokenizer.eos_token_id]


class _Trainer(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Cross-entropy of the answers' tokens; the others get no logits."""
        network = model.get_base_model()
        labels = inputs["labels"][:, 1:]
        learnt = labels != IGNORED
        hidden = network.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        logits = network.lm_head(hidden.last_hidden_state[:, :-1][learnt])
        return cross_entropy(logits, labels[learnt])


def train(
    sources: Sequence[Sequence[Pair]], words: Sequence[str], settings: Adapter, checkpoints: Path
) -> tuple[Any, PreTrainedTokenizerFast]:
    """Train an adapter on `settings.base`; returns the network that carries it, and the tokenizer with the words.

    The embeddings of words that the base lacks are trained too, and belong to the adapter. Goes on from the newest
    checkpoint in `checkpoints`.

    Args:
        sources: pairs of prompt and answer; a sequence holds those of one source.
    """
    set_seed(settings.seed)
    base = models.weights(settings.base, torch.float32)
    tokenizer = extended_tokenizer(PreTrainedTokenizerFast.from_pretrained(settings.base), words)
    known = base.get_input_embeddings().num_embeddings
    base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    lora = LoraConfig(
        r=settings.lora.r,
        lora_alpha=settings.lora.alpha,
        lora_dropout=settings.lora.dropout,
        target_modules=settings.lora.target_modules,
        trainable_token_indices={"embed_tokens": list(range(known, len(tokenizer)))},
        task_type="CAUSAL_LM",
    )
    network = get_peft_model(base, lora)
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=settings.steps,
        per_device_train_batch_size=1,  # the dataset makes the batches
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_ratio=settings.warmup_ratio,
        max_grad_norm=1.0,
        save_steps=settings.save_steps,
        save_total_limit=1,
        logging_steps=20,
        dataloader_pin_memory=False,
        report_to=[],
        seed=settings.seed,
        use_cpu=not torch.cuda.is_available(),
    )
    batches = Batches(sources, tokenizer, settings)
    trainer = _Trainer(network, arguments, train_dataset=batches, data_collator=_only)
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")))
    return network, tokenizer


def extended_tokenizer(tokenizer: PreTrainedTokenizerFast, words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with the words that it lacks behind its own, in the order given."""
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


def _only(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return batches[0]
