"""params.yaml in verl's words: Hydra overrides for `python -m verl.trainer.main_ppo`, written for verl 0.9.1."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planward.params import Cluster, Params, ParamsError

VERL = "0.9.1"  # whose keys these are
TRAIN, VALIDATION, REWARD = "train.parquet", "validation.parquet", "reward.py"
PLAIN = '{{ messages[0]["content"] }}'  # the chat template under which a prompt of plain text stays as it is
LOSSES = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
ACTOR, ROLLOUT, REF, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model"))

# Where verl computes something else than TRL does, and no key of either can mend it.
DIFFERENCES = (
    "lr_scheduler_type linear: verl logs the first learning rate throughout; the one in use falls to 0",
    "entropy_coef with loss_type grpo: a mean over completions of means over tokens, where TRL's is over all tokens",
    "scale_rewards group: the standard deviation + 1e-6, where TRL adds 1e-4",
    "audited verdicts: drawn by completion, where TRL draws them by place, so others are audited",
    "completions are sampled by the rollout engine, with random numbers of its own, in bfloat16",
)


def settings(params: Params, *, model: str, plain: bool, name: str, checkpoints: Path) -> dict[str, Any]:
    """verl's keys, in groups, with their values.

    Args:
        params: of one run, as training gets them: of the task and variant, `seed` the run's.
        model: the weights that training starts from, as the cluster's machines find them.
        plain: prompts are plain text, not chat messages.
        name: the run's.
        checkpoints: the run's own folder.

    Raises:
        ParamsError: params.yaml asks for something that verl does not do; the message names every such key.
    """
    check_possible(params)
    grpo, limits, validation, cluster = params.grpo, params.prompt, params.validation, params.cluster
    forward = _forward(params)
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": grpo.scale_rewards == "group",
        "algorithm.use_kl_in_reward": False,
        # The schedule, in order.
        "data.train_files": TRAIN,
        "data.val_files": VALIDATION,
        "data.train_batch_size": grpo.batch_size,
        "data.shuffle": False,
        "data.validation_shuffle": False,
        "data.seed": params.seed,
        "data.max_prompt_length": limits.max_tokens,
        "data.max_response_length": limits.max_completion_tokens,
        "data.filter_overlong_prompts": False,
        "data.truncation": "error",
        "data.dataloader_num_workers": 1,
        # The model.
        f"{MODEL}.path": model,
        f"{MODEL}.custom_chat_template": PLAIN if plain else None,
        f"{MODEL}.trust_remote_code": False,
        f"{MODEL}.enable_gradient_checkpointing": params.model.gradient_checkpointing,
        f"{MODEL}.use_remove_padding": cluster.attention == "flash_attention_2",
        f"+{MODEL}.override_config.attn_implementation": cluster.attention,
        **_lora(params),
        # The update: one a step, over all its completions.
        f"{ACTOR}.ppo_mini_batch_size": grpo.batch_size,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": forward,
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
        **_falling(params),
        f"{ACTOR}.fsdp_config.seed": params.seed,
        f"{ACTOR}.fsdp_config.model_dtype": "bf16" if params.model.lora else "fp32",
        f"{ACTOR}.fsdp_config.param_offload": cluster.offload,
        f"{ACTOR}.fsdp_config.optimizer_offload": cluster.offload,
        f"{REF}.log_prob_micro_batch_size_per_gpu": forward,
        f"{REF}.fsdp_config.param_offload": cluster.offload,
        # The completions.
        f"{ROLLOUT}.name": cluster.rollout,
        f"{ROLLOUT}.n": grpo.num_generations,
        f"{ROLLOUT}.temperature": grpo.temperature,
        f"{ROLLOUT}.top_p": grpo.top_p,
        f"{ROLLOUT}.top_k": grpo.top_k or -1,
        f"{ROLLOUT}.seed": params.seed,
        f"{ROLLOUT}.tensor_model_parallel_size": cluster.tensor_parallel,
        f"{ROLLOUT}.gpu_memory_utilization": cluster.gpu_memory_utilization,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": forward,
        f"{ROLLOUT}.val_kwargs.do_sample": False,
        f"{ROLLOUT}.val_kwargs.temperature": 0,
        f"{ROLLOUT}.val_kwargs.n": 1,
        # The rewards.
        "reward.custom_reward_function.path": REWARD,
        "reward.custom_reward_function.name": "compute_score",
        "reward.reward_manager.name": "naive",
        "reward.num_workers": cluster.reward_workers,
        # The run.
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
        "trainer.v1.sampler.custom_sampler.path": "pkg://planward.clusters.verl.groups",
        "trainer.v1.sampler.custom_sampler.name": "WholeGroups",
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
        "trainer.logger": ["console", *grpo.report_to],
        "trainer.project_name": "planward",
        "trainer.experiment_name": name,
    }


def check_possible(params: Params) -> None:
    """Raise ParamsError, which names every such key, where params.yaml asks for something that verl does not do."""
    if faults := list(impossible(params)):
        raise ParamsError("\n".join(["verl cannot do what params.yaml asks for:", *(f"  {fault}" for fault in faults)]))


def impossible(params: Params) -> Iterator[str]:
    """What the parameters ask for and verl does not do, a line each: the key, and what to do about it."""
    grpo, model = params.grpo, params.model
    adaptive = grpo.adaptive
    for key in ("curriculum", "domain_weights", "dynamic_sampling"):
        if getattr(adaptive, key):
            yield f"grpo.adaptive.{key}: verl trains on the schedule as it was drawn; take false"
    if grpo.replay:
        yield "grpo.replay: verl puts no stored plans in place of completions; take false"
    if grpo.temperatures is not None:
        yield "grpo.temperatures: verl has one temperature for all prompts; take null and set grpo.temperature"
    if grpo.loss_type not in LOSSES:
        yield f"grpo.loss_type: verl has no {grpo.loss_type}; take {', '.join(LOSSES)}"
    if grpo.entropy_coef and grpo.loss_type == "dr_grpo":
        yield "grpo.entropy_coef: under dr_grpo, verl weighs the bonus by length; take grpo.loss_type: dapo or grpo"
    if grpo.scale_rewards == "batch":
        yield "grpo.scale_rewards: verl has no batch; take none or group"
    if model.backend == "unsloth":
        yield "model.backend: verl does not use Unsloth; take auto or transformers"
    if model.load_in_4bit:
        yield "model.load_in_4bit: verl trains on 16 or 32 bits; take false"
    if model.lora is not None and model.lora.dropout:
        yield "model.lora.dropout: verl has none; take 0.0"
    gpus = _gpus(params.cluster)
    if grpo.batch_size * grpo.num_generations % gpus:
        yield (
            f"grpo.batch_size x grpo.num_generations: {grpo.batch_size} x {grpo.num_generations} completions cannot "
            f"be shared evenly by cluster.nodes x cluster.gpus_per_node = {gpus} GPUs"
        )


def hydra_lines(chosen: Mapping[str, Any]) -> list[str]:
    """The settings as Hydra takes them on its command line, one argument a line."""
    return [f"{key}={_hydra(value)}" for key, value in chosen.items()]


def _hydra(value: Any) -> str:
    """A value in Hydra's grammar (hydra.cc/docs/advanced/override_grammar)."""
    if value is None:
        return "null"
    if isinstance(value, str):  # backslashes count only where a quote follows
        return "'" + re.sub(r"(\\*)('|$)", lambda end: end[1] * 2 + ("\\'" if end[2] else ""), value) + "'"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _lora(params: Params) -> dict[str, Any]:
    lora = params.model.lora
    if lora is None:
        return {f"{MODEL}.lora_rank": 0}
    return {
        f"{MODEL}.lora_rank": lora.r,
        f"{MODEL}.lora_alpha": lora.alpha,
        f"{MODEL}.target_modules": lora.target_modules,
    }


def _falling(params: Params) -> dict[str, Any]:
    """How the learning rate falls; a linear fall is an optimizer of ours under a constant schedule."""
    optim, grpo = f"{ACTOR}.optim", params.grpo
    if grpo.lr_scheduler_type != "linear":
        return {f"{optim}.lr_scheduler_type": grpo.lr_scheduler_type, f"{optim}.min_lr_ratio": 0.0}
    return {
        f"{optim}.lr_scheduler_type": "constant",
        f"{optim}.optimizer_impl": "planward.clusters.verl.optimizers",
        f"{optim}.optimizer": "LinearAdamW",
        f"{optim}.override_optimizer_config": {"updates": grpo.steps},
    }


def _forward(params: Params) -> int:
    """Completions a forward pass on one GPU: the most up to `grpo.micro_batch_size` that divide a GPU's share."""
    share = params.grpo.batch_size * params.grpo.num_generations // _gpus(params.cluster)
    return next(size for size in range(min(params.grpo.micro_batch_size, share), 0, -1) if share % size == 0)


def _gpus(cluster: Cluster) -> int:
    return cluster.nodes * cluster.gpus_per_node
