"""AdamW with a linear decay of the learning rate as in TRL; verl 0.9.1 has no such schedule but accepts optimizers."""

from __future__ import annotations

from typing import Any

import torch


class LinearAdamW(torch.optim.AdamW):
    """AdamW whose learning rate falls from `lr` to 0 over `updates` updates.

    The number of updates so far is read from the optimizer state, so a run resumed from a checkpoint continues the
    decay. The parameter groups keep their `lr`, which verl's constant schedule sets and verl logs.
    """

    def __init__(self, params: Any, *, updates: int, **settings: Any) -> None:
        super().__init__(params, **settings)
        self.updates = updates

    def compute_factor(self) -> float:
        """Factor on `lr` of the next update."""
        count = max((int(state["step"]) for state in self.state.values() if "step" in state), default=0)
        return max(1 - count / self.updates, 0.0)

    def step(self, closure: Any = None) -> Any:
        factor, rates = self.compute_factor(), [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= factor
        try:
            return super().step(closure)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate
