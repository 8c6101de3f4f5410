"""A checkout of PlanBench in its layout, with problems of our own generator."""

from __future__ import annotations

from pathlib import Path
from random import Random

import yaml

from planward.pddl.canonical import hash_problem
from planward.tasks.planning.domains import GENERATED_DOMAINS, build_problem, load_domain_text, render_problem

OBFUSCATION = {"pick-up": "attack", "put-down": "succumb", "unstack": "feast", "stack": "overcome"} | {
    "ontable": "planet",
    "clear": "province",
    "handempty": "harmony",
    "holding": "pain",
    "blocksworld": "mystery-4ops",
}
TEMPLATE = "instance-{}.pddl"


def build_problem_texts(count: int, blocks: int = 3) -> list[str]:
    """PDDL of blocksworld problems that are distinct up to renaming and not solved at the start."""
    rng, texts = Random(blocks), dict[str, str]()
    while len(texts) < count:
        instance = GENERATED_DOMAINS["blocksworld"].generate(rng, {"blocks": blocks})
        problem = build_problem("blocksworld", instance)
        if not problem.init >= set(instance.goal):
            texts.setdefault(hash_problem(problem), render_problem("blocksworld", instance))
    return list(texts.values())


def obfuscate(text: str) -> str:
    for word, other in OBFUSCATION.items():
        text = text.replace(word, other)
    return text


def write_config(root: Path, name: str, instance_dir: str, domain_file: str, **changes: object) -> None:
    """Write the config of domain `name`: instances 1 to 6, of which the last is only asked for."""
    config = {
        "instance_dir": instance_dir,
        "domain_file": domain_file,
        "domain_name": name,
        "n_instances": 6,
        "start": 1,
        "end": 5,
        "instances_template": TEMPLATE,
        "actions": {"pick-up": "pick up the {}"},
        "encoded_objects": {"b1": "red block"},
    }
    (root / "configs").mkdir(parents=True, exist_ok=True)
    (root / f"configs/{name}.yaml").write_text(yaml.safe_dump(config | changes), encoding="utf-8")


def write_checkout(root: Path) -> None:
    """Write blocksworld and its obfuscation with instances 0 to 7 each, and a config without problems.

    Of blocksworld, instance 3 is no PDDL, instance 4 asks for a block on itself and instance 5 is a copy of 1.
    """
    texts = build_problem_texts(8)
    plain, mystery = root / "instances/blocksworld", root / "instances/blocksworld/mystery"
    for folder, translate in ((plain, str), (mystery, obfuscate)):
        (folder / "generated_basic").mkdir(parents=True)
        (folder / "generated_domain.pddl").write_text(translate(load_domain_text("blocksworld")))
        for number, text in enumerate(texts):
            (folder / "generated_basic" / TEMPLATE.format(number)).write_text(translate(text))
    (plain / "generated_basic/instance-3.pddl").write_text("(define (problem p)")
    goal = texts[4].index("(:goal")
    (plain / "generated_basic/instance-4.pddl").write_text(f"{texts[4][:goal]}(:goal (on b1 b1)))")
    (plain / "generated_basic/instance-5.pddl").write_text(texts[1])
    write_config(root, "blocksworld", "blocksworld/generated_basic", "blocksworld/generated_domain.pddl")
    mystery_files = ("blocksworld/mystery/generated_basic", "blocksworld/mystery/generated_domain.pddl")
    write_config(root, "mystery_blocksworld", *mystery_files)
    (root / "configs/default_template.yaml").write_text("domain_name: ''\n")
