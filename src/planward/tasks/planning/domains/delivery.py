"""Delivery: a truck with room for one package delivers packages on a grid of cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from random import Random

from planward.pddl.signature import Atom
from planward.tasks.planning.domains.instances import (
    Instance,
    Plan,
    Sizes,
    assign_types,
    find_forbidden,
    find_objects,
    merge_names,
    move_to_front,
    number_names,
    number_objects,
    render_atom,
    sample_tag,
)

MARKER = "empty"
CONSTRAINT_WORDS: tuple[str, ...] = ("always", "and", "not")
LARGEST: Sizes = {"width": 4, "height": 4, "packages": 8}
X, Y = slice(0, 2), slice(2, 4)  # of a cell's name
Graph = dict[str, list[str]]  # the neighbours of a cell


def generate(rng: Random, sizes: Sizes) -> Instance:
    """Sample a problem of sizes `width` and `height` of the grid, and `packages`."""
    width, height = sizes["width"], sizes["height"]
    cells = [f"x{x}y{y}" for x in range(width) for y in range(height)]
    packages = number_names("p", sizes["packages"])
    init: list[Atom] = [("at", "truck", rng.choice(cells)), ("empty", "truck")]
    for x in range(width):
        for y in range(height):
            for neighbour in (f"x{x + 1}y{y}", f"x{x}y{y + 1}"):
                if neighbour in cells:
                    init += [("adjacent", f"x{x}y{y}", neighbour), ("adjacent", neighbour, f"x{x}y{y}")]
    routes = {package: rng.choices(cells, k=2) for package in packages}
    init += [("at", package, start) for package, (start, _) in routes.items()]
    goal: list[Atom] = [("at", package, destination) for package, (_, destination) in routes.items()]
    name = f"delivery-w{width}-h{height}-p{len(packages)}-s{sample_tag(rng)}"
    objects = assign_types(truck=["truck"], package=packages, cell=cells)
    return Instance(name, objects, tuple(init), tuple(rng.sample(goal, len(goal))))


def iter_plans(instance: Instance) -> Iterator[Plan]:
    """Yield plans that deliver the packages one by one, on shortest paths around forbidden cells.

    The first plan follows the goal's order and goes along x before y; further ones go along y first, or take another
    package first. None where there is no path.
    """
    blocked_cells = {atom[2] for atom in find_forbidden(instance) if atom[:2] == ("at", "truck")}
    graph = _build_graph(instance.init)
    place = {atom[1]: atom[2] for atom in instance.init if atom[0] == "at"}

    def solve(goals: list[Atom], axis: slice) -> Plan | None:
        here, plan = place["truck"], Plan()
        for _, package, destination in goals:
            for action, stop in (("pick-package", place[package]), ("drop-package", destination)):
                distance = _measure_distances(graph, stop, blocked_cells)
                if here not in distance:
                    return None
                while here != stop:
                    nearest = min(distance[cell] for cell in graph[here] if cell in distance)
                    steps = [cell for cell in graph[here] if distance.get(cell) == nearest]
                    step = min(steps, key=lambda cell: cell[axis] == here[axis])
                    plan.append(("move", "truck", here, step))
                    here = step
                plan.append((action, "truck", package, stop))
        return plan

    goals = [goal for goal in instance.goal if goal not in instance.init]
    variants = [(goals, X), (goals, Y), *((order, X) for order in list(move_to_front(goals))[1:])]
    yield from filter(None, (solve(*variant) for variant in variants))


def _build_graph(init: Collection[Atom]) -> Graph:
    graph: Graph = defaultdict(list)
    for atom in init:
        if atom[0] == "adjacent":
            graph[atom[1]].append(atom[2])
    return dict(graph)


def _measure_distances(graph: Graph, cell: str, blocked_cells: Collection[str] = ()) -> dict[str, int]:
    """Return the distance of every reachable cell from `cell`, around blocked ones."""
    distance, frontier = {cell: 0}, [cell] if cell not in blocked_cells else []
    for here in frontier:
        for neighbour in graph.get(here, []):
            if neighbour not in distance and neighbour not in blocked_cells:
                distance[neighbour] = distance[here] + 1
                frontier.append(neighbour)
    return distance


def sample_constraints(rng: Random, instance: Instance) -> tuple[str, ...]:
    """One or two of: cells the truck must not enter, a cell where a package must not be."""
    cells, packages = find_objects(instance, "cell"), find_objects(instance, "package")
    forbidden: list[Atom] = [("at", "truck", cell) for cell in rng.sample(cells, min(2, len(cells)))]
    forbidden.append(("at", rng.choice(packages), rng.choice(cells)))
    parts = [f"(not {render_atom(atom)})" for atom in rng.sample(forbidden, rng.randint(1, 2))]
    return (f"(always (and {' '.join(parts)}))" if len(parts) > 1 else f"(always {parts[0]})",)


def can_occur(atom: Atom) -> bool:
    """Return whether a fact or action has a token: adjacent cells differ by one in one coordinate."""
    cells = [(int(word[1]), int(word[3])) for word in atom if word[0] == "x" and word[1:2].isdigit()]
    return len(cells) < 2 or abs(cells[0][0] - cells[1][0]) + abs(cells[0][1] - cells[1][1]) == 1


def name_objects(objects: Mapping[str, list[str]], init: Collection[Atom]) -> dict[str, str] | None:
    """Number the packages, and name the cells by their coordinates; None where the cells form no grid.

    In a grid with corners A = (0, 0) and B = (w - 1, 0), the distances from A and B are x + y and w - 1 - x + y.
    """
    graph, cells = _build_graph(init), objects.get("cell", [])
    corners = [cell for cell in cells if len(graph.get(cell, [])) == min(map(len, graph.values()), default=0)]
    for corner in corners[:1]:
        from_a = _measure_distances(graph, corner)
        for other in reversed(corners):  # so that a grid named by coordinates keeps its names
            from_b, width = _measure_distances(graph, other), from_a.get(other, 0) + 1
            xy = {
                cell: ((from_a[cell] - from_b[cell] + width - 1) // 2, (from_a[cell] + from_b[cell] - width + 1) // 2)
                for cell in cells
                if cell in from_a and cell in from_b
            }
            height = len(cells) // width
            is_grid = sorted(xy.values()) == [(x, y) for x in range(width) for y in range(height)]
            edges = {(xy[here], xy[there]) for here in xy for there in graph[here]}
            if is_grid and edges == _list_grid_edges(width, height) and max(width, height) <= LARGEST["width"]:
                return merge_names(
                    {cell: f"x{x}y{y}" for cell, (x, y) in xy.items()},
                    number_objects(objects.get("truck", []), "truck", 1) and dict.fromkeys(objects["truck"], "truck"),
                    number_objects(objects.get("package", []), "p", LARGEST["packages"]),
                )
    return None


def _list_grid_edges(width: int, height: int) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    cells = {(x, y) for x in range(width) for y in range(height)}
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0))
    return {((x, y), (x + dx, y + dy)) for x, y in cells for dx, dy in steps if (x + dx, y + dy) in cells}
