"""MkDocs hook: generates the reference of commands and parameters where a page says `<!-- generated: ... -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le, Lt, MinLen
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from typer.cli import get_docs_for_click

from planward.cli import app
from planward.core import paths
from planward.integrations.verl.config import ClusterConfig
from planward.selectors.config import SelectorsConfig
from planward.tasks.economy.environment.config import EconomyParams
from planward.tasks.planning.config import PlanningParams

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
TYPES = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path", Any: "anything"}
SIGNS = {Gt: ("gt", ">"), Ge: ("ge", "≥"), Lt: ("lt", "<"), Le: ("le", "≤")}
HELP = "* `--help`: Show this message and exit.\n"
TRACKS = {  # with the model that validates its parameter file
    "planning": PlanningParams,
    "selectors": SelectorsConfig,
    "economy": EconomyParams,
    "cluster": ClusterConfig,
}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Replace each mark by what it names."""
    return MARK.sub(lambda match: GENERATED[match[1]](), markdown)


# Commands


def render_commands() -> str:
    """Render every command with its arguments and options, as Typer documents them."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="planward"), name="planward")
    _, _, commands = text.partition("\n## ")  # before it: the list of commands
    return re.sub(r"\n\*\*Options\*\*:\n\n(?=\n)", "", f"## {commands}".replace(HELP, ""))


# Parameters


def render_params() -> str:
    """Render the keys of every parameter file: type and limits, value as shipped, comment."""
    return "\n".join(part for track, model in TRACKS.items() for part in _render_file(track, model))


def _render_file(track: str, model: type[BaseModel]) -> Iterator[str]:
    """Render a parameter file; keys of the model that the file leaves out have defaults or come from params.yaml."""
    file = paths.params_file(track)
    document = YAML().load((ROOT / file).read_text(encoding="utf-8"))
    fields = {name: field for name, field in model.model_fields.items() if name in document}
    yield f"### {file}\n"
    plain = [name for name, field in fields.items() if not _is_section(field)]
    if plain:
        yield _render_keys(model, document, plain)
    for name, field in fields.items():
        if _is_section(field):
            comment = _read_comment(document, name)
            yield f"#### {name}{f' ({track})' if track != 'planning' else ''}\n"
            yield f"{comment[:1].upper()}{comment[1:]}.\n" if comment else ""
            yield _render_keys(field.annotation, document[name])


def _render_keys(model: Any, values: CommentedMap, names: list[str] | None = None) -> str:
    rows = list(_iter_rows(model, values, "", names))
    return _render_table(("key", "takes", "shipped", "meaning"), rows)


def _iter_rows(
    model: Any, values: CommentedMap, prefix: str, names: list[str] | None = None
) -> Iterator[tuple[str, ...]]:
    for name, field in ((field.alias or name, field) for name, field in model.model_fields.items()):
        if name not in values or (names is not None and name not in names):
            continue
        if _is_section(field) and isinstance(values[name], CommentedMap) and not values[name].fa.flow_style():
            if comment := _read_comment(values, name):
                yield f"`{prefix}{name}`", "keys as below", "", comment
            yield from _iter_rows(field.annotation, values[name], f"{prefix}{name}.")
        else:
            yield (
                f"`{prefix}{name}`",
                _render_type_and_limits(field),
                _render_value(values[name]),
                _read_comment(values, name),
            )


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _render_type_and_limits(field: FieldInfo) -> str:
    limits = []
    for limit in field.metadata:
        if type(limit) in SIGNS:
            attribute, sign = SIGNS[type(limit)]
            limits.append(f"{sign} {getattr(limit, attribute):g}")
        elif isinstance(limit, MinLen):
            limits.append(f"{limit.min_length} or more")
    text, *nullable = _render_type(field.annotation).split(" or `null`")
    return ", ".join([text, *limits, *(["or `null`"] if nullable else [])])


def _render_type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in TYPES:
        return TYPES[annotation]
    if annotation is NoneType:
        return "`null`"
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, UnionType):
        return " or ".join(map(_render_type, arguments))
    if origin is list:
        return f"list: {_render_type(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_render_type, arguments))}]"
    if origin is dict:
        return f"for each name: {_render_type(arguments[1])}"
    return (
        "{"
        + ", ".join(f"{name}: {_render_type_and_limits(field)}" for name, field in annotation.model_fields.items())
        + "}"
    )


def _render_value(value: Any) -> str:
    """Render a value as in the parameter file, or say what it holds where that is too long for a table."""
    if isinstance(value, dict):
        entries = ", ".join(map(str, value))
        return f"entries: {entries}" if entries else "`{}`"
    if isinstance(value, list):
        if any(isinstance(item, dict) for item in value):
            return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
        return f"`[{', '.join(map(str, value))}]`"
    words = {True: "true", False: "false", None: "null"}
    return f"`{words[value] if value is None or isinstance(value, bool) else value}`"


def _read_comment(section: CommentedMap, key: str) -> str:
    """Return the comment after a key in its parameter file."""
    tokens = section.ca.items.get(key) or []
    text = next((token.value for token in tokens if token and not isinstance(token, list)), "")
    if not text and isinstance(section[key], CommentedMap | list) and getattr(section[key], "ca", None):
        comments = section[key].ca.comment
        text = comments[0].value if comments and comments[0] else ""
    return text.strip().split("\n")[0].removeprefix("#").strip().replace("<", "&lt;")


def _render_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return (
        "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in line)} |"
            for line in lines
        )
        + "\n"
    )


GENERATED: dict[str, Callable[[], str]] = {"commands": render_commands, "params": render_params}
