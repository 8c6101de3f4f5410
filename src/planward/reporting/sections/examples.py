"""Demonstrations: which worked examples the selectors chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from planward.records import SELECTORS, Prediction
from planward.reporting.demonstrations import CEILING, FOCUS, Language
from planward.reporting.downloads import csv_address, csv_file, csv_text
from planward.reporting.names import shots_title, title
from planward.reporting.sections.breakdown import at
from planward.reporting.sections.elements import Table
from planward.tasks.planning.prompt import END

KINDS = [(FOCUS, "similarity"), ("similarity", FOCUS), (CEILING, FOCUS)]  # of samples: solved with a, not with b


@dataclass(frozen=True)
class Shot:
    """A worked example as a sample shows it."""

    id: str
    language: str
    match: str  # own dialect | own domain | other domain


@dataclass(frozen=True)
class Choice:
    """What a selector chose for a query, and what came of it."""

    selector: str
    shots: list[Shot]
    success: bool
    label: str


@dataclass(frozen=True)
class Sample:
    """A query that shows a kind of difference between selectors, of which there are `count` among `n`."""

    kind: str
    count: int
    n: int
    problem: str
    language: str
    choices: list[Choice]
    texts: list[tuple[str, str]]  # heading and text of the query and of every shot

    @property
    def file(self) -> str:
        """What the CSV file of the choices is called."""
        return csv_file(f"examples-{self.problem}")

    @property
    def address(self) -> str:
        """The choices, a row an example, as the data address of a CSV file."""
        rows = [
            (choice.selector, choice.label, place, shot.id, shot.language, shot.match)
            for choice in self.choices
            for place, shot in enumerate(choice.shots, 1)
        ]
        return csv_address(csv_text(("selector", "label", "place", "example", "language", "match"), rows))


def choices_table(choices: pd.DataFrame, last: int) -> Table:
    """What each selector chose, at the largest N."""
    shots = sorted(choices["shot_num"].unique())
    rows = []
    for (selector, size), run in at(choices, last).groupby(["selector", "dataset_size"], sort=False):
        shares = [f"{100 * share:.0f}" for column in ("own_dialect", "own_domain") for share in run[column]]
        most = run.iloc[-1]
        counts = [f"{most[column]:.0f}" for column in ("distinct_examples", "effective_examples")]
        rows.append([title(str(selector), int(size)), *shares, *counts])
    groups = [("", 1), ("of the query's dialect, percent", len(shots)), ("of the query's domain, percent", len(shots))]
    groups.append((f"examples used, {shots_title(shots[-1])}", 2))
    head = ["selector", *map(shots_title, [*shots, *shots]), "different", "effective"]
    return Table("Worked examples that each selector chose", head, rows, groups=groups)


def samples(answers: Mapping[str, Sequence[Prediction]], languages: Mapping[str, Language]) -> list[Sample]:
    """A query of each of the `KINDS` that occurs: the first by id, of a domain that has not been shown if there is one.

    All selectors answered the same queries, with the same number of shots.
    """
    by_id = {s: {answer.id: answer for answer in answers[s]} for s in SELECTORS if s in answers}
    shown: set[str] = set()
    found = []
    for a, b in KINDS:
        queries = sorted(q for q in by_id.get(a, {}) if b in by_id and by_id[a][q].success and not by_id[b][q].success)
        if not queries:
            continue
        query = min(queries, key=lambda q: (languages[q].domain in shown, q))
        own = languages[query]
        shown.add(own.domain)
        given = {selector: rows[query] for selector, rows in by_id.items()}
        choices = [
            Choice(
                title(selector, answer.dataset_size),
                [Shot(shot, _language(languages[shot]), _match(own, languages[shot])) for shot in answer.shot_ids],
                answer.success,
                answer.label,
            )
            for selector, answer in given.items()
        ]
        kind, texts = f"solved with {a}, not with {b}", _texts(given, languages)
        found.append(Sample(kind, len(queries), len(by_id[a]), query, _language(own), choices, texts))
    return found


def _language(of: Language) -> str:
    return f"{of.domain}, dialect {of.dialect}" if of.dialect else f"{of.domain}, plain"


def _match(query: Language, shot: Language) -> str:
    return "own dialect" if shot == query else "own domain" if shot.domain == query.domain else "other domain"


def _texts(given: Mapping[str, Prediction], languages: Mapping[str, Language]) -> list[tuple[str, str]]:
    """Heading and text of the query and of each example that any selector chose, as the model read them."""
    query, shots = "", dict[str, str]()
    for selector, answer in given.items():
        *examples, query = answer.prompt.split(END)
        if len(examples) != len(answer.shot_ids):  # another style of prompt
            return [(f"The whole prompt, with the examples that {selector} chose", answer.prompt)]
        shots |= dict(zip(answer.shot_ids, examples, strict=True))
    by = {shot: [name for name, answer in given.items() if shot in answer.shot_ids] for shot in shots}
    headings = {shot: f"{shot}: {_language(languages[shot])}, chosen by {', '.join(by[shot])}" for shot in shots}
    return [("The query", query.strip()), *((headings[shot], text.strip()) for shot, text in shots.items())]
