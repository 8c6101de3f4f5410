"""Problems of benchmarks, in the layouts that their users have, through problems, split and score."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkouts import build_problem_texts, write_checkout, write_config
from planward.params import ParamsError
from planward.stages import problems, score, split
from planward.tasks.planning.config import PlanningParams
from planward.tasks.planning.domains import load_domain_text
from support import read_rows

Small = Callable[..., PlanningParams]
FILES = ("train", "validation", "test", "held_out")


def read_accepted(folder: str = "split") -> list[dict[str, Any]]:
    return [row for name in FILES for row in read_rows(Path(f"results/{folder}/{name}.jsonl"))]


def read_reasons() -> Counter[str]:
    """Reasons in quarantine, up to their first colon, with the instance."""
    rows = read_rows(Path("results/split/quarantine.jsonl"))
    return Counter(f"{json.loads(row['text'])['meta']['instance_id']}: {row['reason']}" for row in rows)


def test_a_checkout_is_read_by_its_configs(project: Path, small: Small) -> None:
    write_checkout(project / "plan-bench")
    write_config(project / "plan-bench", "words", "blocksworld/generated_basic", "blocksworld/generated_domain.pddl")
    params = small(
        problems={"source": "planbench", "path": "plan-bench"},
        difficulty={"blocksworld": {}, "mystery_blocksworld": {}},
        split={"validation": 0, "test": 0.1},
    )
    problems.run(params)
    split.run(params)
    rows, reasons = read_accepted(), read_reasons()
    assert Counter(row["meta"]["scenario"] for row in rows) == {"blocksworld": 3, "mystery_blocksworld": 6}
    plain = [row["meta"]["instance_id"] for row in rows if row["meta"]["scenario"] == "blocksworld"]
    assert sorted(plain) == [1, 2, 6]  # 0 is before `start`, 7 is after what the one-shot task asks for
    unknown = [reason for reason in reasons if "unknown domain: 'words'" in reason]
    others = sorted(reason for reason in reasons if reason not in unknown)
    assert len(unknown) == 6
    assert [reason.partition(":")[0] for reason in others] == ["3", "4", "5"]
    assert "bad PDDL: blocksworld/generated_basic/instance-3.pddl:1" in others[0]
    assert "no reference plan" in others[1]
    assert "duplicate: a renaming of problems.jsonl:1" in others[2]
    mystery_row = next(row for row in rows if row["meta"]["scenario"] == "mystery_blocksworld")
    assert {line.split()[0] for line in mystery_row["response"].splitlines()} <= {
        "(attack",
        "(succumb",
        "(feast",
        "(overcome",
    }


def test_without_a_pattern_the_reference_plan_tells_the_difficulty(project: Path, small: Small) -> None:
    write_checkout(project / "plan-bench")
    params = small(
        problems={"source": "planbench", "path": "plan-bench"},
        difficulty={"mystery_blocksworld": {}, "blocksworld": {"pattern": r"instance-(?P<n>\d+)", "weights": {"n": 2}}},
        split={"validation": 0, "test": 0.1},
    )
    problems.run(params)
    split.run(params)
    score.run(params)
    for row in read_accepted("score"):
        number, actions = row["meta"]["instance_id"], len(row["response"].splitlines())
        assert row["score"] == (2 * number if row["meta"]["scenario"] == "blocksworld" else actions)
    assert json.loads(Path("results/score/metrics.json").read_text())["unmatched_names"] == 0


def break_path(root: Path) -> None:
    write_config(root, "blocksworld", "blocksworld/generated_basic", "../../domain.pddl")


def break_start(root: Path) -> None:
    write_config(root, "blocksworld", "blocksworld/generated_basic", "domain.pddl", start="one")


def move_instances(root: Path) -> None:
    (root / "instances").rename(root / "elsewhere")


def move_configs(root: Path) -> None:
    (root / "configs").rename(root / "elsewhere")


@pytest.mark.parametrize(
    ("break_checkout", "complaint"),
    [
        (break_path, r"configs/blocksworld\.yaml: domain_file: .*must be a path below instances/"),
        (break_start, r"configs/blocksworld\.yaml: start: "),
        (move_instances, r"plan-bench/instances holds none of the problem files"),
        (move_configs, r"plan-bench holds no configs/\*\.yaml that name problems; fix: name the folder"),
    ],
)
def test_a_checkout_that_cannot_be_read_is_an_error(
    project: Path, small: Small, break_checkout: Callable[[Path], None], complaint: str
) -> None:
    write_checkout(project / "plan-bench")
    break_checkout(project / "plan-bench")
    with pytest.raises(ParamsError, match=complaint):
        problems.run(small(problems={"source": "planbench", "path": "plan-bench"}))
    assert not (project / "results/domain.pddl").exists()


LAYOUTS = {
    "{folder}/domain.pddl": "{folder}/instances/instance-{n}.pddl",
    "{folder}/p{n:02}-domain.pddl": "{folder}/p{n:02}-s{n}-l3.pddl",
    "{folder}/domain-p{n:02}.pddl": "{folder}/p{n:02}.pddl",
    "{folder}/domain_p{n:02}.pddl": "{folder}/p{n:02}.pddl",
    "{folder}/domains/domain-{n}.pddl": "{folder}/instances/instance-{n}.pddl",
}


def test_ipc_folders_are_read_with_their_domain_files(project: Path, small: Small) -> None:
    texts = build_problem_texts(3 * len(LAYOUTS), blocks=4)
    expected = {}
    for folder, (domain_file, problem_file) in zip("abcde", LAYOUTS.items(), strict=True):
        for n in (1, 2, 3):
            domain, problem = (name.format(folder=folder, n=n) for name in (domain_file, problem_file))
            for name, text in ((domain, load_domain_text("blocksworld")), (problem, texts.pop())):
                (project / "ipc" / name).parent.mkdir(parents=True, exist_ok=True)
                (project / "ipc" / name).write_text(text, encoding="utf-8")
            expected[problem] = (folder, domain)
    params = small(
        problems={"source": "pddl", "path": "ipc"},
        difficulty={folder: {} for folder in "abcde"},
        split={"validation": 0, "test": 0.1},
    )
    problems.run(params)
    split.run(params)
    assert not read_rows(Path("results/split/quarantine.jsonl"))
    metas = {row["meta"]["problem_file"]: row["meta"] for row in read_accepted()}
    assert {file: (meta["scenario"], meta["domain_file"]) for file, meta in metas.items()} == expected
