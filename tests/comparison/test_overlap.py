"""What several experiments can be compared on, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_diff import build_experiment, build_prediction

from planward.analysis.outcomes import PredictionsError
from planward.comparison.experiment import Experiment
from planward.comparison.overlap import find_overlap
from planward.core.records import Record
from planward.core.runs import BASE, Run

SFT, GRPO = Run("sft", 100, 1), Run("grpo", 100, 1)


def build(
    name: str,
    runs: Sequence[Run] = (GRPO,),
    problems: Iterable[int] = range(3),
    shot_nums: Sequence[int] = (0, 1),
    households: int = 0,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row,
) -> Experiment:
    """An experiment whose rows are in another order than those of an experiment with another length of name."""
    ids = sorted(problems)
    rows = [
        change(build_prediction(run, i, k, i % 2 == 0, seed=run.seed or 3407))
        for run in runs
        for k in shot_nums
        for i in ids
    ]
    return build_experiment(name, rows if len(name) % 2 else rows[::-1], households)


def list_rows(experiment: Any) -> list[tuple[int, int, str]]:
    return list(zip(experiment["seed"], experiment["shot_num"], experiment["id"], strict=True))


def test_everything_is_compared_where_all_hold_the_same() -> None:
    runs = [SFT, Run("sft", 100, 2), GRPO, Run("grpo", 100, 2), BASE]
    overlap = find_overlap([build("a", runs), build("bb", runs), build("ccc", runs)])
    assert (overlap.problems, overlap.shot_nums, overlap.notes) == (["p00", "p01", "p02"], [0, 1], [])
    assert list(overlap.runs) == [("base", 0), ("sft", 100), ("grpo", 100)]  # in the order of every table
    assert overlap.seeds == {("base", 0): [[]] * 3, ("sft", 100): [[1, 2]] * 3, ("grpo", 100): [[1, 2]] * 3}
    assert (overlap.identical, overlap.partial, overlap.training_seeds) == (set(), {}, [1, 2])
    for run, frames in overlap.runs.items():
        seeds = [0] if run == ("base", 0) else [1, 2]  # an untrained run has no seed of its own
        expected = [(seed, k, f"p{i:02}") for seed in seeds for k in (0, 1) for i in range(3)]
        assert [list_rows(frame) for frame in frames] == [expected] * 3
        assert all(list(frame.index) == list(range(len(expected))) for frame in frames)
        assert all(set(frame["method"]) == {run[0]} for frame in frames)


def test_only_common_problems_are_compared() -> None:
    overlap = find_overlap([build("a", problems=range(4)), build("b", problems=range(2, 6))])
    assert overlap.problems == ["p02", "p03"]
    assert overlap.notes == ["Different test problems: a has 4, b has 4, 2 are in common; only those are compared."]
    assert all(set(frame["id"]) == {"p02", "p03"} for frame in overlap.runs["grpo", 100])
    with pytest.raises(PredictionsError) as error:
        find_overlap([build("a"), build("b", problems=range(5, 7))])
    assert str(error.value) == (
        "no test problem is the same in all of them. Different test problems: a has 3, b has 2, 0 are in common; "
        "only those are compared. See `seed`, `problems` and `split`."
    )


def alter_prompts(*ids: str, shot_num: int | None = None) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        is_altered = row["id"] in ids and shot_num in (None, row["shot_num"])
        return row | {"prompt": f"another {row['prompt']}"} if is_altered else row

    return change


def test_problems_of_one_id_and_two_texts_are_left_out() -> None:
    change = alter_prompts("p00", "p02")
    overlap = find_overlap([build("a", problems=range(4)), build("b", problems=range(4), change=change)])
    assert overlap.problems == ["p01", "p03"]
    assert overlap.notes == ["Same id but another text, so another problem and left out: p00, p02 (2 in all)."]
    assert all(set(frame["id"]) == {"p01", "p03"} for frame in overlap.runs["grpo", 100])
    with pytest.raises(PredictionsError, match=r"left out: p00, p01, p02 \(3 in all\)\. See `seed`"):
        find_overlap([build("a"), build("b", change=alter_prompts("p00", "p01", "p02"))])


def test_prompts_with_worked_examples_say_nothing_about_the_problem() -> None:
    overlap = find_overlap([build("a"), build("b", change=alter_prompts("p00", shot_num=1))])
    assert overlap.problems == ["p00", "p01", "p02"]
    overlap = find_overlap([build("a", shot_nums=[1]), build("b", shot_nums=[1], change=alter_prompts("p00"))])
    assert overlap.problems == ["p00", "p01", "p02"]


def test_problem_files_decide_where_all_experiments_hold_them() -> None:
    """Prompts may be rendered in another way; the problem is the same."""
    a, b = build("a", households=2), build("b", households=2, change=alter_prompts("p00"))
    assert find_overlap([a, b]).problems == ["p00", "p01", "p02"]
    record = b.problems["p01"].model_copy(update={"prompt": "another problem"})
    other = replace(b, problems={**b.problems, "p01": record})
    assert find_overlap([a, other]).problems == ["p00", "p02"]
    assert find_overlap([replace(a, problems={}), other]).problems == ["p01", "p02"]
    without = replace(other, problems={key: value for key, value in other.problems.items() if key != "p01"})
    assert find_overlap([a, without]).problems == ["p00", "p01", "p02"]  # one file does not hold it


def test_only_common_numbers_of_worked_examples_are_compared() -> None:
    a, b = build("a", shot_nums=[2, 0, 4]), build("b", shot_nums=[4, 1, 2])
    overlap = find_overlap([a, b])
    assert overlap.shot_nums == [2, 4]
    assert overlap.notes == [
        "Different numbers of worked examples: a has 0, 2, 4; b has 1, 2, 4; only 2, 4 are compared."
    ]
    assert all(set(frame["shot_num"]) == {2, 4} for frame in overlap.runs["grpo", 100])
    selection = find_overlap([a, b], [4])
    assert (selection.shot_nums, selection.notes) == ([4], [])
    assert all(set(frame["shot_num"]) == {4} for frame in selection.runs["grpo", 100])
    with pytest.raises(PredictionsError, match=r"\(a has 0, 2, 4; b has 1, 2, 4\)"):
        find_overlap([a, b], [4, 9])
    for shot_nums in ((), [0]):
        with pytest.raises(PredictionsError) as error:
            find_overlap([a, build("b", shot_nums=[1])], shot_nums)
        assert str(error.value) == "no such number of worked examples is in all of them (a has 0, 2, 4; b has 1)"


def test_runs_that_some_experiments_lack_are_partial() -> None:
    a, b, c = build("a", [BASE, SFT, GRPO]), build("b", [GRPO, SFT]), build("c", [SFT, BASE])
    overlap = find_overlap([a, b, c])
    assert list(overlap.runs) == [("sft", 100)]
    assert overlap.partial == {("base", 0): ["a", "c"], ("grpo", 100): ["a", "b"]}
    assert overlap.notes == []
    with pytest.raises(PredictionsError) as error:
        find_overlap([a, b, build("c", [Run("sft", 200, 1), BASE])])
    names = "a: base, SFT, N = 100, GRPO, N = 100; b: SFT, N = 100, GRPO, N = 100; c: base, SFT, N = 200"
    assert str(error.value) == f"no method and N is in all of them ({names})"


def test_runs_with_the_same_files_are_identical() -> None:
    a, b, c = (build(name, [BASE, SFT, GRPO]) for name in "abc")
    b = replace(b, digests=b.digests | {run: a.digests[run] for run in (BASE, SFT)})
    c = replace(c, digests=c.digests | {run: a.digests[run] for run in (BASE, GRPO)})
    assert find_overlap([a, b]).identical == {("base", 0), ("sft", 100)}
    assert find_overlap([a, b, c]).identical == {("base", 0)}


def test_a_run_is_identical_by_the_seeds_that_are_compared() -> None:
    two = [Run("grpo", 100, 1), Run("grpo", 100, 2)]
    a, b = build("a", two), build("b", two)
    b = replace(b, digests=b.digests | {two[0]: a.digests[two[0]]})
    assert find_overlap([a, b]).identical == set()
    assert find_overlap([a, build("b", two[:1])]).identical == set()
    one = replace(build("b", two[:1]), digests={two[0]: a.digests[two[0]]})
    assert find_overlap([a, one]).identical == {("grpo", 100)}


def test_common_seeds_are_compared() -> None:
    a = build("a", [Run(method, 100, seed) for method in ("sft", "grpo") for seed in (3, 1, 2)])
    b = build("b", [Run(method, 100, seed) for method in ("sft", "grpo") for seed in (2, 3, 4)])
    overlap = find_overlap([a, b])
    assert overlap.seeds == {("sft", 100): [[2, 3], [2, 3]], ("grpo", 100): [[2, 3], [2, 3]]}
    assert overlap.notes == ["Different seeds (a has 1, 2, 3; b has 2, 3, 4): only 2, 3 are compared."]  # once
    assert [set(frame["seed"]) for frame in overlap.runs["sft", 100]] == [{2, 3}, {2, 3}]
    assert overlap.training_seeds == [2, 3]


def test_different_seeds_are_paired_in_order() -> None:
    a, b = build("a", [Run("grpo", 100, seed) for seed in (5, 1, 3)]), build("b", [Run("grpo", 100, 2), BASE])
    overlap = find_overlap([a, b])
    assert overlap.seeds == {("grpo", 100): [[1], [2]]}
    assert overlap.notes == ["Different seeds (a has 1, 3, 5; b has 2): the first 1 of each are compared, in order."]
    assert [set(frame["seed"]) for frame in overlap.runs["grpo", 100]] == [{1}, {2}]
    assert overlap.training_seeds == []


def test_training_seeds_leave_out_untrained_runs() -> None:
    assert find_overlap([build("a", [BASE, SFT]), build("b", [BASE, SFT])]).training_seeds == [1]
    assert find_overlap([build("a", [BASE]), build("b", [BASE])]).training_seeds == []


def test_clusters_are_added_from_the_problems() -> None:
    a, b = build("a", problems=range(4), households=2), build("b", problems=range(4), households=2)
    overlap = find_overlap([a, b], cluster="household")
    for frame in overlap.runs["grpo", 100]:
        assert list(frame["household"]) == ["0", "1", "0", "1"] * 2
    assert "household" not in find_overlap([a, b]).runs["grpo", 100][0]
    problems: dict[str, Record] = dict(a.problems)
    del problems["p03"]
    frame, _ = find_overlap([replace(a, problems=problems), b], cluster="household").runs["grpo", 100]
    assert list(frame["household"]) == ["0", "1", "0", "None"] * 2


def test_other_worked_examples_are_noted() -> None:
    def change(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"shot_ids": ["other"]} if row["shot_num"] and row["id"] != "p00" else row

    runs = [BASE, SFT, GRPO]

    def change_sft(row: dict[str, Any]) -> dict[str, Any]:
        return change(row) if row["method"] == "sft" else row

    a, b, c = build("a", runs), build("b", runs, change=change), build("c", runs, change=change_sft)
    assert find_overlap([a, b, c, build("d", runs)]).notes == [
        "a and b show other worked examples in 6 of 18 prompts of base, SFT, N = 100, GRPO, N = 100.",
        "a and c show other worked examples in 2 of 6 prompts of SFT, N = 100.",
    ]
