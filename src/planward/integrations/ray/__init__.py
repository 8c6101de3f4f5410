"""Verify completions and generate problems on a Ray cluster."""
