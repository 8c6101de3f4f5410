"""A small task for tests of the trainers: repeat letters, in one of four ways (the domains)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from planward.core.records import Meta, Record
from planward.core.registry import load_params
from planward.core.tasks import NO_RENAMING, Messages, Renaming
from planward.core.verdicts import Verdict
from planward.params import Params
from planward.tasks.planning.examples import sample_examples

DOMAINS = ("copy", "double", "first", "last")
LETTERS = "abcdef"
ROOT = Path(__file__).parent.parent


class LettersTask:
    """The completion must be the expected letters; a wrong one is rewarded by its share of correct letters."""

    name = "letters"
    labels: tuple[str, ...] = ("right", "wrong", "empty")

    def draw_renaming(self, problem: Record, seed: str) -> Renaming:
        letters = list(LETTERS)
        Random(f"{seed}:{problem.id}").shuffle(letters)
        return dict(zip(LETTERS, letters, strict=True))

    def core_digest(self, problem: Record) -> str:
        domain, *word = problem.prompt.split()
        return " ".join([domain, *(str(word.index(letter)) for letter in word)])

    def select_examples(self, problem: Record, pool: Sequence[Record], count: int, seed: str) -> list[Record]:
        return sample_examples(problem, pool, count, seed)

    def prompt(self, problem: Record, examples: Sequence[Record], renaming: Renaming = NO_RENAMING) -> str | Messages:
        example_texts = [f"{example.prompt} : {self.reference_completion(example)} ;" for example in examples]
        return " ".join([*example_texts, rename(problem.prompt, renaming), ":"])

    def reference_completion(self, problem: Record, renaming: Renaming = NO_RENAMING) -> str:
        assert problem.response is not None
        return self.rename_completion(problem, problem.response, renaming)

    def undo_renaming(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        return rename(completion, {new: old for old, new in renaming.items()})

    def rename_completion(self, problem: Record, completion: str, renaming: Renaming = NO_RENAMING) -> str:  # noqa: ARG002
        return rename(completion, renaming)

    def verify(self, problem: Record, completion: str, renaming: Renaming | None = None) -> Verdict:
        expected = self.reference_completion(problem).split()
        letters = self.undo_renaming(problem, completion, renaming or NO_RENAMING).split()
        if letters == expected:
            return Verdict("right", 1.0, True, plan=completion)
        common = (Counter(expected) & Counter(letters)).total() / max(len(expected), len(letters))
        return Verdict("wrong" if letters else "empty", -1 + 0.9 * common, False, plan=completion)

    def judge(self, pairs: Sequence[tuple[Record, str]]) -> list[Verdict]:
        return [self.verify(problem, completion) for problem, completion in pairs]


def rename(text: str, renaming: Renaming) -> str:
    return " ".join(renaming.get(word, word) for word in text.split())


def build_problems(count: int) -> list[Record]:
    """Return `count` problems, round-robin over the domains."""
    rng = Random(0)
    records = []
    for number in range(count):
        domain = DOMAINS[number % len(DOMAINS)]
        word = rng.choices(LETTERS, k=rng.randint(1, 3))
        references = {"copy": word, "double": word * 2, "first": word[:1], "last": word[-1:]}
        meta = Meta(scenario=domain, domain_file="letters", problem_file=f"letters-{number}")
        records.append(
            Record(
                prompt=" ".join([domain, *word]),
                response=" ".join(references[domain]),
                meta=meta,
                id=f"p{number:02}",
                score=float(len(word)),
                bucket=("easy", "medium", "hard")[len(word) - 1],
            )
        )
    return records


def build_schedule(records: Sequence[Record], steps: int, batch_size: int) -> list[dict[str, Any]]:
    """Return schedule rows with equally many prompts of each domain in each step."""
    rng = Random(1)
    rows = []
    for step in range(steps):
        names = list(DOMAINS) * (batch_size // len(DOMAINS))
        rng.shuffle(names)
        for slot, domain in enumerate(names):
            record = rng.choice([record for record in records if record.domain == domain])
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


def build_params(**sections: Any) -> Params:
    """Return the project's parameters, reduced, with `sections` laid over them."""
    small: dict[str, dict[str, Any]] = {
        "prompt": {"max_tokens": 32, "max_completion_tokens": 8},
        "sft": {
            "epochs": 2,
            "batch_size": 8,
            "micro_batch_size": 4,
            "shots": [0, 2],
            "renaming": True,
            "save_steps": 2,
        },
        "grpo": {
            "steps": 4,
            "batch_size": 8,
            "num_generations": 4,
            "micro_batch_size": 16,
            "learning_rate": 1e-3,
            "temperature": 1.0,
            "renaming": True,
            "reward": "dense",  # the random base never succeeds, so a sparse reward has no gradient
            "save_steps": 2,
        },
    }
    raw = load_params(root=ROOT).model_dump(mode="json", include=set(Params.model_fields))
    raw["ablations"] |= {"run": [], "variants": {}}
    for overlay in (small, sections):
        for section, values in overlay.items():
            raw[section] = values if isinstance(values, list) else raw[section] | values
    return Params.model_validate(raw)


def write_base(folder: Path) -> None:
    """Write a random base model for this task."""
    write_model(folder, [*DOMAINS, *LETTERS, ":", ";"])


def write_model(folder: Path, symbols: Sequence[str]) -> None:
    """Write a random two-layer Llama and a word-level tokenizer with these words."""
    words = ["<pad>", "</s>", "<unk>", *symbols]
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
