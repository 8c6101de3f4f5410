"""The vocabulary of the shipped base model.

One token per ground atom or action of the generated domains; for other domains, tokens of neutral symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from planward.core.prompts import END
from planward.tasks.planning.dialects import list_action_signatures, list_marker_names
from planward.tasks.planning.domains import KNOWN_DOMAINS, load_generated_domain
from planward.tasks.planning.domains.instances import render_atom
from planward.tasks.planning.neutral import (
    MAX_ACTIONS,
    MAX_OBJECTS,
    MAX_PREDICATES,
    MAX_TYPES,
    MAX_VARIABLES,
    WORDS,
)

PAD, UNKNOWN = "<pad>", "<unk>"
SPECIAL = (PAD, UNKNOWN, END)
NEUTRAL = r"\([pa]\d+(?:\)|(?=\s+[ov]\d+[\s)]))|\b[ov]\d+\)"  # parts of an atom of neutral symbols
_CONSTRAINT_WORDS = {word for domain in KNOWN_DOMAINS.values() for word in domain.CONSTRAINT_WORDS}


def build_vocabulary() -> list[str]:
    """Return all words, objects, ground atoms and actions of the domains and their dialects, and neutral symbols."""
    tokens = {*WORDS, *_CONSTRAINT_WORDS, *KNOWN_DOMAINS, *list_neutral_tokens()}
    for name, module in KNOWN_DOMAINS.items():
        domain, objects = load_generated_domain(name), list_largest_objects(name)
        is_a, predicates = domain.signature.is_a, domain.signature.predicates
        schemas = [*predicates.items(), *list_action_signatures(name)]
        schemas += [(marker, predicates[module.MARKER]) for marker in list_marker_names(name)]
        tokens |= objects.keys()
        for head, parameter_types in schemas:
            candidates = [[o for o, types in objects.items() if is_a(types, type_)] for type_ in parameter_types]
            atoms = ((head, *arguments) for arguments in product(*candidates))
            tokens |= {render_atom(atom) for atom in atoms if module.can_occur(atom)}
    return sorted(tokens)


def list_largest_objects(domain: str) -> dict[str, tuple[str, ...]]:
    """Return the objects of the domain's largest problem in the vocabulary, with their types."""
    module = KNOWN_DOMAINS[domain]
    return dict(module.generate(Random(0), module.LARGEST).objects)


def list_neutral_tokens() -> list[str]:
    """Return the tokens of neutral symbols: `(p1 o1 o2)` is split into `(p1`, `o1` and `o2)`."""
    heads = [f"p{i}" for i in range(1, MAX_PREDICATES + 1)] + [f"a{i}" for i in range(1, MAX_ACTIONS + 1)]
    terms = [f"o{i}" for i in range(1, MAX_OBJECTS + 1)] + [f"v{i}" for i in range(1, MAX_VARIABLES + 1)]
    tokens = [f"t{i}" for i in range(1, MAX_TYPES + 1)]
    tokens += [token for head in heads for token in (f"({head}", f"({head})")]
    return tokens + [token for term in terms for token in (term, f"{term})")]


def build_tokenizer(tokens: Sequence[str], length: int) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per word, ground atom or neutral symbol; decoding starts a line at each atom."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *tokens])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(NEUTRAL + r"|\([^()]*\)|[^\s()]+"), "removed", invert=True)
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


def list_parts(token: str) -> list[tuple[str, str]]:
    """Return what a token's embedding is composed of, as (role, word).

    An atom has its head, its objects, and each object at its position. So `(on b1 b2)` shares parts with `(clear b1)`
    and `b1`, and attention can follow an object from the first step on.
    """
    words = token.strip("()").split()
    if token.endswith(")") and not token.startswith("("):  # the last argument of an atom of neutral symbols
        return [("object", words[0]), ("last", "argument")]
    if not token.startswith("("):
        return [("object", word) for word in words]
    head, *objects = words
    return [
        ("head", head),
        *(("object", name) for name in objects),
        *((str(i), name) for i, name in enumerate(objects)),
    ]
