"""MkDocs hook: adds the Markdown outside docs/ as pages, and files that pages link to as text.

Links in the sources are those of a checkout (`../README.md`, `../../params.yaml`). Each is resolved to its file, then
to that file's address in the site. A broken link is a warning, so `mkdocs build --strict` fails.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "models/base/README.md": "reference/base-model.md",
    "models/economy/README.md": "reference/economy-adapter.md",
}
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*)?\)")
FIGURE = re.compile(r'<img alt="([^"]*)" src="[^"]*?(figures/[a-z-]+\.svg)"\s*/?>')
log = logging.getLogger("mkdocs.hooks.repository")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(_root(config) / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files outside docs/ into links to their addresses in the site."""
    sources = {uri: source for source, uri in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def replace_link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        uri = _find_uri(target, config, files)
        if uri is None:
            log.warning("%s: links to %s, which is no file of this repository", source, match[1])
            return match[0]
        return f"]({os.path.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{match[2] or ''})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)  # every second part is code
    parts[::2] = [LINK.sub(replace_link, part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Inline the figures, so that they take the colours of the site's light and dark schemes."""

    def inline_figure(match: re.Match[str]) -> str:
        svg = (Path(config.docs_dir) / match[2]).read_text(encoding="utf-8")
        return f'<span class="figure" tabindex="0">{svg}</span>'

    return FIGURE.sub(inline_figure, html)


def _find_uri(target: str, config: MkDocsConfig, files: Files) -> str | None:
    """Return the address of a repository file, relative to the site's root; None where there is no such file."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")  # MkDocs itself checks these
    file, uri = _root(config) / target, f"repository/{target}.txt"
    if not file.is_file():
        return None
    if files.get_file_from_path(uri) is None:
        files.append(File.generated(config, uri, abs_src_path=str(file)))
    return uri


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent
