"""The tiny base model: its endless training problems, its training."""

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

from planward.params import Base, Range
from planward.pddl import safety
from planward.pddl.canonical import core_hash, fraction
from planward.pddl.dialects import Dialect, random_dialect
from planward.pddl.generators import GENERATORS, generated_problem
from planward.pddl.grounding import ground_problem
from planward.pddl.language import Problem, changed
from planward.pddl.renaming import exchangeable, renamed_atom, renamed_plan
from planward.pddl.search import shortest_plan
from planward.tasks.planning.prompt import END, compact_problem
from planward.training.lexicon import SPECIAL, build_tokenizer, composed_embeddings, largest_objects, vocabulary

IGNORED = -100  # a label that counts for no loss
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Solved:
    """A problem with two shortest plans: one that keeps its constraints, one that pays them no heed."""

    problem: Problem
    plan: list[str]
    careless: list[str]


def solved_problem(rng: Random, params: Base, domain: str) -> Solved:
    """A solved problem from the base's share of the problem space."""
    while True:
        instance = GENERATORS[domain](rng, drawn_sizes(rng, params.problems[domain]))
        problem = generated_problem(domain, instance)
        if problem.init >= set(instance.goal) or fraction(core_hash(problem), "base") >= params.base_share:
            continue
        plan = careless = shortest_plan(ground_problem(problem), max_states=10**6)
        wanted = rng.random() < params.constrained_share
        if wanted and (found := safety.constrained(rng, domain, instance, plan, max_states=10**6)):
            problem, plan = generated_problem(domain, found[0]), found[1]
        return Solved(problem, plan, careless)


def drawn_sizes(rng: Random, ranges: Mapping[str, Range]) -> dict[str, int]:
    return {name: rng.randint(*bounds) for name, bounds in ranges.items()}


class Examples:
    """Solved problems of one domain; each comes `reuse` times on average, under other names every time."""

    def __init__(self, params: Base, domain: str, rng: Random) -> None:
        self.params, self.domain, self.rng = params, domain, rng
        self.solved: list[Solved] = []
        self.names: dict[str, list[str]] = defaultdict(
            list
        )  # all that the vocabulary holds, by what is before the number
        for name in largest_objects(domain, params.vocabulary[domain]):
            self.names[_NUMBER.sub("", name)].append(name)

    def draw(self) -> Solved:
        """A solved problem whose objects have names from the whole vocabulary, so that every name is learnt."""
        if not self.solved or self.rng.random() * self.params.reuse < 1:
            self.solved.append(solved_problem(self.rng, self.params, self.domain))
        known = self.rng.choice(self.solved)
        names = dict[str, str]()
        for group in exchangeable(known.problem):
            chosen = self.rng.sample(self.names[_NUMBER.sub("", group[0])], len(group)) if group else []
            names.update(zip(group, chosen, strict=True))
        objects = {names.get(name, name): kinds for name, kinds in known.problem.objects.items()}
        problem = changed(known.problem, lambda atom: renamed_atom(atom, names))
        plans = ([renamed_plan(action, names) for action in plan] for plan in (known.plan, known.careless))
        return Solved(replace(problem, objects=dict(sorted(objects.items(), key=_listed))), *plans)


def _listed(entry: tuple[str, Any]) -> tuple[Any, ...]:
    """Sorts objects as the generators list them: by type, then by number."""
    name, kinds = entry
    return kinds, _NUMBER.sub("", name), [int(number) for number in _NUMBER.findall(name)]


class PackedBatches(IterableDataset):  # type: ignore[type-arg]
    """Endless batches of solved examples, packed into sequences, with loss on the plans alone.

    A sequence has one domain and one dialect. Yields input_ids and labels of shape [batch_tokens / length, length],
    where every fourth batch has `long_sequence`, the others `short_sequence` as length; a padded tail counts for
    nothing.
    """

    def __init__(self, params: Base, tokenizer: PreTrainedTokenizerFast) -> None:
        self.params, self.tokenizer = params, tokenizer

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        params, rng, count = self.params, Random(self.params.seed), 0
        examples = {domain: Examples(params, domain, rng) for domain in params.problems}
        while True:
            count += 1
            length = params.short_sequence if count % 4 else params.long_sequence
            rows = [
                self.sequence(rng, examples[rng.choice(list(examples))], length)
                for _ in range(params.batch_tokens // length)
            ]
            ids, labels = zip(*rows, strict=True)
            yield {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}

    def sequence(self, rng: Random, examples: Examples, length: int) -> tuple[list[int], list[int]]:
        dialect = random_dialect(examples.domain, rng) if rng.random() < self.params.dialect_share else None
        tokens, labels = list[int](), list[int]()
        while True:
            prompt, answer = self.encoded(rng, examples.draw(), dialect)
            if len(tokens) + len(prompt) + len(answer) > length:
                break
            tokens += prompt + answer
            labels += [IGNORED] * len(prompt) + answer
        padding = length - len(tokens)
        return tokens + [self.tokenizer.pad_token_id] * padding, labels + [IGNORED] * padding

    def encoded(self, rng: Random, solved: Solved, dialect: Dialect | None) -> tuple[list[int], list[int]]:
        careless = rng.random() < self.params.careless_share
        problem, plan = solved.problem, solved.careless if careless else solved.plan
        if dialect:
            problem, plan = dialect.problem(problem), dialect.translated(plan)
        prompt: list[int] = self.tokenizer(compact_problem(problem)).input_ids
        answer: list[int] = self.tokenizer("\n".join([*plan, END])).input_ids
        return prompt, answer


class _Trainer(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Cross-entropy of the labelled tokens; the others, four in five, get no logits."""
        labels = inputs["labels"][:, 1:]
        learnt = labels != IGNORED
        with torch.autocast(labels.device.type, torch.bfloat16):
            hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1]
            logits = model.lm_head(hidden[learnt])
        return cross_entropy(logits.float(), labels[learnt])


def pretrain(params: Base, checkpoints: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train the base from nothing; continues from the newest checkpoint in `checkpoints`."""
    set_seed(params.seed)
    positions = 2 * params.long_sequence
    tokens = vocabulary(params.vocabulary)
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
        rows = composed_embeddings(tokens, params.hidden_size, params.initializer_range, params.seed)
        model.get_input_embeddings().weight[len(SPECIAL) :] = rows
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=params.steps,
        per_device_train_batch_size=1,  # the dataset makes the batches
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
    trainer = _Trainer(model, arguments, train_dataset=batches, data_collator=_only)
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")))
    return model, tokenizer


def _only(batches: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return batches[0]
