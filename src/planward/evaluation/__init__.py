"""Prompts, completions and verdicts for evaluation."""
