"""Reference plans by Fast Downward."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from planward import val
from planward.core.verdicts import Label
from planward.params import Params
from planward.pddl.search import SearchLimitError, UnsolvableError
from planward.tasks.planning import references
from planward.tasks.planning.domains import GENERATED_DOMAINS, load_domain_text, render_problem
from planward.tasks.planning.references import find_reference_plan

SIZES = {"spanners": 3, "nuts": 2, "locations": 4, "blocks": 5}


@pytest.fixture
def fast_downward(small: Callable[..., Params]) -> Params:
    return small(problems={"planner": "fast-downward"})


def write_files(folder: Path, domain: str, change: tuple[str, str] = ("", "")) -> tuple[Path, Path]:
    domain_file, problem_file = folder / "domain.pddl", folder / "problem.pddl"
    domain_file.write_text(load_domain_text(domain))
    problem_file.write_text(
        render_problem(domain, GENERATED_DOMAINS[domain].generate(Random(3), SIZES)).replace(*change)
    )
    return domain_file, problem_file


@pytest.mark.parametrize("domain", ["blocksworld", "spanner"])
def test_fast_downward_finds_plans_that_val_accepts(tmp_path: Path, fast_downward: Params, domain: str) -> None:
    files = write_files(tmp_path, domain)
    plan = find_reference_plan(*files, fast_downward.problems)
    assert plan
    assert val.validate(*files, "\n".join(plan)).label == Label.SUCCESS


def test_unsolvable_problem_is_reported(tmp_path: Path, fast_downward: Params) -> None:
    one_spanner_for_two_nuts = ("(useable spanner1)\n", "")
    files = write_files(tmp_path, "spanner", one_spanner_for_two_nuts)
    text = files[1].read_text().replace("(useable spanner2)", "")
    files[1].write_text(text)
    with pytest.raises(UnsolvableError):
        find_reference_plan(*files, fast_downward.problems)


def test_timeout_is_not_a_proof(tmp_path: Path, small: Callable[..., Params]) -> None:
    params = small(problems={"planner": "fast-downward", "planner_timeout": 0.001})
    with pytest.raises(SearchLimitError, match=r"no plan in 0\.001 s"):
        find_reference_plan(*write_files(tmp_path, "blocksworld"), params.problems)


def test_a_timeout_ends_the_search_too(
    tmp_path: Path, small: Callable[..., Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, started = tmp_path / "driver.py", tmp_path / "search.pid"
    program = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(60)"
    driver.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {program!r}])\n")
    monkeypatch.setattr(references, "_find_fast_downward", lambda: driver)
    params = small(problems={"planner": "fast-downward", "planner_timeout": 3})
    with pytest.raises(SearchLimitError, match="no plan in 3 s"):
        find_reference_plan(*write_files(tmp_path, "blocksworld"), params.problems)
    state = subprocess.run(["ps", "-o", "stat=", "-p", started.read_text()], capture_output=True, text=True).stdout
    assert state.strip() == "" or state.startswith("Z"), state


def test_unreadable_file_is_not_a_proof(tmp_path: Path, fast_downward: Params) -> None:
    files = write_files(tmp_path, "blocksworld", ("(:goal", "(:gaol"))
    with pytest.raises((SearchLimitError, ValueError)) as error:
        find_reference_plan(*files, fast_downward.problems)
    assert not isinstance(error.value, UnsolvableError)
