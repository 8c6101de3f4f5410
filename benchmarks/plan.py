"""Plans a second of `planward plan` over folders of problems, against the same with Transformers' own `generate`.

    python benchmarks/plan.py [MODEL ...] [--count 64] [--repeats 3]

Writes COUNT problems of each style of foreign_problems.py. Per model (default: models/base) and repeat, in turns:
`planner.folders.plan_folder` over the five folders, and a plain loop with the same prompts, batch size and verifier,
whose completions come from `model.generate` in the order of the files. Weights are loaded before; files are read and
judged by VAL anew by both. Prints the fastest repeat of each, generation alone as well, and whether the plans are the
same. One thread unless OMP_NUM_THREADS says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from foreign_problems import STYLES, write_problems
from planward.core.prompts import encode_prompt
from planward.core.records import Record
from planward.planner import Planner, SearchConfig
from planward.planner.folders import plan_folder
from planward.tasks.planning.task import PlanningTask

NAMES = ("planward plan", "plain loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="*", default=["models/base"])
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "problems")
        folder.mkdir()
        records = write_problems(folder, arguments.count)
        for model in arguments.models:
            planner = Planner(model)
            outs = [Path(name, f"{Path(model).name}-{n}") for n in range(arguments.repeats)]
            runs = [(plan_all(planner, folder, out), plan_plainly(planner, folder, records)) for out in outs]
            print_rows(model, runs, len(records))


def plan_all(planner: Planner, folder: Path, out: Path) -> tuple[float, float, list[str]]:
    """Return the seconds of everything and of generation alone, and the valid plans by problem."""
    timer = time_generation(planner)
    start = perf_counter()
    for style in STYLES:
        plan_folder(planner, folder / style / "domain.pddl", folder / style, out / style, SearchConfig())
    seconds = perf_counter() - start
    lines = [
        (f"{style}/{row['problem']}", row["plan"])
        for style in STYLES
        for row in map(json.loads, (out / style / "results.jsonl").read_text().splitlines())
    ]
    return seconds, sum(timer), [f"{name} {plan}" for name, plan in sorted(lines)]


def time_generation(planner: Planner) -> list[float]:
    """Make the planner append the seconds of each generation to the list that is returned."""
    seconds, generate = list[float](), Planner._generate

    def timed_generate(*arguments: Any) -> Any:
        start = perf_counter()
        samples = generate(planner, *arguments)
        seconds.append(perf_counter() - start)
        return samples

    planner._generate = timed_generate  # type: ignore[method-assign]
    return seconds


def plan_plainly(planner: Planner, folder: Path, records: list[Record]) -> tuple[float, float, list[str]]:
    """Do the same without Planward's decoding and scheduling."""
    start, generating, completions = perf_counter(), 0.0, list[str]()
    task = PlanningTask(planner.task.params, folder)
    tokenizer, size = planner.tokenizer, planner.settings.batch_size
    batches = [
        [record for record in records if record.domain == style][first : first + size]
        for style in STYLES
        for first in range(0, len(records) // len(STYLES), size)
    ]
    for batch in batches:
        prompts = [encode_prompt(tokenizer, task.prompt(record, []), {}) for record in batch]
        begin = perf_counter()
        inputs = tokenizer.pad({"input_ids": prompts}, return_tensors="pt", padding_side="left")
        with torch.no_grad():
            tokens = planner.network.generate(
                **inputs.to(planner.network.device),
                max_new_tokens=planner.prompt_config.max_completion_tokens,
                do_sample=False,
            )
        completions += tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        generating += perf_counter() - begin
    plans = [task.undo_renaming(record, text) for record, text in zip(records, completions, strict=True)]
    verdicts = task.judge(list(zip(records, plans, strict=True)))
    seconds = perf_counter() - start
    pairs = zip(records, verdicts, strict=True)
    rows = [(record.id, verdict.plan.splitlines() if verdict.success else None) for record, verdict in pairs]
    return seconds, generating, [f"{name} {plan}" for name, plan in sorted(rows)]


def print_rows(model: str, runs: list[tuple[tuple[float, float, list[str]], ...]], count: int) -> None:
    print(f"{model}: {count} problems, {torch.get_num_threads()} thread(s), fastest of {len(runs)}; plans a second")
    print(f"{'':16}{'all':>10}{'generation':>14}{'valid':>8}")
    fastest = [[min(run[side][part] for run in runs) for part in (0, 1)] for side in (0, 1)]
    for side, name in enumerate(NAMES):
        valid = sum(not row.endswith(" None") for row in runs[0][side][2])
        print(f"{name:16}{count / fastest[side][0]:>10.1f}{count / fastest[side][1]:>14.1f}{valid:>8}")
    print(f"{'ratio':16}{fastest[1][0] / fastest[0][0]:>10.2f}{fastest[1][1] / fastest[0][1]:>14.2f}")
    same = sum(a == b for a, b in zip(runs[0][0][2], runs[0][1][2], strict=True))
    print(f"same plan for {same} of {count}", flush=True)


if __name__ == "__main__":
    main()
