"""The vocabulary of the shipped base model: one token per ground atom or action."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from planward.core.prompts import END
from planward.tasks.planning.dialects import list_action_signatures, list_marker_names
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, load_generated_domain

PAD, UNKNOWN = "<pad>", "<unk>"
SPECIAL = (PAD, UNKNOWN, END)
_CONSTRAINT_WORDS = sorted({word for domain in GENERATED_DOMAINS.values() for word in domain.CONSTRAINT_WORDS})
WORDS = ("objects", "init", "goal", "plan", "constraints", *_CONSTRAINT_WORDS)


def build_vocabulary(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return all words, objects, ground atoms and actions of the domains and their dialects up to `sizes`, sorted."""
    tokens = {*WORDS, *sizes}
    for name in sizes:
        domain, objects = load_generated_domain(name), list_largest_objects(name, sizes[name])
        is_a, predicates = domain.signature.is_a, domain.signature.predicates
        schemas = [*predicates.items(), *list_action_signatures(name)]
        schemas += [(marker, predicates[GENERATED_DOMAINS[name].MARKER]) for marker in list_marker_names(name)]
        tokens |= objects.keys()
        for head, parameter_types in schemas:
            candidates = [[o for o, types in objects.items() if is_a(types, type_)] for type_ in parameter_types]
            tokens |= {f"({' '.join([head, *arguments])})" for arguments in product(*candidates)}
    return sorted(tokens)


def list_largest_objects(domain: str, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return the objects of the domain's largest problem in the vocabulary, with their types."""
    return dict(build_problem(domain, GENERATED_DOMAINS[domain].generate(Random(0), sizes)).objects)


def build_tokenizer(tokens: Sequence[str], length: int) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per word or ground atom; decoding writes each atom on its own line."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *tokens])}
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


def compose_embeddings(tokens: Sequence[str], width: int, spread: float, seed: int) -> torch.Tensor:
    """Return initial embeddings [tokens, width] with standard deviation `spread`.

    An atom's row is the normalised sum of random vectors for its head, each of its objects, and each object at its
    position. So `(on b1 b2)` starts near `(clear b1)` and `b1`, and attention can follow an object from the first step
    on; with independent rows, the parts of every atom would have to be learnt from examples.
    """
    generator, parts = torch.Generator().manual_seed(seed), dict[object, torch.Tensor]()

    def part(key: object) -> torch.Tensor:
        if key not in parts:
            parts[key] = torch.randn(width, generator=generator)
        return parts[key]

    rows = []
    for token in tokens:
        words = token.strip("()").split()
        head, objects = (words[:1], words[1:]) if token.startswith("(") else ([], words)
        keys: list[object] = [*head, *(("object", name) for name in objects)]
        keys += [(position, name) for position, name in enumerate(objects) if head]
        rows.append(torch.stack([part(key) for key in keys]).sum(0) / math.sqrt(len(keys)))
    return torch.stack(rows) * spread
