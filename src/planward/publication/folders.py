"""The published folder: whole or absent, with planward.json, which says what prompts are made of."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from planward.core import paths
from planward.core.files import open_atomic, write_json
from planward.core.model_folders import HUB_NAME, find_adapter_base
from planward.core.prompt_templates import read_template
from planward.core.runs import Run, read_run
from planward.params import Params
from planward.publication.provenance import PublicationError

DESCRIPTION_FILE = "planward.json"  # `planward plan` and `planward choose` read it
TEMPLATE_FILE = "prompt.jinja"
FETCHED = re.compile(rf"Fetched by `planward fetch-model (?P<name>{HUB_NAME.pattern})`")
FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\n(?P<yaml>.*?)\n---[ \t]*$", re.DOTALL | re.MULTILINE)
LICENCES = (  # SPDX identifiers and the hub's own: other words of prose are no licence
    r"mit|isc|zlib|unlicense|(?:apache|artistic|ecl|epl|eupl|mpl|osl)-\d\.\d|bsd-\d-clause"
    r"|[al]?gpl-\d\.\d(?:-only|-or-later)?|cc0-1\.0|cc-by(?:-nc)?(?:-nd|-sa)?-\d\.\d|gemma|llama\d(?:\.\d)?"
)
LICENCE = re.compile(rf"\blicen[cs]e\**:[ *`\[]*(?:(?P<name>{LICENCES})(?![\w+/-]|\.\w))?", re.IGNORECASE)


@contextmanager
def write_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` if the block succeeds and is deleted otherwise.

    Raises:
        PublicationError: `target` holds something.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PublicationError(f"{target}: exists already; fix: remove it, or name another folder")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors are written for their owner alone
        if target.exists():
            target.rmdir()
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def copy_files(source: Path, target: Path) -> None:
    """Copy the files of a folder of weights, without hidden ones and its card."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and not path.name.startswith(".") and path.name != "README.md":
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))


def list_runs(results: paths.Results) -> list[Run]:
    """List the trained runs by the identities that their metrics hold."""
    runs = (read_run(path) for path in sorted(results.training.glob("*/metrics.json")))
    return [run for run in runs if run is not None]


def find_run(name: str, results: paths.Results) -> Run | None:
    """Return the trained run of this name; None where there is none."""
    return next((run for run in list_runs(results) if run.name == name), None)


def write_description(folder: Path, params: Params, identity: dict[str, Any], sections: dict[str, Any]) -> None:
    """Write planward.json and, beside it, the template of prompts; a task's own template is not copied."""
    template = None
    if params.prompt.style == "full" and params.prompt.template is not None:
        template = read_template(params.prompt.template)
        with open_atomic(folder / TEMPLATE_FILE) as out:
            out.write(template)
    prompt = params.prompt.model_dump(mode="json")
    description = {"task": params.task, "run": identity, "prompt": prompt, "template": template} | sections
    write_json(folder / DESCRIPTION_FILE, description)


def write_params(folder: Path, params: BaseModel, name: str = "params.yaml") -> None:
    """Write all parameters of a task or track."""
    values = params.model_dump(mode="json", by_alias=True, exclude={"task"})
    with open_atomic(folder / name) as out:
        yaml.safe_dump(values, out, sort_keys=False, allow_unicode=True, width=120)


def read_origin(model: Path) -> tuple[str | None, str | None]:
    """Return the hub's name and the licence that the card of a model's folder states; None where it states none.

    An adapter whose card states no licence has that of its base.
    """
    card = model / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    name, licence, base = FETCHED.search(text), _find_licence(text), find_adapter_base(model)
    if licence is None and base is not None:
        licence = read_origin(base)[1]
    return name["name"] if name else None, licence


def _find_licence(card: str) -> str | None:
    """Find the licence in a card's metadata, else in its first sentence of the form `Licence: NAME`."""
    metadata: Any = None
    if block := FRONT_MATTER.search(card):
        with suppress(yaml.YAMLError, ValueError):
            metadata = yaml.safe_load(block["yaml"])
    licence = metadata.get("license") if isinstance(metadata, dict) else None
    if isinstance(licence, list):
        licence = next(iter(licence), None)
    if not isinstance(licence, str):
        statement = LICENCE.search(card)
        licence = statement["name"] if statement else None
    return licence.lower() if licence else None
