"""Writes the parts of the reference that follow from the code, where a page says `<!-- generated: ... -->`."""

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
from planward.params import Params

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
TYPES = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path", Any: "anything"}
SIGNS = {Gt: ("gt", ">"), Ge: ("ge", "≥"), Lt: ("lt", "<"), Le: ("le", "≤")}
HELP = "* `--help`: Show this message and exit.\n"
NOT_IN_FILE = {"task"}  # keys of Params that params.yaml leaves out


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """The page with each mark replaced by what it names."""
    return MARK.sub(lambda match: GENERATED[match[1]](), markdown)


# Commands


def commands() -> str:
    """Every command with its arguments and options, as Typer documents them."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="planward"), name="planward")
    _, _, commands = text.partition("\n## ")  # before it: the list of commands
    return re.sub(r"\n\*\*Options\*\*:\n\n(?=\n)", "", f"## {commands}".replace(HELP, ""))


# Parameters


def params() -> str:
    """Every key of params.yaml: what it takes, its value as shipped, its comment there."""
    document = YAML().load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    plain = [name for name, field in Params.model_fields.items() if not _is_section(field) and name not in NOT_IN_FILE]
    parts = ["### Top level\n", _keys(Params, document, plain)]
    for name, field in Params.model_fields.items():
        if _is_section(field):
            comment = _comment(document, name)
            parts += [f"### {name}\n", f"{comment[:1].upper()}{comment[1:]}.\n" if comment else ""]
            parts.append(_keys(field.annotation, document[name]))
    return "\n".join(parts)


def _keys(model: Any, values: CommentedMap, names: list[str] | None = None) -> str:
    rows = list(_rows(model, values, "", names))
    return _table(("key", "takes", "shipped", "meaning"), rows)


def _rows(model: Any, values: CommentedMap, prefix: str, names: list[str] | None = None) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        if names is not None and name not in names:
            continue
        if _is_section(field) and isinstance(values[name], CommentedMap) and not values[name].fa.flow_style():
            if comment := _comment(values, name):
                yield f"`{prefix}{name}`", "keys as below", "", comment
            yield from _rows(field.annotation, values[name], f"{prefix}{name}.")
        else:
            yield f"`{prefix}{name}`", _takes(field), _shown(values[name]), _comment(values, name)


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _takes(field: FieldInfo) -> str:
    limits = []
    for limit in field.metadata:
        if type(limit) in SIGNS:
            attribute, sign = SIGNS[type(limit)]
            limits.append(f"{sign} {getattr(limit, attribute):g}")
        elif isinstance(limit, MinLen):
            limits.append(f"{limit.min_length} or more")
    kinds = _type(field.annotation).split(" or `null`")
    return ", ".join([kinds[0], *limits, *(["or `null`"] if len(kinds) > 1 else [])])


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in TYPES:
        return TYPES[annotation]
    if annotation is NoneType:
        return "`null`"
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    if origin is list:
        return f"list: {_type(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_type, arguments))}]"
    if origin is dict:
        return f"for each name: {_type(arguments[1])}"
    return "{" + ", ".join(f"{name}: {_takes(field)}" for name, field in annotation.model_fields.items()) + "}"


def _shown(value: Any) -> str:
    """A value as params.yaml has it, where it is short enough to be read in a table."""
    if isinstance(value, dict):
        entries = ", ".join(map(str, value))
        return f"entries: {entries}" if entries else "`{}`"
    if isinstance(value, list):
        if any(isinstance(one, dict) for one in value):
            return f"{len(value)} {'entry' if len(value) == 1 else 'entries'}"
        return f"`[{', '.join(str(one) for one in value)}]`"
    words = {True: "true", False: "false", None: "null"}
    return f"`{words[value] if value is None or isinstance(value, bool) else value}`"


def _comment(section: CommentedMap, key: str) -> str:
    """What stands behind a key in params.yaml."""
    tokens = section.ca.items.get(key) or []
    text = next((token.value for token in tokens if token and not isinstance(token, list)), "")
    if not text and isinstance(section[key], CommentedMap | list) and getattr(section[key], "ca", None):
        own = section[key].ca.comment
        text = own[0].value if own and own[0] else ""
    return text.strip().split("\n")[0].removeprefix("#").strip().replace("<", "&lt;")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return (
        "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in line)} |"
            for line in lines
        )
        + "\n"
    )


GENERATED: dict[str, Callable[[], str]] = {"commands": commands, "params": params}
