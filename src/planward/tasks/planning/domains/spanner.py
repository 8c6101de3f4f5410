"""Spanner: pick up spanners on a one-way path, and tighten the nuts at its end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from random import Random

from planward.pddl.signature import Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Plan,
    Sizes,
    assign_types,
    find_objects,
    merge_names,
    move_to_front,
    number_names,
    number_objects,
    render_atom,
    sample_tag,
)

MARKER = "loose"
CONSTRAINT_WORDS: tuple[str, ...] = (
    "always",
    "imply",
    "not",
    "forall",
    "at-most-once",
    "(?l - location)",
    "(at bob ?l)",
)
LARGEST: Sizes = {"spanners": 12, "nuts": 10, "locations": 14}


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `spanners`, `nuts` (at most `spanners`) and `locations` between start and gate."""
    spanners = number_names("spanner", sizes["spanners"])
    nuts = number_names("nut", min(sizes["nuts"], sizes["spanners"]))
    path = [*reversed(number_names("location", sizes["locations"] + 1)), "gate"]  # numbered by distance to the gate
    init: list[Atom] = [("at", "bob", path[0])]
    for spanner in spanners:
        init += [("at", spanner, rng.choice(path[1:-1])), ("useable", spanner)]
    for nut in nuts:
        init += [("at", nut, "gate"), ("loose", nut)]
    init += [("link", here, there) for here, there in pairwise(path)]
    goal = [("tightened", nut) for nut in rng.sample(nuts, len(nuts))]
    name = f"spanner-s{len(spanners)}-n{len(nuts)}-l{len(path) - 2}-s{sample_tag(rng)}"
    objects = assign_types(man=["bob"], spanner=spanners, nut=nuts, location=path)
    return Instance(name, objects, tuple(init), tuple(goal))


def iter_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that pick up every spanner on the way, then tighten the nuts in the goal's order.

    The first plan uses the spanners as they come; further ones take another nut first, or another spanner.
    """
    place = {atom[1]: atom[2] for atom in instance.init if atom[0] == "at"}
    path = [place["bob"]]
    links = {atom[1]: atom[2] for atom in instance.init if atom[0] == "link"}
    while path[-1] in links:
        path.append(links[path[-1]])
    walk, spanners = Plan(), list[Atom]()
    for here, there in pairwise([path[0], *path]):
        walk += [("walk", here, there, "bob")] if here != there else []
        pickups = [("pickup_spanner", there, s, "bob") for s in find_objects(instance, "spanner") if place[s] == there]
        walk += pickups
        spanners += pickups
    goals = [goal for goal in instance.goal if goal not in instance.init]

    def tighten(nuts: list[Atom], order: list[Atom]) -> Plan:
        pairs = zip(nuts, order, strict=False)
        return walk + [("tighten_nut", path[-1], pick[2], "bob", nut[1]) for nut, pick in pairs]

    if len(goals) <= len(spanners):
        yield from (tighten(nuts, spanners) for nuts in move_to_front(goals))
        yield from (tighten(goals, order) for order in move_to_front(spanners))


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """An order of two nuts, or a spanner to bring along or to use first; in a quarter, also no location twice."""
    nuts, spanners = rng.sample(instance.goal, len(instance.goal)), find_objects(instance, "spanner")
    spanner = rng.choice(spanners)
    rules = [
        f"(always (imply (at bob gate) (carrying bob {spanner})))",
        f"(always (imply {render_atom(nuts[0])} (not (useable {spanner}))))",
    ]
    if len(nuts) > 1:
        rules.append(f"(always (imply {render_atom(nuts[0])} {render_atom(nuts[1])}))")
    once = ("(forall (?l - location) (at-most-once (at bob ?l)))",) if rng.random() < 0.25 else ()
    return (rng.choice(rules), *once)


def can_occur(atom: Atom) -> bool:
    """Return whether a fact or action has a token: nuts are at the gate, and a link leads to a neighbour."""
    if any(word.startswith("nut") for word in atom):
        return not any(word.startswith("location") for word in atom)
    stops = [word for word in atom if word.startswith(("location", "gate"))]
    return len(stops) < 2 or abs(_position(stops[0]) - _position(stops[1])) == 1


def _position(location: str) -> int:
    return 0 if location == "gate" else int(location.removeprefix("location"))


def name_objects(objects: Mapping[str, list[str]], init: Collection[Atom]) -> dict[str, str] | None:
    """Number spanners and nuts, and the locations of the path by their distance to its end, the gate.

    None where the links are no single path, the man is not at its start, or a nut is not at its end.
    """
    links = [(atom[1], atom[2]) for atom in init if atom[0] == "link"]
    following, locations = dict(links), set(objects.get("location", []))
    starts = locations - set(following.values())
    if len(starts) != 1 or len(links) != len(locations) - 1 or len(following) != len(links):
        return None
    path = [*starts]
    while path[-1] in following and len(path) <= len(locations):
        path.append(following[path[-1]])
    place = {atom[1]: atom[2] for atom in init if atom[0] == "at"}
    at_end = all(place.get(nut) == path[-1] for nut in objects.get("nut", []))
    if len(path) != len(locations) or len(path) > LARGEST["locations"] + 2 or not at_end:
        return None
    return merge_names(
        {name: f"location{i}" if i else "gate" for i, name in enumerate(reversed(path))},
        number_objects(objects.get("man", []), "bob", 1) and dict.fromkeys(objects["man"], "bob"),
        number_objects(objects.get("spanner", []), "spanner", LARGEST["spanners"]),
        number_objects(objects.get("nut", []), "nut", LARGEST["nuts"]),
    )
