"""Recipes: YAML files whose values are laid over the parameter files."""

from __future__ import annotations

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


def apply_recipe(recipe: Path, root: Path = Path()) -> list[Path]:
    """Write a recipe's values into the parameter files below `root`, keeping their comments; return the changed files.

    Values below a track's name (a folder of workflow/) go to workflow/TRACK/params.yaml, all others to params.yaml.
    Nothing is written unless the parameters of every track are valid before and after.

    Raises:
        ParamsError: a file is missing or unreadable, or the result has an unknown key or a wrong value; the message
            names the files and each key.
    """
    values, tracks = read_yaml(recipe), paths.list_tracks(root)
    if not isinstance(values, dict):
        raise ParamsError(f"{recipe}: expected keys and values")
    changes = {track: values.pop(track) for track in tracks if track in values} | {MAIN: values}
    editor, files = _build_editor(), {track: root / paths.params_file(track) for track in tracks}
    for track in tracks:
        check_params(track, root)
    documents = {track: editor.load(file.read_text(encoding="utf-8")) for track, file in files.items()}
    for track, section in changes.items():
        if not isinstance(section, dict):
            raise ParamsError(f"{recipe}: {track}: expected keys and values")
        lay_over(documents[track], section)
    for track, file in files.items():
        _validate(track, documents[MAIN], documents[track], f"{file} with {recipe}")
    changed = [track for track in tracks if changes.get(track)]
    for track in changed:
        with open_atomic(files[track]) as out:
            editor.dump(documents[track], out)
    return [files[track] for track in changed]


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
