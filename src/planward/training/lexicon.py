"""The words of the tiny base model: one token a ground atom or action."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from planward.pddl import safety
from planward.pddl.dialects import MARKERS, action_signatures, marker_names
from planward.pddl.generators import GENERATORS, generated_domain, generated_problem
from planward.tasks.planning.prompt import END

PAD, UNKNOWN = "<pad>", "<unk>"
SPECIAL = (PAD, UNKNOWN, END)
WORDS = ("objects", "init", "goal", "plan", "constraints", *safety.WORDS, *safety.QUANTIFIED)


def vocabulary(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Every word, object, ground atom and action of the domains and their dialects up to the given sizes, sorted."""
    tokens = {*WORDS, *sizes}
    for name in sizes:
        domain, objects = generated_domain(name), largest_objects(name, sizes[name])
        is_a, predicates = domain.signature.is_a, domain.signature.predicates
        schemas = [*predicates.items(), *action_signatures(name)]
        schemas += [(marker, predicates[MARKERS[name]]) for marker in marker_names(name)]
        tokens |= objects.keys()
        for head, wanted in schemas:
            candidates = [[o for o, kinds in objects.items() if is_a(kinds, kind)] for kind in wanted]
            tokens |= {f"({' '.join([head, *arguments])})" for arguments in product(*candidates)}
    return sorted(tokens)


def largest_objects(domain: str, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The objects of the domain's largest problem that the vocabulary holds, with their types."""
    return dict(generated_problem(domain, GENERATORS[domain](Random(0), sizes)).objects)


def build_tokenizer(tokens: Sequence[str], length: int) -> PreTrainedTokenizerFast:
    """One token a word or ground atom; decoding puts each atom on a line of its own, a blank before each word."""
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


def composed_embeddings(tokens: Sequence[str], width: int, spread: float, seed: int) -> torch.Tensor:
    """Start values of the embeddings, [tokens, width], with standard deviation `spread`.

    An atom's row is the normed sum of vectors for its head, for each of its objects, and for each object at its
    place. So `(on b1 b2)` starts near `(clear b1)` and `b1`, and attention can follow an object from the first step
    on; rows drawn one by one would have to learn from examples what every atom is made of.
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
        keys += [(place, name) for place, name in enumerate(objects) if head]
        rows.append(torch.stack([part(key) for key in keys]).sum(0) / math.sqrt(len(keys)))
    return torch.stack(rows) * spread
