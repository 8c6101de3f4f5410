"""Stages on problems that are unlike those of training."""
