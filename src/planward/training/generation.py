"""Who generates the completions of GRPO: `model.generation` as arguments of TRL, and what it and Unsloth rule out."""

from __future__ import annotations

from typing import Any

from planward.inference.models import BackendError, choose_backend, has_adapter
from planward.inference.vllm import check_vllm, require_vllm
from planward.params import Params


def check_generation(params: Params, base: str) -> None:
    """Refuse parameters that vLLM or Unsloth would ignore, and what `check_reference` refuses.

    Args:
        base: the weights that training starts from.

    Raises:
        BackendError: one of them cannot do what a parameter asks for, or vLLM is not installed; the message names the
            key.
    """
    grpo, model = params.grpo, params.model
    check_reference(params, base)
    if model.generation == "vllm":
        check_vllm(model, base)
        conflicts = {
            "grpo.temperatures": (grpo.temperatures is not None, "null: TRL passes vLLM one temperature"),
            "grpo.replay": (grpo.replay, "false: the loss needs vLLM's log-probabilities of every completion"),
            "grpo.extendable": (grpo.extendable, "false: vLLM's samples are not the same in every run"),
        }
        _refuse("model.generation: vllm", conflicts)
        if choose_backend(model) == "unsloth":
            raise BackendError("model.generation: vllm needs model.backend: transformers (auto chose unsloth)")
        require_vllm()
    elif choose_backend(model) == "unsloth":
        check_unsloth(params)


def check_reference(params: Params, base: str) -> None:
    """Refuse a KL term against other weights than those at `base`; raises BackendError, which names the key.

    TRL loads the reference from the folder that the configuration names, which for a merged adapter is its base's.
    """
    has_lora = params.model.lora is not None or params.grpo.lora is not None
    if params.grpo.beta > 0 and not has_lora and has_adapter(base):
        raise BackendError(
            f"grpo.beta: {params.grpo.beta:g}, but {base} is an adapter, and its KL term would be against the weights "
            f"below the adapter; fix: planward merge {base} FOLDER, and start there; or model.lora; or grpo.beta: 0"
        )


def check_unsloth(params: Params) -> None:
    """Refuse parameters that Unsloth's GRPO would ignore; raises BackendError, which names the key."""
    grpo = params.grpo
    override = grpo.loss_type == "dr_grpo" and grpo.scale_rewards == "group"
    conflicts = {
        "grpo.temperatures": (grpo.temperatures is not None, "null: its loss has one temperature"),
        "grpo.scale_rewards": (override, "none: with dr_grpo it does not scale rewards"),
        "grpo.beta": (
            grpo.beta > 0 and params.model.keeps_adapter,
            "0.0, or model.lora.merge: true: its KL term is against the weights below the adapter",
        ),
    }
    _refuse("model.backend: unsloth", conflicts)


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


def _refuse(source: str, conflicts: dict[str, tuple[bool, str]]) -> None:
    for key, (is_set, remedy) in conflicts.items():
        if is_set:
            raise BackendError(f"{source} needs {key}: {remedy}; fix: that, or another {source.partition(':')[0]}")
