"""A second task for the trainers: write the letters again. Four domains differ in how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from planward.params import Params, load_params
from planward.records import Meta, Record, Verdict
from planward.tasks.base import AS_IS, Alias, Messages
from planward.tasks.planning.examples import drawn_shots

DOMAINS = ("copy", "double", "first", "last")
LETTERS = "abcdef"
PARAMS_FILE = Path(__file__).parent.parent / "params.yaml"


class Letters:
    """The plan is the wanted letters; the reward grows with the share of letters that are right."""

    name = "letters"
    labels: tuple[str, ...] = ("right", "wrong", "empty")

    def alias(self, problem: Record, seed: str) -> Alias:
        letters = list(LETTERS)
        Random(f"{seed}:{problem.id}").shuffle(letters)
        return dict(zip(LETTERS, letters, strict=True))

    def core(self, problem: Record) -> str:
        domain, *word = problem.prompt.split()
        return " ".join([domain, *(str(word.index(letter)) for letter in word)])

    def shots(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
        return drawn_shots(problem, pool, count, seed)

    def prompt(self, problem: Record, shots: Sequence[Record], alias: Alias = AS_IS) -> str | Messages:
        parts = [f"{shot.prompt} : {self.answer(shot)} ;" for shot in shots]
        return " ".join([*parts, renamed(problem.prompt, alias), ":"])

    def answer(self, problem: Record, alias: Alias = AS_IS) -> str:
        assert problem.response is not None
        return renamed(problem.response, alias)

    def original(self, completion: str, alias: Alias) -> str:
        return renamed(completion, {new: old for old, new in alias.items()})

    def verify(self, problem: Record, completion: str, alias: Alias = AS_IS) -> Verdict:
        wanted, got = self.answer(problem).split(), self.original(completion, alias).split()
        if wanted == got:
            return Verdict("right", 1.0, True, plan=completion)
        common = (Counter(wanted) & Counter(got)).total() / max(len(wanted), len(got))
        return Verdict("wrong" if got else "empty", -1 + 0.9 * common, False, plan=completion)

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        return [self.verify(problem, completion) for problem, completion in pairs]


def renamed(text: str, alias: Alias) -> str:
    return " ".join(alias.get(word, word) for word in text.split())


def problems(count: int) -> list[Record]:
    """Return `count` problems, the domains in turn."""
    random = Random(0)
    records = []
    for number in range(count):
        domain = DOMAINS[number % len(DOMAINS)]
        word = random.choices(LETTERS, k=random.randint(1, 3))
        answers = {"copy": word, "double": word * 2, "first": word[:1], "last": word[-1:]}
        meta = Meta(scenario=domain, domain_file="letters", problem_file=f"letters-{number}")
        records.append(
            Record(
                prompt=" ".join([domain, *word]),
                response=" ".join(answers[domain]),
                meta=meta,
                id=f"p{number:02}",
                score=float(len(word)),
                bucket=("easy", "medium", "hard")[len(word) - 1],
            )
        )
    return records


def schedule(records: Sequence[Record], steps: int, batch_size: int) -> list[dict[str, Any]]:
    """Return rows that give each step as many prompts of each domain, seeded."""
    random = Random(1)
    rows = []
    for step in range(steps):
        names = list(DOMAINS) * (batch_size // len(DOMAINS))
        random.shuffle(names)
        for slot, domain in enumerate(names):
            record = random.choice([record for record in records if record.domain == domain])
            rows.append(
                {
                    "step": step,
                    "slot": slot,
                    "id": record.id,
                    "domain": domain,
                    "bucket": record.bucket,
                    "wanted_bucket": "easy",
                }
            )
    return rows


def params(**sections: Any) -> Params:
    """Return the project's parameters, made small, with `sections` laid over them."""
    small: dict[str, dict[str, Any]] = {
        "prompt": {"max_tokens": 32, "max_completion_tokens": 8},
        "sft": {"epochs": 2, "batch_size": 8, "micro_batch_size": 4, "shots": [0, 2], "save_steps": 2},
        "grpo": {
            "steps": 4,
            "batch_size": 8,
            "num_generations": 4,
            "micro_batch_size": 16,
            "learning_rate": 1e-3,
            "temperature": 1.0,
            "reward": "dense",  # a base that never succeeds learns by that
            "save_steps": 2,
        },
    }
    raw = load_params(PARAMS_FILE).model_dump(mode="json")
    raw["ablations"] |= {"run": [], "variants": {}}
    for overlay in (small, sections):
        for section, values in overlay.items():
            raw[section] = values if isinstance(values, list) else raw[section] | values
    return Params.model_validate(raw)


def write_base(folder: Path) -> None:
    """Write a random Llama of two layers and a tokenizer of one token a word."""
    words = ["<pad>", "</s>", "<unk>", *DOMAINS, *LETTERS, ":", ";"]
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
