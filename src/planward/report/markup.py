"""Jinja2 templates of the report. Autoescape is always on: what a model wrote stays text."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

TEXT_LIMIT = 6000  # characters of a problem or completion that the page prints


def build_environment(*packages: str) -> Environment:
    """The environment that every template is rendered in.

    Args:
        packages: further packages with a folder templates/; their templates may import `elements.html.j2`.
    """
    return Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in ("planward.report", *packages)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
