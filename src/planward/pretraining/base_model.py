"""The shipped base model: its stream of training problems and its training."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from planward.core.fingerprints import compute_fingerprint
from planward.core.hashing import hash_fraction
from planward.core.prompts import END
from planward.params import Range
from planward.pddl.canonical import hash_without_constraints
from planward.pddl.formulas import And, iter_conjuncts
from planward.pddl.language import Action, Domain, Problem, map_problem_atoms
from planward.pddl.renaming import find_exchangeable, rename_atom, rename_plan
from planward.pretraining.config import BaseModelConfig, PhaseConfig
from planward.pretraining.network import IGNORED_LABEL, BaseModelNetwork
from planward.pretraining.optimizer import MuonWithAdamW
from planward.pretraining.random_domains import sample_domain, sample_problems
from planward.pretraining.vocabulary import (
    PAD,
    SPECIAL,
    build_tokenizer,
    build_vocabulary,
    list_largest_objects,
)
from planward.tasks.planning.dialects import sample_dialect
from planward.tasks.planning.domains import KNOWN_DOMAINS, build_problem, load_generated_domain
from planward.tasks.planning.domains.instances import render_atom
from planward.tasks.planning.neutral import name_domain, name_objects, render_domain, render_problem
from planward.tasks.planning.prompt import render_compact_problem
from planward.training.checkpoints import CheckpointCallback, restore_checkpoint, run_trainer

NUM_PROBLEMS = 12  # of a domain with neutral symbols
SEEDS_PER_PHASE = 1000
PACKAGES = ("core", "inference", "pddl", "pretraining", "tasks", "training")  # that the trained weights depend on
NUM_LENGTHS = 4  # every so many batches, one has long sequences
_NUMBER = re.compile(r"\d+")
T = TypeVar("T")
SolvedProblem = tuple[Problem, list[str]]  # with a plan


def sample_solved_problem(rng: Random, params: BaseModelConfig, phase: PhaseConfig, domain: str) -> SolvedProblem:
    """Sample a solved problem from the base model's share of the problem space."""
    while True:
        instance = KNOWN_DOMAINS[domain].generate(rng, sample_sizes(rng, phase.problems[domain]))
        problem = build_problem(domain, instance)
        is_in_share = hash_fraction(hash_without_constraints(problem), "base") < params.base_share
        if not is_in_share or problem.init >= set(instance.goal):
            continue
        plans = KNOWN_DOMAINS[domain].iter_plans(instance)
        plan = next(plans)
        if phase.variant_share and rng.random() < phase.variant_share:
            plan = rng.choice([*plans] or [plan])
        return problem, [render_atom(action) for action in plan]


def sample_sizes(rng: Random, ranges: Mapping[str, Range]) -> dict[str, int]:
    return {name: rng.randint(*bounds) for name, bounds in ranges.items()}


class ProblemSampler:
    """Samples solved problems of one domain; each occurs `reuse` times on average, with new object names each time."""

    def __init__(self, params: BaseModelConfig, phase: PhaseConfig, domain: str, rng: Random) -> None:
        self.params, self.phase, self.domain, self.rng = params, phase, domain, rng
        self.solved: list[SolvedProblem] = []
        self.names = defaultdict[str, list[str]](list)  # of the vocabulary, by the part before the number
        for name in list_largest_objects(domain):
            self.names[_NUMBER.sub("", name)].append(name)

    def sample(self) -> SolvedProblem:
        """Return a solved problem, its objects named from the whole vocabulary, so that every name is learnt."""
        if not self.solved or self.rng.random() * self.params.reuse < 1:
            self.solved.append(sample_solved_problem(self.rng, self.params, self.phase, self.domain))
        original, plan = self.rng.choice(self.solved)
        names = dict[str, str]()
        for group in find_exchangeable(original):
            new_names = self.rng.sample(self.names[_NUMBER.sub("", group[0])], len(group)) if group else []
            names.update(zip(group, new_names, strict=True))
        objects = {names.get(name, name): types for name, types in original.objects.items()}
        problem = map_problem_atoms(original, lambda atom: rename_atom(atom, names))
        return replace(problem, objects=objects), [rename_plan(action, names) for action in plan]


class NeutralSampler:
    """Samples problems of domains without tokens of their own, as neutral symbols.

    A share of `known_share` has a generated domain, each time with its declarations in another order; the others are
    random. A domain occurs `domain_reuse` times on average.
    """

    def __init__(self, params: BaseModelConfig, samplers: Mapping[str, ProblemSampler], rng: Random) -> None:
        self.params, self.samplers, self.rng = params, samplers, rng
        self.prompts: list[list[tuple[str, str, str]]] = []  # of each domain: header, problem, plan

    def sample(self) -> Iterator[tuple[str, str]]:
        """Yield prompt and completion of problems of one domain; the first prompt has the actions' descriptions."""
        if not self.prompts or self.rng.random() * self.params.domain_reuse < 1:
            self.prompts.append(self._sample_domain())
        prompts = self.rng.choice(self.prompts)
        for i, (header, problem, plan) in enumerate(self.rng.sample(prompts, len(prompts))):
            yield (problem if i else header + problem), plan

    def _sample_domain(self) -> list[tuple[str, str, str]]:
        """Sample a domain and render its description, its problems and their plans."""
        solved_problems: list[SolvedProblem] = []
        if self.rng.random() < self.params.known_share:
            sampler = self.rng.choice(list(self.samplers.values()))
            domain = shuffle_declarations(load_generated_domain(sampler.domain), self.rng)
            for problem, plan in (sampler.sample() for _ in range(NUM_PROBLEMS)):
                solved_problems.append((replace(problem, domain=domain), plan))
        while not solved_problems:
            domain, draft = sample_domain(self.rng)
            solved_problems = list(sample_problems(self.rng, domain, draft, NUM_PROBLEMS))
        header, actions = render_domain(domain), name_domain(domain).actions
        prompts = []
        for problem, plan in solved_problems:
            objects = name_objects(problem)
            steps = (line.strip("()").split() for line in plan)
            lines = [f"({' '.join([actions[name], *(objects[word] for word in words)])})" for name, *words in steps]
            prompts.append((header, render_problem(problem, objects), "\n".join(lines)))
        return prompts


def shuffle_declarations(domain: Domain, rng: Random) -> Domain:
    """Return the domain with its types, predicates, actions and preconditions in random order."""

    def shuffle(entries: Mapping[str, T]) -> dict[str, T]:
        return dict(rng.sample(list(entries.items()), len(entries)))

    def shuffle_precondition(action: Action) -> Action:
        parts = list(iter_conjuncts(action.precondition))
        return replace(action, precondition=And(tuple(rng.sample(parts, len(parts)))))

    signature = domain.signature
    return replace(
        domain,
        signature=replace(
            signature, supertypes=shuffle(signature.supertypes), predicates=shuffle(signature.predicates)
        ),
        actions={name: shuffle_precondition(action) for name, action in shuffle(domain.actions).items()},
    )


class PackedBatches(IterableDataset):  # type: ignore[type-arg]
    """Endless batches of a phase's solved problems, packed into sequences, with loss on the plans only.

    A sequence has one domain, and one dialect or neutral symbols. Yields input_ids and labels of shape
    [batch_tokens / length, length]; length is `long_sequence` in every fourth batch and `short_sequence` in the others.
    The padded tail has no loss.
    """

    def __init__(self, params: BaseModelConfig, phase: int, tokenizer: PreTrainedTokenizerFast) -> None:
        self.params, self.phase, self.tokenizer = params, phase, tokenizer

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        params, rng, num_batches = self.params, Random(self.params.seed + SEEDS_PER_PHASE * self.phase), 0
        phase = params.phases[self.phase]
        samplers = {domain: ProblemSampler(params, phase, domain, rng) for domain in phase.problems}
        neutral = NeutralSampler(params, samplers, rng)
        while True:
            num_batches += 1
            length = params.short_sequence if num_batches % NUM_LENGTHS else params.long_sequence
            rows = [
                self._build_sequence(
                    neutral.sample()
                    if rng.random() < params.neutral_share
                    else self._sample_known(rng, samplers[rng.choice(list(samplers))]),
                    length,
                )
                for _ in range(params.batch_tokens // length)
            ]
            ids, labels = zip(*rows, strict=True)
            yield {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}

    def _sample_known(self, rng: Random, sampler: ProblemSampler) -> Iterator[tuple[str, str]]:
        """Yield prompt and completion of problems of one generated domain, in one dialect."""
        dialect = sample_dialect(sampler.domain, rng) if rng.random() < self.params.dialect_share else None
        while True:
            problem, plan = sampler.sample()
            if dialect:
                problem, plan = dialect.translate_problem(problem), dialect.translate_plan(plan)
            yield render_compact_problem(problem), "\n".join(plan)

    def _build_sequence(self, texts: Iterator[tuple[str, str]], length: int) -> tuple[list[int], list[int]]:
        tokens, labels = list[int](), list[int]()
        for prompt_text, plan in texts:
            prompt: list[int] = self.tokenizer(prompt_text).input_ids
            completion: list[int] = self.tokenizer(f"{plan}\n{END}").input_ids
            if len(tokens) + len(prompt) + len(completion) > length:
                break
            tokens += prompt + completion
            labels += [IGNORED_LABEL] * len(prompt) + completion
        padding = length - len(tokens)
        return tokens + [self.tokenizer.pad_token_id] * padding, labels + [IGNORED_LABEL] * padding


class BaseModelTrainer(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        loss: torch.Tensor = model(**inputs)
        return loss


def build_network(params: BaseModelConfig, tokens: Sequence[str]) -> BaseModelNetwork:
    """Build the untrained network for a vocabulary, whose special tokens come first."""
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(tokens),
        hidden_size=params.hidden_size,
        intermediate_size=params.intermediate_size,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.heads,
        max_position_embeddings=2 * params.long_sequence,
        initializer_range=params.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
    )
    return BaseModelNetwork(config, [*SPECIAL, *tokens], params.precision, compiled=params.compile)


def pretrain(
    params: BaseModelConfig, checkpoints: Path, callbacks: Sequence[TrainerCallback] = ()
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train the base model from scratch, phase by phase.

    An interrupted run resumes from its last checkpoint of each phase, below `checkpoints`.
    """
    set_seed(params.seed)
    settings = params.model_dump(exclude={"save_steps", "validation"})  # these change no weights
    fingerprint = compute_fingerprint(settings, (), (), None, 1, PACKAGES)
    tokens = build_vocabulary()
    tokenizer = build_tokenizer(tokens, 2 * params.long_sequence)
    network = build_network(params, tokens)
    for number, phase in enumerate(params.phases):
        folder = checkpoints / f"phase-{number}-{fingerprint}"
        checkpoint, journal = restore_checkpoint(folder)
        arguments = TrainingArguments(
            output_dir=str(folder),
            max_steps=phase.steps,
            per_device_train_batch_size=1,  # the dataset yields whole batches
            lr_scheduler_type="cosine",
            warmup_ratio=params.warmup_ratio,
            max_grad_norm=1.0,
            save_steps=params.save_steps,
            logging_steps=20,
            dataloader_num_workers=1,
            dataloader_pin_memory=False,
            report_to=[],
            seed=params.seed,
            use_cpu=not torch.cuda.is_available(),
        )
        optimizer = MuonWithAdamW(
            network.list_matrices(),
            network.list_other_weights(),
            phase.learning_rate,
            params.adam_beta2,
            params.weight_decay,
        )
        trainer = BaseModelTrainer(
            network,
            arguments,
            train_dataset=PackedBatches(params, number, tokenizer),
            data_collator=_unwrap_batch,
            optimizers=(optimizer, None),
            callbacks=[CheckpointCallback(folder, journal), *callbacks],
        )
        run_trainer(trainer, folder, checkpoint)
    return network.build_model(), tokenizer


def _unwrap_batch(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return batches[0]
