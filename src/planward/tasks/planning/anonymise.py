"""Copies domains and problems under other names, to test what depends on names and their order.

A copy has random words for types, predicates, actions, objects and variables; only functions keep their names. The
declarations, the parameters of actions, the arguments of predicates, the parts of conditions and effects, and the
initial facts are in another order; goals and constraints keep theirs. A plan of the original is one of the copy in
other words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from planward.pddl.expressions import Expression, Form, Symbol, build_symbol, parse_expression, render_expression
from planward.pddl.signature import Types, parse_typed_list
from planward.tasks.planning.matching import Rewrite

T = TypeVar("T")

_CONSONANTS, _VOWELS, _SYLLABLES = "bdfgklmnprstvz", "aeiou", 3  # of a random word
_BUILT_IN_TYPES = ("object", "number")

Declarations = Sequence[tuple[str, Types]]


@dataclass(frozen=True)
class AnonymousProblem:
    """A problem's copy as PDDL, with its words for actions and objects."""

    text: str
    actions: Mapping[str, Rewrite]
    objects: Mapping[str, str]

    def translate_plan(self, plan: Iterable[str]) -> list[str]:
        """Translate a plan of the original, one `(action object ...)` per element; raises KeyError for other words."""
        return [self._translate_action(*line.strip("()").split()) for line in plan]

    def _translate_action(self, name: str, *arguments: str) -> str:
        rewrite = self.actions[name]
        return f"({' '.join([rewrite.name, *rewrite.apply([self.objects[word] for word in arguments])])})"


class AnonymousDomain:
    """A domain's copy, and the words in it.

    Attributes:
        text: the copy as PDDL.
        name: its name.
        types, constants, predicates, actions: its words for those of the original.

    Raises:
        PddlError: the original is no PDDL.
    """

    def __init__(self, text: str, rng: Random) -> None:
        form, self._words, self._rng = parse_expression(text), _iter_words(rng), rng
        sections = [section for section in form[2:] if isinstance(section, Form)]
        by_head = {section.head: section[1:] for section in sections}
        self.name = next(self._words)
        declarations = _parse_declarations(by_head.get(":types", []))
        type_names = dict.fromkeys(word for name, parents in declarations for word in (name, *parents))
        self.types = {name: next(self._words) for name in type_names if name not in _BUILT_IN_TYPES}
        self.constants = {name: next(self._words) for name, _ in _parse_declarations(by_head.get(":constants", []))}
        self.predicates = {
            part.head: self._draw_rewrite(len(_parse_declarations(part[1:])))
            for part in by_head.get(":predicates", [])
            if isinstance(part, Form)
        }
        self.actions = {
            str(section[1]): self._draw_rewrite(len(_parse_declarations(_find_part(section, ":parameters"))))
            for section in sections
            if section.head == ":action"
        }
        actions = [section for section in sections if section.head == ":action"]
        others = [section for section in sections if section.head != ":action"]
        copies = map(self._copy_section, [*others, *rng.sample(actions, len(actions))])
        self.text = "\n  ".join([f"(define (domain {self.name})", *map(render_expression, copies)]) + ")\n"

    def copy_problem(self, text: str) -> AnonymousProblem:
        """Copy a problem of the domain, with new random words; raises PddlError where it is no PDDL."""
        form = parse_expression(text)
        sections = [section for section in form[2:] if isinstance(section, Form)]
        declarations = next((_parse_declarations(s[1:]) for s in sections if s.head == ":objects"), [])
        objects = {**self.constants, **{name: next(self._words) for name, _ in declarations}}
        copies = (render_expression(self._copy_problem_section(section, objects)) for section in sections)
        name = f"(define (problem {next(self._words)})"
        return AnonymousProblem("\n  ".join([name, *copies]) + ")\n", self.actions, objects)

    def _copy_section(self, section: Form) -> Form:
        """Copy a section of the domain."""
        parts: Iterable[Expression] = section[1:]
        match section.head:
            case ":types":
                parts = self._copy_declarations(self._shuffle(_parse_declarations(section[1:])), self.types)
            case ":constants":
                parts = self._copy_declarations(self._shuffle(_parse_declarations(section[1:])), self.constants)
            case ":predicates":
                parts = self._shuffle([self._copy_predicate(part) for part in section[1:] if isinstance(part, Form)])
            case ":functions":
                parts = [self._copy_function(part) if isinstance(part, Form) else part for part in section[1:]]
            case ":constraints":
                parts = [self._copy_formula(part, self.constants, shuffle=False) for part in section[1:]]
            case ":action":
                parts = self._copy_action(section)
        return Form(section.line, [section[0], *parts])

    def _copy_problem_section(self, section: Form, objects: Mapping[str, str]) -> Form:
        parts: Iterable[Expression] = section[1:]
        match section.head:
            case ":domain":
                parts = [_build_word(self.name)]
            case ":objects":
                parts = self._copy_declarations(self._shuffle(_parse_declarations(section[1:])), objects)
            case ":init":
                parts = self._shuffle([self._copy_formula(part, objects) for part in section[1:]])
            case ":goal" | ":constraints":
                parts = [self._copy_formula(part, objects, shuffle=False) for part in section[1:]]
        return Form(section.line, [section[0], *parts])

    def _copy_action(self, section: Form) -> Iterator[Expression]:
        rewrite, declarations = self.actions[str(section[1])], _parse_declarations(_find_part(section, ":parameters"))
        names = {**self.constants, **self._name_variables(declarations)}
        yield _build_word(rewrite.name)
        for keyword, value in zip(section[2::2], section[3::2], strict=True):
            yield keyword
            if keyword == ":parameters":
                ordered_declarations = [declarations[index] for index in rewrite.order]
                yield Form(section.line, self._copy_declarations(ordered_declarations, names))
            else:
                yield self._copy_formula(value, names)

    def _copy_predicate(self, form: Form) -> Form:
        rewrite, declarations = self.predicates[form.head], _parse_declarations(form[1:])
        ordered_declarations = [declarations[index] for index in rewrite.order]
        words = self._copy_declarations(ordered_declarations, self._name_variables(declarations))
        return Form(form.line, [_build_word(rewrite.name), *words])

    def _copy_function(self, form: Form) -> Form:
        declarations = _parse_declarations(form[1:])
        return Form(form.line, [form[0], *self._copy_declarations(declarations, self._name_variables(declarations))])

    def _copy_formula(self, form: Expression, names: Mapping[str, str], *, shuffle: bool = True) -> Expression:
        """Copy a formula, an effect, a constraint or a fact."""
        if not isinstance(form, Form):
            return _build_word(names.get(form, form))
        if form.head in ("forall", "exists"):
            declarations = _parse_declarations(form[1])
            inner = {**names, **self._name_variables(declarations)}
            variables = Form(form.line, self._copy_declarations(declarations, inner))
            return Form(form.line, [form[0], variables, self._copy_formula(form[2], inner, shuffle=shuffle)])
        if form.head in self.predicates and not any(isinstance(part, Form) for part in form):
            rewrite = self.predicates[form.head]
            words = rewrite.apply([names.get(word, word) for word in map(str, form[1:])])
            return Form(form.line, map(_build_word, (rewrite.name, *words)))
        parts = [self._copy_formula(part, names, shuffle=shuffle) for part in form[1:]]
        parts = self._shuffle(parts) if shuffle and form.head in ("and", "or") else parts
        return Form(form.line, [*form[:1], *parts])

    def _copy_declarations(self, declarations: Declarations, names: Mapping[str, str]) -> Iterator[Expression]:
        for name, types in declarations:
            yield _build_word(names[name])
            if types:
                words = [_build_word(self.types.get(word, word)) for word in types]
                yield _build_word("-")
                yield words[0] if len(words) == 1 else Form(0, [_build_word("either"), *words])

    def _name_variables(self, declarations: Declarations) -> dict[str, str]:
        return {name: f"?{next(self._words)}" for name, _ in declarations}

    def _draw_rewrite(self, arity: int) -> Rewrite:
        return Rewrite(next(self._words), tuple(self._rng.sample(range(arity), arity)))

    def _shuffle(self, items: Sequence[T]) -> list[T]:
        return self._rng.sample(items, len(items))


def _iter_words(rng: Random) -> Iterator[str]:
    """Yield different random words."""
    used_words = {"define"}  # the only keyword of PDDL that has their form
    while True:
        word = "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(_SYLLABLES))
        if word not in used_words:
            used_words.add(word)
            yield word


def _parse_declarations(items: Expression | Sequence[Expression]) -> list[tuple[str, Types]]:
    return [(str(name), types) for name, types in parse_typed_list(items)] if not isinstance(items, Symbol) else []


def _find_part(action: Form, keyword: str) -> Expression:
    parts = dict(zip(map(str, action[2::2]), action[3::2], strict=True))
    return parts.get(keyword, Form(action.line))


def _build_word(word: str) -> Symbol:
    return build_symbol(word, 0)
