"""Checkouts of PlanBench (the repository LLMs-Planning): configs/*.yaml name the files below instances/."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from tqdm import tqdm

from planward.core.files import replace_atomic
from planward.core.lines import find_file
from planward.core.records import Meta, Record
from planward.core.tasks import InvalidLine
from planward.params import ParamsError, read_yaml
from planward.tasks.planning.prompt import INSTRUCTION

INSTANCE_ID = "instance_id"  # key of a record's meta: the number of its problem


class PlanBenchConfig(BaseModel):
    """One domain of a checkout: the keys of its config that tell where its problems are."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    domain_name: str = Field(pattern=r"^\w[\w.-]*$")
    domain_file: str
    instance_dir: str
    instances_template: str  # of a problem's file name, with {} for its number
    start: int
    end: int

    @field_validator("domain_file", "instance_dir", "instances_template")
    @classmethod
    def check_path(cls, path: str) -> str:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError("must be a path below instances/")
        return path

    def format_problem_path(self, number: int) -> str:
        """Format the path of a problem below instances/."""
        return f"{self.instance_dir}/{self.instances_template.replace('{}', str(number))}"

    def list_numbers(self, instances: Path) -> list[int]:
        """List the numbers of the problem files from `start` to `end` + 1: the one-shot task also asks for the last."""
        before, _, after = self.instances_template.partition("{}")
        pattern = re.compile(rf"{re.escape(before)}(0|[1-9]\d*){re.escape(after)}", re.ASCII)
        matches = [pattern.fullmatch(file.name) for file in (instances / self.instance_dir).glob("*")]
        return sorted(n for n in (int(match[1]) for match in matches if match) if self.start <= n <= self.end + 1)


def load_configs(root: Path) -> list[PlanBenchConfig]:
    """Load the configs of a checkout's folder, such as plan-bench; those that name no problems are left out.

    Raises:
        ParamsError: there are none, or one is invalid; the message names the file.
    """
    configs = []
    for file in sorted((root / "configs").glob("*.yaml")):
        data = read_yaml(file)
        if isinstance(data, dict) and data.keys() >= PlanBenchConfig.model_fields.keys():
            try:
                configs.append(PlanBenchConfig.model_validate(data))
            except ValidationError as error:
                fault = error.errors()[0]
                raise ParamsError(f"{file}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    if not configs:
        raise ParamsError(
            f"{root} holds no configs/*.yaml that name problems; "
            "fix: name the folder of the checkout that holds configs/ and instances/, such as plan-bench"
        )
    return configs


def copy_problems(root: Path, folder: Path) -> Iterator[Record]:
    """Copy the problems of a checkout into `folder`, with their domains, and yield their records, without plans.

    Raises:
        ParamsError: as `load_configs`, or none of the files that the configs name exists.
    """
    instances, is_empty = root / "instances", True
    for config in load_configs(root):
        _copy_file(root, config.domain_file, folder)
        for number in tqdm(config.list_numbers(instances), desc=config.domain_name, unit="problem"):
            file = config.format_problem_path(number)
            _copy_file(root, file, folder)
            meta = {
                "scenario": config.domain_name,
                "domain_file": config.domain_file,
                "problem_file": file,
                INSTANCE_ID: number,
            }
            yield Record(prompt=INSTRUCTION, meta=Meta.model_validate(meta))
            is_empty = False
    if is_empty:
        raise ParamsError(f"{instances} holds none of the problem files that configs/*.yaml name")


def _copy_file(root: Path, file: str, folder: Path) -> None:
    """Copy a file below instances/ if it exists in the checkout; the split quarantines the problems that lack one."""
    with suppress(InvalidLine):
        source = find_file(root, f"instances/{file}")
        with replace_atomic(folder / file) as partial:
            shutil.copyfile(source, partial)
