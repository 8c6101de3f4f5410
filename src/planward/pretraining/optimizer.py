"""Muon for matrices and AdamW for the other weights, as one optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer


class MuonWithAdamW(Optimizer):
    """Steps matrices with Muon (Jordan et al. 2024) and the other weights with AdamW.

    Muon's steps have the size of AdamW's (Liu et al. 2025, arXiv:2502.16982, section 2.2), so both share one learning
    rate and its schedule.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        others: list[nn.Parameter],
        learning_rate: float,
        adam_beta2: float,
        weight_decay: float,
    ) -> None:
        muon = Muon(matrices, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        adam = AdamW(others, lr=learning_rate, betas=(0.9, adam_beta2), weight_decay=weight_decay)
        self.optimizers: list[Optimizer] = [muon, adam]
        super().__init__([*muon.param_groups, *adam.param_groups], {})
        self._share_groups()

    def _share_groups(self) -> None:
        """Let a scheduler that changes a group change the one that steps."""
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self._share_groups()
