"""A learning rate that falls linearly, as TRL's does: verl 0.9.1 has none, but takes optimizers."""

from __future__ import annotations

from typing import Any

import torch


class LinearAdamW(torch.optim.AdamW):
    """AdamW whose learning rate falls from `lr` to 0 over `updates` updates.

    How many have been made is read from the moments, so a run that goes on from a checkpoint goes on here. The groups'
    own `lr` stays as it is, for a constant schedule to set it: what verl logs is the first learning rate.
    """

    def __init__(self, params: Any, *, updates: int, **settings: Any) -> None:
        super().__init__(params, **settings)
        self.updates = updates

    def share(self) -> float:
        """Of `lr`, that the next update uses."""
        made = max((int(state["step"]) for state in self.state.values() if "step" in state), default=0)
        return max(1 - made / self.updates, 0.0)

    def step(self, closure: Any = None) -> Any:
        share, whole = self.share(), [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= share
        try:
            return super().step(closure)
        finally:
            for group, lr in zip(self.param_groups, whole, strict=True):
                group["lr"] = lr
