"""GGUF files, by the converter of llama.cpp."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from planward.publication.provenance import PublicationError


def find_converter(converter: str) -> list[str]:
    """Return the command that starts convert_hf_to_gguf.py.

    Args:
        converter: the script, or a command on PATH.

    Raises:
        PublicationError: there is neither.
    """
    if Path(converter).is_file():
        return [sys.executable, converter] if converter.endswith(".py") else [str(Path(converter).resolve())]
    if command := shutil.which(converter):
        return [sys.executable, command] if command.endswith(".py") else [command]
    raise PublicationError(
        f"--gguf: no file and no command {converter}; fix: name convert_hf_to_gguf.py in a checkout of llama.cpp"
    )


def convert_to_gguf(command: list[str], model: Path, out: Path, name: str) -> None:
    """Write the weights and the tokenizer in the folder `model` as one GGUF file.

    Raises:
        PublicationError: the converter fails; the message is its last line.
    """
    process = subprocess.run(
        [*command, str(model), "--outfile", str(out), "--model-name", name], capture_output=True, text=True, check=False
    )
    if process.returncode or not out.is_file():
        lines = process.stderr.strip().splitlines() or ["it printed nothing"]
        raise PublicationError(
            f"{' '.join(command)} failed with exit status {process.returncode}: {lines[-1]}; fix: leave --gguf out, or "
            "take a converter that knows the model's architecture and tokenizer (models/base's it does not)"
        )
