"""States of blocksworld, ferry and grippers as pictures: from ground atoms to SVG, and the same in words.

A world knows what to draw where. It is made from all the states that are to be shown together, so that their pictures
are equally large and a place is where it was. Colours are the page's CSS variables, and every thing bears its name.
What pictures have in common is drawn once, as symbols that they refer to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from markupsafe import Markup, escape

from planward.pddl.language import Problem
from planward.pddl.signature import Atom, Types

State = frozenset[Atom]

COLOURS = 8  # classes thing0 ... thing7 of pictures.css, in the order of the objects
HIGH, GAP = 16, 3  # height of a thing, and what lies between two; pixels, as all lengths here
HEAD = 19  # height of a name above what it is the name of
SHOWN = 12  # characters of a name


class World(Protocol):
    """The pictures of a problem's states. `key` keeps the ids of several worlds on one page apart."""

    width: int
    height: int
    symbols: Markup

    def places(self, state: State) -> Mapping[str, str]:
        """Where each thing is that can be moved, left out where the state does not say."""

    def shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        """The drawing, of no more than the state says; `moved` things stand out."""

    def words(self, state: State) -> str:
        """The state for those who cannot see the picture."""


def world(problem: Problem, states: Sequence[State], key: str) -> World | None:
    """The world that a problem is of, known by its predicates; None where there are no pictures of it."""
    arities = {name: len(kinds) for name, kinds in problem.domain.signature.predicates.items()}
    for kind, predicates in WORLDS:
        if predicates.items() <= arities.items():
            return kind(problem.objects, states, key)
    return None


class Blocks:
    """Towers on a table, each above the place of its lowest block, and a hand."""

    def __init__(self, objects: Mapping[str, Types], states: Sequence[State], key: str) -> None:
        self.objects, self.key = list(objects), key
        self.block, self.step = _width(objects), 20
        towers = [tower for state in states for tower in _towers(state, self.objects)]
        self.columns = [name for name in objects if any(tower[0] == name for tower in towers)]
        self.pitch = self.block + 4
        self.width = max(len(self.columns), 1) * self.pitch
        self.hand = self.step + 14  # what it takes above the highest tower
        self.table = self.hand + self.step * max(map(len, towers), default=1)
        self.height = self.table + 4
        half = self.block / 2
        grip = f"M0 0v4M{-half - 2:g} 12v-8h{self.block + 4}v8"
        self.symbols = Markup('<path id="{}hand" class="edge" d="{}"/>').format(key, grip) + _things(
            self.objects, key, self.block, self.step
        )

    def places(self, state: State) -> Mapping[str, str]:
        found = {atom[1]: "the table" for atom in state if atom[0] == "ontable"}
        found |= {atom[1]: atom[2] for atom in sorted(state) if atom[0] == "on"}
        return found | {atom[1]: "the hand" for atom in state if atom[0] == "holding"}

    def shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        places, held = self.places(state), sorted(atom[1] for atom in state if atom[0] == "holding")
        towers = _towers(state, self.objects)
        sure = [tower[0] in places for tower in towers]  # that it stands on the table: a goal need not say so
        drawn = _line(0, self.table, self.width) if all(sure) else Markup()
        for tower, said in zip(towers, sure, strict=True):
            left = self.columns.index(tower[0]) * self.pitch + 2
            if not all(sure):
                drawn += _line(left, self.table, self.block, said)
            for level, name in enumerate(tower, 1):
                drawn += self._thing(name, left, self.table - level * self.step, moved)
        if held or any(len(atom) == 1 for atom in state):  # (handempty), whatever it is called
            middle = self.width // 2
            drawn += _use(f"{self.key}hand", middle, 1)
            for name in held[:1]:
                drawn += self._thing(name, middle - self.block // 2, 6, moved)
        return drawn

    def words(self, state: State) -> str:
        places = self.places(state)
        held = [f"the hand holds {name}" for name in self.objects if places.get(name) == "the hand"]
        said = []
        for tower in _towers(state, self.objects):
            ground = [] if places.get(tower[0]) is None else ["the table"]
            said.append(" on ".join([*reversed(tower), *ground]))
        return "; ".join(held + said)

    def _thing(self, name: str, x: int, y: int, moved: frozenset[str]) -> Markup:
        return _use(f"{self.key}{self.objects.index(name)}", x, y, name in moved)


class Ferry:
    """Islands in a row with the cars on them, and a boat with its load at one of them."""

    def __init__(self, objects: Mapping[str, Types], states: Sequence[State], key: str) -> None:
        atoms = frozenset(atom for state in states for atom in state)
        self.key = key
        self.cars = [name for name in objects if any(atom[0] in ("at", "on") and atom[1] == name for atom in atoms)]
        self.ports = _alike(objects, {atom[-1] for atom in atoms if atom[0] in ("at", "at-ferry")}, self.cars)
        self.car, self.land = _width(self.cars), max(_width(self.ports), _width(self.cars) + 22)
        self.pitch = self.land + 2 * GAP
        self.width = max(len(self.ports), 1) * self.pitch
        most = max((len(self._cars_at(state, port)) for state in states for port in self.ports), default=0)
        self.shore = 2 + max(most, 1) * (HIGH + 2)
        self.boat = self.shore + HIGH + 6
        self.height = self.boat + HIGH + 14
        hull, deep = self.car + 18, HIGH + 1
        boat = f"M0 {deep}h{hull}l-6 9h{12 - hull}zM3 {deep}v{-HIGH}"
        back = Markup('<rect class="sea" y="{}" width="{}" height="{}" rx="3"/>').format(
            self.shore + HIGH // 2, self.width, self.height - self.shore - HIGH // 2
        )
        for place, port in enumerate(self.ports):
            x = place * self.pitch + GAP
            back += Markup('<g transform="translate({} {})">{}</g>').format(
                x, self.shore, _box(port, self.land, HIGH, "land", 7)
            )
        self.symbols = Markup('<g id="{0}back">{1}</g><path id="{0}boat" class="hull" d="{2}"/>').format(
            key, back, boat
        ) + _things(self.cars, key, self.car, HIGH)

    def places(self, state: State) -> Mapping[str, str]:
        found = {atom[1]: atom[2] for atom in sorted(state) if atom[0] == "at"}
        found |= {atom[1]: "the ferry" for atom in state if atom[0] == "on"}
        boat = sorted(atom[1] for atom in state if atom[0] == "at-ferry")
        return found | ({BOAT: boat[0]} if boat else {})

    def shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        places, drawn = self.places(state), _use(f"{self.key}back")
        for place, port in enumerate(self.ports):
            left = place * self.pitch + GAP
            for level, car in enumerate(self._cars_at(state, port), 1):
                drawn += self._thing(car, left + (self.land - self.car) // 2, self.shore - level * (HIGH + 2), moved)
        if BOAT in places:
            left = self.ports.index(places[BOAT]) * self.pitch + GAP + (self.land - self.car - 18) // 2
            drawn += _use(f"{self.key}boat", left, self.boat, BOAT in moved)
            for car in [car for car in self.cars if places.get(car) == "the ferry"][:1]:
                drawn += self._thing(car, left + 9, self.boat, moved)
        return drawn

    def words(self, state: State) -> str:
        places = self.places(state)
        load = [car for car in self.cars if places.get(car) == "the ferry"]
        said = [f"the ferry at {places[BOAT]}"] if BOAT in places else []
        said += [f"on the ferry {', '.join(load)}"] if load else []
        return "; ".join(
            said + [f"at {port} {', '.join(c)}" for port in self.ports if (c := self._cars_at(state, port))]
        )

    def _cars_at(self, state: State, port: str) -> list[str]:
        return [car for car in self.cars if ("at", car, port) in state]

    def _thing(self, name: str, x: int, y: int, moved: frozenset[str]) -> Markup:
        return _use(f"{self.key}{self.cars.index(name)}", x, y, name in moved)


class Grippers:
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
            if len(atom) == 3 and atom[0].partition("-")[0] == "free":  # a dialect puts its number behind
                hands[atom[1]].add(atom[2])
            elif atom[0] == "carry":
                hands[atom[1]].add(atom[3])
        self.hands = {robot: [name for name in objects if name in hands[robot]] for robot in self.robots}
        others = [*self.balls, *self.robots, *(name for names in hands.values() for name in names)]
        self.rooms = _alike(objects, {atom[2] for atom in atoms if atom[0] in ("at", "at-robby")}, others)
        self.ball = _width(self.balls)
        slots = max(map(len, self.hands.values()), default=0)
        self.robot = max(_width(self.robots), slots * (self.ball + GAP) + GAP)
        self.inner = max(self.robot, _width(self.rooms), 2 * self.ball + GAP)
        self.pitch = self.inner + 3 * GAP
        self.width = max(len(self.rooms), 1) * self.pitch
        self.across = (self.inner + GAP) // (self.ball + GAP)  # balls side by side
        self.tall = HEAD + HIGH + GAP  # of a robot
        most = [
            max((len(found(s, r)) for s in states for r in self.rooms), default=0) for found in (self._in, self._at)
        ]
        self.floor = HEAD + 2 + most[0] * (self.tall + GAP)
        self.height = self.floor + -(-max(most[1], 1) // self.across) * (HIGH + GAP) + GAP
        back = Markup()
        for place, room in enumerate(self.rooms):
            box = _box(room, self.pitch - GAP, self.height - 2, "room", 3)
            back += Markup('<g transform="translate({} 1)">{}</g>').format(place * self.pitch + 1, box)
        self.symbols = Markup('<g id="{}back">{}</g>').format(key, back) + _things(self.balls, key, self.ball, HIGH, 8)
        for number, robot in enumerate(self.robots):
            empty = Markup().join(
                Markup('<rect class="slot" x="{}" y="{}" width="{}" height="{}" rx="8"/>').format(
                    GAP + slot * (self.ball + GAP), HEAD, self.ball, HIGH
                )
                for slot in range(len(self.hands[robot]))
            )
            box = _box(robot, self.robot, self.tall, "robot", 3)
            self.symbols += Markup('<g id="{}r{}">{}{}</g>').format(key, number, box, empty)

    def places(self, state: State) -> Mapping[str, str]:
        found = {atom[1]: atom[2] for atom in sorted(state) if atom[0] in ("at", "at-robby")}
        return found | {atom[2]: f"{atom[1]}'s {atom[3]}" for atom in sorted(state) if atom[0] == "carry"}

    def shapes(self, state: State, moved: frozenset[str] = frozenset()) -> Markup:
        drawn = _use(f"{self.key}back")
        for place, room in enumerate(self.rooms):
            left = place * self.pitch + GAP + 1
            for level, robot in enumerate(self._in(state, room)):
                top = HEAD + 2 + level * (self.tall + GAP)
                drawn += _use(f"{self.key}r{self.robots.index(robot)}", left, top, robot in moved)
                for slot, hand in enumerate(self.hands[robot]):
                    for ball in [ball for ball in self.balls if ("carry", robot, ball, hand) in state][:1]:
                        drawn += self._thing(ball, left + GAP + slot * (self.ball + GAP), top + HEAD, moved)
            for number, ball in enumerate(self._at(state, room)):
                row, column = divmod(number, self.across)
                x, y = left + column * (self.ball + GAP), self.height - GAP - (row + 1) * (HIGH + GAP)
                drawn += self._thing(ball, x, y + 2, moved)
        return drawn

    def words(self, state: State) -> str:
        said = []
        for robot in self.robots:
            held = [ball for ball in self.balls if any(("carry", robot, ball, h) in state for h in self.hands[robot])]
            room = [f"in {room}" for room in self.rooms if robot in self._in(state, room)]
            if room or held:
                said.append(" ".join([robot, *room, *([f"with {', '.join(held)}"] if held else [])]))
        return "; ".join(said + [f"in {room} {', '.join(b)}" for room in self.rooms if (b := self._at(state, room))])

    def _in(self, state: State, room: str) -> list[str]:
        return [robot for robot in self.robots if ("at-robby", robot, room) in state]

    def _at(self, state: State, room: str) -> list[str]:
        return [ball for ball in self.balls if ("at", ball, room) in state]

    def _thing(self, name: str, x: int, y: int, moved: frozenset[str]) -> Markup:
        return _use(f"{self.key}{self.balls.index(name)}", x, y, name in moved)


BOAT = ""  # what `Ferry.places` calls the ferry, which has no name
WORLDS: list[tuple[Callable[[Mapping[str, Types], Sequence[State], str], World], dict[str, int]]] = [
    (Blocks, {"on": 2, "ontable": 1, "holding": 1}),
    (Ferry, {"at-ferry": 1, "at": 2, "on": 1}),
    (Grippers, {"at-robby": 2, "at": 2, "carry": 3}),
]  # with the predicates that each is drawn from, and their numbers of arguments


def _towers(state: State, objects: Sequence[str]) -> list[list[str]]:
    """Blocks from the lowest to the highest, towers in the order of their lowest blocks.

    A block on which several are said to be bears the first of them; blocks in a circle are in no tower.
    """
    above: dict[str, str] = {}
    for atom in sorted(state, reverse=True):
        if atom[0] == "on":
            above[atom[2]] = atom[1]
    placed = {atom[1] for atom in state if atom[0] in ("on", "holding")}
    known = {word for atom in state if atom[0] in ("on", "ontable") for word in atom[1:]}
    towers = []
    for name in objects:
        if name in known and name not in placed:
            tower = [name]
            while (top := above.get(tower[-1])) and top not in tower:
                tower.append(top)
            towers.append(tower)
    return towers


def _alike(objects: Mapping[str, Types], known: set[str], others: Sequence[str]) -> list[str]:
    """All objects of the types of the `known` ones, even if no state speaks of them; `others` are something else."""
    kinds = {objects[name] for name in known}
    return [name for name, kind in objects.items() if kind in kinds and name not in others]


def _width(names: Iterable[str]) -> int:
    """Of a thing that bears any of the names."""
    return max(22, 7 + 6 * min(max(map(len, names), default=0), SHOWN))


def _things(names: Sequence[str], key: str, width: int, height: int, corner: int = 3) -> Markup:
    """A symbol for each thing, coloured by its number."""
    return Markup().join(
        Markup('<g id="{}{}">{}</g>').format(key, i, _box(name, width, height, f"thing{i % COLOURS}", corner))
        for i, name in enumerate(names)
    )


def _box(name: str, width: int, height: int, kind: str, corner: int) -> Markup:
    """A box with a name at its top."""
    shown = name if len(name) <= SHOWN else f"{name[: SHOWN - 1]}…"
    return Markup('<rect class="{}" width="{}" height="{}" rx="{}"/><text x="{:g}" y="{}">{}</text>').format(
        kind, width, height, corner, width / 2, min(height, 20) // 2 + 4, escape(shown)
    )


def _line(x: int, y: int, length: int, sure: bool = True) -> Markup:
    """The table; broken where nothing says that a block stands on it."""
    return Markup('<path class="{}" d="M{} {}h{}"/>').format("edge" if sure else "edge unsaid", x, y + 1, length)


def _use(name: str, x: int = 0, y: int = 0, moved: bool = False) -> Markup:
    at = "".join(f' {axis}="{value}"' for axis, value in (("x", x), ("y", y)) if value)
    standing_out = ' class="moved"' if moved else ""
    return Markup(f'<use href="#{name}"{at}{standing_out}/>')
