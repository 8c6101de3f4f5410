"""Prediction files read into one frame: which files, which rows, and what makes them incomparable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planward.analysis.outcomes import (
    COLUMNS,
    PredictionsError,
    check_constraints,
    check_seeds,
    join_outcomes,
    list_prediction_files,
    parse_outcomes,
    parse_run,
    read_outcomes,
)
from planward.core.files import write_json, write_jsonl
from planward.core.registry import load_params
from planward.core.runs import BASE, SELECTORS, Run
from planward.params import Params
from support import ROOT

SFT, GRPO = Run("sft", 200, 7), Run("grpo", 200, 7)


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(root=ROOT).model_copy(update={"dataset_sizes": [200], "seeds": [7, 8]})


def build_row(run: Run, i: int, shot_num: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"p{i}",
        "domain": "ferry",
        "bucket": "easy",
        "score": 20.0 + i,
        "constrained": i == 1,
        "method": run.method,
        "dataset_size": run.size,
        "seed": run.seed or 3407,  # an untrained run's rows hold the seed of the data
        "shot_num": shot_num,
        "shot_ids": [f"t{k}" for k in range(shot_num)],
        "prompt": "",
        "completion": "",
        "plan": "",
        "label": "success_plans" if i else "plan_format_error",
        "success": bool(i),
        "reward": 1.0 if i else -1.0,
        "detail": "",
        "plan_size": 1,
        "failing_step": None,
        "goals_satisfied": None,
        "goals_total": None,
    } | changes


def build_rows(run: Run, problems: int = 3, shot_nums: tuple[int, ...] = (0, 2)) -> list[dict[str, Any]]:
    return [build_row(run, i, k) for k in shot_nums for i in range(problems)]


def render_lines(rows: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in rows]


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(run: Run, rows: list[dict[str, Any]] | None = None, of: Run | None = None) -> Path:
        path = tmp_path / f"{run.name}.jsonl"
        write_jsonl(path, build_rows(run) if rows is None else rows)
        write_json(path.with_suffix(".json"), {"run": (of or run).as_dict("planning")})
        return path

    return write


def test_files_are_those_that_the_parameters_ask_for(write: Write, tmp_path: Path, params: Params) -> None:
    paths = [write(run) for run in (BASE, GRPO, SFT)]
    write(Run("sft", 400, 7))
    write(Run("sft", 200, 9))
    write(Run("pointer-sft", 200, 7))
    write(Run("grpo", 200, 8)).unlink()  # evaluated no more: only its RUN.json is left
    assert list_prediction_files(tmp_path, params) == dict(zip(paths, [BASE, GRPO, SFT], strict=True))
    selector_files = list_prediction_files(tmp_path, params, SELECTORS)
    assert list(selector_files.values()) == [Run("pointer-sft", 200, 7)]


def test_rows_of_all_files_are_read(write: Write, tmp_path: Path, params: Params) -> None:
    for run in (BASE, GRPO, SFT):
        write(run)
    outcomes = read_outcomes(tmp_path, params)
    assert list(outcomes.columns) == COLUMNS
    assert list(outcomes.index) == list(range(18))
    assert list(outcomes["method"]) == ["base"] * 6 + ["grpo"] * 6 + ["sft"] * 6
    expected = [{name: row[name] for name in COLUMNS} for run in (BASE, GRPO, SFT) for row in build_rows(run)]
    assert outcomes.to_dict("records") == expected
    with pytest.raises(PredictionsError, match="no predictions of a run that params"):
        read_outcomes(tmp_path, params, ["pointer-sft"])


def test_methods_choose_the_files(write: Write, tmp_path: Path, params: Params) -> None:
    write(SFT)
    write(Run("oracle", 0, 0))
    assert set(read_outcomes(tmp_path, params, SELECTORS)["method"]) == {"oracle"}


def test_folder_without_predictions_names_the_fix(tmp_path: Path, params: Params) -> None:
    with pytest.raises(PredictionsError) as error:
        read_outcomes(tmp_path, params)
    assert str(error.value) == (
        f"{tmp_path}: no predictions of a run that params.yaml asks for; fix: run `evaluate` first"
    )


def test_file_of_another_run_is_named(write: Write, tmp_path: Path, params: Params) -> None:
    path = write(GRPO, of=SFT)
    with pytest.raises(PredictionsError) as error:
        read_outcomes(tmp_path, params)
    assert str(error.value) == f"{path}: holds predictions of grpo-200-7, not of sft-200-7"


def test_columns_may_be_others() -> None:
    frame = parse_outcomes("f", render_lines(build_rows(SFT)), columns=[*COLUMNS, "reward"])
    assert list(frame.columns) == [*COLUMNS, "reward"]
    assert list(frame["reward"]) == [-1.0, 1.0, 1.0] * 2


@pytest.mark.parametrize("run", [None, BASE])
def test_rows_of_an_untrained_run_hold_the_seed_of_the_data(run: Run | None) -> None:
    assert len(parse_outcomes("f", render_lines(build_rows(BASE)), run)) == 6


@pytest.mark.parametrize(
    ("rows", "run", "message"),
    [
        ([], None, "f: holds no predictions"),
        ([*build_rows(SFT), *build_rows(GRPO)], None, "f: holds predictions of grpo-200-7, sft-200-7, not of one run"),
        ([*build_rows(SFT), *build_rows(GRPO)], SFT, "f: holds predictions of grpo-200-7, sft-200-7, not of sft-200-7"),
        (build_rows(SFT), Run("sft", 200, 8), "f: holds predictions of sft-200-7, not of sft-200-8"),
        (
            [*build_rows(SFT), build_row(SFT, 1, 2), build_row(SFT, 0, 0)],
            None,
            "f: 2 duplicated rows (same id and shot_num), such as 'p1' with 2 shots",
        ),
    ],
)
def test_rows_that_do_not_belong_together(rows: list[dict[str, Any]], run: Run | None, message: str) -> None:
    with pytest.raises(PredictionsError) as error:
        parse_outcomes("f", render_lines(rows), run)
    assert str(error.value) == message


def test_damaged_line_is_named() -> None:
    lines = render_lines(build_rows(SFT))
    with pytest.raises(PredictionsError, match=r"(?s)^f: line 3 is no prediction: .*Invalid JSON") as error:
        parse_outcomes("f", [*lines[:2], lines[2][:-1], *lines[3:]])
    assert error.value.__suppress_context__
    with pytest.raises(PredictionsError, match=r"(?s)^f: line 1 is no prediction: .*label\n"):
        parse_outcomes("f", render_lines([{key: value for key, value in build_row(SFT, 0).items() if key != "label"}]))


def test_run_of_a_file_is_that_of_its_first_line() -> None:
    assert parse_run("f", json.dumps(build_row(GRPO, 0))) == GRPO
    assert parse_run("f", json.dumps(build_row(BASE, 0)).encode()) == BASE
    with pytest.raises(PredictionsError) as error:
        parse_run("f", b"")
    assert str(error.value) == "f: holds no predictions"
    with pytest.raises(PredictionsError, match=r"(?s)^f: line 1 is no prediction: .*Invalid JSON"):
        parse_run("f", b"{")


def parse(run: Run, rows: list[dict[str, Any]]) -> Any:
    return parse_outcomes(run.name, render_lines(rows))


@pytest.mark.parametrize(
    ("changes", "number", "example"),
    [
        ({"problems": 2}, 2, "'p2' with 0 shots"),
        ({"problems": 4}, 2, "'p3' with 0 shots"),
        ({"shot_nums": (2,)}, 3, "'p0' with 0 shots"),
        ({"shot_nums": (0, 2, 4)}, 3, "'p0' with 4 shots"),
    ],
)
def test_files_must_answer_the_same_problems(changes: dict[str, Any], number: int, example: str) -> None:
    same = {"a": parse(BASE, build_rows(BASE)), "b": parse(SFT, build_rows(SFT)[::-1])}
    assert len(join_outcomes(same)) == 12
    with pytest.raises(PredictionsError) as error:
        join_outcomes(same | {"c": parse(GRPO, build_rows(GRPO, **changes))})
    assert str(error.value) == (
        f"a and c do not answer the same problems: {number} pairs of problem and shot_num are in one of them only, "
        f"such as {example}; fix: evaluate both on the same test split"
    )


def test_trained_methods_must_have_the_same_seeds() -> None:
    runs = [BASE, SFT, GRPO, Run("sft", 200, 8), Run("grpo", 200, 8)]
    frames = {run.name: parse(run, build_rows(run)) for run in runs}
    check_seeds(join_outcomes(frames), "folder")
    del frames["grpo-200-8"]
    with pytest.raises(PredictionsError) as error:
        check_seeds(join_outcomes(frames), "folder")
    assert str(error.value) == (
        "folder: no grpo-200-8.jsonl, but others have this seed; fix: evaluate it, or take the seed out of `seeds`"
    )
    frames["grpo-1-8"] = parse(Run("grpo", 1, 8), build_rows(Run("grpo", 1, 8)))  # another size is another run
    with pytest.raises(PredictionsError, match=r"folder: no grpo-1-7\.jsonl"):
        check_seeds(join_outcomes(frames), "folder")


def test_files_must_agree_on_constraints(write: Write, tmp_path: Path, params: Params) -> None:
    check_constraints(join_outcomes({"a": parse(SFT, build_rows(SFT)), "b": parse(GRPO, build_rows(GRPO))}), "folder")
    write(SFT)
    write(GRPO, [row | {"constrained": row["id"] != "p0"} for row in build_rows(GRPO)])
    with pytest.raises(PredictionsError) as error:
        read_outcomes(tmp_path, params)
    assert str(error.value) == (
        f"{tmp_path}: the files do not agree on whether problem 'p2' has safety constraints; "
        "fix: evaluate every model on the same test split"
    )


def test_folder_is_checked_for_missing_seeds(write: Write, tmp_path: Path, params: Params) -> None:
    for run in (SFT, GRPO, Run("sft", 200, 8)):
        write(run)
    with pytest.raises(PredictionsError, match=rf"^{tmp_path}: no grpo-200-8\.jsonl"):
        read_outcomes(tmp_path, params)
    write(Run("grpo", 200, 8), build_rows(Run("grpo", 200, 8), problems=2))
    with pytest.raises(PredictionsError, match=r"grpo-200-7\.jsonl and .*grpo-200-8\.jsonl do not answer the same"):
        read_outcomes(tmp_path, params)
