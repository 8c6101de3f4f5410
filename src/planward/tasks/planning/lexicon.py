"""The words in which a compact prompt states a problem, and the translation of plans to them and back.

A problem of a domain that the shipped models know is stated in that domain's words, whatever its own are (`matching`).
Any other is stated in neutral names, after the schemas of its domain's actions (`neutral`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planward.pddl.language import Problem
from planward.tasks.planning.matching import Rewrite, Translation, translate_problem
from planward.tasks.planning.neutral import name_domain, name_objects, render_domain, render_problem
from planward.tasks.planning.prompt import join_compact_prompt, render_compact_problem

_ACTION = re.compile(r"\([^()]*\)")
_WORD = re.compile(r"[^\s()\\]+")  # a backslash may end a line within an action
_UNKNOWN = "-unknown"  # ends a word that is a name in the other words only


@dataclass(frozen=True)
class Lexicon:
    """The words of one problem in a prompt.

    Attributes:
        translation: the problem in a known domain's words; None for neutral names.
        actions: the words of the problem's actions.
        objects: the words of its objects.
    """

    problem: Problem
    translation: Translation | None
    actions: Mapping[str, Rewrite]
    objects: Mapping[str, str]

    @property
    def is_neutral(self) -> bool:
        """Whether the problem has neutral names."""
        return self.translation is None

    @cached_property
    def header(self) -> str:
        """What a prompt states once, before the first problem in these words; raises TooManySymbols."""
        return render_domain(self.problem.domain) if self.is_neutral else ""

    @cached_property
    def text(self) -> str:
        """The problem up to where the plan begins; raises TooManySymbols."""
        if self.translation is not None:
            return render_compact_problem(self.translation.problem)
        return render_problem(self.problem, self.objects)

    def encode_plan(self, text: str) -> str:
        """Translate every `(action object ...)` in a text to the prompt's words; see `decode_plan`."""
        return _translate(text, self.actions, self.objects)

    def decode_plan(self, text: str) -> str:
        """Translate every `(action object ...)` in a text, in any letter case, to the problem's own names.

        Everything else stays as it is, so do words that the prompt does not have. One that is a name of the problem
        itself gets an ending, for it must not become an action or object that the model did not mean.
        """
        return _translate(text, self._own_actions, self._own_objects)

    @cached_property
    def _own_actions(self) -> dict[str, Rewrite]:
        return {
            rewrite.name: Rewrite(name, tuple(sorted(range(len(rewrite.order)), key=rewrite.order.__getitem__)))
            for name, rewrite in self.actions.items()
        }

    @cached_property
    def _own_objects(self) -> dict[str, str]:
        return {word: name for name, word in self.objects.items()}


def build_lexicon(problem: Problem, *, neutral: bool = False, canonical: bool = True) -> Lexicon:
    """Build a problem's lexicon; with `neutral`, of neutral names in any domain.

    A problem of a known domain has its objects in canonical order, or else in that of their names.
    """
    translation = None if neutral else translate_problem(problem, canonical=canonical)
    if translation is not None:
        return Lexicon(problem, translation, translation.actions, translation.objects)
    names = name_domain(problem.domain).actions
    actions = {
        name: Rewrite(names[name], tuple(range(len(action.parameters))))
        for name, action in problem.domain.actions.items()
    }
    return Lexicon(problem, None, actions, name_objects(problem))


def render_prompt(problem: Lexicon, examples: Sequence[tuple[Lexicon, str]]) -> str:
    """Render worked examples with their plans, in their own names, then the problem; raises TooManySymbols.

    The schemas of the actions are stated once, before the first problem in neutral names.
    """
    texts, is_stated = list[str](), False
    for lexicon in (*(example for example, _ in examples), problem):
        texts.append(lexicon.text if is_stated else lexicon.header + lexicon.text)
        is_stated = is_stated or lexicon.is_neutral
    plans = [lexicon.encode_plan(plan) for lexicon, plan in examples]
    return join_compact_prompt(list(zip(texts, plans, strict=False)), texts[-1])


def _translate(text: str, actions: Mapping[str, Rewrite], objects: Mapping[str, str]) -> str:
    action_names = {rewrite.name for rewrite in actions.values()}
    return _ACTION.sub(lambda match: _translate_action(match[0], actions, objects, action_names), text)


def _translate_action(
    text: str, actions: Mapping[str, Rewrite], objects: Mapping[str, str], action_names: Collection[str]
) -> str:
    """Translate one action; its arguments keep their order where their number is wrong."""
    words = _WORD.findall(text)
    if not words:
        return text
    rewrite = actions.get(_fold(words[0]))
    arguments = [_translate_word(word, objects, objects.values()) for word in words[1:]]
    if rewrite and len(arguments) == len(rewrite.order):
        arguments = list(rewrite.apply(arguments))
    head = rewrite.name if rewrite else _translate_word(words[0], {}, action_names)
    new_words = iter([head, *arguments])
    return _WORD.sub(lambda _: next(new_words), text)


def _translate_word(word: str, names: Mapping[str, str], taken_names: Collection[str]) -> str:
    key = _fold(word)
    if key in names:
        return names[key]
    while _fold(word) in taken_names:
        word += _UNKNOWN
    return word


def _fold(word: str) -> str:
    """Return a word in lower case; one with other letters than ASCII stays, for `lower` maps some to ASCII."""
    return word.lower() if word.isascii() else word
