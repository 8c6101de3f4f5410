"""Section "Choosing worked examples": the examples that the selectors chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from planward.analysis.names import format_run, format_shot_num
from planward.analysis.selectors import CEILING, FOCUS, ProblemDialect
from planward.core.prompts import END
from planward.core.records import Prediction
from planward.core.runs import SELECTORS
from planward.report.downloads import build_csv_address, build_csv_name, format_csv
from planward.report.sections.breakdown import select_size
from planward.report.sections.elements import Table

DIFFERENCES = [(FOCUS, "similarity"), ("similarity", FOCUS), (CEILING, FOCUS)]  # solved with a, not with b


@dataclass(frozen=True)
class ChosenExample:
    """A worked example as a sample shows it."""

    id: str
    dialect: str
    match: str  # same dialect | same domain | other domain


@dataclass(frozen=True)
class SelectorChoice:
    """The examples that a selector chose for a query, and the verdict on the completion."""

    selector: str
    examples: list[ChosenExample]
    success: bool
    label: str


@dataclass(frozen=True)
class SelectionSample:
    """A query on which two selectors differ; `count` of the `n` queries are like it."""

    difference: str
    count: int
    n: int
    problem: str
    dialect: str
    choices: list[SelectorChoice]
    texts: list[tuple[str, str]]  # heading and text of the query and of every example

    @property
    def file(self) -> str:
        """The name of the CSV file of the choices."""
        return build_csv_name(f"examples-{self.problem}")

    @property
    def address(self) -> str:
        """The choices, one row per example, as the data address of a CSV file."""
        rows = [
            (choice.selector, choice.label, place, example.id, example.dialect, example.match)
            for choice in self.choices
            for place, example in enumerate(choice.examples, 1)
        ]
        return build_csv_address(format_csv(("selector", "label", "place", "example", "dialect", "match"), rows))


def build_choices_table(choices: pd.DataFrame, size: int) -> Table:
    """What each selector chose, at dataset size `size`."""
    numbers = sorted(choices["shot_num"].unique())
    rows = []
    for (selector, n), run in select_size(choices, size).groupby(["selector", "dataset_size"], sort=False):
        shares = [f"{100 * share:.0f}" for column in ("own_dialect", "own_domain") for share in run[column]]
        last = run.iloc[-1]
        counts = [f"{last[column]:.0f}" for column in ("distinct_examples", "effective_examples")]
        rows.append([format_run(str(selector), int(n)), *shares, *counts])
    groups = [("", 1), ("of the query's dialect, percent", len(numbers))]
    groups += [("of the query's domain, percent", len(numbers)), (f"examples used, {format_shot_num(numbers[-1])}", 2)]
    head = ["selector", *map(format_shot_num, [*numbers, *numbers]), "different", "effective"]
    return Table("Worked examples that each selector chose", head, rows, groups=groups)


def build_selection_samples(
    predictions: Mapping[str, Sequence[Prediction]], dialects: Mapping[str, ProblemDialect]
) -> list[SelectionSample]:
    """One query for each of `DIFFERENCES` that occurs: the first by id, if possible of a domain not shown before.

    All selectors have predictions on the same queries, with the same number of examples.
    """
    by_id = {s: {prediction.id: prediction for prediction in predictions[s]} for s in SELECTORS if s in predictions}
    domains: set[str] = set()
    samples = []
    for a, b in DIFFERENCES:
        queries = sorted(q for q in by_id.get(a, {}) if b in by_id and by_id[a][q].success and not by_id[b][q].success)
        if not queries:
            continue
        query = min(queries, key=lambda q: (dialects[q].domain in domains, q))
        dialect = dialects[query]
        domains.add(dialect.domain)
        by_selector = {selector: rows[query] for selector, rows in by_id.items()}
        choices = [
            SelectorChoice(
                format_run(selector, prediction.dataset_size),
                [
                    ChosenExample(id, _format_dialect(dialects[id]), _format_match(dialect, dialects[id]))
                    for id in prediction.shot_ids
                ],
                prediction.success,
                prediction.label,
            )
            for selector, prediction in by_selector.items()
        ]
        texts = _list_texts(by_selector, dialects)
        difference, dialect_text = f"solved with {a}, not with {b}", _format_dialect(dialect)
        samples.append(SelectionSample(difference, len(queries), len(by_id[a]), query, dialect_text, choices, texts))
    return samples


def _format_dialect(dialect: ProblemDialect) -> str:
    return f"{dialect.domain}, dialect {dialect.dialect}" if dialect.dialect else f"{dialect.domain}, plain"


def _format_match(query: ProblemDialect, example: ProblemDialect) -> str:
    if example == query:
        return "same dialect"
    return "same domain" if example.domain == query.domain else "other domain"


def _list_texts(predictions: Mapping[str, Prediction], dialects: Mapping[str, ProblemDialect]) -> list[tuple[str, str]]:
    """Heading and text of the query and of each example that any selector chose, as in the prompt."""
    query, texts = "", dict[str, str]()
    for selector, prediction in predictions.items():
        *examples, query = prediction.prompt.split(END)
        if len(examples) != len(prediction.shot_ids):  # another prompt style
            return [(f"The whole prompt, with the examples that {selector} chose", prediction.prompt)]
        texts |= dict(zip(prediction.shot_ids, examples, strict=True))
    headings = {
        id: f"{id}: {_format_dialect(dialects[id])}, chosen by "
        + ", ".join(selector for selector, prediction in predictions.items() if id in prediction.shot_ids)
        for id in texts
    }
    return [("The query", query.strip()), *((headings[id], text.strip()) for id, text in texts.items())]
