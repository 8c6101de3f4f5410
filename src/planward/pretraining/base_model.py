"""The shipped base model: its stream of training problems and its training."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments, set_seed

from planward.core.hashing import hash_fraction
from planward.core.prompts import END
from planward.params import Range
from planward.pddl.canonical import hash_without_constraints
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, map_problem_atoms
from planward.pddl.renaming import find_exchangeable, rename_atom, rename_plan
from planward.pddl.search import find_shortest_plan
from planward.pretraining.config import BaseModelConfig
from planward.pretraining.vocabulary import (
    SPECIAL,
    build_tokenizer,
    build_vocabulary,
    compose_embeddings,
    list_largest_objects,
)
from planward.tasks.planning.dialects import Dialect, sample_dialect
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem
from planward.tasks.planning.domains.constraints import constrain_instance
from planward.tasks.planning.prompt import render_compact_problem

IGNORED_LABEL = -100  # of a token that is left out of the loss
MAX_STATES = 10**6  # of a plan search
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class SolvedProblem:
    """A problem with two shortest plans: one that satisfies its constraints, one that ignores them."""

    problem: Problem
    plan: list[str]
    unconstrained_plan: list[str]


def sample_solved_problem(rng: Random, params: BaseModelConfig, domain: str) -> SolvedProblem:
    """Sample a solved problem from the base model's share of the problem space."""
    while True:
        instance = GENERATED_DOMAINS[domain].generate(rng, sample_sizes(rng, params.problems[domain]))
        problem = build_problem(domain, instance)
        if (
            problem.init >= set(instance.goal)
            or hash_fraction(hash_without_constraints(problem), "base") >= params.base_share
        ):
            continue
        plan = unconstrained_plan = find_shortest_plan(ground_problem(problem), max_states=MAX_STATES)
        is_constrained = rng.random() < params.constrained_share
        if is_constrained and (constrained := constrain_instance(rng, domain, instance, plan, max_states=MAX_STATES)):
            problem, plan = build_problem(domain, constrained[0]), constrained[1]
        return SolvedProblem(problem, plan, unconstrained_plan)


def sample_sizes(rng: Random, ranges: Mapping[str, Range]) -> dict[str, int]:
    return {name: rng.randint(*bounds) for name, bounds in ranges.items()}


class ProblemSampler:
    """Samples solved problems of one domain; each occurs `reuse` times on average, with new object names each time."""

    def __init__(self, params: BaseModelConfig, domain: str, rng: Random) -> None:
        self.params, self.domain, self.rng = params, domain, rng
        self.solved: list[SolvedProblem] = []
        self.names = defaultdict[str, list[str]](list)  # of the vocabulary, by the part before the number
        for name in list_largest_objects(domain, params.vocabulary[domain]):
            self.names[_NUMBER.sub("", name)].append(name)

    def sample(self) -> SolvedProblem:
        """Return a solved problem, its objects named from the whole vocabulary, so that every name is learnt."""
        if not self.solved or self.rng.random() * self.params.reuse < 1:
            self.solved.append(sample_solved_problem(self.rng, self.params, self.domain))
        solved = self.rng.choice(self.solved)
        names = dict[str, str]()
        for group in find_exchangeable(solved.problem):
            chosen = self.rng.sample(self.names[_NUMBER.sub("", group[0])], len(group)) if group else []
            names.update(zip(group, chosen, strict=True))
        objects = {names.get(name, name): types for name, types in solved.problem.objects.items()}
        problem = map_problem_atoms(solved.problem, lambda atom: rename_atom(atom, names))
        plans = ([rename_plan(action, names) for action in plan] for plan in (solved.plan, solved.unconstrained_plan))
        return SolvedProblem(replace(problem, objects=dict(sorted(objects.items(), key=_object_order))), *plans)


def _object_order(entry: tuple[str, Any]) -> tuple[Any, ...]:
    """Sort key of objects in the generators' order: by type, then by number."""
    name, types = entry
    return types, _NUMBER.sub("", name), [int(number) for number in _NUMBER.findall(name)]


class PackedBatches(IterableDataset):  # type: ignore[type-arg]
    """Endless batches of solved problems, packed into sequences, with loss on the plans only.

    A sequence has one domain and one dialect. Yields input_ids and labels of shape [batch_tokens / length, length];
    length is `long_sequence` in every fourth batch and `short_sequence` in the others. The padded tail has no loss.
    """

    def __init__(self, params: BaseModelConfig, tokenizer: PreTrainedTokenizerFast) -> None:
        self.params, self.tokenizer = params, tokenizer

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        params, rng, num_batches = self.params, Random(self.params.seed), 0
        samplers = {domain: ProblemSampler(params, domain, rng) for domain in params.problems}
        while True:
            num_batches += 1
            length = params.short_sequence if num_batches % 4 else params.long_sequence
            rows = [
                self._build_sequence(rng, samplers[rng.choice(list(samplers))], length)
                for _ in range(params.batch_tokens // length)
            ]
            ids, labels = zip(*rows, strict=True)
            yield {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}

    def _build_sequence(self, rng: Random, sampler: ProblemSampler, length: int) -> tuple[list[int], list[int]]:
        dialect = sample_dialect(sampler.domain, rng) if rng.random() < self.params.dialect_share else None
        tokens, labels = list[int](), list[int]()
        while True:
            prompt, completion = self._encode(rng, sampler.sample(), dialect)
            if len(tokens) + len(prompt) + len(completion) > length:
                break
            tokens += prompt + completion
            labels += [IGNORED_LABEL] * len(prompt) + completion
        padding = length - len(tokens)
        return tokens + [self.tokenizer.pad_token_id] * padding, labels + [IGNORED_LABEL] * padding

    def _encode(self, rng: Random, solved: SolvedProblem, dialect: Dialect | None) -> tuple[list[int], list[int]]:
        ignores_constraints = rng.random() < self.params.careless_share
        problem, plan = solved.problem, solved.unconstrained_plan if ignores_constraints else solved.plan
        if dialect:
            problem, plan = dialect.translate_problem(problem), dialect.translate_plan(plan)
        prompt: list[int] = self.tokenizer(render_compact_problem(problem)).input_ids
        completion: list[int] = self.tokenizer("\n".join([*plan, END])).input_ids
        return prompt, completion


class BaseModelTrainer(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Return the cross-entropy of the labelled tokens; no logits are computed for the others, four in five."""
        labels = inputs["labels"][:, 1:]
        labelled = labels != IGNORED_LABEL
        with torch.autocast(labels.device.type, torch.bfloat16):
            hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1]
            logits = model.lm_head(hidden[labelled])
        return cross_entropy(logits.float(), labels[labelled])


def pretrain(params: BaseModelConfig, checkpoints: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train the base model from scratch; resumes from the newest checkpoint in `checkpoints`."""
    set_seed(params.seed)
    positions = 2 * params.long_sequence
    tokens = build_vocabulary(params.vocabulary)
    tokenizer = build_tokenizer(tokens, positions)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=params.hidden_size,
        intermediate_size=params.intermediate_size,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.heads,
        max_position_embeddings=positions,
        initializer_range=params.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        rows = compose_embeddings(tokens, params.hidden_size, params.initializer_range, params.seed)
        model.get_input_embeddings().weight[len(SPECIAL) :] = rows
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=params.steps,
        per_device_train_batch_size=1,  # the dataset yields whole batches
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
        use_cpu=not torch.cuda.is_available(),
    )
    batches = PackedBatches(params, tokenizer)
    trainer = BaseModelTrainer(model, arguments, train_dataset=batches, data_collator=_unwrap_batch)
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")))
    return model, tokenizer


def _unwrap_batch(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return batches[0]
