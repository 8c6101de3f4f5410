"""Data of the plan browser: every stored completion that fits into the page, compressed.

Each text is stored once, and so is a completion that several runs or several numbers of worked examples share: the
default run's 42,000 completions take half a megabyte. templates/browser.js reads and shows them.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planward.analysis.names import format_method, format_run, format_shot_num, sort_key
from planward.core.prompts import END
from planward.core.records import Prediction
from planward.core.runs import Run
from planward.core.verdicts import Label
from planward.report.data import TrackPredictions
from planward.report.markup import TEXT_LIMIT

MAX_PAYLOAD_BYTES = 1_200_000  # of the compressed completions in the page
MAX_PREDICTIONS = 100_000  # of a track, that are kept in memory to choose from; some 5 KB each
CHAT_PROBLEM = "Problem:\n"  # precedes the problem in a chat prompt


@dataclass(frozen=True)
class Filter:
    """A filter: its name in addresses, its label, and its choices as pairs of value and title."""

    name: str
    label: str
    choices: list[tuple[str, str]]


@dataclass(frozen=True)
class PlanBrowser:
    payload: str  # base64 of gzip of JSON, see `_Tables.as_dict`
    shown: int  # completions in it
    total: int  # completions that are stored
    filters: list[Filter]
    folders: list[str]  # of the prediction files


def build_plan_browser(
    tracks: Sequence[TrackPredictions], max_payload_bytes: int = MAX_PAYLOAD_BYTES
) -> PlanBrowser | None:
    """The completions of all tracks, or as many as fit; None where there are none.

    Where not all fit, those of the first seed with the fewest and the most worked examples come first, then its
    others, then those of other seeds; within these, whole problems in the order of their ids, so that runs can be
    compared on each problem shown. The same predictions give the same bytes.
    """
    units = _list_units(tracks)
    if not units:
        return None
    num_units, payload, filters = _pack_units(units, tracks, max_payload_bytes)
    return PlanBrowser(
        payload=payload,
        shown=sum(len(unit) for unit in units[:num_units]),
        total=sum(track.total for track in tracks),
        filters=filters,
        folders=[track.folder for track in tracks],
    )


class FirstPredictions:
    """The predictions of a track that the browser shows first: at most about `limit`, whole problems, of any number.

    Args:
        shot_nums: those of the track.
        first_seed: of training.
    """

    def __init__(self, shot_nums: Collection[int], first_seed: int, limit: int = MAX_PREDICTIONS) -> None:
        self.total, self._predictions = 0, list[Prediction]()
        self._shot_nums, self._first_seed, self._limit = shot_nums, first_seed, limit
        self._end: Rank | None = None  # those from this rank on are not kept

    def add(self, prediction: Prediction) -> None:
        self.total += 1
        if self._end is None or self._rank(prediction) < self._end:
            self._predictions.append(prediction)
            if len(self._predictions) > 1.5 * self._limit:
                self._drop_last()

    def select(self) -> list[Prediction]:
        """Those kept, in the order in which they came."""
        if len(self._predictions) > self._limit:
            self._drop_last()
        return self._predictions

    def _rank(self, prediction: Prediction) -> Rank:
        return rank_prediction(prediction, self._shot_nums, self._first_seed)

    def _drop_last(self) -> None:
        lowest, *ranks = sorted(map(self._rank, self._predictions))
        self._end = end = next((rank for rank in ranks[self._limit - 1 :] if rank > lowest), self._end)
        if end is not None:
            self._predictions = [prediction for prediction in self._predictions if self._rank(prediction) < end]


Rank = tuple[int, str]  # of a prediction: the lowest are shown first; equal ones are shown together


def rank_prediction(prediction: Prediction, shot_nums: Collection[int], first_seed: int) -> Rank:
    is_other_seed = prediction.dataset_size > 0 and prediction.seed != first_seed
    is_between = prediction.shot_num not in (min(shot_nums), max(shot_nums))
    return 2 if is_other_seed else int(is_between), prediction.id


Row = tuple[int, Prediction]  # a prediction with the index of its track
Unit = list[Row]  # predictions on one problem that are shown or left out together


def _list_units(tracks: Sequence[TrackPredictions]) -> list[Unit]:
    units: dict[tuple[int, str, int], Unit] = defaultdict(list)
    for index, track in enumerate(tracks):
        numbers = {prediction.shot_num for prediction in track.predictions}
        for prediction in track.predictions:
            rank = rank_prediction(prediction, numbers, track.first_seed)
            units[*rank, index].append((index, prediction))
    return [units[key] for key in sorted(units)]


def _pack_units(
    units: Sequence[Unit], tracks: Sequence[TrackPredictions], max_payload_bytes: int
) -> tuple[int, str, list[Filter]]:
    """The number of units that fit (at least one), their payload and their filters.

    The payload grows almost linearly, so false position finds a number that fills at least 95 % of the budget.
    """

    def pack(count: int) -> tuple[int, str, list[Filter]]:
        tables = _Tables(tracks, [row for unit in units[:count] for row in unit])
        return count, tables.pack(), tables.list_filters()

    above = pack(len(units))
    if len(above[1]) <= max_payload_bytes:
        return above
    below = pack(1)
    while above[0] - below[0] > 1 and len(below[1]) < 0.95 * max_payload_bytes:
        share = (max_payload_bytes - len(below[1])) / (len(above[1]) - len(below[1]))
        step = round(share * (above[0] - below[0]))
        middle = pack(min(max(below[0] + step, below[0] + 1), above[0] - 1))
        if len(middle[1]) <= max_payload_bytes:
            below = middle
        else:
            above = middle
    return below


@dataclass
class _Pool:
    """Distinct values in the order of their first use."""

    indices: dict[Any, int] = field(default_factory=dict)

    def add(self, value: Any) -> int:
        """The index of a value."""
        return self.indices.setdefault(value, len(self.indices))


class _Tables:
    """Completions as tables that refer to each other by index."""

    def __init__(self, tracks: Sequence[TrackPredictions], rows: Sequence[Row]) -> None:
        self.tracks = tracks
        self.texts, self.runs, self.problems, self.completions = _Pool(), _Pool(), _Pool(), _Pool()
        self.examples, self.example_lists = _Pool(), _Pool()
        self.rows: list[tuple[int, int, int, int]] = []  # run, completion, shot_num, example list
        rows = sorted(rows, key=_rank_row)
        self.prompts_alone = {(track, p.id): p.prompt for track, p in rows if not p.shot_ids}
        for run in sorted({_identify_run(track, p) for track, p in rows}, key=_rank_run):
            self.runs.add(run)
        for track, prediction in rows:
            self._add(track, prediction)

    def _add(self, track: int, p: Prediction) -> None:
        query, examples = self._split_prompt(track, p)
        problem = self.problems.add((track, p.id, p.domain, p.bucket, p.constrained, self._add_text(query, end=True)))
        plan = None if p.plan == p.completion.strip() else self._add_text(p.plan)
        verdict = (p.label, p.success, round(p.reward, 4), self._add_text(p.detail))
        steps = (p.failing_step, p.goals_satisfied, p.goals_total)
        completion = self.completions.add((problem, self._add_text(p.completion), plan, *verdict, *steps))
        texts = [(id, self._add_text(example)) for id, example in zip(p.shot_ids, examples, strict=True)]
        example_list = self.example_lists.add(tuple(map(self.examples.add, texts)))
        self.rows.append((self.runs.add(_identify_run(track, p)), completion, p.shot_num, example_list))

    def _split_prompt(self, track: int, p: Prediction) -> tuple[str, list[str]]:
        """The problem and the worked examples of a prompt.

        A chat prompt cannot be split: then the problem is the prompt without examples, if there was one, and all else
        comes from the problems' records.
        """
        *examples, query = p.prompt.split(END)
        if len(examples) == len(p.shot_ids):
            return query.strip(), [example.strip() for example in examples]
        query = self.prompts_alone.get((track, p.id), self._format_record(track, p.id))
        return query.strip(), [self._format_record(track, id) for id in p.shot_ids]

    def _format_record(self, track: int, id: str) -> str:
        """A problem's record as text, with the reference completion of a training problem."""
        if (record := self.tracks[track].problems.get(id)) is None:
            return f"(not among the task's problems: {id})"
        problem = record.prompt.rpartition(CHAT_PROBLEM)[2].strip()
        return f"{problem}\n{record.response}" if record.response else problem

    def _add_text(self, text: str, end: bool = False) -> int:
        """The index of a text; one over `TEXT_LIMIT` is cut with a mark, to its end or its start."""
        if (excess := len(text) - TEXT_LIMIT) > 0:
            mark = f"… {excess:,} more characters are in the prediction file …"
            text = f"{mark}\n{text[-TEXT_LIMIT:]}" if end else f"{text[:TEXT_LIMIT]}\n{mark}"
        return self.texts.add(text)

    def pack(self) -> str:
        data = json.dumps(self.as_dict(), ensure_ascii=False, separators=(",", ":"))
        return base64.b64encode(gzip.compress(data.encode(), mtime=0)).decode()

    def as_dict(self) -> dict[str, Any]:
        """Tables as columns. Indices count from 0; `plan` is null where the plan is the completion."""
        return {
            "safety": Label.SAFETY.value,
            "tracks": [
                {"key": track.track, "title": track.title, "folder": track.folder, "plans": track.has_plans}
                for track in self.tracks
            ],
            "texts": list(self.texts.indices),
            "runs": [
                {"track": track, "name": run.name, "method": run.method, "size": run.size, "seed": run.seed}
                | {"short": format_method(run.method), "title": self._name_run(track, run)}
                for track, run in self.runs.indices
            ],
            "problems": _build_columns(
                ["track", "id", "domain", "bucket", "constrained", "text"], self.problems.indices
            ),
            "completions": _build_columns(
                ["problem", "text", "plan", "label", "solved", "reward", "detail", "failing", "satisfied", "goals"],
                self.completions.indices,
            ),
            "examples": _build_columns(["id", "text"], self.examples.indices),
            "lists": list(self.example_lists.indices),
            "rows": _build_columns(["run", "completion", "shots", "list"], self.rows),
        }

    def _name_run(self, track: int, run: Run) -> str:
        """The title of a run, with its seed where its track has several."""
        seeds = {other.seed for other_track, other in self.runs.indices if other_track == track and other.size}
        name = format_run(run.method, run.size)
        return f"{name}, seed {run.seed}" if run.size and len(seeds) > 1 else name

    def list_filters(self) -> list[Filter]:
        """The filters with more than one choice."""
        runs = [run for _, run in self.runs.indices]
        pairs = list(dict.fromkeys((run.method, run.size) for run in runs))

        def list_choices(
            name: str, values: Iterable[Any], format_title: Callable[[Any], str] = str
        ) -> list[tuple[str, str]]:
            return [(str(v), format_title(v)) for v in sorted(set(values), key=lambda value: sort_key(name, value))]

        filters = [
            Filter("task", "Task", [(track.track, track.title) for track in self.tracks]),
            Filter("domain", "Domain", list_choices("domain", (p[2] for p in self.problems.indices))),
            Filter("bucket", "Bucket", list_choices("bucket", (p[3] for p in self.problems.indices))),
            Filter("method", "Method", list_choices("method", (run.method for run in runs), format_method)),
            Filter(
                "size", "N", list_choices("size", (run.size for run in runs), lambda n: str(n) if n else "untrained")
            ),
            Filter("seed", "Seed", list_choices("seed", (run.seed for run in runs if run.size))),
            Filter("shots", "Worked examples", list_choices("shots", (row[2] for row in self.rows), format_shot_num)),
            Filter("outcome", "Outcome", [("solved", "solved"), ("failed", "not solved")]),
            Filter("label", "Label", list_choices("label", (c[3] for c in self.completions.indices), _format_label)),
            Filter("differs", "Outcome differs from", [(f"{m}-{n}", format_run(m, n)) for m, n in pairs]),
        ]
        return [each for each in filters if len(each.choices) > 1]


def _identify_run(track: int, p: Prediction) -> tuple[int, Run]:
    return track, Run(p.method, p.dataset_size, p.seed if p.dataset_size else 0)


def _rank_run(key: tuple[int, Run]) -> tuple[Any, ...]:
    track, run = key
    return track, sort_key("method", run.method), run.size, run.seed


def _rank_row(row: Row) -> tuple[Any, ...]:
    track, p = row
    return track, p.domain, p.id, p.shot_num, _rank_run(_identify_run(track, p))


def _format_label(label: str) -> str:
    return label.replace("_", " ")


def _build_columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    rows = list(rows)
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}
