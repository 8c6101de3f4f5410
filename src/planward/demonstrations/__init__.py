"""Choosing worked examples for a frozen model's prompts: beams, pointer selector, its training."""
