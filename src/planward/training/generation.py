"""Who generates the completions of GRPO: `model.generation` as arguments of TRL, and what it rules out."""

from __future__ import annotations

from typing import Any

from planward.inference.models import BackendError, choose_backend
from planward.inference.vllm import check_vllm, require_vllm
from planward.params import Params


def check_generation(params: Params, base: str) -> None:
    """Refuse parameters that the generation of completions would ignore.

    Args:
        base: the weights that training starts from.

    Raises:
        BackendError: vLLM is not installed or cannot do what a parameter asks for; the message names the key.
    """
    if params.model.generation != "vllm":
        return
    check_vllm(params.model, base)
    grpo = params.grpo
    conflicts = {
        "grpo.temperatures": (grpo.temperatures is not None, "null: TRL passes vLLM one temperature"),
        "grpo.replay": (grpo.replay, "false: the loss needs vLLM's log-probabilities of every completion"),
        "grpo.extendable": (grpo.extendable, "false: vLLM's samples are not the same in every run"),
    }
    for key, (is_set, remedy) in conflicts.items():
        if is_set:
            raise BackendError(f"model.generation: vllm needs {key}: {remedy}")
    if choose_backend(params.model) == "unsloth":
        raise BackendError("model.generation: vllm needs model.backend: transformers (auto chose unsloth)")
    require_vllm()


def build_generation_arguments(params: Params) -> dict[str, Any]:
    """Return the arguments of `GRPOConfig` for vLLM; none if a network generates."""
    if params.model.generation != "vllm":
        return {}
    vllm, limits = params.model.vllm, params.prompt
    arguments: dict[str, Any] = {"use_vllm": True, "vllm_mode": vllm.mode}
    if vllm.mode == "server":
        return arguments | {"vllm_server_base_url": vllm.url}
    return arguments | {
        "vllm_gpu_memory_utilization": vllm.gpu_memory_utilization,
        "vllm_tensor_parallel_size": vllm.tensor_parallel_size,
        "vllm_max_model_length": limits.max_tokens + limits.max_completion_tokens,
    }
