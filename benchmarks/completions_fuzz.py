"""Random completions through extraction, translation and both verdicts: crashes, slowest and rewards.

    python benchmarks/completions_fuzz.py 1000000 --workers 2

Completions are built from the parts that the grammar of plans knows, from reference plans of generated problems, and
from random characters; most are short, one in 500 is as long as a completion may be. Prints one line of JSON; exits
with status 1 where one crashed, took more than a second of processor time, or was rewarded though VAL refuses it (VAL
judges each completion that the in-process verifier calls a success, once for each plan).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from planward.core.records import Record
from planward.core.registry import load_params, load_task
from planward.tasks.planning.completion import MAX_CHARS
from planward.tasks.planning.sources import generate_domain_records

ROOT = Path(__file__).parent.parent
CHUNK = 2000  # completions of a task of one process
MAX_SECONDS = 1.0
LONG_SHARE = 1 / 500
PARTS = (
    *(
        "(",
        ")",
        "\n",
        "\r",
        "\n\n",
        " ",
        "\t",
        ";",
        "; note",
        "\\",
        "\\\n",
        "\0",
        "\ufeff",
        "\u200b",
        "\u212a",
        "\uff5c",
    ),
    *(
        "<think>",
        "</think>",
        "<end>",
        "<|im_start|>assistant",
        "<|im_end|>",
        "[INST]",
        "[/INST]",
        "<s>",
        "</s>",
        "\uff5c",
    ),
    *("<|start_header_id|>user<|end_header_id|>", "<|", "|>", "[PLAN]", "[PLAN END]", "[/PLAN]", "[STATEMENT]"),
    *("```", "```pddl", "1. ", "2) ", "- ", "* ", "0: ", "0.5: ", "[1]", "[0.5]", "{", "}", '"', "'", "$(touch x)"),
    *("<script>alert(1)</script>", "=cmd|' /C calc'!A0", "../../etc/passwd", "\ud800", "x" * 200, "9" * 50, "(noop)"),
)


def sample_completion(rng: Random, plans: list[str]) -> str:
    """Sample a completion."""
    if rng.random() < LONG_SHARE:
        return _sample_long(rng, plans)
    text = rng.choice(plans) if rng.random() < 0.7 else ""
    for _ in range(rng.choice((0, 1, 1, 2, 3, 10, 40))):
        position, choice = rng.randrange(len(text) + 1), rng.random()
        if choice < 0.5:
            text = text[:position] + rng.choice(PARTS) + text[position:]
        elif choice < 0.6:
            text = text[:position] + chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) + text[position:]
        elif choice < 0.8:
            text = text[:position] + text[position + rng.randrange(20) :]
        else:
            text = text[:position] + rng.choice(plans) + text[position:]
    return text


def _sample_long(rng: Random, plans: list[str]) -> str:
    """Repeat a few parts up to the limit, sometimes beyond it."""
    unit = "".join(rng.choice((*PARTS, rng.choice(plans))) for _ in range(rng.randrange(1, 6))) or "("
    size = MAX_CHARS * 40 if rng.random() < 0.1 else MAX_CHARS
    head = rng.choice(("", rng.choice(plans), "<think>", "("))
    return (head + unit * (size // len(unit)))[:size]


def run_chunk(root: str, lines: list[str], seed: int) -> dict[str, Any]:
    """Judge the completions of one seed."""
    params = load_params(root=ROOT)
    task, records = load_task(params, Path(root)), [Record.model_validate_json(line) for line in lines]
    rng, successes = Random(seed), dict[tuple[str, str], tuple[Record, str]]()
    plans = [task.reference_completion(record) for record in records]
    result: dict[str, Any] = {"labels": {}, "crashes": [], "slowest_s": 0.0, "slowest_chars": 0}
    for number in range(CHUNK):
        record, completion = rng.choice(records), sample_completion(rng, plans)
        start = process_time()
        try:
            verdict = task.verify(record, completion, renaming={})
        except Exception:
            result["crashes"].append({"seed": seed, "number": number, "error": traceback.format_exc(limit=-3)})
            continue
        seconds = process_time() - start
        if seconds > result["slowest_s"]:
            result |= {"slowest_s": seconds, "slowest_chars": len(completion)}
        result["labels"][verdict.label] = result["labels"].get(verdict.label, 0) + 1
        if verdict.success:
            successes[record.meta.problem_file, verdict.plan] = (record, verdict.plan)
    verdicts = task.judge(list(successes.values()))
    result["judged_by_val"], result["refused_by_val"] = len(verdicts), sum(not verdict.success for verdict in verdicts)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    params: Any = load_params(root=ROOT)
    few = {domain: sizes | {"count": 5} for domain, sizes in params.problems.generated.items()}
    params = params.model_copy(update={"problems": params.problems.model_copy(update={"generated": few})})
    with tempfile.TemporaryDirectory() as root, ProcessPoolExecutor(args.workers) as pool:
        records = [record for domain in few for record in generate_domain_records(params, domain, Path(root))]
        lines = [record.model_copy(update={"id": str(i)}).model_dump_json() for i, record in enumerate(records)]
        seeds = range(args.seed * 1_000_000, args.seed * 1_000_000 + -(-args.count // CHUNK))
        total: dict[str, Any] = {"completions": len(seeds) * CHUNK, "slowest_s": 0.0, "crashes": [], "labels": {}}
        for result in pool.map(run_chunk, *zip(*((root, lines, seed) for seed in seeds), strict=True)):
            if result["slowest_s"] > total["slowest_s"]:
                total |= {key: result[key] for key in ("slowest_s", "slowest_chars")}
            total["crashes"] += result["crashes"]
            for key in ("judged_by_val", "refused_by_val"):
                total[key] = total.get(key, 0) + result[key]
            for label, count in result["labels"].items():
                total["labels"][label] = total["labels"].get(label, 0) + count
    print(json.dumps(total | {"slowest_s": round(total["slowest_s"], 2), "crashes": total["crashes"][:5]}))
    return int(bool(total["crashes"] or total["slowest_s"] > MAX_SECONDS or total["refused_by_val"]))


if __name__ == "__main__":
    sys.exit(main())
