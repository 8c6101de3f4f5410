"""The plan browser's data: every stored answer that fits into the page, packed.

Texts are kept once, and so is an answer that several runs gave, or one with several numbers of worked examples: the
default run's 42,000 answers take half a megabyte. What the browser does with them is in templates/browser.js.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planward.params import Params
from planward.records import Label, Prediction, Run
from planward.reporting.names import method_title, rank, shots_title, title
from planward.reporting.results import Plans, Results
from planward.tasks.planning.prompt import END

BUDGET = 1_200_000  # bytes that the packed answers may take in the page
TEXT = 6000  # characters of a problem, example, completion or plan; a longer one is cut, with a mark
TITLES = {"planning": "Planning", "demonstrations": "Choosing worked examples", "economy": "Economy"}
QUERY = "Problem:\n"  # what a problem begins with in a chat prompt


@dataclass(frozen=True)
class Control:
    """One filter: what it goes by in addresses, its label, and its choices as pairs of value and title."""

    name: str
    label: str
    choices: list[tuple[str, str]]


@dataclass(frozen=True)
class PlanBrowser:
    payload: str  # base64 of gzip of JSON, see `_Packing.data`
    shown: int  # answers in it
    total: int  # answers that are stored
    controls: list[Control]
    folders: list[str]  # where all of them lie


def plan_browser(results: Results, params: Params, budget: int = BUDGET) -> PlanBrowser | None:
    """The answers of all tasks, or as many of them as take `budget` bytes; None where there are none.

    Where not all fit, the first seed's with the fewest and with the most worked examples come first, then its others,
    then those of other seeds; within these, whole problems in the order of their ids, so that whatever is there can
    be compared. The same results give the same bytes.
    """
    units = _units(results.plans, params)
    if not units:
        return None
    shown, payload, controls = _most(units, results.plans, budget)
    return PlanBrowser(
        payload=payload,
        shown=sum(len(unit) for unit in units[:shown]),
        total=sum(len(plans.answers) for plans in results.plans),
        controls=controls,
        folders=[plans.folder for plans in results.plans],
    )


Unit = list[tuple[int, Prediction]]  # answers to one problem that come or go together, with the place of their task


def _units(tasks: Sequence[Plans], params: Params) -> list[Unit]:
    units: dict[tuple[int, str, int], Unit] = defaultdict(list)
    for place, plans in enumerate(tasks):
        first = (params.of("economy") if plans.task == "economy" else params).seeds[0]
        shots = {answer.shot_num for answer in plans.answers}
        for answer in plans.answers:
            other_seed = answer.dataset_size > 0 and answer.seed != first
            tier = 2 if other_seed else int(answer.shot_num not in (min(shots), max(shots)))
            units[tier, answer.id, place].append((place, answer))
    return [units[key] for key in sorted(units)]


def _most(units: Sequence[Unit], tasks: Sequence[Plans], budget: int) -> tuple[int, str, list[Control]]:
    """How many units fit, at least one; these packed, and what they can be filtered by.

    Found by false position, as what is packed grows almost evenly, until they fill 95 % of the budget.
    """

    def packed(count: int) -> tuple[int, str, list[Control]]:
        packing = _Packing(tasks, [row for unit in units[:count] for row in unit])
        return count, packing.packed(), packing.controls()

    over = packed(len(units))
    if len(over[1]) <= budget:
        return over
    found = packed(1)
    while over[0] - found[0] > 1 and len(found[1]) < 0.95 * budget:
        share = (budget - len(found[1])) / (len(over[1]) - len(found[1]))
        step = round(share * (over[0] - found[0]))
        tried = packed(min(max(found[0] + step, found[0] + 1), over[0] - 1))
        if len(tried[1]) <= budget:
            found = tried
        else:
            over = tried
    return found


@dataclass
class _Pool:
    """Distinct values in the order in which they came."""

    places: dict[Any, int] = field(default_factory=dict)

    def place(self, value: Any) -> int:
        return self.places.setdefault(value, len(self.places))


class _Packing:
    """Answers as tables that refer to each other by place: what the page's script reads."""

    def __init__(self, tasks: Sequence[Plans], rows: Sequence[tuple[int, Prediction]]) -> None:
        self.tasks = tasks
        self.texts, self.runs, self.problems, self.answers, self.examples = _Pool(), _Pool(), _Pool(), _Pool(), _Pool()
        self.lists = _Pool()  # of examples
        self.rows: list[tuple[int, int, int, int]] = []  # places of run and answer, shot_num, place of the list
        rows = sorted(rows, key=_order)
        self.alone = {(place, p.id): p.prompt for place, p in rows if not p.shot_ids}
        for run in sorted({_run(place, p) for place, p in rows}, key=_run_order):
            self.runs.place(run)
        for place, prediction in rows:
            self._add(place, prediction)

    def _add(self, place: int, p: Prediction) -> None:
        query, shots = self._parts(place, p)
        problem = self.problems.place((place, p.id, p.domain, p.bucket, p.constrained, self._text(query, end=True)))
        plan = None if p.plan == p.completion.strip() else self._text(p.plan)
        verdict = (p.label, p.success, round(p.reward, 4), self._text(p.detail))
        steps = (p.failing_step, p.goals_satisfied, p.goals_total)
        answer = self.answers.place((problem, self._text(p.completion), plan, *verdict, *steps))
        told = [(name, self._text(shot)) for name, shot in zip(p.shot_ids, shots, strict=True)]
        examples = self.lists.place(tuple(map(self.examples.place, told)))
        self.rows.append((self.runs.place(_run(place, p)), answer, p.shot_num, examples))

    def _parts(self, place: int, p: Prediction) -> tuple[str, list[str]]:
        """The problem and the worked examples of a prompt, as the model read them.

        A chat prompt cannot be taken apart: then the problem is the prompt without examples, if there was one, and
        what is left comes from the problems' own records.
        """
        *shots, query = p.prompt.split(END)
        if len(shots) == len(p.shot_ids):
            return query.strip(), [shot.strip() for shot in shots]
        return self.alone.get((place, p.id), self._told(place, p.id)).strip(), [
            self._told(place, shot) for shot in p.shot_ids
        ]

    def _told(self, place: int, name: str) -> str:
        """A problem, and its reference answer if it is a training problem, from its record."""
        if (record := self.tasks[place].records.get(name)) is None:
            return f"(not among the task's problems: {name})"
        problem = record.prompt.rpartition(QUERY)[2].strip()
        return f"{problem}\n{record.response}" if record.response else problem

    def _text(self, text: str, end: bool = False) -> int:
        if (more := len(text) - TEXT) > 0:
            mark = f"… {more:,} more characters are in the prediction file …"
            text = f"{mark}\n{text[-TEXT:]}" if end else f"{text[:TEXT]}\n{mark}"
        return self.texts.place(text)

    def packed(self) -> str:
        data = json.dumps(self.data(), ensure_ascii=False, separators=(",", ":"))
        return base64.b64encode(gzip.compress(data.encode(), mtime=0)).decode()

    def data(self) -> dict[str, Any]:
        """Tables as columns; a place counts from 0, and null says that an answer's plan is its completion."""
        return {
            "safety": Label.SAFETY.value,
            "tasks": [{"key": p.task, "title": TITLES[p.task], "folder": p.folder} for p in self.tasks],
            "texts": list(self.texts.places),
            "runs": [
                {"task": place, "name": run.name, "method": run.method, "size": run.size, "seed": run.seed}
                | {"short": method_title(run.method), "title": self._title(place, run)}
                for place, run in self.runs.places
            ],
            "problems": _columns(["task", "id", "domain", "bucket", "constrained", "text"], self.problems.places),
            "answers": _columns(
                ["problem", "text", "plan", "label", "solved", "reward", "detail", "failing", "satisfied", "goals"],
                self.answers.places,
            ),
            "examples": _columns(["id", "text"], self.examples.places),
            "lists": list(self.lists.places),
            "rows": _columns(["run", "answer", "shots", "list"], self.rows),
        }

    def _title(self, place: int, run: Run) -> str:
        """How a run is called; with its seed, where its task has several."""
        seeds = {other.seed for task, other in self.runs.places if task == place and other.size}
        name = title(run.method, run.size)
        return f"{name}, seed {run.seed}" if run.size and len(seeds) > 1 else name

    def controls(self) -> list[Control]:
        """What answers can be filtered by; one that leaves no choice is left out."""
        runs = [run for _, run in self.runs.places]
        pairs = list(dict.fromkeys((run.method, run.size) for run in runs))

        def choices(name: str, values: Iterable[Any], said: Callable[[Any], str] = str) -> list[tuple[str, str]]:
            return [(str(v), said(v)) for v in sorted(set(values), key=lambda value: rank(name, value))]

        found = [
            Control("task", "Task", [(p.task, TITLES[p.task]) for p in self.tasks]),
            Control("domain", "Domain", choices("domain", (p[2] for p in self.problems.places))),
            Control("bucket", "Bucket", choices("bucket", (p[3] for p in self.problems.places))),
            Control("method", "Method", choices("method", (run.method for run in runs), method_title)),
            Control("size", "N", choices("size", (run.size for run in runs), lambda n: str(n) if n else "untrained")),
            Control("seed", "Seed", choices("seed", (run.seed for run in runs if run.size))),
            Control("shots", "Worked examples", choices("shots", (row[2] for row in self.rows), shots_title)),
            Control("outcome", "Outcome", [("solved", "solved"), ("failed", "not solved")]),
            Control("label", "Label", choices("label", (a[3] for a in self.answers.places), _words)),
            Control("differs", "Outcome differs from", [(f"{m}-{n}", title(m, n)) for m, n in pairs]),
        ]
        return [control for control in found if len(control.choices) > 1]


def _run(place: int, p: Prediction) -> tuple[int, Run]:
    return place, Run(p.method, p.dataset_size, p.seed if p.dataset_size else 0)


def _run_order(keyed: tuple[int, Run]) -> tuple[Any, ...]:
    place, run = keyed
    return place, rank("method", run.method), run.size, run.seed


def _order(row: tuple[int, Prediction]) -> tuple[Any, ...]:
    place, p = row
    return place, p.domain, p.id, p.shot_num, _run_order(_run(place, p))


def _words(label: str) -> str:
    return label.replace("_", " ")


def _columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    rows = list(rows)
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}
