"""Reference plans by Fast Downward, an outside planner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from planward import val
from planward.params import Params
from planward.pddl.generators import GENERATORS, domain_text, problem_text
from planward.pddl.search import SearchLimit, Unsolvable
from planward.records import Label
from planward.tasks.planning.references import reference_plan

SIZES = {"spanners": 3, "nuts": 2, "locations": 4, "blocks": 5}


@pytest.fixture
def fast_downward(small: Callable[..., Params]) -> Params:
    return small(problems={"planner": "fast-downward"})


def written(folder: Path, domain: str, change: tuple[str, str] = ("", "")) -> tuple[Path, Path]:
    domain_file, problem_file = folder / "domain.pddl", folder / "problem.pddl"
    domain_file.write_text(domain_text(domain))
    problem_file.write_text(problem_text(domain, GENERATORS[domain](Random(3), SIZES)).replace(*change))
    return domain_file, problem_file


@pytest.mark.parametrize("domain", ["blocksworld", "spanner"])
def test_fast_downward_finds_plans_that_val_accepts(tmp_path: Path, fast_downward: Params, domain: str) -> None:
    files = written(tmp_path, domain)
    plan = reference_plan(*files, fast_downward.problems)
    assert plan
    assert val.validate(*files, "\n".join(plan)).label == Label.SUCCESS


def test_an_unsolvable_problem_is_said_to_be_one(tmp_path: Path, fast_downward: Params) -> None:
    one_spanner_for_two_nuts = ("(useable spanner1)\n", "")
    files = written(tmp_path, "spanner", one_spanner_for_two_nuts)
    text = files[1].read_text().replace("(useable spanner2)", "")
    files[1].write_text(text)
    with pytest.raises(Unsolvable):
        reference_plan(*files, fast_downward.problems)


def test_a_planner_that_gives_up_is_no_proof(tmp_path: Path, small: Callable[..., Params]) -> None:
    params = small(problems={"planner": "fast-downward", "planner_timeout": 0.001})
    with pytest.raises(SearchLimit, match=r"no plan in 0\.001 s"):
        reference_plan(*written(tmp_path, "blocksworld"), params.problems)


def test_a_file_that_it_cannot_read_is_no_proof_either(tmp_path: Path, fast_downward: Params) -> None:
    files = written(tmp_path, "blocksworld", ("(:goal", "(:gaol"))
    with pytest.raises((SearchLimit, ValueError)) as caught:
        reference_plan(*files, fast_downward.problems)
    assert not isinstance(caught.value, Unsolvable)
