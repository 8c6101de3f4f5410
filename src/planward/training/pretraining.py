"""The tiny base model: its vocabulary, its endless training problems, its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed

from planward.params import Base, Range
from planward.pddl import safety
from planward.pddl.canonical import core_hash, fraction
from planward.pddl.generators import GENERATORS, GOAL_FACTS, generated_domain, generated_problem
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem
from planward.pddl.search import shortest_plan
from planward.pddl.walks import loop_free_walk
from planward.tasks.planning.prompt import END, compact_problem

PAD, UNKNOWN = "<pad>", "<unk>"
IGNORED = -100  # a label that counts for no loss
WORDS = ("objects", "init", "goal", "plan", "constraints", *safety.WORDS, *safety.QUANTIFIED)


def vocabulary(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Every word, object, ground atom and action of the domains up to the given sizes, sorted."""
    tokens = {*WORDS, *sizes}
    for name, size in sizes.items():
        domain = generated_domain(name)
        problem = generated_problem(name, GENERATORS[name](Random(0), size))
        tokens |= set(problem.objects)
        is_a = domain.signature.is_a
        schemas = [(p, kinds) for p, kinds in domain.signature.predicates.items()]
        schemas += [(a.name, tuple(kinds for _, kinds in a.parameters)) for a in domain.actions.values()]
        for head, wanted in schemas:
            candidates = [[o for o, kinds in problem.objects.items() if is_a(kinds, kind)] for kind in wanted]
            tokens |= {f"({' '.join([head, *arguments])})" for arguments in product(*candidates)}
    return sorted(tokens)


def build_tokenizer(tokens: list[str], length: int) -> PreTrainedTokenizerFast:
    """One token a word or ground atom; decoding puts each atom on a line of its own, a blank before each word."""
    vocab = {token: i for i, token in enumerate([PAD, UNKNOWN, END, *tokens])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\([^()]*\)|[^\s()]+"), "removed", invert=True)
    apart = [decoders.Replace(Regex(r"^(?=[^(])"), " "), decoders.Replace(Regex(r"^\("), "\n(")]
    tokenizer.decoder = decoders.Sequence([*apart, decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        padding_side="left",
        model_max_length=length,
        clean_up_tokenization_spaces=False,
    )


def training_example(rng: Random, params: Base, domain: str) -> tuple[Problem, list[str]]:
    """A solved problem from the base's share of the problem space."""
    while True:
        instance = GENERATORS[domain](rng, drawn_sizes(rng, params.problems[domain]))
        if not instance.goal:
            continue
        problem = generated_problem(domain, instance)
        grounded, walk = ground_problem(problem), rng.random() < params.walk_share
        if walk:
            plan, end = loop_free_walk(rng, grounded, rng.randint(*params.walk_length))
            predicate, kinds = GOAL_FACTS[domain]
            reached = (a for a in grounded.grounding.atoms(end) if a[0] == predicate)
            instance = replace(instance, goal=tuple(a for a in reached if instance.objects[a[1]] == kinds))
            problem = generated_problem(domain, instance)
        if not problem.goal or fraction(core_hash(problem), "base") >= params.base_share:
            continue
        if not walk:
            plan = shortest_plan(grounded, max_states=10**6)
        if not plan:
            continue
        if rng.random() >= params.constrained_share:
            return problem, plan
        if walk:
            instance = safety.keeping(rng, domain, instance, plan)
        elif found := safety.constrained(rng, domain, instance, plan, max_states=10**6):
            instance, plan = found
        return generated_problem(domain, instance), plan


def drawn_sizes(rng: Random, ranges: Mapping[str, Range]) -> dict[str, int]:
    return {name: rng.randint(*bounds) for name, bounds in ranges.items()}


class PackedExamples(IterableDataset):  # type: ignore[type-arg]
    """Endless sequences of solved examples, each of one domain, with loss on the plans alone.

    Yields input_ids and labels of shape [sequence_length]; a padded tail counts for nothing.
    """

    def __init__(self, params: Base, tokenizer: PreTrainedTokenizerFast) -> None:
        self.params, self.tokenizer = params, tokenizer

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        rng = Random(self.params.seed)
        domains = list(self.params.problems)
        while True:
            yield self.sequence(rng, rng.choice(domains))

    def sequence(self, rng: Random, domain: str) -> dict[str, torch.Tensor]:
        length, pad = self.params.sequence_length, self.tokenizer.pad_token_id
        tokens, labels = list[int](), list[int]()
        while True:
            problem, plan = training_example(rng, self.params, domain)
            prompt = self.tokenizer(compact_problem(problem)).input_ids
            answer = self.tokenizer("\n".join([*plan, END])).input_ids
            if len(tokens) + len(prompt) + len(answer) > length:
                break
            tokens += prompt + answer
            labels += [IGNORED] * len(prompt) + answer
        padding = length - len(tokens)
        return {
            "input_ids": torch.tensor(tokens + [pad] * padding),
            "attention_mask": torch.tensor([1] * len(tokens) + [0] * padding),
            "labels": torch.tensor(labels + [IGNORED] * padding),
        }


def pretrain(params: Base, checkpoints: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train the base from nothing; continues from the newest checkpoint in `checkpoints`."""
    set_seed(params.seed)
    tokenizer = build_tokenizer(vocabulary(params.vocabulary), 2 * params.sequence_length)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=params.hidden_size,
        intermediate_size=params.intermediate_size,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.heads,
        max_position_embeddings=2 * params.sequence_length,
        initializer_range=params.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=params.steps,
        per_device_train_batch_size=params.batch_size,
        learning_rate=params.learning_rate,
        adam_beta1=0.9,
        adam_beta2=params.adam_beta2,
        weight_decay=0.01,
        lr_scheduler_type="cosine",
        warmup_ratio=params.warmup_ratio,
        max_grad_norm=1.0,
        save_steps=params.save_steps,
        save_total_limit=1,
        logging_steps=20,
        dataloader_num_workers=1,
        dataloader_pin_memory=False,
        report_to=[],
        seed=params.seed,
        **cpu_arguments(),
    )
    trainer = Trainer(model, arguments, train_dataset=PackedExamples(params, tokenizer))
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")))
    return model, tokenizer


def cpu_arguments() -> dict[str, Any]:
    return {} if torch.cuda.is_available() else {"use_cpu": True, "bf16": False}
