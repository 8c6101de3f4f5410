"""Parameters of a run on a Ray cluster through verl: workflow/cluster/params.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from planward.core import paths
from planward.params import Section, read_yaml, validate_section

CLUSTER_FILE = paths.params_file("cluster")


class ClusterConfig(Section):
    """The machines that verl trains on; `settings.build_settings` maps each key to verl's."""

    nodes: int = Field(gt=0)
    gpus_per_node: int = Field(gt=0)
    rollout: Literal["vllm", "sglang"]
    tensor_parallel: int = Field(gt=0)
    gpu_memory_utilization: float = Field(gt=0, lt=1)
    attention: Literal["flash_attention_2", "sdpa"]
    offload: bool
    reward_workers: int = Field(gt=0)
    model: str | None
    checkpoints: Path
    keep_checkpoints: int = Field(gt=0)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return self.nodes * self.gpus_per_node

    @field_validator("checkpoints")
    @classmethod
    def check_checkpoints(cls, folder: Path) -> Path:
        if not folder.is_absolute():
            raise ValueError("must be an absolute path: every job has another working directory")
        return folder

    @model_validator(mode="after")
    def check_tensor_parallel(self) -> ClusterConfig:
        if self.gpus % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel ({self.tensor_parallel}) must divide nodes x gpus_per_node = {self.gpus}"
            )
        return self


def load_cluster_config(root: Path = Path()) -> ClusterConfig:
    """Read and check workflow/cluster/params.yaml below `root`.

    Raises:
        ParamsError: the file is missing, is not YAML, or has an unknown key or a wrong value.
    """
    path = root / CLUSTER_FILE
    return validate_section(ClusterConfig, read_yaml(path), str(path))
