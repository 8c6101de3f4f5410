"""Small trees of results, as the stages write them, and the pages that `compare` and `report` make of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from planward.core.files import write_json, write_jsonl
from planward.core.runs import BASE, Run
from planward.params import Params
from planward.stages import compare, report
from planward.stages.selectors import compare as compare_selectors
from support import ROOT, merge_values, read_rows

DOMAINS, BUCKETS = ("blocksworld", "ferry"), ("easy", "medium", "hard")
SKILL = {"base": 3, "sft": 5, "grpo": 8, "dense": 2, "uniform": 8, "gpt-x": 6}  # solved of ten problems
HOSTILE = "<script>alert('plan')</script>"


def write_params(root: Path, **changes: dict[str, Any]) -> None:
    """Write the shipped parameter files; `changes` by track (`planning`, `selectors`, ...) are laid over them."""
    for track in ("planning", "selectors", "economy"):
        name = "params.yaml" if track == "planning" else f"workflow/{track}/params.yaml"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
        if track in changes:
            values = merge_values(yaml.safe_load((root / name).read_text(encoding="utf-8")), changes[track])
            (root / name).write_text(yaml.safe_dump(values), encoding="utf-8")


def is_constrained(i: int) -> bool:
    """Whether problem i has safety constraints: the first five do."""
    return i < 5


def build_prediction(method: str, size: int, domain: str, i: int, shot_num: int, seed: int = 3407) -> dict[str, Any]:
    """The prediction on problem i, right where a fixed shuffle of the problems puts it below the method's skill.

    Seeds other than 3407 shuffle differently and solve one problem more.
    """
    position = (7 * i + 3 * (domain == "ferry") + 3 * (seed != 3407)) % 10
    success = position < SKILL[method] + (size > 100) + (shot_num > 2) + (seed != 3407)
    label = "success_plans" if success else ("goal_not_satisfied", "precondition_violation", "plan_format_error")[i % 3]
    if is_constrained(i) and label == "goal_not_satisfied":
        label = "safety_constraints_violation"
    failing_step = 2 if label in {"precondition_violation", "safety_constraints_violation"} else None
    before = "constraints (sometime-before (on b1 b2) (on b3 b1))\nplan\n" if is_constrained(i) else "plan\n"
    plan = "" if label == "plan_format_error" else "(pick-up b1)\n(stack b1 b2)\n(pick-up b3)"
    return {
        "id": f"{domain}-{i:03}",
        "domain": domain,
        "bucket": BUCKETS[i % 3],
        "score": 10.0 + i,
        "constrained": is_constrained(i),
        "method": method,
        "dataset_size": size,
        "seed": seed,
        "shot_num": shot_num,
        "shot_ids": [f"{domain}-t{k}" for k in range(shot_num)],
        "prompt": f"objects b1 b2 b3\ninit (clear b1) & more\ngoal (on b1 b2) of {i}\n{before}",
        "completion": plan or HOSTILE,
        "plan": plan,
        "label": label,
        "success": success,
        "reward": 1.0 if success else -0.5,
        "detail": "" if success else f"{label} <b>here</b>",
        "plan_size": len(plan.splitlines()),
        "failing_step": failing_step,
        "goals_satisfied": 1,
        "goals_total": 2,
    }


def write_prediction_file(folder: Path, run: Run, rows: list[dict[str, Any]], task: str = "planning") -> Path:
    """Write RUN.jsonl and the RUN.json beside it; returns the former."""
    path = folder / f"{run.name}.jsonl"
    write_jsonl(path, rows)
    write_json(path.with_suffix(".json"), {"run": run.as_dict(task)})
    return path


def remove_prediction_file(path: Path) -> None:
    path.unlink()
    path.with_suffix(".json").unlink()


def write_run(root: Path, run: Run, domains: tuple[str, ...], problems: int, shots: tuple[int, ...]) -> None:
    """Write the predictions of a planning run on the first `problems` of each domain."""
    rows = [
        build_prediction(run.method, run.size, domain, i, k, run.seed or 3407)
        for k in shots
        for domain in domains
        for i in range(problems)
    ]
    write_prediction_file(root / "results/predictions", run, rows)


def write_predictions(
    root: Path,
    sizes: tuple[int, ...],
    domains: tuple[str, ...],
    problems: int,
    shots: tuple[int, ...],
    seed: int = 3407,
) -> None:
    for run in [BASE, *(Run(method, n, seed) for method in ("sft", "grpo") for n in sizes)]:
        write_run(root, run, domains, problems, shots)


def write_other_results(
    root: Path, sizes: tuple[int, ...], domains: tuple[str, ...], seeds: tuple[int, ...] = (3407,), steps: int = 12
) -> None:
    """Write what the other stages of planning write, and dvc.lock."""
    results = root / "results"
    shares = {"easy": 12, "medium": 6, "hard": 2}
    numbers = {"count": 20, "min": 10.0, "max": 40.0, "mean": 22.5, "median": 20.0, "p40": 20.0, "p80": 30.0}
    write_json(
        results / "score/metrics.json",
        {"domains": {d: numbers | {"buckets": shares} for d in domains}, "unmatched_names": 1},
    )
    (results / "score/difficulty.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", encoding="utf-8")
    write_json(results / "split/metrics.json", {"train": 40, "test": 20})
    write_jsonl(results / "split/quarantine.jsonl", [{"line": 3, "reason": "bad JSON: line 1 ends early"}])
    timing = {"stage": "sft@100-3407", "task": "planning", "wall_s": 61.5, "cpu_s": 99.0, "peak_rss_mb": 812.0}
    write_json(results / "timing/sft@100-3407.json", timing | {"run": Run("sft", 100, 3407).as_dict("planning")})
    for size, seed in product(sizes, seeds):
        rows = [
            {"step": s, "slot": k, "id": f"{d}-t{s}", "domain": d, "bucket": BUCKETS[s * 3 // steps]}
            | {"wanted_bucket": BUCKETS[s * 3 // steps]}
            for s in range(steps)
            for k, d in enumerate(domains)
        ]
        run = Run("grpo", size, seed)
        (results / "schedules").mkdir(exist_ok=True)
        pd.DataFrame(rows).to_parquet(results / f"schedules/{run.name}.parquet")
        write_json(results / f"schedules/{run.name}.json", {"run": run.as_dict("planning"), "fallback_rate": 0.0})
        for method, curves in {
            "sft": ["loss", "learning_rate"],
            "grpo": [
                "validation_success",
                "reward",
                "success",
                "kl",
                *(f"reward_by_domain/{d}" for d in domains),
                "zero_spread/all_pass",
            ],
        }.items():
            run = Run(method, size, seed)
            folder = results / f"training/{run.name}"
            for c, name in enumerate(curves):
                path = folder / f"curves/{name}.tsv"
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [f"{s}\t{(s + c) ** 0.5 / size + (seed == 1):.5f}" for s in range(steps)]
                path.write_text("\n".join([f"step\t{name.split('/')[-1]}", *lines]) + "\n", encoding="utf-8")
            metrics = {"run": run.as_dict("planning"), "step": steps - 1, "shots_dropped": 0}
            write_json(folder / "metrics.json", metrics)
        pd.DataFrame(rows).to_parquet(results / f"training/grpo-{size}-{seed}/consumed.parquet")
    (root / "dvc.lock").write_text("schema: '2.0'\nstages:\n  compare: {cmd: planward compare}\n", encoding="utf-8")


def rewrite_rows(path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    write_jsonl(path, change(read_rows(path)))


def render_page(root: Path, params: Params) -> str:
    """Run `compare` for planning and, where they have run, for the selectors; then `report`."""
    compare.run(params)
    if (root / "results/selectors/predictions").exists():
        compare_selectors.run(params)
    report.run(params)
    return (root / "results/report.html").read_text(encoding="utf-8")


def select_section(html: str, name: str) -> str:
    """The section of the page whose heading has this id."""
    return html[html.index(f'<h2 id="{name}">') :].partition("</section>")[0]


def find_missing(html: str) -> list[str]:
    """What the page names as not written."""
    return re.findall(r'<p class="missing">No (.*?): ', html)
