"""Loading and saving of language models and their tokenizers.

Transformers and Unsloth are imported inside the functions: Unsloth patches TRL, so it has to come first, and
`choose_backend` must be called before TRL is imported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from planward.core.files import apply_umask, name_write_errors
from planward.core.model_folders import check_model_folder
from planward.params import ModelConfig

if TYPE_CHECKING:
    import torch

Backend = Literal["transformers", "unsloth"]


class BackendError(ValueError):
    """The backend that params.yaml asks for cannot run here; the message says what is missing."""


def has_cuda() -> bool:
    """Whether torch finds a GPU; preflight asks only where a parameter needs one, as torch loads slowly."""
    import torch

    return torch.cuda.is_available()


def choose_backend(model: ModelConfig) -> Backend:
    """Return the backend to use; import Unsloth if it is the one.

    Raises:
        BackendError: `unsloth` without CUDA or without the package; 4-bit weights without bitsandbytes or LoRA.
    """
    backend = model.backend
    if backend == "auto":
        backend = "unsloth" if has_cuda() and find_spec("unsloth") is not None else "transformers"
    if model.load_in_4bit and model.lora is None:
        raise BackendError("model.load_in_4bit needs model.lora: 4-bit weights themselves cannot be trained")
    if backend == "transformers":
        if model.load_in_4bit and find_spec("bitsandbytes") is None:
            raise BackendError(
                "model.load_in_4bit needs bitsandbytes, which is not installed; fix: install the extra `4bit`"
            )
        return "transformers"
    if find_spec("unsloth") is None:
        raise BackendError("model.backend is unsloth, which is not installed; fix: install the extra `gpu`")
    if not has_cuda() and os.environ.get("UNSLOTH_ALLOW_CPU") != "1":  # Unsloth's switch for tests
        raise BackendError("model.backend is unsloth, which needs CUDA; no CUDA device found")
    import unsloth  # noqa: F401  patches TRL

    return "unsloth"


def load_model(model: ModelConfig, path: str, max_tokens: int, seed: int, *, training: bool = True) -> tuple[Any, Any]:
    """Load the weights and tokenizer in the folder `path`.

    Returns the network and its tokenizer. On a CPU the weights are float32; with `model.precision` bfloat16 they are
    bfloat16 outside of training, and in training below a LoRA adapter: autocast would cast frozen weights anew for each
    token sampled. Weights that are trained stay float32 under autocast. Under Unsloth the network already has its
    LoRA adapter; under Transformers the trainer adds it (`build_lora_config`). An adapter at `path` is merged; on 4-bit
    weights and under Unsloth it stays an adapter, which training continues.

    Args:
        max_tokens: of prompt and completion together; Unsloth allocates for it.
        seed: of the adapter's initial weights, under Unsloth.
        training: the weights will be trained.

    Raises:
        ParamsError: there is no such folder.
        BackendError: see `choose_backend`; or the adapter at `path` cannot be continued.
    """
    check_model_folder(path)
    backend = choose_backend(model)
    if has_adapter(path) and (model.load_in_4bit or backend == "unsloth"):
        _check_adapter(model, path)
    if backend == "unsloth":
        return _load_unsloth(model, path, max_tokens, seed)
    import torch
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of reading and writing weights; training has its own
    half = (model.precision == "bfloat16" and not training) or (model.lora is not None and uses_bfloat16(model))
    if model.load_in_4bit:
        network = _load_4bit(model, path, training=training)
    else:
        network = load_weights(path, torch.bfloat16 if half else torch.float32, model.attention)
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    _align_special_tokens(network, tokenizer, training=training)
    if not training:
        move_to_gpu(network)  # a trainer moves the network itself
    return network, tokenizer


def move_to_gpu(network: Any) -> None:
    """Move the network to the GPU, if there is one; 4-bit weights are there already."""
    if has_cuda() and not getattr(network, "is_loaded_in_4bit", False):
        network.to("cuda")


def has_adapter(path: str) -> bool:
    """Return whether the folder holds a LoRA adapter, not full weights."""
    return (Path(path) / "adapter_config.json").exists()


def load_weights(path: str, dtype: torch.dtype, attention: str | None = None) -> Any:
    """Load the network at `path`; a LoRA adapter is merged into the weights that it names as its base.

    If the adapter's tokenizer has more words than its base, the adapter provides their embeddings.

    Raises:
        ParamsError: `path` or an adapter's base is no folder.
    """
    check_model_folder(path)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not has_adapter(path):
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention, use_safetensors=True, trust_remote_code=False
        )
    from peft import PeftConfig, PeftModel  # which imports bitsandbytes, where that is installed

    base = PeftConfig.from_pretrained(path).base_model_name_or_path
    network = load_weights(base, dtype, attention)
    num_words = len(AutoTokenizer.from_pretrained(path, trust_remote_code=False))
    with torch.random.fork_rng():  # leaves the random state as loading merged weights does
        if num_words > network.get_input_embeddings().num_embeddings:
            network.resize_token_embeddings(num_words, mean_resizing=False)
        network = PeftModel.from_pretrained(network, path).merge_and_unload()
    network.name_or_path = path  # an adapter trained on these weights names them as its base
    return network


def uses_bfloat16(model: ModelConfig) -> bool:
    """Return whether training multiplies matrices in bfloat16: as `model.precision` says; `auto`: on CUDA."""
    return has_cuda() if model.precision == "auto" else model.precision == "bfloat16"


def build_lora_config(model: ModelConfig, network: Any) -> Any:
    """Return the PEFT configuration for the trainer; None without LoRA or if `network` already has its adapter."""
    if model.lora is None or hasattr(network, "peft_config"):
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=model.lora.r,
        lora_alpha=model.lora.alpha,
        lora_dropout=model.lora.dropout,
        target_modules=model.lora.target_modules,
        task_type="CAUSAL_LM",
    )


def save_model(network: Any, tokenizer: Any, folder: Path, *, adapter: bool = False) -> None:
    """Write the weights and the tokenizer to `folder`, replacing it, for `load_model` to read.

    They are written to a folder beside it, which is then renamed: `folder` is complete or as it was.

    Args:
        adapter: write only the LoRA adapter, which names its base; otherwise it is merged and full weights are written.

    Raises:
        CannotWriteError: the disk is full or the folder is not writable.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed run
    try:
        with name_write_errors(folder), name_write_errors(folder, partial):
            _write_model(network, tokenizer, partial, adapter)
            apply_umask(partial)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_model(network: Any, tokenizer: Any, folder: Path, adapter: bool) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:  # of the folder or one above
        raise OSError(error.errno, error.strerror, str(folder)) from None
    if hasattr(network, "save_pretrained_merged") and not adapter:  # Unsloth: 4-bit weights go back to 16 bits
        network.save_pretrained_merged(str(folder), tokenizer, save_method="merged_16bit")
        return
    if hasattr(network, "merge_and_unload") and not adapter:
        is_4bit = getattr(network, "is_loaded_in_4bit", False)
        network = _merge_with_stored_base(network, tokenizer) if is_4bit else network.merge_and_unload()
    network.config.use_cache = True  # trainers switch it off
    if not adapter:
        network.save_pretrained(folder)
    else:
        # The trainer may have added a second one, the KL term's reference. An adapter with trained embeddings of new
        # words stores these only, not a copy of all others.
        network.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)
        network.config.save_pretrained(folder)  # for libraries that look for it beside an adapter
    tokenizer.save_pretrained(folder)


def cast_adapter(network: Any) -> None:
    """Cast the trained weights on top of 4-bit ones to float32, in place.

    TRL casts them to bfloat16, whose steps are larger than an update at GRPO's learning rates.
    """
    import torch

    if getattr(network, "is_loaded_in_4bit", False):
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32)


def _check_adapter(model: ModelConfig, path: str) -> None:
    """Raise BackendError if the adapter at `path` is on another adapter, or has another rank or alpha than `model`."""
    from peft import PeftConfig

    config = PeftConfig.from_pretrained(path)
    if has_adapter(config.base_model_name_or_path):
        raise BackendError(
            f"{path} is an adapter on another one, {config.base_model_name_or_path}; fix: planward merge {path} FOLDER"
        )
    assert model.lora is not None
    for key, value, other in (("r", model.lora.r, config.r), ("alpha", model.lora.alpha, config.lora_alpha)):
        if value != other:
            raise BackendError(f"model.lora.{key} is {value}, but the adapter {path} has {other}; fix: {other}")


def _load_4bit(model: ModelConfig, path: str, *, training: bool) -> Any:
    """Load weights in 4 bits (NF4); an adapter at `path` stays on top and can be trained.

    Method: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023 (arXiv:2305.14314).
    """
    import torch
    from bitsandbytes.nn import Linear4bit
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base = PeftConfig.from_pretrained(path).base_model_name_or_path if has_adapter(path) else path
    check_model_folder(base)
    dtype = torch.bfloat16 if uses_bfloat16(model) else torch.float32
    network = AutoModelForCausalLM.from_pretrained(
        base,
        dtype=dtype,
        attn_implementation=model.attention,
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        ),
        use_safetensors=True,
        trust_remote_code=False,
    )
    if training:  # bitsandbytes 0.50.2 packs weights evaluated on a CPU with AVX-512 BF16 for a kernel without gradient
        for module in network.modules():
            if isinstance(module, Linear4bit):
                module.support_avx512bf16_for_cpu = False
    return PeftModel.from_pretrained(network, path, is_trainable=training) if has_adapter(path) else network


def _merge_with_stored_base(network: Any, tokenizer: Any) -> Any:
    """Return the weights that a 4-bit network was quantised from, with its adapter merged."""
    with TemporaryDirectory() as folder:
        save_model(network, tokenizer, Path(folder), adapter=True)
        return load_weights(folder, network.dtype)


def _load_unsloth(model: ModelConfig, path: str, max_tokens: int, seed: int) -> tuple[Any, Any]:
    import torch
    from unsloth import FastLanguageModel

    checkpointing = "unsloth" if model.gradient_checkpointing and has_cuda() else model.gradient_checkpointing
    network, tokenizer = FastLanguageModel.from_pretrained(
        model_name=path,
        max_seq_length=max_tokens,
        dtype=None if has_cuda() else torch.float32,
        load_in_4bit=model.load_in_4bit,
        full_finetuning=model.lora is None,
        trust_remote_code=False,
        use_safetensors=True,
        use_gradient_checkpointing=checkpointing,
    )
    if model.lora is not None and not has_adapter(path):
        network = FastLanguageModel.get_peft_model(
            network,
            r=model.lora.r,
            lora_alpha=model.lora.alpha,
            lora_dropout=model.lora.dropout,
            target_modules=model.lora.target_modules,
            use_gradient_checkpointing=checkpointing,
            random_state=seed,
        )
    _align_special_tokens(network, tokenizer, training=True)
    return network, tokenizer


def list_end_tokens(end: int, others: int | Sequence[int] | None) -> list[int]:
    """Return the tokens that end a completion: the tokenizer's, then what `generation_config.json` names beside it."""
    other_ends = [] if others is None else [others] if isinstance(others, int) else others
    return list(dict.fromkeys([end, *other_ends]))


def find_other_ends(tokenizer: Any, path: str) -> list[str]:
    """Return the tokens beside the tokenizer's own that end a completion of the model at `path`; not in training."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # no generation_config.json
        return []
    return list(tokenizer.convert_ids_to_tokens(list_end_tokens(tokenizer.eos_token_id, ends)[1:]))


def _align_special_tokens(network: Any, tokenizer: Any, *, training: bool) -> None:
    """Set left padding, and the same end and padding tokens everywhere: generation stops where training ends.

    Chat models that were not trained here may end their turns with other tokens as well.
    """
    if tokenizer.eos_token is None:
        raise ValueError(f"{tokenizer.name_or_path}: the tokenizer has no end-of-sequence token")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    for config in (network.config, network.generation_config):
        config.pad_token_id = tokenizer.pad_token_id
        ends = list_end_tokens(tokenizer.eos_token_id, None if training else config.eos_token_id)
        config.eos_token_id = ends[0] if len(ends) == 1 else ends
    network.generation_config._from_model_config = False  # otherwise generation rebuilds it from the model config
