"""Two experiments compared: every cell tested, what flipped, how labels moved, what it cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pandas as pd

from planward.experiments.experiment import ECONOMY, Experiment
from planward.experiments.measures import HouseholdMeans, Measure, Success
from planward.experiments.overlap import Overlap, overlap
from planward.records import Label
from planward.reporting.answers import RUN
from planward.reporting.comparison import Uncertainty
from planward.reporting.households import Households
from planward.reporting.names import ALL, ordered
from planward.reporting.sections.elements import flat
from planward.reporting.statistics import holm
from planward.reporting.tables import CELL, Row, result

SAME = "same answers"  # the prediction files are the same in all experiments, so there is nothing to test
TESTED = [*CELL, "seeds", "n", "value_a", "value_a_low", "value_a_high", "value_b", "value_b_low", "value_b_high"]
TESTED += ["lost", "gained", "difference", "ci_low", "ci_high", "interval", "p", "p_holm", "test"]
TESTED += ["detectable_difference", "result"]
SHOWN = ["label", "success", "reward", "plan", "completion", "failing_step", "detail"]  # of an answer, in `answers`
PEAK = "peak_rss_mb"
COST = ("wall_s", "cpu_s", PEAK)


@dataclass(frozen=True)
class Comparison:
    """Experiment b against experiment a; differences are b minus a. Tables of tests have the columns `TESTED`."""

    experiments: tuple[Experiment, Experiment]
    task: str
    by: Uncertainty
    overlap: Overlap
    params: list[Row]  # key, values, stages: of the parameters that differ, by the stages that read them
    code: list[Row]  # path, stages: of the code and data that differ, by the stages that read it
    cells: pd.DataFrame  # success of every run and shot_num, in points of a hundred; Holm over the table
    pooled: pd.DataFrame  # the same over all numbers of worked examples
    rewards: pd.DataFrame  # mean reward, for the economy; else empty
    answers: (
        pd.DataFrame
    )  # both answers to each problem: CELL, seed_a, seed_b, id, domain; of each, `SHOWN` with _a, _b
    labels: pd.DataFrame  # of each run: label, count_a, share_a, count_b, share_b
    transitions: pd.DataFrame  # of each run: label_a, label_b, count
    cost: pd.DataFrame  # by kind of stage: stages_a, wall_s_a, ..., wall_s_b, ..., anew

    @property
    def names(self) -> tuple[str, str]:
        return self.experiments[0].name, self.experiments[1].name

    @property
    def flips(self) -> pd.DataFrame:
        """The answers of which one is a success and the other is not."""
        return self.answers[self.answers["success_a"] != self.answers["success_b"]]


def compared(a: Experiment, b: Experiment, task: str, by: Uncertainty, shots: Collection[int] = ()) -> Comparison:
    """Compare two experiments on what both hold, with `shots` on these numbers of worked examples only.

    Raises:
        PredictionsError: they hold no problem, run or number of worked examples in common.
    """
    common = overlap([a, b], shots)
    success = measures(task, common, by)[0]
    answers = _answers(common)
    return Comparison(
        experiments=(a, b),
        task=task,
        by=by,
        overlap=common,
        params=params_that_differ([a, b]),
        code=code_that_differs([a, b]),
        cells=_tested(common, success, by, pooled=False),
        pooled=_tested(common, success, by, pooled=True) if len(common.shots) > 1 else pd.DataFrame(columns=TESTED),
        rewards=_tested(common, measures(task, common, by)[-1], by, pooled=False)
        if task == ECONOMY
        else pd.DataFrame(columns=TESTED),
        answers=answers,
        labels=_labels(answers),
        transitions=_transitions(answers),
        cost=cost([a, b]),
    )


def measures(task: str, common: Overlap, by: Uncertainty) -> list[Measure]:
    """How a task's answers are compared, success first: of the economy, whole households are resampled."""
    if task != ECONOMY:
        return [Success(by)]
    some = next(iter(common.runs.values()))[0]
    draws = Households(some["household"], by)
    return [
        HouseholdMeans("success", "success", 100.0, draws),
        HouseholdMeans("reward", "reward", 1.0, draws),
    ]


def cells_of(common: Overlap, pooled: bool) -> list[tuple[Row, list[pd.DataFrame]]]:
    """Keys and frames, one an experiment, of every run and shot_num, or of every run with all of them (`all`)."""
    found = []
    for (method, size), frames in common.runs.items():
        for shot_num in [ALL] if pooled else common.shots:
            key: Row = {"method": method, "dataset_size": size, "shot_num": shot_num}
            found.append((key, frames if pooled else [frame[frame["shot_num"] == shot_num] for frame in frames]))
    return found


def params_that_differ(experiments: Sequence[Experiment]) -> list[Row]:
    """Flattened keys of params.yaml whose values are not the same in all, with each value; None where missing.

    `stages` are those behind the predictions that read the key, in any of the experiments.
    """
    leaves = [dict(flat(experiment.revision.params)) for experiment in experiments]
    readers: dict[str, list[str]] = {}
    for experiment in experiments:
        for stage in experiment.stages.values():
            for key in stage.params:
                readers.setdefault(key, []).append(stage.name)
    found = []
    for key in sorted({key for own in leaves for key in own}):
        if any(key not in own or own[key] != leaves[0].get(key) for own in leaves):
            parts = key.split(".")
            prefixes = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
            stages = dict.fromkeys(name for prefix in prefixes for name in readers.get(prefix, ()))
            found.append({"key": key, "values": [own.get(key) for own in leaves], "stages": list(stages)})
    return found


def code_that_differs(experiments: Sequence[Experiment]) -> list[Row]:
    """Code and data from outside the pipeline that are not the same in all, by path, with the stages that read them.

    Of the stages that the predictions come from; a stage that only some have says nothing.
    """
    made = {path for experiment in experiments for path in experiment.revision.outputs}
    found: dict[str, list[str]] = {}
    for name, first in experiments[0].stages.items():
        others = [experiment.stages.get(name) for experiment in experiments[1:]]
        if any(other is None for other in others):
            continue
        inputs = [first.inputs, *(other.inputs for other in others if other)]
        for path in dict.fromkeys(path for own in inputs for path in own):
            if path not in made and len({own.get(path) for own in inputs}) > 1:
                found.setdefault(path, []).append(name)
    return [{"path": path, "stages": stages} for path, stages in sorted(found.items())]


def cost(experiments: Sequence[Experiment]) -> pd.DataFrame:
    """Seconds and memory by kind of stage (what stands before @), of the stages that the predictions come from.

    Seconds are summed over a kind's stages, memory is the largest. `anew` counts the stages whose measurements are not
    the same file in all experiments: the others were not run again, but taken from DVC's cache.
    """
    kinds: dict[str, set[str]] = {}
    for experiment in experiments:
        for stage in experiment.stages:
            if stage in experiment.timing:
                kinds.setdefault(stage.partition("@")[0], set()).add(stage)
    rows = []
    for kind, stages in kinds.items():
        row: Row = {"kind": kind}
        for letter, experiment in zip(letters(len(experiments)), experiments, strict=True):
            own = [experiment.timing[stage] for stage in sorted(stages) if stage in experiment.timing]
            row[f"stages_{letter}"] = len(own)
            for name in COST:
                values = [float(one.get(name, 0.0)) for one in own]
                row[f"{name}_{letter}"] = round(max(values, default=0.0) if name == PEAK else sum(values), 2)
        digests = [{e.timing.get(stage, {}).get("md5") for e in experiments} for stage in stages]
        rows.append(row | {"anew": sum(len(own) > 1 for own in digests)})
    names = [f"{name}_{letter}" for letter in letters(len(experiments)) for name in ("stages", *COST)]
    return pd.DataFrame(rows, columns=["kind", *names, "anew"])


def letters(count: int) -> list[str]:
    """`a`, `b`, ...: what stands for the experiments in names of columns."""
    return [chr(ord("a") + place) for place in range(count)]


def _tested(common: Overlap, measure: Measure, by: Uncertainty, pooled: bool) -> pd.DataFrame:
    """A row a cell: both values, the paired difference, its test, Holm over the table.

    Cells whose prediction files are the same in both are no tests: they have no interval and no p.
    """
    chosen = cells_of(common, pooled)
    values = [measure.rates([frames[side] for _, frames in chosen]) for side in (0, 1)]
    tested = [i for i, (key, _) in enumerate(chosen) if (key["method"], key["dataset_size"]) not in common.same]
    gaps = measure.differences([(chosen[i][1][0], chosen[i][1][1]) for i in tested])
    adjusted = holm([gap["p"] for gap in gaps])
    tests = {
        i: gap | {"p_holm": p, "result": result(p, gap["difference"], 1 - by.confidence)}
        for i, gap, p in zip(tested, gaps, adjusted, strict=True)
    }
    rows = []
    for i, (key, (a, b)) in enumerate(chosen):
        row = key | {"seeds": values[0][i]["seeds"], "n": values[0][i]["n"]}
        for letter, value in (("a", values[0][i]), ("b", values[1][i])):
            row |= {f"value_{letter}": value["value"]}
            row |= {f"value_{letter}_low": value["ci_low"], f"value_{letter}_high": value["ci_high"]}
        solved = a["success"].to_numpy(bool), b["success"].to_numpy(bool)
        row |= {"lost": int((solved[0] & ~solved[1]).sum()), "gained": int((~solved[0] & solved[1]).sum())}
        rows.append(row | tests.get(i, {"difference": 0.0, "result": SAME}))
    return pd.DataFrame(rows, columns=TESTED)


def _answers(common: Overlap) -> pd.DataFrame:
    """Both answers to every problem beside each other, of the runs whose predictions differ."""
    blocks = []
    for run, (a, b) in common.runs.items():
        if run not in common.same:
            sides = [frame[["seed", *SHOWN]].add_suffix(f"_{letter}") for letter, frame in (("a", a), ("b", b))]
            blocks.append(pd.concat([a[[*CELL, "id", "domain"]], *sides], axis=1))
    columns = [*CELL, "id", "domain", *(f"{name}_{letter}" for letter in "ab" for name in ("seed", *SHOWN))]
    return pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=columns)


def _labels(answers: pd.DataFrame) -> pd.DataFrame:
    """How often each run's answers got each label in both, over all seeds and numbers of worked examples."""
    columns = [*RUN, "label", "count_a", "share_a", "count_b", "share_b"]
    rows = []
    for (method, size), own in answers.groupby(RUN, sort=False):
        for label in sorted({*own["label_a"], *own["label_b"]}, key=label_rank):
            row: Row = {"method": method, "dataset_size": size, "label": label}
            for letter in "ab":
                got = own[f"label_{letter}"] == label
                row |= {f"count_{letter}": int(got.sum()), f"share_{letter}": float(got.mean())}
            rows.append(row)
    return pd.DataFrame(rows, columns=columns)


def _transitions(answers: pd.DataFrame) -> pd.DataFrame:
    """How often an answer with one label has another in b, by run, over all seeds and numbers of worked examples."""
    keys = [*RUN, "label_a", "label_b"]
    counts = answers.groupby(keys, sort=False).size().rename("count").reset_index()
    return ordered(counts, RUN) if len(counts) else pd.DataFrame(columns=[*keys, "count"])


def label_rank(label: str) -> tuple[int, str]:
    """A sorting key: planning's labels in their own order, others after them by name."""
    known = [each.value for each in Label]
    return (known.index(label) if label in known else len(known), label)
