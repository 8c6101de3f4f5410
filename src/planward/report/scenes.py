"""Pictures of states of blocksworld, ferry and grippers: SVG from ground atoms, and a description in words.

A scene holds the layout. It is built from all states that are shown together, so that their pictures have one size and
every place keeps its position. Colours are the page's CSS variables; every item is labelled with its name. Parts that
the pictures share are drawn once, as symbols.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from markupsafe import Markup, escape

from planward.pddl.language import Problem
from planward.pddl.signature import Atom, Types

State = frozenset[Atom]

NUM_COLOURS = 8  # classes item0 ... item7 of pictures.css, in the order of the objects
ITEM_HEIGHT, GAP = 16, 3  # of an item, and between two items; all lengths in pixels
NAME_HEIGHT = 19  # of a name above the content of its box
MAX_NAME_LENGTH = 12  # characters; a longer name is cut


class Scene(Protocol):
    """Draws the states of a problem."""

    width: int
    height: int
    symbols: Markup

    def find_places(self, state: State) -> Mapping[str, str]:
        """The place of each movable item; without items whose place the state does not tell."""

    def render_shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        """Draw what the state tells; `moved` items are highlighted."""

    def describe(self, state: State) -> str:
        """The state in words, for screen readers."""


def build_scene(problem: Problem, states: Sequence[State], key: str) -> Scene | None:
    """Build the scene for a problem's domain, recognised by its predicates; None where there is none.

    Args:
        key: prefix of the ids of symbols, different for every scene of a page.
    """
    arities = {name: len(types) for name, types in problem.domain.signature.predicates.items()}
    for scene, predicates in SCENES:
        if predicates.items() <= arities.items():
            return scene(problem.objects, states, key)
    return None


class BlocksScene:
    """Towers on a table, each at the position of its lowest block, and a hand."""

    def __init__(self, objects: Mapping[str, Types], states: Sequence[State], key: str) -> None:
        self.objects, self.key = list(objects), key
        self.block, self.step = _compute_width(objects), 20
        towers = [tower for state in states for tower in _list_towers(state, self.objects)]
        self.columns = [name for name in objects if any(tower[0] == name for tower in towers)]
        self.pitch = self.block + 4
        self.width = max(len(self.columns), 1) * self.pitch
        self.hand = self.step + 14  # height above the highest tower
        self.table = self.hand + self.step * max(map(len, towers), default=1)
        self.height = self.table + 4
        half = self.block / 2
        grip = f"M0 0v4M{-half - 2:g} 12v-8h{self.block + 4}v8"
        self.symbols = Markup('<path id="{}hand" class="edge" d="{}"/>').format(key, grip) + _render_symbols(
            self.objects, key, self.block, self.step
        )

    def find_places(self, state: State) -> Mapping[str, str]:
        places = {atom[1]: "the table" for atom in state if atom[0] == "ontable"}
        places |= {atom[1]: atom[2] for atom in sorted(state) if atom[0] == "on"}
        return places | {atom[1]: "the hand" for atom in state if atom[0] == "holding"}

    def render_shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        places, held_blocks = self.find_places(state), sorted(atom[1] for atom in state if atom[0] == "holding")
        towers = _list_towers(state, self.objects)
        on_table = [tower[0] in places for tower in towers]  # a goal need not tell
        drawing = _render_table(0, self.table, self.width) if all(on_table) else Markup()
        for tower, is_told in zip(towers, on_table, strict=True):
            left = self.columns.index(tower[0]) * self.pitch + 2
            if not all(on_table):
                drawing += _render_table(left, self.table, self.block, is_told)
            for level, name in enumerate(tower, 1):
                drawing += self._render_item(name, left, self.table - level * self.step, moved)
        if held_blocks or any(len(atom) == 1 for atom in state):  # (handempty), possibly renamed
            middle = self.width // 2
            drawing += _render_use(f"{self.key}hand", middle, 1)
            for name in held_blocks[:1]:
                drawing += self._render_item(name, middle - self.block // 2, 6, moved)
        return drawing

    def describe(self, state: State) -> str:
        places = self.find_places(state)
        hand_texts = [f"the hand holds {name}" for name in self.objects if places.get(name) == "the hand"]
        parts = []
        for tower in _list_towers(state, self.objects):
            ground = [] if places.get(tower[0]) is None else ["the table"]
            parts.append(" on ".join([*reversed(tower), *ground]))
        return "; ".join(hand_texts + parts)

    def _render_item(self, name: str, x: int, y: int, moved_items: frozenset[str]) -> Markup:
        return _render_use(f"{self.key}{self.objects.index(name)}", x, y, name in moved_items)


class FerryScene:
    """Islands in a row with the cars on them, and a boat with its load at one of them."""

    def __init__(self, objects: Mapping[str, Types], states: Sequence[State], key: str) -> None:
        atoms = frozenset(atom for state in states for atom in state)
        self.key = key
        self.cars = [name for name in objects if any(atom[0] in ("at", "on") and atom[1] == name for atom in atoms)]
        self.ports = _list_same_type(objects, {atom[-1] for atom in atoms if atom[0] in ("at", "at-ferry")}, self.cars)
        self.car, self.land = _compute_width(self.cars), max(_compute_width(self.ports), _compute_width(self.cars) + 22)
        self.pitch = self.land + 2 * GAP
        self.width = max(len(self.ports), 1) * self.pitch
        most = max((len(self._list_cars_at(state, port)) for state in states for port in self.ports), default=0)
        self.shore = 2 + max(most, 1) * (ITEM_HEIGHT + 2)
        self.boat = self.shore + ITEM_HEIGHT + 6
        self.height = self.boat + ITEM_HEIGHT + 14
        hull, deep = self.car + 18, ITEM_HEIGHT + 1
        boat = f"M0 {deep}h{hull}l-6 9h{12 - hull}zM3 {deep}v{-ITEM_HEIGHT}"
        back = Markup('<rect class="sea" y="{}" width="{}" height="{}" rx="3"/>').format(
            self.shore + ITEM_HEIGHT // 2, self.width, self.height - self.shore - ITEM_HEIGHT // 2
        )
        for place, port in enumerate(self.ports):
            x = place * self.pitch + GAP
            back += Markup('<g transform="translate({} {})">{}</g>').format(
                x, self.shore, _render_box(port, self.land, ITEM_HEIGHT, "land", 7)
            )
        self.symbols = Markup('<g id="{0}back">{1}</g><path id="{0}boat" class="hull" d="{2}"/>').format(
            key, back, boat
        ) + _render_symbols(self.cars, key, self.car, ITEM_HEIGHT)

    def find_places(self, state: State) -> Mapping[str, str]:
        places = {atom[1]: atom[2] for atom in sorted(state) if atom[0] == "at"}
        places |= {atom[1]: "the ferry" for atom in state if atom[0] == "on"}
        ports = sorted(atom[1] for atom in state if atom[0] == "at-ferry")
        return places | ({FERRY: ports[0]} if ports else {})

    def render_shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        places, drawing = self.find_places(state), _render_use(f"{self.key}back")
        for place, port in enumerate(self.ports):
            left = place * self.pitch + GAP
            for level, car in enumerate(self._list_cars_at(state, port), 1):
                drawing += self._render_item(
                    car, left + (self.land - self.car) // 2, self.shore - level * (ITEM_HEIGHT + 2), moved
                )
        if FERRY in places:
            left = self.ports.index(places[FERRY]) * self.pitch + GAP + (self.land - self.car - 18) // 2
            drawing += _render_use(f"{self.key}boat", left, self.boat, FERRY in moved)
            for car in [car for car in self.cars if places.get(car) == "the ferry"][:1]:
                drawing += self._render_item(car, left + 9, self.boat, moved)
        return drawing

    def describe(self, state: State) -> str:
        places = self.find_places(state)
        load = [car for car in self.cars if places.get(car) == "the ferry"]
        parts = [f"the ferry at {places[FERRY]}"] if FERRY in places else []
        parts += [f"on the ferry {', '.join(load)}"] if load else []
        return "; ".join(
            parts + [f"at {port} {', '.join(c)}" for port in self.ports if (c := self._list_cars_at(state, port))]
        )

    def _list_cars_at(self, state: State, port: str) -> list[str]:
        return [car for car in self.cars if ("at", car, port) in state]

    def _render_item(self, name: str, x: int, y: int, moved_items: frozenset[str]) -> Markup:
        return _render_use(f"{self.key}{self.cars.index(name)}", x, y, name in moved_items)


class GrippersScene:
    """Rooms in a row, the robots and balls in them, and what each robot holds in which gripper."""

    def __init__(self, objects: Mapping[str, Types], states: Sequence[State], key: str) -> None:
        atoms = frozenset(atom for state in states for atom in state)
        self.key = key
        self.balls = [
            n for n in objects if any((a[0] == "at" and a[1] == n) or (a[0] == "carry" and a[2] == n) for a in atoms)
        ]
        self.robots = [n for n in objects if any(a[0] in ("at-robby", "carry") and a[1] == n for a in atoms)]
        hands = defaultdict[str, set[str]](set)
        for atom in atoms:
            if len(atom) == 3 and atom[0].partition("-")[0] == "free":  # a dialect appends its number
                hands[atom[1]].add(atom[2])
            elif atom[0] == "carry":
                hands[atom[1]].add(atom[3])
        self.hands = {robot: [name for name in objects if name in hands[robot]] for robot in self.robots}
        not_rooms = [*self.balls, *self.robots, *(name for names in hands.values() for name in names)]
        self.rooms = _list_same_type(objects, {atom[2] for atom in atoms if atom[0] in ("at", "at-robby")}, not_rooms)
        self.ball = _compute_width(self.balls)
        slots = max(map(len, self.hands.values()), default=0)
        self.robot = max(_compute_width(self.robots), slots * (self.ball + GAP) + GAP)
        self.inner = max(self.robot, _compute_width(self.rooms), 2 * self.ball + GAP)
        self.pitch = self.inner + 3 * GAP
        self.width = max(len(self.rooms), 1) * self.pitch
        self.balls_per_row = (self.inner + GAP) // (self.ball + GAP)
        self.robot_height = NAME_HEIGHT + ITEM_HEIGHT + GAP
        most = [
            max((len(list_items(s, r)) for s in states for r in self.rooms), default=0)
            for list_items in (self._list_robots_in, self._list_balls_at)
        ]
        self.floor = NAME_HEIGHT + 2 + most[0] * (self.robot_height + GAP)
        self.height = self.floor + -(-max(most[1], 1) // self.balls_per_row) * (ITEM_HEIGHT + GAP) + GAP
        back = Markup()
        for place, room in enumerate(self.rooms):
            box = _render_box(room, self.pitch - GAP, self.height - 2, "room", 3)
            back += Markup('<g transform="translate({} 1)">{}</g>').format(place * self.pitch + 1, box)
        self.symbols = Markup('<g id="{}back">{}</g>').format(key, back) + _render_symbols(
            self.balls, key, self.ball, ITEM_HEIGHT, 8
        )
        for number, robot in enumerate(self.robots):
            empty = Markup().join(
                Markup('<rect class="slot" x="{}" y="{}" width="{}" height="{}" rx="8"/>').format(
                    GAP + slot * (self.ball + GAP), NAME_HEIGHT, self.ball, ITEM_HEIGHT
                )
                for slot in range(len(self.hands[robot]))
            )
            box = _render_box(robot, self.robot, self.robot_height, "robot", 3)
            self.symbols += Markup('<g id="{}r{}">{}{}</g>').format(key, number, box, empty)

    def find_places(self, state: State) -> Mapping[str, str]:
        places = {atom[1]: atom[2] for atom in sorted(state) if atom[0] in ("at", "at-robby")}
        return places | {atom[2]: f"{atom[1]}'s {atom[3]}" for atom in sorted(state) if atom[0] == "carry"}

    def render_shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        drawing = _render_use(f"{self.key}back")
        for place, room in enumerate(self.rooms):
            left = place * self.pitch + GAP + 1
            for level, robot in enumerate(self._list_robots_in(state, room)):
                top = NAME_HEIGHT + 2 + level * (self.robot_height + GAP)
                drawing += _render_use(f"{self.key}r{self.robots.index(robot)}", left, top, robot in moved)
                for slot, hand in enumerate(self.hands[robot]):
                    for ball in [ball for ball in self.balls if ("carry", robot, ball, hand) in state][:1]:
                        drawing += self._render_item(
                            ball, left + GAP + slot * (self.ball + GAP), top + NAME_HEIGHT, moved
                        )
            for number, ball in enumerate(self._list_balls_at(state, room)):
                row, column = divmod(number, self.balls_per_row)
                x, y = left + column * (self.ball + GAP), self.height - GAP - (row + 1) * (ITEM_HEIGHT + GAP)
                drawing += self._render_item(ball, x, y + 2, moved)
        return drawing

    def describe(self, state: State) -> str:
        parts = []
        for robot in self.robots:
            balls = [ball for ball in self.balls if any(("carry", robot, ball, h) in state for h in self.hands[robot])]
            room = [f"in {room}" for room in self.rooms if robot in self._list_robots_in(state, room)]
            if room or balls:
                parts.append(" ".join([robot, *room, *([f"with {', '.join(balls)}"] if balls else [])]))
        return "; ".join(
            parts + [f"in {room} {', '.join(b)}" for room in self.rooms if (b := self._list_balls_at(state, room))]
        )

    def _list_robots_in(self, state: State, room: str) -> list[str]:
        return [robot for robot in self.robots if ("at-robby", robot, room) in state]

    def _list_balls_at(self, state: State, room: str) -> list[str]:
        return [ball for ball in self.balls if ("at", ball, room) in state]

    def _render_item(self, name: str, x: int, y: int, moved_items: frozenset[str]) -> Markup:
        return _render_use(f"{self.key}{self.balls.index(name)}", x, y, name in moved_items)


FERRY = ""  # the ferry in `FerryScene.find_places`; no object has this name
SCENES: list[tuple[Callable[[Mapping[str, Types], Sequence[State], str], Scene], dict[str, int]]] = [
    (BlocksScene, {"on": 2, "ontable": 1, "holding": 1}),
    (FerryScene, {"at-ferry": 1, "at": 2, "on": 1}),
    (GrippersScene, {"at-robby": 2, "at": 2, "carry": 3}),
]  # with the predicates that each one draws, and their arities


def _list_towers(state: State, objects: Sequence[str]) -> list[list[str]]:
    """Towers, each from its lowest block up, in the order of their lowest blocks.

    Where several blocks are on one block, the first of them counts; blocks in a cycle are in no tower.
    """
    above: dict[str, str] = {}
    for atom in sorted(state, reverse=True):
        if atom[0] == "on":
            above[atom[2]] = atom[1]
    supported_blocks = {atom[1] for atom in state if atom[0] in ("on", "holding")}
    blocks = {word for atom in state if atom[0] in ("on", "ontable") for word in atom[1:]}
    towers = []
    for name in objects:
        if name in blocks and name not in supported_blocks:
            tower = [name]
            while (top := above.get(tower[-1])) and top not in tower:
                tower.append(top)
            towers.append(tower)
    return towers


def _list_same_type(objects: Mapping[str, Types], names: set[str], others: Sequence[str]) -> list[str]:
    """All objects of the types of `names`, even if no state mentions them, without `others`."""
    types = {objects[name] for name in names}
    return [name for name, own_types in objects.items() if own_types in types and name not in others]


def _compute_width(names: Iterable[str]) -> int:
    """The width of an item that fits each of the names."""
    return max(22, 7 + 6 * min(max(map(len, names), default=0), MAX_NAME_LENGTH))


def _render_symbols(names: Sequence[str], key: str, width: int, height: int, corner: int = 3) -> Markup:
    """One symbol per item, coloured by its number."""
    return Markup().join(
        Markup('<g id="{}{}">{}</g>').format(key, i, _render_box(name, width, height, f"item{i % NUM_COLOURS}", corner))
        for i, name in enumerate(names)
    )


def _render_box(name: str, width: int, height: int, style: str, corner: int) -> Markup:
    """A box with a name at the top."""
    label = name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"
    return Markup('<rect class="{}" width="{}" height="{}" rx="{}"/><text x="{:g}" y="{}">{}</text>').format(
        style, width, height, corner, width / 2, min(height, 20) // 2 + 4, escape(label)
    )


def _render_table(x: int, y: int, length: int, is_told: bool = True) -> Markup:
    """The table; dashed where the state does not tell that a block stands on it."""
    return Markup('<path class="{}" d="M{} {}h{}"/>').format("edge" if is_told else "edge untold", x, y + 1, length)


def _render_use(name: str, x: int = 0, y: int = 0, is_moved: bool = False) -> Markup:
    position = "".join(f' {axis}="{value}"' for axis, value in (("x", x), ("y", y)) if value)
    style = ' class="moved"' if is_moved else ""
    return Markup(f'<use href="#{name}"{position}{style}/>')
