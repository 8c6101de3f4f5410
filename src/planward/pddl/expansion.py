"""Estimates of how large formulas become when their quantifiers are expanded, before anything is ground.

Works on unparsed forms, so that it covers the PDDL that only VAL supports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from pathlib import Path

from planward.pddl.expressions import Expression, Form, LimitError, PddlError, read_pddl_file
from planward.pddl.limits import MAX_EXPANSION, MAX_FACTS, MAX_OBJECTS
from planward.pddl.signature import Signature, Types, parse_typed_list

EXPANDABLE = ("forall", "exists", "when")


def find_expandable(form: Form) -> Iterator[Form]:
    """Yield the outermost quantified formulas and effects and conditional effects in a form."""
    stack = [form]
    while stack:
        form = stack.pop()
        if form and form[0] in EXPANDABLE:
            yield form
        else:
            stack += [part for part in reversed(form) if isinstance(part, Form)]


def count_atoms(form: Expression, count_objects: Callable[[Types], int] = lambda _: 1) -> int:
    """Count the atoms of a form after its quantifiers are expanded, and each effect has its own condition.

    Args:
        count_objects: returns the number of objects that a variable of these types ranges over.
    """
    if not isinstance(form, Form):
        return 0
    if len(form) == 3 and form[0] in EXPANDABLE:
        head, first, body = form
        if head == "when":
            return (count_atoms(first, count_objects) + 1) * count_atoms(body, count_objects)
        if isinstance(first, Form):
            bindings = prod(count_objects(types) for _, types in parse_typed_list(first))
            return bindings * count_atoms(body, count_objects)
    total = 0
    for part in form:
        if isinstance(part, Form):
            total += count_atoms(part, count_objects)
    return total or 1


def check_expansion(forms: Iterable[Form], objects: Mapping[str, Types], signature: Signature) -> int:
    """Return the number of atoms of the forms after their quantifiers are expanded over the objects.

    Raises:
        LimitError: there are more than MAX_EXPANSION.
    """
    type_counts = Counter(objects.values())
    counts: dict[Types, int] = {}

    def count_objects(types: Types) -> int:
        if types not in counts:
            counts[types] = sum(
                count for object_types, count in type_counts.items() if signature.is_a(object_types, types)
            )
        return counts[types]

    total = 0
    for form in forms:
        total += count_atoms(form, count_objects)
        if total > MAX_EXPANSION:
            raise LimitError(f"more than {MAX_EXPANSION:,} atoms when quantifiers are expanded")
    return total


def check_files(domain_file: Path, problem_file: Path) -> None:
    """Check the limits on files that hold PDDL which only VAL supports; `load_problem` checks them on others.

    Raises:
        LimitError: too many objects, facts or atoms, types with too many supertypes, or too large a file.
    """
    try:
        _check_forms(read_pddl_file(domain_file), read_pddl_file(problem_file))
    except LimitError as error:
        is_located = str(error) != error.message
        raise error if is_located else LimitError(error.message, source=str(problem_file)) from None
    except PddlError:
        return  # VAL says what is wrong


def _check_forms(domain: Form, problem: Form) -> None:
    signature = Signature(True, {}, {}, {})
    objects: dict[str, Types] = {}
    forms = list(find_expandable(domain))
    for section in [part for part in (*domain, *problem) if isinstance(part, Form)]:
        match section.head:
            case ":types":
                signature.declare_types(section[1:])
            case ":constants" | ":objects":
                objects |= {str(name): types for name, types in parse_typed_list(section[1:])}
            case ":init":
                check_count(len(section) - 1, MAX_FACTS, "facts")
            case ":goal" | ":constraints":
                forms.append(section)
    check_count(len(objects), MAX_OBJECTS, "objects")
    check_expansion(forms, objects, signature)


def check_count(count: int, limit: int, name: str, line: int | None = None) -> None:
    """Raise LimitError where there are more than `limit`."""
    if count > limit:
        raise LimitError(f"{count:,} {name}; at most {limit:,} are allowed", line)
