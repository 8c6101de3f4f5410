"""The precision of matrix products."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def choose_precision(precision: Precision | Literal["auto"], device_type: str) -> Precision:
    """Return what `auto` stands for on a device: bfloat16 where it has instructions for it, else float32."""
    if precision != "auto":
        return precision
    return "bfloat16" if has_bfloat16(device_type) else "float32"


def has_bfloat16(device_type: str) -> bool:
    """Return whether a device multiplies matrices in bfloat16 by instructions.

    A processor does if oneDNN can, with which torch multiplies. Without it, torch's own loop takes some 100 times as
    long as float32.
    """
    if device_type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device_type != "cpu":
        return True
    is_available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
