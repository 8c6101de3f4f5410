"""The report page: what the stages found, as one self-contained HTML file.

Everything goes through Jinja2 with autoescape: what a model wrote stays text. Only figures drawn here are markup.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from planward.params import BUCKETS, Params
from planward.records import Label, Prediction
from planward.reporting import figures
from planward.reporting.figures import Point
from planward.reporting.tables import ALL, METHODS, percent, rank, shots_title, title

BINS = 10  # parts of a run over which shares of the curriculum are averaged
POINTS = 120  # a curve with more steps is averaged over neighbours
TEXT = 6000  # characters of a problem or completion that the page prints
MAIN_CURVES = ["loss", "reward", "success", "kl", "completion_length", "zero_spread", "reward_by_domain"]
LABELS = {"success_plans": 2, "goal_not_satisfied": 5, "precondition_violation": 6}  # their colours in the palette
LABELS |= {"safety_constraints_violation": 3, "plan_format_error": 7}
TRAINING = re.compile(r"results/training/[^/]+/metrics\.json")
TROUBLE = {  # a key of a metrics file that matches and is not zero needs an explanation
    r"disagree|verifier_error": "verdicts that VAL did not reach or on which the two verifiers differ",
    r"fallback": "the curriculum asked for an empty bucket and drew from the nearest one",
    r"unmatched": "file names that match no difficulty pattern: score 0, bucket easy",
    r"drop": "worked examples left out of training prompts that were too long",
}


@dataclass(frozen=True)
class Sample:
    """One test problem and the answer of each method to it."""

    problem: str
    answers: list[Prediction]


@dataclass(frozen=True)
class Provenance:
    commit: str | None
    lock: str | None  # SHA-256
    packages: dict[str, str]
    params: str | None  # params.yaml as it stands


@dataclass(frozen=True)
class Results:
    """What the stages wrote; empty where a stage has not run. Tables are those of `stages.compare`."""

    shots: pd.DataFrame
    success: pd.DataFrame
    buckets: pd.DataFrame
    paired: pd.DataFrame
    labels: pd.DataFrame
    constraints: pd.DataFrame
    samples: dict[str, list[Sample]]  # by domain
    short_prompts: dict[str, int]  # by prediction file
    quarantine: Mapping[str, int]  # lines by kind of fault
    metrics: dict[str, dict[str, Any]]  # by file
    difficulty_figure: str | None
    schedules: dict[int, pd.DataFrame]  # by N
    consumed: dict[int, pd.DataFrame]  # by N
    curves: dict[str, dict[str, list[Point]]]  # by run (`grpo-100`), then by curve
    timing: list[dict[str, Any]]
    provenance: Provenance


@dataclass(frozen=True)
class Table:
    caption: str
    head: list[str]
    rows: list[list[Any]]  # the first cell of a row is its heading
    marks: Mapping[tuple[int, int], str] = field(default_factory=dict)  # best | tied, by row and column


def render(results: Results, params: Params) -> str:
    """The page as HTML; the same results give the same text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    last = max(results.paired["dataset_size"], default=0)
    fewest = int(results.shots["shot_num"].min())
    return environment.get_template("page.html.j2").render(
        r=results,
        confidence=f"{100 * params.compare.confidence:g}",
        n=int(results.shots["n"].iloc[0]),
        last=last,
        fewest=fewest,
        text_limit=TEXT,
        safety=Label.SAFETY.value,
        constraints_in=constraints_in,
        title=title,
        findings=findings(results.paired, results.shots, 1 - params.compare.confidence),
        troubles=troubles(results),
        headline=headline(results.shots),
        comparisons=comparisons(results.paired, 1 - params.compare.confidence),
        by_shots=_success_panels(results.success[results.success["domain"] == ALL], "dataset_size", "N = {}"),
        by_domain=_success_panels(_at(results.success[results.success["domain"] != ALL], last), "domain", "{}"),
        by_bucket=_success_panels(_at(results.buckets[results.buckets["domain"] == ALL], last), "bucket", "{}"),
        domain_table=_success_table(results.success, "domain", fewest),
        bucket_table=_success_table(results.buckets[results.buckets["domain"] == ALL], "bucket", fewest),
        label_panels=_label_panels(results.labels),
        label_table=_label_table(results.labels),
        constrained=max(results.constraints["n"][results.constraints["constrained"]], default=0),
        constraint_tables=_constraint_tables(results.constraints),
        constraint_panels=_success_panels(
            _by_kind(_at(results.constraints, last)), "problems", f"{{}}, N = {last}" if last else "{}"
        ),
        learning=learning(results.curves),
        training_table=_training_table(results.metrics),
        difficulty_table=difficulty(results.metrics.get("results/score/metrics.json", {})),
        difficulty_figure=_image(results.difficulty_figure),
        curriculum_panels=_curriculum_panels(results, params),
        curriculum_table=curriculum(results),
        split_table=_key_values("What the split kept", results.metrics.get("results/split/metrics.json", {})),
        timing_table=timing(results.timing),
        package_table=_key_values("Versions", results.provenance.packages),
    )


def findings(paired: pd.DataFrame, cells: pd.DataFrame, alpha: float) -> list[str]:
    """Two sentences on the last method: its cell at the largest N and fewest shots, and all comparisons."""
    if paired.empty:
        return ["Only one method was evaluated, so there is nothing to compare."]
    focus = max(paired["method_b"], key=lambda method: rank("method", method))
    mine, name = paired[paired["method_b"] == focus], METHODS.get(focus, focus)
    size, shot_num = mine["dataset_size"].max(), mine["shot_num"].min()
    here = mine[(mine["dataset_size"] == size) & (mine["shot_num"] == shot_num)]
    cell = cells[(cells["method"] == focus) & (cells["dataset_size"] == size) & (cells["shot_num"] == shot_num)]
    rate = f"{100 * cell['success_rate'].iloc[0]:.1f} % of {cell['n'].iloc[0]} test problems"
    tally = []
    for method, rows in mine.groupby("method_a", sort=False):
        found = rows["difference"][rows["p_holm"] < alpha]
        tally.append(
            f"better than {METHODS.get(str(method), method)} in {(found > 0).sum()}, worse in {(found < 0).sum()} "
            f"and statistically tied in {len(rows) - len(found)}"
        )
    return [
        f"With {shot_num} worked examples and N = {size}, {name} solves {rate}: "
        f"{', and '.join(_verdict(row, alpha) for row in here.itertuples())}.",
        f"Of {len(mine)} comparisons, one for each N, number of worked examples and other method, {name} is "
        f"{'; '.join(tally)}.",
    ]


def _verdict(row: Any, alpha: float) -> str:
    name, interval = METHODS.get(row.method_a, row.method_a), f"[{row.ci_low:.1f}, {row.ci_high:.1f}]"
    if row.p_holm < alpha:
        way = "more" if row.difference > 0 else "fewer"
        return f"{abs(row.difference):.1f} points {way} than {name} ({interval}, p {_p(row.p_holm)})"
    smallest = f"about {row.detectable_difference:.1f} points could have been found"
    return f"statistically tied with {name} ({row.difference:+.1f} points {interval}, p {_p(row.p_holm)}; {smallest})"


def troubles(results: Results) -> list[tuple[str, str, str]]:
    """What needs an explanation: value, meaning, file."""
    found = [
        (str(count), f"input lines set apart: {reason}", "results/split/quarantine.jsonl")
        for reason, count in sorted(results.quarantine.items())
    ]
    for path, values in results.metrics.items():
        if path.endswith("disagreement.json"):
            found.append(
                ("a disagreement", "the two verifiers differ on a training completion; the case is kept", path)
            )
        for key, value in _flat(values):
            for pattern, meaning in TROUBLE.items():
                if re.search(pattern, key) and isinstance(value, (int, float)) and value and "predictions/" not in path:
                    found.append((f"{key} = {_number(value)}", meaning, path))
    found += [
        (str(count), "prompts with fewer worked examples than asked for, to fit", path)
        for path, count in results.short_prompts.items()
        if count
    ]
    return found + [
        (row[3], "training consumed other problems than were scheduled", f"N = {row[0]}")
        for row in curriculum(results).rows
        if row[3] not in ("", "all")
    ]


def headline(cells: pd.DataFrame) -> Table:
    """Success by method, N and shot_num; the best of each column and those tied with it are marked."""
    rows: list[list[Any]] = []
    marks: dict[tuple[int, int], str] = {}
    for (method, size), run in cells.groupby(["method", "dataset_size"], sort=False):
        for column, cell in enumerate(run.itertuples(), start=1):
            marks[len(rows), column] = "best" if cell.best else "tied" if cell.tied else ""
        texts = [percent(c.success_rate, c.ci_low, c.ci_high) for c in run.itertuples()]
        rows.append([title(str(method), int(size)), *texts])
    head = ["method", *(shots_title(shot_num) for shot_num in sorted(cells["shot_num"].unique()))]
    return Table("Success in percent, with its interval, by worked examples in the prompt", head, rows, marks)


def comparisons(paired: pd.DataFrame, alpha: float) -> Table:
    rows = [
        [
            f"{METHODS.get(row.method_b, row.method_b)} against {METHODS.get(row.method_a, row.method_a)}",
            *(row.dataset_size, row.shot_num, row.both, row.only_b, row.only_a),
            f"{row.difference:+.1f} [{row.ci_low:+.1f}, {row.ci_high:+.1f}]",
            *(f"{row.p:.2g}", f"{row.p_holm:.2g}"),
            "tied" if row.p_holm >= alpha else "better" if row.difference > 0 else "worse",
            f"{row.detectable_difference:.1f}",
        ]
        for row in paired.itertuples()
    ]
    head = ["comparison", "N", "shots", "both solve", "only the first", "only the second", "difference, points"]
    return Table("Paired comparisons", [*head, "p", "p (Holm)", "result", "detectable, points"], rows)


def learning(curves: Mapping[str, Mapping[str, Sequence[Point]]]) -> list[dict[str, Any]]:
    """For each method its rows of panels, split into the main ones and the rest.

    Single curves share a row, one panel each with a line for each N; a folder of curves is a row of its own,
    one panel for each N.
    """
    methods: dict[str, dict[int, Mapping[str, Sequence[Point]]]] = {}
    for run, found in curves.items():
        method, size = run.rsplit("-", 1)
        if found:
            methods.setdefault(method, {})[int(size)] = found
    return [
        {
            "method": METHODS.get(method, method),
            "main": _learning_rows(methods[method], lambda group: group in MAIN_CURVES),
            "rest": _learning_rows(methods[method], lambda group: group not in MAIN_CURVES),
        }
        for method in sorted(methods, key=lambda name: rank("method", name))
    ]


def _learning_rows(
    runs: Mapping[int, Mapping[str, Sequence[Point]]], wanted: Callable[[str], bool]
) -> list[list[Markup]]:
    single: list[Markup] = []
    rows = [single]
    groups = {name.split("/")[0] for run in runs.values() for name in run}
    known = {name: place for place, name in enumerate(MAIN_CURVES)}
    for group in sorted(filter(wanted, groups), key=lambda name: (known.get(name, len(known)), name)):
        shown = {
            size: {name: thinned(runs[size][name]) for name in runs[size] if name.split("/")[0] == group}
            for size in sorted(runs)
        }
        values = [y for lines in shown.values() for points in lines.values() for _, y in points] or [0.0]
        heading, span = group.replace("_", " "), (min(values), max(values))
        names = sorted({name for lines in shown.values() for name in lines}, key=_by_bucket)
        if names == [group]:
            series = {f"N = {size}": lines[group] for size, lines in shown.items() if lines}
            single.append(figures.lines(heading, series, "step", span))
            continue
        rows.append([])
        for size, lines in shown.items():
            colours = [place for place, name in enumerate(names) if name in lines]
            series = {names[place].removeprefix(f"{group}/"): lines[names[place]] for place in colours}
            if series:
                rows[-1].append(figures.lines(f"{heading}, N = {size}", series, "step", span, colours, colours))
    return [row for row in rows if row]


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most `most` points: means over equally many neighbours, at the last step of each group."""
    width = -(-len(points) // most)
    groups = [points[i : i + width] for i in range(0, len(points), max(width, 1))]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def curriculum(results: Results) -> Table:
    """For each N: how many problems were scheduled and consumed, and whether they are the same row for row."""
    rows = []
    for size in sorted({*results.schedules, *results.consumed}):
        scheduled, consumed = (_problems(frames.get(size)) for frames in (results.schedules, results.consumed))
        same = ""
        if scheduled and consumed:
            differ = sum(a != b for a, b in zip_longest(scheduled, consumed))
            same = f"{differ} rows differ" if differ else "all"
        frame = results.schedules.get(size, results.consumed.get(size))
        balanced = "" if frame is None else "yes" if frame.groupby(["step", "domain"]).size().nunique() == 1 else "no"
        rows.append([size, len(scheduled) or "not written", len(consumed) or "not written", same, balanced])
    head = ["N", "scheduled", "consumed", "same problems in the same order", "domains balanced in every step"]
    return Table("What was scheduled and what training consumed", head, rows)


def _curriculum_panels(results: Results, params: Params) -> list[Markup]:
    panels = []
    shares = [next(p for p in params.curriculum if x < 100 * p.until or p.until == 1).shares for x in range(101)]
    wanted = {str(bucket): [(x / 100, share[bucket]) for x, share in enumerate(shares)] for bucket in shares[0]}
    for size in sorted({*results.schedules, *results.consumed}):
        series = {f"{bucket}, asked": points for bucket, points in wanted.items()}
        for name, frame in (("drawn", results.schedules.get(size)), ("used", results.consumed.get(size))):
            if frame is not None and len(frame):
                progress = (frame["step"] - frame["step"].min()) / (frame["step"].max() - frame["step"].min() + 1)
                drawn = pd.crosstab((progress * BINS).astype(int), frame["bucket"], normalize="index")
                for bucket, column in drawn.reindex(columns=list(BUCKETS), fill_value=0.0).items():
                    points = [((x + 0.5) / BINS, y) for x, y in zip(drawn.index, column, strict=True)]
                    series[f"{bucket}, {name}"] = points
        kinds = len(series) // len(BUCKETS)
        colours = list(range(len(BUCKETS))) * kinds
        dashes = [kind for kind in (2, 1, 0)[:kinds] for _ in BUCKETS]
        panels.append(figures.lines(f"Bucket shares, N = {size}", series, "progress", (0, 1), dashes, colours))
    return panels


def difficulty(metrics: Mapping[str, Any]) -> Table | None:
    """Scores and bucket sizes of the training split, a row a domain."""
    if not metrics.get("domains"):
        return None
    columns = ["count", "min", "max", "mean", "median", "p40", "p80"]
    rows = [
        [name, *(_number(d.get(c)) for c in columns), *(d.get("buckets", {}).get(b, 0) for b in BUCKETS)]
        for name, d in sorted(metrics["domains"].items())
    ]
    return Table("Difficulty scores and buckets, training split", ["domain", *columns, *BUCKETS], rows)


def timing(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """Wall time, processor time and memory of each stage, and the sums of the times."""
    if not rows:
        return None
    columns = ("wall_s", "cpu_s", "peak_rss_mb")
    body = [[row.get("stage", "?"), *(_number(row.get(key)) for key in columns)] for row in rows]
    total = [_number(sum(row.get(key) or 0 for row in rows)) for key in columns[:2]]
    head = ["stage", "wall time, s", "processor time, s", "peak memory, MB"]
    return Table("Time and memory by stage", head, [*body, ["sum", *total, ""]])


def _success_panels(table: pd.DataFrame, by: str, heading: str) -> list[Markup]:
    """A panel for each value of `by`: success against shot_num, a line a method; base stands in each."""
    panels = []
    methods = list(dict.fromkeys(table["method"]))
    values = sorted(set(table[by]) - ({0} if by == "dataset_size" else set()), key=lambda value: rank(by, value)) or [0]
    for value in values:
        part = table[table[by].isin([0, value])] if by == "dataset_size" else table[table[by] == value]
        series = {
            METHODS.get(method, method): list(
                rows[["shot_num", "success_rate", "ci_low", "ci_high"]].itertuples(index=False, name=None)
            )
            for method, rows in part.groupby("method", sort=False)
        }
        colours = [_method_colour(methods, method) for method in dict.fromkeys(part["method"])]
        panels.append(figures.intervals(heading.format(value), series, "worked examples in the prompt", colours))
    return panels


def _method_colour(methods: Sequence[str], method: str) -> int:
    order = [*METHODS, *(name for name in methods if name not in METHODS)]
    return (7, 0, 1, 2, 3, 4, 5, 6)[order.index(method) % 8]


def _success_table(table: pd.DataFrame, column: str, shot_num: int) -> Table:
    part = table[table["shot_num"] == shot_num]
    values = sorted(set(part[column]), key=lambda value: rank(column, value))
    rows = []
    for (method, size), run in part.groupby(["method", "dataset_size"], sort=False):
        cells = {getattr(c, column): percent(c.success_rate, c.ci_low, c.ci_high) for c in run.itertuples()}
        rows.append([title(str(method), int(size)), *(cells.get(value, "") for value in values)])
    counts = {getattr(c, column): c.n for c in part.itertuples()}
    head = ["method", *(f"{value} (n = {counts[value]})" for value in values)]
    return Table(f"Success in percent by {column}, {shots_title(shot_num)}", head, rows)


def _label_panels(table: pd.DataFrame) -> list[Markup]:
    order = _label_order(table)
    colours = [LABELS.get(label, i % len(figures.PALETTE)) for i, label in enumerate(order)]
    panels = []
    for shot_num, part in table.groupby("shot_num"):
        shares: dict[str, dict[str, float]] = {}
        for row in part.itertuples():
            shares.setdefault(title(row.method, row.dataset_size), {})[row.label] = row.share
        panels.append(figures.bars(shots_title(shot_num), shares, order, colours))
    return panels


def _label_table(table: pd.DataFrame) -> Table:
    order = _label_order(table)
    rows = []
    for (method, size, shot_num), part in table.groupby(["method", "dataset_size", "shot_num"], sort=False):
        counts = dict(zip(part["label"], part["count"], strict=True))
        rows.append([title(str(method), int(size)), shot_num, *(counts.get(label, 0) for label in order)])
    return Table("Plans by label", ["method", "shots", *order], rows)


def _label_order(table: pd.DataFrame) -> list[str]:
    known = list(LABELS)
    return sorted(set(table["label"]), key=lambda label: (known.index(label) if label in LABELS else 9, label))


def _constraint_tables(table: pd.DataFrame) -> list[Table]:
    """At the fewest and at the most shots: success with and without constraints, and plans that break one."""
    tables, asked = [], table[table["constrained"]]
    shots = sorted(asked["shot_num"].unique())
    for shot_num in dict.fromkeys([*shots[:1], *shots[-1:]]):
        success = _success_table(_by_kind(table), "problems", shot_num)
        runs = asked[asked["shot_num"] == shot_num].itertuples()
        broken = [f"{run.safety_violations} ({100 * run.safety_share:.1f} %)" for run in runs]
        caption = f"Success in percent with and without constraints, {shots_title(shot_num)}"
        rows = [[*cells, count] for cells, count in zip(success.rows, broken, strict=True)]
        tables.append(Table(caption, [*success.head, "plans that break a constraint"], rows))
    return tables


def _by_kind(table: pd.DataFrame) -> pd.DataFrame:
    kinds = {True: "with constraints", False: "without constraints"}
    return table.assign(problems=table["constrained"].map(kinds))


def constraints_in(prompt: str) -> str:
    """The constraints of a prompt's last problem on one line, in either style of prompt; empty where it has none."""
    place = prompt.lower().rfind("constraints")
    if place < 0:
        return ""
    text = prompt[place + len("constraints") :]
    depth = 0
    for end, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:  # the bracket that closes `(:constraints`; the compact style has none
            return " ".join(text[:end].split())
    return " ".join(text.strip().removesuffix("plan").split())


def _training_table(metrics: Mapping[str, Mapping[str, Any]]) -> Table | None:
    runs = {path.split("/")[-2]: dict(_flat(values)) for path, values in metrics.items() if TRAINING.match(path)}
    keys = sorted({key for values in runs.values() for key in values})
    rows = [[key, *(_number(values.get(key)) for values in runs.values())] for key in keys]
    return Table("Training in numbers", ["metric", *runs], rows) if rows else None


def _key_values(caption: str, values: Mapping[str, Any]) -> Table | None:
    rows = [[key, _number(value)] for key, value in _flat(values)]
    return Table(caption, ["name", "value"], rows) if rows else None


def _at(table: pd.DataFrame, size: int) -> pd.DataFrame:
    return table[table["dataset_size"].isin([0, size])]


def _problems(frame: pd.DataFrame | None) -> list[str]:
    return [] if frame is None else list(frame.sort_values(["step", "slot"], kind="stable")["id"])


def _by_bucket(name: str) -> tuple[int, Any]:
    return rank("bucket", name.split("/")[-1])


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Leaves of nested metrics by dotted key, sorted."""
    flat: list[tuple[str, Any]] = []
    for key, value in sorted(values.items()):
        flat += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return flat


def _image(svg: str | None) -> str | None:
    """A picture as a data address: what is inside can neither run nor load anything."""
    return svg and f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
