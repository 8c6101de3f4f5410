"""Lines a second and peak memory of `planward judge`.

    python benchmarks/judge.py --lines 100000 --verifier fast --workers 2

Lines are the reference plans of the problems in results/score, whole or with one action less or exchanged, in the
forms of docs/reference/completions.md, of eight models; the problems are repeated under further ids. Every text
differs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

from planward.core.records import read_records

MODEL_NUM = 8
FORMS = ("{a}", "{i}: {a}", "{i}. {a}", "- {a}", "{a}\\", "(\n{w}\n)")
FRAMES = ("{}", "Here is the plan:\n\n```\n{}\n```\nIt reaches the goal.", "<think>First I look at it.</think>\n{}")


def generate_lines(problems: list[tuple[str, list[str]]], count: int, rng: Random) -> Iterator[str]:
    for number in range(count):
        model, copy = number // len(problems) % MODEL_NUM, number // len(problems) // MODEL_NUM
        id, plan = problems[number % len(problems)]
        actions, change = list(plan), rng.random()
        if change < 0.3:
            actions.pop(rng.randrange(len(actions)))
        elif change < 0.5:
            i, j = rng.randrange(len(actions)), rng.randrange(len(actions))
            actions[i], actions[j] = actions[j], actions[i]
        form = rng.choice(FORMS)
        body = "\n".join(form.format(i=i, a=action, w=action[1:-1]) for i, action in enumerate(actions, 1))
        text = rng.choice(FRAMES).format(f"; {number}\n{body}")
        yield json.dumps({"id": f"{id}-{copy}", "model": f"model-{model}", "completion": text}) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--verifier", choices=["val", "fast"], default="fast")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("results"))
    args = parser.parse_args()
    files = sorted((args.results / "score").glob("*.jsonl"))
    records = [record for file in files for record in read_records(file) if record.response]
    problems = [(record.id, record.response.splitlines()) for record in records if record.response]
    with TemporaryDirectory() as name:
        answers = Path(name, "answers.jsonl")
        with answers.open("w", encoding="utf-8") as out:
            out.writelines(generate_lines(problems, args.lines, Random(18)))
        with Path(name, "problems.jsonl").open("w", encoding="utf-8") as out:
            for copy in range(args.lines // len(problems) // MODEL_NUM + 1):
                for record in records:
                    meta = record.meta.model_dump()
                    out.write(json.dumps({"id": f"{record.id}-{copy}", "prompt": "", "meta": meta}) + "\n")
        command = [sys.executable, "-m", "planward", "judge", str(answers), "--root", str(args.results / "problems")]
        command += ["--problems", str(Path(name, "problems.jsonl"))]
        command += ["--verifier", args.verifier, "--workers", str(args.workers)]
        start = perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = perf_counter() - start
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        megabytes = answers.stat().st_size / 2**20
    cpu = usage.ru_utime + usage.ru_stime
    sys.stdout.write(
        f"{args.lines} lines ({megabytes:.0f} MiB) on {len(problems)} problems, {args.verifier}, {args.workers} "
        f"workers: {seconds:.1f} s, "
        f"{args.lines / seconds:.0f} lines/s; {cpu:.1f} CPU s, {args.lines / cpu:.0f} lines a "
        f"CPU second; largest process {usage.ru_maxrss / 1024:.0f} MB\n"
    )


if __name__ == "__main__":
    main()
