"""The language model that examples are chosen for; it is never trained here."""

from __future__ import annotations

from typing import Any

from planward.core.paths import params_file
from planward.inference.models import load_model, move_to_gpu
from planward.params import Params, ParamsError
from planward.selectors.config import SelectorsConfig


def load_frozen_model(params: Params, config: SelectorsConfig) -> tuple[Any, Any]:
    """Load the model and its tokenizer; raises ParamsError where the folder is missing."""
    folder, prompt = config.model, params.prompt
    if not folder.is_dir():
        raise ParamsError(
            f"{params_file('selectors')}: model: no folder {folder}; fix: name one that holds a model, "
            "or run the stage that trains it"
        )
    length = prompt.max_tokens + prompt.max_completion_tokens
    network, tokenizer = load_model(params.model, str(folder), length, params.seed)
    move_to_gpu(network)
    return network, tokenizer
