"""Recipes: YAML files whose values are laid over the parameter files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from planward.core import paths
from planward.core.files import open_atomic
from planward.core.registry import build_params
from planward.params import ParamsError, Section, lay_over, read_yaml, validate_section

MAIN = "planning"  # the track whose parameter file is params.yaml
CONFIGS = {  # of tracks that are no tasks; imported when they are needed
    "selectors": ("planward.selectors.config", "SelectorsConfig"),
    "cluster": ("planward.integrations.verl.config", "ClusterConfig"),
}


def apply_recipes(recipes: Sequence[Path], root: Path = Path()) -> list[Path]:
    """Write recipes' values into the parameter files below `root`, keeping their comments; return the changed files.

    Nothing is written unless the parameters of every track are valid before and after.

    Raises:
        ParamsError: see `resolve_recipes`.
    """
    changed_files = []
    for file, document in resolve_recipes(recipes, root).items():
        if document != read_yaml(root / file):
            with open_atomic(root / file) as out:
                _build_editor().dump(document, out)
            changed_files.append(root / file)
    return changed_files


def resolve_recipes(recipes: Sequence[Path], root: Path = Path()) -> dict[Path, Any]:
    """Return each parameter file below `root`, parsed, with the recipes' values laid over it in their order.

    Values below a track's name (a folder of workflow/) go to workflow/TRACK/params.yaml, all others to params.yaml.

    Raises:
        ParamsError: a file is missing or unreadable, or the result has an unknown key or a wrong value; the message
            names the files and each key.
    """
    tracks, editor = paths.list_tracks(root), _build_editor()
    files = {track: root / paths.params_file(track) for track in tracks}
    for track in tracks:
        check_params(track, root)
    documents = {track: editor.load(file.read_text(encoding="utf-8")) for track, file in files.items()}
    for recipe in recipes:
        values = read_recipe(recipe)
        changes = {track: values.pop(track) for track in tracks if track != MAIN and track in values}
        changes[MAIN] = values
        for track, section in changes.items():
            if not isinstance(section, dict):
                raise ParamsError(f"{recipe}: {track}: expected keys and values")
            lay_over(documents[track], section)
        for track, file in files.items():
            _validate(track, documents[MAIN], documents[track], f"{file} with {recipe}")
    return {paths.params_file(track): documents[track] for track in tracks}


def read_recipe(recipe: Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return a recipe's values, laid over those of the recipe that it `extends` (a path relative to its own).

    Args:
        extending: the recipes that extend this one.

    Raises:
        ParamsError: a file is missing or no YAML mapping, or the recipes extend each other in a circle.
    """
    if recipe.resolve() in extending:
        raise ParamsError(f"{recipe}: extends: leads back to this recipe")
    values = read_yaml(recipe)
    if not isinstance(values, dict):
        raise ParamsError(f"{recipe}: expected keys and values")
    if "extends" not in values:
        return values
    parent = recipe.parent / str(values.pop("extends"))
    if not parent.is_file():
        raise ParamsError(f"{recipe}: extends: no recipe {parent}")
    merged_values = read_recipe(parent, (*extending, recipe.resolve()))
    lay_over(merged_values, values)
    return merged_values


def list_changes(before: Any, after: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the key, the old and the new value of each difference; the old value of a new key is None."""
    for key, value in after.items():
        old = before.get(key)
        if value and isinstance(old, dict) and isinstance(value, dict):
            yield from list_changes(old, value, f"{prefix}{key}.")
        elif old != value or key not in before:
            yield f"{prefix}{key}", old, value


def check_params(track: str, root: Path = Path()) -> None:
    """Validate the parameter file of a task or track below `root`; raises ParamsError."""
    file = root / paths.params_file(track)
    _validate(track, read_yaml(root / paths.params_file(MAIN)), read_yaml(file), str(file))


def _validate(track: str, main: Any, document: Any, source: str) -> None:
    """Validate a track's parsed file; `main` is params.yaml, parts of which other tasks use."""
    if track in CONFIGS:
        module, name = CONFIGS[track]
        config: type[Section] = getattr(import_module(module), name)
        validate_section(config, document, source)
    else:
        build_params(track, main, document, source)


def _build_editor() -> YAML:
    """A YAML editor that keeps comments, quotes and the layout of the parameter files."""
    editor = YAML()
    editor.preserve_quotes, editor.width = True, 200
    editor.indent(mapping=2, sequence=4, offset=2)
    editor.representer.add_representer(type(None), lambda r, _: r.represent_scalar("tag:yaml.org,2002:null", "null"))
    return editor
