"""Whether the packages and the GPU are here that `model` asks for, and what vLLM cannot do."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from planward.core.paths import params_file
from planward.inference.models import BackendError, has_cuda
from planward.inference.vllm import check_vllm, require_vllm
from planward.params import ModelConfig, Params
from planward.preflight.services import list_url_faults
from planward.training.generation import check_generation, check_unsloth

NO_CUDA = "needs CUDA, and torch finds no GPU"
FLASH_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


def list_backend_faults(model: ModelConfig, task: str, *, local: bool) -> list[str]:
    """Return why a model cannot be loaded by `model.backend`, in 4 bits where it asks for them.

    Args:
        local: on this machine.
    """
    faults, file, has_unsloth = list[str](), params_file(task), find_spec("unsloth") is not None
    if model.load_in_4bit and model.lora is None:
        faults.append(f"{file}: model.load_in_4bit: 4-bit weights themselves cannot be trained; fix: set model.lora")
    if model.backend == "unsloth" and not has_unsloth:
        faults.append(f"{file}: model.backend: unsloth is not installed; fix: pip install -e '.[gpu]'")
    if model.backend == "unsloth" and local and os.environ.get("UNSLOTH_ALLOW_CPU") != "1" and not has_cuda():
        faults.append(f"{file}: model.backend: unsloth {NO_CUDA}; fix: model.backend: auto, or a machine with a GPU")
    may_be_unsloth = model.backend == "unsloth" or (model.backend == "auto" and has_unsloth)
    if model.load_in_4bit and not may_be_unsloth and find_spec("bitsandbytes") is None:
        faults.append(
            f"{file}: model.load_in_4bit: needs bitsandbytes, which is not installed; fix: pip install -e '.[4bit]'"
        )
    return faults


def list_precision_warnings(precision: str, source: str) -> list[str]:
    """Return that this machine has no instructions for a precision; results are right, and take long.

    Args:
        source: file and key that name it.
    """
    if precision != "bfloat16" or has_cuda():
        return []
    from planward.inference.precision import has_bfloat16

    if has_bfloat16("cpu"):
        return []
    text = "this processor has no instructions for bfloat16, and can take 100 times as long as with float32"
    return [f"{source}: {text}; fix: float32"]


def list_unsloth_faults(params: Params) -> list[str]:
    """Return which parameter of GRPO Unsloth would ignore, where `model.backend` asks for it or would choose it."""
    backend, may_be_chosen = params.model.backend, find_spec("unsloth") is not None and has_cuda()
    if backend != "unsloth" and not (backend == "auto" and may_be_chosen):
        return []
    return [f"{params_file(params.task)}: {fault}" for fault in _catch(check_unsloth, params)]


def list_attention_faults(model: ModelConfig, task: str, *, local: bool) -> list[str]:
    """Return why Transformers cannot compute attention as `model.attention` asks; Unsloth has its own.

    Args:
        local: on this machine.
    """
    package = FLASH_PACKAGES.get(model.attention or "")
    if package is None or model.backend == "unsloth":
        return []
    if model.backend == "auto" and find_spec("unsloth") and (has_cuda() or not local):
        return []
    source, faults = f"{params_file(task)}: model.attention: {model.attention}", list[str]()
    if find_spec(package) is None and find_spec("kernels") is None:
        fix = f"pip install {'flash-attn' if package == 'flash_attn' else 'kernels'}, or model.attention: sdpa"
        faults.append(f"{source} needs {package} or kernels, of which none is installed; fix: {fix}")
    if local and not has_cuda():
        faults.append(f"{source} {NO_CUDA}; fix: model.attention: sdpa, or a machine with a GPU")
    return faults


def list_vllm_faults(params: Params, path: str | None, *, trains: bool, local: bool) -> list[str]:
    """Return why vLLM cannot generate, where `model.generation` asks for it.

    Args:
        path: the weights; None where a stage is yet to make them.
        trains: for GRPO.
        local: on this machine.
    """
    model, file = params.model, params_file(params.task)
    if model.generation != "vllm":
        return []
    faults = _catch(check_vllm, model, path or "")
    if path is None and model.keeps_adapter:
        faults.append("model.lora.merge: false, but model.generation: vllm needs full weights; fix: true")
    if trains or model.vllm.mode == "colocate":
        faults += _catch(require_vllm)
    if model.vllm.mode == "colocate" and local and not has_cuda():
        faults.append(f"model.vllm.mode: colocate {NO_CUDA}; fix: model.generation: own, or a machine with a GPU")
    if trains and not faults and not (model.backend == "auto" and find_spec("unsloth")):  # which would be imported
        faults += _catch(check_generation, params, path or "")
    if model.vllm.mode == "server":
        faults += list_url_faults(model.vllm.url, "model.vllm.url", "start `vllm serve`, or correct the URL")
    return [f"{file}: {fault}" for fault in faults]


def _catch(check: Callable[..., None], *arguments: Any) -> list[str]:
    try:
        check(*arguments)
    except BackendError as error:
        return [str(error)]
    return []
