"""Comparison of two experiments: tests of every cell, flipped problems, labels, and cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from string import ascii_lowercase
from typing import Any

import pandas as pd

from planward.analysis.cells import Uncertainty
from planward.analysis.names import ALL, sort_rows
from planward.analysis.statistics import adjust_p_values
from planward.analysis.success_arrays import RUN
from planward.analysis.tables import CELL, Row, classify_result
from planward.comparison.experiment import Experiment, Subject
from planward.comparison.measures import Measure, build_measures
from planward.comparison.overlap import Overlap, find_overlap
from planward.comparison.revisions import format_param_key
from planward.core.verdicts import Label

SAME = "same answers"  # the prediction files are the same in all experiments, so there is nothing to test
TESTED = [*CELL, "seeds", "n", "value_a", "value_a_low", "value_a_high", "value_b", "value_b_low", "value_b_high"]
TESTED += ["lost", "gained", "difference", "ci_low", "ci_high", "interval", "p", "p_holm", "test"]
TESTED += ["detectable_difference", "result"]
ANSWER_COLUMNS = ["label", "success", "reward", "plan", "completion", "failing_step", "detail"]
PEAK = "peak_rss_mb"
COST = ("wall_s", "cpu_s", PEAK)


@dataclass(frozen=True)
class Comparison:
    """Experiment b against experiment a; differences are b minus a. Tables of tests have the columns `TESTED`."""

    experiments: tuple[Experiment, Experiment]
    subject: Subject
    uncertainty: Uncertainty
    overlap: Overlap
    params: list[Row]  # see `find_param_changes`
    code: list[Row]  # see `find_code_changes`
    cells: pd.DataFrame  # success of every run and shot_num, in points; Holm over the table
    pooled: pd.DataFrame  # the same over all numbers of worked examples
    rewards: pd.DataFrame  # mean reward, of subjects with a resampling unit; else empty
    # Both predictions on each problem: CELL, seed_a, seed_b, id, domain; of each, `ANSWER_COLUMNS` with _a, _b.
    answers: pd.DataFrame
    labels: pd.DataFrame  # of each run: label, count_a, share_a, count_b, share_b
    transitions: pd.DataFrame  # of each run: label_a, label_b, count
    cost: pd.DataFrame  # by family of stages: stages_a, wall_s_a, ..., wall_s_b, ..., anew

    @property
    def names(self) -> tuple[str, str]:
        return self.experiments[0].name, self.experiments[1].name

    @property
    def flips(self) -> pd.DataFrame:
        """The rows of `answers` where one is a success and the other is not."""
        return self.answers[self.answers["success_a"] != self.answers["success_b"]]


def compare(
    a: Experiment, b: Experiment, subject: Subject, uncertainty: Uncertainty, shot_nums: Collection[int] = ()
) -> Comparison:
    """Compare two experiments on what both hold, on these numbers of worked examples only if there are any.

    Raises:
        PredictionsError: they hold no problem, run or number of worked examples in common.
    """
    overlap = find_overlap([a, b], shot_nums, subject.resampling_unit)
    success, *others = build_measures(subject, overlap, uncertainty)
    empty, answers = pd.DataFrame(columns=TESTED), _pair_answers(overlap)
    several = len(overlap.shot_nums) > 1
    return Comparison(
        experiments=(a, b),
        subject=subject,
        uncertainty=uncertainty,
        overlap=overlap,
        params=find_param_changes([a, b]),
        code=find_code_changes([a, b]),
        cells=_test_cells(overlap, success, uncertainty, is_pooled=False),
        pooled=_test_cells(overlap, success, uncertainty, is_pooled=True) if several else empty,
        rewards=_test_cells(overlap, others[0], uncertainty, is_pooled=False) if others else empty,
        answers=answers,
        labels=_count_labels(answers),
        transitions=_count_transitions(answers),
        cost=compute_cost([a, b]),
    )


def list_cells(overlap: Overlap, pooled: bool) -> list[tuple[Row, list[pd.DataFrame]]]:
    """Keys and frames, one an experiment, of every run and shot_num, or of every run with all of them (`all`)."""
    cells = []
    for (method, size), frames in overlap.runs.items():
        for shot_num in [ALL] if pooled else overlap.shot_nums:
            key: Row = {"method": method, "dataset_size": size, "shot_num": shot_num}
            cells.append((key, frames if pooled else [frame[frame["shot_num"] == shot_num] for frame in frames]))
    return cells


def find_param_changes(experiments: Sequence[Experiment]) -> list[Row]:
    """Find the parameters whose values differ: key, values (None where missing), stages.

    `stages` are those behind the predictions that read the key, in any of the experiments.
    """
    params = [experiment.revision.flat_params for experiment in experiments]
    readers: dict[str, list[str]] = {}
    for experiment in experiments:
        for stage in experiment.stages.values():
            for file, values in stage.params.items():
                for key in values:
                    readers.setdefault(format_param_key(file, key), []).append(stage.name)
    changes = []
    for key in sorted({key for values in params for key in values}):
        if any(key not in values or values[key] != params[0].get(key) for values in params):
            parts = key.split(".")
            keys = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
            keys += _list_changed_elements(key, [values.get(key) for values in params])
            stages = dict.fromkeys(name for read_key in keys for name in readers.get(read_key, ()))
            changes.append({"key": key, "values": [values.get(key) for values in params], "stages": list(stages)})
    return changes


def _list_changed_elements(key: str, values: Sequence[Any]) -> list[str]:
    """The keys of the elements that differ, KEY.INDEX: a stage may read one of a list."""
    lists = [value if isinstance(value, list) else [] for value in values]
    return [
        f"{key}.{index}"
        for index, elements in enumerate(zip_longest(*lists))
        if any(element != elements[0] for element in elements)
    ]


def find_code_changes(experiments: Sequence[Experiment]) -> list[Row]:
    """Find the inputs from outside the pipelines that differ: path, and the stages that read it.

    Of the stages that the predictions depend on; a stage that only some experiments have is left out.
    """
    outputs = {path for experiment in experiments for path in experiment.revision.outputs}
    changes: dict[str, list[str]] = {}
    for name, first in experiments[0].stages.items():
        others = [experiment.stages.get(name) for experiment in experiments[1:]]
        if any(other is None for other in others):
            continue
        inputs = [first.inputs, *(other.inputs for other in others if other)]
        for path in dict.fromkeys(path for digests in inputs for path in digests):
            if path not in outputs and len({digests.get(path) for digests in inputs}) > 1:
                changes.setdefault(path, []).append(name)
    return [{"path": path, "stages": stages} for path, stages in sorted(changes.items())]


def compute_cost(experiments: Sequence[Experiment]) -> pd.DataFrame:
    """Compute seconds and memory by family of stages, of the stages that the predictions depend on.

    Seconds are summed over a family's stages, memory is the largest. `anew` counts the stages whose timing files
    differ between experiments: the others were not run again, but taken from DVC's cache.
    """
    families: dict[str, set[str]] = {}
    for experiment in experiments:
        for stage in experiment.stages.values():
            if stage.name in experiment.timing:
                families.setdefault(stage.family, set()).add(stage.name)
    letters = list_letters(len(experiments))
    rows = []
    for family, stages in families.items():
        row: Row = {"kind": family}
        for letter, experiment in zip(letters, experiments, strict=True):
            timing = [experiment.timing[stage] for stage in sorted(stages) if stage in experiment.timing]
            row[f"stages_{letter}"] = len(timing)
            for name in COST:
                values = [float(figures.get(name, 0.0)) for figures in timing]
                row[f"{name}_{letter}"] = round(max(values, default=0.0) if name == PEAK else sum(values), 2)
        digests = [{e.timing.get(stage, {}).get("md5") for e in experiments} for stage in stages]
        rows.append(row | {"anew": sum(len(distinct) > 1 for distinct in digests)})
    names = [f"{name}_{letter}" for letter in letters for name in ("stages", *COST)]
    return pd.DataFrame(rows, columns=["kind", *names, "anew"])


def list_letters(count: int) -> list[str]:
    """`a`, `b`, ..., `z`, `aa`, ...: the experiments in names of columns."""
    return ["".join(letters) for length in (1, 2) for letters in product(ascii_lowercase, repeat=length)][:count]


def sort_labels(labels: Collection[str]) -> list[str]:
    """Sort labels: planning's in their own order, others after them by name."""
    order = [label.value for label in Label]
    return sorted(labels, key=lambda label: (order.index(label) if label in order else len(order), label))


def _test_cells(overlap: Overlap, measure: Measure, uncertainty: Uncertainty, is_pooled: bool) -> pd.DataFrame:
    """A row a cell: both values, the paired difference, its test, Holm over the table.

    Cells whose prediction files are the same in both are not tested: they have no interval and no p.
    """
    cells = list_cells(overlap, is_pooled)
    values = [measure.compute_rates([frames[side] for _, frames in cells]) for side in (0, 1)]
    indices = [i for i, (key, _) in enumerate(cells) if (key["method"], key["dataset_size"]) not in overlap.identical]
    differences = measure.compute_differences([(cells[i][1][0], cells[i][1][1]) for i in indices])
    adjusted_p_values = adjust_p_values([difference["p"] for difference in differences])
    tests = {
        i: gap | {"p_holm": p, "result": classify_result(p, gap["difference"], 1 - uncertainty.confidence)}
        for i, gap, p in zip(indices, differences, adjusted_p_values, strict=True)
    }
    rows = []
    for i, (key, (a, b)) in enumerate(cells):
        row = key | {"seeds": values[0][i]["seeds"], "n": values[0][i]["n"]}
        for letter, value in (("a", values[0][i]), ("b", values[1][i])):
            row |= {f"value_{letter}": value["value"]}
            row |= {f"value_{letter}_low": value["ci_low"], f"value_{letter}_high": value["ci_high"]}
        success_a, success_b = a["success"].to_numpy(bool), b["success"].to_numpy(bool)
        row |= {"lost": int((success_a & ~success_b).sum()), "gained": int((~success_a & success_b).sum())}
        rows.append(row | tests.get(i, {"difference": 0.0, "result": SAME}))
    return pd.DataFrame(rows, columns=TESTED)


def _pair_answers(overlap: Overlap) -> pd.DataFrame:
    """Both predictions on every problem side by side, of the runs whose predictions differ."""
    blocks = []
    for run, (a, b) in overlap.runs.items():
        if run not in overlap.identical:
            sides = [
                frame[["seed", *ANSWER_COLUMNS]].add_suffix(f"_{letter}") for letter, frame in (("a", a), ("b", b))
            ]
            blocks.append(pd.concat([a[[*CELL, "id", "domain"]], *sides], axis=1))
    columns = [*CELL, "id", "domain", *(f"{name}_{letter}" for letter in "ab" for name in ("seed", *ANSWER_COLUMNS))]
    return pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=columns)


def _count_labels(answers: pd.DataFrame) -> pd.DataFrame:
    """Count each run's labels in both, over all seeds and numbers of worked examples."""
    columns = [*RUN, "label", "count_a", "share_a", "count_b", "share_b"]
    rows = []
    for (method, size), group in answers.groupby(RUN, sort=False):
        for label in sort_labels({*group["label_a"], *group["label_b"]}):
            row: Row = {"method": method, "dataset_size": size, "label": label}
            for letter in "ab":
                matches = group[f"label_{letter}"] == label
                row |= {f"count_{letter}": int(matches.sum()), f"share_{letter}": float(matches.mean())}
            rows.append(row)
    return pd.DataFrame(rows, columns=columns)


def _count_transitions(answers: pd.DataFrame) -> pd.DataFrame:
    """Count pairs of labels in a and b, by run, over all seeds and numbers of worked examples."""
    keys = [*RUN, "label_a", "label_b"]
    counts = answers.groupby(keys, sort=False).size().rename("count").reset_index()
    return sort_rows(counts, RUN) if len(counts) else pd.DataFrame(columns=[*keys, "count"])
