"""Tell the problems that VAL surely reads from those that VAL's own parser must check.

VAL reads less than `planward.pddl.language`: no names such as `4-blocks`, no reserved words as names, and sections in a
certain order only. Its parser takes a process for each problem, too long for a million of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from planward.pddl.expressions import Expression, Form
from planward.pddl.signature import Signature, parse_typed_list

PLAIN_NAMES = re.compile(r"(?:[a-z_][a-z0-9_-]*(?: |$))*")
# What VAL's Parser rejects as the name of an object.
RESERVED_WORDS = {
    *("always", "always-within", "at-most-once", "sometime", "sometime-after", "sometime-before", "within"),
    *("hold-after", "hold-during", "after", "preference", "is-violated", "name"),
    *("and", "either", "exists", "forall", "imply", "not", "or", "when"),
    *("assign", "decrease", "increase", "scale-down", "scale-up"),
    *("define", "domain", "problem", "number", "duration", "maximize", "minimize", "total-cost", "total-time"),
}
SECTION_ORDER = (":domain", ":requirements", ":objects", ":init", ":goal", ":constraints", ":metric")
KNOWN_REQUIREMENTS = {
    *(":strips", ":typing", ":adl", ":equality", ":constraints", ":action-costs", ":fluents", ":numeric-fluents"),
    *(":negative-preconditions", ":disjunctive-preconditions", ":conditional-effects"),
    *(":universal-preconditions", ":existential-preconditions", ":quantified-preconditions"),
}


def is_plain_problem(form: Form, signature: Signature) -> bool:
    """Return whether a valid problem has nothing that VAL might fail to read; False does not say that VAL fails.

    Its names are identifiers, and neither reserved words nor functions; its sections are in the usual order; it has
    known requirements only, no negative facts, and no metric but the total cost or time.
    """
    reserved = RESERVED_WORDS | signature.functions.keys()
    sections = {section.head: section[1:] for section in form[2:] if isinstance(section, Form)}
    formulas = [part for head in (":goal", ":constraints") for part in sections.get(head, ()) if isinstance(part, Form)]
    return (
        list(sections) == [head for head in SECTION_ORDER if head in sections]
        and KNOWN_REQUIREMENTS.issuperset(map(str, sections.get(":requirements", ())))
        and all(fact[0] != "not" for fact in sections[":init"])
        and (":metric" not in sections or _is_plain_metric(sections[":metric"], signature))
        and _are_plain_names([*form[1][1:], *sections.get(":objects", ())], reserved)
        and all(_is_plain_formula(formula, reserved) for formula in formulas)
    )


def _is_plain_metric(metric: Sequence[Expression], signature: Signature) -> bool:
    return metric == ["minimize", ["total-time"]] or (
        metric == ["minimize", ["total-cost"]] and "total-cost" in signature.functions
    )


def _are_plain_names(words: Sequence[str | Form], reserved: AbstractSet[str]) -> bool:
    """Return whether the words of a typed list are names that VAL reads, without a list among them."""
    names = [word for word in words if not isinstance(word, Form) and word != "-"]
    has_lists = any(isinstance(word, Form) for word in words)
    return not has_lists and reserved.isdisjoint(names) and bool(PLAIN_NAMES.fullmatch(" ".join(names)))


def _is_plain_formula(formula: Form, reserved: AbstractSet[str]) -> bool:
    """Return whether all variables of a formula have plain names and none of its parts is empty.

    The other words of its atoms are declared: as objects or by the domain.
    """
    parts = [part for part in formula if isinstance(part, Form)]
    if formula.head in ("forall", "exists"):
        variables = list(parse_typed_list(parts.pop(0)))
        names = [name[1:] for name, _ in variables if name.startswith("?")]
        if not 0 < len(names) == len(variables) or not _are_plain_names(names, reserved):
            return False
    elif not parts:
        return bool(formula) and formula.head not in reserved
    return all(_is_plain_formula(part, reserved) for part in parts)
