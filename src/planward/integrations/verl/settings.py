"""Translate parameters to verl 0.9.1: Hydra overrides for `python -m verl.trainer.main_ppo`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planward.integrations.verl.config import ClusterConfig
from planward.params import Params, ParamsError

VERL_VERSION = "0.9.1"
TRAIN_FILE, VALIDATION_FILE, REWARD_FILE = "train.parquet", "validation.parquet", "reward.py"
PLAIN_CHAT_TEMPLATE = '{{ messages[0]["content"] }}'  # leaves a plain-text prompt unchanged
LOSSES = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))

# Known differences from TRL that no key of either can remove.
DIFFERENCES = (
    "lr_scheduler_type linear: verl logs the initial learning rate throughout; the one in use falls to 0",
    "entropy_coef with loss_type grpo: verl averages per completion first, TRL over all tokens",
    "scale_rewards group: verl adds 1e-6 to the standard deviation, TRL 1e-4",
    "audited verdicts: verl's are sampled by completion, TRL's by slot, so other completions are audited",
    "the rollout engine samples completions with its own random numbers, in bfloat16",
)


def build_settings(
    params: Params, cluster: ClusterConfig, *, model: str, plain: bool, name: str, checkpoints: Path
) -> dict[str, Any]:
    """verl's keys with their values, in groups.

    Args:
        params: of one run, as training gets them: of the task and variant; `seed` is the run's.
        model: path or name of the initial weights on the cluster's nodes.
        plain: prompts are plain text, not chat messages.
        name: of the run.
        checkpoints: the run's own folder.

    Raises:
        ParamsError: verl does not support a value; the message names every such key.
    """
    check_supported(params, cluster)
    grpo, limits, validation = params.grpo, params.prompt, params.validation
    micro_batch_size = _compute_micro_batch_size(params, cluster)
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": grpo.scale_rewards == "group",
        "algorithm.use_kl_in_reward": False,
        # Data: the schedule, in order.
        "data.train_files": TRAIN_FILE,
        "data.val_files": VALIDATION_FILE,
        "data.train_batch_size": grpo.batch_size,
        "data.shuffle": False,
        "data.validation_shuffle": False,
        "data.seed": params.seed,
        "data.max_prompt_length": limits.max_tokens,
        "data.max_response_length": limits.max_completion_tokens,
        "data.filter_overlong_prompts": False,
        "data.truncation": "error",
        "data.dataloader_num_workers": 1,
        **{f"+data.apply_chat_template_kwargs.{key}": value for key, value in limits.chat_template_options.items()},
        # Model.
        f"{MODEL}.path": model,
        f"{MODEL}.custom_chat_template": PLAIN_CHAT_TEMPLATE if plain else None,
        f"{MODEL}.trust_remote_code": False,
        f"{MODEL}.enable_gradient_checkpointing": params.model.gradient_checkpointing,
        f"{MODEL}.use_remove_padding": cluster.attention == "flash_attention_2",
        f"+{MODEL}.override_config.attn_implementation": cluster.attention,
        **_build_lora_settings(params),
        # Update: one a step, over all its completions.
        f"{ACTOR}.ppo_mini_batch_size": grpo.batch_size,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": micro_batch_size,
        f"{ACTOR}.ppo_epochs": 1,
        f"{ACTOR}.shuffle": False,
        f"{ACTOR}.data_loader_seed": params.seed,
        f"{ACTOR}.loss_agg_mode": LOSSES[grpo.loss_type],
        f"{ACTOR}.loss_scale_factor": limits.max_completion_tokens if grpo.loss_type == "dr_grpo" else None,
        f"{ACTOR}.use_kl_loss": grpo.beta > 0,
        f"{ACTOR}.kl_loss_coef": grpo.beta,
        f"{ACTOR}.kl_loss_type": "low_var_kl",  # k3 of Schulman, "Approximating KL divergence", 2020, as in TRL
        f"{ACTOR}.entropy_coeff": grpo.entropy_coef,
        f"{ACTOR}.grad_clip": grpo.max_grad_norm,
        f"{ACTOR}.optim.clip_grad": grpo.max_grad_norm,
        f"{ACTOR}.optim.lr": grpo.learning_rate,
        f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.0,
        f"{ACTOR}.optim.weight_decay": 0.0,
        **_build_scheduler_settings(params),
        f"{ACTOR}.fsdp_config.seed": params.seed,
        # verl gives an adapter this type, and AdamW's small updates round away in bf16; FSDP computes in bf16.
        f"{ACTOR}.fsdp_config.model_dtype": "fp32",
        f"{ACTOR}.fsdp_config.param_offload": cluster.offload,
        f"{ACTOR}.fsdp_config.optimizer_offload": cluster.offload,
        f"{REF}.log_prob_micro_batch_size_per_gpu": micro_batch_size,
        f"{REF}.fsdp_config.param_offload": cluster.offload,
        # Rollouts.
        f"{ROLLOUT}.name": cluster.rollout,
        f"{ROLLOUT}.n": grpo.num_generations,
        f"{ROLLOUT}.temperature": grpo.temperature,
        f"{ROLLOUT}.top_p": grpo.top_p,
        f"{ROLLOUT}.top_k": grpo.top_k or -1,
        f"{ROLLOUT}.seed": params.seed,
        f"{ROLLOUT}.tensor_model_parallel_size": cluster.tensor_parallel,
        f"{ROLLOUT}.gpu_memory_utilization": cluster.gpu_memory_utilization,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": micro_batch_size,
        f"{ROLLOUT}.val_kwargs.do_sample": False,
        f"{ROLLOUT}.val_kwargs.temperature": 0,
        f"{ROLLOUT}.val_kwargs.n": 1,
        # Rewards.
        "reward.custom_reward_function.path": REWARD_FILE,
        "reward.custom_reward_function.name": "compute_score",
        "reward.reward_manager.name": "naive",
        "reward.num_workers": cluster.reward_workers,
        # Trainer.
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
        "trainer.v1.sampler.custom_sampler.path": "pkg://planward.integrations.verl.groups",
        "trainer.v1.sampler.custom_sampler.name": "CompleteGroupsBuffer",
        "trainer.nnodes": cluster.nodes,
        "trainer.n_gpus_per_node": cluster.gpus_per_node,
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": grpo.steps,
        "trainer.save_freq": grpo.save_steps,
        "trainer.max_actor_ckpt_to_keep": cluster.keep_checkpoints,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": str(checkpoints),
        "trainer.test_freq": validation.steps or -1,
        "trainer.val_before_train": validation.steps > 0,
        "trainer.logger": ["console", *params.logging.report_to],
        "trainer.project_name": params.logging.project,
        "trainer.experiment_name": name,
    }


def check_supported(params: Params, cluster: ClusterConfig) -> None:
    """Raise ParamsError, naming every key, if the parameters ask for something that verl does not support."""
    if faults := list(iter_unsupported(params, cluster)):
        raise ParamsError("\n".join(["verl does not support these parameters:", *(f"  {fault}" for fault in faults)]))


def iter_unsupported(params: Params, cluster: ClusterConfig) -> Iterator[str]:
    """Parameters that verl does not support, one line each: the key, the reason and the fix."""
    grpo, model = params.grpo, params.model
    adaptive = grpo.adaptive
    for key in ("curriculum", "domain_weights", "dynamic_sampling"):
        if getattr(adaptive, key):
            yield f"grpo.adaptive.{key}: verl trains on the fixed schedule; fix: false"
    if grpo.replay:
        yield "grpo.replay: verl does not insert stored plans into groups; fix: false"
    if grpo.temperatures is not None:
        yield "grpo.temperatures: verl has one temperature for all prompts; fix: null, and set grpo.temperature"
    if grpo.warmup_ratio:
        yield "grpo.warmup_ratio: its schedule would differ from TRL's; fix: 0.0"
    if params.validation.patience is not None:
        yield "validation.patience: verl does not stop early; fix: null"
    if grpo.loss_type not in LOSSES:
        yield f"grpo.loss_type: verl has no {grpo.loss_type}; fix: one of {', '.join(LOSSES)}"
    if grpo.entropy_coef and grpo.loss_type == "dr_grpo":
        yield "grpo.entropy_coef: under dr_grpo, verl weights the bonus by length; fix: grpo.loss_type: dapo or grpo"
    if grpo.scale_rewards == "batch":
        yield "grpo.scale_rewards: verl has no batch; fix: none or group"
    if model.backend == "unsloth":
        yield "model.backend: verl does not use Unsloth; fix: auto or transformers"
    if model.load_in_4bit:
        yield "model.load_in_4bit: verl trains in 16 or 32 bits; fix: false"
    if model.precision == "float32":
        yield "model.precision: verl multiplies matrices in bfloat16; fix: auto or bfloat16"
    if model.lora is not None and model.lora.dropout:
        yield "model.lora.dropout: verl has no dropout; fix: 0.0"
    if grpo.batch_size * grpo.num_generations % cluster.gpus:
        yield (
            f"grpo.batch_size x grpo.num_generations: {grpo.batch_size} x {grpo.num_generations} completions do not "
            f"divide evenly by cluster.nodes x cluster.gpus_per_node = {cluster.gpus} GPUs"
        )


def format_overrides(values: Mapping[str, Any]) -> list[str]:
    """Settings as arguments of Hydra's command line."""
    return [f"{key}={_format_value(value)}" for key, value in values.items()]


def _format_value(value: Any) -> str:
    """A value in Hydra's grammar (hydra.cc/docs/advanced/override_grammar)."""
    if value is None:
        return "null"
    if isinstance(value, str):  # backslashes are escapes only before a quote
        return "'" + re.sub(r"(\\*)('|$)", lambda end: end[1] * 2 + ("\\'" if end[2] else ""), value) + "'"
    if isinstance(value, list):
        return "[" + ",".join(map(_format_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_format_value(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _build_lora_settings(params: Params) -> dict[str, Any]:
    lora = params.model.lora
    if lora is None:
        return {f"{MODEL}.lora_rank": 0}
    return {
        f"{MODEL}.lora_rank": lora.r,
        f"{MODEL}.lora_alpha": lora.alpha,
        f"{MODEL}.target_modules": lora.target_modules,
    }


def _build_scheduler_settings(params: Params) -> dict[str, Any]:
    """Learning-rate schedule; linear decay is `LinearAdamW` under verl's constant schedule."""
    optim, grpo = f"{ACTOR}.optim", params.grpo
    if grpo.lr_scheduler_type != "linear":
        return {f"{optim}.lr_scheduler_type": grpo.lr_scheduler_type, f"{optim}.min_lr_ratio": 0.0}
    return {
        f"{optim}.lr_scheduler_type": "constant",
        f"{optim}.optimizer_impl": "planward.integrations.verl.optimizers",
        f"{optim}.optimizer": "LinearAdamW",
        f"{optim}.override_optimizer_config": {"updates": grpo.steps},
    }


def _compute_micro_batch_size(params: Params, cluster: ClusterConfig) -> int:
    """Completions a forward pass on one GPU: the most up to `grpo.micro_batch_size` that divide a GPU's share."""
    share = params.grpo.batch_size * params.grpo.num_generations // cluster.gpus
    return next(size for size in range(min(params.grpo.micro_batch_size, share), 0, -1) if share % size == 0)
